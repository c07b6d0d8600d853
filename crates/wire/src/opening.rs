//! Payloads of the packets that open an association (2.3) and of version negotiation (2.5).

use crate::{BASE_HEADER_BYTES, ErrorCode, Id, MIN_PACKET_BYTES, Malformed, NoRoom, VERSION};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// Bit of [`SynFields::features`]: the association is to have a key.
pub const FEATURE_KEYED: u32 = 0x0000_0001;

/// What SYN says, and CONFIRM again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynFields {
    /// Where the answer goes.
    pub source: Id,
    /// Of this attempt.
    pub nonce: u64,
    /// The sender's node.
    pub node: u64,
    pub destination_port: u16,
    pub source_port: u16,
    /// The longest packet in bytes that the sender can take, at least [`MIN_PACKET_BYTES`]; in CONFIRM, the size accepted.
    pub packet_size: u16,
    pub lowest_version: u8,
    pub highest_version: u8,
    /// [`FEATURE_KEYED`].
    pub features: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSyn {
    source: U32,
    nonce: U64,
    node: U64,
    destination_port: U16,
    source_port: U16,
    packet_size: U16,
    lowest_version: u8,
    highest_version: u8,
    features: U32,
}

impl SynFields {
    /// Without the padding.
    pub const BYTES: usize = size_of::<RawSyn>();

    /// The payload of a SYN, padding included: one that is not as long as the packet size it proposes proves nothing about the path.
    ///
    /// # Errors
    /// Wrong length, or values that cannot be.
    pub fn parse(payload: &[u8]) -> Result<SynFields, Malformed> {
        let (fields, _) = SynFields::read(payload)?;
        check_padding(payload, fields.packet_size)?;
        Ok(fields)
    }

    /// Writes the payload of a SYN, padded to the packet size, and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write_padded(&self.raw(), self.packet_size, out)
    }

    /// The fields alone, without padding: what a cookie covers, in SYN and in CONFIRM.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SynFields::BYTES] {
        transmute!(self.raw())
    }

    fn read(bytes: &[u8]) -> Result<(SynFields, &[u8]), Malformed> {
        let (raw, rest) = RawSyn::ref_from_prefix(bytes).map_err(|_| Malformed::PayloadLength)?;
        let fields = SynFields {
            source: Id(raw.source.get()),
            nonce: raw.nonce.get(),
            node: raw.node.get(),
            destination_port: raw.destination_port.get(),
            source_port: raw.source_port.get(),
            packet_size: raw.packet_size.get(),
            lowest_version: raw.lowest_version,
            highest_version: raw.highest_version,
            features: raw.features.get(),
        };
        // Who sends this version speaks this version.
        let speaks = fields.lowest_version <= VERSION && VERSION <= fields.highest_version;
        if !fields.source.is_own() || !speaks {
            return Err(Malformed::FieldValue);
        }
        check_packet_size(fields.packet_size)?;
        Ok((fields, rest))
    }

    fn raw(&self) -> RawSyn {
        RawSyn {
            source: self.source.0.into(),
            nonce: self.nonce.into(),
            node: self.node.into(),
            destination_port: self.destination_port.into(),
            source_port: self.source_port.into(),
            packet_size: self.packet_size.into(),
            lowest_version: self.lowest_version,
            highest_version: self.highest_version,
            features: self.features.into(),
        }
    }
}

/// Proof that the client can be reached where it says: time of issue (4 bytes) and MAC (16 bytes). Only its maker looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cookie(pub [u8; 20]);

/// What COOKIE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieFields {
    /// Of the SYN.
    pub nonce: u64,
    /// The packet size accepted, to which this packet is padded.
    pub packet_size: u16,
    pub cookie: Cookie,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCookie {
    nonce: U64,
    packet_size: U16,
    reserved: [u8; 2],
    cookie: Cookie,
}

impl CookieFields {
    /// Without the padding.
    pub const BYTES: usize = size_of::<RawCookie>();

    /// The payload of a COOKIE, padding included.
    ///
    /// # Errors
    /// Wrong length, or values that cannot be.
    pub fn parse(payload: &[u8]) -> Result<CookieFields, Malformed> {
        let (raw, _) = RawCookie::ref_from_prefix(payload).map_err(|_| Malformed::PayloadLength)?;
        let fields = CookieFields { nonce: raw.nonce.get(), packet_size: raw.packet_size.get(), cookie: raw.cookie };
        check_packet_size(fields.packet_size)?;
        check_padding(payload, fields.packet_size)?;
        Ok(fields)
    }

    /// Writes the payload of a COOKIE, padded to the packet size, and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let raw = RawCookie {
            nonce: self.nonce.into(),
            packet_size: self.packet_size.into(),
            reserved: [0; 2],
            cookie: self.cookie,
        };
        write_padded(&raw, self.packet_size, out)
    }
}

/// What each end tells the other about itself when an association opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Under which the sender of the parameters receives.
    pub id: Id,
    /// Its first packet number.
    pub first_number: u64,
    /// Bytes that it takes on each new channel without a CREDIT.
    pub window: u32,
    /// The longest message in bytes that it takes.
    pub longest_message: u32,
    /// By which its RST is known.
    pub reset_token: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawParameters {
    id: U32,
    first_number: U64,
    window: U32,
    longest_message: U32,
    reset_token: [u8; 16],
}

impl Parameters {
    pub const BYTES: usize = size_of::<RawParameters>();

    /// The parameters at the beginning of `bytes`, and what follows them.
    ///
    /// # Errors
    /// Too few bytes, or an id that is nobody's own.
    pub fn parse(bytes: &[u8]) -> Result<(Parameters, &[u8]), Malformed> {
        let (raw, rest) = RawParameters::ref_from_prefix(bytes).map_err(|_| Malformed::PayloadLength)?;
        let parameters = Parameters {
            id: Id(raw.id.get()),
            first_number: raw.first_number.get(),
            window: raw.window.get(),
            longest_message: raw.longest_message.get(),
            reset_token: raw.reset_token,
        };
        if parameters.id.is_own() { Ok((parameters, rest)) } else { Err(Malformed::FieldValue) }
    }

    /// Writes the first [`Parameters::BYTES`] of `out` and says how many these are.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write(&self.raw(), out)
    }

    fn raw(&self) -> RawParameters {
        RawParameters {
            id: self.id.0.into(),
            first_number: self.first_number.into(),
            window: self.window.into(),
            longest_message: self.longest_message.into(),
            reset_token: self.reset_token,
        }
    }
}

/// What CONFIRM says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmFields<'a> {
    /// Those of the SYN again, with the packet size accepted.
    pub syn: SynFields,
    pub cookie: Cookie,
    /// All zero with a key: they are then inside the Noise message.
    pub parameters: Parameters,
    /// Without a key, the payload of an OPEN for channel 0 ([`crate::OpenFields`]); with a key, the first Noise message.
    pub rest: &'a [u8],
}

impl<'a> ConfirmFields<'a> {
    /// Without `rest`.
    pub const BYTES: usize = SynFields::BYTES + size_of::<Cookie>() + Parameters::BYTES;

    /// # Errors
    /// Too short, or values that cannot be.
    pub fn parse(payload: &'a [u8]) -> Result<ConfirmFields<'a>, Malformed> {
        let (syn, rest) = SynFields::read(payload)?;
        let (cookie, rest) = Cookie::read_from_prefix(rest).map_err(|_| Malformed::PayloadLength)?;
        let (parameters, rest) = Parameters::parse(rest)?;
        Ok(ConfirmFields { syn, cookie, parameters, rest })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let mut at = write(&self.syn.raw(), out)?;
        at += write(&self.cookie, &mut out[at..])?;
        at += self.parameters.write(&mut out[at..])?;
        Ok(at + write(self.rest, &mut out[at..])?)
    }
}

/// What OPENED says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFields<'a> {
    /// Of the SYN.
    pub nonce: u64,
    /// Without a key, [`Parameters`] and nothing behind them; with a key, the second Noise message.
    pub rest: &'a [u8],
}

impl<'a> OpenedFields<'a> {
    /// # Errors
    /// Too short for the nonce.
    pub fn parse(payload: &'a [u8]) -> Result<OpenedFields<'a>, Malformed> {
        let (nonce, rest) = read_nonce(payload)?;
        Ok(OpenedFields { nonce, rest })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let at = write(&U64::from(self.nonce), out)?;
        Ok(at + write(self.rest, &mut out[at..])?)
    }
}

/// What REFUSED says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedFields {
    /// Of the SYN.
    pub nonce: u64,
    pub code: ErrorCode,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRefused {
    nonce: U64,
    code: U16,
}

impl RefusedFields {
    pub const BYTES: usize = size_of::<RawRefused>();

    /// # Errors
    /// Wrong length.
    pub fn parse(payload: &[u8]) -> Result<RefusedFields, Malformed> {
        let raw = RawRefused::ref_from_bytes(payload).map_err(|_| Malformed::PayloadLength)?;
        Ok(RefusedFields { nonce: raw.nonce.get(), code: raw.code.get().into() })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        write(&RawRefused { nonce: self.nonce.into(), code: u16::from(self.code).into() }, out)
    }
}

/// What REDIRECT says: try there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectFields {
    /// Of the SYN.
    pub nonce: u64,
    /// A UDP end point. Of an IPv6 one, flow label and scope do not travel.
    pub address: SocketAddr,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRedirect {
    nonce: U64,
    family: U16,
    port: U16,
    address: [u8; 16],
}

const FAMILY_UDP4: u16 = 4;
const FAMILY_UDP6: u16 = 6;

impl RedirectFields {
    pub const BYTES: usize = size_of::<RawRedirect>();

    /// # Errors
    /// Wrong length, or an unknown family.
    pub fn parse(payload: &[u8]) -> Result<RedirectFields, Malformed> {
        let raw = RawRedirect::ref_from_bytes(payload).map_err(|_| Malformed::PayloadLength)?;
        let ip: IpAddr = match (raw.family.get(), raw.address) {
            (FAMILY_UDP4, [a, b, c, d, ..]) => Ipv4Addr::new(a, b, c, d).into(),
            (FAMILY_UDP6, address) => Ipv6Addr::from(address).into(),
            _ => return Err(Malformed::FieldValue),
        };
        Ok(RedirectFields { nonce: raw.nonce.get(), address: SocketAddr::new(ip, raw.port.get()) })
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let (family, address) = match self.address.ip() {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                (FAMILY_UDP4, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            }
            IpAddr::V6(ip) => (FAMILY_UDP6, ip.octets()),
        };
        let raw =
            RawRedirect { nonce: self.nonce.into(), family: family.into(), port: self.address.port().into(), address };
        write(&raw, out)
    }
}

/// What VERSION says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionFields<'a> {
    /// Of the SYN.
    pub nonce: u64,
    /// Each version that is spoken, at least one.
    pub versions: &'a [u8],
}

impl<'a> VersionFields<'a> {
    /// # Errors
    /// Too short for the nonce and one version.
    pub fn parse(payload: &'a [u8]) -> Result<VersionFields<'a>, Malformed> {
        match read_nonce(payload)? {
            (_, []) => Err(Malformed::PayloadLength),
            (nonce, versions) => Ok(VersionFields { nonce, versions }),
        }
    }

    /// Writes the payload and says how long it is.
    ///
    /// # Errors
    /// `out` is shorter.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let at = write(&U64::from(self.nonce), out)?;
        Ok(at + write(self.versions, &mut out[at..])?)
    }
}

fn read_nonce(payload: &[u8]) -> Result<(u64, &[u8]), Malformed> {
    let (nonce, rest) = U64::ref_from_prefix(payload).map_err(|_| Malformed::PayloadLength)?;
    Ok((nonce.get(), rest))
}

pub(crate) fn check_packet_size(packet_size: u16) -> Result<(), Malformed> {
    if usize::from(packet_size) < MIN_PACKET_BYTES { Err(Malformed::PacketSize) } else { Ok(()) }
}

pub(crate) fn check_padding(payload: &[u8], packet_size: u16) -> Result<(), Malformed> {
    if BASE_HEADER_BYTES + payload.len() == usize::from(packet_size) { Ok(()) } else { Err(Malformed::PacketSize) }
}

pub(crate) fn write_padded<T: IntoBytes + Immutable>(
    raw: &T,
    packet_size: u16,
    out: &mut [u8],
) -> Result<usize, NoRoom> {
    let length = usize::from(packet_size).saturating_sub(BASE_HEADER_BYTES).max(size_of::<T>());
    let out = out.get_mut(..length).ok_or(NoRoom)?;
    let at = write(raw, out)?;
    out[at..].fill(0);
    Ok(length)
}

/// Writes `value` at the beginning of `out` and says how long it is.
pub(crate) fn write<T: IntoBytes + Immutable + ?Sized>(value: &T, out: &mut [u8]) -> Result<usize, NoRoom> {
    value.write_to_prefix(out).map_err(|_| NoRoom)?;
    Ok(size_of_val(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_specification() {
        let sizes = [
            SynFields::BYTES,
            CookieFields::BYTES,
            Parameters::BYTES,
            ConfirmFields::BYTES,
            RefusedFields::BYTES,
            RedirectFields::BYTES,
        ];
        assert_eq!(sizes, [32, 32, 36, 88, 10, 28]);
    }
}
