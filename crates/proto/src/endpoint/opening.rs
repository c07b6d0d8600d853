//! Opening an association as its server (docs/protocol.md 3): three packets before data, and no memory before the client has proved its address.

use ropeway_wire::{
    BASE_HEADER_BYTES, ConfirmFields, CookieFields, ErrorCode, FEATURE_KEYED, Flags, Header, Id, Malformed, OpenFields,
    OpenedFields, Packet, Parameters, RedirectFields, RefusedFields, SynFields, Type, VersionFields,
};

use super::{Endpoint, Path};
use crate::association::{Association, Phase};
use crate::channel::Incoming;
use crate::time::Time;

/// A peer that opens one more association is asked about so many of its others at most: one that was started anew had few ...
const MOST_DOUBTED: usize = 8;
/// ... and they are chosen among so many: who opens thousands shall not have all of them looked at each time.
const MOST_LOOKED_AT: usize = 64;

impl Endpoint {
    pub(super) fn handle_opening(&mut self, now: Time, path: &Path, packet: &Packet<'_>) -> Result<(), Malformed> {
        let id = packet.header.destination;
        // SYN and CONFIRM are for nobody that is known.
        let (own, path) = (path.own(), &self.known_path(id, path));
        match packet.header.kind {
            Type::Syn => self.handle_syn(now, path, &SynFields::parse(packet.payload)?, packet.bytes().len()),
            Type::Cookie => self.handle_cookie(now, path, id, &CookieFields::parse(packet.payload)?),
            Type::Confirm => self.handle_confirm(now, path, packet, &ConfirmFields::parse(packet.payload)?)?,
            Type::Opened => self.handle_opened(now, path, own, packet, &OpenedFields::parse(packet.payload)?)?,
            Type::Refused => {
                let fields = RefusedFields::parse(packet.payload)?;
                self.handle_refused(now, path, id, fields.nonce, fields.code);
            }
            Type::Version => {
                let fields = VersionFields::parse(packet.payload)?;
                // We speak one version only, so whatever the peer lists is not enough.
                self.handle_refused(now, path, id, fields.nonce, ErrorCode::Version);
            }
            // Only an engine that hosts others sends REDIRECT; this one keeps to the address its user gave.
            _ => {
                RedirectFields::parse(packet.payload)?;
                self.counters.dropped_unasked += 1;
            }
        }
        Ok(())
    }

    pub(super) fn refuse(&mut self, now: Time, path: &Path, syn: &SynFields, code: ErrorCode) {
        self.counters.channels_refused += 1;
        let fields = RefusedFields { nonce: syn.nonce, code };
        let header = Header { length: RefusedFields::BYTES as u16, ..Header::new(Type::Refused, syn.source) };
        self.reply_with(now, path, |out| {
            let at = header.write(out).ok()?;
            Some(at + fields.write(out.get_mut(at..)?).ok()?)
        });
    }

    fn handle_syn(&mut self, now: Time, path: &Path, syn: &SynFields, arrived_bytes: usize) {
        if self.is_thrown_back(path, syn) {
            return self.counters.dropped_unasked += 1;
        }
        if (syn.features & FEATURE_KEYED != 0) != self.keys.is_some() {
            return self.refuse(now, path, syn, ErrorCode::Key);
        }
        // With a key, who asks learns about ports when he has proved that he has it.
        if let Some(code) = self.refusal_of_port(syn.destination_port).filter(|_| self.keys.is_none()) {
            return self.refuse(now, path, syn, code);
        }
        if self.is_crossing(path, syn) {
            return self.refuse(now, path, syn, ErrorCode::Crossed);
        }
        let size = usize::from(syn.packet_size.min(self.config.packet_bytes));
        // Never more than what came: nobody can turn us against a third party.
        if size > arrived_bytes || size < ropeway_wire::MIN_PACKET_BYTES {
            self.counters.dropped_malformed[Malformed::PacketSize.index()] += 1;
            return;
        }
        let cookie = self.cookie(now, path, &SynFields { packet_size: size as u16, ..*syn });
        let fields = CookieFields { nonce: syn.nonce, packet_size: size as u16, cookie };
        let header = Header { length: (size - BASE_HEADER_BYTES) as u16, ..Header::new(Type::Cookie, syn.source) };
        self.reply_with(now, path, |out| {
            let out = out.get_mut(..size)?;
            out.fill(0);
            let at = header.write(out).ok()?;
            fields.write(out.get_mut(at..)?).ok()?;
            Some(size)
        });
    }

    /// Whether both ends are trying at once and this one, the lower of the two, is the client. If the other is, this end's attempt goes on all the same: a SYN
    /// proves nothing, and whoever forged one could stop it. It gives way to a CONFIRM with a good cookie, and for a while to the other's CROSSED.
    fn is_crossing(&self, path: &Path, syn: &SynFields) -> bool {
        if !self.are_alone(syn) {
            return false;
        }
        let Some(&index) = self.peers.get(&path.unbound()) else { return false };
        let Some(attempt) = self.associations[index as usize].attempt() else { return false };
        (self.node, attempt.source_port) < (syn.node, syn.source_port)
    }

    /// Whether this end and the sender of a SYN are the only engines at their addresses: then an attempt towards the other's address is one towards it.
    fn are_alone(&self, syn: &SynFields) -> bool {
        self.steering == 0 && syn.source.steering() == 0
    }

    /// Whether this is a SYN of our own for somebody else: who throws our packets back at us would have us talk to ourselves in his place. To our own address
    /// we may talk.
    fn is_thrown_back(&self, path: &Path, syn: &SynFields) -> bool {
        let Some(own) = self.find(syn.source).map(|index| &self.associations[index as usize]) else { return false };
        let is_ours = own.attempt().is_some_and(|attempt| attempt.nonce == syn.nonce);
        is_ours && !(own.path.takes(path) && self.own_paths.contains(&path.unbound()))
    }

    fn refusal_of_port(&self, port: u16) -> Option<ErrorCode> {
        match self.listeners.get(&port) {
            None => Some(ErrorCode::Refused),
            Some(listener) if listener.is_full() => Some(ErrorCode::Busy),
            Some(_) => None,
        }
    }

    pub(super) fn parameters(&mut self, index: u32) -> Parameters {
        let reset_token = self.own_token(self.associations[index as usize].id);
        let association = &self.associations[index as usize];
        Parameters {
            id: association.id,
            first_number: association.first_number,
            window: association.own_window,
            longest_message: association.own_longest,
            reset_token,
        }
    }

    fn handle_confirm(
        &mut self,
        now: Time,
        path: &Path,
        packet: &Packet<'_>,
        confirm: &ConfirmFields<'_>,
    ) -> Result<(), Malformed> {
        // Memory is cut for the packet size accepted; the cookie proves that it is the one that was.
        if BASE_HEADER_BYTES + packet.payload.len() > usize::from(confirm.syn.packet_size) {
            return Err(Malformed::PayloadLength);
        }
        if !self.is_fresh_cookie(now, path, confirm) {
            self.counters.dropped_cookie += 1;
            return Ok(());
        }
        if let Some(spent) = self.spent.get(&(*path, confirm.syn.nonce)) {
            // Our answer was lost.
            let (opened, answer) = (spent.opened, spent.answer.clone());
            if let Some(answer) = answer {
                self.reply_bytes(path, answer);
            } else if let Some((index, id)) = opened
                && self.keys.is_none()
            {
                match self.find(id) == Some(index) {
                    true => self.send_opened(now, index, confirm.syn.nonce),
                    // It is over already, and who still asks has not heard of that either.
                    false => self.refuse(now, path, &confirm.syn, ErrorCode::Closed),
                }
            } else {
                self.counters.dropped_duplicate += 1;
            }
            return Ok(());
        }
        if self.is_thrown_back(path, &confirm.syn) {
            self.counters.dropped_unasked += 1;
            return Ok(());
        }
        // Two CONFIRMs may cross even if the SYNs did not: the same end is the client.
        if self.is_crossing(path, &confirm.syn) {
            self.refuse(now, path, &confirm.syn, ErrorCode::Crossed);
            return Ok(());
        }
        if self.keys.is_some() {
            return self.confirm_with_key(now, path, packet, confirm);
        }
        let taken = if self.may_spend(now, path) {
            self.take_client(now, path, &confirm.syn, &confirm.parameters, packet.header.flags, confirm.rest)?
        } else {
            Err(ErrorCode::Busy)
        };
        match taken {
            Ok(index) => {
                let id = self.associations[index as usize].id;
                self.spend(now, path, confirm.syn.nonce, Some((index, id)), None);
                self.send_opened(now, index, confirm.syn.nonce);
                self.settle_timers(now, index);
            }
            Err(code) => self.refuse(now, path, &confirm.syn, code),
        }
        Ok(())
    }

    /// Opens an association for a client that has proved what it must, and brings the OPEN that came with it; or says why not.
    pub(super) fn take_client(
        &mut self,
        now: Time,
        path: &Path,
        syn: &SynFields,
        parameters: &Parameters,
        flags: Flags,
        open: &[u8],
    ) -> Result<Result<u32, ErrorCode>, Malformed> {
        let fields = OpenFields::parse(open)?;
        if let Some(code) = self.refusal(fields.destination_port, fields.mode) {
            return Ok(Err(code));
        }
        let Some(index) = self.admit(now, path, syn, parameters) else { return Ok(Err(ErrorCode::Busy)) };
        self.counters.associations_opened += 1;
        let number = parameters.first_number;
        // The window begins with this number, so it is in it, and new.
        self.associations[index as usize].received.arrive(number, now);
        self.bring_open(index, flags, number, 0, open);
        self.note_rest(index);
        Ok(Ok(index))
    }

    /// A new association for a client that has proved its address. An attempt of ours towards the same peer, which stood back, goes over into it; one towards its address may be for another engine
    /// there, and goes on.
    fn admit(&mut self, now: Time, path: &Path, syn: &SynFields, parameters: &Parameters) -> Option<u32> {
        let first_number = self.first_number();
        let (config, windows) = (self.config.clone(), self.windows());
        let index = self.add_association(now, Some(path), |id| {
            Association::new(id, *path, Phase::Open, windows, first_number, &config, now)
        })?;
        self.associations[index as usize].open(parameters, usize::from(syn.packet_size));
        let is_own = |before: u32| {
            self.associations[before as usize].attempt().is_some_and(|attempt| attempt.nonce == syn.nonce)
        };
        match self.peers.insert(path.unbound(), index) {
            // Ours to ourselves.
            Some(before) if is_own(before) => {}
            Some(before) if self.associations[before as usize].is_open() => {
                self.doubt_former(now, path, before, syn.source);
            }
            Some(before) if self.are_alone(syn) => {
                self.inherit_routes(now, before, index);
                self.move_channels(now, before, index);
            }
            // It goes on, or there is none.
            _ => {}
        }
        Some(index)
    }

    /// The newest association on a path was `before`, and now that peer, or one that shares its address, opens another. Of those that share one the same peer may have others.
    /// A peer that opens a second association has probably lost the first: it is asked, and so are some of the others.
    fn doubt_former(&mut self, now: Time, path: &Path, before: u32, source: Id) {
        let path = path.unbound();
        let (first, last) = (Id::new(source.steering(), 0, 0), Id::new(source.steering(), u16::MAX, u8::MAX));
        // A peer that was started anew begins with low slots, and so did the one before.
        let around =
            self.elders.range((path, source)..=(path, last)).chain(self.elders.range((path, first)..(path, source)));
        let most = if source.steering() == 0 { 0 } else { MOST_LOOKED_AT };
        let quiet_at = |index: u32| {
            let association = &self.associations[index as usize];
            association.heard_at.max(association.state_at)
        };
        let mut own: Vec<(Time, u32)> = around
            .take(most)
            .map(|(_, &index)| (quiet_at(index), index))
            .filter(|&(_, index)| index != before)
            .collect();
        own.retain(|&(at, _)| now.since(at) >= self.config.state_min_ns);
        own.sort_unstable();
        self.keep_beside(before);
        for index in own.into_iter().map(|(_, index)| index).take(MOST_DOUBTED - 1).chain([before]) {
            let association = &mut self.associations[index as usize];
            (association.state_due, association.state_at) = (true, now);
            self.make_ready(index);
        }
    }

    /// Keeps an open association where another one is the newest on its path.
    pub(super) fn keep_beside(&mut self, index: u32) {
        let association = &self.associations[index as usize];
        if association.is_open() {
            self.elders.insert((association.path.unbound(), association.peer), index);
        }
    }

    fn move_channels(&mut self, now: Time, from: u32, to: u32) {
        let channels = std::mem::take(&mut self.associations[from as usize].channels);
        for at in channels.indices() {
            match self.channels[at as usize].released {
                // Closed while the server might have known it, which now refuses the attempt.
                true => self.free_channel(at),
                false => self.move_channel(now, at, to),
            }
        }
        self.end_association(from, ErrorCode::Closed);
    }

    /// A channel that its former association has not opened is opened by another one.
    pub(super) fn move_channel(&mut self, now: Time, at: u32, to: u32) {
        let association = &mut self.associations[to as usize];
        let Some(number) = association.free_number(self.config.max_channels) else {
            return self.fail_channel(at, ErrorCode::Busy);
        };
        association.attach(number, at);
        let channel = &mut self.channels[at as usize];
        let fields = OpenFields {
            destination_port: channel.remote_port,
            source_port: channel.local_port,
            mode: channel.mode,
            early: &[],
        };
        channel.incoming.revoke(&mut self.rx_pool);
        channel.incoming = Incoming::new(association.own_window);
        (channel.association, channel.number) = (to, number);
        (channel.credit_due, channel.hold_due, channel.has_words) = (false, false, false);
        if !channel.outgoing.restart(&fields, &mut self.tx_pool) {
            association.detach(number);
            return self.fail_channel(at, ErrorCode::Busy);
        }
        channel.outgoing.raise_credit(u64::from(association.peer_window));
        self.note_rest(to);
        if self.associations[to as usize].is_open() {
            self.begin_waiting(now, to);
            self.schedule_channel(at);
        }
    }

    pub(super) fn opened_header(&mut self, now: Time, index: u32) -> Header {
        let first_flight = self.first_flight(now, index);
        let association = &self.associations[index as usize];
        association.header(Type::Opened, association.first_number, first_flight, &self.config, now)
    }

    fn send_opened(&mut self, now: Time, index: u32, nonce: u64) {
        let mut parameters = [0; Parameters::BYTES];
        // The first number stays what it was, however much has been acknowledged since.
        let first = self.parameters(index);
        if first.write(&mut parameters).is_err() {
            return;
        }
        let path = self.associations[index as usize].path;
        let header = self.opened_header(now, index);
        let fields = OpenedFields { nonce, rest: &parameters };
        self.reply_with(now, &path, |out| {
            let length = fields.write(out.get_mut(BASE_HEADER_BYTES..)?).ok()?;
            Some(Header { length: length as u16, ..header }.write(out).ok()? + length)
        });
    }

    /// The number that an association's first packet gets.
    pub(super) fn first_number(&mut self) -> u64 {
        self.config.first_number.unwrap_or_else(|| self.random.next_u64())
    }
}
