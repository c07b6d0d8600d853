//! Who waits for room in a channel, and for how much of it.

/// Why nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// So many bytes wait for room, or for the rest of somebody else's message.
    Room(usize),
    Memory,
}

/// What those who could not send are waiting for.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Somebody waits to be told of room: of so much at least, the least that anybody wants.
    hunger: Option<usize>,
    /// What the last attempt to send lacked, until the user is told to try again or another one succeeds.
    refused: Option<Lack>,
    /// Somebody waits until everything is acknowledged.
    drain: bool,
}

impl Waiting {
    /// The same who wait, with nothing refused yet.
    pub fn begun_anew(&self) -> Waiting {
        Waiting { hunger: self.hunger, refused: None, drain: self.drain }
    }

    /// The last attempt lacked this: the user waits to be told of `wanted` bytes of room.
    pub fn refuse(&mut self, lack: Lack, wanted: usize) {
        self.refused = Some(lack);
        self.starve(wanted);
    }

    /// The user waits to be told of so much room, or as soon as it is worth while.
    pub fn starve(&mut self, wanted: usize) {
        self.hunger = Some(self.hunger.map_or(wanted, |least| least.min(wanted)));
    }

    /// Who has looked and seen no room waits to be told, if nobody does.
    pub fn starve_anyhow(&mut self) {
        if self.refused.is_none() || self.hunger.is_none() {
            self.starve(0);
        }
    }

    /// Bytes were taken: what was refused before is not waited for any more.
    pub fn note_taken(&mut self) {
        self.refused = None;
    }

    /// Whether `room` bytes of a channel that has `limit` in all are what the last attempt lacked, or any if none did.
    pub fn is_enough(&self, room: usize, limit: usize) -> bool {
        match self.refused {
            None => room > 0,
            Some(Lack::Room(wanted)) => room >= wanted.min(limit),
            Some(Lack::Memory) => false,
        }
    }

    /// Whether somebody waits, and there is so much room that telling pays: then all are told.
    pub fn takes(&mut self, room: usize, limit: usize) -> bool {
        let pays = self.hunger.is_some_and(|least| room >= least.min(limit).max(limit / 4));
        if pays {
            self.tell();
        }
        pays
    }

    /// All who wait for room are told to try again.
    pub fn tell(&mut self) {
        *self = Waiting { drain: self.drain, ..Waiting::default() };
    }

    /// The user waits to be told when everything is acknowledged.
    pub fn await_drained(&mut self) {
        self.drain = true;
    }

    /// Whether somebody waits for what has come now: everything is acknowledged.
    pub fn takes_drained(&mut self) -> bool {
        std::mem::take(&mut self.drain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_little_is_told_when_a_quarter_is_free_and_who_wants_more_when_that_is() {
        for (wanted, enough) in [(1, 250), (400, 400), (5000, 1000)] {
            let mut waiting = Waiting::default();
            assert!(!waiting.takes(1000, 1000), "nobody waits");
            waiting.starve(wanted);
            assert!(!waiting.takes(enough - 1, 1000), "{wanted}");
            assert!(waiting.takes(enough, 1000) && !waiting.takes(1000, 1000), "{wanted}: once");
        }
    }
}
