//! What a ring costs between two threads on two cores, beside the floor: one cache line that goes back and forth.
//!
//! `cargo run --release -p ropeway-shm --example ring_speed`. The median of several rounds and the best of them (what a
//! quiet machine gives); no system call is measured.

#[cfg(not(loom))]
fn main() {
    measure::all();
}

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod measure {
    use ropeway_shm::ring::{Consumer, Look, Producer, Ring, RingHeader};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Instant;

    const ROUNDS: usize = 7;
    const ROUND_TRIPS: u64 = 200_000;
    const RECORDS: u64 = 4_000_000;
    const STREAM_BYTES: usize = 2 << 30;
    const CELLS: u32 = 8192;

    /// A ring on the heap, used by two threads.
    #[derive(Clone, Copy)]
    struct Shared(Ring);
    // SAFETY: the memory is leaked; rings are made for concurrent use, one reader and one writer at a time.
    unsafe impl Send for Shared {}

    fn ring() -> Shared {
        let header: &'static RingHeader = Box::leak(Box::default());
        let cells = vec![[0u64; 8]; CELLS as usize + 2].leak().as_mut_ptr().cast::<u8>();
        // SAFETY: leaked memory for CELLS + 1 cells from the next cache line on.
        Shared(unsafe { Ring::from_raw(header, cells.add(cells.align_offset(64)), CELLS) })
    }

    /// Prints the median and the best of several runs.
    fn report(what: &str, unit: &str, best: fn(f64, f64) -> f64, rounds: usize, run: impl Fn() -> f64) {
        let mut samples: Vec<f64> = (0..rounds).map(|_| run()).collect();
        samples.sort_by(f64::total_cmp);
        let best = samples.iter().copied().reduce(best).expect("at least one round");
        println!("{what:24} median {:8.1}   best {best:8.1} {unit}", samples[rounds / 2]);
    }

    /// Each end on its own core, so that the scheduler is not measured.
    fn pin(core: usize) {
        // SAFETY: a zeroed set is an empty set; both calls read or write nothing else.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }

    pub fn all() {
        pin(0);
        report("cache line", "ns one way", f64::min, ROUNDS, line);
        for bytes in [1, 56, 64, 1024] {
            report(&format!("ping-pong {bytes} bytes"), "ns one way", f64::min, ROUNDS, || ping_pong(bytes));
        }
        report("8-byte records", "million/s", f64::max, ROUNDS, records);
        for piece in [4096, 16 * 1024, 64 * 1024] {
            report(&format!("stream of {} KiB", piece / 1024), "Gbit/s", f64::max, 3, || stream(piece));
        }
    }

    fn line() -> f64 {
        #[repr(align(128))]
        struct Line(AtomicU64);
        static LINE: Line = Line(AtomicU64::new(0));
        LINE.0.store(0, Ordering::SeqCst);
        // Odd values are the other thread's answers to even ones: each waits for the other's store.
        let other = thread::spawn(|| {
            pin(1);
            for i in 0..ROUND_TRIPS {
                while LINE.0.load(Ordering::Acquire) != 2 * i + 1 {}
                LINE.0.store(2 * i + 2, Ordering::Release);
            }
        });
        let start = Instant::now();
        for i in 0..ROUND_TRIPS {
            LINE.0.store(2 * i + 1, Ordering::Release);
            while LINE.0.load(Ordering::Acquire) != 2 * i + 2 {}
        }
        let ns = start.elapsed().as_nanos() as f64;
        other.join().expect("the other thread");
        ns / ROUND_TRIPS as f64 / 2.0
    }

    fn send(ring: Ring, p: &mut Producer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if let Ok((to, room)) = ring.begin(p, 1, bytes.len().min(16 * 1024)) {
                let n = room.min(bytes.len());
                // SAFETY: `begin` gave `room` bytes.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
                ring.commit(p, n).expect("nobody closes");
                std::hint::black_box(ring.must_ring(ropeway_shm::ring::End::Reader));
                bytes = &bytes[n..];
            }
        }
    }

    fn receive(ring: Ring, c: &mut Consumer, into: &mut [u8]) -> usize {
        while !ring.pending(c) {}
        let mut got = 0;
        while got < into.len() {
            let Look::Data { ptr, len } = ring.look(c) else { break };
            let n = len.min(into.len() - got);
            // SAFETY: `look` showed `len` bytes.
            unsafe { core::ptr::copy_nonoverlapping(ptr, into[got..].as_mut_ptr(), n) };
            ring.consume(c, n);
            got += n;
        }
        ring.flush(c);
        got
    }

    fn receive_all(ring: Ring, c: &mut Consumer, into: &mut [u8]) {
        let mut got = 0;
        while got < into.len() {
            got += receive(ring, c, &mut into[got..]);
        }
    }

    fn ping_pong(bytes: usize) -> f64 {
        let (there, back) = (ring(), ring());
        let other = thread::spawn(move || {
            pin(1);
            let (there, back) = (there, back);
            let (mut p, mut c, mut buffer) = (Producer::default(), Consumer::default(), vec![0; bytes]);
            for _ in 0..ROUND_TRIPS {
                receive_all(there.0, &mut c, &mut buffer);
                send(back.0, &mut p, &buffer);
            }
        });
        let (mut p, mut c, mut buffer) = (Producer::default(), Consumer::default(), vec![0; bytes]);
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            send(there.0, &mut p, &buffer);
            receive_all(back.0, &mut c, &mut buffer);
        }
        let ns = start.elapsed().as_nanos() as f64;
        other.join().expect("the other thread");
        ns / ROUND_TRIPS as f64 / 2.0
    }

    fn records() -> f64 {
        let shared = ring();
        let other = thread::spawn(move || {
            pin(1);
            let shared = shared;
            let mut p = Producer::default();
            for i in 0..RECORDS {
                send(shared.0, &mut p, &i.to_ne_bytes());
            }
        });
        let (mut c, mut buffer, mut got) = (Consumer::default(), vec![0; 65536], 0);
        let start = Instant::now();
        while got < RECORDS as usize * 8 {
            got += receive(shared.0, &mut c, &mut buffer);
        }
        let us = start.elapsed().as_micros() as f64;
        other.join().expect("the other thread");
        RECORDS as f64 / us
    }

    fn stream(piece: usize) -> f64 {
        let shared = ring();
        let other = thread::spawn(move || {
            pin(1);
            let shared = shared;
            let (mut p, buffer) = (Producer::default(), vec![7; piece]);
            for _ in 0..STREAM_BYTES / piece {
                send(shared.0, &mut p, &buffer);
            }
        });
        let (mut c, mut buffer, mut got) = (Consumer::default(), vec![0; 128 * 1024], 0);
        let start = Instant::now();
        while got < STREAM_BYTES / piece * piece {
            got += receive(shared.0, &mut c, &mut buffer);
        }
        let ns = start.elapsed().as_nanos() as f64;
        other.join().expect("the other thread");
        got as f64 * 8.0 / ns
    }
}
