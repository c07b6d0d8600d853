//! Bells ring the one they are meant for, whatever else is stopped or full.

#![cfg(not(loom))]

use ropeway_shm::bell::{self, Bell, RINGS_AT_ONCE, TAG_ANY};
use ropeway_shm::sys;

fn sleeps(bell: &Bell) -> bool {
    let mut p = libc::pollfd { fd: bell.fd, events: libc::POLLIN, revents: 0 };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one valid entry and a valid time.
    unsafe { sys::ppoll(&mut p, 1, &mut now, core::ptr::null(), sys::SIGSET_BYTES) == Ok(0) }
}

/// Everything that has rung.
fn taken(bell: &Bell) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let mut tags = [0; RINGS_AT_ONCE];
        let got = bell.take(&mut tags);
        all.extend(&tags[..got]);
        if got < RINGS_AT_ONCE {
            return all;
        }
    }
}

#[test]
fn a_bell_gives_the_tag_it_was_rung_with() {
    let (a, b, from) = (Bell::create().unwrap(), Bell::create().unwrap(), bell::create_ringer().unwrap());
    assert_ne!(a.id, b.id);
    bell::ring(from, a.id, 17).unwrap();
    assert!(sleeps(&b), "the other bell was not meant");
    assert_eq!((taken(&a), taken(&b)), (vec![17], vec![]));
    let several: Vec<u64> = (1..=2 * RINGS_AT_ONCE as u64).collect();
    for tag in &several {
        bell::ring(from, b.id, *tag).unwrap();
    }
    assert_eq!(taken(&b), several);
    a.close();
    bell::ring(from, a.id, 18).expect("a bell whose owner has gone is no error");
    b.close();
    sys::close(from).unwrap();
    assert_eq!(bell::ring(from, b.id, 1), Err(libc::EBADF), "the ringer itself is");
}

#[test]
fn ringing_never_blocks_and_a_full_bell_still_rings() {
    let (a, from) = (Bell::create().unwrap(), bell::create_ringer().unwrap());
    for tag in 0..5000 {
        bell::ring(from, a.id, tag).unwrap();
    }
    assert_eq!(taken(&a)[0], 0);
    bell::ring(from, a.id, 7).unwrap();
    assert_eq!(taken(&a), [7], "once emptied, it takes rings again");
    a.close();
    sys::close(from).unwrap();
}

/// Rings that nobody takes are charged to the ringer's send buffer. Stopped peers must not use it up for the others.
#[test]
fn a_thousand_bells_that_nobody_answers_do_not_silence_the_next() {
    const STOPPED: usize = 700;
    let from = bell::create_ringer().unwrap();
    let stopped: Vec<Bell> = (0..STOPPED).map(|_| Bell::create().unwrap()).collect();
    for bell in &stopped {
        for _ in 0..20 {
            bell::ring(from, bell.id, 1).unwrap();
        }
    }
    let last = Bell::create().unwrap();
    bell::ring(from, last.id, 99).unwrap();
    assert_eq!(taken(&last), [99]);
    for bell in &stopped {
        assert_eq!(taken(bell).first(), Some(&1), "each of them rings");
        bell.close();
    }
    last.close();
    sys::close(from).unwrap();
}

#[test]
fn nonsense_sent_to_a_bell_is_a_ring_for_everything() {
    let (a, from) = (Bell::create().unwrap(), bell::create_ringer().unwrap());
    let (addr, len) = sys::abstract_address(format!("ropeway-bell/{:016x}", a.id).as_bytes());
    // SAFETY: three readable bytes and a valid address.
    unsafe { sys::sendto(from, b"abc".as_ptr(), 3, 0, (&raw const addr).cast(), len).unwrap() };
    assert_eq!(taken(&a), [TAG_ANY]);
    a.close();
    sys::close(from).unwrap();
}
