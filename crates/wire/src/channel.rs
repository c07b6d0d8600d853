//! Payloads of OPEN, FIN and ABORT, which begin and end channels, and of RST, which ends an association (2.2).

use crate::opening::write;
use crate::{ErrorCode, Malformed, NoRoom};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    Stream = 0,
    Messages = 1,
}

/// What OPEN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFields<'a> {
    pub destination_port: u16,
    pub source_port: u16,
    pub mode: Mode,
    /// Data as in DATA, under the flags of the header; [`crate::Content::parse`] looks inside.
    pub early: &'a [u8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOpen {
    destination_port: U16,
    source_port: U16,
    mode: u8,
    reserved: [u8; 3],
}

impl<'a> OpenFields<'a> {
    /// Without the early data.
    pub const BYTES: usize = size_of::<RawOpen>();

    /// # Errors
    /// Too short, or an unknown mode.
    pub fn parse(payload: &'a [u8]) -> Result<OpenFields<'a>, Malformed> {
        let (raw, early) = RawOpen::ref_from_prefix(payload).map_err(|_| Malformed::PayloadLength)?;
        let mode = match raw.mode {
            0 => Mode::Stream,
            1 => Mode::Messages,
            _ => return Err(Malformed::FieldValue),
        };
        Ok(OpenFields { destination_port: raw.destination_port.get(), source_port: raw.source_port.get(), mode, early })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let raw = RawOpen {
            destination_port: self.destination_port.into(),
            source_port: self.source_port.into(),
            mode: self.mode as u8,
            reserved: [0; 3],
        };
        let at = write(&raw, out)?;
        Ok(at + write(self.early, &mut out[at..])?)
    }
}

/// What a FIN ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Extent {
    /// No more data comes from its sender.
    Write = 0,
    /// Nor does its sender read any more.
    Both = 1,
}

/// What FIN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinFields {
    pub extent: Extent,
}

impl FinFields {
    pub const BYTES: usize = 2;

    /// # Errors
    /// Wrong length, or an unknown extent.
    pub fn parse(payload: &[u8]) -> Result<FinFields, Malformed> {
        let &[extent, _reserved] = payload else { return Err(Malformed::PayloadLength) };
        match extent {
            0 => Ok(FinFields { extent: Extent::Write }),
            1 => Ok(FinFields { extent: Extent::Both }),
            _ => Err(Malformed::FieldValue),
        }
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write(&[self.extent as u8, 0], out)
    }
}

/// What ABORT says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortFields {
    pub code: ErrorCode,
}

impl AbortFields {
    pub const BYTES: usize = 2;

    /// # Errors
    /// Wrong length.
    pub fn parse(payload: &[u8]) -> Result<AbortFields, Malformed> {
        let code = U16::ref_from_bytes(payload).map_err(|_| Malformed::PayloadLength)?;
        Ok(AbortFields { code: code.get().into() })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write(&U16::from(u16::from(self.code)), out)
    }
}

/// What RST says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstFields {
    /// The one that its sender gave in its parameters, or that of who has seen a STATE for an id unknown to it.
    pub token: [u8; 16],
    pub code: ErrorCode,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRst {
    token: [u8; 16],
    code: U16,
}

impl RstFields {
    pub const BYTES: usize = size_of::<RawRst>();

    /// # Errors
    /// Wrong length.
    pub fn parse(payload: &[u8]) -> Result<RstFields, Malformed> {
        let raw = RawRst::ref_from_bytes(payload).map_err(|_| Malformed::PayloadLength)?;
        Ok(RstFields { token: raw.token, code: raw.code.get().into() })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write(&RawRst { token: self.token, code: u16::from(self.code).into() }, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_specification() {
        assert_eq!([OpenFields::BYTES, FinFields::BYTES, AbortFields::BYTES, RstFields::BYTES], [8, 2, 2, 18]);
    }
}
