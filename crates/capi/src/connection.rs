//! A connection as C has it: what `send` and `recv` mean with their flags, and what options ask of it.

use crate::failure::{Failure, Outcome};
use crate::socket::Options;
use ropeway_socket::{MessageSocket, Stream};
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut, Read};
use std::net::Shutdown;
use std::time::{Duration, Instant};

/// What receiving from a stream may be told.
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_WAITALL;

/// What receiving messages may be told.
const MESSAGE_RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// What a look at a stream shows to several buffers at most, however long they are.
const MOST_PEEKED_BYTES: usize = 1 << 20;

/// A connection of either kind.
pub enum Connection {
    Stream(Stream),
    Messages(MessageSocket),
}

/// The same for both kinds.
macro_rules! either {
    ($which:expr, $type:ident :: { $a:ident | $b:ident }, $name:ident => $body:expr) => {
        match $which {
            $type::$a($name) => $body,
            $type::$b($name) => $body,
        }
    };
}

macro_rules! connection {
    ($which:expr, $name:ident => $body:expr) => {
        either!($which, Connection::{ Stream | Messages }, $name => $body)
    };
}

pub(crate) use {connection, either};

impl Connection {
    /// Brings its options up to date.
    pub fn apply(&self, options: &Options) -> Outcome<()> {
        connection!(self, one => {
            one.set_read_timeout(options.receive_limit)?;
            one.set_write_timeout(options.send_limit)?;
            one.set_linger(options.linger)?;
            one.set_nodelay(options.no_delay)?;
        });
        if let Connection::Messages(socket) = self {
            socket.set_forgets_unread(options.forgets_unread);
        }
        Ok(())
    }

    pub fn shutdown(&self, how: c_int) -> Outcome<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::new(libc::EINVAL, "shutdown takes SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        Ok(connection!(self, one => one.shutdown(how))?)
    }

    /// Ends it while other threads are in calls with it, which then return: as the last share would, but at once, and with the waiting that `linger` asks for here and not in one of those calls.
    pub fn end_under_calls(&self, linger: Option<Duration>) {
        connection!(self, one => {
            if linger == Some(Duration::ZERO) {
                return one.abort();
            }
            let linger = linger.filter(|_| one.has_begun());
            // Whoever lets go of it last waits for nothing any more: from the next line on it has begun, with its end.
            let _ = one.set_linger(None);
            let _ = one.shutdown(Shutdown::Both);
            if let Some(limit) = linger {
                let _ = one.drain(Some(limit));
            }
        });
    }

    /// # Errors
    /// As `send`, of which `flags` are a part.
    pub fn send(&self, bytes: &[u8], flags: c_int) -> Outcome<usize> {
        let now = sends_now(flags)?;
        Ok(match self {
            Connection::Stream(stream) if now => stream.try_write(bytes)?,
            Connection::Stream(stream) => std::io::Write::write(&mut &*stream, bytes)?,
            Connection::Messages(socket) if now => socket.try_send(bytes).map(|()| bytes.len())?,
            Connection::Messages(socket) => socket.send(bytes).map(|()| bytes.len())?,
        })
    }

    /// The bytes of several buffers, as if they lay in one.
    ///
    /// # Errors
    /// As `send`.
    pub fn send_parts(&self, parts: &[IoSlice<'_>], flags: c_int) -> Outcome<usize> {
        let now = sends_now(flags)?;
        match (self, parts) {
            (_, [one]) => self.send(one, flags),
            (Connection::Stream(stream), _) if now => Ok(stream.try_write_vectored(parts)?),
            (Connection::Stream(stream), _) => Ok(std::io::Write::write_vectored(&mut &*stream, parts)?),
            (Connection::Messages(socket), _) => {
                let length: usize = parts.iter().map(|part| part.len()).sum();
                let most = socket.max_message_len();
                // Before it is gathered; while the connection is being opened nobody knows.
                if most > 0 && length as u64 > most {
                    let what = format!("the message is longer than the {most} bytes that one to this peer may have");
                    return Err(Failure::new(libc::EMSGSIZE, what));
                }
                let mut message = memory(length)?;
                parts.iter().for_each(|part| message.extend_from_slice(part));
                self.send(&message, flags)
            }
        }
    }

    /// # Errors
    /// As `send`; it is a stream.
    pub fn send_within(&self, message: &[u8], flags: c_int, life: Duration) -> Outcome<usize> {
        let now = sends_now(flags)?;
        let socket = self.messages()?;
        if now {
            socket.try_send_within(message, life)?
        } else {
            socket.send_within(message, life)?
        }
        Ok(message.len())
    }

    /// Drops messages that are not under way.
    pub fn cancel(&self) -> Outcome<u64> {
        Ok(self.messages()?.cancel()?)
    }

    /// Messages whose life was over before they were under way.
    pub fn expired(&self) -> Outcome<u64> {
        Ok(self.messages()?.expired()?)
    }

    /// # Errors
    /// As `recv`, of which `flags` are a part. `None`: no message follows.
    pub fn recv(&self, out: &mut [u8], flags: c_int) -> Outcome<Option<usize>> {
        match self {
            Connection::Stream(stream) => recv_stream(stream, out, flags).map(Some),
            Connection::Messages(socket) => {
                check_flags(flags, MESSAGE_RECEIVE_FLAGS)?;
                let count = if flags & libc::MSG_DONTWAIT != 0 { socket.try_recv(out) } else { socket.recv(out) };
                Ok(count?)
            }
        }
    }

    /// Into several buffers, as if they lay in one.
    ///
    /// # Errors
    /// As `recv`.
    pub fn recv_parts(&self, parts: &mut [IoSliceMut<'_>], flags: c_int) -> Outcome<Option<usize>> {
        if let [one] = parts {
            return self.recv(one, flags);
        }
        let now = flags & libc::MSG_DONTWAIT != 0;
        let room: usize = parts.iter().map(|part| part.len()).sum();
        match self {
            Connection::Messages(socket) => loop {
                check_flags(flags, MESSAGE_RECEIVE_FLAGS)?;
                let next = if now { socket.try_next_len() } else { socket.next_len() };
                let Some(next) = next? else { return Ok(None) };
                let mut whole = memory(room.min(next))?;
                whole.resize(room.min(next), 0);
                match self.recv(&mut whole, flags) {
                    // Another thread has taken that one, and the next is longer.
                    Err(failure) if failure.errno == libc::EMSGSIZE && whole.len() < room => {}
                    count => return scatter(&whole, count?, parts),
                }
            },
            Connection::Stream(_) if flags & libc::MSG_PEEK != 0 => {
                let mut whole = memory(room.min(MOST_PEEKED_BYTES))?;
                whole.resize(room.min(MOST_PEEKED_BYTES), 0);
                let count = self.recv(&mut whole, flags)?;
                scatter(&whole, count, parts)
            }
            Connection::Stream(stream) if flags & libc::MSG_WAITALL != 0 && !now => {
                check_flags(flags, RECEIVE_FLAGS)?;
                let parts = parts.iter_mut().map(|part| &mut **part).filter(|part| !part.is_empty());
                recv_all(stream, parts).map(Some)
            }
            // Waiting for the first byte, or for none at all; what has come is copied once.
            Connection::Stream(stream) => {
                check_flags(flags, RECEIVE_FLAGS)?;
                let read = |parts: &mut [_]| Read::read_vectored(&mut &*stream, parts);
                Ok(Some(if now { stream.try_read_vectored(parts)? } else { read(parts)? }))
            }
        }
    }

    /// The longest message, for those of messages.
    pub fn max_message(&self) -> Outcome<u64> {
        Ok(self.messages()?.max_message_len())
    }

    /// The length of the next message, which is there; `None` at the end.
    pub fn next_message(&self) -> Outcome<Option<usize>> {
        Ok(self.messages()?.try_next_len()?)
    }

    /// The ports of the protocol, local first.
    pub fn ports(&self) -> (u16, u16) {
        connection!(self, one => one.ports())
    }

    /// Whether the peer has closed and everything was read.
    pub fn is_ended(&self) -> Outcome<bool> {
        Ok(connection!(self, one => one.is_ended())?)
    }

    fn messages(&self) -> Outcome<&MessageSocket> {
        match self {
            Connection::Messages(socket) => Ok(socket),
            Connection::Stream(_) => Err(Failure::new(libc::ENOPROTOOPT, "a stream has no messages")),
        }
    }
}

fn check_flags(flags: c_int, known: c_int) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        other => Err(Failure::new(libc::EOPNOTSUPP, format!("the flags {other:#x} have no meaning here"))),
    }
}

/// Memory to gather so much in.
fn memory(bytes: usize) -> Outcome<Vec<u8>> {
    let mut memory = Vec::new();
    let lacking = |_| Failure::new(libc::ENOMEM, format!("no {bytes} bytes to gather several buffers in"));
    memory.try_reserve_exact(bytes).map_err(lacking)?;
    Ok(memory)
}

/// Puts so much of what was gathered into the buffers.
fn scatter(whole: &[u8], count: Option<usize>, parts: &mut [IoSliceMut<'_>]) -> Outcome<Option<usize>> {
    let mut rest = &whole[..count.unwrap_or(0)];
    for part in parts {
        let (first, behind) = rest.split_at(rest.len().min(part.len()));
        part[..first.len()].copy_from_slice(first);
        rest = behind;
    }
    Ok(count)
}

/// Whether a call that sends does not wait.
fn sends_now(flags: c_int) -> Outcome<bool> {
    // No signal is ever sent; whether more follows is of no interest here.
    check_flags(flags, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE | libc::MSG_EOR)?;
    Ok(flags & libc::MSG_DONTWAIT != 0)
}

fn recv_stream(stream: &Stream, out: &mut [u8], flags: c_int) -> Outcome<usize> {
    check_flags(flags, RECEIVE_FLAGS)?;
    let [peek, now, all] = [libc::MSG_PEEK, libc::MSG_DONTWAIT, libc::MSG_WAITALL].map(|flag| flags & flag != 0);
    Ok(match (peek, now) {
        (true, true) => stream.try_peek(out)?,
        (true, false) if all => stream.peek_all(out)?,
        (true, false) => stream.peek(out)?,
        (false, true) => stream.try_read(out)?,
        (false, false) if all => return recv_all(stream, std::iter::once(out)),
        (false, false) => Read::read(&mut &*stream, out)?,
    })
}

/// Fills these one after the other, until the end of the stream, or until the time limit of reading is over: it is that of the whole call.
fn recv_all<'a>(stream: &Stream, parts: impl Iterator<Item = &'a mut [u8]>) -> Outcome<usize> {
    let deadline = stream.read_timeout()?.and_then(|limit| Instant::now().checked_add(limit));
    let mut received = 0;
    for mut part in parts {
        while !part.is_empty() {
            match stream.read_by(part, deadline) {
                Ok(0) => return Ok(received),
                Ok(count) => {
                    received += count;
                    part = part.split_at_mut(count).1;
                }
                Err(error) if received == 0 => return Err(error.into()),
                // What has come counts; the next call meets the error.
                Err(_) => return Ok(received),
            }
        }
    }
    Ok(received)
}
