//! What gateways put before a packet (2.9).

use crate::{Malformed, NoRoom, SHIM_BYTES};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The 12 bytes before a packet between gateways. No key covers them: gateways change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shim {
    /// A gateway on the way was congested.
    pub congested: bool,
    /// How many gateways may still pass it on.
    pub hops: u8,
    /// The node it goes to.
    pub destination: u32,
    /// The node it comes from.
    pub source: u32,
}

/// In the place of a packet's version and type: no version is 15.
const MARK: u8 = 0xF0;
const CONGESTED: u8 = 0x01;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    mark: u8,
    hops: u8,
    reserved: [u8; 2],
    destination: U32,
    source: U32,
}

impl Shim {
    /// Whether bytes that begin with `first` begin with a shim.
    #[must_use]
    #[inline]
    pub const fn precedes(first: u8) -> bool {
        first & 0xF0 == MARK
    }

    /// The shim and the packet behind it.
    ///
    /// # Errors
    /// The bytes do not begin with a whole shim whose bits are known.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Shim, &[u8]), Malformed> {
        let Ok((raw, packet)) = Raw::ref_from_prefix(bytes) else { return Err(Malformed::Truncated) };
        if raw.mark & !CONGESTED != MARK {
            return Err(Malformed::Shim);
        }
        let shim = Shim {
            congested: raw.mark & CONGESTED != 0,
            hops: raw.hops,
            destination: raw.destination.get(),
            source: raw.source.get(),
        };
        Ok((shim, packet))
    }

    /// The shim as it travels.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; SHIM_BYTES] {
        zerocopy::transmute!(Raw {
            mark: MARK | u8::from(self.congested),
            hops: self.hops,
            reserved: [0; 2],
            destination: self.destination.into(),
            source: self.source.into(),
        })
    }

    /// Writes the first [`SHIM_BYTES`] of `out` and says how many these are.
    ///
    /// # Errors
    /// `out` is shorter.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        *out.first_chunk_mut().ok_or(NoRoom)? = self.to_bytes();
        Ok(SHIM_BYTES)
    }
}
