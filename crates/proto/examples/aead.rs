//! What keys cost on one core: sealing and opening packets, next to the bare cipher doing the same work, and the
//! handshake.
//!
//! `cargo run --release -p ropeway-proto --example aead`. The best of many short rounds, so that a busy machine tells
//! nearly the same as an idle one. One second altogether.

#![allow(clippy::disallowed_methods, reason = "a measurement looks at the clock; the protocol does not")]

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ropeway_proto::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use ropeway_proto::crypto::session::{COUNTER_BYTES, OVERHEAD_BYTES, TAG_BYTES};
use ropeway_proto::crypto::{ClusterKey, ClusterKeys, Initiator, Responder, Secret, Session};
use std::hint::black_box;
use std::time::Instant;

/// The longest header: that of a channel's packet.
const HEADER_BYTES: usize = 28;

/// Packets that are sealed before they are opened in the same order, as a receive batch would have them.
const BATCH: usize = 64;

const ROUNDS: usize = 300;

fn main() {
    println!("{:8} {:14} {:>9} {:>9} {:>9} {:>11}", "payload", "", "ns", "Gbit/s", "cipher ns", "of cipher's");
    for payload_bytes in [1472, 64] {
        packets(payload_bytes);
    }
    handshake();
}

/// Nanoseconds for one of `count` things that `run` does, at best.
fn best_ns(count: usize, mut run: impl FnMut()) -> f64 {
    (0..ROUNDS).map(|_| timed(count, &mut run)).fold(f64::MAX, f64::min)
}

fn report(payload_bytes: usize, name: &str, ns: f64, cipher_ns: f64) {
    let rate = payload_bytes as f64 * 8.0 / ns;
    println!("{payload_bytes:8} {name:14} {ns:9.1} {rate:9.2} {cipher_ns:9.1} {:10.1}%", 100.0 * cipher_ns / ns);
}

fn packets(payload_bytes: usize) {
    let (mut client, mut server) = sessions();
    let packet_bytes = HEADER_BYTES + payload_bytes + OVERHEAD_BYTES;
    let mut sealed = vec![vec![0x17; packet_bytes]; BATCH];
    let (mut seal, mut open) = (f64::MAX, f64::MAX);
    let mut out = vec![0; payload_bytes];
    // Each batch has to be opened before the next is made, so they are timed in turns.
    for _ in 0..ROUNDS {
        seal = seal.min(timed(BATCH, || {
            sealed.iter_mut().for_each(|packet| client.seal_in_place(0, packet, HEADER_BYTES).expect("sealed"));
        }));
        open = open.min(timed(BATCH, || {
            for packet in &sealed {
                let (aad, rest) = packet.split_at(HEADER_BYTES + COUNTER_BYTES);
                server.open(0, aad, rest, &mut out).expect("opened");
            }
        }));
    }
    let (cipher_seal, cipher_open) = cipher(payload_bytes);
    report(payload_bytes, "seal", seal, cipher_seal);
    report(payload_bytes, "open", open, cipher_open);
}

/// Nanoseconds for each of `count` things that `run` does.
fn timed(count: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / count as f64
}

/// The bare cipher on as many buffers: sealing, and opening.
fn cipher(payload_bytes: usize) -> (f64, f64) {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[3; 32]).expect("a key"));
    let nonce = || Nonce::assume_unique_for_key([7; NONCE_LEN]);
    let aad = [0x17; HEADER_BYTES + COUNTER_BYTES];
    let mut buffers = vec![vec![1; payload_bytes + TAG_BYTES]; BATCH];
    let (mut seal, mut open) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        seal = seal.min(timed(BATCH, || {
            for buffer in &mut buffers {
                let (payload, room) = buffer.split_at_mut(payload_bytes);
                let tag = key.seal_in_place_separate_tag(nonce(), Aad::from(&aad), payload).expect("sealed");
                room.copy_from_slice(tag.as_ref());
            }
        }));
        open = open.min(timed(BATCH, || {
            buffers.iter_mut().for_each(|buffer| {
                black_box(key.open_in_place(nonce(), Aad::from(&aad), buffer).expect("opened"));
            });
        }));
    }
    (seal, open)
}

fn key() -> ClusterKey {
    ClusterKey::new([9; 32])
}

fn sessions() -> (Session, Session) {
    let (mut confirm, mut opened) = ([0; CONFIRM_OVERHEAD_BYTES], [0; OPENED_OVERHEAD_BYTES]);
    let mut initiator = Initiator::new(&key(), b"", [1; 32]);
    initiator.write(&[], &mut confirm).expect("the first message");
    let keys = ClusterKeys::one(key());
    let (_, responder) = Responder::read(&keys, b"", &confirm, [2; 32], &mut []).expect("the first message opens");
    let (_, server) = responder.write(0, b"", &[], &mut opened).expect("the second message");
    let (_, client) = initiator.read(0, b"", &opened, &mut []).expect("the second message opens");
    (client, server)
}

fn handshake() {
    let mut confirm = [0; CONFIRM_OVERHEAD_BYTES];
    Initiator::new(&key(), b"", [1; 32]).write(&[], &mut confirm).expect("the first message");
    let (own, other) = (ClusterKeys::one(key()), ClusterKeys::one(ClusterKey::new([8; 32])));
    let secret = Secret::new([5; 32]);
    let both = best_ns(1, || drop(black_box(sessions())));
    let taken = best_ns(1, || drop(Responder::read(&own, b"", &confirm, [2; 32], &mut []).expect("it opens")));
    let refused = best_ns(1, || assert!(Responder::read(&other, b"", &confirm, [2; 32], &mut []).is_err()));
    let cookie = best_ns(BATCH, || {
        (0..BATCH as u32).for_each(|time| {
            black_box(secret.cookie(time.into(), &[1; 24], &[2; 32]));
        });
    });
    println!("handshake, both ends {:.1} us; of the server, CONFIRM with its key {:.1}", both / 1e3, taken / 1e3);
    println!("and with another {:.1} us; a cookie {cookie:.0} ns", refused / 1e3);
    println!("a session {} bytes", size_of::<Session>());
}
