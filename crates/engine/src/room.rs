//! Whether a link takes packets, and how to wait until it does.

use std::time::Duration;

/// Some queues are full although the socket can be written to: the device's own, behind it. Nothing tells when those have room again, so they are tried after so long: a device of 100 Mbit/s
/// sends four packets meanwhile, and a processor has 2000 tries a second to do at most.
pub const PAUSE: Duration = Duration::from_micros(500);

/// What is known of one link's queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// It refused packets in the last round of sends.
    full: bool,
    /// It took some in that round.
    took: bool,
    /// Its descriptor was writable, and since then it took nothing.
    promised: bool,
}

impl Room {
    /// A round of sends begins.
    pub fn begin(&mut self) {
        (self.full, self.took) = (false, false);
    }

    /// A send took so many of the packets that were offered.
    pub fn note(&mut self, took: usize, offered: usize) {
        self.full |= took < offered;
        self.took |= took > 0;
    }

    /// The round ends.
    pub fn end(&mut self) {
        self.promised &= self.full && !self.took;
    }

    /// The descriptor of a link that was full is writable.
    pub fn promise(&mut self) {
        self.promised = self.full;
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Full, and its descriptor will say when it is not.
    pub fn will_tell(&self) -> bool {
        self.full && !self.promised
    }

    /// Full, and its descriptor says that it is not: try again after [`PAUSE`].
    pub fn pauses(&self) -> bool {
        self.full && self.promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(room: &mut Room, took: usize, offered: usize) {
        room.begin();
        room.note(took, offered);
        room.end();
    }

    #[test]
    fn who_takes_nothing_although_writable_is_left_alone_for_a_pause() {
        let mut room = Room::default();
        room.promise();
        round(&mut room, 0, 4);
        assert!(room.will_tell() && !room.pauses(), "it was not full when it was writable");
        room.promise();
        round(&mut room, 0, 4);
        assert!(room.pauses() && !room.will_tell());
        round(&mut room, 0, 4);
        assert!(room.pauses(), "nothing has changed");
        round(&mut room, 1, 4);
        assert!(room.will_tell(), "its queue moves");
        room.promise();
        round(&mut room, 4, 4);
        assert!(!room.is_full() && !room.will_tell() && !room.pauses());
    }
}
