//! Taking connections.

use super::address::{Address, ToAddresses};
use super::common::first;
use super::connection::{Connection, Limit};
use super::errors::of_wait;
use super::home::{self, Home};
use super::message::MessageSocket;
use super::stream::Stream;
use ropeway_engine::{Engine, Error, LinkId, Mode, Watch};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Connections that wait to be accepted, unless told otherwise: those of a cluster that starts at once. Who finds the queue full is refused.
pub const USUAL_BACKLOG: usize = 1024;

/// A port at which connections of one kind are taken.
struct Entrance {
    home: Arc<Home>,
    port: u16,
    nonblocking: AtomicBool,
    limit: Limit,
    watch: OnceLock<Watch>,
}

impl Entrance {
    fn bind(at: &Address, mode: Mode, backlog: usize) -> io::Result<Entrance> {
        let (home, port) = home::to_listen(&at.to_listen()?)?;
        Entrance::new(home, port, mode, backlog)
    }

    fn new(home: Arc<Home>, port: u16, mode: Mode, backlog: usize) -> io::Result<Entrance> {
        let port = home.engine().listen(port, mode, backlog)?;
        Ok(Entrance {
            home,
            port,
            nonblocking: AtomicBool::new(false),
            limit: Limit::default(),
            watch: OnceLock::new(),
        })
    }

    fn accept(&self) -> io::Result<Connection> {
        loop {
            let channel = if self.nonblocking.load(Ordering::Relaxed) {
                self.home.engine().try_accept(self.port)
            } else {
                self.home.engine().accept(self.port, self.limit.deadline())
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

    fn watch(&self) -> io::Result<Watch> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch.clone());
        }
        let fresh = self.home.engine().watch_port_like_socket(self.port)?;
        Ok(self.watch.get_or_init(|| fresh).clone())
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        // In a forked child it is the parent's.
        let _ = self.home.engine().unlisten(self.port);
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
            /// `AddrInUse`, `AddrNotAvailable`; `PermissionDenied` for a packet link without `CAP_NET_RAW`.
            pub fn bind(at: impl ToAddresses) -> io::Result<Self> {
                Self::bind_with_backlog(at, USUAL_BACKLOG)
            }

            /// The same, with at most `backlog` connections waiting to be accepted.
            ///
            /// # Errors
            /// As [`Self::bind`].
            pub fn bind_with_backlog(at: impl ToAddresses, backlog: usize) -> io::Result<Self> {
                first(at, |at| Ok(Self { entrance: Entrance::bind(&at, $mode, backlog)? }))
            }

            /// Listens at `port` of an engine of one's own, which is reached under the address of `link`.
            ///
            /// # Errors
            /// `AddrInUse`.
            pub fn bind_on(engine: &Engine, link: LinkId, port: u16, backlog: usize) -> io::Result<Self> {
                Ok(Self { entrance: Entrance::new(Home::of(engine, link), port, $mode, backlog)? })
            }

            /// Waits for a connection, and says where it comes from.
            ///
            /// # Errors
            /// `WouldBlock`, if told not to wait, or not any longer.
            pub fn accept(&self) -> io::Result<($connection, Address)> {
                let connection = $connection::of(self.entrance.accept()?);
                let peer = connection.peer_addr()?;
                Ok((connection, peer))
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
