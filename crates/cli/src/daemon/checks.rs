//! What must hold of a socket before it may wait for its other end, and of two sockets before they become a pair.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ropeway_shm::segment::{MIN_RING_BYTES, PAGE_BYTES, pair_bytes};
use ropeway_socket::reason::Reason;
use ropeway_socket::rendezvous::wire::{Endpoint, Prefix};

use super::diag::TcpSocket;
use super::process::Image;
use crate::config::Program;

/// This part of a user's limit is kept for the smallest rings: many thousands of connections get those instead of none.
const SMALLEST_PART: u64 = 2;
/// No larger pair takes more than this part of what the rest of the limit has left, so that sizes fall gently: by half for
/// every 180 pairs or so.
const LARGEST_SHARE: u64 = 256;

/// What the registry asks of the machine.
pub trait Host {
    fn find(&mut self, local: &Endpoint, remote: &Endpoint, cookie: u64) -> io::Result<Option<TcpSocket>>;
    fn live_cookies(&mut self) -> io::Result<HashSet<u64>>;
    /// True if the client's process can be seen to hold the socket although the kernel names another owner.
    fn holds(&mut self, client: &Client, fd: i32, inode: u32) -> bool;
    fn in_other_netns(&mut self, client: &Client) -> bool;
    /// Takes memory from what is left for the client's process; false if there is too little.
    fn take_memory(&mut self, client: &Client, bytes: u64) -> bool;
    /// A sealed memfd of this size.
    fn segment(&mut self, bytes: usize) -> io::Result<OwnedFd>;
    fn now(&self) -> Instant;
}

/// A process that said hello.
#[derive(Clone, Debug)]
pub struct Client {
    /// 0 if the process is not visible from the daemon's pid namespace.
    pub pid: u32,
    /// With whose rights it speaks.
    pub uid: u32,
    pub program: Program,
    pub image: Option<Image>,
    /// Ring size of the profile it was told.
    pub ring_bytes: u32,
}

/// A refusal: the reason and whether trying again later makes sense.
pub type Refusal = (Reason, bool);
pub const FINAL: bool = false;
pub const RETRY: bool = true;

/// Why two offers did not become a pair.
#[derive(Debug, PartialEq)]
pub enum Unpaired {
    /// This socket is not what was registered any more.
    Gone(u64),
    Refused(Refusal),
}

/// The kernel knows exactly this socket, it is established, and the client owns it: the socket's uid is the client's, or
/// the client is root, or /proc shows that the process holds it (accepted by root before it changed its user).
pub fn owned(
    host: &mut dyn Host,
    client: &Client,
    local: &Endpoint,
    remote: &Endpoint,
    cookie: u64,
    fd: i32,
) -> Result<TcpSocket, Refusal> {
    // A kernel that does not answer (no netlink in a sandbox) leaves everything on TCP.
    let found = host.find(local, remote, cookie).map_err(|_| (Reason::NotOwner, RETRY))?;
    let Some(socket) = found else {
        let elsewhere = host.in_other_netns(client);
        return Err((if elsewhere { Reason::OtherNetns } else { Reason::NotOwner }, FINAL));
    };
    if !socket.established {
        return Err((Reason::HalfClosed, FINAL));
    }
    let mine = socket.uid == client.uid || client.uid == 0 || host.holds(client, fd, socket.inode);
    if mine { Ok(socket) } else { Err((Reason::NotOwner, FINAL)) }
}

/// What is claimed of one end of a possible pair.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub cookie: u64,
    pub ends: (Endpoint, Endpoint),
    pub tx: Prefix,
    pub rx: Prefix,
}

/// The two sockets carry the same bytes: counters bracket each other and the beginnings agree.
pub fn same_bytes(host: &mut dyn Host, claims: [Claim; 2]) -> Result<(), Unpaired> {
    let [a, b] = claims;
    // Neither direction begins alike where both know it: not one connection. Nothing to compare yet: too early.
    let compared = [a.tx.compare(&b.rx), b.tx.compare(&a.rx)];
    let [Some(one_way), Some(other_way)] = compared else { return Err(Unpaired::Refused((Reason::Mismatch, FINAL))) };
    if one_way + other_way == 0 {
        return Err(Unpaired::Refused((Reason::TooYoung, RETRY)));
    }
    // Bytes move while we look, so each end is compared with what the other could have said before and after.
    let mut look = |claim: &Claim| {
        let found = host.find(&claim.ends.0, &claim.ends.1, claim.cookie).ok().flatten().filter(|s| s.established);
        found.map(|s| s.counters).ok_or(Unpaired::Gone(claim.cookie))
    };
    let (before, middle, after) = (look(&a)?, look(&b)?, look(&a)?);
    let bracketed = middle.received <= after.sent
        && without_syn(before.acked) <= middle.received
        && before.received <= middle.sent
        && without_syn(middle.acked) <= after.received;
    if bracketed { Ok(()) } else { Err(Unpaired::Refused((Reason::Mismatch, FINAL))) }
}

/// Bytes acknowledged for certain: the connecting end's counter has its SYN in it, the accepting end's has not.
fn without_syn(acked: u64) -> u64 {
    acked.saturating_sub(1)
}

/// The ring that a pair gets when its user's limit has `left_bytes` of `limit_bytes` left: what it wants, or less; `None`
/// if not even the smallest fits.
pub fn ring_within(wanted: u32, left_bytes: u64, limit_bytes: u64) -> Option<u32> {
    let share = left_bytes.saturating_sub(limit_bytes / SMALLEST_PART) / LARGEST_SHARE;
    let mut ring_bytes = wanted;
    if pair_bytes(wanted) as u64 > share {
        // Three pages go to the header and the two spare cells.
        let page = PAGE_BYTES as u64;
        let cells = share.saturating_sub(3 * page) / 2 / page * page;
        ring_bytes = wanted.min(u32::try_from(cells).unwrap_or(wanted)).max(MIN_RING_BYTES);
    }
    (pair_bytes(ring_bytes) as u64 <= left_bytes).then_some(ring_bytes)
}
