//! The event loop: accepts processes, reads their messages, sends what the registry answers.
//!
//! One thread, no timers: an idle daemon sleeps in `epoll_wait` for ever, unless it has to refuse connections or somebody's closes take long. Nothing a process does can block it: all
//! sockets are non-blocking, a process that does not read gets its answers queued and is not read from meanwhile, and what processes sent is closed by the [`Closer`].

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use ropeway_shm::sys;
use ropeway_socket::reason::Reason;
use ropeway_socket::rendezvous::os::{self, Credentials, Received, ReceivedFd};
use ropeway_socket::rendezvous::wire::{self, MAILBOX_BYTES, MAX_MESSAGE_BYTES, Message};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::checks::Client;
use super::closer::Closer;
use super::connection::{Connection, Process, QUEUE_HIGH, speaks_as};
use super::host::{Machine, sealed_memfd};
use super::registry::{ClientId, PassedOn, Registration, Registry};
use super::{ending, memory, numbers, process};
use crate::config::Config;
use crate::output::tell;

/// Events taken from the kernel at once.
const EVENTS: usize = 256;
/// Messages read from one process before the next gets its turn.
const READ_BATCH: usize = 64;
/// Connections accepted before those that are there get their turn: whoever connects again and again keeps the queue from getting empty.
const ACCEPT_BATCH: usize = 64;
/// While nothing can be accepted, a daemon that nobody talks to looks so often whether that has passed.
const ACCEPT_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often it looks whether users who are not heard have fewer descriptors waiting to be closed.
const HEAR_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Memory, in blocks of 512 bytes, that is given back within a millisecond or so.
const QUICKLY_FREED_BLOCKS: i64 = 2048;
/// The listener's number among the connections' in the epoll set.
const LISTENER: u64 = 0;
/// That of the socket which signals are written to.
const SIGNALS: u64 = 1;

pub struct Server {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Can be read once the process is asked to end.
    _signals: UnixStream,
    /// False while the daemon, or the machine, has no descriptor or memory for another connection.
    accepting: bool,
    /// True while no close hangs.
    passes_descriptors: bool,
    closer: Closer,
    /// The connections that are held back, by user; some may be gone.
    held_back: HashMap<u32, Vec<ClientId>>,
    uid: u32,
    started: Instant,
    connections: HashMap<ClientId, Connection>,
    next_id: ClientId,
    registry: Registry,
    machine: Machine,
    /// The configuration file that was last read, well or not.
    config_seen: Option<(PathBuf, Option<SystemTime>)>,
    config_error: bool,
    stopping: bool,
}

impl Server {
    /// Serves `listener`, a listening non-blocking packet socket.
    pub fn new(listener: OwnedFd, config: Config) -> io::Result<Server> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let signals = ending::signals()?;
        epoll::add(&epoll, &signals, EventData::new_u64(SIGNALS), EventFlags::IN)?;
        let limits = config.limits(memory::machine_total_bytes());
        Ok(Server {
            epoll,
            listener,
            _signals: signals,
            accepting: true,
            passes_descriptors: true,
            closer: Closer::default(),
            held_back: HashMap::new(),
            uid: rustix::process::geteuid().as_raw(),
            started: Instant::now(),
            connections: HashMap::new(),
            next_id: SIGNALS + 1,
            config_seen: config.source.clone(),
            // Pairs of two daemons in a row should not have the same number.
            registry: Registry::new(config, limits, sys::random_u64() >> 1),
            machine: Machine::open()?,
            config_error: false,
            stopping: false,
        })
    }

    /// Runs until told to stop, by a message or a signal.
    pub fn run(mut self) -> io::Result<Infallible> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stopping {
            events.clear();
            let limit = if self.held_back.is_empty() { &ACCEPT_AGAIN } else { &HEAR_AGAIN };
            let limit = (!self.accepting || !self.held_back.is_empty()).then_some(limit);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), limit) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.accept_more(true);
            self.pass_descriptors();
            self.hear_again();
            for event in events.drain(..) {
                let (id, flags) = (event.data.u64(), event.flags);
                match id {
                    LISTENER => self.accept(),
                    SIGNALS => self.stopping = true,
                    _ => self.handle(id, flags),
                }
            }
        }
        let Server { listener, connections, .. } = self;
        ending::end(listener, connections.values().map(|connection| &connection.socket))
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            if !numbers::are_left(&self.listener) {
                return self.accept_more(false);
            }
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    self.welcome_connection(socket);
                    self.pass_descriptors();
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return self.accept_more(false),
                Err(_) => {} // the other side gave up meanwhile
            }
        }
    }

    /// Without a free descriptor the listener would wake the loop for ever; it is looked at again at the next wake-up.
    fn accept_more(&mut self, accepting: bool) {
        if self.accepting != accepting {
            let flags = if accepting { EventFlags::IN } else { EventFlags::empty() };
            if epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags).is_ok() {
                self.accepting = accepting;
            }
        }
    }

    /// While a close hangs, nobody can pass descriptors to us through a new connection, where the kernel can forbid it: closing such a connection takes no time, so that there are ever
    /// only so many that wait.
    fn pass_descriptors(&mut self) {
        let passes = !self.closer.any_hangs();
        if self.passes_descriptors != passes && sys::set_passes_descriptors(self.listener.as_raw_fd(), passes).is_ok() {
            self.passes_descriptors = passes;
        }
    }

    /// Keeps a new connection if its user may talk to this daemon and has not too many; else it is closed unheard.
    fn welcome_connection(&mut self, socket: OwnedFd) {
        let Ok(peer) = os::peer(socket.as_raw_fd()) else { return };
        let allowed = self.uid == 0 || peer.uid == self.uid || peer.uid == 0;
        let same_user = self.connections.values().filter(|c| c.peer.uid == peer.uid).count();
        if !allowed || same_user >= self.registry.limits().processes || self.closer.hangs(peer.uid) {
            return self.close_unread(peer.uid, socket);
        }
        let id = self.next_id;
        let interest = EventFlags::IN;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(id), interest).is_err() {
            return self.close_unread(peer.uid, socket);
        }
        self.next_id += 1;
        let queue = VecDeque::new();
        self.connections.insert(id, Connection { socket, peer, process: None, queue, interest, held_back: false });
    }

    /// Reads no more from a connection until fewer descriptors of its user's wait to be closed: what it has sent would wake the loop for ever.
    fn hold_back(&mut self, id: ClientId) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.held_back) {
            connection.held_back = true;
            self.held_back.entry(connection.peer.uid).or_default().push(id);
            self.watch(id);
        }
    }

    /// Reads again from those whose user is no longer behind, or is to be told that his closes hang.
    fn hear_again(&mut self) {
        let is_over = |user: &u32, _: &mut _| !self.closer.is_behind(*user) || self.closer.hangs(*user);
        let heard: Vec<_> = self.held_back.extract_if(is_over).flat_map(|(_, connections)| connections).collect();
        for id in heard {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.held_back = false;
                self.watch(id);
            }
        }
    }

    fn handle(&mut self, id: ClientId, flags: EventFlags) {
        // What is queued for a connection that has ended would keep it from being read to its end.
        if flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
            self.flush(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(id);
        }
        self.deliver();
    }

    fn read(&mut self, id: ClientId) {
        for _ in 0..READ_BATCH {
            let Some(connection) = self.connections.get(&id).filter(|c| c.queue.len() < QUEUE_HIGH) else { return };
            let peer = connection.peer;
            if self.closer.hangs(peer.uid) {
                return self.disconnect(id);
            }
            // It is still there to be read when some are closed.
            if self.closer.is_behind(peer.uid) {
                return self.hold_back(id);
            }
            let mut buf = [0; MAX_MESSAGE_BYTES];
            let mut surplus = Vec::new();
            let take = |descriptor: ReceivedFd| surplus.push(descriptor.into_owned());
            let received = match os::recv(connection.socket.as_raw_fd(), &mut buf, take) {
                // The end, not an empty message: that would have a sender.
                Ok(Received { len: 0, sender: None, .. }) => return drop(self.remove(id)),
                Ok(received) => received,
                Err(errno) if errno == Errno::AGAIN.raw_os_error() || errno == Errno::INTR.raw_os_error() => return,
                // It left answers unread. What it said before is still here.
                Err(errno) if errno == Errno::CONNRESET.raw_os_error() => continue,
                Err(_) => return self.disconnect(id),
            };
            let message = buf.get(..received.len).map(Message::decode);
            let mut attached = received.fd.map(ReceivedFd::into_owned);
            // A child of fork has a copy of its parent's descriptor; what it says is not the parent's word.
            let genuine = received.sender.filter(|sender| sender.pid == peer.pid);
            let goes_on = match (message, genuine) {
                (Some(Ok(message)), Some(sender)) => {
                    surplus.is_empty() && self.hear(id, speaks_as(peer, sender), message, &mut attached)
                }
                (Some(Ok(_)), None) => {
                    self.registry.counts.malformed += 1;
                    true
                }
                _ => {
                    // In our version's words: its header tells another version why it is not served.
                    let refusal = Message::Deny { token: 0, reason: Reason::DaemonUnavailable, retry: false };
                    self.send(id, refusal, None);
                    false
                }
            };
            self.closer.close(peer.uid, surplus.into_iter().chain(attached));
            if !goes_on {
                self.registry.counts.malformed += 1;
                return self.disconnect(id);
            }
            self.deliver();
        }
    }

    /// Acts on one message, said with the rights of `uid`; false if it makes no sense from this connection now. Leaves in `attached` what it does not keep.
    fn hear(&mut self, id: ClientId, uid: u32, message: Message, attached: &mut Option<OwnedFd>) -> bool {
        let Some(connection) = self.connections.get(&id) else { return true };
        let is_process = connection.process.is_some();
        self.registry.speaks_as(id, uid);
        match message {
            Message::Hello { comm, profile, .. } if !is_process => self.hello(id, uid, comm, &profile, attached),
            Message::Register { token, cookie, fd, local, remote, tx, rx } if is_process => {
                let registration = Registration { token, cookie, fd, local, remote, tx, rx };
                self.registry.register(&mut self.machine, id, registration);
                true
            }
            Message::Unregister { token } if is_process => {
                self.registry.unregister(id, token);
                true
            }
            Message::Adopt { token, cookie, fd } if is_process => {
                self.registry.adopt(&mut self.machine, id, token, cookie, fd);
                true
            }
            Message::PassOn { heir, cookie, fd, local, remote, legacy } if is_process => {
                let passed = PassedOn { heir, cookie, fd, local, remote, legacy };
                self.registry.pass_on(&mut self.machine, id, &passed);
                true
            }
            Message::StatusQuery {} => {
                let mut counts = self.registry.counts();
                counts.uptime_s = self.started.elapsed().as_secs();
                let (pid, config_error) = (std::process::id(), self.config_error);
                self.send(id, Message::Status { pid, uid: self.uid, config_error, counts }, None);
                true
            }
            Message::Stop {} => {
                // Only the user whose daemon this is, and root, may end it.
                if uid != self.uid && uid != 0 {
                    return false;
                }
                self.send(id, Message::Stopping {}, None);
                self.stopping = true;
                true
            }
            Message::List {} => {
                self.list(id, uid);
                true
            }
            _ => false,
        }
    }

    fn hello(
        &mut self,
        id: ClientId,
        uid: u32,
        comm: [u8; 16],
        profile: &[u8],
        attached: &mut Option<OwnedFd>,
    ) -> bool {
        self.reload_config();
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        let peer = connection.peer;
        if self.uid != 0 && peer.uid != self.uid {
            return false; // root may ask a user's daemon how it is, but its connections are not this daemon's business
        }
        // Out of descriptors or memory: the process stays on TCP and asks again.
        let Ok(mailbox) = sealed_memfd(c"ropeway-mailbox", MAILBOX_BYTES) else { return false };
        // The process reads the page without asking whether it is there.
        if rustix::fs::fallocate(&mailbox, FallocateFlags::empty(), 0, MAILBOX_BYTES as u64).is_err() {
            return false;
        }
        let program = process::program(peer.pid, wire::unpadded(&comm));
        let profile = String::from_utf8_lossy(wire::unpadded(profile)).into_owned();
        let settings = self.registry.config().settings(&profile, &program);
        let table = attached.as_ref().filter(|fd| process::is_sized_as_table(fd));
        // Opened anew: who lists processes is to read tables, and the descriptor that came can write.
        let table = table.and_then(|fd| process::for_reading(fd).ok());
        let table = table.filter(|table| !numbers::is_reserved(table.as_raw_fd())).map(Rc::new);
        if table.is_some() {
            // Takes no time: it is not the last one.
            *attached = None;
        }
        let mailbox = Rc::new(mailbox);
        let comm = wire::padded(program.comm.as_bytes());
        connection.process = Some(Process { comm, table, mailbox: Rc::clone(&mailbox), sent: 0 });
        let image = process::image(peer.pid);
        let client = Client { pid: peer.pid, uid, program, image, ring_bytes: settings.ring_bytes };
        self.registry.join(id, client);
        self.send(id, Message::Welcome { settings }, Some(mailbox));
        true
    }

    /// Names the processes that the user `asking` may see.
    fn list(&mut self, id: ClientId, asking: u32) {
        let mut entries: Vec<_> = self
            .connections
            .values()
            .filter(|c| asking == 0 || c.peer.uid == asking)
            .filter_map(|c| {
                let process = c.process.as_ref()?;
                let entry = Message::Entry { pid: c.peer.pid, uid: c.peer.uid, comm: process.comm };
                Some((entry, process.table.clone()))
            })
            .collect();
        entries.push((Message::EndOfList {}, None));
        for (message, table) in entries {
            self.send(id, message, table);
        }
    }

    /// Takes a changed configuration file over; a bad one leaves the former in force and shows in the status.
    fn reload_config(&mut self) {
        let changed = |path: &PathBuf| std::fs::metadata(path).ok().and_then(|m| m.modified().ok());
        let now = Config::path().map(|path| {
            let changed = changed(&path);
            (path, changed)
        });
        if now == self.config_seen {
            return;
        }
        self.config_seen = now;
        match Config::load() {
            Ok(config) => {
                let limits = config.limits(memory::machine_total_bytes());
                self.registry.reconfigure(config, limits);
                self.config_error = false;
            }
            Err(error) => {
                tell!("ropeway daemon: {error}; the former configuration stays in force");
                self.config_error = true;
            }
        }
    }

    /// Sends everything the registry answered.
    fn deliver(&mut self) {
        while !self.registry.outbox.is_empty() {
            for out in std::mem::take(&mut self.registry.outbox) {
                self.send(out.to, out.message, out.segment);
            }
        }
    }

    fn send(&mut self, id: ClientId, message: Message, attach: Option<Rc<OwnedFd>>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.queue.push_back((message, attach));
            self.flush(id);
        }
    }

    /// Sends what is queued for a connection as far as it takes it.
    fn flush(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        while let Some((message, attach)) = connection.queue.front() {
            let mut buf = [0; MAX_MESSAGE_BYTES];
            let bytes = message.encode(&mut buf);
            let raw = attach.as_ref().map(|fd| fd.as_raw_fd());
            match os::send(connection.socket.as_raw_fd(), bytes, raw).map_err(Errno::from_raw_os_error) {
                Ok(()) => {
                    connection.queue.pop_front();
                    connection.announce();
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                // Too many descriptors are on their way to this user's processes: none of his reads.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                    let Some((message, _)) = connection.queue.pop_front() else { break };
                    let Message::Grant { token, .. } = message else { continue };
                    let denial = Message::Deny { token, reason: Reason::Limits, retry: true };
                    connection.queue.push_front((denial, None));
                }
                // It is gone, by exec perhaps: nothing can be told to it any more, but what it said is still to be read.
                Err(_) => connection.queue.clear(),
            }
        }
        self.watch(id);
    }

    /// Has the kernel tell of a connection what is wanted now.
    fn watch(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            if epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(id), wanted).is_err() {
                self.disconnect(id);
            }
        }
    }

    /// Ends a connection that may have more to say.
    fn disconnect(&mut self, id: ClientId) {
        if let Some((socket, peer)) = self.remove(id) {
            // Its close takes it out as well, but may take its time.
            let _ = epoll::delete(&self.epoll, &socket);
            self.close_unread(peer.uid, socket);
        }
    }

    fn remove(&mut self, id: ClientId) -> Option<(OwnedFd, Credentials)> {
        let Connection { socket, peer, process, queue, .. } = self.connections.remove(&id)?;
        self.registry.leave(id);
        self.accept_more(true);
        let table = process.and_then(|process| process.table);
        let unsent = queue.into_iter().filter_map(|(_, attached)| attached);
        let last = table.into_iter().chain(unsent).filter_map(Rc::into_inner);
        self.closer.close(peer.uid, last.filter(is_freed_slowly));
        Some((socket, peer))
    }

    /// Closes a connection of this user's that nobody has read to its end.
    fn close_unread(&mut self, user: u32, socket: OwnedFd) {
        // There is nothing in it that could take its time where it was made while nobody could pass descriptors.
        if sys::passes_descriptors(socket.as_raw_fd()) {
            self.closer.close(user, [socket]);
        }
    }
}

/// True of a file in memory with so much in it that its last close takes its time.
fn is_freed_slowly(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|file| file.st_blocks > QUICKLY_FREED_BLOCKS)
}
