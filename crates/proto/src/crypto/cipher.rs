//! The cipher of the packets, and the secrets that its keys come from (docs/protocol.md, section 9.3). Nothing else in
//! this crate names it.

use super::kdf::{self, Secret32};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ropeway_wire::TAG_BYTES;
use std::hint::black_box;

/// What a secret of a direction gives: its key, and the secret after it.
pub(super) struct Keys {
    pub(super) key: PacketKey,
    pub(super) chain: Secret32,
}

impl Keys {
    pub(super) fn new(secret: &Secret32) -> Self {
        Self { key: PacketKey::new(secret), chain: next_secret(secret) }
    }
}

/// AES-256-GCM with the initialization vector that its nonces are made from.
pub(super) struct PacketKey {
    aead: LessSafeKey,
    iv: [u8; 12],
}

impl PacketKey {
    pub(super) fn new(secret: &Secret32) -> Self {
        let iv = kdf::derive(secret, b"ropeway 1 iv", &[]);
        let iv = std::array::from_fn(|i| iv[i]);
        Self { aead: aead(&kdf::derive(secret, b"ropeway 1 key", &[])), iv }
    }

    /// The counter, over the last 8 bytes of the vector.
    fn nonce(&self, counter: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(counter.to_be_bytes()).for_each(|(byte, counter)| *byte ^= counter);
        Nonce::assume_unique_for_key(nonce)
    }

    pub(super) fn seal(&self, counter: u64, aad: &[u8], payload: &mut [u8], tag: &mut [u8]) {
        let sealed = self.aead.seal_in_place_separate_tag(self.nonce(counter), Aad::from(aad), payload);
        tag.copy_from_slice(sealed.expect("GCM takes payloads of up to 64 GiB").as_ref());
    }

    pub(super) fn open(&self, counter: u64, aad: &[u8], in_out: &mut [u8], tag: [u8; TAG_BYTES]) -> bool {
        let (nonce, aad) = (self.nonce(counter), Aad::from(aad));
        self.aead.open_in_place_separate_tag(nonce, aad, Tag::from(tag), in_out, 0..).is_ok()
    }
}

impl Drop for PacketKey {
    /// `ring` does not wipe its keys. A key of zeroes is written over this one; `black_box` keeps the compiler from
    /// seeing that nobody reads it.
    fn drop(&mut self) {
        self.aead = aead(&[0; 32]);
        self.iv = [0; 12];
        black_box(&self);
    }
}

fn aead(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes"))
}

fn next_secret(secret: &Secret32) -> Secret32 {
    kdf::derive(secret, b"ropeway 1 next", &[])
}
