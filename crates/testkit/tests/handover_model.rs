//! The handover of docs/handover.md, in every interleaving.
//!
//! `handover_model/{sending,receiving}.rs` have the steps of each call, one access to something shared a step, with the
//! clause that asks for it; `machine.rs` says who may step when, `state.rs` what is shared, `pairing.rs` what comes before. Here are the scenarios: first that they hold with all the rules, then, for each rule, that
//! leaving it out is found. Memory is sequentially consistent here; `crates/shm/tests/loom_ring.rs` checks that the
//! ring's own words behave so.
#![forbid(unsafe_code)]

#[path = "handover_model/machine.rs"]
mod machine;
#[path = "handover_model/pairing.rs"]
mod pairing;
#[path = "handover_model/receiving.rs"]
mod receiving;
#[path = "handover_model/sending.rs"]
mod sending;
#[path = "handover_model/state.rs"]
mod state;

use machine::Scenario;
use state::{A, B, Op, Op::*, Pc, Record, Rules, State, TxPhase};
use stateright::{Checker, Model};
use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};

const SEND: Op = Send(1);

/// Something that a scenario must come to, or it does not test what it says.
type Sight = (&'static str, fn(&State) -> bool);

/// Walks through every state that can be reached. Panics with the way to it if one violates a property, or if there is
/// one from which nobody can come to an end, or if one of the `sights` is never seen.
fn holds(name: &str, sights: &[Sight], scenario: Scenario) {
    let checker = scenario.clone().checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    everybody_can_finish(&scenario, sights);
}

const PROMOTED_AGAIN: Sight =
    ("a used ring is promoted again", |s| s.dirs.iter().any(|d| d.rx.epoch > 1 && d.unread() > 0));
const SWITCH_UNDONE: Sight = ("a switch is undone at once", |s| {
    s.dirs.iter().any(|d| matches!(d.ring[..], [Record::Switch(_), Record::Closed]))
});
const WITHDRAWN: Sight =
    ("an offer is withdrawn", |s| s.dirs.iter().any(|d| d.ring == [Record::Closed] && d.offer > d.tx.epoch));
const BOTH_SIDES_OF_N: Sight = ("a read could span N", |s| {
    s.dirs.iter().any(|d| match d.ring.first() {
        Some(Record::Switch(n)) => d.rx.counted < *n && d.sent > *n,
        _ => false,
    })
});
const BOTH_ON_RINGS: Sight = ("both directions are on rings", |s| s.dirs.iter().all(|d| d.tx.phase == TxPhase::Ring));
const DEAD_HOLDER: Sight = ("a lock is held by the dead", |s| {
    let locks = s.dirs.iter().flat_map(|d| [d.tx.lock, d.rx.lock]).flatten();
    locks.into_iter().any(|holder| s.threads[holder].pc == Pc::Dead)
});
const RESET: Sight = ("a killed peer is told as a reset", |s| s.ends.iter().any(|e| e.reset && e.told_end));
const HALF_CLOSED: Sight =
    ("one direction goes on after the other has ended", |s| s.dirs[0].fin && !s.ends[A].gone && s.dirs[1].unread() > 0);
const BROUGHT_BACK: Sight = ("a rest is sent over TCP", |s| s.dirs[0].recalled > 0);
const BROUGHT_BACK_FOR_THE_DEAD: Sight = ("who asked for a rest is dead when it is there", |s| {
    let d = &s.dirs[0];
    d.recalled > 0 && d.rx.lock.is_some_and(|holder| s.threads[holder].pc == Pc::Dead)
});
const RELAYED: Sight = ("a rest is relayed", |s| s.threads.iter().any(|t| t.pc == Pc::Relay));

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// From every reachable state there is a way to one where all threads have ended: no dead end, and no circle without a
/// way out.
fn everybody_can_finish(scenario: &Scenario, sights: &[Sight]) {
    let (stuck, states) = ways_to_the_end(scenario, sights);
    assert_eq!(stuck, 0, "{stuck} of {states} states have no way to the end");
}

/// The number of states from which there is no way to the end, and of all.
fn ways_to_the_end(scenario: &Scenario, sights: &[Sight]) -> (usize, usize) {
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let (mut frontier, mut edges, mut finished) = (Vec::new(), Vec::new(), Vec::new());
    for state in scenario.init_states() {
        numbers.insert(fingerprint(&state), 0);
        frontier.push((0u32, state));
    }
    let mut unseen = sights.to_vec();
    while let Some((from, state)) = frontier.pop() {
        unseen.retain(|sight| !sight.1(&state));
        let mut actions = Vec::new();
        scenario.actions(&state, &mut actions);
        if state.threads.iter().all(|t| matches!(t.pc, Pc::Over | Pc::Dead)) {
            finished.push(from);
        }
        for action in actions {
            let Some(next) = scenario.next_state(&state, action) else { continue };
            let fresh = numbers.len() as u32;
            let to = match numbers.entry(fingerprint(&next)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(entry) => {
                    entry.insert(fresh);
                    frontier.push((fresh, next));
                    fresh
                }
            };
            edges.push((to, from));
        }
    }
    assert!(unseen.is_empty(), "never seen: {:?}", unseen.iter().map(|sight| sight.0).collect::<Vec<_>>());
    // Backwards from the ends.
    edges.sort_unstable();
    let mut reached = vec![false; numbers.len()];
    while let Some(state) = finished.pop() {
        if std::mem::replace(&mut reached[state as usize], true) {
            continue;
        }
        let first = edges.partition_point(|edge| edge.0 < state);
        finished.extend(edges[first..].iter().take_while(|edge| edge.0 == state).map(|edge| edge.1));
    }
    (reached.iter().filter(|r| !**r).count(), reached.len())
}

/// Without this rule, something goes wrong in this scenario: the model is not blind for it.
fn needs(rule: fn(&mut Rules) -> &mut bool, property: &'static str, mut scenario: Scenario) {
    *rule(&mut scenario.rules) = false;
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    let found = checker.discovery(property);
    assert!(found.is_some(), "nothing goes wrong without the rule");
    println!("without the rule, after {} steps", found.map_or(0, |path| path.into_actions().len()));
}

const ORDER: &str = "every byte at its place";
const HANG: &str = "nobody hangs";

fn one_way(whims: u8) -> Scenario {
    Scenario { whims, ..Scenario::new(&[(A, 0, &[SEND, SEND, SEND, SEND]), (B, 1, &[RecvAll])]) }
}

fn two_readers() -> Scenario {
    Scenario { whims: 2, ..Scenario::new(&[(A, 0, &[SEND, SEND, SEND]), (B, 1, &[RecvAll]), (B, 1, &[RecvAll])]) }
}

fn two_senders() -> Scenario {
    Scenario { whims: 2, ..Scenario::new(&[(A, 0, &[SEND, Send(2)]), (A, 0, &[SEND, SEND]), (B, 1, &[RecvAll])]) }
}

/// A sends and says that it has ended; B reads to the end, then answers.
fn half_close() -> Scenario {
    let a: &[Op] = &[SEND, SEND, ShutWr, RecvAll];
    let b: &[Op] = &[Recv, SEND, RecvAll, SEND, SEND];
    Scenario { whims: 1, ..Scenario::new(&[(A, 0, a), (B, 1, b)]) }
}

fn ping_pong() -> Scenario {
    let a: &[Op] = &[SEND, Recv, SEND, Recv, SEND];
    let b: &[Op] = &[Recv, SEND, Recv, SEND, RecvAll];
    Scenario { whims: 1, ..Scenario::new(&[(A, 0, a), (B, 1, b)]) }
}

/// Both ends send more than the rings hold before they read.
fn both_send_first() -> Scenario {
    let a: &[Op] = &[SEND, Recv, SEND, SEND, SEND, ShutWr, RecvAll];
    let b: &[Op] = &[Recv, SEND, SEND, SEND, SEND, ShutWr, RecvAll];
    Scenario { room: 2, ..Scenario::new(&[(A, 0, a), (B, 1, b)]) }
}

/// A process that writes forks in the middle; both go on.
fn forked_writer() -> Scenario {
    let (a, b): (&[Op], &[Op]) = (&[SEND, Fork(1), SEND], &[SEND, SEND]);
    Scenario { whims: 1, ..Scenario::new(&[(A, 0, a), (A, 2, b), (B, 1, &[RecvAll])]) }
}

fn forked_reader() -> Scenario {
    let a: &[Op] = &[SEND, SEND, SEND];
    Scenario { whims: 1, ..Scenario::new(&[(A, 0, a), (B, 1, &[Recv, Fork(2), RecvAll]), (B, 2, &[RecvAll])]) }
}

/// B hands its descriptor away in the middle; A goes on sending, then waits for an answer.
fn recall() -> Scenario {
    let a: &[Op] = &[SEND, SEND, SEND, SEND, RecvAll];
    Scenario { whims: 1, room: 3, ..Scenario::new(&[(A, 0, a), (B, 1, &[Recv, Leave(4)])]) }
}

/// B hands its descriptor away while another process reads on.
fn forked_recall() -> Scenario {
    let (a, b): (&[Op], &[Op]) = (&[SEND, SEND, SEND, SEND], &[Recv, Fork(2), Leave(0)]);
    Scenario { room: 3, ..Scenario::new(&[(A, 0, a), (B, 1, b), (B, 2, &[RecvAll])]) }
}

/// 2.1 - 2.4, 3.1 - 3.3, 6: attaching races with switching, demotion with publishing, a read could span N, a switch is
/// undone at once, a used ring is promoted again.
#[test]
fn one_writer_and_one_reader() {
    let sights = [PROMOTED_AGAIN, SWITCH_UNDONE, WITHDRAWN, BOTH_SIDES_OF_N];
    holds("one way, four demotions", &sights, one_way(4));
}

/// 7.1
#[test]
fn several_readers() {
    holds("two readers", &[PROMOTED_AGAIN, SWITCH_UNDONE, BOTH_SIDES_OF_N], two_readers());
}

/// 7.1
#[test]
fn several_senders() {
    holds("two senders", &[PROMOTED_AGAIN, SWITCH_UNDONE, BOTH_SIDES_OF_N], two_senders());
}

/// 5.2, 5.3
#[test]
fn both_directions_and_a_half_close() {
    holds("ping-pong", &[BOTH_ON_RINGS], ping_pong());
    holds("half-close", &[HALF_CLOSED], half_close());
}

/// 3.1, the reason for the patience of ten milliseconds
#[test]
fn both_ends_send_first() {
    holds("both send first", &[BOTH_ON_RINGS], both_send_first());
}

/// 5.1 - 5.5: either end killed at every step, also half closed.
#[test]
fn either_end_is_killed_at_every_step() {
    for mortal in [0, 1] {
        holds(&format!("one way, {mortal} killed"), &[DEAD_HOLDER], Scenario { mortal: vec![mortal], ..one_way(1) });
        holds(&format!("ping-pong, {mortal} killed"), &[RESET], Scenario { mortal: vec![mortal], ..ping_pong() });
        holds(
            &format!("half-close, {mortal} killed"),
            &[HALF_CLOSED],
            Scenario { mortal: vec![mortal], ..half_close() },
        );
    }
    holds("small ring, reader killed", &[DEAD_HOLDER], Scenario { mortal: vec![1], room: 2, ..one_way(0) });
}

/// 7.2, 7.3
#[test]
fn one_of_several_owners_is_killed_at_every_step() {
    holds("a writer forks", &[PROMOTED_AGAIN], forked_writer());
    holds("a reader forks", &[PROMOTED_AGAIN], forked_reader());
    for mortal in [0, 2] {
        holds(
            &format!("a writer forks, {mortal} killed"),
            &[DEAD_HOLDER],
            Scenario { mortal: vec![mortal], ..forked_writer() },
        );
    }
    for mortal in [1, 2] {
        holds(
            &format!("a reader forks, {mortal} killed"),
            &[DEAD_HOLDER],
            Scenario { mortal: vec![mortal], ..forked_reader() },
        );
    }
}

/// 4: also with a writer that is gone, does not answer, or has left already.
#[test]
fn a_reader_leaves_in_the_middle() {
    holds("recall", &[BROUGHT_BACK, RELAYED], recall());
    holds("recall, sender killed", &[BROUGHT_BACK, RELAYED], Scenario { mortal: vec![0], ..recall() });
}

/// 4, 7.2: it is killed while another process has the socket, too.
#[test]
fn one_of_several_owners_leaves_in_the_middle() {
    holds("recall beside a reader", &[BROUGHT_BACK], forked_recall());
    let killed = Scenario { mortal: vec![1], ..forked_recall() };
    holds("recall beside a reader, who asks is killed", &[BROUGHT_BACK_FOR_THE_DEAD], killed);
}

/// 1.3, 1.4
#[test]
fn either_half_of_a_pairing_is_lost() {
    let checker = pairing::Pairs { cas: true }.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!("pairing: {} states", checker.unique_state_count());
}

mod without {
    //! Each rule is there for a reason.
    use super::*;

    #[test]
    fn compare_and_swap_a_publish_is_overwritten() {
        needs(|r| &mut r.cas, ORDER, one_way(1));
    }

    #[test]
    fn compare_and_swap_one_end_of_a_pair_goes_alone() {
        let checker = pairing::Pairs { cas: false }.checker().spawn_bfs().join();
        assert!(checker.discovery("who is ready is not alone").is_some());
    }

    #[test]
    fn waiting_until_the_writer_has_left() {
        needs(|r| &mut r.left_first, ORDER, one_way(2));
    }

    #[test]
    fn readers_out_of_the_kernel_bytes_are_taken_past_the_switch() {
        needs(|r| &mut r.readers_out, ORDER, two_readers());
    }

    #[test]
    fn senders_out_of_the_kernel_bytes_overtake_the_switch() {
        needs(|r| &mut r.senders_out, ORDER, two_senders());
    }

    #[test]
    fn counting_under_the_lock_the_rest_of_a_call_overtakes() {
        needs(|r| &mut r.count_under_lock, ORDER, two_senders());
    }

    #[test]
    fn counting_under_the_lock_the_rest_of_a_read_spans_the_switch() {
        needs(|r| &mut r.count_under_lock, ORDER, two_readers());
    }

    #[test]
    fn peek_a_read_spans_the_switch() {
        needs(|r| &mut r.peek, ORDER, one_way(1));
    }

    #[test]
    fn patience_two_ends_that_send_first_wait_for_ever() {
        needs(|r| &mut r.patience, HANG, both_send_first());
    }

    #[test]
    fn compare_and_swap_a_recall_is_both_answered_and_withdrawn() {
        needs(|r| &mut r.recall_cas, ORDER, recall());
    }

    #[test]
    fn a_way_out_when_the_writer_dies_over_a_recall() {
        let mut scenario = Scenario { mortal: vec![0], ..recall() };
        scenario.rules.accepted_then_gone = false;
        assert!(ways_to_the_end(&scenario, &[]).0 > 0, "nobody waits for the dead");
    }

    #[test]
    fn settling_the_recall_of_the_dead_its_rest_comes_twice() {
        needs(|r| &mut r.settle_recall, ORDER, Scenario { mortal: vec![1], ..forked_recall() });
    }

    #[test]
    fn noting_a_recall_before_it_is_seen_nobody_settles_it() {
        needs(|r| &mut r.note_recall_first, ORDER, Scenario { mortal: vec![1], ..forked_recall() });
    }

    #[test]
    fn sending_the_rest_first() {
        needs(|r| &mut r.tail_first, ORDER, recall());
    }

    #[test]
    fn the_relay_a_rest_is_left_behind() {
        needs(|r| &mut r.relay, ORDER, recall());
    }

    #[test]
    fn draining_a_reset_hides_bytes_that_came() {
        let (a, b): (&[Op], &[Op]) = (&[SEND, Recv, SEND, SEND], &[Recv, SEND, SEND, RecvAll]);
        let scenario = Scenario { whims: 1, mortal: vec![0], ..Scenario::new(&[(A, 0, a), (B, 1, b)]) };
        needs(|r| &mut r.drain_before_reset, ORDER, scenario);
    }

    #[test]
    fn the_mark_of_a_good_end_a_killed_reader_is_taken_for_one() {
        needs(|r| &mut r.mark, ORDER, Scenario { mortal: vec![1], ..ping_pong() });
    }

    #[test]
    fn looking_for_unread_bytes_when_tcp_ends() {
        needs(|r| &mut r.fin_anywhere, ORDER, Scenario { mortal: vec![0], ..ping_pong() });
    }

    #[test]
    fn looking_after_the_end_bytes_in_the_ring_are_lost() {
        needs(|r| &mut r.look_after_fin, ORDER, one_way(0));
    }

    #[test]
    fn asking_the_queue_first_honest_bytes_are_called_foreign() {
        needs(|r| &mut r.queue_first, ORDER, two_readers());
    }

    #[test]
    fn the_shadow_in_the_wait() {
        needs(|r| &mut r.shadow_in_wait, HANG, one_way(0));
    }

    #[test]
    fn looking_after_arming() {
        needs(|r| &mut r.look_after_arming, HANG, Scenario { mortal: vec![], ..ping_pong() });
    }

    #[test]
    fn changing_the_phase_first_an_heir_writes_into_the_next_epoch() {
        needs(|r| &mut r.phase_first, ORDER, Scenario { mortal: vec![0, 2], ..forked_writer() });
    }

    #[test]
    fn recovery_of_a_dead_writers_switch() {
        needs(|r| &mut r.recovery, ORDER, Scenario { mortal: vec![0, 2], ..forked_writer() });
    }

    #[test]
    fn recovery_of_a_dead_readers_count() {
        needs(|r| &mut r.recovery, ORDER, Scenario { mortal: vec![1, 2], ..forked_reader() });
    }
}
