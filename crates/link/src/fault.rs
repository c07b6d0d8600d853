//! A link around a link, with faults: what leaves it and what arrives is lost, doubled, held back or corrupted, as a seed decides.
//!
//! For tests of whole engines over real links; the simulated network has faults of its own. A packet held back leaves at the first call after its
//! time, so whoever sleeps on the descriptor meanwhile gets it later. Corrupted packets that are not to be delivered are dropped on the side on
//! which they were corrupted, as by a checksum.

use crate::random::Random;
use crate::{
    Address, Batch, Clock, Counters, Ecn, FaultCounters, Faults, Link, Own, Presence, Received, Report, Urgency,
    faults, since_now,
};
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets held back at a time, in each direction; those beyond it keep their place.
const MOST_HELD: usize = 1024;

/// Looks at the link in one receive while all that arrives is lost.
const MOST_ROUNDS: usize = 16;

/// Changes the faults of a link, and tells what they did, also after the link was boxed and given away.
#[derive(Clone, Debug, Default)]
pub struct Control {
    shared: Arc<Mutex<Sides>>,
}

/// Sending and receiving.
#[derive(Clone, Copy, Debug, Default)]
struct Sides {
    send: Faults,
    receive: Faults,
    sent: FaultCounters,
    received: FaultCounters,
}

impl Control {
    fn locked(&self) -> MutexGuard<'_, Sides> {
        // Plain values, each written at once: whole after any panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to packets from now on that the link sends.
    pub fn set_send(&self, faults: Faults) {
        self.locked().send = faults;
    }

    /// What happens to packets from now on that arrive.
    pub fn set_receive(&self, faults: Faults) {
        self.locked().receive = faults;
    }

    /// What happened to packets that the link sent.
    pub fn sent(&self) -> FaultCounters {
        self.locked().sent
    }

    /// What happened to packets that arrived.
    pub fn received(&self) -> FaultCounters {
        self.locked().received
    }
}

/// A link with faults.
#[derive(Debug)]
pub struct FaultLink<L> {
    inner: L,
    control: Control,
    clock: Clock,
    sending: Random,
    receiving: Random,
    to_send: Vec<Held>,
    to_deliver: Vec<Held>,
    /// Arrivals that were corrupted and dropped.
    bad: u64,
}

/// A packet that is held back.
#[derive(Debug)]
struct Held {
    due_ns: u64,
    /// Where it goes to, or comes from.
    address: Address,
    own: Own,
    presence: Presence,
    ecn: Ecn,
    bytes: Vec<u8>,
}

impl<L: Link> FaultLink<L> {
    /// Wraps a link. There are no faults until its control sets some.
    pub fn new(inner: L, seed: u64) -> FaultLink<L> {
        FaultLink::with_clock(inner, seed, since_now())
    }

    /// The same with a clock of its own, such as that of a simulated network.
    pub fn with_clock(inner: L, seed: u64, clock: Clock) -> FaultLink<L> {
        FaultLink {
            inner,
            control: Control::default(),
            clock,
            sending: Random::of_part(seed, 0),
            receiving: Random::of_part(seed, 1),
            to_send: Vec::new(),
            to_deliver: Vec::new(),
            bad: 0,
        }
    }

    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Sends what was held back long enough. What finds no room now is lost, as it may be anywhere.
    fn send_held(&mut self) -> io::Result<()> {
        if self.to_send.is_empty() {
            return Ok(());
        }
        for held in due(&mut self.to_send, self.clock.now_ns()) {
            let packets = [IoSlice::new(&held.bytes)];
            let (to, presence) = (held.address, held.presence);
            self.inner.send(&Batch { to, packets: &packets, urgency: Urgency::Bulk, presence, from: held.own })?;
        }
        Ok(())
    }

    /// Sends one packet on its fate's way. `false`: there is no room, and nothing happened to it.
    fn send_fated(&mut self, batch: &Batch<'_>, packet: &[u8], fate: faults::Fate, all: Faults) -> io::Result<bool> {
        if fate.lost || (fate.corrupted && !all.corrupt_delivered) {
            return Ok(true);
        }
        let mut bytes = packet.to_vec();
        if fate.corrupted {
            faults::corrupt(&mut bytes, &mut self.sending);
        }
        if fate.held_ns > 0 && self.to_send.len() < MOST_HELD {
            let due_ns = self.clock.now_ns() + fate.held_ns;
            let (address, own, presence) = (batch.to, batch.from, batch.presence);
            self.to_send.push(Held { due_ns, address, own, presence, ecn: Ecn::NotCapable, bytes });
        } else if !send_one(&mut self.inner, batch, &bytes)? {
            return Ok(false);
        }
        if fate.duplicated {
            send_one(&mut self.inner, batch, packet)?;
        }
        Ok(true)
    }
}

/// Sends a packet on its own that was, or might have been, in `batch`.
fn send_one(link: &mut impl Link, batch: &Batch<'_>, bytes: &[u8]) -> io::Result<bool> {
    let packets = [IoSlice::new(bytes)];
    Ok(link.send(&Batch { packets: &packets, ..*batch })? == 1)
}

/// Takes out what is due, in the order of its times.
fn due(held: &mut Vec<Held>, now_ns: u64) -> Vec<Held> {
    let mut due: Vec<Held> = held.extract_if(.., |packet| packet.due_ns <= now_ns).collect();
    due.sort_by_key(|packet| packet.due_ns);
    due
}

impl<L: Link> Link for FaultLink<L> {
    fn name(&self) -> String {
        format!("fault {}", self.inner.name())
    }

    fn local(&self) -> Address {
        self.inner.local()
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        self.inner.own_address(own)
    }

    fn max_packet(&self) -> usize {
        self.inner.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        self.send_held()?;
        let all = self.control.locked().send;
        if all == Faults::default() {
            return self.inner.send(batch);
        }
        // Packets to which nothing happens go on together: runs stay runs.
        let mut done = 0;
        while done < batch.packets.len() {
            let mut fate = faults::Fate::default();
            let rest = &batch.packets[done..];
            let spared = rest.iter().position(|_| {
                fate = all.draw(&mut self.sending);
                fate != faults::Fate::default()
            });
            let spared = spared.unwrap_or(rest.len());
            let taken = self.inner.send(&Batch { packets: &rest[..spared], ..*batch })?;
            done += taken;
            if taken < spared {
                break;
            }
            if let Some(packet) = rest.get(spared) {
                if !self.send_fated(batch, packet, fate, all)? {
                    break;
                }
                self.control.locked().sent.count(fate);
                done += 1;
            }
        }
        Ok(done)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.send_held()?;
        let all = self.control.locked().receive;
        if all == Faults::default() && self.to_deliver.is_empty() {
            return self.inner.receive(limit, sink);
        }
        let now_ns = self.clock.now_ns();
        let mut count = 0;
        for held in due(&mut self.to_deliver, now_ns) {
            sink(Received { from: held.address, to: held.own, ecn: held.ecn, bytes: &held.bytes });
            count += 1;
        }
        let mut rounds = 0;
        while count < limit && rounds < MOST_ROUNDS {
            rounds += 1;
            let mut counters = FaultCounters::default();
            let (receiving, to_deliver, bad) = (&mut self.receiving, &mut self.to_deliver, &mut self.bad);
            let arrived = self.inner.receive(limit - count, &mut |packet| {
                let fate = all.draw(receiving);
                counters.count(fate);
                if fate.lost {
                    return;
                }
                let mut whole = |packet| {
                    count += 1;
                    sink(packet);
                };
                if fate.duplicated {
                    whole(packet);
                }
                let mut bytes = packet.bytes.to_vec();
                if fate.corrupted {
                    faults::corrupt(&mut bytes, receiving);
                    if !all.corrupt_delivered {
                        *bad += 1;
                        return;
                    }
                }
                if fate.held_ns > 0 && to_deliver.len() < MOST_HELD {
                    let due_ns = now_ns + fate.held_ns;
                    let (address, own, presence) = (packet.from, packet.to, Presence::Heard);
                    to_deliver.push(Held { due_ns, address, own, presence, ecn: packet.ecn, bytes });
                } else {
                    whole(Received { bytes: &bytes, ..packet });
                }
            })?;
            add(&mut self.control.locked().received, counters);
            if arrived == 0 {
                break;
            }
        }
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn receive_slots(&self) -> Option<usize> {
        self.inner.receive_slots()
    }

    fn take_error(&mut self) -> Option<Report> {
        self.inner.take_error()
    }

    fn fetch_errors(&mut self) {
        self.inner.fetch_errors();
    }

    /// The wrapped link's, and arrivals that were corrupted here as bad ones.
    fn counters(&self) -> Counters {
        let counters = self.inner.counters();
        Counters { receive_bad: counters.receive_bad + self.bad, ..counters }
    }
}

fn add(sum: &mut FaultCounters, more: FaultCounters) {
    sum.lost += more.lost;
    sum.duplicated += more.duplicated;
    sum.held += more.held;
    sum.corrupted += more.corrupted;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PER_MILLION, memory};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A faulty link and a plain one, with a clock that the test sets.
    fn pair(seed: u64) -> (FaultLink<memory::MemoryLink>, memory::MemoryLink, Arc<AtomicU64>) {
        let (a, b) = memory::pair(memory::Config::default()).expect("a pair");
        let time = Arc::new(AtomicU64::new(0));
        let clock = time.clone();
        (FaultLink::with_clock(a, seed, Clock::new(move || clock.load(Ordering::Relaxed))), b, time)
    }

    fn send(link: &mut dyn Link, to: u32, count: u8) -> usize {
        let packets: Vec<[u8; 50]> = (0..count).map(|n| [n; 50]).collect();
        let packets: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
        link.send(&Batch::new(Address::Sim(to), &packets)).expect("works")
    }

    fn receive(link: &mut dyn Link) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        while link.receive(16, &mut |packet| seen.push(packet.bytes.to_vec())).expect("works") > 0 {}
        seen
    }

    /// What comes through with faults on the sending or on the receiving side.
    fn through(faults: Faults, sending: bool) -> (Vec<Vec<u8>>, FaultCounters, Counters) {
        let (mut a, mut b, time) = pair(5);
        let control = a.control();
        let (seen, counts) = if sending {
            control.set_send(faults);
            assert_eq!(send(&mut a, 1, 100), 100);
            time.store(1_000_000, Ordering::Relaxed);
            assert_eq!(send(&mut a, 1, 0), 0);
            (receive(&mut b), control.sent())
        } else {
            control.set_receive(faults);
            assert_eq!(send(&mut b, 0, 100), 100);
            let mut seen = receive(&mut a);
            time.store(1_000_000, Ordering::Relaxed);
            seen.extend(receive(&mut a));
            (seen, control.received())
        };
        (seen, counts, a.counters())
    }

    #[test]
    fn each_fault_does_what_it_says_on_either_side() {
        let whole: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 50]).collect();
        for sending in [true, false] {
            assert_eq!(through(Faults::default(), sending).0, whole);
            let (seen, counts, _) = through(Faults::loss(PER_MILLION), sending);
            assert_eq!((seen.len(), counts.lost), (0, 100));
            let (seen, counts, _) = through(Faults::loss(300_000), sending);
            assert_eq!(seen.len() as u64, 100 - counts.lost);
            assert!((10..60).contains(&counts.lost) && seen.is_sorted());
            let (seen, counts, _) = through(Faults { duplicate_ppm: PER_MILLION, ..Faults::default() }, sending);
            assert_eq!((seen.len(), counts.duplicated), (200, 100));
            let holding = Faults { reorder_ppm: 200_000, reorder_ns: 1_000, ..Faults::default() };
            let (mut seen, counts, _) = through(holding, sending);
            assert!(counts.held > 0 && !seen.is_sorted());
            seen.sort();
            assert_eq!(seen, whole);
            let corrupting = Faults { corrupt_ppm: PER_MILLION, ..Faults::default() };
            let (seen, counts, counters) = through(corrupting, sending);
            assert_eq!((seen.len(), counts.corrupted), (0, 100));
            assert_eq!(counters.receive_bad, if sending { 0 } else { 100 });
            let (seen, _, _) = through(Faults { corrupt_delivered: true, ..corrupting }, sending);
            assert!(seen.len() == 100 && seen.iter().zip(&whole).all(|(seen, sent)| seen != sent));
        }
    }

    #[test]
    fn a_seed_replays() {
        let mixed = Faults { loss_ppm: 200_000, duplicate_ppm: 200_000, ..Faults::default() };
        assert_eq!(through(mixed, true).0, through(mixed, true).0);
    }

    #[test]
    fn a_full_queue_is_passed_on() {
        let (a, mut b) = memory::pair(memory::Config { queue_packets: 10, ..Default::default() }).expect("a pair");
        let mut a = FaultLink::new(a, 1);
        a.control().set_send(Faults::loss(200_000));
        let taken = send(&mut a, 1, 50);
        assert!((10..50).contains(&taken), "{taken}");
        assert_eq!(receive(&mut b).len(), 10);
    }
}
