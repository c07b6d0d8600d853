//! Which signals ask a program to end.

use std::fs;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask a program to end. Not those that it was started to outlive, as `nohup` has it ignore hangups, and a shell without job control Ctrl-C in the background.
pub fn asking_to_end() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// The signals that this program ignores, a bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or_default()
}
