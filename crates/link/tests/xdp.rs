//! What XDP links do beyond what every link does: modes, company on the same device, and what is in their way.

mod support;

use ropeway_link::packet::{self, FieldMatch, PacketLink};
use ropeway_link::xdp::{Mode, Options, XdpLink};
use ropeway_link::{Address, Batch, Link, Received, Width};
use ropeway_testkit::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use support::{DEVICE, Hosts, reason_against_hosts};

const PATIENCE: Duration = Duration::from_secs(10);

macro_rules! need_hosts {
    () => {
        if let Some(reason) = reason_against_hosts() {
            skip!("{reason}");
        }
    };
}

fn try_open(hosts: &Hosts, end: usize, change: impl FnOnce(&mut Options) + Send) -> io::Result<XdpLink> {
    let mut options = Options::new(DEVICE);
    change(&mut options);
    hosts.on(end, || XdpLink::open(&options))
}

fn open(hosts: &Hosts, end: usize) -> XdpLink {
    try_open(hosts, end, |_| ()).expect("root may, and a veth pair can")
}

fn send(link: &mut dyn Link, to: Address, packet: &[u8]) {
    let packets = [IoSlice::new(packet)];
    let batch = Batch::new(to, &packets);
    assert_eq!(link.send(&batch).expect("the link works"), 1);
}

fn receive(link: &mut dyn Link) -> Vec<u8> {
    let mut seen = Vec::new();
    let start = Instant::now();
    while link.receive(1, &mut |packet| seen = packet.bytes.to_vec()).expect("the link works") == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
    }
    seen
}

#[test]
fn the_mode_is_the_best_that_the_device_has() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let link = open(&hosts, 0);
    // A veth device runs programs itself, and cannot write into our memory.
    assert_eq!((link.mode(), link.name()), (Mode::Copy, "xdp copy".into()));
    assert!(try_open(&hosts, 1, |options| options.mode = Mode::ZeroCopy).is_err());
    // Frames longer than a page are more than it can hand over: the kernel does it for any device, up to the size of a buffer.
    let hosts = Hosts::new(9000);
    let link = open(&hosts, 0);
    assert_eq!((link.mode(), link.name()), (Mode::CopyGeneric, "xdp copy generic".into()));
    assert_eq!(link.max_packet(), 4096 - 256 - 14);
}

#[test]
fn frames_are_the_same_as_those_of_a_packet_link() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut past = open(&hosts, 0);
    let mut plain = hosts.on(1, || PacketLink::open(&packet::Options::new(DEVICE))).expect("a socket");
    let (to_plain, to_past) = (plain.local(), past.local());
    send(&mut past, to_plain, &[1; 1500]);
    assert_eq!(receive(&mut plain), [1; 1500]);
    send(&mut plain, to_past, &[2; 1500]);
    assert_eq!(receive(&mut past), [2; 1500]);
}

#[test]
fn all_other_frames_go_their_usual_way() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0), open(&hosts, 1));
    let to = b.local();
    send(&mut a, to, &[1; 64]);
    assert_eq!(receive(&mut b), [1; 64]);
    // IP, with its search for the neighbour.
    let [from, at] = [0, 1].map(|end| {
        hosts.on(end, || UdpSocket::bind(SocketAddr::new(support::address(end, false), 0)).expect("a socket"))
    });
    from.send_to(&[2; 100], at.local_addr().expect("bound")).expect("sent");
    at.set_read_timeout(Some(PATIENCE)).expect("an option");
    assert_eq!(at.recv(&mut [0; 200]).expect("it arrives"), 100);
    // Another EtherType.
    let open_other = |end| {
        let options = packet::Options { ethertype: 0x88b6, ..packet::Options::new(DEVICE) };
        hosts.on(end, || PacketLink::open(&options)).expect("a socket")
    };
    let (mut other_a, mut other_b) = (open_other(0), open_other(1));
    send(&mut other_a, to, &[3; 64]);
    assert_eq!(receive(&mut other_b), [3; 64]);
    assert_eq!(b.receive(10, &mut |_| ()).expect("the link works"), 0);
}

#[test]
fn a_queue_has_one_link_at_a_time() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let first = open(&hosts, 0);
    let error = try_open(&hosts, 0, |_| ()).expect_err("taken");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    // The kernel takes things down behind us.
    let start = Instant::now();
    while try_open(&hosts, 0, |_| ()).is_err() {
        assert!(start.elapsed() < PATIENCE, "nothing may stay behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_missing_is_named() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let error = try_open(&hosts, 0, |options| options.device = "no-such-dev".into()).expect_err("not there");
    assert!(error.to_string().contains("no-such-dev"), "{error}");
    let error = try_open(&hosts, 0, |options| options.queue = 77).expect_err("not there");
    assert!(error.to_string().contains("77"), "{error}");
    // A thread of its own: capabilities are each thread's.
    let open = || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).expect("they may always be given up");
        XdpLink::open(&Options::new("lo")).expect_err("not allowed")
    };
    let error = std::thread::spawn(open).join().expect("no panic");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

#[test]
fn who_may_not_lock_so_much_memory_is_told_what_is_missing() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    // Of the whole process; all other tests have the capability, which sets them free of it.
    let limit = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), ..limit }).expect("less is always allowed");
    // A thread of its own: capabilities are each thread's.
    let open = || {
        let mut sets = rustix::thread::capabilities(None).expect("known");
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, sets).expect("it may always be given up");
        XdpLink::open(&Options::new(DEVICE)).expect_err("more than the limit")
    };
    let error = hosts.on(0, open);
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let text = error.to_string();
    assert!(["12288 KiB", "ulimit -l", "CAP_IPC_LOCK"].iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_device_that_is_gone_fails_the_link() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut link = open(&hosts, 0);
    hosts.ip(0, &format!("link delete {DEVICE}"));
    let start = Instant::now();
    while link.receive(1, &mut |_| ()).is_ok() {
        assert!(start.elapsed() < PATIENCE, "a link without a device works on");
    }
}

#[test]
fn the_first_look_after_a_pause_tells_that_the_device_is_gone() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut link = open(&hosts, 0);
    for _ in 0..10 {
        assert_eq!(link.receive(1, &mut |_| ()).expect("works"), 0);
    }
    hosts.ip(0, &format!("link delete {DEVICE}"));
    let error = link.receive(1, &mut |_| ()).expect_err("the first look tells");
    assert!(matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENODEV)), "{error}");
}

#[test]
fn a_device_may_get_another_name_and_address() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0), open(&hosts, 1));
    hosts.ip(0, &format!("link set {DEVICE} down"));
    hosts.ip(0, &format!("link set {DEVICE} name other0 address 02:00:00:00:00:77 mtu 1200 up"));
    // The name is somebody else's now.
    hosts.ip(0, &format!("link add {DEVICE} mtu 700 type veth peer name end0"));
    let to = Address::Ether([2, 0, 0, 0, 0, 0x77]);
    let start = Instant::now();
    let mut count = 0;
    // Something arrives at every look, so that there never is nothing at all.
    while count == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
        send(&mut b, to, &[3; 64]);
        count = a.receive(64, &mut |packet| assert_eq!(packet.bytes, [3; 64])).expect("works");
    }
    assert_eq!((a.local(), a.max_packet()), (to, 1200));
    // And it sends from there.
    send(&mut a, b.local(), &[4; 64]);
    let mut from = None;
    while from.is_none() {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
        b.receive(1, &mut |packet| from = Some(packet.from)).expect("works");
    }
    assert_eq!(from, Some(to));
}

#[test]
fn what_the_device_did_not_take_leaves_at_a_later_look_without_another_send() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0), open(&hosts, 1));
    hosts.ip(0, &format!("link set {DEVICE} down"));
    for byte in 0..50 {
        send(&mut a, b.local(), &[byte; 64]);
    }
    hosts.ip(0, &format!("link set {DEVICE} up"));
    let start = Instant::now();
    let mut seen = Vec::new();
    while seen.len() < 50 {
        assert!(start.elapsed() < PATIENCE, "{} arrive", seen.len());
        assert_eq!(a.receive(64, &mut |_| ()).expect("works"), 0);
        b.receive(64, &mut |packet| seen.push(packet.bytes[0])).expect("works");
    }
    assert_eq!(seen, (0..50).collect::<Vec<u8>>());
    let calls = a.counters().send_calls;
    (0..100).for_each(|_| assert_eq!(a.receive(64, &mut |_| ()).expect("works"), 0));
    assert_eq!(a.counters().send_calls, calls, "nothing is left");
}

/// The first byte of a packet says whose it is.
fn of(first: u32) -> FieldMatch {
    FieldMatch { offset: 0, width: Width::One, mask: 0xFF, value: first }
}

#[test]
fn packets_that_are_not_accepted_are_left_to_packet_links() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut sender = open(&hosts, 1);
    let four = FieldMatch { offset: 4, width: Width::Four, mask: 0xFFF0_0000, value: 0x1230_0000 };
    let two = FieldMatch { offset: 2, width: Width::Two, mask: 0xFF0F, value: 0x4502 };
    let mut past = try_open(&hosts, 0, |options| options.accept = vec![of(1), two, four]).expect("root may");
    // It sees only what the XDP program lets pass.
    let mut plain = hosts.on(0, || PacketLink::open(&packet::Options::new(DEVICE))).expect("a socket");
    let (to, control) = (past.local(), past.control());
    let mut goes_to = |past: &mut XdpLink, packet: &[u8]| {
        send(&mut sender, to, packet);
        let start = Instant::now();
        loop {
            let counts = [past as &mut dyn Link, &mut plain].map(|link| {
                let mut seen = |arrived: Received<'_>| assert!(arrived.bytes.starts_with(packet));
                link.receive(10, &mut seen).expect("the link works")
            });
            match counts {
                [0, 0] => assert!(start.elapsed() < PATIENCE, "nothing arrives"),
                counts => return counts,
            }
        }
    };
    let (ours, theirs) = ([1, 0], [0, 1]);
    assert_eq!(goes_to(&mut past, &[1; 64]), ours);
    assert_eq!(goes_to(&mut past, &[2; 64]), theirs);
    assert_eq!(goes_to(&mut past, &[0, 0, 0x45, 0xF2, 0, 0, 0, 0]), ours);
    assert_eq!(goes_to(&mut past, &[0, 0, 0x45, 0xF3, 0, 0, 0, 0]), theirs);
    assert_eq!(goes_to(&mut past, &[0, 0, 0, 0, 0x12, 0x3F, 0xFF, 0xFF]), ours);
    assert_eq!(goes_to(&mut past, &[0, 0, 0, 0, 0x12, 0x4F, 0xFF, 0xFF]), theirs);
    // Too short for a field, but that one is an alternative.
    assert_eq!(goes_to(&mut past, &[1]), ours);
    assert_eq!(goes_to(&mut past, &[3]), theirs);
    control.accept(&[of(2)]).expect("another program");
    assert_eq!(goes_to(&mut past, &[1; 64]), theirs);
    assert_eq!(goes_to(&mut past, &[2; 64]), ours);
    control.accept(&[]).expect("another program");
    assert_eq!(goes_to(&mut past, &[9; 64]), ours);
    let too_many = vec![of(1); packet::MOST_ALTERNATIVES + 1];
    assert_eq!(control.accept(&too_many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    control.accept(&too_many[1..]).expect("as many as there may be");
    assert_eq!(goes_to(&mut past, &[1; 64]), ours);
    // With the link goes its program, whoever still has the means to change it.
    drop(past);
    control.accept(&[of(1)]).expect("nothing to do");
    let _again = open(&hosts, 0);
}
