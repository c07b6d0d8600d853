//! Ranks joined by byte streams of the kernel, one for each pair: what `tcp` and `unix` have in common. An ordinary socket program: calls of the C library and nothing
//! that knows of Ropeway, so that the same text, started under `ropeway run`, measures Ropeway's transparent sockets.
//!
//! What does not live here: how a stream comes to be ([`super::tcp`], [`super::unix`]).

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use super::early::Early;
use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

/// A stream of the kernel.
pub trait Stream: Read + Write + AsFd + AsRawFd + Sized {
    type Listener: AsFd;
    fn accept(listener: &Self::Listener) -> io::Result<Self>;
    fn connect(address: &str) -> io::Result<Self>;
    fn set_nonblocking(&self, on: bool) -> io::Result<()>;
    fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()>;
}

/// A blocking call of a sender gives up after this long to see whether its receiver waits for the same.
const SEND_STALLED: Duration = Duration::from_millis(5);

/// Taken in at a time from each rank.
const SCRATCH_BYTES: usize = 256 << 10;

/// How the streams of a transport behave.
#[derive(Debug, Clone)]
pub struct Manner {
    pub name: &'static str,
    /// Calls are repeated until they succeed, instead of sleeping in the kernel.
    pub spins: bool,
    /// Longest wait for a peer.
    pub patience: Duration,
}

/// One rank's streams to all others.
pub struct Streams<S: Stream> {
    manner: Manner,
    rank: Rank,
    /// By rank; none to oneself.
    peers: Vec<Option<Peer<S>>>,
    /// Where [`Transport::wait_any`] looks first, so that nobody is passed over.
    next: Rank,
    /// A sender has been blocked while somebody sent to it: from then on it receives while it sends, until the next barrier.
    both_ways: bool,
    /// Where [`Streams::take_in`] receives.
    scratch: Vec<u8>,
    /// For barriers alone, so that they are no messages: rank 0 has one to each other rank, which has one to rank 0.
    barriers: Vec<(Rank, S)>,
    remaking: Remaking<S>,
}

struct Peer<S> {
    stream: S,
    early: Early,
}

/// What [`Transport::reconnect`] needs.
struct Remaking<S: Stream> {
    listener: S::Listener,
    addresses: Vec<String>,
    /// Connections of ranks that came before the one that was waited for.
    early: Vec<(Rank, S)>,
}

/// Joins the ranks: each connects to those above it and accepts those below it. `addresses` are those of all ranks, in their order.
pub fn join<S: Stream>(
    manner: Manner,
    rank: Rank,
    listener: S::Listener,
    addresses: &[String],
    settle: impl Fn(&S) -> io::Result<()>,
) -> Result<Streams<S>, Failure> {
    let mut peers: Vec<Option<Peer<S>>> = addresses.iter().map(|_| None).collect();
    let settled = |stream: S| -> Result<Option<Peer<S>>, Failure> {
        settle(&stream).map_err(Failure::system("set the options of a connection"))?;
        stream.set_nonblocking(manner.spins).map_err(Failure::system("set up a connection"))?;
        stream.set_timeouts(manner.patience, SEND_STALLED).map_err(Failure::system("set up a connection"))?;
        Ok(Some(Peer { stream, early: Early::default() }))
    };
    let mut barriers = Vec::new();
    let for_barriers = |stream: S| -> Result<S, Failure> {
        // Nothing is measured there: whoever waits sleeps.
        stream.set_timeouts(manner.patience, manner.patience).map_err(Failure::system("set up a connection"))?;
        Ok(stream)
    };
    for (peer, address) in addresses.iter().enumerate().skip(rank + 1) {
        peers[peer] = settled(call(rank, peer, address, Purpose::Messages)?)?;
        if rank == 0 {
            barriers.push((peer, for_barriers(call(rank, peer, address, Purpose::Barriers)?)?));
        }
    }
    let expected = if rank == 0 { 0 } else { rank + 1 };
    for _ in 0..expected {
        match answer::<S>(&listener, rank, manner.patience)? {
            (peer, Purpose::Messages, stream) => peers[peer] = settled(stream)?,
            (peer, Purpose::Barriers, stream) => barriers.push((peer, for_barriers(stream)?)),
        }
    }
    let remaking = Remaking { listener, addresses: addresses.to_vec(), early: Vec::new() };
    Ok(Streams { manner, rank, peers, next: 0, both_ways: false, scratch: vec![0; SCRATCH_BYTES], barriers, remaking })
}

/// What a connection is for; said in its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Messages,
    Barriers,
}

/// Beside the number of the rank that connects.
const FOR_BARRIERS: u32 = 1 << 31;

/// Connects and says who one is.
fn call<S: Stream>(rank: Rank, peer: Rank, address: &str, purpose: Purpose) -> Result<S, Failure> {
    let unreachable = |cause: io::Error| Failure::Unreachable { peer, address: address.to_owned(), cause };
    let mut stream = S::connect(address).map_err(unreachable)?;
    let mark = if purpose == Purpose::Barriers { FOR_BARRIERS } else { 0 };
    stream.write_all(&(rank as u32 | mark).to_le_bytes()).map_err(unreachable)?;
    Ok(stream)
}

/// Accepts a connection and learns whose it is: one of the ranks below.
fn answer<S: Stream>(listener: &S::Listener, rank: Rank, patience: Duration) -> Result<(Rank, Purpose, S), Failure> {
    let waiting = Failure::system("accept a connection");
    if !readable([listener.as_fd()].into_iter(), Some(patience)).map_err(waiting)?.contains(&true) {
        return Err(Failure::Silent { peer: rank.saturating_sub(1), limit: patience });
    }
    let mut stream = S::accept(listener).map_err(Failure::system("accept a connection"))?;
    stream.set_timeouts(patience, patience).map_err(Failure::system("set up a connection"))?;
    let mut who = [0; 4];
    stream.read_exact(&mut who).map_err(Failure::system("learn which rank has connected"))?;
    let who = u32::from_le_bytes(who);
    let purpose = if who & FOR_BARRIERS == 0 { Purpose::Messages } else { Purpose::Barriers };
    match (who & !FOR_BARRIERS) as usize {
        peer if peer < rank => Ok((peer, purpose, stream)),
        peer => Err(Failure::Damaged { peer, expected: 4, what: "the number of a rank that does not connect here" }),
    }
}

/// Which of these have something to read, or have ended; none when `limit` (none: do not wait) passed without.
pub(super) fn readable<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut fds: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    let end = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
        let timeout = PollTimeout::try_from(left.as_micros().div_ceil(1000) as i32).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(fds.iter().map(|fd| fd.revents().is_some_and(|seen| !seen.is_empty())).collect()),
        }
    }
}

/// Counts the turns of a loop that waits by spinning, and ends it.
pub(super) struct Spin {
    turns: u32,
    end: Option<Instant>,
}

/// Turns between two looks at the clock. Other processes that want this processor get it then, as after so many turns nothing is close to happening.
const TURNS_PER_LOOK: u32 = 512;

impl Spin {
    pub(super) fn new() -> Spin {
        Spin { turns: 0, end: None }
    }

    #[inline(always)]
    pub(super) fn turn(&mut self, peer: Rank, patience: Duration) -> Result<(), Failure> {
        self.turns += 1;
        if self.turns.is_multiple_of(TURNS_PER_LOOK) { self.look(peer, patience) } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self, peer: Rank, patience: Duration) -> Result<(), Failure> {
        let now = Instant::now();
        if now >= *self.end.get_or_insert(now + patience) {
            return Err(Failure::Silent { peer, limit: patience });
        }
        std::thread::yield_now();
        Ok(())
    }
}

/// What an error of a call on a stream means.
fn failed(error: io::Error, peer: Rank, patience: Duration) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::Silent { peer, limit: patience },
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WriteZero => {
            Failure::Closed { peer }
        }
        _ => Failure::System { what: "use a connection", cause: error },
    }
}

impl<S: Stream> Streams<S> {
    /// The stream to that rank; none to oneself.
    pub(super) fn stream(&self, rank: Rank) -> Option<&S> {
        Some(&self.peers.get(rank)?.as_ref()?.stream)
    }

    fn peer(&mut self, rank: Rank) -> Result<&mut Peer<S>, Failure> {
        let own = self.rank;
        self.peers
            .get_mut(rank)
            .and_then(Option::as_mut)
            .ok_or_else(|| Failure::Unsupported(format!("rank {own} has no channel to rank {rank}")))
    }

    /// Reads what is there or comes within the patience; 0 at the end of the stream.
    #[inline]
    fn read(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let Manner { spins, patience, .. } = self.manner;
        let peer = self.peer(from)?;
        let mut spin = Spin::new();
        loop {
            match peer.stream.read(into) {
                Ok(0) => return Err(Failure::Closed { peer: from }),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && spins => spin.turn(from, patience)?,
                Err(e) => return Err(failed(e, from, patience)),
            }
        }
    }

    /// Sends the rest of a message whose receiver does not take it. It may be waiting itself until we take what it sends.
    #[cold]
    fn send_and_receive(&mut self, to: Rank, mut bytes: &[u8]) -> Result<(), Failure> {
        let patience = self.manner.patience;
        let mut since = Instant::now();
        // A blocking call has waited for it; who spins comes here at once, and as a rule only needs a little more time.
        let mut stalled = !self.manner.spins || self.both_ways;
        while !bytes.is_empty() {
            let received = stalled && self.take_in()?;
            self.both_ways |= received;
            let stream = &self.peer(to)?.stream;
            match send(stream.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(n) => (bytes, since) = (&bytes[n..], Instant::now()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => {
                    let waited = since.elapsed();
                    if waited >= patience {
                        return Err(Failure::Silent { peer: to, limit: patience });
                    }
                    stalled |= waited >= SEND_STALLED;
                    if !received && !self.manner.spins {
                        self.wait_for_room(to)?;
                    }
                }
                Err(errno) => return Err(failed(errno.into(), to, patience)),
            }
        }
        Ok(())
    }

    /// Sleeps until there is room towards that rank or something from any.
    fn wait_for_room(&self, to: Rank) -> Result<(), Failure> {
        /// Looked at the deadline again after this.
        const AT_MOST_MS: u8 = 50;
        let fds = self.peers.iter().enumerate().filter_map(|(rank, peer)| {
            let flags = if rank == to { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
            Some(PollFd::new(peer.as_ref()?.stream.as_fd(), flags))
        });
        match poll(&mut fds.collect::<Vec<_>>(), PollTimeout::from(AT_MOST_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(Failure::System { what: "wait for a connection", cause: errno.into() }),
        }
    }

    /// Moves what has arrived from any rank into our memory, so that its sender can go on. True if there was something.
    fn take_in(&mut self) -> Result<bool, Failure> {
        let mut some = false;
        for from in 0..self.peers.len() {
            let Some(peer) = self.peers[from].as_mut() else { continue };
            some |= peer.take_in(&mut self.scratch, from, self.manner.patience)? > 0;
        }
        Ok(some)
    }
}

impl<S: Stream> Peer<S> {
    /// Receives what is there into `early`, no more than `scratch` holds.
    fn take_in(&mut self, scratch: &mut [u8], from: Rank, patience: Duration) -> Result<usize, Failure> {
        let got = recv(self.stream.as_raw_fd(), scratch, MsgFlags::MSG_DONTWAIT);
        self.early.keep(&scratch[..*got.as_ref().unwrap_or(&0)]);
        match got {
            // Who only sends need not fail because somebody else has gone; who wants to receive from it will learn it.
            Ok(n) => Ok(n),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Ok(0),
            Err(errno) => Err(failed(errno.into(), from, patience)),
        }
    }
}

impl<S: Stream> Transport for Streams<S> {
    fn name(&self) -> &'static str {
        self.manner.name
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        if self.both_ways {
            return self.send_and_receive(to, bytes);
        }
        let patience = self.manner.patience;
        let peer = self.peer(to)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match peer.stream.write(rest) {
                Ok(0) => return Err(Failure::Closed { peer: to }),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.send_and_receive(to, rest),
                Err(e) => return Err(failed(e, to, patience)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let peer = self.peer(from)?;
        let mut filled = peer.early.take(into);
        while filled < into.len() {
            filled += self.read(from, &mut into[filled..])?;
        }
        Ok(true)
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let patience = self.manner.patience;
        let peer = self.peer(from)?;
        if peer.early.is_empty() {
            match recv(peer.stream.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(Failure::Closed { peer: from }),
                Ok(n) if n == into.len() => return Ok(true),
                Ok(n) => peer.early.keep(&into[..n]),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(failed(errno.into(), from, patience)),
            }
            return Ok(false);
        }
        let missing = peer.early.missing(into.len());
        if missing > 0 {
            // Not more: what follows may never be asked for.
            peer.take_in(&mut into[..missing], from, patience)?;
        }
        Ok(peer.early.take_whole(into))
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let peer = self.peer(from)?;
        match peer.early.take(into) {
            0 => self.read(from, into),
            early => Ok(early),
        }
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let order: Vec<Rank> = (0..self.peers.len()).map(|step| (self.next + step) % self.peers.len()).collect();
        let order: Vec<Rank> = order.into_iter().filter(|rank| self.peers[*rank].is_some()).collect();
        let here = |peers: &[Option<Peer<S>>], rank: Rank| peers[rank].as_ref().is_some_and(|p| !p.early.is_empty());
        let silent = Failure::Silent { peer: order.first().copied().unwrap_or(self.rank), limit: self.manner.patience };
        // What came early is as good as what the kernel holds, and no better: it may be a part of a message.
        let early = order.iter().any(|rank| here(&self.peers, *rank));
        let limit = if early || self.manner.spins { None } else { Some(self.manner.patience) };
        let mut found = None;
        let mut spin = Spin::new();
        while found.is_none() {
            let streams = order.iter().filter_map(|rank| self.peers[*rank].as_ref()).map(|peer| peer.stream.as_fd());
            let ready = readable(streams, limit).map_err(Failure::system("wait for a message"))?;
            let mut both = order.iter().zip(ready);
            found = both.find_map(|(rank, ready)| (ready || here(&self.peers, *rank)).then_some(*rank));
            match found {
                None if self.manner.spins => spin.turn(order[0], self.manner.patience)?,
                None => return Err(silent),
                Some(_) => {}
            }
        }
        self.next = found.map_or(0, |rank| rank + 1);
        Ok(found)
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.both_ways = false;
        let patience = self.manner.patience;
        let mut byte = [0u8];
        let done = |peer: Rank, done: io::Result<()>| done.map_err(|error| failed(error, peer, patience));
        // Rank 0 hears from all before it answers any.
        if self.rank == 0 {
            self.barriers.iter_mut().try_for_each(|(peer, stream)| done(*peer, stream.read_exact(&mut byte)))?;
        }
        self.barriers.iter_mut().try_for_each(|(peer, stream)| done(*peer, stream.write_all(&byte)))?;
        if self.rank != 0 {
            self.barriers.iter_mut().try_for_each(|(peer, stream)| done(*peer, stream.read_exact(&mut byte)))?;
        }
        Ok(())
    }

    fn reconnect(&mut self, peer: Rank) -> Result<(), Failure> {
        let patience = self.manner.patience;
        let mut byte = [0u8];
        let through = |done: io::Result<()>| done.map_err(|error| failed(error, peer, patience));
        if peer > self.rank {
            let address = self.remaking.addresses.get(peer).cloned().unwrap_or_default();
            let mut stream: S = call(self.rank, peer, &address, Purpose::Messages)?;
            through(stream.set_timeouts(patience, patience))?;
            return through(stream.read_exact(&mut byte));
        }
        let waiting = self.remaking.early.iter().position(|(rank, _)| *rank == peer);
        let mut stream = match waiting {
            Some(place) => self.remaking.early.swap_remove(place).1,
            None => loop {
                let (rank, _, stream) = answer::<S>(&self.remaking.listener, self.rank, patience)?;
                if rank == peer {
                    break stream;
                }
                self.remaking.early.push((rank, stream));
            },
        };
        through(stream.write_all(&byte))?;
        // The one that connected closes first.
        match stream.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Failure::Damaged { peer, expected: 0, what: "bytes after the last" }),
            Err(e) => Err(failed(e, peer, patience)),
        }
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
