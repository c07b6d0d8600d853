//! One end of a connection, as streams and message sockets share it: options, waiting, and what happens at its end.

use super::address::Address;
use super::errors::{of_send, of_wait};
use super::home::Home;
use ropeway_engine::{ChannelId, Engine, Error, ErrorCode, Interest, Mode, Readiness, Routes, Target, Watch, link};
use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A time that is not limited, among nanoseconds.
const NEVER: u64 = u64::MAX;

/// A duration or none, changed by one thread while others look.
#[derive(Debug)]
pub struct Limit(AtomicU64);

impl Default for Limit {
    fn default() -> Limit {
        Limit(AtomicU64::new(NEVER))
    }
}

impl Limit {
    pub fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&ns| ns != NEVER).map(Duration::from_nanos)
    }

    /// # Errors
    /// Zero, as the standard library has it: it would mean not to wait at all, for which there is `set_nonblocking`.
    pub fn set(&self, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a time limit of 0 is none; use set_nonblocking"));
        }
        let ns = limit.map_or(NEVER, |limit| u64::try_from(limit.as_nanos()).unwrap_or(NEVER));
        self.0.store(ns, Ordering::Relaxed);
        Ok(())
    }

    pub fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.get()?)
    }
}

/// Over which engine somebody is reached, how, and as whom.
pub struct Way {
    pub home: Arc<Home>,
    /// The first is the default.
    pub ways: Vec<ropeway_engine::Way>,
    /// What is sent is spread over all of them.
    pub bonded: bool,
    /// The other end, in the words of programs.
    pub peer: Address,
    /// The port of the protocol that the peer is told; `None`: one of the engine's choice.
    pub from: Option<u16>,
    pub port: u16,
}

impl Way {
    /// The one way to an address; of the ports the first is the one that the peer is told.
    pub fn direct(home: Arc<Home>, address: link::Address, (from, port): (Option<u16>, u16)) -> Way {
        let ways = vec![ropeway_engine::Way::Direct(Target { link: home.link(), address })];
        let peer = home.name(address, port);
        Way { home, ways, bonded: false, peer, from, port }
    }

    fn routes(&self) -> Routes<'_> {
        Routes { ways: &self.ways, bonded: self.bonded }
    }
}

pub struct Connection {
    home: Arc<Home>,
    channel: ChannelId,
    /// As it was opened; of one that was accepted, the way back.
    ways: Vec<ropeway_engine::Way>,
    peer: Address,
    /// Of the protocol, local first.
    ports: (u16, u16),
    nonblocking: AtomicBool,
    no_delay: AtomicBool,
    pub read_limit: Limit,
    pub write_limit: Limit,
    linger: Mutex<Option<Duration>>,
    watch: OnceLock<Watch>,
}

impl Connection {
    /// One that `accept` gave; `None` if it has ended since.
    pub fn accepted(home: Arc<Home>, channel: ChannelId) -> Option<Connection> {
        let known = home.engine().way_of(channel);
        let peer = known.map(|(way, local, remote)| (way, home.name_of_peer(&way, remote), (local, remote)));
        let Some((way, peer, ports)) = peer else {
            home.engine().close(channel);
            return None;
        };
        Some(Connection::new((home, channel), vec![way], peer, ports))
    }

    fn new(
        (home, channel): (Arc<Home>, ChannelId),
        ways: Vec<ropeway_engine::Way>,
        peer: Address,
        ports: (u16, u16),
    ) -> Connection {
        Connection {
            home,
            channel,
            ways,
            peer,
            ports,
            nonblocking: AtomicBool::new(false),
            no_delay: AtomicBool::new(false),
            read_limit: Limit::default(),
            write_limit: Limit::default(),
            linger: Mutex::new(None),
            watch: OnceLock::new(),
        }
    }

    /// Opens one and waits until the peer has taken it.
    pub fn connect(way: Way, mode: Mode, deadline: Option<Instant>) -> io::Result<Connection> {
        let engine = way.home.engine();
        let connect = || engine.connect_over_from(&way.routes(), (way.from, way.port), mode, deadline);
        let channel = match connect() {
            // The peer's engine, which was known, has just gone; who is there now is asked anew.
            Err(Error::Failed(ErrorCode::Closed)) => connect(),
            other => other,
        };
        let channel = channel.map_err(|error| way.home.of_opening(error))?;
        Ok(Connection::opened(way, channel))
    }

    /// Opens one and does not wait for the peer.
    pub fn open(way: Way, mode: Mode) -> io::Result<Connection> {
        let engine = way.home.engine();
        let channel = engine.open_over_from(&way.routes(), (way.from, way.port), mode)?;
        if let Some(error) = engine.was_unreached(channel) {
            engine.abort(channel);
            return Err(error.into());
        }
        let connection = Connection::opened(way, channel);
        connection.set_nonblocking(true);
        Ok(connection)
    }

    fn opened(way: Way, channel: ChannelId) -> Connection {
        // It may have failed already, and then there is nothing left to ask.
        let local = way.home.engine().addresses(channel).map_or(0, |(_, local, _)| local);
        Connection::new((way.home, channel), way.ways, way.peer, (local, way.port))
    }

    fn engine(&self) -> &Engine {
        self.home.engine()
    }

    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub fn no_delay(&self) -> bool {
        self.no_delay.load(Ordering::Relaxed)
    }

    pub fn set_no_delay(&self, on: bool) {
        self.no_delay.store(on, Ordering::Relaxed);
        self.engine().set_no_delay(self.channel, on);
    }

    pub fn linger(&self) -> Option<Duration> {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_linger(&self, linger: Option<Duration>) {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger;
    }

    pub fn set_forgets_unread(&self, on: bool) {
        self.engine().set_forgets_unread(self.channel, on);
    }

    pub fn peer(&self) -> &Address {
        &self.peer
    }

    pub fn ports(&self) -> (u16, u16) {
        self.ports
    }

    pub fn local(&self) -> io::Result<Address> {
        let first = self.ways.first().map(|way| way.target());
        let link = first.map_or(self.home.link(), |first| first.link);
        let own = self.engine().own_address_of(self.channel);
        let local = own.or_else(|| self.engine().local(link)).ok_or(Error::Forked)?;
        match (self.home.name(local, self.ports.0), first.map(|first| first.address)) {
            (Address::Udp(local), Some(link::Address::Udp(to))) if local.ip().is_unspecified() => {
                Ok(Address::Udp(SocketAddr::new(source_towards(to)?, local.port())))
            }
            (local, _) => Ok(local),
        }
    }

    /// Bytes of a stream, or one message; `None` at the end.
    pub fn recv(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv_by(out, || self.read_limit.deadline())
    }

    /// The same, but as long as the caller says.
    pub fn recv_by(&self, out: &mut [u8], deadline: impl FnOnce() -> Option<Instant>) -> io::Result<Option<usize>> {
        let result = if self.is_nonblocking() {
            self.engine().try_recv(self.channel, out)
        } else {
            self.engine().recv(self.channel, out, deadline())
        };
        result.map_err(|error| self.recv_error(error))
    }

    /// The same, without waiting whatever the options say.
    pub fn try_recv(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.engine().try_recv(self.channel, out).map_err(|error| self.recv_error(error))
    }

    /// Bytes of a stream that are there; they stay.
    pub fn try_peek(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        self.engine().try_peek(self.channel, out).map_err(of_wait)
    }

    /// Bytes of a stream; they stay.
    pub fn peek(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let deadline = self.read_limit.deadline();
        loop {
            let result = self.engine().try_peek(self.channel, out);
            if !matches!(result, Err(Error::WouldBlock)) || self.is_nonblocking() {
                return result.map_err(of_wait);
            }
            let interest = Interest { read: true, write: false };
            self.engine().wait(self.channel, interest, deadline).map_err(of_wait)?;
        }
    }

    /// As many bytes of a stream as there is room for; they stay.
    pub fn peek_all(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        if self.is_nonblocking() {
            return self.try_peek(out);
        }
        self.engine().peek_all(self.channel, out, self.read_limit.deadline()).map_err(of_wait)
    }

    /// Bytes of a stream, and how many were taken; or one message.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_nonblocking() { self.try_send(bytes) } else { self.send_by(bytes, self.write_limit.deadline()) }
    }

    fn send_by(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
        match self.engine().send_all(self.channel, bytes, deadline) {
            Ok(()) => Ok(bytes.len()),
            // What was taken counts; the next call meets the error.
            Err((sent @ 1.., _)) => Ok(sent),
            Err((0, error)) => Err(self.send_error(error)),
        }
    }

    /// The same, without waiting whatever the options say.
    pub fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.engine().try_send(self.channel, bytes).map_err(|error| self.send_error(error))
    }

    /// Bytes of a stream that lie in several places, and how many of all were taken. `now`: without waiting whatever the options say.
    pub fn send_parts<'a>(&self, parts: impl Iterator<Item = Cow<'a, [u8]>>, now: bool) -> io::Result<usize> {
        let deadline = self.write_limit.deadline();
        let waits = !now && !self.is_nonblocking();
        let mut sent = 0;
        for part in parts {
            match if waits { self.send_by(&part, deadline) } else { self.try_send(&part) } {
                // The next part belongs behind the whole of this one.
                Ok(count) => {
                    sent += count;
                    if count < part.len() {
                        break;
                    }
                }
                Err(error) if sent == 0 => return Err(error),
                // What was taken counts; the next call meets the error.
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Bytes of a stream into several places, one after the other; only the first byte is waited for. `now`: not even that, whatever the options say.
    pub fn recv_parts<'a>(&self, parts: impl Iterator<Item = &'a mut [u8]>, now: bool) -> io::Result<usize> {
        let mut received = 0;
        for part in parts.filter(|part| !part.is_empty()) {
            match if now || received > 0 { self.try_recv(part) } else { self.recv(part) } {
                Ok(count) => {
                    received += count.unwrap_or(0);
                    if count != Some(part.len()) {
                        break;
                    }
                }
                Err(error) if received == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(received)
    }

    /// One message that is worth sending for `life` only.
    pub fn send_within(&self, message: &[u8], life: Duration) -> io::Result<()> {
        if self.is_nonblocking() {
            return self.try_send_within(message, life);
        }
        let deadline = self.write_limit.deadline();
        self.engine().send_within(self.channel, message, life, deadline).map_err(|error| self.send_error(error))
    }

    /// The same, without waiting whatever the options say.
    pub fn try_send_within(&self, message: &[u8], life: Duration) -> io::Result<()> {
        self.engine().try_send_within(self.channel, message, life).map_err(|error| self.send_error(error))
    }

    /// Drops messages that are not under way.
    pub fn cancel(&self) -> io::Result<u64> {
        Ok(self.engine().cancel(self.channel)?)
    }

    /// Messages whose life was over before they were under way.
    pub fn expired_messages(&self) -> io::Result<u64> {
        Ok(self.engine().expired_messages(self.channel)?)
    }

    fn send_error(&self, error: Error) -> io::Error {
        if self.failed_to_open(&error) { self.of_opening(error) } else { of_send(error) }
    }

    fn recv_error(&self, error: Error) -> io::Error {
        if self.failed_to_open(&error) { self.of_opening(error) } else { of_wait(error) }
    }

    /// Whether the error says why the peer has not taken the connection.
    fn failed_to_open(&self, error: &Error) -> bool {
        let is_opened = || self.engine().readiness(self.channel).is_none_or(|readiness| readiness.opened);
        matches!(error, Error::Failed(_)) && !is_opened()
    }

    /// What ended the attempt to open it, as far as that is known.
    fn of_opening(&self, error: Error) -> io::Error {
        self.home.of_opening(self.engine().was_unreached(self.channel).unwrap_or(error))
    }

    /// Waits until the peer's engine has acknowledged everything sent.
    pub fn drain(&self, limit: Option<Duration>) -> io::Result<()> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        Ok(self.engine().drain(self.channel, deadline)?)
    }

    /// Waits until a message is there, and says its length; `None` at the end.
    pub fn next_message_bytes(&self) -> io::Result<Option<usize>> {
        let deadline = self.read_limit.deadline();
        loop {
            match self.try_next_message_bytes() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.is_nonblocking() => {}
                other => return other,
            }
            let interest = Interest { read: true, write: false };
            self.engine().wait(self.channel, interest, deadline).map_err(of_wait)?;
        }
    }

    /// The same, without waiting whatever the options say.
    pub fn try_next_message_bytes(&self) -> io::Result<Option<usize>> {
        // Looked at first: a message that comes in between is no end.
        let readiness = self.engine().readiness(self.channel).ok_or(Error::Closed)?;
        match (self.engine().message_bytes(self.channel), readiness.failed) {
            (Some(bytes), _) => Ok(Some(bytes)),
            (None, _) if readiness.ended => Ok(None),
            (None, Some(code)) if readiness.readable => Err(Error::Failed(code).into()),
            (None, _) => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether the peer has closed, or reading was ended, and everything was read.
    pub fn is_ended(&self) -> io::Result<bool> {
        Ok(self.engine().readiness(self.channel).ok_or(Error::Closed)?.ended)
    }

    /// Whether there is anything that an end in order has to wait for.
    pub fn has_begun(&self) -> bool {
        self.engine().has_begun(self.channel)
    }

    pub fn longest_message(&self) -> u64 {
        self.engine().longest_message(self.channel).unwrap_or(0)
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.engine().stop_reading(self.channel)?;
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            match self.engine().shutdown(self.channel) {
                // The peer has left in order: nobody is there to read the end.
                Ok(()) | Err(Error::Failed(ErrorCode::Closed)) => {}
                Err(error @ Error::Failed(_)) => return Err(io::Error::new(ErrorKind::NotConnected, error)),
                Err(error) => return Err(self.send_error(error)),
            }
            // Who waits for room waits in vain.
            self.engine().wake(self.channel)?;
        }
        Ok(())
    }

    /// Whether the peer has taken the connection; an error if it did not.
    pub fn is_connected(&self) -> io::Result<bool> {
        let readiness = self.engine().readiness(self.channel).ok_or(Error::Closed)?;
        match failure_of(&readiness) {
            Some(code) => Err(self.ended(&readiness, code)),
            None => Ok(readiness.opened),
        }
    }

    /// Whether the peer has taken the connection, whatever became of it since.
    pub fn was_taken(&self) -> bool {
        let refuses = |code| matches!(code, ErrorCode::Refused | ErrorCode::Busy);
        let was_taken = |readiness: Readiness| readiness.opened && !readiness.failed.is_some_and(refuses);
        self.engine().readiness(self.channel).is_none_or(was_taken)
    }

    /// Waits until the peer has taken the connection.
    pub fn wait_connected(&self, deadline: Option<Instant>) -> io::Result<()> {
        let routes = Routes { ways: &self.ways, bonded: false };
        self.engine().wait_opened_over(self.channel, &routes, deadline).map_err(|error| self.home.of_opening(error))
    }

    /// The error that ended it, or its sending, if one did.
    pub fn failure(&self) -> Option<io::Error> {
        let readiness = self.engine().readiness(self.channel)?;
        let failed = failure_of(&readiness).map(|code| self.ended(&readiness, code));
        failed.or_else(|| readiness.undelivered.then(|| Error::PeerClosed.into()))
    }

    /// Why a connection that stands so has ended.
    fn ended(&self, readiness: &Readiness, code: ErrorCode) -> io::Error {
        let error = Error::Failed(code);
        if readiness.opened { error.into() } else { self.of_opening(error) }
    }

    pub fn watch(&self) -> io::Result<Watch> {
        super::common::kept_watch(&self.watch, self.engine(), |engine| engine.watch_like_socket(self.channel))
    }

    /// Ends it at once: the peer sees a reset. What waits in other threads ends with an error.
    pub fn abort(&self) {
        self.engine().abort(self.channel);
    }
}

/// Why a connection failed. A peer that has left in order is no more than the end of what it sent.
fn failure_of(readiness: &Readiness) -> Option<ErrorCode> {
    readiness.failed.filter(|_| !readiness.orderly)
}

impl Drop for Connection {
    fn drop(&mut self) {
        match self.linger() {
            Some(Duration::ZERO) => self.engine().abort(self.channel),
            // In order, but no longer than that: what is not acknowledged by then goes on by itself.
            Some(limit) if self.has_begun() => {
                let _ = self.engine().shutdown(self.channel);
                let _ = self.drain(Some(limit));
                self.engine().close(self.channel);
            }
            _ => self.engine().close(self.channel),
        }
    }
}

/// The address of this host under which packets to `peer` leave. Nothing is sent.
fn source_towards(peer: SocketAddr) -> io::Result<std::net::IpAddr> {
    let any: std::net::IpAddr =
        if peer.is_ipv4() { std::net::Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}
