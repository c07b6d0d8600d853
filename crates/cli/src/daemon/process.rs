//! What /proc says of a process that talks to the daemon. Everything here may be gone or hidden the next moment; a question
//! that cannot be answered is answered with the careful value.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use ropeway_shm::table::TABLE_BYTES;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SealFlags, StatxFlags};

use crate::config::Program;

/// Which file a process runs: enough to notice that it ran `exec`.
pub type Image = (u64, u64);

fn path(pid: u32, what: &str) -> PathBuf {
    format!("/proc/{pid}/{what}").into()
}

/// Names for the rules; `comm` is what the process itself says, used where /proc is closed.
pub fn program(pid: u32, comm: &[u8]) -> Program {
    let comm = std::fs::read(path(pid, "comm")).unwrap_or_else(|_| comm.to_vec());
    let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
    Program { comm, exe: std::fs::read_link(path(pid, "exe")).ok() }
}

pub fn image(pid: u32) -> Option<Image> {
    // The file system's own server, where it has one, is not asked: it may never answer.
    let flags = AtFlags::STATX_DONT_SYNC;
    let file = rustix::fs::statx(CWD, path(pid, "exe"), flags, StatxFlags::INO).ok()?;
    Some((rustix::fs::makedev(file.stx_dev_major, file.stx_dev_minor), file.stx_ino))
}

/// True of a process that was killed and has not ended: some of its threads are still in the kernel, and what it has open stays open.
pub fn is_ending(pid: u32) -> bool {
    let stat = std::fs::read_to_string(path(pid, "stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
}

/// True if the process is known to live in another network namespace than the daemon.
pub fn in_other_netns(pid: u32) -> bool {
    let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
    match (namespace(&pid.to_string()), namespace("self")) {
        (Some(theirs), Some(ours)) => theirs != ours,
        _ => false,
    }
}

/// True if descriptor `fd` of the process is the socket `inode`, and the process runs `image` under `uid` alone.
///
/// The user and the image are checked because a pid outlives `exec`: a set-user-id program must not lend its sockets to
/// the code that ran under its pid before. The socket is looked at last, so that it belongs to what was checked.
pub fn holds(pid: u32, uid: u32, image_at_hello: Option<Image>, fd: i32, inode: u32) -> bool {
    let socket_matches = || {
        let link = std::fs::read_link(path(pid, &format!("fd/{fd}"))).ok();
        link.is_some_and(|target| target.as_os_str() == format!("socket:[{inode}]").as_str())
    };
    let same_process = || image_at_hello.is_some() && image(pid) == image_at_hello && runs_only_as(pid, uid);
    pid != 0 && same_process() && socket_matches() && same_process()
}

/// Real, effective, saved and file-system user ids are all `uid`.
fn runs_only_as(pid: u32, uid: u32) -> bool {
    let status = std::fs::read_to_string(path(pid, "status")).unwrap_or_default();
    let Some(ids) = status.lines().find_map(|line| line.strip_prefix("Uid:")) else { return false };
    let mut ids = ids.split_whitespace().peekable();
    ids.peek().is_some() && ids.all(|id| id.parse() == Ok(uid))
}

/// Whether a file is as long as a socket table and stays so. There may be anything in it; what it is bounds how long its last close takes.
pub fn is_sized_as_table(fd: impl AsFd) -> bool {
    let sealed =
        rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK | SealFlags::GROW));
    sealed && rustix::fs::fstat(&fd).is_ok_and(|file| file.st_size == TABLE_BYTES as i64)
}

/// A descriptor of our own for the same file that can only be read. A file that others have a lease of is not waited for.
pub fn for_reading(fd: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn possession_is_seen_in_proc() {
        let pid = std::process::id();
        let uid = rustix::process::getuid().as_raw();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino as u32;
        let (fd, image) = (socket.as_raw_fd(), image(pid));
        assert!(holds(pid, uid, image, fd, inode));
        assert!(!holds(pid, uid, image, fd, inode + 1), "another socket");
        assert!(!holds(pid, uid + 1, image, fd, inode), "another user");
        assert!(!holds(pid, uid, Some((1, 2)), fd, inode), "another image since");
        assert!(!holds(pid, uid, None, fd, inode), "image never known");
        assert!(!holds(0, uid, image, fd, inode), "process not visible");
    }

    #[test]
    fn this_process_is_in_its_own_namespace() {
        assert!(!in_other_netns(std::process::id()));
        let me = program(std::process::id(), b"claimed");
        assert_ne!(me.comm, "claimed", "/proc goes before what a process says");
        assert!(me.exe.is_some());
        assert_eq!(program(u32::MAX, b"claimed").comm, "claimed");
    }
}
