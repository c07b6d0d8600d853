//! What a message costs in each user-level stage, without any link: the stages of document 1 (Send 5644, Recv 4518, Copy 4584 cycles of 500 MHz for 1472 bytes).
//!
//! `stages [BYTES] [MESSAGES] [BURST]` prints nanoseconds; under `valgrind --tool=callgrind --toggle-collect='stages::send*'` (or `receive`, `copy`) it counts instructions.
//! Sending goes as far as the packets that a link would be handed, receiving from the bytes that a link would hand over to the channel's queue, copying from there
//! into the user's buffer. Two endpoints in one thread, so caches are warm: what the code costs, not what memory does.

#![allow(clippy::disallowed_methods, reason = "it measures, and so reads a clock")]

use ropeway_proto::{ChannelId, Config, Endpoint, Mode, Path, Time};
use std::time::Instant;

struct World {
    client: Endpoint,
    server: Endpoint,
    now: u64,
    wire: Vec<u8>,
    lengths: Vec<usize>,
}

const CLIENT: Path = Path([1; Path::BYTES]);
const SERVER: Path = Path([2; Path::BYTES]);

impl World {
    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// Lets both say all they have to say.
    fn settle(&mut self) {
        for _ in 0..8 {
            let now = self.time();
            let (mut there, mut back) = (Vec::new(), Vec::new());
            self.client.transmit(now, &mut |_, _, packets| {
                there.extend(packets.iter().map(|packet| packet.to_vec()));
                packets.len()
            });
            there.iter().for_each(|packet| self.server.handle_packet(now, &CLIENT, false, packet));
            self.server.finish_batch(now);
            self.server.transmit(now, &mut |_, _, packets| {
                back.extend(packets.iter().map(|packet| packet.to_vec()));
                packets.len()
            });
            back.iter().for_each(|packet| self.client.handle_packet(now, &SERVER, false, packet));
            self.client.finish_batch(now);
        }
        self.now += 200_000;
        let now = self.time();
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
    }
}

#[inline(never)]
fn send(world: &mut World, channel: ChannelId, message: &[u8], burst: usize) {
    let now = world.time();
    for _ in 0..burst {
        world.client.send(now, channel, message).expect("room");
    }
    world.client.flush(channel);
    let (wire, lengths) = (&mut world.wire, &mut world.lengths);
    world.client.transmit(now, &mut |_, _, packets| {
        // What a kernel would copy; not counted as ours, but somebody must.
        packets.iter().for_each(|packet| {
            wire.extend_from_slice(packet);
            lengths.push(packet.len());
        });
        packets.len()
    });
}

#[inline(never)]
fn receive(world: &mut World) {
    let now = world.time();
    let mut at = 0;
    for &length in &world.lengths {
        world.server.handle_packet(now, &CLIENT, false, &world.wire[at..at + length]);
        at += length;
    }
    world.server.finish_batch(now);
    world.wire.clear();
    world.lengths.clear();
}

#[inline(never)]
fn copy(world: &mut World, channel: ChannelId, out: &mut [u8], burst: usize) -> usize {
    (0..burst).map_while(|_| world.server.recv(channel, out).ok().flatten()).count()
}

fn main() {
    let argument =
        |place: usize, usual: usize| std::env::args().nth(place).map_or(usual, |text| text.parse().expect("a number"));
    let (bytes, messages, burst) = (argument(1, 1472), argument(2, 100_000), argument(3, 8));
    let config = Config { packet_bytes: 1500, port_buffer_bytes: 1 << 20, ..Config::default() };
    let mut world = World {
        client: Endpoint::new(config.clone(), 1, 1, [1; 32]),
        server: Endpoint::new(config, 2, 1, [2; 32]),
        now: 1_000_000_000,
        wire: Vec::new(),
        lengths: Vec::new(),
    };
    world.server.listen(7, Mode::Messages, 8).expect("listen");
    let now = world.time();
    let client = world.client.connect(now, &SERVER, 7, Mode::Messages).expect("connect");
    world.settle();
    let server = world.server.accept(7).expect("accept");
    let (message, mut out) = (vec![7; bytes], vec![0; bytes]);
    let (mut spent, mut received) = ([0u128; 3], 0);
    for _ in 0..messages / burst {
        let start = Instant::now();
        send(&mut world, client, &message, burst);
        let sent = Instant::now();
        receive(&mut world);
        let arrived = Instant::now();
        received += copy(&mut world, server, &mut out, burst);
        let copied = Instant::now();
        for (sum, span) in spent.iter_mut().zip([sent - start, arrived - sent, copied - arrived]) {
            *sum += span.as_nanos();
        }
        world.settle();
        received += copy(&mut world, server, &mut out, burst);
    }
    let count = (messages / burst * burst) as f64;
    let each = spent.map(|ns| ns as f64 / count);
    println!(
        "{bytes} bytes, bursts of {burst}: send {:.0} ns, receive {:.0} ns, copy {:.0} ns each; {received} arrived",
        each[0], each[1], each[2]
    );
}
