//! Clause 4: a reader that leaves Ropeway asks for its unread rest, a writer answers.

use super::{RxLock, lock_tx, pair};
use crate::fdtable::{self, Handle};
use crate::send::still_leads;
use crate::{bells, lifecycle, process, promote, shadow};
use core::sync::atomic::Ordering;
use ropeway_shm::ring::End;
use ropeway_shm::sys;
use ropeway_shm::table::{RX_TCP, Sock, TX_RING};

/// How long a call that takes sockets out of Ropeway's hands waits for peers to take unread rests back, in all and at least for
/// each: of many peers that do not answer, the first few use the time up.
const IN_ALL_NS: u64 = 1_000_000_000;
const FOR_EACH_NS: u64 = 50_000_000;
/// How much longer it waits for answers that have begun, in all and at least for each from when it was asked for. An answer is a few
/// hundred kilobytes to the kernel: a writer that needs longer has died over it, or never meant to give one.
const ANSWERS_NS: u64 = 5_000_000_000;
const ANSWER_NS: u64 = 250_000_000;
/// After this long, another process that has the socket, too, and wants to read from the ring is let.
const ALONE_NS: u64 = 20_000_000;

/// Until when a call that takes sockets out of Ropeway's hands waits for answers.
pub struct Patience {
    until: u64,
    answers_until: u64,
}

impl Patience {
    pub fn begin() -> Patience {
        let until = sys::monotonic_ns() + IN_ALL_NS;
        Patience { until, answers_until: until + ANSWERS_NS }
    }
}

/// The requests of a reader that a call under way looks at. One that makes another each time, and means none, shall not keep the
/// call from its time-out and from signals.
#[derive(Default)]
pub(crate) struct Recalls {
    asked: u32,
    looks: u32,
}

impl Recalls {
    const MOST_LOOKS: u32 = 16;

    /// Whether what the ring says is asked was not looked at. It is now.
    pub fn is_new(&mut self, asked: u32) -> bool {
        let is_another = self.is_another(asked);
        if is_another {
            (self.asked, self.looks) = (asked, self.looks + 1);
        }
        is_another
    }

    pub fn is_another(&self, asked: u32) -> bool {
        self.looks < Recalls::MOST_LOOKS && asked != self.asked
    }
}

/// Asks the writer to take the unread rest of our incoming ring back, and waits for it unless it has begun. This direction is on TCP
/// afterwards, with the rest or, where the writer began and did not end, reset. False when it will not: the rest stays in the ring.
///
/// The lock is held all the while: what another reader took meanwhile would come twice.
pub fn recall_and_wait(rx: &mut RxLock, h: Handle, fd: i32, patience: &Patience) -> bool {
    let Some(outgoing) = pair(rx.s).map(|pair| pair.outgoing()) else { return true };
    let Some((incoming, c)) = rx.ring() else { return true };
    h.sock().rx.recalling.store(c.epoch, Ordering::Release);
    incoming.recall(c);
    bells::ring_all(&incoming, End::Writer);
    bells::ring_all(&outgoing, End::Reader);
    let begun = sys::monotonic_ns();
    let times = Times { begun, until: patience.until.max(begun + FOR_EACH_NS), answers_until: patience.answers_until };
    let answer = wait_for_answer(rx, fd, &times);
    settle(rx, h, fd, answer)
}

/// What a reader that died had asked for: withdrawn if nobody has begun to answer, else waited for (clause 7.2). The caller has taken
/// the lock over, and may die here as well.
pub(super) fn settle_for_the_dead(rx: &mut RxLock) {
    let s = rx.s;
    let Some((incoming, c)) = rx.any_ring() else { return };
    // The word that was asked in is the peer's to write, too: what is not noted here is not believed.
    if s.rx.recalling.load(Ordering::Acquire) == 0 {
        return;
    }
    let h = Handle::of_record(process::table().index_of(s));
    let fd = shadow_of(h).unwrap_or(-1);
    // It may have died before it asked, or after it had withdrawn.
    let (stands, now) = (incoming.recall_stands(c.epoch), sys::monotonic_ns());
    let times = Times { begun: now, until: now, answers_until: now + ANSWERS_NS };
    let answer = if stands { wait_for_answer(rx, fd, &times) } else { Some(false) };
    settle(rx, h, fd, answer);
}

/// A descriptor that stands for the socket in the kernel, which may be one that is being closed.
fn shadow_of(h: Handle) -> Option<i32> {
    let cookie = h.sock().cookie.load(Ordering::Relaxed);
    let mut found = lifecycle::kept_fd(h);
    fdtable::for_each_in(0, u32::MAX, |fd, other| {
        if (other == h || other.is_mark_of(h)) && promote::cookie(fd) == Some(cookie) {
            found = Some(fd);
        }
    });
    found
}

/// Does what follows from an answer; each step may be done twice.
fn settle(rx: &mut RxLock, h: Handle, fd: i32, answer: Option<bool>) -> bool {
    let s = rx.s;
    match answer {
        Some(true) if s.rx.phase.load(Ordering::Relaxed) != RX_TCP => rx.closed(h),
        Some(_) => {}
        None => {
            // For whoever reads past Ropeway, who would take what `corrupt` leaves for the end of the stream.
            shadow::reset(fd);
            rx.corrupt(h, fd);
        }
    }
    // Last of all, for whoever takes the lock over if we die before.
    s.rx.recalling.store(0, Ordering::Release);
    answer != Some(false)
}

/// When the writer was asked, and until when it is waited for: to begin, and to end.
struct Times {
    begun: u64,
    until: u64,
    answers_until: u64,
}

/// Waits until the writer has sent what it is asked for: true. False when it will not, None when it began and did not end.
fn wait_for_answer(rx: &mut RxLock, fd: i32, times: &Times) -> Option<bool> {
    let &Times { begun, until, answers_until } = times;
    /// Between two looks.
    const NAP_NS: u64 = 200_000;
    let lock = &rx.s.rx.lock;
    let Some((incoming, c)) = rx.any_ring() else { return Some(true) };
    loop {
        // In this order: who has left has answered before, or refuses.
        let left = incoming.left() == c.epoch;
        if incoming.recalled() == c.epoch {
            return Some(true);
        }
        let gone = shadow::poll(fd, libc::POLLRDHUP) & shadow::END_EVENTS != 0;
        let now = sys::monotonic_ns();
        let in_the_way = lock.is_wanted() && now > begun + ALONE_NS;
        if (left || gone || in_the_way || now > until) && incoming.recalled() != c.epoch {
            if incoming.withdraw_recall(c.epoch) {
                return Some(false);
            }
            // It has begun.
            let answers_until = if gone { 0 } else { answers_until };
            if left || now > answers_until.max(begun + ANSWER_NS) {
                return None;
            }
        }
        sys::nap(NAP_NS);
    }
}

/// True when the reader of our outgoing ring asks for its unread rest. The caller keeps the rings mapped.
#[inline]
pub fn is_recalled(s: &Sock) -> bool {
    s.tx.phase.load(Ordering::Acquire) == TX_RING && pair(s).is_some_and(|pair| pair.outgoing().recall_asked() != 0)
}

/// Does what a leaving reader asked for, if it did. Called where our own side waits or returns from waiting, which keeps the rings
/// mapped.
pub fn service_recall(s: &Sock, h: Handle, fd: i32) {
    if is_recalled(s) {
        answer_recall(h, fd);
    }
}

/// The same where nothing keeps the rings mapped.
pub fn answer_recall(h: Handle, mut fd: i32) {
    let s = h.sock();
    if s.tx.phase.load(Ordering::Acquire) != TX_RING {
        return;
    }
    let mut tx = lock_tx(s);
    // Closed while we slept: the number may be another connection's.
    if still_leads(&mut fd, h)
        && let Some((ring, p)) = tx.ring()
        && ring.recall_asked() == p.epoch
    {
        tx.closed_by_reader(h, fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_looked_at_once_each_and_no_more_than_so_many() {
        let mut recalls = Recalls::default();
        assert!(!recalls.is_new(0), "nobody asks");
        assert!(recalls.is_another(1) && recalls.is_new(1));
        assert!(!recalls.is_another(1) && !recalls.is_new(1));
        let looks = 1 + (2..1000).filter(|asked| recalls.is_new(*asked)).count();
        assert_eq!(looks, Recalls::MOST_LOOKS as usize);
        assert!(!recalls.is_another(1000));
    }
}
