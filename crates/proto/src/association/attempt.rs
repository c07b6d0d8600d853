//! An attempt to open an association (docs/protocol.md 3).

use ropeway_wire::{self as wire, ErrorCode};

use super::{Association, Phase};
use crate::endpoint::Path;
use crate::keyed::Handshake;
use crate::time::Time;

/// What comes of the peer's word that two attempts have crossed. It may be a stranger's, so it costs a repetition now and then, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossed {
    No,
    /// The next repetition is left out.
    LeavesOut,
    /// The last one was, so the next one is not.
    LeftOut,
}

/// An attempt to open, seen from the end that began it.
#[derive(Debug)]
pub struct Attempt {
    pub nonce: u64,
    pub destination_port: u16,
    pub source_port: u16,
    /// Once the server has answered: its cookie, and when it came.
    pub cookie: Option<(wire::Cookie, Time)>,
    pub give_up_at: Time,
    pub retry_at: Time,
    pub retry_ns: u64,
    /// The other end's attempt has crossed this one, and wins.
    pub crossed: Crossed,
    /// CONFIRM has been sent: the server may know channel 0.
    pub confirmed: bool,
    /// The last SYN or CONFIRM, as long as the link has not taken it: the next one replaces it.
    pub unsent: Option<(Path, Box<[u8]>)>,
    /// When the last SYN or CONFIRM left, for the first sample of the round-trip time; none when it was repeated.
    pub asked_at: Option<Time>,
    /// With a key, once CONFIRM has been sent.
    pub handshake: Option<Handshake>,
    /// The longest packet that every path bears, as far as this end knows.
    pub packet_bytes: u16,
    /// With several paths: how often CONFIRM has been sent over this one.
    pub confirms: u32,
    /// With a key: a refusal that nothing proves. It is believed when nothing better has come until the end.
    pub hint: Option<ErrorCode>,
}

/// First repetition of a SYN or CONFIRM; each further one after twice the time.
pub const FIRST_RETRY_NS: u64 = 10_000_000;

impl Attempt {
    pub fn new(
        nonce: u64,
        (destination_port, source_port): (u16, u16),
        packet_bytes: u16,
        give_up_at: Time,
        now: Time,
    ) -> Attempt {
        Attempt {
            packet_bytes,
            confirms: 0,
            nonce,
            destination_port,
            source_port,
            cookie: None,
            give_up_at,
            retry_at: now,
            retry_ns: FIRST_RETRY_NS,
            crossed: Crossed::No,
            confirmed: false,
            unsent: None,
            asked_at: None,
            handshake: None,
            hint: None,
        }
    }

    /// When something is to be done next.
    pub fn due_at(&self) -> Time {
        self.retry_at.min(self.give_up_at)
    }
}

impl Association {
    /// Why opening did not succeed, for the code of an answer.
    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Opening(attempt) => Some(attempt),
            Phase::Open => None,
        }
    }

    pub fn attempt_mut(&mut self) -> Option<&mut Box<Attempt>> {
        match &mut self.phase {
            Phase::Opening(attempt) => Some(attempt),
            Phase::Open => None,
        }
    }
}
