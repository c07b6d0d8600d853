//! Opening an association as its client: SYN, CONFIRM, and what the server answers (docs/protocol.md 3).

use ropeway_wire::{
    BASE_HEADER_BYTES, ConfirmFields, Cookie, CookieFields, ErrorCode, FEATURE_KEYED, Header, Id, Malformed,
    OpenedFields, Packet, Parameters, SynFields, Type, VERSION,
};

use super::cookies::COOKIE_NS;
use super::keyed_opening::Answer;
use super::timers::OVERSLEPT_NS;
use super::{Endpoint, Path};
use crate::association::{Attempt, Crossed, FIRST_RETRY_NS};
use crate::sent::Packet as SentPacket;
use crate::time::Time;

pub(super) const MOST_RETRY_NS: u64 = 1_000_000_000;

impl Endpoint {
    /// Sends what an attempt has to say now, or ends it. `false`: it is over.
    pub(super) fn run_attempt(&mut self, now: Time, index: u32) -> bool {
        let jitter = self.random.next_u64();
        let has_overslept = self.excuse_attempt(now, index);
        let association = &mut self.associations[index as usize];
        let Some(attempt) = association.attempt_mut() else { return true };
        if now >= attempt.give_up_at {
            self.counters.timeouts += 1;
            let code = attempt.hint.unwrap_or(ErrorCode::Timeout);
            self.end_association(index, code);
            return false;
        }
        if now < attempt.retry_at {
            return true;
        }
        if attempt.cookie.map_or(has_overslept, |(_, at)| now.since(at) >= COOKIE_NS) {
            // No server takes it any more, nor what may have come meanwhile: the network was cut, or one of the ends stopped.
            self.restart_attempt(index, now);
        }
        let association = &self.associations[index as usize];
        let Some(attempt) = association.attempt() else { return true };
        let is_repeated = attempt.retry_ns > FIRST_RETRY_NS && attempt.crossed != Crossed::LeavesOut;
        if is_repeated && association.routes.is_some() {
            self.try_another_path(now, index);
        }
        let association = &mut self.associations[index as usize];
        let Some(attempt) = association.attempt_mut() else { return true };
        // A sample of the round-trip time needs to know which of several questions was answered.
        let is_first = attempt.retry_ns == FIRST_RETRY_NS;
        attempt.asked_at = is_first.then_some(now);
        attempt.retry_at = now.after(attempt.retry_ns + jitter % (attempt.retry_ns / 8));
        attempt.retry_ns = (attempt.retry_ns * 2).min(MOST_RETRY_NS);
        if attempt.crossed == Crossed::LeavesOut {
            attempt.crossed = Crossed::LeftOut;
            return true;
        }
        attempt.crossed = Crossed::No;
        let association = &self.associations[index as usize];
        let (id, path) = (association.id, association.path);
        let Some(attempt) = association.attempt() else { return true };
        let Attempt { nonce, destination_port, source_port, cookie, packet_bytes, .. } = *attempt;
        let syn = SynFields {
            source: id,
            nonce,
            node: self.node,
            destination_port,
            source_port,
            packet_size: packet_bytes,
            lowest_version: VERSION,
            highest_version: VERSION,
            features: if self.keys.is_some() { FEATURE_KEYED } else { 0 },
        };
        match cookie {
            None => self.send_syn(index, &path, &syn),
            Some((cookie, _)) => self.send_confirm(index, &syn, cookie),
        }
        true
    }

    /// Time during which this end did not run does not count (docs/protocol.md 8.2): an attempt has as much in addition, and enough for an answer. Says whether there
    /// was any.
    fn excuse_attempt(&mut self, now: Time, index: u32) -> bool {
        let Some(attempt) = self.associations[index as usize].attempt_mut() else { return false };
        let Some(late_ns) = overslept_ns(attempt, now) else { return false };
        attempt.give_up_at = attempt.give_up_at.after(late_ns).max(now.after(MOST_RETRY_NS));
        attempt.retry_at = now;
        true
    }

    fn send_syn(&mut self, index: u32, path: &Path, syn: &SynFields) {
        let size = usize::from(syn.packet_size);
        let length = (size - BASE_HEADER_BYTES) as u16;
        let header = Header { length, ..Header::new(Type::Syn, Id::any(syn.destination_port)) };
        let mut bytes = vec![0; size];
        let written = header.write(&mut bytes).and_then(|at| syn.write(&mut bytes[at..]));
        if written.is_ok() {
            self.ask(index, path, bytes.into());
        }
    }

    /// Has a packet of an attempt wait for the link, in place of the one that still does: a full link is not filled with repetitions.
    pub(super) fn ask(&mut self, index: u32, path: &Path, bytes: Box<[u8]>) {
        let association = &mut self.associations[index as usize];
        let id = association.id;
        let Some(attempt) = association.attempt_mut() else { return };
        let is_answered = attempt.cookie.is_some();
        let place = self.queues.place(path);
        let former = attempt.unsent.replace((*path, bytes));
        if former.is_some_and(|(former, _)| self.queues.place(&former) == place) && !is_answered {
            return;
        }
        if self.queues.at(place).asking.len() >= self.associations.len() {
            let mut asking = std::mem::take(&mut self.queues.at_mut(place).asking);
            asking.retain(|&other| other != id && self.unsent_of(place, other).is_some());
            self.queues.at_mut(place).asking = asking;
        }
        let asking = &mut self.queues.at_mut(place).asking;
        // Who has answered does not wait behind who may be off.
        if is_answered {
            asking.push_front(id);
        } else {
            asking.push_back(id);
        }
    }

    /// Whether the peer of an attempt has said something.
    pub(super) fn is_answered(&self, id: Id) -> bool {
        let attempt = self.find(id).and_then(|index| self.associations[index as usize].attempt());
        attempt.is_some_and(|attempt| attempt.cookie.is_some())
    }

    /// What an attempt has for the link with this place.
    pub(super) fn unsent_of(&self, place: usize, id: Id) -> Option<&(Path, Box<[u8]>)> {
        let unsent = self.associations[self.find(id)? as usize].attempt()?.unsent.as_ref();
        unsent.filter(|(path, _)| self.queues.place(path) == place)
    }

    /// The attempt that an answer belongs to.
    fn find_attempt(&mut self, path: &Path, id: Id, nonce: u64) -> Option<u32> {
        let found = self.find(id).filter(|&index| {
            let association = &self.associations[index as usize];
            association.has_path(path) && association.attempt().is_some_and(|attempt| attempt.nonce == nonce)
        });
        if found.is_none() {
            self.counters.dropped_unasked += 1;
        }
        found
    }

    pub(super) fn handle_cookie(&mut self, now: Time, path: &Path, id: Id, fields: &CookieFields) {
        let Some(index) = self.find_attempt(path, id, fields.nonce) else { return };
        let association = &mut self.associations[index as usize];
        let unanswered = association.attempt().filter(|attempt| attempt.cookie.is_none());
        if unanswered.is_some_and(|attempt| overslept_ns(attempt, now).is_some()) {
            // The cookie may have waited here for as long: the attempt begins anew.
            self.counters.dropped_unasked += 1;
            self.run_attempt(now, index);
            return self.settle_timers(now, index);
        }
        let most = association.attempt().map_or(self.config.packet_bytes, |attempt| attempt.packet_bytes);
        let asked_at = association.attempt().and_then(|attempt| attempt.asked_at);
        if let Some(attempt) = association.attempt_mut() {
            if attempt.cookie.is_some() {
                self.counters.dropped_unasked += 1;
                return;
            }
            attempt.cookie = Some((fields.cookie, now));
            (attempt.retry_at, attempt.retry_ns, attempt.asked_at) = (now, FIRST_RETRY_NS, None);
        }
        association.settle_on(path);
        association.set_packet_bytes(usize::from(fields.packet_size.min(most)));
        if let Some(at) = asked_at {
            association.rtt.sample(now.since(at), false);
        }
        self.run_attempt(now, index);
        self.settle_timers(now, index);
    }

    fn send_confirm(&mut self, index: u32, syn: &SynFields, cookie: Cookie) {
        self.number_first_open(index);
        if self.keys.is_some() {
            return self.send_keyed_confirm(index, syn, cookie);
        }
        let parameters = self.parameters(index);
        let association = &self.associations[index as usize];
        let (path, size) = (association.path, association.packet_bytes);
        let Some(open) = association.sent.get(association.sent.una()) else { return };
        let rest = open.payload.bytes().to_vec();
        let syn = SynFields { packet_size: size as u16, ..*syn };
        let fields = ConfirmFields { syn, cookie, parameters, rest: &rest };
        let mut bytes = vec![0; usize::from(self.config.packet_bytes)];
        let Ok(length) = fields.write(&mut bytes[BASE_HEADER_BYTES..]) else { return };
        let header = Header { length: length as u16, ..Header::new(Type::Confirm, Id::any(syn.destination_port)) };
        if let Ok(at) = header.write(&mut bytes) {
            bytes.truncate(at + length);
            self.ask(index, &path, bytes.into());
        }
    }

    /// The OPEN of channel 0 gets the first number: CONFIRM carries it. Channel 0 is the first that is left of those that were asked for meanwhile.
    fn number_first_open(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        if association.sent.in_flight() > 0 {
            return;
        }
        let Some((number, owner)) = association.channels.pop_first() else { return };
        association.attach(0, owner);
        let channel = &mut self.channels[owner as usize];
        debug_assert!(number == channel.number, "the table and the channel agree");
        channel.number = 0;
        let Some(unsent) = channel.outgoing.pop() else { return };
        channel.outgoing.last_number = Some(association.sent.next());
        association.sent.push(SentPacket {
            channel: channel.number,
            payload: unsent.payload,
            transmitted: true,
            ..SentPacket::new(unsent.kind, owner)
        });
        if let Some(attempt) = association.attempt_mut() {
            attempt.confirmed = true;
        }
    }

    /// `own`: the number of the own address that it came to.
    pub(super) fn handle_opened(
        &mut self,
        now: Time,
        path: &Path,
        own: u8,
        packet: &Packet<'_>,
        fields: &OpenedFields<'_>,
    ) -> Result<(), Malformed> {
        if self.find(packet.header.destination).is_none() {
            // The attempt was given up meanwhile: the server must not wait for it.
            self.counters.dropped_unknown_id += 1;
            self.reply_reset(now, path, packet);
            return Ok(());
        }
        let Some(index) = self.find_attempt(path, packet.header.destination, fields.nonce) else { return Ok(()) };
        let association = &self.associations[index as usize];
        let Some(asked_at) =
            association.attempt().filter(|attempt| attempt.cookie.is_some()).map(|attempt| attempt.asked_at)
        else {
            self.counters.dropped_unasked += 1;
            return Ok(());
        };
        let parameters = if self.keys.is_none() {
            let (parameters, []) = Parameters::parse(fields.rest)? else { return Err(Malformed::PayloadLength) };
            parameters
        } else {
            match self.read_answer(now, index, packet, fields) {
                Some(Answer::Opened(parameters)) => parameters,
                Some(Answer::Refused(code)) => {
                    self.refuse_attempt(now, index, code);
                    return Ok(());
                }
                None => return Ok(()),
            }
        };
        let association = &mut self.associations[index as usize];
        if let Some(at) = asked_at {
            association.rtt.sample(now.since(at), false);
        }
        let packet_bytes = association.packet_bytes;
        association.open(&parameters, packet_bytes);
        association.settle_on(path);
        if let Some(routes) = &mut association.routes {
            routes.opened(path, now);
        }
        (association.heard_at, association.spoken_to) = (now, own);
        if self.peers.get(&association.path.unbound()) != Some(&index) {
            // Another port of the same address was asked meanwhile.
            self.keep_beside(index);
        }
        self.counters.associations_opened += 1;
        if self.take_header(now, index, &packet.header).is_none() {
            self.counters.dropped_window += 1;
        }
        if self.keys.is_some() && asked_at.is_none() {
            // It is repeated byte for byte: its time may be that of an answer that was lost, and the peer would take the echo for a long way.
            self.associations[index as usize].peer_time = None;
        }
        let channels: Vec<u32> = self.associations[index as usize].channels.indices().collect();
        for at in channels {
            let channel = &mut self.channels[at as usize];
            channel.outgoing.raise_credit(u64::from(parameters.window));
            if channel.released {
                // Closed while the server was being told of it.
                self.abort_channel(at, ErrorCode::Reset);
                continue;
            }
            self.begin_waiting(now, index);
            self.schedule_channel(at);
            self.announce_channel(at);
        }
        self.note_rest(index);
        self.settle_timers(now, index);
        Ok(())
    }

    pub(super) fn handle_refused(&mut self, now: Time, path: &Path, id: Id, nonce: u64, code: ErrorCode) {
        let Some(index) = self.find_attempt(path, id, nonce) else { return };
        if code == ErrorCode::Crossed {
            if let Some(attempt) = self.associations[index as usize].attempt_mut()
                && attempt.crossed == Crossed::No
            {
                attempt.crossed = Crossed::LeavesOut;
            }
            return;
        }
        if self.keep_hint(index, code) {
            return;
        }
        self.refuse_attempt(now, index, code);
    }

    /// The server does not take us.
    fn refuse_attempt(&mut self, now: Time, index: u32, code: ErrorCode) {
        if matches!(code, ErrorCode::Refused | ErrorCode::Busy) && self.retry_for_others(now, index, code) {
            return;
        }
        self.end_association(index, code);
    }

    /// One port did not take us; channels to others behind the same path start a new attempt. `false`: there are none.
    fn retry_for_others(&mut self, now: Time, index: u32, code: ErrorCode) -> bool {
        let channels = &self.channels;
        let association = &self.associations[index as usize];
        let Some(named_port) = association.attempt().map(|attempt| attempt.destination_port) else { return false };
        // SYN names the port that was asked for first. CONFIRM asks for that of channel 0, which is another one if the first was closed meanwhile.
        let carried = association.channels.get(0).filter(|_| association.sent.in_flight() > 0);
        let refused_port = carried.map_or(named_port, |at| channels[at as usize].remote_port);
        let is_other =
            |at: &u32| channels[*at as usize].remote_port != refused_port && !channels[*at as usize].released;
        if !association.channels.indices().any(|at| is_other(&at)) {
            return false;
        }
        let refused: Vec<(u16, u32)> = association.channels.iter().filter(|(_, at)| !is_other(at)).collect();
        for (number, at) in refused {
            self.associations[index as usize].detach(number);
            self.fail_channel(at, code);
        }
        self.excuse_attempt(now, index);
        self.restart_attempt(index, now);
        self.ask_for_first(index);
        self.run_attempt(now, index);
        self.settle_timers(now, index);
        true
    }

    /// An attempt that begins anew asks for the port of the first channel that is left.
    pub(super) fn ask_for_first(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        let Some(at) = association.channels.indices().next() else { return };
        let channel = &self.channels[at as usize];
        association.asked_port = Some(channel.remote_port);
        if let Some(attempt) = association.attempt_mut() {
            (attempt.destination_port, attempt.source_port) = (channel.remote_port, channel.local_port);
        }
    }
}

/// How late this end looks at an attempt, if that is so late that it did not run meanwhile.
fn overslept_ns(attempt: &Attempt, now: Time) -> Option<u64> {
    Some(now.since(attempt.due_at())).filter(|&late_ns| late_ns >= OVERSLEPT_NS)
}
