//! The machine as the registry asks about it: sock_diag, /proc, memory limits, memfds.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use ropeway_socket::rendezvous::wire::Endpoint;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::checks::{Client, Host};
use super::diag::{Diag, TcpSocket};
use super::memory::Headroom;
use super::{numbers, process};

/// A memfd of this size that can neither shrink nor grow, nor be sealed further, to be kept. `name` shows in /proc/PID/maps.
pub fn sealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    if numbers::is_reserved(fd.as_raw_fd()) {
        return Err(Errno::MFILE.into());
    }
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[derive(Debug)]
pub struct Machine {
    diag: Diag,
    headroom: Headroom,
}

impl Machine {
    pub fn open() -> io::Result<Machine> {
        Ok(Machine { diag: Diag::open()?, headroom: Headroom::default() })
    }
}

impl Host for Machine {
    fn find(&mut self, local: &Endpoint, remote: &Endpoint, cookie: u64) -> io::Result<Option<TcpSocket>> {
        self.diag.find(local, remote, cookie)
    }

    fn live_cookies(&mut self) -> io::Result<HashSet<u64>> {
        self.diag.live_cookies()
    }

    fn holds(&mut self, client: &Client, fd: i32, inode: u32) -> bool {
        process::holds(client.pid, client.uid, client.image, fd, inode)
    }

    fn in_other_netns(&mut self, client: &Client) -> bool {
        process::in_other_netns(client.pid)
    }

    fn take_memory(&mut self, client: &Client, bytes: u64) -> bool {
        self.headroom.take(client.pid, bytes)
    }

    fn segment(&mut self, bytes: usize) -> io::Result<OwnedFd> {
        sealed_memfd("ropeway-pair", bytes)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}
