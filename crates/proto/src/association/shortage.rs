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
    /// What was given back, by the number of the channel.
    returned: BTreeMap<u16, Returned>,
    /// Channels that are to be told that.
    returns: VecDeque<u16>,
    /// Of numbers that the peer says to bring nothing.
    pub looks: Looks,
}

/// What was given back of a channel. What was ever so, and is below the base now, is of no account.
#[derive(Debug, Default)]
struct Returned {
    /// From this number on, and the peer has not said that it has withdrawn that.
    from: Option<u64>,
    /// What it sent below this number and has not arrived brings nothing.
    void_below: Option<u64>,
    /// It stands among those that are to be told.
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
        let returned = shortage.returned.entry(channel).or_default();
        let is_first = *returned.from.get_or_insert(number) == number;
        if is_first && !std::mem::replace(&mut returned.is_due, true) {
            shortage.returns.push_back(channel);
        }
    }

    /// What was not taken of this channel below this number will not come again. Says whether it was given anything back.
    pub fn note_void(&mut self, channel: u16, below: u64) -> bool {
        let Some(shortage) = self.shortage.as_deref_mut() else { return false };
        let Some(returned) = shortage.returned.get_mut(&channel) else { return false };
        let is_below = |&number: &u64| (number.wrapping_sub(below) as i64) < 0;
        if returned.void_below.is_none_or(|before| is_below(&before)) {
            returned.void_below = Some(below);
        }
        returned.from.take_if(|from| is_below(from));
        true
    }

    /// If nothing is missing, what was withdrawn cannot come any more.
    pub fn forget_voids(&mut self) {
        if self.received.missing() == 0
            && let Some(shortage) = self.shortage.as_deref_mut()
        {
            shortage.returned.retain(|_, returned| returned.from.is_some());
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
            let from = shortage.returned.get(&channel).and_then(|returned| returned.from);
            from.is_none_or(|from| blocks.give_back(channel, from as u32))
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
        let Some(returned) = self.returned.get(&channel) else { return Standing::Awaited };
        let reaches = |from: u64| number.wrapping_sub(from) as i64 >= 0;
        match returned {
            Returned { void_below: Some(below), .. } if !reaches(*below) => Standing::Void,
            Returned { from: Some(from), .. } if reaches(*from) => Standing::Returned,
            _ => Standing::Awaited,
        }
    }
}
