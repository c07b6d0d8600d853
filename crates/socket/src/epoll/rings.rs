//! What rang a set's bell, and what those who rang may want of it.

use super::member;
use super::sets::{Ref, TAG_WAKE};
use crate::fdtable::Handle;
use crate::{handover, process};
use core::sync::atomic::Ordering;
use ropeway_shm::bell::RINGS_AT_ONCE;

/// A bell's queue that held so many rings may have had no room for more (`net.unix.max_dgram_qlen` is 10 at least).
const FULL_BELL: usize = 10;
/// Rings taken in one go; this bound only stops a flood.
const MOST_RINGS: usize = 64;

/// Takes what rang since, and makes hot what it was for. True when there was anything.
pub fn take_rings(r: Ref) -> bool {
    let Some(bell) = r.bell() else { return false };
    let mut taken = 0;
    let mut everything = false;
    let mut tags = [0; RINGS_AT_ONCE];
    while taken < MOST_RINGS {
        let got = bell.take(&mut tags);
        for tag in &tags[..got] {
            // The upper half names the sleep, which is over now.
            match member::at(*tag as u32 as u64).filter(|_| *tag < TAG_WAKE) {
                Some((i, e)) => {
                    if process::table().sock(i).member_of[e].load(Ordering::Acquire) == r.name {
                        process::table().sock(i).members[e].idle.store(0, Ordering::Relaxed);
                        r.lists().hot.insert(i);
                        answer_recalls(r, Handle::of_record(i));
                    }
                }
                None => everything |= *tag != TAG_WAKE,
            }
        }
        taken += got;
        if got < RINGS_AT_ONCE {
            break;
        }
    }
    if everything || taken >= FULL_BELL {
        r.lists().hot.insert_all(&r.lists().promoted);
    }
    taken > 0
}

/// Does what the peer of a member asks for if it leaves Ropeway (handover, clause 4.1).
pub fn answer_recalls(r: Ref, h: Handle) {
    for (_, m) in member::entries(h.sock(), r.name) {
        handover::answer_recall(h, m.fd.load(Ordering::Acquire));
    }
}
