//! Claims on one amount that several processes divide among themselves without a lock: what all of them hold together never exceeds it.
//!
//! Each writes only its own word. Who wants more writes first and looks at the others' words then; if it is too much together it takes back what is. Of two
//! that do so at once at least one sees the other: both may go away with less than there was, never with more. Who was left with too little asks again.

use crate::atomic::{AtomicU64, Ordering, fence};

/// Raises `own` up to `wanted`, as far as the others leave it: `free` looks how much that is. It is not raised to less than `least`, which would be of no use. Returns
/// what is held from now on.
pub fn raise(own: &AtomicU64, wanted: u64, least: u64, free: impl FnOnce() -> u64) -> u64 {
    // Nobody else writes it.
    let before = own.load(Ordering::Relaxed);
    if wanted <= before {
        return before;
    }
    own.store(wanted, Ordering::Relaxed);
    // "Store, then look": of two of these fences the later one sees the store before the earlier one.
    fence(Ordering::SeqCst);
    let most = free();
    if wanted <= most {
        return wanted;
    }
    let held = if most < least { before } else { most.max(before) };
    lower(own, held);
    held
}

/// Holds less: `bytes` of what was held are left, and what was done with the rest is over.
pub fn lower(own: &AtomicU64, bytes: u64) {
    own.store(bytes, Ordering::Release);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const WHOLE: u64 = 8;

    /// Three that claim more together than there is, and let go of it; exhaustive within three forced preemptions.
    #[test]
    fn loom_what_is_held_together_never_exceeds_the_whole() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(|| {
            let held: Arc<[AtomicU64; 3]> = Arc::default();
            // Relaxed: what checks must not order anything.
            let used = Arc::new(AtomicU64::new(0));
            let claims = |own: usize, wishes: &[u64], held: &[AtomicU64; 3], used: &AtomicU64| {
                let mut bytes = 0;
                for &wanted in wishes {
                    let others =
                        || (0..3).filter(|&other| other != own).map(|other| held[other].load(Ordering::Acquire));
                    let more = raise(&held[own], wanted, 2, || WHOLE.saturating_sub(others().sum())) - bytes;
                    assert!(used.fetch_add(more, Ordering::Relaxed) + more <= WHOLE);
                    bytes += more;
                }
                used.fetch_sub(bytes, Ordering::Relaxed);
                lower(&held[own], 0);
            };
            let threads: Vec<_> = [(0, &[3, WHOLE][..]), (1, &[5])]
                .into_iter()
                .map(|(own, wishes): (usize, &'static [u64])| {
                    let (held, used) = (held.clone(), used.clone());
                    thread::spawn(move || claims(own, wishes, &held, &used))
                })
                .collect();
            claims(2, &[WHOLE - 1], &held, &used);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
