//! A link around a link that tells of every packet in one line for people.
//!
//! What the bytes mean is said by a function of the caller's: nothing here knows the protocol. A line reads
//! `0.000123456 > 10.0.0.2:7000 1472 B: ...`: seconds, direction (`>` sent, `<` arrived), the other end, length, and what that function said.

use crate::{Address, Batch, Clock, Counters, Ecn, Link, Own, Received, Report, since_now};
use std::fmt::{self, Write};
use std::io;
use std::os::fd::BorrowedFd;

/// Appends what a packet means to a line.
pub type Describe = Box<dyn FnMut(&[u8], &mut String) + Send>;

/// Takes a line, without its end.
pub type Output = Box<dyn FnMut(&str) + Send>;

/// A link that is traced.
pub struct TraceLink<L> {
    inner: L,
    teller: Teller,
}

/// Makes lines and gives them away.
struct Teller {
    clock: Clock,
    describe: Describe,
    output: Output,
    line: String,
}

impl Teller {
    fn tell(&mut self, direction: char, address: Address, ecn: Ecn, bytes: &[u8]) {
        const NS_PER_S: u64 = 1_000_000_000;
        let now_ns = self.clock.now_ns();
        self.line.clear();
        let (seconds, rest) = (now_ns / NS_PER_S, now_ns % NS_PER_S);
        // Writing to a string never fails.
        let _ = write!(self.line, "{seconds}.{rest:09} {direction} {address} {} B", bytes.len());
        if ecn == Ecn::Congested {
            self.line.push_str(" CE");
        }
        self.line.push_str(": ");
        (self.describe)(bytes, &mut self.line);
        (self.output)(&self.line);
    }
}

impl<L: Link> TraceLink<L> {
    /// Wraps a link; time counts from now on.
    pub fn new(inner: L, describe: Describe, output: Output) -> TraceLink<L> {
        TraceLink::with_clock(inner, describe, output, since_now())
    }

    /// The same with a clock of its own, such as that of a simulated network.
    pub fn with_clock(inner: L, describe: Describe, output: Output, clock: Clock) -> TraceLink<L> {
        TraceLink { inner, teller: Teller { clock, describe, output, line: String::new() } }
    }
}

impl<L: fmt::Debug> fmt::Debug for TraceLink<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceLink").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<L: Link> Link for TraceLink<L> {
    fn name(&self) -> String {
        format!("trace {}", self.inner.name())
    }

    fn local(&self) -> Address {
        self.inner.local()
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        self.inner.own_address(own)
    }

    fn max_packet(&self) -> usize {
        self.inner.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let taken = self.inner.send(batch)?;
        for packet in &batch.packets[..taken] {
            self.teller.tell('>', batch.to, Ecn::NotCapable, packet);
        }
        Ok(taken)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let teller = &mut self.teller;
        self.inner.receive(limit, &mut |packet| {
            teller.tell('<', packet.from, packet.ecn, packet.bytes);
            sink(packet);
        })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn receive_slots(&self) -> Option<usize> {
        self.inner.receive_slots()
    }

    fn take_error(&mut self) -> Option<Report> {
        self.inner.take_error()
    }

    fn fetch_errors(&mut self) {
        self.inner.fetch_errors();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim;
    use std::io::IoSlice;
    use std::sync::{Arc, Mutex};

    #[test]
    fn every_packet_is_a_line() {
        let config = sim::Config {
            switches: vec![sim::Switch { ecn_threshold_bytes: Some(100), ..Default::default() }],
            ..Default::default()
        };
        let network = sim::Network::new(config, 1);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut links = [0, 1].map(|host| {
            let (clock, lines) = (network.clone(), lines.clone());
            let describe = Box::new(|bytes: &[u8], line: &mut String| *line += &format!("first {}", bytes[0]));
            let output = Box::new(move |line: &str| lines.lock().expect("no panics").push(format!("{host}: {line}")));
            TraceLink::with_clock(network.attach(host), describe, output, Clock::new(move || clock.now()))
        });
        let packets = [IoSlice::new(&[7; 1500]), IoSlice::new(&[8; 1501])];
        let batch = Batch::new(Address::Sim(1), &packets[..1]);
        links[0].send(&batch).expect("works");
        network.advance_until_ready(sim::Time::MAX);
        links[1].receive(1, &mut |_| ()).expect("works");
        let expected =
            ["0: 0.000000000 > sim:1 1500 B: first 7", "1: 0.000034608 < sim:0 1500 B CE: first 7"].map(String::from);
        assert_eq!(*lines.lock().expect("no panics"), expected);
    }
}
