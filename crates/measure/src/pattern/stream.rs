//! Throughput: rank 0 sends messages to rank 1 without a pause, measured where the bytes arrive.
//!
//! Message i begins with the number i, and its last byte says whether it is the last, so that bytes that are lost, doubled or changed are found while they pass. The receiver decides when it has
//! seen enough and says so; the sender goes on until then, because the two do not begin at the same instant.

use super::{Bound, Trial};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// A sample stands for this time: long enough that its edges do not matter, short enough to show a stall.
const SLICE_NS: u64 = 10_000_000;

/// Messages sent, or pieces received, between two looks at the clock or for a word from the other end.
const CALLS_PER_LOOK: u32 = 64;

/// Bytes between two looks at the most.
const BYTES_PER_LOOK: u64 = 128 << 10;

/// Last byte of the last message; 0 in all others.
const LAST: u8 = 0xFF;

/// What the receiver sends when it has seen enough.
const ENOUGH: [u8; 1] = [1];

/// A sender that has not been told to end so long after the planned time gives up.
const OVERTIME_NS: u64 = 10_000_000_000;

pub fn run(transport: &mut dyn Transport, trial: &Trial) -> Result<Vec<Series>, Failure> {
    one_way(transport, trial, Metric::Goodput, trial.size)
}

/// Sends and receives in pieces of up to `receive_bytes`; samples are those of `metric`, which is a rate of bytes or of messages.
pub(super) fn one_way(
    transport: &mut dyn Transport,
    trial: &Trial,
    metric: Metric,
    receive_bytes: usize,
) -> Result<Vec<Series>, Failure> {
    match transport.rank() {
        0 => send(transport, trial).map(|()| Vec::new()),
        1 => receive(transport, trial, metric, receive_bytes),
        _ => Ok(Vec::new()),
    }
}

fn planned_ns(bound: Bound) -> u64 {
    match bound {
        Bound::Samples(count) => u64::from(count) * SLICE_NS,
        Bound::DurationNs(ns) => ns,
    }
}

fn send(transport: &mut dyn Transport, trial: &Trial) -> Result<(), Failure> {
    let mut message = Message::new(trial.size);
    let give_up = transport.now_ns() + trial.warm_up_ns + planned_ns(trial.bound) + OVERTIME_NS;
    let per_look = (BYTES_PER_LOOK * 8 / message.bytes.len() as u64).clamp(1, u64::from(CALLS_PER_LOOK));
    while !transport.try_receive(1, &mut [0; ENOUGH.len()])? {
        for _ in 0..per_look {
            transport.send(1, message.next(false))?;
        }
        if transport.now_ns() > give_up {
            return Err(Failure::Unsupported("rank 1 has not said that it has enough: it is far too slow".to_owned()));
        }
    }
    transport.send(1, message.next(true))
}

/// The messages, one after the other in the same memory.
struct Message {
    bytes: Vec<u8>,
    index: u64,
}

/// Bytes at the beginning of a message that hold its number; the last byte of all has a meaning of its own.
fn number_bytes(size: usize) -> usize {
    size.saturating_sub(1).min(8)
}

impl Message {
    fn new(size: usize) -> Message {
        Message { bytes: vec![0; size.max(1)], index: 0 }
    }

    #[inline]
    fn next(&mut self, last: bool) -> &[u8] {
        match self.bytes.first_chunk_mut() {
            // Also for eight bytes: the number's highest byte, which is the last one, is 0.
            Some(head) => *head = self.index.to_le_bytes(),
            None => {
                let n = number_bytes(self.bytes.len());
                self.bytes[..n].copy_from_slice(&self.index.to_le_bytes()[..n]);
            }
        }
        self.index += 1;
        if last && let Some(end) = self.bytes.last_mut() {
            *end = LAST;
        }
        &self.bytes
    }
}

fn receive(
    transport: &mut dyn Transport,
    trial: &Trial,
    metric: Metric,
    receive_bytes: usize,
) -> Result<Vec<Series>, Failure> {
    let size = trial.size.max(1) as u64;
    let mut buffer = vec![1u8; receive_bytes.max(trial.size).max(1)];
    let mut window = Window::new(transport.now_ns() + trial.warm_up_ns, planned_ns(trial.bound));
    let mut arrived = Arrived::new(size, transport.is_reliable());
    let (mut calls, mut looked_at) = (0, 0);
    loop {
        let n = transport.receive_some(0, &mut buffer)?;
        if n == 0 && (window.is_full() || !arrived.some_within(transport.now_ns(), OVERTIME_NS)) {
            break; // The last message is lost, or all are.
        }
        if n > 0 && arrived.add(&buffer[..n])? {
            break;
        }
        calls += 1;
        if calls == CALLS_PER_LOOK || arrived.bytes - looked_at >= BYTES_PER_LOOK || n == 0 {
            (calls, looked_at) = (0, arrived.bytes);
            let was_full = window.is_full();
            let cut = window.look(transport.now_ns(), arrived.bytes);
            // Said again where the word itself may be lost.
            if window.is_full() && (!was_full || cut && !transport.is_reliable()) {
                transport.send(0, &ENOUGH)?;
            }
        }
    }
    let per_sample = if metric == Metric::Goodput { 1.0 } else { size as f64 };
    let samples = window.rates(transport.now_ns(), arrived.bytes).into_iter().map(|rate| rate / per_sample);
    let mut series = vec![Series::samples(metric, 1, samples.collect())];
    series.extend(arrived.loss().map(|loss| Series::samples(Metric::Loss, 1, vec![loss])));
    Ok(series)
}

/// What has come, checked.
struct Arrived {
    size: u64,
    reliable: bool,
    bytes: u64,
    /// One more than the highest number seen; where nothing is lost, the messages.
    numbers: u64,
    quiet_since: Option<u64>,
}

impl Arrived {
    fn new(size: u64, reliable: bool) -> Arrived {
        Arrived { size, reliable, bytes: 0, numbers: 0, quiet_since: None }
    }

    /// Whether anything has come, or the time to wait for it has not passed.
    fn some_within(&mut self, now_ns: u64, ns: u64) -> bool {
        now_ns < *self.quiet_since.get_or_insert(now_ns) + ns
    }

    /// Takes a piece of the stream; true: it ends with the last message.
    fn add(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        self.quiet_since = None;
        if self.reliable {
            check(piece, self.bytes, self.size)?;
        } else {
            self.note_numbers(piece);
        }
        self.bytes += piece.len() as u64;
        Ok(self.bytes.is_multiple_of(self.size) && piece.last() == Some(&LAST))
    }

    /// Of whole messages, some of which may be missing.
    fn note_numbers(&mut self, piece: &[u8]) {
        for message in piece.chunks(self.size as usize) {
            if let Some(head) = message.first_chunk() {
                // The mark of the last message may be the highest byte of the number.
                let number = u64::from_le_bytes(*head) & (u64::MAX >> 8);
                self.numbers = self.numbers.max(number + 1);
            }
        }
    }

    /// Part of the messages that did not come; none where none can be lost, or where they are too short for a number.
    fn loss(&self) -> Option<f64> {
        let arrived = self.bytes / self.size;
        (!self.reliable && self.numbers > 0).then(|| 1.0 - arrived as f64 / self.numbers.max(arrived) as f64)
    }
}

/// Checks the last whole number in a piece that begins at `offset` of the stream.
fn check(piece: &[u8], offset: u64, size: u64) -> Result<(), Failure> {
    let bytes = number_bytes(size as usize);
    let end = offset + piece.len() as u64;
    if bytes == 0 || end < bytes as u64 {
        return Ok(());
    }
    let index = (end - bytes as u64) / size;
    let Some(start) = (index * size).checked_sub(offset) else { return Ok(()) };
    let head = piece.get(start as usize..start as usize + bytes);
    match head {
        Some(head) if *head != index.to_le_bytes()[..bytes] => Err(Failure::Damaged {
            peer: 0,
            expected: size as usize,
            what: "bytes were lost, doubled or changed on the way",
        }),
        _ => Ok(()),
    }
}

/// Cuts the time after the warm-up into slices, and is full after the planned time.
struct Window {
    opens_ns: u64,
    planned_ns: u64,
    /// Begin of the open slice and the bytes received until then.
    slice: Option<(u64, u64)>,
    measured_ns: u64,
    /// (bytes, nanoseconds)
    slices: Vec<(u64, u64)>,
}

impl Window {
    fn new(opens_ns: u64, planned_ns: u64) -> Window {
        let most = (planned_ns / SLICE_NS + 2) as usize;
        Window { opens_ns, planned_ns, slice: None, measured_ns: 0, slices: Vec::with_capacity(most) }
    }

    fn is_full(&self) -> bool {
        self.measured_ns >= self.planned_ns
    }

    /// True when a slice ends here, or one would if the window were not full.
    fn look(&mut self, now_ns: u64, received: u64) -> bool {
        if now_ns < self.opens_ns {
            return false;
        }
        let Some((begin, before)) = self.slice else {
            self.slice = Some((now_ns, received));
            return false;
        };
        let length = now_ns - begin;
        if length < SLICE_NS.min(self.planned_ns.max(1)) {
            return false;
        }
        if !self.is_full() {
            self.slices.push((received - before, length));
            self.measured_ns += length;
        }
        self.slice = Some((now_ns, received));
        true
    }

    /// Bytes per second, a sample for each slice's worth of time: a slice that a stall made long counts as many times, so that the mean of the samples is that of the whole time. On a
    /// machine so busy that not one slice was completed, the open one is the measurement.
    fn rates(mut self, now_ns: u64, received: u64) -> Vec<f64> {
        if let (Some((begin, before)), true) = (self.slice, self.slices.is_empty()) {
            self.slices.push((received - before, (now_ns - begin).max(1)));
        }
        let samples = self.slices.iter().flat_map(|(bytes, ns)| {
            let rate = *bytes as f64 * 1e9 / *ns as f64;
            std::iter::repeat_n(rate, ((ns + SLICE_NS / 2) / SLICE_NS).max(1) as usize)
        });
        samples.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pattern, run};
    use super::*;
    use crate::record::Values;
    use crate::transport::memory;

    fn measured(pattern: Pattern, size: usize) -> Vec<Vec<Series>> {
        let trial = Trial { pattern, size, bound: Bound::Samples(3), warm_up_ns: 1_000_000, seed: 1 };
        std::thread::scope(|scope| {
            let ranks = memory::ranks(3).into_iter().map(|mut end| {
                let trial = &trial;
                scope.spawn(move || run(&mut end, trial))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("no failure")).collect()
        })
    }

    #[test]
    fn rank_1_has_a_sample_for_each_slice() {
        for (pattern, metric) in [(Pattern::Stream, Metric::Goodput), (Pattern::Flood, Metric::MessageRate)] {
            for size in [1, 5, 8, 9, 4096] {
                let measured = measured(pattern.clone(), size);
                let [series] = &measured[1][..] else { panic!("one series: {measured:?}") };
                let Values::Samples(samples) = &series.values else { panic!("raw samples") };
                assert!(samples.len() >= 3 && samples.iter().all(|rate| *rate >= 0.0), "{size}: {samples:?}");
                assert_eq!(series.metric, metric);
                assert!(measured[0].is_empty() && measured[2].is_empty());
            }
        }
    }

    #[test]
    fn a_piece_is_checked_at_its_last_number() {
        let stream: Vec<u8> = (0u64..4).flat_map(|i| i.to_le_bytes()).collect();
        assert!(check(&stream, 0, 8).is_ok());
        assert!(check(&stream[8..], 8, 8).is_ok());
        assert!(check(&stream[3..13], 3, 8).is_ok(), "no whole number inside");
        assert!(check(&stream[8..], 0, 8).is_err(), "eight bytes lost");
        assert!(check(&stream[..8], 8, 8).is_err(), "eight bytes doubled");
        assert!(check(&[0, 0, 1, 0, 2, 0], 0, 2).is_ok(), "short messages have short numbers");
        assert!(check(&[0, 0, 2, 0], 0, 2).is_err());
        assert!(check(&[9; 16], 0, 1).is_ok(), "and those of one byte have none");
    }

    #[test]
    fn a_stall_counts_for_as_long_as_it_lasted() {
        let mut window = Window::new(0, 3 * SLICE_NS);
        window.look(0, 0);
        assert!(window.look(SLICE_NS, 10_000_000));
        assert!(window.look(4 * SLICE_NS, 10_000_000));
        assert!(window.is_full());
        assert_eq!(window.rates(4 * SLICE_NS, 10_000_000), [1e9, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn lost_messages_are_counted_by_their_numbers() {
        let mut arrived = Arrived::new(8, false);
        let numbers: Vec<u8> = [0u64, 2, 3].iter().flat_map(|i| i.to_le_bytes()).collect();
        assert!(!arrived.add(&numbers).expect("a piece"));
        let last = (3u64 | u64::from(LAST) << 56).to_le_bytes();
        assert!(arrived.add(&last).expect("the last"));
        assert_eq!(arrived.loss(), Some(0.0), "a number came twice: nothing is said to be missing that came");
        let mut arrived = Arrived::new(8, false);
        arrived.add(&numbers).expect("a piece");
        assert_eq!(arrived.loss(), Some(0.25));
    }
}
