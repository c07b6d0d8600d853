//! What the suites measure: each part is one command line of `ropeway bench`.

/// A part of a suite.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Also the name of its result file.
    pub name: &'static str,
    /// What it shows, and the figure of the documents that it stands for (docs/sources.md).
    pub about: &'static str,
    pub at: At,
    pub pattern: &'static str,
    pub transports: &'static str,
    /// Further arguments, separated by blanks.
    pub arguments: &'static str,
}

/// Where the ranks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Processes of this host.
    Here,
    /// Hosts of a box without rates: as fast as the processors can.
    Direct(usize),
    /// Hosts of a box whose ports have 1 Gbit/s and 128 KiB.
    Port(usize),
    /// Simulated or counted: neither machine nor network matter.
    Anywhere,
}

const fn part(
    name: &'static str,
    about: &'static str,
    at: At,
    pattern: &'static str,
    transports: &'static str,
    arguments: &'static str,
) -> Part {
    Part { name, about, at, pattern, transports, arguments }
}

/// Everything once, in less than two minutes.
pub const QUICK: &[Part] = &[
    part(
        "latency",
        "one-way time of small messages",
        At::Here,
        "pingpong",
        "tcp,tcp-spin,unix,ropeway,cache-line",
        "--size 1,64,1Ki,16Ki --seconds 0.05",
    ),
    part(
        "stream",
        "one direction, large writes",
        At::Here,
        "stream",
        "tcp,unix,ropeway,memcpy",
        "--size 16Ki,128Ki --seconds 0.1",
    ),
    part(
        "rate",
        "small messages, one call each",
        At::Here,
        "rate",
        "tcp,tcp-spin,unix,ropeway",
        "--size 8 --seconds 0.1",
    ),
    part(
        "requests",
        "round trips with 16 requests outstanding",
        At::Here,
        "request-response",
        "tcp,ropeway",
        "--set outstanding=16 --seconds 0.1",
    ),
    part("incast", "two send to one", At::Here, "many-one", "tcp,ropeway", "--ranks 3 --size 64Ki --seconds 0.1"),
    part(
        "hosts-latency",
        "one-way time between two hosts",
        At::Direct(2),
        "pingpong",
        WIRE,
        "--size 64,1Ki --seconds 0.05",
    ),
    part(
        "hosts-stream",
        "one direction between two hosts",
        At::Direct(2),
        "stream",
        BULK,
        "--size 128Ki --seconds 0.1",
    ),
    part("noise", "what this host takes away", At::Here, "noise", "tcp", "--seconds 0.2"),
];

/// Between hosts: the kernel's and Ropeway's own.
const WIRE: &str = "tcp:cubic,tcp-spin:cubic,udp,ropeway-udp,ropeway-packet";
/// Large messages: UDP takes 64 KiB at most.
const BULK: &str = "tcp:cubic,tcp-spin:cubic,ropeway-udp,ropeway-packet";
/// The same without those that spin: more ranks than processors.
const CROWDED: &str = "tcp:cubic,ropeway-udp,ropeway-packet";

/// Every pattern over the transports to which it means something; about ten minutes.
pub const FULL: &[Part] = &[
    part(
        "latency",
        "one-way time over sizes",
        At::Here,
        "pingpong",
        "tcp,tcp-spin,unix,ropeway,ropeway-spin,cache-line",
        "--size 1,8,64,256,1Ki,4Ki,16Ki,64Ki --seconds 0.1",
    ),
    part(
        "stream",
        "one direction over sizes of writes",
        At::Here,
        "stream",
        "tcp,tcp-spin,unix,ropeway,memcpy",
        "--size 64,1Ki,4Ki,16Ki,128Ki,1Mi --seconds 0.1",
    ),
    part(
        "rate",
        "small messages, one call each",
        At::Here,
        "rate",
        "tcp,tcp-spin,unix,ropeway",
        "--size 1,8,64,256 --seconds 0.1",
    ),
    part(
        "bidirectional",
        "both directions at once",
        At::Here,
        "bidirectional",
        "tcp,unix,ropeway",
        "--size 128Ki --seconds 0.2",
    ),
    part(
        "bisection",
        "random pairs of four",
        At::Here,
        "one-one",
        "tcp,unix,ropeway",
        "--ranks 4 --size 128Ki --seconds 0.2",
    ),
    part(
        "fan-in",
        "three send to one",
        At::Here,
        "many-one",
        "tcp,unix,ropeway",
        "--ranks 4 --size 1Ki,64Ki --seconds 0.2",
    ),
    part(
        "fan-out",
        "one sends to three",
        At::Here,
        "one-many",
        "tcp,unix,ropeway",
        "--ranks 4 --size 64Ki --seconds 0.2",
    ),
    part(
        "exchange",
        "everybody sends to everybody",
        At::Here,
        "all-to-all",
        "tcp,unix,ropeway",
        "--ranks 4 --size 16Ki --seconds 0.2",
    ),
    part(
        "closed-loop",
        "round trips with requests outstanding",
        At::Here,
        "request-response",
        "tcp,tcp-spin,ropeway",
        "--set outstanding=1,4,16,64 --seconds 0.1",
    ),
    part(
        "open-loop",
        "responses at a given rate, from the moment at which each was due",
        At::Here,
        "request-response",
        "tcp,ropeway",
        "--set rate=1000,10000,40000 --seconds 0.2",
    ),
    part("connections", "connections made and closed", At::Here, "connections", "tcp,ropeway", "--seconds 0.2"),
    part(
        "overlap",
        "computation beside a transfer",
        At::Here,
        "overlap",
        "tcp,ropeway",
        "--set polling=0,1 --seconds 0.2",
    ),
    part("background", "short messages beside bulk", At::Here, "background", "tcp,ropeway", "--seconds 0.2"),
    part(
        "overhead",
        "time inside the calls",
        At::Here,
        "overhead",
        "tcp,unix,ropeway",
        "--size 64,1Ki,16Ki,128Ki --seconds 0.1",
    ),
    part("loggp", "LogGP of the transports", At::Here, "loggp", "tcp-spin,ropeway-spin", "--seconds 0.05"),
    part("plogp", "P-LogP of the transports", At::Here, "plogp", "tcp-spin,ropeway-spin", "--seconds 0.05"),
    part("noise", "what this host takes away", At::Here, "noise", "tcp", "--seconds 0.5"),
    part(
        "hosts-latency",
        "one-way time between two hosts",
        At::Direct(2),
        "pingpong",
        WIRE,
        "--size 8,64,256,1Ki,4Ki,16Ki --seconds 0.1",
    ),
    part(
        "hosts-stream",
        "one direction between two hosts",
        At::Direct(2),
        "stream",
        BULK,
        "--size 1Ki,16Ki,128Ki,1Mi --seconds 0.1",
    ),
    part(
        "hosts-rate",
        "small messages between two hosts",
        At::Direct(2),
        "rate",
        WIRE,
        "--size 8,64,256 --seconds 0.1",
    ),
    part(
        "hosts-incast",
        "eight send to one over a port of 1 Gbit/s",
        At::Port(9),
        "many-one",
        CROWDED,
        "--size 1Ki,16Ki,64Ki,256Ki,1Mi --seconds 0.3",
    ),
    part(
        "hosts-background",
        "short messages beside bulk over a port of 1 Gbit/s",
        At::Port(3),
        "background",
        CROWDED,
        "--ranks 3 --seconds 0.2",
    ),
    part(
        "hosts-loggp",
        "LogGP between two hosts",
        At::Direct(2),
        "loggp",
        "tcp-spin:cubic,ropeway-udp,ropeway-packet",
        "--seconds 0.05",
    ),
];

/// The part beside whose simulation stands the formula of the document.
pub const TIMER_NEEDED: &str = "timer-needed";

/// Of the formula: the losses and windows that are simulated too.
pub const TIMER_LOSSES_PERCENT: &[u32] = &[1, 10, 30];
pub const TIMER_WINDOWS: &[u32] = &[1, 2, 4, 8, 16, 32];

/// The figures of the documents, with today's transports.
pub const FIGURES: &[Part] = &[
    part(
        "throughput-by-size",
        "[0:5.2.2] figure 5.4 and [1:5.2] figure 8: throughput of messages of 1 to 1472 bytes at 1 Gbit/s",
        At::Port(2),
        "stream",
        "tcp:cubic,udp,ropeway-udp,ropeway-packet",
        "--size 1,8,64,256,512,1Ki,1472 --seconds 0.2",
    ),
    part(
        TIMER_NEEDED,
        "[2:6.1.1] figure 11: how often a loss needs the request timer, by simulation",
        At::Anywhere,
        "tail-loss",
        "sim:reliable=no,loss=1%,timeout=100us,sim:reliable=no,loss=10%,timeout=100us,sim:reliable=no,loss=30%,timeout=100us",
        "--set window=1,2,4,8,16,32 --seconds 0.2",
    ),
    part(
        "parameter-plane",
        "[2:6.2] figure 12: throughput over window and acknowledgment delay, gate = esp",
        At::Port(2),
        "search",
        "ropeway-packet",
        "--set gate=1 --set burst_length=2..32/2 --set packets_to_ack=1..31/2 --size 64Ki --rounds 1 --seconds 0.05",
    ),
    part(
        "plogp",
        "[2:6.3.5] figure 17: gap and overheads as functions of the size",
        At::Port(2),
        "plogp",
        "tcp-spin:cubic,ropeway-udp,ropeway-packet",
        "--seconds 0.05",
    ),
    part(
        "overhead",
        "[2:6.3.5] figure 18: send and receive overhead by sockets calls",
        At::Port(2),
        "overhead",
        CROWDED,
        "--size 1,64,1Ki,4Ki,16Ki,64Ki,128Ki --seconds 0.1",
    ),
    part(
        "one-sender",
        "[2:6.5.1] figure 19: throughput of one sender over sizes at 1 Gbit/s",
        At::Port(2),
        "one-one",
        CROWDED,
        "--size 1Ki,4Ki,16Ki,64Ki,128Ki,256Ki,1Mi --seconds 0.2",
    ),
    part(
        "two-senders",
        "[2:6.5.2] figure 20: two senders to one receiver over a port of 1 Gbit/s and 128 KiB",
        At::Port(3),
        "many-one",
        CROWDED,
        "--size 1Ki,4Ki,16Ki,64Ki,256Ki,1Mi,4Mi --seconds 0.3",
    ),
    part(
        "small-sends",
        "[2:6.6.1] figure 21: small messages that share packets, and that do not",
        At::Direct(2),
        "rate",
        "tcp:cubic,ropeway-udp,ropeway-udp:coalesce=0",
        "--size 1,8,64,256,1Ki --seconds 0.1",
    ),
    part(
        "small-latency",
        "[4:6] figure 9: one-way time of small messages on one host",
        At::Here,
        "pingpong",
        "tcp,tcp-spin,ropeway,ropeway-spin",
        "--size 1,4,5,52,64,116,117,128,256,512,1Ki --seconds 0.05",
    ),
    part(
        "transactions",
        "[4:6] figure 10: requests and responses, as Netperf makes them",
        At::Here,
        "request-response",
        "tcp,ropeway",
        "--size 1,64,128,1Ki --seconds 0.1",
    ),
    part(
        "streams",
        "[4:6] figure 11: one direction over sizes, as Netperf makes it",
        At::Here,
        "stream",
        "tcp,ropeway",
        "--size 64,256,1Ki,4Ki,16Ki,64Ki,256Ki --seconds 0.1",
    ),
];
