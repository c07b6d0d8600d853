//! UDP links over a device that is slower than its sender, and to hosts that are not there.

mod support;

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use ropeway_link::udp::{Options, UdpLink};
use ropeway_link::{Address, Batch, Link, Presence, Urgency};
use ropeway_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{DEVICE, Hosts, address, reason_against_hosts};

/// What a segmented send of full packets has room for.
const BATCH_PACKETS: usize = 44;

#[test]
fn two_segmented_sends_wait_in_the_host_s_queue_and_no_more() {
    if let Some(reason) = reason_against_hosts().or_else(|| ropeway_testkit::skip::missing_program(&["tc"])) {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    let slow = ["qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", "64kbit", "burst", "16k", "limit", "10m"];
    let output = hosts.on(0, || Command::new("tc").args(slow).output()).expect("tc is there");
    assert!(output.status.success(), "{output:?}");
    let mut link = hosts.on(0, || UdpLink::open(&Options::new(SocketAddr::new(address(0, false), 0)))).expect("opens");
    let to = Address::Udp(SocketAddr::new(address(1, false), 9));
    let packet = [7; 1472];
    let packets = [IoSlice::new(&packet); BATCH_PACKETS];
    let mut taken = Vec::new();
    while taken.len() < 20 {
        match link
            .send(&Batch { to, packets: &packets, urgency: Urgency::Bulk, presence: Default::default() })
            .expect("works")
        {
            0 => break,
            count => taken.push(count),
        }
    }
    assert_eq!(taken, [BATCH_PACKETS; 2], "full segmented sends");
}

/// Full packets that fit into the buffer of what goes out apart.
const APART_PACKETS: usize = 48;

#[test]
fn what_is_for_hosts_that_are_off_takes_no_room_of_others() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    let packet = [7; 1400];
    let packets = [IoSlice::new(&packet); BATCH_PACKETS];
    for (v6, wildcard) in [(false, false), (false, true), (true, false), (true, true)] {
        let any = if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
        let local = if wildcard { any } else { address(0, v6) };
        let mut link = hosts.on(0, || UdpLink::open(&Options::new(SocketAddr::new(local, 0)))).expect("opens");
        let mut peer = hosts.on(1, || UdpLink::open(&Options::new(SocketAddr::new(address(1, v6), 0)))).expect("opens");
        let mut send = |to, presence, packets: &[IoSlice<'_>]| {
            hosts.on(0, || link.send(&Batch { to, packets, urgency: Urgency::Bulk, presence }).expect("works"))
        };
        let off = |last: u16| {
            let ip =
                if v6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]) } else { IpAddr::from([10, 90, 0, last as u8]) };
            Address::Udp(SocketAddr::new(ip, 9))
        };
        // From elsewhere it could not be opened, and goes out all the same.
        let mut stray = hosts.on(0, || UdpLink::open(&Options::new(SocketAddr::new(local, 0)))).expect("opens");
        let batch =
            Batch { to: peer.local(), packets: &packets[..1], urgency: Urgency::Bulk, presence: Presence::Silent };
        assert_eq!(stray.send(&batch).expect("works"), 1);
        assert_eq!((stray.counters().sent_apart, stray.counters().sent_unparted), (0, 1));
        assert_eq!(hosts.on(0, || stray.send(&batch)).expect("works"), 1);
        assert_eq!((stray.counters().sent_apart, stray.counters().sent_unparted), (1, 1));
        // Ten hosts that are not there, until there is no more room for them.
        let taken = (0..1000).position(|n| send(off(100 + n % 10), Presence::Unheard, &packets[..1]) == 0);
        assert!(taken.is_some_and(|taken| (APART_PACKETS - 1..=APART_PACKETS + 1).contains(&taken)), "{taken:?}");
        assert_eq!(send(off(110), Presence::Unheard, &packets[..1]), 0);
        assert_eq!(send(off(110), Presence::Silent, &packets), BATCH_PACKETS, "lost");
        // Who is there does not notice.
        for _ in 0..10 {
            assert_eq!(send(peer.local(), Presence::Heard, &packets), BATCH_PACKETS);
            let mut seen = 0;
            let begin = Instant::now();
            while seen < BATCH_PACKETS {
                assert!(begin.elapsed() < Duration::from_millis(500), "{seen}");
                peer.receive(64, &mut |_| seen += 1).expect("works");
            }
        }
        // What the kernel says of them comes to who waits for arrivals.
        let begin = Instant::now();
        let reported = loop {
            let descriptor = link.descriptor().expect("there is one");
            let wait = Timespec { tv_sec: 10, tv_nsec: 0 };
            assert_eq!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&wait)), Ok(1), "no report");
            link.receive(1, &mut |_| panic!("nothing was sent")).expect("works");
            if let Some(report) = link.take_error() {
                break report;
            }
        };
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        assert_eq!(reported.1.raw_os_error(), Some(libc::EHOSTUNREACH), "{reported:?}");
        assert!((100..110).any(|last| reported.0 == off(last)), "{reported:?}");
    }
}
