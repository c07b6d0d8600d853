//! What packet links do where their process gets no more memory. A program of its own: the limit is for all of it.

mod support;

use ropeway_link::packet::{Options, PacketLink};
use ropeway_link::{Batch, Link};
use ropeway_testkit::skip;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::IoSlice;
use std::time::{Duration, Instant};
use support::{DEVICE, Hosts, reason_against_hosts};

const PATIENCE: Duration = Duration::from_secs(10);
/// Less than any ring takes.
const LEFT_BYTES: u64 = 2 << 20;

/// This process gets `LEFT_BYTES` of addresses more than it has.
fn limit_addresses() {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.strip_suffix("kB")).expect("it is said");
    let most = size.trim().parse::<u64>().expect("a number") * 1024 + LEFT_BYTES;
    setrlimit(Resource::As, Rlimit { current: Some(most), ..getrlimit(Resource::As) }).expect("less than before");
}

#[test]
fn a_link_that_finds_no_memory_for_longer_packets_goes_on_with_packets_as_long_as_before() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    let [mut a, mut b] = [0, 1].map(|end| hosts.on(end, || PacketLink::open(&Options::new(DEVICE)).expect("opened")));
    let to = b.local();
    limit_addresses();
    [0, 1].iter().for_each(|host| hosts.ip(*host, &format!("link set {DEVICE} mtu 9000")));
    let start = Instant::now();
    // A slot may have some bytes more than it was asked for.
    while b.max_packet() == 1500 {
        assert!(start.elapsed() < PATIENCE, "a link that is looked at learns of it");
        b.receive(1, &mut |_| ()).expect("the link works");
    }
    assert!(b.max_packet() < 1600, "{}", b.max_packet());
    for number in 0..2 * b.receive_slots().expect("known") {
        let packet = [number as u8; 1500];
        a.send(&Batch::new(to, &[IoSlice::new(&packet)])).expect("the link works");
        let mut seen = 0;
        while seen == 0 {
            assert!(start.elapsed() < 2 * PATIENCE, "packet {number} does not arrive");
            seen = b.receive(1, &mut |arrived| assert_eq!(arrived.bytes, packet)).expect("the link works");
        }
    }
}
