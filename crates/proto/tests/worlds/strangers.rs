//! Somebody at another address, who sends whatever he likes, and whatever he has seen of others, without ever receiving what he would have to: what that makes an end
//! send, and keep (docs/protocol.md 11, Amplification, Exhaustion).

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{Config, Endpoint, Mode, Path, Time};
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

#[test]
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
        assert!(world.hosts[host].close_all());
        sent_to_him(&mut world.hosts[host], now);
    }
    send_all(&mut world);
    println!("{answers:?} answers, {most:.3} bytes for a byte at most");
    assert!(answers.iter().all(|&count| count > 100) && most > 0.9, "{answers:?} {most}");
}

#[test]
fn who_only_asks_costs_no_memory_and_no_timer() {
    const ATTEMPTS: u64 = 20_000;
    let mut server = endpoint(1, &Config::default(), 1);
    server.listen(7, Mode::Stream, 4).unwrap();
    let now = Time::from_nanos(S);
    let features = u32::from(IS_KEYED);
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
