//! The engine as its users see it: calls that wait, and who polls while they do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropeway_link::{Address, Link};
use ropeway_proto::crypto::ClusterKeys;
use ropeway_proto::{ChannelId, Config, Counters, Endpoint, Mode, Path, Readiness, Time};
use ropeway_shm::fork::Birthmark;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bell::Bell;
use crate::control;
use crate::core::{Core, LinkId, Poller};
use crate::ending;
use crate::error::Error;
use crate::helper;
use crate::inner::Inner;
use crate::readiness::Interest;
use crate::restart;
use crate::routes::{Routes, Way};
use crate::shimmed;
use crate::spin::{Spin, USUAL_SPIN_NS};
use crate::wait::Subject;

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Options {
    pub config: Config,
    /// How long a call that waits polls before it sleeps. 0: it sleeps at once.
    pub spin: Duration,
    /// The node's number in the cluster; a random one if none is given. Gateways know engines by it: one below 2^32 that no other engine has.
    pub node: Option<u64>,
    /// Peers may be reached, and reach this engine, through gateways: the longest packet is shorter by what stands before it then.
    pub gateways: bool,
    /// What tells this engine from others that share its links' addresses (raw Ethernet); 12 bits, not 0xFFF.
    pub steering: u16,
    /// The cluster's keys: everything is sealed, and nobody without one is talked to. `None`: all hosts and the network between them are trusted;
    /// see [`crate::key_file::decide`] for who decides that.
    pub keys: Option<Arc<ClusterKeys>>,
    /// The secret of engines that were here before, whose associations this one can then end.
    pub secret: Option<Arc<restart::Secret>>,
}

impl Default for Options {
    fn default() -> Options {
        let spin = Duration::from_nanos(USUAL_SPIN_NS);
        Options { config: Config::default(), spin, node: None, gateways: false, steering: 0, keys: None, secret: None }
    }
}

/// A peer: over which link, and under which address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub link: LinkId,
    pub address: Address,
}

/// The shortest that the longest packet may be, without what gateways put before it (docs/protocol.md 1).
pub const LEAST_PACKET_BYTES: u16 = 256;

/// An engine. Clones are the same engine; it ends with the last one.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

/// The longest packet to try over a link where nothing else is said. The stations of an Ethernet have one MTU; between two hosts of an IP network there may be shorter frames than theirs.
pub fn usual_packet_bytes(link: &dyn Link) -> u16 {
    let most = u16::try_from(link.max_packet()).unwrap_or(u16::MAX);
    if let Address::Ether(_) = link.local() { most } else { most.min(Config::default().packet_bytes) }
}

/// The users' share of an engine: when it goes, the helper is told to end.
struct Handle {
    inner: Arc<Inner>,
    helper: Option<std::thread::JoinHandle<()>>,
    /// Where tools ask; `None` where there are no abstract addresses.
    control: Option<Arc<control::Listener>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.inner.birthmark.is_inherited() {
            // The thread stayed with the parent; here there is nothing to let go of.
            std::mem::forget(self.helper.take());
            return;
        }
        let mut core = self.inner.lock();
        self.inner.take_leave(&mut core, Instant::now() + ending::LEAVE_TAKES);
        core.shut_down = true;
        self.inner.wake_helper(&mut core);
        core.waiters.wake_all();
        self.inner.ring(&core);
        drop(core);
        self.control.iter().for_each(|control| control.shut_down());
        if let Some(helper) = self.helper.take() {
            let _ = helper.join();
        }
        // Whoever still has a look at the rest: the links' addresses are free for others from now on.
        self.inner.lock().drop_links();
    }
}

impl Engine {
    /// Starts an engine without links; [`Engine::add_link`] gives it some.
    ///
    /// # Errors
    /// No descriptors, memory or thread left; [`Error::PacketsTooShort`]; [`Error::NoNode`].
    pub fn new(options: &Options) -> Result<Engine, Error> {
        let packet_bytes = options.config.packet_bytes;
        let least = LEAST_PACKET_BYTES + if options.gateways { shimmed::OVERHEAD_BYTES } else { 0 };
        if packet_bytes < least {
            return Err(Error::PacketsTooShort { packet_bytes, least });
        }
        let seed = random().map_err(Error::link("reading random bytes"))?;
        // Bytes of its own: it is said to everybody, and the seed to nobody.
        let own = random().map_err(Error::link("reading random bytes"))?;
        let node = options.node.unwrap_or(u64::from_be_bytes(own));
        let (mut config, mut known_as) = (options.config.clone(), None);
        if options.gateways {
            known_as = Some(options.node.and_then(|node| u32::try_from(node).ok()).ok_or(Error::NoNode)?);
            config.packet_bytes -= shimmed::OVERHEAD_BYTES;
        }
        let mut endpoint = Endpoint::with_keys(config, node, options.steering, seed, options.keys.clone());
        if let Some(kept) = &options.secret {
            endpoint.set_secret(*kept.secret, kept.start);
        }
        let spin = Spin::new(options.spin.as_nanos() as u64);
        let bell = || Bell::new().map_err(Error::link("making a timer"));
        let birthmark = Birthmark::new().map_err(Error::link("making a page that forks wipe"))?;
        let inner = Arc::new(Inner::new(options, Core::new(endpoint, spin, known_as), [bell()?, bell()?], birthmark));
        let helper = helper::start(inner.clone()).map_err(Error::link("starting the helper thread"))?;
        let control = control::start(Arc::downgrade(&inner)).ok();
        Ok(Engine { handle: Arc::new(Handle { inner, helper: Some(helper), control }) })
    }

    /// Whether it is the same engine.
    pub fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    pub(crate) fn inner(&self) -> Result<&Inner, Error> {
        let inner = &*self.handle.inner;
        if inner.birthmark.is_inherited() { Err(Error::Forked) } else { Ok(inner) }
    }

    /// Gives the engine one more link. Packets longer than the configured `packet_bytes` are not used on it; it must bear that many.
    ///
    /// # Errors
    /// There are 32 links already, or its descriptor cannot be copied.
    pub fn add_link(&self, link: Box<dyn Link>) -> Result<LinkId, Error> {
        let inner = self.inner()?;
        let copy = link.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let copy = copy.map_err(Error::link("copying the link's descriptor"))?;
        let mut core = inner.lock();
        let local = link.local();
        let id = core.add_link(link, copy).ok_or(Error::NoLink)?;
        // To its own address an engine may talk; elsewhere, what it said itself and comes back is somebody's mischief.
        core.endpoint.add_own_path(Core::path(id, local));
        inner.ring(&core);
        Ok(id)
    }

    /// The local address of a link.
    pub fn local(&self, link: LinkId) -> Option<Address> {
        Some(self.inner().ok()?.lock().link(link)?.local())
    }

    /// Whether a link is of no use any more: its device is gone.
    pub fn has_failed(&self, link: LinkId) -> bool {
        self.inner().is_ok_and(|inner| inner.lock().has_failed(link))
    }

    /// Names, addresses and counters of all links.
    pub fn links(&self) -> Vec<(LinkId, String, Address, ropeway_link::Counters)> {
        let Ok(inner) = self.inner() else { return Vec::new() };
        inner.lock().links().map(|(id, link)| (id, link.name(), link.local(), link.counters())).collect()
    }

    pub fn counters(&self) -> Counters {
        self.inner().map(|inner| inner.lock().endpoint.counters()).unwrap_or_default()
    }

    pub fn config(&self) -> Result<Config, Error> {
        Ok(self.inner()?.lock().endpoint.config().clone())
    }

    /// Changes settings for what is decided from now on.
    ///
    /// # Errors
    /// Peers have been told something that would not be true any more.
    pub fn configure(&self, config: Config) -> Result<(), Error> {
        let inner = self.inner()?;
        Ok(inner.configure(&mut inner.lock(), config)?)
    }

    /// Takes connections at `port` (0: a free one), up to `backlog` waiting.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self, port: u16, mode: Mode, backlog: usize) -> Result<u16, Error> {
        Ok(self.inner()?.lock().endpoint.listen(port, mode, backlog)?)
    }

    /// Has up to `backlog` connections wait at `port` from now on.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn set_backlog(&self, port: u16, backlog: usize) -> Result<(), Error> {
        Ok(self.inner()?.lock().endpoint.set_backlog(port, backlog)?)
    }

    pub fn unlisten(&self, port: u16) -> Result<(), Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        core.endpoint.unlisten(port);
        core.refresh_watches(Subject::Port(port));
        core.waiters.forget(Subject::Port(port));
        inner.follow_up(&mut core, inner.now());
        inner.ring(&core);
        Ok(())
    }

    /// Waits for a connection at `port`.
    ///
    /// # Errors
    /// The time is over, or nobody listens (any more); the devices of all links are gone.
    pub fn accept(&self, port: u16, deadline: Option<Instant>) -> Result<ChannelId, Error> {
        self.accept_while(port, deadline, || true)
    }

    /// The same for as long as `listens` says so, and then [`Error::Closed`]: after [`Engine::unlisten`] somebody else may listen at the port.
    ///
    /// # Errors
    /// As [`Engine::accept`].
    pub fn accept_while(
        &self,
        port: u16,
        deadline: Option<Instant>,
        listens: impl Fn() -> bool,
    ) -> Result<ChannelId, Error> {
        self.block(Subject::Port(port), deadline, |core, _| match core.accept_while(port, &listens) {
            Ok(channel) => Some(Ok(channel)),
            Err(error) => fatal(error),
        })
    }

    /// Takes a waiting connection, if there is one, and if `listens` says that it is the caller's.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; nobody listens, or not the caller.
    pub fn try_accept_while(&self, port: u16, listens: impl Fn() -> bool) -> Result<ChannelId, Error> {
        self.attempt(Subject::Port(port), |core, _| core.accept_while(port, &listens))
    }

    /// The same for who alone listens there.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; nobody listens.
    pub fn try_accept(&self, port: u16) -> Result<ChannelId, Error> {
        self.try_accept_while(port, || true)
    }

    /// Begins to open a connection and does not wait for the peer. To a peer that is known, data can be sent at once.
    ///
    /// # Errors
    /// A bound was reached.
    pub fn open(&self, to: Target, port: u16, mode: Mode) -> Result<ChannelId, Error> {
        self.open_from(to, None, port, mode)
    }

    /// The same, from a port of the protocol that the caller has chosen: what the peer is told, and no more.
    ///
    /// # Errors
    /// A bound was reached.
    pub fn open_from(&self, to: Target, from: Option<u16>, port: u16, mode: Mode) -> Result<ChannelId, Error> {
        self.open_ways(&Routes { ways: &[Way::Direct(to)], bonded: false }, from, port, mode)
    }

    pub(crate) fn open_ways(
        &self,
        routes: &Routes<'_>,
        from: Option<u16>,
        port: u16,
        mode: Mode,
    ) -> Result<ChannelId, Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        let now = inner.now();
        // Whether the peer that is known there has left stands in what has arrived.
        let arrived = core.turn(now);
        if (core.take_reports() || arrived) && core.sleeps_until.is_some() {
            // What was for the sleeper has been taken away from under it.
            inner.ring(&core);
        }
        let channel = core.connect(now, routes, from, port, mode)?;
        inner.follow_up(&mut core, now);
        // What this host does not let go is known by now.
        if core.take_reports() {
            inner.tell(&mut core);
        }
        Ok(channel)
    }

    /// Opens a connection and waits until the peer has taken it.
    ///
    /// # Errors
    /// It refused, nothing receives there, or the time is over.
    pub fn connect(&self, to: Target, port: u16, mode: Mode, deadline: Option<Instant>) -> Result<ChannelId, Error> {
        self.connect_from(to, None, port, mode, deadline)
    }

    /// The same as [`Engine::connect`], from a port of the protocol that the caller has chosen.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_from(
        &self,
        to: Target,
        from: Option<u16>,
        port: u16,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<ChannelId, Error> {
        let channel = self.open_from(to, from, port, mode)?;
        if let Err(error) = self.wait_opened(channel, to, deadline) {
            self.abort(channel);
            return Err(error);
        }
        Ok(channel)
    }

    /// Waits until the peer at `to` has taken a connection that was opened to it.
    ///
    /// # Errors
    /// As [`Engine::connect`]; this end has closed it meanwhile. A connection whose time is over goes on being opened.
    pub fn wait_opened(&self, channel: ChannelId, to: Target, deadline: Option<Instant>) -> Result<(), Error> {
        self.wait_opened_by(channel, Some(Way::Direct(to).path()), deadline)
    }

    /// `only`: the path, if there is no other.
    pub(crate) fn wait_opened_by(
        &self,
        channel: ChannelId,
        only: Option<Path>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let inner = self.inner()?;
        let result = self.block(Subject::Channel(channel), deadline, |core, now| {
            if core.take_reports() {
                // It may have ended what another thread waits for.
                inner.tell(core);
            }
            let Some(readiness) = core.endpoint.readiness(channel) else { return Some(Err(Error::Closed)) };
            match readiness.failed {
                Some(code) => Some(Err(core.was_unreached(channel).unwrap_or(Error::Failed(code)))),
                None if readiness.opened => Some(Ok(())),
                None if core.is_cut_off() => Some(Err(Error::cut_off())),
                // Nothing is at that address, says the network, and nothing has answered.
                None => {
                    // Nor does it of a peer that is known, whatever the path: that one answers, or is silent.
                    let is_open = |path| core.endpoint.statistics_of(now, &path).is_some_and(|peer| peer.is_open);
                    let only = only.filter(|&path| !is_open(path));
                    only.and_then(|path| core.was_unreachable(&path)).map(Err)
                }
            }
        });
        result.map_err(|error| self.with_hint(channel, error))
    }

    /// Waits until the connection is ready for `interest`, or failed.
    ///
    /// # Errors
    /// The time is over, or this end closed it.
    pub fn wait(&self, channel: ChannelId, interest: Interest, deadline: Option<Instant>) -> Result<Readiness, Error> {
        self.block(Subject::Channel(channel), deadline, |core, _| {
            let Some(readiness) = core.endpoint.readiness(channel) else { return Some(Err(Error::Closed)) };
            let is_ready = interest.read && readiness.readable
                || interest.write && readiness.writable
                || readiness.failed.is_some();
            is_ready.then_some(Ok(readiness))
        })
    }

    /// Waits until one of these connections can be read, failed, or was closed at this end, and gives its place among them. Looks from place `first` on, so that a caller that goes round passes
    /// nobody over.
    ///
    /// # Errors
    /// The time is over.
    pub fn wait_any(&self, channels: &[ChannelId], first: usize, deadline: Option<Instant>) -> Result<usize, Error> {
        let mut flushed = false;
        self.block(Subject::AnyChannel, deadline, |core, _| {
            let mut places = (0..channels.len()).map(|step| (first + step) % channels.len());
            let is_ready = |core: &mut Core, place: usize| {
                let readiness = core.endpoint.readiness(channels[place]);
                readiness.is_none_or(|readiness| readiness.readable || readiness.failed.is_some())
            };
            let found = places.find(|&place| is_ready(core, place));
            if found.is_none() && !std::mem::replace(&mut flushed, true) {
                // As in `recv`: questions leave before anybody waits for answers.
                channels.iter().for_each(|&channel| core.endpoint.flush(channel));
            }
            found.map(Ok)
        })
    }

    /// What can be done with a connection now; `None` when this end has closed it.
    pub fn readiness(&self, channel: ChannelId) -> Option<Readiness> {
        self.attempt(Subject::Channel(channel), |core, _| Ok(core.endpoint.readiness(channel))).ok().flatten()
    }

    /// The peer's address, and the ports, local first.
    pub fn addresses(&self, channel: ChannelId) -> Option<(Address, u16, u16)> {
        self.way_of(channel).map(|(way, local, remote)| (way.target().address, local, remote))
    }

    /// The length of the next whole message.
    pub fn message_bytes(&self, channel: ChannelId) -> Option<usize> {
        self.inner().ok()?.lock().endpoint.message_bytes(channel)
    }

    /// The longest message that can be sent on a connection; 0 while it is being opened.
    pub fn longest_message(&self, channel: ChannelId) -> Option<u64> {
        self.inner().ok()?.lock().endpoint.longest_message(channel)
    }

    /// Small sends leave at once.
    pub fn set_no_delay(&self, channel: ChannelId, on: bool) {
        if let Ok(inner) = self.inner() {
            inner.lock().endpoint.set_no_delay(channel, on);
        }
    }

    /// A command that never waits.
    pub(crate) fn attempt<T>(
        &self,
        subject: Subject,
        act: impl FnOnce(&mut Core, Time) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        let now = inner.now();
        inner.note_call(&mut core, now);
        if core.poller == Poller::Nobody {
            core.turn(now);
        }
        let result = act(&mut core, now);
        // What takes long looks at the links, and at the clock, itself.
        let now = now.max(core.turned_at());
        inner.follow_up(&mut core, now);
        core.refresh_watches(subject);
        result
    }
}

/// Everything but "would block" ends a wait.
pub(crate) fn fatal<T>(error: Error) -> Option<Result<T, Error>> {
    match error {
        Error::WouldBlock => None,
        error => Some(Err(error)),
    }
}

/// From the kernel, which needs no file for that.
pub(crate) fn random<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}
