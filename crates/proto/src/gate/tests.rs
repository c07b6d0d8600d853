//! What the gate grants, to whom, and what it takes back.

use super::*;

pub(super) const FRAME: u64 = 1546;

pub(super) fn demand(outstanding: u64, backlog_packets: u64) -> Demand {
    Demand {
        outstanding_packets: outstanding,
        asked_packets: 0,
        backlog_bytes: backlog_packets * 1444,
        wanted_packets: backlog_packets.saturating_sub(outstanding),
        frame_bytes: FRAME,
        overhead_bytes: FRAME - 1444,
        round_trip_ns: 100_000,
        lease_ns: 10_000_000,
        left_unused: false,
        most_held: None,
        is_quick: false,
    }
}

fn gate(order: Order) -> Gate {
    Gate::new(&Config { order, ..Config::default() })
}

fn distribute(gate: &mut Gate, ns: u64) -> Vec<(u32, u64)> {
    let mut grants = Vec::new();
    gate.distribute(Time::from_nanos(ns), |index, packets| grants.push((index, packets)));
    assert!(gate.sums_are_true(), "{gate:?}");
    grants
}

#[test]
fn never_more_than_the_budget_is_granted_and_at_least_eight_hold() {
    let mut gate = gate(Order::Fifo);
    (0..32).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    let grants = distribute(&mut gate, 0);
    let holders: std::collections::BTreeSet<_> = grants.iter().map(|grant| grant.0).collect();
    assert!(holders.len() >= 8, "{grants:?}");
    assert!(gate.charged_bytes() <= gate.budget_bytes(), "{} of {}", gate.charged_bytes(), gate.budget_bytes());
    assert_eq!(distribute(&mut gate, 0), []);
}

#[test]
fn arrivals_release_what_grants_charged() {
    let mut gate = gate(Order::Fifo);
    gate.report(0, demand(0, 4), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(0, 4)]);
    gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
    assert_eq!(gate.charged_bytes(), 0);
}

#[test]
fn who_is_asked_for_more_than_its_share_is_charged_for_that() {
    let mut gate = gate(Order::Fifo);
    let asked = |packets| Demand { asked_packets: packets, ..demand(0, 1000) };
    gate.report(0, asked(20), Time::ZERO, Time::ZERO);
    assert_eq!(gate.charged_bytes(), 20 * FRAME);
    gate.report(1, demand(0, 1000), Time::ZERO, Time::ZERO);
    gate.report(0, asked(20), Time::ZERO, Time::ZERO);
    assert_eq!(gate.charged_bytes(), 20 * FRAME, "a share of two has room for that");
    gate.report(0, asked(16_000), Time::ZERO, Time::ZERO);
    let share = gate.budget_bytes() / 2 / FRAME;
    assert_eq!(gate.charged_bytes(), share * FRAME);
    assert!(distribute(&mut gate, 0).iter().any(|&(index, _)| index == 1));
    gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
    gate.forget(1);
    assert_eq!(gate.charged_bytes(), 0);
}

#[test]
fn all_who_were_asked_for_what_they_say_is_missing_leave_a_quarter_of_the_budget_to_others() {
    for (claimers, senders) in [(1, 1), (2, 3), (8, 9), (8, 100)] {
        let mut gate = gate(Order::Fifo);
        let claimer = Demand { asked_packets: 16_000, ..demand(0, 0) };
        gate.report(claimers, demand(0, 15), Time::ZERO, Time::ZERO);
        gate.set_surroundings(0, senders, FRAME);
        (0..claimers).for_each(|index| gate.report(index, claimer, Time::ZERO, Time::ZERO));
        let kept = gate.budget_bytes() / 4 + gate.starters_bytes;
        assert_eq!(gate.charged_bytes(), gate.budget_bytes() - kept, "{claimers}");
        let others: u64 = distribute(&mut gate, 0).iter().map(|grant| grant.1).sum();
        assert!(others >= 14, "{claimers} of {senders}: {others}");
    }
}

#[test]
fn what_a_sender_was_asked_for_is_part_of_its_share() {
    let granted = |asked_packets| {
        let mut gate = gate(Order::Fifo);
        for _ in 0..2 {
            gate.report(0, Demand { asked_packets, ..demand(0, 1000) }, Time::ZERO, Time::ZERO);
            gate.report(1, demand(2, 2), Time::ZERO, Time::ZERO);
        }
        distribute(&mut gate, 0).iter().map(|grant| grant.1).sum::<u64>()
    };
    // Of 31, in quanta of seven: what is beyond a half of that.
    assert_eq!([0, 15, 18, 19, 31, 100].map(granted), [28, 28, 28, 21, 14, 14]);
}

#[test]
fn few_that_are_missing_do_not_stop_a_sender_whose_share_is_a_turn() {
    let config = Config { window_packets: 4, ..Config::default() };
    let mut gate = Gate::new(&config);
    gate.report(0, Demand { asked_packets: 1, ..demand(0, 100) }, Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(0, 4)]);
    let mut gate = self::gate(Order::Fifo);
    (1..9).for_each(|index| gate.report(index, demand(7, 100), Time::ZERO, Time::ZERO));
    gate.report(0, Demand { asked_packets: 1, ..demand(0, 100) }, Time::ZERO, Time::ZERO);
    assert!(gate.choose().is_some_and(|(index, packets)| (index, packets) == (0, 7)));
}

#[test]
fn what_many_claim_to_have_sent_is_not_taken_to_fly_beyond_what_could_be_granted() {
    let mut gate = gate(Order::Fifo);
    let asked = |asked_packets| Demand { asked_packets, ..demand(0, 0) };
    gate.report(0, asked(4), Time::ZERO, Time::ZERO);
    gate.report(1, demand(7, 100), Time::ZERO, Time::ZERO);
    assert_eq!(gate.flying_bytes(), 11 * FRAME);
    (2..1000).for_each(|index| gate.report(index, asked(16), Time::ZERO, Time::ZERO));
    assert_eq!(gate.flying_bytes(), gate.budget_bytes() + 7 * FRAME);
}

#[test]
fn a_packet_is_left_beside_what_was_asked_for_however_small_the_budget() {
    for (allowed, frame_bytes) in [(FRAME, FRAME), (3 * FRAME, FRAME), (16 << 10, 9100)] {
        let mut gate = gate(Order::Fifo);
        gate.set_allowed(allowed);
        let wants = |asked_packets, wanted_packets| Demand {
            asked_packets,
            frame_bytes,
            backlog_bytes: 100 * frame_bytes,
            ..demand(0, wanted_packets)
        };
        gate.report(1, wants(0, 100), Time::ZERO, Time::ZERO);
        gate.set_surroundings(0, 2, frame_bytes);
        gate.report(0, wants(100, 0), Time::ZERO, Time::ZERO);
        assert!(distribute(&mut gate, 0).iter().any(|grant| grant.0 == 1), "{allowed} of {frame_bytes}");
    }
}

#[test]
fn what_was_asked_for_of_some_does_not_count_against_others_that_are_slow_or_left_a_grant_unused() {
    for kind in [Demand { left_unused: true, ..demand(0, 1) }, Demand { most_held: Some(2), ..demand(0, 100) }] {
        let mut gate = gate(Order::Fifo);
        let claims = Demand { asked_packets: 60, wanted_packets: 0, ..kind };
        (0..3).for_each(|index| gate.report(index, claims, Time::ZERO, Time::ZERO));
        gate.report(3, kind, Time::ZERO, Time::ZERO);
        gate.report(4, demand(0, 100), Time::ZERO, Time::ZERO);
        let grants = distribute(&mut gate, 0);
        assert!(grants.iter().any(|grant| grant.0 == 3), "{grants:?}");
    }
}

#[test]
fn what_was_asked_for_leaves_others_their_part_of_a_budget_that_is_cut_since() {
    let claimer = Demand { asked_packets: 16_000, ..demand(0, 0) };
    let charged = |cut: fn(&mut Gate)| {
        let mut gate = gate(Order::Fifo);
        (0..8).for_each(|index| gate.report(index, claimer, Time::ZERO, Time::ZERO));
        cut(&mut gate);
        gate.report(8, demand(0, 100), Time::ZERO, Time::ZERO);
        distribute(&mut gate, 0).len()
    };
    assert!(charged(|gate| gate.set_allowed(gate.budget_bytes() / 2)) > 0);
    assert!(charged(|gate| gate.set_surroundings(0, 100, FRAME)) > 0);
}

#[test]
fn what_was_asked_for_and_what_is_used_late_or_never_leave_others_a_turn_together() {
    let unused = Demand { left_unused: true, wanted_packets: 1, ..demand(0, 1000) };
    let slow = Demand { most_held: Some(2), ..demand(0, 1000) };
    for order in [Order::Fifo, Order::Fair, Order::Srpt] {
        for kinds in [[unused; 2], [slow; 2], [unused, slow], [slow, unused]] {
            for (senders, frame_bytes, wanted) in [
                (0, FRAME, 14),
                (0, FRAME, 1000),
                (1000, FRAME, 14),
                (1000, FRAME, 1000),
                (0, 9100, 2),
                (0, 9100, 1000),
            ] {
                others_have_turns_beside(order, kinds, senders, frame_bytes, wanted);
            }
        }
    }
}

/// Eight claim that much is missing, and senders of these kinds get some and do not use it: another one, which uses what it gets, wants so many packets again and again.
fn others_have_turns_beside(order: Order, kinds: [Demand; 2], senders: u64, frame_bytes: u64, wanted_packets: u64) {
    let long = |demand: Demand| Demand { frame_bytes, ..demand };
    let mut gate = gate(order);
    gate.set_surroundings(0, senders, frame_bytes);
    let claimer = long(Demand { asked_packets: 16_000, ..demand(0, 0) });
    (0..8).for_each(|index| gate.report(index, claimer, Time::ZERO, Time::ZERO));
    (8..40).for_each(|index| gate.report(index, long(kinds[index as usize % 2]), Time::ZERO, Time::ZERO));
    for round in 0..10 {
        let backlog_bytes = wanted_packets * frame_bytes;
        let wants = long(Demand { wanted_packets, backlog_bytes, ..demand(0, 0) });
        gate.report(99, wants, Time::ZERO, Time::ZERO);
        let grants = distribute(&mut gate, 0);
        let what = format!("{order:?}, {kinds:?}, {wanted_packets} of {frame_bytes}, {senders}: {grants:?} in {round}");
        assert!(grants.iter().any(|grant| grant.0 == 99), "{what}");
        assert!(round > 0 || grants.iter().any(|grant| grant.0 < 99), "{what}");
    }
}

#[test]
fn ends_that_do_not_fit_beside_what_others_leave_unused_go_on_in_turns() {
    let mut gate = gate(Order::Fifo);
    let unused = Demand { left_unused: true, wanted_packets: 0, ..demand(1, 1) };
    (0..15).for_each(|index| gate.report(index, unused, Time::ZERO, Time::ZERO));
    for _ in 0..2 {
        gate.report(15, demand(0, 40), Time::ZERO, Time::ZERO);
        gate.report(16, demand(0, 1000), Time::ZERO, Time::ZERO);
    }
    gate.set_surroundings(0, 20, FRAME);
    assert!(distribute(&mut gate, 0).iter().all(|grant| grant.1 == 7));
}

#[test]
fn who_is_slow_holds_little_and_takes_no_share_and_all_of_them_half_of_the_budget() {
    let mut gate = gate(Order::Fifo);
    let slow = |outstanding| Demand { most_held: Some(2), ..demand(outstanding, 1000) };
    gate.report(0, slow(0), Time::ZERO, Time::ZERO);
    let alone: u64 = distribute(&mut gate, 0).iter().map(|grant| grant.1).sum();
    assert!(alone > 40, "alone it is granted as others are: {alone}");
    gate.report(0, slow(1), Time::ZERO, Time::ZERO);
    (1..100).for_each(|index| gate.report(index, slow(0), Time::ZERO, Time::ZERO));
    let whole = gate.budget_bytes() / FRAME;
    gate.report(100, demand(0, 1000), Time::ZERO, Time::ZERO);
    let grants = distribute(&mut gate, 0);
    assert!(grants.iter().all(|&(index, packets)| index == 100 || packets <= 2), "{grants:?}");
    let fast: u64 = grants.iter().filter(|grant| grant.0 == 100).map(|grant| grant.1).sum();
    assert!(fast >= whole / 3, "{fast} packets of {whole}, beside what is kept for those who begin");
    assert!(gate.charged_bytes() <= gate.budget_bytes());
    // It has become fast, and is charged in full.
    let before = gate.charged_bytes();
    gate.report(0, demand(1, 1000), Time::ZERO, Time::ZERO);
    assert_eq!(gate.charged_bytes() - before, FRAME / 2);
    (0..101).for_each(|index| gate.forget(index));
    assert_eq!((gate.charged_bytes(), gate.sums.slow_bytes, gate.sums.sharing), (0, 0, 0));
}

#[test]
fn who_is_slow_gets_one_packet_at_a_time_where_it_may_have_no_more() {
    let mut gate = Gate::new(&Config { window_packets: 1, ..Config::default() });
    let slow = Demand { most_held: Some(2), ..demand(0, 1000) };
    (0..8).for_each(|index| gate.report(index, slow, Time::ZERO, Time::ZERO));
    assert_eq!(distribute(&mut gate, 0), (0..8).map(|index| (index, 1)).collect::<Vec<_>>());
}

#[test]
fn who_left_a_grant_unused_of_late_is_charged_in_full_and_all_of_them_have_half_of_the_budget_beside_others() {
    let mut gate = gate(Order::Fifo);
    gate.report(100, demand(1, 1), Time::ZERO, Time::ZERO);
    let on_probation =
        |most, outstanding| Demand { most_held: Some(most), is_quick: true, ..demand(outstanding, 1000) };
    gate.report(0, on_probation(4, 0), Time::ZERO, Time::ZERO);
    assert_eq!((distribute(&mut gate, 0), gate.charged_bytes()), (vec![(0, 4)], 5 * FRAME));
    // Where it may hold more than a quantum it gets one at a time, as others do.
    (0..100).for_each(|index| gate.report(index, on_probation(100, 0), Time::ZERO, Time::ZERO));
    let grants = distribute(&mut gate, 0);
    assert!(grants.iter().all(|grant| grant.1 == 7), "{grants:?}");
    assert_eq!(grants.len() as u64, gate.budget_bytes() / 2 / (7 * FRAME));
}

#[test]
fn all_who_use_nothing_of_their_grants_hold_a_quarter_of_the_budget_or_one_packet() {
    let mut gate = gate(Order::Fifo);
    let unused =
        |outstanding: u64| Demand { wanted_packets: 1 - outstanding, left_unused: true, ..demand(outstanding, 1000) };
    let report = |gate: &mut Gate, outstanding| {
        (0..100).for_each(|index| gate.report(index, unused(outstanding), Time::ZERO, Time::ZERO));
    };
    report(&mut gate, 0);
    let quarter = gate.budget_bytes() / 4 / FRAME;
    assert_eq!(distribute(&mut gate, 0), (0..quarter as u32).map(|index| (index, 1)).collect::<Vec<_>>());
    gate.report(100, demand(0, 1000), Time::ZERO, Time::ZERO);
    let others: u64 = distribute(&mut gate, 0).iter().map(|grant| grant.1).sum();
    assert!(others > gate.budget_bytes() / FRAME / 2, "{others} packets");
    // The first uses its packet, which lets the next one in.
    gate.report(100, demand(0, 0), Time::ZERO, Time::ZERO);
    gate.report(0, demand(0, 7), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(quarter as u32, 1), (0, 7)]);
    (0..101).for_each(|index| gate.forget(index));
    assert_eq!((gate.charged_bytes(), gate.sums.unused_bytes), (0, 0));
    gate.set_allowed(FRAME / 2);
    report(&mut gate, 0);
    assert_eq!(distribute(&mut gate, 0), [(0, 1)], "however little there is");
}

#[test]
fn who_left_its_grant_unused_waits_by_its_own_fault_where_there_is_any_budget() {
    let mut gate = gate(Order::Fifo);
    let unused = Demand { wanted_packets: 1, left_unused: true, ..demand(0, 1000) };
    (0..100).for_each(|index| gate.report(index, unused, Time::ZERO, Time::ZERO));
    distribute(&mut gate, 0);
    gate.report(100, demand(0, 1000), Time::ZERO, Time::ZERO);
    assert_eq!([99, 100].map(|index| gate.withholds(index)), [false, true]);
    gate.set_allowed(0);
    assert!(gate.withholds(99));
}

#[test]
fn short_backlogs_are_charged_by_their_bytes() {
    let mut gate = gate(Order::Fifo);
    for index in 0..300 {
        let backlog_bytes = 64;
        gate.report(index, Demand { wanted_packets: 1, backlog_bytes, ..demand(0, 0) }, Time::ZERO, Time::ZERO);
    }
    assert!(distribute(&mut gate, 0).len() > 200, "a short message does not cost a whole frame");
}

#[test]
fn no_more_flies_than_the_host_keeps() {
    let mut gate = gate(Order::Fifo);
    let whole = gate.budget_bytes();
    gate.add_receive_slots(1_000_000);
    assert_eq!(gate.budget_bytes(), whole);
    gate.add_receive_slots(40);
    assert!(gate.budget_bytes() < 40 * 1600 && gate.budget_bytes() > 30 * 1400 && gate.budget_bytes() < whole);
}

/// Ten times as fast as the line for which the port's buffer is told, and two milliseconds long.
const FAST_LINE: Line =
    Line { bytes_per_ms: 10 * PORT_LINE_BYTES_PER_MS, round_trip_ns: 2_000_000, latest_bytes: 10 << 20 };

#[test]
fn several_processes_do_not_take_a_port_for_larger_than_told_nor_count_the_pipe() {
    let mut gate = gate(Order::Fifo);
    let told = gate.whole_budget_bytes();
    gate.set_line(FAST_LINE);
    // Eight times the port at most, and what is on the way beyond an eighth of that.
    let whole = 8 * told + 20 * PORT_LINE_BYTES_PER_MS - (128 << 10);
    assert_eq!(gate.whole_budget_bytes(), whole);
    // Other processes of this host may not know how fast it is.
    gate.set_share(Some(u64::MAX));
    assert_eq!(gate.whole_budget_bytes(), told);
    gate.set_share(Some(told / 3));
    gate.set_line(Line { round_trip_ns: 3_000_000, ..FAST_LINE });
    assert_eq!((gate.whole_budget_bytes(), gate.budget_bytes(), gate.grantable_bytes()), (told, told / 3, told / 3));
    gate.set_line(FAST_LINE);
    gate.set_share(None);
    assert_eq!((gate.whole_budget_bytes(), gate.grantable_bytes()), (whole, whole));
}

#[test]
fn what_was_cut_is_bounded_by_a_limit_that_has_become_less() {
    let mut gate = gate(Order::Fifo);
    gate.observe(Time::from_nanos(1_000_000), 100_000, 0, 0, true);
    let cut = gate.budget_bytes();
    gate.set_line(FAST_LINE);
    assert_eq!(gate.budget_bytes(), cut, "more room does not end a cut");
    gate.add_receive_slots(20);
    assert!(gate.budget_bytes() < 20 * FRAME && gate.budget_bytes() < cut, "{}", gate.budget_bytes());
}

#[test]
fn srpt_serves_the_shortest_but_starves_nobody() {
    let mut gate = gate(Order::Srpt);
    let mut served = [0u64; 2];
    for round in 0..100 {
        // Nothing stays outstanding: what was granted has arrived, and both want more.
        gate.report(0, demand(0, 1_000_000), Time::ZERO, Time::ZERO);
        gate.report(1, demand(0, 1_000), Time::ZERO, Time::ZERO);
        for (index, packets) in distribute(&mut gate, round) {
            served[index as usize] += packets;
        }
    }
    assert!(served[1] >= 2 * served[0], "{served:?}");
    assert!(served[0] > 0, "{served:?}");
}

#[test]
fn under_srpt_a_quarter_of_the_budget_is_for_others_than_the_first() {
    let mut gate = gate(Order::Srpt);
    gate.report(0, demand(0, 2000), Time::ZERO, Time::ZERO);
    gate.report(1, demand(0, 1000), Time::ZERO, Time::ZERO);
    let mut served = [0u64; 2];
    distribute(&mut gate, 0).iter().for_each(|&(index, packets)| served[index as usize] += packets);
    assert_eq!(served, [21, 42], "of 63 packets, in quanta of seven");
}

#[test]
fn the_end_of_a_transfer_is_granted_at_once_if_it_is_short() {
    let mut gate = gate(Order::Fifo);
    for (index, backlog) in [(0, 14), (1, 15), (2, 1000), (3, 1000), (4, 1000)] {
        gate.report(index, demand(0, backlog), Time::ZERO, Time::ZERO);
    }
    assert_eq!(distribute(&mut gate, 0)[..3], [(0, 14), (1, 7), (2, 7)]);
    // Others begin, and each may hold a quantum; of the end it may be more.
    (3..8).for_each(|index| gate.report(index, demand(7, 1000), Time::ZERO, Time::ZERO));
    gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
    gate.report(2, demand(7, 1000), Time::ZERO, Time::ZERO);
    gate.report(1, demand(4, 12), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(1, 8)]);
    gate.configure(&Config { window_packets: 10, ..Config::default() });
    gate.report(1, demand(0, 14), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(1, 7)], "no more than `burst_length`: in parts");
}

#[test]
fn beside_few_who_asked_first_ends_first() {
    let grants_to = |demands: &[(u32, u64)]| {
        let mut gate = gate(Order::Fifo);
        demands.iter().for_each(|&(index, backlog)| gate.report(index, demand(0, backlog), Time::ZERO, Time::ZERO));
        distribute(&mut gate, 0)
    };
    // Three quarters of 63 packets, divided by the others.
    assert_eq!(grants_to(&[(0, 39), (1, 24)]), [(0, 39), (1, 24)]);
    assert_eq!(grants_to(&[(0, 23), (1, 23), (2, 23)])[..2], [(0, 23), (1, 23)]);
    assert_eq!(grants_to(&[(0, 24), (1, 24), (2, 24)])[..3], [(0, 7), (1, 7), (2, 7)]);
}

#[test]
fn an_end_that_does_not_fit_beside_a_suspect_goes_on_in_turns() {
    let mut gate = gate(Order::Fifo);
    gate.report(0, demand(40, 40), Time::ZERO, Time::ZERO);
    gate.report(1, demand(0, 46), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [], "what the other has arrives soon");
    let at = 5_000_000;
    gate.report(1, demand(0, 46), Time::from_nanos(at), Time::from_nanos(at));
    let grants = distribute(&mut gate, at);
    assert!(grants.len() > 1 && grants.iter().all(|grant| *grant == (1, 7)), "{grants:?}");
}

#[test]
fn an_end_that_does_not_fit_beside_what_others_were_asked_for_goes_on_in_turns() {
    let mut gate = gate(Order::Fifo);
    let claimer = Demand { asked_packets: 16_000, ..demand(0, 0) };
    (2..10).for_each(|index| gate.report(index, claimer, Time::ZERO, Time::ZERO));
    gate.report(0, demand(0, 40), Time::ZERO, Time::ZERO);
    gate.report(1, demand(0, 1000), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(0, 7), (1, 7)]);
}

#[test]
fn who_has_just_ended_finds_room_when_it_begins_again() {
    let held_alone_at = |ns: u64, drain_ns: u64| {
        let mut gate = gate(Order::Fifo);
        gate.set_surroundings(drain_ns, 2, FRAME);
        gate.report(0, demand(1, 1), Time::ZERO, Time::ZERO);
        gate.report(1, demand(0, 1000), Time::ZERO, Time::ZERO);
        gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
        gate.report(1, demand(0, 1000), Time::from_nanos(ns), Time::from_nanos(ns));
        gate.set_surroundings(drain_ns, 1, FRAME);
        distribute(&mut gate, ns).iter().map(|grant| grant.1).sum::<u64>()
    };
    assert_eq!(held_alone_at(1_000_000, 0), 28, "half of the budget, in whole quanta");
    assert_eq!(held_alone_at(1_000_001, 0), 63, "all of it");
    assert_eq!(held_alone_at(1_400_000, 400_000), 28, "it is woken when what others hold has arrived");
    assert_eq!(held_alone_at(1_400_001, 400_000), 63);
}

#[test]
fn the_end_is_a_packet_where_the_budget_is_one() {
    let mut gate = gate(Order::Fifo);
    gate.set_allowed(FRAME);
    gate.report(0, demand(0, 2), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(0, 1)]);
}

#[test]
fn a_budget_of_less_than_a_packet_lets_one_through_at_a_time() {
    let mut gate = gate(Order::Fifo);
    gate.set_allowed(FRAME - 1);
    (0..2).for_each(|index| gate.report(index, demand(0, 2), Time::ZERO, Time::ZERO));
    assert_eq!(distribute(&mut gate, 0), [(0, 1)]);
    gate.report(0, demand(0, 1), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(1, 1)]);
}

#[test]
fn a_budget_of_less_than_a_packet_lets_a_slow_one_through_beside_others() {
    let mut gate = gate(Order::Fifo);
    gate.set_allowed(FRAME - 1);
    let slow = Demand { most_held: Some(2), ..demand(0, 1000) };
    let mut got = [0; 2];
    for _ in 0..10 {
        gate.report(0, demand(0, 1000), Time::ZERO, Time::ZERO);
        gate.report(1, slow, Time::ZERO, Time::ZERO);
        distribute(&mut gate, 0).iter().for_each(|&(index, packets)| got[index as usize] += packets);
    }
    assert_eq!(got, [5, 5]);
}

#[test]
fn suspects_are_looked_for_among_those_to_whom_something_is_charged() {
    const COUNT: u32 = 16_384;
    let mut gate = gate(Order::Fifo);
    (0..COUNT).for_each(|index| gate.report(index, demand(1, 1), Time::ZERO, Time::ZERO));
    assert_eq!(gate.charged.len(), COUNT as usize);
    // In any order, and some by their end.
    for index in (0..COUNT).step_by(2).chain((0..COUNT).rev().step_by(2)) {
        match index % 3 {
            _ if [7, 9000].contains(&index) => {}
            0 => gate.forget(index),
            _ => gate.report(index, demand(0, 0), Time::ZERO, Time::ZERO),
        }
    }
    assert!(gate.sums_are_true());
    assert_eq!(gate.charged.iter().copied().collect::<std::collections::BTreeSet<_>>(), [7, 9000].into());
    let at = Time::from_nanos(5_000_000);
    gate.report(9000, demand(1, 1), at, at);
    assert!(gate.find_suspects(at) && gate.sums_are_true());
    assert_eq!((gate.sums.suspect_bytes, gate.senders[7].suspect), (FRAME, true), "the one that is silent");
    // What was cut grows by a packet of these, however many others there are.
    gate.observe(Time::from_nanos(6_000_000), 100_000, 0, 0, true);
    let cut = gate.budget_bytes();
    gate.observe(Time::from_nanos(7_000_000), 100_000, 1, 0, false);
    assert_eq!(gate.budget_bytes(), cut + FRAME);
}

#[test]
fn who_turns_out_suspect_when_it_is_its_turn_keeps_nobody_waiting() {
    let mut gate = gate(Order::Fifo);
    // All but two packets of the budget are charged to senders that fall silent, and the first wants more than a quarter of it leaves beside starters.
    gate.report(0, demand(1, 15), Time::ZERO, Time::ZERO);
    (1..4).for_each(|index| gate.report(index, demand(20, 20), Time::ZERO, Time::ZERO));
    gate.report(4, demand(0, 1), Time::ZERO, Time::ZERO);
    gate.set_surroundings(0, 11, FRAME);
    assert_eq!(distribute(&mut gate, 0), []);
    let at = 5_000_000;
    gate.report(4, demand(0, 1), Time::from_nanos(at), Time::from_nanos(at));
    assert_eq!(distribute(&mut gate, at), [(4, 1)]);
}

#[test]
fn a_silent_holder_becomes_suspect_and_a_quarter_is_granted_again() {
    let mut gate = gate(Order::Fifo);
    (0..8).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    distribute(&mut gate, 0);
    let at = 3_000_000;
    (9..12).for_each(|index| gate.report(index, demand(0, 1000), Time::from_nanos(at), Time::from_nanos(at)));
    assert!(distribute(&mut gate, at).len() > 1, "out of what was left, and out of the suspects' quarter");
    assert!(gate.counters().suspects >= 7);
    assert!(gate.charged_bytes() <= gate.budget_bytes() * 5 / 4);
}

#[test]
fn a_suspect_that_waited_for_more_gets_none_until_it_speaks() {
    let mut gate = gate(Order::Fifo);
    (0..9).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    distribute(&mut gate, 0);
    let at = 3_000_000;
    gate.report(0, demand(0, 1000), Time::from_nanos(at), Time::from_nanos(at));
    let grants = distribute(&mut gate, at);
    assert!(grants.iter().all(|grant| grant.0 == 0), "{grants:?}");
    for index in 1..9 {
        gate.report(index, demand(2, 1000), Time::from_nanos(at + 1000), Time::from_nanos(at + 1000));
    }
    assert_eq!(gate.wish().lease_ns, 10_000_000);
    (0..9).for_each(|index| gate.forget(index));
    assert_eq!((gate.charged_bytes(), gate.sums.suspect_bytes, gate.wish().bytes), (0, 0, 0));
}

#[test]
fn a_suspect_is_one_until_it_speaks_whatever_else_is_reported_of_it() {
    let mut gate = gate(Order::Fifo);
    (0..8).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    distribute(&mut gate, 0);
    let at = Time::from_nanos(3_000_000);
    (9..12).for_each(|index| gate.report(index, demand(0, 1000), at, at));
    distribute(&mut gate, at.as_nanos());
    let (held, suspect) = (gate.charged_bytes(), gate.sums.suspect_bytes);
    assert!(suspect > 0 && suspect < held, "{suspect} of {held}");
    // A timer of it has run, say.
    gate.report(0, demand(7, 1000), Time::ZERO, at);
    assert_eq!(gate.sums.suspect_bytes, suspect);
    assert!(gate.senders[0].place.is_none());
    gate.report(0, demand(7, 1000), at, at);
    assert_eq!(gate.sums.suspect_bytes, suspect - 7 * FRAME);
    assert!(gate.senders[0].place.is_some());
}

#[test]
fn a_suspect_with_less_than_its_share_gets_none_of_what_suspects_have() {
    let mut gate = gate(Order::Fifo);
    gate.report(0, demand(1, 1000), Time::ZERO, Time::ZERO);
    gate.report(1, demand(41, 1000), Time::ZERO, Time::ZERO);
    gate.report(2, demand(20, 20), Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), []);
    let at = 5_000_000;
    gate.report(1, demand(41, 1000), Time::from_nanos(at), Time::from_nanos(at));
    assert_eq!((distribute(&mut gate, at), gate.counters().suspects), (vec![], 2), "the other has its share");
    gate.report(0, demand(1, 1000), Time::from_nanos(at), Time::from_nanos(at));
    assert_eq!(distribute(&mut gate, at)[..1], [(0, 7)]);
}

#[test]
fn nobody_is_suspect_before_all_that_is_granted_can_have_arrived() {
    let mut gate = gate(Order::Fifo);
    (0..9).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    distribute(&mut gate, 0);
    gate.set_surroundings(5_000_000, 10, FRAME);
    gate.report(9, demand(0, 1000), Time::ZERO, Time::ZERO);
    let mut suspects_at = |ns| {
        distribute(&mut gate, ns);
        gate.counters().suspects
    };
    // Nor are they looked for all the time.
    assert_eq!([6_000_000, 6_249_999, 6_250_000].map(&mut suspects_at), [0, 0, 9]);
}

#[test]
fn what_is_allowed_limits_what_is_granted_and_who_waits_in_vain_is_known() {
    let mut gate = gate(Order::Fifo);
    gate.set_allowed(0);
    (0..9).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
    assert_eq!((distribute(&mut gate, 0), gate.is_short()), (vec![], true));
    assert_eq!(gate.wish(), Wish { bytes: 9 * 1000 * FRAME, packet_bytes: gate.frame_bytes, lease_ns: 10_000_000 });
    gate.set_allowed(5 * FRAME);
    assert_eq!(distribute(&mut gate, 0).len(), 5);
    assert!(gate.charged_bytes() <= 5 * FRAME && gate.is_short());
    // Whoever waits learns of what an association that ended had.
    assert!(!gate.has_freed());
    gate.forget(0);
    assert!(gate.has_freed() && !distribute(&mut gate, 0).is_empty() && !gate.has_freed());
    gate.configure(&Config { gate_mode: GateMode::Esp, ..Config::default() });
    assert!(!gate.is_waited_at() && !gate.is_short());
}

#[test]
fn who_joins_late_does_not_make_up_for_the_time_before() {
    let mut gate = gate(Order::Fair);
    for round in 0..1000 {
        gate.report(0, demand(0, 1000), Time::ZERO, Time::ZERO);
        distribute(&mut gate, round);
    }
    let mut served = [0u64; 2];
    for round in 1000..1100 {
        (0..2).for_each(|index| gate.report(index, demand(0, 1000), Time::ZERO, Time::ZERO));
        for (index, packets) in distribute(&mut gate, round) {
            served[index as usize] += packets;
        }
    }
    assert!(served[0].abs_diff(served[1]) * 10 < served[0], "{served:?}");
}

#[test]
fn who_joins_after_the_turn_of_a_slow_one_does_not_make_up_for_the_time_before() {
    let mut gate = gate(Order::Fair);
    let slow = Demand { most_held: Some(2), ..demand(0, 100_000) };
    let turn = |gate: &mut Gate, who: std::ops::Range<u32>| {
        who.for_each(|index| gate.report(index, demand(0, 100_000), Time::ZERO, Time::ZERO));
        let mut got = [0; 10];
        distribute(gate, 0).iter().for_each(|&(index, packets)| got[index as usize] += packets);
        got
    };
    gate.report(0, demand(20, 20), Time::ZERO, Time::ZERO);
    gate.report(9, slow, Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(9, 2)]);
    // It has not used them, and waits for more.
    (0..1000).for_each(|_| _ = turn(&mut gate, 0..1));
    // The other one has all that it wants.
    gate.report(0, demand(20, 20), Time::ZERO, Time::ZERO);
    gate.report(9, slow, Time::ZERO, Time::ZERO);
    assert_eq!(distribute(&mut gate, 0), [(9, 2)]);
    // Eight join.
    let mut got = [0; 10];
    for _ in 0..100 {
        turn(&mut gate, 0..9).iter().zip(&mut got).for_each(|(packets, got)| *got += packets);
    }
    let least = got[1..9].iter().min().unwrap() / 2;
    assert!(got[0] > least, "{got:?}");
}

#[test]
fn loss_and_marks_cut_the_budget_once_a_round_trip_and_it_grows_back() {
    let mut gate = gate(Order::Fifo);
    let full = gate.budget_bytes();
    gate.report(0, demand(0, 10), Time::ZERO, Time::ZERO);
    gate.observe(Time::from_nanos(1_000_000), 100_000, 1, 0, true);
    gate.observe(Time::from_nanos(1_050_000), 100_000, 1, 0, true);
    assert_eq!(gate.budget_bytes(), full * 7 / 10);
    for step in 0..60 {
        gate.observe(Time::from_nanos(2_000_000 + step * 100_000), 100_000, 0, 0, false);
    }
    assert_eq!(gate.budget_bytes(), full);
    gate.observe(Time::from_nanos(9_000_000), 100_000, 980, 20, false);
    assert_eq!(gate.budget_bytes(), full * 7 / 10, "2 % loss");
}

#[test]
fn no_cut_raises_the_budget() {
    let mut gate = gate(Order::Fifo);
    let mut before = gate.budget_bytes();
    // In a queue as deep as it goes, then without one, then with many who wait.
    for step in 1..40 {
        gate.note_overflow(if step < 20 { 1_000_000 } else { 0 }, 100_000);
        let waiting = if step < 30 { 1 } else { 60 };
        (0..waiting).for_each(|index| gate.report(index, demand(0, 10), Time::ZERO, Time::ZERO));
        gate.observe(Time::from_nanos(step * 1_000_000), 100_000, 100, 10, false);
        assert!(gate.budget_bytes() <= before, "{} after {before}", gate.budget_bytes());
        before = gate.budget_bytes();
    }
    assert_eq!((before, gate.counters().cuts), (8 << 10, 39));
}

#[test]
fn esp_holds_all_acknowledgments_but_one() {
    let mut gate = gate(Order::Fifo);
    let mut released = Vec::new();
    for index in [4, 5, 6, 4, 7] {
        gate.hold_ack(index, 4, |index| released.push(index));
    }
    assert_eq!(released, [4], "four active senders: three stay held");
    gate.release_acks(1, |index| released.push(index));
    assert_eq!(released, [4, 5, 6, 7]);
}

#[test]
fn who_is_gone_gets_no_acknowledgment_and_leaves_no_place_in_the_queue() {
    let mut gate = gate(Order::Fifo);
    let mut released = Vec::new();
    for index in [4, 5] {
        gate.hold_ack(index, 4, |index| released.push(index));
    }
    assert!(gate.withholds(4) && gate.withholds(5) && !gate.withholds(6));
    gate.forget(4);
    gate.release_acks(1, |index| released.push(index));
    assert_eq!(released, [5]);
    assert!(!gate.withholds(5));
    gate.report(6, demand(0, 1000), Time::ZERO, Time::ZERO);
    assert!(gate.withholds(6) && gate.is_waited_at());
    gate.forget(6);
    assert!(!gate.withholds(6) && !gate.is_waited_at() && gate.is_idle());
}

#[test]
fn what_comes_free_is_for_nobody_where_nothing_is_granted() {
    let esp = Config { gate_mode: GateMode::Esp, ..Config::default() };
    let asked = Demand { asked_packets: 2, ..demand(0, 0) };
    let mut gate = Gate::new(&esp);
    gate.report(3, asked, Time::ZERO, Time::ZERO);
    gate.forget(3);
    assert!(!gate.has_freed());
    // Nor when that changes before somebody else has it.
    gate.configure(&Config::default());
    gate.report(3, asked, Time::ZERO, Time::ZERO);
    gate.forget(3);
    assert!(gate.has_freed());
    gate.configure(&esp);
    assert!(!gate.has_freed());
}

#[test]
fn a_third_of_the_budget_is_kept_for_starters_and_not_more() {
    let mut gate = gate(Order::Fifo);
    let granted = |gate: &mut Gate, senders| {
        gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
        gate.report(0, demand(0, 1000), Time::ZERO, Time::ZERO);
        gate.set_surroundings(0, senders, FRAME);
        distribute(gate, 0).iter().map(|grant| grant.1).sum::<u64>()
    };
    // Of 63 packets that fit, in quanta of seven.
    assert_eq!([1, 1 + 14, 1 + 21, 1 + 1000].map(|senders| granted(&mut gate, senders)), [63, 49, 42, 42]);
}

#[test]
fn the_longest_lease_is_forgotten_when_nobody_wants_anything() {
    let mut gate = gate(Order::Fifo);
    let with_lease = |lease_ns| Demand { lease_ns, ..demand(0, 10) };
    gate.report(0, with_lease(20_000_000), Time::ZERO, Time::ZERO);
    gate.report(1, with_lease(10_000_000), Time::ZERO, Time::ZERO);
    gate.report(0, demand(0, 0), Time::ZERO, Time::ZERO);
    assert_eq!(gate.wish().lease_ns, 20_000_000, "it may use what it had so long");
    gate.report(1, demand(0, 0), Time::ZERO, Time::ZERO);
    gate.report(1, with_lease(10_000_000), Time::ZERO, Time::ZERO);
    assert_eq!(gate.wish().lease_ns, 10_000_000);
}

#[test]
fn cuts_leave_a_packet_for_each_who_waits_up_to_half_of_the_budget() {
    for (waiting, least) in [(20, 20 * FRAME), (60, (96 << 10) / 2)] {
        let mut gate = gate(Order::Fifo);
        (0..waiting).for_each(|index| gate.report(index, demand(0, 10), Time::ZERO, Time::ZERO));
        gate.note_overflow(1_000_000, PORT_LINE_BYTES_PER_MS);
        (1..20).for_each(|step| gate.observe(Time::from_nanos(step * 1_000_000), 100_000, 100, 10, false));
        assert_eq!(gate.budget_bytes(), least, "{waiting} wait");
    }
}

#[test]
fn cuts_leave_who_waits_a_packet_of_its_own_length_whatever_others_have() {
    let mut gate = gate(Order::Fifo);
    gate.report(99, Demand { frame_bytes: 9100, ..demand(1, 1) }, Time::ZERO, Time::ZERO);
    (0..10).for_each(|index| gate.report(index, demand(0, 10), Time::ZERO, Time::ZERO));
    // One of them learns that its path is narrower.
    gate.report(9, Demand { frame_bytes: 1000, ..demand(0, 10) }, Time::ZERO, Time::ZERO);
    gate.note_overflow(1_000_000, PORT_LINE_BYTES_PER_MS);
    (1..20).for_each(|step| gate.observe(Time::from_nanos(step * 1_000_000), 100_000, 100, 10, false));
    assert_eq!(gate.budget_bytes(), 9 * FRAME + 1000);
}
