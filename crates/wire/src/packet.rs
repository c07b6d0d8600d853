//! A packet as it arrived, checked as far as its header goes.

use crate::{Body, COUNTER_BYTES, Header, Malformed, TAG_BYTES};

/// A packet whose header is whole and whose payload is as long as it says. Made by [`Packet::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub header: Header,
    /// The payload, if the association has no key. If it has one, these bytes mean nothing: see [`Packet::sealed`].
    pub payload: &'a [u8],
    /// All that arrived, padding included.
    pub(crate) bytes: &'a [u8],
}

/// The parts of a packet that is sealed with a key (section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    pub header: Header,
    /// Low 32 bits of the transmission counter.
    pub counter: u32,
    /// What the tag covers without hiding it: header and counter.
    pub associated: &'a [u8],
    /// The encrypted payload and the tag behind it.
    pub sealed: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Everything that arrived, padding included.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What the payload holds, checked throughout.
    ///
    /// # Errors
    /// The payload is not one of this type.
    pub fn body(&self) -> Result<Body<'a>, Malformed> {
        Body::parse(self.header.kind, self.header.flags, self.payload)
    }

    /// The parts of this packet if its association has a key.
    ///
    /// # Errors
    /// [`Malformed::NeverSealed`] for types that travel open even so ([`crate::Type::is_sealed`]), [`Malformed::SealMissing`] if what arrived is too short.
    #[inline]
    pub fn sealed(&self) -> Result<Sealed<'a>, Malformed> {
        if !self.header.kind.is_sealed() {
            return Err(Malformed::NeverSealed);
        }
        let at = self.header.bytes() + COUNTER_BYTES;
        let split = self.bytes.split_at_checked(at);
        let Some((associated, rest)) = split else { return Err(Malformed::SealMissing) };
        let sealed = rest.get(..usize::from(self.header.length) + TAG_BYTES).ok_or(Malformed::SealMissing)?;
        let counter = associated.last_chunk::<COUNTER_BYTES>().ok_or(Malformed::SealMissing)?;
        Ok(Sealed { header: self.header, counter: u32::from_be_bytes(*counter), associated, sealed })
    }
}
