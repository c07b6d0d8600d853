//! What peers know and have sent, and the packets that a script makes of it.

use std::collections::BTreeMap;

use ropeway_proto::Path;

use super::{HEADER_BYTES, PACKET_BYTES};

/// The bytes of a script, and zeros when they are used up.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = usize::from(self.byte()).min(most).min(self.0.len());
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head.to_vec()
    }

    pub fn word(&mut self) -> u64 {
        // Small numbers, numbers near the ends, and any.
        let byte = self.byte();
        match byte % 4 {
            0 => u64::from(byte / 4),
            1 => u64::MAX - u64::from(byte / 4),
            2 => u64::from(self.byte()) << (byte / 4),
            _ => (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte())),
        }
    }
}

/// What a hostile peer knows of its association.
#[derive(Clone, Copy)]
pub struct Known {
    /// The first path, and the id under which the peer receives.
    pub path: Path,
    pub peer: u32,
    /// The id under which the endpoint receives.
    pub id: u32,
    /// The next number to the endpoint, and the lowest not received from it.
    pub next: u64,
    pub ack: u64,
    /// The endpoint's reset token, with which a peer can add paths; and the cookie that it was last given for one.
    pub token: [u8; 16],
    pub cookie: [u8; 20],
}

/// All of these, and what they have sent.
#[derive(Default)]
pub struct Peers {
    pub known: Vec<Known>,
    /// The longest packet that was sent with each id and number.
    numbered: BTreeMap<(u32, u32), u64>,
    /// The sum of these, and what came with CONFIRMs.
    pub sent_bytes: u64,
    /// What programs have read.
    pub read_bytes: u64,
}

impl Peers {
    /// Whom a step is about.
    pub fn place(&self, operation: u8) -> usize {
        let place = usize::from(operation >> 5 & 3) % 3;
        if place < self.known.len() { place } else { 0 }
    }

    /// Whatever is sent with one number, one packet of it is taken.
    pub fn note_sent(&mut self, packet: &[u8]) {
        if packet[0] == 0x10 || (0x17..=0x1A).contains(&packet[0]) {
            let longest = self.numbered.entry((word(packet, 4), word(packet, 8))).or_default();
            let length = packet.len() as u64;
            self.sent_bytes += length.saturating_sub(*longest);
            *longest = length.max(*longest);
        }
    }
}

pub fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(packet[at..at + 4].try_into().unwrap())
}

/// One step of adding a path, over any of many, with a proof that is mostly right.
pub fn join(script: &mut Script<'_>, known: &Known) -> (Path, Vec<u8>) {
    let (step, number, bend) = (script.byte() % 5, script.byte() % 16, script.byte());
    let mut fields = vec![step, bend & 1, 2, 0];
    fields.extend_from_slice(&[number; 8]);
    fields.extend_from_slice(if step == 0 { &[0; 20] } else { &known.cookie });
    let proof = ropeway_proto::crypto::token::join_proof(&known.token, &fields);
    fields.extend_from_slice(&proof);
    if step < 2 {
        fields.resize(PACKET_BYTES - HEADER_BYTES, 0);
    }
    if bend & 0x30 == 0x30 {
        let at = usize::from(script.byte()) % fields.len();
        fields[at] ^= script.byte();
    }
    let mut packet = header(0x1F, 0, known.id, fields.len(), 0, 0);
    packet.extend_from_slice(&fields);
    (Path([number + 1; Path::BYTES]), packet)
}

pub fn header(kind: u8, flags: u8, id: u32, length: usize, number: u64, ack: u64) -> Vec<u8> {
    let mut out = vec![kind, flags];
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&(number as u32).to_be_bytes());
    out.extend_from_slice(&(ack as u32).to_be_bytes());
    out.extend_from_slice(&[0, 40, 16, 0, 0, 0, 0, 0]);
    out
}

/// A packet for the association, nearly right.
pub fn packet(script: &mut Script<'_>, known: &mut Known, operation: u8) -> Vec<u8> {
    let kind = 0x10 | (7 + operation % 16 % 8);
    let (flags, bend) = (script.byte(), script.byte());
    // PHASE means nothing without a key, and says here that DATA has the short header.
    let is_short = kind == 0x17 && flags & 0x40 != 0;
    let ahead = if bend & 1 == 0 { 0 } else { script.word() % 20_000 };
    let number = known.next.wrapping_add(ahead);
    let ack = if bend & 2 == 0 { known.ack } else { known.ack.wrapping_sub(5).wrapping_add(script.word() % 10) };
    let is_numbered = kind <= 0x1A;
    if is_numbered && ahead == 0 {
        known.next = known.next.wrapping_add(1);
    }
    let channel = if bend & 4 == 0 { u16::from(script.byte() % 6) } else { script.word() as u16 };
    let back = if bend & 8 == 0 { u16::from(bend >> 6) } else { script.word() as u16 };
    let payload = match kind {
        0x18 => {
            // Port 7 takes streams, 8 messages, 9 nothing.
            let port = 7 + (bend >> 7) + (bend >> 6 & 1);
            let mut open = vec![0, port, 0x9C, 0x40, bend >> 7, 0, 0, 0];
            open.extend(script.bytes(100));
            open
        }
        0x19 => vec![bend >> 7, 0],
        0x1A => vec![0, bend >> 4],
        0x1B | 0x1C => blocks(script, known),
        0x1D => Vec::new(),
        0x1E => [vec![9; 16], vec![0, bend >> 4]].concat(),
        _ if is_short => {
            let mut bytes = script.bytes(496);
            bytes.resize(496 + usize::from(bend == 0xFF), 0);
            bytes
        }
        _ => script.bytes(484),
    };
    let mut out = header(kind, flags & 0xBF, known.id, payload.len(), number, ack);
    if is_short {
        out[0] = 0x10;
        out.truncate(12);
    } else if bend & 0x10 != 0 {
        // Grant, first flight, backlog, times.
        (16..24).for_each(|at| out[at] = script.byte());
    }
    if is_numbered {
        out.extend_from_slice(&channel.to_be_bytes());
        out.extend_from_slice(&back.to_be_bytes());
    }
    out.extend_from_slice(&payload);
    if bend & 0x20 != 0 {
        let at = usize::from(script.byte()) % out.len();
        out[at] ^= script.byte();
    }
    out
}

fn blocks(script: &mut Script<'_>, known: &Known) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..script.byte() % 8 {
        let kind = 1 + script.byte() % 4;
        out.extend_from_slice(&[kind, 1]);
        let channel = u16::from(script.byte() % 6).to_be_bytes();
        match kind {
            1 => {
                let first = known.ack.wrapping_sub(10).wrapping_add(script.word());
                out.extend_from_slice(&(first as u32).to_be_bytes());
                out.extend_from_slice(&((script.word() as u16).max(1)).to_be_bytes());
            }
            3 => out.extend_from_slice(&channel),
            _ => {
                out.extend_from_slice(&channel);
                out.extend_from_slice(&script.word().to_be_bytes());
            }
        }
    }
    out
}
