//! DATA with the short header: what leaves it out of most packets of a long transfer, and what is said all the same (docs/protocol.md 2.1).

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::{
    Flow, MS, Net, Plane, S, US, World, alias, carry, carry_until, endpoint, open, pair, pass, path, stream, wait_for,
};
use ropeway_proto::config::GateMode;
use ropeway_proto::{Config, Mode, Route};
use ropeway_wire::{Malformed, Packet, Type};

/// A packet, and who sent it.
type Seen = (usize, Vec<u8>);

/// Every packet from now on.
fn watch(world: &mut World) -> Rc<RefCell<Vec<Seen>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let out = Rc::clone(&seen);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        out.borrow_mut().push((from, bytes.to_vec()));
        true
    }));
    seen
}

/// Of the packets from a host: long data, short data, and bare acknowledgments.
fn count(seen: &[Seen], host: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    for (_, bytes) in seen.iter().filter(|(from, _)| *from == host) {
        let header = Packet::parse(bytes).unwrap().header;
        match (header.kind, header.is_short) {
            (Type::Data, short) => counts[usize::from(short)] += 1,
            (Type::Control, _) => counts[2] += 1,
            _ => {}
        }
    }
    counts
}

/// So many short headers followed each other from a host, at most, with nothing else that says something.
fn longest_run(seen: &[Seen], host: usize) -> usize {
    let (mut run, mut longest) = (0, 0);
    for (_, bytes) in seen.iter().filter(|(from, _)| *from == host) {
        run = if Packet::parse(bytes).unwrap().header.is_short { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// What a host takes the backlogs of its peers for.
fn peer_backlog(world: &World, host: usize) -> u64 {
    world.hosts[host].association_statistics(world.time()).map(|association| association.peer_backlog_bytes).sum()
}

#[test]
fn most_packets_of_a_long_transfer_have_the_short_header_and_all_have_one_size() {
    for mode in [Mode::Stream, Mode::Messages] {
        let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
        let (client, server) = pair(&mut world, mode);
        let seen = watch(&mut world);
        let flow = match mode {
            Mode::Stream => Flow::stream((0, client), (1, server), 3_000_000),
            Mode::Messages => Flow::messages((0, client), (1, server), 1472, 2000),
        };
        carry(&mut world, &mut [flow], S);
        let seen = seen.borrow();
        let [long, short, bare] = count(&seen, 0);
        println!("{mode:?}: {long} long, {short} short, {bare} bare");
        assert!(short >= 6 * long, "{mode:?}: {long} long, {short} short");
        assert_eq!(bare, 0, "{mode:?}: nothing to acknowledge");
        let is_short = |bytes: &&[u8]| Packet::parse(bytes).unwrap().header.is_short;
        let sizes = seen.iter().map(|(_, bytes)| &bytes[..]).filter(is_short).map(<[u8]>::len);
        assert_eq!(longest_run(&seen, 0), 7, "{mode:?}");
        assert!(sizes.clone().all(|size| size == usize::from(Config::default().packet_bytes)), "{:?}", sizes.min());
    }
}

#[test]
fn the_first_packet_of_a_transfer_says_how_much_follows() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    for _ in 0..5 {
        pass(&mut world, 10 * MS);
        let seen = watch(&mut world);
        stream(&mut world, (0, client), (1, server), 100_000, S);
        let first = seen.borrow()[0].1.clone();
        let header = Packet::parse(&first).unwrap().header;
        assert!(!header.is_short && header.backlog.to_bytes() > 90_000, "{header:?}");
    }
}

#[test]
fn what_short_headers_leave_out_is_said_when_it_is_due() {
    // Both directions at once: acknowledgments and grants cannot ride on most of the data that goes back.
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let seen = watch(&mut world);
    let mut flows =
        [Flow::stream((0, client), (1, server), 3_000_000), Flow::stream((1, server), (0, client), 3_000_000)];
    let ns = carry(&mut world, &mut flows, S);
    for host in 0..2 {
        let [long, short, bare] = count(&seen.borrow(), host);
        println!("host {host}: {long} long, {short} short, {bare} bare, {ns} ns");
        assert!(short > 5 * long && bare < (long + short) / 4, "{long} long, {short} short, {bare} bare");
        assert_eq!((world.hosts[host].counters().states_sent, world.drops(host)), (0, 0));
    }
    // 24 Mbit each way at 1 Gbit/s.
    assert!(ns < 27 * MS, "{ns}");
}

#[test]
fn short_headers_that_lie_are_counted_and_get_no_long_answer() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let seen = watch(&mut world);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    let is_short = |(_, bytes): &&Seen| Packet::parse(bytes).unwrap().header.is_short;
    let short = seen.borrow().iter().find(is_short).unwrap().1.clone();

    let malformed = |world: &World| world.hosts[1].counters().dropped_malformed[Malformed::PayloadLength.index()];
    for length in [short.len() - 16 + 1, short.len() - 16 - 1, 0] {
        let mut changed = short.clone();
        changed.resize(16 + length, 0);
        changed[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let before = malformed(&world);
        world.inject(0, 1, &changed);
        pass(&mut world, MS);
        assert_eq!(malformed(&world), before + 1, "{length} bytes are not what was agreed on");
    }

    // For nobody: whoever is shorter than a reset gets none.
    let mut stranger = short[..16].to_vec();
    (stranger[2], stranger[3], stranger[6]) = (0, 0, stranger[6] ^ 0x55);
    let (unknown, packets) = (world.hosts[1].counters().dropped_unknown_id, world.packets);
    world.inject(0, 1, &stranger);
    pass(&mut world, MS);
    assert_eq!(world.hosts[1].counters().dropped_unknown_id, unknown + 1);
    assert_eq!(world.packets, packets, "no answer");

    // Numbers that came before, and some that cannot be the next ones: none harms, and only the first is even answered.
    for (ahead, answers) in
        [(0u32, 1), (700, 0), (16_000, 0), (1 << 30, 0), (0u32.wrapping_sub(20_000), 0), (1 << 31, 0)]
    {
        let mut changed = short.clone();
        let number = u32::from_be_bytes(changed[8..12].try_into().unwrap()).wrapping_add(ahead);
        changed[8..12].copy_from_slice(&number.to_be_bytes());
        let packets = world.packets;
        world.inject(0, 1, &changed);
        pass(&mut world, 100 * MS);
        assert_eq!((peer_backlog(&world, 1), world.packets - packets), (0, answers), "{ahead} ahead");
    }
    stream(&mut world, (0, client), (1, server), 100_000, S);
    assert_eq!(world.hosts[1].counters().dropped_window, 5);
    assert_eq!(world.hosts[1].counters().dropped_duplicate, 1);
    assert_eq!(world.hosts[0].counters().resent, 0);
}

#[test]
fn a_gap_that_short_headers_may_not_cross_is_crossed_by_the_next_long_one() {
    // A constant window, so that more than what a short header may skip is under way.
    let config = Config {
        gate_mode: GateMode::Esp,
        window_packets: 4000,
        packets_to_ack: 10,
        send_buffer_bytes: 8 << 20,
        receive_buffer_bytes: 8 << 20,
        ..Config::default()
    };
    let net = Net { rate: 10_000_000_000, port_buffer: 8 << 20, ..Net::default() };
    let mut world = World::new(2, net, &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 10_000_000, S);
    // An outage in the middle of a busy period, longer than what a short header may skip.
    let mut seen = 0;
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_data = from == 0 && Packet::parse(bytes).unwrap().header.kind == Type::Data;
        seen += u32::from(is_data);
        !is_data || !(1000..1703).contains(&seen)
    }));
    stream(&mut world, (0, client), (1, server), 10_000_000, S);
    let counters = world.hosts[1].counters();
    println!("{} beyond, {} asked for", counters.dropped_window, counters.requests_sent);
    assert!((1..=16).contains(&counters.dropped_window), "{}", counters.dropped_window);
}

#[test]
fn a_repeated_short_header_stops_nobody() {
    // With document 2's gate one sender that seems to have more holds the acknowledgments of all others back.
    for mode in [GateMode::Grants, GateMode::Esp] {
        let esp = Config { gate_mode: mode, window_packets: 21, packets_to_ack: 10, ..Config::default() };
        let hosts = vec![endpoint(0, &Config::default(), 1), endpoint(1, &Config::default(), 1), endpoint(2, &esp, 1)];
        let mut world = World::of(hosts, Net::default(), 1);
        let flows = [0, 1].map(|from| (from, open(&mut world, from, 2, 7, Mode::Stream)));
        let seen = watch(&mut world);
        let [(_, (first, to_first)), (_, (second, to_second))] = flows;
        stream(&mut world, (0, first), (2, to_first), 200_000, S);
        let is_short = |(_, bytes): &&Seen| Packet::parse(bytes).unwrap().header.is_short;
        let short = seen.borrow().iter().find(is_short).unwrap().1.clone();
        world.inject(0, 2, &short);
        pass(&mut world, MS);
        let ns = stream(&mut world, (1, second), (2, to_second), 1_000_000, S);
        assert!(ns < 50 * MS, "{mode:?}: {ns}");
    }
}

#[test]
fn a_channel_that_goes_on_when_it_gets_credit_says_how_much_waits() {
    let config = Config { receive_buffer_bytes: 70_000, first_flight_packets: 1, ..Config::default() };
    let mut world = World::new(2, Net { delay_ns: 500 * US, ..Net::default() }, &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut flow = Flow::stream((0, client), (1, server), 700_000);
    let mut worst = 0;
    while !flow.is_done() {
        // What the window holds arrives, and is read at once.
        flow.send(&mut world);
        let begin = world.now;
        wait_for(&mut world, S, "a full window", |world| {
            let unread = world.hosts[1].statistics(world.time(), server).unwrap().unread_bytes;
            unread >= (flow.total - flow.received).min(60_000)
        });
        worst = worst.max(world.now - begin);
        flow.receive(&mut world);
    }
    println!("{} us at most", worst / US);
    // Credit and a packet, the backlog, a grant, the data: three round trips and what the window takes to be told.
    assert!(worst <= 4 * MS, "{worst}");
}

#[test]
fn many_channels_say_something_now_and_then() {
    let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
    let mut flows: Vec<Flow> = (0..200)
        .map(|at| {
            let (client, server) = open(&mut world, 0, 1, 7 + at, Mode::Stream);
            Flow::stream((0, client), (1, server), 40_000)
        })
        .collect();
    let seen = watch(&mut world);
    carry(&mut world, &mut flows, S);
    let run = longest_run(&seen.borrow(), 0);
    // The last of a batch may still be short when it is due.
    assert!(run < 64 + ropeway_proto::BATCH_PACKETS, "{run}");
}

#[test]
fn hosts_with_document_2_s_gate_fall_silent_when_nothing_is_to_be_said() {
    let config = Config { gate_mode: GateMode::Esp, window_packets: 21, packets_to_ack: 10, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    pass(&mut world, 100 * MS);
    let packets = world.packets;
    pass(&mut world, 500 * MS);
    assert!(world.packets - packets <= 2, "{}", world.packets - packets);
}

/// The first packet with a short header that host 0 sent.
fn first_short(seen: &[Seen]) -> Vec<u8> {
    let is_short = |(from, bytes): &&Seen| *from == 0 && Packet::parse(bytes).unwrap().header.is_short;
    seen.iter().find(is_short).expect("a short header").1.clone()
}

/// Host 1 takes a packet as if it came from host 0.
fn takes(world: &mut World, over: u64, congested: bool, bytes: &[u8]) {
    let now = world.time();
    world.hosts[1].handle_packet(now, &alias(0, over), congested, bytes);
    world.hosts[1].finish_batch(now);
}

#[test]
fn a_repeated_short_header_is_no_sign_of_life_even_above_a_gap() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    // One is lost for good, and its successors have arrived: then nothing comes any more.
    let (seen, mut count) = (Rc::new(RefCell::new(Vec::new())), 0);
    let out = Rc::clone(&seen);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let is_data = from == 0 && Packet::parse(bytes).unwrap().header.kind == Type::Data;
        count += u32::from(is_data);
        let passes = is_data && (2..=10).contains(&count);
        if passes {
            out.borrow_mut().push((from, bytes.to_vec()));
        }
        passes
    }));
    let now = world.time();
    world.hosts[0].send(now, client, &[7; 20_000]).unwrap();
    pass(&mut world, MS);
    let short = first_short(&seen.borrow());
    let missing =
        |world: &World| world.hosts[1].association_statistics(world.time()).next().map(|it| it.missing_packets);
    assert_eq!(missing(&world), Some(1));
    let now = world.time();
    world.hosts[1].send(now, server, b"is anybody there?").unwrap();
    world.hosts[1].flush(server);
    let begin = world.now;
    let before = world.hosts[1].counters().dropped_duplicate;
    while world.hosts[1].readiness(server).unwrap().failed.is_none() {
        assert!(world.now < begin + 11 * S, "not given up");
        takes(&mut world, 0, false, &short);
        pass(&mut world, 100 * MS);
    }
    let repetitions = world.hosts[1].counters().dropped_duplicate - before;
    assert!((99..=102).contains(&repetitions), "{repetitions}");
}

#[test]
fn a_repeated_short_header_recovers_no_path_and_its_mark_cuts_nothing() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.planes.extend((0..2).map(|number| (number, Plane::default())));
    world.hosts[1].listen(7, Mode::Stream, 16).unwrap();
    let routes = [0, 1].map(|number| Route::new(alias(1, number), world.hosts[0].config()));
    let now = world.time();
    let client = world.hosts[0].connect_over(now, &routes, false, 7, Mode::Stream).unwrap();
    wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(client).unwrap().opened);
    let server = world.hosts[1].accept(7).unwrap();
    pass(&mut world, 10 * MS);
    let seen = watch(&mut world);
    stream(&mut world, (0, client), (1, server), 100_000, S);
    let short = first_short(&seen.borrow());
    world.planes.get_mut(&0).unwrap().is_cut = true;
    stream(&mut world, (1, server), (0, client), 100_000, S);
    let good = |world: &World| world.hosts[1].association_statistics(world.time()).next().unwrap().good_paths;
    let before = world.hosts[1].counters();
    assert_eq!((good(&world), before.paths_suspected), (1, 1));
    takes(&mut world, 0, true, &short);
    let after = world.hosts[1].counters();
    assert_eq!((good(&world), after.paths_recovered, after.gate.cuts), (1, 0, before.gate.cuts));
    assert_eq!(after.dropped_duplicate, before.dropped_duplicate + 1);
    // A new one over that path, and with that mark, does both.
    world.planes.get_mut(&0).unwrap().is_cut = false;
    world.planes.get_mut(&0).unwrap().marks = true;
    pass(&mut world, S);
    stream(&mut world, (0, client), (1, server), 10_000, S);
    assert_eq!((good(&world), world.hosts[1].counters().paths_recovered), (2, 1));
}

#[test]
fn a_repeated_short_header_does_not_keep_a_silent_holder_of_grants_from_being_suspect() {
    for repeats in [false, true] {
        let mut world = World::new(13, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
        let mut flows: Vec<_> = (1..13)
            .map(|from| {
                let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
                Flow::stream((from, client), (0, server), 1 << 30)
            })
            .collect();
        let seen = watch(&mut world);
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        let is_short = |(from, bytes): &&Seen| *from == 1 && Packet::parse(bytes).unwrap().header.is_short;
        let short = seen.borrow().iter().find(is_short).unwrap().1.clone();
        world.filter = None;
        let granted = |world: &World| world.hosts[0].statistics_of(world.time(), &path(1)).unwrap().granted_packets;
        assert!(carry_until(&mut world, &mut flows, 20 * MS, |world, _| granted(world) > 4));
        world.stopped.insert(1);
        let before = world.hosts[0].counters().gate.suspects;
        for _ in 0..50 {
            if repeats {
                let now = world.time();
                world.hosts[0].handle_packet(now, &path(1), false, &short);
                world.hosts[0].finish_batch(now);
            }
            carry_until(&mut world, &mut flows, 200 * US, |_, _| false);
        }
        let suspects = world.hosts[0].counters().gate.suspects - before;
        assert_eq!((suspects, granted(&world)), (1, 8), "with repetitions: {repeats}");
    }
}
