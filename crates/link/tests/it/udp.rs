//! UDP links over a device that is slower than its sender, on hosts with several addresses, and to hosts that are not there.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{DEVICE, Hosts, address, reason_against_hosts};
use ropeway_link::udp::{Options, UdpLink};
use ropeway_link::{Address, Batch, Link, Own, Presence, Urgency};
use ropeway_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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
        match link.send(&Batch::new(to, &packets)).expect("works") {
            0 => break,
            count => taken.push(count),
        }
    }
    assert_eq!(taken, [BATCH_PACKETS; 2], "full segmented sends");
}

/// Waits for one packet: from where it came, and to which address.
fn receive(link: &mut UdpLink) -> Option<(SocketAddr, Own)> {
    let began = Instant::now();
    let mut came = None;
    while came.is_none() && began.elapsed() < Duration::from_secs(5) {
        link.receive(1, &mut |packet| came = Some((packet.from, packet.to))).expect("works");
    }
    let (Address::Udp(from), to) = came? else { panic!("it is UDP") };
    Some((from, to))
}

fn send(link: &mut UdpLink, to: SocketAddr, from: Own, packets: &[IoSlice<'_>]) {
    let batch = Batch { from, ..Batch::new(Address::Udp(to), packets) };
    assert_eq!(link.send(&batch).expect("works"), packets.len());
}

/// Hosts of which the second has more addresses: further ones on its device, one on another device, one on lo. The first knows the way to all.
fn with_addresses() -> Hosts {
    let hosts = Hosts::new(1500);
    for args in [
        "link add other0 type veth peer name other1",
        "link set other0 up",
        "address add 10.90.0.7/24 dev eth0",
        "address add 10.91.0.7/24 dev other0",
        "address add 10.92.0.7/32 dev lo",
        "address add fd00::7/64 dev eth0 nodad",
        "address add fd01::7/64 dev other0 nodad",
        "address add fd02::7/128 dev lo nodad",
        "address add fe80::7/64 dev eth0 nodad",
        "address add fe80::7/64 dev other0 nodad",
        "address add fe80::8/64 dev eth0 nodad",
    ] {
        hosts.ip(1, args);
    }
    for args in [
        "route add 10.88.0.0/13 via 10.90.0.2",
        "route add fd00::/14 via fd00::2",
        "address add fe80::1/64 dev eth0 nodad",
    ] {
        hosts.ip(0, args);
    }
    hosts
}

#[test]
fn a_wildcard_answers_under_whichever_of_its_host_s_addresses_was_asked() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = with_addresses();
    let device = hosts.on(0, || ropeway_link::device_index(DEVICE)).expect("it is there");
    let families = [
        ("0.0.0.0", address(0, false), ["10.90.0.2", "10.90.0.7", "10.91.0.7", "10.92.0.7"].as_slice()),
        ("::", address(0, true), ["fd00::2", "fd00::7", "fd01::7", "fd02::7"].as_slice()),
        // Neither end's address says anything without its device.
        ("::", "fe80::1".parse().expect("an address"), ["fe80::7", "fe80::8"].as_slice()),
    ];
    let packets = [IoSlice::new(&[7; 1000]); 20];
    for (any, from, asked) in families {
        let is_of_link = from.to_string().starts_with("fe80");
        let scoped = |ip: IpAddr, port, scope| match ip {
            IpAddr::V6(ip) if is_of_link => std::net::SocketAddrV6::new(ip, port, 0, scope).into(),
            _ => SocketAddr::new(ip, port),
        };
        let any = SocketAddr::new(any.parse().expect("an address"), 0);
        let mut server = hosts.on(1, || UdpLink::open(&Options::new(any))).expect("opens");
        let mut client = hosts.on(0, || UdpLink::open(&Options::new(scoped(from, 0, device)))).expect("opens");
        let port = server.local_address().port();
        for ip in asked {
            let to = scoped(ip.parse().expect("an address"), port, device);
            send(&mut client, to, Own::ANY, &packets[..1]);
            let (mut peer, own) = receive(&mut server).unwrap_or_else(|| panic!("{ip} is not reached"));
            if let SocketAddr::V6(peer) = &mut peer {
                // As who keeps no scopes does.
                peer.set_scope_id(0);
            }
            for count in [1, 20] {
                send(&mut server, peer, own, &packets[..count]);
                let answer = receive(&mut client).unwrap_or_else(|| panic!("no answer from {ip}"));
                assert_eq!(answer.0, to);
                while client.receive(64, &mut |_| ()).expect("works") > 0 {}
            }
        }
        assert_eq!((server.counters().send_errors, server.counters().send_fallbacks), (0, 0));
    }
}

#[test]
fn what_would_leave_under_an_address_that_was_taken_away_is_lost_and_the_link_goes_on() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = with_addresses();
    let packets = [IoSlice::new(&[7; 1000]); 20];
    for (v6, gone, on) in [(false, "10.90.0.7", "10.90.0.7/24 dev eth0"), (true, "fd00::7", "fd00::7/64 dev eth0")] {
        let any: IpAddr = if v6 { "::" } else { "0.0.0.0" }.parse().expect("an address");
        let open = |host, ip| hosts.on(host, || UdpLink::open(&Options::new(SocketAddr::new(ip, 0)))).expect("opens");
        let (mut server, mut client) = (open(1, any), open(0, address(0, v6)));
        let port = server.local_address().port();
        let ask = |client: &mut UdpLink, server: &mut UdpLink, ip| {
            send(client, SocketAddr::new(ip, port), Own::ANY, &packets[..1]);
            receive(server).expect("it arrives")
        };
        let (peer, own) = ask(&mut client, &mut server, gone.parse().expect("an address"));
        let (_, main) = ask(&mut client, &mut server, address(1, v6));
        hosts.ip(1, &format!("address del {on}"));
        for (count, errors) in [(1, 1), (20, 21)] {
            send(&mut server, peer, own, &packets[..count]);
            assert_eq!((server.counters().send_errors, server.counters().send_fallbacks), (errors, 0));
        }
        assert!(server.take_error().is_none(), "it says nothing of the peer");
        send(&mut server, peer, main, &packets);
        assert_eq!(receive(&mut client).expect("an answer").0.ip(), address(1, v6));
        assert_eq!((server.counters().sent_packets, server.counters().send_calls), (20, 3));
        // It comes back.
        hosts.ip(1, &format!("address add {on} {}", if v6 { "nodad" } else { "" }));
        while client.receive(64, &mut |_| ()).expect("works") > 0 {}
        send(&mut server, peer, own, &packets[..1]);
        assert_eq!(receive(&mut client).expect("an answer").0.ip().to_string(), gone);
    }
}

#[test]
fn what_came_to_many_is_answered_under_the_address_that_the_kernel_takes() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = with_addresses();
    let mut server = hosts.on(1, || UdpLink::open(&Options::new(([0; 4], 0).into()))).expect("opens");
    let client = hosts.on(0, || std::net::UdpSocket::bind((address(0, false), 0))).expect("a socket");
    client.set_broadcast(true).expect("a plain option");
    client.send_to(&[1], ("10.90.0.255", server.local_address().port())).expect("sent");
    let (peer, own) = receive(&mut server).expect("it arrives");
    assert_eq!(own, Own::ANY);
    send(&mut server, peer, own, &[IoSlice::new(&[2])]);
    assert_eq!(client.recv_from(&mut [0; 8]).expect("an answer").1.ip(), address(1, false));
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
            hosts.on(0, || {
                link.send(&Batch { to, packets, urgency: Urgency::Bulk, presence, from: Own::ANY }).expect("works")
            })
        };
        let off = |last: u16| {
            let ip =
                if v6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]) } else { IpAddr::from([10, 90, 0, last as u8]) };
            Address::Udp(SocketAddr::new(ip, 9))
        };
        // From elsewhere it could not be opened, and goes out all the same; at a wildcard it was, with the link, as this is root.
        let mut stray = hosts.on(0, || UdpLink::open(&Options::new(SocketAddr::new(local, 0)))).expect("opens");
        let batch = Batch {
            to: peer.local(),
            packets: &packets[..1],
            urgency: Urgency::Bulk,
            presence: Presence::Silent,
            from: Own::ANY,
        };
        assert_eq!(stray.send(&batch).expect("works"), 1);
        let apart = u64::from(wildcard);
        assert_eq!((stray.counters().sent_apart, stray.counters().sent_unparted), (apart, 1 - apart));
        assert_eq!(hosts.on(0, || stray.send(&batch)).expect("works"), 1);
        assert_eq!((stray.counters().sent_apart, stray.counters().sent_unparted), (1 + apart, 1 - apart));
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
        assert_eq!((link.counters().send_discarded, link.counters().send_errors), (BATCH_PACKETS as u64, 0));
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
        assert_eq!(reported.error.raw_os_error(), Some(libc::EHOSTUNREACH), "{reported:?}");
        assert!((100..110).any(|last| reported.to == off(last)), "{reported:?}");
    }
}
