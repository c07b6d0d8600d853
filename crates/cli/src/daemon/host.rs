//! The machine as the registry asks about it: sock_diag, /proc, memory limits, memfds.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use ropeway_shm::memfd;
use ropeway_socket::rendezvous::wire::Endpoint;
use rustix::io::Errno;

use super::checks::{Client, Host};
use super::diag::{Diag, TcpSocket};
use super::memory::Headroom;
use super::{numbers, process};

/// A memfd of this size that can neither shrink nor grow, nor be sealed further, to be kept. `name` shows in /proc/PID/maps.
pub fn sealed_memfd(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd::sealed(name, bytes).map_err(io::Error::from_raw_os_error)?;
    if numbers::is_reserved(fd.as_raw_fd()) {
        return Err(Errno::MFILE.into());
    }
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
        sealed_memfd(c"ropeway-pair", bytes)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}
