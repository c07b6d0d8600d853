//! What only a look inside can show: cursors torn by a kill, laps that overflow, and the layout that docs/ring.md states.

use super::*;
use core::mem::{offset_of, size_of};

/// A ring of `n` cells on the heap.
struct Heap {
    header: Box<RingHeader>,
    cells: Vec<[u64; 8]>,
}

impl Heap {
    fn new(n: u32) -> Heap {
        // One more than the spare cell: room to align to a cache line.
        Heap { header: Box::default(), cells: vec![[0; 8]; n as usize + 2] }
    }

    fn ring(&mut self) -> Ring {
        let n = self.cells.len() as u32 - 2;
        let base = self.cells.as_mut_ptr().cast::<u8>();
        // SAFETY: the boxes outlive the ring in every test, and hold n + 1 cells behind the next cache line.
        unsafe { Ring::from_raw(&raw const *self.header, base.add(base.align_offset(CELL_BYTES)), n) }
    }
}

fn put(ring: Ring, p: &mut Producer, value: u8, len: usize) -> Result<(), WriteStop> {
    let (ptr, room) = ring.begin(p, len, len)?;
    assert!(room >= len);
    // SAFETY: `begin` gave the room.
    unsafe { ptr.write_bytes(value, len) };
    ring.commit(p, len)
}

fn get(ring: Ring, c: &mut Consumer) -> Option<(u8, usize)> {
    let Look::Data { ptr, len } = ring.look(c) else { return None };
    // SAFETY: `look` showed at least one byte.
    let value = unsafe { *ptr };
    ring.consume(c, len);
    ring.flush(c);
    Some((value, len))
}

#[test]
fn laps_may_overflow() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    let start = Position { lap: u32::MAX - 1, cell: 5 };
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    (p.head, p.tail, c.at) = (start, start, start);
    ring.flush_now(&mut c);
    for i in 0..100u8 {
        assert_eq!(put(ring, &mut p, i, 100), Ok(()));
        assert_eq!(get(ring, &mut c), Some((i, 100)));
        assert!(ring.drained(&mut p));
    }
    assert!(p.head.lap < 100, "the lap has gone through 0");
    assert!(Position { lap: 0, cell: 0 }.reached(Position { lap: u32::MAX, cell: 8 }));
    assert!(!Position { lap: u32::MAX, cell: 8 }.reached(Position { lap: 0, cell: 0 }));
}

#[test]
fn epochs_wrap_past_none() {
    assert_eq!(next_epoch(0), 1);
    assert_eq!(next_epoch(EPOCH_MASK - 1), EPOCH_MASK);
    assert_eq!(next_epoch(EPOCH_MASK), 1);
    assert_eq!(next_epoch(u32::MAX), 1, "also from a number that never was one");
}

#[test]
fn a_reader_killed_at_any_store_leaves_a_cursor_that_recovers() {
    let mut heap = Heap::new(16);
    let ring = heap.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    put(ring, &mut p, 1, 100).unwrap();
    put(ring, &mut p, 2, 10).unwrap();
    assert!(matches!(ring.look(&mut c), Look::Data { len: 100, .. }));
    ring.consume(&mut c, 60);
    let partly = c;
    // Killed before the cursor moved: the forty bytes are still there.
    let mut early = partly;
    ring.recover_consumer(&mut early);
    assert!(matches!(ring.look(&mut early), Look::Data { len: 40, .. }));
    // Killed at each store of `consume`, in the order of the program: the record is gone, once.
    let consumed = Consumer { off: 100, ..partly };
    let moved = Consumer { at: Position { lap: 0, cell: partly.end }, ..consumed };
    let cleared = Consumer { len: 0, ..moved };
    for torn in [consumed, moved, cleared] {
        let mut c = torn;
        ring.recover_consumer(&mut c);
        assert_eq!((c.at.cell, c.len), (2, 0), "from {torn:?}");
        assert!(c.unflushed > 0, "what was consumed is told to the writer");
        assert_eq!(get(ring, &mut c), Some((2, 10)));
    }
    // Killed while a record is being entered: it is looked at again.
    let mut entering = Consumer { at: moved.at, end: 3, off: 0, ..Consumer::default() };
    ring.recover_consumer(&mut entering);
    assert_eq!(get(ring, &mut entering), Some((2, 10)));
}

#[test]
fn a_cursor_that_was_copied_while_it_moved_hints_at_no_more_than_there_is() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    // The end of a short record behind what was read of a long one.
    let torn = Consumer { len: 10, off: 50, end: 1, ..Consumer::default() };
    assert_eq!(ring.unread(&torn).0, 0);
}

#[test]
fn a_writer_killed_after_its_swap_is_recovered_also_across_a_wrap() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    let mut wrapped = 0;
    for i in 0..60u8 {
        let len = 1 + usize::from(i) * 7 % 120;
        ring.begin(&mut p, len, len).map(|(ptr, _)| unsafe_fill(ptr, i, len)).unwrap();
        wrapped += p.wrap;
        let before = p;
        ring.commit(&mut p, len).unwrap();
        let after = core::mem::replace(&mut p, before);
        assert_eq!(ring.recover_producer(&mut p, || {}), Recovered::Data(len as u32));
        assert_eq!((p.head, p.tail), (after.head, after.tail));
        assert_eq!(ring.recover_producer(&mut p, || {}), Recovered::Nothing, "recovering twice is recovering once");
        assert_eq!(get(ring, &mut c), Some((i, len)));
    }
    assert!(wrapped > 5, "wraps were among them");
}

fn unsafe_fill(ptr: *mut u8, value: u8, len: usize) {
    // SAFETY: the caller has just been given `len` bytes at `ptr`.
    unsafe { ptr.write_bytes(value, len) };
}

#[test]
fn a_writer_killed_after_its_switch_is_found_on_the_ring() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    let (mut p, mut c) = (Producer::default(), Consumer::default());
    ring.offer(&mut c, 1);
    let before = Producer { epoch: 1, ..p };
    ring.switch(&mut p, 1, 77, || {}).unwrap();
    let mut p = before;
    assert_eq!(ring.recover_producer(&mut p, || {}), Recovered::Switch);
    put(ring, &mut p, 5, 5).unwrap();
    assert_eq!(ring.look(&mut c), Look::Switch { at: 77 });
}

#[test]
fn recovery_believes_no_word_that_does_not_fit() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    let full = Producer {
        head: Position { lap: 1, cell: 3 },
        tail: Position { lap: 0, cell: 5 },
        epoch: 1,
        ..Producer::default()
    };
    for (kind, epoch, len) in [
        (KIND_DATA, 1, 57),
        (KIND_DATA, 1, u32::MAX),
        (KIND_DATA, 1, 0),
        (KIND_DATA, 2, 5),
        (KIND_WRAP, 1, 0),
        (9, 1, 1),
    ] {
        ring.cells.header(3).store(word(kind, epoch, len), core::sync::atomic::Ordering::Relaxed);
        let mut p = full;
        assert_eq!(ring.recover_producer(&mut p, || {}), Recovered::Nothing);
        assert_eq!(p.head, full.head, "{kind} {epoch} {len}");
    }
    ring.cells.header(3).store(word(KIND_DATA, 1, 56), core::sync::atomic::Ordering::Relaxed);
    let mut p = full;
    assert_eq!(ring.recover_producer(&mut p, || {}), Recovered::Data(56));
    assert_eq!(p.head.cell, 4);
}

/// Every tail that a peer can write, against every pair of cursors that a writer can have.
#[test]
fn only_tails_that_can_be_true_are_believed() {
    let n = 4;
    let mut heap = Heap::new(n);
    let ring = heap.ring();
    let positions = |laps: core::ops::RangeInclusive<u32>| {
        laps.flat_map(move |lap| (0..=n + 2).map(move |cell| Position { lap, cell }))
    };
    // In cells from a common start; the spare cell and cell 0 of the next lap differ, as their headers do.
    let place = |at: Position| at.lap * (n + 1) + at.cell;
    let mut believed = 0;
    for head in positions(5..=5).filter(|at| at.cell <= n) {
        for old in positions(4..=5)
            .filter(|at| at.cell <= n && (at.lap == 5 && at.cell <= head.cell || at.lap == 4 && at.cell > head.cell))
        {
            for told in positions(3..=6) {
                ring.h().tail.tail.store(told.pack(), core::sync::atomic::Ordering::Relaxed);
                let mut p = Producer { head, tail: old, ..Producer::default() };
                let possible = told.cell <= n
                    && (place(old)..=place(head)).contains(&place(told))
                    && (told.lap == 5 || told.lap == 4 && told.cell > head.cell);
                assert_eq!(ring.refresh_tail(&mut p).is_ok(), possible, "head {head:?}, tail {old:?} then {told:?}");
                assert_eq!(p.tail, if possible { told } else { old });
                believed += u32::from(possible);
                // Whatever was written: what follows stays inside.
                assert!(ring.unread_cells(&mut p) <= n + 1);
                assert!(ring.free_cells(&p) <= n);
            }
        }
    }
    assert!(believed > 50);
}

/// Finds the row `| name | offset | bytes |` of docs/ring.md and compares.
fn documented(name: &str, offset: usize, bytes: usize) {
    let doc = include_str!("../../../../docs/ring.md");
    let row = format!("| `{name}` | {offset} | {bytes} |");
    assert!(doc.contains(&row), "docs/ring.md does not say `{row}`");
}

#[test]
fn the_layout_is_the_documented_one() {
    documented("RingHeader", 0, size_of::<RingHeader>());
    let lines = [
        ("reader", offset_of!(RingHeader, reader), size_of::<ReaderLine>()),
        ("tail", offset_of!(RingHeader, tail), size_of::<TailLine>()),
        ("reader_bells", offset_of!(RingHeader, reader_bells), size_of::<BellLine>()),
        ("writer", offset_of!(RingHeader, writer), size_of::<WriterLine>()),
        ("writer_bells", offset_of!(RingHeader, writer_bells), size_of::<BellLine>()),
    ];
    for (name, offset, bytes) in lines {
        assert!(offset % 64 == 0 && bytes == 64, "each line is one cache line");
        documented(name, offset, bytes);
    }
    let (reader, tail, writer) =
        (offset_of!(RingHeader, reader), offset_of!(RingHeader, tail), offset_of!(RingHeader, writer));
    documented("reader.armed", reader + offset_of!(ReaderLine, armed), 4);
    documented("reader.offer", reader + offset_of!(ReaderLine, offer), 4);
    documented("reader.recall", reader + offset_of!(ReaderLine, recall), 4);
    documented("reader.recall_off", reader + offset_of!(ReaderLine, recall_off), 4);
    documented("tail.tail", tail + offset_of!(TailLine, tail), 8);
    documented("writer.armed", writer + offset_of!(WriterLine, armed), 4);
    documented("writer.wr_shut", writer + offset_of!(WriterLine, wr_shut), 4);
    documented("writer.left", writer + offset_of!(WriterLine, left), 4);
    documented("writer.recalled", writer + offset_of!(WriterLine, recalled), 4);
    documented("slot.id", offset_of!(BellSlot, id), 8);
    documented("slot.tag", offset_of!(BellSlot, tag), 8);
    assert_eq!(size_of::<BellSlot>() * BELL_SLOTS, 64);
}

#[test]
fn a_bell_that_is_gone_leaves_its_place_to_the_next() {
    let mut heap = Heap::new(8);
    let ring = heap.ring();
    for id in 1..=BELL_SLOTS as u64 {
        let slot = ring.claim_bell(End::Reader, id, 0).unwrap();
        ring.arm(End::Reader, slot);
    }
    assert_eq!(ring.claim_bell(End::Reader, 77, 0), None);
    ring.forget_bells(End::Reader, |id| id == 2);
    assert_eq!(ring.claim_bell(End::Reader, 77, 0), Some(1));
    let armed: Vec<u64> = ring.take_armed(End::Reader).iter().map(|(id, _)| *id).collect();
    assert_eq!(armed, [1, 0, 3, 4], "the next one has not armed its bell, and the others keep theirs");
}

#[test]
fn the_constants_are_the_documented_ones() {
    let doc = include_str!("../../../../docs/ring.md");
    for (name, value) in [
        ("CELL_BYTES", CELL_BYTES as u64),
        ("HEADER_BYTES", HEADER_BYTES as u64),
        ("INLINE_BYTES", INLINE_BYTES as u64),
        ("BELL_SLOTS", BELL_SLOTS as u64),
        ("SOFT_WRAP_CELLS", SOFT_WRAP_CELLS as u64),
        ("KIND_DATA", KIND_DATA),
        ("KIND_WRAP", KIND_WRAP),
        ("KIND_SWITCH", KIND_SWITCH),
        ("KIND_CLOSED", KIND_CLOSED),
        ("EPOCH_MASK", EPOCH_MASK as u64),
        ("PAGE_BYTES", crate::segment::PAGE_BYTES as u64),
        ("MIN_RING_BYTES", crate::segment::MIN_RING_BYTES as u64),
        ("MAX_RING_BYTES", crate::segment::MAX_RING_BYTES as u64),
        ("DEFAULT_RING_BYTES", crate::segment::DEFAULT_RING_BYTES as u64),
    ] {
        let row = format!("| `{name}` | {value} |");
        assert!(doc.contains(&row), "docs/ring.md does not say `{row}`");
    }
    assert_eq!(
        word(KIND_CLOSED, 0x0012_3456, 7),
        0x0412_3456_0000_0007,
        "kind in bits 56-63, epoch in 32-55, length below"
    );
}
