//! What the messages promise: each comes back as it was sent, and no other bytes are taken for one.

use super::*;

fn filled_prefix(seed: u32, len: u64) -> Prefix {
    Prefix { hash: core::array::from_fn(|i| seed.wrapping_mul(31).wrapping_add(i as u32)), len }
}

fn samples() -> Vec<Message> {
    let local = Endpoint::v4([127, 0, 0, 1], 6379);
    let remote = Endpoint::v6([0xfe; 16], 65535);
    let (tx, rx) = (filled_prefix(7, 300), filled_prefix(9, 0));
    let legacy = Legacy { tx, rx, sent: u64::MAX, received: 4 };
    let counts = Counts { live_processes: 1, denied: u64::MAX, uptime_s: 3, ..Counts::default() };
    vec![
        Message::Hello { pid: 42, comm: padded(b"redis-server"), profile: padded(b"latency") },
        Message::Welcome { settings: Settings::DEFAULT },
        Message::Register { token: 1, cookie: u64::MAX, fd: -1, local, remote, tx, rx },
        Message::Unregister { token: 2 },
        Message::Grant { token: 3, pair_id: 4, ring_bytes: 5, side: 1 },
        Message::Deny { token: 6, reason: Reason::OtherNetns, retry: true },
        Message::Adopt { token: 7, cookie: 8, fd: 9 },
        Message::Adopted { token: 10, legacy },
        Message::PassOn { heir: 11, cookie: 12, fd: 13, local, remote, legacy },
        Message::StatusQuery {},
        Message::Status { pid: 11, uid: 12, config_error: true, counts },
        Message::Stop {},
        Message::Stopping {},
        Message::List {},
        Message::Entry { pid: 13, uid: 14, comm: padded(b"a name longer than sixteen bytes") },
        Message::EndOfList {},
    ]
}

#[test]
fn every_message_comes_back_and_fits() {
    for message in samples() {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        let bytes = message.encode(&mut buf);
        assert!(bytes.len() < MAX_MESSAGE_BYTES);
        assert_eq!(Message::decode(bytes), Ok(message));
    }
}

#[test]
fn a_message_of_another_length_is_refused() {
    for message in samples() {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        let n = message.encode(&mut buf).len();
        for cut in (0..n).chain([n + 1]) {
            assert_eq!(Message::decode(&buf[..cut]), Err(WireError::Malformed), "{message:?} with {cut} of {n} bytes");
        }
    }
}

#[test]
fn another_version_is_named_whatever_follows() {
    assert_eq!(Message::decode(b"RW\x07\xff and more"), Err(WireError::Version(7)));
    assert_eq!(Message::decode(&[b'R', b'W', VERSION, 200]), Err(WireError::UnknownKind(200)));
    assert_eq!(Message::decode(b"GET / HTTP/1.1"), Err(WireError::Malformed));
}

#[test]
fn values_that_do_not_exist_are_refused() {
    let mut buf = [0; MAX_MESSAGE_BYTES];
    let n = Message::Grant { token: 0, pair_id: 0, ring_bytes: 0, side: 1 }.encode(&mut buf).len();
    buf[n - 1] = 2;
    assert_eq!(Message::decode(&buf[..n]), Err(WireError::Malformed), "a side is 0 or 1");
    let n = Message::Deny { token: 0, reason: Reason::None, retry: true }.encode(&mut buf).len();
    buf[n - 1] = 3;
    assert_eq!(Message::decode(&buf[..n]), Err(WireError::Malformed), "a bool is 0 or 1");
    buf[n - 1] = 1;
    buf[n - 2] = 0xff;
    assert_eq!(Message::decode(&buf[..n]), Err(WireError::Malformed), "a reason that nobody knows");
}

/// Random bytes behind every header, and valid messages with random bytes changed: the decoder must neither panic nor
/// accept what would be written differently.
#[test]
fn random_bytes_never_decode_to_something_else() {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let samples = samples();
    for round in 0..200_000 {
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        let n = if round % 2 == 0 {
            bytes.iter_mut().for_each(|b| *b = random() as u8);
            bytes[..4].copy_from_slice(&[b'R', b'W', VERSION, (random() % 24) as u8]);
            random() as usize % (MAX_MESSAGE_BYTES + 1)
        } else {
            let n = samples[random() as usize % samples.len()].encode(&mut bytes).len();
            bytes[random() as usize % n] = random() as u8;
            n
        };
        if let Ok(message) = Message::decode(&bytes[..n]) {
            let mut again = [0; MAX_MESSAGE_BYTES];
            assert_eq!(message.encode(&mut again), &bytes[..n], "one message, one representation");
        }
    }
}

#[test]
fn prefixes_compare_at_common_checkpoints_only() {
    // Any hash of the first bytes will do here.
    let hash = |data: &[u8]| Prefix {
        hash: core::array::from_fn(|i| data.iter().take(1 << i).fold(7u32, |h, b| h.wrapping_mul(31) ^ u32::from(*b))),
        len: data.len() as u64,
    };
    let (empty, one, many, other) = (hash(b""), hash(b"G"), hash(b"GET / HTTP"), hash(b"GEX / HTTP"));
    assert_eq!(empty.compare(&many), Some(0));
    assert_eq!(one.compare(&many), Some(1));
    assert_eq!(many.compare(&many), Some(4));
    assert_eq!(many.compare(&other), None);
    assert_eq!(one.compare(&other), Some(1), "they agree as far as both know");
}

#[test]
fn mapped_and_plain_ipv4_are_one_endpoint() {
    let mut v4 = vec![0; 16];
    v4[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    v4[2..8].copy_from_slice(&[0x18, 0xeb, 127, 0, 0, 1]);
    let mut v6 = vec![0; 28];
    v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
    v6[2..4].copy_from_slice(&[0x18, 0xeb]);
    v6[18..24].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    let expected = Endpoint::v4([127, 0, 0, 1], 6379);
    assert_eq!(Endpoint::from_sockaddr(&v4), Some(expected));
    assert_eq!(Endpoint::from_sockaddr(&v6), Some(expected));
    assert_eq!(expected.as_v4(), Some([127, 0, 0, 1]));
    assert_eq!(Endpoint::v6([1; 16], 1).as_v4(), None);
    assert_eq!(Endpoint::from_sockaddr(&v6[..20]), None, "cut address");
}

#[test]
fn a_daemon_is_named_after_its_user() {
    for uid in [0, 7, 10, 1000, 65534, u32::MAX] {
        assert_eq!(DaemonName::of(uid).bytes(), format!("ropeway/{uid}").as_bytes());
    }
}
