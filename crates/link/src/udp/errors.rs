//! What the network reports about packets that were sent: ICMP messages, which the kernel keeps in the socket's error queue.

use super::{UdpLink, name};
use crate::sys::message::{self, Incoming};
use crate::{Address, Report};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Reports kept for whoever asks. They are hints, and somebody on the way may make them up: the newest are worth most.
const MOST_KEPT: usize = 64;

/// Reports fetched in one go: more than any real trouble makes between two calls; a flood of forged ones costs no more than this.
const MOST_FETCHED: usize = 64;

/// What is kept of the packet that a report is about: more than the headers that tell one attempt to connect from another.
const PACKET_BYTES: usize = 64;

/// Reports to be asked for.
#[derive(Debug, Default)]
pub(super) struct Reports {
    kept: VecDeque<Kept>,
    incoming: Option<Box<Incoming>>,
}

/// What was in the error queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetched {
    /// The network made one of the reports.
    pub is_reported: bool,
    /// What this host itself had said last: of whom, and its number.
    own: Option<(IpAddr, i32)>,
}

impl Fetched {
    /// Whether it was this host that refused a packet to `to` with this error. No report of the network, forged or not, can say that.
    pub fn is_own_word(&self, to: SocketAddr, code: i32) -> bool {
        // It leaves out the port, and the device of a link-local address, where it sees fit.
        self.own == Some((to.ip(), code))
    }
}

/// A report: of whom, its number, and the packet as far as it was told.
type Kept = (SocketAddr, i32, Option<Box<[u8]>>);

impl Reports {
    pub fn push(&mut self, to: SocketAddr, error: io::Error, packet: Option<&[u8]>) {
        let report = (name::plain(to), error.raw_os_error().unwrap_or(0), packet.map(Box::from));
        // One for a burst of packets that all met the same.
        if self.kept.back() == Some(&report) {
            return;
        }
        if self.kept.len() >= MOST_KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(report);
    }

    pub fn take(&mut self) -> Option<Report> {
        let (to, code, packet) = self.kept.pop_front()?;
        Some(Report { to: Address::Udp(to), error: io::Error::from_raw_os_error(code), packet })
    }
}

/// Error number and origin in a `sock_extended_err`.
fn extended_error(control: &[u8]) -> Option<(i32, u8)> {
    let is_error = |level, kind| {
        matches!((level, kind), (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR))
    };
    let (_, _, value) = message::controls(control).find(|(level, kind, _)| is_error(*level, *kind))?;
    let code = i32::from_ne_bytes(value.get(..4)?.try_into().ok()?);
    Some((code, *value.get(4)?))
}

impl UdpLink {
    /// Takes all reports out of the socket's error queue; while one is there, the descriptor stays readable.
    pub(super) fn fetch_reports(&mut self) -> Fetched {
        let mut incoming = self.reports.incoming.take().unwrap_or_else(|| Box::new(Incoming::new(PACKET_BYTES)));
        let mut fetched = Fetched::default();
        for _ in 0..MOST_FETCHED {
            let Ok(1..) = incoming.receive(self.socket.as_fd(), 1, libc::MSG_ERRQUEUE) else { break };
            let report = incoming.get(0);
            let (Some(to), Some((code, origin))) = (name::address(report.name), extended_error(report.control)) else {
                continue;
            };
            match origin {
                libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => {
                    fetched.is_reported = true;
                    self.reports.push(to, io::Error::from_raw_os_error(code), Some(report.bytes));
                }
                // The answer to a send.
                libc::SO_EE_ORIGIN_LOCAL => fetched.own = Some((to.ip(), code)),
                _ => {}
            }
        }
        self.reports.incoming = Some(incoming);
        fetched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_bounded_and_a_burst_is_one() {
        let mut reports = Reports::default();
        let to = |port| SocketAddr::from(([10, 0, 0, 1], port));
        for port in 0..100 {
            let packet = [port as u8; 64];
            (0..3)
                .for_each(|_| reports.push(to(port), io::Error::from_raw_os_error(libc::ECONNREFUSED), Some(&packet)));
        }
        for port in 36..100 {
            let Report { to: reported, packet, .. } = reports.take().expect("the newest 64");
            assert_eq!((reported, packet.as_deref()), (Address::Udp(to(port)), Some(&[port as u8; 64][..])));
        }
        assert!(reports.take().is_none());
    }

    #[test]
    fn an_extended_error_is_read_or_none() {
        let mut control = [0; 64];
        let mut error = [0; 16];
        error[..4].copy_from_slice(&libc::ECONNREFUSED.to_ne_bytes());
        error[4] = libc::SO_EE_ORIGIN_ICMP;
        let end = message::push_control(&mut control, 0, libc::IPPROTO_IP, libc::IP_RECVERR, &error);
        assert_eq!(extended_error(&control[..end]), Some((libc::ECONNREFUSED, libc::SO_EE_ORIGIN_ICMP)));
        let end = message::push_control(&mut control, 0, libc::IPPROTO_IP, libc::IP_RECVERR, &error[..4]);
        assert_eq!(extended_error(&control[..end]), None);
    }
}
