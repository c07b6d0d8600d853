//! What packet links do beyond what every link does: filters, sharing among workers, and devices that change under them.

use crate::support::{DEVICE, Hosts, reason_against_hosts};
use ropeway_link::packet::{Fanout, FieldMatch, Options, PacketLink};
use ropeway_link::{Address, Batch, Link};
use ropeway_link::{Part, Steering, Width};
use ropeway_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

macro_rules! need_hosts {
    () => {
        if let Some(reason) = reason_against_hosts() {
            skip!("{reason}");
        }
    };
}

fn open(hosts: &Hosts, end: usize, change: impl FnOnce(&mut Options) + Send) -> PacketLink {
    let mut options = Options::new(DEVICE);
    change(&mut options);
    hosts.on(end, || PacketLink::open(&options)).expect("root may open a packet socket")
}

fn send(link: &mut PacketLink, to: Address, packets: &[&[u8]]) -> io::Result<usize> {
    let packets: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
    link.send(&Batch::new(to, &packets))
}

/// All that arrives until a packet that ends with this byte.
fn receive_until(link: &mut PacketLink, last: u8) -> Vec<Vec<u8>> {
    let mut seen: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    while seen.last().is_none_or(|packet| packet.last() != Some(&last)) {
        assert!(start.elapsed() < PATIENCE, "only {seen:?} arrived");
        link.receive(64, &mut |packet| seen.push(packet.bytes.to_vec())).expect("the link works");
    }
    seen
}

fn is_readable(link: &PacketLink) -> bool {
    let descriptor = link.descriptor().expect("there is one");
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).expect("polls") == 1
}

/// Whether a device of this thread's network namespace has a carrier, as the kernel tells programs.
fn is_running(device: &str) -> bool {
    let output = std::process::Command::new("ip").args(["link", "show", "dev", device]).output().expect("ip is there");
    String::from_utf8_lossy(&output.stdout).contains("state UP")
}

#[test]
fn packets_that_begin_with_zeros_or_are_short_arrive_like_all_others() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut from = open(&hosts, 0, |_| {});
    let mut to = open(&hosts, 1, |options| options.receive_slots = 32);
    let (address, slots) = (to.local(), to.receive_slots().expect("known"));
    // Several times around the ring, so that each slot has held each of them.
    for turn in 0..5 * slots {
        for packet in [&[0; 60][..], &[0; 8], &[0], &[7], &[0, 0, 0, 0, 0, 0, 0, 0, 1]] {
            let packet = [packet, &[turn as u8]].concat();
            assert_eq!(send(&mut from, address, &[&packet]).expect("sent"), 1);
            assert_eq!(receive_until(&mut to, turn as u8), [packet]);
        }
    }
}

#[test]
fn frames_of_zeros_hold_up_what_is_behind_them_for_a_few_looks_however_many_they_are() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut from, mut to) = (open(&hosts, 0, |_| {}), open(&hosts, 1, |_| {}));
    let address = to.local();
    for _ in 0..100 {
        assert_eq!(send(&mut from, address, &[&[0; 60], &[0; 60], &[7; 60]]).expect("sent"), 3);
    }
    assert_eq!(send(&mut from, address, &[&[9; 60]]).expect("sent"), 1);
    let (mut looks, mut last) = (0, 0);
    while last != 9 {
        looks += 1;
        assert!(looks < 30, "{looks} looks");
        to.receive(64, &mut |packet| last = packet.bytes[0]).expect("the link works");
    }
}

#[test]
fn without_the_capability_the_error_says_what_is_missing() {
    need_hosts!();
    // A thread of its own: capabilities are each thread's.
    let open = || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).expect("they may always be given up");
        PacketLink::open(&Options::new("lo")).expect_err("not allowed")
    };
    let error = std::thread::spawn(open).join().expect("no panic");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
}

#[test]
fn devices_that_are_not_there_or_no_ethernet_are_named() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let error = hosts.on(0, || PacketLink::open(&Options::new("no-such-dev"))).expect_err("not there");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("no-such-dev"), "{error}");
    hosts.ip(0, "tuntap add tun0 mode tun");
    let error = hosts.on(0, || PacketLink::open(&Options::new("tun0"))).expect_err("no Ethernet");
    assert!(error.to_string().contains("not an Ethernet"), "{error}");
}

#[test]
fn a_filter_takes_what_one_of_its_alternatives_names_and_can_be_changed() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let is = |offset, width, mask, value| FieldMatch { offset, width, mask, value };
    let accept = vec![
        is(100, Width::One, 0xff, 9),
        is(4, Width::Four, 0xfff0_0000, 0x1230_0000),
        is(0, Width::Two, 0xffff, 0xabcd),
    ];
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |options| options.accept = accept));
    let to = b.local();
    let by_four: &[u8] = &[0, 0, 0, 0, 0x12, 0x35, 0, 0, 1];
    let by_two: &[u8] = &[0xab, 0xcd, 2];
    let by_one = &[9; 120];
    let strangers: [&[u8]; 3] = [&[0, 0, 0, 0, 0x13, 0x30, 0, 0, 1], &[0xab, 0xce, 2], &[8; 120]];
    send(&mut a, to, &strangers).expect("sent");
    send(&mut a, to, &[by_four, by_two, by_one]).expect("sent");
    assert_eq!(receive_until(&mut b, 9), [by_four, by_two, by_one]);
    b.accept(&[is(0, Width::One, 0xff, 8)]).expect("one alternative");
    send(&mut a, to, &[by_four, by_two, &[8; 10]]).expect("sent");
    assert_eq!(receive_until(&mut b, 8), [[8; 10]]);
    b.accept(&[]).expect("everything");
    send(&mut a, to, &[by_two, &[7]]).expect("sent");
    assert_eq!(receive_until(&mut b, 7), [by_two, &[7]]);
    assert_eq!(b.counters().receive_bad, 0);
    let error = b.accept(&[is(0, Width::One, 0, 0); 513]).expect_err("too many");
    assert!(error.to_string().contains("at most 512"), "{error}");
    b.accept(&[is(0, Width::One, 0xff, 5); 512]).expect("as many as there may be");
}

#[test]
fn workers_get_the_packets_that_their_number_says() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut a = open(&hosts, 0, |_| ());
    let member = Part { offset: 4, width: Width::Four, mask: 0xfff0_0000, shift: 20 };
    let steering = Steering { member, otherwise: None };
    let mut group = None;
    let mut workers = [0, 1, 2].map(|_| {
        let worker = open(&hosts, 1, |options| options.fanout = Some(Fanout { group, steering }));
        group = Some(worker.group().expect("it is in one"));
        worker
    });
    // Another process's workers on the same device have a group of their own, and all the packets once more.
    let mut others = open(&hosts, 1, |options| options.fanout = Some(Fanout { group: None, steering }));
    assert_ne!(others.group().expect("it is in one"), group.expect("there are workers"));
    let to = workers[0].local();
    for worker in 0..3u8 {
        for round in 0..20 {
            // 12 bits that number the worker, others that differ.
            send(&mut a, to, &[&[1 + round, 0, 0, 0, 0, (worker << 4) | (round % 16), round, 0, worker]])
                .expect("sent");
        }
    }
    for (number, worker) in workers.iter_mut().enumerate() {
        let start = Instant::now();
        let mut seen = Vec::new();
        while seen.len() < 20 {
            assert!(start.elapsed() < PATIENCE, "worker {number}: {} of 20", seen.len());
            worker.receive(64, &mut |packet| seen.push(packet.bytes.to_vec())).expect("works");
        }
        assert!(seen.iter().all(|packet| packet[8] == number as u8));
        assert_eq!(worker.receive(64, &mut |_| ()).expect("works"), 0);
    }
    assert_eq!(others.receive(64, &mut |_| ()).expect("works"), 60);
}

#[test]
fn a_full_ring_drops_the_newest_and_counts_them() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |options| options.receive_slots = 100));
    let to = b.local();
    let slots = b.receive_slots().expect("known");
    assert!((100..200).contains(&slots));
    for number in 0..slots + 50 {
        send(&mut a, to, &[&(number as u32).to_le_bytes()]).expect("sent");
    }
    let mut seen = 0u32;
    let start = Instant::now();
    while (seen as usize) < slots {
        assert!(start.elapsed() < PATIENCE, "{seen} of {slots}");
        b.receive(64, &mut |packet| {
            assert_eq!(packet.bytes, seen.to_le_bytes());
            seen += 1;
        })
        .expect("works");
    }
    send(&mut a, to, &[&[1, 2, 3, 4, 5]]).expect("sent");
    assert_eq!(receive_until(&mut b, 5).len(), 1);
    assert_eq!(b.counters().receive_drops, 50);
}

#[test]
fn frames_of_a_vlan_are_not_ours_and_a_tag_without_one_does_no_harm() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    // Writes tags itself: the EtherType of a tag, then tag, EtherType and packet.
    let mut tags = open(&hosts, 0, |options| options.ethertype = 0x8100);
    let (mut plain, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    let to = b.local();
    let tagged = |tag: [u8; 2], content: u8| [&tag[..], &[0x88, 0xb5], &[content; 64]].concat();
    send(&mut tags, to, &[&tagged([0, 5], 1), &tagged([0xe0, 5], 1), &tagged([0xe0, 0], 2)]).expect("sent");
    send(&mut plain, to, &[&[3; 64]]).expect("sent");
    assert_eq!(receive_until(&mut b, 3), [[2; 64], [3; 64]]);
    assert_eq!(b.counters().receive_bad, 2);
}

#[test]
fn the_packet_size_follows_the_device() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    let to = b.local();
    assert_eq!(a.max_packet(), 1500);
    hosts.ip(0, &format!("link set {DEVICE} mtu 1000"));
    // Not known yet: the kernel refuses it, and so it becomes known.
    assert_eq!(send(&mut a, to, &[&[1; 1500], &[2; 1000]]).expect("sent"), 2);
    assert_eq!((a.max_packet(), a.counters().send_errors), (1000, 1));
    assert_eq!(receive_until(&mut b, 2), [[2; 1000]]);
    hosts.ip(0, &format!("link set {DEVICE} mtu 1400"));
    let start = Instant::now();
    while a.max_packet() != 1400 {
        assert!(start.elapsed() < PATIENCE, "a link that is looked at learns of it");
        a.receive(1, &mut |_| ()).expect("works");
    }
    // What comes may be longer than what the ring was made for.
    [0, 1].iter().for_each(|host| hosts.ip(*host, &format!("link set {DEVICE} mtu 9000")));
    while [a.max_packet(), b.max_packet()] != [9000; 2] {
        assert!(start.elapsed() < PATIENCE, "a link that is looked at learns of it");
        for link in [&mut a, &mut b] {
            link.receive(1, &mut |_| ()).expect("works");
        }
    }
    assert_eq!(send(&mut a, to, &[&[3; 9000], &[4; 64]]).expect("sent"), 2);
    assert_eq!(receive_until(&mut b, 4), [&[3; 9000][..], &[4; 64]]);
}

/// A child that has what its parent had when it was forked.
struct Child(libc::pid_t);

impl Child {
    fn fork() -> Child {
        // SAFETY: the child runs nothing of its parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it waits for its end.
                unsafe { libc::pause() };
            }
        }
        Child(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// The kernel gives up no ring that anybody has mapped.
#[test]
fn a_link_that_a_child_has_too_goes_on_with_packets_as_long_as_before() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    let to = b.local();
    send(&mut a, to, &[&[1; 64]]).expect("sent");
    assert_eq!(receive_until(&mut b, 1), [[1; 64]]);
    let _child = Child::fork();
    [0, 1].iter().for_each(|host| hosts.ip(*host, &format!("link set {DEVICE} mtu 9000")));
    let start = Instant::now();
    // A slot may have some bytes more than it was asked for.
    while b.max_packet() == 1500 {
        assert!(start.elapsed() < PATIENCE, "a link that is looked at learns of it");
        b.receive(1, &mut |_| ()).expect("works");
    }
    assert!(b.max_packet() < 1600, "{}", b.max_packet());
    for number in 2..9 {
        send(&mut a, to, &[&[number; 1500]]).expect("sent");
        assert_eq!(receive_until(&mut b, number), [[number; 1500]]);
    }
}

#[test]
fn a_device_that_goes_down_and_up_loses_packets_and_no_more() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    let to = b.local();
    hosts.ip(0, &format!("link set {DEVICE} down"));
    assert!(is_readable(&a), "the kernel reports it");
    for _ in 0..3 {
        assert_eq!(send(&mut a, to, &[&[1; 64], &[2; 64]]).expect("not fatal"), 2);
    }
    assert_eq!(a.counters().send_errors, 6);
    // Whoever sleeps on the descriptor does not wake for ever.
    let start = Instant::now();
    while is_readable(&a) || is_readable(&b) {
        assert!(start.elapsed() < PATIENCE, "still readable");
        a.receive(1, &mut |_| ()).expect("works");
        b.receive(1, &mut |_| ()).expect("works");
    }
    hosts.ip(0, &format!("link set {DEVICE} up"));
    while b.counters().received_packets == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing arrives after it came up again");
        send(&mut a, to, &[&[3; 64]]).expect("works");
        b.receive(64, &mut |packet| assert_eq!(packet.bytes, [3; 64])).expect("works");
    }
}

#[test]
fn without_a_carrier_packets_are_lost_and_the_link_is_never_full() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    let to = b.local();
    hosts.ip(1, &format!("link set {DEVICE} down"));
    let running = || hosts.on(0, || is_running(DEVICE));
    let start = Instant::now();
    while running() {
        assert!(start.elapsed() < PATIENCE, "the other end is down");
        std::thread::sleep(Duration::from_millis(5));
    }
    let packets = [&[1u8; 64][..]; 100];
    for _ in 0..3 {
        assert_eq!(send(&mut a, to, &packets).expect("not fatal"), 100);
    }
    let counters = a.counters();
    assert_eq!((counters.send_errors, counters.send_full, counters.sent_packets), (300, 0, 0));
    hosts.ip(1, &format!("link set {DEVICE} up"));
    let start = Instant::now();
    while b.counters().received_packets == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing arrives after the other end came up again");
        send(&mut a, to, &[&[3; 64]]).expect("works");
        b.receive(64, &mut |packet| assert_eq!(packet.bytes, [3; 64])).expect("works");
    }
}

#[test]
fn a_device_that_is_gone_fails_the_link() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    hosts.ip(0, &format!("link delete {DEVICE}"));
    let mut results = (0..4).map(|_| send(&mut a, b.local(), &[&[1; 64]]));
    let error = results.find_map(Result::err).expect("an error");
    assert!(matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)), "{error}");
}

#[test]
fn who_sleeps_learns_at_once_that_the_device_is_gone() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut link = open(&hosts, 0, |_| ());
    for _ in 0..10 {
        assert_eq!(link.receive(1, &mut |_| ()).expect("works"), 0);
    }
    hosts.ip(0, &format!("link delete {DEVICE}"));
    assert!(is_readable(&link), "the kernel reports it");
    let error = link.receive(1, &mut |_| ()).expect_err("the first look tells");
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn a_device_that_is_taken_away_while_it_is_down_fails_the_link() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut link = open(&hosts, 0, |_| ());
    hosts.ip(0, &format!("link set {DEVICE} down"));
    let start = Instant::now();
    while is_readable(&link) {
        assert!(start.elapsed() < PATIENCE, "still readable");
        link.receive(1, &mut |_| ()).expect("down is not gone");
    }
    hosts.ip(0, &format!("link delete {DEVICE}"));
    link.receive(1, &mut |_| ()).expect_err("the first look tells");
}

#[test]
fn a_device_may_get_another_name_and_address() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let (mut a, mut b) = (open(&hosts, 0, |_| ()), open(&hosts, 1, |_| ()));
    hosts.ip(0, &format!("link set {DEVICE} down"));
    hosts.ip(0, &format!("link set {DEVICE} name other0 address 02:00:00:00:00:77 mtu 1200 up"));
    // The name is somebody else's now.
    hosts.ip(0, &format!("link add {DEVICE} mtu 700 type veth peer name end0"));
    let start = Instant::now();
    while a.max_packet() != 1200 {
        assert!(start.elapsed() < PATIENCE, "a link that is looked at learns of it");
        a.receive(1, &mut |_| ()).expect("works");
    }
    let to = Address::Ether([2, 0, 0, 0, 0, 0x77]);
    assert_eq!(a.local(), to);
    while a.counters().received_packets == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
        send(&mut b, to, &[&[3; 64]]).expect("works");
        a.receive(64, &mut |packet| assert_eq!(packet.bytes, [3; 64])).expect("works");
    }
}

#[test]
fn loopback_carries_frames_too() {
    need_hosts!();
    let hosts = Hosts::new(1500);
    let mut link = open(&hosts, 0, |options| options.device = "lo".into());
    assert_eq!(link.max_packet(), 9216, "not the 64 KiB of loopback, for which a ring would be large");
    let own = link.local();
    send(&mut link, own, &[&[5; 9216]]).expect("sent");
    assert_eq!(receive_until(&mut link, 5), [[5; 9216]]);
}
