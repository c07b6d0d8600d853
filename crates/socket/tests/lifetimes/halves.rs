//! Halves of pairs.

use super::*;

/// Gives the end one half of a pair, of which the other is returned.
fn give_half(end: &End) -> Pair {
    let memory = new_pair();
    let other = Pair::map(memory, MIN_RING_BYTES, 1).expect("mapped");
    end.h.sock().pairing.store(PAIR_REGISTERED, Ordering::Release);
    promote::granted(end.h.token(), 0, MIN_RING_BYTES, memory);
    sys::close(memory).expect("close");
    assert_eq!(end.h.sock().pairing.load(Ordering::Acquire), PAIR_MAPPED);
    other
}

#[test]
fn a_half_that_another_thread_is_giving_back_is_not_looked_at() {
    let _alone = alone();
    let (a, b) = on_tcp();
    let s = a.h.sock();
    let other = give_half(&a);
    let page = handover::pair(s).expect("mapped").address() as *mut libc::c_void;
    // SAFETY: a page of the half, which nobody should touch.
    let protect = |protection| assert_eq!(unsafe { libc::mprotect(page, PAGE_BYTES, protection) }, 0);
    assert_eq!(b.send(b"12"), 2);
    rest();
    // In the place of that thread.
    assert!(s.lock.try_lock(thread::me()));
    protect(libc::PROT_NONE);
    assert_eq!(a.recv(&mut [0; 1]), 1);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    s.lock.unlock();
    assert!(other.give_up());
    assert_eq!(a.recv(&mut [0; 1]), 1);
    assert_eq!(s.pairing.load(Ordering::Acquire), PAIR_NONE, "nobody else was at it");
    // SAFETY: nobody else has seen this mapping.
    unsafe { other.unmap() };
}

#[test]
fn a_half_is_not_unmapped_while_a_shutdown_holds_the_direction() {
    let _alone = alone();
    let (a, b) = on_tcp();
    let s = a.h.sock();
    let other = give_half(&a);
    let half = handover::pair(s).expect("mapped");
    assert!(other.give_up());
    assert_eq!(b.send(b"1"), 1);
    assert!(s.tx.lock.try_lock(thread::me()));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| a.recv(&mut [0; 1]));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished());
        assert_eq!(half.stamps(), Stamps::Void, "it is still mapped");
        s.tx.lock.unlock();
        assert_eq!(reader.join().expect("the reader"), 1);
    });
    assert!(handover::pair(s).is_none());
    // SAFETY: nobody else has seen this mapping.
    unsafe { other.unmap() };
}

#[test]
fn a_half_that_comes_too_late_leaves_the_reason_of_a_pin() {
    let _alone = alone();
    let (a, _b) = on_tcp();
    let s = a.h.sock();
    s.pairing.store(PAIR_REGISTERED, Ordering::Release);
    handover::pin(s, Reason::ReplacesAnother);
    let memory = new_pair();
    promote::granted(a.h.token(), 0, MIN_RING_BYTES, memory);
    sys::close(memory).expect("close");
    assert_eq!(s.pairing.load(Ordering::Acquire), PAIR_NONE, "it is not taken");
    assert_eq!(s.reason.load(Ordering::Relaxed), Reason::ReplacesAnother.code() as u32);
}
