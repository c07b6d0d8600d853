//! Derived secrets: keyed BLAKE2s, a label for each use (docs/protocol.md, section 9.3). Nothing else in this crate hashes.

use blake2::Blake2sMac;
use blake2::digest::consts::{U16, U32};
use blake2::digest::{FixedOutput, Mac};
use zeroize::Zeroizing;

/// 32 secret bytes, wiped when dropped.
pub(super) type Secret32 = Zeroizing<[u8; 32]>;

/// The 32 bytes that `secret` gives for `label` and what follows it.
pub(super) fn derive(secret: &[u8; 32], label: &[u8], parts: &[&[u8]]) -> Secret32 {
    let mut mac = keyed::<Blake2sMac<U32>>(secret);
    mac.update(label);
    parts.iter().for_each(|part| mac.update(part));
    let mut out = Zeroizing::new([0u8; 32]);
    mac.finalize_into((&mut *out).into());
    out
}

/// A message authentication code of 16 bytes under `secret`. Not a prefix of [`derive`]'s result: the length is part of the function.
pub(super) fn mac(secret: &[u8; 32], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let mut mac = keyed::<Blake2sMac<U16>>(secret);
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn keyed<M: Mac + blake2::digest::KeyInit>(secret: &[u8; 32]) -> M {
    <M as blake2::digest::KeyInit>::new_from_slice(secret).expect("BLAKE2s takes keys of up to 32 bytes")
}
