//! A ring behaves like a queue of bytes, whatever its size and whatever is done to it.

use crate::support::{Memory, Stop, peek, promote, read, write};
use proptest::prelude::*;
use ropeway_shm::cells::CELL_BYTES;
use ropeway_shm::ring::{Consumer, Producer, Recovered, Ring, SURE_BYTES, WriteStop};
use ropeway_shm::segment::MIN_RING_BYTES;
use std::collections::VecDeque;

/// One thing that happens to a ring.
#[derive(Clone, Debug)]
enum Op {
    Write {
        least: usize,
        bytes: usize,
    },
    /// Room is asked for, but nothing is written after all.
    BeginOnly {
        most: usize,
    },
    /// The writer dies after its swap, before it has moved its cursor.
    WriteAndDie {
        bytes: usize,
    },
    Read {
        most: usize,
    },
    Peek {
        skip: usize,
        room: usize,
    },
    CloseByWriter,
    CloseByReader,
    /// Leaves the epoch and begins the next, if the ring is closed and drained.
    Promote,
    RecoverBoth,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..=8, 4 => 1usize..=130, 2 => 40usize..=72, 1 => 1usize..=20_000]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0usize..=200, size()).prop_map(|(least, bytes)| Op::Write { least, bytes }),
        1 => size().prop_map(|most| Op::BeginOnly { most }),
        2 => size().prop_map(|bytes| Op::WriteAndDie { bytes }),
        12 => size().prop_map(|most| Op::Read { most }),
        3 => (0usize..=3000, size()).prop_map(|(skip, room)| Op::Peek { skip, room }),
        1 => Just(Op::CloseByWriter),
        1 => Just(Op::CloseByReader),
        4 => Just(Op::Promote),
        1 => Just(Op::RecoverBoth),
    ]
}

/// A ring beside the queue that it must equal.
struct World {
    ring: Ring,
    n: u32,
    p: Producer,
    c: Consumer,
    queue: VecDeque<u8>,
    closed: bool,
    sent: u64,
}

impl World {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let first = self.sent;
        (0..n as u64).map(|i| ((first + i) * 31 % 251) as u8).collect()
    }

    fn pushed(&mut self, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        self.queue.extend(bytes);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Write { least, bytes } => {
                let bytes = self.bytes(bytes);
                match write(self.ring, &mut self.p, least, &bytes) {
                    Ok(n) => {
                        assert!(!self.closed, "written behind the end");
                        assert!(n >= least.min(bytes.len()).min(self.n as usize / 4 * 64 - 8), "less than the least");
                        let short = SURE_BYTES.min((self.n as usize / 8 * 64).saturating_sub(8));
                        assert!(n >= bytes.len().min(short), "{n} of {}: a short message in part", bytes.len());
                        self.pushed(&bytes[..n]);
                    }
                    Err(WriteStop::Full) => assert!(!self.queue.is_empty(), "an empty ring has room"),
                    Err(WriteStop::Closed) => assert!(self.closed),
                    Err(WriteStop::Corrupt) => panic!("nobody wrote nonsense"),
                }
            }
            Op::BeginOnly { most } => {
                let before = self.ring.unread(&self.c);
                let _ = self.ring.begin(&mut self.p, 1, most);
                assert_eq!(self.ring.unread(&self.c), before, "begun is not published");
            }
            Op::WriteAndDie { bytes } => self.write_and_die(bytes),
            Op::Read { most } => {
                let (got, stop) = read(self.ring, &mut self.c, most);
                let expected: Vec<u8> = self.queue.drain(..most.min(self.queue.len())).collect();
                assert_eq!(got, expected);
                if got.len() < most {
                    assert_eq!(stop, if self.closed { Stop::Closed } else { Stop::Empty });
                    assert!(self.ring.drained(&mut self.p), "a reader that found nothing has said so");
                }
            }
            Op::Peek { skip, room } => {
                let expected: Vec<u8> = self.queue.iter().copied().skip(skip).take(room).collect();
                assert_eq!(peek(self.ring, &self.c, skip, room), expected);
            }
            Op::CloseByWriter => {
                assert_eq!(self.ring.close_writer(&self.p), !std::mem::replace(&mut self.closed, true))
            }
            Op::CloseByReader => {
                assert!(self.ring.close_reader(&self.c), "nobody wrote nonsense");
                self.closed = true;
            }
            Op::Promote => {
                if self.closed && self.queue.is_empty() {
                    // The reader stands at the end once it has looked there; the writer says that it has left.
                    assert_eq!(read(self.ring, &mut self.c, 1), (vec![], Stop::Closed));
                    self.ring.leave(&self.p);
                    assert_eq!(self.ring.left(), self.c.epoch);
                    promote(self.ring, &mut self.p, &mut self.c, self.sent);
                    self.closed = false;
                }
            }
            Op::RecoverBoth => {
                let (p, c) = (self.p, self.c);
                assert_eq!(self.ring.recover_producer(&mut self.p, || {}), Recovered::Nothing);
                self.ring.recover_consumer(&mut self.c);
                assert_eq!((self.p.head, self.c.at), (p.head, c.at), "nothing to recover");
            }
        }
    }

    fn write_and_die(&mut self, bytes: usize) {
        let bytes = self.bytes(bytes);
        let Ok((ptr, room)) = self.ring.begin(&mut self.p, 1, bytes.len()) else { return };
        let n = room.min(bytes.len());
        // SAFETY: `begin` gave `room` writable bytes.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, n) };
        let before = self.p;
        let Ok(()) = self.ring.commit(&mut self.p, n) else {
            assert!(self.closed);
            return;
        };
        let head = std::mem::replace(&mut self.p, before).head;
        assert_eq!(self.ring.recover_producer(&mut self.p, || {}), Recovered::Data(n as u32));
        assert_eq!(self.p.head, head, "the head is where the dead writer would have moved it");
        self.pushed(&bytes[..n]);
    }

    fn check(&mut self) {
        assert_eq!(self.ring.unread(&self.c).0, self.queue.len());
        assert_eq!(self.ring.unread(&self.c).1, self.p.head, "both agree on the end");
        assert_eq!(self.ring.pending(&self.c), self.closed || !self.queue.is_empty());
        assert!(self.ring.unread_cells(&mut self.p) <= self.n);
        if self.ring.writable(&mut self.p) && !self.closed {
            assert!(self.ring.begin(&mut self.p, 1, 1 << 20).is_ok(), "what is writable takes a write");
        }
    }
}

fn run(n: u32, ops: &[Op]) {
    let memory = Memory::new(n);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    let mut world = World { ring, n, p, c, queue: VecDeque::new(), closed: false, sent: 0 };
    for op in ops {
        world.step(op);
        world.check();
    }
    // Whatever happened: the rest comes out, and in order.
    let rest: Vec<u8> = world.queue.drain(..).collect();
    assert_eq!(read(ring, &mut world.c, usize::MAX).0, rest);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_a_queue(n in prop_oneof![4u32..=20, 64u32..=64, 250u32..=300, 1000u32..=1024],
                         ops in prop::collection::vec(op(), 1..400)) {
        run(n, &ops);
    }

    #[test]
    fn short_messages_that_are_read_at_once_stay_in_the_first_pages(sizes in prop::collection::vec(1usize..=56, 1..2000)) {
        let memory = Memory::new(8192);
        let ring = memory.ring();
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        promote(ring, &mut p, &mut c, 0);
        for (i, &size) in sizes.iter().enumerate() {
            let bytes = vec![i as u8; size];
            prop_assert_eq!(write(ring, &mut p, 1, &bytes), Ok(size));
            prop_assert_eq!(read(ring, &mut c, 4096).0, bytes);
            prop_assert!(p.head.cell < 128, "cell {} after {} messages", p.head.cell, i);
        }
    }
}

#[test]
fn there_is_room_beside_one_short_message_wherever_it_stands() {
    let memory = Memory::new(8192);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    for i in 0..1000 {
        assert_eq!(write(ring, &mut p, 1, &[1; 158]), Ok(158));
        // Of a copy: a look with more in hand would put the next early wrap off.
        let mut looks = p;
        assert!(ring.writable(&mut looks), "message {i}, head at cell {}", p.head.cell);
        assert!(ring.begin(&mut looks, 1, 1 << 20).is_ok(), "message {i}, head at cell {}", p.head.cell);
        assert_eq!(read(ring, &mut c, 4096).0, [1; 158]);
    }
}

#[test]
fn a_short_message_is_written_whole_or_not_at_all() {
    let memory = Memory::new(1024);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    let message = [7u8; SURE_BYTES];
    for (size, keeps_up) in (1..=SURE_BYTES).flat_map(|size| [1, 3, 50, 97].map(|keeps_up| (size, keeps_up))) {
        // The reader keeps up with so many, and then reads nothing for a while.
        for _ in 0..keeps_up {
            assert_eq!(write(ring, &mut p, 1, &message[..size]), Ok(size));
            assert_eq!(read(ring, &mut c, SURE_BYTES).0.len(), size);
        }
        let mut sent = 0;
        let stop = loop {
            match write(ring, &mut p, 1, &message[..size]) {
                Ok(n) if n == size => sent += n,
                other => break other,
            }
        };
        assert_eq!(stop, Err(WriteStop::Full), "a message of {size} bytes, behind {keeps_up} that were read at once");
        assert_eq!(read(ring, &mut c, usize::MAX).0.len(), sent);
    }
}

#[test]
fn a_ring_that_is_writable_has_room_for_what_is_taken_out_of_a_pipe_at_once() {
    for cells in [MIN_RING_BYTES as usize / CELL_BYTES, 8192] {
        let memory = Memory::new(cells as u32);
        let ring = memory.ring();
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        promote(ring, &mut p, &mut c, 0);
        let piece = [7u8; SURE_BYTES];
        // The reader keeps up with so many, and then reads nothing for a while.
        for round in 0..1000 {
            let (keeps_up, size) = (round % 50, SURE_BYTES - round * 61 % SURE_BYTES);
            for _ in 0..keeps_up {
                let n = write(ring, &mut p, 1, &piece[..size]).expect("room");
                assert_eq!(read(ring, &mut c, SURE_BYTES).0.len(), n);
            }
            let mut sent = 0;
            while ring.writable(&mut p) {
                let mut left = SURE_BYTES;
                while left > 0 {
                    left -= write(ring, &mut p, 1, &piece[..left]).expect("room for all of it");
                }
                sent += SURE_BYTES;
            }
            assert_eq!(read(ring, &mut c, usize::MAX).0.len(), sent, "{cells} cells, {keeps_up} of {size}");
        }
    }
}

#[test]
fn a_stream_uses_the_whole_ring() {
    let memory = Memory::new(1024);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    let piece = [7u8; 4096];
    let mut sent = 0;
    while write(ring, &mut p, 1, &piece).is_ok_and(|n| {
        sent += n;
        true
    }) {}
    assert!(sent > 1024 * 64 * 7 / 8, "{sent} bytes fitted");
    assert_eq!(read(ring, &mut c, usize::MAX).0.len(), sent);
}

#[test]
fn a_full_ring_that_the_reader_closed_says_closed() {
    let memory = Memory::new(64);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    while write(ring, &mut p, 1, &[1; 56]).is_ok() {}
    assert_eq!(write(ring, &mut p, 1, &[1; 56]), Err(WriteStop::Full));
    assert!(!ring.writable(&mut p));
    assert!(ring.close_reader(&c));
    assert!(ring.writable(&mut p), "a writer that waits for room must come back and look");
    assert_eq!(write(ring, &mut p, 1, &[1; 56]), Err(WriteStop::Closed));
}

#[test]
fn a_recall_names_the_byte_where_the_reader_stopped() {
    let memory = Memory::new(64);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    let bytes: Vec<u8> = (0..200).collect();
    for piece in bytes.chunks(50) {
        assert_eq!(write(ring, &mut p, 1, piece), Ok(50));
    }
    assert_eq!(read(ring, &mut c, 70).0, bytes[..70]);
    assert!(ring.close_reader(&c));
    ring.recall(&mut c);
    assert_eq!(ring.recall_asked(), p.epoch);
    let (at, consumed) = ring.reader_stopped_at(&mut p).expect("an honest tail");
    assert_eq!(consumed, 20);
    let walk = Consumer::starting_at(at, p.epoch);
    assert_eq!(peek(ring, &walk, consumed, 4096), bytes[70..], "the writer can copy the rest onto TCP");
}

#[test]
fn commit_of_nothing_is_no_record_and_commit_of_too_much_is_refused() {
    let memory = Memory::new(4);
    let ring = memory.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    promote(ring, &mut p, &mut c, 0);
    ring.begin(&mut p, 0, 0).expect("room");
    assert_eq!(ring.commit(&mut p, 0), Ok(()));
    assert!(!ring.pending(&c));
    assert_eq!(ring.commit(&mut p, 4 * 64), Err(WriteStop::Corrupt));
    assert_eq!(write(ring, &mut p, usize::MAX, &[9; 3]), Ok(3), "impossible wishes are cut to what a ring can give");
    assert_eq!(read(ring, &mut c, 9), (vec![9; 3], Stop::Empty));
}
