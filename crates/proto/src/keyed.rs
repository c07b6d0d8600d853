//! What an association and an attempt have when the endpoint has keys (docs/protocol.md 9), and where packets are sealed and opened.
//!
//! Ciphers and counters are `crate::crypto`'s; what is done with an opened packet is the endpoint's, as without a key.

use std::fmt;

use ropeway_wire as wire;

use crate::association::Association;
use crate::crypto::{Counters, Initiator, OpenError, Session};
use crate::statistics::SealingStatistics;
use crate::time::Time;

/// The client's side of a handshake, from CONFIRM until its answer.
pub struct Handshake {
    pub initiator: Initiator,
    /// CONFIRM as it was made: it is sent again byte for byte, never made again.
    pub confirm: Box<[u8]>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

/// An association's part in sealing. The default is that of one without a key.
#[derive(Debug, Default)]
pub struct Sealing {
    /// What is sent is sealed, or not sent.
    is_keyed: bool,
    /// Once open: what seals and opens the packets.
    pub session: Option<Box<Session>>,
    /// The nonce of the attempt whose OPENED is kept, to be said again byte for byte, until the client has been heard.
    pub answered: Option<u64>,
    /// The key has sealed all that it may, or what was sealed cannot be opened to be sent again: nothing is sent any more, and silence ends the association.
    pub mute: bool,
}

impl Sealing {
    pub fn with_key() -> Sealing {
        Sealing { is_keyed: true, ..Sealing::default() }
    }

    pub fn statistics(&self) -> Option<SealingStatistics> {
        let session = self.session.as_ref()?;
        let &Counters { sealed, opened, refused, .. } = session.counters();
        Some(SealingStatistics { generation: session.generation(), sealed, opened, refused })
    }

    pub fn is_keyed(&self) -> bool {
        self.is_keyed
    }

    /// Bytes between header and payload, and behind the payload.
    pub fn counter_and_tag_bytes(&self) -> (usize, usize) {
        if self.is_keyed { (wire::COUNTER_BYTES, wire::TAG_BYTES) } else { (0, 0) }
    }

    /// Both together.
    pub fn overhead_bytes(&self) -> usize {
        let (counter_bytes, tag_bytes) = self.counter_and_tag_bytes();
        counter_bytes + tag_bytes
    }

    /// Whether nothing may be sent: what cannot be sealed never leaves.
    pub fn is_mute(&self) -> bool {
        self.mute || (self.is_keyed && self.session.is_none())
    }
}

impl Association {
    /// Seals what is said once, if there is a key. `false`: it must not leave.
    pub fn seal(&mut self, now: Time, packet: &mut [u8], header_bytes: usize) -> bool {
        if self.sealing.is_mute() {
            return false;
        }
        let Some(session) = &mut self.sealing.session else { return true };
        let is_sealed = session.seal_in_place(now.as_nanos(), packet, header_bytes).is_ok();
        if !is_sealed {
            self.fall_silent();
        }
        is_sealed
    }

    /// Opens those of these packets that lie sealed, as they were sent before. `false`: one cannot be opened, and none must leave.
    pub fn open_sealed(&mut self, numbers: &[u64]) -> bool {
        if self.sealing.is_mute() {
            return false;
        }
        let Some(session) = &self.sealing.session else { return true };
        let mut open = |number: u64| self.sent.get_mut(number).is_none_or(|packet| packet.open(session).is_ok());
        let are_open = numbers.iter().all(|&number| open(number));
        if !are_open {
            self.fall_silent();
        }
        are_open
    }

    /// Seals these packets, whose headers are written, if there is a key. Says how many may leave: no more than the key may seal.
    pub fn seal_packets(&mut self, now: Time, numbers: &[u64]) -> usize {
        let Some(session) = &mut self.sealing.session else { return numbers.len() };
        let mut seal = |number: u64| self.sent.get_mut(number)?.seal(now, session).ok();
        let sealed = numbers.iter().map_while(|&number| seal(number)).count();
        if sealed < numbers.len() {
            self.fall_silent();
        }
        sealed
    }

    /// If the key that packets are sealed with was changed: what lies sealed and may have to be sent again is opened, so that the former key can go.
    pub fn leave_former_key(&mut self) {
        let Some(session) = self.sealing.session.as_mut().filter(|session| session.has_former_sending_key()) else {
            return;
        };
        let opened = self.sent.packets_mut().try_for_each(|packet| packet.open(session));
        session.forget_former_sending_key();
        if opened.is_err() {
            self.fall_silent();
        }
    }
}

/// Opens a packet into `room`, which grows to the longest packet there is and stays so, and says where in it the payload ends.
pub fn open(
    now: Time,
    session: &mut Session,
    packet: &wire::Packet<'_>,
    room: &mut Vec<u8>,
) -> Result<usize, OpenError> {
    let sealed = packet.sealed().map_err(|_| OpenError::Short)?;
    if room.len() < sealed.sealed.len() {
        room.resize(sealed.sealed.len(), 0);
    }
    session.open(now.as_nanos(), sealed.associated, sealed.sealed, room)
}
