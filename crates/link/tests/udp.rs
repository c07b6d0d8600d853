//! UDP links over a device that is slower than its sender.

mod support;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::process::Command;

use ropeway_link::udp::{Options, UdpLink};
use ropeway_link::{Address, Batch, Link, Urgency};
use ropeway_testkit::skip;
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
        match link.send(&Batch { to, packets: &packets, urgency: Urgency::Bulk }).expect("works") {
            0 => break,
            count => taken.push(count),
        }
    }
    assert_eq!(taken, [BATCH_PACKETS; 2], "full segmented sends");
}
