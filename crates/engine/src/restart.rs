//! A secret that outlives an engine: its successor can then end the associations that the peers still believe in, instead of leaving them to silence
//! (docs/protocol.md 9.6).
//!
//! For engines that come back at the same address, such as daemons. What the secret is used for is the protocol's; here it is kept in a file, and each engine
//! gets another number with it.

use crate::key_file::{self, KeyError};
use ropeway_proto::MOST_STARTS;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// How the file begins.
const MAGIC: &[u8; 8] = b"ropeway1";
const SECRET_BYTES: usize = 32;
const START_AT: usize = MAGIC.len() + SECRET_BYTES;
const FILE_BYTES: usize = START_AT + size_of::<u32>();
/// Its owner reads and writes.
const MODE: u32 = 0o600;

/// The secret of a file, and which of its engines this is. The file is locked while this lives, so that no two are at one time. Engines may share it if their
/// steering differs.
pub struct Secret {
    pub(crate) secret: Zeroizing<[u8; SECRET_BYTES]>,
    pub(crate) start: u32,
    _lock: File,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("start", &self.start).finish_non_exhaustive()
    }
}

/// Why a secret cannot be had from a file.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot use {path} to remember an engine's secret: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} belongs to an engine that still runs; each needs a file of its own")]
    InUse { path: PathBuf },
    #[error("{path} is no file with an engine's secret; remove it or choose another")]
    Content { path: PathBuf },
    #[error(transparent)]
    Owner(#[from] KeyError),
}

impl Secret {
    /// The secret in a file, which is made if it does not exist.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn open(path: &Path) -> Result<Secret, SecretError> {
        let failed = |source| SecretError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(path)
            .map_err(failed)?;
        key_file::check_owner(path, &file)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SecretError::InUse { path: path.to_owned() },
            TryLockError::Error(source) => failed(source),
        })?;
        let mut bytes = Zeroizing::new([0; FILE_BYTES + 1]);
        let length = read_all(&file, &mut *bytes).map_err(failed)?;
        let known = parse(&bytes[..length]).map_err(|()| SecretError::Content { path: path.to_owned() })?;
        // A secret that has had all its numbers is of no more use.
        let (secret, start) = match known {
            Some((secret, last)) if last + 1 < MOST_STARTS => (secret, last + 1),
            _ => (Zeroizing::new(crate::engine::random().map_err(failed)?), 0),
        };
        let mut written = Zeroizing::new([0; FILE_BYTES]);
        written[..MAGIC.len()].copy_from_slice(MAGIC);
        written[MAGIC.len()..START_AT].copy_from_slice(&*secret);
        written[START_AT..].copy_from_slice(&start.to_be_bytes());
        // On the disk before it is used: a number must never come twice.
        file.write_all_at(&*written, 0).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(Secret { secret, start, _lock: file })
    }
}

/// Reads from the beginning until the buffer is full or the file ends.
fn read_all(file: &File, out: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < out.len() {
        match file.read_at(&mut out[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

type Known = (Zeroizing<[u8; SECRET_BYTES]>, u32);

/// What stands in a file; nothing in an empty one.
fn parse(bytes: &[u8]) -> Result<Option<Known>, ()> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let rest = bytes.strip_prefix(MAGIC).filter(|_| bytes.len() == FILE_BYTES).ok_or(())?;
    let (secret, start) = rest.split_first_chunk::<SECRET_BYTES>().ok_or(())?;
    let start = start.try_into().map(u32::from_be_bytes).map_err(|_| ())?;
    Ok(Some((Zeroizing::new(*secret), start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ropeway-secret-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn the_secret_stays_and_the_number_goes_up() {
        let path = path("stays");
        let mut before: Option<Secret> = None;
        for start in 0..5 {
            let first = before.take().map(|secret| *secret.secret);
            let secret = Secret::open(&path).unwrap();
            assert_eq!(secret.start, start);
            assert!(first.is_none_or(|first| first == *secret.secret));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            before = Some(secret);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn two_engines_at_one_time_do_not_share_a_file() {
        let path = path("shared");
        let first = Secret::open(&path).unwrap();
        assert!(matches!(Secret::open(&path), Err(SecretError::InUse { .. })));
        drop(first);
        assert_eq!(Secret::open(&path).unwrap().start, 1);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_file_is_left_as_it_is_and_one_that_others_can_read_is_not_used() {
        let path = path("other");
        for content in [&b"something else"[..], b"ropeway1", &[0; FILE_BYTES], &[7; FILE_BYTES + 1]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(Secret::open(&path), Err(SecretError::Content { .. })));
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Secret::open(&path).unwrap_err();
        assert!(matches!(error, SecretError::Owner(_)), "{error}");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn after_the_last_number_comes_another_secret() {
        let path = path("last");
        let old = *Secret::open(&path).unwrap().secret;
        let mut bytes = fs::read(&path).unwrap();
        bytes[START_AT..].copy_from_slice(&(MOST_STARTS - 1).to_be_bytes());
        fs::write(&path, bytes).unwrap();
        let new = Secret::open(&path).unwrap();
        assert_eq!(new.start, 0);
        assert_ne!(*new.secret, old);
        fs::remove_file(path).unwrap();
    }
}
