//! Derived secrets: keyed BLAKE2s, a label for each use (docs/protocol.md, section 9.3). Nothing else in this crate
//! hashes.

use blake2::digest::consts::{U16, U32};
use blake2::digest::{Digest, FixedOutput, KeyInit, Mac};
use blake2::{Blake2s256, Blake2sMac};
use zeroize::Zeroizing;

/// 32 secret bytes, wiped when dropped.
pub(super) type Secret32 = Zeroizing<[u8; 32]>;

/// The 32 bytes that `secret` gives for `label` and what follows it.
pub(super) fn derive(secret: &[u8; 32], label: &[u8], parts: &[&[u8]]) -> Secret32 {
    let mut mac = keyed::<Blake2sMac<U32>>(secret);
    Mac::update(&mut mac, label);
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    let mut out = Zeroizing::new([0u8; 32]);
    mac.finalize_into((&mut *out).into());
    out
}

/// A message authentication code of 16 bytes under `secret`. Not a prefix of [`derive()`]'s result: the length is part
/// of the function.
pub(super) fn mac(secret: &[u8; 32], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let mut mac = keyed::<Blake2sMac<U16>>(secret);
    parts.iter().for_each(|part| Mac::update(&mut mac, part));
    mac
}

/// BLAKE2s without a key, of what is no secret.
pub(super) fn hash(data: &[u8]) -> [u8; 32] {
    Blake2s256::digest(data).into()
}

fn keyed<M: KeyInit>(secret: &[u8; 32]) -> M {
    M::new_from_slice(secret).expect("BLAKE2s takes keys of up to 32 bytes")
}
