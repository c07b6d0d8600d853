mod reports;

use super::*;
use crate::sys::message;
use crate::{Ecn, Presence, Urgency};
use ropeway_testkit::{need_kernel, need_root};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::IoSlice;
use std::net::UdpSocket;

fn open(options: impl FnOnce(&mut Options)) -> UdpLink {
    let mut usual = Options::new("127.0.0.1:0".parse().expect("an address"));
    options(&mut usual);
    UdpLink::open(&usual).expect("a socket on loopback")
}

fn send(link: &mut UdpLink, to: SocketAddr, packets: &[&[u8]], urgency: Urgency) -> usize {
    send_to(link, to, packets, urgency, Presence::Heard)
}

fn send_to(link: &mut UdpLink, to: SocketAddr, packets: &[&[u8]], urgency: Urgency, presence: Presence) -> usize {
    let packets: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
    let batch = Batch { to: Address::Udp(to), from: Own::ANY, packets: &packets, urgency, presence };
    link.send(&batch).expect("the socket works")
}

fn is_readable(link: &UdpLink, wait_s: i64) -> bool {
    let descriptor = link.descriptor().expect("there is one");
    let wait = Timespec { tv_sec: wait_s, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&wait)).expect("polls") == 1
}

/// Receives until so many packets were seen, or nothing came for long.
fn receive(link: &mut UdpLink, count: usize) -> Vec<(Vec<u8>, Ecn)> {
    let mut seen = Vec::new();
    while seen.len() < count && is_readable(link, 5) {
        link.receive(64, &mut |packet| seen.push((packet.bytes.to_vec(), packet.ecn))).expect("the socket works");
    }
    seen
}

#[test]
fn a_run_of_equal_packets_is_one_send_and_arrives_as_it_was() {
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    let packets: Vec<Vec<u8>> = (0..40).map(|n| vec![n; 1400]).chain([vec![99; 7]]).collect();
    let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    assert_eq!(send(&mut a, b.local_address(), &slices, Urgency::Bulk), 41);
    let seen = receive(&mut b, 41);
    assert_eq!(seen.iter().map(|(bytes, _)| bytes.as_slice()).collect::<Vec<_>>(), slices);
    assert!(seen.iter().all(|(_, ecn)| *ecn == Ecn::Capable0));
    let (a, b) = (a.counters(), b.counters());
    assert_eq!((a.sent_packets, a.sent_bytes, a.send_calls), (41, 56_007, 1));
    assert_eq!((b.received_packets, b.received_bytes), (41, 56_007));
    assert!(b.receive_calls <= 4, "merged, or a few to a call: {b:?}");
}

#[test]
fn without_offloads_single_packets_do_the_same() {
    let plain =
        |options: &mut Options| (options.segmentation, options.aggregation, options.ecn) = (false, false, false);
    let (mut a, mut b) = (open(plain), open(plain));
    assert_eq!(send(&mut a, b.local_address(), &[&[1; 100][..]; 50], Urgency::Bulk), 50);
    let seen = receive(&mut b, 50);
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|(bytes, ecn)| *bytes == [1; 100] && *ecn == Ecn::NotCapable));
    assert_eq!(a.counters().send_calls, 2, "32 and 18 messages");
}

/// A socket option that makes segmented sends fail with EINVAL while single packets pass: no checksum.
fn refuse_segmentation(link: &UdpLink) {
    sys::set_int(link.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("a plain option");
}

#[test]
fn a_path_that_refuses_segments_gets_single_packets_for_good() {
    need_kernel!(6, 14);
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    refuse_segmentation(&a);
    for round in 0..2 {
        assert_eq!(send(&mut a, b.local_address(), &[&[round; 500][..]; 10], Urgency::Bulk), 10);
        assert_eq!(receive(&mut b, 10).len(), 10);
    }
    // Three times with segments, as it could have been the priority that was refused, or a report about an earlier packet.
    assert_eq!((a.counters().send_fallbacks, a.counters().sent_packets, a.counters().send_calls), (1, 20, 5));
    assert!(a.paths.says_bulk(Urgency::Bulk), "it was not");
}

#[test]
fn what_one_path_refuses_others_are_still_asked() {
    need_kernel!(6, 14);
    let at = |ip: &str| open(|options| options.local = format!("{ip}:0").parse().expect("an address"));
    // Two ends on one host, which are one path, and one on another.
    let mut ends = ["127.0.0.1", "127.0.0.1", "127.0.0.2"].map(at);
    let mut a = at("0.0.0.0");
    refuse_segmentation(&a);
    for (end, fallbacks) in ends.iter_mut().zip([1, 1, 2]) {
        let to = end.local_address();
        assert_eq!(a.paths.may_segment(to), fallbacks > a.counters().send_fallbacks, "{to}");
        assert_eq!(send(&mut a, to, &[&[7; 500][..]; 10], Urgency::Bulk), 10);
        assert_eq!(receive(end, 10).len(), 10);
        // What is refused is tried with segments first.
        assert_eq!(a.counters().send_fallbacks, fallbacks, "{to}");
        assert!(!a.paths.may_segment(to), "{to}");
    }
}

#[test]
fn packets_too_long_for_the_path_do_not_cost_it_its_segments() {
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    // Loopback bears 65,507 bytes; the kernel refuses two of these as one send, and passes each alone.
    assert_eq!(a.max_packet(), 65_507);
    a.max_packet = 66_000;
    assert_eq!(send(&mut a, b.local_address(), &[&[0; 65_508], &[1; 1000], &[2; 1000]], Urgency::Bulk), 3);
    assert_eq!(receive(&mut b, 2).len(), 2);
    assert_eq!((a.counters().send_errors, a.counters().sent_packets), (1, 2));
    assert_eq!(a.counters().send_fallbacks, 0);
    assert!(a.paths.may_segment(b.local_address()));
}

fn priority(link: &UdpLink) -> i32 {
    sys::get_int(link.socket.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY).expect("a plain option")
}

#[test]
fn a_priority_is_the_socket_s_and_no_call_more_or_is_left_out_and_never_in_the_way() {
    need_kernel!(6, 14);
    for wanted in [USUAL_URGENT_PRIORITY, 0] {
        let (mut a, mut b) = (open(|options| options.urgent_priority = wanted), open(|_| ()));
        assert_eq!((priority(&a), a.paths.says_bulk(Urgency::Bulk)), (wanted.into(), wanted > 0));
        assert!(!a.paths.says_bulk(Urgency::Urgent));
        for urgency in [Urgency::Urgent, Urgency::Bulk] {
            assert_eq!(send(&mut a, b.local_address(), &[&[1; 100], &[2; 100]], urgency), 2);
            assert_eq!(receive(&mut b, 2).len(), 2);
        }
        assert_eq!((a.counters().send_errors, a.counters().send_calls), (0, 2));
    }
}

#[test]
fn a_kernel_that_knows_no_priority_of_a_message_gets_none_for_all_of_the_socket() {
    let mut link = open(|_| ());
    link.give_up_priority();
    assert_eq!((priority(&link), link.paths.says_bulk(Urgency::Bulk)), (0, false));
}

#[test]
fn a_refused_destination_is_reported_and_nobody_else_suffers() {
    for (own, any) in
        [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::1]:0"), ("0.0.0.0:0", "127.0.0.1:0"), ("[::]:0", "[::1]:0")]
    {
        let [own, any]: [SocketAddr; 2] = [own, any].map(|text| text.parse().expect("an address"));
        let (mut a, mut b) = (open(|options| options.local = own), open(|options| options.local = any));
        // Connected to somebody else: the kernel refuses all others, and no other test gets the port.
        let elsewhere = UdpSocket::bind(any).expect("a socket");
        elsewhere.connect(b.local_address()).expect("connected");
        let nobody = elsewhere.local_addr().expect("an address");
        assert_eq!(send(&mut a, nobody, &[&[1; 100]], Urgency::Bulk), 1);
        // The report is pending: it fails the next system call, which is one to somebody else.
        assert!(is_readable(&a, 5), "a report makes the descriptor readable");
        assert_eq!(send(&mut a, b.local_address(), &[&[2; 100]], Urgency::Bulk), 1);
        assert_eq!(receive(&mut b, 1).len(), 1);
        let Report { to, error, packet } = a.take_error().expect("a report");
        assert_eq!((to, error.raw_os_error()), (Address::Udp(nobody), Some(libc::ECONNREFUSED)));
        assert_eq!(packet.as_deref(), Some(&[1; 64][..]), "its first bytes");
        assert!(a.take_error().is_none() && !is_readable(&a, 0));
        assert_eq!((a.counters().send_errors, a.counters().sent_packets), (0, 2));
        // The same when the next call is a receive.
        send(&mut a, nobody, &[&[1; 100]], Urgency::Bulk);
        assert!(is_readable(&a, 5));
        assert_eq!(a.receive(10, &mut |_| panic!("nothing was sent")).expect("works"), 0);
        assert_eq!(a.take_error().expect("a report").to, Address::Udp(nobody));
        assert!(!is_readable(&a, 0));
    }
}

#[test]
fn what_the_kernel_drops_is_counted() {
    let (mut a, mut b) = (open(|_| ()), open(|options| options.receive_buffer_bytes = 16 << 10));
    let slots = b.receive_slots().expect("known");
    for _ in 0..100 {
        send(&mut a, b.local_address(), &[&[1; 1000]], Urgency::Bulk);
    }
    let mut seen = 0;
    while b.receive(64, &mut |_| seen += 1).expect("works") > 0 {}
    assert!(seen < 100, "{seen} packets in 16 KiB");
    assert!(seen >= slots, "{seen} seen of {slots} promised");
    // The kernel tells with the next arrival.
    send(&mut a, b.local_address(), &[&[2; 10]], Urgency::Bulk);
    assert_eq!(receive(&mut b, 1).len(), 1);
    assert_eq!(b.counters().receive_drops, 100 - seen as u64);
}

/// The other end's devices may bear more than this one's: its first packet says how much, and is answered with less.
#[test]
fn packets_longer_than_what_this_end_sends_arrive() {
    for aggregation in [false, true] {
        let mut link = open(|options| (options.most_packet_bytes, options.aggregation) = (Some(100), aggregation));
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for bytes in [&[1; 101][..], &[2; 30_000]] {
            stranger.send_to(bytes, link.local_address()).expect("sent");
        }
        let arrived: Vec<usize> = receive(&mut link, 2).iter().map(|(bytes, _)| bytes.len()).collect();
        assert_eq!((arrived, link.counters().receive_bad), (vec![101, 30_000], 0));
    }
}

#[test]
fn arrivals_that_cannot_be_packets_are_counted_and_left_out() {
    for aggregation in [false, true] {
        let mut link = open(|options| (options.most_packet_bytes, options.aggregation) = (Some(100), aggregation));
        let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for bytes in [&[][..], &[], &[3; 100]] {
            stranger.send_to(bytes, link.local_address()).expect("sent");
        }
        let mut seen = Vec::new();
        let taken = link.receive(64, &mut |packet| seen.push(packet.bytes.to_vec())).expect("the socket works");
        assert_eq!((taken, seen), (1, vec![vec![3; 100]]), "in one look: none would say that nothing is there");
        assert_eq!(link.counters().receive_bad, 2);
    }
}

#[test]
fn the_size_of_buffers_is_known() {
    let buffer_bytes = |link: &UdpLink| {
        // What an ordinary user asks for may be more than the system's limit allows.
        sys::get_int(link.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).expect("an option") as usize
    };
    let link = open(|options| options.receive_buffer_bytes = 400 << 10);
    // A packet of 64 KiB costs 128 KiB and its descriptor.
    assert_eq!(link.receive_slots(), Some(buffer_bytes(&link) / (131_072 + 256)));
    let link = open(|options| (options.receive_buffer_bytes, options.most_packet_bytes) = (400 << 10, Some(1472)));
    assert_eq!(link.receive_slots(), Some(buffer_bytes(&link) / 2304));
    assert_eq!(buffer_bytes(&link), 400 << 10);
}

#[test]
fn all_of_loopbacks_net_and_wildcards_have_a_packet_size() {
    assert_eq!(open(|options| options.local = "127.9.9.9:0".parse().expect("one")).max_packet(), 65_507);
    assert_eq!(open(|options| options.local = "[::1]:0".parse().expect("one")).max_packet(), 65_488);
    assert!((500..=65_507).contains(&open(|options| options.local = "0.0.0.0:0".parse().expect("one")).max_packet()));
}

#[test]
fn addresses_that_are_not_ours_are_refused_with_the_reason() {
    let error = UdpLink::open(&Options::new("192.0.2.1:0".parse().expect("one"))).expect_err("documentation only");
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
}

/// Members of a group get what is for them, and all of what is for nobody in particular and must meet.
#[test]
fn a_group_spreads_arrivals_by_a_part_of_the_packet() {
    ["127.0.0.1:0", "0.0.0.0:0"].into_iter().for_each(spreads_arrivals);
}

fn spreads_arrivals(at: &str) {
    use crate::{Part, Steering, Width};
    let part = |offset, mask, shift| Part { offset, width: Width::Four, mask, shift };
    let steering = Steering { member: part(4, 0xfff0_0000, 20), otherwise: Some(part(8, 0xffff_ffff, 0)) };
    let open = |member, local| {
        UdpLink::open(&Options { group: Some(Group { member, members: 3, steering }), ..Options::new(local) })
    };
    let first = open(0, at.parse().unwrap()).unwrap();
    let local = first.local_address();
    let reached = SocketAddr::from(([127, 0, 0, 1], local.port()));
    let others = [1, 2].map(|member| open(member, local).unwrap());
    assert_eq!(open(0, local).expect_err("another group").kind(), io::ErrorKind::AddrInUse);
    let mut members: Vec<UdpLink> = std::iter::once(first).chain(others).collect();
    let early = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    early.send_to(&[1; 64], reached).unwrap();
    members.iter_mut().for_each(|member| member.hear().unwrap());
    assert!(members.iter_mut().all(|member| member.receive(8, &mut |_| ()).unwrap() == 0), "nobody heard it");
    let mut sender = UdpLink::open(&Options::new("127.0.0.1:0".parse().unwrap())).unwrap();
    for member in &mut members {
        assert_eq!(send_to(member, sender.local_address(), &[&[1; 64]], Urgency::Bulk, Presence::Unheard), 1);
        assert!(member.apart.is_some());
        assert_eq!(sender.receive(1, &mut |packet| assert_eq!(packet.from, Address::Udp(reached))).unwrap(), 1);
    }
    let cases: [(u32, u32, usize); 6] =
        [(0, 9, 0), (1 << 20, 9, 1), (2 << 20, 9, 2), (4 << 20, 9, 1), (0xfff0_0000, 5, 2), (0xfff0_0000, 6, 0)];
    for (steer, other, expected) in cases {
        let mut bytes = [0; 64];
        bytes[4..8].copy_from_slice(&steer.to_be_bytes());
        bytes[8..12].copy_from_slice(&other.to_be_bytes());
        let packets = [std::io::IoSlice::new(&bytes)];
        let batch = Batch::new(Address::Udp(reached), &packets);
        assert_eq!(sender.send(&batch).unwrap(), 1);
        let got = (0..200).find_map(|_| {
            let got = members.iter_mut().position(|member| member.receive(8, &mut |_| ()).unwrap() > 0);
            got.or_else(|| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                None
            })
        });
        assert_eq!(got, Some(expected), "{steer:x} {other}");
    }
}

/// Receives until so many packets were seen, or nothing came for long: from whom, at which address, how long.
fn receive_where(link: &mut UdpLink, count: usize) -> Vec<(Address, Own, usize)> {
    let mut seen = Vec::new();
    while seen.len() < count && is_readable(link, 5) {
        link.receive(64, &mut |packet| seen.push((packet.from, packet.to, packet.bytes.len()))).expect("works");
    }
    seen
}

fn at(ip: &str, port: u16) -> Address {
    Address::Udp(SocketAddr::new(ip.parse().expect("an address"), port))
}

/// Lengths of packets: one alone; a run; several runs; single ones of many lengths, in two calls.
fn shapes() -> [Vec<usize>; 4] {
    [vec![100], vec![1000; 40], vec![1000, 1000, 7, 500, 500, 9, 200], (0..40).map(|n| 100 + n).collect()]
}

#[test]
fn answers_of_a_wildcard_leave_under_the_address_that_was_asked() {
    for offloads in [true, false] {
        let at_local = |local: &str| {
            open(|options| {
                options.local = local.parse().expect("an address");
                (options.segmentation, options.aggregation) = (offloads, offloads);
            })
        };
        let (mut server, mut client) = (at_local("0.0.0.0:0"), at_local("127.0.0.1:0"));
        let port = server.local_address().port();
        let bytes = [7; 1000];
        for (ip, number) in [("127.0.0.1", 1), ("127.0.0.2", 2), ("127.0.0.1", 1), ("127.3.2.1", 3)] {
            let Address::Udp(asked) = at(ip, port) else { unreachable!("made above") };
            for (lens, urgency) in shapes().iter().zip([Urgency::Urgent, Urgency::Bulk].into_iter().cycle()) {
                let slices: Vec<&[u8]> = lens.iter().map(|len| &bytes[..*len]).collect();
                assert_eq!(send(&mut client, asked, &slices, urgency), lens.len());
                let came = receive_where(&mut server, lens.len());
                let expected: Vec<_> = lens.iter().map(|len| (client.local(), Own(number), *len)).collect();
                assert_eq!(came, expected, "{ip}");
                let packets: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
                let batch = Batch { from: Own(number), urgency, ..Batch::new(client.local(), &packets) };
                assert_eq!(server.send(&batch).expect("works"), lens.len());
                let answers = receive_where(&mut client, lens.len());
                let expected: Vec<_> = lens.iter().map(|len| (at(ip, port), Own::ANY, *len)).collect();
                assert_eq!(answers, expected, "{ip}");
            }
            assert_eq!(server.own_address(Own(number)), Some(at(ip, port)));
        }
        assert_eq!((server.counters().send_errors, server.counters().send_fallbacks), (0, 0));
        // Who asks first leaves it to the kernel.
        let Address::Udp(to) = client.local() else { unreachable!("it is UDP") };
        assert_eq!(send(&mut server, to, &[&bytes], Urgency::Bulk), 1);
        assert_eq!(receive_where(&mut client, 1), [(at("127.0.0.1", port), Own::ANY, 1000)]);
    }
}

#[test]
fn a_run_under_a_chosen_address_is_one_send() {
    need_kernel!(6, 14);
    let (mut server, mut client) = (open(|options| options.local = "0.0.0.0:0".parse().expect("one")), open(|_| ()));
    let port = server.local_address().port();
    send(&mut client, SocketAddr::from(([127, 0, 0, 2], port)), &[&[1]], Urgency::Urgent);
    let [(_, asked, _)] = receive_where(&mut server, 1)[..] else { panic!("one packet was sent") };
    let packets = [IoSlice::new(&[7; 1000]); 44];
    let batch = Batch { from: asked, ..Batch::new(client.local(), &packets) };
    assert_eq!(server.send(&batch).expect("works"), 44);
    assert_eq!(server.counters().send_calls, 1);
    assert_eq!(receive_where(&mut client, 44), [(at("127.0.0.2", port), Own::ANY, 1000); 44]);
}

#[test]
fn a_link_at_one_address_hears_nothing_of_addresses() {
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    send(&mut a, b.local_address(), &[&[1; 100]], Urgency::Bulk);
    assert_eq!(receive_where(&mut b, 1), [(a.local(), Own::ANY, 100)]);
    let kinds = |link: &UdpLink| -> Vec<(i32, i32)> {
        message::controls(link.incoming.get(0).control).map(|(level, kind, _)| (level, kind)).collect()
    };
    assert!(!kinds(&b).contains(&(libc::IPPROTO_IP, libc::IP_PKTINFO)), "{:?}", kinds(&b));
    assert_eq!(b.own_address(Own(1)), None);
    // Whoever would be told has it.
    let mut any = open(|options| options.local = "0.0.0.0:0".parse().expect("an address"));
    send(&mut a, SocketAddr::from(([127, 0, 0, 1], any.local_address().port())), &[&[1; 100]], Urgency::Bulk);
    assert_eq!(receive_where(&mut any, 1).len(), 1);
    assert!(kinds(&any).contains(&(libc::IPPROTO_IP, libc::IP_PKTINFO)));
}

#[test]
fn all_control_messages_of_an_arrival_are_told_at_once() {
    let (mut server, mut client) = (
        open(|options| options.local = "[::]:0".parse().expect("one")),
        open(|options| options.local = "[::1]:0".parse().expect("one")),
    );
    let to = SocketAddr::new("::1".parse().expect("an address"), server.local_address().port());
    // The count of drops comes with the first arrival after one.
    sys::set_int(server.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).expect("a plain option");
    for _ in 0..100 {
        send(&mut client, to, &[&[1; 1000]], Urgency::Bulk);
    }
    while server.receive(64, &mut |_| ()).expect("works") > 0 {}
    assert_eq!(send(&mut client, to, &[&[1; 100], &[2; 100], &[3; 9]], Urgency::Bulk), 3);
    assert_eq!(receive_where(&mut server, 3).len(), 3);
    let told = server.incoming.get(0);
    assert_eq!(told.flags & libc::MSG_CTRUNC, 0);
    let kinds: Vec<i32> = message::controls(told.control).map(|(_, kind, _)| kind).collect();
    let mut expected = [libc::IPV6_PKTINFO, libc::IPV6_TCLASS, libc::UDP_GRO, constant::SO_RXQ_OVFL];
    let mut found = kinds.clone();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn a_group_at_a_wildcard_answers_under_the_address_that_was_asked() {
    use crate::{Part, Steering, Width};
    let steering =
        Steering { member: Part { offset: 0, width: Width::Four, mask: u32::MAX, shift: 0 }, otherwise: None };
    let mut local: SocketAddr = "0.0.0.0:0".parse().expect("an address");
    let mut members = Vec::new();
    for member in 0..3 {
        let group = Some(Group { member, members: 3, steering });
        members.push(UdpLink::open(&Options { group, ..Options::new(local) }).expect("opens"));
        local = members[0].local_address();
    }
    members.iter_mut().for_each(|member| member.hear().expect("it is in one"));
    let mut client = open(|_| ());
    for ip in ["127.0.0.2", "127.0.0.1", "127.0.0.3"] {
        let Address::Udp(asked) = at(ip, local.port()) else { unreachable!("made above") };
        for (number, member) in (0u32..).zip(&mut members) {
            send(&mut client, asked, &[&number.to_be_bytes()], Urgency::Urgent);
            let [(from, to, _)] = receive_where(member, 1)[..] else { panic!("member {number} heard nothing") };
            let packets = [IoSlice::new(&[7; 200]); 9];
            let batch = Batch { from: to, ..Batch::new(from, &packets) };
            assert_eq!(member.send(&batch).expect("works"), 9);
            assert_eq!(receive_where(&mut client, 9), [(at(ip, local.port()), Own::ANY, 200); 9]);
        }
    }
}

/// Addresses to bind to, and how others reach them.
const PLACES: [(&str, &str); 4] =
    [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "::1")];

fn open_at((at, reached): (&str, &str)) -> (UdpLink, SocketAddr) {
    let link = open(|options| options.local = at.parse().expect("an address"));
    let reached = SocketAddr::new(reached.parse().expect("an address"), link.local_address().port());
    (link, reached)
}

#[test]
fn what_leaves_apart_leaves_as_everything_does() {
    for place in PLACES {
        let ((mut a, a_reached), (mut b, b_reached)) = (open_at(place), open_at(place));
        assert_eq!(send(&mut a, b_reached, &[&[1; 100]], Urgency::Urgent), 1);
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(a.apart.is_some(), is_root && a.local_address().ip().is_unspecified(), "nobody needed it");
        let packets = [&[2; 1000][..]; 40];
        for presence in [Presence::Unheard, Presence::Silent] {
            for urgency in [Urgency::Urgent, Urgency::Bulk] {
                assert_eq!(send_to(&mut a, b_reached, &packets, urgency, presence), 40);
                assert_eq!(send_to(&mut a, b_reached, &[&[3; 10], &[4; 900], &[5; 20]], urgency, presence), 3);
            }
        }
        let mut seen = 0;
        while seen < 1 + 4 * 43 && is_readable(&b, 5) {
            let note = &mut |packet: Received<'_>| {
                assert_eq!((packet.from, packet.ecn), (Address::Udp(a_reached), Ecn::Capable0));
                seen += 1;
            };
            b.receive(64, note).expect("the socket works");
        }
        let counters = a.counters();
        assert_eq!((seen, counters.sent_apart, counters.sent_unparted), (1 + 4 * 43, 4 * 43, 0), "{place:?}");
        assert_eq!((counters.send_errors, counters.send_fallbacks), (0, 0));
        // What comes is the link's own socket's.
        assert_eq!(send(&mut b, a_reached, &packets, Urgency::Bulk), 40);
        assert_eq!(receive(&mut a, 40).len(), 40);
        // And so are reports.
        let nobody = UdpSocket::bind((b_reached.ip(), 0)).expect("a socket");
        nobody.connect(b_reached).expect("connected");
        let nobody = nobody.local_addr().expect("an address");
        assert_eq!(send_to(&mut a, nobody, &[&[6; 100]], Urgency::Urgent, Presence::Unheard), 1);
        assert!(is_readable(&a, 5));
        a.receive(1, &mut |_| panic!("nothing was sent")).expect("works");
        let Report { to, error, packet } = a.take_error().expect("a report");
        assert_eq!((to, error.raw_os_error()), (Address::Udp(nobody), Some(libc::ECONNREFUSED)));
        assert_eq!(packet.as_deref(), Some(&[6; 64][..]));
    }
}

#[test]
fn nobody_else_gets_the_port_by_what_leaves_apart() {
    for place in PLACES {
        let (mut link, reached) = open_at(place);
        assert_eq!(send_to(&mut link, reached, &[&[1; 100]], Urgency::Urgent, Presence::Unheard), 1);
        assert_eq!((link.counters().sent_apart, receive(&mut link, 1).len()), (1, 1));
        let any = if reached.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        for ip in [reached.ip(), any] {
            for shares in
                [&[][..], &[libc::SO_REUSEADDR], &[libc::SO_REUSEPORT], &[libc::SO_REUSEADDR, libc::SO_REUSEPORT]]
            {
                let (other, _) = sending_socket(&Options::new(reached)).expect("a socket");
                let share = |option| sys::set_int(other.as_fd(), libc::SOL_SOCKET, option, 1).expect("a plain option");
                shares.iter().copied().for_each(share);
                let bound = rustix::net::bind(&other, &SocketAddr::new(ip, reached.port()));
                assert_eq!(bound, Err(rustix::io::Errno::ADDRINUSE), "{place:?} {ip} {shares:?}");
            }
        }
        // Another link, with the same port elsewhere, has one as well.
        let elsewhere = if reached.is_ipv4() { "127.0.0.2" } else { continue };
        if !link.local_address().ip().is_unspecified() {
            let elsewhere = SocketAddr::new(elsewhere.parse().expect("an address"), reached.port());
            let mut other = open(|options| options.local = elsewhere);
            assert_eq!(send_to(&mut other, reached, &[&[1; 100]], Urgency::Urgent, Presence::Unheard), 1);
            assert_eq!(other.counters().sent_apart, 1);
        }
    }
}

#[test]
fn nothing_that_arrives_is_lost_while_the_other_socket_is_opened() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    /// Under way at a time: they fit into the buffer.
    const MOST: usize = 200;
    for place in PLACES {
        let (mut link, reached) = open_at(place);
        let (stop, sent, seen) = (&AtomicBool::new(false), &AtomicUsize::new(0), &AtomicUsize::new(0));
        // From many ports: the kernel chooses among sockets that share an address by both ends'.
        let from: Vec<UdpSocket> = (0..32).map(|_| UdpSocket::bind((reached.ip(), 0)).expect("a socket")).collect();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for socket in from.iter().cycle().take_while(|_| !stop.load(Ordering::SeqCst)) {
                    while sent.load(Ordering::SeqCst) - seen.load(Ordering::SeqCst) >= MOST {
                        if stop.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                    socket.send_to(&[1; 100], reached).expect("sent");
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
            let mut opened = 0;
            while seen.load(Ordering::SeqCst) < 20_000 {
                link.apart = None;
                assert!(link.has_apart());
                opened += 1;
                let count = link.receive(64, &mut |_| ()).expect("the socket works");
                seen.fetch_add(count, Ordering::SeqCst);
            }
            stop.store(true, Ordering::SeqCst);
            assert!(opened > 300, "{opened}");
        });
        while is_readable(&link, 0) {
            let count = link.receive(64, &mut |_| ()).expect("the socket works");
            seen.fetch_add(count, Ordering::SeqCst);
        }
        let (sent, seen) = (sent.load(Ordering::SeqCst), seen.load(Ordering::SeqCst));
        assert_eq!((seen, link.counters().receive_drops), (sent, 0), "{place:?}");
    }
}

/// Anybody can have the port at the group that is usual, where the link is not at a wildcard address.
#[test]
fn nobody_keeps_the_other_socket_away_by_its_address() {
    for (place, usual) in [(PLACES[0], "233.252.0.1"), (PLACES[2], "ff0e::db8:0:1")] {
        let (mut link, reached) = open_at(place);
        let _taken = UdpSocket::bind((usual, reached.port())).expect("a socket");
        assert_eq!(send_to(&mut link, reached, &[&[1; 100]], Urgency::Urgent, Presence::Silent), 1);
        assert_eq!((link.counters().sent_apart, link.counters().sent_unparted), (1, 0), "{place:?}");
    }
}

#[test]
fn where_there_is_no_other_socket_all_goes_through_the_one() {
    need_root!();
    let (mut a, mut b) = (open(|options| options.local = "0.0.0.0:0".parse().expect("an address")), open(|_| ()));
    let to = b.local_address();
    let send = |a: &mut UdpLink| send_to(a, to, &[&[1; 100][..]; 3], Urgency::Urgent, Presence::Silent);
    a.apart = None;
    // At a wildcard address the kernel lets sockets of one user in, and it knows users of threads.
    let sends = || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).expect("root may");
        assert_eq!(send(&mut a), 3);
    };
    std::thread::scope(|scope| scope.spawn(sends).join()).expect("it is sent");
    assert_eq!((a.counters().sent_apart, a.counters().sent_unparted, a.counters().sent_packets), (0, 3, 3));
    assert_eq!(send(&mut a), 3);
    assert_eq!((a.counters().sent_apart, a.counters().sent_unparted, a.counters().sent_packets), (3, 3, 6));
    assert_eq!(receive(&mut b, 6).len(), 6);
}

#[test]
fn where_the_other_socket_cannot_be_opened_that_is_tried_less_and_less_often() {
    let mut pauses = Pauses::default();
    let tried: Vec<u32> = (0..100).filter(|_| pauses.is_over()).collect();
    assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63]);
    let tried = (0..100_000).filter(|_| pauses.is_over()).count();
    assert!((97..110).contains(&tried), "{tried}");
}

#[test]
fn who_has_given_up_its_privileges_has_the_other_socket_all_the_same() {
    need_root!();
    let open_at = |local: &str| UdpLink::open(&Options::new(local.parse().expect("an address")));
    let privileged = || (600..1023).find_map(|port| open_at(&format!("127.0.0.1:{port}")).ok()).expect("a free port");
    let usual = ["0.0.0.0:0", "[::]:0", "127.0.0.1:0"].map(|local| open_at(local).expect("a socket"));
    for mut link in usual.into_iter().chain([privileged()]) {
        let local = link.local_address();
        let to = UdpSocket::bind(if local.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).expect("a socket");
        let to = to.local_addr().expect("an address");
        // The kernel knows privileges of threads.
        let sends = || {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).expect("root may");
            assert_eq!(send_to(&mut link, to, &[&[1; 100]], Urgency::Urgent, Presence::Silent), 1);
        };
        std::thread::scope(|scope| scope.spawn(sends).join()).expect("it is sent");
        assert_eq!((link.counters().sent_apart, link.counters().sent_unparted), (1, 0), "{local}");
    }
}
