//! Associations with several paths (docs/protocol.md 12): which path the packets of a turn take, and what arrivals and silence say about each. The sums are
//! `crate::routes`'s; how a path becomes one of an open association is in `joining`.

use std::io::IoSlice;

use ropeway_wire::{BASE_HEADER_BYTES, COUNTER_BYTES, Flags, Header, Id, MIN_PACKET_BYTES, TAG_BYTES, Type};

use super::output::{BATCH_PACKETS, Handling, LinkFull, Turn};
use super::resets::generation;
use super::{Counters, Endpoint, Path, Sink, Taken, Urgency};
use crate::association::{Association, Attempt};
use crate::config::Config;
use crate::routes::{Changes, Routes};
use crate::sent::Sent;
use crate::time::Time;

/// CONFIRMs over one path without an answer, after which an attempt begins anew over the next: 150 ms of a path that had answered.
const CONFIRMS_PER_PATH: u32 = 4;

/// A path is left when its link has taken nothing for so many times the patience with it: one that is only busy has sent what it is sending by then.
const STUCK_PATIENCES: u64 = 8;

/// One path to a peer, as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub path: Path,
    /// The longest packet that the path bears as far as is known here. The shortest of the routes is what opening proposes, and every path has to prove.
    pub packet_bytes: u16,
}

impl Route {
    /// A path that bears the longest packets of all.
    pub fn new(path: Path, config: &Config) -> Route {
        Route { path, packet_bytes: config.packet_bytes }
    }
}

impl Counters {
    fn note(&mut self, changes: Changes) {
        self.paths_suspected += changes.suspected;
        self.paths_recovered += changes.recovered;
        self.defaults_changed += u64::from(changes.default_changed);
    }
}

impl Association {
    /// An attempt goes on over the path that was answered.
    pub(super) fn settle_on(&mut self, path: &Path) {
        if self.has_path(path) {
            self.path = *path;
        }
    }

    /// The path of a control packet: the one asked for, that of the next STATE, or the default.
    pub(super) fn control_path(&self, over: Option<usize>) -> Path {
        match (&self.routes, over) {
            (Some(routes), Some(place)) => routes.way(place).path,
            (Some(routes), None) if self.state_due => routes.way(routes.for_state(self.states_unanswered)).path,
            (None, None) if self.state_due && self.states_unanswered.is_multiple_of(2) => self.usual_path(),
            _ => self.path,
        }
    }

    pub(super) fn asked_over(&mut self, path: &Path, now: Time, config: &Config) {
        let patience_ns = self.question_ns(config);
        if let Some(routes) = &mut self.routes
            && let Some(place) = routes.place(path)
        {
            routes.asked(place, now, patience_ns);
        }
    }

    /// From which missing number on the packet may still come over a slower path.
    pub(super) fn slow_from(&self, now: Time, config: &Config) -> Option<u64> {
        self.routes.as_ref()?.lost_below(self.received.base(), now, self.late_ns(config))
    }

    /// Whether what its link does not take over this path is lost: it is suspected, and there is a better one, which is not to wait for that link.
    fn may_be_lost(&self, path: &Path) -> bool {
        // Never over its own path: its turn would not end.
        self.path != *path && self.routes.as_ref().is_some_and(|routes| routes.good() > 0 && !routes.is_good(path))
    }

    /// What has no choice follows the default.
    fn follow(&mut self) {
        if let Some(routes) = &self.routes {
            self.path = routes.default_path();
        }
    }
}

impl Endpoint {
    /// The first of the routes that bear packets at all, and the packet size that all of these bear.
    pub(super) fn first_route(&self, routes: &[Route]) -> Option<(Path, u16)> {
        let bears = |route: &&Route| usize::from(route.packet_bytes) >= MIN_PACKET_BYTES;
        let least = routes.iter().filter(bears).map(|route| route.packet_bytes).min()?;
        let first = routes.iter().find(bears)?;
        Some((first.path, least.min(self.config.packet_bytes)))
    }

    /// Adds those of the routes that an association, or an attempt, does not know yet.
    pub(super) fn add_routes(&mut self, now: Time, index: u32, routes: &[Route], bonded: bool) {
        let association = &mut self.associations[index as usize];
        let least = if association.is_open() { association.packet_bytes } else { MIN_PACKET_BYTES };
        let mut has_new = false;
        for route in routes.iter().filter(|route| usize::from(route.packet_bytes) >= least) {
            if association.reaches(&route.path) {
                continue;
            }
            let first = association.path;
            let all = association.routes.get_or_insert_with(|| Box::new(Routes::new(first, bonded, now)));
            if all.add(route.path, now) {
                has_new = true;
                self.peers.entry(route.path.unbound()).or_insert(index);
            }
        }
        if let Some(all) = &mut association.routes {
            all.set_bonded(bonded);
        }
        if has_new && association.is_open() {
            self.settle_timers(now, index);
        }
    }

    /// The paths of an attempt that stood back are joined to the association that took its place.
    pub(super) fn inherit_routes(&mut self, now: Time, before: u32, index: u32) {
        let Some(inherited) = self.associations[before as usize].routes.take() else { return };
        let packet_bytes = self.associations[index as usize].packet_bytes as u16;
        for path in inherited.paths() {
            self.peers.insert(path.unbound(), index);
        }
        let routes: Vec<Route> = inherited.paths().map(|path| Route { path, packet_bytes }).collect();
        self.add_routes(now, index, &routes, inherited.is_bonded());
    }

    /// An attempt was not answered: it goes on over the next path. Once CONFIRM has been sent the server may have opened an association for it, so what begins then
    /// is another attempt, with an id of its own: an answer to the former one is then told by a reset that nobody has it.
    pub(super) fn try_another_path(&mut self, now: Time, index: u32) {
        let association = &mut self.associations[index as usize];
        let Some(attempt) = association.attempt_mut() else { return };
        if attempt.cookie.is_some() {
            attempt.confirms += 1;
            if attempt.confirms < CONFIRMS_PER_PATH {
                return;
            }
            self.restart_attempt(index, now);
        }
        let association = &mut self.associations[index as usize];
        if let Some(routes) = &mut association.routes {
            association.path = routes.turn();
        }
    }

    /// An attempt begins anew, in what is left of its time: the OPEN of channel 0 goes back into its channel, and the association gets another id.
    pub(super) fn restart_attempt(&mut self, index: u32, now: Time) {
        let nonce = self.random.next_u64();
        let Some(attempt) = self.associations[index as usize].attempt_mut() else { return };
        let Attempt { destination_port, source_port, packet_bytes, give_up_at, hint, .. } = **attempt;
        let fresh = Attempt::new(nonce, (destination_port, source_port), packet_bytes, give_up_at, now);
        **attempt = Attempt { hint, ..fresh };
        self.incarnations.advance(index as usize);
        let incarnation = self.incarnations.of_slot(index as usize);
        let association = &mut self.associations[index as usize];
        association.id = Id::new(association.id.steering(), association.id.slot(), generation(incarnation));
        // CONFIRM carried its OPEN.
        let opening = association.channels.get(0);
        let first_number = association.first_number;
        association.sent.clear(|packet| self.tx_pool.give(packet.payload));
        association.sent = Sent::starting_at(first_number);
        let Some(at) = opening else { return };
        let channel = &mut self.channels[at as usize];
        if channel.released {
            // Closed while the server might have known it.
            self.associations[index as usize].detach(0);
            self.free_channel(at);
            return self.ask_for_first(index);
        }
        let fields = ropeway_wire::OpenFields {
            destination_port: channel.remote_port,
            source_port: channel.local_port,
            mode: channel.mode,
            early: &[],
        };
        if !channel.outgoing.restart(&fields, &mut self.tx_pool) {
            // It can only be tried again without it.
            self.associations[index as usize].detach(0);
            self.fail_channel(at, ropeway_wire::ErrorCode::Busy);
        }
    }

    /// A good packet has come over one of several paths.
    pub(super) fn note_path(&mut self, now: Time, index: u32, header: &Header, number: u64) {
        let association = &mut self.associations[index as usize];
        let patience_ns = association.question_ns(&self.config);
        let Some(routes) = &mut association.routes else { return };
        let asks = matches!(header.kind, Type::State | Type::Pin);
        if header.kind.consumes_number() && !header.flags.contains(Flags::RTX) {
            routes.delivered(number, now);
        } else if header.kind == Type::State {
            routes.delivered(number.wrapping_sub(1), now);
        }
        let changes = routes.heard(now, header.kind, patience_ns);
        self.counters.note(changes);
        association.follow();
        if changes.default_changed {
            self.queues.move_to(&mut association.queued_in, &association.path, index);
        }
        if asks || changes != Changes::default() {
            self.make_ready(index);
        }
    }

    /// The peer asks for numbers again.
    pub(super) fn note_lost(
        association: &mut Association,
        config: &Config,
        counters: &mut Counters,
        now: Time,
        (first, count): (u64, u16),
    ) {
        let patience_ns = association.question_ns(config);
        let Some(routes) = &mut association.routes else { return };
        for path in association.sent.paths_of(first, count) {
            counters.note(routes.note_lost(usize::from(path), now, patience_ns));
        }
        association.follow();
    }

    /// Joins, questions to paths, and the end of the patience with them and with their links.
    pub(super) fn run_routes(&mut self, now: Time, index: u32) {
        let association = &mut self.associations[index as usize];
        let (heard_at, patience_ns) = (association.heard_at, association.question_ns(&self.config));
        let Some(routes) = &mut association.routes else { return };
        let is_stuck_at = |place: usize| self.queues.at(place).full_ns(now) >= STUCK_PATIENCES * patience_ns;
        let is_stuck = |path: &Path| is_stuck_at(self.queues.place(path));
        let left = if association.queued_in.is_some() { routes.leave_stuck(now, is_stuck) } else { 0 };
        let mut to_join = Vec::new();
        let mut changes = routes.run(now, heard_at, patience_ns, |place, _| to_join.push(place));
        changes.suspected += left;
        let due = routes.due().map(|(place, _)| routes.way(place).path);
        let is_due = due.is_some();
        self.counters.note(changes);
        association.follow();
        // It may stand in the queue of any of its links.
        let hangs = association.queued_in.is_some_and(|place| is_stuck_at(place.into()));
        if hangs || changes.default_changed {
            // Where all links are stuck it is a question that finds out which one is so no longer.
            let path = due.filter(|_| is_stuck(&association.path)).unwrap_or(association.path);
            self.queues.move_to(&mut association.queued_in, &path, index);
        }
        for place in to_join {
            self.ask_to_join(index, place);
        }
        if is_due || changes != Changes::default() {
            self.make_ready(index);
        }
    }

    /// Questions and answers that belong to one path.
    pub(super) fn transmit_over_others(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        sink: &mut Sink<'_, Taken>,
    ) -> Result<(), LinkFull> {
        while let Some((place, is_question)) =
            self.associations[index as usize].routes.as_ref().and_then(|routes| routes.due())
        {
            if is_question {
                self.transmit_question(now, index, first_flight, place, sink)?;
            } else {
                self.transmit_control(now, index, first_flight, Some(place), sink)?;
            }
            if let Some(routes) = &mut self.associations[index as usize].routes {
                routes.said(place, is_question);
            }
        }
        Ok(())
    }

    /// A PIN over one path, to see whether it leads to the peer.
    fn transmit_question(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        place: usize,
        sink: &mut Sink<'_, Taken>,
    ) -> Result<(), LinkFull> {
        let association = &mut self.associations[index as usize];
        let path = association.control_path(Some(place));
        let number = association.sent.next();
        let header = association.header(Type::Pin, number, first_flight, &self.config, now);
        let mut bytes = [0; BASE_HEADER_BYTES + COUNTER_BYTES + TAG_BYTES];
        let packet = &mut bytes[..BASE_HEADER_BYTES + association.sealing.overhead_bytes()];
        packet[..BASE_HEADER_BYTES].copy_from_slice(&header.to_bytes()[..BASE_HEADER_BYTES]);
        if !association.seal(now, packet, BASE_HEADER_BYTES) {
            return Ok(());
        }
        if self.offer(now, index, &path, Urgency::Urgent, packet, sink)?.packets == 0 {
            return Ok(());
        }
        let association = &mut self.associations[index as usize];
        association.asked_over(&path, now, &self.config);
        association.counters.packets_sent += 1;
        self.counters.packets_sent += 1;
        Ok(())
    }

    /// Offers a link a packet that carries no data. What it refuses waits for it; unless the path is suspected and another one is good: what is refused or dropped then was not taken, and nothing waits.
    pub(super) fn offer(
        &mut self,
        now: Time,
        index: u32,
        path: &Path,
        urgency: Urgency,
        packet: &[u8],
        sink: &mut Sink<'_, Taken>,
    ) -> Result<Taken, LinkFull> {
        let association = &mut self.associations[index as usize];
        let presence = association.presence(path, &self.config, self.awake_at, now);
        let taken = sink(path, Handling { urgency, presence }, &[IoSlice::new(packet)]);
        if taken.packets == taken.discarded && association.may_be_lost(path) {
            return Ok(Taken::default());
        }
        self.queues.of_mut(path).note_link_did(taken, now);
        association.note_link_did(taken, self.awake_at, now, &self.config);
        if taken.packets == 0 { Err(LinkFull { place: self.queues.place(path) }) } else { Ok(taken) }
    }

    /// Sends the packets of a turn over the paths that are theirs: what was sent before over another one than before, new ones over the default, or, bonded, over
    /// the one that has had least.
    pub(super) fn transmit_spread(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        numbers: &[u64],
        sink: &mut Sink<'_, Taken>,
    ) -> Result<Turn, LinkFull> {
        let mut left = numbers;
        while !left.is_empty() {
            let association = &self.associations[index as usize];
            let last_path = |number: &u64| {
                association.sent.get(*number).filter(|packet| packet.transmitted).map(|packet| packet.path)
            };
            let last = last_path(&left[0]);
            let count = left.iter().take_while(|number| last_path(number) == last).count();
            let (run, rest) = left.split_at(count);
            let Some(routes) = &association.routes else { break };
            let place = last.map_or_else(|| routes.for_new(), |last| routes.for_repeated(usize::from(last)));
            let turn = self.transmit_run(now, index, first_flight, (run, place, last.is_none()), sink);
            if turn.is_err() {
                let sent = &mut self.associations[index as usize].sent;
                // What the link did not take of the run stands in front already, and goes first next time, too.
                let is_refused = |number: &&u64| sent.get(**number).is_some_and(|packet| packet.requested);
                let refused = run.iter().filter(is_refused).count();
                let refused: Vec<_> = (0..refused).filter_map(|_| sent.take_requested()).collect();
                sent.put_back(rest);
                sent.put_back(&refused);
                return turn;
            }
            left = rest;
        }
        Ok(if numbers.len() >= self.associations[index as usize].batch_packets() { Turn::More } else { Turn::Finished })
    }

    /// Packets that go over the same path.
    fn transmit_run(
        &mut self,
        now: Time,
        index: u32,
        first_flight: u8,
        (run, place, is_new): (&[u64], usize, bool),
        sink: &mut Sink<'_, Taken>,
    ) -> Result<Turn, LinkFull> {
        let association = &mut self.associations[index as usize];
        let Some(path) = association.routes.as_ref().map(|routes| routes.way(place).path) else {
            return Ok(Turn::Finished);
        };
        let usual = std::mem::replace(&mut association.path, path);
        let turn = self.transmit_data::<BATCH_PACKETS>(now, index, first_flight, run, sink);
        let association = &mut self.associations[index as usize];
        association.path = usual;
        let (mut packets, mut bytes) = (0, 0);
        for &number in run {
            if let Some(packet) = association.sent.get_mut(number)
                && packet.transmitted
                && !packet.requested
            {
                packet.path = place as u8;
                packets += 1;
                bytes += packet.payload.len() as u64;
            }
        }
        if let Some(routes) = &mut association.routes
            && is_new
        {
            routes.note_sent(place, packets, bytes);
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use ropeway_wire::Type;

    use super::*;
    use crate::association::Phase;
    use crate::sent::{NOBODY, Packet};

    #[test]
    fn what_a_full_link_did_not_take_goes_in_the_same_order_over_several_paths() {
        let (config, path, now) = (Config::default(), Path([1; Path::BYTES]), Time::from_nanos(1_000_000_000));
        let mut endpoint = Endpoint::new(config.clone(), 0, 0, [0; 32]);
        let mut association = Association::new(Id::default(), path, Phase::Open, (0, 0), 0, &config, now);
        association.routes = Some(Box::new(Routes::new(path, false, now)));
        let mut push = |kind, owner, transmitted| {
            let payload = endpoint.tx_pool.exactly(&[0; 2]);
            association.sent.push(Packet { payload, transmitted, ..Packet::new(kind, owner) })
        };
        let requested = push(Type::Data, 0, true);
        let refusals = [(); 3].map(|()| push(Type::Abort, NOBODY, false));
        let index = endpoint.associations.insert(Box::new(association)) as u32;
        let numbers = [&refusals[..], &[requested]].concat();
        let turn = endpoint.transmit_spread(now, index, 0, &numbers, &mut |_, _, _| Taken::from(1));
        assert!(turn.is_err(), "the link is full");
        let sent = &mut endpoint.associations[index as usize].sent;
        assert!(sent.begins_with_refusal());
        assert_eq!(std::iter::from_fn(|| sent.take_requested()).collect::<Vec<_>>(), numbers[1..]);
    }
}
