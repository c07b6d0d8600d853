//! Resets (docs/protocol.md 8, 9.6): the token that ends an association, who may learn it, and who is believed.
//!
//! A token is seen by everybody on the path when it is used, so no association may have one that was, or could have been, seen before: the token is that of
//! one owner of one slot, in one life of the engine.

use std::collections::BTreeMap;

use ropeway_wire::{BASE_HEADER_BYTES, ErrorCode, Header, Id, Malformed, Packet, RstFields, Type};

use super::{Endpoint, Path, Route};
use crate::association::Association;
use crate::channel::Opening;
use crate::crypto::token::{TOKEN_BYTES, same_token, stranger_token};
use crate::time::Time;

/// A slot's owners of one life are counted below this bit, the lives above it: a thousand owners a second last for 34 years.
const LIFE_SHIFT: u32 = 40;
/// Lives of an engine with the same secret. Whoever keeps it takes a new one after that.
pub const MOST_STARTS: u32 = 1 << (u64::BITS - LIFE_SHIFT);
/// The first generations of lives that follow each other lie so far apart: packets for an engine's predecessor shall not look like its own.
const LIFE_STRIDE: u64 = 7;
/// An engine with a kept secret does not know which of its predecessors gave out an id, nor how often that had come round: these are tried, one after the
/// other, while the peer asks. How many lives ago, and how many rounds of all generations before the id's own.
const GUESSES: [(u32, u64); 6] = [(1, 0), (1, 1), (2, 0), (1, 2), (1, 3), (2, 1)];
/// Peers of predecessors that are remembered for how far the guesses have come, at most.
const MOST_ASKING: usize = 4096;

/// Who had which slot, as far as tokens go.
pub(super) struct Incarnations {
    /// Which life of the engine this is; with a kept secret, counted by whoever keeps it.
    start: u32,
    is_kept: bool,
    /// The incarnation of each slot's present or next owner.
    slots: Vec<u64>,
    /// How often peers of predecessors were answered.
    asking: BTreeMap<Path, usize>,
}

impl Incarnations {
    /// For an engine whose secret dies with it. `start` only spreads the generations.
    pub fn new(start: u32) -> Incarnations {
        Incarnations { start: start % MOST_STARTS, is_kept: false, slots: Vec::new(), asking: BTreeMap::new() }
    }

    /// The first incarnation of every slot in a life.
    fn first(start: u32) -> u64 {
        (u64::from(start) << LIFE_SHIFT) | (u64::from(start) * LIFE_STRIDE % u64::from(Id::GENERATIONS))
    }

    /// The incarnation of the slot's present or next owner.
    pub fn of_slot(&mut self, slot: usize) -> u64 {
        if slot >= self.slots.len() {
            self.slots.resize(slot + 1, Incarnations::first(self.start));
        }
        self.slots[slot]
    }

    /// The slot's owner is gone.
    pub fn advance(&mut self, slot: usize) {
        self.slots[slot] += 1;
    }

    /// The last past owner of the slot that had this id, in this life. Never the present one, nor one still to come.
    fn past(&self, id: Id) -> Option<u64> {
        let next = *self.slots.get(usize::from(id.slot()))?;
        let behind = generation(next).wrapping_sub(id.generation()) % Id::GENERATIONS;
        let behind = if behind == 0 { Id::GENERATIONS } else { behind };
        next.checked_sub(u64::from(behind)).filter(|&past| past >= Incarnations::first(self.start))
    }

    /// An owner of the slot that had this id in an earlier life.
    fn guess(&self, id: Id, (lives, rounds): (u32, u64)) -> Option<u64> {
        let first = Incarnations::first(self.start.checked_sub(lives)?);
        let behind = id.generation().wrapping_sub(generation(first)) % Id::GENERATIONS;
        Some(first + u64::from(behind) + rounds * u64::from(Id::GENERATIONS))
    }

    /// Whose token answers a packet from `path` for an id that nobody has.
    fn answer(&mut self, path: &Path, id: Id) -> Option<u64> {
        let past = self.past(id);
        if !self.is_kept || self.start == 0 {
            return past;
        }
        if self.asking.len() >= MOST_ASKING {
            self.asking.clear();
        }
        let asked = self.asking.entry(*path).or_default();
        let turn = *asked % (GUESSES.len() + 1);
        *asked += 1;
        match (turn, past) {
            (0, Some(past)) => Some(past),
            (0, None) => self.guess(id, GUESSES[0]),
            (turn, _) => self.guess(id, GUESSES[turn - 1]),
        }
    }
}

/// The part of an incarnation that an id has room for.
pub(super) fn generation(incarnation: u64) -> u8 {
    (incarnation % u64::from(Id::GENERATIONS)) as u8
}

impl Endpoint {
    /// Makes reset tokens with a secret that outlives this process: 32 random bytes that nobody else knows. An engine that is started again with the same
    /// secret can end the associations of the one before. `start` counts the engines that had it, from 0, below [`MOST_STARTS`], and no two may have the same
    /// number, nor live at one time. To be called before anything is opened.
    pub fn set_secret(&mut self, secret: [u8; 32], start: u32) {
        self.secret.keep_resets(secret);
        self.incarnations = Incarnations { is_kept: true, ..Incarnations::new(start) };
    }

    /// The token of a live association of ours.
    pub(super) fn own_token(&mut self, id: Id) -> [u8; 16] {
        let incarnation = self.incarnations.of_slot(usize::from(id.slot()));
        self.secret.reset_token(id.0, incarnation)
    }

    pub(super) fn handle_rst(&mut self, now: Time, path: &Path, packet: &Packet<'_>) -> Result<(), Malformed> {
        let fields = RstFields::parse(packet.payload)?;
        let named = packet.header.destination;
        // Who keeps no state cannot know our id, and names its own, which we used. Both ends may have given out the same id, so all are asked.
        let place = path.unbound();
        let newest = self.peers.get(&place).copied().filter(|&index| self.associations[index as usize].peer == named);
        let elder = self.elders.get(&(place, named)).copied();
        let meant = [self.find(named), newest, elder];
        if meant == [None; 3] {
            self.counters.dropped_unknown_id += 1;
            return Ok(());
        }
        // Without the token anybody who guesses an id could end the association.
        let proves = |token_of: &dyn Fn(&Association) -> [u8; TOKEN_BYTES]| {
            let found = meant.into_iter().flatten().find(|&index| {
                let association = &self.associations[index as usize];
                let is_theirs = association.is_open() && (association.has_path(path) || association.has_path(&place));
                is_theirs && same_token(&token_of(association), &fields.token)
            });
            found.map(|index| (index, self.associations[index as usize].sealing.is_keyed()))
        };
        let by_owner = proves(&|association| association.peer_token);
        let by_stranger = || proves(&|association| association.stranger_token(&self.config));
        match (by_owner, fields.code) {
            (Some((index, _)), ErrorCode::Unknown) => self.begin_anew(now, index, true),
            (Some((index, _)), code) => self.end_association(index, code),
            (None, ErrorCode::Unknown) if let Some((index, is_keyed)) = by_stranger() => {
                self.begin_anew(now, index, !is_keyed);
            }
            (None, _) => self.counters.dropped_reset += 1,
        }
        Ok(())
    }

    /// The peer does not know the association: it is another process, most likely, than the one that did. Channels that were just to be opened, and of which nothing is known there, are opened with that
    /// one; the others end. Where that is not proved (`ends` is false) they stay, as the peer may know it after all.
    fn begin_anew(&mut self, now: Time, index: u32, ends: bool) {
        let association = &self.associations[index as usize];
        let routes: Vec<Route> = association.paths().map(|path| Route::new(path, &self.config)).collect();
        let bonded = association.routes.as_ref().is_some_and(|routes| routes.is_bonded());
        let is_unheard = |&at: &u32| {
            let channel = &self.channels[at as usize];
            channel.opening == Opening::Waiting && !channel.released && channel.outgoing.is_only_open()
        };
        let unheard: Vec<u32> = association.channels.indices().filter(is_unheard).collect();
        for &at in &unheard {
            self.leave_behind(at);
        }
        match ends {
            true => self.end_association(index, ErrorCode::Unknown),
            false => self.associations[index as usize].disowned = true,
        }
        for at in unheard {
            let channel = &self.channels[at as usize];
            let ports = (channel.local_port, channel.remote_port);
            match self.reach(now, &routes, bonded, ports) {
                Ok((to, _)) => self.move_channel(now, at, to),
                Err(_) => self.fail_channel(at, ErrorCode::Busy),
            }
        }
    }

    /// Takes a channel that the peer has said nothing of from its association. What may be known of it there ends by ABORT, as a channel that has no user.
    fn leave_behind(&mut self, at: u32) {
        let channel = &self.channels[at as usize];
        let (index, number) = (channel.association, channel.number);
        let (mode, ports) = (channel.mode, (channel.local_port, channel.remote_port));
        self.leave_round(at);
        self.end_pause(at);
        self.associations[index as usize].detach(number);
        let left = self.add_channel(index, number, mode, ports);
        self.associations[index as usize].sent.hand_over(at, left);
        let [channel, behind] = self.channels.get_disjoint_mut([at as usize, left as usize]).expect("two channels");
        behind.outgoing = std::mem::take(&mut channel.outgoing);
        channel.outgoing.no_delay = behind.outgoing.no_delay;
        channel.outgoing.waiting = behind.outgoing.waiting.begun_anew();
        std::mem::swap(&mut channel.incoming, &mut behind.incoming);
        behind.released = true;
        self.abort_channel(left, ErrorCode::Reset);
    }

    /// Tells who sent for an id that does not exist (any more). Never an answer to a reset, and never longer than what it answers.
    pub(super) fn reply_reset(&mut self, now: Time, path: &Path, packet: &Packet<'_>) {
        let id = packet.header.destination;
        if packet.bytes().len() < BASE_HEADER_BYTES + RstFields::BYTES || id.steering() != self.steering {
            return;
        }
        // The sender's own id is not in the packet: it finds itself by the token, which only the owner of the id could know, or who has seen what was asked.
        let is_state = packet.header.kind == Type::State;
        // Without a key the word of a stranger is enough, and needs no guess at who the owner was.
        let owner = if is_state && self.keys.is_none() { None } else { self.incarnations.answer(path, id) };
        let token = match owner {
            Some(incarnation) => self.secret.reset_token(id.0, incarnation),
            None if is_state => stranger_token(id.0, packet.header.number, packet.header.ack),
            None => return,
        };
        let fields = RstFields { token, code: ErrorCode::Unknown };
        let header = Header { length: RstFields::BYTES as u16, ..Header::new(Type::Rst, id) };
        self.reply_with(now, path, |out| {
            let at = header.write(out).ok()?;
            Some(at + fields.write(out.get_mut(at..)?).ok()?)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path([7; Path::BYTES]);

    fn id(incarnation: u64) -> Id {
        Id::new(1, 0, generation(incarnation))
    }

    #[test]
    fn the_token_of_who_is_there_or_still_to_come_is_never_told() {
        let mut incarnations = Incarnations::new(5);
        for _ in 0..100 {
            let present = incarnations.of_slot(0);
            for generation in 0..Id::GENERATIONS {
                if let Some(told) = incarnations.answer(&PATH, Id::new(1, 0, generation)) {
                    assert!(told < present && told >= Incarnations::first(5) && id(told).generation() == generation);
                }
            }
            incarnations.advance(0);
            assert_eq!(incarnations.answer(&PATH, id(present)), Some(present), "of who just went it is");
        }
        assert_eq!(incarnations.answer(&PATH, Id::new(1, 9, 0)), None, "nobody ever had that slot");
    }

    #[test]
    fn a_successor_finds_the_token_of_its_predecessors_and_none_of_its_own_future() {
        let predecessor = |start| Incarnations { is_kept: true, ..Incarnations::new(start) };
        for owners_before in 0..60 {
            let mut before = predecessor(8);
            before.of_slot(0);
            (0..owners_before).for_each(|_| before.advance(0));
            let old = before.of_slot(0);
            let mut after = predecessor(9);
            let first = after.of_slot(0);
            let told: Vec<u64> = (0..GUESSES.len() + 1).filter_map(|_| after.answer(&PATH, id(old))).collect();
            assert!(told.contains(&old), "{owners_before}: {old:x} is not in {told:x?}");
            assert!(told.iter().all(|&told| told < first));
        }
        let mut first = predecessor(0);
        assert_eq!(first.answer(&PATH, Id::new(1, 0, 0)), None, "nobody was before the first");
    }

    #[test]
    fn lives_that_follow_each_other_begin_with_other_generations() {
        for start in 1..40 {
            let distance = (Incarnations::first(start) - Incarnations::first(start - 1)) % 16;
            assert!((4..=12).contains(&distance), "{distance}");
        }
        assert!(Incarnations::first(MOST_STARTS - 1).checked_add(1 << (LIFE_SHIFT - 1)).is_some());
    }
}
