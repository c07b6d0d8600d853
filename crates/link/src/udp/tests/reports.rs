//! Reports of the network: however they are met, none keeps the descriptor readable for ever.

use super::*;
use ropeway_testkit::proc::until;
use ropeway_testkit::{need_root, skip};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};
use std::net::SocketAddrV4;

/// Has the network report that a packet of `link` to this address was too long for the path, by 65,535 bytes: what else of this host sends there is none the shorter.
fn report_too_long(link: &UdpLink, to: SocketAddrV4) {
    let SocketAddr::V4(from) = link.local_address() else { unreachable!("it is IPv4") };
    let mut icmp = vec![3, 4, 0, 0, 0, 0, 0xff, 0xff];
    icmp.extend([0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    icmp.extend(from.ip().octets().into_iter().chain(to.ip().octets()));
    icmp.extend(from.port().to_be_bytes().into_iter().chain(to.port().to_be_bytes()));
    icmp.extend([0, 108, 0, 0]);
    let sum: u32 = icmp.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    icmp[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let raw = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).expect("root may");
    let sent = rustix::net::sendto(&raw, &icmp, SendFlags::empty(), &SocketAddr::new((*from.ip()).into(), 0));
    assert_eq!(sent, Ok(icmp.len()));
    assert!(is_readable(link, 5), "a report makes the descriptor readable");
}

/// A link, another one at an address that no other test sends to, and that address.
fn ends(ip: &str) -> (UdpLink, UdpLink, SocketAddrV4) {
    let (a, b) = (open(|_| ()), open(|options| options.local = format!("{ip}:0").parse().expect("an address")));
    let SocketAddr::V4(to) = b.local_address() else { unreachable!("it is IPv4") };
    (a, b, to)
}

#[test]
fn a_report_that_a_segmented_send_meets_is_taken_and_costs_the_path_nothing() {
    need_root!();
    let (mut a, mut b, to) = ends("127.77.7.1");
    if !a.paths.may_segment(to.into()) {
        skip!("needs a kernel with segmented sends");
    }
    report_too_long(&a, to);
    assert_eq!(send(&mut a, to.into(), &[&[1; 1000][..]; 40], Urgency::Bulk), 40);
    assert!(!is_readable(&a, 0), "it was taken");
    assert_eq!(receive(&mut b, 40).len(), 40);
    let Report { to: reported, error, packet } = a.take_error().expect("a report");
    assert_eq!((reported, error.raw_os_error()), (Address::Udp(to.into()), Some(libc::EMSGSIZE)));
    assert_eq!(packet.as_deref(), Some(&[][..]), "who made it up knew nothing of the packet");
    assert!(a.paths.may_segment(to.into()), "anybody can forge it");
    assert_eq!((a.counters().send_fallbacks, a.counters().send_errors, a.counters().send_calls), (0, 0, 2));
}

#[test]
fn nor_do_more_of_them_than_are_fetched_at_once() {
    need_root!();
    let (mut a, mut b, to) = ends("127.77.7.2");
    if !a.paths.may_segment(to.into()) {
        skip!("needs a kernel with segmented sends");
    }
    for _ in 0..200 {
        report_too_long(&a, to);
    }
    assert_eq!(send(&mut a, to.into(), &[&[1; 1000][..]; 40], Urgency::Bulk), 40);
    assert_eq!(receive(&mut b, 40).len(), 40);
    assert!(a.paths.may_segment(to.into()), "anybody can forge them");
    assert_eq!((a.counters().send_fallbacks, a.counters().send_errors), (0, 0));
}

#[test]
fn many_reports_that_nobody_is_there_are_not_taken_for_the_next_destinations() {
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    let place = nowhere();
    for _ in 0..150 {
        leave_report(&a, place);
    }
    // One that is still to be met.
    rustix::net::sendto(&a.socket, b"?", SendFlags::empty(), &place).expect("it leaves");
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(send(&mut a, b.local_address(), &[&[2; 100]], Urgency::Urgent), 1);
    assert_eq!(receive(&mut b, 1).len(), 1);
    assert_eq!(a.counters().send_errors, 0);
    assert!(std::iter::from_fn(|| a.take_error()).all(|report| report.to == Address::Udp(place)));
}

/// The network has reported that nobody is at this address, and the error is met: what is left of it fails no call any more.
fn leave_report(link: &UdpLink, to: SocketAddr) {
    rustix::net::sendto(&link.socket, b"?", SendFlags::empty(), &to).expect("it leaves");
    until("it is reported", || rustix::net::sockopt::socket_error(&link.socket).expect("a plain option").is_err());
}

/// An address where nobody is.
fn nowhere() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address")
}

#[test]
fn a_report_that_fails_no_call_is_there_until_who_is_woken_by_it_has_it_fetched() {
    let mut a = open(|_| ());
    let to = nowhere();
    leave_report(&a, to);
    for _ in 0..5000 {
        assert_eq!(a.receive(64, &mut |_| panic!("nothing was sent")).expect("works"), 0);
    }
    assert!(is_readable(&a, 0) && a.take_error().is_none(), "a look in vain costs no call more");
    a.fetch_errors();
    assert!(!is_readable(&a, 0));
    assert_eq!(a.take_error().expect("a report").to, Address::Udp(to));
}

#[test]
fn reports_that_nobody_fetches_do_no_harm_and_come_with_the_next() {
    let (mut a, mut b) = (open(|_| ()), open(|_| ()));
    let places = [nowhere(), nowhere(), nowhere()];
    for to in &places[..2] {
        leave_report(&a, *to);
        for _ in 0..100 {
            assert_eq!(send(&mut a, b.local_address(), &[&[1; 1000][..]; 20], Urgency::Bulk), 20);
            assert_eq!(receive(&mut b, 20).len(), 20);
            assert_eq!(send(&mut b, a.local_address(), &[&[2; 100]], Urgency::Urgent), 1);
            assert_eq!(receive(&mut a, 1).len(), 1);
        }
    }
    assert_eq!((a.counters().send_errors, a.counters().receive_drops), (0, 0));
    rustix::net::sendto(&a.socket, b"?", SendFlags::empty(), &places[2]).expect("it leaves");
    let mut all = Vec::new();
    until("the third is reported", || {
        a.receive(64, &mut |_| ()).expect("works");
        all.extend(std::iter::from_fn(|| a.take_error()).map(|report| report.to));
        !all.is_empty()
    });
    assert_eq!(all, places.map(Address::Udp));
}
