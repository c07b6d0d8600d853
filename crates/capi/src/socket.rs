//! A socket as C has it: first nothing in particular, then bound, and then a listener or a connection.

use crate::connection::{Connection, connection, either};
use crate::failure::{Failure, Outcome};
use crate::guard::let_go;
use crate::table::Table;
use ropeway_socket::api::{Error, Watch, details};
use ropeway_socket::{Address, Listener, Local, MessageListener, MessageSocket, Stream};
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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

/// How often a thread in `drain` looks whether another one has closed the socket, which does not end what it waits for.
const DRAIN_LOOKS_EVERY: Duration = Duration::from_millis(50);

/// A listener of either kind.
pub enum Entrance {
    Streams(Listener),
    Messages(MessageListener),
}

macro_rules! entrance {
    ($which:expr, $name:ident => $body:expr) => {
        either!($which, Entrance::{ Streams | Messages }, $name => $body)
    };
}

enum State {
    Fresh,
    Bound(Local),
    /// A thread begins to connect; the address is that which was bound.
    Opening(Option<Local>),
    /// A thread waits in `connect` until the peer has taken this one.
    Connecting(Option<Local>, Arc<Connection>),
    Listening(Arc<Entrance>),
    Connected(Arc<Connection>),
    /// Calls that were under way when it was closed meet it like this.
    Closed,
}

/// What can be set before there is a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub receive_limit: Option<Duration>,
    pub send_limit: Option<Duration>,
    pub linger: Option<Duration>,
    pub no_delay: bool,
    /// Messages that were not read when it ends are thrown away. Otherwise they would reset the connection, as with TCP, and what was sent before might be lost.
    pub forgets_unread: bool,
}

pub struct Socket {
    pub kind: Kind,
    nonblocking: AtomicBool,
    options: Mutex<Options>,
    state: Mutex<State>,
    /// Whether the state is `Closed`, for who only asks for that: every call that receives does.
    closed: AtomicBool,
}

fn invalid(what: &str) -> Failure {
    Failure::new(libc::EINVAL, what)
}

fn not_connected() -> Failure {
    Failure::new(libc::ENOTCONN, "the socket is not connected")
}

pub fn closed() -> Failure {
    Failure::new(libc::EBADF, "the socket was closed by another thread during the call")
}

fn being_opened() -> Failure {
    Failure::new(libc::EALREADY, "the connection is being opened")
}

/// As the kernel has it: less than none is as many as can be.
fn most_waiting(backlog: c_int) -> usize {
    usize::try_from(backlog).unwrap_or(usize::MAX)
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
        let (nonblocking, closed) = (AtomicBool::new(nonblocking), AtomicBool::new(false));
        Socket { kind, nonblocking, options, state, closed }
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
        // The state's lock before that of the options, as everywhere.
        let state = self.state();
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut options);
        match &*state {
            State::Connected(connection) | State::Connecting(_, connection) => connection.apply(&options),
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
            State::Closed => return Err(closed()),
            _ => return Err(invalid("the socket has an address already")),
        }
        Ok(())
    }

    /// # Errors
    /// It is no socket to listen with.
    pub fn listen(&self, backlog: c_int) -> Outcome<()> {
        let mut state = self.state();
        let entrance = match &*state {
            State::Bound(local) => self.enter(local, backlog)?,
            State::Listening(entrance) => {
                return Ok(entrance!(&**entrance, one => one.set_backlog(most_waiting(backlog)))?);
            }
            State::Fresh => {
                return Err(Failure::new(libc::EDESTADDRREQ, "bind the socket to an address before it listens there"));
            }
            State::Closed => return Err(closed()),
            _ => return Err(invalid("the socket is connected")),
        };
        *state = State::Listening(Arc::new(entrance));
        Ok(())
    }

    /// Listens at an address that was taken for that.
    ///
    /// # Errors
    /// The socket is in use.
    pub fn listen_at(&self, at: &Address, backlog: c_int) -> Outcome<()> {
        let mut state = self.state();
        match &*state {
            State::Fresh => *state = State::Listening(Arc::new(self.enter(&Local::bind(at)?, backlog)?)),
            State::Closed => return Err(closed()),
            _ => return Err(invalid("the socket is in use")),
        }
        Ok(())
    }

    fn enter(&self, local: &Local, backlog: c_int) -> Outcome<Entrance> {
        let backlog = most_waiting(backlog);
        let entrance = match self.kind {
            Kind::Stream => Entrance::Streams(Listener::bind_to(local, backlog)?),
            Kind::Messages => Entrance::Messages(MessageListener::bind_to(local, backlog)?),
        };
        entrance!(&entrance, one => one.set_nonblocking(self.is_nonblocking()))?;
        entrance!(&entrance, one => one.set_accept_timeout(self.options().receive_limit))?;
        Ok(entrance)
    }

    fn entrance(&self) -> Outcome<Arc<Entrance>> {
        match &*self.state() {
            State::Listening(entrance) => Ok(entrance.clone()),
            State::Closed => Err(closed()),
            _ => Err(invalid("the socket does not listen")),
        }
    }

    pub fn connection(&self) -> Outcome<Arc<Connection>> {
        match &*self.state() {
            State::Connected(connection) => Ok(connection.clone()),
            State::Closed => Err(closed()),
            _ => Err(not_connected()),
        }
    }

    /// Moves data. Should the socket be closed meanwhile, the connection ends here.
    fn with_connection<R>(&self, act: impl FnOnce(&Connection) -> Outcome<R>) -> Outcome<R> {
        let connection = self.connection()?;
        let result = act(&connection);
        let_go(connection);
        result
    }

    pub fn is_listening(&self) -> bool {
        matches!(&*self.state(), State::Listening(_))
    }

    /// Whether nothing was done with it yet.
    pub fn is_fresh(&self) -> bool {
        matches!(&*self.state(), State::Fresh)
    }

    fn is_closed(&self) -> bool {
        // Pairs with the store in `close`.
        self.closed.load(Ordering::Acquire)
    }

    /// What a call on the connection or the listener came to. One that ended because the socket was closed says that, and not what became of the connection.
    fn unless_closed<T>(&self, result: Outcome<T>) -> Outcome<T> {
        result.map_err(|failure| if self.is_closed() { closed() } else { failure })
    }

    /// A new socket for a connection that waits, and where it comes from. `now`: without waiting whatever the options say.
    ///
    /// # Errors
    /// `EAGAIN`; it does not listen (any more).
    pub fn accept(&self, now: bool) -> Outcome<(Socket, Address)> {
        let entrance = self.entrance()?;
        /// The same for both kinds.
        macro_rules! take {
            ($listener:ident, $variant:ident) => {
                if now { $listener.try_accept() } else { $listener.accept() }
                    .map(|(connection, peer)| (Connection::$variant(connection), peer))
            };
        }
        let taken = match &*entrance {
            Entrance::Streams(listener) => take!(listener, Stream),
            Entrance::Messages(listener) => take!(listener, Messages),
        };
        let (connection, peer) = self.unless_closed(taken.map_err(Failure::from))?;
        let options = self.options();
        connection.apply(&options)?;
        Ok((Socket::with(self.kind, State::Connected(Arc::new(connection)), options, false), peer))
    }

    /// Connects, from the address that was bound if one was, or from `from`.
    ///
    /// # Errors
    /// `EINPROGRESS`: it goes on by itself; the peer refused, is silent, or cannot be reached.
    pub fn connect(&self, to: &Address, from: Option<&Local>) -> Outcome<()> {
        let bound = self.begin_to_connect()?;
        let from = from.or(bound.as_ref());
        let deadline = self.options().send_limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut result = self.try_connect(to, from, deadline);
        if matches!(&result, Err(failure) if failure.peer_went) {
            // Its engine, which was known, has just gone; who is there now is asked anew.
            result = self.try_connect(to, from, deadline);
        }
        let mut state = self.state();
        if matches!(&*state, State::Closed) {
            return Err(closed());
        }
        match result {
            Ok(connection) => {
                // Somebody may have changed them meanwhile.
                connection!(&*connection, one => one.set_nonblocking(self.is_nonblocking()))?;
                connection.apply(&self.options())?;
                let is_open = matches!(&*state, State::Connecting(..));
                *state = State::Connected(connection);
                if is_open { Ok(()) } else { Err(Failure::new(libc::EINPROGRESS, "the connection is being opened")) }
            }
            Err(failure) => {
                *state = bound.map_or(State::Fresh, State::Bound);
                Err(failure)
            }
        }
    }

    /// Leaves word that this thread connects, and says which address was bound.
    fn begin_to_connect(&self) -> Outcome<Option<Local>> {
        let mut state = self.state();
        let bound = match &*state {
            State::Fresh => None,
            State::Bound(local) => Some(local.clone()),
            State::Opening(_) | State::Connecting(..) => return Err(being_opened()),
            State::Listening(_) => return Err(Failure::new(libc::EOPNOTSUPP, "the socket listens")),
            State::Closed => return Err(closed()),
            State::Connected(connection) => {
                return Err(match connection!(&**connection, one => one.is_connected())? {
                    true => Failure::new(libc::EISCONN, "the socket is connected"),
                    false => being_opened(),
                });
            }
        };
        *state = State::Opening(bound.clone());
        Ok(bound)
    }

    /// Opens a connection and, unless the socket is told not to, waits until the peer has taken it; others can call that off by closing the socket.
    fn try_connect(&self, to: &Address, from: Option<&Local>, deadline: Option<Instant>) -> Outcome<Arc<Connection>> {
        // Who has the address is waited for here: what opens without waiting asks for moments only.
        let known = if self.is_nonblocking() { None } else { Some(to.to_connect_by(deadline)?) };
        let to = known.as_ref().unwrap_or(to);
        /// The same for both kinds.
        macro_rules! open {
            ($kind:ident) => {
                match from {
                    None => $kind::connect_nonblocking(to),
                    Some(local) => $kind::connect_nonblocking_from(local, to),
                }?
            };
        }
        let connection = Arc::new(match self.kind {
            Kind::Stream => Connection::Stream(open!(Stream)),
            Kind::Messages => Connection::Messages(open!(MessageSocket)),
        });
        connection.apply(&self.options())?;
        if self.is_nonblocking() {
            return Ok(connection);
        }
        let mut state = self.state();
        match &mut *state {
            State::Closed => return Err(closed()),
            State::Opening(bound) | State::Connecting(bound, _) => {
                *state = State::Connecting(bound.take(), connection.clone());
            }
            _ => {}
        }
        drop(state);
        let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match connection!(&*connection, one => one.wait_connected(limit)) {
            Ok(()) => Ok(connection),
            Err(error) => {
                connection!(&*connection, one => one.abort());
                Err(error.into())
            }
        }
    }

    /// # Errors
    /// It has no address yet.
    pub fn local(&self) -> Outcome<Address> {
        Ok(match &*self.state() {
            State::Bound(local) => local.local_addr()?,
            State::Listening(entrance) => entrance!(&**entrance, one => one.local_addr())?,
            State::Connected(connection) | State::Connecting(_, connection) => {
                connection!(&**connection, one => one.local_addr())?
            }
            State::Opening(Some(local)) => local.local_addr()?,
            State::Closed => return Err(closed()),
            State::Fresh | State::Opening(None) => return Err(invalid("the socket has no address yet")),
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

    /// # Errors
    /// As [`Connection::send`]; it was closed meanwhile.
    pub fn send(&self, bytes: &[u8], flags: c_int) -> Outcome<usize> {
        self.with_connection(|connection| self.unless_closed(connection.send(bytes, flags)))
    }

    /// # Errors
    /// As [`Socket::send`].
    pub fn send_parts(&self, parts: &[IoSlice<'_>], flags: c_int) -> Outcome<usize> {
        self.with_connection(|connection| self.unless_closed(connection.send_parts(parts, flags)))
    }

    /// # Errors
    /// As [`Connection::send_within`]; it was closed meanwhile.
    pub fn send_within(&self, message: &[u8], flags: c_int, life: Duration) -> Outcome<usize> {
        self.with_connection(|connection| self.unless_closed(connection.send_within(message, flags, life)))
    }

    /// # Errors
    /// As [`Connection::recv`]; it was closed meanwhile.
    pub fn recv(&self, out: &mut [u8], flags: c_int) -> Outcome<Option<usize>> {
        self.with_connection(|connection| self.unless_ended_by_closing(connection.recv(out, flags)))
    }

    /// # Errors
    /// As [`Socket::recv`].
    pub fn recv_parts(&self, parts: &mut [IoSliceMut<'_>], flags: c_int) -> Outcome<Option<usize>> {
        self.with_connection(|connection| self.unless_ended_by_closing(connection.recv_parts(parts, flags)))
    }

    /// What a call that receives came to. Closing ends the reading, which looks like the peer's end; and what the peer sends then, in answer to this one, is for nobody.
    fn unless_ended_by_closing(&self, result: Outcome<Option<usize>>) -> Outcome<Option<usize>> {
        if self.is_closed() { Err(closed()) } else { result }
    }

    /// # Errors
    /// Not in time; it was closed meanwhile, or failed.
    pub fn drain(&self, limit: Option<Duration>) -> Outcome<()> {
        let connection = self.connection()?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let look = left.map_or(DRAIN_LOOKS_EVERY, |left| left.min(DRAIN_LOOKS_EVERY));
            let result = connection!(&*connection, one => one.drain(Some(look)));
            let is_only_a_look = left.is_none_or(|left| left > look);
            match result {
                Err(error) if is_only_a_look && !self.is_closed() && is_over(&error) => {}
                result => return self.unless_closed(result.map_err(Failure::from)),
            }
        }
    }

    /// What `close` does beyond taking the handle away: threads that wait with this socket return.
    pub fn close(&self) {
        let state = {
            let mut state = self.state();
            // Pairs with the load in `is_closed`: before the connection ends, so that who meets anything that comes of that sees it.
            self.closed.store(true, Ordering::Release);
            std::mem::replace(&mut *state, State::Closed)
        };
        match state {
            State::Listening(entrance) => entrance!(&*entrance, one => one.close()),
            State::Connecting(_, connection) => connection!(&*connection, one => one.abort()),
            State::Connected(connection) => {
                // Alone it ends as it should by itself; a thread that is in a call with it has a share of its own.
                if Arc::strong_count(&connection) > 1 {
                    connection.end_under_calls(self.options().linger);
                }
            }
            State::Fresh | State::Bound(_) | State::Opening(_) | State::Closed => {}
        }
    }
}

/// Whether it says that the time given is over, and no more than that.
fn is_over(error: &std::io::Error) -> bool {
    matches!(details(error), Some(Error::TimedOut))
}
