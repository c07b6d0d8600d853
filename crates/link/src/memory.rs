//! Links inside one process, in real time: for tests of engines, and for measuring workers without the kernel.
//!
//! The members of a hub reach each other under `Address::Sim(0)`, `Address::Sim(1)` and so on. Each has one bounded queue for all that
//! arrives; order is kept, nothing is lost: a full queue takes no more. A sender locks it once for each batch. The receiver takes all that is there
//! at once, by exchanging the queue's memory for its own, and looks at the packets without the lock; while it spins it reads one word.

use crate::{Address, Batch, Counters, Ecn, Link, Own, Received};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of packets and of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest packet in bytes.
    pub max_packet: usize,
    /// Packets that wait for a member, at most. As many again may lie with the receiver, taken but not yet looked at.
    pub queue_packets: usize,
}

impl Default for Config {
    /// Packets of an Ethernet without jumbo frames, and as many of them as a UDP socket's usual buffer holds, about.
    fn default() -> Config {
        Config { max_packet: 1500, queue_packets: 1024 }
    }
}

/// Two links that reach each other.
///
/// # Errors
/// No descriptors are left.
pub fn pair(config: Config) -> io::Result<(MemoryLink, MemoryLink)> {
    let mut members = hub(2, config)?.into_iter();
    Ok(members.next().zip(members.next()).expect("two members"))
}

/// So many links that reach each other.
///
/// # Errors
/// No descriptors are left.
pub fn hub(members: usize, config: Config) -> io::Result<Vec<MemoryLink>> {
    let inboxes: Arc<[Inbox]> = (0..members).map(|_| Inbox::new()).collect::<io::Result<_>>()?;
    let link = |own| MemoryLink {
        config,
        inboxes: inboxes.clone(),
        own,
        taken: Parcel::default(),
        next: (0, 0),
        counters: Counters::default(),
    };
    Ok((0..members).map(link).collect())
}

/// What has arrived for one member.
#[derive(Debug)]
struct Inbox {
    /// Packets in the queue; written under the lock (Release), read without it by the receiver (Acquire).
    waiting: AtomicUsize,
    /// The descriptor is readable. Written under the lock; a look without it may be late, never wrong for long.
    rung: AtomicBool,
    queue: Mutex<Queue>,
    /// An eventfd, written once something waits if the receiver has asked for the descriptor.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    parcel: Parcel,
    /// Somebody has the descriptor and may sleep on it.
    watched: bool,
    /// The receiver is gone.
    closed: bool,
}

/// Packets, one after the other.
#[derive(Debug, Default)]
struct Parcel {
    bytes: Vec<u8>,
    /// Sender and length of each.
    packets: Vec<(usize, usize)>,
}

impl Inbox {
    fn new() -> io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { waiting: AtomicUsize::new(0), rung: AtomicBool::new(false), queue: Mutex::default(), bell })
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        // Whoever panicked with it left whole packets: they are written before their lengths are.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the descriptor readable. Under the lock, so that it is never left readable with nothing there.
    fn ring(&self, _locked: &Queue) -> io::Result<()> {
        if !self.rung.swap(true, Ordering::Relaxed) {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn silence(&self, _locked: &Queue) -> io::Result<()> {
        if self.rung.swap(false, Ordering::Relaxed) {
            rustix::io::read(&self.bell, &mut [0; 8])?;
        }
        Ok(())
    }
}

/// A member of a hub.
#[derive(Debug)]
pub struct MemoryLink {
    config: Config,
    inboxes: Arc<[Inbox]>,
    own: usize,
    /// Taken out of the queue, and where the first packet not yet looked at is: its index, its first byte.
    taken: Parcel,
    next: (usize, usize),
    counters: Counters,
}

impl MemoryLink {
    /// Exchanges what was looked at for what has arrived. `false`: nothing has.
    fn refill(&mut self) -> io::Result<bool> {
        let inbox = &self.inboxes[self.own];
        // Pairs with the store in `send`. A packet that comes after this look rings, or is seen by the next look.
        if inbox.waiting.load(Ordering::Acquire) == 0 && !inbox.rung.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mut queue = inbox.locked();
        if queue.parcel.packets.is_empty() {
            inbox.silence(&queue)?;
            return Ok(false);
        }
        self.taken.bytes.clear();
        self.taken.packets.clear();
        self.next = (0, 0);
        std::mem::swap(&mut self.taken, &mut queue.parcel);
        inbox.waiting.store(0, Ordering::Release);
        Ok(true)
    }
}

impl Link for MemoryLink {
    fn name(&self) -> String {
        "memory".into()
    }

    fn local(&self) -> Address {
        Address::Sim(self.own as u32)
    }

    fn max_packet(&self) -> usize {
        self.config.max_packet
    }

    fn receive_slots(&self) -> Option<usize> {
        Some(self.config.queue_packets)
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        self.counters.send_calls += 1;
        let inbox = match batch.to {
            Address::Sim(to) => self.inboxes.get(to as usize),
            _ => None,
        };
        let mut queue = inbox.map(|inbox| (inbox, inbox.locked())).filter(|(_, queue)| !queue.closed);
        let mut taken = 0;
        for packet in batch.packets {
            match &mut queue {
                Some((_, queue)) if packet.len() <= self.config.max_packet => {
                    let parcel = &mut queue.parcel;
                    if parcel.packets.len() >= self.config.queue_packets {
                        self.counters.send_full += 1;
                        break;
                    }
                    parcel.bytes.extend_from_slice(packet);
                    parcel.packets.push((self.own, packet.len()));
                    self.counters.sent_packets += 1;
                    self.counters.sent_bytes += packet.len() as u64;
                }
                _ => self.counters.send_errors += 1,
            }
            taken += 1;
        }
        if let Some((inbox, queue)) = &mut queue
            && !queue.parcel.packets.is_empty()
        {
            // Pairs with the look in `refill`.
            inbox.waiting.store(queue.parcel.packets.len(), Ordering::Release);
            if queue.watched {
                inbox.ring(queue)?;
            }
        }
        Ok(taken)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.counters.receive_calls += 1;
        let mut count = 0;
        while count < limit {
            let (index, start) = self.next;
            let Some((from, len)) = self.taken.packets.get(index).copied() else {
                if self.refill()? {
                    continue;
                }
                break;
            };
            self.next = (index + 1, start + len);
            count += 1;
            self.counters.received_packets += 1;
            self.counters.received_bytes += len as u64;
            let bytes = &self.taken.bytes[start..start + len];
            sink(Received { from: Address::Sim(from as u32), to: Own::ANY, ecn: Ecn::NotCapable, bytes });
        }
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let inbox = &self.inboxes[self.own];
        let mut queue = inbox.locked();
        queue.watched = true;
        let unseen = self.next.0 < self.taken.packets.len();
        if unseen || !queue.parcel.packets.is_empty() {
            // It fails only if the counter is at its end, and then the descriptor is readable.
            let _ = inbox.ring(&queue);
        }
        Some(inbox.bell.as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        let mut queue = self.inboxes[self.own].locked();
        queue.closed = true;
        queue.parcel = Parcel::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::IoSlice;

    fn send(link: &mut MemoryLink, to: u32, packet: &[u8]) -> usize {
        let packets = [IoSlice::new(packet)];
        link.send(&Batch::new(Address::Sim(to), &packets)).expect("works")
    }

    fn is_readable(link: &MemoryLink) -> bool {
        let descriptor = link.descriptor().expect("there is one");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).expect("polls") == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_something_waits() {
        let (mut a, mut b) = pair(Config::default()).expect("a pair");
        // Sent before anybody watches, and partly taken.
        (0..3).for_each(|n| assert_eq!(send(&mut a, 1, &[n]), 1));
        assert_eq!(b.receive(1, &mut |_| ()).expect("works"), 1);
        assert!(is_readable(&b));
        assert_eq!(b.receive(9, &mut |_| ()).expect("works"), 2);
        assert_eq!(b.receive(9, &mut |_| ()).expect("works"), 0);
        assert!(!is_readable(&b));
        // Sent while it is watched.
        send(&mut a, 1, &[1]);
        send(&mut a, 1, &[2]);
        assert!(is_readable(&b));
        while b.receive(9, &mut |_| ()).expect("works") > 0 {}
        assert!(!is_readable(&b));
    }

    #[test]
    fn a_full_queue_takes_no_more_until_it_is_looked_at() {
        let (mut a, mut b) = pair(Config { queue_packets: 2, ..Config::default() }).expect("a pair");
        assert_eq!([1, 2, 3].map(|n| send(&mut a, 1, &[n])), [1, 1, 0]);
        assert_eq!(b.receive(1, &mut |packet| assert_eq!(packet.bytes, [1])).expect("works"), 1);
        assert_eq!(send(&mut a, 1, &[4]), 1);
        let mut seen = Vec::new();
        b.receive(9, &mut |packet| seen.push(packet.bytes[0])).expect("works");
        assert_eq!(seen, [2, 4]);
        assert_eq!((a.counters().send_full, a.counters().sent_packets), (1, 3));
    }

    #[test]
    fn members_of_a_hub_are_told_apart_and_one_that_left_is_no_trouble() {
        let mut members = hub(3, Config::default()).expect("a hub");
        let mut last = members.pop().expect("three");
        members.iter_mut().for_each(|member| assert_eq!(send(member, 2, &[7]), 1));
        let mut from = Vec::new();
        last.receive(9, &mut |packet| from.push(packet.from)).expect("works");
        assert_eq!(from, [Address::Sim(0), Address::Sim(1)]);
        drop(last);
        assert_eq!(send(&mut members[0], 2, &[7]), 1);
        assert_eq!(members[0].counters().send_errors, 1);
    }

    #[test]
    fn two_threads_see_every_packet_in_order() {
        let (mut a, mut b) = pair(Config { queue_packets: 16, ..Config::default() }).expect("a pair");
        const PACKETS: u32 = 20_000;
        let sender = std::thread::spawn(move || {
            let mut next = 0u32;
            while next < PACKETS {
                let bytes = next.to_le_bytes();
                match send(&mut a, 1, &bytes[..]) {
                    0 => std::thread::yield_now(),
                    _ => next += 1,
                }
            }
        });
        let mut expected = 0u32;
        while expected < PACKETS {
            let descriptor = b.descriptor().expect("there is one");
            poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).expect("polls");
            b.receive(7, &mut |packet| {
                assert_eq!(packet.bytes, expected.to_le_bytes());
                expected += 1;
            })
            .expect("works");
        }
        sender.join().expect("sent all");
    }
}
