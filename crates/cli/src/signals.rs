//! Which signals ask a program to end.

use std::fs;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask a program to end.
pub fn asking_to_end() -> impl Iterator<Item = i32> {
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP))
}

/// Whether whoever started this program wants it to outlive the signal, as `nohup` does with hangups.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
