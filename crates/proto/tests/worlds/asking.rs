//! Who waits asks, and is answered: when STATE is sent, and what the other end says to it (docs/protocol.md 7, 8).

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Limit, Mode};
use ropeway_wire::{Block, Blocks, Packet, Type};

const STATE: u8 = 0x1C;

/// One way of the default network.
const WAY: u64 = 20 * US;

const ASKERS: usize = 8;

/// Ends of `ASKERS` hosts that have each something to say to host 0 when nothing passes any more, and when they asked for it in five seconds; and when the
/// first asked anew, once all had been heard again.
fn questions(seed: u64) -> (Vec<Vec<u64>>, Vec<u64>) {
    let mut world = World::new(ASKERS + 1, Net::default(), &Config::default(), seed);
    let ends: Vec<_> = (1..=ASKERS).map(|from| (from, open(&mut world, from, 0, 7, Mode::Messages).0)).collect();
    let asked = Rc::new(RefCell::new(vec![Vec::new(); ASKERS]));
    let out = Rc::clone(&asked);
    let say = |world: &mut World| {
        pass(world, 50 * MS);
        let (begin, out) = (world.now, Rc::clone(&out));
        out.borrow_mut().iter_mut().for_each(Vec::clear);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from > 0 && bytes[0] == STATE {
                out.borrow_mut()[from - 1].push(now - begin);
            }
            false
        }));
        for &(host, channel) in &ends {
            let now = world.clock(host);
            world.hosts[host].send(now, channel, b"hello?").unwrap();
            world.hosts[host].flush(channel);
        }
    };
    say(&mut world);
    pass(&mut world, 5 * S);
    let first = asked.borrow().clone();
    world.filter = None;
    pass(&mut world, S);
    say(&mut world);
    pass(&mut world, 5 * MS);
    let anew = asked.borrow().iter().map(|times| times[0]).collect();
    (first, anew)
}

#[test]
fn those_who_fell_silent_together_do_not_go_on_asking_together() {
    let config = Config::default();
    let (asked, anew) = questions(1);
    for times in &asked {
        assert_eq!(times[0], config.state_min_ns, "the first question comes exactly when it was promised");
        for (at, pair) in times.windows(2).enumerate() {
            let full = (config.state_min_ns << (at + 1).min(10)).min(config.timer_max_ns);
            let gap = pair[1] - pair[0];
            assert!((full - full / 8..=full).contains(&gap), "{gap} ns between questions {at} and {}", at + 1);
        }
        assert!(times.len() > 50, "{} questions", times.len());
    }
    // Of the repetitions no two fall together, and of each asker some come sooner than others.
    for at in 1..50 {
        let mut moments: Vec<u64> = asked.iter().map(|times| times[at]).collect();
        moments.sort_unstable();
        assert!(moments.windows(2).all(|pair| pair[1] > pair[0]), "question {at}: {moments:?}");
    }
    assert_eq!(anew, [config.state_min_ns; ASKERS], "and so does the first after an answer");
    assert_eq!(questions(1).0, asked, "the same seed asks at the same times");
    assert_ne!(questions(2).0, asked, "another at others");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Want,
    Hold,
    Credit,
}

/// When which host said what about credit to whom.
type Said = Rc<RefCell<Vec<(u64, (usize, usize), Word)>>>;

fn listen_in(world: &mut World) -> Said {
    let said = Said::default();
    let out = Rc::clone(&said);
    world.filter = Some(Box::new(move |now, from, to, bytes| {
        let packet = Packet::parse(bytes).expect("what a host sends is well-formed");
        if matches!(packet.header.kind, Type::Control | Type::State) {
            for block in Blocks::parse(packet.payload).unwrap() {
                let word = match block {
                    Block::Want(..) => Word::Want,
                    Block::Hold(_) => Word::Hold,
                    // With limit 0 it says nothing, and only makes a STATE long enough.
                    Block::Credit(_, limit) if limit > 0 => Word::Credit,
                    _ => continue,
                };
                out.borrow_mut().push((now, (from, to), word));
            }
        }
        true
    }));
    said
}

/// The first word of credit that a host says from now on is lost.
fn lose_a_credit(world: &mut World, teller: usize) -> Rc<RefCell<bool>> {
    let is_lost = Rc::new(RefCell::new(false));
    let out = Rc::clone(&is_lost);
    world.filter = Some(Box::new(move |_, from, _, bytes| {
        let packet = Packet::parse(bytes).expect("what a host sends is well-formed");
        let says_credit = from == teller
            && packet.header.kind == Type::Control
            && Blocks::parse(packet.payload).unwrap().any(|block| matches!(block, Block::Credit(..)));
        !says_credit || out.replace(true)
    }));
    is_lost
}

/// For a while each question for credit of `asker` is answered by HOLD as soon as it arrives, and by nothing else; and nobody loses patience.
fn is_held(world: &mut World, (asker, channel): (usize, ChannelId), teller: usize) {
    let said = listen_in(world);
    // Longer than silence would be borne.
    pass(world, 3 * Config::default().give_up_ns);
    let said = said.borrow();
    let asked: Vec<_> =
        said.iter().filter(|(_, way, _)| *way == (asker, teller)).map(|&(at, _, word)| (at, word)).collect();
    let told: Vec<_> =
        said.iter().filter(|(_, way, _)| *way == (teller, asker)).map(|&(at, _, word)| (at, word)).collect();
    assert!(asked.len() > 250, "{} questions", asked.len());
    let is_answered =
        |(&asked, &told): (&(u64, Word), &(u64, Word))| asked.1 == Word::Want && told == (asked.0 + WAY, Word::Hold);
    assert!(asked.iter().zip(&told).all(is_answered), "{asked:?} {told:?}");
    assert!(asked.len() - told.len() <= 1, "the last one may be on its way");
    assert_eq!(world.hosts[asker].readiness(channel).unwrap().failed, None);
    let now = world.clock(asker);
    assert_eq!(world.hosts[asker].statistics(now, channel).unwrap().association.unwrap().waits_for, Limit::Reader);
}

#[test]
fn a_sender_without_credit_asks_and_is_told_to_hold_on_while_nobody_reads() {
    for mode in [Mode::Stream, Mode::Messages] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, mode);
        let message_bytes = if mode == Mode::Stream { 0 } else { 10_000 };
        let mut flows = [Flow { message_bytes, slow: true, ..Flow::stream((0, client), (1, server), 6_000_000) }];
        carry_until(&mut world, &mut flows, S, |_, _| false);
        is_held(&mut world, (0, client), 1);
        world.filter = None;
        flows[0].slow = false;
        carry(&mut world, &mut flows, S);
    }
}

#[test]
fn a_lost_credit_is_asked_for_while_other_channels_go_on() {
    // A stream longer than the first window, and a message longer than the window.
    for (mode, message_bytes, bytes) in [(Mode::Stream, 0, 600_000), (Mode::Messages, 3_000_000, 3_000_000)] {
        let mut world = World::new(2, Net { delay_ns: 10 * MS, ..Net::default() }, &Config::default(), 1);
        let (steady, steady_end) = open(&mut world, 0, 1, 8, Mode::Stream);
        let (client, server) = pair(&mut world, mode);
        let is_lost = lose_a_credit(&mut world, 1);
        let mut flows = [Flow { message_bytes, ..Flow::stream((0, client), (1, server), bytes) }];
        let (begun, mut out) = (world.now, [0; 200]);
        while !flows[0].is_done() {
            // Each is acknowledged, sooner than who hears nothing asks.
            let now = world.clock(0);
            assert_eq!(world.hosts[0].send(now, steady, &[1; 100]), Ok(100));
            world.hosts[0].flush(steady);
            carry_until(&mut world, &mut flows, MS, |_, flows| flows[0].is_done());
            let _ = world.hosts[1].recv(steady_end, &mut out);
            assert!(world.now - begun < S, "{mode:?}: {} of {bytes}", flows[0].received);
        }
        assert!(is_lost.take());
    }
}

#[test]
fn a_long_message_for_which_there_is_no_memory_is_held_until_there_is() {
    let config = Config { receive_memory_bytes: 8 << 20, longest_message_bytes: 4 << 20, ..Config::default() };
    let mut world = World::of(
        vec![endpoint(0, &Config::default(), 1), endpoint(1, &config, 1), endpoint(2, &Config::default(), 1)],
        Net::default(),
        1,
    );
    let (first, first_end) = open(&mut world, 0, 1, 7, Mode::Messages);
    let (second, second_end) = open(&mut world, 2, 1, 7, Mode::Messages);
    let size = 4 << 20;
    let mut flows =
        [Flow::messages((0, first), (1, first_end), size, 1), Flow::messages((2, second), (1, second_end), size, 1)];
    flows[0].slow = true;
    // All of the first is there when the second begins, and has the memory that both would need.
    carry_until(&mut world, &mut flows[..1], S, |_, _| false);
    carry_until(&mut world, &mut flows[1..], S, |_, _| false);
    assert!(world.hosts[1].readiness(first_end).unwrap().readable);
    is_held(&mut world, (2, second), 1);
    let said = listen_in(&mut world);
    flows[0].slow = false;
    let taken = carry(&mut world, &mut flows, S);
    let begin = world.now - taken;
    let credit = said.borrow().iter().find(|(_, way, word)| *way == (1, 2) && *word == Word::Credit).copied();
    assert_eq!(credit.map(|(at, ..)| at), Some(begin), "as soon as there is memory, whoever asks");
    assert_eq!(world.hosts[1].counters().dropped_memory, 0);
}

#[test]
fn a_sender_that_is_gone_is_asked_less_and_less_often_for_what_is_missing_and_one_that_is_back_at_once() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let text = [7; 10_000];
    // The first packet of a burst is lost, and all that comes after the burst.
    let (mut passed, asked) = (0, Rc::new(RefCell::new(Vec::new())));
    let (begin, out) = (world.now, Rc::clone(&asked));
    world.filter = Some(Box::new(move |now, from, _, _| {
        if from == 1 {
            out.borrow_mut().push(now - begin);
            return false;
        }
        passed += 1;
        passed > 1 && now == begin
    }));
    let now = world.clock(0);
    world.hosts[0].send(now, client, &text).unwrap();
    world.hosts[0].flush(client);
    pass(&mut world, 9 * S);
    let times = asked.borrow().clone();
    let within = |from: u64, to: u64| times.iter().filter(|&&at| (from..to).contains(&at)).count();
    assert!(within(0, 10 * MS) >= 5, "{} at first", within(0, 10 * MS));
    assert!((10..=45).contains(&within(S, 2 * S)), "{} in a second, both timers", within(S, 2 * S));
    assert!((10..=25).contains(&within(8 * S, 9 * S)), "{} in a second, both timers", within(8 * S, 9 * S));
    world.filter = None;
    wait_for(&mut world, 300 * MS, "it is there", |world| {
        let mut out = [0; 10_000];
        matches!(world.hosts[1].recv(server, &mut out), Ok(Some(count)) if count > 0)
    });
}

#[test]
fn who_was_stopped_while_it_connected_asks_again_as_soon_as_others() {
    let config = Config::default();
    let mut world = World::new(2, Net::default(), &config, 1);
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
    let client = try_connect(&mut world, 0, 1, 7).unwrap();
    pass(&mut world, WAY / 2);
    // Nearly so long that it would begin anew.
    world.stopped.insert(0);
    pass(&mut world, 900 * MS);
    world.stopped.clear();
    wait_for(&mut world, S, "it is open", |world| world.hosts[0].readiness(client).unwrap().opened);
    let server = world.hosts[1].accept(7).unwrap();
    // The first packet of a burst is lost, and its first repetition.
    let (asked, mut lost) = (Rc::new(RefCell::new(Vec::new())), Vec::new());
    let out = Rc::clone(&asked);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        let packet = Packet::parse(bytes).expect("what a host sends is well-formed");
        let number = packet.header.number;
        if from == 0 && packet.header.kind == Type::Control {
            for block in Blocks::parse(packet.payload).unwrap() {
                let Block::Rrq(ranges) = block else { continue };
                out.borrow_mut().extend(ranges.filter(|range| range.0 == lost[0]).map(|_| now));
            }
        }
        let is_lost = from == 1
            && packet.header.kind == Type::Data
            && lost.iter().all(|&before| before == number)
            && lost.len() < 2;
        lost.extend(is_lost.then_some(number));
        !is_lost
    }));
    let now = world.clock(1);
    world.hosts[1].send(now, server, &[7; 5000]).unwrap();
    world.hosts[1].flush(server);
    let it = world.hosts[0].association_statistics(now).next().unwrap();
    assert!(it.round_trip_ns + 4 * it.variation_ns > S, "{it:?}");
    let mut read = 0;
    wait_for(&mut world, 10 * S, "all is there", |world| {
        read += world.hosts[0].recv(client, &mut [0; 5000]).ok().flatten().unwrap_or(0);
        read == 5000
    });
    let asked = asked.borrow();
    let [first, second] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(second - first, config.timer_max_ns);
}

#[test]
fn who_opens_many_associations_from_one_address_is_asked_about_few_of_them() {
    const PORTS: usize = 40;
    // All within the time in which nobody is asked twice; or long after each other.
    for (pause_ns, most) in [(40 * US, 1), (10 * MS, 8)] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        for host in 0..2 {
            world.hosts[host] = endpoint_steered(host, &Config::default(), 5, 1);
        }
        let asked = Rc::new(RefCell::new(0));
        let out = Rc::clone(&asked);
        world.filter = Some(Box::new(move |_, from, _, bytes| {
            *out.borrow_mut() += usize::from(from == 1 && bytes[0] == STATE);
            true
        }));
        for port in 1..=PORTS {
            world.hosts[1].listen(port as u16, Mode::Stream, 4).unwrap();
            try_connect(&mut world, 0, 1, port as u16).unwrap();
            pass(&mut world, pause_ns);
        }
        pass(&mut world, MS);
        let expected: usize = (0..PORTS).map(|others| others.min(most)).sum();
        assert_eq!(*asked.borrow(), expected, "questions when it opened one each {pause_ns} ns");
        assert_eq!(world.hosts[1].sizes().0, PORTS);
    }
}

/// How many numbers host 0 asks host 1 for each time, and when it asked first, when from some moment on nothing comes any more of `SENDERS` hosts that were in the middle of long streams, and its link
/// takes nothing for so long.
fn asked_in_vain(seed: u64, full_ns: u64) -> (u64, Vec<u16>) {
    const SENDERS: usize = 3;
    let mut world = World::new(SENDERS + 1, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), seed);
    let begin = |world: &mut World, from: usize| {
        let (client, server) = open(world, from, 0, 7, Mode::Stream);
        Flow::stream((from, client), (0, server), 1 << 30)
    };
    let mut flows: Vec<Flow> = (1..=SENDERS).map(|from| begin(&mut world, from)).collect();
    carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
    let asked: Rc<RefCell<Vec<(u64, u16)>>> = Rc::default();
    let (out, since) = (Rc::clone(&asked), world.now);
    world.filter = Some(Box::new(move |now, from, to, bytes| {
        let packet = Packet::parse(bytes).expect("what a host sends is well-formed");
        if from == 0 && to == 1 && matches!(packet.header.kind, Type::Control | Type::State) {
            for block in Blocks::parse(packet.payload).unwrap() {
                if let Block::Rrq(ranges) = block {
                    out.borrow_mut().extend(ranges.map(|(_, count)| (now - since, count)));
                }
            }
        }
        from == 0
    }));
    if full_ns > 0 {
        world.full.insert((0, link_of(&path(1))));
        pass(&mut world, full_ns);
        world.full.clear();
    }
    pass(&mut world, 2 * S);
    let asked = asked.borrow();
    (asked[0].0, asked.iter().map(|&(_, count)| count).collect())
}

#[test]
fn what_is_expected_is_asked_for_one_by_one_eight_times_whatever_kept_this_end_from_asking() {
    for seed in 1..=3 {
        // While nothing comes of anybody the port is taken to stand still, for a quarter of a second; and a full link takes no question.
        for full_ns in [0, 200 * MS, S] {
            let (first_at, counts) = asked_in_vain(seed, full_ns);
            println!("{} ms full: asked after {} us for {counts:?}", full_ns / MS, first_at / US);
            assert!(counts.len() > 12 && first_at >= full_ns, "{counts:?}");
            assert_eq!(counts[..10], [1, 1, 1, 1, 1, 1, 1, 1, 2, 4], "{} ms full", full_ns / MS);
        }
    }
}
