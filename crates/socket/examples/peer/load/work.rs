//! The kinds of work of a client that waits in its calls.

use super::random::Random;
use super::serve::check_message;
use super::watchdog::Watched;
use super::{Kind, LONGEST_BYTES, Task, message_bytes, wrong};
use crate::content::{Checked, fill};
use ropeway_socket::api::{Address, MessageSocket, Stream};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::str::FromStr;
use std::time::Duration;

/// The longest transfer: all magnitudes below are as frequent.
const MOST_BYTES: u64 = 8 << 20;
/// The longest single call.
const LONGEST_CALL_BYTES: u64 = 64 << 10;
/// A slow reader takes at most so much, and rests for at most so long after each read.
const SLOW_BYTES: u64 = 3 << 20;
const SLOW_MS: u64 = 30;
const MOST_MESSAGES: u64 = 32;
/// Connections one after the other, with so many bytes each way at most.
const SHORT_CONNECTIONS: u64 = 40;
const SHORT_BYTES: u64 = 3000;
const PROBE_BYTES: u64 = 100_000;
const PROBE_MESSAGES: u64 = 12;

/// A host that serves.
#[derive(Clone)]
pub struct Peer {
    pub name: String,
    pub streams: Address,
    pub messages: Address,
}

impl FromStr for Peer {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Peer> {
        let parts = text.split_once('=').and_then(|(name, at)| Some((name, at.split_once(',')?)));
        let (name, (streams, messages)) = parts.ok_or_else(|| crate::wrong("NAME=STREAMS,MESSAGES"))?;
        let address = |text: &str| text.parse().map_err(io::Error::other);
        Ok(Peer { name: name.into(), streams: address(streams)?, messages: address(messages)? })
    }
}

/// A stream for one task. What fails is reset, so that the other end takes no part for the whole.
fn with_stream(
    peer: &Peer,
    task: Task,
    watched: &Watched,
    work: impl FnOnce(&Stream) -> io::Result<u64>,
) -> io::Result<u64> {
    let name = format!("{:?} seed {} count {} with {}", task.kind, task.seed, task.count, peer.name);
    watched.rename(format!("connect for {name}"));
    let stream = watched.calls(|| Stream::connect(&peer.streams))?;
    watched.rename(format!("{name}, ports {:?}", stream.ports()));
    let result = watched.calls(|| (&stream).write_all(&task.to_bytes())).and_then(|()| work(&stream));
    if result.is_err() {
        stream.abort();
    }
    result
}

/// Sends what follows from the seed, in calls of all lengths, and ends this direction.
fn send_all(mut stream: &Stream, task: Task, mut random: Random, watched: &Watched) -> io::Result<()> {
    let (mut at, mut buffer) = (0, vec![0; LONGEST_CALL_BYTES as usize]);
    while at < task.count {
        let part = &mut buffer[..random.magnitude(LONGEST_CALL_BYTES).max(64).min(task.count - at) as usize];
        fill(task.seed, at, part);
        watched.calls(|| stream.write_all(part))?;
        at += part.len() as u64;
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads what follows from the seed, to its end.
fn read_all(mut stream: &Stream, task: Task, watched: &Watched, mut between: impl FnMut()) -> io::Result<u64> {
    let (mut checked, mut buffer) = (Checked::new(task.seed), vec![0; LONGEST_CALL_BYTES as usize]);
    loop {
        let at = checked.bytes();
        let count = watched.calls(|| stream.read(&mut buffer))?;
        if count == 0 {
            break;
        }
        if !checked.takes(&buffer[..count]) {
            return Err(wrong(format!("{task:?}: wrong bytes from {at} on")));
        }
        between();
    }
    if checked.bytes() == task.count {
        Ok(task.count)
    } else {
        Err(wrong(format!("{task:?}: {} bytes, then the end", checked.bytes())))
    }
}

fn echo_of(peer: &Peer, task: Task, mut random: Random, watched: &Watched) -> io::Result<u64> {
    let choices = Random::new(random.word());
    with_stream(peer, task, watched, |stream| {
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let watched = Watched::new(&format!("sending {task:?} to {}", peer.name));
                let sent = send_all(stream, task, choices, &watched);
                if sent.is_err() {
                    // Or this end's reader might wait for what the other end does not have.
                    stream.abort();
                }
                sent
            });
            let read = read_all(stream, task, watched, || ());
            if read.is_err() {
                stream.abort();
            }
            let sent = sender.join().map_err(|_| wrong("a panic".into()))?;
            match (read, sent) {
                (Err(read), Err(sent)) => Err(if is_consequence(&read) { sent } else { read }),
                (read, sent) => sent.and(read),
            }
        })
    })
}

/// Whether an error says only that the other half has ended the connection, and not why.
fn is_consequence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe)
}

pub fn echo(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let task = Task { kind: Kind::Echo, seed: random.word(), count: random.magnitude(MOST_BYTES) };
    echo_of(peer, task, Random::new(random.word()), watched)
}

pub fn up(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let task = Task { kind: Kind::Up, seed: random.word(), count: random.magnitude(MOST_BYTES) };
    let choices = Random::new(random.word());
    with_stream(peer, task, watched, |mut stream| {
        send_all(stream, task, choices, watched)?;
        let mut account = [0; 8];
        watched.calls(|| stream.read_exact(&mut account))?;
        let count = u64::from_le_bytes(account);
        if count == task.count { Ok(count) } else { Err(wrong(format!("{task:?}: {count} arrived"))) }
    })
}

/// Sends and reads for a while, and then ends it in one of the ways there are.
pub fn quit(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let task = Task { kind: Kind::Quit, seed: random.word(), count: random.magnitude(SLOW_BYTES) };
    let (sends, reads) = (random.magnitude(SLOW_BYTES), random.magnitude(SLOW_BYTES).min(task.count));
    with_stream(peer, task, watched, |mut stream| {
        let (mut checked, mut sent) = (Checked::new(task.seed), 0);
        let mut buffer = vec![0; LONGEST_CALL_BYTES as usize];
        while sent < sends || checked.bytes() < reads {
            if sent < sends {
                let part = &mut buffer[..(sends - sent).min(LONGEST_CALL_BYTES) as usize];
                fill(task.seed, sent, part);
                sent += watched.calls(|| stream.write(part))? as u64;
            }
            if checked.bytes() < reads {
                let at = checked.bytes();
                let count = watched.calls(|| stream.read(&mut buffer))?;
                if count == 0 || !checked.takes(&buffer[..count]) {
                    return Err(wrong(format!("{task:?}: {count} bytes that are wrong from {at} on")));
                }
            }
        }
        match random.below(6) {
            0 => stream.abort(),
            1 => stream.set_linger(Some(Duration::ZERO))?,
            2 => stream.set_linger(Some(Duration::from_millis(random.below(500) + 1)))?,
            3 => stream.shutdown(Shutdown::Both)?,
            4 => stream.shutdown(Shutdown::Read)?,
            // Dropped as it is.
            _ => {}
        }
        Ok(sent)
    })
}

pub fn slow_reader(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let task = Task { kind: Kind::Down, seed: random.word(), count: random.magnitude(SLOW_BYTES) };
    with_stream(peer, task, watched, |stream| {
        stream.shutdown(Shutdown::Write)?;
        read_all(stream, task, watched, || std::thread::sleep(Duration::from_millis(random.below(SLOW_MS))))
    })
}

pub fn messages(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let kind = [Kind::Echo, Kind::Up, Kind::Down][random.below(3) as usize];
    messages_of(peer, Task { kind, seed: random.word(), count: random.magnitude(MOST_MESSAGES) }, watched)
}

fn messages_of(peer: &Peer, task: Task, watched: &Watched) -> io::Result<u64> {
    watched.rename(format!("connect for messages {task:?} with {}", peer.name));
    let socket = watched.calls(|| MessageSocket::connect(&peer.messages))?;
    watched.rename(format!("messages {task:?} with {}, ports {:?}", peer.name, socket.ports()));
    let result = exchange(&socket, task, watched);
    if result.is_err() {
        socket.abort();
    }
    result
}

fn exchange(socket: &MessageSocket, task: Task, watched: &Watched) -> io::Result<u64> {
    let Task { kind, seed, count } = task;
    let mut buffer = vec![0; LONGEST_BYTES];
    watched.calls(|| socket.send(&task.to_bytes()))?;
    let receive = |buffer: &mut [u8], number| match watched.calls(|| socket.recv(buffer))? {
        Some(bytes) => check_message(seed, number, &buffer[..bytes]),
        None => Err(wrong(format!("{task:?}: the end before message {number}"))),
    };
    for number in 0..count {
        if kind != Kind::Down {
            let part = &mut buffer[..message_bytes(seed, number)];
            fill(seed, number, part);
            watched.calls(|| socket.send(part))?;
        }
        if kind != Kind::Up {
            receive(&mut buffer, number)?;
        }
    }
    socket.shutdown(Shutdown::Write)?;
    if kind == Kind::Up {
        let account = watched.calls(|| socket.recv(&mut buffer))?;
        if account.map(|bytes| &buffer[..bytes]) != Some(&count.to_le_bytes()) {
            return Err(wrong(format!("{task:?}: the account is {account:?}")));
        }
    }
    match watched.calls(|| socket.recv(&mut buffer))? {
        None => Ok(count),
        Some(bytes) => Err(wrong(format!("{task:?}: {bytes} bytes more"))),
    }
}

pub fn many_short(peer: &Peer, random: &mut Random, watched: &Watched) -> io::Result<u64> {
    let connections = 1 + random.below(SHORT_CONNECTIONS);
    for _ in 0..connections {
        let task = Task { kind: Kind::Echo, seed: random.word(), count: random.magnitude(SHORT_BYTES) };
        let choices = Random::new(random.word());
        with_stream(peer, task, watched, |stream| {
            send_all(stream, task, choices, watched)?;
            read_all(stream, task, watched, || ())
        })?;
    }
    Ok(connections)
}

/// A stream and messages, once.
pub fn probe(peer: &Peer, watched: &Watched) -> io::Result<u64> {
    let task = |count| Task { kind: Kind::Echo, seed: count, count };
    echo_of(peer, task(PROBE_BYTES), Random::new(0), watched)?;
    messages_of(peer, task(PROBE_MESSAGES), watched)
}
