//! Processes that tests leave behind: found, ended and reported.
//!
//! Processes of a test sit in groups and sessions of their own, so a signal to the test program's group would miss them. As
//! subreaper, this process becomes the parent of every descendant whose own parent died, so nothing can slip away.

use crate::Result;
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a process may take to end after the test program that used it.
const GRACE: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process still running after its test program.
#[derive(Clone, Debug)]
struct Process {
    pid: Pid,
    command: String,
}

/// Makes this process the one that inherits orphans.
pub fn become_subreaper() -> Result<()> {
    let this = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(this))
        .map_err(|e| format!("cannot become the subreaper of the tests: {e}").into())
}

/// Kills all descendants, until there are none.
pub fn kill_all() {
    loop {
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for process in left {
            // It may just have ended by itself.
            let _ = rustix::process::kill_process(process.pid, Signal::KILL);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits a little for descendants to end, kills those that do not, and returns the command lines of the killed.
///
/// Call it only when no child of this process is to be waited for elsewhere: it reaps them all.
pub fn end() -> Vec<String> {
    let deadline = Instant::now() + GRACE;
    loop {
        reap();
        let left = descendants();
        if left.is_empty() {
            return Vec::new();
        }
        if Instant::now() >= deadline {
            let commands = left.iter().map(|process| process.command.clone()).collect();
            kill_all();
            reap();
            return commands;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// All living descendants of this process.
fn descendants() -> Vec<Process> {
    let parents: HashMap<i32, i32> =
        all_pids().into_iter().filter_map(|pid| Some((pid, living_parent(pid)?))).collect();
    let this = rustix::process::getpid().as_raw_nonzero().get();
    let is_ours = |mut pid: i32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == this {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let ours = parents.keys().copied().filter(|pid| is_ours(*pid));
    ours.filter_map(|pid| Some(Process { pid: Pid::from_raw(pid)?, command: command_line(pid) })).collect()
}

fn all_pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The parent of a process, from `/proc/<pid>/stat`; none for one that ended (a zombie runs no more).
fn living_parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may itself contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}

fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    format!("{} (pid {pid})", words.join(" ").trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_descendant_is_found_and_an_ended_one_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let has =
            |pid: u32| descendants().iter().any(|process| process.pid.as_raw_nonzero().get().unsigned_abs() == pid);
        assert!(has(child.id()));
        child.kill().expect("it can be killed");
        while has(child.id()) {
            std::thread::sleep(POLL_INTERVAL);
        }
        child.wait().expect("it can be reaped");
    }
}
