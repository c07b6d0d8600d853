//! Loss, reordering, damage and partitions: data arrives whole, in order and once, and as soon as the protocol promises.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::config::GateMode;
use ropeway_proto::{Config, Mode};
use ropeway_wire::{Packet, Type};

/// Packet types as they stand in the first byte.
const DATA: [u8; 2] = [0x17, 0x10];
const STATE: u8 = 0x1C;
/// The flag of the last packet of a busy period.
const TXF: u8 = 0x02;

/// A round trip of the default network: nothing queues.
const RTT: u64 = 40 * US;
/// 200 packets, with a key and without.
fn burst_bytes() -> u64 {
    (199.4 * payload_bytes()) as u64
}
/// Bits per second of a port, where there is one.
const LINE: u64 = 1_000_000_000;

pub fn is_data(bytes: &[u8]) -> bool {
    DATA.contains(&bytes[0])
}

/// Loses the first transmission of the data packets with these places in their order, and tells when each was lost.
fn lose(world: &mut World, places: &'static [usize]) -> Rc<RefCell<Vec<u64>>> {
    let (mut seen, lost) = (0, Rc::new(RefCell::new(Vec::new())));
    let out = Rc::clone(&lost);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from != 0 || !is_data(bytes) || bytes[1] & 0x20 != 0 {
            return true;
        }
        let is_lost = places.contains(&seen);
        seen += 1;
        if is_lost {
            out.borrow_mut().push(now);
        }
        !is_lost
    }));
    lost
}

/// A stream and messages, long and short ones, both ways.
fn all_kinds(world: &mut World) -> [Flow; 4] {
    let (client, server) = pair(world, Mode::Stream);
    let (other, third) = open(world, 1, 0, 8, Mode::Messages);
    [
        Flow::stream((0, client), (1, server), 500_000),
        Flow::stream((1, server), (0, client), 300_000),
        Flow::messages((1, other), (0, third), 5_000, 40),
        Flow::messages((0, third), (1, other), 100, 400),
    ]
}

in_every_way!(transfers_both_ways_survive_everything_at_once);
fn transfers_both_ways_survive_everything_at_once() {
    for seed in 0..10 {
        let net = Net {
            loss_ppm: seed % 5 * 50_000,
            duplication_ppm: 30_000,
            reordering_ppm: 50_000,
            corruption_ppm: 10_000,
            ..Net::default()
        };
        let mut world = World::new(2, net, &Config::default(), seed);
        let mut flows = all_kinds(&mut world);
        carry(&mut world, &mut flows, 60 * S);
        world.net.loss_ppm = 0;
        close_all_channels(&mut world, &flows.map(|flow| flow.from));
    }
}

in_every_way!(damage_never_passes_where_a_checksum_or_a_key_stands);
fn damage_never_passes_where_a_checksum_or_a_key_stands() {
    for seed in 0..10 {
        let net = Net { corruption_ppm: 100_000, reordering_ppm: 10_000, ..Net::default() };
        let mut world = World::new(2, net, &Config::default(), seed);
        let mut flows = all_kinds(&mut world);
        // Each byte is compared as it is read.
        carry(&mut world, &mut flows, 20 * S);
        assert!(world.damaged > 40, "{} packets of {}", world.damaged, world.packets);
        let refused: u64 = world.hosts.iter().flat_map(|host| host.counters().dropped_sealed).sum();
        assert_eq!(refused > 20, is_keyed(), "{refused} packets did not open");
        close_all_channels(&mut world, &flows.map(|flow| flow.from));
    }
}

in_every_way!(damage_that_nothing_has_caught_ends_connections_at_worst);
fn damage_that_nothing_has_caught_ends_connections_at_worst() {
    // Bytes may be wrong, so nothing is checked here but that both ends stay sane.
    for seed in 0..10 {
        let net = Net { corruption_ppm: 20_000, checksum: false, ..Net::default() };
        let mut world = World::new(2, net, &Config::default(), seed);
        world.hosts[1].listen(7, Mode::Stream, 8).unwrap();
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        let (mut server, mut bytes) = (None, vec![0; 10_000]);
        let end = world.now + 5 * S;
        world.run(end, |world| {
            let now = world.time();
            server = server.or_else(|| world.hosts[1].accept(7).ok());
            let _ = world.hosts[0].send(now, client, &[7; 1000]);
            if let Some(server) = server {
                while world.hosts[1].recv(server, &mut bytes).is_ok_and(|count| count.is_some()) {}
            }
            world.packets > 3_000
        });
        for (host, channel) in [(0, Some(client)), (1, server)] {
            let now = world.time();
            channel.into_iter().for_each(|channel| world.hosts[host].abort(now, channel));
        }
        world.net.corruption_ppm = 0;
        wait_for(&mut world, 700 * S, "all is given up or closed", |world| {
            world.hosts.iter().all(|host| host.sizes().1 == 0 && host.buffers_in_use() == (0, 0))
        });
    }
}

in_every_way!(a_packet_lost_in_the_middle_of_a_burst_is_there_again_within_a_round_trip);
fn a_packet_lost_in_the_middle_of_a_burst_is_there_again_within_a_round_trip() {
    for gate_mode in [GateMode::Grants, GateMode::Esp] {
        let mut world = World::new(2, Net::default(), &Config { gate_mode, ..Config::default() }, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 100_000, S);
        let lost = lose(&mut world, &[3]);
        let begin = world.now;
        stream(&mut world, (0, client), (1, server), 12 * 1444, S);
        let lost = lost.borrow()[0];
        // The packet behind it arrives half a round trip later and shows the gap; the request and the repetition take one more.
        assert_eq!(world.now - lost, RTT / 2 + RTT, "from {begin}, {gate_mode:?}");
        assert_eq!(world.hosts[0].counters().resent, 1);
        assert_eq!(world.hosts[1].counters().spurious_requests, 0);
    }
}

in_every_way!(several_losses_of_one_burst_are_repaired_in_the_same_round_trip);
fn several_losses_of_one_burst_are_repaired_in_the_same_round_trip() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    let lost = lose(&mut world, &[1, 2, 5, 7]);
    stream(&mut world, (0, client), (1, server), 12 * 1444, S);
    assert_eq!(world.now - lost.borrow()[0], RTT / 2 + RTT);
    assert_eq!(world.hosts[0].counters().resent, 4);
}

in_every_way!(the_last_packet_of_a_burst_is_asked_for_when_the_request_timer_runs_out);
fn the_last_packet_of_a_burst_is_asked_for_when_the_request_timer_runs_out() {
    for gate_mode in [GateMode::Grants, GateMode::Esp] {
        let config = Config { gate_mode, ..Config::default() };
        let mut world = World::new(2, Net::default(), &config, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        // Long enough that the sender works with grants, so that the receiver knows what it has to expect.
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        let states = world.hosts[0].counters().states_sent;
        // Of these packets most have the short header.
        let lost = lose(&mut world, &[199]);
        stream(&mut world, (0, client), (1, server), burst_bytes(), S);
        let after = world.now - lost.borrow()[0];
        // The timer is at its least here: smoothed + 4 x variation + what is granted at the rate of arrival is less. It runs from the arrival of the packet before.
        assert_eq!(after, RTT / 2 + config.request_min_ns + RTT, "{gate_mode:?}");
        assert_eq!(world.hosts[0].counters().states_sent, states, "the receiver asked, not the sender: {gate_mode:?}");
    }
}

in_every_way!(the_rest_of_a_lost_end_is_asked_for_when_its_first_packet_has_come_again);
fn the_rest_of_a_lost_end_is_asked_for_when_its_first_packet_has_come_again() {
    let config = Config::default();
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1_000_000, S);
    let lost = lose(&mut world, &[190, 191, 192, 193, 194, 195, 196, 197, 198, 199]);
    stream(&mut world, (0, client), (1, server), burst_bytes(), S);
    // What is asked for is one packet, as it may be only late, and a round trip later all the rest.
    assert_eq!(world.now - lost.borrow()[0], RTT / 2 + config.request_min_ns + 2 * RTT);
    assert_eq!((world.hosts[0].counters().resent, world.hosts[1].counters().requests_sent), (10, 2));
}

in_every_way!(the_rest_of_a_lost_end_is_asked_for_as_soon_as_the_link_takes_it);
fn the_rest_of_a_lost_end_is_asked_for_as_soon_as_the_link_takes_it() {
    let config = Config::default();
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 1_000_000, S);
    let _lost = lose(&mut world, &[190, 191, 192, 193, 194, 195, 196, 197, 198, 199]);
    let mut flows = [Flow::stream((0, client), (1, server), burst_bytes())];
    let before = world.hosts[1].counters().requests_sent;
    assert!(carry_until(&mut world, &mut flows, S, |world, _| world.hosts[1].counters().requests_sent > before));
    // The first packet comes again, and no request leaves until its timer has run out anew.
    world.full.insert((1, 0));
    carry_until(&mut world, &mut flows, 2 * config.request_min_ns, |_, _| false);
    assert_eq!(world.hosts[0].counters().resent, 1);
    world.full.clear();
    assert_eq!(carry(&mut world, &mut flows, S), RTT);
    assert_eq!((world.hosts[0].counters().resent, world.hosts[1].counters().requests_sent - before), (10, 2));
}

in_every_way!(the_last_packet_of_a_burst_is_asked_for_after_twice_the_time_when_its_repetition_is_lost);
fn the_last_packet_of_a_burst_is_asked_for_after_twice_the_time_when_its_repetition_is_lost() {
    let config = Config::default();
    for again in [1, 2] {
        let mut world = World::new(2, Net::default(), &config, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        let (mut seen, mut repeated, lost) = (0, 0, Rc::new(RefCell::new(Vec::new())));
        let out = Rc::clone(&lost);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from != 0 || !is_data(bytes) {
                return true;
            }
            let is_repetition = bytes[1] & 0x20 != 0;
            seen += u32::from(!is_repetition);
            repeated += u32::from(is_repetition);
            let is_lost = if is_repetition { repeated <= again } else { seen == 200 };
            if is_lost {
                out.borrow_mut().push(now);
            }
            !is_lost
        }));
        stream(&mut world, (0, client), (1, server), burst_bytes(), S);
        let lost = lost.borrow();
        assert_eq!(lost.len(), 1 + again as usize);
        // Each time is twice the one before, and counted from when the timer ran out; the packet before it was lost in the same moment as the first.
        let asked: Vec<u64> = lost[1..].iter().map(|at| at - lost[0]).collect();
        let times = |doublings: u32| config.request_min_ns * ((2 << doublings) - 1);
        let expected: Vec<u64> = (0..again).map(|doublings| RTT / 2 + times(doublings) + RTT / 2).collect();
        assert_eq!(asked, expected);
        assert_eq!(world.now - lost[0], RTT / 2 + times(again) + RTT);
    }
}

in_every_way!(far_away_the_request_timer_counts_the_round_trip_and_what_is_granted);
fn far_away_the_request_timer_counts_the_round_trip_and_what_is_granted() {
    // All of it is handed over at once and has credit, so that there is one busy period, and one last packet.
    let config = Config { send_buffer_bytes: 32 << 20, receive_buffer_bytes: 32 << 20, ..Config::default() };
    let mut world = World::new(2, Net { delay_ns: 2 * MS, rate: LINE, ..Net::default() }, &config, 1);
    let (client, _) = pair(&mut world, Mode::Stream);
    let told_at = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&told_at);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == 1 && Packet::parse(bytes).unwrap().header.kind == Type::Control {
            out.borrow_mut().push(now);
        }
        !(from == 0 && is_data(bytes) && bytes[1] & TXF != 0)
    }));
    let (now, total) = (world.time(), 20_000_000);
    assert_eq!(world.hosts[0].send(now, client, &vec![7; total]), Ok(total));
    world.hosts[0].flush(client);
    // What the receiver knows when the packet before the last one has arrived.
    let (mut known, mut packets) = ((0, 0, 0), 0);
    let end = world.now + S;
    world.run(end, |world| {
        let it = world.hosts[1].association_statistics(world.time()).next().unwrap();
        if it.counters.packets_received > packets {
            packets = it.counters.packets_received;
            known = (world.now, it.round_trip_ns + 4 * it.variation_ns, world.hosts[1].gate().charged_bytes());
        }
        it.counters.requests_sent > 0
    });
    let (arrived_at, patience_ns, charged_bytes) = known;
    let told_at = told_at.borrow();
    // The grant was told again by the acknowledgment, and the sender had that long to use it. The last word is the request.
    let [.., granted_at, asked_at] = told_at[..] else { panic!("{told_at:?}") };
    let drain_ns = asked_at - granted_at - patience_ns;
    let expected = charged_bytes as f64 * 8e9 / (LINE as f64 * payload_bytes() / 1518.0);
    println!("{known:?}, told again at {granted_at}, asked at {asked_at}: {drain_ns} of {expected}");
    assert!(patience_ns > 4 * MS && drain_ns > 10 * US && arrived_at < granted_at);
    assert!((drain_ns as f64 / expected - 1.0).abs() < 0.01, "{drain_ns} of {expected}");
}

in_every_way!(what_is_lost_at_the_end_counts_once_however_often);
fn what_is_lost_at_the_end_counts_once_however_often() {
    for (places, again) in [(&[199][..], 0), (&[190, 197, 198, 199], 0), (&[196, 197, 198, 199], 3)] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        // The first transmission of these, and the first `again` repetitions.
        let (mut seen, mut repeated) = (0, 0);
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            if from != 0 || !is_data(bytes) {
                return true;
            }
            if bytes[1] & 0x20 != 0 {
                repeated += 1;
                return repeated > again;
            }
            seen += 1;
            !places.contains(&(seen - 1))
        }));
        stream(&mut world, (0, client), (1, server), burst_bytes(), S);
        assert_eq!(world.hosts[1].counters().lost, places.len() as u64, "{places:?} and {again} again");
    }
}

in_every_way!(the_end_of_a_burst_is_asked_for_however_much_is_missing_before_it);
fn the_end_of_a_burst_is_asked_for_however_much_is_missing_before_it() {
    // A packet of this size has room for less than 40 requests: some are full just before that for the last one, and some long before.
    let config = Config { packet_bytes: 256, ..Config::default() };
    for gaps in 30..50 {
        let mut world = World::new(2, Net::default(), &config, 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        // From some packet on every other one is lost, and the last one; and all repetitions, until the first behind the newest that came is repeated.
        let (mut seen, mut newest, times) = (0, 0u32, Rc::new(Cell::new((0, None))));
        let out = Rc::clone(&times);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from != 0 || !is_data(bytes) {
                return true;
            }
            let number = Packet::parse(bytes).unwrap().header.number;
            if bytes[1] & 0x20 != 0 {
                let (lost_at, repeated_at) = out.get();
                out.set((lost_at, repeated_at.or((number == newest.wrapping_add(1)).then_some(now))));
                return out.get().1.is_some();
            }
            seen += 1;
            let comes = (seen < 290 - 2 * gaps || seen % 2 == 1) && bytes[1] & TXF == 0;
            if comes {
                newest = number;
                out.set((now, None));
            }
            comes
        }));
        stream(&mut world, (0, client), (1, server), 67_000, S);
        let (lost_at, repeated_at) = times.get();
        let after = repeated_at.map(|at| at - lost_at);
        assert_eq!(after, Some(RTT / 2 + config.request_min_ns + RTT / 2), "{gaps} gaps");
    }
}

in_every_way!(a_lost_message_of_one_packet_is_noticed_by_the_state_timer);
fn a_lost_message_of_one_packet_is_noticed_by_the_state_timer() {
    let config = Config::default();
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    let mut warm = [Flow::messages((0, client), (1, server), 10, 20)];
    carry(&mut world, &mut warm, S);
    pass(&mut world, 50 * MS);
    let lost = lose(&mut world, &[0]);
    let mut one = [Flow::messages((0, client), (1, server), 10, 1)];
    let taken = carry(&mut world, &mut one, S);
    assert_eq!(lost.borrow().len(), 1);
    // STATE after its least time, the request for it half a round trip later, the repetition another round trip.
    assert_eq!(taken, config.state_min_ns + RTT / 2 + RTT);
    assert_eq!(world.hosts[0].counters().states_sent, 1);
}

in_every_way!(a_cut_shorter_than_the_patience_costs_time_and_nothing_else);
fn a_cut_shorter_than_the_patience_costs_time_and_nothing_else() {
    for (seed, cut_ns) in [(1, 5 * MS), (2, 500 * MS), (3, 5 * S)] {
        let mut world = World::new(2, Net::default(), &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let mut flows =
            [Flow::stream((0, client), (1, server), 3_000_000), Flow::stream((1, server), (0, client), 1_000_000)];
        let half = |_: &World, flows: &[Flow]| flows[0].received > 500_000;
        assert!(carry_until(&mut world, &mut flows, S, half));
        world.cut.insert((0, 1));
        pass(&mut world, cut_ns);
        world.cut.clear();
        let taken = carry(&mut world, &mut flows, 2 * S);
        // Every timer is at most `timer_max`: that long after the cut the peers talk again.
        assert!(taken < 200 * MS, "{taken} ns after {cut_ns} of silence");
        close_all_channels(&mut world, &[(0, client), (1, server)]);
    }
}

in_every_way!(a_cut_in_one_direction_only_heals_as_well);
fn a_cut_in_one_direction_only_heals_as_well() {
    for (loses, seed) in [(0, 1), (1, 2)] {
        let mut world = World::new(2, Net::default(), &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let begin = world.now;
        world.filter = Some(Box::new(move |now, from, _, _| from != loses || now > begin + S));
        let taken = stream(&mut world, (0, client), (1, server), 200_000, 5 * S);
        assert!((S..S + 300 * MS).contains(&taken), "{taken}");
    }
}

in_every_way!(who_reorders_is_soon_not_asked_for_what_is_only_late);
fn who_reorders_is_soon_not_asked_for_what_is_only_late() {
    for seed in 0..10 {
        let net = Net { reordering_ppm: 20_000, ..Net::default() };
        let mut world = World::new(2, net, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        // Nothing is lost: what is asked for in vain, and whatever comes twice for that or another reason.
        let needless = |world: &World| {
            let counters = world.hosts[1].counters();
            (counters.spurious_requests, counters.dropped_duplicate, world.sent_by[0])
        };
        stream(&mut world, (0, client), (1, server), 3_000_000, 10 * S);
        let before = needless(&world);
        stream(&mut world, (0, client), (1, server), 20_000_000, 10 * S);
        let after = needless(&world);
        let (spurious, twice, packets) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        println!(
            "adapting: {before:?}; then {spurious} of {packets} packets were asked for in vain, {twice} came twice"
        );
        assert!(spurious * 1000 <= packets, "{spurious} of {packets}");
        assert!(twice * 1000 <= packets, "{twice} of {packets}");
    }
}

in_every_way!(nothing_is_resent_on_a_network_that_loses_nothing);
fn nothing_is_resent_on_a_network_that_loses_nothing() {
    for seed in 0..4 {
        let net = Net { rate: 1_000_000_000, duplication_ppm: 10_000, ..Net::default() };
        let mut world = World::new(2, net, &Config::default(), seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let mut flows =
            [Flow::stream((0, client), (1, server), 3_000_000), Flow::stream((1, server), (0, client), 3_000_000)];
        carry(&mut world, &mut flows, 2 * S);
        pass(&mut world, S);
        let resent: u64 = world.hosts.iter().map(|host| host.counters().resent).sum();
        assert_eq!(resent, 0);
    }
}

in_every_way!(an_idle_association_is_silent);
fn an_idle_association_is_silent() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    pass(&mut world, S);
    let before = world.packets;
    pass(&mut world, 50 * S);
    assert_eq!(world.packets, before);
}

in_every_way!(an_association_whose_last_packet_was_repeated_is_silent);
fn an_association_whose_last_packet_was_repeated_is_silent() {
    // The receiver asks for the last of many; the sender after the only one; or an acknowledgment of what goes the other way tells of it first.
    for (bytes, lost, back) in [(burst_bytes(), &[199][..], 0), (100, &[0], 0), (burst_bytes(), &[199], 600_000)] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 1_000_000, S);
        pass(&mut world, 50 * MS);
        lose(&mut world, lost);
        let mut flows = [Flow::stream((0, client), (1, server), bytes), Flow::stream((1, server), (0, client), back)];
        carry(&mut world, &mut flows, S);
        assert_eq!(world.hosts[0].counters().resent, 1, "{bytes} bytes, {back} back");
        pass(&mut world, S);
        let before = world.packets;
        pass(&mut world, 50 * S);
        assert_eq!(world.packets, before, "{bytes} bytes, {back} back");
    }
}

in_every_way!(numbers_go_round_at_32_and_at_64_bits);
fn numbers_go_round_at_32_and_at_64_bits() {
    for first in [u64::MAX - 300, (1 << 32) - 300, (7 << 32) - 1, u64::MAX, u64::MAX - 1, 0] {
        let config = Config { first_number: Some(first), ..Config::default() };
        let net = Net { loss_ppm: 50_000, reordering_ppm: 20_000, duplication_ppm: 20_000, ..Net::default() };
        let mut world = World::new(2, net, &config, first);
        let (client, server) = pair(&mut world, Mode::Stream);
        let mut flows =
            [Flow::stream((0, client), (1, server), 1_000_000), Flow::stream((1, server), (0, client), 1_000_000)];
        carry(&mut world, &mut flows, 20 * S);
        world.net.loss_ppm = 0;
        close_all_channels(&mut world, &[(0, client), (1, server)]);
    }
}

in_every_way!(a_state_is_answered_at_once_even_with_nothing_to_say);
fn a_state_is_answered_at_once_even_with_nothing_to_say() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    pass(&mut world, 100 * MS);
    // The acknowledgment is lost: the sender asks, and hears a round trip later that all is well.
    let (mut asked, answered) = (None, Rc::new(RefCell::new(None)));
    let out = Rc::clone(&answered);
    let begin = world.now;
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == 0 && bytes[0] == STATE {
            asked = Some(now);
        }
        if let Some(asked) = asked.filter(|_| from == 1) {
            out.borrow_mut().get_or_insert(now - asked);
        }
        from == 0 || asked.is_some()
    }));
    stream(&mut world, (0, client), (1, server), 100, S);
    wait_for(&mut world, S, "acknowledged", |world| world.hosts[0].readiness(client).unwrap().drained);
    assert_eq!(*answered.borrow(), Some(RTT / 2));
    assert!(world.now - begin < 5 * MS);
}

in_every_way!(a_request_that_crossed_what_it_asks_for_is_not_answered_with_a_copy);
fn a_request_that_crossed_what_it_asks_for_is_not_answered_with_a_copy() {
    const BYTES: usize = 600_000;
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    let now = world.time();
    assert_eq!(world.hosts[0].send(now, client, &vec![7; BYTES]), Ok(BYTES));
    // What it sent last is under way, and the answer to that will find it stopped.
    world.run(now.as_nanos() + 3 * RTT + RTT / 2, |_| false);
    let (sent, asked) = (world.hosts[0].counters(), world.hosts[1].counters().requests_sent);

    // The sender's process is not given a processor; what arrives for it waits in its socket.
    let kept = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&kept);
    let stopped_at = world.now;
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == 1 {
            out.borrow_mut().push((now, bytes.to_vec()));
        }
        from != 1
    }));
    world.stopped.insert(0);
    world.run(stopped_at + 4 * MS, |_| false);
    assert!(world.hosts[1].counters().requests_sent > asked, "what was granted is asked for when it does not come");

    // It takes the grant, and sends; then it comes to what was asked meanwhile.
    world.stopped.clear();
    world.filter = None;
    let (grants, requests): (Vec<_>, Vec<_>) = kept.take().into_iter().partition(|(at, _)| *at < stopped_at + 2 * RTT);
    assert!(!grants.is_empty() && !requests.is_empty(), "{} and {}", grants.len(), requests.len());
    for waiting in [grants, requests] {
        waiting.iter().for_each(|(_, bytes)| world.inject(1, 0, bytes));
        let end = world.now + 2 * US;
        world.run(end, |_| false);
    }
    let (mut arrived, mut buffer) = (0, vec![0; BYTES]);
    let end = world.now + S;
    let is_whole = world.run(end, |world| {
        while let Ok(Some(count)) = world.hosts[1].recv(server, &mut buffer) {
            assert!(buffer[..count].iter().all(|&byte| byte == 7));
            arrived += count;
        }
        arrived == BYTES
    });
    assert!(is_whole, "{arrived} bytes of {BYTES}");
    let after = world.hosts[0].counters();
    assert!(after.packets_sent > sent.packets_sent, "it did send");
    assert_eq!((after.resent, world.hosts[1].counters().dropped_duplicate), (sent.resent, 0), "nothing was lost");
}
