//! Whether there is memory for a numbered packet (docs/protocol.md 5, docs/decisions/0031): what cannot be kept has not arrived. Where it comes from is in `crate::pool`, and what is set aside of it in `reserving`.

use ropeway_wire::{Content, Flags, Header, OpenFields, Packet, Type};

use super::Endpoint;
use crate::association::MOST_REFUSALS;
use crate::channel::Channel;
use crate::ledger::AccountId;

/// The share of the free memory that packets waiting for a lost one may have, of one association.
const HELD_SHARE: usize = 4;

impl Endpoint {
    /// Whether a packet can be kept, or refused, if it is taken now. Memory may be set aside for the message that it is of, or that waits for some from now on.
    pub(super) fn find_memory(&mut self, index: u32, previous: Option<u64>, packet: &Packet<'_>) -> bool {
        let header = &packet.header;
        let account = self.account_of(index);
        let association = &self.associations[index as usize];
        let at = association.channel(header.channel);
        let channel = at.map(|at| &*self.channels[at as usize]);
        if previous.is_none() && takes_none(header.kind, channel) {
            return true;
        }
        if header.kind == Type::Open && association.refusals.len() >= MOST_REFUSALS {
            return false;
        }
        if previous.is_none() && channel.is_some_and(|channel| channel.incoming.has_set_aside()) {
            return true;
        }
        let bytes = self.most_taken(previous, header);
        let held_bytes = association.received.held_bytes();
        // What waits for a lost packet has used up no credit yet, so it has a bound of its own; a part of what is free, so that the lost packet always
        // finds memory when it comes.
        let share = (self.config.receive_buffer_bytes as usize).min(self.rx_pool.available_bytes() / HELD_SHARE);
        if self.rx_pool.is_exhausted() || previous.is_some() && held_bytes + bytes > share {
            return false;
        }
        if self.rx_pool.is_for_all() {
            return true;
        }
        // Who has not been accepted leaves the rest to others.
        let is_accepted = channel.is_none_or(|channel| channel.queued_in.is_none());
        if !is_accepted && self.rx_pool.is_short() {
            return false;
        }
        let is_next = previous.is_none();
        let lacks_memory = channel.is_some_and(|channel| channel.incoming.lacks_memory());
        let is_first = is_next && !lacks_memory && channel.is_some_and(Channel::is_hungry);
        if is_first && self.rx_pool.may_have_first(bytes) {
            return true;
        }
        // What waits for a lost packet does not keep that one away.
        let apart_bytes = if is_next { held_bytes } else { 0 };
        let may_begin = !is_next || self.rx_pool.may_begin(account, begun_bytes(packet));
        if may_begin && self.rx_pool.may_have(account, bytes, apart_bytes) {
            return true;
        }
        // Whoever else has begun a message may need the same memory for its end, and none of it is free before one of them is read.
        match at.filter(|_| is_next && is_accepted && lacks_memory) {
            Some(at) => self.reserve_or_wait(at),
            None => false,
        }
    }

    /// The account of an association, which has none while it is at rest.
    pub(super) fn account_of(&mut self, index: u32) -> AccountId {
        let association = &mut self.associations[index as usize];
        if association.account == AccountId::NOBODY {
            association.account = self.rx_pool.ledger.open(&association.host.unwrap_or(association.path));
        }
        association.account
    }

    /// So much memory a packet takes at most: in its order that of a whole one, in which others find room.
    fn most_taken(&self, previous: Option<u64>, header: &Header) -> usize {
        let length = usize::from(header.length);
        match header.kind {
            _ if previous.is_some() => self.rx_pool.copy_bytes(length),
            Type::Open if length == OpenFields::BYTES && !header.flags.intersects(Flags::FIRST | Flags::RECORDS) => 0,
            _ => self.rx_pool.buffer_bytes(),
        }
    }
}

/// So much a packet adds at most to what is here of a message that is not whole.
fn begun_bytes(packet: &Packet<'_>) -> usize {
    match Content::parse(packet.header.flags, packet.payload) {
        Ok(Content::First { bytes, .. } | Content::Bytes(bytes)) => bytes.len(),
        Ok(Content::Records(records)) => records.beginning().map_or(0, |beginning| beginning.bytes.len()),
        _ => 0,
    }
}

/// Whether a packet of this type takes no memory in its turn: it ends its channel, or nobody reads that any more.
fn takes_none(kind: Type, channel: Option<&Channel>) -> bool {
    let is_turned_away = match channel {
        Some(channel) => channel.released || channel.failed.is_some(),
        None => kind != Type::Open,
    };
    matches!(kind, Type::Fin | Type::Abort) || is_turned_away
}
