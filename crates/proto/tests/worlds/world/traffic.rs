//! Programs of the worlds: they open channels, send, read and check every byte. They act only when an event says so, as programs do; a missing
//! event shows as a transfer that never ends.

use std::collections::BTreeMap;

use ropeway_proto::{ChannelId, ConnectError, Event, ListenError, Mode, Part, RecvError, SendError};

use super::{MS, S, World, path};

/// Opens a channel from host `from` to host `to` and returns both ends.
pub fn open(world: &mut World, from: usize, to: usize, port: u16, mode: Mode) -> (ChannelId, ChannelId) {
    let listening = world.hosts[to].listen(port, mode, 1024);
    assert!(listening.is_ok() || listening == Err(ListenError::InUse(port)), "{listening:?}");
    let now = world.clock(from);
    let client = world.hosts[from].connect(now, &path(to), port, mode).unwrap();
    let mut server = None;
    let end = world.now + 20 * S;
    let opened = world.run(end, |world| {
        while let Ok(newer) = world.hosts[to].accept(port) {
            // An attempt that began anew may have been taken twice, and only the last one has a client.
            if let Some(former) = server.replace(newer) {
                let now = world.clock(to);
                world.hosts[to].close(now, former);
            }
        }
        server.is_some() && world.hosts[from].readiness(client).is_some_and(|readiness| readiness.opened)
    });
    assert!(opened, "not opened: {:?} {:?}", world.hosts[from].readiness(client), world.hosts[to].counters());
    (client, server.unwrap())
}

/// Host 0 to host 1, port 7.
pub fn pair(world: &mut World, mode: Mode) -> (ChannelId, ChannelId) {
    open(world, 0, 1, 7, mode)
}

pub fn try_connect(world: &mut World, from: usize, to: usize, port: u16) -> Result<ChannelId, ConnectError> {
    let now = world.clock(from);
    world.hosts[from].connect(now, &path(to), port, Mode::Stream)
}

/// One way between two programs.
#[derive(Clone, Debug)]
pub struct Flow {
    pub from: (usize, ChannelId),
    pub to: (usize, ChannelId),
    /// 0: a stream.
    pub message_bytes: usize,
    pub total: u64,
    pub sent: u64,
    pub received: u64,
    /// When each message, or the last byte, was read.
    pub done_at: Vec<u64>,
    /// The reader does not read.
    pub slow: bool,
    /// If it takes messages as they come: what it has of the one at hand.
    pub taken: Option<(Vec<u8>, Part)>,
}

impl Flow {
    pub fn stream(from: (usize, ChannelId), to: (usize, ChannelId), total: u64) -> Flow {
        Flow { from, to, message_bytes: 0, total, sent: 0, received: 0, done_at: Vec::new(), slow: false, taken: None }
    }

    pub fn messages(from: (usize, ChannelId), to: (usize, ChannelId), message_bytes: usize, count: u64) -> Flow {
        Flow { message_bytes, ..Flow::stream(from, to, message_bytes as u64 * count) }
    }

    pub fn is_done(&self) -> bool {
        self.received >= self.total
    }

    pub fn send(&mut self, world: &mut World) {
        let (host, channel) = self.from;
        let now = world.clock(host);
        let size = if self.message_bytes == 0 { 65_536 } else { self.message_bytes };
        while self.sent < self.total {
            let chunk: Vec<u8> =
                (0..size.min((self.total - self.sent) as usize)).map(|at| pattern(self.sent + at as u64)).collect();
            match world.hosts[host].send(now, channel, &chunk) {
                Ok(count) => self.sent += count as u64,
                Err(SendError::WouldBlock) => break,
                Err(error) => panic!("send at {}: {error}; {self:?}", self.sent),
            }
        }
        world.hosts[host].flush(channel);
    }

    pub fn receive(&mut self, world: &mut World) {
        let (host, channel) = self.to;
        let bytes = self.message_bytes.max(65_536);
        let mut whole = (vec![0; bytes], Part { is_of_whole: true, ..Part::default() });
        let (out, part) = self.taken.as_mut().unwrap_or(&mut whole);
        out.resize(bytes, 0);
        while !self.slow {
            match world.hosts[host].recv_partly(channel, out, part) {
                Err(RecvError::WouldBlock) if part.has_more => {}
                Ok(Some(count)) => {
                    if self.message_bytes > 0 {
                        assert_eq!(count, self.message_bytes, "a message keeps its length");
                    }
                    for (at, &byte) in out[..count].iter().enumerate() {
                        assert_eq!(byte, pattern(self.received + at as u64), "byte {}", self.received + at as u64);
                    }
                    *part = Part { is_of_whole: part.is_of_whole, ..Part::default() };
                    self.received += count as u64;
                    if self.message_bytes > 0 || self.received >= self.total {
                        self.done_at.push(world.now);
                    }
                }
                Ok(None) => panic!("the end at {} of {}", self.received, self.total),
                Err(RecvError::WouldBlock) => return,
                Err(error) => panic!("recv at {}: {error}", self.received),
            }
        }
    }
}

pub fn pattern(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

/// Runs flows until `until` says so, at most `limit_ns`. Says whether it did.
pub fn carry_until(
    world: &mut World,
    flows: &mut [Flow],
    limit_ns: u64,
    mut until: impl FnMut(&World, &[Flow]) -> bool,
) -> bool {
    let mut of: BTreeMap<(usize, ChannelId), Vec<usize>> = BTreeMap::new();
    for (index, flow) in flows.iter().enumerate() {
        of.entry(flow.from).or_default().push(index);
        of.entry(flow.to).or_default().push(index);
    }
    for flow in flows.iter_mut() {
        flow.send(world);
        flow.receive(world);
    }
    let end = world.now + limit_ns;
    world.run(end, |world| {
        for host in 0..world.hosts.len() {
            while let Some(event) = world.hosts[host].poll_event() {
                let Event::Changed(id) = event else { continue };
                let _ = world.hosts[host].readiness(id);
                for &index in of.get(&(host, id)).into_iter().flatten() {
                    if flows[index].from == (host, id) {
                        flows[index].send(world);
                    } else {
                        flows[index].receive(world);
                    }
                }
            }
        }
        until(world, flows)
    })
}

/// Runs flows until all are through, and says how long that took.
pub fn carry(world: &mut World, flows: &mut [Flow], limit_ns: u64) -> u64 {
    let begin = world.now;
    let done = carry_until(world, flows, limit_ns, |_, flows| flows.iter().all(Flow::is_done));
    if !done {
        for flow in flows.iter().filter(|flow| !flow.is_done()).take(3) {
            let (now, then) = (world.clock(flow.from.0), world.clock(flow.to.0));
            println!("{} of {}: {:?}", flow.received, flow.total, flow.from);
            println!("{:#?}", world.hosts[flow.from.0].statistics(now, flow.from.1));
            println!("{:#?}", world.hosts[flow.to.0].statistics(then, flow.to.1));
            println!("{:?}", world.hosts[flow.from.0].counters());
            println!("{:?}", world.hosts[flow.to.0].counters());
        }
        panic!("not through after {} ms", limit_ns / MS);
    }
    world.now - begin
}

/// Sends `total` bytes one way and says how long it took.
pub fn stream(world: &mut World, from: (usize, ChannelId), to: (usize, ChannelId), total: u64, limit_ns: u64) -> u64 {
    carry(world, &mut [Flow::stream(from, to, total)], limit_ns)
}

/// Runs for a while.
pub fn pass(world: &mut World, ns: u64) {
    let end = world.now + ns;
    world.run(end, |_| false);
}

/// Runs until a condition holds, and says after how long; panics if that takes longer than `limit_ns`.
pub fn wait_for(world: &mut World, limit_ns: u64, what: &str, done: impl FnMut(&mut World) -> bool) -> u64 {
    let begin = world.now;
    let counters = |world: &World| world.hosts.iter().take(2).map(|host| host.counters()).collect::<Vec<_>>();
    assert!(world.run(begin + limit_ns, done), "never: {what}; {:#?}", counters(world));
    world.now - begin
}

/// Both ends close, and nothing is left but associations.
pub fn close_all_channels(world: &mut World, ends: &[(usize, ChannelId)]) {
    for &(host, channel) in ends {
        let now = world.clock(host);
        world.hosts[host].close(now, channel);
    }
    wait_for(world, 60 * S, "all channels are gone", |world| world.hosts.iter().all(|host| host.sizes().1 == 0));
    for host in &world.hosts {
        assert_eq!((host.buffers_in_use(), host.promised_bytes()), ((0, 0), 0));
    }
}

/// Jain's index of fairness: 1 when all have the same.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64) * (share as f64)).sum();
    sum * sum / (shares.len() as f64 * squares)
}
