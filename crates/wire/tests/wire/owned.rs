//! Whole packets as owned values, written and read with the crate's own parts: what the tests and the fuzzer compare.

use ropeway_wire::*;
use std::net::SocketAddr;

/// The longest packet: the header's largest length behind the longest header.
const MOST_BYTES: usize = CHANNEL_HEADER_BYTES + u16::MAX as usize;

/// A payload of any type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Version { nonce: u64, versions: Vec<u8> },
    Syn(SynFields),
    Cookie(CookieFields),
    Confirm { syn: SynFields, cookie: Cookie, parameters: Parameters, open: Opening },
    Opened { nonce: u64, rest: Vec<u8> },
    Refused { nonce: u64, code: ErrorCode },
    Redirect { nonce: u64, address: SocketAddr },
    Data(Carried),
    Open(Open),
    Fin(Extent),
    Abort(ErrorCode),
    Control(Vec<Entry>),
    State(Vec<Entry>),
    Pin,
    Rst { token: [u8; 16], code: ErrorCode },
    Join(JoinFields),
}

/// What an OPEN says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub destination_port: u16,
    pub source_port: u16,
    pub mode: Mode,
    pub early: Carried,
}

/// What is behind the parameters in a CONFIRM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    Plain(Open),
    Noise(Vec<u8>),
}

/// What DATA carries, and OPEN as early data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    Bytes(Vec<u8>),
    Whole(Vec<u8>),
    First {
        length: u32,
        bytes: Vec<u8>,
    },
    Last(Vec<u8>),
    Records(Vec<Vec<u8>>),
    /// RECORDS with LAST, FIRST or both: an end, whole messages, and a beginning with the length of its whole.
    Shared {
        end: Option<Vec<u8>>,
        whole: Vec<Vec<u8>>,
        beginning: Option<(u16, Vec<u8>)>,
    },
}

/// One entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Rrq(u32, u16),
    Credit(u16, u64),
    Hold(u16),
    Want(u16, u64),
    Return(u16, u32),
    Void(Void),
}

impl Payload {
    pub fn kind(&self) -> Type {
        match self {
            Payload::Version { .. } => Type::Version,
            Payload::Syn(_) => Type::Syn,
            Payload::Cookie(_) => Type::Cookie,
            Payload::Confirm { .. } => Type::Confirm,
            Payload::Opened { .. } => Type::Opened,
            Payload::Refused { .. } => Type::Refused,
            Payload::Redirect { .. } => Type::Redirect,
            Payload::Data(_) => Type::Data,
            Payload::Open(_) => Type::Open,
            Payload::Fin(_) => Type::Fin,
            Payload::Abort(_) => Type::Abort,
            Payload::Control(_) => Type::Control,
            Payload::State(_) => Type::State,
            Payload::Pin => Type::Pin,
            Payload::Rst { .. } => Type::Rst,
            Payload::Join(_) => Type::Join,
        }
    }

    /// What OPENED carries without a key.
    pub fn parameters(parameters: Parameters) -> Vec<u8> {
        filled(|out| parameters.write(out))
    }

    /// `flags` with those that say what is carried set right; all others are free.
    pub fn flags(&self, mut flags: Flags) -> Flags {
        if let Payload::Data(carried)
        | Payload::Open(Open { early: carried, .. })
        | Payload::Confirm { open: Opening::Plain(Open { early: carried, .. }), .. } = self
        {
            flags.remove(Flags::FIRST | Flags::LAST | Flags::RECORDS);
            flags.insert(carried.flags());
        }
        flags
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        filled(|out| self.write(out))
    }

    /// Writes the payload and says how long it is.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        match self {
            Payload::Version { nonce, versions } => VersionFields { nonce: *nonce, versions }.write(out),
            Payload::Syn(fields) => fields.write(out),
            Payload::Cookie(fields) => fields.write(out),
            Payload::Confirm { syn, cookie, parameters, open } => {
                let rest = match open {
                    Opening::Plain(open) => filled(|out| open.write(out)),
                    Opening::Noise(message) => message.clone(),
                };
                ConfirmFields { syn: *syn, cookie: *cookie, parameters: *parameters, rest: &rest }.write(out)
            }
            Payload::Opened { nonce, rest } => OpenedFields { nonce: *nonce, rest }.write(out),
            Payload::Refused { nonce, code } => RefusedFields { nonce: *nonce, code: *code }.write(out),
            Payload::Redirect { nonce, address } => RedirectFields { nonce: *nonce, address: *address }.write(out),
            Payload::Data(carried) => carried.write(out),
            Payload::Open(open) => open.write(out),
            Payload::Fin(extent) => FinFields { extent: *extent }.write(out),
            Payload::Abort(code) => AbortFields { code: *code }.write(out),
            Payload::Control(entries) | Payload::State(entries) => write_entries(entries, out),
            Payload::Pin => Ok(0),
            Payload::Rst { token, code } => RstFields { token: *token, code: *code }.write(out),
            Payload::Join(fields) => fields.write(out),
        }
    }
}

impl Open {
    fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let early = filled(|out| self.early.write(out));
        let Open { destination_port, source_port, mode, .. } = *self;
        OpenFields { destination_port, source_port, mode, early: &early }.write(out)
    }
}

impl Carried {
    fn flags(&self) -> Flags {
        match self {
            Carried::Bytes(_) => Flags::NONE,
            Carried::Whole(_) => Flags::FIRST | Flags::LAST,
            Carried::First { .. } => Flags::FIRST,
            Carried::Last(_) => Flags::LAST,
            Carried::Records(_) => Flags::RECORDS,
            Carried::Shared { end, beginning, .. } => {
                let mut flags = Flags::RECORDS;
                end.iter().for_each(|_| flags.insert(Flags::LAST));
                beginning.iter().for_each(|_| flags.insert(Flags::FIRST));
                flags
            }
        }
    }

    fn write(&self, out: &mut [u8]) -> Result<usize, NoRoom> {
        let (length, bytes) = match self {
            Carried::Bytes(bytes) | Carried::Whole(bytes) | Carried::Last(bytes) => (Vec::new(), bytes),
            Carried::First { length, bytes } => (length.to_be_bytes().to_vec(), bytes),
            Carried::Records(messages) => (Vec::new(), &records(None, messages, None)),
            Carried::Shared { end, whole, beginning } => {
                (Vec::new(), &records(end.as_deref(), whole, beginning.as_ref()))
            }
        };
        let bytes = [&length[..], bytes].concat();
        out.get_mut(..bytes.len()).ok_or(NoRoom)?.copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// The end of a message, whole ones, and the beginning of one with the length of its whole.
fn records(end: Option<&[u8]>, whole: &[Vec<u8>], beginning: Option<&(u16, Vec<u8>)>) -> Vec<u8> {
    let end = end.map(|end| [RecordPrefix::of_length(end.len() as u16).bytes(), end].concat());
    let (mut out, mut writer) = (end.unwrap_or_default(), RecordWriter::default());
    let beginning = beginning.map(|(length, bytes)| (*length, bytes));
    for (length, bytes) in whole.iter().map(|bytes| (bytes.len() as u16, bytes)).chain(beginning) {
        let prefix = writer.next(&mut out, length);
        out.extend_from_slice(prefix.bytes());
        out.extend_from_slice(bytes);
    }
    out
}

/// What `write` put into a buffer that is long enough for any packet.
fn filled(write: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> Vec<u8> {
    let mut out = vec![0xEE; MOST_BYTES];
    let length = write(&mut out).expect("room for the longest packet");
    out.truncate(length);
    out
}

fn write_entries(entries: &[Entry], out: &mut [u8]) -> Result<usize, NoRoom> {
    let mut writer = BlockWriter::new(out);
    let fit = entries.iter().all(|entry| match *entry {
        Entry::Rrq(low, count) => writer.rrq(low, count),
        Entry::Credit(channel, limit) => writer.credit(channel, limit),
        Entry::Hold(channel) => writer.hold(channel),
        Entry::Want(channel, limit) => writer.want(channel, limit),
        Entry::Return(channel, low) => writer.give_back(channel, low),
        Entry::Void(void) => writer.void(&void),
    });
    fit.then_some(writer.len()).ok_or(NoRoom)
}

/// The packet with these header fields and this payload, which sets type, length and the flags of what is carried.
pub fn write(header: Header, payload: &Payload) -> Vec<u8> {
    let bytes = payload.to_bytes();
    let length = bytes.len().try_into().expect("a payload");
    let header = Header { kind: payload.kind(), length, flags: payload.flags(header.flags), ..header };
    let mut packet = filled(|out| header.write(out));
    assert_eq!(packet.len(), header.bytes());
    packet.extend(bytes);
    packet
}

/// Header and payload of a packet without a key.
pub fn read(bytes: &[u8]) -> Result<(Header, Payload), Malformed> {
    let packet = Packet::parse(bytes)?;
    Ok((packet.header, owned(packet.body()?)))
}

fn owned(body: Body<'_>) -> Payload {
    match body {
        Body::Version(fields) => Payload::Version { nonce: fields.nonce, versions: fields.versions.to_vec() },
        Body::Syn(fields) => Payload::Syn(fields),
        Body::Cookie(fields) => Payload::Cookie(fields),
        Body::Confirm(fields, open) => {
            let ConfirmFields { syn, cookie, parameters, rest } = fields;
            let open = match open {
                Some((open, early)) => Opening::Plain(owned_open(open, early)),
                None => Opening::Noise(rest.to_vec()),
            };
            Payload::Confirm { syn, cookie, parameters, open }
        }
        Body::Opened(fields) => Payload::Opened { nonce: fields.nonce, rest: fields.rest.to_vec() },
        Body::Refused(fields) => Payload::Refused { nonce: fields.nonce, code: fields.code },
        Body::Redirect(fields) => Payload::Redirect { nonce: fields.nonce, address: fields.address },
        Body::Data(content) => Payload::Data(carried(content)),
        Body::Open(open, early) => Payload::Open(owned_open(open, early)),
        Body::Fin(fields) => Payload::Fin(fields.extent),
        Body::Abort(fields) => Payload::Abort(fields.code),
        Body::Control(blocks) => Payload::Control(entries(blocks)),
        Body::State(blocks) => Payload::State(entries(blocks)),
        Body::Pin => Payload::Pin,
        Body::Rst(fields) => Payload::Rst { token: fields.token, code: fields.code },
        Body::Join(fields) => Payload::Join(fields),
    }
}

fn owned_open(open: OpenFields<'_>, early: Content<'_>) -> Open {
    let OpenFields { destination_port, source_port, mode, .. } = open;
    Open { destination_port, source_port, mode, early: carried(early) }
}

fn carried(content: Content<'_>) -> Carried {
    match content {
        Content::Bytes(bytes) => Carried::Bytes(bytes.to_vec()),
        Content::Whole(bytes) => Carried::Whole(bytes.to_vec()),
        Content::First { length, bytes } => Carried::First { length, bytes: bytes.to_vec() },
        Content::Last(bytes) => Carried::Last(bytes.to_vec()),
        Content::Records(records) => {
            let end = records.end().map(<[u8]>::to_vec);
            let beginning = records.beginning().map(|beginning| (beginning.length, beginning.bytes.to_vec()));
            let whole = records.map(<[u8]>::to_vec).collect();
            match (&end, &beginning) {
                (None, None) => Carried::Records(whole),
                _ => Carried::Shared { end, whole, beginning },
            }
        }
    }
}

fn entries(blocks: Blocks<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    for block in blocks {
        match block {
            Block::Rrq(ranges) => entries.extend(ranges.map(|(low, count)| Entry::Rrq(low, count))),
            Block::Credit(channel, limit) => entries.push(Entry::Credit(channel, limit)),
            Block::Hold(channel) => entries.push(Entry::Hold(channel)),
            Block::Want(channel, limit) => entries.push(Entry::Want(channel, limit)),
            Block::Return(channel, low) => entries.push(Entry::Return(channel, low)),
            Block::Void(void) => entries.push(Entry::Void(void)),
        }
    }
    entries
}
