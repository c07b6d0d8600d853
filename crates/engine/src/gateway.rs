//! A gateway over links: one thread that forwards what arrives, and one that tells what it has counted (docs/engine.md, Gateways).
//!
//! What is forwarded, and where to, is `ropeway_proto::gateway`'s to say.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Write};
use std::net;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ropeway_link::{Address, Batch, Ecn, Link, udp};
use ropeway_proto::gateway::{Accepted, Forwarder, TableError};
use ropeway_proto::{Shim, Time};
use ropeway_shm::fork::Birthmark;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::control::{self, LinkShown};
use crate::core::Clock;
use crate::error::Error;
use crate::helper::AFTER_PANIC;
use crate::path;
use crate::room::Room;
use crate::sleep::until_told;
use crate::thread::{self, USUAL_STACK_BYTES};

pub use crate::shimmed::OVERHEAD_BYTES;
pub use ropeway_proto::gateway::{GatewayCounters, Limits};

/// The beginning of every gateway's abstract address, before the user's number.
pub const PREFIX: &str = "ropeway-gateway/";
/// Packets taken from one link in one turn.
const ARRIVALS_PER_TURN: usize = 64;
/// Who asks and does not listen is let go.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("node {node} is behind link {link}, and there are only {links}")]
    NoLink { node: u32, link: usize, links: usize },
    #[error("node {0} has port 0: gateways know an engine by a port of its own")]
    NoPort(u32),
    #[error("a gateway has at most {} links", path::MOST_LINKS)]
    TooManyLinks,
    #[error(transparent)]
    Engine(#[from] Error),
}

/// Where a node is: itself, or the next gateway before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub node: u32,
    /// The link's place in the list.
    pub link: usize,
    pub address: Address,
}

/// Where a host is with all its engines, whose numbers [`engine_number`] makes: itself, at port 0 (each engine has its own), or the next gateway before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    pub number: u16,
    /// The link's place in the list.
    pub link: usize,
    pub address: Address,
}

/// How a gateway's UDP link is made: whatever it forwards is forwarded alike, so nothing is urgent.
pub fn udp_options(local: net::SocketAddr) -> udp::Options {
    udp::Options { urgent_priority: 0, ..udp::Options::new(local) }
}

/// The number of the engine at a UDP port of a host.
pub fn engine_number(host: u16, port: u16) -> u32 {
    u32::from(host) << 16 | u32::from(port)
}

/// The host and the UDP port of which [`engine_number`] made a number.
pub fn host_and_port(number: u32) -> (u16, u16) {
    ((number >> 16) as u16, number as u16)
}

/// A gateway as it is now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shown {
    pub pid: u32,
    pub links: Vec<LinkShown>,
    pub counters: BTreeMap<String, u64>,
    pub waiting_packets: u64,
    pub waiting_bytes: u64,
}

struct State {
    links: Vec<Box<dyn Link>>,
    /// Whether each of them takes packets.
    rooms: Vec<Room>,
    clock: Clock,
    forwarder: Forwarder,
}

struct Inner {
    state: Mutex<State>,
    /// Copies of the links' descriptors, with the links' places.
    descriptors: Vec<(usize, OwnedFd)>,
    doorbell: OwnedFd,
    stop: AtomicBool,
    /// Where it tells what it has counted.
    listeners: Mutex<Vec<Arc<control::Listener>>>,
    birthmark: Birthmark,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.birthmark.is_inherited() {
            // They are the parent's as well.
            return;
        }
        let listeners = self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener.shut_down());
    }
}

/// A gateway. Clones are the same one.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

impl Gateway {
    /// Between `links`, for the nodes of `table`.
    ///
    /// # Errors
    /// A table that cannot be meant, or no descriptors left.
    pub fn new(links: Vec<Box<dyn Link>>, table: &[Neighbour], limits: Limits) -> Result<Gateway, GatewayError> {
        Gateway::with_hosts(links, table, &[], limits)
    }

    /// The same for all engines of `hosts` as well.
    ///
    /// # Errors
    /// As [`Gateway::new`].
    pub fn with_hosts(
        links: Vec<Box<dyn Link>>,
        table: &[Neighbour],
        hosts: &[Host],
        limits: Limits,
    ) -> Result<Gateway, GatewayError> {
        if links.len() > path::MOST_LINKS {
            return Err(GatewayError::TooManyLinks);
        }
        let places = table.iter().map(|neighbour| (neighbour.node, neighbour.link));
        let places_of_hosts = hosts.iter().map(|host| (u32::from(host.number), host.link));
        if let Some((node, link)) = places.chain(places_of_hosts).find(|&(_, link)| link >= links.len()) {
            return Err(GatewayError::NoLink { node, link, links: links.len() });
        }
        let has_no_port = |neighbour: &&Neighbour| matches!(neighbour.address, Address::Udp(to) if to.port() == 0);
        if let Some(neighbour) = table.iter().find(has_no_port) {
            return Err(GatewayError::NoPort(neighbour.node));
        }
        let path = |link: usize, address| path::encode(link as u8, address);
        let nodes: Vec<_> = table.iter().map(|row| (row.node, path(row.link, row.address))).collect();
        let hosts: Vec<_> = hosts.iter().map(|row| (row.number, path(row.link, row.address))).collect();
        let forwarder = Forwarder::with_hosts(&nodes, &hosts, limits)?;
        let fds = links.iter().enumerate().filter_map(|(place, link)| Some((place, link.descriptor()?)));
        let copies: io::Result<_> = fds.map(|(place, fd)| Ok((place, fd.try_clone_to_owned()?))).collect();
        let descriptors = copies.map_err(Error::link("copying a link's descriptor"))?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::link("making an eventfd")(errno.into()))?;
        let birthmark = Birthmark::new().map_err(Error::link("making a page that forks wipe"))?;
        let rooms = vec![Room::default(); links.len()];
        let state = Mutex::new(State { links, rooms, clock: Clock::new(), forwarder });
        let (stop, listeners) = (AtomicBool::new(false), Mutex::default());
        Ok(Gateway { inner: Arc::new(Inner { state, descriptors, doorbell, stop, listeners, birthmark }) })
    }

    /// Forwards until [`Gateway::stop`]; then it may be called again. A panic, where panics unwind, does not end it: it goes on after 100 ms.
    ///
    /// # Errors
    /// A link failed: its device is gone.
    pub fn run(&self) -> Result<(), Error> {
        loop {
            if let Ok(result) = catch_unwind(AssertUnwindSafe(|| self.forward())) {
                return result;
            }
            std::thread::sleep(AFTER_PANIC);
        }
    }

    fn forward(&self) -> Result<(), Error> {
        while !self.inner.stop.swap(false, Ordering::AcqRel) {
            let arrived = self.inner.lock().turn().map_err(Error::link("forwarding"))?;
            if arrived == 0 {
                self.inner.sleep();
            }
        }
        Ok(())
    }

    /// Ends [`Gateway::run`]. What waits stays.
    pub fn stop(&self) {
        self.inner.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.inner.doorbell, &1u64.to_ne_bytes());
    }

    pub fn counters(&self) -> GatewayCounters {
        self.inner.lock().forwarder.counters()
    }

    /// What tools are told.
    pub fn shown(&self) -> Shown {
        self.inner.shown()
    }

    /// Tells what was counted to whoever connects to the abstract address that this returns, if he is this user or root; without an abstract address (a sandbox) the
    /// gateway is not to be seen, and works all the same.
    ///
    /// # Errors
    /// No address or no thread.
    pub fn tell(&self) -> io::Result<String> {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let listener = Arc::new(control::Listener::bind(PREFIX, &NUMBERS)?);
        let (served, inner) = (listener.clone(), Arc::downgrade(&self.inner));
        thread::spawn("ropeway-control", USUAL_STACK_BYTES, move || answer_all(&served, &inner))?;
        self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener.clone());
        Ok(listener.name.clone())
    }
}

fn answer_all(listener: &control::Listener, inner: &Weak<Inner>) {
    listener.serve(|stream| {
        let Some(inner) = inner.upgrade() else { return ControlFlow::Break(()) };
        // Whoever goes away in the middle only harms itself.
        let _ = stream.map(|stream| answer(stream, &inner));
        ControlFlow::Continue(())
    });
}

fn answer(mut stream: &UnixStream, inner: &Inner) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    if !control::is_answered(stream)? {
        return Ok(());
    }
    let text = serde_json::to_string(&inner.shown()).map_err(io::Error::other)?;
    stream.write_all(text.as_bytes())
}

/// Asks the gateway at the abstract address `name`.
///
/// # Errors
/// It is gone, does not answer, or is somebody else's.
pub fn ask(name: &str) -> io::Result<Shown> {
    ask_in(&mut control::Round::default(), name)
}

/// The same, within the bounds of a round.
///
/// # Errors
/// As [`ask`]; `TimedOut` as in [`control::Round::ask`].
pub fn ask_in(round: &mut control::Round, name: &str) -> io::Result<Shown> {
    let text = round.asked(name, &[])?;
    if text.is_empty() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the gateway belongs to another user"));
    }
    serde_json::from_str(&text).map_err(io::Error::other)
}

/// The abstract addresses of all gateways of this network namespace.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn names() -> io::Result<Vec<String>> {
    control::names_with(PREFIX)
}

/// The same of those that answer this user: its own, or for root all.
///
/// # Errors
/// As [`names`].
pub fn names_that_answer() -> io::Result<Vec<String>> {
    names().map(control::that_answer)
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something arrives, a link that was full takes more, or somebody stops it.
    fn sleep(&self) {
        let state = self.lock();
        let flags = |place: usize| match state.rooms[place].will_tell() {
            true => PollFlags::IN | PollFlags::OUT,
            // A link that has room would say so all the time.
            false => PollFlags::IN,
        };
        let fds = self.descriptors.iter().map(|(place, fd)| PollFd::new(fd, flags(*place)));
        let bell = PollFd::from_borrowed_fd(self.doorbell.as_fd(), PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = fds.chain([bell]).collect();
        let tries_at = state.rooms.iter().filter_map(Room::tries_at).min();
        let patience = tries_at.map(|at| Duration::from_nanos(at.since(state.clock.now())));
        drop(state);
        until_told(&mut fds, patience);
        let mut state = self.lock();
        for ((place, _), fd) in self.descriptors.iter().zip(&fds) {
            if fd.revents().contains(PollFlags::OUT) {
                state.rooms[*place].promise();
            }
            if fd.revents().contains(PollFlags::ERR) {
                state.links[*place].fetch_errors();
            }
        }
        drop(state);
        if fds.last().is_some_and(|fd| !fd.revents().is_empty()) {
            let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
        }
    }

    fn shown(&self) -> Shown {
        let state = self.lock();
        let (packets, bytes) = state.forwarder.waiting();
        Shown {
            pid: std::process::id(),
            links: state.links.iter().map(|link| LinkShown::of(&**link)).collect(),
            counters: named(&state.forwarder.counters()),
            waiting_packets: packets as u64,
            waiting_bytes: bytes as u64,
        }
    }
}

impl State {
    /// Takes what has arrived and sends what the links take. How many arrived.
    fn turn(&mut self) -> io::Result<usize> {
        let State { links, rooms, clock, forwarder } = self;
        let mut arrived = 0;
        for (place, link) in links.iter_mut().enumerate() {
            arrived += link.receive(ARRIVALS_PER_TURN, &mut |received| {
                // A neighbour is known by its own address, whichever of ours it spoke to.
                let mut from = path::encode(place as u8, received.from);
                if !forwarder.has_neighbour(&from) {
                    from = path::of_host(&from);
                }
                forwarder.take(&from, received.ecn == Ecn::Congested, received.bytes);
            })?;
            // Reports about neighbours say nothing that a gateway could act on.
            while link.take_error().is_some() {}
        }
        let mut failure = None;
        // Only of those that were full before the time matters.
        let now = if rooms.iter().any(Room::is_full) { clock.now() } else { Time::ZERO };
        rooms.iter_mut().for_each(|room| room.begin(now));
        forwarder.transmit_by(&mut |path, _, packets| {
            let to = path::decode(path);
            if rooms[to.link].rests() {
                return 0.into();
            }
            let link = &mut *links[to.link];
            let longest_bytes = link.max_packet();
            let sent = match to.address {
                Address::Udp(host) if host.port() == 0 => send_to_engines(link, host, packets),
                to => link.send(&Batch::new(to, packets)),
            };
            let sent = sent.unwrap_or_else(|error| {
                failure = Some(error);
                packets.len()
            });
            rooms[to.link].note(sent, packets.len());
            Accepted { packets: sent, longest_bytes }
        });
        rooms.iter_mut().for_each(|room| room.end(now));
        failure.map_or(Ok(arrived), Err)
    }
}

/// Sends each packet to the port of `host` that stands in the lower half of its destination; how many were taken.
fn send_to_engines(link: &mut dyn Link, host: net::SocketAddr, packets: &[IoSlice<'_>]) -> io::Result<usize> {
    let port = |packet: &IoSlice<'_>| Shim::parse(packet).map_or(0, |(shim, _)| host_and_port(shim.destination).1);
    let mut sent = 0;
    while let Some(first) = packets.get(sent) {
        let port_of_run = port(first);
        let run = packets[sent..].iter().take_while(|packet| port(packet) == port_of_run).count();
        let to = Address::Udp(net::SocketAddr::new(host.ip(), port_of_run));
        let packets = &packets[sent..sent + run];
        let count = link.send(&Batch::new(to, packets))?;
        sent += count;
        if count < run {
            break;
        }
    }
    Ok(sent)
}

fn named(counters: &GatewayCounters) -> BTreeMap<String, u64> {
    let all = [
        ("received", counters.received),
        ("forwarded", counters.forwarded),
        ("forwarded_bytes", counters.forwarded_bytes),
        ("marked", counters.marked),
        ("dropped_stranger", counters.dropped_stranger),
        ("dropped_shim", counters.dropped_shim),
        ("dropped_malformed", counters.dropped_malformed),
        ("dropped_hops", counters.dropped_hops),
        ("dropped_no_route", counters.dropped_no_route),
        ("dropped_returning", counters.dropped_returning),
        ("dropped_full", counters.dropped_full),
        ("dropped_too_long", counters.dropped_too_long),
    ];
    all.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}
