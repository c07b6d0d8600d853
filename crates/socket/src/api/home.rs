//! Where connections live: the engines that this process makes by itself, one for each link.
//!
//! Clients share one engine for each address family or network device, with a port that the kernel chose; every address that somebody
//! listens at has an engine of its own, which its accepted connections share. An engine whose last connection was dropped goes when its peers have
//! acknowledged what was sent, or after the linger time; so does the process when it exits. A forked child begins with nothing.
//! How one is made is in `home/place.rs`.

mod place;

use self::place::{PastTheStack, Place, over_frames, over_udp};
use super::address::{Address, PacketAddress};
use super::claim::Claim;
use super::cluster;
use super::environment;
use super::errors::{of_opening, of_opening_without_key};
use super::exit;
use super::per_process::PerProcess;
use ropeway_engine::gateway::host_and_port;
use ropeway_engine::thread::{self, USUAL_STACK_BYTES};
use ropeway_engine::{Engine, Error, LinkId, Way, Workers, link};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// So long at most somebody who binds an address waits for a home whose last user is about to end it: that takes a thread its turn, and the engine's threads theirs.
const ENDING_TAKES: Duration = Duration::from_secs(1);
/// How often he looks.
const ENDING_LOOKS_EVERY: Duration = Duration::from_micros(200);

/// A place that is in use.
pub struct Home {
    place: Place,
    /// Made by this process on its own account: it sees to the end of it.
    is_ours: bool,
    /// Its address belongs to a [`Binding`].
    taken: AtomicBool,
    /// The last that is let go of: until then the address may still be in use. See [`Listening`].
    end: Arc<()>,
}

impl Home {
    /// Whether others have the address too.
    pub fn has_siblings(&self) -> bool {
        self.place.count() > 1
    }

    /// In somebody's own engine.
    pub fn of(engine: &Engine, link: LinkId) -> Arc<Home> {
        let place = Place::of(engine.clone(), link);
        Arc::new(Home { place, is_ours: false, taken: AtomicBool::new(false), end: Arc::default() })
    }

    fn ours(place: Place) -> Arc<Home> {
        Arc::new(Home { place, is_ours: true, taken: AtomicBool::new(false), end: Arc::default() })
    }

    pub fn engine(&self) -> &Engine {
        &self.place.engine
    }

    pub fn link(&self) -> LinkId {
        self.place.link
    }

    /// Whether its device is gone.
    pub fn has_failed(&self) -> bool {
        self.place.has_failed()
    }

    /// What an attempt to connect from here ended with, for programs.
    pub fn of_opening(&self, error: Error) -> io::Error {
        match &self.place.keyless {
            Some(why) => of_opening_without_key(error, why),
            None => of_opening(error),
        }
    }

    /// An address on this link in the words of programs.
    pub fn name(&self, address: link::Address, port: u16) -> Address {
        match address {
            link::Address::Udp(address) => Address::Udp(address),
            link::Address::Ether(mac) => {
                Address::Packet(PacketAddress { device: self.place.device.clone(), mac: Some(mac), port })
            }
            link::Address::Sim(host) => Address::Sim { host, port },
        }
    }

    /// The other end of a connection in the words of programs.
    pub fn name_of_peer(&self, way: &Way, port: u16) -> Address {
        match *way {
            Way::Direct(target) => self.name(target.address, port),
            // Of engines that processes make by themselves the number says the node as well.
            Way::Through(_, number) if self.is_ours => Address::Node { node: host_and_port(number).0.into(), port },
            Way::Through(_, node) => Address::Node { node, port },
        }
    }

    /// Somebody's address on this link.
    ///
    /// # Errors
    /// It is on another kind of link.
    pub fn reach(&self, to: &Address) -> io::Result<link::Address> {
        match (self.local(), to) {
            (Some(link::Address::Udp(own)), Address::Udp(to)) if own.is_ipv4() == to.is_ipv4() => {
                Ok(link::Address::Udp(*to))
            }
            (Some(link::Address::Ether(_)), Address::Packet(to)) if to.device == self.place.device => {
                Ok(link::Address::Ether(to.mac.unwrap_or_default()))
            }
            (Some(link::Address::Sim(_)), Address::Sim { host, .. }) => Ok(link::Address::Sim(*host)),
            _ => {
                let what = format!("{to} cannot be reached from the address that was chosen to connect from");
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    pub fn local(&self) -> Option<link::Address> {
        self.place.engine.local(self.place.link)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_ours
            && let Some(process) = PROCESS.get()
        {
            process.linger(self.place.clone());
        }
    }
}

/// The right to an address of this host, and its port.
pub struct Binding {
    home: Arc<Home>,
    port: u16,
}

impl Binding {
    /// At a port of somebody's own engine.
    pub fn of(engine: &Engine, link: LinkId, port: u16) -> Binding {
        Binding { home: Home::of(engine, link), port }
    }

    fn new(home: Arc<Home>, port: u16) -> io::Result<Binding> {
        if home.taken.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("port {port} is in use by this process")));
        }
        Ok(Binding { home, port })
    }

    pub fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.home.taken.store(false, Ordering::Release);
    }
}

/// Clients' engines are shared by what is reached through them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Loopback4,
    Loopback6,
    Ipv4,
    Ipv6,
    Device(String),
    /// Nodes of the cluster, by whatever way.
    Nodes,
}

/// What this process has. A forked child leaves its parent's alone and makes its own.
#[derive(Default)]
struct Process {
    homes: Mutex<Homes>,
}

#[derive(Default)]
struct Homes {
    clients: BTreeMap<Reach, Arc<Home>>,
    listening: Vec<Listening>,
    /// Places without users whose peers have not acknowledged everything.
    lingering: BTreeMap<u64, Place>,
    lingered: u64,
    past_the_stack: PastTheStack,
}

/// A home at an address, for as long as it has users.
struct Listening {
    home: Weak<Home>,
    /// Outlives the home by the time that its last user takes to put an end to it.
    end: Weak<()>,
}

impl Listening {
    fn of(home: &Arc<Home>) -> Listening {
        Listening { home: Arc::downgrade(home), end: Arc::downgrade(&home.end) }
    }

    fn is_gone(&self) -> bool {
        self.end.strong_count() == 0
    }

    /// Nobody can use it any more, and its address is not free yet.
    fn is_ending(&self) -> bool {
        self.home.strong_count() == 0 && !self.is_gone()
    }
}

static PROCESS: PerProcess<Process> = PerProcess::new();

impl Process {
    fn get() -> io::Result<&'static Process> {
        let found = PROCESS.get_or_make(Process::default)?;
        if found.is_first {
            exit::register();
        }
        Ok(found.value)
    }

    fn lock(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same when no thread is in the middle of ending a home, and the homes that have users, which stay while the caller has them: all others linger, or have gone from their addresses.
    /// The homes are let go of after the lock, which the last user of one needs.
    fn lock_settled(&self) -> (Vec<Arc<Home>>, MutexGuard<'_, Homes>) {
        let until = Instant::now() + ENDING_TAKES;
        loop {
            let mut homes = self.lock();
            homes.listening.retain(|listening| !listening.is_gone());
            // First: one whose last user leaves behind this look is seen to end.
            let present = homes.listening.iter().filter_map(|listening| listening.home.upgrade()).collect();
            if !homes.listening.iter().any(Listening::is_ending) || Instant::now() >= until {
                return (present, homes);
            }
            // The one that ends needs the lock.
            drop(homes);
            drop(present);
            std::thread::sleep(ENDING_LOOKS_EVERY);
        }
    }

    /// Keeps an engine until its peers have everything.
    fn linger(&'static self, place: Place) {
        let Ok(environment) = environment::get() else { return };
        if place.engine.drain_all(Instant::now()) {
            return;
        }
        let deadline = Instant::now() + environment.linger;
        let mut homes = self.lock();
        homes.lingered += 1;
        let key = homes.lingered;
        homes.lingering.insert(key, place.clone());
        drop(homes);
        let wait = move || {
            place.engine.drain_all(deadline);
            let mut homes = self.lock();
            let last = homes.lingering.remove(&key);
            // Under the lock: who binds the address next finds either the place or the address free.
            drop((place, last));
            drop(homes);
        };
        // Without a thread to spare, the exit of the process waits for it.
        let _ = thread::spawn("ropeway-linger", USUAL_STACK_BYTES, wait);
    }
}

/// The engine over which `to` is reached.
///
/// # Errors
/// It cannot be made: no privileges, no such device, no descriptors.
pub fn to_reach(to: &Address) -> io::Result<(Arc<Home>, link::Address)> {
    let (reach, address) = match to {
        Address::Udp(to) => {
            let reach = match (to.is_ipv4(), to.ip().is_loopback()) {
                (true, true) => Reach::Loopback4,
                (true, false) => Reach::Ipv4,
                (false, true) => Reach::Loopback6,
                (false, false) => Reach::Ipv6,
            };
            (reach, link::Address::Udp(*to))
        }
        Address::Packet(to) => (Reach::Device(to.device.clone()), link::Address::Ether(to.mac.unwrap_or_default())),
        Address::Sim { .. } | Address::Node { .. } => return Err(only_own_engines(to)),
    };
    Ok((client(reach)?, address))
}

/// The engine from which nodes of the cluster are reached.
///
/// # Errors
/// As [`to_reach`].
pub fn of_node() -> io::Result<Arc<Home>> {
    client(Reach::Nodes)
}

fn client(reach: Reach) -> io::Result<Arc<Home>> {
    let process = Process::get()?;
    // Let go of after the lock, which the last user of a home needs.
    let _former;
    let mut homes = process.lock();
    if let Some(home) = homes.clients.get(&reach).filter(|home| !home.has_failed()) {
        return Ok(home.clone());
    }
    // Even towards loopback the socket is bound to no address: then its packets are as long as a listener that is bound to none takes.
    let (any4, any6) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    let mut places = match &reach {
        Reach::Loopback4 => over_udp(SocketAddr::new(any4, 0), true, false, 1)?,
        Reach::Loopback6 => over_udp(SocketAddr::new(any6, 0), true, false, 1)?,
        Reach::Ipv4 => over_udp(SocketAddr::new(any4, 0), false, false, 1)?,
        Reach::Ipv6 => over_udp(SocketAddr::new(any6, 0), false, false, 1)?,
        Reach::Device(device) => over_frames(&mut homes.past_the_stack, device, None, 1)?,
        Reach::Nodes => {
            let own = cluster::own_ip()?;
            over_udp(SocketAddr::new(own, 0), own.is_loopback(), true, 1)?
        }
    };
    let home = Home::ours(places.swap_remove(0));
    _former = homes.clients.insert(reach, home.clone());
    Ok(home)
}

/// The right to `at`, with an engine there.
///
/// # Errors
/// The address is taken, or not this host's; or as [`to_reach`].
pub fn to_listen(at: &Address) -> io::Result<Binding> {
    let (mut homes, port) = homes_at(at, 1)?;
    Binding::new(homes.swap_remove(0), port)
}

/// The same with several engines, among which the kernel spreads who comes.
///
/// # Errors
/// As [`to_listen`]; there cannot be so many.
pub fn to_listen_with(at: &Address, workers: usize) -> io::Result<Vec<Binding>> {
    Workers::check(workers)?;
    let (homes, port) = homes_at(at, workers)?;
    homes.into_iter().map(|home| Binding::new(home, port)).collect()
}

/// Homes at an address, old or new ones.
fn homes_at(at: &Address, count: usize) -> io::Result<(Vec<Arc<Home>>, u16)> {
    let process = Process::get()?;
    let (present, mut homes) = process.lock_settled();
    let mut past = None;
    if at.port() != 0 {
        // Somebody was here before, and his connections still are, or their last words.
        let mut all = present.iter().map(|home| &home.place).chain(homes.lingering.values());
        past = all.find(|place| place.is_at(at) && !place.has_failed()).cloned();
    }
    let (places, port) = match (past, at) {
        (Some(place), _) if place.count() != count => {
            let what = format!("port {} has {} workers in this process, not {count}", at.port(), place.count());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        (Some(place), _) => (place.all(), at.port()),
        (None, Address::Udp(at)) => {
            let places = over_udp(*at, at.ip().is_loopback(), true, count)?;
            let local = places.first().and_then(|place| place.engine.local(place.link));
            (places, if let Some(link::Address::Udp(local)) = local { local.port() } else { at.port() })
        }
        (None, Address::Packet(at)) => {
            let (port, claim) = Claim::port(&at.device, at.port)?;
            (over_frames(&mut homes.past_the_stack, &at.device, Some((port, claim)), count)?, port)
        }
        (None, Address::Sim { .. } | Address::Node { .. }) => return Err(only_own_engines(at)),
    };
    let home = |place: Place| {
        let is_this = |home: &&Arc<Home>| home.engine().is(&place.engine) && home.place.is_at(at);
        if let Some(home) = present.iter().find(is_this) {
            return home.clone();
        }
        let home = Home::ours(place);
        homes.listening.push(Listening::of(&home));
        home
    };
    Ok((places.into_iter().map(home).collect(), port))
}

fn only_own_engines(address: &Address) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{address} exists for an engine of your own only"))
}

/// What others may still use when the process exits.
type InUse = (Vec<Arc<Home>>, Vec<Place>, Vec<Engine>);

static KEPT_AT_EXIT: OnceLock<InUse> = OnceLock::new();

/// Closes everything and waits, for the linger time at most, until the peers have it.
pub fn finish_all() {
    let (Some(process), Ok(environment)) = (PROCESS.get(), environment::get()) else { return };
    let mut present: Vec<Arc<Home>> = Vec::new();
    let homes = process.lock();
    present.extend(homes.clients.values().cloned());
    present.extend(homes.listening.iter().filter_map(|listening| listening.home.upgrade()));
    let lingering: Vec<Place> = homes.lingering.values().cloned().collect();
    drop(homes);
    let deadline = Instant::now() + environment.linger;
    // Of several at an address also those of which nobody has anything any more.
    let mut engines: Vec<Engine> = Vec::new();
    for place in present.iter().map(|home| &home.place).chain(&lingering).flat_map(Place::all) {
        if !engines.iter().any(|known| known.is(&place.engine)) {
            engines.push(place.engine);
        }
    }
    Engine::finish_all(&engines, deadline);
    // What still uses them ends with the process; the last user would have their threads end under it. Kept where checkers for leaks, which look later, find it.
    if let Err(late) = KEPT_AT_EXIT.set((present, lingering, engines)) {
        std::mem::forget(late);
    }
}
