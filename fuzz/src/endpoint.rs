//! A whole endpoint, fed by a peer that has proved its address and then sends anything.
//!
//! The input is a script: each step is an operation byte and what it needs of the bytes behind it. Most steps make a packet that is nearly right, as random
//! bytes would hardly ever pass the first checks: numbers, acknowledgments and channels are near the true ones, and what they say is the script's.

use ropeway_proto::{Config, Counters, Endpoint, Event, MOST_PATHS, Mode, Path, Time};

const ME: Path = Path([1; Path::BYTES]);
/// What the memory of an endpoint may grow to: `Config` below, and the bounds of what is counted in packets.
const MOST_BUFFERS: usize = 3000;
const HEADER_BYTES: usize = 24;
const PACKET_BYTES: usize = 512;

/// The bytes of a script, and zeros when they are used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = usize::from(self.byte()).min(most).min(self.0.len());
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        head.to_vec()
    }

    fn word(&mut self) -> u64 {
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

/// What the hostile peer knows of the association.
#[derive(Default)]
struct Known {
    /// The id under which the endpoint receives.
    id: u32,
    /// The next number to the endpoint, and the lowest not received from it.
    next: u64,
    ack: u64,
    /// The endpoint's reset token, with which a peer can add paths; and the cookie that it was last given for one.
    token: [u8; 16],
    cookie: [u8; 20],
}

fn config() -> Config {
    Config {
        receive_memory_bytes: 2 << 20,
        send_memory_bytes: 1 << 20,
        receive_buffer_bytes: 64 << 10,
        send_buffer_bytes: 64 << 10,
        longest_message_bytes: 1 << 20,
        max_associations: 8,
        max_channels: 64,
        packet_bytes: PACKET_BYTES as u16,
        first_number: Some(u64::MAX - 40),
        ..Config::default()
    }
}

/// Runs a script, and checks afterwards that the endpoint has kept its bounds and can be emptied. Gives what it counted.
pub fn endpoint(script: &[u8]) -> Counters {
    let mut script = Script(script);
    let mut endpoint = Endpoint::new(config(), 5, 1, [7; 32]);
    endpoint.listen(7, Mode::Stream, 16).unwrap();
    endpoint.listen(8, Mode::Messages, 16).unwrap();
    let mut now = 1_000_000_000;
    let mut known = Known { next: 100, ..Known::default() };
    open(&mut endpoint, &mut script, now, &mut known);
    let mut channels = Vec::new();
    while !script.0.is_empty() {
        now += 1000;
        let operation = script.byte();
        match operation % 16 {
            0..=8 => {
                let packet = packet(&mut script, &mut known, operation);
                // Over the first path, or over another one, which may have been added.
                let path = if operation & 0x60 == 0x60 { Path([2 + (operation >> 4 & 1); Path::BYTES]) } else { ME };
                endpoint.handle_packet(Time::from_nanos(now), &path, operation & 0x80 != 0, &packet);
            }
            9 => endpoint.finish_batch(Time::from_nanos(now)),
            10 => {
                now += script.word() % 20_000_000_000;
                endpoint.handle_timeout(Time::from_nanos(now));
            }
            11 => channels.extend([7, 8].into_iter().filter_map(|port| endpoint.accept(port).ok())),
            12 => {
                let mode = if operation & 16 == 0 { Mode::Stream } else { Mode::Messages };
                channels.extend(endpoint.connect(Time::from_nanos(now), &ME, 9, mode).ok());
            }
            13 => read_and_write(&mut endpoint, &mut script, now, &channels),
            14 if !channels.is_empty() => {
                let channel = channels.swap_remove(usize::from(script.byte()) % channels.len());
                if operation & 16 == 0 {
                    endpoint.close(Time::from_nanos(now), channel);
                } else {
                    endpoint.abort(Time::from_nanos(now), channel);
                }
            }
            15 if operation & 0x40 != 0 => {
                let (path, packet) = join(&mut script, &known);
                endpoint.handle_packet(Time::from_nanos(now), &path, false, &packet);
                drain(&mut endpoint, now, &mut known);
            }
            15 if operation & 0x20 != 0 => {
                drain(&mut endpoint, now, &mut known);
                open_another(&mut endpoint, &mut script, now);
                drain(&mut endpoint, now, &mut known);
            }
            _ => drain(&mut endpoint, now, &mut known),
        }
        check(&endpoint);
    }
    drain(&mut endpoint, now, &mut known);
    for channel in channels {
        endpoint.close(Time::from_nanos(now), channel);
    }
    endpoint.close_all();
    drain(&mut endpoint, now, &mut known);
    [7, 8].into_iter().for_each(|port| {
        while let Ok(channel) = endpoint.accept(port) {
            endpoint.close(Time::from_nanos(now), channel);
        }
    });
    assert_eq!((endpoint.sizes(), endpoint.buffers_in_use(), endpoint.promised_bytes()), ((0, 0), (0, 0), 0));
    endpoint.counters()
}

/// Any bytes at all.
pub fn raw<'a>(packets: impl Iterator<Item = &'a [u8]>) {
    let mut endpoint = Endpoint::new(config(), 5, 1, [7; 32]);
    endpoint.listen(7, Mode::Stream, 16).unwrap();
    let mut count = 0;
    for packet in packets {
        endpoint.handle_packet(Time::from_nanos(1_000_000_000), &ME, false, packet);
        count += 1;
    }
    endpoint.finish_batch(Time::from_nanos(1_000_000_000));
    drain(&mut endpoint, 1_000_000_000, &mut Known::default());
    assert_eq!(endpoint.counters().packets_received, count);
}

fn check(endpoint: &Endpoint) {
    let (sending, receiving) = endpoint.buffers_in_use();
    assert!(sending + receiving < MOST_BUFFERS * 16, "{sending} and {receiving} buffers");
    let paths = endpoint.association_statistics(Time::ZERO).map(|association| association.paths).max();
    assert!(paths.is_none_or(|paths| paths <= MOST_PATHS), "{paths:?} paths");
    let (associations, channels) = endpoint.sizes();
    assert!(associations <= 8 && channels <= 8 * 64 + 64, "{associations} associations, {channels} channels");
}

/// Takes what the endpoint sends, and learns from it what a peer would.
fn drain(endpoint: &mut Endpoint, now: u64, known: &mut Known) {
    endpoint.finish_batch(Time::from_nanos(now));
    endpoint.transmit(Time::from_nanos(now), &mut |_, _, packets| {
        for packet in packets {
            if packet[0] == 0x1F && packet[HEADER_BYTES] == 1 {
                known.cookie.copy_from_slice(&packet[HEADER_BYTES + 12..HEADER_BYTES + 32]);
            }
            let low = u32::from_be_bytes(packet[8..12].try_into().unwrap());
            if (7..=10).contains(&(packet[0] & 15)) {
                let number = known.ack.wrapping_add_signed(i64::from(low.wrapping_sub(known.ack as u32) as i32));
                if number == known.ack {
                    known.ack = known.ack.wrapping_add(1);
                }
            }
        }
        packets.len()
    });
    while let Some(event) = endpoint.poll_event() {
        if let Event::Changed(channel) = event {
            endpoint.readiness(channel);
        }
    }
}

fn read_and_write(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64, channels: &[ropeway_proto::ChannelId]) {
    let mut out = [0; 5000];
    for &channel in channels {
        match script.byte() % 4 {
            0 => drop(endpoint.recv(channel, &mut out)),
            1 => drop(endpoint.send(Time::from_nanos(now), channel, &out[..usize::from(script.byte()) * 16])),
            2 => drop(endpoint.shutdown(Time::from_nanos(now), channel)),
            _ => drop(endpoint.send_until(Time::from_nanos(now), channel, &out[..600], Time::from_nanos(now + 50_000))),
        }
    }
}

/// Opens an association as an honest client does; the parameters are the script's.
fn open(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64, known: &mut Known) {
    let at = Time::from_nanos(now);
    let mut said = parameters(script, known.next);
    said.extend_from_slice(&[0, 7, 0x9C, 0x40, 0, 0, 0, 0]);
    let packet = confirm(endpoint, at, (&ME, 1), 0, &said).expect("an honest client gets a COOKIE");
    endpoint.handle_packet(at, &ME, false, &packet);
    let opened = said_now(endpoint, at).swap_remove(0);
    assert_eq!(opened[0], 0x14, "the endpoint opens for an honest client");
    let parameters = &opened[HEADER_BYTES + 8..];
    known.id = u32::from_be_bytes(parameters[..4].try_into().unwrap());
    known.ack = u64::from_be_bytes(parameters[4..12].try_into().unwrap());
    known.token.copy_from_slice(&parameters[20..36]);
    known.next = known.next.wrapping_add(1);
}

/// Another client, whose CONFIRM has early data as the script wants them, of more than a packet too.
fn open_another(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64) {
    let (at, path) = (Time::from_nanos(now), Path([9; Path::BYTES]));
    let (nonce, flags) = (script.byte(), script.byte());
    let mut said = parameters(script, 100);
    said.extend_from_slice(&[0, 7 + (flags >> 7), 0x9C, 0x40, flags >> 7, 0, 0, 0]);
    said.extend(script.bytes(255));
    said.resize(said.len() + script.word() as usize % 60_000, 0);
    let Some(packet) = confirm(endpoint, at, (&path, nonce), flags, &said) else { return };
    let associations = endpoint.sizes().0;
    endpoint.handle_packet(at, &path, false, &packet);
    assert!(packet.len() <= PACKET_BYTES || endpoint.sizes().0 == associations, "opened by {} bytes", packet.len());
}

fn parameters(script: &mut Script<'_>, first_number: u64) -> Vec<u8> {
    let mut out = 0x0000_0023u32.to_be_bytes().to_vec();
    out.extend_from_slice(&first_number.to_be_bytes());
    out.extend_from_slice(&(script.word() as u32).to_be_bytes());
    out.extend_from_slice(&(script.word() as u32).to_be_bytes());
    out.extend_from_slice(&[9; 16]);
    out
}

/// Asks for a COOKIE, and gives the CONFIRM that has it, and behind it what is `said`.
fn confirm(endpoint: &mut Endpoint, at: Time, from: (&Path, u8), flags: u8, said: &[u8]) -> Option<Vec<u8>> {
    let (path, nonce) = from;
    let mut fields = Vec::new();
    fields.extend_from_slice(&0x0000_0023u32.to_be_bytes());
    fields.extend_from_slice(&[nonce, 2, 3, 4, 5, 6, 7, 8]);
    fields.extend_from_slice(&17u64.to_be_bytes());
    fields.extend_from_slice(&[0, 7, 0x9C, 0x40, 2, 0, 1, 1, 0, 0, 0, 0]);
    let mut syn = header(0x11, 0, 0xFFF0_0070, PACKET_BYTES - HEADER_BYTES, 0, 0);
    syn.extend_from_slice(&fields);
    syn.resize(PACKET_BYTES, 0);
    endpoint.handle_packet(at, path, false, &syn);
    let cookie = said_now(endpoint, at).into_iter().find(|packet| packet[0] == 0x12)?;
    fields.extend_from_slice(&cookie[HEADER_BYTES + 12..HEADER_BYTES + 32]);
    fields.extend_from_slice(said);
    let mut packet = header(0x13, flags, 0xFFF0_0070, fields.len(), 0, 0);
    packet.extend_from_slice(&fields);
    Some(packet)
}

fn said_now(endpoint: &mut Endpoint, at: Time) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    endpoint.transmit(at, &mut |_, _, packets| {
        out.extend(packets.iter().map(|packet| packet.to_vec()));
        packets.len()
    });
    out
}

/// One step of adding a path, over any of many, with a proof that is mostly right.
fn join(script: &mut Script<'_>, known: &Known) -> (Path, Vec<u8>) {
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

fn header(kind: u8, flags: u8, id: u32, length: usize, number: u64, ack: u64) -> Vec<u8> {
    let mut out = vec![kind, flags];
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&(number as u32).to_be_bytes());
    out.extend_from_slice(&(ack as u32).to_be_bytes());
    out.extend_from_slice(&[0, 40, 16, 0, 0, 0, 0, 0]);
    out
}

/// A packet for the association, nearly right.
fn packet(script: &mut Script<'_>, known: &mut Known, operation: u8) -> Vec<u8> {
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
