//! Somebody at another address, who sends whatever he likes, and whatever he has seen of others, without ever receiving what he would have to: what that makes an end
//! send, and keep (docs/protocol.md 11, Amplification, Exhaustion).

use std::cell::RefCell;
use std::rc::Rc;

use super::full_link::{messages, two_sockets};
use super::routes::planes;
use crate::world::*;
use ropeway_proto::{ChannelId, Config, Endpoint, ErrorCode, Mode, Path, Route, Time};
use ropeway_wire::{BASE_HEADER_BYTES, Header, Id, Packet, SynFields, Type};

const STRANGER: usize = 2;

/// What an end sends to the stranger's address now, in bytes; what it says to others is lost.
fn sent_to_him(endpoint: &mut Endpoint, now: Time) -> usize {
    let mut bytes = 0;
    let his = path(STRANGER);
    endpoint.transmit(now, &mut |path: &Path, _, packets| {
        let is_his = path.unbound() == his;
        bytes += packets.iter().filter(|_| is_his).map(|packet| packet.len()).sum::<usize>();
        packets.len()
    });
    bytes
}

/// What one packet from his address is answered with there, in bytes.
fn answered(world: &mut World, host: usize, packet: &[u8]) -> usize {
    let now = world.clock(host);
    world.hosts[host].handle_packet(now, &arrival(STRANGER, 0), false, packet);
    world.hosts[host].finish_batch(now);
    sent_to_him(&mut world.hosts[host], now)
}

/// All that is sent from now on.
fn listen_in(world: &mut World) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let log: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let written = Rc::clone(&log);
    world.attacker = Some(Box::new(move |_, from, to, bytes| {
        written.borrow_mut().push(bytes.to_vec());
        vec![(from, to, bytes.to_vec())]
    }));
    log
}

fn syn(nonce: u64, version: u8, size: usize, said_size: u16, features: u32) -> Vec<u8> {
    let fields = SynFields {
        source: Id::new(0, 9, 0),
        nonce,
        node: 99,
        destination_port: 7,
        source_port: 9,
        packet_size: 1472,
        lowest_version: 1,
        highest_version: 1,
        features,
    };
    let mut bytes = vec![0; 1472];
    let length = size.saturating_sub(BASE_HEADER_BYTES) as u16;
    let at = Header { length, ..Header::new(Type::Syn, Id::any(7)) }.write(&mut bytes).unwrap();
    fields.write(&mut bytes[at..]).unwrap();
    bytes[0] = version << 4 | 1;
    bytes[48..50].copy_from_slice(&said_size.to_be_bytes());
    bytes.truncate(size);
    bytes
}

/// SYNs of all kinds.
fn syns() -> impl Iterator<Item = Vec<u8>> {
    let sizes = [35, 36, 56, 100, 255, 256, 300, 1472];
    let versions = [0, 1, 2, 14, 15];
    let all = sizes.into_iter().flat_map(move |size| versions.map(|version| (size, version)));
    all.flat_map(|(size, version)| {
        let said = move |said_size: u16| [0, 1].map(|features| syn(size as u64, version, size, said_size, features));
        [256, size as u16, 1472, u16::MAX].into_iter().flat_map(said)
    })
}

/// A packet, and what can be made of it by who has no key: other types, versions, lengths and ids.
fn variants(packet: &[u8], random: u64) -> Vec<Vec<u8>> {
    let mut all = vec![packet.to_vec()];
    for kind in 0..=15 {
        let mut other = packet.to_vec();
        other[0] = other[0] & 0xF0 | kind;
        all.push(other);
    }
    for most in [BASE_HEADER_BYTES, 41, 42, 43, 60] {
        let mut short = packet[..packet.len().min(most)].to_vec();
        let length = (short.len().saturating_sub(BASE_HEADER_BYTES) as u16).to_be_bytes();
        short[2..4].copy_from_slice(&length);
        for kind in [0xBu8, 0xC, 0xD, 0xE] {
            short[0] = 0x10 | kind;
            all.push(short.clone());
        }
    }
    let mut changed = packet.to_vec();
    changed[random as usize % packet.len()] ^= 1 << (random >> 32 & 7);
    all.push(changed);
    all
}

in_every_way!(nobody_is_sent_more_than_came_from_his_address_before_he_has_proved_it);
fn nobody_is_sent_more_than_came_from_his_address_before_he_has_proved_it() {
    let mut world = World::new(2, Net::default(), &Config::default(), 3);
    let log = listen_in(&mut world);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 20_000, S);
    stream(&mut world, (1, server), (0, client), 20_000, S);
    world.attacker = None;
    let seen: Vec<Vec<u8>> = log.take();
    let made = seen.iter().flat_map(|packet| variants(packet, world.random())).collect::<Vec<_>>();
    let packets: Vec<Vec<u8>> = made.into_iter().chain(syns()).collect();
    let (mut answers, mut most) = ([0; 2], 0.0f64);
    let mut send_all = |world: &mut World| {
        for (host, count) in answers.iter_mut().enumerate() {
            for packet in &packets {
                let bytes = answered(world, host, packet);
                *count += usize::from(bytes > 0);
                most = most.max(bytes as f64 / packet.len() as f64);
                assert!(bytes <= packet.len(), "{bytes} bytes for {} of {:02x?}", packet.len(), &packet[..24]);
            }
        }
    };
    let before: Vec<_> = world.hosts.iter().map(|host| (host.sizes(), host.buffers_in_use())).collect();
    send_all(&mut world);
    let after: Vec<_> = world.hosts.iter().map(|host| (host.sizes(), host.buffers_in_use())).collect();
    assert_eq!(before, after);
    // Nothing comes later, either.
    for _ in 0..1000 {
        world.now += 10 * MS;
        for host in 0..2 {
            let now = world.clock(host);
            world.hosts[host].handle_timeout(now);
            assert_eq!(sent_to_him(&mut world.hosts[host], now), 0);
        }
    }
    // When the association is over its ids are of the past, and are answered for.
    for host in 0..2 {
        let now = world.clock(host);
        assert!(world.hosts[host].close_all(now));
        sent_to_him(&mut world.hosts[host], now);
    }
    send_all(&mut world);
    println!("{answers:?} answers, {most:.3} bytes for a byte at most");
    assert!(answers.iter().all(|&count| count > 100) && most > 0.9, "{answers:?} {most}");
}

in_every_way!(who_only_asks_costs_no_memory_and_no_timer);
fn who_only_asks_costs_no_memory_and_no_timer() {
    const ATTEMPTS: u64 = 20_000;
    let mut server = endpoint(1, &Config::default(), 1);
    server.listen(7, Mode::Stream, 4).unwrap();
    let now = Time::from_nanos(S);
    let features = u32::from(is_keyed());
    for nonce in 0..ATTEMPTS {
        server.handle_packet(now, &arrival(STRANGER, nonce), false, &syn(nonce, 1, 256, 256, features));
        server.finish_batch(now);
        let mut cookies = 0;
        server.transmit(now, &mut |_, _, packets| {
            cookies +=
                packets.iter().filter(|packet| Packet::parse(packet).unwrap().header.kind == Type::Cookie).count();
            packets.len()
        });
        assert_eq!(cookies, 1);
    }
    assert_eq!((server.sizes(), server.buffers_in_use(), server.next_timeout(now)), ((0, 0), (0, 0), None));
    let counters = server.counters();
    assert_eq!((counters.packets_sent, counters.buffers_taken), (ATTEMPTS, 0));
}

in_every_way!(answers_to_hosts_that_are_not_there_keep_nothing_from_those_that_are);
fn answers_to_hosts_that_are_not_there_keep_nothing_from_those_that_are() {
    let mut world = World::new(3, Net::default(), &Config::default(), 1);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
    two_sockets(&mut world);
    let mut times = Vec::new();
    for turn in 0..50 {
        for nonce in 0..40 {
            world.inject(100 + 40 * turn + nonce as usize, 0, &syn(nonce, 1, 1472, 1472, u32::from(is_keyed())));
        }
        times.extend(messages(&mut world, (server, client), 100 * MS));
    }
    assert!(times.iter().all(|&ns| ns < MS), "{times:?}");
    assert!(world.hosts[0].counters().packets_sent > 2000, "it answers");
    // Who was never heard of gets in when they have ended.
    pass(&mut world, Socket::UNRESOLVED_NS);
    let now = world.time();
    let newcomer = world.hosts[2].connect(now, &path(0), 7, Mode::Messages).unwrap();
    wait_for(&mut world, 10 * MS, "open", |world| world.hosts[2].readiness(newcomer).unwrap().opened);
}

in_every_way!(a_repeated_question_to_join_keeps_nothing_from_those_that_are_there);
fn a_repeated_question_to_join_keeps_nothing_from_those_that_are_there() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    planes(&mut world, 2);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
    let log = listen_in(&mut world);
    let (now, both) = (world.clock(1), [0, 1].map(|name| Route::new(alias(0, name), world.hosts[1].config())));
    world.hosts[1].connect_over(now, &both, false, 7, Mode::Messages).unwrap();
    pass(&mut world, 10 * MS);
    world.attacker = None;
    let ask = log.borrow().iter().find(|packet| packet[0] == 0x1F).expect("the second path is joined").clone();
    two_sockets(&mut world);
    let before = world.hosts[0].counters().packets_sent;
    let mut times = Vec::new();
    for turn in 0..50 {
        (0..40).for_each(|place| world.inject(100 + 40 * turn + place, 0, &ask));
        times.extend(messages(&mut world, (server, client), 100 * MS));
    }
    assert!(times.iter().all(|&ns| ns < MS), "{times:?}");
    assert!(world.hosts[0].counters().packets_sent > before + 2000, "it answers");
}

in_every_way!(answers_to_a_known_host_that_is_off_keep_nothing_from_those_that_are_there);
fn answers_to_a_known_host_that_is_off_keep_nothing_from_those_that_are_there() {
    let mut world = World::new(3, Net::default(), &Config::default(), 1);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
    open(&mut world, 2, 0, 7, Mode::Messages);
    world.stopped.insert(2);
    world.cut.insert((0, 2));
    pass(&mut world, 5 * S);
    two_sockets(&mut world);
    let mut times = Vec::new();
    for turn in 0..50 {
        for nonce in 0..40 {
            // Its own engine, and others.
            let (now, from) = (world.clock(0), engine_of(2, nonce as u16));
            let syn = syn(40 * turn + nonce, 1, 1472, 1472, u32::from(is_keyed()));
            world.hosts[0].handle_packet(now, &from, false, &syn);
        }
        times.extend(messages(&mut world, (server, client), 100 * MS));
    }
    assert!(times.iter().all(|&ns| ns < MS), "{times:?}");
    assert!(world.hosts[0].counters().packets_sent > 2000, "it answers");
}

in_every_way!(what_gave_way_is_told_to_hosts_that_went_off_without_keeping_anything_from_others);
fn what_gave_way_is_told_to_hosts_that_went_off_without_keeping_anything_from_others() {
    const CROWD: u64 = 150;
    let config = Config { max_associations: CROWD as u32 + 2, ..Config::default() };
    let mut world = World::new(4, Net::default(), &config, 1);
    let (client, server) = open(&mut world, 1, 0, 7, Mode::Messages);
    // Each from an address of its own.
    let connect = |world: &mut World, from: usize, name: u64| {
        let now = world.clock(from);
        world.hosts[from].connect(now, &alias(0, name), 7, Mode::Messages).unwrap()
    };
    for name in 1..=CROWD {
        let channel = connect(&mut world, 2, name);
        wait_for(&mut world, S, "open", |world| world.hosts[2].readiness(channel).unwrap().opened);
        let accepted = world.hosts[0].accept(7).unwrap();
        let now = world.time();
        world.hosts[2].close(now, channel);
        world.hosts[0].close(now, accepted);
    }
    world.cut.insert((0, 2));
    pass(&mut world, 5 * S);
    two_sockets(&mut world);
    let mut times = Vec::new();
    for name in 1..=CROWD {
        connect(&mut world, 3, name);
        if name % 10 == 0 {
            times.extend(messages(&mut world, (server, client), 100 * MS));
        }
    }
    // Who comes waits for room apart, as the answers to him may be for nobody, too.
    times.extend(messages(&mut world, (server, client), 20 * S));
    assert!(times.iter().all(|&ns| ns < MS), "{times:?}");
    assert!(world.hosts[0].counters().associations_displaced > CROWD / 2, "{:?}", world.hosts[0].counters());
}

/// A server, and engines of many hosts that connect to it.
struct Crowd {
    server: Endpoint,
    clients: Vec<(Path, Endpoint)>,
    accepted: Vec<ChannelId>,
    now: u64,
}

/// A place at which an engine of a host is.
fn engine_of(host: usize, engine: u16) -> Path {
    let mut path = path(host);
    path.0[Path::ENGINE_AT][..2].copy_from_slice(&engine.to_be_bytes());
    path
}

impl Crowd {
    fn new(max_associations: u32) -> Crowd {
        let mut server = endpoint(0, &Config { max_associations, ..Config::default() }, 1);
        server.listen(7, Mode::Stream, 1000).unwrap();
        Crowd { server, clients: Vec::new(), accepted: Vec::new(), now: S }
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// Until nobody has anything to say at this moment.
    fn talk(&mut self) {
        let (now, mut is_quiet) = (self.time(), false);
        while !is_quiet {
            is_quiet = true;
            for (from, client) in &mut self.clients {
                let mut said = Vec::new();
                client.transmit(now, &mut |_, _, packets| {
                    said.extend(packets.iter().map(|packet| packet.to_vec()));
                    packets.len()
                });
                said.iter().for_each(|packet| self.server.handle_packet(now, from, false, packet));
                is_quiet &= said.is_empty();
            }
            self.server.finish_batch(now);
            let mut said = Vec::new();
            self.server.transmit(now, &mut |to, _, packets| {
                said.extend(packets.iter().map(|packet| (to.unbound(), packet.to_vec())));
                packets.len()
            });
            for (to, packet) in &said {
                let found = self.clients.iter_mut().find(|(at, _)| at == to);
                found.expect("it is for one of them").1.handle_packet(now, &path(0), false, packet);
            }
            self.clients.iter_mut().for_each(|(_, client)| client.finish_batch(now));
            is_quiet &= said.is_empty();
        }
    }

    fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.now += 5 * MS;
            let now = self.time();
            self.server.handle_timeout(now);
            self.clients.iter_mut().for_each(|(_, client)| client.handle_timeout(now));
            self.talk();
        }
    }

    /// Another engine, which connects: its number and its channel.
    fn come(&mut self, host: usize, engine: u16) -> (usize, ChannelId) {
        let seed = 1000 + self.clients.len() as u64;
        self.clients.push((engine_of(host, engine), endpoint(host, &Config::default(), seed)));
        let client = self.clients.len() - 1;
        (client, self.connect(client))
    }

    fn connect(&mut self, client: usize) -> ChannelId {
        let now = self.time();
        let channel = self.clients[client].1.connect(now, &path(0), 7, Mode::Stream).unwrap();
        self.talk();
        channel
    }

    /// Whether it is in; else it was told that the server has no place.
    fn is_in(&mut self, (client, channel): (usize, ChannelId)) -> bool {
        let readiness = self.clients[client].1.readiness(channel).unwrap();
        assert!(readiness.opened || readiness.failed == Some(ErrorCode::Busy), "{readiness:?}");
        readiness.opened
    }

    /// Both ends close the channels of these, which stay known.
    fn leave(&mut self, those: &[(usize, ChannelId)]) {
        let now = self.time();
        for &(client, channel) in those {
            self.clients[client].1.close(now, channel);
        }
        self.talk();
        self.accepted.extend(std::iter::from_fn(|| self.server.accept(7).ok()));
        let is_ended = |&mut id: &mut ChannelId| self.server.readiness(id).is_some_and(|readiness| readiness.ended);
        let ended: Vec<_> = self.accepted.extract_if(.., is_ended).collect();
        ended.into_iter().for_each(|id| self.server.close(now, id));
        self.pass(20 * MS);
    }
}

in_every_way!(one_host_does_not_take_the_places_of_all_others);
fn one_host_does_not_take_the_places_of_all_others() {
    let mut crowd = Crowd::new(40);
    let of_one: Vec<_> = (0..40).map(|engine| crowd.come(1, engine)).collect();
    let is_in: Vec<bool> = of_one.iter().map(|&it| crowd.is_in(it)).collect();
    assert_eq!(is_in, (0..40).map(|at| at < 32).collect::<Vec<_>>(), "four fifths, the others are refused");
    // Another with many has its share of what is left, and each of those with one finds a place until there is none.
    let of_another: Vec<_> = (0..10).map(|engine| crowd.come(2, engine)).collect();
    assert_eq!(of_another.iter().filter(|&&it| crowd.is_in(it)).count(), 7);
    let single = crowd.come(3, 0);
    assert!(crowd.is_in(single) && crowd.server.sizes().0 == 40);
    let late = crowd.come(4, 0);
    assert!(!crowd.is_in(late), "nobody is at rest");
    // One goes: that is a place for who has few.
    let now = crowd.time();
    assert!(crowd.clients[0].1.close_all(now));
    crowd.clients[0].1.handle_timeout(now);
    crowd.talk();
    let again = crowd.come(1, 100);
    assert!(!crowd.is_in(again));
    let late = crowd.come(4, 1);
    assert!(crowd.is_in(late));
    assert_eq!(crowd.server.counters().associations_displaced, 0);
}

in_every_way!(an_association_at_rest_gives_way_to_a_newcomer_and_comes_back);
fn an_association_at_rest_gives_way_to_a_newcomer_and_comes_back() {
    let mut crowd = Crowd::new(4);
    let all: Vec<_> = (1..=4).map(|host| crowd.come(host, 0)).collect();
    assert!(all.iter().all(|&it| crowd.is_in(it)));
    crowd.leave(&all[..2]);
    assert_eq!(crowd.server.sizes(), (4, 2));
    let early = crowd.come(5, 0);
    assert!(!crowd.is_in(early), "those at rest may still wait for an acknowledgment");
    crowd.pass(S);
    // The first that was left, and nobody who has a channel.
    let newcomer = crowd.come(6, 0);
    assert!(crowd.is_in(newcomer));
    assert_eq!((crowd.server.sizes().0, crowd.server.counters().associations_displaced), (4, 1));
    assert_eq!([0, 1].map(|at| crowd.clients[at].1.sizes().0), [0, 1], "it was told");
    // An OPEN that is on its way when its association gives way is said again in a new one, if there is a place.
    let now = crowd.time();
    let on_its_way = crowd.clients[1].1.connect(now, &path(0), 7, Mode::Stream).unwrap();
    let mut said = Vec::new();
    crowd.clients[1].1.transmit(now, &mut |_, _, packets| {
        said.extend(packets.iter().map(|packet| packet.to_vec()));
        packets.len()
    });
    let own = crowd.server.connect(now, &engine_of(7, 0), 7, Mode::Stream).expect("the second gives way");
    assert_eq!(crowd.server.counters().associations_displaced, 2);
    assert!(crowd.server.connect(now, &engine_of(8, 0), 7, Mode::Stream).is_err());
    crowd.server.close(now, own);
    for packet in &said {
        crowd.server.handle_packet(now, &engine_of(2, 0), false, packet);
    }
    crowd.server.finish_batch(now);
    crowd.clients.push((engine_of(7, 0), endpoint(7, &Config::default(), 7)));
    crowd.talk();
    assert!(crowd.is_in((1, on_its_way)));
    assert!([all[2], all[3], newcomer].into_iter().all(|it| crowd.is_in(it)));
    assert_eq!(crowd.server.sizes(), (4, 4));
}

in_every_way!(nobody_takes_the_place_of_a_host_that_has_less);
fn nobody_takes_the_place_of_a_host_that_has_less() {
    let mut crowd = Crowd::new(10);
    let of_one: Vec<_> = (0..8).map(|engine| crowd.come(1, engine)).collect();
    assert!(of_one.iter().all(|&it| crowd.is_in(it)));
    let of_another = crowd.come(2, 0);
    crowd.leave(&[of_another]);
    crowd.pass(2 * S);
    let more = crowd.come(1, 8);
    assert!(!crowd.is_in(more));
    assert_eq!(crowd.clients[of_another.0].1.sizes().0, 1, "it keeps its place");
    // Of its own it may.
    crowd.leave(&of_one[3..4]);
    crowd.pass(2 * S);
    let more = crowd.come(1, 9);
    assert!(crowd.is_in(more));
    assert_eq!((crowd.server.sizes(), crowd.server.counters().associations_displaced), ((9, 8), 1));
    assert_eq!([of_one[3].0, of_another.0].map(|client| crowd.clients[client].1.sizes().0), [0, 1]);
}

in_every_way!(those_that_are_used_again_and_again_without_a_channel_do_not_stand_before_those_at_rest);
fn those_that_are_used_again_and_again_without_a_channel_do_not_stand_before_those_at_rest() {
    let mut crowd = Crowd::new(80);
    let of_one: Vec<_> = (0..64).map(|engine| crowd.come(1, engine)).collect();
    let of_another: Vec<_> = (0..8).map(|engine| crowd.come(2, engine)).collect();
    let others: Vec<_> = (3..11).map(|host| crowd.come(host, 0)).collect();
    assert!(of_one.iter().chain(&of_another).chain(&others).all(|&it| crowd.is_in(it)));
    crowd.leave(&of_one);
    crowd.leave(&of_another);
    assert_eq!(crowd.server.sizes(), (80, 8));
    // Where nobody listens.
    let ask = |crowd: &mut Crowd| {
        let now = crowd.time();
        for &(client, _) in &of_one {
            let channel = crowd.clients[client].1.connect(now, &path(0), 8, Mode::Stream).unwrap();
            crowd.talk();
            crowd.clients[client].1.close(now, channel);
        }
    };
    for _ in 0..2 {
        ask(&mut crowd);
        crowd.pass(900 * MS);
    }
    let early = crowd.come(11, 0);
    assert!(!crowd.is_in(early), "the first 64 are in use");
    let again = (early.0, crowd.connect(early.0));
    assert!(crowd.is_in(again));
    assert_eq!((crowd.server.sizes().0, crowd.server.counters().associations_displaced), (80, 1));
    assert_eq!(crowd.clients[of_another[0].0].1.sizes().0, 0, "the first of those at rest");
}
