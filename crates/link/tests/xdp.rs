//! What XDP links do beyond what every link does: modes, company on the same device, and what is in their way.

mod support;

use ropeway_link::packet::{self, PacketLink};
use ropeway_link::xdp::{Mode, Options, XdpLink};
use ropeway_link::{Address, Batch, Link, Urgency};
use ropeway_testkit::skip;
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
    let batch = Batch { to, packets: &packets, urgency: Urgency::Bulk };
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
