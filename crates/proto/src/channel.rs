//! A channel: one connection inside an association (docs/protocol.md 7). Queues and credit, both ways; nothing here knows of numbers, grants or time
//! but the few it must remember.

mod incoming;
mod numbers;
mod outgoing;
#[cfg(test)]
mod tests;
mod waiting;

use crate::endpoint::Path;
use ropeway_wire::{ErrorCode, Flags, Mode};

pub use incoming::{Awaited, Begun, Incoming, PIECE_BYTES, Part, Refused, UNUSED_SHARE};
pub use numbers::Numbers;
pub use outgoing::{MESSAGE_PREFIX_BYTES, Outgoing, Sendable, Unsent};
pub use waiting::Lack;

/// Short are messages of less than this share of a packet: it holds many.
const SHORT_MESSAGE_SHARE: usize = 8;

/// The flags of a payload that is one message.
pub fn whole() -> Flags {
    Flags::FIRST | Flags::LAST
}

/// The flags of messages: a payload without any of them is of a stream, or of the middle of a message.
pub fn message_flags() -> Flags {
    whole() | Flags::RECORDS
}

/// Names a channel of one endpoint to its user. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ChannelId {
    /// For callers that keep things in a table of their own: small and reused, unlike the whole.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// What can be done with a channel now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The peer has taken (or refused: then `failed`) the channel. Not if the association ended before it did either.
    pub opened: bool,
    /// A read returns something other than "would block": bytes, a message, the end, or an error.
    pub readable: bool,
    /// A write of one byte, or of what was refused last, returns something other than "would block".
    pub writable: bool,
    /// Everything written has been acknowledged, before it failed if it did.
    pub drained: bool,
    /// No more will be read: the peer sends no more, or this end wants none, and what came has been read.
    pub ended: bool,
    /// What a read returns next is the end, or why the channel failed: there are no bytes and no message before it.
    pub at_end: bool,
    pub failed: Option<ErrorCode>,
    /// Something written will not be acknowledged: it was dropped when the peer had closed, or the association ended before.
    pub undelivered: bool,
    /// It failed, and nobody lost anything by it: the peer's engine left behind the end of all that it sent, and had all that was sent to it.
    pub orderly: bool,
}

/// How far the opening of a channel has come, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The peer has not been heard about it.
    Waiting,
    Done,
}

/// One connection.
#[derive(Debug)]
pub struct Channel {
    pub generation: u32,
    /// Where the peer is: known even after the association is gone.
    pub path: Path,
    /// The association's index; another's, it may be, when `detached`.
    pub association: u32,
    /// The number on the wire; meaningless when `detached`.
    pub number: u16,
    pub mode: Mode,
    pub local_port: u16,
    /// The endpoint has chosen it, and gives it to others when this channel is gone.
    pub gives_port_back: bool,
    pub remote_port: u16,
    pub opening: Opening,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    pub failed: Option<ErrorCode>,
    /// Something written was not acknowledged when its association ended, or had not left when the peer had closed.
    pub undelivered: bool,
    /// The user has closed it: it goes when the wire is done with it.
    pub released: bool,
    /// The wire is done with it: it goes when the user is.
    pub detached: bool,
    /// It waits in a listener's queue.
    pub queued_in: Option<u16>,
    /// An event about it waits to be fetched.
    pub announced: bool,
    /// The user reads no more than what is here: then comes the end.
    pub reading_stopped: bool,
    /// What is unread when it is closed makes no reset of that.
    pub forgets_unread: bool,
    /// A CREDIT or HOLD for it is due.
    pub credit_due: bool,
    pub hold_due: bool,
    /// It stands among the association's channels with such words.
    pub has_words: bool,
}

impl Channel {
    /// Keeps no more memory than there is use for now.
    pub fn rest(&mut self) {
        self.outgoing.rest();
        self.incoming.rest();
    }

    pub fn new(
        generation: u32,
        path: Path,
        association: u32,
        number: u16,
        mode: Mode,
        ports: (u16, u16),
        window: u32,
    ) -> Channel {
        Channel {
            generation,
            path,
            association,
            number,
            mode,
            local_port: ports.0,
            gives_port_back: false,
            remote_port: ports.1,
            opening: Opening::Waiting,
            outgoing: Outgoing::default(),
            incoming: Incoming::new(window),
            failed: None,
            undelivered: false,
            released: false,
            detached: false,
            queued_in: None,
            announced: false,
            reading_stopped: false,
            forgets_unread: false,
            credit_due: false,
            hold_due: false,
            has_words: false,
        }
    }

    pub fn readiness(&self, send_buffer_bytes: usize) -> Readiness {
        let opened = self.opening == Opening::Done;
        let readable = self.incoming.is_readable(self.mode);
        // While another reader has a part of what comes first, nobody knows what there is.
        let is_taken = self.incoming.is_taken();
        let ended = (self.incoming.is_ended() || self.reading_stopped && !readable) && !is_taken;
        let is_over = self.failed.is_some() && !is_taken || ended;
        let drained = self.outgoing.is_drained() && !self.undelivered;
        Readiness {
            opened,
            readable: is_over || readable,
            writable: self.failed.is_some()
                || self.outgoing.is_finished()
                || self.outgoing.ends_then.is_some()
                || self.outgoing.is_writable(send_buffer_bytes),
            drained,
            ended,
            at_end: is_over && !readable,
            failed: self.failed,
            undelivered: self.undelivered,
            orderly: self.failed == Some(ErrorCode::Closed) && self.incoming.is_finished() && drained,
        }
    }

    /// Its user has accepted it and read all that can be read of it.
    pub fn is_hungry(&self) -> bool {
        self.queued_in.is_none() && !self.incoming.is_readable(self.mode)
    }

    /// Whether neither end will send on this channel again and everything was acknowledged: its number is free.
    pub fn is_done(&self) -> bool {
        let acknowledged = self.outgoing.unacked_packets() == 0 && self.outgoing.is_queue_empty();
        acknowledged && (self.failed.is_some() || (self.outgoing.is_finished() && self.incoming.is_finished()))
    }
}
