//! Whether there is memory for a numbered packet (docs/protocol.md 5, docs/decisions/0031): what cannot be kept has not arrived. Where it comes from is in `crate::pool`, and what is set aside of it in `reserving`.

use ropeway_wire::{Content, Flags, Header, Mode, OpenFields, Packet, Type};

use super::{Endpoint, Landing};
use crate::association::MOST_REFUSALS;
use crate::channel::{Awaited, Begun, Channel, whole};
use crate::ledger::AccountId;

/// The share of the free memory that packets waiting for a lost one may have, of one association.
const HELD_SHARE: usize = 4;

impl Endpoint {
    /// Whether a packet can be kept if it is taken now. Memory may be set aside for the message that it is of, or that waits for some from now on.
    pub(super) fn find_memory(
        &mut self,
        index: u32,
        previous: Option<u64>,
        packet: &Packet<'_>,
        landing: Option<&Landing<'_>>,
    ) -> bool {
        let (header, is_next, account) = (&packet.header, previous.is_none(), self.account_of(index));
        let association = &self.associations[index as usize];
        let at = association.channel(header.channel);
        let channel = at.map(|at| &*self.channels[at as usize]);
        if is_next && (takes_none(header.kind, channel) || channel.is_some_and(|at| at.incoming.has_set_aside())) {
            return true;
        }
        if is_next && at.is_some_and(|at| landing.is_some_and(|landing| self.lands(at, packet, landing))) {
            return true;
        }
        let (bytes, held_bytes) = (self.most_taken(previous, header), association.received.held_bytes());
        if bytes == 0 {
            return true;
        }
        // What waits for a lost packet has used up no credit yet, so it has a bound of its own; a part of what is free, so that the lost packet always
        // finds memory when it comes.
        let share = (self.config.receive_buffer_bytes as usize).min(self.rx_pool.available_bytes() / HELD_SHARE);
        if self.rx_pool.is_exhausted() || !is_next && held_bytes + bytes > share {
            return false;
        }
        let begun = || if is_next { begun_by(packet, channel) } else { begun_by_waiting(header, channel) };
        if self.has_memory(index, channel, account, bytes, is_next, begun) {
            return true;
        }
        match at.filter(|_| is_next) {
            Some(at) => self.await_memory(at, packet),
            None => false,
        }
    }

    /// A channel's next packet finds no memory: that is set aside for all of the message that it is of, or begins, or this waits in line. Says whether it has some.
    fn await_memory(&mut self, at: u32, packet: &Packet<'_>) -> bool {
        let channel = &mut self.channels[at as usize];
        let begun = begun_by(packet, Some(channel));
        let bytes = packet.payload.len() as u64;
        channel.incoming.awaited = (begun.missing_bytes > 0).then(|| Box::new(Awaited { bytes, begun }));
        channel.queued_in.is_none() && self.reserve_what_it_lacks(at)
    }

    /// The same for what a channel is known to lack.
    pub(super) fn reserve_what_it_lacks(&mut self, at: u32) -> bool {
        let incoming = &self.channels[at as usize].incoming;
        let may_reserve =
            incoming.lacks_memory() || incoming.missing_bytes() > 0 && incoming.may_reserve(&self.rx_pool);
        may_reserve && self.reserve_or_wait(at)
    }

    /// Whether a packet that takes so much finds memory: one that `is_next` in its channel, or one that waits for that.
    fn has_memory(
        &self,
        index: u32,
        channel: Option<&Channel>,
        account: AccountId,
        bytes: usize,
        is_next: bool,
        begun: impl FnOnce() -> Begun,
    ) -> bool {
        let is_stream = channel.is_some_and(|channel| channel.mode == Mode::Stream);
        if self.rx_pool.is_for_all(!is_stream) {
            return true;
        }
        // Who has not been accepted leaves the rest to others.
        if channel.is_some_and(|channel| channel.queued_in.is_some()) && self.rx_pool.is_short() {
            return false;
        }
        let begun = begun();
        // All of a message that would go beyond what may have begun, which gets memory as soon as its beginning is here.
        let all_bytes = bytes + self.bytes_for(begun.missing_bytes);
        let received = &self.associations[index as usize].received;
        // What waits for a lost packet does not keep that one away.
        let (apart_bytes, apart_begun) = if is_next { (received.held_bytes(), received.held_begun()) } else { (0, 0) };
        let piece_bytes = self.rx_pool.buffer_bytes();
        // Of the last memory a message has all that it lacks or nothing more: pieces of many would keep each other from their ends.
        let may_begin = || {
            let apart = apart_begun * piece_bytes;
            !self.rx_pool.has_only_the_last() && self.rx_pool.may_begin(account, piece_bytes, apart)
        };
        let is_bounded = !begun.is_some || may_begin();
        let begins = begun.missing_bytes > 0;
        let wanted_bytes = if is_bounded { bytes } else { all_bytes };
        let lacks_memory = channel.is_some_and(|channel| channel.incoming.lacks_memory());
        if is_next && !lacks_memory && channel.is_some_and(Channel::is_hungry) {
            let may_have =
                if is_bounded { self.rx_pool.may_have_first(bytes) } else { begins && self.may_have_first(all_bytes) };
            if may_have {
                return true;
            }
        }
        (is_bounded || begins) && self.rx_pool.may_have(account, wanted_bytes, apart_bytes)
    }

    /// The same of a packet of full length that comes next on a channel: what was given back, or one that begins no message for which there is none.
    pub(super) fn has_memory_for_next(&self, channel: &Channel) -> bool {
        let (index, bytes) = (channel.association, self.rx_pool.buffer_bytes());
        let account = self.associations[index as usize].account;
        let next = || Begun { is_some: channel.incoming.lacks_memory(), missing_bytes: 0 };
        let begun = || channel.incoming.awaited.as_deref().map_or_else(next, |awaited| awaited.begun);
        !self.rx_pool.is_exhausted() && self.has_memory(index, Some(channel), account, bytes, true, begun)
    }

    /// Whether a packet that may open a channel finds room for the word that it is refused.
    pub(super) fn has_room_for_refusal(&self, index: u32, header: &Header) -> bool {
        let association = &self.associations[index as usize];
        header.kind != Type::Open
            || association.refusals.len() < MOST_REFUSALS
            || association.channel(header.channel).is_some()
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

/// What a packet adds in its order.
pub(super) fn begun_by(packet: &Packet<'_>, channel: Option<&Channel>) -> Begun {
    let begins =
        |bytes: &[u8], length: u64| Begun { is_some: true, missing_bytes: length.saturating_sub(bytes.len() as u64) };
    let payload = match channel {
        Some(channel) if channel.mode == Mode::Stream => return Begun::default(),
        Some(_) => packet.payload,
        None => OpenFields::parse(packet.payload).map_or(&[][..], |fields| fields.early),
    };
    match Content::parse(packet.header.flags, payload) {
        Ok(Content::First { length, bytes }) => begins(bytes, length.into()),
        Ok(Content::Records(records)) => records
            .beginning()
            .map_or_else(Begun::default, |beginning| begins(beginning.bytes, beginning.length.into())),
        Ok(Content::Bytes(_)) => Begun { is_some: channel.is_some(), missing_bytes: 0 },
        _ => Begun::default(),
    }
}

/// What one adds that waits for a lost packet: what that is of is known when it has come.
fn begun_by_waiting(header: &Header, channel: Option<&Channel>) -> Begun {
    Begun { is_some: may_be_part(header, channel), missing_bytes: 0 }
}

/// Whether a packet may be of a message that is not whole and has no memory set aside.
pub(super) fn may_be_part(header: &Header, channel: Option<&Channel>) -> bool {
    let is_free = |channel: &Channel| channel.mode == Mode::Stream || channel.incoming.is_reserved();
    let is_whole = header.flags.intersection(whole() | Flags::RECORDS) == whole();
    header.kind == Type::Data && !channel.is_some_and(is_free) && !is_whole
}

/// Whether a packet of this type takes no memory in its turn: it ends its channel, or nobody reads that any more.
fn takes_none(kind: Type, channel: Option<&Channel>) -> bool {
    let is_turned_away = match channel {
        Some(channel) => channel.released || channel.failed.is_some(),
        None => kind != Type::Open,
    };
    matches!(kind, Type::Fin | Type::Abort) || is_turned_away
}
