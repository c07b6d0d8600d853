//! A grant is a lease: who was stopped does not use an old one, and the receiver has it back by then (docs/protocol.md 4, 6).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode};
use ropeway_wire::Packet;

const RTX: u8 = 0x20;

/// Delays one way, and the leases that come of them: as it is set, or 8 round trips where that is longer.
const LEASES: [(u64, u64); 2] = [(20 * US, 10 * MS), (2 * MS, 32 * MS)];

/// Of a stream: the sending one, and the other.
type Ends = ((usize, ChannelId), (usize, ChannelId));

/// The ends of a stream from host 0 to host 1, or from who did not open to who did.
fn ends(world: &mut World, backwards: bool) -> Ends {
    let (client, server) = pair(world, Mode::Stream);
    in_order(client, server, backwards)
}

fn in_order(client: ChannelId, server: ChannelId, backwards: bool) -> Ends {
    if backwards { ((1, server), (0, client)) } else { ((0, client), (1, server)) }
}

/// A sender in the middle of a transfer that has just been granted more, and does not get to use it.
fn granted_and_stopped(net: Net, backwards: bool) -> (World, Flow) {
    let delay_ns = net.delay_ns;
    let mut world = World::new(2, net, &Config::default(), 1);
    let (from, to) = ends(&mut world, backwards);
    let mut flow = [Flow::stream(from, to, 3_000_000)];
    assert!(carry_until(&mut world, &mut flow, S, |_, flow| flow[0].received > 500_000));
    // What is said to it waits in its socket.
    let kept = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&kept);
    world.filter = Some(Box::new(move |_, host, _, bytes| {
        if host == to.0 {
            out.borrow_mut().push(bytes.to_vec());
        }
        host != to.0
    }));
    pass(&mut world, 3 * delay_ns);
    world.stopped.insert(from.0);
    let now = world.clock(from.0);
    for bytes in kept.borrow().iter() {
        world.hosts[from.0].handle_packet(now, &arrival(to.0, 0), false, bytes);
    }
    world.hosts[from.0].finish_batch(now);
    let [flow] = flow;
    (world, flow)
}

/// New data that leave a host that may hear nothing.
fn note_new_data(world: &mut World, host: usize) -> Rc<Cell<u64>> {
    let count = Rc::new(Cell::new(0));
    let out = Rc::clone(&count);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_new = from == host && [0x17, 0x10].contains(&bytes[0]) && bytes[1] & RTX == 0;
        out.set(out.get() + u64::from(is_new));
        from == host
    }));
    count
}

in_every_way!(a_grant_is_used_to_the_end_of_its_lease_and_not_after_it);
fn a_grant_is_used_to_the_end_of_its_lease_and_not_after_it() {
    for (delay_ns, lease_ns) in LEASES {
        for backwards in [false, true] {
            for (waits_ns, may_send) in [(0, true), (lease_ns - US, true), (lease_ns + US, false), (S, false)] {
                let (mut world, flow) = granted_and_stopped(Net { delay_ns, ..Net::default() }, backwards);
                let host = flow.from.0;
                pass(&mut world, waits_ns);
                world.stopped.clear();
                let sent = note_new_data(&mut world, host);
                pass(&mut world, 2 * S);
                let what =
                    format!("{} packets {waits_ns} ns after the grant, {delay_ns} ns away, {backwards}", sent.get());
                assert_eq!(sent.get() > 0, may_send, "{what}");
                // Without a new one it would wait for ever.
                world.filter = None;
                carry(&mut world, &mut [flow], S);
            }
        }
    }
}

in_every_way!(a_grant_that_lay_in_the_socket_of_a_stopped_sender_is_as_old_as_its_echo_says);
fn a_grant_that_lay_in_the_socket_of_a_stopped_sender_is_as_old_as_its_echo_says() {
    for (delay_ns, lease_ns) in LEASES {
        for backwards in [false, true] {
            let times = [(0, true), (lease_ns / 2, true), (6 * lease_ns, false), (250 * MS, false), (S, false)];
            for (waits_ns, may_send) in times {
                let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &Config::default(), 1);
                let (from, to) = ends(&mut world, backwards);
                let mut flow = [Flow::stream(from, to, 3_000_000)];
                assert!(carry_until(&mut world, &mut flow, S, |_, flow| flow[0].received > 500_000));
                world.stopped.insert(from.0);
                // What was under way is answered by grants.
                pass(&mut world, 3 * delay_ns + waits_ns);
                world.stopped.clear();
                let sent = note_new_data(&mut world, from.0);
                pass(&mut world, 10 * US);
                let what = format!("{} packets after {waits_ns} ns, {delay_ns} ns away, {backwards}", sent.get());
                // After 100 ms the receiver has no time to echo: what it says then tells of a first flight at most.
                let flight = if waits_ns > 100 * MS { u64::from(Config::default().first_flight_packets) } else { 0 };
                assert_eq!(sent.get() > flight, may_send, "{what}");
                world.filter = None;
                carry(&mut world, &mut flow, S);
            }
        }
    }
}

in_every_way!(when_a_stopped_receiver_goes_on_its_senders_do_at_once);
fn when_a_stopped_receiver_goes_on_its_senders_do_at_once() {
    // What the receiver says then echoes a time from before it was stopped, or when a sender asked last.
    for stopped_ns in (1..100).map(|ms| ms * MS) {
        for (backwards, rate) in [(false, 1_000_000_000), (true, 1_000_000_000), (false, 0), (true, 0)] {
            let mut world = World::new(2, Net { rate, ..Net::default() }, &Config::default(), 1);
            let (from, to) = ends(&mut world, backwards);
            let mut flow = [Flow::stream(from, to, 3_000_000)];
            assert!(carry_until(&mut world, &mut flow, S, |_, flow| flow[0].received > 500_000));
            world.stopped.insert(to.0);
            pass(&mut world, stopped_ns);
            world.stopped.clear();
            let (went_on_at, had) = (world.now, flow[0].received);
            // More than can have waited for it.
            assert!(carry_until(&mut world, &mut flow, S, |_, flow| flow[0].received > had + 250_000));
            let took_ns = world.now - went_on_at;
            assert!(took_ns < 4 * MS, "{took_ns} ns for 2 ms of the line, after {stopped_ns} ns, {backwards}, {rate}");
        }
    }
}

in_every_way!(who_is_stopped_before_a_batch_goes_on_by_a_new_look_at_the_clock);
fn who_is_stopped_before_a_batch_goes_on_by_a_new_look_at_the_clock() {
    for stopped_before in [0, 1, 2] {
        // On a slow line a batch is a few packets.
        let (mut world, flow) = granted_and_stopped(Net { rate: 1_000_000_000, ..Net::default() }, false);
        let now = world.clock(flow.from.0);
        let mut batches = Vec::new();
        let mut looks = 0;
        let mut clock = || {
            looks += 1;
            if looks > stopped_before { now.after(LEASES[0].1 + US) } else { now }
        };
        world.hosts[flow.from.0].transmit_by(now, &mut clock, &mut |_, _, packets| {
            batches.push(packets.len());
            packets.len().into()
        });
        assert_eq!(batches.len(), stopped_before, "{batches:?}");
    }
}

/// How long after it was told last an unused grant is taken back from a sender that is stopped in the middle of a transfer.
fn taken_back_after(world: &mut World, (from, to): Ends, delay_ns: u64) -> u64 {
    let mut flow = [Flow::stream(from, to, 3_000_000)];
    assert!(carry_until(world, &mut flow, S, |_, flow| flow[0].received > 500_000));
    world.stopped.insert(from.0);
    let told_at = Rc::new(Cell::new(0));
    let out = Rc::clone(&told_at);
    world.filter = Some(Box::new(move |now, host, _, bytes| {
        if host == to.0 && Packet::parse(bytes).unwrap().header.grant > 0 {
            out.set(now);
        }
        true
    }));
    // What flies arrives, and may be answered.
    pass(world, delay_ns);
    let granted = |world: &World| {
        let now = world.clock(to.0);
        world.hosts[to.0].statistics(now, to.1).unwrap().association.unwrap().granted_packets
    };
    assert!(granted(world) > 0 && world.hosts[to.0].gate().charged_bytes() > 0);
    wait_for(world, S, "it is taken back", |world| granted(world) == 0);
    let took_ns = world.now - told_at.get();
    assert_eq!(world.hosts[to.0].gate().charged_bytes(), 0, "all of it is for others again");
    let now = world.clock(to.0);
    let counters = world.hosts[to.0].statistics(now, to.1).unwrap().association.unwrap().counters;
    assert_eq!(counters.leases_expired, 1);
    world.stopped.clear();
    carry(world, &mut flow, S);
    took_ns
}

in_every_way!(the_receiver_has_an_unused_grant_back_two_leases_after_it_last_told_of_it);
fn the_receiver_has_an_unused_grant_back_two_leases_after_it_last_told_of_it() {
    for (delay_ns, lease_ns) in LEASES {
        for backwards in [false, true] {
            let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &Config::default(), 1);
            let ends = ends(&mut world, backwards);
            let took_ns = taken_back_after(&mut world, ends, delay_ns);
            assert_eq!(took_ns, 2 * lease_ns, "{delay_ns} ns away, {backwards}");
        }
    }
}

in_every_way!(who_is_stopped_until_the_clock_in_headers_has_turned_over_has_no_shorter_lease_for_it);
fn who_is_stopped_until_the_clock_in_headers_has_turned_over_has_no_shorter_lease_for_it() {
    let (delay_ns, lease_ns) = LEASES[1];
    for stopped_ns in (250..290).map(|ms| ms * MS) {
        for backwards in [false, true] {
            let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &Config::default(), 1);
            let ends = ends(&mut world, backwards);
            let mut flow = [Flow::stream(ends.0, ends.1, 1_000_000)];
            assert!(carry_until(&mut world, &mut flow, S, |_, flow| flow[0].received > 300_000));
            world.stopped.insert(ends.1.0);
            pass(&mut world, stopped_ns);
            world.stopped.clear();
            carry(&mut world, &mut flow, S);
            let took_ns = taken_back_after(&mut world, ends, delay_ns);
            assert_eq!(took_ns, 2 * lease_ns, "stopped for {stopped_ns} ns, {backwards}");
        }
    }
}

in_every_way!(who_is_stopped_while_an_answer_waits_for_it_has_no_longer_lease_for_it);
fn who_is_stopped_while_an_answer_waits_for_it_has_no_longer_lease_for_it() {
    for (delay_ns, lease_ns) in LEASES {
        for (host, backwards) in [(0, false), (0, true), (1, false), (1, true)] {
            let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &Config::default(), 1);
            world.hosts[1].listen(7, Mode::Stream, 1).unwrap();
            let client = try_connect(&mut world, 0, 1, 7).unwrap();
            // After SYN was sent, or after its answer with the parameters.
            pass(&mut world, delay_ns * if host == 0 { 1 } else { 7 } / 2);
            world.stopped.insert(host);
            pass(&mut world, 60 * MS);
            world.stopped.clear();
            let mut server = None;
            wait_for(&mut world, S, "it is open", |world| {
                server = world.hosts[1].accept(7).ok();
                server.is_some()
            });
            let ends = in_order(client, server.unwrap(), backwards);
            let took_ns = taken_back_after(&mut world, ends, delay_ns);
            assert_eq!(took_ns, 2 * lease_ns, "{delay_ns} ns away, {host} was stopped, {backwards}");
        }
    }
}

in_every_way!(what_a_sender_that_died_was_asked_for_holds_up_nobody_after_its_leases);
fn what_a_sender_that_died_was_asked_for_holds_up_nobody_after_its_leases() {
    for is_killed in [true, false] {
        let net = Net { rate: 1_000_000_000, ..Net::default() };
        let mut world = World::new(3, net, &Config::default(), 1);
        let (dead, first) = open(&mut world, 0, 2, 7, Mode::Stream);
        let (other, second) = open(&mut world, 1, 2, 7, Mode::Stream);
        let mut flows =
            [Flow::stream((0, dead), (2, first), 100_000_000), Flow::stream((1, other), (2, second), 100_000_000)];
        assert!(carry_until(&mut world, &mut flows[..1], S, |_, flow| flow[0].received > 2_000_000));
        // All that it sends is lost, but not its word of that.
        world.filter = Some(Box::new(|_, from, _, bytes| from != 0 || ![0x17, 0x10].contains(&bytes[0])));
        let missing = |world: &World| {
            let now = world.clock(2);
            world.hosts[2].statistics(now, first).unwrap().association.unwrap().missing_packets
        };
        assert!(carry_until(&mut world, &mut flows[..1], S, |world, _| missing(world) > 40));
        world.filter = None;
        pass(&mut world, 10 * US);
        if is_killed {
            world.cut.insert((0, 2));
        }
        world.stopped.insert(0);
        // Who asks it tells it of its grants as well: the last time that less than two leases, and what all grants take, have passed since is after some 130 ms.
        carry_until(&mut world, &mut flows, 160 * MS, |_, _| false);
        let charged = world.hosts[2].gate().charged_bytes();
        assert!(missing(&world) > 40, "{} are missing", missing(&world));
        let before = flows[1].received;
        carry_until(&mut world, &mut flows, 100 * MS, |_, _| false);
        let line = payload_bytes() / (1472.0 + 46.0) * 12_500_000.0;
        let share = (flows[1].received - before) as f64 / line;
        println!("{} missing, {charged} bytes charged, {share:.3} of the line", missing(&world));
        assert!(share > 0.97, "{share:.3} of the line");
        if !is_killed {
            world.stopped.clear();
            assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received > 8_000_000), "it goes on");
        }
    }
}

/// The first `dead` of so many that have channels to host 0 send to it, and are killed at once with the grants that they have.
fn killed(senders: usize, dead: usize) -> (World, Vec<Flow>) {
    let net = Net { rate: 1_000_000_000, ..Net::default() };
    let mut world = World::new(senders + 1, net, &Config::default(), 1);
    let mut flows: Vec<_> = (1..=senders)
        .map(|from| {
            let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
            Flow::stream((from, client), (0, server), if from <= dead { 1 << 30 } else { 0 })
        })
        .collect();
    let have_some = |_: &World, flows: &[Flow]| flows[..dead].iter().all(|flow| flow.received > 300_000);
    assert!(carry_until(&mut world, &mut flows, S, have_some));
    (1..=dead).for_each(|from| {
        world.cut.insert((0, from));
        world.stopped.insert(from);
    });
    pass(&mut world, MS);
    assert!(world.hosts[0].gate().charged_bytes() > 60_000, "{}", world.hosts[0].gate().charged_bytes());
    (world, flows)
}

in_every_way!(who_is_asked_again_and_again_is_not_told_of_its_grant_for_ever);
fn who_is_asked_again_and_again_is_not_told_of_its_grant_for_ever() {
    // By the timers, which end at `timer_max`, a sender is asked before two leases of such a line are over.
    for delay_ns in [20 * US, 2 * MS, 20 * MS] {
        let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        let mut flow = [Flow::stream((0, client), (1, server), 1 << 30)];
        let is_granted = |world: &World| {
            let now = world.clock(1);
            world.hosts[1].statistics(now, server).unwrap().association.unwrap().granted_packets > 0
        };
        assert!(
            carry_until(&mut world, &mut flow, 5 * S, |world, flow| flow[0].received > 500_000 && is_granted(world))
        );
        world.cut.insert((0, 1));
        let lease_ns = (10 * MS).max(16 * delay_ns);
        let took_ns = wait_for(&mut world, 10 * S, "it is taken back", |world| !is_granted(world));
        println!("{} us away: after {} ms", delay_ns / US, took_ns / MS);
        assert!(took_ns < 7 * lease_ns, "{delay_ns} ns away: {took_ns}");
    }
}

in_every_way!(what_all_senders_had_that_were_killed_at_once_is_taken_back_after_a_while_and_soon_when_others_come);
fn what_all_senders_had_that_were_killed_at_once_is_taken_back_after_a_while_and_soon_when_others_come() {
    for (dead, speaks_ms) in [(2, 0), (8, 0), (2, 3), (8, 3), (2, 15), (8, 15), (2, 60), (8, 60)] {
        let (mut world, mut flows) = killed(dead + 1, dead);
        let begin = world.now;
        // What another one says now and then tells nothing but that the port moves.
        while world.hosts[0].gate().charged_bytes() > 0 && world.now < begin + S {
            let live = &mut flows[dead..];
            live[0].total += u64::from(speaks_ms > 0);
            carry_until(&mut world, live, speaks_ms.max(1) * MS, |_, _| false);
        }
        let took_ns = world.now - begin;
        println!("{dead} killed, one byte each {speaks_ms} ms: taken back after {} ms", took_ns / MS);
        assert!(took_ns < 400 * MS, "{dead} killed, one byte each {speaks_ms} ms: {took_ns}");
    }
    for begins_ms in [0, 15, 60, 200] {
        let (mut world, mut flows) = killed(9, 8);
        pass(&mut world, begins_ms * MS);
        flows[8].total = 1 << 30;
        carry_until(&mut world, &mut flows[8..], 120 * MS, |_, _| false);
        assert!(world.hosts[0].gate().charged_bytes() <= world.hosts[0].gate().budget_bytes());
        let before = flows[8].received;
        carry_until(&mut world, &mut flows[8..], 100 * MS, |_, _| false);
        let share = (flows[8].received - before) as f64 / (payload_bytes() / (1472.0 + 46.0) * 12_500_000.0);
        println!("{begins_ms} ms after 8 were killed: in the first 120 ms {before} bytes, then {share:.3} of the line");
        assert!(share > 0.97, "{begins_ms} ms: {share}");
    }
}

/// A sender begins and dies when it has a grant, while those packets that come are another one's, 20 ms apart: a slow line, for all that the receiver sees. After how long the grant is taken back,
/// if a third one sends as fast as it can from `begins_ns` on.
fn taken_back_beside_a_slow_one(begins_ns: u64) -> u64 {
    let mut world = World::new(4, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let mut flows = [1, 2, 3].map(|from| {
        let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
        Flow::stream((from, client), (0, server), 1 << 30)
    });
    let (dies, first) = flows.split_first_mut().unwrap();
    let queue = Rc::new(RefCell::new(VecDeque::new()));
    let out = Rc::clone(&queue);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        if from == 2 {
            out.borrow_mut().push_back(bytes.to_vec());
        }
        from != 2
    }));
    let step = |world: &mut World, flows: &mut [Flow]| {
        let bytes = queue.borrow_mut().pop_front();
        bytes.into_iter().for_each(|bytes| world.inject(2, 0, &bytes));
        carry_until(world, flows, 20 * MS, |_, _| false);
    };
    (0..100).for_each(|_| step(&mut world, &mut first[..1]));
    let granted = |world: &World| {
        let now = world.clock(0);
        world.hosts[0].statistics(now, dies.to.1).unwrap().association.unwrap().granted_packets
    };
    let mut begun = [dies.clone()];
    assert!(carry_until(&mut world, &mut begun, S, |world, _| granted(world) > 0));
    world.cut.insert((0, 1));
    let begin = world.now;
    // Two packets at once would be no slow line.
    pass(&mut world, 10 * MS);
    while granted(&world) > 0 {
        assert!(world.now < begin + 20 * S, "never");
        let senders = if world.now < begin + begins_ns { 1 } else { 2 };
        step(&mut world, &mut first[..senders]);
    }
    world.now - begin
}

in_every_way!(a_grant_is_taken_back_soon_after_others_have_shown_that_the_line_is_not_slow);
fn a_grant_is_taken_back_soon_after_others_have_shown_that_the_line_is_not_slow() {
    let (alone_ns, beside_ns) = (taken_back_beside_a_slow_one(S * 1000), taken_back_beside_a_slow_one(100 * MS));
    println!("{} ms alone, {} ms with others", alone_ns / MS, beside_ns / MS);
    assert!(alone_ns > 1000 * MS, "the line was taken for a slow one: {alone_ns}");
    // Whoever is asked for it is told of the grant again, until then.
    assert!(beside_ns < 500 * MS, "{beside_ns}");
}
