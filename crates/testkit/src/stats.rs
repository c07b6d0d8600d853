//! The line of figures that every process under `ropeway run --stats FILE` appends to FILE when it exits.
//!
//! Nothing of the product is linked here on purpose: these are the tests' own reading of the documented format.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What one process did with its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Stats {
    /// Process id.
    pub pid: u32,
    /// The short name of the program, as in `/proc/<pid>/comm`.
    pub comm: String,
    /// TCP connections seen.
    #[serde(default)]
    pub connections: u64,
    /// Directions of connections moved to shared memory, counted at each move.
    #[serde(default)]
    pub promoted: u64,
    /// Directions of connections moved back to TCP, counted at each move.
    #[serde(default)]
    pub demoted: u64,
    /// Payload bytes by carrier and direction.
    #[serde(default)]
    pub bytes: BytesByCarrier,
    /// How often each reason kept a connection on TCP, or returned it there.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Sleeping and waking.
    #[serde(default)]
    pub bells: Bells,
    /// Polling before sleep.
    #[serde(default)]
    pub spins: Spins,
}

/// Payload bytes by carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BytesByCarrier {
    /// Over the kernel's TCP.
    #[serde(default)]
    pub tcp: ByDirection,
    /// Over shared memory.
    #[serde(default)]
    pub shm: ByDirection,
}

/// Payload bytes by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ByDirection {
    /// Bytes that the program sent.
    #[serde(default)]
    pub sent: u64,
    /// Bytes that the program received.
    #[serde(default)]
    pub received: u64,
}

/// How often this process woke others and slept itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Bells {
    /// Bells rung at peers.
    #[serde(default)]
    pub rung: u64,
    /// Sleeps of this process.
    #[serde(default)]
    pub slept: u64,
}

/// How often polling before sleep was worth it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Spins {
    /// What was waited for came while polling.
    #[serde(default)]
    pub won: u64,
    /// It did not come, and the process slept.
    #[serde(default)]
    pub lost: u64,
}

/// Reads a file of JSON lines. A file that does not exist has no lines: no process has exited yet.
///
/// # Panics
/// When a line is not in the documented form, with the line.
pub fn parse_stats(file: &Path) -> Vec<Stats> {
    let text = match std::fs::read_to_string(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display())),
    };
    let parse =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("not a line of --stats ({e}): {line}"));
    text.lines().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_documented_line_is_read() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let line = r#"{"pid":1,"comm":"x","connections":2,"promoted":1,"demoted":0,"bytes":{"tcp":{"sent":5,"received":6},"shm":{"sent":7,"received":8}},"reasons":{"peer-not-registered":1},"bells":{"rung":1,"slept":2},"spins":{"won":3,"lost":4}}"#;
        std::fs::write(file.path(), format!("{line}\n{line}\n")).expect("it can be written");
        let stats = parse_stats(file.path());
        assert_eq!(stats.len(), 2);
        assert_eq!(stats[0].bytes.shm, ByDirection { sent: 7, received: 8 });
        assert_eq!(stats[0].reasons["peer-not-registered"], 1);
    }

    #[test]
    fn no_file_means_no_process_exited() {
        assert!(parse_stats(Path::new("/nonexistent/stats")).is_empty());
    }
}
