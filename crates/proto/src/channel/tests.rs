//! What one end's queue makes of messages, the other end's makes messages of again.

use std::collections::VecDeque;

use proptest::prelude::*;
use ropeway_wire::{Flags, Mode};

use super::{Incoming, Outgoing, Part};
use crate::endpoint::Path;
use crate::pool::{Pool, SHORT_SAVES_BYTES};

const MEMORY_BYTES: u64 = 64 << 20;
/// Neither queue is ever full.
const WINDOW_BYTES: u32 = 1 << 30;

/// Both halves of a channel, and the messages between them.
struct Ends {
    outgoing: Outgoing,
    incoming: Incoming,
    tx: Pool,
    rx: Pool,
    payload_bytes: usize,
    written: u8,
    unread: VecDeque<Vec<u8>>,
    out: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    /// So many messages of a length.
    Write(usize, usize),
    /// So many packets arrive.
    Carry(usize),
    /// So many messages are read if they are here, whole or as they come.
    Read { count: usize, by_parts: bool },
    /// Memory is set aside for what the message at hand lacks.
    Reserve,
    /// What is not under way is dropped.
    Cancel,
}

impl Ends {
    fn new(payload_bytes: usize) -> Ends {
        let pool = || Pool::new(payload_bytes + SHORT_SAVES_BYTES, MEMORY_BYTES);
        let mut outgoing = Outgoing::default();
        outgoing.raise_credit(WINDOW_BYTES.into());
        let (mut incoming, mut rx) = (Incoming::new(WINDOW_BYTES), pool());
        incoming.charge_to(rx.ledger.open(&Path([1; Path::BYTES])));
        Ends {
            outgoing,
            incoming,
            tx: pool(),
            rx,
            payload_bytes,
            written: 0,
            unread: VecDeque::new(),
            out: vec![0; 1 << 20],
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write(bytes, count) => (0..count).for_each(|_| self.write(bytes)),
            Step::Carry(count) => (0..count).for_each(|_| self.carry()),
            Step::Read { count, by_parts } => {
                let is_readable = self.incoming.is_readable(Mode::Messages);
                let read = (0..count).take_while(|_| self.read(by_parts)).count();
                assert_eq!(is_readable, read > 0);
            }
            Step::Reserve if self.incoming.lacks_memory() => {
                let buffers = self.incoming.missing_bytes() as usize / self.payload_bytes + 2;
                self.incoming.reserve(buffers, &mut self.rx);
            }
            Step::Reserve => {}
            Step::Cancel => {
                let dropped = self.outgoing.cancel(&mut self.tx) as usize;
                self.unread.truncate(self.unread.len() - dropped);
            }
        }
        let (kept, _) = self.rx.ledger.kept_bytes(self.incoming.account());
        assert_eq!(kept, self.rx.limit_bytes() - self.rx.available_bytes());
    }

    fn write(&mut self, bytes: usize) {
        self.written = self.written.wrapping_add(1);
        let message: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(3).wrapping_add(self.written)).collect();
        let limit = WINDOW_BYTES as usize;
        let taken = self.outgoing.write_message(&message, false, limit, self.payload_bytes, &mut self.tx);
        let mut taken = taken.expect("room");
        while self.outgoing.is_owed() {
            taken += self.outgoing.write_rest(&message[taken..], self.payload_bytes, &mut self.tx);
        }
        assert_eq!(taken, bytes);
        self.unread.push_back(message);
    }

    fn carry(&mut self) {
        let Some(unsent) = self.outgoing.pop_sendable(self.payload_bytes, &mut self.tx) else { return };
        let bytes = unsent.payload.bytes();
        let is_short = bytes.len() == self.payload_bytes + SHORT_SAVES_BYTES;
        assert!(bytes.len() <= self.payload_bytes || is_short, "{} bytes fit no header", bytes.len());
        assert!(!is_short || !self.outgoing.is_queue_empty() || self.outgoing.is_owed(), "nothing is behind it");
        assert_eq!(self.incoming.take(Mode::Messages, unsent.flags, bytes, 1 << 20, &mut self.rx), Ok(()));
        self.tx.give(unsent.payload);
    }

    /// Reads a message and compares it; `false` if none is whole.
    fn read(&mut self, by_parts: bool) -> bool {
        let bytes = match by_parts {
            true => take(&mut self.incoming, &mut self.out, &mut self.rx),
            false => self.incoming.read_message(&mut self.out, &mut self.rx).map(|read| read.expect("long enough")),
        };
        let Some(bytes) = bytes else { return false };
        let expected = self.unread.pop_front().expect("no more than were written");
        assert_eq!(&self.out[..bytes], expected);
        true
    }

    /// Everything arrives and is read, and nothing is left of it.
    fn finish(mut self) {
        while !self.outgoing.is_queue_empty() {
            self.carry();
        }
        while self.read(false) {}
        assert!(self.unread.is_empty(), "{} messages are lost", self.unread.len());
        assert_eq!((self.incoming.unread_bytes(), self.tx.in_use(), self.rx.in_use()), (0, 0, 0));
        assert_eq!((self.rx.ledger.keeping(), self.rx.ledger.begun_bytes()), ([0, 0], 0));
    }
}

/// Reads a message as it comes; what is here of one that is not whole is put back.
fn take(incoming: &mut Incoming, out: &mut [u8], rx: &mut Pool) -> Option<usize> {
    let mut part = Part::default();
    while !incoming.take_part(out, &mut part, rx) {
        if part.has_more {
            continue;
        }
        let mut left = part.is_begun.then_some(part.bytes);
        while let Some(bytes) = left {
            left = Some(incoming.put_back(&out[..bytes], rx)).filter(|&bytes| bytes > 0);
        }
        return incoming.read_message(out, rx).map(|read| read.expect("long enough"));
    }
    Some(part.bytes)
}

/// Around the borders of prefixes, of packets, and of what begins in the rest of a packet.
fn length(payload_bytes: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0usize),
        4 => 0..20usize,
        2 => 120..140usize,
        3 => 0..payload_bytes + 20,
        2 => payload_bytes.saturating_sub(16)..payload_bytes + 4,
        2 => 0..3 * payload_bytes,
        1 => 16_370..16_400usize,
    ]
}

fn step(payload_bytes: usize) -> impl Strategy<Value = Step> {
    let run = (length(payload_bytes), prop_oneof![3 => 1..4usize, 1 => 60..68usize, 1 => 120..200usize])
        .prop_map(|(bytes, count)| Step::Write(bytes, if bytes > 200 { count.min(5) } else { count }));
    prop_oneof![
        4 => run,
        2 => (1..6usize).prop_map(Step::Carry),
        2 => (1..80usize, any::<bool>()).prop_map(|(count, by_parts)| Step::Read { count, by_parts }),
        1 => Just(Step::Reserve),
        1 => Just(Step::Cancel),
    ]
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    prop_oneof![Just(40usize), Just(100), 40..400usize, Just(1444), Just(40_000)]
        .prop_flat_map(|payload_bytes| (Just(payload_bytes), prop::collection::vec(step(payload_bytes), 1..40)))
}

/// Bytes of which many look like prefixes of short messages, and the flags that say what they are.
fn hostile() -> impl Strategy<Value = (Flags, Vec<u8>)> {
    let flags =
        prop_oneof![Just(0x10u8), Just(0x14), Just(0x18), Just(0x1C), Just(0x04), Just(0x08), Just(0x0C), Just(0)];
    let byte = prop_oneof![4 => 0..4u8, 2 => 0xC0..0xC6u8, 1 => any::<u8>()];
    (flags.prop_map(Flags), prop::collection::vec(byte, 0..120))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Replay with `cargo test -p ropeway-proto --lib channel::tests`: a failure writes its seed to proptest-regressions/channel/tests.txt, which is run first from then on.
    #[test]
    fn messages_come_out_as_they_went_in((payload_bytes, steps) in steps()) {
        let mut ends = Ends::new(payload_bytes);
        steps.iter().for_each(|step| ends.step(step));
        ends.finish();
    }

    /// Whatever is taken is as many messages as it was counted as, and gives back all that it counted.
    #[test]
    fn what_a_hostile_peer_sends_is_refused_or_read(packets in prop::collection::vec(hostile(), 0..40), by_parts: bool) {
        let mut rx = Pool::new(200, MEMORY_BYTES);
        let (mut incoming, mut out) = (Incoming::new(WINDOW_BYTES), vec![0; 1 << 20]);
        for (flags, bytes) in &packets {
            let _ = incoming.take(Mode::Messages, *flags, bytes, 1 << 20, &mut rx);
        }
        while incoming.is_readable(Mode::Messages) {
            let read = match by_parts {
                true => take(&mut incoming, &mut out, &mut rx),
                false => incoming.read_message(&mut out, &mut rx).map(|read| read.expect("long enough")),
            };
            prop_assert!(read.is_some(), "a message that was counted is not here");
        }
        if !incoming.is_unfinished() {
            prop_assert_eq!((incoming.unread_bytes(), rx.in_use()), (0, 0));
        }
        incoming.clear(&mut rx);
        prop_assert_eq!((incoming.unread_bytes(), rx.in_use(), rx.owed), (0, 0, 0));
    }
}
