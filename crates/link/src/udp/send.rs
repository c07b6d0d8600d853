//! Sending: how packets become messages, and what each refusal means.

use super::name::Name;
use super::own::{self, OwnAddress};
use super::{UdpLink, constant};
use crate::sys::message::{self, Outgoing, VECTOR};
use crate::{Address, Batch, Presence, Urgency};
use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Packets in one segmented send: the kernel's limit until 6.10.
const MOST_SEGMENTS: usize = 64;

/// Bytes in one segmented send: with its headers it has to be an IP packet on the way to the device.
const MOST_SEGMENTED_BYTES: usize = 65_487;

/// Destinations known not to bear segmented sends, at most. When there are more, all are forgotten, and each costs one refusal again.
const MOST_SINGLE_PATHS: usize = 4096;

/// Room for the control messages of a send: the length of segments and the priority, 24 bytes each, and the own address.
const SEND_CONTROL_BYTES: usize = 48 + own::CONTROL_BYTES;

/// What is known of how destinations can be sent to.
#[derive(Debug)]
pub(super) struct Paths {
    /// The kernel knows segmented sends.
    segments: bool,
    /// Destinations where it turned out that they do not work.
    single: HashSet<IpAddr>,
    /// The socket has the priority of urgent packets, and bulk data says that it has none.
    has_priority: bool,
}

impl Paths {
    pub fn new(segments: bool, has_priority: bool) -> Paths {
        Paths { segments, single: HashSet::new(), has_priority }
    }

    pub fn may_segment(&self, to: SocketAddr) -> bool {
        self.segments && (self.single.is_empty() || !self.single.contains(&to.ip()))
    }

    fn refuse_segments(&mut self, to: SocketAddr) {
        if self.single.len() >= MOST_SINGLE_PATHS {
            self.single.clear();
        }
        self.single.insert(to.ip());
    }

    pub fn has_priority(&self) -> bool {
        self.has_priority
    }

    pub fn says_bulk(&self, urgency: Urgency) -> bool {
        self.has_priority && urgency == Urgency::Bulk
    }
}

/// What all messages of a batch say beside their packets.
#[derive(Clone, Copy)]
struct Manner {
    /// They have no priority.
    says_bulk: bool,
    /// What they leave under; none: what the kernel chooses, or the address that the socket is bound to.
    from: Option<OwnAddress>,
}

/// Packets that go out as one message: one, or a run of equal length whose last may be shorter.
#[derive(Clone, Copy)]
struct Run {
    packets: usize,
    /// Of all but the last.
    segment_bytes: usize,
    bytes: usize,
}

/// The longest run at the beginning of `packets`, none of which is longer than `max_packet`; `None`: the first cannot be sent at all.
fn first_run(packets: &[IoSlice<'_>], max_packet: usize, may_segment: bool) -> Option<Run> {
    let segment_bytes = packets.first()?.len();
    if segment_bytes == 0 || segment_bytes > max_packet {
        return None;
    }
    let mut run = Run { packets: 1, segment_bytes, bytes: segment_bytes };
    if !may_segment {
        return Some(run);
    }
    for packet in packets[1..].iter().take(MOST_SEGMENTS - 1) {
        let fits = packet.len() <= segment_bytes && run.bytes + packet.len() <= MOST_SEGMENTED_BYTES;
        if packet.is_empty() || !fits {
            break;
        }
        run.packets += 1;
        run.bytes += packet.len();
        if packet.len() < segment_bytes {
            break;
        }
    }
    Some(run)
}

/// Writes the control messages of a run and returns their length.
fn write_control(control: &mut [u8; SEND_CONTROL_BYTES], run: Run, manner: Manner) -> usize {
    let mut end = 0;
    if run.packets > 1 {
        let size = (run.segment_bytes as u16).to_ne_bytes();
        end = message::push_control(control, end, constant::SOL_UDP, libc::UDP_SEGMENT, &size);
    }
    if manner.says_bulk {
        end = message::push_control(control, end, libc::SOL_SOCKET, libc::SO_PRIORITY, &0i32.to_ne_bytes());
    }
    manner.from.map_or(end, |from| from.write(control, end))
}

/// The messages of one system call.
struct Plan {
    runs: [Run; VECTOR],
    count: usize,
}

impl Plan {
    /// The runs at the beginning of `packets`, of which `first` is the first.
    fn new(packets: &[IoSlice<'_>], first: Run, max_packet: usize, may_segment: bool) -> Plan {
        let mut plan = Plan { runs: [first; VECTOR], count: 1 };
        let mut rest = &packets[first.packets..];
        while plan.count < VECTOR
            && let Some(run) = first_run(rest, max_packet, may_segment)
        {
            plan.runs[plan.count] = run;
            plan.count += 1;
            rest = &rest[run.packets..];
        }
        plan
    }

    fn runs(&self) -> &[Run] {
        &self.runs[..self.count]
    }

    fn send(&self, socket: &impl AsFd, to: &Name, packets: &[IoSlice<'_>], manner: Manner) -> io::Result<usize> {
        if let [only] = self.runs() {
            return send_run(*only, socket, to, packets, manner);
        }
        let mut controls = [[0; SEND_CONTROL_BYTES]; VECTOR];
        let mut messages = [Outgoing { parts: &[], control: &[] }; VECTOR];
        let mut rest = packets;
        for ((run, control), message) in self.runs().iter().zip(&mut controls).zip(&mut messages) {
            let (parts, after) = rest.split_at(run.packets);
            let end = write_control(control, *run, manner);
            *message = Outgoing { parts, control: &control[..end] };
            rest = after;
        }
        message::send_messages(socket.as_fd(), to.bytes(), &messages[..self.count])
    }
}

/// Sends one message: the usual case for short messages and for full segmented sends, without tables for many.
fn send_run(run: Run, socket: &impl AsFd, to: &Name, packets: &[IoSlice<'_>], manner: Manner) -> io::Result<usize> {
    let mut control = [0; SEND_CONTROL_BYTES];
    let end = write_control(&mut control, run, manner);
    let message = Outgoing { parts: &packets[..run.packets], control: &control[..end] };
    message::send_message(socket.as_fd(), to.bytes(), &message).map(|()| 1)
}

/// A call that fails while the network reports something is made again so often at most.
const MOST_RETRIES: usize = 8;

/// What to do after a refused message.
enum Verdict {
    /// Send what is left, in the way that is known to work now.
    Again,
    /// No more room.
    Full,
    /// This message will not go; the next one may. It is not said of the destination if reports of the network kept it from being known why.
    Skip { is_said: bool },
    /// None will: the host has not got the address any more that they are to leave under.
    Unsendable,
}

/// What one call of [`UdpLink::send_batch`] has seen of segmented sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segments {
    /// None was refused.
    Usual,
    /// One was, and whether its first packet passes alone tells if that was for the segments.
    Doubted,
    /// It did not, so it was something else, or cannot be told for reports; the rest of the batch goes by single packets all the same.
    Spared,
}

/// One call of [`UdpLink::send_batch`].
struct Attempt {
    to: SocketAddr,
    name: Name,
    from: Option<OwnAddress>,
    /// By the socket that is apart.
    apart: bool,
    /// Packets done with: sent, or refused for good.
    done: usize,
    /// Calls since the last packet was done with that failed and were made again.
    retries: usize,
    segments: Segments,
    /// The next message says nothing of priorities, as the one before was refused.
    is_plain: bool,
}

impl UdpLink {
    pub(super) fn send_batch(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let Some(to) = self.destination(batch.to) else {
            self.counters.send_errors += batch.packets.len() as u64;
            return Ok(batch.packets.len());
        };
        let sent_before = self.counters.sent_packets;
        let mut attempt = self.attempt(to, batch);
        while let rest @ [_, ..] = &batch.packets[attempt.done..] {
            let says_bulk = self.paths.says_bulk(batch.urgency) && !attempt.is_plain;
            let may_segment = attempt.segments == Segments::Usual && self.paths.may_segment(to);
            let Some(first) = first_run(rest, self.max_packet, may_segment) else {
                // Empty or too long: refused before the kernel sees it.
                self.refused(&mut attempt, 1);
                continue;
            };
            let Err(error) = self.send_some(&mut attempt, first, rest, says_bulk, may_segment) else { continue };
            match self.judge(&error, first, &mut attempt, says_bulk)? {
                Verdict::Again => {}
                Verdict::Full => {
                    self.counters.send_full += 1;
                    break;
                }
                Verdict::Skip { is_said } => {
                    self.refused(&mut attempt, first.packets);
                    if is_said {
                        self.reports.push(to, error, None);
                    }
                }
                // It says nothing about the destination.
                Verdict::Unsendable => self.refused(&mut attempt, rest.len()),
            }
        }
        Ok(self.taken(batch, &attempt, sent_before))
    }

    fn attempt(&mut self, to: SocketAddr, batch: &Batch<'_>) -> Attempt {
        let apart = batch.presence != Presence::Heard && self.has_apart();
        let from = self.own.get(batch.from).or_else(|| self.apart_source().filter(|_| apart));
        let name = Name::from(to);
        let segments = Segments::Usual;
        Attempt { to, name, from, apart, done: 0, retries: 0, segments, is_plain: false }
    }

    /// One system call, for as many of the packets that are left as it takes; `first` are the first of them.
    fn send_some(
        &mut self,
        attempt: &mut Attempt,
        first: Run,
        rest: &[IoSlice<'_>],
        says_bulk: bool,
        may_segment: bool,
    ) -> io::Result<()> {
        let manner = Manner { says_bulk, from: attempt.from };
        self.counters.send_calls += 1;
        if first.packets == rest.len() {
            send_run(first, &self.way_out(attempt.apart), &attempt.name, rest, manner)?;
            self.sent(attempt, first);
        } else {
            let plan = Plan::new(rest, first, self.max_packet, may_segment);
            let count = plan.send(&self.way_out(attempt.apart), &attempt.name, rest, manner)?;
            plan.runs()[..count].iter().for_each(|run| self.sent(attempt, *run));
            if count < plan.count {
                // What ended it was not said, and may have been a report, which would keep the descriptor readable.
                self.fetch_reports();
            }
        }
        if std::mem::take(&mut attempt.is_plain) {
            self.give_up_priority();
        }
        Ok(())
    }

    /// The destination, if this socket can send there at all.
    fn destination(&self, to: Address) -> Option<SocketAddr> {
        match to {
            Address::Udp(to) if to.is_ipv4() == self.local.is_ipv4() => Some(to),
            _ => None,
        }
    }

    fn sent(&mut self, attempt: &mut Attempt, run: Run) {
        if attempt.segments == Segments::Doubted {
            attempt.segments = Segments::Spared;
            self.paths.refuse_segments(attempt.to);
            self.counters.send_fallbacks += 1;
        }
        (attempt.done, attempt.retries) = (attempt.done + run.packets, 0);
        self.counters.sent_packets += run.packets as u64;
        self.counters.sent_bytes += run.bytes as u64;
    }

    /// So many will not go.
    fn refused(&mut self, attempt: &mut Attempt, packets: usize) {
        (attempt.done, attempt.retries) = (attempt.done + packets, 0);
        self.counters.send_errors += packets as u64;
    }

    /// How many packets of the batch count as taken, at the end of it.
    fn taken(&mut self, batch: &Batch<'_>, attempt: &Attempt, sent_before: u64) -> usize {
        if batch.presence != Presence::Heard {
            let sent = self.counters.sent_packets - sent_before;
            *(if attempt.apart { &mut self.counters.sent_apart } else { &mut self.counters.sent_unparted }) += sent;
        }
        if attempt.apart && batch.presence == Presence::Silent {
            self.counters.send_discarded += (batch.packets.len() - attempt.done) as u64;
            return batch.packets.len();
        }
        attempt.done
    }

    /// All packets of this socket have none from now on.
    pub(super) fn give_up_priority(&mut self) {
        self.paths.has_priority = false;
        for socket in std::iter::once(&self.socket).chain(&self.apart) {
            let _ = super::set_priority(socket.as_fd(), 0);
        }
    }

    fn judge(&mut self, error: &io::Error, first: Run, attempt: &mut Attempt, says_bulk: bool) -> io::Result<Verdict> {
        let code = error.raw_os_error().unwrap_or(0);
        match code {
            // The socket's buffer is full; or the device's queue dropped it.
            libc::EAGAIN | libc::ENOBUFS => Ok(Verdict::Full),
            libc::EINTR => Ok(Verdict::Again),
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => Err(io::Error::from_raw_os_error(code)),
            libc::EINVAL | libc::ENETUNREACH | libc::ENODEV | libc::EADDRNOTAVAIL
                if attempt.from.is_some_and(|from| from.is_gone()) =>
            {
                // It may have been a report all the same.
                self.fetch_reports();
                Ok(Verdict::Unsendable)
            }
            libc::EINVAL if says_bulk => {
                // Before Linux 6.14 a message cannot have a priority of its own. If that is all, it passes without.
                attempt.is_plain = true;
                Ok(Verdict::Again)
            }
            _ => {
                // A report about an earlier packet to somebody else ends the next call, whatever that is: it has to be made again. So it does if more came meanwhile, or more
                // are there than are fetched at once, as anybody can forge them.
                let fetched = self.fetch_reports();
                // No call of the socket apart ends by one.
                let is_own_word = attempt.apart || fetched.is_own_word(attempt.to, code);
                let is_reported = fetched.is_reported && !is_own_word;
                // A report that its queue had no room for has left its code alone.
                let may_be_reported = is_reported || may_be_report(code);
                let most_retries = if may_be_reported { MOST_RETRIES } else { 1 };
                if !is_own_word && attempt.retries < most_retries {
                    attempt.retries += 1;
                    return Ok(Verdict::Again);
                }
                (attempt.retries, attempt.is_plain) = (0, false);
                let may_be_for_segments = matches!(code, libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP);
                if may_be_for_segments && first.packets > 1 {
                    // The device cannot segment, or not with checksums left to it; or the packets are too long for it, which the next attempt shows.
                    attempt.segments = if is_reported { Segments::Spared } else { Segments::Doubted };
                    return Ok(Verdict::Again);
                }
                if attempt.segments == Segments::Doubted {
                    attempt.segments = Segments::Spared;
                }
                Ok(Verdict::Skip { is_said: !is_reported && !is_always_report(code) })
            }
        }
    }
}

/// Whether a report of the network can have this code, as the kernel translates them.
fn may_be_report(code: i32) -> bool {
    is_always_report(code)
        || matches!(
            code,
            libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EPROTO
                | libc::EACCES
                | libc::EMSGSIZE
                | libc::EOPNOTSUPP
        )
}

/// Whether nothing else has it: this host alone refuses no packet so.
fn is_always_report(code: i32) -> bool {
    matches!(code, libc::ECONNREFUSED | libc::ENOPROTOOPT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Own;

    fn runs(lens: &[usize], max_packet: usize) -> Vec<usize> {
        let bytes = vec![0; 100_000];
        let packets: Vec<IoSlice<'_>> = lens.iter().map(|len| IoSlice::new(&bytes[..*len])).collect();
        let Some(first) = first_run(&packets, max_packet, true) else { return Vec::new() };
        let plan = Plan::new(&packets, first, max_packet, true);
        plan.runs().iter().map(|run| run.packets).collect()
    }

    #[test]
    fn runs_are_of_equal_length_with_a_shorter_last() {
        assert_eq!(runs(&[1000, 1000, 1000], 1472), [3]);
        assert_eq!(runs(&[1000, 1000, 10, 1000], 1472), [3, 1]);
        assert_eq!(runs(&[10, 1000, 1000], 1472), [1, 2]);
        assert_eq!(runs(&[10, 10, 10, 9, 8], 1472), [4, 1]);
    }

    #[test]
    fn runs_end_at_the_kernels_limits() {
        assert_eq!(runs(&[1472; 100], 1472), [44, 44, 12], "64 KiB");
        assert_eq!(runs(&[100; 130], 1472), [64, 64, 2], "64 segments");
        assert_eq!(runs(&[60_000, 60_000], 65_507), [1, 1]);
    }

    #[test]
    fn runs_end_before_what_cannot_be_sent() {
        assert_eq!(runs(&[100, 100, 1473, 100], 1472), [2]);
        assert!(runs(&[1473, 100], 1472).is_empty());
        assert_eq!(runs(&[100, 0, 100], 1472), [1]);
    }

    #[test]
    fn a_report_that_is_not_there_to_be_read_says_nothing_of_a_destination() {
        let to = SocketAddr::from(([127, 0, 0, 1], 9));
        let mut link = UdpLink::open(&super::super::Options::new(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        let run = Run { packets: 1, segment_bytes: 100, bytes: 100 };
        let mut judged = |code| {
            let batch = Batch {
                to: Address::Udp(to),
                packets: &[],
                urgency: Urgency::Bulk,
                from: Own::ANY,
                presence: Presence::Heard,
            };
            let mut attempt = link.attempt(to, &batch);
            let error = io::Error::from_raw_os_error(code);
            let mut again = 0;
            loop {
                match link.judge(&error, run, &mut attempt, false).unwrap() {
                    Verdict::Again => again += 1,
                    Verdict::Skip { is_said } => return (again, is_said),
                    _ => panic!("it is about the destination"),
                }
            }
        };
        assert_eq!(judged(libc::ECONNREFUSED), (MOST_RETRIES, false));
        assert_eq!(judged(libc::ENOPROTOOPT), (MOST_RETRIES, false));
        assert_eq!(judged(libc::EHOSTUNREACH), (MOST_RETRIES, true));
        assert_eq!(judged(libc::EACCES), (MOST_RETRIES, true));
        // No report has it.
        assert_eq!(judged(libc::EPERM), (1, true));
    }

    #[test]
    fn one_call_has_so_many_messages_at_most() {
        let lens: Vec<usize> = (0..100).map(|n| 100 + n).collect();
        assert_eq!(runs(&lens, 1472), [1; VECTOR]);
    }
}
