//! A socket as C has it: first nothing in particular, then bound, and then a listener or a connection.

use crate::failure::{Failure, Outcome};
use crate::table::Table;
use ropeway_socket::api::Watch;
use ropeway_socket::{Address, Listener, Local, MessageListener, MessageSocket, Stream};
use std::ffi::c_int;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All of this process.
pub static SOCKETS: Table<Socket> = Table::new();

/// What a connection carries. The numbers are those of `SOCK_STREAM` and `SOCK_SEQPACKET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stream,
    Messages,
}

impl Kind {
    pub fn number(self) -> c_int {
        match self {
            Kind::Stream => libc::SOCK_STREAM,
            Kind::Messages => libc::SOCK_SEQPACKET,
        }
    }
}

/// A connection of either kind.
pub enum Connection {
    Stream(Stream),
    Messages(MessageSocket),
}

/// A listener of either kind.
pub enum Entrance {
    Streams(Listener),
    Messages(MessageListener),
}

/// The same for both kinds.
macro_rules! either {
    ($which:expr, $type:ident :: { $a:ident | $b:ident }, $name:ident => $body:expr) => {
        match $which {
            $type::$a($name) => $body,
            $type::$b($name) => $body,
        }
    };
}

macro_rules! connection {
    ($which:expr, $name:ident => $body:expr) => {
        either!($which, Connection::{ Stream | Messages }, $name => $body)
    };
}

macro_rules! entrance {
    ($which:expr, $name:ident => $body:expr) => {
        either!($which, Entrance::{ Streams | Messages }, $name => $body)
    };
}

enum State {
    Fresh,
    Bound(Local),
    /// A thread waits in `connect`.
    Connecting,
    Listening(Arc<Entrance>),
    Connected(Arc<Connection>),
}

/// What can be set before there is a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub receive_limit: Option<Duration>,
    pub send_limit: Option<Duration>,
    pub linger: Option<Duration>,
    pub no_delay: bool,
}

pub struct Socket {
    pub kind: Kind,
    nonblocking: AtomicBool,
    options: Mutex<Options>,
    state: Mutex<State>,
}

fn invalid(what: &str) -> Failure {
    Failure::new(libc::EINVAL, what)
}

fn not_connected() -> Failure {
    Failure::new(libc::ENOTCONN, "the socket is not connected")
}

impl Socket {
    /// # Errors
    /// There is no such type.
    pub fn new(kind: c_int) -> Outcome<Socket> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = match kind & !flags {
            libc::SOCK_STREAM => Kind::Stream,
            libc::SOCK_SEQPACKET => Kind::Messages,
            other => {
                let what = format!("{other} is no type of socket; ROPEWAY_STREAM and ROPEWAY_MESSAGES are");
                return Err(Failure::new(libc::EPROTOTYPE, what));
            }
        };
        Ok(Socket::with(kind, State::Fresh, Options::default(), nonblocking))
    }

    fn with(kind: Kind, state: State, options: Options, nonblocking: bool) -> Socket {
        let (options, state) = (Mutex::new(options), Mutex::new(state));
        Socket { kind, nonblocking: AtomicBool::new(nonblocking), options, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn options(&self) -> Options {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// # Errors
    /// The process was forked.
    pub fn set_nonblocking(&self, on: bool) -> Outcome<()> {
        self.nonblocking.store(on, Ordering::Relaxed);
        match &*self.state() {
            State::Connected(connection) => Ok(connection!(&**connection, one => one.set_nonblocking(on))?),
            State::Listening(entrance) => Ok(entrance!(&**entrance, one => one.set_nonblocking(on))?),
            _ => Ok(()),
        }
    }

    /// Changes options, of the connection too if there is one.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) -> Outcome<()> {
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut options);
        let options = *options;
        match &*self.state() {
            State::Connected(connection) => apply(connection, &options),
            State::Listening(entrance) => {
                Ok(entrance!(&**entrance, one => one.set_accept_timeout(options.receive_limit))?)
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// It is bound, or the address cannot be had.
    pub fn bind(&self, at: &Address) -> Outcome<()> {
        let mut state = self.state();
        match &*state {
            State::Fresh => *state = State::Bound(Local::bind(at)?),
            _ => return Err(invalid("the socket has an address already")),
        }
        Ok(())
    }

    /// # Errors
    /// It is no socket to listen with.
    pub fn listen(&self, backlog: c_int) -> Outcome<()> {
        // As the kernel has it: too little or too much is what comes nearest.
        let backlog = usize::try_from(backlog).unwrap_or(0);
        let mut state = self.state();
        let local = match &*state {
            State::Bound(local) => local,
            State::Listening(_) => return Ok(()),
            State::Fresh => {
                return Err(Failure::new(libc::EDESTADDRREQ, "bind the socket to an address before it listens there"));
            }
            _ => return Err(invalid("the socket is connected")),
        };
        let entrance = match self.kind {
            Kind::Stream => Entrance::Streams(Listener::bind_to(local, backlog)?),
            Kind::Messages => Entrance::Messages(MessageListener::bind_to(local, backlog)?),
        };
        entrance!(&entrance, one => one.set_nonblocking(self.is_nonblocking()))?;
        entrance!(&entrance, one => one.set_accept_timeout(self.options().receive_limit))?;
        *state = State::Listening(Arc::new(entrance));
        Ok(())
    }

    fn entrance(&self) -> Outcome<Arc<Entrance>> {
        match &*self.state() {
            State::Listening(entrance) => Ok(entrance.clone()),
            _ => Err(invalid("the socket does not listen")),
        }
    }

    pub fn connection(&self) -> Outcome<Arc<Connection>> {
        match &*self.state() {
            State::Connected(connection) => Ok(connection.clone()),
            _ => Err(not_connected()),
        }
    }

    pub fn is_listening(&self) -> bool {
        matches!(&*self.state(), State::Listening(_))
    }

    /// A new socket for a connection that waits, and where it comes from.
    ///
    /// # Errors
    /// `EAGAIN`; it does not listen (any more).
    pub fn accept(&self) -> Outcome<(Socket, Address)> {
        let entrance = self.entrance()?;
        let (connection, peer) = match &*entrance {
            Entrance::Streams(listener) => {
                let (stream, peer) = listener.accept()?;
                (Connection::Stream(stream), peer)
            }
            Entrance::Messages(listener) => {
                let (socket, peer) = listener.accept()?;
                (Connection::Messages(socket), peer)
            }
        };
        let options = self.options();
        apply(&connection, &options)?;
        Ok((Socket::with(self.kind, State::Connected(Arc::new(connection)), options, false), peer))
    }

    /// # Errors
    /// `EINPROGRESS`: it goes on by itself; the peer refused, is silent, or cannot be reached.
    pub fn connect(&self, to: &Address) -> Outcome<()> {
        let local = self.begin_to_connect()?;
        let connected = self.try_connect(to, local.as_ref());
        let mut state = self.state();
        match connected {
            Ok(connection) => {
                *state = State::Connected(Arc::new(connection));
                drop(state);
                if self.is_nonblocking() {
                    return Err(Failure::new(libc::EINPROGRESS, "the connection is being opened"));
                }
                Ok(())
            }
            Err(failure) => {
                *state = local.map_or(State::Fresh, State::Bound);
                Err(failure)
            }
        }
    }

    /// Leaves word that this thread connects.
    fn begin_to_connect(&self) -> Outcome<Option<Local>> {
        let mut state = self.state();
        let connection = match &*state {
            State::Fresh | State::Bound(_) => {
                return Ok(match std::mem::replace(&mut *state, State::Connecting) {
                    State::Bound(local) => Some(local),
                    _ => None,
                });
            }
            State::Listening(_) => return Err(Failure::new(libc::EOPNOTSUPP, "the socket listens")),
            State::Connecting => return Err(Failure::new(libc::EALREADY, "the connection is being opened")),
            State::Connected(connection) => connection.clone(),
        };
        drop(state);
        Err(match connection!(&*connection, one => one.is_connected())? {
            true => Failure::new(libc::EISCONN, "the socket is connected"),
            false => Failure::new(libc::EALREADY, "the connection is being opened"),
        })
    }

    fn try_connect(&self, to: &Address, local: Option<&Local>) -> Outcome<Connection> {
        /// The same for both kinds.
        macro_rules! open {
            ($kind:ident) => {
                match (self.is_nonblocking(), local, self.options().send_limit) {
                    (true, None, _) => $kind::connect_nonblocking(to),
                    (true, Some(local), _) => $kind::connect_nonblocking_from(local, to),
                    (false, None, None) => $kind::connect(to),
                    (false, None, Some(limit)) => $kind::connect_timeout(to, limit),
                    (false, Some(local), limit) => $kind::connect_from(local, to, limit),
                }?
            };
        }
        let connection = match self.kind {
            Kind::Stream => Connection::Stream(open!(Stream)),
            Kind::Messages => Connection::Messages(open!(MessageSocket)),
        };
        apply(&connection, &self.options())?;
        Ok(connection)
    }

    /// # Errors
    /// It has no address yet.
    pub fn local(&self) -> Outcome<Address> {
        Ok(match &*self.state() {
            State::Bound(local) => local.local_addr()?,
            State::Listening(entrance) => entrance!(&**entrance, one => one.local_addr())?,
            State::Connected(connection) => connection!(&**connection, one => one.local_addr())?,
            State::Fresh | State::Connecting => return Err(invalid("the socket has no address yet")),
        })
    }

    pub fn peer(&self) -> Outcome<Address> {
        Ok(connection!(&*self.connection()?, one => one.peer_addr())?)
    }

    pub fn watch(&self) -> Outcome<Watch> {
        Ok(match &*self.state() {
            State::Listening(entrance) => entrance!(&**entrance, one => one.watch())?,
            State::Connected(connection) => connection!(&**connection, one => one.watch())?,
            _ => return Err(not_connected()),
        })
    }

    /// The error of the connection, if it has ended with one.
    pub fn error(&self) -> Outcome<c_int> {
        let Ok(connection) = self.connection() else { return Ok(0) };
        let error = connection!(&*connection, one => one.take_error())?;
        Ok(error.map_or(0, |error| Failure::from(error).errno))
    }

    /// What `close` does beyond taking the handle away: threads that wait on this socket return.
    pub fn close(self: Arc<Self>) {
        let state = std::mem::replace(&mut *self.state(), State::Fresh);
        match state {
            State::Listening(entrance) => entrance!(&*entrance, one => one.close()),
            // Alone it ends in order by itself; a thread that is in a call with it has a share of its own.
            State::Connected(connection) if Arc::strong_count(&connection) > 1 => {
                let _ = connection!(&*connection, one => one.shutdown(Shutdown::Both));
            }
            _ => {}
        }
    }
}

fn apply(connection: &Connection, options: &Options) -> Outcome<()> {
    connection!(connection, one => {
        one.set_read_timeout(options.receive_limit)?;
        one.set_write_timeout(options.send_limit)?;
        one.set_linger(options.linger)?;
        one.set_nodelay(options.no_delay)?;
    });
    Ok(())
}

impl Connection {
    pub fn shutdown(&self, how: c_int) -> Outcome<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(invalid("shutdown takes SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        Ok(connection!(self, one => one.shutdown(how))?)
    }

    pub fn drain(&self, limit: Option<Duration>) -> Outcome<()> {
        Ok(connection!(self, one => one.drain(limit))?)
    }

    /// # Errors
    /// As `send`, of which `flags` are a part.
    pub fn send(&self, bytes: &[u8], flags: c_int) -> Outcome<usize> {
        // No signal is ever sent; whether more follows is of no interest here.
        let known = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE | libc::MSG_EOR;
        check_flags(flags, known)?;
        let now = flags & libc::MSG_DONTWAIT != 0;
        Ok(match self {
            Connection::Stream(stream) if now => stream.try_write(bytes)?,
            Connection::Stream(stream) => std::io::Write::write(&mut &*stream, bytes)?,
            Connection::Messages(socket) if now => socket.try_send(bytes).map(|()| bytes.len())?,
            Connection::Messages(socket) => socket.send(bytes).map(|()| bytes.len())?,
        })
    }

    /// # Errors
    /// As `recv`, of which `flags` are a part.
    pub fn recv(&self, out: &mut [u8], flags: c_int) -> Outcome<usize> {
        match self {
            Connection::Stream(stream) => recv_stream(stream, out, flags),
            Connection::Messages(socket) => {
                check_flags(flags, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL)?;
                let count = if flags & libc::MSG_DONTWAIT != 0 { socket.try_recv(out) } else { socket.recv(out) };
                Ok(count?.unwrap_or(0))
            }
        }
    }

    /// The longest message, for those of messages.
    pub fn max_message(&self) -> Outcome<u64> {
        Ok(self.messages()?.max_message_len())
    }

    /// The length of the next message, which is there; `None` at the end.
    pub fn next_message(&self) -> Outcome<Option<usize>> {
        Ok(self.messages()?.try_next_len()?)
    }

    /// Whether the peer has closed and everything was read.
    pub fn is_ended(&self) -> Outcome<bool> {
        Ok(connection!(self, one => one.is_ended())?)
    }

    fn messages(&self) -> Outcome<&MessageSocket> {
        match self {
            Connection::Messages(socket) => Ok(socket),
            Connection::Stream(_) => Err(Failure::new(libc::ENOPROTOOPT, "a stream has no messages")),
        }
    }
}

fn check_flags(flags: c_int, known: c_int) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        other => Err(Failure::new(libc::EOPNOTSUPP, format!("the flags {other:#x} have no meaning here"))),
    }
}

fn recv_stream(stream: &Stream, out: &mut [u8], flags: c_int) -> Outcome<usize> {
    check_flags(flags, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_WAITALL)?;
    let (peek, now) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_DONTWAIT != 0);
    let whole = flags & libc::MSG_WAITALL != 0 && !peek && !now;
    let mut filled = 0;
    loop {
        let result = match (peek, now) {
            (true, true) => stream.try_peek(out),
            (true, false) => stream.peek(out),
            (false, true) => stream.try_read(out),
            (false, false) => std::io::Read::read(&mut &*stream, &mut out[filled..]),
        };
        match result {
            // What is there counts; the next call meets the error.
            Err(_) if filled > 0 => return Ok(filled),
            Err(error) => return Err(error.into()),
            Ok(count) => filled += count,
            // The end, or all that was wanted.
        }
        if !whole || filled == out.len() || matches!(result, Ok(0)) {
            return Ok(filled);
        }
    }
}
