//! Channels that the user opens, and the associations and attempts through which their ports are reached.

use ropeway_wire::{BASE_HEADER_BYTES, ErrorCode, Id, Mode, OpenFields, Type, VERSION};

use super::{Endpoint, Path, Route};
use crate::association::{Association, Attempt, Phase};
use crate::channel::ChannelId;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("too many associations or channels; close some, or raise max_associations or max_channels")]
    TooMany,
    #[error("no memory to send with; raise send_memory or let transfers finish")]
    NoMemory,
    #[error("no route to the peer was given, or none bears the shortest packets")]
    NoRoute,
}

impl Endpoint {
    /// Opens a channel to `port` behind `path`. To a peer with whom there is an association it costs no round trip: data may be sent at once. Otherwise
    /// nothing can be sent until [`Readiness::opened`](crate::Readiness::opened).
    ///
    /// # Errors
    /// A bound was reached.
    pub fn connect(&mut self, now: Time, path: &Path, port: u16, mode: Mode) -> Result<ChannelId, ConnectError> {
        self.connect_ports(now, &[Route::new(*path, &self.config)], false, (None, port), mode)
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
        self.connect_ports(now, &[Route::new(*path, &self.config)], false, (Some(source_port), port), mode)
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
        ports: (Option<u16>, u16),
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        self.connect_ports(now, routes, bonded, ports, mode)
    }

    fn connect_ports(
        &mut self,
        now: Time,
        routes: &[Route],
        bonded: bool,
        (source_port, port): (Option<u16>, u16),
        mode: Mode,
    ) -> Result<ChannelId, ConnectError> {
        let ports = (source_port.unwrap_or_else(|| self.ports.take()), port);
        let opened = self.open_by(now, routes, bonded, ports, mode);
        match opened {
            _ if source_port.is_some() => {}
            Ok(id) => self.channels[id.index as usize].gives_port_back = true,
            Err(_) => self.ports.give_back(ports.0),
        }
        opened
    }

    fn open_by(
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
            self.note_rest(index);
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

    /// Whether these are the first bytes of a packet by which this end tries to reach who is at `path`. Who is not on the way can say the same of an attempt's packets only if it guesses the nonce.
    pub fn is_of_attempt(&self, path: &Path, bytes: &[u8]) -> bool {
        let known = self.peers.get(&path.unbound()).map(|&index| &*self.associations[index as usize]);
        let Some((association, attempt)) = known.and_then(|known| Some((known, known.attempt()?))) else {
            return false;
        };
        // CONFIRM repeats what SYN says.
        let is_of_kind = |kind: Type| bytes.first() == Some(&(VERSION << 4 | kind as u8));
        let said = bytes.get(BASE_HEADER_BYTES..).unwrap_or_default();
        (is_of_kind(Type::Syn) || is_of_kind(Type::Confirm))
            && said.starts_with(&[&association.id.0.to_be_bytes()[..], &attempt.nonce.to_be_bytes()].concat())
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

    /// The network says something else of `path`, which also ends such an attempt, as if its time were over. These are its channels, for who can tell their users more.
    pub fn give_up_unanswered(&mut self, path: &Path) -> Vec<ChannelId> {
        let Some(index) = self.unanswered(path) else { return Vec::new() };
        let id = |at: u32| ChannelId { index: at, generation: self.channels[at as usize].generation };
        let ids = self.associations[index as usize].channels.indices().map(id).collect();
        self.end_association(index, ErrorCode::Timeout);
        ids
    }

    /// The attempt that goes over this path alone and that nobody has answered.
    fn unanswered(&self, path: &Path) -> Option<u32> {
        let &index = self.peers.get(&path.unbound())?;
        let association = &self.associations[index as usize];
        let is_unanswered = association.attempt().is_some_and(|attempt| attempt.cookie.is_none());
        // Over another path it may still be reached.
        (is_unanswered && association.routes.is_none()).then_some(index)
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
        let index = self.add_association(now, None, make).ok_or(ConnectError::TooMany)?;
        self.associations[index as usize].asked_port = Some(port);
        if let Some(before) = self.peers.insert(path.unbound(), index) {
            self.keep_beside(before);
        }
        self.add_routes(now, index, routes, bonded);
        self.run_attempt(now, index);
        self.settle_timers(now, index);
        Ok(index)
    }
}
