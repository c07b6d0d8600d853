//! What each link does at most on this machine, over a veth pair that the program makes: the floor under everything built on it.
//!
//! ```text
//! cargo run --release -p ropeway-link --example floor -- [LINK ...] [--rounds N] [--seconds S]
//! ```
//! Links: `udp`, `packet`, `xdp`, `xdp-generic`, `memory`, and for comparison `raw-udp` (plain `sendto` and `recv`) and `tcp`; without any, all of them. Each round
//! measures every link once, one after the other, so that what the machine does besides falls on all alike; the table shows the best round, as a floor
//! is what can be reached, and the median. Needs root.

#[path = "../tests/support/mod.rs"]
mod support;

mod carriers {
    pub mod streams;
}

use carriers::streams;
use ropeway_link::{Address, Batch, Link, Urgency, memory, packet, udp, xdp};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{DEVICE, Hosts};

const LINKS: [&str; 7] = ["udp", "packet", "xdp", "xdp-generic", "memory", "raw-udp", "tcp"];

const USUAL_ROUNDS: usize = 5;
const USUAL_SECONDS: f64 = 0.3;

/// A short message and its header.
const SHORT_BYTES: usize = 64;

/// Packets in a batch: one segmented send of full packets, or several of short ones.
const BATCH_PACKETS: usize = 44;

/// Packets under way at most, as a share of what the receiver's host keeps: nothing is dropped.
const SHARE_UNDER_WAY: u64 = 2;

/// What was measured of one link in one round.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// One way, half of a round trip.
    pub one_way_us: f64,
    pub short_millions_per_s: f64,
    pub gbit_per_s: f64,
}

fn main() {
    if let Some(reason) = support::reason_against_hosts() {
        eprintln!("floor: {reason}");
        std::process::exit(1);
    }
    let (links, rounds, seconds) = arguments();
    let hosts = Hosts::new(1500);
    let mut rows: Vec<Vec<Row>> = vec![Vec::new(); links.len()];
    for _ in 0..rounds {
        for (link, rows) in links.iter().zip(&mut rows) {
            rows.push(measure(link, &hosts, Duration::from_secs_f64(seconds)));
        }
    }
    println!("{:>11} {:>20} {:>20} {:>20}", "link", "one way 64 B, us", "64 B one way, M/s", "stream, Gbit/s");
    for (link, rows) in links.iter().zip(&rows) {
        let column = |value: fn(&Row) -> f64| sorted(rows.iter().map(value).collect());
        let (latency, mut rate, mut stream) =
            (column(|row| row.one_way_us), column(|row| row.short_millions_per_s), column(|row| row.gbit_per_s));
        rate.reverse();
        stream.reverse();
        println!("{link:>11} {:>20} {:>20} {:>20}", shown(&latency), shown(&rate), shown(&stream));
    }
}

fn arguments() -> (Vec<String>, usize, f64) {
    let (mut links, mut rounds, mut seconds) = (Vec::new(), USUAL_ROUNDS, USUAL_SECONDS);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<f64>().ok()).filter(|value| *value > 0.0);
        match arg.as_str() {
            "--rounds" => rounds = number().expect("--rounds needs a number") as usize,
            "--seconds" => seconds = number().expect("--seconds needs a number"),
            _ => links.push(arg),
        }
    }
    if links.is_empty() {
        links = LINKS.map(String::from).into();
    }
    if let Some(unknown) = links.iter().find(|link| !LINKS.contains(&link.as_str())) {
        eprintln!("floor: there is no link {unknown}; there are: {}", LINKS.join(", "));
        std::process::exit(2);
    }
    (links, rounds.max(1), seconds)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The best round, and the median: far apart, the machine was busy.
fn shown(best_first: &[f64]) -> String {
    let (best, median) = (best_first[0], best_first[best_first.len() / 2]);
    if best.is_nan() { "-".into() } else { format!("{best:.2} ({median:.2})") }
}

fn measure(name: &str, hosts: &Hosts, time: Duration) -> Row {
    let address = |end| SocketAddr::new(support::address(end, false), 0);
    let open = |end| -> Box<dyn Link> {
        hosts.on(end, || -> Box<dyn Link> {
            match name {
                "udp" => Box::new(udp::UdpLink::open(&udp::Options::new(address(end))).expect("a socket")),
                "packet" => Box::new(packet::PacketLink::open(&packet::Options::new(DEVICE)).expect("a socket")),
                "xdp" => open_xdp(xdp::Mode::Copy),
                "xdp-generic" => open_xdp(xdp::Mode::CopyGeneric),
                _ => unreachable!("{name} is in the list"),
            }
        })
    };
    match name {
        "raw-udp" | "tcp" => streams::measure(name, hosts, time),
        "memory" => measure_links(&|| memory::pair(memory::Config::default()).expect("a pair"), time),
        _ => measure_links(&|| (open(0), open(1)), time),
    }
}

fn open_xdp(mode: xdp::Mode) -> Box<dyn Link> {
    let options = xdp::Options { mode, ..xdp::Options::new(DEVICE) };
    let start = Instant::now();
    loop {
        match xdp::XdpLink::open(&options) {
            Ok(link) => return Box::new(link),
            // The kernel takes the link before this one down behind our back.
            Err(error) if error.kind() == ErrorKind::ResourceBusy && start.elapsed() < Duration::from_secs(5) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Each measurement with links of its own, so that none begins with leftovers.
fn measure_links<L: Link>(make: &dyn Fn() -> (L, L), time: Duration) -> Row {
    let (a, b) = make();
    let one_way_us = ping_pong(a, b, time);
    let (a, b) = make();
    let short_millions_per_s = one_way(a, b, SHORT_BYTES, time) / 1e6;
    let (a, b) = make();
    let full = a.max_packet().min(1472);
    Row { one_way_us, short_millions_per_s, gbit_per_s: one_way(a, b, full, time) * full as f64 * 8.0 / 1e9 }
}

fn send_one(link: &mut impl Link, to: Address, bytes: &[u8]) {
    let packets = [IoSlice::new(bytes)];
    while link.send(&Batch { urgency: Urgency::Urgent, ..Batch::new(to, &packets) }).expect("the link works") == 0 {}
}

/// Spins until a packet is there.
fn receive_one(link: &mut impl Link, stop: &AtomicBool) -> bool {
    // Relaxed: it only has to be seen at some time.
    while link.receive(1, &mut |_| ()).expect("the link works") == 0 {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
    true
}

fn ping_pong(mut a: impl Link, mut b: impl Link, time: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    let (to_a, to_b) = (a.local(), b.local());
    let bytes = [7; SHORT_BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while receive_one(&mut b, &stop) {
                send_one(&mut b, to_a, &bytes);
            }
        });
        let mut turn = || {
            send_one(&mut a, to_b, &bytes);
            receive_one(&mut a, &stop)
        };
        let us = half_turns(&mut turn, time);
        stop.store(true, Ordering::Relaxed);
        us
    })
}

/// The median of half of a turn in microseconds, over groups of turns: what the machine does besides falls out.
pub fn half_turns(turn: &mut dyn FnMut() -> bool, time: Duration) -> f64 {
    const GROUP: u32 = 500;
    let start = Instant::now();
    let mut groups = Vec::new();
    while start.elapsed() < time {
        let before = Instant::now();
        assert!((0..GROUP).all(|_| turn()));
        groups.push(before.elapsed().as_secs_f64() / f64::from(GROUP) / 2.0 * 1e6);
    }
    groups.sort_by(f64::total_cmp);
    groups[groups.len() / 2]
}

/// Packets per second that arrive, each copied once by the receiver.
fn one_way(mut a: impl Link, mut b: impl Link, len: usize, time: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    let to = b.local();
    let window = b.receive_slots().expect("these links know it") as u64 / SHARE_UNDER_WAY;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = vec![0; len * 64];
            let mut at = 0;
            // Relaxed, here and below: counts, with nothing behind them.
            while !stop.load(Ordering::Relaxed) {
                let mut keep = |packet: ropeway_link::Received<'_>| {
                    at = if at + 2 * len > memory.len() { 0 } else { at + len };
                    memory[at..at + len].copy_from_slice(packet.bytes);
                };
                let count = b.receive(256, &mut keep).expect("the link works");
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
            std::hint::black_box(&memory);
        });
        let bytes = vec![7; len];
        let packets = [IoSlice::new(&bytes); BATCH_PACKETS];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < time {
            if sent - received.load(Ordering::Relaxed) > window {
                std::hint::spin_loop();
                continue;
            }
            let batch = Batch::new(to, &packets);
            sent += a.send(&batch).expect("the link works") as u64;
        }
        let rate = received.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    })
}
