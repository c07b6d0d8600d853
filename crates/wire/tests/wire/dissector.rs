//! The Wireshark dissector, an implementation of the specification in another language: it sees in every golden vector what the vector says,
//! and in every mistake the same mistake.

use crate::owned::{Carried, Entry, Open, Opening, Payload};
use crate::vectors::{self, Means};
use crate::wrong::{self, Read};
use crate::{capture, owned};
use ropeway_testkit::need_program;
use ropeway_wire::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of all fields but those of the frame, the values in their order.
type Fields = BTreeMap<String, Vec<String>>;

/// Outside of all registered and ephemeral ranges of well-known programs: only its looks tell that this is Ropeway.
const SOME_PORT: u16 = 29_000;
/// Told to tshark as Ropeway's.
const TOLD_PORT: u16 = 29_100;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share/wireshark/ropeway.lua")
}

/// Which protocols tshark saw in each frame, and these fields of each.
fn dissect(frames: &[Vec<u8>], fields: &BTreeSet<String>, options: &[&str]) -> Vec<(String, Fields)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("frames.pcap");
    std::fs::write(&path, capture::file(frames)).expect("a capture file");
    let mut tshark = Command::new("tshark");
    // A home without anybody's settings, and without another copy of the dissector.
    tshark.env("HOME", dir.path()).env("XDG_CONFIG_HOME", dir.path()).env_remove("WIRESHARK_CONFIG_DIR");
    tshark.arg("-X").arg(format!("lua_script:{}", script().display())).arg("-n").arg("-r").arg(&path).args(options);
    tshark.args([
        "-T",
        "fields",
        "-E",
        "separator=/t",
        "-E",
        "occurrence=a",
        "-E",
        "aggregator=,",
        "-e",
        "frame.protocols",
    ]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().expect("tshark runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "tshark failed: {err}");
    let rows: Vec<_> = out.lines().map(|line| row(line, fields)).collect();
    assert_eq!(rows.len(), frames.len(), "one line for each frame: {out}\n{err}");
    assert!(!out.contains("Lua Error") && !err.contains("Lua Error"), "the dissector failed: {out}\n{err}");
    rows
}

fn row(line: &str, fields: &BTreeSet<String>) -> (String, Fields) {
    let mut columns = line.split('\t');
    let protocols = columns.next().expect("a column").to_owned();
    let cells = fields.iter().zip(columns).filter(|(_, cell)| !cell.is_empty());
    (protocols, cells.map(|(field, cell)| (field.clone(), cell.split(',').map(plain).collect())).collect())
}

/// Versions of tshark differ in how they write what is true and what is bytes.
fn plain(value: &str) -> String {
    match value {
        "True" => "1".into(),
        "False" => "0".into(),
        bytes if bytes.len() > 2 && bytes.split(':').all(|byte| byte.len() == 2) => bytes.replace(':', ""),
        other => other.into(),
    }
}

/// Collects what a packet is expected to show.
#[derive(Default)]
struct Expected(Fields);

impl Expected {
    fn add(&mut self, field: &str, value: impl ToString) {
        self.0.entry(format!("ropeway.{field}")).or_default().push(value.to_string());
    }

    fn id(&mut self, field: &str, id: Id) {
        self.add(field, format!("0x{:08x}", id.0));
        self.add("id.steering", format!("0x{:08x}", id.steering()));
        if id.steering() == Id::ANY_STEERING {
            self.add("id.port", id.slot());
        } else {
            self.add("id.slot", format!("0x{:08x}", id.slot()));
            self.add("id.generation", id.generation());
        }
    }

    fn bytes(&mut self, field: &str, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.add(field, bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
    }

    fn header(&mut self, header: &Header) {
        self.add("version", if header.kind == Type::Version { 0 } else { VERSION });
        self.add("type", header.kind as u8);
        if header.is_short {
            self.add("short", 1);
        }
        self.add("flags", format!("0x{:02x}", header.flags.0));
        let flags = ["txs", "txf", "first", "last", "records", "rtx", "phase", "echo"];
        for (bit, flag) in flags.into_iter().enumerate() {
            self.add(&format!("flags.{flag}"), header.flags.0 >> bit & 1);
        }
        self.add("length", header.length);
        self.id("destination", header.destination);
        self.add("number", header.number);
        if !header.is_short {
            self.add("ack", header.ack);
            self.add("grant", header.grant);
            self.add("first_flight", header.first_flight);
            self.add("backlog", format!("0x{:02x}", header.backlog.0));
            self.add("backlog_bytes", header.backlog.to_bytes());
            self.add("time", header.time);
            self.add("echo", header.echo);
        }
        if header.kind.has_channel() {
            self.add("channel", header.channel);
            self.add("back", header.back);
        }
    }

    fn syn(&mut self, syn: &SynFields) {
        self.id("source", syn.source);
        self.nonce(syn.nonce);
        self.add("node", syn.node);
        self.add("destination_port", syn.destination_port);
        self.add("source_port", syn.source_port);
        self.add("packet_size", syn.packet_size);
        self.add("lowest_version", syn.lowest_version);
        self.add("highest_version", syn.highest_version);
        self.add("features", format!("0x{:08x}", syn.features));
        self.add("features.keyed", syn.features & FEATURE_KEYED);
    }

    fn nonce(&mut self, nonce: u64) {
        self.add("nonce", format!("0x{nonce:016x}"));
    }

    fn cookie(&mut self, Cookie(cookie): Cookie) {
        let (issued, mac) = cookie.split_first_chunk().expect("20 bytes");
        self.add("cookie.issued", u32::from_be_bytes(*issued));
        self.bytes("cookie.mac", mac);
    }

    fn parameters(&mut self, parameters: &Parameters) {
        self.id("parameters.id", parameters.id);
        self.add("parameters.first_number", parameters.first_number);
        self.add("parameters.window", parameters.window);
        self.add("parameters.longest_message", parameters.longest_message);
        self.bytes("reset_token", &parameters.reset_token);
    }

    fn carried(&mut self, carried: &Carried) {
        match carried {
            Carried::Bytes(bytes) | Carried::Whole(bytes) | Carried::Last(bytes) => self.bytes("data", bytes),
            Carried::First { length, bytes } => {
                self.add("message_length", length);
                self.bytes("data", bytes);
            }
            Carried::Records(messages) => self.records(messages.iter().map(|message| (message.len(), message))),
            Carried::Shared { end, whole, beginning } => {
                self.records(end.iter().map(|end| (end.len(), end)));
                let beginning = beginning.iter().map(|(length, part)| (usize::from(*length), part));
                self.records(whole.iter().map(|message| (message.len(), message)).chain(beginning));
            }
        }
    }

    /// Messages of one length in a row say it once, and are counted then: of those 64 at most.
    fn records<'a>(&mut self, messages: impl Iterator<Item = (usize, &'a Vec<u8>)>) {
        let messages: Vec<_> = messages.collect();
        for run in messages.chunk_by(|a, b| a.0 == b.0 && a.0 > 0) {
            self.add("record.length", run[0].0);
            if run.len() > 1 {
                self.add("record.repeated", run.len() - 1);
            }
            run.iter().for_each(|(_, bytes)| self.bytes("data", bytes));
        }
    }

    fn open(&mut self, open: &Open) {
        self.add("destination_port", open.destination_port);
        self.add("source_port", open.source_port);
        self.add("mode", open.mode as u8);
        self.bytes("reserved", &[0; 3]);
        self.carried(&open.early);
    }

    fn code(&mut self, code: ErrorCode) {
        self.add("error_code", u16::from(code));
    }

    fn padding(&mut self, packet_size: u16, fields: usize) {
        self.bytes("padding", &vec![0; usize::from(packet_size) - BASE_HEADER_BYTES - fields]);
    }

    fn entry(&mut self, entry: &Entry) {
        match *entry {
            Entry::Rrq(low, count) => {
                self.add("rrq.number", low);
                self.add("rrq.count", count);
            }
            Entry::Credit(channel, limit) => {
                self.add("credit.channel", channel);
                self.add("credit.limit", limit);
            }
            Entry::Hold(channel) => self.add("hold.channel", channel),
            Entry::Want(channel, limit) => {
                self.add("want.channel", channel);
                self.add("want.limit", limit);
            }
            Entry::Return(channel, low) => {
                self.add("return.channel", channel);
                self.add("return.number", low);
            }
            Entry::Void(Void { channel, low, count, until }) => {
                self.add("void.channel", channel);
                self.add("void.number", low);
                self.add("void.count", count);
                self.add("void.until", until);
            }
        }
    }

    /// The blocks that entries are written in: one for each run of a kind.
    fn entries(&mut self, entries: &[Entry]) {
        for run in entries.chunk_by(|a, b| kind_of(a) == kind_of(b)) {
            self.add("block", kind_of(&run[0]));
            self.add("block.entries", run.len());
            run.iter().for_each(|entry| self.entry(entry));
        }
    }

    fn payload(&mut self, payload: &Payload) {
        match payload {
            Payload::Version { nonce, versions } => {
                self.nonce(*nonce);
                versions.iter().for_each(|version| self.add("spoken", version));
            }
            Payload::Syn(syn) => {
                self.syn(syn);
                self.padding(syn.packet_size, SynFields::BYTES);
            }
            Payload::Cookie(fields) => {
                self.nonce(fields.nonce);
                self.add("packet_size", fields.packet_size);
                self.bytes("reserved", &[0; 2]);
                self.cookie(fields.cookie);
                self.padding(fields.packet_size, CookieFields::BYTES);
            }
            Payload::Confirm { syn, cookie, parameters, open } => {
                self.syn(syn);
                self.cookie(*cookie);
                self.parameters(parameters);
                match open {
                    Opening::Plain(open) => self.open(open),
                    Opening::Noise(message) => self.bytes("noise", message),
                }
            }
            Payload::Opened { nonce, rest } => {
                self.nonce(*nonce);
                self.parameters(&Parameters::parse(rest).expect("an association without a key").0);
            }
            Payload::Refused { nonce, code } => {
                self.nonce(*nonce);
                self.code(*code);
            }
            Payload::Redirect { nonce, address } => {
                self.nonce(*nonce);
                self.add("redirect.family", if address.is_ipv4() { 4 } else { 6 });
                self.add("redirect.port", address.port());
                match address.ip() {
                    IpAddr::V4(ip) => {
                        self.add("redirect.ipv4", ip);
                        self.bytes("reserved", &[0; 12]);
                    }
                    IpAddr::V6(ip) => self.add("redirect.ipv6", ip),
                }
            }
            Payload::Data(carried) => self.carried(carried),
            Payload::Open(open) => self.open(open),
            Payload::Fin(extent) => {
                self.add("extent", *extent as u8);
                self.bytes("reserved", &[0]);
            }
            Payload::Abort(code) => self.code(*code),
            Payload::Control(entries) | Payload::State(entries) => self.entries(entries),
            Payload::Pin => (),
            Payload::Rst { token, code } => {
                self.bytes("reset_token", token);
                self.code(*code);
            }
            Payload::Join(fields) => {
                self.add("join.step", fields.step as u8);
                self.add("join.use", u8::from(fields.bonded));
                self.add("packet_size", fields.packet_size);
                self.nonce(fields.nonce);
                self.cookie(fields.cookie);
                self.bytes("join.proof", &fields.proof);
                if fields.step.is_padded() {
                    self.padding(fields.packet_size, JoinFields::BYTES);
                }
            }
        }
    }

    fn shim(&mut self, shim: &Shim) {
        self.add("shim.congested", u8::from(shim.congested));
        self.add("shim.hops", shim.hops);
        self.bytes("reserved", &[0; 2]);
        self.add("shim.destination", shim.destination);
        self.add("shim.source", shim.source);
    }
}

fn kind_of(entry: &Entry) -> u8 {
    match entry {
        Entry::Rrq(..) => 1,
        Entry::Credit(..) => 2,
        Entry::Hold(..) => 3,
        Entry::Want(..) => 4,
        Entry::Return(..) => 5,
        Entry::Void(..) => 6,
    }
}

fn expected(means: &Means) -> Fields {
    let mut expected = Expected::default();
    match means {
        Means::Packet(header, payload) => {
            expected.header(header);
            expected.payload(payload);
        }
        Means::Shimmed(shim, header, payload) => {
            expected.shim(shim);
            expected.header(header);
            expected.payload(payload);
        }
        Means::Sealed(header, counter, sealed) => {
            expected.header(header);
            expected.add("counter", counter);
            let (payload, tag) = sealed.split_at(usize::from(header.length));
            expected.bytes("sealed", payload);
            expected.bytes("tag", tag);
        }
        Means::Foreign(version, _) => expected.add("version", version),
    }
    expected.0
}

/// The field by which the dissector says what is malformed.
fn mark(name: &str) -> String {
    format!("ropeway.malformed.{}", name.replace('-', "_"))
}

/// What only some receivers notice: the dissector is none of them.
fn is_shown(name: &str) -> bool {
    name != Malformed::NeverSealed.name()
}

/// Every field that any vector shows, and every mark.
fn all_fields() -> BTreeSet<String> {
    let shown = vectors::all().iter().flat_map(|vector| expected(&vector.means).into_keys()).collect::<Vec<_>>();
    shown.into_iter().chain(Malformed::NAMES.into_iter().filter(|name| is_shown(name)).map(mark)).collect()
}

#[test]
fn every_golden_vector_is_dissected_into_what_it_says() {
    need_program!("tshark");
    let vectors: Vec<_> =
        vectors::all().into_iter().filter(|vector| !matches!(vector.means, Means::Foreign(..))).collect();
    let over_udp = vectors.iter().map(|vector| capture::udp(&vector.bytes, SOME_PORT));
    let frames: Vec<_> = vectors.iter().map(|vector| capture::ethernet(&vector.bytes)).chain(over_udp).collect();
    let rows = dissect(&frames, &all_fields(), &[]);
    for (i, (protocols, shown)) in rows.iter().enumerate() {
        let (vector, link) = (&vectors[i % vectors.len()], if i < vectors.len() { "eth" } else { "udp" });
        assert!(protocols.starts_with("eth:") && protocols.contains(link), "{}: {protocols}", vector.name);
        assert!(protocols.ends_with(":ropeway"), "{} over {link}: {protocols}", vector.name);
        assert_eq!(*shown, expected(&vector.means), "{} over {link}", vector.name);
    }
}

#[test]
fn every_mistake_is_marked_as_what_it_is() {
    need_program!("tshark");
    for (read, options) in [(Read::Open, &[][..]), (Read::Keyed, &["-o", "ropeway.keyed:always"]), (Read::Gateway, &[])]
    {
        // An empty datagram is nothing to any dissector; a shim is always allowed for here, and needed only by gateways.
        let shown = |wrong: &wrong::Wrong| {
            let always_a_shim = wrong.reason == Malformed::UnexpectedShim || wrong.about == "no shim";
            wrong.read == read && is_shown(wrong.reason.name()) && !wrong.bytes.is_empty() && !always_a_shim
        };
        let wrongs: Vec<_> = wrong::all().into_iter().filter(shown).collect();
        let frames: Vec<_> = wrongs.iter().map(|wrong| capture::udp(&wrong.bytes, TOLD_PORT)).collect();
        let told = format!("udp.port=={TOLD_PORT},ropeway");
        let marks = Malformed::NAMES.into_iter().filter(|name| is_shown(name)).map(mark).collect();
        let rows = dissect(&frames, &marks, &[&["-d", &told], options].concat());
        assert!(!rows.is_empty());
        for (wrong, (protocols, shown)) in wrongs.iter().zip(rows) {
            assert!(protocols.ends_with(":udp:ropeway"), "{}: {protocols}", wrong.about);
            assert_eq!(shown.into_keys().collect::<Vec<_>>(), [mark(wrong.reason.name())], "{}", wrong.about);
        }
    }
}

#[test]
fn a_port_in_the_preferences_is_ropeways() {
    need_program!("tshark");
    let cut = &vectors::bytes_of("PIN")[..BASE_HEADER_BYTES - 1];
    let fields = BTreeSet::from([mark(Malformed::Truncated.name())]);
    let ports = format!("ropeway.udp_ports:1-5,{TOLD_PORT}");
    for (options, shown) in [(&[][..], 0), (&["-o", &ports], 1)] {
        let rows = dissect(&[capture::udp(cut, TOLD_PORT)], &fields, options);
        assert_eq!(rows[0].1.len(), shown, "{options:?}: {}", rows[0].0);
    }
}

/// A shim is taken off once: what stands behind another one is no packet.
#[test]
fn a_second_shim_is_marked() {
    need_program!("tshark");
    let bytes = vectors::bytes_of("PIN behind a shim");
    let twice = [&bytes[..SHIM_BYTES], &bytes].concat();
    assert_eq!(owned::read(&twice[SHIM_BYTES..]), Err(Malformed::UnexpectedShim));
    let mark = mark(Malformed::UnexpectedShim.name());
    let rows = dissect(&[capture::ethernet(&twice)], &BTreeSet::from([mark.clone()]), &[]);
    assert_eq!(rows[0].1.keys().collect::<Vec<_>>(), [&mark]);
}

/// Other people's datagrams stay other people's, unless all of a header agrees.
#[test]
fn a_stranger_is_not_taken_for_ropeway() {
    need_program!("tshark");
    let pin = vectors::bytes_of("PIN");
    let longer = [&pin[..], &[0]].concat();
    let strangers: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", &[0; 24], &[0x11; 300], &longer];
    let frames: Vec<_> = strangers.iter().zip(0..).map(|(bytes, i)| capture::udp(bytes, SOME_PORT + 2 * i)).collect();
    for (protocols, _) in dissect(&frames, &BTreeSet::from(["ropeway.type".into()]), &[]) {
        assert!(!protocols.contains("ropeway"), "{protocols}");
    }
}
