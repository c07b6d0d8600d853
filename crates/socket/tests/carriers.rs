//! Streams between two threads over one connection whose carriers change all the time: every byte must arrive once, in
//! order. Replay a failure with `ROPEWAY_SEED=<seed> cargo test -p ropeway-socket --test carriers`.

mod support;

use ropeway_socket::reason::Reason;
use ropeway_socket::settings;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{End, connected, within};

/// Runs in which both directions of an end were on a ring for a while.
static USED: AtomicU32 = AtomicU32::new(0);

fn has_used_rings(end: &End) -> bool {
    [&end.h.sock().tx.ring_bytes, &end.h.sock().rx.ring_bytes].iter().all(|bytes| bytes.load(Ordering::Relaxed) > 0)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Byte `at` of the stream that `salt` names.
fn byte(salt: u64, at: u64) -> u8 {
    ((at ^ salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn write_stream(end: &End, salt: u64, total: u64, mut rng: u64) {
    let mut at = 0;
    while at < total {
        let most = if next(&mut rng).is_multiple_of(4) { 40_000 } else { 200 };
        let n = (1 + next(&mut rng) % most).min(total - at);
        let bytes: Vec<u8> = (at..at + n).map(|i| byte(salt, i)).collect();
        let sent = end.send(&bytes);
        assert!(sent > 0, "send answered {sent} at {at}");
        at += sent as u64;
    }
}

fn read_stream(end: &End, salt: u64, total: u64, mut rng: u64) {
    let mut at = 0;
    let mut buffer = vec![0u8; 70_000];
    while at < total {
        let n = 1 + next(&mut rng) as usize % if next(&mut rng).is_multiple_of(3) { 60_000 } else { 300 };
        let flags = match next(&mut rng) % 8 {
            0 => libc::MSG_PEEK,
            1 if n as u64 <= total - at => libc::MSG_WAITALL,
            _ => 0,
        };
        let got = end.recv_flags(&mut buffer[..n], flags);
        assert!(got > 0, "recv answered {got} at {at} of {total} (flags {flags:#x})");
        for (i, b) in buffer[..got as usize].iter().enumerate() {
            assert_eq!(*b, byte(salt, at + i as u64), "byte {} (flags {flags:#x})", at + i as u64);
        }
        if flags & libc::MSG_WAITALL != 0 {
            assert_eq!(got as usize, n, "WAITALL at {at}");
        }
        if flags & libc::MSG_PEEK == 0 {
            at += got as u64;
        }
    }
}

fn run(seed: u64, total: u64) {
    let (a, b) = connected();
    std::thread::scope(|scope| {
        let (a, b) = (&a, &b);
        scope.spawn(move || write_stream(a, 1, total, seed | 1));
        scope.spawn(move || read_stream(b, 1, total, seed * 3 + 1));
        scope.spawn(move || write_stream(b, 2, total, seed * 5 + 1));
        scope.spawn(move || read_stream(a, 2, total, seed * 7 + 1));
    });
    for (name, end) in [("a", &a), ("b", &b)] {
        let s = end.h.sock();
        let [ring, tcp] = [&s.tx.ring_bytes, &s.tx.tcp_bytes].map(|n| n.load(Ordering::Relaxed));
        let [up, down] = [&s.promotions, &s.demotions].map(|n| n.load(Ordering::Relaxed));
        let reason = Reason::name_of(s.reason.load(Ordering::Relaxed) as u16);
        eprintln!(
            "seed {seed}, {name}: {ring} bytes on rings, {tcp} on TCP, {up} promotions, {down} demotions, {reason}"
        );
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        let [(sent, known), (received, counted)] =
            [&from.h.sock().tx.prefix, &to.h.sock().rx.prefix].map(|prefix| prefix.snapshot());
        let points = known.min(counted).checked_ilog2().map_or(0, |n| n as usize + 1);
        assert_eq!(sent[..points], received[..points], "seed {seed}: hashes of what came first over TCP");
    }
    USED.fetch_add((has_used_rings(&a) || has_used_rings(&b)) as u32, Ordering::Relaxed);
    assert_eq!(a.send(b"bye"), 3);
    a.close();
    let mut rest = [0u8; 16];
    assert_eq!(b.recv(&mut rest), 3, "what was sent before close arrives");
    b.close();
}

#[test]
fn streams_survive_every_change_of_carrier() {
    let chaos = std::env::var("ROPEWAY_CHAOS").unwrap_or_else(|_| "7:150".into());
    let text: &'static std::ffi::CStr = Box::leak(std::ffi::CString::new(chaos).expect("no NUL").into_boxed_c_str());
    settings::init(|name| if name == b"ROPEWAY_CHAOS" { text.as_ptr().cast() } else { std::ptr::null() });
    let seeds: Vec<u64> = match std::env::var("ROPEWAY_SEED") {
        Ok(seed) => vec![seed.parse().expect("ROPEWAY_SEED is a number")],
        Err(_) => (1..=20).collect(),
    };
    for seed in seeds {
        eprintln!("replay: ROPEWAY_SEED={seed} cargo test -p ropeway-socket --test carriers");
        within(Duration::from_secs(60), "streams", move || run(seed, 6_000_000));
    }
    assert!(USED.load(Ordering::Relaxed) > 0, "no run used the rings in both directions");
}
