//! Test vectors of section 9: what Rust makes, what the page says in another language, and what was committed are the
//! same. Whoever changes a vector changes the protocol, and so its version.

use ropeway_proto::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use ropeway_proto::crypto::session::{COUNTER_BYTES, TAG_BYTES};
use ropeway_proto::crypto::{ClusterKey, ClusterKeys, Initiator, Responder, Secret, Session};
use ropeway_testkit::need_program;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const HOUR_NS: u64 = 3600 * 1_000_000_000;

fn tests_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Lines of `name = hexadecimal digits`.
fn parse(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once(" = ")).map(|(name, hex)| (name.into(), hex.into())).collect()
}

fn committed() -> BTreeMap<String, String> {
    let path = tests_dir().join("crypto_vectors.txt");
    parse(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(first: u8, step: u8) -> [u8; N] {
    std::array::from_fn(|i| first.wrapping_add(step.wrapping_mul(i as u8)))
}

/// Both messages of the handshake, and what comes of them.
fn handshake() -> (String, String, Session, Session) {
    let key = || ClusterKey::new(bytes(1, 7));
    let (prologue, opened_header): ([u8; 112], [u8; 24]) = (bytes(0, 1), bytes(0x40, 1));
    let (early, answer) = (b"early data ".repeat(11), b"the answer of the server, 36 bytes..");
    let mut initiator = Initiator::new(&key(), &prologue, [0xc1; 32]);
    let mut confirm = vec![0; early.len() + CONFIRM_OVERHEAD_BYTES];
    initiator.write(&early, &mut confirm).unwrap();
    let mut payload = vec![0; early.len()];
    let keys = ClusterKeys::one(key());
    let (_, responder) = Responder::read(&keys, &prologue, &confirm, [0x5e; 32], &mut payload).unwrap();
    assert_eq!(payload, early);
    let mut opened = vec![0; answer.len() + OPENED_OVERHEAD_BYTES];
    let (_, server) = responder.write(0, &opened_header, answer, &mut opened).unwrap();
    let (length, client) = initiator.read(0, &opened_header, &opened, &mut payload).unwrap();
    assert_eq!(payload[..length], answer[..]);
    (hex(&confirm), hex(&opened), client, server)
}

/// Seals at `from`, opens at `to`.
fn packet(from: &mut Session, to: &mut Session, now_ns: u64, header: &[u8], payload: &[u8]) -> String {
    let mut packet = [header, &[0; COUNTER_BYTES], payload, &[0; TAG_BYTES]].concat();
    from.seal_in_place(now_ns, &mut packet, header.len()).unwrap();
    let (aad, sealed) = packet.split_at(header.len() + COUNTER_BYTES);
    let mut opened = vec![0; payload.len()];
    assert_eq!(to.open(now_ns, aad, sealed, &mut opened), Ok(payload.len()));
    assert_eq!(opened, payload);
    hex(&packet)
}

/// What this crate makes of the inputs that crypto_reference.py has too.
fn made() -> BTreeMap<String, String> {
    let (confirm, opened, mut client, mut server) = handshake();
    let mut header: [u8; 28] = bytes(0, 1);
    (header[0], header[1]) = (0x17, 0x01);
    let payload: [u8; 1472] = bytes(0, 1);
    let secret = Secret::new([0x0c; 32]);
    let mut made = BTreeMap::from([("confirm".to_owned(), confirm), ("opened".to_owned(), opened)]);
    let mut add = |name: &str, value: String| drop(made.insert(name.to_owned(), value));
    add("client 0 0", packet(&mut client, &mut server, 0, &header, &payload));
    add("server 0 0", packet(&mut server, &mut client, 0, &header[..24], b""));
    add("client 1 1", packet(&mut client, &mut server, HOUR_NS, &header[..24], &payload[..100]));
    add("server 1 1", packet(&mut server, &mut client, HOUR_NS, &header, &payload[..16]));
    add("client 2 2", packet(&mut client, &mut server, 2 * HOUR_NS, &header, &[0]));
    add("cookie", hex(&secret.cookie(0x0005_0102_0304, b"a path", b"the fields of a SYN")));
    add("reset", hex(&secret.reset_token(0xaabb_ccdd, 5)));
    made
}

#[test]
fn the_committed_vectors_are_what_is_made() {
    let (made, committed) = (made(), committed());
    for (name, value) in &made {
        assert_eq!(Some(value), committed.get(name), "{name}");
    }
    assert_eq!(made.len(), 9);
}

#[test]
fn the_committed_vectors_are_what_another_implementation_makes() {
    need_program!("python3");
    let script = tests_dir().join("crypto_reference.py");
    let output = Command::new("python3").arg(&script).output().expect("python3 starts");
    assert!(output.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&output.stderr));
    let theirs = parse(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(theirs, committed());
    assert!(made().keys().all(|name| theirs.contains_key(name)));
}
