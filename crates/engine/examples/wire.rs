//! Measures two engines on two hosts: `wire serve LINK` on one, `wire LINK PEER CASE [SECONDS]` on the other, with `SPIN_US` in the environment.
//!
//! LINK is `udp:ADDRESS:PORT` or `packet:DEVICE`, PEER is `ADDRESS:PORT` or a MAC address. Cases: `pingpong`, `stream`, `rate`.

use ropeway_engine::key_file::Choice;
use ropeway_engine::{ChannelId, Config, Engine, LinkId, Mode, Options, Target};
use ropeway_link::packet::{self, PacketLink};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Link};
use std::time::{Duration, Instant};

const PORT: u16 = 7;
/// What the first message of a connection asks for.
const ECHO: u8 = 1;
const SINK: u8 = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", link] => serve(link),
        [link, peer, case] => run(link, peer, case, 2.0),
        [link, peer, case, seconds] => run(link, peer, case, seconds.parse().expect("seconds")),
        _ => panic!("usage: wire serve LINK | wire LINK PEER CASE [SECONDS]"),
    }
}

fn engine(link: &str) -> (Engine, LinkId) {
    let spin = std::env::var("SPIN_US").ok().map(|text| Duration::from_micros(text.parse().expect("SPIN_US")));
    let link: Box<dyn Link> = match link.split_once(':').expect("udp:ADDRESS or packet:DEVICE") {
        ("udp", address) => {
            let receive_buffer_bytes = 8 << 20;
            let options = udp::Options::new(address.parse().expect("address"));
            Box::new(UdpLink::open(&udp::Options { receive_buffer_bytes, ..options }).expect("udp"))
        }
        ("packet", device) => Box::new(PacketLink::open(&packet::Options::new(device)).expect("packet")),
        _ => panic!("no such link"),
    };
    let mut config = Config { packet_bytes: link.max_packet() as u16, ..Config::default() };
    for setting in std::env::var("TUNE").unwrap_or_default().split(',').filter(|text| !text.is_empty()) {
        let (name, value) = setting.split_once('=').expect("NAME=VALUE");
        config.set(name, value.parse().expect("a number")).expect("a tunable");
    }
    // ROPEWAY_KEY_FILE: how much a key costs.
    let choice = Choice::from_environment().expect("keys");
    let keys = choice.and_then(|choice| choice.load().expect("keys"));
    let mut options = Options { config, keys, ..Options::default() };
    options.spin = spin.unwrap_or(options.spin);
    let engine = Engine::new(&options).expect("engine");
    let id = engine.add_link(link).expect("link");
    (engine, id)
}

fn serve(link: &str) {
    let (engine, _) = engine(link);
    engine.listen(PORT, Mode::Messages, 64).expect("listen");
    engine.listen(PORT + 1, Mode::Stream, 64).expect("listen");
    let streams = engine.clone();
    std::thread::spawn(move || {
        while let Ok(channel) = streams.accept(PORT + 1, None) {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(Some(_)) = streams.recv(channel, &mut buffer, None) {}
            streams.close(channel);
        }
    });
    while let Ok(channel) = engine.accept(PORT, None) {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            let Ok(Some(_)) = engine.recv(channel, &mut buffer, None) else { return };
            let case = buffer[0];
            let mut count = 0u64;
            while let Ok(Some(bytes)) = engine.recv(channel, &mut buffer, None) {
                count += 1;
                let is_last = case == SINK && bytes == 1;
                if (case == ECHO || is_last) && engine.send_all(channel, &buffer[..bytes], None).is_err() {
                    break;
                }
            }
            engine.close(channel);
            eprintln!("{count} messages");
        });
    }
}

fn run(link: &str, peer: &str, case: &str, seconds: f64) {
    let (engine, link) = engine(link);
    let address = match peer.parse() {
        Ok(address) => Address::Udp(address),
        Err(_) => {
            let bytes: Vec<u8> = peer.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("MAC")).collect();
            Address::Ether(bytes.try_into().expect("six bytes"))
        }
    };
    let (port, mode) = if case == "stream" { (PORT + 1, Mode::Stream) } else { (PORT, Mode::Messages) };
    let deadline = Some(Instant::now() + Duration::from_secs(5));
    let channel = engine.connect(Target { link, address }, port, mode, deadline).expect("connect");
    match case {
        "pingpong" => ping_pong(&engine, channel, seconds),
        "stream" => stream(&engine, channel, seconds),
        "rate" => rate(&engine, channel, seconds),
        _ => panic!("no such case"),
    }
    engine.close(channel);
    let counters = engine.counters();
    println!(
        "sent {} packets, received {}, resent {}, states {}, lost {}, {:?}",
        counters.packets_sent,
        counters.packets_received,
        counters.resent,
        counters.states_sent,
        counters.lost,
        engine.links()
    );
}

fn ping_pong(engine: &Engine, channel: ChannelId, seconds: f64) {
    engine.send_all(channel, &[ECHO], None).expect("send");
    let (mut buffer, message) = (vec![0; 2048], vec![7; 64]);
    let mut round = || {
        engine.send_all(channel, &message, None).expect("send");
        assert_eq!(engine.recv(channel, &mut buffer, None).expect("recv"), Some(64));
    };
    (0..1000).for_each(|_| round());
    let (begin, mut samples) = (Instant::now(), Vec::new());
    while begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        round();
        samples.push(start.elapsed().as_nanos() as u64);
    }
    samples.sort_unstable();
    let at = |share: f64| samples[(samples.len() as f64 * share) as usize] as f64 / 2000.0;
    println!("one way: median {:.2} us, p99 {:.2} us, {} rounds", at(0.5), at(0.99), samples.len());
}

fn stream(engine: &Engine, channel: ChannelId, seconds: f64) {
    let data = vec![1; 256 << 10];
    let (begin, mut sent) = (Instant::now(), 0u64);
    while begin.elapsed().as_secs_f64() < seconds {
        engine.send_all(channel, &data, None).map_err(|error| error.1).expect("send");
        sent += data.len() as u64;
    }
    engine.drain(channel, None).expect("drain");
    println!("{:.3} Gbit/s", sent as f64 * 8.0 / begin.elapsed().as_nanos() as f64);
}

fn rate(engine: &Engine, channel: ChannelId, seconds: f64) {
    engine.send_all(channel, &[SINK], None).expect("send");
    let message = vec![7; 64];
    let (begin, mut sent) = (Instant::now(), 0u64);
    while begin.elapsed().as_secs_f64() < seconds {
        (0..1000).for_each(|_| engine.send_all(channel, &message, None).expect("send"));
        sent += 1000;
    }
    engine.send_all(channel, &[0], None).expect("send");
    assert_eq!(engine.recv(channel, &mut [0; 64], None).expect("recv"), Some(1));
    println!("{:.2} million messages a second", sent as f64 / 1e6 / begin.elapsed().as_secs_f64());
}
