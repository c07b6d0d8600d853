//! The work of a client with an event loop: one thread, several connections, edges.

use super::random::Random;
use super::watchdog::Watched;
use super::work::Peer;
use super::{Kind, Task, wrong};
use crate::content::{Checked, fill};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use ropeway_socket::api::{Stream, Watch};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

const MOST_CONNECTIONS: u64 = 12;
const MOST_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: usize = 16 << 10;
/// How long an event is waited for before the loop looks whether there is anything to wait for; who is late is the watchdog's matter.
const TURN: Duration = Duration::from_millis(500);

struct Client {
    stream: Stream,
    watch: Watch,
    task: Task,
    is_connected: bool,
    /// Of the task's own bytes and what follows from the seed.
    sent: u64,
    has_shut: bool,
    checked: Checked,
    is_over: bool,
}

pub fn echo(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let mut clients: Vec<Client> = (0..1 + random.below(MOST_CONNECTIONS))
        .map(|_| {
            let task = Task { kind: Kind::Echo, seed: random.word(), count: random.magnitude(MOST_BYTES) };
            Client::new(peer, task)
        })
        .collect::<io::Result<_>>()?;
    watched.rename(format!(
        "events with {}: {:?}",
        peer.name,
        clients.iter().map(|c| c.stream.ports()).collect::<Vec<_>>()
    ));
    let result = watched.calls(|| turns(&mut clients, watched));
    if result.is_err() {
        clients.iter().for_each(|client| client.stream.abort());
    }
    result
}

fn turns(clients: &mut [Client], watched: &Watched) -> io::Result<u64> {
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(64));
    for (number, client) in clients.iter().enumerate() {
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut SourceFd(&client.watch.as_fd().as_raw_fd()), Token(number), both)?;
    }
    while clients.iter().any(|client| !client.is_over) {
        match poll.poll(&mut events, Some(TURN)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            let client = &mut clients[event.token().0];
            if client.gets_on()? {
                watched.moves();
            }
        }
    }
    Ok(clients.len() as u64)
}

impl Client {
    fn new(peer: &Peer, task: Task) -> io::Result<Client> {
        let stream = Stream::connect_nonblocking(&peer.streams)?;
        let watch = stream.watch()?;
        let checked = Checked::new(task.seed);
        Ok(Client { stream, watch, task, is_connected: false, sent: 0, has_shut: false, checked, is_over: false })
    }

    /// Everything until it would block; says whether anything was done.
    fn gets_on(&mut self) -> io::Result<bool> {
        let mut has = false;
        if self.is_over {
            return Ok(false);
        }
        if !self.is_connected {
            self.is_connected = self.stream.is_connected()?;
            has |= self.is_connected;
            if !self.is_connected {
                return Ok(has);
            }
        }
        let mut buffer = vec![0; CHUNK_BYTES];
        while !self.has_shut {
            let part = self.next(&mut buffer);
            if part == 0 {
                self.stream.shutdown(Shutdown::Write)?;
                self.has_shut = true;
                break;
            }
            match self.stream.try_write(&buffer[..part]) {
                Ok(count) => self.sent += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            has = true;
        }
        loop {
            let at = self.checked.bytes();
            match self.stream.try_read(&mut buffer) {
                Ok(0) if at == self.task.count => {
                    self.is_over = true;
                    return Ok(true);
                }
                Ok(0) => return Err(wrong(format!("{:?} by events: {at} bytes, then the end", self.task))),
                Ok(count) if self.checked.takes(&buffer[..count]) => has = true,
                Ok(_) => return Err(wrong(format!("{:?} by events: wrong bytes from {at} on", self.task))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(has),
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts into `out` what is to be sent next, and says how much that is.
    fn next(&self, out: &mut [u8]) -> usize {
        let head = Task::BYTES as u64;
        if self.sent < head {
            let rest = &self.task.to_bytes()[self.sent as usize..];
            out[..rest.len()].copy_from_slice(rest);
            return rest.len();
        }
        let at = self.sent - head;
        let count = (self.task.count - at).min(out.len() as u64) as usize;
        fill(self.task.seed, at, &mut out[..count]);
        count
    }
}
