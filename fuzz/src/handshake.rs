//! The keys of the wire protocol, against whoever can send, change, repeat, reorder and withhold packets, but does not
//! have the key.
//!
//! Input: one byte says which: the first message of the handshake, the second, or packets of an association. There,
//! commands of one byte with their arguments behind it. What must hold: nothing panics; nothing opens but what the
//! other end sealed, and that once; and the two ends never lose each other.

use ropeway_proto::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use ropeway_proto::crypto::session::{COUNTER_BYTES, TAG_BYTES};
use ropeway_proto::crypto::{ClusterKey, ClusterKeys, Initiator, Limits, OpenError, Responder, Session};
use std::collections::{BTreeSet, VecDeque};

const HEADER_BYTES: usize = 24;

const SECOND_NS: u64 = 1_000_000_000;

const PROLOGUE: &[u8] = b"prologue";

const OPENED_HEADER: &[u8] = b"header";

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// A short number; 0 at the end of the input.
    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0))
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// What an input got to, so that the seeds can be held to account.
#[derive(Debug, Default)]
pub struct Reached {
    pub first_messages: u64,
    pub second_messages: u64,
    pub packets: u64,
    pub changes: u64,
    /// By [`OpenError::index`].
    pub refused: [u64; OpenError::ALL.len()],
}

pub fn handshake(data: &[u8]) -> Reached {
    let (mut input, mut reached) = (Input(data), Reached::default());
    match input.byte().map_or(0, |byte| byte % 4) {
        0 => first_message(&mut input, &mut reached),
        1 => second_message(&mut input, &mut reached),
        _ => packets(&mut input, &mut reached),
    }
    reached
}

fn key(first: u8) -> ClusterKey {
    ClusterKey::new(std::array::from_fn(|i| first.wrapping_add(i as u8)))
}

fn keys() -> ClusterKeys {
    let (a, b) = (key(1), key(101));
    ClusterKeys::parse(&format!("{}\n{}\n", *a.line(), *b.line())).expect("two keys")
}

/// A client that has sent its first message.
fn client() -> (Initiator, Vec<u8>) {
    let (mut initiator, mut message) =
        (Initiator::new(&key(1), PROLOGUE, [7; 32]), vec![0; CONFIRM_OVERHEAD_BYTES + 5]);
    initiator.write(b"early", &mut message).expect("the first message");
    (initiator, message)
}

/// The server's answer to it.
fn answer(message: &[u8]) -> (Vec<u8>, Session) {
    let (_, responder) = Responder::read(&keys(), PROLOGUE, message, [9; 32], &mut [0; 5]).expect("it opens");
    let mut answer = vec![0; OPENED_OVERHEAD_BYTES + 6];
    let (_, session) = responder.write(0, OPENED_HEADER, b"answer", &mut answer).expect("the second message");
    (answer, session)
}

/// `genuine` with some bytes changed, or its length; or bytes of the input alone.
fn forge(genuine: &[u8], input: &mut Input) -> Vec<u8> {
    let mut forged = genuine.to_vec();
    match input.number() % 4 {
        0 => forged = input.bytes(usize::MAX).to_vec(),
        1 => forged.truncate(input.number()),
        2 => forged.extend_from_slice(input.bytes(40)),
        _ => {
            for _ in 0..1 + input.number() % 4 {
                let at = input.number() % forged.len().max(1);
                if let Some(byte) = forged.get_mut(at) {
                    *byte ^= input.byte().unwrap_or(1);
                }
            }
        }
    }
    forged
}

fn first_message(input: &mut Input, reached: &mut Reached) {
    let (_, genuine) = client();
    let room = input.number();
    let forged = forge(&genuine, input);
    let mut out = vec![0; room];
    if let Ok((length, _)) = Responder::read(&keys(), PROLOGUE, &forged, [9; 32], &mut out) {
        assert_eq!((forged, &out[..length]), (genuine, &b"early"[..]), "a first message that nobody made");
        reached.first_messages += 1;
    }
}

fn second_message(input: &mut Input, reached: &mut Reached) {
    let (mut initiator, message) = client();
    let (genuine, _) = answer(&message);
    let mut out = vec![0; 2000];
    while !input.0.is_empty() {
        let header = if input.number().is_multiple_of(4) { input.bytes(6) } else { OPENED_HEADER };
        let forged = forge(&genuine, input);
        if let Ok((length, _)) = initiator.read(0, header, &forged, &mut out) {
            assert_eq!((header, forged), (OPENED_HEADER, genuine), "a second message that nobody made");
            assert_eq!(out[..length], *b"answer");
            reached.second_messages += 1;
            return;
        }
    }
    // None of these has spoilt anything.
    assert!(initiator.read(0, OPENED_HEADER, &genuine, &mut out).is_ok());
}

/// Packets on their way to one end, and how many were sealed for it.
#[derive(Default)]
struct Wire {
    packets: VecDeque<Vec<u8>>,
    sealed: u64,
    opened: BTreeSet<u64>,
}

struct Network {
    /// The client, then the server.
    ends: [Session; 2],
    wires: [Wire; 2],
    now_ns: u64,
}

impl Network {
    fn new() -> Self {
        let (mut initiator, message) = client();
        let (answer, server) = answer(&message);
        let (_, mut client) = initiator.read(0, OPENED_HEADER, &answer, &mut [0; 6]).expect("it opens");
        client.tighten(Limits { change_after_ns: 3 * SECOND_NS, change_after_blocks: 30, ..Limits::default() });
        Self { ends: [client, server], wires: Default::default(), now_ns: 0 }
    }

    /// Seals a packet for `end` that says which one it is.
    fn seal(&mut self, end: usize, padding: usize) -> Vec<u8> {
        let wire = &mut self.wires[end];
        let mut payload = wire.sealed.to_be_bytes().to_vec();
        wire.sealed += 1;
        payload.resize(8 + padding, 0);
        let mut packet = [&[0x17; HEADER_BYTES][..], &[0; COUNTER_BYTES], &payload, &[0; TAG_BYTES]].concat();
        let from = &mut self.ends[1 - end];
        assert_eq!(from.seal_in_place(self.now_ns, &mut packet, HEADER_BYTES), Ok(()));
        let mut opened = packet.clone();
        assert_eq!(from.reopen_in_place(&mut opened, HEADER_BYTES), Ok(()), "its own packet");
        assert_eq!(opened[HEADER_BYTES + COUNTER_BYTES..][..payload.len()], payload);
        packet
    }

    /// Whether `end` opens it; then it is one that was sealed for it, and for the first time.
    fn open(&mut self, end: usize, packet: &[u8], header_bytes: usize) -> bool {
        let (aad, sealed) = packet.split_at(packet.len().min(header_bytes.saturating_add(COUNTER_BYTES)));
        let mut payload = vec![0; sealed.len()];
        let Ok(length) = self.ends[end].open(self.now_ns, aad, sealed, &mut payload) else { return false };
        assert_eq!(header_bytes, HEADER_BYTES, "a packet cut elsewhere opened");
        let number = u64::from_be_bytes(payload[..length][..8].try_into().expect("8 bytes"));
        let wire = &mut self.wires[end];
        assert!(number < wire.sealed, "a packet that nobody sealed");
        assert!(wire.opened.insert(number), "packet {number} opened twice");
        true
    }
}

fn packets(input: &mut Input, reached: &mut Reached) {
    let mut network = Network::new();
    while let Some(command) = input.byte() {
        let (end, place) = (usize::from(command >> 7), input.number());
        match command % 8 {
            0 | 1 => {
                let packet = network.seal(end, place % 64);
                network.wires[end].packets.push_back(packet);
            }
            2 | 3 => {
                if let Some(packet) = network.wires[end].packets.remove(place) {
                    network.open(end, &packet, HEADER_BYTES);
                }
            }
            4 => {
                if let Some(packet) = network.wires[end].packets.get(place).cloned() {
                    network.open(end, &packet, HEADER_BYTES);
                }
            }
            5 => {
                let genuine = network.wires[end].packets.get(place).cloned().unwrap_or_default();
                let forged = forge(&genuine, input);
                let is_forged = forged != genuine;
                let opened = network.open(end, &forged, HEADER_BYTES);
                assert!(!(opened && is_forged), "a changed packet opened");
            }
            6 => {
                let packet = input.bytes(HEADER_BYTES + COUNTER_BYTES + place);
                network.open(end, packet, input.number());
            }
            _ => network.now_ns += place as u64 * SECOND_NS / 64,
        }
        let [client, server] = [network.ends[0].generation(), network.ends[1].generation()];
        assert!(client == server || client == server + 1, "the ends lost each other: {client} and {server}");
    }
    // Whatever happened: once the server has patience again, fresh packets open.
    for end in [1, 0] {
        network.now_ns += SECOND_NS;
        let packet = network.seal(end, 0);
        assert!(network.open(end, &packet, HEADER_BYTES), "a fresh packet does not open");
    }
    for end in &network.ends {
        let counters = end.counters();
        reached.packets += counters.opened;
        reached.changes += counters.changes;
        reached.refused.iter_mut().zip(counters.refused).for_each(|(sum, count)| *sum += count);
    }
}
