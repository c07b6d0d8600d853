//! What an association and an attempt have when the endpoint has keys (docs/protocol.md 9), and where packets are sealed and opened.
//!
//! Ciphers and counters are `crate::crypto`'s; what is done with an opened packet is the endpoint's, as without a key.

use std::fmt;

use crate::crypto::session::OVERHEAD_BYTES;
use crate::crypto::{Counters, Initiator, OpenError, SealError, Session};
use crate::sent::Sent;
use crate::statistics::SealingStatistics;
use crate::time::Time;
use ropeway_wire::Packet;

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
    /// Bytes of each packet that counter and tag take.
    pub overhead_bytes: usize,
    /// Once open: what seals and opens the packets.
    pub session: Option<Box<Session>>,
    /// The nonce of the attempt whose OPENED is kept, to be said again byte for byte, until the client has been heard.
    pub answered: Option<u64>,
    /// The key has sealed all that it may: nothing is sent any more, and silence ends the association.
    pub mute: bool,
}

impl Sealing {
    pub fn with_key() -> Sealing {
        Sealing { overhead_bytes: OVERHEAD_BYTES, ..Sealing::default() }
    }

    pub fn statistics(&self) -> Option<SealingStatistics> {
        let session = self.session.as_ref()?;
        let &Counters { sealed, opened, refused, .. } = session.counters();
        Some(SealingStatistics { generation: session.generation(), sealed, opened, refused })
    }

    pub fn is_keyed(&self) -> bool {
        self.overhead_bytes > 0
    }

    /// Whether nothing may be sent: what cannot be sealed never leaves.
    pub fn is_mute(&self) -> bool {
        self.mute || (self.is_keyed() && self.session.is_none())
    }
}

/// Packets of one batch, sealed, one behind the other: equal ones stay equal, and a link may take all of them as one piece of memory. Kept for the next batch.
#[derive(Debug, Default)]
pub struct SealedBatch {
    bytes: Vec<u8>,
    /// Where each packet ends.
    ends: Vec<usize>,
}

impl SealedBatch {
    /// Seals the packets with these numbers, whose headers stand in front of their payloads already. As many as the key may seal: [`SealedBatch::len`].
    pub fn fill(&mut self, now: Time, session: &mut Session, sent: &Sent, numbers: &[u64]) {
        self.ends.clear();
        for packet in numbers.iter().map_while(|&number| sent.get(number)) {
            let (header, payload) = packet.bytes().split_at(packet.header_bytes());
            if self.push(now, session, header, payload).is_err() {
                return;
            }
        }
    }

    /// Seals one packet alone.
    pub fn one(&mut self, now: Time, session: &mut Session, header: &[u8], payload: &[u8]) -> Result<&[u8], SealError> {
        self.ends.clear();
        let end = self.push(now, session, header, payload)?;
        Ok(&self.bytes[..end])
    }

    fn push(&mut self, now: Time, session: &mut Session, header: &[u8], payload: &[u8]) -> Result<usize, SealError> {
        let at = self.ends.last().copied().unwrap_or(0);
        let end = at + header.len() + payload.len() + OVERHEAD_BYTES;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        session.seal(now.as_nanos(), header, payload, &mut self.bytes[at..end])?;
        self.ends.push(end);
        Ok(end)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The packets, in the order of the numbers.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(at, &end)| &self.bytes[at..end])
    }
}

/// Opens a packet into `room`, which grows to the longest packet there is and stays so, and says where in it the payload ends.
pub fn open(now: Time, session: &mut Session, packet: &Packet<'_>, room: &mut Vec<u8>) -> Result<usize, OpenError> {
    let sealed = packet.sealed().map_err(|_| OpenError::Short)?;
    if room.len() < sealed.sealed.len() {
        room.resize(sealed.sealed.len(), 0);
    }
    session.open(now.as_nanos(), sealed.associated, sealed.sealed, room)
}
