//! What is measured, whatever the carrier.

use crate::{Carrier, Connection, Kind};
use std::time::{Duration, Instant};

/// The first message of a connection: what the server does with it, and the size of messages.
const HELLO_BYTES: usize = 16;
const ECHO: u64 = 1;
const SINK: u64 = 2;
const SOURCE: u64 = 3;
/// What a server reports of what it took: bytes, and nanoseconds from the first to the last.
const REPORT_BYTES: usize = 16;
/// The message of this length ends a flood of messages.
const END_BYTES: usize = 1;
const STREAM_BYTES: usize = 256 << 10;
/// Rounds before anything counts.
const WARM_UP: Duration = Duration::from_millis(200);
/// And messages: this part of those that count.
const WARM_UP_PART: usize = 10;

#[derive(Debug)]
pub struct Case<'a> {
    pub bytes: usize,
    pub seconds: f64,
    /// Of each peer.
    pub messages: usize,
    pub peers: Vec<&'a str>,
}

fn words(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..].copy_from_slice(&second.to_be_bytes());
    bytes
}

fn parse(bytes: &[u8; 16]) -> (u64, u64) {
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (word(0), word(8))
}

/// Serves until it is killed.
pub fn serve(carrier: &dyn Carrier) {
    std::thread::scope(|scope| {
        for kind in [Kind::Messages, Kind::Stream] {
            scope.spawn(move || {
                loop {
                    let connection = carrier.accept(kind);
                    scope.spawn(move || serve_one(connection));
                }
            });
        }
    });
}

fn serve_one(mut connection: Box<dyn Connection>) {
    let mut hello = [0; HELLO_BYTES];
    if !connection.receive(&mut hello) {
        return;
    }
    let (what, bytes) = parse(&hello);
    let mut buffer = vec![0; (bytes as usize).max(1)];
    match what {
        ECHO => {
            while connection.receive(&mut buffer) {
                connection.send(&buffer);
            }
        }
        SOURCE => {
            let mut request = [0; 1];
            while connection.receive(&mut request) {
                connection.send(&buffer);
            }
        }
        SINK => {
            let (mut total, mut first) = (0, None);
            let mut buffer = vec![0; STREAM_BYTES];
            loop {
                let count = connection.receive_some(&mut buffer);
                if count == 0 || count == END_BYTES && bytes as usize != END_BYTES {
                    break;
                }
                total += count as u64;
                first.get_or_insert_with(Instant::now);
            }
            // Until the end arrived: a look at the clock for each message would cost as much as the message.
            let ns = first.map_or(0, |first| first.elapsed().as_nanos() as u64);
            connection.send(&words(total, ns));
        }
        _ => {}
    }
    connection.finish();
}

fn hello(connection: &mut dyn Connection, what: u64, bytes: usize) {
    connection.send(&words(what, bytes as u64));
}

fn quantile(sorted: &[u64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)] as f64
}

impl Case<'_> {
    /// Half of the time from a message to its answer.
    pub fn ping_pong(&self, carrier: &dyn Carrier) {
        let mut connection = carrier.connect(self.peers[0], Kind::Messages);
        hello(&mut *connection, ECHO, self.bytes);
        let (message, mut buffer) = (vec![7; self.bytes], vec![0; self.bytes]);
        let mut samples = Vec::new();
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < self.seconds + WARM_UP.as_secs_f64() {
            let start = Instant::now();
            connection.send(&message);
            assert!(connection.receive(&mut buffer), "the server has gone");
            if begin.elapsed() > WARM_UP {
                samples.push(start.elapsed().as_nanos() as u64);
            }
        }
        samples.sort_unstable();
        let us = |share| quantile(&samples, share) / 2000.0;
        println!(
            r#"{{"case":"pingpong","bytes":{},"one_way_us":{:.3},"p99_us":{:.3},"rounds":{},"counters":{}}}"#,
            self.bytes,
            us(0.5),
            us(0.99),
            samples.len(),
            carrier.counters()
        );
    }

    /// One direction, as fast as it goes, measured where it arrives.
    pub fn stream(&self, carrier: &dyn Carrier) {
        let mut connection = carrier.connect(self.peers[0], Kind::Stream);
        hello(&mut *connection, SINK, STREAM_BYTES);
        let data = vec![7; STREAM_BYTES];
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < self.seconds {
            connection.send(&data);
        }
        connection.finish();
        self.report("stream", carrier, &mut *connection);
    }

    /// Messages of one size in one direction, a send for each.
    pub fn messages(&self, carrier: &dyn Carrier) {
        let mut connection = carrier.connect(self.peers[0], Kind::Messages);
        hello(&mut *connection, SINK, self.bytes);
        let message = vec![7; self.bytes];
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < self.seconds {
            // The clock would cost as much as a send.
            (0..16).for_each(|_| connection.send(&message));
        }
        connection.finish();
        self.report("messages", carrier, &mut *connection);
    }

    fn report(&self, case: &str, carrier: &dyn Carrier, connection: &mut dyn Connection) {
        let mut report = [0; REPORT_BYTES];
        assert!(connection.receive(&mut report), "the server has gone");
        let (bytes, ns) = parse(&report);
        println!(
            r#"{{"case":"{case}","bytes":{},"gbit_per_s":{:.4},"millions_per_s":{:.4},"total_bytes":{bytes},"counters":{}}}"#,
            self.bytes,
            bytes as f64 * 8.0 / ns as f64,
            bytes as f64 * 1e3 / self.bytes as f64 / ns as f64,
            carrier.counters()
        );
    }

    /// Every peer sends a message, is answered with one byte when it is here, and sends the next one, until each has sent so many: as many are under way as there are
    /// peers.
    pub fn incast(&self, carrier: &dyn Carrier) {
        let mut connections: Vec<_> = self.peers.iter().map(|peer| carrier.connect(peer, Kind::Messages)).collect();
        connections.iter_mut().for_each(|connection| hello(&mut **connection, SOURCE, self.bytes));
        self.messages_of_each(carrier, &mut connections, self.messages.div_ceil(WARM_UP_PART));
        let begin = Instant::now();
        let mut samples = self.messages_of_each(carrier, &mut connections, self.messages);
        let ns = begin.elapsed().as_nanos();
        samples.sort_unstable();
        println!(
            r#"{{"case":"incast","bytes":{},"senders":{},"gbit_per_s":{:.4},"median_us":{:.1},"p99_us":{:.1},"messages":{},"counters":{}}}"#,
            self.bytes,
            connections.len(),
            (samples.len() * self.bytes) as f64 * 8.0 / ns as f64,
            quantile(&samples, 0.5) / 1e3,
            quantile(&samples, 0.99) / 1e3,
            samples.len(),
            carrier.counters()
        );
    }

    /// What each of these messages took, from its question to its end.
    fn messages_of_each(
        &self,
        carrier: &dyn Carrier,
        connections: &mut [Box<dyn Connection>],
        messages: usize,
    ) -> Vec<u64> {
        let handles: Vec<_> = connections.iter().map(|connection| connection.handle()).collect();
        connections.iter_mut().for_each(|connection| connection.send(&[1]));
        // Of each: messages that are missing, when the last one was asked for, and what of it has arrived.
        let mut senders = vec![(messages, Instant::now(), 0); connections.len()];
        let (mut buffer, mut ready, mut next) = (vec![0; self.bytes], Vec::new(), 0);
        let mut samples = Vec::new();
        while samples.len() < messages * connections.len() {
            carrier.any(&handles, next, &mut ready);
            for place in ready.drain(..) {
                next = (place + 1) % connections.len();
                let (missing, asked, arrived) = &mut senders[place];
                match connections[place].receive_some(&mut buffer[*arrived..]) {
                    0 => panic!("a server has gone"),
                    count => *arrived += count,
                }
                if *arrived < self.bytes {
                    continue;
                }
                samples.push(asked.elapsed().as_nanos() as u64);
                (*missing, *asked, *arrived) = (*missing - 1, Instant::now(), 0);
                if *missing > 0 {
                    connections[place].send(&[1]);
                }
            }
        }
        samples
    }

    /// All peers send so many bytes at once, and the next round begins when all of them are here.
    pub fn rounds(&self, carrier: &dyn Carrier) {
        let mut connections: Vec<_> = self.peers.iter().map(|peer| carrier.connect(peer, Kind::Messages)).collect();
        connections.iter_mut().for_each(|connection| hello(&mut **connection, SOURCE, self.bytes));
        let mut buffer = vec![0; self.bytes];
        let (mut samples, begin) = (Vec::new(), Instant::now());
        while begin.elapsed().as_secs_f64() < self.seconds + WARM_UP.as_secs_f64() {
            let start = Instant::now();
            connections.iter_mut().for_each(|connection| connection.send(&[1]));
            connections.iter_mut().for_each(|connection| assert!(connection.receive(&mut buffer), "a server has gone"));
            if begin.elapsed() > WARM_UP {
                samples.push(start.elapsed().as_nanos() as u64);
            }
        }
        let total: u64 = samples.iter().sum();
        let bytes = samples.len() * self.bytes * connections.len();
        samples.sort_unstable();
        println!(
            r#"{{"case":"rounds","bytes":{},"senders":{},"gbit_per_s":{:.4},"median_us":{:.1},"p99_us":{:.1},"rounds":{},"counters":{}}}"#,
            self.bytes,
            connections.len(),
            bytes as f64 * 8.0 / total as f64,
            quantile(&samples, 0.5) / 1e3,
            quantile(&samples, 0.99) / 1e3,
            samples.len(),
            carrier.counters()
        );
    }
}
