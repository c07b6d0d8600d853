//! The end that does what the other one asks.

use super::watchdog::{self, Watched};
use super::{Kind, LONGEST_BYTES, Task, end, message_bytes, now_ms, say, wrong};
use crate::content::{Checked, fill};
use ropeway_socket::api::{Address, Listener, MessageListener, MessageSocket, Stream};
use serde_json::json;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK_BYTES: usize = 64 << 10;

/// Connections that are open.
static OPEN: AtomicU64 = AtomicU64::new(0);

pub fn serve(streams: &str, messages: &str) -> io::Result<()> {
    watchdog::start(watchdog::patience());
    let workers = crate::place::workers()?;
    for streams in Listener::bind_workers(streams, workers)? {
        std::thread::spawn(move || accept_all(|| streams.accept(), serve_stream, Stream::abort));
    }
    for messages in MessageListener::bind_workers(messages, workers)? {
        std::thread::spawn(move || accept_all(|| messages.accept(), serve_messages, MessageSocket::abort));
    }
    say(json!({ "event": "ready" }));
    for order in io::stdin().lock().lines() {
        if order? == "show" {
            say(json!({ "event": "shown", "open": OPEN.load(Ordering::Relaxed) }));
        }
    }
    say(json!({ "event": "over" }));
    Ok(())
}

/// Takes connections for ever, each with a thread of its own. One that fails is reset, so that the other end takes no part for the whole.
fn accept_all<C: Send + 'static>(
    accept: impl Fn() -> io::Result<(C, Address)>,
    work: fn(&C, &Watched) -> io::Result<u64>,
    abort: fn(&C),
) {
    loop {
        let (connection, from) = match accept() {
            Ok((connection, from)) => (connection, from.to_string()),
            Err(error) => {
                say(json!({ "event": "accept", "error": error.to_string() }));
                return;
            }
        };
        OPEN.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            let (began, watched) = (now_ms(), Watched::new(&format!("serve {from}")));
            let result = work(&connection, &watched);
            if result.is_err() {
                abort(&connection);
                say(end("serve", &from, began, &result));
            }
            OPEN.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve_stream(mut stream: &Stream, watched: &Watched) -> io::Result<u64> {
    let mut task = [0; Task::BYTES];
    watched.calls(|| stream.read_exact(&mut task))?;
    let Task { kind, seed, count } = Task::of(task)?;
    watched.rename(format!("serve {} {kind:?} seed {seed} count {count}", stream.peer_addr()?));
    match kind {
        Kind::Quit => return endure(stream, seed, count, watched),
        Kind::Down => send_all(stream, seed, count, watched)?,
        Kind::Echo | Kind::Up => take_all(stream, kind, seed, count, watched)?,
    }
    if kind == Kind::Up {
        watched.calls(|| stream.write_all(&count.to_le_bytes()))?;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(count)
}

/// Reads everything, and sends it back if it is to be an echo.
fn take_all(mut stream: &Stream, kind: Kind, seed: u64, count: u64, watched: &Watched) -> io::Result<()> {
    let (mut checked, mut buffer) = (Checked::new(seed), vec![0; CHUNK_BYTES]);
    loop {
        let arrived = watched.calls(|| stream.read(&mut buffer))?;
        let at = checked.bytes();
        if arrived == 0 && at == count {
            return Ok(());
        }
        if arrived == 0 {
            return Err(wrong(format!("{kind:?} seed {seed}: {at} bytes of {count}, then the end")));
        }
        if !checked.takes(&buffer[..arrived]) {
            return Err(wrong(format!("{kind:?} seed {seed}: wrong bytes from {at} on")));
        }
        if kind == Kind::Echo {
            watched.calls(|| stream.write_all(&buffer[..arrived]))?;
        }
    }
}

fn send_all(mut stream: &Stream, seed: u64, count: u64, watched: &Watched) -> io::Result<()> {
    let (mut at, mut buffer) = (0, vec![0; CHUNK_BYTES]);
    while at < count {
        let part = &mut buffer[..(CHUNK_BYTES as u64).min(count - at) as usize];
        fill(seed, at, part);
        watched.calls(|| stream.write_all(part))?;
        at += part.len() as u64;
    }
    Ok(())
}

/// Sends and reads with a client that may end it at any moment: what arrives is a beginning of what was sent, and however it ends is right.
fn endure(mut stream: &Stream, seed: u64, count: u64, watched: &Watched) -> io::Result<u64> {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let watched = Watched::new(&format!("sending {count} of seed {seed} to who may quit"));
            // An error is the client's end, which the reader sees as well.
            let _ = send_all(stream, seed, count, &watched).and_then(|()| stream.shutdown(Shutdown::Write));
        });
        let (mut checked, mut buffer) = (Checked::new(seed), vec![0; CHUNK_BYTES]);
        loop {
            let at = checked.bytes();
            match watched.calls(|| stream.read(&mut buffer)) {
                Ok(0) | Err(_) => return Ok(at),
                Ok(arrived) if checked.takes(&buffer[..arrived]) => {}
                Ok(_) => return Err(wrong(format!("Quit seed {seed}: wrong bytes from {at} on"))),
            }
        }
    })
}

fn serve_messages(socket: &MessageSocket, watched: &Watched) -> io::Result<u64> {
    let mut buffer = vec![0; LONGEST_BYTES];
    let first = watched.calls(|| socket.recv(&mut buffer))?;
    let task = first.and_then(|bytes| buffer[..bytes].try_into().ok());
    let Task { kind, seed, count } = Task::of(task.ok_or_else(|| wrong(format!("a first message of {first:?}")))?)?;
    watched.rename(format!("serve {} messages {kind:?} seed {seed} count {count}", socket.peer_addr()?));
    if kind == Kind::Down {
        for number in 0..count {
            let part = &mut buffer[..message_bytes(seed, number)];
            fill(seed, number, part);
            watched.calls(|| socket.send(part))?;
        }
    } else {
        let mut number = 0;
        while let Some(bytes) = watched.calls(|| socket.recv(&mut buffer))? {
            check_message(seed, number, &buffer[..bytes])?;
            if kind == Kind::Echo {
                watched.calls(|| socket.send(&buffer[..bytes]))?;
            }
            number += 1;
        }
        if number != count {
            return Err(wrong(format!("{kind:?} seed {seed}: {number} messages of {count}, then the end")));
        }
        if kind == Kind::Up {
            watched.calls(|| socket.send(&count.to_le_bytes()))?;
        }
    }
    socket.shutdown(Shutdown::Write)?;
    Ok(count)
}

/// The content of a message begins at the place that is its number.
pub fn check_message(seed: u64, number: u64, message: &[u8]) -> io::Result<()> {
    let mut expected = vec![0; message_bytes(seed, number)];
    fill(seed, number, &mut expected);
    if expected == message {
        return Ok(());
    }
    let at = expected.iter().zip(message).position(|(one, other)| one != other);
    Err(wrong(format!(
        "message {number} of seed {seed}: {} bytes for {}, the first wrong one at {at:?}",
        message.len(),
        expected.len()
    )))
}
