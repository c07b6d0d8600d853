//! What a worker does on its stream. Generic over the stream, so that every transport runs the same text and pays no dispatch.
//!
//! The bytes are checked as they pass (cheaply): a figure for a stream that arrives damaged is worth nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::plan::{Pattern, Plan, WARM_UP};
use super::samples::{self, Raw};

/// The sender of a one-way pattern goes on for this long after the receiver's window should have ended, because the two do not start at the
/// same instant.
const SENDER_OVERTIME: Duration = Duration::from_millis(50);

/// One slice of a one-way window; long enough that its edges do not matter, short enough to show a stall.
const SLICE: Duration = Duration::from_millis(10);

/// Reads of the receiver, and writes of the sender, between two looks at the clock (25 ns each).
const CALLS_PER_LOOK: u32 = 64;

/// Bytes between two looks of the receiver at the most: when it is behind, one read returns thousands of small messages.
const BYTES_PER_LOOK: u64 = 128 << 10;

/// A stream whose calls are repeated until they do not answer "would block": waiting by spinning.
pub struct Spinning<S>(pub S);

impl<S: Read> Read for Spinning<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

impl<S: Write> Write for Spinning<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The connecting side of the ping-pong: sends, waits for the same bytes, measures.
pub fn ping<S: Read + Write>(stream: &mut S, plan: &Plan) -> io::Result<Raw> {
    let mut sent = vec![0u8; plan.size];
    let mut back = vec![0u8; plan.size];
    let mut trip = || {
        sent[0] = sent[0].wrapping_add(1);
        stream.write_all(&sent)?;
        stream.read_exact(&mut back)?;
        if back[0] == sent[0] { Ok(()) } else { Err(damaged("the echo differs from what was sent")) }
    };

    let warm_until = Instant::now() + WARM_UP;
    while Instant::now() < warm_until {
        trip()?;
    }

    samples::time_batches(plan, || (0..plan.batch).try_for_each(|_| trip()))
}

/// The listening side of the ping-pong: returns every message until the other end closes.
pub fn echo<S: Read + Write>(stream: &mut S, plan: &Plan) -> io::Result<()> {
    let mut message = vec![0u8; plan.size];
    loop {
        // The first read decides whether there is another message; an end inside a message is an error.
        let first = match stream.read(&mut message) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        stream.read_exact(&mut message[first..])?;
        stream.write_all(&message)?;
    }
}

/// The connecting side of the one-way patterns. Returns the bytes sent.
pub fn send<S: Write>(stream: &mut S, plan: &Plan) -> io::Result<u64> {
    let mut message = vec![0u8; plan.size];
    let mut index = 0u64;
    let end = Instant::now() + WARM_UP + plan.seconds + SENDER_OVERTIME;
    while Instant::now() < end {
        for _ in 0..CALLS_PER_LOOK {
            if let Some(head) = message.first_chunk_mut() {
                *head = index.to_le_bytes();
            }
            stream.write_all(&message)?;
            index += 1;
        }
    }
    Ok(index * plan.size as u64)
}

/// The listening side of the one-way patterns: receives until the end of the stream. Returns the measured window and all bytes received.
pub fn receive<S: Read>(stream: &mut S, plan: &Plan) -> io::Result<(Raw, u64)> {
    let mut buffer = vec![0u8; plan.pattern.receive_size(plan.size)];
    let mut window = Window::new(plan);
    let mut received = 0u64;
    let (mut calls, mut looked_at) = (0u32, 0u64);
    loop {
        let n = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        check(&buffer[..n], received, plan.size)?;
        received += n as u64;
        calls += 1;
        if calls == CALLS_PER_LOOK || received - looked_at >= BYTES_PER_LOOK {
            (calls, looked_at) = (0, received);
            window.look(received);
        }
    }
    window.close(received);
    Ok((Raw::Slices { message_bytes: plan.size as u64, slices: window.slices }, received))
}

/// Checks the last message head in a piece that begins at `offset` of the stream: message i begins with i.
fn check(piece: &[u8], offset: u64, message: usize) -> io::Result<()> {
    const HEAD: u64 = size_of::<u64>() as u64;
    let message = message as u64;
    let end = offset + piece.len() as u64;
    if message < HEAD || end < HEAD {
        return Ok(());
    }
    let index = (end - HEAD) / message;
    let Some(start) = (index * message).checked_sub(offset) else { return Ok(()) };
    match piece[start as usize..].first_chunk() {
        Some(head) if u64::from_le_bytes(*head) != index => {
            Err(damaged("a message is not where it should be in the stream"))
        }
        _ => Ok(()),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{what}: bytes were lost, doubled or changed on the way"))
}

/// Cuts the time after the warm-up into slices, and stops after the planned time.
struct Window {
    opens: Instant,
    planned: Duration,
    /// Begin of the open slice and the bytes received until then.
    slice: Option<(Instant, u64)>,
    measured: Duration,
    slices: Vec<(u64, u64)>,
}

impl Window {
    fn new(plan: &Plan) -> Window {
        debug_assert!(plan.pattern != Pattern::Pingpong);
        let most = (plan.seconds.as_millis() / SLICE.as_millis() + 2) as usize;
        Window {
            opens: Instant::now() + WARM_UP,
            planned: plan.seconds,
            slice: None,
            measured: Duration::ZERO,
            slices: Vec::with_capacity(most),
        }
    }

    fn look(&mut self, received: u64) {
        let now = Instant::now();
        if now < self.opens || self.measured >= self.planned {
            return;
        }
        let Some((begin, before)) = self.slice else {
            self.slice = Some((now, received));
            return;
        };
        if now - begin >= SLICE {
            self.slices.push((received - before, (now - begin).as_nanos() as u64));
            self.measured += now - begin;
            self.slice = Some((now, received));
        }
    }

    /// The stream ended. On a machine so busy that not one slice was completed, the open one is the measurement.
    fn close(&mut self, received: u64) {
        if let (Some((begin, before)), true) = (self.slice, self.slices.is_empty()) {
            self.slices.push((received - before, begin.elapsed().as_nanos() as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_checked_at_its_last_message_head() {
        let stream: Vec<u8> = (0u64..4).flat_map(|i| i.to_le_bytes()).collect();
        assert!(check(&stream, 0, 8).is_ok());
        assert!(check(&stream[8..], 8, 8).is_ok());
        assert!(check(&stream[3..13], 3, 8).is_ok(), "no whole head inside");
        assert!(check(&stream[8..], 0, 8).is_err(), "eight bytes lost");
        assert!(check(&stream[..8], 8, 8).is_err(), "eight bytes doubled");
    }

    #[test]
    fn messages_too_small_for_a_head_are_not_checked() {
        assert!(check(&[9; 16], 0, 4).is_ok());
    }

    #[test]
    fn the_echo_ends_with_the_stream_and_not_inside_a_message() {
        let plan = Plan { pattern: Pattern::Pingpong, size: 4, seconds: SLICE, batch: 1, cpus: None };
        assert!(echo(&mut io::Cursor::new(Vec::new()), &plan).is_ok());
        let inside = echo(&mut io::Cursor::new(vec![1, 2, 3]), &plan);
        assert_eq!(inside.map_err(|e| e.kind()), Err(ErrorKind::UnexpectedEof));
    }
}
