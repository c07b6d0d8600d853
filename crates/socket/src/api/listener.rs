//! Taking connections.

use super::address::{Address, ToAddresses};
use super::connection::{Connection, Limit};
use super::errors::of_wait;
use super::home::{Binding, Home};
use super::local::Local;
use super::message::MessageSocket;
use super::stream::Stream;
use ropeway_engine::{Engine, Error, LinkId, Mode, Watch};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Connections that wait to be accepted, unless told otherwise: those of a cluster that starts at once. Who finds the queue full is refused.
pub const USUAL_BACKLOG: usize = 1024;

/// A port at which connections of one kind are taken.
struct Entrance {
    home: Arc<Home>,
    /// The right to the address, for as long as it is open: threads that are still about to leave `accept` do not hold it.
    binding: Mutex<Option<Arc<Binding>>>,
    port: u16,
    nonblocking: AtomicBool,
    limit: Limit,
    watch: OnceLock<Watch>,
    is_closed: AtomicBool,
}

impl Entrance {
    fn new(binding: Arc<Binding>, mode: Mode, backlog: usize) -> io::Result<Entrance> {
        let home = binding.home().clone();
        let port = home.engine().listen(binding.port(), mode, backlog)?;
        Ok(Entrance {
            home,
            binding: Mutex::new(Some(binding)),
            port,
            nonblocking: AtomicBool::new(false),
            limit: Limit::default(),
            watch: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        })
    }

    fn engine(&self) -> &Engine {
        self.home.engine()
    }

    fn accept(&self, now: bool) -> io::Result<Connection> {
        // The engine asks under its lock, and whoever listens there next does so behind the end of this one.
        let listens = || !self.is_closed.load(Ordering::Acquire);
        loop {
            let channel = if now || self.nonblocking.load(Ordering::Relaxed) {
                self.engine().try_accept_while(self.port, listens)
            } else {
                self.engine().accept_while(self.port, self.limit.deadline(), listens)
            };
            // One that ended while it waited has no address any more; nobody would miss it.
            if let Some(connection) = Connection::accepted(self.home.clone(), channel.map_err(of_wait)?) {
                return Ok(connection);
            }
        }
    }

    fn local(&self) -> io::Result<Address> {
        Ok(self.home.name(self.home.local().ok_or(Error::Forked)?, self.port))
    }

    fn set_backlog(&self, backlog: usize) -> io::Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed.into());
        }
        Ok(self.engine().set_backlog(self.port, backlog)?)
    }

    fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            // In a forked child it is the parent's.
            let _ = self.engine().unlisten(self.port);
            // Behind it: who has the address next finds nobody at its port.
            drop(self.binding.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    fn watch(&self) -> io::Result<Watch> {
        super::common::kept_watch(&self.watch, self.engine(), |engine| engine.watch_port_like_socket(self.port))
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.close();
        if let Some(watch) = self.watch.get() {
            // It may have been asked for behind the close.
            self.engine().unwatch(watch);
        }
    }
}

macro_rules! listener {
    ($(#[$about:meta])* $name:ident, $incoming:ident, $connection:ident, $mode:expr) => {
        $(#[$about])*
        ///
        /// Dropping it resets connections that nobody has accepted, and frees the address when the accepted ones are gone too (this process can listen there again
        /// at once).
        pub struct $name {
            entrance: Entrance,
        }

        impl $name {
            /// Listens at the first address that works. Port 0 takes one that is free.
            ///
            /// # Errors
            /// `AddrInUse`, `AddrNotAvailable`; `PermissionDenied` for a packet link without `CAP_NET_RAW`; `ResourceBusy` where AF_XDP is asked for and another
            /// process has the device.
            pub fn bind(at: impl ToAddresses) -> io::Result<Self> {
                Self::bind_with_backlog(at, USUAL_BACKLOG)
            }

            /// The same, with at most `backlog` connections waiting to be accepted.
            ///
            /// # Errors
            /// As [`Self::bind`].
            pub fn bind_with_backlog(at: impl ToAddresses, backlog: usize) -> io::Result<Self> {
                Self::bind_to(&Local::bind(at)?, backlog)
            }

            /// Listens at one address with several engines, which have a socket and a lock each: threads that take one of these each, and serve what it accepts, share nothing. The kernel brings
            /// a peer to one of them when it connects, and there it stays; all connections of one peer's engine are in one place. They are dropped together, or the address is not free; this process can listen
            /// there again at once with as many.
            ///
            /// # Errors
            /// As [`Local::bind_workers`].
            pub fn bind_workers(at: impl ToAddresses, workers: usize) -> io::Result<Vec<Self>> {
                Local::bind_workers(at, workers)?.iter().map(|local| Self::bind_to(local, USUAL_BACKLOG)).collect()
            }

            /// Listens at an address that was taken before.
            ///
            /// # Errors
            /// Somebody listens there.
            pub fn bind_to(local: &Local, backlog: usize) -> io::Result<Self> {
                Ok(Self { entrance: Entrance::new(local.binding.clone(), $mode, backlog)? })
            }

            /// Listens at `port` of an engine of one's own, which is reached under the address of `link`. It encrypts with the keys it was made with, and with none by default:
            /// [`cluster::keys`](super::cluster::keys)`(false)?.keys` are the cluster's.
            ///
            /// # Errors
            /// `AddrInUse`.
            pub fn bind_on(engine: &Engine, link: LinkId, port: u16, backlog: usize) -> io::Result<Self> {
                Ok(Self { entrance: Entrance::new(Arc::new(Binding::of(engine, link, port)), $mode, backlog)? })
            }

            /// Waits for a connection, and says where it comes from.
            ///
            /// # Errors
            /// `WouldBlock`, if told not to wait, or not any longer.
            pub fn accept(&self) -> io::Result<($connection, Address)> {
                let connection = self.entrance.accept(false)?;
                let peer = connection.peer().clone();
                Ok(($connection::of(connection), peer))
            }

            /// Takes a connection that is there, without waiting whatever the options say.
            ///
            /// # Errors
            /// `WouldBlock`; it was closed.
            pub fn try_accept(&self) -> io::Result<($connection, Address)> {
                let connection = self.entrance.accept(true)?;
                let peer = connection.peer().clone();
                Ok(($connection::of(connection), peer))
            }

            /// Accepts for ever.
            pub fn incoming(&self) -> $incoming<'_> {
                $incoming { listener: self }
            }

            /// Where this listens.
            ///
            /// # Errors
            /// The process was forked.
            pub fn local_addr(&self) -> io::Result<Address> {
                self.entrance.local()
            }

            /// The port of the protocol.
            pub fn port(&self) -> u16 {
                self.entrance.port
            }

            /// Has up to `backlog` connections wait to be accepted from now on. Those that wait already stay.
            ///
            /// # Errors
            /// It was closed.
            pub fn set_backlog(&self, backlog: usize) -> io::Result<()> {
                self.entrance.set_backlog(backlog)
            }

            /// [`Self::accept`] fails with `WouldBlock` from now on where it would wait.
            pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
                self.entrance.nonblocking.store(on, Ordering::Relaxed);
                Ok(())
            }

            /// How long [`Self::accept`] waits.
            ///
            /// # Errors
            /// A limit of zero.
            pub fn set_accept_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                self.entrance.limit.set(limit)
            }

            /// Ends it before it is dropped: connections that nobody has accepted are reset, and threads that wait in [`Self::accept`] get an error. This process can listen
            /// there again at once, though such threads still are about to leave.
            pub fn close(&self) {
                self.entrance.close();
            }

            /// A descriptor for event loops: readable while a connection waits. Every call gives the same one.
            ///
            /// # Errors
            /// No descriptors left.
            pub fn watch(&self) -> io::Result<Watch> {
                self.entrance.watch()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("local", &self.entrance.local().ok()).finish()
            }
        }

        /// Connections as they come.
        #[derive(Debug)]
        pub struct $incoming<'a> {
            listener: &'a $name,
        }

        impl Iterator for $incoming<'_> {
            type Item = io::Result<$connection>;

            fn next(&mut self) -> Option<io::Result<$connection>> {
                Some(self.listener.accept().map(|(connection, _)| connection))
            }
        }
    };
}

listener! {
    /// Takes streams, as a `TcpListener` does.
    Listener, Incoming, Stream, Mode::Stream
}

listener! {
    /// Takes connections that carry messages.
    MessageListener, IncomingMessages, MessageSocket, Mode::Messages
}
