//! A whole endpoint, fed by a peer that has proved its address and then sends anything.
//!
//! The input is a script: each step is an operation byte and what it needs of the bytes behind it. Most steps make a packet that is nearly right, as random
//! bytes would hardly ever pass the first checks: numbers, acknowledgments and channels are near the true ones, and what they say is the script's. Others may join the
//! peer, who share the gate with it.
//!
//! What must hold: nothing panics; nothing is read that was not sent, nor twice; the gate's sums are those of its senders, and of what associations were granted; nobody waits for
//! a grant while there is nothing else granted; timers come to rest; who falls silent keeps nothing; memory stays within its bounds, and all of it comes back.

// Tests take this file by its path, too.
#[path = "endpoint/peers.rs"]
mod peers;

use peers::{Known, Peers, Script, header, join, packet, word};
use ropeway_proto::config::{GateMode, Order};
use ropeway_proto::{ChannelId, Config, Counters, Endpoint, Event, Landing, MOST_PATHS, Mode, Path, Time};

const ME: Path = Path([1; Path::BYTES]);
/// What the memory of an endpoint may grow to: `Config` below, and the bounds of what is counted in packets.
const MOST_BUFFERS: usize = 3000;
const HEADER_BYTES: usize = 24;
const PACKET_BYTES: usize = 512;
/// So many associations the peers know at a time, and under so many ids they receive.
const MOST_KNOWN: usize = 4;
const FIRST_PEER_ID: u32 = 0x23;
const FIRST_NUMBER: u64 = 100;
/// Timers that are due are run so often, at most, before none is.
const MOST_LOOKS: usize = 8;
/// No association outlives so much silence. It is short, as each timer on the way takes time here, too.
const SILENCE_NS: u64 = 2 * IDLE_LIMIT_NS;
const IDLE_LIMIT_NS: u64 = 3_000_000_000;
const GIVE_UP_NS: u64 = 2_000_000_000;

fn config() -> Config {
    Config {
        receive_memory_bytes: 2 << 20,
        send_memory_bytes: 1 << 20,
        receive_buffer_bytes: 64 << 10,
        send_buffer_bytes: 64 << 10,
        longest_message_bytes: 1 << 20,
        max_associations: 8,
        max_channels: 64,
        connect_timeout_ns: GIVE_UP_NS,
        give_up_ns: GIVE_UP_NS,
        keep_alive_ns: IDLE_LIMIT_NS / 4,
        idle_limit_ns: IDLE_LIMIT_NS,
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
    let mut peers = Peers::default();
    open(&mut endpoint, &mut script, now, &mut peers);
    let mut channels = Vec::new();
    let mut may_fall_silent = true;
    while !script.0.is_empty() {
        let operation = script.byte();
        // Packets may come together, and then beside a reader who waits: as the rest of a run does.
        let is_together = operation % 16 <= 8 && operation & 16 != 0;
        now += if is_together { 0 } else { 1000 };
        match operation % 16 {
            0..=8 => {
                let reader = channels.last().filter(|_| is_together);
                arrive(&mut endpoint, &mut script, now, operation, reader.copied(), &mut peers);
            }
            9 => endpoint.finish_batch(Time::from_nanos(now)),
            10 => {
                now += script.word() % 20_000_000_000;
                endpoint.handle_timeout(Time::from_nanos(now));
                if operation & 16 != 0 {
                    come_to_rest(&mut endpoint, now, &mut peers);
                }
            }
            11 => channels.extend([7, 8].into_iter().filter_map(|port| endpoint.accept(port).ok())),
            12 => {
                let mode = if operation & 16 == 0 { Mode::Stream } else { Mode::Messages };
                let path = peers.known[peers.place(operation)].path;
                channels.extend(endpoint.connect(Time::from_nanos(now), &path, 9, mode).ok());
            }
            13 => read_and_write(&mut endpoint, &mut script, now, &channels, &mut peers),
            14 if !channels.is_empty() => {
                let channel = channels.swap_remove(usize::from(script.byte()) % channels.len());
                if operation & 16 == 0 {
                    endpoint.close(Time::from_nanos(now), channel);
                } else {
                    endpoint.abort(Time::from_nanos(now), channel);
                }
            }
            15 if operation & 0x40 != 0 => {
                let (path, packet) = join(&mut script, &peers.known[0]);
                endpoint.handle_packet(Time::from_nanos(now), &path, false, &packet);
                drain(&mut endpoint, now, &mut peers);
            }
            15 if operation & 0x20 != 0 => {
                drain(&mut endpoint, now, &mut peers);
                open_another(&mut endpoint, &mut script, now, &mut peers);
                drain(&mut endpoint, now, &mut peers);
            }
            15 if operation & 0x90 == 0x10 => configure(&mut endpoint, &mut script, now),
            15 if operation & 0x90 == 0x90 && std::mem::take(&mut may_fall_silent) => {
                now = fall_silent(&mut endpoint, now, &mut peers);
            }
            15 if operation & 0x90 == 0x80 => {
                let most = usize::from(script.byte() % 8);
                drain_some(&mut endpoint, now, &mut peers, most);
            }
            _ => drain(&mut endpoint, now, &mut peers),
        }
        check(&mut endpoint, &peers);
    }
    drain(&mut endpoint, now, &mut peers);
    for channel in channels {
        endpoint.close(Time::from_nanos(now), channel);
    }
    endpoint.close_all(Time::from_nanos(now));
    drain(&mut endpoint, now, &mut peers);
    [7, 8].into_iter().for_each(|port| {
        while let Ok(channel) = endpoint.accept(port) {
            endpoint.close(Time::from_nanos(now), channel);
        }
    });
    check_gate_is_free(&mut endpoint);
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
    drain(&mut endpoint, 1_000_000_000, &mut Peers::default());
    assert_eq!(endpoint.counters().packets_received, count);
}

fn check(endpoint: &mut Endpoint, peers: &Peers) {
    let (sending, receiving) = endpoint.buffers_in_use();
    assert!(sending + receiving < MOST_BUFFERS * 16, "{sending} and {receiving} buffers");
    let paths = endpoint.association_statistics(Time::ZERO).map(|association| association.paths).max();
    assert!(paths.is_none_or(|paths| paths <= MOST_PATHS), "{paths:?} paths");
    let (associations, channels) = endpoint.sizes();
    assert!(associations <= 8 && channels <= 8 * 64 + 64, "{associations} associations, {channels} channels");
    let (read, received) = (peers.read_bytes, endpoint.counters().payload_received_bytes);
    assert!(read.max(received) <= peers.sent_bytes, "{read} and {received} of {} bytes", peers.sent_bytes);
    check_gate(endpoint);
}

fn check_gate(endpoint: &mut Endpoint) {
    let granted = |endpoint: &Endpoint| {
        let each = endpoint.association_statistics(Time::ZERO).map(|association| association.granted_packets);
        each.filter(|&packets| packets > 0).count() as u64
    };
    let (has_open_batch, holders) = (endpoint.has_open_batch(), granted(endpoint));
    let gate = endpoint.gate();
    assert!(gate.sums_are_true(), "{gate:?}");
    if !has_open_batch {
        assert_eq!(gate.holders(), holders, "{gate:?}");
        assert!(!gate.is_waited_at() || gate.charged_bytes() > 0 || gate.grantable_bytes() == 0, "{gate:?}");
    }
}

fn check_gate_is_free(endpoint: &mut Endpoint) {
    let gate = endpoint.gate();
    assert!(gate.sums_are_true(), "{gate:?}");
    assert_eq!((gate.wish().bytes, gate.holders(), gate.is_waited_at()), (0, 0, false), "{gate:?}");
}

/// Takes what the endpoint sends, and learns from it what peers would.
fn drain(endpoint: &mut Endpoint, now: u64, peers: &mut Peers) {
    drain_some(endpoint, now, peers, usize::MAX);
}

/// The same where the link takes no more than so many packets.
fn drain_some(endpoint: &mut Endpoint, now: u64, peers: &mut Peers, most: usize) {
    let mut left = most;
    endpoint.finish_batch(Time::from_nanos(now));
    endpoint.transmit(Time::from_nanos(now), &mut |_, _, packets| {
        let taken = packets.len().min(left);
        left -= taken;
        for packet in &packets[..taken] {
            let Some(known) = peers.known.iter_mut().find(|known| known.peer == word(packet, 4)) else { continue };
            if packet[0] == 0x1F && packet[HEADER_BYTES] == 1 {
                known.cookie.copy_from_slice(&packet[HEADER_BYTES + 12..HEADER_BYTES + 32]);
            }
            if (7..=10).contains(&(packet[0] & 15)) {
                let low = word(packet, 8);
                let number = known.ack.wrapping_add_signed(i64::from(low.wrapping_sub(known.ack as u32) as i32));
                if number == known.ack {
                    known.ack = known.ack.wrapping_add(1);
                }
            }
        }
        taken
    });
    while let Some(event) = endpoint.poll_event() {
        if let Event::Changed(channel) = event {
            endpoint.readiness(channel);
        }
    }
}

/// One packet arrives, beside the reader of a channel.
fn arrive(
    endpoint: &mut Endpoint,
    script: &mut Script<'_>,
    now: u64,
    operation: u8,
    reader: Option<ChannelId>,
    peers: &mut Peers,
) {
    let known = peers.place(operation);
    let known = &mut peers.known[known];
    let packet = packet(script, known, operation);
    // Over the first path, or over another one, which may have been added.
    let path = if operation & 0x60 == 0x60 { Path([2 + (operation >> 4 & 1); Path::BYTES]) } else { known.path };
    peers.note_sent(&packet);
    let mut out = [0; 700];
    let mut landing = reader.map(|channel| Landing::new(channel, &mut out));
    endpoint.handle_packet_for(Time::from_nanos(now), &path, operation & 0x80 != 0, &packet, &mut landing);
    peers.read_bytes += landing.and_then(|landing| landing.filled()).unwrap_or(0) as u64;
}

/// Runs what is due until nothing is.
fn come_to_rest(endpoint: &mut Endpoint, now: u64, peers: &mut Peers) {
    let at = Time::from_nanos(now);
    for _ in 0..MOST_LOOKS {
        drain(endpoint, now, peers);
        if endpoint.next_timeout(at).is_none_or(|due| due > at) {
            return;
        }
        endpoint.handle_timeout(at);
    }
    panic!("what is due stays due");
}

/// Nothing is heard of anybody any more: no association outlives that, nor does what it was granted. Gives the time after it.
fn fall_silent(endpoint: &mut Endpoint, now: u64, peers: &mut Peers) -> u64 {
    let (mut now, end) = (now, now + SILENCE_NS);
    come_to_rest(endpoint, now, peers);
    while let Some(due) = endpoint.next_timeout(Time::from_nanos(now)).filter(|due| due.as_nanos() <= end) {
        now = due.as_nanos();
        endpoint.handle_timeout(due);
        come_to_rest(endpoint, now, peers);
        check(endpoint, peers);
    }
    assert_eq!(endpoint.sizes().0, 0, "associations outlive silence");
    check_gate_is_free(endpoint);
    end
}

/// Other settings of the gate, and how much of the budget it may grant.
fn configure(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64) {
    let byte = script.byte();
    let order = [Order::Fifo, Order::Srpt, Order::Fair][usize::from(byte) % 3];
    let gate_mode = if byte & 0x60 == 0x60 { GateMode::Esp } else { GateMode::Grants };
    let window_packets = if byte & 0x10 == 0 { 0 } else { 1 + u16::from(byte & 15) };
    let port_buffer_bytes = if byte & 0x20 == 0 { 128 << 10 } else { 16 << 10 };
    let settings = Config { order, gate_mode, window_packets, port_buffer_bytes, ..config() };
    endpoint.configure(settings).expect("the memory is the same");
    let allowed = if byte & 0x80 == 0 { u64::MAX } else { script.word() % 100_000 };
    endpoint.gate().set_allowed(allowed);
    endpoint.finish_batch(Time::from_nanos(now));
}

fn read_and_write(
    endpoint: &mut Endpoint,
    script: &mut Script<'_>,
    now: u64,
    channels: &[ChannelId],
    peers: &mut Peers,
) {
    let mut out = [0; 5000];
    for &channel in channels {
        match script.byte() % 4 {
            0 => {
                let read = endpoint.recv(channel, &mut out);
                peers.read_bytes += read.ok().flatten().unwrap_or(0) as u64;
            }
            1 => drop(endpoint.send(Time::from_nanos(now), channel, &out[..usize::from(script.byte()) * 16])),
            2 => drop(endpoint.shutdown(Time::from_nanos(now), channel)),
            _ => drop(endpoint.send_until(Time::from_nanos(now), channel, &out[..600], Time::from_nanos(now + 50_000))),
        }
    }
}

/// Opens an association as an honest client does; the parameters are the script's.
fn open(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64, peers: &mut Peers) {
    let at = Time::from_nanos(now);
    let mut said = parameters(script, FIRST_PEER_ID);
    said.extend_from_slice(&[0, 7, 0x9C, 0x40, 0, 0, 0, 0]);
    let packet = confirm(endpoint, at, (&ME, FIRST_PEER_ID, 1), 0, &said).expect("an honest client gets a COOKIE");
    endpoint.handle_packet(at, &ME, false, &packet);
    let known = opened(endpoint, at, (&ME, FIRST_PEER_ID));
    peers.known.push(known.expect("the endpoint opens for an honest client"));
}

/// Another client, whose CONFIRM has early data as the script wants them, of more than a packet too.
fn open_another(endpoint: &mut Endpoint, script: &mut Script<'_>, now: u64, peers: &mut Peers) {
    let (nonce, flags) = (script.byte(), script.byte());
    let (at, path) = (Time::from_nanos(now), Path([9 + (flags & 3); Path::BYTES]));
    let id = FIRST_PEER_ID + peers.known.len() as u32;
    let mut said = parameters(script, id);
    said.extend_from_slice(&[0, 7 + (flags >> 7), 0x9C, 0x40, flags >> 7, 0, 0, 0]);
    said.extend(script.bytes(255));
    said.resize(said.len() + script.word() as usize % 60_000, 0);
    let Some(packet) = confirm(endpoint, at, (&path, id, nonce), flags, &said) else { return };
    let associations = endpoint.sizes().0;
    peers.sent_bytes += packet.len() as u64;
    endpoint.handle_packet(at, &path, false, &packet);
    assert!(packet.len() <= PACKET_BYTES || endpoint.sizes().0 == associations, "opened by {} bytes", packet.len());
    if peers.known.len() < MOST_KNOWN {
        peers.known.extend(opened(endpoint, at, (&path, id)));
    }
}

/// What a client learns from the OPENED for it.
fn opened(endpoint: &mut Endpoint, at: Time, from: (&Path, u32)) -> Option<Known> {
    let packet = said_now(endpoint, at).into_iter().find(|packet| packet[0] == 0x14)?;
    let parameters = &packet[HEADER_BYTES + 8..];
    Some(Known {
        path: *from.0,
        peer: from.1,
        id: word(parameters, 0),
        next: FIRST_NUMBER + 1,
        ack: u64::from_be_bytes(parameters[4..12].try_into().unwrap()),
        token: parameters[20..36].try_into().unwrap(),
        cookie: [0; 20],
    })
}

fn parameters(script: &mut Script<'_>, id: u32) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend_from_slice(&FIRST_NUMBER.to_be_bytes());
    out.extend_from_slice(&(script.word() as u32).to_be_bytes());
    out.extend_from_slice(&(script.word() as u32).to_be_bytes());
    out.extend_from_slice(&[9; 16]);
    out
}

/// Asks for a COOKIE, and gives the CONFIRM that has it, and behind it what is `said`.
fn confirm(endpoint: &mut Endpoint, at: Time, from: (&Path, u32, u8), flags: u8, said: &[u8]) -> Option<Vec<u8>> {
    let (path, id, nonce) = from;
    let mut fields = id.to_be_bytes().to_vec();
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
