//! What a box consists of, worked out before anything is made: hosts, their legs into the segments, addresses, the shape of
//! the ports. Pure: nothing here asks or changes the system.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::error::{Error, Result};
use super::names::{BoxName, Member};
use super::units::{Delay, Rate};

/// The filters of a switch grow with the square of its ports; with so many a box still comes up in seconds.
pub const MAX_HOSTS: u8 = 200;
/// Gateways are few wherever there are any; and their numbers must not reach 255.
pub const MAX_GATEWAYS: u8 = 16;
/// IPv6 wants at least this.
pub const MIN_MTU_BYTES: u32 = 1280;
/// The largest jumbo frames that switches commonly carry.
pub const MAX_MTU_BYTES: u32 = 9216;

/// Ethernet header: two addresses and the type.
pub const HEADER_BYTES: u32 = 14;
/// A VLAN tag, which may come on top.
const TAG_BYTES: u32 = 4;
/// What a frame takes on an Ethernet line besides its header and payload: check sum 4, preamble and start mark 8, gap 12.
pub const LINE_OVERHEAD_BYTES: u32 = 24;

/// How long a port may send above its rate after a pause. The kernel's timers on a virtual machine are not finer; with less
/// they, and not the rate, would limit the port. At 1 Gbit/s it is 16 KiB.
const BURST_TIME: Duration = Duration::from_nanos(131_072);
/// The same for HTB, which lets so much out for each timer, and twice as much after a pause. At 1 Gbit/s it is 12 KiB: with 8 KiB a port loses 1 to 2 % of its time
/// where timers are late, with 16 KiB no less than with 12.
const TURN_TIME: Duration = Duration::from_nanos(98_304);
/// A frame is sent when there is room for all of it, and the next should not wait for a timer at once.
const MIN_BURST_FRAMES: u32 = 2;

/// More than any switch has for one port.
const MAX_PORT_BUFFER_BYTES: u64 = 1 << 30;
/// Frames that wait in a host's own interface, as Linux's default length of the queue of an Ethernet device.
const HOST_QUEUE_FRAMES: u32 = 1000;
/// The smallest frame on a line, for the number of frames that can be under way.
const MIN_FRAME_BYTES: u64 = 64;
/// Room for the frames under way in a delay, at least.
const MIN_DELAY_QUEUE_FRAMES: u64 = 1000;

/// Gateways have these numbers in their addresses: 201, 202, ...
const GATEWAY_BASE: u8 = 200;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Options {
    pub hosts: u8,
    pub gateways: u8,
    /// How many of the hosts are on the segment behind the gateways.
    pub io_hosts: Option<u8>,
    pub rate: Option<Rate>,
    pub port_buffer_bytes: u64,
    pub host_rate: Option<Rate>,
    pub shaper: Option<Shaper>,
    pub delay: Option<Delay>,
    pub mtu: u32,
    pub wire_frames: bool,
}

/// A set of ports between which frames are switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    Compute,
    Io,
}

impl Segment {
    pub const ALL: [Segment; 2] = [Segment::Compute, Segment::Io];

    pub fn name(self) -> &'static str {
        match self {
            Segment::Compute => "compute",
            Segment::Io => "io",
        }
    }

    fn number(self) -> u8 {
        match self {
            Segment::Compute => 1,
            Segment::Io => 2,
        }
    }

    pub fn v4_net(self) -> String {
        format!("10.0.{}.0/24", self.number())
    }

    pub fn v6_net(self) -> String {
        format!("fd00:{}::/64", self.number())
    }
}

/// One interface of a host, and the port of the switch at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    pub member: Member,
    pub segment: Segment,
}

impl Leg {
    /// The last number of its addresses.
    pub fn number(self) -> u8 {
        match self.member {
            Member::Gateway(n) => GATEWAY_BASE.saturating_add(n),
            Member::Host(n) => n,
            // The switch has no legs.
            Member::Switch => 0,
        }
    }

    /// The name of the interface in the host.
    pub fn device(self) -> &'static str {
        match (self.member, self.segment) {
            (Member::Gateway(_), Segment::Io) => "eth1",
            _ => "eth0",
        }
    }

    /// The name of the port in the switch: the host's, which for a gateway does not say which.
    pub fn port(self) -> String {
        match self.member {
            Member::Gateway(_) => format!("{}-{}", self.member, self.segment.name()),
            _ => self.member.to_string(),
        }
    }

    pub fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, self.segment.number(), self.number())
    }

    /// The digits of the number stand in the address as they are read, `fd00:1::12` for host 12.
    pub fn v6(self) -> Ipv6Addr {
        let n = u16::from(self.number());
        let digits = n / 100 * 0x100 + n / 10 % 10 * 0x10 + n % 10;
        Ipv6Addr::new(0xfd00, u16::from(self.segment.number()), 0, 0, 0, 0, 0, digits)
    }

    /// Locally administered, so nobody's.
    pub fn mac(self) -> [u8; 6] {
        [0x02, b'R', b'W', self.segment.number(), 0, self.number()]
    }

    pub fn mac_text(self) -> String {
        self.mac().map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// The queueing discipline that holds a port to its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shaper {
    /// A timer lets a whole burst out, with htb_hysteresis.
    Htb,
    /// A timer for each frame, where the sender's own call is not early enough; in every kernel that has a box at all.
    Tbf,
}

/// A queue that lets bytes out at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rate: Rate,
    pub limit_bytes: u64,
    /// Of a frame on the line.
    frame_bytes: u64,
}

impl Shape {
    fn new(rate: Rate, limit_bytes: u64, mtu: u32) -> Shape {
        let frame_bytes = u64::from(mtu + HEADER_BYTES + TAG_BYTES + LINE_OVERHEAD_BYTES);
        Shape { rate, limit_bytes, frame_bytes }
    }

    /// The shaper's own parameter: how much it sends before it looks at the clock again.
    pub fn turn_bytes(self, shaper: Shaper) -> u64 {
        let time = match shaper {
            Shaper::Htb => TURN_TIME,
            Shaper::Tbf => BURST_TIME,
        };
        self.rate.bytes_in(time).max(u64::from(MIN_BURST_FRAMES) * self.frame_bytes)
    }

    /// How much may leave at once after a pause. HTB saves a turn, and owes a turn.
    pub fn burst_bytes(self, shaper: Shaper) -> u64 {
        let turns = if shaper == Shaper::Htb { 2 } else { 1 };
        turns * self.turn_bytes(shaper)
    }
}

/// How long frames are under way, and what keeps them so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delayed {
    pub time: Duration,
    pub by: Mechanism,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The kernel's netem in front of each port, with room for all frames that can be under way.
    Netem { limit_frames: u64 },
    /// A process, at the same place.
    Line(Line),
}

/// What the process that delays has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of the first port of the switch, from which those of the others follow.
    pub first_port: u32,
    /// The number of the device at which it sees the frames for that port, likewise.
    pub first_device: u32,
    pub mtu: u32,
    /// Room for so many frames, of all ports together.
    pub frames: u64,
}

impl Line {
    /// Far above the numbers that a namespace gives by itself, and apart from each other.
    const FIRST_PORT: u32 = 1 << 20;
    const FIRST_DEVICE: u32 = 1 << 21;
    /// The most memory of a delay line, which is the kernel's and taken beforehand.
    const MOST_BYTES: u64 = 256 << 20;
    /// What the process takes in a second: 290,000 were seen on a slow machine that had other work.
    const FRAMES_PER_S: u64 = 300_000;
    /// There is always room for a burst.
    const LEAST_FRAMES: u64 = 1024;
    /// What the kernel writes beside a frame in its slot.
    const SLOT_OVERHEAD_BYTES: u32 = 128;

    /// Refused where a single port's line carries more than the process can take, or more within the delay than there is room for.
    fn new(delay: Duration, mtu: u32, port: Option<Shape>) -> Result<Line> {
        let most = Self::MOST_BYTES / u64::from(mtu + Self::SLOT_OVERHEAD_BYTES);
        let frame = u64::from(mtu + HEADER_BYTES + LINE_OVERHEAD_BYTES);
        let on_one_line = |time: Duration| port.map_or(0, |shape| shape.rate.bytes_in(time) / frame);
        let (in_a_second, in_delay) = (on_one_line(Duration::from_secs(1)), on_one_line(delay));
        if in_a_second > Self::FRAMES_PER_S {
            return Err(Error::NotWithoutNetem(format!(
                "it takes about {} of them in a second, and one port carries {in_a_second} at this rate; make --rate smaller or \
                 --mtu larger",
                Self::FRAMES_PER_S
            )));
        }
        if in_delay > most {
            return Err(Error::NotWithoutNetem(format!(
                "it has room for {most} of them, and one port carries {in_delay} at this rate within {delay:?}; make --delay or \
                 --rate smaller"
            )));
        }
        let wanted = (delay.as_nanos() * u128::from(Self::FRAMES_PER_S) / 1_000_000_000) as u64;
        let frames = (wanted + Self::LEAST_FRAMES).min(most);
        Ok(Line { first_port: Self::FIRST_PORT, first_device: Self::FIRST_DEVICE, mtu, frames })
    }
}

/// A box, ready to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: BoxName,
    pub members: Vec<Member>,
    pub legs: Vec<Leg>,
    pub mtu: u32,
    /// Of each port of the switch.
    pub port: Option<Shape>,
    /// Of each host's own interface.
    pub uplink: Option<Shape>,
    /// Of both. One that was not asked for is the best, until the machine says that it has not got it.
    pub shaper: Shaper,
    /// Whether it was asked for.
    pub shaper_is_wish: bool,
    pub delay: Option<Delayed>,
    /// Whether no frame is larger than the MTU, because hosts segment what they send by themselves.
    pub wire_frames: bool,
}

impl Plan {
    pub fn new(name: &BoxName, options: &Options) -> Result<Plan> {
        let io_hosts = io_hosts(options)?;
        let least = u64::from(options.mtu + HEADER_BYTES + TAG_BYTES);
        let buffer = options.port_buffer_bytes;
        if options.rate.is_some() && !(least..=MAX_PORT_BUFFER_BYTES).contains(&buffer) {
            return Err(Error::BadOptions(format!(
                "a port buffer of {buffer} bytes is out of range: it holds at least one frame, {least} bytes at this MTU, \
                 and at most {MAX_PORT_BUFFER_BYTES} bytes"
            )));
        }
        let first_io = options.hosts - io_hosts + 1;
        let segment = |n: u8| if n < first_io { Segment::Compute } else { Segment::Io };
        let hosts = (1..=options.hosts).map(|n| Leg { member: Member::Host(n), segment: segment(n) });
        let gateways = (1..=options.gateways).map(Member::Gateway);
        let gateways = gateways.flat_map(|member| Segment::ALL.map(|segment| Leg { member, segment }));
        let legs: Vec<Leg> = hosts.chain(gateways).collect();
        let mut members: Vec<Member> = legs.iter().map(|leg| leg.member).collect();
        members.dedup();
        let frame = u64::from(options.mtu + HEADER_BYTES);
        let host_queue = frame * u64::from(HOST_QUEUE_FRAMES);
        Ok(Plan {
            name: name.clone(),
            members,
            legs,
            mtu: options.mtu,
            port: options.rate.map(|rate| Shape::new(rate, buffer, options.mtu)),
            uplink: options.host_rate.map(|rate| Shape::new(rate, host_queue, options.mtu)),
            shaper: options.shaper.unwrap_or(Shaper::Htb),
            shaper_is_wish: options.shaper.is_some(),
            delay: options.delay.map(|Delay(time)| Delayed { time, by: netem(time, options) }),
            wire_frames: options.wire_frames || options.rate.is_some(),
        })
    }

    /// The same with a process that delays, for a kernel that cannot.
    pub fn without_netem(self) -> Result<Plan> {
        let Some(Delayed { time, .. }) = self.delay else { return Ok(self) };
        let by = Mechanism::Line(Line::new(time, self.mtu, self.port)?);
        Ok(Plan { delay: Some(Delayed { time, by }), wire_frames: true, ..self })
    }

    /// The process that delays, if there is to be one.
    pub fn line(&self) -> Option<Line> {
        match self.delay?.by {
            Mechanism::Line(line) => Some(line),
            Mechanism::Netem { .. } => None,
        }
    }

    /// Whether frames that reach a device wait in a ring for whoever takes them out, which keeps their order. Otherwise one processor handles all of a device's:
    /// where a sender's own call pays for the port's timers, it must not be the one that takes them out.
    pub fn has_rings(&self) -> bool {
        self.port.is_some() && self.shaper == Shaper::Htb
    }

    pub fn has_gateways(&self) -> bool {
        self.members.iter().any(|member| matches!(member, Member::Gateway(_)))
    }

    pub fn legs_of(&self, member: Member) -> impl Iterator<Item = Leg> {
        self.legs.iter().copied().filter(move |leg| leg.member == member)
    }

    pub fn legs_in(&self, segment: Segment) -> impl Iterator<Item = Leg> {
        self.legs.iter().copied().filter(move |leg| leg.segment == segment)
    }
}

/// How many of the hosts are behind the gateways.
fn io_hosts(options: &Options) -> Result<u8> {
    let hosts = options.hosts;
    match (options.gateways, options.io_hosts) {
        (0, None) => Ok(0),
        (0, Some(_)) => {
            Err(Error::BadOptions("--io-hosts says who is behind the gateways; it needs --gateways".into()))
        }
        (_, None) if hosts >= 2 => Ok(hosts / 2),
        (_, Some(io)) if io >= 1 && io < hosts => Ok(io),
        _ => Err(Error::BadOptions("with gateways, each of the two segments has at least one of the hosts".into())),
    }
}

fn netem(delay: Duration, options: &Options) -> Mechanism {
    // All hosts may send to one port.
    let fastest = options.host_rate.or(options.rate).map_or(0, |rate| rate.bytes_in(delay));
    let limit_frames = (fastest * u64::from(options.hosts) / MIN_FRAME_BYTES).max(MIN_DELAY_QUEUE_FRAMES);
    // The kernel counts in 32 bits.
    Mechanism::Netem { limit_frames: limit_frames.min(u64::from(u32::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(hosts: u8, gateways: u8) -> Options {
        Options {
            hosts,
            gateways,
            io_hosts: None,
            rate: Some("1gbit".parse().unwrap()),
            port_buffer_bytes: 128 * 1024,
            host_rate: None,
            shaper: None,
            delay: None,
            mtu: 1500,
            wire_frames: false,
        }
    }

    fn plan(options: &Options) -> Result<Plan> {
        Plan::new(&"box".parse().unwrap(), options)
    }

    #[test]
    fn hosts_have_one_leg_and_gateways_two() {
        let plan = plan(&options(4, 2)).unwrap();
        let members: Vec<_> = plan.members.iter().map(Member::to_string).collect();
        assert_eq!(members, ["h1", "h2", "h3", "h4", "g1", "g2"]);
        let ports = |segment| plan.legs_in(segment).map(Leg::port).collect::<Vec<_>>();
        assert_eq!(ports(Segment::Compute), ["h1", "h2", "g1-compute", "g2-compute"]);
        assert_eq!(ports(Segment::Io), ["h3", "h4", "g1-io", "g2-io"]);
        let devices: Vec<_> = plan.legs_of(Member::Gateway(2)).map(Leg::device).collect();
        assert_eq!(devices, ["eth0", "eth1"]);
    }

    #[test]
    fn addresses_are_different_and_can_be_read() {
        let plan = plan(&Options { io_hosts: Some(14), ..options(MAX_HOSTS, MAX_GATEWAYS) }).unwrap();
        let mut addresses: Vec<_> = plan.legs.iter().map(|leg| (leg.v4(), leg.v6(), leg.mac())).collect();
        let last = plan.legs_in(Segment::Compute).nth(49).unwrap();
        assert_eq!((last.v4().to_string(), last.v6().to_string()), ("10.0.1.50".into(), "fd00:1::50".into()));
        let gateway = plan.legs_of(Member::Gateway(16)).last().unwrap();
        assert_eq!((gateway.v4().to_string(), gateway.v6().to_string()), ("10.0.2.216".into(), "fd00:2::216".into()));
        let count = addresses.len();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), count);
        assert!(plan.legs.iter().all(|leg| leg.port().len() + "-dly".len() <= 15), "names of devices have 15 letters");
    }

    #[test]
    fn the_burst_follows_the_rate_and_holds_two_frames() {
        let gigabit = plan(&options(2, 0)).unwrap().port.unwrap();
        assert_eq!((gigabit.burst_bytes(Shaper::Tbf), gigabit.limit_bytes), (16 * 1024, 128 * 1024));
        assert_eq!((gigabit.turn_bytes(Shaper::Htb), gigabit.burst_bytes(Shaper::Htb)), (12 * 1024, 24 * 1024));
        let slow = Options { rate: Some("10mbit".parse().unwrap()), ..options(2, 0) };
        assert_eq!(plan(&slow).unwrap().port.unwrap().burst_bytes(Shaper::Tbf), 2 * (1500 + 14 + 4 + 24));
        let jumbo = Options { mtu: 9000, ..options(2, 0) };
        assert_eq!(plan(&jumbo).unwrap().port.unwrap().burst_bytes(Shaper::Tbf), 2 * (9000 + 14 + 4 + 24));
    }

    #[test]
    fn a_box_without_a_rate_is_not_shaped_and_keeps_its_offloads() {
        let free = plan(&Options { rate: None, ..options(2, 0) }).unwrap();
        assert!(free.port.is_none() && !free.wire_frames);
        assert!(plan(&Options { rate: None, wire_frames: true, ..options(2, 0) }).unwrap().wire_frames);
        assert!(plan(&options(2, 0)).unwrap().wire_frames);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let refused = |options: Options| plan(&options).unwrap_err().to_string();
        assert!(refused(options(1, 1)).contains("each of the two segments"));
        assert!(refused(Options { io_hosts: Some(4), ..options(4, 1) }).contains("each of the two segments"));
        assert!(refused(Options { io_hosts: Some(1), ..options(4, 0) }).contains("--gateways"));
        assert!(refused(Options { port_buffer_bytes: 1517, ..options(2, 0) }).contains("1518 bytes"));
        assert!(refused(Options { port_buffer_bytes: 1 << 31, ..options(2, 0) }).contains("at most"));
    }

    #[test]
    fn a_delay_has_room_for_what_is_under_way() {
        let delayed = Options { delay: Some("1ms".parse().unwrap()), ..options(32, 0) };
        let by = |options: &Options| plan(options).unwrap().delay.unwrap().by;
        // 125,000 bytes a host in a millisecond, 32 hosts, frames of 64 bytes.
        assert_eq!(by(&delayed), Mechanism::Netem { limit_frames: 62_500 });
        assert_eq!(by(&Options { rate: None, ..delayed }), Mechanism::Netem { limit_frames: 1000 });
    }

    #[test]
    fn a_process_that_delays_has_bounded_memory_and_refuses_what_exceeds_it() {
        let with = |delay: &str| Options { delay: Some(delay.parse().unwrap()), ..options(2, 0) };
        let frames = |options: &Options| plan(options)?.without_netem().map(|plan| plan.line().unwrap().frames);
        assert_eq!(frames(&with("10ms")).unwrap(), 3_000 + 1_024);
        assert_eq!(frames(&with("1s")).unwrap(), (256 << 20) / (1500 + 128));
        let refused = frames(&with("3s")).unwrap_err().to_string();
        assert!(refused.contains("CONFIG_NET_SCH_NETEM") && refused.contains("within 3s"), "{refused}");
        let fast = |mtu| Options { rate: Some("10gbit".parse().unwrap()), mtu, ..with("1ms") };
        let refused = frames(&fast(1500)).unwrap_err().to_string();
        assert!(refused.contains("carries 812743 at this rate; make --rate smaller"), "{refused}");
        frames(&fast(9000)).unwrap();
        frames(&Options { rate: Some("100mbit".parse().unwrap()), ..with("10s") }).unwrap();
        frames(&Options { rate: None, ..with("10s") }).unwrap();
        let free = plan(&Options { rate: None, ..with("1ms") }).unwrap();
        assert!(!free.wire_frames && free.without_netem().unwrap().wire_frames);
    }
}
