//! What the user of an endpoint asks for.

use ropeway_wire::{ErrorCode, Extent, FinFields, Id, Mode, OpenFields};

use super::sending::{SendError, is_kept_back, longest_message};
use super::{Endpoint, Listener, Path, Route};
use crate::association::{Association, Attempt, Phase};
use crate::channel::{Channel, ChannelId, PIECE_BYTES, Part, Readiness, Sendable, Unsent};
use crate::time::Time;

/// Longest queue of channels to accept: more is memory for peers that nobody serves.
pub const MOST_BACKLOG: usize = 65_535;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    #[error("port {0} is in use by another listener of this engine; choose another or close that one")]
    InUse(u16),
    #[error("all ports of this engine have listeners")]
    NoPort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    #[error("nothing waits to be accepted")]
    WouldBlock,
    #[error("nobody listens at port {0}")]
    NotListening(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("too many associations or channels; close some, or raise max_associations or max_channels")]
    TooMany,
    #[error("no memory to send with; raise send_memory or let transfers finish")]
    NoMemory,
    #[error("no route to the peer was given, or none bears the shortest packets")]
    NoRoute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    #[error("nothing to read now")]
    WouldBlock,
    #[error("the message has {message_bytes} bytes and does not fit; it stays")]
    TooShort { message_bytes: usize },
    #[error("{0}")]
    Failed(ErrorCode),
    #[error("no such channel")]
    Unknown,
}

impl Endpoint {
    /// Takes channels of `mode` at `port` (0: one that is free), up to `backlog` waiting. Gives the port.
    ///
    /// # Errors
    /// The port is taken, or there is none.
    pub fn listen(&mut self, port: u16, mode: Mode, backlog: usize) -> Result<u16, ListenError> {
        let port = match port {
            0 => (super::FIRST_FREE_PORT..=u16::MAX)
                .find(|port| !self.listeners.contains_key(port))
                .ok_or(ListenError::NoPort)?,
            port if self.listeners.contains_key(&port) => return Err(ListenError::InUse(port)),
            port => port,
        };
        let backlog = backlog.clamp(1, MOST_BACKLOG);
        self.listeners.insert(port, Listener { mode, backlog, queue: Default::default(), announced: false });
        Ok(port)
    }

    /// Stops listening: channels that nobody accepted are reset.
    pub fn unlisten(&mut self, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        for at in listener.queue {
            self.channels[at as usize].queued_in = None;
            self.channels[at as usize].released = true;
            self.abort_channel(at, ErrorCode::Reset);
            if self.channels[at as usize].detached {
                self.free_channel(at);
            }
        }
    }

    /// Takes the channel that has waited longest.
    ///
    /// # Errors
    /// There is none, or no listener.
    pub fn accept(&mut self, port: u16) -> Result<ChannelId, AcceptError> {
        let listener = self.listeners.get_mut(&port).ok_or(AcceptError::NotListening(port))?;
        let index = listener.queue.pop_front().ok_or(AcceptError::WouldBlock)?;
        let channel = &mut self.channels[index as usize];
        channel.queued_in = None;
        let id = ChannelId { index, generation: channel.generation };
        let has_news =
            channel.failed.is_some() || channel.incoming.is_finished() || channel.incoming.is_readable(channel.mode);
        self.counters.channels_accepted += 1;
        if has_news {
            self.announce_channel(index);
        }
        Ok(id)
    }

    /// Whether [`Endpoint::accept`] would give a channel, or say that nobody listens.
    pub fn has_incoming(&self, port: u16) -> bool {
        self.listeners.get(&port).is_none_or(|listener| !listener.queue.is_empty())
    }

    /// Opens a channel to `port` behind `path`. To a peer with whom there is an association it costs no round trip: data may be sent at once. Otherwise
    /// nothing can be sent until [`Readiness::opened`].
    ///
    /// # Errors
    /// A bound was reached.
    pub fn connect(&mut self, now: Time, path: &Path, port: u16, mode: Mode) -> Result<ChannelId, ConnectError> {
        let source_port = self.free_port();
        self.connect_from(now, path, source_port, port, mode)
    }

    /// The same from a port that the caller names, and sees to that it means something: the peer is told, nothing else depends on it.
    ///
    /// # Errors
    /// A bound was reached.
    pub fn connect_from(
        &mut self,
        now: Time,
        path: &Path,
        source_port: u16,
        port: u16,
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        self.connect_ports(now, &[Route::new(*path, &self.config)], false, (source_port, port), mode)
    }

    /// The same over any of several paths, of which the first is the default. `bonded`: what is sent for the first time is spread over all of them; otherwise the
    /// others carry repetitions, and everything when the default fails. To a peer that is known, paths that are new to it are added.
    ///
    /// # Errors
    /// A bound was reached, or there is no route.
    pub fn connect_over(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        port: u16,
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        self.connect_over_from(now, routes, bonded, (None, port), mode)
    }

    /// The same from a port that the caller names, first of the two; `None`: any.
    ///
    /// # Errors
    /// As [`Endpoint::connect_over`].
    pub fn connect_over_from(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        (source_port, port): (Option<u16>, u16),
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        let source_port = source_port.unwrap_or_else(|| self.free_port());
        self.connect_ports(now, routes, bonded, (source_port, port), mode)
    }

    fn connect_ports(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        ports: (u16, u16),
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        let (association, is_known) = self.reach(now, routes, bonded, ports)?;
        let opened = self.open_channel(now, association, ports, mode);
        if opened.is_err() && self.associations[association as usize].channels.is_empty() && !is_known {
            self.end_association(association, ErrorCode::Closed);
        }
        opened
    }

    /// The association, or the attempt, by which a port is reached, first of the two the own one; and whether there was one before.
    pub(super) fn reach(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        ports: (u16, u16),
    ) -> Result<(u32, bool), ConnectError> {
        let known = routes.iter().find_map(|route| self.known_at(&route.path, ports.1));
        match known {
            Some(index) => {
                self.add_routes(now, index, routes, bonded);
                Ok((index, true))
            }
            None => Ok((self.begin_attempt(now, routes, bonded, ports)?, false)),
        }
    }

    /// The association, or the attempt, through which a port at `path` is reached. Engines that share an address have steering in their ids, and a port of their own at which
    /// they listen; of those only the one that was asked there will do: the others do not answer for it.
    fn known_at(&self, path: &Path, port: u16) -> Option<u32> {
        let path = path.unbound();
        let newest = self.peers.get(&path).copied().filter(|&index| {
            let association = &self.associations[index as usize];
            // Of one that has not answered nothing is known; but it may be one of several where this end is.
            let steering = if association.is_open() { association.peer.steering() } else { self.steering };
            !association.disowned && (steering == 0 || association.asked_port == Some(port))
        });
        let elders = self.elders.range((path, Id(0))..=(path, Id(u32::MAX))).map(|(_, &index)| index);
        let mut asked = elders.filter(|&index| self.associations[index as usize].asked_port == Some(port));
        newest.or_else(|| asked.find(|&index| !self.associations[index as usize].disowned))
    }

    fn open_channel(
        &mut self,
        now: Time,
        index: u32,
        (source_port, port): (u16, u16),
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        let most = self.config.max_channels;
        let number = self.associations[index as usize].free_number(most).ok_or(ConnectError::TooMany)?;
        let at = self.add_channel(index, number, mode, (source_port, port));
        let fields = OpenFields { destination_port: port, source_port, mode, early: &[] };
        let channel = &mut self.channels[at as usize];
        channel.outgoing.raise_credit(u64::from(self.associations[index as usize].peer_window));
        if !channel.outgoing.open(&fields, &mut self.tx_pool) {
            self.associations[index as usize].detach(number);
            self.free_channel(at);
            return Err(ConnectError::NoMemory);
        }
        self.counters.channels_opened += 1;
        if self.associations[index as usize].is_open() {
            self.begin_waiting(now, index);
            self.schedule_channel(at);
        }
        Ok(ChannelId { index: at, generation: self.channels[at as usize].generation })
    }

    /// The network says that nobody receives at `path`: a hint that anybody on the way can make up, so it ends only an attempt that nobody has answered yet.
    /// Whether there was one.
    pub fn refuse_unanswered(&mut self, path: &Path) -> bool {
        let found = self.unanswered(path);
        if let Some(index) = found {
            self.end_association(index, ErrorCode::Refused);
        }
        found.is_some()
    }

    /// The network says something else of `path`: who waits for such an attempt is to hear of it, and may give it up. Whether there is one.
    pub fn announce_unanswered(&mut self, path: &Path) -> bool {
        let found = self.unanswered(path);
        let channels = found.map(|index| self.associations[index as usize].channels.indices().collect::<Vec<_>>());
        for at in channels.into_iter().flatten() {
            Endpoint::announce(&mut self.events, &mut self.channels[at as usize], at);
        }
        found.is_some()
    }

    /// The attempt that goes over this path alone and that nobody has answered.
    fn unanswered(&self, path: &Path) -> Option<u32> {
        let &index = self.peers.get(&path.unbound())?;
        let association = &self.associations[index as usize];
        let is_unanswered = association.attempt().is_some_and(|attempt| attempt.cookie.is_none());
        // Over another path it may still be reached.
        (is_unanswered && association.routes.is_none()).then_some(index)
    }

    fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port == u16::MAX { super::FIRST_FREE_PORT } else { port + 1 };
        port
    }

    fn begin_attempt(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        (source_port, port): (u16, u16),
    ) -> Result<u32, ConnectError> {
        let (path, packet_bytes) = self.first_route(routes).ok_or(ConnectError::NoRoute)?;
        let (nonce, first_number) = (self.random.next_u64(), self.first_number());
        let give_up_at = now.after(self.config.connect_timeout_ns);
        let attempt = Box::new(Attempt::new(nonce, (port, source_port), packet_bytes, give_up_at, now));
        let (config, windows) = (self.config.clone(), self.windows());
        let make = |id| Association::new(id, path, Phase::Opening(attempt), windows, first_number, &config, now);
        let index = self.add_association(make).ok_or(ConnectError::TooMany)?;
        self.associations[index as usize].asked_port = Some(port);
        if let Some(before) = self.peers.insert(path.unbound(), index) {
            self.keep_beside(before);
        }
        self.add_routes(now, index, routes, bonded);
        self.run_attempt(now, index);
        self.settle_timers(now, index);
        Ok(index)
    }

    /// From now on something is undelivered, if nothing was before.
    pub(super) fn begin_waiting(&mut self, now: Time, index: u32) {
        let association = &mut self.associations[index as usize];
        if !association.has_undelivered() {
            association.waiting_since = now;
        }
    }

    /// Reads bytes of a stream, or one message. `None`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn recv(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        let count = match channel.mode {
            Mode::Stream if channel.incoming.is_readable(Mode::Stream) => channel.incoming.read(out, &mut self.rx_pool),
            Mode::Messages if channel.incoming.is_readable(Mode::Messages) => {
                match channel.incoming.read_message(out, &mut self.rx_pool) {
                    Some(Ok(count)) => count,
                    Some(Err(short)) => return Err(RecvError::TooShort { message_bytes: short.message_bytes }),
                    None => return Err(RecvError::WouldBlock),
                }
            }
            // Somebody is taking the message in front of all that there may be.
            Mode::Messages if channel.incoming.is_taken() => return Err(RecvError::WouldBlock),
            _ => return nothing_to_read(channel),
        };
        self.after_read(at);
        Ok(Some(count))
    }

    /// Like [`Endpoint::recv`], for who calls again: what has arrived of a long message is moved into `out`, one that is whole piece by piece ([`PIECE_BYTES`]), and `part`, the same in
    /// every call, says how much. Once it has begun nobody else can read from the channel until all of the message was read, or the part was put back ([`Endpoint::put_back`]).
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn recv_partly(&mut self, id: ChannelId, out: &mut [u8], part: &mut Part) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        let is_others = channel.incoming.is_taken() && !part.is_begun;
        let is_whole = channel.incoming.is_readable(Mode::Messages);
        let begins = match is_whole {
            true => out.len() > PIECE_BYTES && channel.incoming.is_long(),
            false => !part.is_of_whole,
        };
        if channel.mode == Mode::Stream || is_others || !begins && !part.is_begun {
            return self.recv(id, out);
        }
        let takes_all = channel.incoming.take_part(out, part, &mut self.rx_pool);
        if is_whole && !part.is_begun {
            // It is too long for the reader.
            return self.recv(id, out);
        }
        if takes_all {
            self.after_read(at);
            // Others waited until it was read.
            self.announce_channel(at);
            return Ok(Some(part.bytes));
        }
        if part.has_more {
            // Though the peer may have closed.
            return Err(RecvError::WouldBlock);
        }
        nothing_to_read(channel)
    }

    /// Gives back what [`Endpoint::recv_partly`] has taken of a message, for who does not wait for the rest.
    pub fn put_back(&mut self, id: ChannelId, taken: &[u8]) {
        let Some(at) = self.channel_index(id) else { return };
        self.channels[at as usize].incoming.put_back(taken, &mut self.rx_pool);
        self.announce_channel(at);
    }

    /// Something was read: there is room for more.
    fn after_read(&mut self, at: u32) {
        if self.channels[at as usize].incoming.is_past_reserved() {
            self.release_reservation(at);
            if !self.channels[at as usize].incoming.is_finished() {
                // The next message may have begun meanwhile and need memory too.
                self.after_arrival(at);
            }
        }
        let window = self.receive_window();
        let channel = &mut self.channels[at as usize];
        if !channel.detached
            && !channel.incoming.is_finished()
            && channel.incoming.raise_limit(window, &mut self.rx_pool)
        {
            self.say_credit(at);
        }
    }

    /// What [`Endpoint::recv`] would give of a stream; it stays. Messages have [`Endpoint::message_bytes`].
    ///
    /// # Errors
    /// See [`RecvError`].
    pub fn peek(&mut self, id: ChannelId, out: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let at = self.channel_index(id).ok_or(RecvError::Unknown)?;
        let channel = &mut self.channels[at as usize];
        match channel.mode {
            Mode::Stream if channel.incoming.is_readable(Mode::Stream) => Ok(Some(channel.incoming.peek(out))),
            _ => nothing_to_read(channel),
        }
    }

    /// No more will be sent: the peer reads the end after everything before it.
    ///
    /// # Errors
    /// The channel failed; it is unknown.
    pub fn shutdown(&mut self, now: Time, id: ChannelId) -> Result<(), SendError> {
        let at = self.channel_index(id).ok_or(SendError::Unknown)?;
        if let Some(code) = self.channels[at as usize].failed {
            return Err(SendError::Failed(code));
        }
        self.finish_channel(now, at, Extent::Write);
        Ok(())
    }

    /// The user wants to read no more than what has arrived: afterwards [`Endpoint::recv`] gives the end. The peer is not told.
    pub fn stop_reading(&mut self, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        self.channels[at as usize].reading_stopped = true;
        self.announce_channel(at);
    }

    pub(super) fn finish_channel(&mut self, now: Time, at: u32, extent: Extent) {
        let channel = &mut self.channels[at as usize];
        if channel.outgoing.is_owed() {
            // Behind the message that is being handed over.
            channel.outgoing.ends_then = Some(extent);
            return;
        }
        // An end that was sent before this end stopped reading as well is followed by one that says so, unless nothing can come any more.
        let says_more = channel.outgoing.extent() == Some(Extent::Write)
            && extent == Extent::Both
            && !channel.incoming.is_finished();
        if channel.outgoing.is_finished() && !says_more {
            return;
        }
        channel.outgoing.finish(FinFields { extent }, &mut self.tx_pool);
        let association = channel.association;
        self.begin_waiting(now, association);
        self.associations[association as usize].flush = true;
        self.schedule_channel(at);
    }

    /// Gives the channel up: what was sent is still delivered, unread data is dropped (and then the peer's end is reset, as TCP does). The id is invalid afterwards.
    pub fn close(&mut self, now: Time, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let channel = &mut self.channels[at as usize];
        channel.released = true;
        if channel.detached {
            return self.free_channel(at);
        }
        let association = channel.association;
        if !self.associations[association as usize].is_open() {
            return self.withdraw(at);
        }
        if channel.failed.is_some() {
            channel.incoming.clear(&mut self.rx_pool);
        } else if channel.incoming.peer_is_gone() {
            // It reads nothing any more, not even why.
            channel.incoming.clear(&mut self.rx_pool);
            self.finish_channel(now, at, Extent::Both);
        } else if channel.incoming.unread_bytes() > 0 || channel.outgoing.is_owed() {
            self.begin_waiting(now, association);
            self.abort_channel(at, ErrorCode::Reset);
        } else {
            self.finish_channel(now, at, Extent::Both);
        }
        self.release_reservation(at);
        self.settle_channel(at);
    }

    /// Ends the channel at once: what is queued is dropped, and the peer sees a reset.
    pub fn abort(&mut self, now: Time, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let association = self.channels[at as usize].association;
        self.channels[at as usize].released = true;
        if self.channels[at as usize].detached {
            return self.free_channel(at);
        }
        if !self.associations[association as usize].is_open() {
            return self.withdraw(at);
        }
        self.begin_waiting(now, association);
        self.abort_channel(at, ErrorCode::Reset);
        self.settle_channel(at);
    }

    /// A channel whose association has not opened yet.
    fn withdraw(&mut self, at: u32) {
        let (index, number) = (self.channels[at as usize].association, self.channels[at as usize].number);
        let association = &self.associations[index as usize];
        let is_wanted = |at: u32| !self.channels[at as usize].released;
        if !association.channels.indices().any(is_wanted) {
            // Should the server have opened it meanwhile, its OPENED is answered by a reset.
            return self.end_association(index, ErrorCode::Closed);
        }
        if number == 0 && association.attempt().is_some_and(|attempt| attempt.confirmed) {
            // The server may know it: it is reset when the association opens.
            return;
        }
        self.associations[index as usize].detach(number);
        self.free_channel(at);
    }

    /// What can be done with a channel now. `None`: there is no such channel.
    pub fn readiness(&mut self, id: ChannelId) -> Option<Readiness> {
        let at = self.channel_index(id)?;
        let channel = &mut self.channels[at as usize];
        let is_open = channel.detached || self.associations[channel.association as usize].is_open();
        let mut readiness = channel.readiness(self.config.send_buffer_bytes as usize);
        readiness.writable &= is_open || channel.failed.is_some();
        if !readiness.writable {
            channel.outgoing.waiting.starve_anyhow();
        }
        Some(readiness)
    }

    /// Nothing of this channel waits for company any more: its user is about to wait for an answer.
    pub fn flush(&mut self, id: ChannelId) {
        let Some(at) = self.channel_index(id) else { return };
        let channel = &self.channels[at as usize];
        if !channel.outgoing.is_queue_empty() && !channel.detached {
            let association = channel.association;
            self.associations[association as usize].flush = true;
            self.make_ready(association);
        }
    }

    /// Whether small sends leave at once instead of sharing packets.
    pub fn set_no_delay(&mut self, id: ChannelId, on: bool) {
        if let Some(at) = self.channel_index(id) {
            self.channels[at as usize].outgoing.no_delay = on;
        }
    }

    /// The peer's path and the ports, local first.
    pub fn addresses(&self, id: ChannelId) -> Option<(Path, u16, u16)> {
        let channel = &self.channels[self.channel_index(id)? as usize];
        Some((channel.path, channel.local_port, channel.remote_port))
    }

    /// The length of the next whole message, if there is one.
    pub fn message_bytes(&self, id: ChannelId) -> Option<usize> {
        self.channels[self.channel_index(id)? as usize].incoming.message_bytes()
    }

    /// The longest message that can be sent on a channel: what the peer takes, and this end; 0 while it is being opened.
    pub fn longest_message(&self, id: ChannelId) -> Option<u64> {
        let channel = &self.channels[self.channel_index(id)? as usize];
        let association = self.associations.get(channel.association as usize).filter(|_| !channel.detached);
        Some(association.map_or(0, |association| longest_message(association, &self.config, &self.tx_pool)))
    }

    /// Closes every channel as [`Endpoint::close`] does, those that nobody accepted too: their users are gone.
    pub fn close_channels(&mut self, now: Time) {
        let ports: Vec<u16> = self.listeners.keys().copied().collect();
        ports.into_iter().for_each(|port| self.unlisten(port));
        let all: Vec<ChannelId> = self
            .channels
            .iter()
            .map(|(index, channel)| ChannelId { index: index as u32, generation: channel.generation })
            .collect();
        all.into_iter().for_each(|id| self.close(now, id));
    }

    /// Ends everything in order: peers are told, all channels fail with `CLOSED`. Call [`Endpoint::transmit`] afterwards. `false`: there are more peers than answers may wait for the link; call both again.
    pub fn close_all(&mut self) -> bool {
        let all: Vec<u32> = self.associations.iter().map(|(index, _)| index as u32).collect();
        let mut is_done = true;
        for index in all {
            if !self.queues.of_mut(&self.associations[index as usize].path).takes_replies() {
                is_done = false;
                continue;
            }
            self.say_goodbye(index, ErrorCode::Closed);
            self.end_association(index, ErrorCode::Closed);
        }
        is_done
    }

    /// Brings the sums over a channel's queue up to date and puts it into its association's round if it has something that may go.
    pub(super) fn schedule_channel(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if channel.detached {
            return;
        }
        let index = channel.association;
        let association = &mut self.associations[index as usize];
        let waits = is_kept_back(association, channel);
        if recount(association, channel) && association.is_open() && !waits {
            enter_round(association, channel, at);
            self.make_ready(index);
        }
    }

    pub(super) fn unschedule(&mut self, at: u32) {
        let channel = &mut self.channels[at as usize];
        if !channel.detached {
            recount(&mut self.associations[channel.association as usize], channel);
        }
    }
}

/// Puts a channel that may send into its association's round, or among those whose next packet needs no grant.
pub(super) fn enter_round(association: &mut Association, channel: &mut Channel, at: u32) {
    if !std::mem::replace(&mut channel.outgoing.scheduled, true) {
        let is_exempt = channel.outgoing.front().is_some_and(Unsent::is_exempt);
        let line = if is_exempt { &mut association.ending } else { &mut association.round };
        line.push_back(at);
    }
}

/// What a read gives where there is nothing.
fn nothing_to_read(channel: &Channel) -> Result<Option<usize>, RecvError> {
    match channel.failed {
        _ if channel.incoming.is_finished() || channel.reading_stopped => Ok(None),
        None => Err(RecvError::WouldBlock),
        Some(code) => Err(RecvError::Failed(code)),
    }
}

/// Brings the channel's part in its association's backlog up to date, and whether it waits for its reader. Says whether it may send.
pub(super) fn recount(association: &mut Association, channel: &mut Channel) -> bool {
    let outgoing = &mut channel.outgoing;
    let sendable = outgoing.sendable();
    let blocked = sendable == Sendable::Blocked;
    let to_come = match sendable {
        Sendable::Nothing => outgoing.owed_bytes().min(outgoing.credit_left()),
        Sendable::Blocked => 0,
        Sendable::Bytes(bytes) => bytes,
    };
    association.backlog_bytes = association.backlog_bytes + to_come - outgoing.counted_bytes;
    outgoing.counted_bytes = to_come;
    if std::mem::replace(&mut outgoing.counted_blocked, blocked) != blocked {
        if blocked {
            association.blocked.insert(channel.number);
        } else {
            association.blocked.remove(&channel.number);
        }
    }
    matches!(sendable, Sendable::Bytes(_))
}
