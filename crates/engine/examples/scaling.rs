//! What a second worker brings: requests and answers over 64 connections on in-memory links, with one worker and with two, A B A B.
//!
//! A worker is a client's engine and a server's engine driven by one thread, so one worker uses one core. `scaling [SECONDS]`.

use ropeway_engine::{ChannelId, Engine, Error, Mode, Options, Workers};
use ropeway_link::{Address, Link, memory};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 64;
const MESSAGE: [u8; 64] = [7; 64];

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(1.0, |text| text.parse().expect("seconds"));
    let rates: Vec<[f64; 2]> = (0..5).map(|_| [1, 2].map(|workers| rate(workers, seconds))).collect();
    for [one, two] in &rates {
        println!("1 worker {:.3} M/s, 2 workers {:.3} M/s: {:.2} x", one / 1e6, two / 1e6, two / one);
    }
    let mut ratios: Vec<f64> = rates.iter().map(|[one, two]| two / one).collect();
    ratios.sort_by(f64::total_cmp);
    println!("median {:.2} x", ratios[ratios.len() / 2]);
}

/// Round trips a second with so many workers.
fn rate(workers: usize, seconds: f64) -> f64 {
    let options = Options { spin: Duration::ZERO, ..Options::default() };
    let pairs = (0..workers).map(|_| memory::pair(memory::Config::default()).expect("a pair"));
    let (ones, others): (Vec<_>, Vec<_>) = pairs.map(|(one, other)| (Some(one), Some(other))).unzip();
    let (ones, others) = (Mutex::new(ones), Mutex::new(others));
    let take = |links: &Mutex<Vec<Option<memory::MemoryLink>>>, worker: usize| -> Box<dyn Link> {
        Box::new(links.lock().expect("lock")[worker].take().expect("each once"))
    };
    let clients = Workers::new(&options, workers, |worker| Ok(take(&ones, worker))).expect("clients");
    let servers = Workers::new(&options, workers, |worker| Ok(take(&others, worker))).expect("servers");
    let port = servers.listen(7, Mode::Messages, 2 * CONNECTIONS).expect("listen");
    let deadline = || Some(Instant::now() + Duration::from_secs(10));
    let mut ends: Vec<Vec<(Engine, ChannelId, Engine, ChannelId)>> = (0..workers).map(|_| Vec::new()).collect();
    for connection in 0..CONNECTIONS {
        let (client, channel) = clients.connect(Address::Sim(1), 7, Mode::Messages, deadline()).expect("connect");
        let (server, accepted) = port.accept(deadline()).expect("accept");
        ends[connection % workers].push((client, channel, server, accepted));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let threads: Vec<_> = ends.into_iter().map(|ends| scope.spawn(move || work(&ends, stop))).collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        let total: u64 = threads.into_iter().map(|thread| thread.join().expect("worker")).sum();
        total as f64 / seconds
    })
}

/// Keeps one message on its way in every connection; counts those that came back.
fn work(ends: &[(Engine, ChannelId, Engine, ChannelId)], stop: &AtomicBool) -> u64 {
    let (mut buffer, mut rounds) = ([0; 64], 0);
    for (client, channel, ..) in ends {
        client.set_no_delay(*channel, true);
        client.try_send(*channel, &MESSAGE).expect("room");
    }
    while !stop.load(Ordering::Relaxed) {
        for (client, channel, server, accepted) in ends {
            match server.try_recv(*accepted, &mut buffer) {
                Ok(_) => server.try_send(*accepted, &MESSAGE).map(drop).expect("room"),
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
            match client.try_recv(*channel, &mut buffer) {
                Ok(_) => {
                    rounds += 1;
                    client.try_send(*channel, &MESSAGE).expect("room");
                }
                Err(Error::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    rounds
}
