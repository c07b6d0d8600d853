//! UDP links over a device whose MTU changes. Alone in its program: who asks for hardware addresses is disturbed by hosts that come and go.

use std::io::IoSlice;
use std::net::SocketAddr;

use crate::support::{DEVICE, Hosts, address, reason_against_hosts};
use ropeway_link::udp::{Options, UdpLink};
use ropeway_link::{Address, Batch, Link};
use ropeway_testkit::skip;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a segmented send of full packets has room for.
const BATCH_PACKETS: usize = 44;

/// For such a batch that this host itself refuses: one for each packet, and some to find out that it is not for the segments.
const MOST_CALLS: u64 = BATCH_PACKETS as u64 + 10;

fn send(link: &mut UdpLink, to: SocketAddr, packets: &[IoSlice<'_>]) {
    assert_eq!(link.send(&Batch::new(Address::Udp(to), packets)).expect("works"), packets.len());
}

/// What comes until nothing does for a while, of something that comes.
fn count(link: &mut UdpLink) -> usize {
    let mut seen = 0;
    loop {
        link.receive(64, &mut |_| seen += 1).expect("works");
        let descriptor = link.descriptor().expect("there is one");
        let wait =
            if seen == 0 { Timespec { tv_sec: 5, tv_nsec: 0 } } else { Timespec { tv_sec: 0, tv_nsec: 300_000_000 } };
        if poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&wait)) == Ok(0) {
            return seen;
        }
    }
}

#[test]
fn a_lower_mtu_loses_what_is_too_long_and_nothing_else() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    let (long, short) = ([7; 1400], [7; 1200]);
    for v6 in [false, true] {
        let open = |host| UdpLink::open(&Options::new(SocketAddr::new(address(host, v6), 0))).expect("opens");
        let [mut a, mut b] = [0, 1].map(|host| hosts.on(host, || open(host)));
        let to = b.local_address();
        // From then on the hosts know each other.
        send(&mut a, to, &[IoSlice::new(&short)]);
        assert_eq!(count(&mut b), 1);
        // IPv6 has to bear 1280 bytes.
        hosts.ip(0, &format!("link set {DEVICE} mtu 1300"));
        send(&mut a, to, &[IoSlice::new(&long)]);
        assert_eq!(a.counters().send_errors, 1);
        let calls = a.counters().send_calls;
        send(&mut a, to, &[IoSlice::new(&long); BATCH_PACKETS]);
        assert_eq!(a.counters().send_errors, 1 + BATCH_PACKETS as u64);
        let calls = a.counters().send_calls - calls;
        assert!(calls <= MOST_CALLS, "{calls} calls for what this host refuses by its own word");
        let calls = a.counters().send_calls;
        send(&mut a, to, &[IoSlice::new(&short); BATCH_PACKETS]);
        assert_eq!((count(&mut b), a.counters().send_calls - calls), (BATCH_PACKETS, 1), "in one send");
        assert_eq!(a.counters().send_errors, 1 + BATCH_PACKETS as u64);
        hosts.ip(0, &format!("link set {DEVICE} mtu 1500"));
    }
}
