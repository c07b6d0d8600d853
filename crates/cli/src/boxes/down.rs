//! Takes a box away: its processes, then its namespaces, whatever is left of them.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ropeway_shm::board;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::error::{Error, Result};
use super::hysteresis;
use super::names::{self, BoxName, Found, Member, Namespace};
use super::tools::{Tool, batch};
use super::up;

/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long the kernel may take to end them after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// One that was born during a look is mostly found by the next. So many looks in a row that find nobody are the end: where nobody was, and where somebody was, who may have children.
const EMPTY_LOOKS: u32 = 2;
const EMPTY_LOOKS_AFTERWARDS: u32 = 12;
/// A look follows those that are born meanwhile so often: others may start programs all the time.
const MOST_CHASED: usize = 64;

/// Takes away all that there is of a box, once nobody works on it any more.
pub fn down(name: &BoxName) -> Result<()> {
    let switch = Namespace::of(name, Member::Switch);
    // Of a box whose `down` was killed the switch may be gone already: then nobody can be at work on it.
    let lock = switch.lock_if_there()?;
    // Only now it is certain what there is.
    let found = names::find(name)?;
    if lock.is_none() && found.members.contains(&Member::Switch) {
        let others = "somebody else took it away, and the one of that name was made since".into();
        return Err(Error::NoBox { name: name.to_string(), others });
    }
    let removed = remove(&found);
    match lock {
        Some(_lock) => switch.forget_lock(),
        None => switch.forget_left_lock(),
    }
    removed
}

/// Takes away all boxes; one that resists does not keep the others.
pub fn all() -> Result<()> {
    each(&names::boxes()?)
}

fn each(boxes: &[Found]) -> Result<()> {
    // Somebody else may take one away first, which does what was wanted.
    let failure = |found: &Found| down(&found.name).err().filter(|error| !matches!(error, Error::NoBox { .. }));
    let failures: Vec<Error> = boxes.iter().filter_map(failure).collect();
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Takes away these parts of a box.
pub fn remove(found: &Found) -> Result<()> {
    let namespaces: Vec<Namespace> = found.members.iter().map(|member| found.namespace(*member)).collect();
    // As long as they are open nothing else gets their inodes.
    let open: Vec<File> = namespaces.iter().filter_map(|namespace| File::open(namespace.path()).ok()).collect();
    let inodes: Vec<(u64, u64)> = open.iter().filter_map(inode).collect();
    end_processes(&inodes);
    hysteresis::give_back(&found.namespace(Member::Switch));
    let lines: Vec<String> = namespaces.iter().map(|namespace| format!("netns del {}", namespace.name())).collect();
    let deleted = batch(Tool::Ip, None, &lines);
    namespaces.iter().for_each(up::forget_files);
    // Who was about to enter has done so by now: without a name nobody else does.
    end_processes(&inodes);
    inodes.iter().for_each(|&(_, inode)| board::remove_all_of(inode));
    // Somebody else who took it away at the same time did what was wanted.
    if namespaces.iter().all(|namespace| !namespace.path().exists()) { Ok(()) } else { deleted }
}

/// Ends the processes in these namespaces: a namespace lives as long as one of them does.
fn end_processes(namespaces: &[(u64, u64)]) {
    let processes = signalled(namespaces, Signal::TERM);
    wait_for(&processes, Instant::now() + GRACE);
    let mut enough = if processes.is_empty() { EMPTY_LOOKS } else { EMPTY_LOOKS_AFTERWARDS };
    let (mut empty, deadline) = (0, Instant::now() + KILL_LIMIT);
    while empty < enough && Instant::now() < deadline {
        let processes = signalled(namespaces, Signal::KILL);
        wait_for(&processes, deadline);
        (empty, enough) = if processes.is_empty() { (empty + 1, enough) } else { (0, EMPTY_LOOKS_AFTERWARDS) };
    }
}

/// Device and inode, which are what tells one namespace from another.
fn inode(namespace: &File) -> Option<(u64, u64)> {
    let meta = namespace.metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}

/// The processes in these namespaces, each with the signal as soon as it is found: one that goes on in children has less time for another. Descriptors, not
/// numbers: a number may be given to a stranger between the look and the signal.
fn signalled(namespaces: &[(u64, u64)], signal: Signal) -> Vec<OwnedFd> {
    let known = newest();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = rustix::process::getpid();
    let signalled = |pid| {
        let process = process_in(Pid::from_raw(pid).filter(|pid| *pid != own)?, namespaces)?;
        // It may just have ended by itself.
        let _ = rustix::process::pidfd_send_signal(&process, signal);
        Some(process)
    };
    let mut found: Vec<OwnedFd> = pids.filter_map(signalled).collect();
    found.extend(born_since(known).filter_map(signalled));
    found
}

/// The numbers given out since `known` was the newest, and while these are looked at: who goes on in children has the newest, and the list was made before.
fn born_since(known: Option<i32>) -> impl Iterator<Item = i32> {
    let mut known = known;
    let later = move || {
        let before = known?;
        known = newest();
        known.filter(|newest| *newest > before).map(|newest| before + 1..=newest)
    };
    std::iter::from_fn(later).take(MOST_CHASED).flatten()
}

/// The number that was given to a process last: the last word of this file.
fn newest() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().last()?.parse().ok()
}

fn process_in(pid: Pid, namespaces: &[(u64, u64)]) -> Option<OwnedFd> {
    let is_inside = || {
        let meta = fs::metadata(format!("/proc/{}/ns/net", pid.as_raw_nonzero())).ok()?;
        namespaces.contains(&(meta.dev(), meta.ino())).then_some(())
    };
    is_inside()?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The descriptor is of whoever has the number now; only if that one is inside too is it the right one.
    is_inside()?;
    Some(process)
}

fn wait_for(processes: &[OwnedFd], deadline: Instant) {
    for process in processes {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        // An interrupted wait is only a shorter one: whoever is left gets the next signal.
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_that_somebody_else_took_away_is_no_failure_of_all() {
        let name: BoxName = format!("gone-{}", std::process::id()).parse().unwrap();
        assert!(matches!(down(&name), Err(Error::NoBox { .. })));
        let seen = Found { name, members: vec![Member::Switch] };
        each(&[seen]).unwrap();
    }
}
