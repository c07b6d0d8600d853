//! Two endpoints with the cluster's key, and between them somebody without it who sees, drops, repeats, reorders, throws back, changes and makes packets, in
//! either's name.
//!
//! Input: commands of one byte with their arguments behind it. What must hold: nothing panics; each program reads exactly what the other has sent, as
//! far as it gets; nobody has a channel that was not asked for; nothing ends but by silence, or when it was answered too late; and once the network is honest, everything arrives.

use ropeway_proto::crypto::{ClusterKey, ClusterKeys};
use ropeway_proto::{ChannelId, Config, Counters, Endpoint, ErrorCode, Mode, Path, RecvError, Time};
use std::collections::VecDeque;
use std::sync::Arc;

const PATHS: [Path; 2] = [Path([1; Path::BYTES]), Path([2; Path::BYTES])];
const PORT: u16 = 7;
/// Packets on their way at one time, in a network that keeps what it likes.
const MOST_FLYING: usize = 64;
/// Packets that the attacker remembers.
const MOST_KEPT: usize = 256;
const MS: u64 = 1_000_000;
/// When the attempt to connect begins.
const BEGIN: u64 = 1_000 * MS;
/// One without an answer begins anew so long after the cookie came (docs/protocol.md 3).
const ATTEMPT: u64 = 3_000 * MS;
/// An honest network for so long heals everything that has not been given up.
const HEALING_MS: u64 = 40_000;

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0))
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// One end of the one channel, with what its program has written and read.
#[derive(Default)]
struct Program {
    channel: Option<ChannelId>,
    sent: Vec<u8>,
    read: usize,
    failed: Option<ErrorCode>,
}

struct Network {
    ends: [Endpoint; 2],
    programs: [Program; 2],
    flying: VecDeque<(usize, Vec<u8>)>,
    kept: Vec<Vec<u8>>,
    now: u64,
}

fn endpoint(number: u8, key: u8) -> Endpoint {
    let config = Config {
        receive_memory_bytes: 2 << 20,
        send_memory_bytes: 2 << 20,
        receive_buffer_bytes: 64 << 10,
        send_buffer_bytes: 64 << 10,
        packet_bytes: 512,
        key_age_ns: 2_000 * MS,
        key_volume_bytes: 1 << 20,
        ..Config::default()
    };
    let keys = ClusterKeys::one(ClusterKey::new(std::array::from_fn(|at| key.wrapping_add(at as u8))));
    Endpoint::with_keys(config, u64::from(number), 1, [number; 32], Some(Arc::new(keys)))
}

/// What both ends have counted.
pub fn keyed(script: &[u8]) -> [Counters; 2] {
    let mut input = Input(script);
    let mut network = Network {
        ends: [endpoint(0, 1), endpoint(1, 1)],
        programs: Default::default(),
        flying: VecDeque::new(),
        kept: Vec::new(),
        now: BEGIN,
    };
    network.ends[1].listen(PORT, Mode::Stream, 4).expect("the first listener");
    let channel = network.ends[0].connect(Time::from_nanos(network.now), &PATHS[1], PORT, Mode::Stream);
    network.programs[0].channel = Some(channel.expect("the first channel"));
    while let Some(command) = input.byte() {
        network.step(command, &mut input);
    }
    network.heal();
    network.check();
    network.ends.map(|end| end.counters())
}

impl Network {
    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn step(&mut self, command: u8, input: &mut Input) {
        let side = usize::from(command >> 7);
        match command % 16 {
            0 | 1 => self.transmit(side),
            2 | 3 => {
                if let Some((to, packet)) = self.take(input.number()) {
                    self.deliver(to, &packet);
                }
            }
            4 => drop(self.take(input.number())),
            5 => {
                if let Some((to, packet)) = self.flying.get(input.number() % MOST_FLYING).cloned() {
                    self.deliver(to, &packet);
                }
            }
            // Thrown back at its sender.
            6 => {
                if let Some((to, packet)) = self.take(input.number()) {
                    self.deliver(1 - to, &packet);
                }
            }
            7 => {
                if let Some(packet) = self.kept.get(input.number()).cloned() {
                    self.deliver(side, &packet);
                }
            }
            8 => {
                let genuine = self.kept.get(input.number()).cloned().unwrap_or_default();
                let forged = forge(genuine, input);
                self.deliver(side, &forged);
            }
            // Of one that has not arrived: by its counter it is new.
            9 => {
                if let Some((to, genuine)) = self.flying.get(input.number() % MOST_FLYING).cloned() {
                    let forged = forge(genuine, input);
                    self.deliver(to, &forged);
                }
            }
            10 => {
                let length = input.number();
                let made_up = input.bytes(length).to_vec();
                self.deliver(side, &made_up);
            }
            11 => self.write(side, 1 + input.number() * 8),
            12 => self.read(side),
            13 => self.stranger(side, input),
            14 => self.pass(input.number() as u64 * MS / 4),
            _ => {
                let now = self.time();
                self.ends[side].finish_batch(now);
            }
        }
        self.check();
    }

    fn transmit(&mut self, from: usize) {
        let (now, flying, kept) = (self.time(), &mut self.flying, &mut self.kept);
        self.ends[from].transmit(now, &mut |path, _, packets| {
            let room = MOST_FLYING.saturating_sub(flying.len()).min(packets.len());
            for packet in &packets[..room] {
                assert_eq!(*path, PATHS[1 - from], "an answer goes to who asked");
                flying.push_back((1 - from, packet.to_vec()));
                if kept.len() < MOST_KEPT {
                    kept.push(packet.to_vec());
                }
            }
            room
        });
    }

    fn take(&mut self, place: usize) -> Option<(usize, Vec<u8>)> {
        let length = self.flying.len().max(1);
        self.flying.remove(place % length)
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) {
        let now = self.time();
        self.ends[to].handle_packet(now, &PATHS[1 - to], false, packet);
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        let now = self.time();
        for end in &mut self.ends {
            end.finish_batch(now);
            end.handle_timeout(now);
        }
    }

    fn write(&mut self, side: usize, count: usize) {
        let now = self.time();
        let Some(channel) = self.programs[side].channel else { return };
        let at = self.programs[side].sent.len();
        let bytes: Vec<u8> = (at..at + count).map(|at| (at ^ (at >> 8)) as u8 ^ (side as u8) << 7).collect();
        if let Ok(taken) = self.ends[side].send(now, channel, &bytes) {
            self.programs[side].sent.extend_from_slice(&bytes[..taken]);
        }
        self.ends[side].flush(channel);
    }

    fn read(&mut self, side: usize) {
        if side == 1 && self.programs[1].channel.is_none() {
            self.programs[1].channel = self.ends[1].accept(PORT).ok();
        }
        let Some(channel) = self.programs[side].channel else { return };
        let mut out = [0; 4096];
        while let Ok(Some(count)) = self.ends[side].recv(channel, &mut out) {
            let (read, other) = (self.programs[side].read, &self.programs[1 - side].sent);
            let expected = other.get(read..read + count).expect("no more than was sent");
            assert_eq!(&out[..count], expected, "bytes that nobody sent");
            self.programs[side].read += count;
        }
        if let Err(RecvError::Failed(code)) = self.ends[side].recv(channel, &mut out) {
            self.programs[side].failed = Some(code);
        }
    }

    /// Somebody with another key begins an attempt in the other end's name.
    fn stranger(&mut self, side: usize, input: &mut Input) {
        let mut stranger = endpoint(1 - side as u8, 101);
        let mut now = self.now;
        let _ = stranger.connect(Time::from_nanos(now), &PATHS[side], PORT, Mode::Stream);
        for _ in 0..input.number() % 4 {
            let mut said = Vec::new();
            stranger.transmit(Time::from_nanos(now), &mut |_, _, packets| {
                said.extend(packets.iter().map(|packet| packet.to_vec()));
                packets.len()
            });
            for packet in said {
                self.deliver(side, &packet);
            }
            let (time, answers) = (self.time(), &mut Vec::new());
            self.ends[side].transmit(time, &mut |_, _, packets| {
                answers.extend(packets.iter().map(|packet| packet.to_vec()));
                packets.len()
            });
            for packet in answers.iter() {
                stranger.handle_packet(Time::from_nanos(now), &PATHS[side], false, packet);
            }
            // What was for the other end comes there as well.
            self.flying.extend(answers.drain(..).map(|packet| (1 - side, packet)));
            now += 20 * MS;
            stranger.handle_timeout(Time::from_nanos(now));
        }
        assert_eq!(stranger.counters().associations_opened, 0, "another key gets nobody in");
    }

    /// From now on every packet arrives.
    fn heal(&mut self) {
        for _ in 0..HEALING_MS {
            self.pass(MS);
            for _ in 0..4 {
                for side in 0..2 {
                    self.transmit(side);
                    self.read(side);
                }
                while let Some((to, packet)) = self.flying.pop_front() {
                    self.deliver(to, &packet);
                }
                let now = self.time();
                self.ends.iter_mut().for_each(|end| end.finish_batch(now));
            }
            let is_done = (0..2).all(|side| {
                let all = self.programs[1 - side].sent.len();
                self.programs[side].failed.is_some() || self.programs[side].read == all
            });
            if is_done && self.programs[1].channel.is_some() {
                return;
            }
            // The server's may have been that of an attempt that was answered too late, whether it has heard of its end or not; another one waits to be accepted.
            let began_anew = self.programs[1].channel.is_some() && self.ends[1].accept(PORT).is_ok();
            if began_anew || self.programs.iter().any(|program| program.failed.is_some()) {
                return;
            }
        }
        panic!("{:?} of {:?} bytes arrived", self.programs[1].read, self.programs[0].sent.len());
    }

    fn check(&self) {
        let counters = self.ends.each_ref().map(Endpoint::counters);
        let gave_up: u64 = counters.iter().map(|counters| counters.timeouts).sum();
        // What the server has opened for attempts that it answered too late.
        let anew = (self.now - BEGIN) / ATTEMPT;
        for (counters, program) in counters.iter().zip(&self.programs) {
            // By silence, whatever hints there were; or because the other end gave it up or began anew, was asked, and has forgotten it.
            // The reason stands in no sealed part of a reset: who sees one may change it.
            let ended: u64 = counters.associations_ended.iter().sum();
            let forgotten = ended - counters.timeouts;
            assert!(forgotten <= gave_up + anew, "{counters:?}");
            assert!(program.failed.is_none() || gave_up + anew > 0, "{counters:?}");
        }
        let [client, server] = counters;
        assert!(
            server.channels_accepted <= client.channels_opened + anew
                && server.associations_opened <= 1 + client.timeouts + anew
        );
    }
}

/// A packet with some bytes changed, or its length, or other bytes behind its header.
fn forge(mut packet: Vec<u8>, input: &mut Input) -> Vec<u8> {
    match input.number() % 4 {
        0 => packet.truncate(input.number() * 2),
        1 => packet.extend_from_slice(input.bytes(40)),
        2 => {
            let at = input.number().min(packet.len());
            let behind = input.number();
            packet.truncate(at);
            packet.extend_from_slice(input.bytes(behind));
        }
        _ => {
            for _ in 0..1 + input.number() % 4 {
                let at = input.number() * 2 % packet.len().max(1);
                if let Some(byte) = packet.get_mut(at) {
                    *byte ^= input.byte().unwrap_or(1);
                }
            }
        }
    }
    packet
}
