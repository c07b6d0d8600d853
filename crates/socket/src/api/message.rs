//! Messages: as datagrams their boundaries are kept, as in a stream none is lost or overtakes another.

use super::address::{Address, ToAddresses};
use super::common::connection_methods;
use super::connection::{Connection, Way};
use super::home::Home;
use super::local::Local;
use ropeway_engine::{Engine, Error, Mode, Routes, Target, Watch};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So much of a capacity that a longer message has left is made ready for the next one before its length is known: to fill all of it would cost the more for each short one.
const FILLED_BYTES: usize = 64 << 10;

/// A connection that carries messages.
///
/// Several threads may send and receive at once; a message is always sent and received whole. Dropping the last handle closes the connection as with
/// [`Stream`](super::Stream).
pub struct MessageSocket {
    pub(super) connection: Arc<Connection>,
}

impl MessageSocket {
    connection_methods!(Mode::Messages);

    /// Sends one message; one of no bytes is a message too.
    ///
    /// # Errors
    /// `InvalidInput`: it is longer than [`MessageSocket::max_message_len`]. `BrokenPipe`: the peer has closed. `WouldBlock`, `ConnectionReset`,
    /// `TimedOut`: as with streams.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.connection.send(message).map(drop)
    }

    /// Receives one message and says how long it is. `None`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// `InvalidInput`: `out` is too short. The message stays; [`MessageSocket::next_len`] says how long it is, and so does the error
    /// ([`details`](super::details)).
    pub fn recv(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.connection.recv(out)
    }

    /// Sends one message, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as [`MessageSocket::send`].
    pub fn try_send(&self, message: &[u8]) -> io::Result<()> {
        self.connection.try_send(message).map(drop)
    }

    /// Sends one message that is worth sending for `life` only: if it is not under way by then, it is dropped as a whole and counted
    /// ([`MessageSocket::expired`]). It shares no packet with others.
    ///
    /// # Errors
    /// As [`MessageSocket::send`]; `WouldBlock` also if there is no room within its life.
    pub fn send_within(&self, message: &[u8], life: Duration) -> io::Result<()> {
        self.connection.send_within(message, life)
    }

    /// The same, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as [`MessageSocket::send`].
    pub fn try_send_within(&self, message: &[u8], life: Duration) -> io::Result<()> {
        self.connection.try_send_within(message, life)
    }

    /// Drops the messages that are not under way, and says how many. What has begun is delivered.
    ///
    /// # Errors
    /// This process was forked from the one that connected.
    pub fn cancel(&self) -> io::Result<u64> {
        self.connection.cancel()
    }

    /// How many messages were dropped because their life was over.
    ///
    /// # Errors
    /// As [`MessageSocket::cancel`].
    pub fn expired(&self) -> io::Result<u64> {
        self.connection.expired_messages()
    }

    /// Receives one message that is there, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as [`MessageSocket::recv`].
    pub fn try_recv(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.connection.try_recv(out)
    }

    /// Receives one message of any length: `out` becomes exactly it. Says whether there was one; `false`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// As [`MessageSocket::recv`], but for its length.
    pub fn recv_vec(&self, out: &mut Vec<u8>) -> io::Result<bool> {
        // As much as the last message had is filled already.
        if out.len() < FILLED_BYTES {
            out.resize(out.capacity().min(FILLED_BYTES), 0);
        }
        loop {
            let result = self.recv(out);
            match &result {
                Ok(count) => out.truncate(count.unwrap_or(0)),
                Err(error) => match super::details(error) {
                    Some(&Error::TooShort { message_bytes }) => {
                        out.resize(message_bytes, 0);
                        continue;
                    }
                    _ => out.clear(),
                },
            }
            return result.map(|count| count.is_some());
        }
    }

    /// Waits until a message is there, and says how long it is. `None`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// As [`MessageSocket::recv`].
    pub fn next_len(&self) -> io::Result<Option<usize>> {
        self.connection.next_message_bytes()
    }

    /// The same, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as [`MessageSocket::recv`].
    pub fn try_next_len(&self) -> io::Result<Option<usize>> {
        self.connection.try_next_message_bytes()
    }

    /// Whether messages that came and were not read, or not all of them, are forgotten at the end of the last handle or of the process: then the peer still gets all that was sent to it before the end. Otherwise,
    /// as at first, it sees a reset, as with TCP.
    pub fn set_forgets_unread(&self, on: bool) {
        self.connection.set_forgets_unread(on);
    }

    /// The longest message that can be sent: what the peer takes, and this end. 0 while the connection is being opened.
    pub fn max_message_len(&self) -> u64 {
        self.connection.longest_message()
    }
}

impl fmt::Debug for MessageSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSocket").field("peer", self.connection.peer()).field("ports", &self.ports()).finish()
    }
}
