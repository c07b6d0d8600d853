//! Many connections at once, with one message each way.

use crate::wrong;
use ropeway_socket::api::{Address, MessageListener, MessageSocket};
use std::io;
use std::time::Instant;

/// Connections that may wait to be accepted: all.
const BACKLOG: usize = 16_000;

/// Answers one message on each of `count` connections; all stay open until all are there.
pub fn echo(at: &str, count: u64) -> io::Result<()> {
    let listener = MessageListener::bind_with_backlog(at, BACKLOG)?;
    println!("{}", serde_json::json!({ "state": "ready" }));
    let mut all = Vec::new();
    let mut buffer = [0; 64];
    for _ in 0..count {
        let (socket, _) = listener.accept()?;
        let bytes = socket.recv(&mut buffer)?.ok_or_else(|| wrong("closed without a message"))?;
        socket.send(&buffer[..bytes])?;
        all.push(socket);
    }
    let mut ended = 0;
    for socket in &all {
        ended += u64::from(socket.recv(&mut buffer)?.is_none());
    }
    println!("{}", serde_json::json!({ "state": "over", "accepted": all.len(), "ended": ended }));
    Ok(())
}

/// Opens `count` connections without waiting for any, sends each its number, reads it back, and closes them all.
pub fn many(to: &str, count: u64) -> io::Result<()> {
    let began = Instant::now();
    let to: Address = to.parse().map_err(io::Error::other)?;
    let all: io::Result<Vec<MessageSocket>> = (0..count).map(|_| MessageSocket::connect_nonblocking(&to)).collect();
    let all = all?;
    for (number, socket) in (0u64..).zip(&all) {
        socket.set_nonblocking(false)?;
        socket.send(&number.to_le_bytes())?;
    }
    let mut buffer = [0; 64];
    let mut right = 0u64;
    for (number, socket) in (0u64..).zip(&all) {
        let bytes = socket.recv(&mut buffer)?.ok_or_else(|| wrong("closed without an answer"))?;
        right += u64::from(buffer[..bytes] == number.to_le_bytes());
    }
    drop(all);
    println!("{}", serde_json::json!({ "state": "over", "right": right, "seconds": began.elapsed().as_secs_f64() }));
    Ok(())
}
