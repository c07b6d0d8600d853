//! What carried the bytes of a Ropeway row, read from the statistics that `ropeway run --stats` leaves.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Line {
    promoted: u64,
    bytes: Carriers,
    reasons: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Carriers {
    tcp: Directions,
    shm: Directions,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Directions {
    sent: u64,
    received: u64,
}

/// The sum over the ranks of one transport.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Carried {
    /// Processes that wrote statistics.
    pub processes: u64,
    pub promoted: u64,
    pub tcp_bytes: u64,
    pub shm_bytes: u64,
    pub reasons: BTreeMap<String, u64>,
}

/// A row counts as carried by shared memory from this part on: what is sent before the hand-over always goes over TCP.
const NEARLY_ALL: f64 = 0.9;

impl Carried {
    pub fn from_stats(path: &Path) -> Result<Carried, String> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
            Err(e) => return Err(format!("cannot read the statistics: {e}")),
        };
        let mut sum = Carried::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let line: Line =
                serde_json::from_str(line).map_err(|e| format!("a line of the statistics is malformed: {e}"))?;
            sum.processes += 1;
            sum.promoted += line.promoted;
            sum.tcp_bytes += line.bytes.tcp.sent + line.bytes.tcp.received;
            sum.shm_bytes += line.bytes.shm.sent + line.bytes.shm.received;
            for (reason, count) in line.reasons {
                *sum.reasons.entry(reason).or_default() += count;
            }
        }
        Ok(sum)
    }

    fn shm_part(&self) -> f64 {
        self.shm_bytes as f64 / (self.shm_bytes + self.tcp_bytes).max(1) as f64
    }
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = || {
            let words: Vec<&str> = self.reasons.keys().map(String::as_str).collect();
            if words.is_empty() { "no reason given".to_owned() } else { words.join(", ") }
        };
        if self.processes == 0 {
            write!(f, "stayed on TCP: the preload wrote no statistics, so it was not loaded")
        } else if self.shm_bytes == 0 {
            write!(f, "stayed on TCP: {}", reasons())
        } else if self.shm_part() >= NEARLY_ALL {
            write!(f, "shm")
        } else {
            write!(f, "{:.0} % over shm, the rest on TCP: {}", self.shm_part() * 100.0, reasons())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(lines: &str) -> Carried {
        let file = std::env::temp_dir().join(format!("ropeway-carried-{}-{:p}", std::process::id(), lines));
        fs::write(&file, lines).unwrap();
        let sum = Carried::from_stats(&file);
        fs::remove_file(&file).unwrap();
        sum.unwrap()
    }

    #[test]
    fn the_row_says_what_carried_it() {
        let shm = r#"{"pid":1,"promoted":1,"bytes":{"tcp":{"sent":10,"received":0},"shm":{"sent":990,"received":0}},"reasons":{}}"#;
        let tcp =
            r#"{"pid":2,"promoted":0,"bytes":{"tcp":{"sent":990,"received":10}},"reasons":{"peer-not-registered":1}}"#;
        assert_eq!(carried(shm).to_string(), "shm");
        assert_eq!(carried(tcp).to_string(), "stayed on TCP: peer-not-registered");
        assert!(carried(&format!("{shm}\n{tcp}\n")).to_string().starts_with("50 % over shm"));
        assert!(carried("").to_string().contains("not loaded"));
    }
}
