//! Pairs: what is mapped, and who may use it.

use crate::support::{promote, read, write};
use ropeway_shm::ring::{Consumer, Producer};
use ropeway_shm::segment::{MIN_RING_BYTES, Pair, Stamps, pair_bytes, valid_ring_bytes};
use ropeway_shm::sys;

/// A memfd of this many bytes with these seals.
fn memfd(bytes: usize, seals: i32) -> i32 {
    // SAFETY: a valid C string.
    let fd = unsafe {
        sys::memfd_create(c"test".as_ptr().cast(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).expect("a memfd") as i32
    };
    sys::ftruncate(fd, bytes as libc::off_t).expect("room");
    sys::fcntl(fd, libc::F_ADD_SEALS, seals as usize).expect("seals");
    fd
}

#[test]
fn what_one_side_writes_the_other_reads_both_ways() {
    let fd = memfd(pair_bytes(MIN_RING_BYTES), libc::F_SEAL_SHRINK);
    let (a, b) = (Pair::map(fd, MIN_RING_BYTES, 0).unwrap(), Pair::map(fd, MIN_RING_BYTES, 1).unwrap());
    sys::close(fd).unwrap();
    for (from, to, value) in [(a, b, 1u8), (b, a, 2)] {
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        let (outgoing, incoming) = (from.outgoing(), to.incoming());
        // Two mappings of one segment: the writer works through its own, the reader through the other.
        promote(incoming, &mut p, &mut c, 0);
        for _ in 0..1000 {
            assert_eq!(write(outgoing, &mut p, 1, &[value; 700]), Ok(700));
            assert_eq!(read(incoming, &mut c, 1000).0, [value; 700]);
        }
    }
    // SAFETY: neither pair is used afterwards.
    unsafe {
        a.unmap();
        b.unmap();
    }
}

#[test]
fn the_last_cell_of_both_rings_lies_inside_the_segment() {
    let fd = memfd(pair_bytes(MIN_RING_BYTES), libc::F_SEAL_SHRINK);
    let pair = Pair::map(fd, MIN_RING_BYTES, 0).unwrap();
    for ring in [pair.outgoing(), pair.incoming()] {
        let (mut p, mut c) = (Producer::default(), Consumer::default());
        promote(ring, &mut p, &mut c, 0);
        let all = vec![3; MIN_RING_BYTES as usize];
        let mut written = 0;
        while let Ok(n) = write(ring, &mut p, 1, &all) {
            written += n;
        }
        assert!(written >= MIN_RING_BYTES as usize - 128 * 2, "{written} bytes fill the ring to its last cell");
        assert!(read(ring, &mut c, usize::MAX).0.iter().all(|&b| b == 3));
    }
    // SAFETY: the pair is not used afterwards.
    unsafe { pair.unmap() };
    sys::close(fd).unwrap();
}

#[test]
fn a_segment_that_could_shrink_or_is_too_short_is_refused() {
    let bytes = pair_bytes(MIN_RING_BYTES);
    let refused = |fd: i32, ring_bytes, side| {
        let result = Pair::map(fd, ring_bytes, side).map(|pair| pair.side());
        sys::close(fd).unwrap();
        result
    };
    assert_eq!(refused(memfd(bytes, libc::F_SEAL_GROW), MIN_RING_BYTES, 0), Err(libc::EPERM));
    assert_eq!(refused(memfd(bytes - 1, libc::F_SEAL_SHRINK), MIN_RING_BYTES, 0), Err(libc::EINVAL));
    assert_eq!(refused(memfd(bytes, libc::F_SEAL_SHRINK), MIN_RING_BYTES, 2), Err(libc::EINVAL));
    assert_eq!(refused(memfd(bytes, libc::F_SEAL_SHRINK), MIN_RING_BYTES - 4096, 0), Err(libc::EINVAL));
    // Not a memfd at all: seals cannot be asked for.
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(Pair::map(std::os::fd::AsRawFd::as_raw_fd(&null), MIN_RING_BYTES, 0).is_err());
    assert!(!valid_ring_bytes(MIN_RING_BYTES + 64) && !valid_ring_bytes(u32::MAX) && !valid_ring_bytes(0));
}

#[test]
fn a_pair_counts_once_both_have_stamped_and_giving_up_is_final() {
    let fd = memfd(pair_bytes(MIN_RING_BYTES), libc::F_SEAL_SHRINK);
    let (a, b) = (Pair::map(fd, MIN_RING_BYTES, 0).unwrap(), Pair::map(fd, MIN_RING_BYTES, 1).unwrap());
    assert_eq!(a.stamps(), Stamps::Waiting);
    assert_eq!(a.stamp(), Stamps::Waiting);
    assert_eq!(a.stamp(), Stamps::Waiting, "stamping twice is stamping once");
    assert_eq!(b.stamp(), Stamps::Both);
    assert!(!a.give_up(), "too late");
    assert_eq!(a.stamps(), Stamps::Both);
    let other = memfd(pair_bytes(MIN_RING_BYTES), libc::F_SEAL_SHRINK);
    let (c, d) = (Pair::map(other, MIN_RING_BYTES, 0).unwrap(), Pair::map(other, MIN_RING_BYTES, 1).unwrap());
    assert_eq!(c.stamp(), Stamps::Waiting);
    assert!(c.give_up() && c.give_up());
    assert_eq!(d.stamp(), Stamps::Void, "who comes late finds it void");
    assert_eq!(c.stamps(), Stamps::Void);
    for pair in [a, b, c, d] {
        // SAFETY: no pair is used afterwards.
        unsafe { pair.unmap() };
    }
    sys::close(fd).unwrap();
    sys::close(other).unwrap();
}

#[test]
fn giving_up_and_the_last_stamp_never_both_win() {
    for _ in 0..200 {
        let fd = memfd(pair_bytes(MIN_RING_BYTES), libc::F_SEAL_SHRINK);
        let (a, b) = (Pair::map(fd, MIN_RING_BYTES, 0).unwrap(), Pair::map(fd, MIN_RING_BYTES, 1).unwrap());
        a.stamp();
        let address = b.address();
        let stamped = std::thread::spawn(move || {
            // SAFETY: `b` stays mapped until the thread has ended.
            unsafe { Pair::from_parts(address, MIN_RING_BYTES, 1) }.stamp()
        });
        let void = a.give_up();
        assert_eq!(stamped.join().unwrap() == Stamps::Both, !void);
        // SAFETY: neither pair is used afterwards.
        unsafe {
            a.unmap();
            b.unmap();
        }
        sys::close(fd).unwrap();
    }
}
