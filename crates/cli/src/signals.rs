//! Which signals ask a program to end, and which must not.

use std::fs;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

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

/// Has a write beyond what a file may be long (`ulimit -f`) fail; its signal would end the program.
pub fn outlive_file_limit() {
    // Where it cannot be had, it is as before. Nobody asks whether it came: the write says so.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}
