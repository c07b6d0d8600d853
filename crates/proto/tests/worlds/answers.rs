//! Acknowledgments that wait for an answer to ride on (docs/protocol.md 5).

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode, Time};

const CONTROL: u8 = 0x1B;
const STATE: u8 = 0x1C;
/// One way of the default network.
const WAY: u64 = 20 * US;

/// A host that asks and one that answers.
struct Pair {
    world: World,
    asker: ChannelId,
    server: ChannelId,
    /// When the one that answers sent a packet without payload, and when the other asked whether its data arrived.
    said: Rc<RefCell<Vec<(u64, u8)>>>,
}

impl Pair {
    fn with(config: &Config) -> Pair {
        Pair::over(Net::default(), config)
    }

    fn over(net: Net, config: &Config) -> Pair {
        let mut world = World::new(2, net, config, 1);
        let (asker, server) = pair(&mut world, Mode::Messages);
        pass(&mut world, 50 * MS);
        let said = Rc::<RefCell<Vec<_>>>::default();
        let out = Rc::clone(&said);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from == 1 && bytes[0] == CONTROL || from == 0 && bytes[0] == STATE {
                out.borrow_mut().push((now, bytes[0]));
            }
            true
        }));
        Pair { world, asker, server, said }
    }

    fn send(&mut self, host: usize, message: &[u8]) {
        let now = self.world.clock(host);
        let channel = [self.asker, self.server][host];
        self.world.hosts[host].send(now, channel, message).unwrap();
        self.world.hosts[host].flush(channel);
        self.world.flush(host);
    }

    /// Waits until a host can read a message.
    fn receive(&mut self, host: usize) {
        let channel = [self.asker, self.server][host];
        let read = |world: &mut World| world.hosts[host].recv(channel, &mut [0; 2048]).is_ok();
        wait_for(&mut self.world, S, "a message", read);
    }

    /// A question, and the answer so long after it has arrived.
    fn exchange(&mut self, after_ns: u64) {
        self.send(0, b"?");
        self.receive(1);
        pass(&mut self.world, after_ns);
        self.send(1, b"!");
        self.receive(0);
    }

    /// What was said since the last time.
    fn said(&self) -> Vec<(u64, u8)> {
        std::mem::take(&mut self.said.borrow_mut())
    }
}

#[test]
fn what_is_mostly_answered_within_milliseconds_is_acknowledged_by_the_answers() {
    let mut pair = Pair::with(&Config::default());
    (0..200).for_each(|_| pair.exchange(MS));
    assert_eq!(pair.said().len(), 32, "until the answers are trusted");
    // One that comes later changes nothing ...
    pair.exchange(10 * MS);
    (0..50).for_each(|_| pair.exchange(MS));
    assert_eq!(pair.said().len(), 1);
    // ... and late ones do: nothing is waited for in vain for long.
    (0..200).for_each(|_| pair.exchange(3 * MS));
    let said = pair.said();
    assert!(said.len() == 200 && said.iter().all(|&(_, kind)| kind == CONTROL), "{said:?}");
}

#[test]
fn a_flood_after_many_answers_is_acknowledged_as_soon_as_any_other() {
    let config = Config::default();
    let mut pair = Pair::with(&config);
    pair.exchange(0);
    pair.said();
    (0..200).for_each(|_| pair.exchange(0));
    assert_eq!(pair.said(), []);
    let mut waited = Vec::new();
    for _ in 0..20 {
        let begin = pair.world.now;
        pair.send(0, b"news");
        pass(&mut pair.world, 4 * MS);
        waited.extend(pair.said().iter().map(|&(at, kind)| (at - begin - WAY, kind)));
    }
    // Twice no answer comes, and nobody has to ask.
    assert!(waited.iter().all(|&(_, kind)| kind == CONTROL) && waited.len() == 20, "{waited:?}");
    assert!(waited[..2].iter().all(|&(ns, _)| (1400 * US..=1500 * US).contains(&ns)), "{waited:?}");
    assert!(waited[2..].iter().all(|&(ns, _)| ns == config.ack_delay_ns), "{waited:?}");
}

#[test]
fn after_a_pause_of_a_lease_nothing_waits_for_an_answer() {
    let config = Config::default();
    let mut pair = Pair::with(&config);
    (0..200).for_each(|_| pair.exchange(0));
    pass(&mut pair.world, config.lease_ns);
    pair.said();
    // Whoever sent this may send one packet and no more, whatever it was told before.
    let begin = pair.world.now;
    pair.send(0, b"a head");
    pass(&mut pair.world, MS);
    assert_eq!(pair.said(), [(begin + WAY + config.ack_delay_ns, CONTROL)]);
}

#[test]
fn the_end_of_a_channel_does_not_wait_for_an_answer() {
    let config = Config::default();
    let mut pair = Pair::with(&config);
    (0..200).for_each(|_| pair.exchange(0));
    pair.said();
    let begin = pair.world.now;
    let now = pair.world.clock(0);
    pair.world.hosts[0].shutdown(now, pair.asker).unwrap();
    pass(&mut pair.world, MS);
    assert_eq!(pair.said(), [(begin + WAY + config.ack_delay_ns, CONTROL)]);
}

#[test]
fn on_a_longer_way_the_wait_is_shorter() {
    let net = Net { delay_ns: 500 * US, ..Net::default() };
    let mut pair = Pair::over(net, &Config::default());
    (0..100).for_each(|_| pair.exchange(600 * US));
    pair.said();
    (0..100).for_each(|_| pair.exchange(600 * US));
    assert_eq!(pair.said(), [], "the answer carries it");
    // What would arrive when the other end has asked by then leaves before.
    (0..10).for_each(|_| pair.exchange(1200 * US));
    let said = pair.said();
    assert!(said.len() == 10 && said.iter().all(|&(_, kind)| kind == CONTROL), "{said:?}");
}

#[test]
fn who_waits_for_an_acknowledgment_to_finish_the_question_rarely_waits_long() {
    let mut pair = Pair::with(&Config { first_flight_packets: 1, ..Config::default() });
    let slow = (0..330).filter(|_| {
        let begin = pair.world.now;
        pair.send(0, b"a question");
        pass(&mut pair.world, WAY / 4);
        pair.send(0, b"and its second half");
        (0..2).for_each(|_| pair.receive(1));
        pair.send(1, b"the answer");
        pair.receive(0);
        pair.world.now - begin > MS
    });
    let slow = slow.count();
    assert!(slow <= 10, "{slow} of 330");
}

#[test]
fn the_wait_ends_before_the_other_end_asks() {
    for (name, value) in [("state_min", 400), ("ack_delay", 1000)] {
        let mut config = Config::default();
        config.set(name, value).unwrap();
        let mut pair = Pair::with(&config);
        (0..200).for_each(|_| pair.exchange(0));
        pair.said();
        pair.send(0, b"news");
        pass(&mut pair.world, 5 * MS);
        let said = pair.said();
        assert!(said.len() == 1 && said[0].1 == CONTROL, "{name}: {said:?}");
    }
}

#[test]
fn who_sleeps_is_not_woken_by_a_timer_that_traffic_has_moved() {
    let mut pair = Pair::with(&Config::default());
    pair.exchange(0);
    pass(&mut pair.world, 10 * MS);
    // Everything is acknowledged, and nothing is due but what silence causes.
    let now = pair.world.clock(1);
    pair.send(1, b"news");
    let asks_at = pair.world.hosts[1].next_timeout_to_sleep(now, Time::from_nanos(u64::MAX)).unwrap();
    assert_eq!(asks_at.since(now), Config::default().state_min_ns);
    pass(&mut pair.world, 1800 * US);
    let now = pair.world.clock(1);
    assert!(pair.world.hosts[1].next_timeout_to_sleep(now, Time::from_nanos(u64::MAX)).unwrap().since(now) > S);
}
