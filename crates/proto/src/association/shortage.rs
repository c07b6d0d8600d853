//! What is known of an association for which there was no memory.

use std::collections::{BTreeMap, VecDeque};

use ropeway_wire::BlockWriter;

use super::Association;
use crate::looks::Looks;
use crate::time::Time;

#[derive(Debug, Default)]
pub struct Shortage {
    /// When a packet of what is granted found none the last time.
    pub dropped_at: Time,
    /// What finds no memory next is asked for again as if it had come then.
    pub again_at: Time,
    /// Channels whose messages wait for memory.
    pub waiting: VecDeque<u32>,
    /// What was given back and its sender has not withdrawn, by the number of the channel.
    returned: BTreeMap<u16, Returned>,
    /// Channels of which the peer is to be told that.
    returns: VecDeque<u16>,
    /// What a channel has sent below this number and has not arrived was withdrawn.
    void_below: BTreeMap<u16, u64>,
    /// The highest of these.
    last_void: u64,
    /// Of numbers that the peer says to bring nothing.
    pub looks: Looks,
}

#[derive(Debug)]
struct Returned {
    /// This number, and all behind it.
    from: u64,
    /// It stands among those of which the peer is to be told.
    is_due: bool,
}

/// What a number that has not arrived is to its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Awaited,
    /// It was given back, or what came before it was: it must not be taken.
    Returned,
    /// It was withdrawn.
    Void,
}

impl Association {
    /// Whether a message of one of its channels waits for memory.
    pub fn waits_for_memory(&self) -> bool {
        self.shortage.as_deref().is_some_and(|shortage| !shortage.waiting.is_empty())
    }

    /// What this number, which has not arrived, is to its channel.
    #[inline]
    pub fn standing(&self, channel: u16, number: u64) -> Standing {
        match &self.shortage {
            None => Standing::Awaited,
            Some(shortage) => shortage.standing(channel, number),
        }
    }

    /// What the channel sent under this number, and behind it, is given back: its sender is to be told, and to be told again when that number comes again.
    pub fn give_back(&mut self, channel: u16, number: u64) {
        let shortage = self.shortage.get_or_insert_default();
        let returned = shortage.returned.entry(channel).or_insert(Returned { from: number, is_due: false });
        if returned.from == number && !std::mem::replace(&mut returned.is_due, true) {
            shortage.returns.push_back(channel);
        }
    }

    /// Of how many channels something was given back and not withdrawn.
    pub fn returned_channels(&self) -> usize {
        self.shortage.as_deref().map_or(0, |shortage| shortage.returned.len())
    }

    /// What was not taken of this channel below this number was withdrawn. Says whether anything was given back, lately, of it.
    pub fn note_void(&mut self, channel: u16, below: u64) -> bool {
        self.shortage.as_deref_mut().is_some_and(|shortage| shortage.note_void(channel, below))
    }

    /// If nothing is missing, what was withdrawn cannot come any more.
    pub fn forget_voids(&mut self) {
        let (is_complete, next) = (self.received.missing() == 0, self.received.next());
        if let Some(shortage) = self.shortage.as_deref_mut().filter(|_| is_complete)
            && next.wrapping_sub(shortage.last_void) as i64 >= 0
        {
            shortage.void_below.clear();
        }
    }

    /// Whether a peer is to be told of something that was given back.
    pub fn has_returns_to_tell(&self) -> bool {
        self.shortage.as_deref().is_some_and(|shortage| !shortage.returns.is_empty())
    }

    /// Nothing can be told any more.
    pub fn forget_returns(&mut self) {
        if let Some(shortage) = &mut self.shortage {
            shortage.returns.clear();
        }
    }

    /// RETURN blocks; says of how many in line these are all.
    pub fn write_returns(&self, blocks: &mut BlockWriter<'_>) -> usize {
        let Some(shortage) = &self.shortage else { return 0 };
        let fits = |&channel: &u16, blocks: &mut BlockWriter<'_>| {
            // It may have been withdrawn meanwhile.
            let returned = shortage.returned.get(&channel);
            returned.is_none_or(|returned| blocks.give_back(channel, returned.from as u32))
        };
        shortage.returns.iter().take_while(|channel| fits(channel, blocks)).count()
    }

    /// The peer was told of so many in line.
    pub fn told_returns(&mut self, count: usize) {
        if let Some(shortage) = &mut self.shortage {
            for channel in shortage.returns.drain(..count) {
                if let Some(returned) = shortage.returned.get_mut(&channel) {
                    returned.is_due = false;
                }
            }
        }
    }
}

impl Shortage {
    fn standing(&self, channel: u16, number: u64) -> Standing {
        if self.void_below.get(&channel).is_some_and(|&below| is_below(number, below)) {
            return Standing::Void;
        }
        match self.returned.get(&channel) {
            Some(returned) if !is_below(number, returned.from) => Standing::Returned,
            _ => Standing::Awaited,
        }
    }

    fn note_void(&mut self, channel: u16, below: u64) -> bool {
        let before = self.void_below.get(&channel).copied();
        let was_returned = self.returned.contains_key(&channel);
        if before.is_none() && !was_returned {
            return false;
        }
        if before.is_none_or(|before| is_below(before, below)) {
            if self.void_below.is_empty() || is_below(self.last_void, below) {
                self.last_void = below;
            }
            self.void_below.insert(channel, below);
        }
        if self.returned.get(&channel).is_some_and(|returned| is_below(returned.from, below)) {
            self.returned.remove(&channel);
        }
        true
    }
}

fn is_below(number: u64, other: u64) -> bool {
    (number.wrapping_sub(other) as i64) < 0
}
