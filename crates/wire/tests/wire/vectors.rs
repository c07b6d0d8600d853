//! The golden vectors: their bytes stand in the appendix of the specification and nowhere else, what they say stands here.

use super::owned::{Carried, Entry, Open, Opening, Payload};
use ropeway_wire::*;

/// The page, from its first vector on.
const PAGE: &str = include_str!("../../../../docs/protocol.md");
const APPENDIX: &str = "\n## Appendix: golden vectors\n";

/// One packet.
pub struct Vector {
    /// Its heading in the appendix.
    pub name: &'static str,
    /// Its bytes, as they stand below that heading.
    pub bytes: Vec<u8>,
    pub means: Means,
}

/// What a vector says.
pub enum Means {
    Packet(Header, Payload),
    /// As [`Means::Packet`], behind a shim.
    Shimmed(Shim, Header, Payload),
    /// A packet of an association with a key: counter, and the sealed bytes as they are.
    Sealed(Header, u32, &'static [u8]),
    /// A SYN of another version, which is answered.
    Foreign(u8, UnknownSyn),
}

/// Headings and bytes of the appendix: the first block of hexadecimal below each `###`.
pub fn quoted() -> Vec<(&'static str, Vec<u8>)> {
    let (_, appendix) = PAGE.split_once(APPENDIX).expect("docs/protocol.md has an appendix of golden vectors");
    let sections = appendix.split("\n### ").skip(1);
    sections
        .map(|section| {
            let (name, text) = section.split_once('\n').expect("a heading has a line of its own");
            let hex = text.split("```").nth(1).and_then(|block| block.strip_prefix("text\n"));
            (name, from_hex(hex.unwrap_or_else(|| panic!("`{name}` has no block of bytes"))))
        })
        .collect()
}

/// `00*9` is nine zeros.
fn from_hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        match word.split_once('*') {
            Some(("00", count)) => bytes.resize(bytes.len() + count.parse::<usize>().expect("a count"), 0),
            _ => bytes.push(u8::from_str_radix(word, 16).expect("two hexadecimal digits")),
        }
    }
    bytes
}

/// Who opens, from port 40000 to port 7000.
pub const CLIENT: Id = Id::new(0x001, 0x0002, 0x3);
/// Who listens.
pub const SERVER: Id = Id::new(0x002, 0x0010, 0x1);
const PORTS: (u16, u16) = (7000, 40_000);
const NONCE: u64 = 0x0123_4567_89AB_CDEF;
const COOKIE: Cookie = Cookie([
    0x00, 0x00, 0x10, 0x00, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCC, 0xCD, 0xCE,
    0xCF,
]);
const CLIENT_TOKEN: [u8; 16] = *b"reset-token-of-c";
const SERVER_TOKEN: [u8; 16] = *b"reset-token-of-s";
const SYN: SynFields = SynFields {
    source: CLIENT,
    nonce: NONCE,
    node: 17,
    destination_port: PORTS.0,
    source_port: PORTS.1,
    packet_size: 256,
    lowest_version: 1,
    highest_version: 2,
    features: 0,
};

/// Header fields of an open association, of which each vector changes some.
fn header(kind: Type, destination: Id) -> Header {
    Header {
        number: 0xFFFF_FFFE,
        ack: 0x0000_0042,
        grant: 64,
        first_flight: 10,
        backlog: Backlog::from_bytes(3000),
        time: 0x1234,
        ..Header::new(kind, destination)
    }
}

fn channel(kind: Type, back: u16) -> Header {
    Header { channel: 5, back, ..header(kind, SERVER) }
}

fn parameters(id: Id, reset_token: [u8; 16]) -> Parameters {
    Parameters { id, first_number: 0x0000_0007_FFFF_FFFE, window: 65_536, longest_message: 16 << 20, reset_token }
}

fn open(early: Carried) -> Open {
    Open { destination_port: PORTS.0, source_port: PORTS.1, mode: Mode::Messages, early }
}

fn vector(name: &'static str, means: Means) -> Vector {
    let bytes = quoted().into_iter().find(|(heading, _)| *heading == name).map(|(_, bytes)| bytes);
    Vector { name, bytes: bytes.unwrap_or_else(|| panic!("docs/protocol.md does not quote `{name}`")), means }
}

fn packet(name: &'static str, mut header: Header, payload: Payload) -> Vector {
    header.length = payload.to_bytes().len().try_into().expect("a payload");
    header.flags = payload.flags(header.flags);
    vector(name, Means::Packet(header, payload))
}

/// One or more of every type, in the order of the appendix.
pub fn all() -> Vec<Vector> {
    [opening(), data(), rest(), around()].into_iter().flatten().collect()
}

/// The bytes of the vector with that name.
pub fn bytes_of(name: &'static str) -> Vec<u8> {
    all().into_iter().find(|vector| vector.name == name).unwrap_or_else(|| panic!("no vector is named `{name}`")).bytes
}

fn opening() -> Vec<Vector> {
    let (first, again) = (Header::new(Type::Syn, Id::any(PORTS.0)), Header::new(Type::Confirm, Id::any(PORTS.0)));
    let back = |kind| Header::new(kind, CLIENT);
    let opened = Header { ack: 0xFFFF_FFFF, time: 7, echo: 0x1240, flags: Flags::ECHO, ..header(Type::Opened, CLIENT) };
    let confirm = |features, open, parameters| Payload::Confirm {
        syn: SynFields { features, ..SYN },
        cookie: COOKIE,
        parameters,
        open,
    };
    let early = open(Carried::Whole(b"ping".to_vec()));
    vec![
        packet("SYN", first, Payload::Syn(SYN)),
        packet(
            "COOKIE",
            back(Type::Cookie),
            Payload::Cookie(CookieFields { nonce: NONCE, packet_size: 256, cookie: COOKIE }),
        ),
        packet("CONFIRM", again, confirm(0, Opening::Plain(early), parameters(CLIENT, CLIENT_TOKEN))),
        packet(
            "CONFIRM with a key",
            again,
            confirm(FEATURE_KEYED, Opening::Noise(b"noise-e-es".to_vec()), Parameters::default()),
        ),
        packet(
            "OPENED",
            opened,
            Payload::Opened { nonce: NONCE, rest: Payload::parameters(parameters(SERVER, SERVER_TOKEN)) },
        ),
        packet("REFUSED", back(Type::Refused), Payload::Refused { nonce: NONCE, code: ErrorCode::Busy }),
        packet(
            "REDIRECT",
            back(Type::Redirect),
            Payload::Redirect { nonce: NONCE, address: "192.0.2.7:7001".parse().expect("an address") },
        ),
        packet(
            "REDIRECT to IPv6",
            back(Type::Redirect),
            Payload::Redirect { nonce: NONCE, address: "[2001:db8::7]:7001".parse().expect("an address") },
        ),
        packet("VERSION", back(Type::Version), Payload::Version { nonce: NONCE, versions: vec![1, 3] }),
        vector("SYN of version 2", Means::Foreign(2, UnknownSyn { source: CLIENT, nonce: NONCE })),
    ]
}

fn data() -> Vec<Vector> {
    let echo = Header { flags: Flags::TXS | Flags::ECHO, echo: 0xFFFF, ..channel(Type::Data, 0) };
    let again = Header { flags: Flags::TXF | Flags::RTX, ..channel(Type::Data, 3) };
    let inner = channel(Type::Data, 1);
    let opening = Header { flags: Flags::TXS | Flags::TXF, ..channel(Type::Open, 0) };
    let short = Header { is_short: true, number: inner.number, channel: 5, back: 1, ..Header::new(Type::Data, SERVER) };
    vec![
        packet("DATA of a stream", echo, Payload::Data(Carried::Bytes(b"stream".to_vec()))),
        packet("DATA, a whole message", again, Payload::Data(Carried::Whole(b"whole".to_vec()))),
        packet(
            "DATA, the first of a message",
            inner,
            Payload::Data(Carried::First { length: 3000, bytes: b"head".to_vec() }),
        ),
        packet("DATA, the last of a message", inner, Payload::Data(Carried::Last(b"tail".to_vec()))),
        packet("DATA, records", inner, Payload::Data(Carried::Records(vec![b"a".to_vec(), vec![], b"bcd".to_vec()]))),
        packet(
            "DATA, records of one length",
            inner,
            Payload::Data(Carried::Records([&b"abc"[..], b"def", b"ghi", b"jkl"].map(<[u8]>::to_vec).to_vec())),
        ),
        packet(
            "DATA, end and beginning",
            inner,
            Payload::Data(Carried::Shared {
                end: Some(b"tail".to_vec()),
                whole: vec![b"a".to_vec()],
                beginning: Some((300, b"he".to_vec())),
            }),
        ),
        packet(
            "DATA, a long beginning",
            inner,
            Payload::Data(Carried::Shared { end: None, whole: vec![], beginning: Some((20_000, b"head".to_vec())) }),
        ),
        packet(
            "DATA, a beginning that repeats a length",
            inner,
            Payload::Data(Carried::Shared {
                end: None,
                whole: vec![b"abc".to_vec(), b"def".to_vec()],
                beginning: Some((3, b"g".to_vec())),
            }),
        ),
        packet("DATA with the short header", short, Payload::Data(Carried::Bytes(b"middle".to_vec()))),
        packet("OPEN", opening, Payload::Open(open(Carried::Records(vec![b"early".to_vec()])))),
        packet(
            "OPEN without early data",
            opening,
            Payload::Open(Open { mode: Mode::Stream, ..open(Carried::Bytes(vec![])) }),
        ),
    ]
}

fn rest() -> Vec<Vector> {
    let to_client = |kind| header(kind, CLIENT);
    let control = vec![
        Entry::Rrq(0xFFFF_FFF0, 2),
        Entry::Rrq(0x0000_0001, 300),
        Entry::Credit(5, 0x0001_0000_0000),
        Entry::Hold(6),
        Entry::Hold(7),
    ];
    let returns = vec![Entry::Return(8, 0xFFFF_FFF0), Entry::Return(9, 0x0000_0001)];
    let voids = vec![
        Entry::Void(Void { channel: 8, low: 0xFFFF_FFF0, count: 2, until: 300 }),
        Entry::Void(Void { channel: 9, low: 0x0000_0001, count: 7, until: 7 }),
    ];
    vec![
        packet("FIN", channel(Type::Fin, 1), Payload::Fin(Extent::Write)),
        packet("FIN of both directions", channel(Type::Fin, 1), Payload::Fin(Extent::Both)),
        packet("ABORT", channel(Type::Abort, 2), Payload::Abort(ErrorCode::Reset)),
        packet("CONTROL without blocks", to_client(Type::Control), Payload::Control(vec![])),
        packet("CONTROL", Header { backlog: Backlog::MAX, ..to_client(Type::Control) }, Payload::Control(control)),
        packet("CONTROL, packets given back", to_client(Type::Control), Payload::Control(returns)),
        packet("CONTROL, packets taken back", to_client(Type::Control), Payload::Control(voids)),
        packet("STATE", to_client(Type::State), Payload::State(vec![Entry::Want(5, 65_536)])),
        packet("PIN", to_client(Type::Pin), Payload::Pin),
        packet("RST", Header::new(Type::Rst, SERVER), Payload::Rst { token: CLIENT_TOKEN, code: ErrorCode::Unknown }),
        packet("JOIN", Header::new(Type::Join, SERVER), Payload::Join(join(JoinStep::Ask, false))),
        packet("JOIN, the cookie", Header::new(Type::Join, CLIENT), Payload::Join(join(JoinStep::Cookie, true))),
        packet("JOIN, the cookie back", Header::new(Type::Join, SERVER), Payload::Join(join(JoinStep::Prove, true))),
        packet("JOIN, done", Header::new(Type::Join, CLIENT), Payload::Join(join(JoinStep::Done, true))),
    ]
}

fn join(step: JoinStep, bonded: bool) -> JoinFields {
    let cookie = if step == JoinStep::Ask { Cookie([0; 20]) } else { COOKIE };
    let is_answer = matches!(step, JoinStep::Cookie | JoinStep::Done);
    let proof = if is_answer { *b"proof-for-client" } else { *b"proof-for-server" };
    JoinFields { step, bonded, packet_size: 256, nonce: NONCE, cookie, proof }
}

fn around() -> Vec<Vector> {
    let shim = Shim { congested: true, hops: 3, destination: 20, source: 17 };
    let sealed = Header { length: 4, flags: Flags::FIRST | Flags::LAST | Flags::PHASE, ..channel(Type::Data, 1) };
    vec![
        vector("PIN behind a shim", Means::Shimmed(shim, header(Type::Pin, CLIENT), Payload::Pin)),
        vector("DATA with a key", Means::Sealed(sealed, 0x0001_0203, b"sealabcdefghijklmnop")),
    ]
}
