//! Members of epoll sets that are closed, changed or moved while another thread's wait looks at them.

use super::*;
use ropeway_socket::handover::lock_rx;
use support::{ONESHOT, OUT};

/// A wait for `ms` at most in another thread, which has looked at the flags of the members, and looks at the ring of `end` while `f`
/// runs. What it reports.
pub fn reported_while(set: &Set, ms: i32, end: Handle, f: impl FnOnce()) -> Vec<(u32, u64)> {
    let tid = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let held = lock_rx(end.sock());
        let waits = scope.spawn(|| {
            tid.store(sys::gettid().expect("gettid") as u32, Ordering::Release);
            set.wait(ms)
        });
        // For the lock: nothing else keeps it.
        until_asleep(&tid);
        f();
        drop(held);
        waits.join().expect("the waiter")
    })
}

#[test]
fn what_is_closed_while_it_is_looked_at_is_not_reported_without_its_data() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        for events in [IN, IN | OUT, IN | ET, IN | ONESHOT] {
            let set = Set::new();
            let (a, b) = warm_pair(&set, events, 7);
            set.wait(0);
            // The kernel names it.
            drop(a);
            rest();
            let reported = reported_while(&set, 0, b.h, || epoll::descriptor_closing(b.h, b.fd));
            assert_eq!(reported, [], "{events:x}");
        }
    });
}

#[test]
fn what_goes_to_another_set_while_it_is_looked_at_is_reported_there() {
    let _alone = alone();
    within(LIMIT, "two sets", || {
        for events in [IN, IN | ET, IN | ONESHOT] {
            let (set, next) = (Set::new(), Set::new());
            let (a, b) = warm_pair(&set, events, 7);
            set.wait(0);
            assert_eq!(a.send(b"x"), 1);
            let reported = reported_while(&set, 0, b.h, || {
                epoll::descriptor_closing(b.h, b.fd);
                next.add(&b, events, 8);
            });
            assert_eq!(reported, [], "{events:x}");
            assert_eq!(next.wait(1000), [(IN, 8)], "{events:x}");
        }
    });
}

#[test]
fn an_event_that_is_not_wanted_any_more_when_it_has_been_found_is_not_reported() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let set = Set::new();
        let (a, b) = warm_pair(&set, IN | ONESHOT, 7);
        set.wait(0);
        assert_eq!(a.send(b"x"), 1);
        let mut reported = reported_while(&set, 0, b.h, || set.modify(&b, OUT | ONESHOT, 8));
        reported.extend(set.wait(0));
        assert_eq!(reported, [(OUT, 8)]);
    });
}

#[test]
fn what_the_kernel_has_said_of_a_closed_connection_is_not_said_of_the_next_one() {
    let _alone = alone();
    within(LIMIT, "a set", || {
        let set = Set::new();
        let (a, b) = on_tcp();
        set.add(&b, IN | ONESHOT, 7);
        assert_eq!(a.send(b"x"), 1);
        rest();
        let (record, mut next) = (b.h.index(), None);
        let reported = reported_by(set.ep, 0, |kernel| {
            let answer = kernel();
            drop(a);
            drop(b);
            let (c, d) = on_tcp();
            assert_eq!(c.h.index(), record, "the one that was given back last");
            set.add(&c, IN | ONESHOT, 8);
            next = Some((c, d));
            answer
        });
        assert_eq!(reported, []);
        let (_c, d) = next.expect("the next one");
        assert_eq!(d.send(b"x"), 1);
        assert_eq!(set.wait(1000), [(IN, 8)]);
    });
}
