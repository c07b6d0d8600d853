//! What JOIN says: one more path for an association that is open (2.2, 2.10).

use crate::opening::{check_packet_size, check_padding, write_padded};
use crate::{Cookie, Malformed, NoRoom};
use zerocopy::byteorder::network_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The four packets of a join, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JoinStep {
    /// May this path be one of the association's? Padded.
    Ask = 0,
    /// A cookie, for whoever receives there. Padded.
    Cookie = 1,
    /// The cookie back.
    Prove = 2,
    /// The path is one of the association's.
    Done = 3,
}

impl JoinStep {
    /// Whether such a packet is as long as the packet size, to prove that such packets pass.
    #[must_use]
    pub const fn is_padded(self) -> bool {
        matches!(self, JoinStep::Ask | JoinStep::Cookie)
    }
}

/// What JOIN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinFields {
    pub step: JoinStep,
    /// First-sent packets are spread over this path and the others; otherwise it stands by.
    pub bonded: bool,
    /// The association's.
    pub packet_size: u16,
    /// Of this attempt.
    pub nonce: u64,
    /// Zeros in [`JoinStep::Ask`].
    pub cookie: Cookie,
    /// That the sender is the receiver's peer.
    pub proof: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawJoin {
    step: u8,
    bonded: u8,
    packet_size: U16,
    nonce: U64,
    cookie: Cookie,
    proof: [u8; 16],
}

impl JoinFields {
    /// Without the padding.
    pub const BYTES: usize = size_of::<RawJoin>();

    /// What of it the proof covers: all that stands before it.
    pub const PROVED_BYTES: usize = JoinFields::BYTES - 16;

    /// The payload of a JOIN, padding included.
    ///
    /// # Errors
    /// Wrong length, or values that cannot be.
    pub fn parse(payload: &[u8]) -> Result<JoinFields, Malformed> {
        let (raw, rest) = RawJoin::ref_from_prefix(payload).map_err(|_| Malformed::PayloadLength)?;
        let step = match raw.step {
            0 => JoinStep::Ask,
            1 => JoinStep::Cookie,
            2 => JoinStep::Prove,
            3 => JoinStep::Done,
            _ => return Err(Malformed::FieldValue),
        };
        if raw.bonded > 1 {
            return Err(Malformed::FieldValue);
        }
        let packet_size = raw.packet_size.get();
        check_packet_size(packet_size)?;
        if step.is_padded() {
            check_padding(payload, packet_size)?;
        } else if !rest.is_empty() {
            return Err(Malformed::PayloadLength);
        }
        let (nonce, cookie, proof) = (raw.nonce.get(), raw.cookie, raw.proof);
        Ok(JoinFields { step, bonded: raw.bonded == 1, packet_size, nonce, cookie, proof })
    }

    /// Writes the payload of a JOIN, with its padding, and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let raw = self.raw();
        if self.step.is_padded() {
            return write_padded(&raw, self.packet_size, out);
        }
        let bytes = raw.as_bytes();
        out.get_mut(..bytes.len()).ok_or(NoRoom)?.copy_from_slice(bytes);
        Ok(bytes.len())
    }

    /// What the proof covers.
    #[must_use]
    pub fn proved(&self) -> [u8; JoinFields::PROVED_BYTES] {
        let mut out = [0; JoinFields::PROVED_BYTES];
        out.copy_from_slice(&self.raw().as_bytes()[..JoinFields::PROVED_BYTES]);
        out
    }

    fn raw(&self) -> RawJoin {
        RawJoin {
            step: self.step as u8,
            bonded: u8::from(self.bonded),
            packet_size: self.packet_size.into(),
            nonce: self.nonce.into(),
            cookie: self.cookie,
            proof: self.proof,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_the_specification() {
        assert_eq!((JoinFields::BYTES, JoinFields::PROVED_BYTES), (48, 32));
    }
}
