//! Messages between a process and the rendezvous daemon: one message per `SOCK_SEQPACKET` datagram on an abstract
//! `AF_UNIX` socket, little-endian, a fixed size per kind.
//!
//! Nothing here allocates or panics; both sides treat the other as untrusted: [`Message::decode`] accepts only the exact
//! length and only values that exist. The first four bytes (two of magic, version, kind) keep their meaning in every
//! version, so a version mismatch can always be told. Descriptors travel beside a message as `SCM_RIGHTS`, at most one:
//!
//! | message | descriptor |
//! |---|---|
//! | `Hello` | memfd of the process family's socket table (optional) |
//! | `Welcome` | memfd of the one-page mailbox |
//! | `Grant` | memfd of the pair's segment |
//! | `Entry` | memfd of that process family's socket table (absent if it sent none) |

use crate::reason::Reason;

/// Version of the protocol. A daemon and a process of different versions do not talk: the connection stays on TCP.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 2] = *b"RW";
const HEADER_BYTES: usize = 4;

/// Room for the largest message; `Message::encode` fits by construction (tested).
pub const MAX_MESSAGE_BYTES: usize = 256;

/// Checkpoint `i` hashes the first `2^i` bytes of a direction: 1, 2, 4 .. 256 bytes.
pub const CHECKPOINTS: usize = ropeway_shm::table::PREFIX_POINTS;

/// The mailbox: one page, of which the first four bytes count the messages the daemon has sent to that process.
pub const MAILBOX_BYTES: usize = 4096;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The first bytes are not Ropeway's, or the length or a value does not exist for this kind.
    Malformed,
    /// Another version of the protocol.
    Version(u8),
    /// A kind that this version does not have.
    UnknownKind(u8),
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WireError::Malformed => f.write_str("not a valid rendezvous message"),
            WireError::Version(v) => write!(
                f,
                "the other side speaks version {v} of the rendezvous protocol and this program version {VERSION}; \
                 stop the old daemon (`ropeway daemon stop` of that version) and start again"
            ),
            WireError::UnknownKind(k) => write!(f, "unknown rendezvous message kind {k}"),
        }
    }
}

/// One end of a TCP connection: IPv6 address, or IPv4 as `::ffff:a.b.c.d`, and port (host byte order).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Endpoint {
    pub addr: [u8; 16],
    pub port: u16,
}

const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Endpoint {
    pub const fn v4(addr: [u8; 4], port: u16) -> Endpoint {
        let mut mapped = [0u8; 16];
        mapped[10] = 0xff;
        mapped[11] = 0xff;
        let mut i = 0;
        while i < 4 {
            mapped[12 + i] = addr[i];
            i += 1;
        }
        Endpoint { addr: mapped, port }
    }

    pub const fn v6(addr: [u8; 16], port: u16) -> Endpoint {
        Endpoint { addr, port }
    }

    /// From the bytes of a `sockaddr_in` or `sockaddr_in6` as the kernel returned it; `None` for another family or too
    /// few bytes.
    pub fn from_sockaddr(bytes: &[u8]) -> Option<Endpoint> {
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match i32::from(family) {
            libc::AF_INET => Some(Endpoint::v4(bytes.get(4..8)?.try_into().ok()?, port)),
            libc::AF_INET6 => Some(Endpoint::v6(bytes.get(8..24)?.try_into().ok()?, port)),
            _ => None,
        }
    }

    /// The IPv4 address if this is one (mapped or not makes no difference).
    pub fn as_v4(&self) -> Option<[u8; 4]> {
        if self.addr[..12] == V4_MAPPED { self.addr[12..].try_into().ok() } else { None }
    }
}

impl From<std::net::SocketAddr> for Endpoint {
    fn from(addr: std::net::SocketAddr) -> Endpoint {
        match addr {
            std::net::SocketAddr::V4(a) => Endpoint::v4(a.ip().octets(), a.port()),
            std::net::SocketAddr::V6(a) => Endpoint::v6(a.ip().octets(), a.port()),
        }
    }
}

/// What one end knows of the beginning of one direction: `hash[i]` is a 32-bit hash (`ropeway_shm::table::Prefix`) of the first `2^i` bytes and counts
/// only when `len >= 2^i`. `len` is how many first bytes were hashed (by `ropeway_shm::table::Prefix`); more than 256
/// says no more than 256.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prefix {
    pub hash: [u32; CHECKPOINTS],
    pub len: u64,
}

impl Prefix {
    /// How many checkpoints are valid.
    pub fn checkpoints(&self) -> usize {
        (0..CHECKPOINTS).take_while(|i| self.len >= 1 << i).count()
    }

    /// Compares at every checkpoint that both have: `None` if they differ anywhere, else how many were compared.
    pub fn compare(&self, other: &Prefix) -> Option<usize> {
        let n = self.checkpoints().min(other.checkpoints());
        (self.hash[..n] == other.hash[..n]).then_some(n)
    }
}

/// What the holder of a socket must know of what happened on it before: the beginnings, and how many bytes the kernel had
/// taken from, and given to, the former holders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Legacy {
    pub tx: Prefix,
    pub rx: Prefix,
    pub sent: u64,
    pub received: u64,
}

/// What the daemon tells a process when they meet. Environment variables (`ROPEWAY_SPIN_US`, ...) go over these values;
/// that is the preload's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Longest spin before a sleep, in nanoseconds; 0 = never spin.
    pub spin_ns: u32,
    /// A connection registers after this many calls on it, both directions together ..
    pub promote_after_calls: u32,
    /// .. or after this many bytes in one direction, whichever comes first.
    pub promote_after_bytes: u64,
    /// Bytes of one ring; what a `Grant` says counts for that pair.
    pub ring_bytes: u32,
    /// Reserved for switches of the profile; 0 today.
    pub flags: u32,
}

impl Settings {
    /// The built-in profile `default`: also what holds before the daemon has answered.
    ///
    /// 30 us covers a turn-around on the other core without burning a slice; 16 calls or 64 KiB keep short connections
    /// (one request, one answer) free of any rendezvous.
    pub const DEFAULT: Settings = Settings {
        spin_ns: 30_000,
        promote_after_calls: 16,
        promote_after_bytes: 64 * 1024,
        ring_bytes: ropeway_shm::segment::DEFAULT_RING_BYTES,
        flags: 0,
    };
}

/// Which half of a pair a process holds: side 0 reads ring 1 and writes ring 0, side 1 the reverse.
pub type Side = u8;

macro_rules! messages {
    ($($(#[$doc:meta])* $variant:ident = $kind:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* })*) => {
        /// Every message of the protocol.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant)] // lives on the stack for one call; boxing would allocate
        pub enum Message { $($(#[$doc])* $variant { $($(#[$fdoc])* $field: $ty),* },)* }

        impl Message {
            /// Writes the message; the answer is the used part of `out`.
            pub fn encode<'a>(&self, out: &'a mut [u8; MAX_MESSAGE_BYTES]) -> &'a [u8] {
                let mut w = Writer { out, at: 0 };
                match self { $(
                    Message::$variant { $($field),* } => {
                        w.bytes(&[MAGIC[0], MAGIC[1], VERSION, $kind]);
                        $($field.put(&mut w);)*
                    }
                )* }
                let Writer { out, at } = w;
                &out[..at]
            }

            /// Reads one message that must fill `bytes` exactly.
            pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
                if bytes.len() < HEADER_BYTES || bytes[..2] != MAGIC {
                    return Err(WireError::Malformed);
                }
                if bytes[2] != VERSION {
                    return Err(WireError::Version(bytes[2]));
                }
                let mut r = Reader { rest: &bytes[HEADER_BYTES..] };
                let message = match bytes[3] {
                    $($kind => Message::$variant { $($field: <$ty as Field>::get(&mut r).ok_or(WireError::Malformed)?),* },)*
                    kind => return Err(WireError::UnknownKind(kind)),
                };
                if r.rest.is_empty() { Ok(message) } else { Err(WireError::Malformed) }
            }
        }
    };
}

messages! {
    /// Process to daemon, first message. `profile` and `comm` are padded with zeros; an empty profile leaves the choice
    /// to the daemon's rules.
    Hello = 1 { pid: u32, comm: [u8; 16], profile: [u8; 32] }
    /// Daemon to process: the answer to `Hello`, with the mailbox.
    Welcome = 2 { settings: Settings }
    /// Process to daemon: this socket of mine may be promoted. `token` is the process's own name for it and comes back in
    /// every answer; `fd` is the descriptor number, with which the daemon may check possession in /proc.
    Register = 3 { token: u64, cookie: u64, fd: i32, local: Endpoint, remote: Endpoint, tx: Prefix, rx: Prefix }
    /// Process to daemon: forget the registration (socket closed, or pinned to TCP). There is no answer.
    Unregister = 4 { token: u64 }
    /// Daemon to process: the other end is there too; the descriptor is the shared segment.
    Grant = 5 { token: u64, pair_id: u64, ring_bytes: u32, side: Side }
    /// Daemon to process: no. With `retry` the process may register again later.
    Deny = 6 { token: u64, reason: Reason, retry: bool }
    /// Process to daemon: an image started by exec, or a process that was handed the descriptor, asks what was known of it.
    Adopt = 7 { token: u64, cookie: u64, fd: i32 }
    /// Daemon to process: what the former holder said when it passed the socket on.
    Adopted = 8 { token: u64, legacy: Legacy }
    /// Process to daemon: from now on the process `heir` alone holds this socket, in the image that it runs next. 0: it
    /// stays with the sender after all. There is no answer.
    PassOn = 9 { heir: u32, cookie: u64, fd: i32, local: Endpoint, remote: Endpoint, legacy: Legacy }
    /// Tool to daemon: how are you?
    StatusQuery = 16 {}
    /// Daemon to tool.
    Status = 17 { pid: u32, uid: u32, config_error: bool, counts: Counts }
    /// Tool to daemon: end. Answered with `Stopping`.
    Stop = 18 {}
    /// Daemon to tool.
    Stopping = 19 {}
    /// Tool to daemon: name all processes. Answered with any number of `Entry` and one `EndOfList`.
    List = 20 {}
    /// Daemon to tool: one process.
    Entry = 21 { pid: u32, uid: u32, comm: [u8; 16] }
    /// Daemon to tool.
    EndOfList = 22 {}
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The daemon's counters since it started (`live_*`: at this moment).
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// Names and values, for printing.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl Field for Counts {
            fn put(&self, w: &mut Writer) { $(self.$name.put(w);)* }
            fn get(r: &mut Reader) -> Option<Self> { Some(Counts { $($name: u64::get(r)?,)* }) }
        }
    };
}

counts! {
    /// Processes connected now.
    live_processes,
    /// Registrations that wait for their other end now.
    live_pending,
    /// Sockets the daemon remembers now (pending, granted, or kept for adoption).
    live_sockets,
    /// Pairs whose segment still counts against a limit now.
    live_pairs,
    /// Bytes of those segments.
    live_segment_bytes,
    registered,
    granted,
    denied,
    adopted,
    /// Messages that were not valid, or came from another process than the one that said hello.
    malformed,
    /// Times the daemon asked the kernel for all live sockets to drop what is gone.
    audits,
    uptime_s,
}

struct Writer<'a> {
    out: &'a mut [u8; MAX_MESSAGE_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.out.get_mut(self.at..self.at + bytes.len()) {
            slot.copy_from_slice(bytes);
            self.at += bytes.len();
        } else {
            debug_assert!(false, "MAX_MESSAGE_BYTES is too small");
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }
}

/// A value with one fixed-size representation.
trait Field: Sized {
    fn put(&self, w: &mut Writer);
    fn get(r: &mut Reader) -> Option<Self>;
}

macro_rules! integers {
    ($($ty:ty)*) => { $(
        impl Field for $ty {
            fn put(&self, w: &mut Writer) { w.bytes(&self.to_le_bytes()); }
            fn get(r: &mut Reader) -> Option<Self> { Some(<$ty>::from_le_bytes(r.bytes()?)) }
        }
    )* };
}

integers! { u16 u32 u64 i32 }

impl Field for Side {
    fn put(&self, w: &mut Writer) {
        w.bytes(&[*self]);
    }
    fn get(r: &mut Reader) -> Option<Self> {
        r.bytes().map(|[b]| b).filter(|b| *b <= 1)
    }
}

impl Field for bool {
    fn put(&self, w: &mut Writer) {
        w.bytes(&[u8::from(*self)]);
    }
    fn get(r: &mut Reader) -> Option<Self> {
        match r.bytes()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    fn put(&self, w: &mut Writer) {
        w.bytes(self);
    }
    fn get(r: &mut Reader) -> Option<Self> {
        r.bytes()
    }
}

impl Field for Reason {
    fn put(&self, w: &mut Writer) {
        self.code().put(w);
    }
    fn get(r: &mut Reader) -> Option<Self> {
        Reason::from_code(u16::get(r)?)
    }
}

macro_rules! records {
    ($($ty:ident { $($field:ident: $fty:ty),* })*) => { $(
        impl Field for $ty {
            fn put(&self, w: &mut Writer) { $(self.$field.put(w);)* }
            fn get(r: &mut Reader) -> Option<Self> { Some($ty { $($field: <$fty as Field>::get(r)?),* }) }
        }
    )* };
}

records! {
    Legacy { tx: Prefix, rx: Prefix, sent: u64, received: u64 }
    Endpoint { addr: [u8; 16], port: u16 }
    Settings { spin_ns: u32, promote_after_calls: u32, promote_after_bytes: u64, ring_bytes: u32, flags: u32 }
}

impl Field for Prefix {
    fn put(&self, w: &mut Writer) {
        self.hash.iter().for_each(|h| h.put(w));
        self.len.put(w);
    }
    fn get(r: &mut Reader) -> Option<Self> {
        let mut hash = [0; CHECKPOINTS];
        for h in &mut hash {
            *h = u32::get(r)?;
        }
        Some(Prefix { hash, len: u64::get(r)? })
    }
}

/// The abstract name of a user's daemon, `ropeway/<uid>`, built without allocation.
#[derive(Clone, Copy)]
pub struct DaemonName {
    text: [u8; 24],
    len: usize,
}

impl DaemonName {
    pub fn of(uid: u32) -> DaemonName {
        const PREFIX: &[u8] = b"ropeway/";
        let mut name = DaemonName { text: [0; 24], len: PREFIX.len() };
        name.text[..PREFIX.len()].copy_from_slice(PREFIX);
        let digits = uid.checked_ilog10().unwrap_or(0);
        for place in (0..=digits).rev() {
            name.text[name.len] = b'0' + (uid / 10u32.pow(place) % 10) as u8;
            name.len += 1;
        }
        name
    }

    pub fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

/// Text padded with zeros to `N` bytes; longer text is cut.
pub fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let n = text.len().min(N);
    out[..n].copy_from_slice(&text[..n]);
    out
}

/// The text of a zero-padded field.
pub fn unpadded(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or(&[])
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
