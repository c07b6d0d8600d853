//! The channels of an association, and numbers for new ones.

use super::Association;

impl Association {
    /// The channel of that number.
    pub fn channel(&self, number: u16) -> Option<u32> {
        self.channels.get(number)
    }

    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    pub fn attach(&mut self, number: u16, channel: u32) {
        self.channels.insert(number, channel);
    }

    pub fn detach(&mut self, number: u16) {
        self.channels.remove(number);
        self.unblock(number);
    }

    /// A free number of those that this end gives out: even ones belong to who sent the SYN. In turn, so that one is not used again soon.
    pub fn free_number(&mut self, most: u16) -> Option<u16> {
        if self.channels.len() >= usize::from(most) {
            return None;
        }
        for _ in 0..=u16::MAX / 2 {
            let number = self.next_number;
            self.next_number = number.wrapping_add(2);
            if !self.channels.contains(number) {
                return Some(number);
            }
        }
        None
    }

    /// Whether there is something to say about channels.
    pub fn has_words(&self) -> bool {
        !self.words.is_empty() || self.sent.has_voids_to_tell() || self.has_returns_to_tell()
    }
}
