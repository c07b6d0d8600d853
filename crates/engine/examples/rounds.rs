//! What a message and its answer cost in the engine when nobody waits for anything: two engines on an in-memory link, driven by one thread.
//!
//! `rounds [BYTES] [ROUNDS]` prints nanoseconds for each one-way trip; under `valgrind --tool=callgrind --toggle-collect='rounds::round*'` it counts instructions.
//! The rest of a ping-pong's time is the link, the wake-ups and the caches' distance.

use ropeway_engine::{ChannelId, Engine, Mode, Options, Target};
use ropeway_link::{Address, memory};
use std::time::{Duration, Instant};

#[inline(never)]
fn round(ends: [(&Engine, ChannelId); 2], message: &[u8], buffer: &mut [u8]) {
    let [(client, there), (server, back)] = ends;
    for (from, sending, to, receiving) in [(client, there, server, back), (server, back, client, there)] {
        from.send_all(sending, message, None).expect("send");
        // It was sent with the call, so it is there.
        assert_eq!(to.recv(receiving, buffer, None).expect("recv"), Some(message.len()));
    }
}

fn main() {
    let argument =
        |place: usize, usual: usize| std::env::args().nth(place).map_or(usual, |text| text.parse().expect("a number"));
    let (bytes, rounds) = (argument(1, 64), argument(2, 100_000));
    let options = Options { spin: Duration::from_secs(1), ..Options::default() };
    let (one, other) = memory::pair(memory::Config::default()).expect("a pair");
    let (client, server) = (Engine::new(&options).expect("engine"), Engine::new(&options).expect("engine"));
    let link = client.add_link(Box::new(one)).expect("link");
    server.add_link(Box::new(other)).expect("link");
    server.listen(7, Mode::Messages, 8).expect("listen");
    let deadline = Some(Instant::now() + Duration::from_secs(5));
    let there =
        client.connect(Target { link, address: Address::Sim(1) }, 7, Mode::Messages, deadline).expect("connect");
    let back = server.accept(7, deadline).expect("accept");
    [(&client, there), (&server, back)].iter().for_each(|(engine, channel)| engine.set_no_delay(*channel, true));
    let ends = [(&client, there), (&server, back)];
    let (message, mut buffer) = (vec![7; bytes], vec![0; bytes]);
    (0..1000).for_each(|_| round(ends, &message, &mut buffer));
    let begin = Instant::now();
    (0..rounds).for_each(|_| round(ends, &message, &mut buffer));
    println!("{bytes} bytes: {:.0} ns one way", begin.elapsed().as_nanos() as f64 / rounds as f64 / 2.0);
}
