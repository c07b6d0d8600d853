//! Receiving: arrivals, their ECN bits, and merged ones taken apart.

use super::own::OwnAddress;
use super::{UdpLink, constant, name};
use crate::sys::message::{self, VECTOR};
use crate::{Address, Ecn, Own, Received};
use std::io;
use std::os::fd::AsFd;

/// Calls that end with a report about an earlier packet, before this one gives up for now: somebody who sends such reports without end would
/// otherwise keep it here.
const MOST_REPORTS_PER_CALL: usize = 8;

/// Calls that bring only what is no packet of ours, before this one gives up: who sends such without end keeps it no longer.
const MOST_VAIN_CALLS: usize = 8;

/// What came with an arrival beside its bytes.
#[derive(Clone, Copy, Default)]
struct Notes {
    ecn: Ecn,
    /// The length of all merged packets but the last; none: it is a single one.
    segment_bytes: Option<usize>,
    drops: Option<u32>,
    /// Where it came to, if that was asked for.
    to: Option<OwnAddress>,
}

fn read_notes(control: &[u8]) -> Notes {
    let mut notes = Notes::default();
    for (level, kind, value) in message::controls(control) {
        let int = value.get(..4).map(|int| i32::from_ne_bytes(int.try_into().expect("4 bytes")));
        match (level, kind) {
            // One byte on IPv4, an int on IPv6; this machine has the low byte first.
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                notes.ecn = value.first().map_or(Ecn::NotCapable, |byte| name::ecn(*byte));
            }
            (constant::SOL_UDP, libc::UDP_GRO) => {
                notes.segment_bytes = int.and_then(|int| usize::try_from(int).ok()).filter(|bytes| *bytes > 0);
            }
            (libc::SOL_SOCKET, constant::SO_RXQ_OVFL) => notes.drops = int.map(|int| int as u32),
            (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                notes.to = OwnAddress::read(level, value);
            }
            _ => {}
        }
    }
    notes
}

impl UdpLink {
    pub(super) fn receive_batch(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let mut packets = 0;
        for _ in 0..MOST_VAIN_CALLS {
            let messages = self.take_messages(limit)?;
            let mut most_merged = 1;
            for index in 0..messages {
                let merged = self.hand_over(index, sink);
                packets += merged;
                most_merged = most_merged.max(merged);
            }
            self.last_messages = messages;
            self.last_merged = most_merged;
            if messages == 0 || packets > 0 {
                break;
            }
        }
        Ok(packets)
    }

    /// Takes what has arrived into the buffers.
    fn take_messages(&mut self, limit: usize) -> io::Result<usize> {
        // After an empty look one packet is the likely answer, and asking for one alone is cheaper; after a full one there may be many. As much is
        // merged as last time, probably.
        let many = (limit / self.last_merged).clamp(1, VECTOR);
        let count = if limit == 0 || self.last_messages == 0 { limit.min(1) } else { many };
        for _ in 0..MOST_REPORTS_PER_CALL {
            self.counters.receive_calls += 1;
            match self.incoming.receive(self.socket.as_fd(), count, 0) {
                Ok(messages) => return Ok(messages),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(0),
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => return Err(error),
                    Some(libc::EINTR) => {}
                    // A report about a packet that we sent ended the call; what arrived is still there.
                    _ => {
                        self.fetch_reports();
                    }
                },
            }
        }
        Ok(0)
    }

    /// Gives the packets of one message to the sink and says how many.
    fn hand_over(&mut self, index: usize, sink: &mut dyn FnMut(Received<'_>)) -> usize {
        let message = self.incoming.get(index);
        let notes = read_notes(message.control);
        if let Some(drops) = notes.drops {
            // The kernel's count has 32 bits and wraps.
            self.counters.receive_drops += u64::from(drops.wrapping_sub(self.drops_seen));
            self.drops_seen = drops;
        }
        let from = name::address(message.name);
        let whole = message.flags & libc::MSG_TRUNC == 0 && !message.bytes.is_empty();
        let Some(from) = from.filter(|_| whole) else {
            self.counters.receive_bad += 1;
            return 0;
        };
        let to = notes.to.map_or(Own::ANY, |to| self.own.number(to));
        let mut packets = 0;
        for bytes in message.bytes.chunks(notes.segment_bytes.unwrap_or(message.bytes.len())) {
            packets += 1;
            self.counters.received_packets += 1;
            self.counters.received_bytes += bytes.len() as u64;
            sink(Received { from: Address::Udp(from), to, ecn: notes.ecn, bytes });
        }
        packets
    }
}
