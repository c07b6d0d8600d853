//! Two ends with a key.

#![allow(dead_code, reason = "each test program uses another part")]

use ropeway_proto::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use ropeway_proto::crypto::session::{COUNTER_BYTES, TAG_BYTES};
use ropeway_proto::crypto::{ClusterKey, ClusterKeys, Initiator, OpenError, Responder, SealError, Session};

pub const SECOND_NS: u64 = 1_000_000_000;

/// Length of the headers that tests use.
pub const HEADER_BYTES: usize = 24;

/// What precedes the first message in CONFIRM.
pub const PROLOGUE: &[u8] = b"a header, the fields of a SYN, a cookie and zeros";

/// What precedes the second message in OPENED.
pub const OPENED_HEADER: &[u8] = b"the header of an OPENED.";

/// A key of these bytes and their successors.
pub fn key(first: u8) -> ClusterKey {
    ClusterKey::new(std::array::from_fn(|i| first.wrapping_add(i as u8)))
}

/// Client and server, both at time 0.
pub fn sessions() -> (Session, Session) {
    sessions_from(1)
}

/// Client and server with other keys for each `seed`.
pub fn sessions_from(seed: u8) -> (Session, Session) {
    let mut initiator = Initiator::new(&key(1), PROLOGUE, [seed; 32]);
    let (mut confirm, mut opened, mut payload) = (vec![0; CONFIRM_OVERHEAD_BYTES], vec![0; OPENED_OVERHEAD_BYTES], []);
    initiator.write(&[], &mut confirm).expect("the first message");
    let keys = ClusterKeys::one(key(1));
    let responder = Responder::read(&keys, PROLOGUE, &confirm, [seed ^ 0xff; 32], &mut payload);
    let (_, responder) = responder.expect("the first message opens");
    let (_, server) = responder.write(0, OPENED_HEADER, &[], &mut opened).expect("the second message");
    let (_, client) = initiator.read(0, OPENED_HEADER, &opened, &mut payload).expect("the second message opens");
    (client, server)
}

/// A header whose bytes tell them apart.
pub fn header() -> [u8; HEADER_BYTES] {
    std::array::from_fn(|i| if i == 1 { 0 } else { 0x10 + i as u8 })
}

/// A sealed packet.
pub fn seal(from: &mut Session, now_ns: u64, payload: &[u8]) -> Vec<u8> {
    try_seal(from, now_ns, &header(), payload).expect("a sealed packet")
}

/// The same behind another header, if it can be sealed.
pub fn try_seal(from: &mut Session, now_ns: u64, header: &[u8], payload: &[u8]) -> Result<Vec<u8>, SealError> {
    let mut packet = [header, &[0; COUNTER_BYTES], payload, &[0; TAG_BYTES]].concat();
    from.seal_in_place(now_ns, &mut packet, header.len())?;
    Ok(packet)
}

/// The payload of a packet of [`seal`].
pub fn open(to: &mut Session, now_ns: u64, packet: &[u8]) -> Result<Vec<u8>, OpenError> {
    open_behind(to, now_ns, packet, HEADER_BYTES)
}

/// The payload of a packet that is taken for one with a header of so many bytes.
pub fn open_behind(to: &mut Session, now_ns: u64, packet: &[u8], header_bytes: usize) -> Result<Vec<u8>, OpenError> {
    let (aad, sealed) = packet.split_at(header_bytes + COUNTER_BYTES);
    let mut payload = vec![0; sealed.len()];
    let length = to.open(now_ns, aad, sealed, &mut payload)?;
    payload.truncate(length);
    Ok(payload)
}

/// How often `error` was counted.
pub fn refused(session: &Session, error: OpenError) -> u64 {
    session.counters().refused[error.index()]
}
