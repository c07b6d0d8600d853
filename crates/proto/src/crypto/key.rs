//! The cluster's keys, and the text that holds them.
//!
//! One key per line, 64 hexadecimal digits; `#` begins a comment, empty lines are nothing. The first key is used to
//! open associations, all are accepted, so that a key can be replaced without a stop: append the new one everywhere,
//! then put it first everywhere, then remove the old one everywhere. Reading the file and its permissions is the
//! caller's.

use super::kdf::{self, Secret32};
use std::fmt;
use zeroize::Zeroizing;

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// Keys that may be accepted at once: the one in use and its successor, and room for two changes that overlap. Each
/// costs a server a trial for every CONFIRM that no earlier key opens.
pub const MOST_KEYS: usize = 4;

/// Different bytes that a key must have. Of 32 random bytes fewer than this differ less than once in 10^14 files; what
/// people type instead (one byte over and over, 0123456789abcdef four times, two words of ASCII) has fewer.
const LEAST_DIFFERENT_BYTES: usize = 16;

/// What every node of a cluster knows and nobody else does.
pub struct ClusterKey(Secret32);

impl ClusterKey {
    /// The key of these bytes, whatever they are; [`ClusterKeys::parse`] refuses those that cannot be random.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The line of a key file that says this key, without its end.
    pub fn line(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut line = Zeroizing::new(String::with_capacity(2 * KEY_BYTES));
        for byte in self.0.iter() {
            line.push(char::from(DIGITS[usize::from(byte >> 4)]));
            line.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        line
    }

    /// The pre-shared key of the Noise handshake: derived, so that the cluster key itself can have other uses beside.
    pub(super) fn psk(&self) -> Secret32 {
        kdf::derive(&self.0, b"ropeway 1 psk", &[])
    }

    fn parse(digits: &str) -> Result<Self, Fault> {
        let digits = digits.as_bytes();
        if digits.len() != 2 * KEY_BYTES {
            return Err(Fault::Length);
        }
        let mut bytes = Zeroizing::new([0u8; KEY_BYTES]);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        let different = (0..=u8::MAX).filter(|value| bytes.contains(value)).count();
        if different < LEAST_DIFFERENT_BYTES { Err(Fault::Weak) } else { Ok(Self(bytes)) }
    }
}

fn value(digit: u8) -> Result<u8, Fault> {
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(Fault::Digit)
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

/// The keys that a node accepts, at least one; the first is the one that it uses itself.
#[derive(Debug)]
pub struct ClusterKeys(Vec<ClusterKey>);

impl ClusterKeys {
    /// A single key.
    pub fn one(key: ClusterKey) -> Self {
        Self(vec![key])
    }

    /// The keys of a key file.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: Vec<(usize, ClusterKey)> = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let key = ClusterKey::parse(content).map_err(|fault| KeyFileError { line, fault })?;
            if let Some((first, _)) = keys.iter().find(|(_, other)| *other.0 == *key.0) {
                return Err(KeyFileError { line, fault: Fault::Repeated { first: *first } });
            }
            if keys.len() == MOST_KEYS {
                return Err(KeyFileError { line, fault: Fault::TooMany });
            }
            keys.push((line, key));
        }
        if keys.is_empty() {
            return Err(KeyFileError { line: 0, fault: Fault::Empty });
        }
        Ok(Self(keys.into_iter().map(|(_, key)| key).collect()))
    }

    /// The key for associations that this node opens.
    pub fn first(&self) -> &ClusterKey {
        &self.0[0]
    }

    /// All of them, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        self.0.iter()
    }
}

/// What is wrong with a key file. Says the line, never its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key file{}: {fault}", if *line == 0 { String::new() } else { format!(", line {line}") })]
pub struct KeyFileError {
    /// Counted from 1; 0: the file as a whole.
    pub line: usize,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("no key in it; `ropeway key new` makes one")]
    Empty,
    #[error("a key is {} hexadecimal digits; this line has another length", 2 * KEY_BYTES)]
    Length,
    #[error("a key has only the digits 0 to 9 and a to f")]
    Digit,
    #[error("this key is not random; `ropeway key new` makes one that is")]
    Weak,
    #[error("the same key is in line {first} already")]
    Repeated { first: usize },
    #[error("more than {MOST_KEYS} keys; remove those that no node uses any more")]
    TooMany,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "6f1d2c3b4a59687786950a1b2c3d4e5f60718293a4b5c6d7e8f9000112233445";
    const B: &str = "C3D2E1F00F1E2D3C4B5A69788796A5B4C3D2E1F00F1E2D3C4B5A697887960102";

    fn fault(text: &str) -> (usize, Fault) {
        let error = ClusterKeys::parse(text).expect_err("a faulty file");
        (error.line, error.fault)
    }

    #[test]
    fn a_key_file_may_have_comments_empty_lines_and_either_case() {
        let keys = ClusterKeys::parse(&format!("# cluster\n\n  {A}  # since May\r\n{B}\n")).unwrap();
        let lines: Vec<String> = keys.iter().map(|key| key.line().to_string()).collect();
        assert_eq!(lines, [A.to_owned(), B.to_lowercase()]);
        assert_eq!(*keys.first().line(), A);
    }

    #[test]
    fn a_faulty_file_is_refused_with_its_line() {
        assert_eq!(fault(""), (0, Fault::Empty));
        assert_eq!(fault("# only\n"), (0, Fault::Empty));
        assert_eq!(fault(&format!("{A}\n{}", &A[1..])), (2, Fault::Length));
        assert_eq!(fault(&format!("{}x", &A[1..])), (1, Fault::Digit));
        assert_eq!(fault(&format!("{}\u{e9}", &A[2..])), (1, Fault::Digit));
        assert_eq!(fault(&"0".repeat(64)), (1, Fault::Weak));
        assert_eq!(fault(&"0123456789abcdef".repeat(4)), (1, Fault::Weak));
        assert_eq!(fault(&format!("{A}\n\n{}", A.to_uppercase())), (3, Fault::Repeated { first: 1 }));
        let many: String = (10..15).map(|n| format!("{n}{}\n", &A[2..])).collect();
        assert_eq!(fault(&many), (5, Fault::TooMany));
    }

    #[test]
    fn neither_errors_nor_debug_output_show_a_key() {
        let keys = ClusterKeys::parse(A).unwrap();
        let error = ClusterKeys::parse(&A[..62]).unwrap_err();
        for text in [format!("{keys:?}"), format!("{error:?} {error}")] {
            assert!(!text.to_lowercase().contains(&A[..4]) && !text.contains("111"), "{text}");
        }
    }
}
