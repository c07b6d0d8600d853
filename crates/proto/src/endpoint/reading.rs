//! What the user takes of what has arrived.

use ropeway_wire::{ErrorCode, Mode};

use super::Endpoint;
use crate::channel::{Channel, ChannelId, PIECE_BYTES, Part};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    #[error("nothing to read now")]
    WouldBlock,
    #[error("the message has {message_bytes} bytes and does not fit; it stays")]
    TooShort { message_bytes: usize },
    #[error("{0}")]
    Failed(ErrorCode),
    #[error("no such channel")]
    Unknown,
}

impl Endpoint {
    /// Reads bytes of a stream, or one message. `None`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn recv(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        let count = match channel.mode {
            Mode::Stream if channel.incoming.is_readable(Mode::Stream) => channel.incoming.read(out, &mut self.rx_pool),
            Mode::Messages if channel.incoming.is_readable(Mode::Messages) => {
                match channel.incoming.read_message(out, &mut self.rx_pool) {
                    Some(Ok(count)) => count,
                    Some(Err(short)) => return Err(RecvError::TooShort { message_bytes: short.message_bytes }),
                    None => return Err(RecvError::WouldBlock),
                }
            }
            // Somebody is taking the message in front of all that there may be.
            Mode::Messages if channel.incoming.is_taken() => return Err(RecvError::WouldBlock),
            _ => return nothing_to_read(channel),
        };
        self.after_read(at);
        Ok(Some(count))
    }

    /// Like [`Endpoint::recv`], for who calls again: what has arrived of a long message is moved into `out`, piece by piece ([`PIECE_BYTES`]), and `part`, the same in
    /// every call, says how much. Once it has begun nobody else can read from the channel until all of the message was read, or the part was put back ([`Endpoint::put_back`]).
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn recv_partly(&mut self, id: ChannelId, out: &mut [u8], part: &mut Part) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        let is_others = channel.incoming.is_taken() && !part.is_begun;
        let is_whole = channel.incoming.is_readable(Mode::Messages);
        let begins = match is_whole {
            true => out.len() > PIECE_BYTES && channel.incoming.is_long(),
            false => !part.is_of_whole,
        };
        if channel.mode == Mode::Stream || is_others || !begins && !part.is_begun {
            return self.recv(id, out);
        }
        let takes_all = channel.incoming.take_part(out, part, &mut self.rx_pool);
        if is_whole && !part.is_begun {
            // It is too long for the reader.
            return self.recv(id, out);
        }
        if takes_all {
            self.after_read(at);
            // Others waited until it was read.
            self.announce_channel(at);
            return Ok(Some(part.bytes));
        }
        if part.has_more {
            // Though the peer may have closed.
            return Err(RecvError::WouldBlock);
        }
        nothing_to_read(channel)
    }

    /// Gives back the last piece of what [`Endpoint::recv_partly`] has taken of a message, for who does not wait for the rest, and says how much is left to be given back.
    pub fn put_back(&mut self, id: ChannelId, taken: &[u8]) -> usize {
        let Some(at) = self.channel_index(id) else { return 0 };
        let left = self.channels[at as usize].incoming.put_back(taken, &mut self.rx_pool);
        if left == 0 {
            self.announce_channel(at);
        }
        left
    }

    /// Something was read: there is room for more.
    fn after_read(&mut self, at: u32) {
        let channel = &self.channels[at as usize];
        if !channel.detached && channel.failed.is_none() && !channel.incoming.is_finished() {
            self.let_come(at);
            self.let_go_if_it_may(at);
        }
        self.serve_line();
    }

    /// What [`Endpoint::recv`] would give of a stream; it stays. Messages have [`Endpoint::message_bytes`].
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn peek(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        match channel.mode {
            Mode::Stream if channel.incoming.is_readable(Mode::Stream) => Ok(Some(channel.incoming.peek(out))),
            _ => nothing_to_read(channel),
        }
    }

    /// The same for who wants all of `out`: `WouldBlock` also where less is there, as long as more may come without that being read.
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn peek_all(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &self.channels[at as usize];
        let goes_on = channel.failed.is_none() && !channel.reading_stopped && !channel.incoming.is_finished();
        let may_send = !self.is_paused(at) || self.may_go_on(at);
        let more_comes = goes_on && may_send && channel.incoming.has_credit_for(self.rx_pool.payload_bytes());
        // What is there is not copied again and again.
        if more_comes && channel.incoming.unread_bytes() < out.len() as u64 {
            return Err(RecvError::WouldBlock);
        }
        match self.peek(id, out) {
            Ok(Some(count)) if more_comes && count < out.len() => Err(RecvError::WouldBlock),
            result => result,
        }
    }

    /// The user wants to read no more than what has arrived: afterwards [`Endpoint::recv`] gives the end. The peer is not told.
    pub fn stop_reading(&mut self, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        self.channels[at as usize].reading_stopped = true;
        self.announce_channel(at);
    }

    /// The length of the next whole message, if there is one.
    pub fn message_bytes(&self, id: ChannelId) -> Option<usize> {
        self.channels[self.channel_index(id)? as usize].incoming.message_bytes()
    }
}

/// What a read gives where there is nothing.
fn nothing_to_read(channel: &Channel) -> Result<Option<usize>, RecvError> {
    match channel.failed {
        _ if channel.incoming.is_finished() || channel.reading_stopped => Ok(None),
        None => Err(RecvError::WouldBlock),
        Some(code) => Err(RecvError::Failed(code)),
    }
}
