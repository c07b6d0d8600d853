//! Where an engine's keys come from: the key file, and who decides that there is none (docs/protocol.md 11, docs/configuration.md).
//!
//! What a key is, and what a line of the file may be, is the protocol's (`ropeway_proto::crypto::key`); here the file is opened, and refused when others than
//! its owner could have read it or written it.

use crate::trusted_file::{self, Distrust};
use ropeway_proto::crypto::{ClusterKeys, KeyFileError};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Names the key file.
pub const KEY_FILE_VAR: &str = "ROPEWAY_KEY_FILE";
/// `1`: no key, because all hosts and the network between them are trusted.
pub const TRUSTED_VAR: &str = "ROPEWAY_TRUSTED";

/// Room for all keys that are accepted at once and some pages of comments. A longer file is another file.
const MOST_FILE_BYTES: usize = 16 << 10;
/// What a mode must not have: anything for the group and for others.
const OTHERS: u32 = 0o077;

/// What somebody decided about keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The keys are in this file.
    File(PathBuf),
    /// There is no key: hosts and network are trusted.
    Trusted,
}

/// Why there are no keys to work with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the key file {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a file")]
    NotAFile { path: PathBuf },
    #[error(
        "{path} has mode {mode:04o}: others than its owner can reach it. `chmod 600` it, and make a new one if one of them may have read it"
    )]
    Permissions { path: PathBuf, mode: u32 },
    #[error("{path} belongs to user {owner}; it must belong to the user of this program ({user}) or to root")]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("{path} has more than {MOST_FILE_BYTES} bytes, so it is no key file")]
    TooLong { path: PathBuf },
    #[error("{path}: {source}")]
    Content { path: PathBuf, source: KeyFileError },
    #[error("{path}: a key file is text, and this is not")]
    NotText { path: PathBuf },
    #[error("{KEY_FILE_VAR} and {TRUSTED_VAR} are both set, and exclude each other: unset one")]
    Both,
    #[error("{TRUSTED_VAR} is `{value}`; it is 1 or not set")]
    Trusted { value: String },
    #[error(
        "there is no cluster key, and no word that none is needed. Make one (`ropeway key new FILE`), copy it to every node and set \
         {KEY_FILE_VAR}=FILE there; or, where all hosts and the network between them are trusted, set {TRUSTED_VAR}=1"
    )]
    Undecided,
}

impl Choice {
    /// What the environment says; `None`: nothing.
    ///
    /// # Errors
    /// It contradicts itself.
    pub fn from_environment() -> Result<Option<Choice>, KeyError> {
        Choice::from_variables(std::env::var_os(KEY_FILE_VAR), std::env::var_os(TRUSTED_VAR))
    }

    fn from_variables(file: Option<OsString>, trusted: Option<OsString>) -> Result<Option<Choice>, KeyError> {
        let is_set = |value: &OsString| !value.is_empty();
        let trusted = match trusted.filter(is_set) {
            None => false,
            Some(value) if value == "1" => true,
            Some(value) => return Err(KeyError::Trusted { value: value.to_string_lossy().into_owned() }),
        };
        match (file.filter(is_set), trusted) {
            (Some(_), true) => Err(KeyError::Both),
            (Some(path), false) => Ok(Some(Choice::File(path.into()))),
            (None, true) => Ok(Some(Choice::Trusted)),
            (None, false) => Ok(None),
        }
    }

    /// The keys, or that there are to be none.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(&self) -> Result<Option<Arc<ClusterKeys>>, KeyError> {
        match self {
            Choice::File(path) => Ok(Some(Arc::new(read(path)?))),
            Choice::Trusted => Ok(None),
        }
    }
}

/// The keys for [`crate::Options`], for whoever talks to other hosts: what the environment says, else what was `configured`. That neither decides is an
/// error, so that nobody is without a key by mistake.
///
/// # Errors
/// See [`KeyError`].
pub fn decide(configured: Option<Choice>) -> Result<Option<Arc<ClusterKeys>>, KeyError> {
    Choice::from_environment()?.or(configured).ok_or(KeyError::Undecided)?.load()
}

/// The keys in a file that nobody but its owner could have read.
///
/// # Errors
/// See [`KeyError`].
pub fn read(path: &Path) -> Result<ClusterKeys, KeyError> {
    let file = trusted_file::open(path).map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
    check_owner(path, &file)?;
    let text = text(path, file)?;
    ClusterKeys::parse(&text).map_err(|source| KeyError::Content { path: path.to_owned(), source })
}

/// What stands in an open file of this name, which may be a key file.
///
/// # Errors
/// It cannot be read, is too long or no text.
pub fn text(path: &Path, file: File) -> Result<Zeroizing<String>, KeyError> {
    // One allocation of its final size, so that no copy is left behind where the text grew.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_FILE_BYTES + 1));
    let read = file.take(MOST_FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
    if bytes.len() > MOST_FILE_BYTES {
        return Err(KeyError::TooLong { path: path.to_owned() });
    }
    match String::from_utf8(std::mem::take(&mut *bytes)) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(_) => Err(KeyError::NotText { path: path.to_owned() }),
    }
}

/// Whether others than its owner can have read the file or written it.
pub(crate) fn check_owner(path: &Path, file: &File) -> Result<(), KeyError> {
    trusted_file::check(file, OTHERS).map_err(|distrust| {
        let path = path.to_owned();
        match distrust {
            Distrust::Metadata(source) => KeyError::Read { path, source },
            Distrust::NotAFile => KeyError::NotAFile { path },
            Distrust::Permissions { mode } => KeyError::Permissions { path, mode },
            Distrust::Owner { owner, user } => KeyError::Owner { path, owner, user },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_file_or_says_trusted_and_not_both() {
        let said = |file: Option<&str>, trusted: Option<&str>| {
            Choice::from_variables(file.map(OsString::from), trusted.map(OsString::from))
        };
        assert_eq!(said(None, None).unwrap(), None);
        assert_eq!(said(Some(""), Some("")).unwrap(), None, "empty is not set");
        assert_eq!(said(Some("/k"), None).unwrap(), Some(Choice::File("/k".into())));
        assert_eq!(said(None, Some("1")).unwrap(), Some(Choice::Trusted));
        assert!(matches!(said(Some("/k"), Some("1")), Err(KeyError::Both)));
        assert!(matches!(said(None, Some("yes")), Err(KeyError::Trusted { .. })), "not by mistake");
    }
}
