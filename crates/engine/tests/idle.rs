//! Idle engines sleep, and so do those who wait with them. One at a time in their process, so that every wake-up counted is their own.

use ropeway_engine::link::packet::{self, PacketLink};
use ropeway_engine::link::udp::{self, UdpLink};
use ropeway_engine::link::{Address, Link};
use ropeway_engine::{ChannelId, Engine, Interest, LinkId, Mode, Options, Target};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{need_program, need_root};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wake-ups of an idle second that are tolerated: the ends of timers of what came before.
const MOST_WAKE_UPS: u64 = 5;
const PORT: u16 = 7;
/// Threads of these tests that wait in a call of an engine, as Linux tells their name.
const WAITER: &str = "waits";
/// Set in the process that has a network of its own.
const APART_VAR: &str = "ROPEWAY_TEST_APART";

/// One engine pair at a time: the wake-ups of all helpers are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn end(options: &Options, link: impl Link + 'static) -> (Engine, LinkId, Address) {
    let engine = Engine::new(options).unwrap();
    let address = link.local();
    let link = engine.add_link(Box::new(link)).unwrap();
    (engine, link, address)
}

fn udp_link() -> UdpLink {
    let options = udp::Options { most_packet_bytes: Some(1472), ..udp::Options::new("127.0.0.1:0".parse().unwrap()) };
    UdpLink::open(&options).unwrap()
}

/// Two engines with a connection that has been used.
struct Pair {
    client: Engine,
    server: Engine,
    channel: ChannelId,
    accepted: ChannelId,
}

impl Pair {
    fn over_udp() -> Pair {
        Pair::of(&Options::default(), udp_link(), udp_link())
    }

    fn of(options: &Options, one: impl Link + 'static, other: impl Link + 'static) -> Pair {
        let ((client, link, _), (server, _, address)) = (end(options, one), end(options, other));
        server.listen(PORT, Mode::Stream, 8).unwrap();
        let channel = client.connect(Target { link, address }, PORT, Mode::Stream, soon()).unwrap();
        let accepted = server.accept(PORT, soon()).unwrap();
        let pair = Pair { client, server, channel, accepted };
        for _ in 0..100 {
            pair.pass();
        }
        pair
    }

    /// Carries a few bytes to the server.
    fn pass(&self) {
        self.client.send_all(self.channel, b"hello", soon()).unwrap();
        assert_eq!(self.server.recv(self.accepted, &mut [0; 16], soon()).unwrap(), Some(5));
    }

    /// Lets a second pass in which nothing happens. Helpers are two, and others wait, as many as `waiters`.
    #[track_caller]
    fn sleeps(&self, waiters: usize) {
        std::thread::sleep(Duration::from_millis(500));
        let before = sleeps(waiters);
        std::thread::sleep(Duration::from_secs(1));
        let woken = sleeps(waiters) - before;
        assert!(woken <= MOST_WAKE_UPS, "{woken} wake-ups in an idle second");
    }
}

/// Times that the threads of engines, and those that wait with them, went to sleep, which is how often they were awake.
fn sleeps(waiters: usize) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread of the test harness may end meanwhile.
    let statuses: Vec<String> =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok()).collect();
    let of = |name: &str| -> Vec<u64> {
        let named = statuses.iter().filter(|status| status.starts_with(&format!("Name:\t{name}\n")));
        named.map(|status| switches(status)).collect()
    };
    let (helpers, waiting) = (of("ropeway"), of(WAITER));
    assert_eq!((helpers.len(), waiting.len()), (2, waiters), "a helper for each engine, and who waits");
    helpers.iter().chain(&waiting).sum()
}

fn switches(status: &str) -> u64 {
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A thread that waits in a call, during `body`; then `end` ends its waiting.
fn while_one_waits(wait: impl FnOnce() + Send, body: impl FnOnce(), end: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waiter = std::thread::Builder::new().name(WAITER.into()).spawn_scoped(scope, wait).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(body));
        let waited = !waiter.is_finished();
        // Whatever came of it: a test that fails is not to wait for ever.
        end();
        waiter.join().unwrap();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        assert!(waited, "it does not wait");
    });
}

#[test]
fn a_connection_without_traffic_wakes_nobody() {
    let _alone = alone();
    let pair = Pair::over_udp();
    pair.sleeps(0);
    // And it still lives.
    pair.pass();
}

#[test]
fn who_watches_a_connection_or_a_port_wakes_nobody() {
    let _alone = alone();
    let pair = Pair::over_udp();
    let interest = Interest { read: true, write: true };
    let _watches = [
        pair.server.watch(pair.accepted, interest).unwrap(),
        pair.server.watch_port(PORT).unwrap(),
        pair.client.watch_like_socket(pair.channel).unwrap(),
    ];
    pair.sleeps(0);
    pair.pass();
}

#[test]
fn who_waits_for_bytes_sleeps() {
    let _alone = alone();
    let pair = Pair::over_udp();
    let wait = || assert_eq!(pair.server.recv(pair.accepted, &mut [0; 16], None).unwrap(), Some(5));
    let end = || pair.client.send_all(pair.channel, b"hello", soon()).unwrap();
    while_one_waits(wait, || pair.sleeps(1), end);
}

#[test]
fn who_waits_for_a_connection_sleeps() {
    let _alone = alone();
    let pair = Pair::over_udp();
    let wait = || assert!(pair.server.accept(PORT, None).is_err());
    while_one_waits(wait, || pair.sleeps(1), || pair.server.unlisten(PORT).unwrap());
}

/// Repetitions of SYN are due after 10, 30, 70 and 150 ms, and the only thread that could see to it sleeps for longer than the test takes.
#[test]
fn who_sleeps_is_woken_by_the_timers_that_another_thread_sets() {
    let _alone = alone();
    let pair = Pair::over_udp();
    let mute = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Udp(mute.local_addr().unwrap());
    let (link, ..) = pair.client.links()[0];
    let sent = || pair.client.links()[0].3.sent_packets;
    let attempts = || {
        std::thread::sleep(Duration::from_millis(500));
        let before = sent();
        let patience = Some(Instant::now() + Duration::from_millis(400));
        assert!(pair.client.connect(Target { link, address }, PORT, Mode::Stream, patience).is_err());
        assert!(sent() - before >= 4, "{} packets in 400 ms", sent() - before);
    };
    let wait = || assert_eq!(pair.client.recv(pair.channel, &mut [0; 16], None).unwrap(), Some(5));
    while_one_waits(wait, attempts, || pair.server.send_all(pair.accepted, b"hello", soon()).unwrap());
}

/// Processor time that the helpers have taken.
fn helpers_took() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |path: &std::path::Path, file| std::fs::read_to_string(path.join(file)).unwrap_or_default();
    let helpers = tasks.filter(|task| read(task, "comm").trim() == "ropeway");
    let took_ns = |task: std::path::PathBuf| -> u64 {
        read(&task, "schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(helpers.map(took_ns).sum())
}

#[test]
fn who_polls_for_an_event_loop_seldom_spins_where_that_never_pays() {
    const ROUNDS: u32 = 20;
    const MESSAGES: u32 = 100;
    /// Less than it would spin for each.
    const MOST: Duration = Duration::from_micros(30);
    let _alone = alone();
    // What it takes to wake up and look is the same for who never spins.
    let of = |spin| Pair::of(&Options { spin, ..Options::default() }, udp_link(), udp_link());
    let pairs = [of(Duration::ZERO), of(Options::default().spin)];
    let interest = Interest { read: true, write: false };
    let _watches = pairs.each_ref().map(|pair| pair.server.watch(pair.accepted, interest).unwrap());
    let mut took = [Duration::ZERO; 2];
    for _ in 0..ROUNDS {
        for (pair, took) in pairs.iter().zip(&mut took) {
            let before = helpers_took();
            for _ in 0..MESSAGES {
                pair.client.send_all(pair.channel, b"hello", soon()).unwrap();
                std::thread::sleep(Duration::from_micros(300));
                while pair.server.try_recv(pair.accepted, &mut [0; 16]).is_ok() {}
            }
            *took += helpers_took() - before;
        }
    }
    let [without, with] = took.map(|took| took / (ROUNDS * MESSAGES));
    assert!(with < without + MOST, "{with:?} for each message, and {without:?} without spinning");
}

/// All of it over raw Ethernet, in a process with a network of its own.
#[test]
fn over_raw_ethernet_nobody_is_woken_either() {
    need_root!();
    need_program!("ip", "unshare");
    if std::env::var_os(APART_VAR).is_none() {
        let own = std::env::current_exe().unwrap();
        let mut apart = command("unshare", ["-n".as_ref(), own.as_os_str(), "--exact".as_ref()]);
        apart.args(["over_raw_ethernet_nobody_is_woken_either", "--nocapture"]).env(APART_VAR, "1");
        let finished = Process::spawn(apart).succeed(Duration::from_secs(60));
        assert!(finished.stdout.contains("1 passed"), "{finished:?}");
        return;
    }
    for line in ["link add one type veth peer name other", "link set one up", "link set other up"] {
        Process::spawn(command("ip", line.split(' '))).succeed(Duration::from_secs(20));
    }
    let link = |device| PacketLink::open(&packet::Options::new(device)).unwrap();
    let pair = Pair::of(&Options::default(), link("one"), link("other"));
    pair.sleeps(0);
    let _watch = pair.server.watch_port(PORT).unwrap();
    let wait = || assert_eq!(pair.server.recv(pair.accepted, &mut [0; 16], None).unwrap(), Some(5));
    let end = || pair.client.send_all(pair.channel, b"hello", soon()).unwrap();
    while_one_waits(wait, || pair.sleeps(1), end);
}
