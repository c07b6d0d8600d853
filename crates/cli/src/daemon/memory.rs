//! How much memory a new segment may still take without pushing the program over its limit: the memory cgroups of the
//! process (version 2, or 1 where that is what the machine has) and the machine itself.
//!
//! A segment's pages are charged to whoever touches them first, so both ends are asked about. Files of a cgroup that are
//! not visible (another container) do not bound anything.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cgroup::{self, Version};

/// How long an answer holds. Between two readings what the daemon grants is subtracted.
const FRESH: Duration = Duration::from_millis(100);
/// Kept free of segments: this part of a limit ..
const RESERVE_PART: u64 = 32;
/// .. within these bounds.
const RESERVE_MIN_BYTES: u64 = 4 << 20;
const RESERVE_MAX_BYTES: u64 = 256 << 20;

#[derive(Debug)]
struct Reading {
    at: Instant,
    headroom_bytes: u64,
}

/// Remembers recent readings by cgroup.
#[derive(Debug, Default)]
pub struct Headroom {
    readings: HashMap<String, Reading>,
}

impl Headroom {
    /// True if `bytes` more fit where `pid` runs; they are then counted as taken.
    pub fn take(&mut self, pid: u32, bytes: u64) -> bool {
        let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let now = Instant::now();
        self.readings.retain(|_, r| now.duration_since(r.at) < FRESH);
        let reading = self.readings.entry(group).or_insert_with_key(|group| Reading {
            at: now,
            headroom_bytes: machine_headroom().min(cgroup_headroom(Path::new(cgroup::ROOT), group)),
        });
        let fits = reading.headroom_bytes >= bytes;
        reading.headroom_bytes -= if fits { bytes } else { 0 };
        fits
    }
}

/// Memory of the machine in bytes.
pub fn machine_total_bytes() -> u64 {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| bytes_in(&text, "MemTotal:")).unwrap_or(u64::MAX)
}

fn machine_headroom() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    headroom_in(&meminfo, overcommit.trim() == "2")
}

/// `counts`: the kernel promises no more than it has, and what it has promised bounds as well.
fn headroom_in(meminfo: &str, counts: bool) -> u64 {
    let left = |limit: u64, headroom: u64| headroom.saturating_sub(reserve(limit));
    let available = bytes_in(meminfo, "MemAvailable:")
        .map_or(u64::MAX, |available| left(bytes_in(meminfo, "MemTotal:").unwrap_or(u64::MAX), available));
    match (bytes_in(meminfo, "CommitLimit:"), bytes_in(meminfo, "Committed_AS:")) {
        (Some(limit), Some(promised)) if counts => available.min(left(limit, limit.saturating_sub(promised))),
        _ => available,
    }
}

fn bytes_in(text: &str, key: &str) -> Option<u64> {
    let kib: u64 = text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn reserve(limit: u64) -> u64 {
    (limit / RESERVE_PART).clamp(RESERVE_MIN_BYTES, RESERVE_MAX_BYTES)
}

/// The tightest limit from the process's group up to the root; `membership` is the text of /proc/PID/cgroup.
fn cgroup_headroom(root: &Path, membership: &str) -> u64 {
    let dirs = cgroup::directories(root, membership, "memory");
    dirs.iter().map(|(version, dir)| headroom_of(dir, *version)).min().unwrap_or(u64::MAX)
}

fn headroom_of(dir: &Path, version: Version) -> u64 {
    // The third: key in `memory.stat` of the page cache that the kernel would drop first.
    let (limit, usage, reclaimable) = match version {
        Version::V2 => ("memory.max", "memory.current", "inactive_file"),
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    };
    let number = |file: &str| std::fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    // No file, or "max": no limit here.
    let (Some(limit), Some(usage)) = (number(limit), number(usage)) else { return u64::MAX };
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|l| l.strip_prefix(reclaimable)?.trim().parse().ok()).unwrap_or(0);
    limit.saturating_sub(usage.saturating_sub(reclaimable)).saturating_sub(reserve(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, name: &str, files: &[(&str, &str)]) {
        let dir = root.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            std::fs::write(dir.join(file), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_group_up_to_the_root_counts() {
        let temp = std::env::temp_dir().join(format!("ropeway-memory-{}", std::process::id()));
        group(&temp, "a", &[("memory.max", "1073741824\n"), ("memory.current", "1000000000\n")]);
        group(
            &temp,
            "a/b",
            &[
                ("memory.max", "536870912\n"),
                ("memory.current", "400000000\n"),
                ("memory.stat", "anon 1\ninactive_file 300000000\n"),
            ],
        );
        group(&temp, "a/b/c", &[("memory.max", "max\n"), ("memory.current", "1\n")]);
        let outer = (1 << 30) - 1_000_000_000 - (1 << 30) / 32;
        let inner = (1 << 29) - 100_000_000 - (1 << 29) / 32;
        assert!(outer < inner);
        assert_eq!(cgroup_headroom(&temp, "0::/a/b/c\n"), outer);
        std::fs::write(temp.join("a/memory.max"), "max\n").unwrap();
        assert_eq!(cgroup_headroom(&temp, "0::/a/b/c\n"), inner);
        assert_eq!(cgroup_headroom(&temp, "0::/not/visible\n"), u64::MAX);
        assert_eq!(cgroup_headroom(&temp, "garbage\n"), u64::MAX);
        group(&temp, "memory/x", &[("memory.limit_in_bytes", "10000000\n"), ("memory.usage_in_bytes", "9000000\n")]);
        assert_eq!(cgroup_headroom(&temp, "4:cpu,memory:/x\n0::/\n"), 0, "version 1");
        std::fs::remove_dir_all(&temp).unwrap();
    }

    #[test]
    fn what_the_kernel_has_promised_counts_where_it_keeps_its_promises() {
        let text =
            "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\nCommitLimit: 2097152 kB\nCommitted_AS: 1048576 kB\n";
        assert_eq!(headroom_in(text, false), (2 << 30) - (128 << 20));
        assert_eq!(headroom_in(text, true), (1 << 30) - (64 << 20));
        assert_eq!(headroom_in(&text.replace("1048576", "2097153"), true), 0);
        assert_eq!(headroom_in("MemTotal: 4194304 kB\n", true), u64::MAX, "not told");
    }

    #[test]
    fn what_was_granted_is_missing_next_time() {
        let mut headroom = Headroom::default();
        let me = std::process::id();
        assert!(headroom.take(me, 4096));
        let before = headroom.readings.values().next().unwrap().headroom_bytes;
        assert!(headroom.take(me, 1 << 20));
        assert_eq!(headroom.readings.values().next().unwrap().headroom_bytes, before - (1 << 20));
        assert!(!headroom.take(me, before));
    }
}
