//! Several engines as one: connections are spread over them and share nothing, so that each core can have its own (docs/engine.md).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ropeway_link::packet::{self, FieldMatch, PacketLink};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Link, Part, Steering, Width};
use ropeway_proto::{ChannelId, Mode};
use rustix::event::{PollFd, PollFlags};

use crate::core::LinkId;
use crate::engine::{Engine, Options, Target};
use crate::error::Error;
use crate::readiness::Watch;
use crate::sleep::until_told;

/// More would not fit into the steering bits beside those of other processes, and no machine profits from more on one address.
pub const MOST_WORKERS: usize = 64;

/// Where a packet says which worker it is for (docs/protocol.md 2.1, 2.3): the steering bits of the destination; of a packet that opens an association, the nonce.
const BY_ID: Steering = Steering {
    member: Part { offset: 4, width: Width::Four, mask: 0xFFF0_0000, shift: 20 },
    otherwise: Some(Part { offset: 32, width: Width::Four, mask: u32::MAX, shift: 0 }),
};

const MAKING: &str = "making a worker's link";

/// The sockets of [`Workers::over_udp`], for who wants to see them before the engines are made. A single one is as [`UdpLink::open`] makes it.
///
/// # Errors
/// As [`UdpLink::open`].
pub fn udp_links(count: usize, options: &udp::Options) -> io::Result<Vec<UdpLink>> {
    Workers::check(count)?;
    let mut local = options.local;
    let link = |member| {
        let group = (count > 1).then_some(udp::Group { member: member as u32, members: count as u32, steering: BY_ID });
        let link = UdpLink::open(&udp::Options { local, group, ..options.clone() })?;
        if let Address::Udp(bound) = link.local() {
            local = bound;
        }
        Ok(link)
    };
    let mut links: Vec<UdpLink> = (0..count).map(link).collect::<io::Result<_>>()?;
    if count > 1 {
        links.iter_mut().try_for_each(UdpLink::hear)?;
    }
    Ok(links)
}

/// The same of [`Workers::over_packet`].
///
/// # Errors
/// As [`PacketLink::open`].
pub fn packet_links(count: usize, options: &packet::Options) -> io::Result<Vec<PacketLink>> {
    Workers::check(count)?;
    let mut group = None;
    let link = |_| {
        if count == 1 {
            return PacketLink::open(options);
        }
        let fanout = Some(packet::Fanout { group, steering: BY_ID });
        // What comes before all are there would reach the wrong one.
        let link = PacketLink::open(&packet::Options { fanout, accept: vec![FieldMatch::NONE], ..options.clone() })?;
        group = Some(link.group()?);
        Ok(link)
    };
    let mut links: Vec<PacketLink> = (0..count).map(link).collect::<io::Result<_>>()?;
    if count > 1 {
        links.iter_mut().try_for_each(|link| link.accept(&options.accept))?;
    }
    Ok(links)
}

/// Engines that listen together and among which connections are spread.
#[derive(Clone)]
pub struct Workers {
    engines: Arc<[Engine]>,
    next: Arc<AtomicUsize>,
}

/// A port that all workers listen at.
pub struct Port {
    workers: Workers,
    port: u16,
    next: AtomicUsize,
}

impl Workers {
    /// The one link of each.
    pub const LINK: LinkId = LinkId(0);

    /// Whether there can be so many.
    ///
    /// # Errors
    /// There are none, or more than [`MOST_WORKERS`].
    pub fn check(count: usize) -> io::Result<()> {
        if (1..=MOST_WORKERS).contains(&count) {
            return Ok(());
        }
        let what = format!("an address has 1 to {MOST_WORKERS} workers, not {count}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// `count` engines, each with the link that `link` makes for it. Their ids carry the steering `options.steering` + 0, 1, ..., by which a link shared by all
    /// must tell whose packet it is.
    ///
    /// # Errors
    /// A link or an engine could not be made; `count` is 0 or more than [`MOST_WORKERS`].
    pub fn new(
        options: &Options,
        count: usize,
        mut link: impl FnMut(usize) -> io::Result<Box<dyn Link>>,
    ) -> Result<Workers, Error> {
        Workers::check(count).map_err(Error::link(MAKING))?;
        let engine = |worker: usize| {
            let engine = Engine::new(&Options { steering: options.steering + worker as u16, ..options.clone() })?;
            engine.add_link(link(worker).map_err(Error::link(MAKING))?)?;
            Ok(engine)
        };
        let engines: Result<Vec<Engine>, Error> = (0..count).map(engine).collect();
        Ok(Workers { engines: engines?.into(), next: Arc::default() })
    }

    /// The same over UDP: a socket for each worker, all at the address of `udp`, among which the kernel spreads what arrives: packets of open associations by the id that they
    /// are for, and those that open one by its nonce, so that all of an attempt meet the same engine.
    /// They are to listen: of what they connect to, the answers come to one port, and a network card that merges packets brings some of them to the wrong engine, which drops them, and they are sent
    /// again.
    ///
    /// # Errors
    /// As [`Workers::new`].
    pub fn over_udp(options: &Options, count: usize, udp: &udp::Options) -> Result<Workers, Error> {
        // The address is theirs alone, so the numbers may begin at 0: the kernel takes them modulo the members.
        let links = udp_links(count, udp).map_err(Error::link(MAKING))?;
        Workers::over(&Options { steering: 0, ..options.clone() }, links)
    }

    /// The same over an Ethernet device: a packet socket for each worker, in one fanout group. `options.steering` and the numbers behind it are for these workers alone: who
    /// shares the device with other processes gives `packet` filters that say so.
    ///
    /// # Errors
    /// As [`Workers::new`]; `options.steering` is no multiple of `count`, by which the kernel tells the workers apart.
    pub fn over_packet(options: &Options, count: usize, packet: &packet::Options) -> Result<Workers, Error> {
        if count > 0 && !usize::from(options.steering).is_multiple_of(count) {
            let what =
                format!("the steering of {count} workers begins at a multiple of {count}, not {}", options.steering);
            return Err(Error::link(MAKING)(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        Workers::over(options, packet_links(count, packet).map_err(Error::link(MAKING))?)
    }

    /// The same over links that were made before, by [`udp_links`] or [`packet_links`].
    ///
    /// # Errors
    /// As [`Workers::new`].
    pub fn over<L: Link + 'static>(options: &Options, links: Vec<L>) -> Result<Workers, Error> {
        let count = links.len();
        let mut links = links.into_iter();
        Workers::new(options, count, |_| Ok(Box::new(links.next().ok_or(io::ErrorKind::InvalidInput)?)))
    }

    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Listens at `port` in all workers (0: at one that is free in the first of them).
    ///
    /// # Errors
    /// The port is taken in one of them; then none of them listens.
    pub fn listen(&self, mut port: u16, mode: Mode, backlog: usize) -> Result<Port, Error> {
        let each = backlog.div_ceil(self.engines.len());
        for (place, engine) in self.engines.iter().enumerate() {
            match engine.listen(port, mode, each) {
                Ok(taken) => port = taken,
                Err(error) => {
                    self.engines[..place].iter().try_for_each(|engine| engine.unlisten(port))?;
                    return Err(error);
                }
            }
        }
        Ok(Port { workers: self.clone(), port, next: AtomicUsize::new(0) })
    }

    /// Opens a connection in the next worker of the round.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect(
        &self,
        to: Address,
        port: u16,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<(Engine, ChannelId), Error> {
        let engine = &self.engines[self.next.fetch_add(1, Ordering::Relaxed) % self.engines.len()];
        let channel = engine.connect(Target { link: Workers::LINK, address: to }, port, mode, deadline)?;
        Ok((engine.clone(), channel))
    }
}

impl Port {
    pub fn number(&self) -> u16 {
        self.port
    }

    /// Waits for a connection in any worker.
    ///
    /// # Errors
    /// The time is over.
    pub fn accept(&self, deadline: Option<Instant>) -> Result<(Engine, ChannelId), Error> {
        loop {
            // Another one first each time: no worker's queue is emptied at the cost of the others'.
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let engines = &self.workers.engines;
            for place in (first..first + engines.len()).map(|place| place % engines.len()) {
                match engines[place].try_accept(self.port) {
                    Err(Error::WouldBlock) => {}
                    other => return other.map(|channel| (engines[place].clone(), channel)),
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::TimedOut);
            }
            self.sleep(left)?;
        }
    }

    /// Watched only meanwhile: a watch that stays would have the helpers poll for it.
    fn sleep(&self, limit: Option<Duration>) -> Result<(), Error> {
        let engines = &self.workers.engines;
        let mut watches = Vec::new();
        let watched = engines.iter().try_for_each(|engine| {
            watches.push(engine.watch_port(self.port)?);
            Ok(())
        });
        let unwatch = |watches: &[Watch]| engines.iter().zip(watches).for_each(|(engine, watch)| engine.unwatch(watch));
        if let Err(error) = watched {
            unwatch(&watches);
            return Err(error);
        }
        let fds = watches.iter().map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        until_told(&mut fds, limit);
        unwatch(&watches);
        Ok(())
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for engine in &*self.workers.engines {
            let _ = engine.unlisten(self.port);
        }
    }
}
