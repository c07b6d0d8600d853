//! What streams and message sockets have in common, written once.

/// Methods of a type with a field `connection: Arc<Connection>`, whose connections carry `$mode`.
macro_rules! connection_methods {
    ($mode:expr) => {
        /// Connects to the first address that answers.
        ///
        /// # Errors
        /// `ConnectionRefused`: nobody listens there, or not for this type, or its queue is full. `TimedOut`: nobody answers, nor refuses, as over raw frames. `ConnectionReset`: the keys
        /// differ, or only one end has any. What else the network or this host says of the
        /// destination: `HostUnreachable` (also where packets are too long for the way, which the text says), `NetworkUnreachable`, `PermissionDenied`.
        pub fn connect(to: impl ToAddresses) -> io::Result<Self> {
            super::common::first(to, |to| Self::connect_by(&to, None))
        }

        /// Connects, and gives up after `limit`.
        ///
        /// # Errors
        /// As [`Self::connect`].
        pub fn connect_timeout(to: &Address, limit: Duration) -> io::Result<Self> {
            Self::connect_by(to, Instant::now().checked_add(limit))
        }

        fn connect_by(to: &Address, deadline: Option<Instant>) -> io::Result<Self> {
            Connection::connect(super::common::way(to, deadline)?, $mode, deadline).map(Self::of)
        }

        /// Begins to connect and does not wait. The result is non-blocking; it becomes writable when [`Self::is_connected`] has news.
        ///
        /// # Errors
        /// What can be known without the peer. `HostUnreachable` where `ROPEWAY_LINK` names a device and who has the IP address there is not known yet, nor within milliseconds: it
        /// is asked meanwhile, and the next try finds it. [`Address::to_connect_by`] waits.
        pub fn connect_nonblocking(to: &Address) -> io::Result<Self> {
            let way = super::common::way(to, super::neighbor::nonblocking_deadline())?;
            Connection::open(way, $mode).map(Self::of)
        }

        /// Connects from an address that was taken before, and gives up after `limit`.
        ///
        /// # Errors
        /// As [`Self::connect`].
        pub fn connect_from(local: &Local, to: &Address, limit: Option<Duration>) -> io::Result<Self> {
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            Connection::connect(super::common::way_from(local, to, deadline)?, $mode, deadline).map(Self::of)
        }

        /// Begins to connect from an address that was taken before: [`Self::connect_nonblocking`].
        ///
        /// # Errors
        /// As [`Self::connect_nonblocking`].
        pub fn connect_nonblocking_from(local: &Local, to: &Address) -> io::Result<Self> {
            let way = super::common::way_from(local, to, super::neighbor::nonblocking_deadline())?;
            Connection::open(way, $mode).map(Self::of)
        }

        /// Connects over an engine of one's own, to `port` of the engine that is at `target`. The engine encrypts with the keys it was made with, and with none by
        /// default: [`cluster::keys`](super::cluster::keys)`(false)?.keys` are the cluster's.
        ///
        /// # Errors
        /// As [`Self::connect`].
        pub fn connect_on(engine: &Engine, target: Target, port: u16, limit: Option<Duration>) -> io::Result<Self> {
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            let way = Way::direct(Home::of(engine, target.link), target.address, (None, port));
            Connection::connect(way, $mode, deadline).map(Self::of)
        }

        /// The same over any of several ways, of which the first is the default: further addresses of the engine, or gateways before it
        /// ([docs](../../../../docs/engine.md#routes)). Behind gateways, [`Self::peer_addr`] is [`Address::Node`].
        ///
        /// # Errors
        /// As [`Self::connect`]. `InvalidInput`: there is no way; `Unsupported`: one is over a link that the engine has not, or through a gateway and it was made
        /// without `gateways`.
        pub fn connect_over(
            engine: &Engine,
            routes: &Routes<'_>,
            port: u16,
            limit: Option<Duration>,
        ) -> io::Result<Self> {
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            Connection::connect(super::common::way_over(engine, routes, port)?, $mode, deadline).map(Self::of)
        }

        pub(super) fn of(connection: Connection) -> Self {
            Self { connection: Arc::new(connection) }
        }

        /// After [`Self::connect_nonblocking`]: whether the peer has taken the connection.
        ///
        /// # Errors
        /// It refused, or did not answer in time.
        pub fn is_connected(&self) -> io::Result<bool> {
            self.connection.is_connected()
        }

        /// After [`Self::connect_nonblocking`]: waits until the peer has taken the connection, whatever the options say.
        ///
        /// # Errors
        /// As [`Self::connect`]. `TimedOut` after `limit`; it goes on being opened. `NotConnected`: it was aborted meanwhile.
        pub fn wait_connected(&self, limit: Option<Duration>) -> io::Result<()> {
            self.connection.wait_connected(limit.and_then(|limit| Instant::now().checked_add(limit)))
        }

        /// Whether no more can be read: the peer has closed, or reading was ended here, and everything was read.
        ///
        /// # Errors
        /// This end has aborted the connection.
        pub fn is_ended(&self) -> io::Result<bool> {
            self.connection.is_ended()
        }

        /// Another handle of the same connection, with the same options. It ends with the last one.
        pub fn try_clone(&self) -> io::Result<Self> {
            Ok(Self { connection: self.connection.clone() })
        }

        /// Where the other end's link is; behind gateways, which node it is. Over UDP all connections of one engine share its port; together with [`Self::ports`] it
        /// is unique.
        ///
        /// # Errors
        /// `NotConnected`: the peer has not taken the connection, not yet or for good.
        pub fn peer_addr(&self) -> io::Result<Address> {
            let not_yet = || io::Error::new(io::ErrorKind::NotConnected, "the peer has not taken the connection");
            self.connection.was_taken().then(|| self.connection.peer().clone()).ok_or_else(not_yet)
        }

        /// Where this end's link is; of several, that of the first way.
        ///
        /// # Errors
        /// The process was forked.
        pub fn local_addr(&self) -> io::Result<Address> {
            self.connection.local()
        }

        /// The ports of the protocol, local first.
        pub fn ports(&self) -> (u16, u16) {
            self.connection.ports()
        }

        /// Ends one direction, or both. After `Write` the peer reads the end, after everything sent before; after `Read` this end does, after what has
        /// arrived, and threads that wait for more return.
        ///
        /// # Errors
        /// The connection has ended.
        pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
            self.connection.shutdown(how)
        }

        /// Ends the connection at once, whatever handles there are: the peer sees a reset, and calls of this end fail.
        pub fn abort(&self) {
            self.connection.abort();
        }

        /// Waits until the peer's engine has acknowledged everything sent.
        ///
        /// # Errors
        /// `TimedOut`; the connection failed before; `BrokenPipe`: the peer has closed, and what it had not taken by then was thrown away.
        pub fn drain(&self, limit: Option<Duration>) -> io::Result<()> {
            self.connection.drain(limit)
        }

        /// Calls that would wait fail with `WouldBlock` from now on.
        pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
            self.connection.set_nonblocking(on);
            Ok(())
        }

        /// How long a read waits; it fails with `WouldBlock` then.
        ///
        /// # Errors
        /// A limit of zero.
        pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
            self.connection.read_limit.set(limit)
        }

        pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.connection.read_limit.get())
        }

        /// How long a write waits; it fails with `WouldBlock` then, or says how much of a stream it took.
        ///
        /// # Errors
        /// A limit of zero.
        pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
            self.connection.write_limit.set(limit)
        }

        pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.connection.write_limit.get())
        }

        /// Small sends leave at once instead of waiting some microseconds for others to share a packet with.
        pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
            self.connection.set_no_delay(on);
            Ok(())
        }

        pub fn nodelay(&self) -> io::Result<bool> {
            Ok(self.connection.no_delay())
        }

        /// What the end of the last handle does. `None`: it returns at once, and what was sent is delivered behind it. A limit: it waits that long for the
        /// peer's acknowledgment, but not while the connection is being opened and nothing was written. Zero: the connection is reset.
        pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
            self.connection.set_linger(linger);
            Ok(())
        }

        pub fn linger(&self) -> io::Result<Option<Duration>> {
            Ok(self.connection.linger())
        }

        /// Whether the peer has taken the connection, or something was written that it has not: the end of the last handle lingers then, if it is to.
        pub fn has_begun(&self) -> bool {
            self.connection.has_begun()
        }

        /// The error that ended the connection, if one did; `BrokenPipe` if the peer has closed before it had all that was sent. Looking at it does not clear it.
        pub fn take_error(&self) -> io::Result<Option<io::Error>> {
            Ok(self.connection.failure())
        }

        /// A descriptor for event loops (epoll, poll, mio, tokio's `AsyncFd`): readable and writable when this is; after a refusal writable when what
        /// was refused fits. It says nothing after the last handle is gone. Every call gives the same one.
        ///
        /// # Errors
        /// No descriptors left.
        pub fn watch(&self) -> io::Result<Watch> {
            self.connection.watch()
        }
    };
}

pub(super) use connection_methods;

use super::address::{Address, ToAddresses};
use super::cluster;
use super::connection::Way;
use super::home::{self, Home};
use super::local::Local;
use ropeway_engine::gateway::engine_number;
use ropeway_engine::{Engine, Error, Routes, Watch};
use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The first success, or the last failure.
pub(super) fn first<T>(of: impl ToAddresses, act: impl Fn(Address) -> io::Result<T>) -> io::Result<T> {
    let mut result = Err(io::Error::new(ErrorKind::InvalidInput, "the name stands for no address"));
    for address in of.to_addresses()? {
        result = act(address);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The one watch of a socket, which `watch` begins when it is asked for first.
pub(super) fn kept_watch(
    kept: &OnceLock<Watch>,
    engine: &Engine,
    watch: impl FnOnce(&Engine) -> Result<Watch, Error>,
) -> io::Result<Watch> {
    if let Some(watch) = kept.get() {
        return Ok(watch.clone());
    }
    let fresh = watch(engine)?;
    kept.set(fresh.clone()).unwrap_or_else(|late| engine.unwatch(&late));
    Ok(kept.get().cloned().unwrap_or(fresh))
}

/// How `to` is reached, as far as that is known by the deadline.
pub(super) fn way(to: &Address, deadline: Option<Instant>) -> io::Result<Way> {
    let to = to.to_connect_by(deadline)?;
    if let Address::Node { node, port } = to {
        return to_node(home::of_node, node, (None, port));
    }
    let (home, address) = home::to_reach(&to)?;
    Ok(Way::direct(home, address, (None, to.port())))
}

/// The same from `local`.
pub(super) fn way_from(local: &Local, to: &Address, deadline: Option<Instant>) -> io::Result<Way> {
    let to = to.to_connect_by(deadline)?;
    let home = local.binding.home().clone();
    if home.has_siblings() {
        // From one port answers for several of them would be one flow, which network cards merge.
        let what = "an address of several workers is to listen at; to connect, bind an address for each";
        return Err(io::Error::new(ErrorKind::Unsupported, what));
    }
    if let Address::Node { node, port } = to {
        return to_node(|| Ok(home), node, (local.port, port));
    }
    let address = home.reach(&to)?;
    Ok(Way::direct(home, address, (local.port, to.port())))
}

/// How the peer behind `routes` is reached over an engine of one's own.
pub(super) fn way_over(engine: &Engine, routes: &Routes<'_>, port: u16) -> io::Result<Way> {
    let none = || io::Error::new(ErrorKind::InvalidInput, "there is no way to the peer: name one at least");
    let first = routes.ways.first().ok_or_else(none)?;
    let home = Home::of(engine, first.target().link);
    let peer = home.name_of_peer(first, port);
    Ok(Way { home, ways: routes.ways.to_vec(), bonded: routes.bonded, peer, from: None, port })
}

/// How a node of the cluster is reached.
fn to_node(
    home: impl FnOnce() -> io::Result<Arc<Home>>,
    node: u32,
    (from, port): (Option<u16>, u16),
) -> io::Result<Way> {
    let hops = cluster::ways_to(node)?;
    let home = home()?;
    let bonded = cluster::get()?.is_some_and(|cluster| cluster.is_bonded());
    let host = u16::try_from(node).unwrap_or_default();
    let mut ways = Vec::with_capacity(hops.len());
    // What leads over an Ethernet is an address of its own by now: `Address::to_connect`.
    for way in hops.iter().filter_map(|hop| hop.over_udp(home.link(), port, engine_number(host, port))) {
        home.reach(&home.name(way.target().address, port))?;
        ways.push(way);
    }
    let peer = match ways.first() {
        Some(ropeway_engine::Way::Direct(target)) => home.name(target.address, port),
        _ => Address::Node { node, port },
    };
    Ok(Way { home, ways, bonded, peer, from, port })
}
