//! The switch, as commands for `tc`: how frames find their port, and what each port does to them. Pure text.
//!
//! A port is the switch's end of the cable to a host. What arrives there passes, in this order:
//!
//! 1. `cut` and `loss`, on the way in ([`Fault`]);
//! 2. where hosts have a rate of their own, the queue of the host's interface: a pair of devices `PORT-up`, `PORT-in`, on
//!    the way through which the frame still belongs to its sender's socket, as it does in a real interface's queue;
//! 3. the table of addresses: a *copy* of the frame goes to the port of its destination (to all others for broadcasts, multicasts
//!    and addresses that nobody has), and the frame itself is consumed. The copy belongs to no socket. That is the
//!    point of it: a kernel counts what its sockets have under way, and a frame that belonged to one until it has left the
//!    port's queue would hold its sender back as no switch can;
//! 4. on the way out of that port: `cut` and `loss` again, then the delay, then the queue with the port's rate and buffer. Where a process
//!    delays frames ([`delay`](super::delay)), the copies go to a device `PORT-dly` instead, where it sees them, and enter the way out of
//!    the port when the process sends them there.
//!
//! Frames are looked at up to their Ethernet addresses and no further, so any protocol passes.

use super::plan::{Delayed, LINE_OVERHEAD_BYTES, Leg, Mechanism, Plan, Segment, Shape, Shaper};
use super::units::Share;

/// Order of the filters at a port.
mod preference {
    pub const CUT: u32 = 1;
    pub const LOSS: u32 = 2;
    pub const UPLINK: u32 = 3;
    pub const KNOWN: u32 = 10;
    pub const FLOOD: u32 = 20;
}

/// A filter holds at most so many actions (TCA_ACT_MAX_PRIO).
const MAX_ACTIONS: usize = 32;

/// Matches every frame. Two bytes of the destination address, of which no bit counts: they are always there, while a filter
/// that looks at the payload would not match an empty one.
const ANY: &str = "match u16 0 0 at -14";

/// What a filter does with the frame of which its action made a copy: nothing more. `trap` is the way to say so to `tc`, which
/// has no word for `stolen`; the kernel treats both alike in software. `drop` would work too and count every frame as lost.
const CONSUMED: &str = "trap";

/// The table has a bucket for each value of the last byte of an address.
const BUCKETS: &str = "256";

/// The device on which a port's frames reach the table, once they are through the host's own queue.
pub fn uplink_in(port: &str) -> String {
    format!("{port}-in")
}

/// The device with the host's own queue.
pub fn uplink_out(port: &str) -> String {
    format!("{port}-up")
}

/// The device on which the process that delays sees the frames for a port.
pub fn delay_in(port: &str) -> String {
    format!("{port}-dly")
}

/// The other end of its pair, which nobody uses: no other kind of device is in every kernel.
pub fn delay_end(port: &str) -> String {
    format!("{port}-end")
}

/// All that makes the devices of the switch's namespace a switch.
pub fn commands(plan: &Plan) -> Vec<String> {
    let segments = Segment::ALL.map(|segment| plan.legs_in(segment).collect::<Vec<Leg>>());
    let of = |legs: &Vec<Leg>| legs.iter().flat_map(|leg| port(plan, *leg, legs)).collect::<Vec<String>>();
    segments.iter().flat_map(of).collect()
}

fn port(plan: &Plan, leg: Leg, segment: &[Leg]) -> Vec<String> {
    let port = leg.port();
    let mut lines = queues(&port, plan);
    lines.push(format!("qdisc add dev {port} clsact"));
    if plan.line().is_some() {
        let seen = delay_in(&port);
        lines.push(format!("qdisc add dev {seen} clsact"));
        // The process has its copy by then, and this namespace's own IP is not to get one.
        lines.push(Fault::Cut.set(&seen, Direction::FromHost));
    }
    let arrives = match plan.uplink {
        None => port,
        Some(shape) => {
            let (out, inside) = (uplink_out(&port), uplink_in(&port));
            lines.extend(queue(&out, "root", shape, plan.shaper));
            lines.push(format!("qdisc add dev {inside} clsact"));
            let filter = filter(&port, preference::UPLINK);
            lines.push(format!("{filter} u32 {ANY} action mirred egress redirect dev {out}"));
            inside
        }
    };
    lines.extend(table(plan, &arrives, leg, segment));
    lines
}

/// Rate and buffer of a port, behind the delay: the same frames in the same order as with the delay on the cable.
fn queues(port: &str, plan: &Plan) -> Vec<String> {
    let netem = plan.delay.and_then(|Delayed { time, by }| match by {
        Mechanism::Netem { limit_frames } => {
            let ns = time.as_nanos();
            Some(format!("qdisc add dev {port} root handle 1: netem delay {ns}ns limit {limit_frames}"))
        }
        Mechanism::Line(_) => None,
    });
    let parent = if netem.is_some() { "parent 1:1" } else { "root" };
    let queue = plan.port.map(|shape| queue(port, parent, shape, plan.shaper));
    netem.into_iter().chain(queue.into_iter().flatten()).collect()
}

fn queue(device: &str, parent: &str, shape: Shape, shaper: Shaper) -> Vec<String> {
    let (bits, limit, turn) = (shape.rate.bits_per_s, shape.limit_bytes, shape.turn_bytes(shaper));
    let qdisc = format!("qdisc add dev {device} {parent} handle 2:");
    match shaper {
        Shaper::Tbf => {
            vec![format!("{qdisc} tbf rate {bits}bit burst {turn}b limit {limit}b overhead {LINE_OVERHEAD_BYTES}")]
        }
        // What classes take in turns of their quantum, a single one need not; but the kernel complains of one that it works out as too large.
        Shaper::Htb => vec![
            format!("{qdisc} htb default 1"),
            format!(
                "class add dev {device} parent 2: classid 2:1 htb rate {bits}bit burst {turn}b cburst {turn}b \
                 overhead {LINE_OVERHEAD_BYTES} quantum 60000"
            ),
            format!("qdisc add dev {device} parent 2:1 handle 3: bfifo limit {limit}"),
        ],
    }
}

fn filter(device: &str, preference: u32) -> String {
    format!("filter add dev {device} ingress protocol all pref {preference}")
}

/// Where the frames of one leg go.
fn table(plan: &Plan, device: &str, leg: Leg, segment: &[Leg]) -> Vec<String> {
    let copy_to = |other: &Leg| match plan.line() {
        None => format!("action mirred egress mirror dev {}", other.port()),
        Some(_) => format!("action mirred ingress mirror dev {}", delay_in(&other.port())),
    };
    let others: Vec<Leg> = segment.iter().copied().filter(|other| *other != leg).collect();
    let known = filter(device, preference::KNOWN);
    let mut lines = vec![format!("{known} handle 1: u32 divisor {BUCKETS}")];
    lines.extend(others.iter().map(|other| {
        let [a, b, c, d, e, f] = other.mac();
        let key = [c, d, e, f].map(|byte| format!("{byte:02x}")).concat();
        format!(
            "{known} u32 ht 1:{f:x}: match u16 0x{a:02x}{b:02x} 0xffff at -14 match u32 0x{key} 0xffffffff at -12 \
             {} {CONSUMED}",
            copy_to(other)
        )
    }));
    lines.push(format!("{known} u32 ht 800: {ANY} hashkey mask 0x000000ff at -12 link 1:"));
    let flood = filter(device, preference::FLOOD);
    let pieces: Vec<&[Leg]> = others.chunks(MAX_ACTIONS).collect();
    lines.extend(pieces.iter().enumerate().map(|(index, piece)| {
        let last = if index + 1 == pieces.len() { CONSUMED } else { "continue" };
        let end = |at: usize| if at + 1 == piece.len() { last } else { "pipe" };
        let actions = piece.iter().enumerate().map(|(at, other)| format!("{} {}", copy_to(other), end(at)));
        format!("{flood} u32 {ANY} {}", actions.collect::<Vec<_>>().join(" "))
    }));
    lines
}

/// What can be wrong with a cable, in one direction: a program for the kernel that draws a number for each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing passes.
    Cut,
    /// This share of the frames is lost.
    Loss(Share),
}

/// A direction at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    FromHost,
    ToHost,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::FromHost, Direction::ToHost];

    fn hook(self) -> &'static str {
        match self {
            Direction::FromHost => "ingress",
            Direction::ToHost => "egress",
        }
    }
}

/// A line of classic BPF: operation, jumps if true and if false, value.
type Instruction = (u16, u8, u8, u32);

/// BPF_LD | BPF_W | BPF_ABS.
const LOAD: u16 = 0x20;
/// Where this operation finds a random number: SKF_AD_OFF + SKF_AD_RANDOM.
const RANDOM: u32 = (-0x1000_i32 + 56) as u32;
/// BPF_JMP | BPF_JGE | BPF_K.
pub const JUMP_IF_AT_LEAST: u16 = 0x35;
/// BPF_RET | BPF_K.
const RETURN: u16 = 0x06;
/// TC_ACT_SHOT.
const DROP: u32 = 2;
/// TC_ACT_UNSPEC: the next filter decides.
const GO_ON: u32 = u32::MAX;

impl Fault {
    fn preference(self) -> u32 {
        match self {
            Fault::Cut => preference::CUT,
            Fault::Loss(_) => preference::LOSS,
        }
    }

    fn program(self) -> Vec<Instruction> {
        match self {
            Fault::Cut => vec![(RETURN, 0, 0, DROP)],
            Fault::Loss(share) => vec![
                (LOAD, 0, 0, RANDOM),
                (JUMP_IF_AT_LEAST, 1, 0, share.threshold),
                (RETURN, 0, 0, DROP),
                (RETURN, 0, 0, GO_ON),
            ],
        }
    }

    /// Makes it so, whatever was there of its kind.
    pub fn set(self, port: &str, direction: Direction) -> String {
        let program = self.program();
        let instructions = program.iter().map(|(code, yes, no, value)| format!(",{code} {yes} {no} {value}"));
        let bytecode = format!("{}{}", program.len(), instructions.collect::<String>());
        let (hook, preference) = (direction.hook(), self.preference());
        format!(
            "filter replace dev {port} {hook} protocol all pref {preference} handle 1 bpf direct-action bytecode '{bytecode}'"
        )
    }

    /// Takes it away. The kernel refuses if it is not there.
    pub fn unset(self, port: &str, direction: Direction) -> String {
        format!("filter del dev {port} {} pref {}", direction.hook(), self.preference())
    }

    /// The fault that a filter of this preference is; `value` is what its program compares with.
    pub fn of(preference: u32, value: Option<u32>) -> Option<Fault> {
        match preference {
            preference::CUT => Some(Fault::Cut),
            preference::LOSS => value.map(|threshold| Fault::Loss(Share { threshold })),
            _ => None,
        }
    }
}

/// Asks for the filters of one direction of a port.
pub fn show_filters(port: &str, direction: Direction) -> String {
    format!("filter show dev {port} {}", direction.hook())
}

#[cfg(test)]
mod tests {
    use super::super::plan::Options;
    use super::*;

    fn plan(hosts: u8, gateways: u8) -> Plan {
        let options = Options {
            hosts,
            gateways,
            io_hosts: None,
            rate: Some("1gbit".parse().unwrap()),
            port_buffer_bytes: 131_072,
            host_rate: None,
            shaper: Some(Shaper::Tbf),
            delay: None,
            mtu: 1500,
            wire_frames: false,
        };
        Plan::new(&"box".parse().unwrap(), &options).unwrap()
    }

    #[test]
    fn a_port_has_a_queue_a_table_and_a_flood() {
        let lines = commands(&plan(3, 0));
        assert_eq!(
            lines[0],
            "qdisc add dev h1 root handle 2: tbf rate 1000000000bit burst 16384b limit 131072b overhead 24"
        );
        assert_eq!(lines[1], "qdisc add dev h1 clsact");
        let htb = commands(&Plan { shaper: Shaper::Htb, ..plan(3, 0) });
        assert_eq!(
            htb[1],
            "class add dev h1 parent 2: classid 2:1 htb rate 1000000000bit burst 12288b cburst 12288b overhead 24 \
             quantum 60000"
        );
        assert_eq!(htb[2], "qdisc add dev h1 parent 2:1 handle 3: bfifo limit 131072");
        let rest = |lines: &[String]| lines.iter().filter(|line| !line.contains(" root ")).cloned().collect::<Vec<_>>();
        assert!(rest(&lines).iter().all(|line| htb.contains(line)) && htb.len() == lines.len() + 2 * 3, "{htb:#?}");
        let to_h3 = "ht 1:3: match u16 0x0252 0xffff at -14 match u32 0x57010003 0xffffffff at -12 \
                     action mirred egress mirror dev h3 trap";
        assert!(lines.iter().any(|line| line.contains("dev h1 ingress") && line.ends_with(to_h3)), "{lines:#?}");
        let flood = "action mirred egress mirror dev h2 pipe action mirred egress mirror dev h3 trap";
        assert!(lines.iter().any(|line| line.contains("dev h1 ingress") && line.ends_with(flood)), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("dev h1 ingress") && line.contains("mirror dev h1")));
    }

    #[test]
    fn segments_know_only_their_own_ports() {
        let lines = commands(&plan(4, 1));
        let from_h1: Vec<_> = lines.iter().filter(|line| line.contains("dev h1 ingress")).collect();
        assert!(from_h1.iter().any(|line| line.contains("mirror dev g1-compute")));
        assert!(
            !from_h1.iter().any(|line| ["h3", "h4", "g1-io"].iter().any(|port| line.contains(&format!("dev {port} "))))
        );
    }

    #[test]
    fn a_flood_to_many_ports_goes_in_pieces() {
        let lines = commands(&plan(64, 0));
        let floods: Vec<_> =
            lines.iter().filter(|line| line.contains("dev h1 ingress") && line.contains("pref 20")).collect();
        assert_eq!(floods.iter().map(|line| line.matches("mirror").count()).collect::<Vec<_>>(), [32, 31]);
        assert!(floods[0].ends_with("continue") && floods[1].ends_with("trap"));
    }

    #[test]
    fn a_host_with_a_rate_has_a_queue_of_its_own() {
        let plan = Plan { uplink: plan(2, 0).port, ..plan(2, 0) };
        let lines = commands(&plan);
        assert!(lines.iter().any(|line| line.starts_with("qdisc add dev h1-up root handle 2: tbf")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("dev h1 ingress") && line.ends_with("redirect dev h1-up")));
        assert!(lines.iter().any(|line| line.contains("dev h1-in ingress") && line.contains("mirror dev h2")));
    }

    fn delayed(by: Mechanism) -> Plan {
        Plan { delay: Some(Delayed { time: std::time::Duration::from_micros(50), by }), ..plan(2, 0) }
    }

    #[test]
    fn where_a_process_delays_it_gets_the_copies() {
        let lines = commands(&delayed(Mechanism::Netem { limit_frames: 1 }).without_netem().unwrap());
        let mirrors: Vec<_> = lines.iter().filter(|line| line.contains("mirror")).collect();
        assert!(
            mirrors.iter().any(|line| line.ends_with("action mirred ingress mirror dev h2-dly trap")),
            "{mirrors:#?}"
        );
        assert!(mirrors.iter().all(|line| line.contains("ingress mirror dev h") && line.contains("-dly trap")));
        assert!(lines.contains(&"qdisc add dev h1-dly clsact".into()), "{lines:#?}");
        assert!(lines.contains(&Fault::Cut.set("h1-dly", Direction::FromHost)), "{lines:#?}");
        assert!(lines[0].starts_with("qdisc add dev h1 root handle 2: tbf"), "{lines:#?}");
    }

    #[test]
    fn a_delay_stands_before_the_queue() {
        let lines = commands(&delayed(Mechanism::Netem { limit_frames: 1000 }));
        assert_eq!(lines[0], "qdisc add dev h1 root handle 1: netem delay 50000ns limit 1000");
        assert!(lines[1].starts_with("qdisc add dev h1 parent 1:1 handle 2: tbf"), "{lines:#?}");
    }

    #[test]
    fn faults_are_small_programs_and_are_recognized() {
        let loss = Fault::Loss("25%".parse().unwrap());
        assert_eq!(
            loss.set("h1", Direction::ToHost),
            "filter replace dev h1 egress protocol all pref 2 handle 1 bpf direct-action bytecode \
             '4,32 0 0 4294963256,53 1 0 1073741824,6 0 0 2,6 0 0 4294967295'"
        );
        assert_eq!(Fault::of(2, Some(1 << 30)), Some(loss));
        assert_eq!(Fault::of(1, None), Some(Fault::Cut));
        assert_eq!(Fault::of(10, None), None);
        assert!(Fault::Cut.set("h1", Direction::FromHost).ends_with("bytecode '1,6 0 0 2'"));
    }
}
