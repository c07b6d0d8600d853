//! Tokens that prove something to whoever made them, without any state: cookies and reset tokens (docs/protocol.md,
//! sections 3 and 9.6).
//!
//! Keyed BLAKE2s, the hash that the handshake uses already: some 0.3 us each, against which a faster one would be one
//! more dependency for less than a tenth of what a SYN costs anyway.

use super::kdf::{self, Secret32};
use blake2::digest::Mac;
use zeroize::Zeroizing;

/// Length of a cookie's code and of a reset token.
pub const TOKEN_BYTES: usize = 16;

/// What an engine makes its tokens with: its own, never shared, new at each start.
pub struct Secret {
    cookies: Secret32,
    resets: Secret32,
}

impl Secret {
    /// `seed`: random bytes.
    pub fn new(seed: [u8; 32]) -> Self {
        let seed = Zeroizing::new(seed);
        Self {
            cookies: kdf::derive(&seed, b"ropeway 1 cookie", &[]),
            resets: kdf::derive(&seed, b"ropeway 1 reset", &[]),
        }
    }

    /// Makes reset tokens with a secret that outlives the engine; cookies die with it, as what remembers the spent ones does.
    pub fn keep_resets(&mut self, seed: [u8; 32]) {
        let seed = Zeroizing::new(seed);
        self.resets = kdf::derive(&seed, b"ropeway 1 reset", &[]);
    }

    /// The code of a cookie that is issued at `time` to whoever sends from `path` (link and addresses, as the link
    /// writes them) and said `fields`. The time never comes again: one that did would make old cookies good.
    pub fn cookie(&self, time: u64, path: &[u8], fields: &[u8]) -> [u8; TOKEN_BYTES] {
        self.cookie_mac(time, path, fields).finalize().into_bytes().into()
    }

    /// Whether `code` is that cookie's. Takes the same time for all wrong ones.
    pub fn verify_cookie(&self, time: u64, path: &[u8], fields: &[u8], code: &[u8; TOKEN_BYTES]) -> bool {
        self.cookie_mac(time, path, fields).verify_slice(code).is_ok()
    }

    /// The token that resets the association which had `id` in its slot's `incarnation`.
    ///
    /// A token is seen on the wire when it is used, so it must never be valid again: `incarnation` counts the slot's
    /// owners and does not wrap. Of an unknown id the engine knows the generation, four bits; the slot knows the last
    /// owner with these.
    pub fn reset_token(&self, id: u32, incarnation: u64) -> [u8; TOKEN_BYTES] {
        let parts: [&[u8]; 2] = [&id.to_be_bytes(), &incarnation.to_be_bytes()];
        kdf::mac(&self.resets, &parts).finalize().into_bytes().into()
    }

    fn cookie_mac(&self, time: u64, path: &[u8], fields: &[u8]) -> impl Mac<OutputSize = blake2::digest::consts::U16> {
        // The length keeps bytes from wandering between path and fields.
        kdf::mac(&self.cookies, &[&time.to_be_bytes(), &(path.len() as u64).to_be_bytes(), path, fields])
    }
}

/// What proves, to who has the reset token `token`, that `said` is the word of who was told it (docs/protocol.md 2.10).
pub fn join_proof(token: &[u8; TOKEN_BYTES], said: &[u8]) -> [u8; TOKEN_BYTES] {
    let mut key = Zeroizing::new([0; 32]);
    key[..TOKEN_BYTES].copy_from_slice(token);
    kdf::mac(&key, &[b"ropeway 1 join", said]).finalize().into_bytes().into()
}

/// What an engine answers to a STATE for an `id` that it does not know, with `number` and `ack` in its header: the word of who has seen that STATE, and of nobody in particular.
pub fn stranger_token(id: u32, number: u32, ack: u32) -> [u8; TOKEN_BYTES] {
    let said = [id, number, ack].map(u32::to_be_bytes);
    kdf::mac(&[0; 32], &[b"ropeway 1 stranger", said.as_flattened()]).finalize().into_bytes().into()
}

/// Whether two tokens are the same; takes the same time wherever they differ.
pub fn same_token(a: &[u8; TOKEN_BYTES], b: &[u8; TOKEN_BYTES]) -> bool {
    // `black_box`: so that the loop is not turned into one that stops at the first difference.
    std::hint::black_box(a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(seed: u8) -> Secret {
        Secret::new([seed; 32])
    }

    #[test]
    fn a_cookie_is_good_for_exactly_what_it_was_made_for() {
        let cookie = secret(1).cookie(7, b"path", b"fields");
        assert!(secret(1).verify_cookie(7, b"path", b"fields", &cookie));
        for (seed, time, path, fields) in
            [(2, 7, "path", "fields"), (1, 8, "path", "fields"), (1, 7, "pat", "hfields"), (1, 7, "path", "field")]
        {
            let verified = secret(seed).verify_cookie(time, path.as_bytes(), fields.as_bytes(), &cookie);
            assert!(!verified, "{seed} {time} {path} {fields}");
        }
        for i in 0..TOKEN_BYTES {
            let mut changed = cookie;
            changed[i] ^= 1;
            assert!(!secret(1).verify_cookie(7, b"path", b"fields", &changed));
        }
    }

    #[test]
    fn a_reset_token_is_of_one_owner_of_an_id() {
        let token = secret(1).reset_token(5, 9);
        assert!(same_token(&token, &secret(1).reset_token(5, 9)));
        for other in [secret(1).reset_token(5, 10), secret(1).reset_token(6, 9), secret(2).reset_token(5, 9)] {
            assert!(!same_token(&token, &other));
        }
        let mut changed = token;
        changed[TOKEN_BYTES - 1] ^= 0x80;
        assert!(!same_token(&token, &changed));
    }
}
