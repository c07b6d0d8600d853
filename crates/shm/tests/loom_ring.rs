//! The ring's code under loom: every interleaving, and every value that the memory orders allow a load to see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p ropeway-shm --test loom_ring` runs it. Payload accesses that the ring's own words do not order are
//! found too (`Cells::payload`). Each test of two threads is exhaustive within three forced preemptions, which is where
//! the state spaces end in practice.

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use ropeway_shm::lock::{Lock, Taken, holder};
use ropeway_shm::ring::{Consumer, End, Look, Producer, Recovered, Ring, WriteStop};

/// A ring for several model threads.
#[derive(Clone)]
struct Shared(Arc<Ring>);

// SAFETY: loom runs one model thread at a time and finds unordered accesses to payloads itself.
unsafe impl Send for Shared {}

impl std::ops::Deref for Shared {
    type Target = Ring;
    fn deref(&self) -> &Ring {
        &self.0
    }
}

fn ring(n: u32) -> Shared {
    Shared(Arc::new(Ring::new_loom(n)))
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// Publishes one record of eight bytes.
fn put(ring: &Ring, p: &mut Producer, value: u64) -> Result<(), WriteStop> {
    let (to, room) = ring.begin(p, 8, 8)?;
    assert_eq!(room, 8);
    // SAFETY: loom's cells hold eight bytes of payload each.
    unsafe { to.cast::<u64>().write(value) };
    ring.commit(p, 8)
}

enum Got {
    Value(u64),
    Empty,
    Closed,
}

/// Takes one record, without flushing.
fn take(ring: &Ring, c: &mut Consumer) -> Got {
    match ring.look(c) {
        Look::Data { ptr, len } => {
            assert_eq!(len, 8);
            // SAFETY: loom's cells hold eight bytes of payload each.
            let value = unsafe { ptr.cast::<u64>().read() };
            ring.consume(c, len);
            Got::Value(value)
        }
        Look::Empty => Got::Empty,
        Look::Closed => Got::Closed,
        other => panic!("nobody wrote nonsense: {other:?}"),
    }
}

/// Drains what is there; panics unless the values are 1, 2, ... and returns how many there were and whether the end was seen.
fn drain(ring: &Ring, c: &mut Consumer, mut expected: u64) -> (u64, bool) {
    loop {
        match take(ring, c) {
            Got::Value(value) => {
                assert_eq!(value, expected, "lost, doubled or out of order");
                expected += 1;
            }
            Got::Empty => return (expected - 1, false),
            Got::Closed => return (expected - 1, true),
        }
    }
}

#[test]
fn what_is_published_is_read_once_and_in_order_also_around_the_end_of_the_ring() {
    model(|| {
        let ring = ring(2);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut p = Producer::default();
                for value in 1..=4 {
                    while let Err(stop) = put(&ring, &mut p, value) {
                        assert_eq!(stop, WriteStop::Full);
                        thread::yield_now();
                    }
                }
            })
        };
        let (mut c, mut got) = (Consumer::default(), 0);
        while got < 4 {
            (got, _) = drain(&ring, &mut c, got + 1);
            ring.flush(&mut c);
            thread::yield_now();
        }
        writer.join().unwrap();
    });
}

#[test]
fn publish_and_a_closing_reader_agree_on_the_end() {
    model(|| {
        let ring = ring(4);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut p = Producer::default();
                let mut written = 0;
                while written < 2 {
                    match put(&ring, &mut p, written + 1) {
                        Ok(()) => written += 1,
                        Err(stop) => {
                            assert_eq!(stop, WriteStop::Closed);
                            break;
                        }
                    }
                }
                written
            })
        };
        let mut c = Consumer::default();
        assert!(ring.close_reader(&c));
        let (read, closed) = drain(&ring, &mut c, 1);
        assert!(closed, "the reader finds the end that it made");
        assert_eq!(writer.join().unwrap(), read, "both ends agree on the end");
    });
}

#[test]
fn two_closers_agree_and_exactly_one_wins() {
    model(|| {
        let ring = ring(4);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut p = Producer::default();
                let written = u64::from(put(&ring, &mut p, 1).is_ok());
                (written, ring.close_writer(&p), p)
            })
        };
        let mut c = Consumer::default();
        let early = drain(&ring, &mut c, 1);
        assert!(ring.close_reader(&c));
        let (read, closed) = if early.1 { early } else { drain(&ring, &mut c, early.0 + 1) };
        let (written, closed_by_writer, p) = writer.join().unwrap();
        assert!(closed);
        assert_eq!((read, c.at), (written, p.head), "the end is one place");
        assert!(closed_by_writer || !early.1, "only the writer can have ended it before the reader did");
        assert!(!ring.close_writer(&p), "a ring ends once");
    });
}

/// A wrap is published with the record behind it: a close that races with it wins or loses as a whole.
#[test]
fn a_wrap_and_a_closing_reader_agree_on_the_end() {
    model(|| {
        let ring = ring(3);
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        for value in 1..=3 {
            put(&ring, &mut p, value).unwrap();
        }
        assert_eq!(drain(&ring, &mut c, 1), (3, false));
        ring.flush(&mut c);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || (u64::from(put(&ring, &mut p, 4).is_ok()), p.head))
        };
        assert!(ring.close_reader(&c));
        let (read, closed) = drain(&ring, &mut c, 4);
        let (written, head) = writer.join().unwrap();
        assert!(closed);
        assert_eq!((read - 3, c.at), (written, head));
    });
}

/// Store, then look: the writer publishes and looks at `armed`, the reader arms and looks at the header.
#[test]
fn a_reader_that_goes_to_sleep_is_rung_or_sees_the_record() {
    model(|| {
        let ring = ring(4);
        let slot = ring.claim_bell(End::Reader, 77, 5).unwrap();
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                put(&ring, &mut Producer::default(), 1).unwrap();
                ring.must_ring(End::Reader) && ring.take_armed(End::Reader).contains(&(77, 5))
            })
        };
        ring.arm(End::Reader, slot);
        let saw = ring.pending(&Consumer::default());
        let rang = writer.join().unwrap();
        assert!(saw || rang, "asleep with a record in the ring");
    });
}

#[test]
fn a_reader_that_goes_to_sleep_is_rung_or_sees_the_end() {
    model(|| {
        let ring = ring(4);
        let slot = ring.claim_bell(End::Reader, 77, 5).unwrap();
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert!(ring.close_writer(&Producer::default()));
                ring.must_ring(End::Reader)
            })
        };
        ring.arm(End::Reader, slot);
        let saw = ring.pending(&Consumer::default());
        assert!(saw | writer.join().unwrap(), "asleep on a ring that has ended");
    });
}

/// Store, then look: the reader writes its index and looks at `armed`, the writer arms and looks at the index.
#[test]
fn a_writer_that_goes_to_sleep_is_rung_or_sees_the_room() {
    model(|| {
        let ring = ring(2);
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        put(&ring, &mut p, 1).unwrap();
        put(&ring, &mut p, 2).unwrap();
        let slot = ring.claim_bell(End::Writer, 88, 6).unwrap();
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert_eq!(drain(&ring, &mut c, 1), (2, false));
                ring.flush(&mut c) && ring.take_armed(End::Writer).contains(&(88, 6))
            })
        };
        assert_eq!(put(&ring, &mut p, 3).is_ok(), ring.unread_cells(&mut p) == 1 || p.head.lap > 0);
        if p.head.lap == 0 {
            ring.arm(End::Writer, slot);
            let saw = put(&ring, &mut p, 3).is_ok();
            let rang = reader.join().unwrap();
            assert!(saw || rang, "asleep with room in the ring");
        } else {
            reader.join().unwrap();
        }
    });
}

#[test]
fn a_writer_that_goes_to_sleep_is_rung_or_sees_the_close() {
    model(|| {
        let ring = ring(2);
        let mut p = Producer::default();
        put(&ring, &mut p, 1).unwrap();
        put(&ring, &mut p, 2).unwrap();
        let slot = ring.claim_bell(End::Writer, 88, 6).unwrap();
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || {
                assert!(ring.close_reader(&Consumer::default()));
                ring.must_ring(End::Writer)
            })
        };
        ring.arm(End::Writer, slot);
        let saw = put(&ring, &mut p, 3) == Err(WriteStop::Closed);
        assert!(saw | reader.join().unwrap(), "asleep on a full ring that has ended");
    });
}

/// The control words obey the same rule: whoever waits for one is rung or sees it.
#[test]
fn a_recalling_reader_that_waits_is_rung_or_sees_the_answer() {
    model(|| {
        let ring = ring(2);
        let slot = ring.claim_bell(End::Reader, 77, 5).unwrap();
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.recall_done(1);
                ring.must_ring(End::Reader)
            })
        };
        ring.arm(End::Reader, slot);
        let saw = ring.recalled() == 1;
        assert!(saw | writer.join().unwrap());
    });
}

#[test]
fn an_offer_is_taken_or_withdrawn_as_a_whole() {
    model(|| {
        let ring = ring(3);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut p = Producer::default();
                if ring.offered() != 1 {
                    return None;
                }
                let switched = ring.switch(&mut p, 1, 1234, || {});
                if switched == Err(WriteStop::Closed) {
                    ring.leave(&p);
                }
                Some(switched)
            })
        };
        let mut c = Consumer::default();
        ring.offer(&mut c, 1);
        // Changes its mind at once.
        assert!(ring.close_reader(&c));
        let first = ring.look(&mut c);
        match writer.join().unwrap() {
            Some(Ok(())) => {
                assert_eq!(first, Look::Switch { at: 1234 });
                ring.consume_switch(&mut c);
                assert_eq!(ring.look(&mut c), Look::Closed);
            }
            Some(Err(stop)) => {
                assert_eq!((stop, first), (WriteStop::Closed, Look::Closed));
                assert_eq!(ring.left(), 1);
            }
            None => assert_eq!(first, Look::Closed),
        }
    });
}

/// One epoch is left and the next begins on the same cells, while the other end does as it likes.
#[test]
fn a_used_ring_is_offered_again_and_nothing_old_is_read() {
    model(|| {
        let ring = ring(3);
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        // First epoch: one record, closed by the reader, not yet noticed by the writer.
        ring.offer(&mut c, 1);
        ring.switch(&mut p, 1, 10, || {}).unwrap();
        ring.look(&mut c);
        ring.consume_switch(&mut c);
        ring.close_reader(&c);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                // Notices the end, leaves, and takes the next offer if it is there already.
                assert_eq!(put(&ring, &mut p, 1), Err(WriteStop::Closed));
                ring.leave(&p);
                if ring.offered() != 2 {
                    return false;
                }
                ring.switch(&mut p, 2, 20, || {}).unwrap();
                put(&ring, &mut p, 1).unwrap();
                true
            })
        };
        assert_eq!(ring.look(&mut c), Look::Closed);
        if ring.left() == 1 {
            ring.offer(&mut c, 2);
            let mut read = 0;
            match ring.look(&mut c) {
                Look::Switch { at } => {
                    assert_eq!(at, 20);
                    ring.consume_switch(&mut c);
                    read = drain(&ring, &mut c, 1).0;
                }
                seen => assert_eq!(seen, Look::Empty),
            }
            let switched = writer.join().unwrap();
            assert!(switched || read == 0);
        } else {
            assert!(!writer.join().unwrap(), "an offer that was never made");
        }
    });
}

/// Two complete epochs with data around the end of a tiny ring, the reader running freely.
#[test]
fn two_epochs_deliver_their_bytes_in_order() {
    model(|| {
        let ring = ring(2);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let (mut p, mut value) = (Producer::default(), 1);
                for epoch in 1..=2 {
                    while ring.offered() != epoch {
                        thread::yield_now();
                    }
                    while ring.switch(&mut p, epoch, u64::from(epoch), || {}) == Err(WriteStop::Full) {
                        thread::yield_now();
                    }
                    while put(&ring, &mut p, value).is_err() {
                        thread::yield_now();
                    }
                    value += 1;
                    assert!(ring.close_writer(&p));
                    ring.leave(&p);
                }
            })
        };
        let (mut c, mut expected) = (Consumer::default(), 1);
        for epoch in 1..=2 {
            ring.offer(&mut c, epoch);
            loop {
                match ring.look(&mut c) {
                    Look::Switch { at } => {
                        assert_eq!(at, u64::from(epoch));
                        ring.consume_switch(&mut c);
                    }
                    Look::Data { .. } => expected = drain_one(&ring, &mut c, expected),
                    Look::Closed => break,
                    Look::Empty => {
                        ring.flush(&mut c);
                        thread::yield_now();
                    }
                    Look::Corrupt => panic!("nobody wrote nonsense"),
                }
            }
            while ring.left() != epoch {
                thread::yield_now();
            }
        }
        assert_eq!(expected, 3);
        writer.join().unwrap();
    });
}

fn drain_one(ring: &Ring, c: &mut Consumer, expected: u64) -> u64 {
    match take(ring, c) {
        Got::Value(value) => assert_eq!(value, expected),
        _ => panic!("a record was seen"),
    }
    ring.flush(c);
    expected + 1
}

/// A writer of a family dies anywhere in its publish, holding the lock; a sibling takes the lock over and goes on.
#[test]
fn a_sibling_takes_over_from_a_dead_writer_without_loss_or_repetition() {
    for dies_before_publishing in [false, true] {
        model(move || {
            let ring = ring(4);
            let (dead, sibling) = (holder(1, 1), holder(2, 2));
            let state = Arc::new((Lock::new(), loom::cell::UnsafeCell::new(Producer::default())));
            let writer = {
                let (ring, state) = (ring.clone(), state.clone());
                thread::spawn(move || {
                    assert_eq!(state.0.lock_unless(dead, |_| true), Taken::Clean);
                    if dies_before_publishing {
                        return;
                    }
                    // Dies after the swap: the cursor is never written back, the lock never released.
                    let mut p = state.1.with(|p| {
                        // SAFETY: the lock is held.
                        unsafe { *p }
                    });
                    put(&ring, &mut p, 1).unwrap();
                })
            };
            let reader = {
                let ring = ring.clone();
                thread::spawn(move || drain(&ring, &mut Consumer::default(), 1).0)
            };
            writer.join().unwrap();
            assert_eq!(state.0.lock_unless(sibling, |who| who != dead), Taken::FromTheDead);
            let (recovered, published) = state.1.with_mut(|p| {
                // SAFETY: the lock was taken over.
                let p = unsafe { &mut *p };
                let recovered = ring.recover_producer(p, || {});
                let next = if recovered == Recovered::Data(8) { 2 } else { 1 };
                (recovered, put(&ring, p, next))
            });
            state.0.unlock();
            assert_eq!(published, Ok(()));
            assert_eq!(recovered, if dies_before_publishing { Recovered::Nothing } else { Recovered::Data(8) });
            let early = reader.join().unwrap();
            let all = drain(&ring, &mut Consumer::default(), 1).0;
            assert!(early <= all);
            assert_eq!(all, if dies_before_publishing { 1 } else { 2 });
        });
    }
}

#[test]
fn two_waiters_never_both_take_over_and_never_hold_together() {
    model(|| {
        let state = Arc::new((Lock::new(), loom::cell::UnsafeCell::new(0u32)));
        let dead = holder(1, 1);
        assert!(state.0.try_lock(dead));
        let waiters: Vec<_> = [holder(2, 2), holder(3, 3)]
            .into_iter()
            .map(|me| {
                let state = state.clone();
                thread::spawn(move || {
                    let taken = state.0.lock_unless(me, |who| who != dead);
                    // SAFETY: the lock is held; loom finds it if another holds it too.
                    state.1.with_mut(|count| unsafe { *count += 1 });
                    state.0.unlock();
                    u32::from(taken == Taken::FromTheDead)
                })
            })
            .collect();
        let took_over: u32 = waiters.into_iter().map(|w| w.join().unwrap()).sum();
        assert_eq!(took_over, 1);
    });
}
