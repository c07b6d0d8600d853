//! `shm`: Ropeway's rings in shared memory, used directly: a pipe of them for each two ranks of one host, no socket in the path of the data.
//!
//! AF_UNIX streams join the ranks. They carry the descriptors of the segments once, then the barriers, and tell of a rank that dies.
//!
//! What does not live here: the rings, and the rule by which a sleeper is woken (`ropeway_shm::pipe`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ropeway_shm::pipe::{Broken, Doorbell, Pipe};
use ropeway_shm::segment::DEFAULT_RING_BYTES;
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::early::Early;
use super::streams::{Manner, readable};
use super::unix::{self, Unix};
use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

/// Who does not spin for good does so for this long before it sleeps, about what falling asleep and being woken costs; as the engine does.
const SPIN_LIMIT: Duration = Duration::from_micros(50);

/// Turns of a spinning wait between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;

/// Who spins for good asks the kernel this often whether the other rank still lives.
const LIFE_CHECK: Duration = Duration::from_millis(1);

/// Taken in at a time from each rank.
const SCRATCH_BYTES: usize = 256 << 10;

/// One rank's pipes to all others.
pub struct Shm {
    manner: Manner,
    rank: Rank,
    /// By rank; none to oneself.
    peers: Vec<Option<Peer>>,
    doorbell: Rc<Doorbell>,
    /// Joins the ranks; no messages go there.
    control: Unix,
    /// Where [`Transport::wait_any`] looks first, so that nobody is passed over.
    next: Rank,
    /// A sender has found no room while somebody sent to it: from then on it receives while it sends, until the next barrier.
    both_ways: bool,
    /// Where [`Shm::take_in`] reads.
    scratch: Vec<u8>,
}

struct Peer {
    pipe: Pipe,
    early: Early,
}

/// Joins the ranks: the lower one of two makes their segment.
pub fn connect(pending: unix::Pending, manner: Manner, rank: Rank, addresses: &[String]) -> Result<Shm, Failure> {
    // Whoever waits for a barrier sleeps.
    let control = pending.connect(Manner { spins: false, ..manner.clone() }, rank, addresses)?;
    let doorbell = Doorbell::create().map_err(Failure::system("make a bell for shared memory"))?;
    let mut peers: Vec<Option<Peer>> = Vec::new();
    // All are offered before any is waited for.
    for peer in 0..addresses.len() {
        let offered = if peer > rank { Some(offer(control.stream(peer), &doorbell)) } else { None };
        peers.push(offered.transpose().map_err(Failure::system("share memory with another rank"))?);
    }
    for (peer, place) in peers.iter_mut().enumerate().take(rank) {
        let taken = take_offer(control.stream(peer), &doorbell);
        *place = Some(taken.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Failure::Silent { peer, limit: manner.patience },
            io::ErrorKind::UnexpectedEof => Failure::Closed { peer },
            _ => Failure::System { what: "share memory with another rank", cause: error },
        })?);
    }
    let scratch = vec![0; SCRATCH_BYTES];
    Ok(Shm { manner, rank, peers, doorbell, control, next: 0, both_ways: false, scratch })
}

fn not_joined() -> io::Error {
    io::Error::from(io::ErrorKind::NotConnected)
}

/// Makes a segment and sends its descriptor.
fn offer(stream: Option<&UnixStream>, doorbell: &Rc<Doorbell>) -> io::Result<Peer> {
    let (pipe, segment) = Pipe::create(DEFAULT_RING_BYTES, doorbell)?;
    let (segment, mut space) = ([segment.as_fd()], [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&segment));
    sendmsg(stream.ok_or_else(not_joined)?, &[IoSlice::new(&[0])], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(Peer { pipe, early: Early::default() })
}

/// Receives the descriptor of a segment and opens it.
fn take_offer(stream: Option<&UnixStream>, doorbell: &Rc<Doorbell>) -> io::Result<Peer> {
    let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))]);
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let got = recvmsg(stream.ok_or_else(not_joined)?, parts, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    let segment: Option<OwnedFd> = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match segment {
        Some(segment) => {
            let pipe = Pipe::open(segment.as_fd(), DEFAULT_RING_BYTES, doorbell)?;
            Ok(Peer { pipe, early: Early::default() })
        }
        None if got.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(io::Error::other("the other rank sent no descriptor")),
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    From(Rank),
    FromAny,
    RoomTo(Rank),
}

/// One wait, as a loop that tries, and pauses when that was in vain: turns without a system call first, then sleep.
struct Wait {
    wanted: Wanted,
    turns: u32,
    begin: Option<Instant>,
    checked: Option<Instant>,
    /// Spinning has taken long enough.
    long: bool,
    /// The bells are asked for: after one more try in vain it may sleep.
    armed: bool,
    /// This rank has ended, and has been given one more try.
    gone: Option<Rank>,
}

impl Wait {
    #[inline(always)]
    fn new(wanted: Wanted) -> Wait {
        Wait { wanted, turns: 0, begin: None, checked: None, long: false, armed: false, gone: None }
    }
}

impl Shm {
    fn peer(&mut self, rank: Rank) -> Result<&mut Peer, Failure> {
        let own = self.rank;
        self.peers
            .get_mut(rank)
            .and_then(Option::as_mut)
            .ok_or_else(|| Failure::Unsupported(format!("rank {own} has no channel to rank {rank}")))
    }

    /// Reads what is there or comes within the patience.
    #[inline]
    fn read(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let mut wait = Wait::new(Wanted::From(from));
        loop {
            match self.peer(from)?.pipe.try_read(into) {
                Ok(0) if !into.is_empty() => self.pause(&mut wait)?,
                Ok(n) => return Ok(n),
                Err(how) => return Err(failed(how, from)),
            }
        }
    }

    /// To be called when what is waited for is not there.
    #[inline(always)]
    fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        wait.turns += 1;
        if !wait.armed && (!wait.long || self.manner.spins) && !wait.turns.is_multiple_of(TURNS_PER_LOOK) {
            std::hint::spin_loop();
            return Ok(());
        }
        self.pause_longer(wait)
    }

    #[cold]
    fn pause_longer(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        if let Some(peer) = wait.gone {
            return Err(Failure::Closed { peer });
        }
        let now = Instant::now();
        let waited = now - *wait.begin.get_or_insert(now);
        let Some(left) = self.manner.patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
            return Err(self.silent(wait.wanted));
        };
        wait.long = waited >= SPIN_LIMIT;
        if self.manner.spins {
            if now - *wait.checked.get_or_insert(now) >= LIFE_CHECK {
                wait.checked = Some(now);
                self.sleep(wait, None)?;
            }
            // Others that want this processor get it, as after so many turns nothing is close to happening.
            if wait.long {
                std::thread::yield_now();
            }
        } else if wait.armed {
            wait.armed = false;
            self.sleep(wait, Some(left))?;
        } else if wait.long {
            self.arm(wait.wanted);
            wait.armed = true;
        }
        Ok(())
    }

    fn silent(&self, wanted: Wanted) -> Failure {
        let peer = match wanted {
            Wanted::From(peer) | Wanted::RoomTo(peer) => peer,
            Wanted::FromAny => (0..self.peers.len()).find(|rank| self.peers[*rank].is_some()).unwrap_or(self.rank),
        };
        Failure::Silent { peer, limit: self.manner.patience }
    }

    /// Asks to be rung. One more look must follow.
    fn arm(&self, wanted: Wanted) {
        for (rank, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            match wanted {
                Wanted::From(from) if from != rank => continue,
                Wanted::RoomTo(to) if to == rank => peer.pipe.ask_for_room(),
                _ => {}
            }
            // Who waits for room takes in what comes from anybody.
            peer.pipe.ask_for_data();
        }
    }

    /// Sleeps (with a limit) until somebody rings, or looks only; learns whether a rank that is waited for has ended.
    fn sleep(&self, wait: &mut Wait, limit: Option<Duration>) -> Result<(), Failure> {
        let concerns = |rank: Rank| match wait.wanted {
            Wanted::From(peer) | Wanted::RoomTo(peer) => peer == rank,
            Wanted::FromAny => true,
        };
        let lives: Vec<(Rank, BorrowedFd)> = (0..self.peers.len())
            .filter(|rank| concerns(*rank))
            .filter_map(|rank| Some((rank, self.control.stream(rank)?.as_fd())))
            .collect();
        let all = std::iter::once(self.doorbell.as_fd()).chain(lives.iter().map(|(_, fd)| *fd));
        let ready = readable(all, limit).map_err(Failure::system("wait for another rank"))?;
        if ready[0] {
            self.doorbell.silence();
        }
        // No messages go there: what can be read is the end.
        wait.gone = lives.iter().zip(&ready[1..]).find_map(|((rank, _), ended)| ended.then_some(*rank));
        Ok(())
    }

    /// Moves what has arrived from any rank into our memory, so that its sender can go on. True if there was something.
    fn take_in(&mut self) -> bool {
        let mut some = false;
        for peer in self.peers.iter_mut().flatten() {
            // Who only sends need not fail because somebody else has gone; who wants to receive from it will learn it.
            let got = peer.pipe.try_read(&mut self.scratch).unwrap_or(0);
            peer.early.keep(&self.scratch[..got]);
            some |= got > 0;
        }
        some
    }
}

fn failed(how: Broken, peer: Rank) -> Failure {
    match how {
        Broken::Closed => Failure::Closed { peer },
        Broken::Corrupt => Failure::Damaged { peer, expected: 0, what: "the ring holds what no rank writes" },
    }
}

impl Peer {
    fn has_something(&self) -> bool {
        !self.early.is_empty() || self.pipe.has_news()
    }
}

impl Transport for Shm {
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
        let mut rest = bytes;
        let mut wait = Wait::new(Wanted::RoomTo(to));
        while !rest.is_empty() {
            match self.peer(to)?.pipe.try_write(rest) {
                Ok(0) => {
                    // It may be waiting itself until we take what it sends. The clock goes on meanwhile: one that only sends is not served for ever.
                    let received = (self.both_ways || wait.long) && self.take_in();
                    self.both_ways |= received;
                    self.pause(&mut wait)?;
                }
                Ok(n) => (rest, wait) = (&rest[n..], Wait::new(Wanted::RoomTo(to))),
                Err(how) => return Err(failed(how, to)),
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
        let peer = self.peer(from)?;
        // Not more than is missing: what follows may never be asked for.
        let missing = peer.early.missing(into.len());
        let got = peer.pipe.try_read(&mut into[..missing]).map_err(|how| failed(how, from))?;
        if peer.early.is_empty() && got == into.len() {
            return Ok(true);
        }
        peer.early.keep(&into[..got]);
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
        let ranks = self.peers.len();
        let mut wait = Wait::new(Wanted::FromAny);
        loop {
            let mut order = (0..ranks).map(|step| (self.next + step) % ranks);
            let found = order.find(|rank| self.peers[*rank].as_ref().is_some_and(Peer::has_something));
            if let Some(rank) = found {
                self.next = rank + 1;
                return Ok(Some(rank));
            }
            self.pause(&mut wait)?;
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.both_ways = false;
        self.control.barrier()
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
