//! What a set shows to those who look at it elsewhere, in the kernel (`docs/readiness.md`, section 3).

use super::scan::{arm_all, is_ready};
use super::sets::{self, Ref};
use super::{member, rings};
use crate::ready::NAP_NS;
use crate::shadow;
use core::sync::atomic::Ordering;

/// To be called when a wait returns. If somebody else relies on the kernel's view of the set, everything is armed, and the
/// bell rings for what is left.
pub fn leave(r: Ref) {
    if r.set.nested.load(Ordering::SeqCst) == 0 {
        if !r.others_sleep() {
            return;
        }
        r.forget_dead_sleepers();
    }
    if hand_over(r, false) == Some(0) {
        r.ring();
    }
}

/// Arms everything. Some: nothing might ring, and who `sleeps` must look after so many nanoseconds; 0 when something is ready, or
/// could not be armed.
fn hand_over(r: Ref, sleeps: bool) -> Option<u64> {
    let (mut left, mut again_ns) = (false, None);
    let armed = arm_all(r, sleeps, |h| {
        left = left || member::entries(h.sock(), r.name).any(|(_, m)| is_ready(r, h, m, &mut again_ns));
    });
    if left || !armed.all { Some(0) } else { again_ns }
}

/// Brings the kernel's view of a set that something else watches into line with its rings: readable exactly if a member
/// is ready. Some: to be done again after so many nanoseconds, because nothing might ring.
pub fn settle(r: Ref) -> Option<u64> {
    /// Each round takes what rang in the meantime.
    const ROUNDS: u32 = 4;
    if r.set.rings.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let locked = r.lock();
    locked.ensure_bell();
    drop(locked);
    for _ in 0..ROUNDS {
        let again_ns = hand_over(r, true);
        if again_ns == Some(0) {
            let rings = r.bell().is_some_and(|b| shadow::poll(b.fd, libc::POLLIN) != 0);
            if !rings {
                r.ring();
            }
            return None;
        }
        if !rings::take_rings(r) {
            return again_ns;
        }
    }
    // What rang last is not armed yet.
    Some(NAP_NS)
}

/// Settles the sets inside this one that have rings; the answer is [`settle`]'s.
pub fn settle_inner(r: Ref) -> Option<u64> {
    let mut again_ns = None;
    if r.set.contains.load(Ordering::Relaxed) != 0 {
        sets::for_each_nested(|inner| {
            if inner.index != r.index {
                again_ns = again_ns.into_iter().chain(settle(inner)).min();
            }
        });
    }
    again_ns
}
