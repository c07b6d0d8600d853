//! Where the peer is, and under which own address it knows this end (docs/protocol.md 12).

use ropeway_wire::{Flags, Header};

use super::{Association, ECHO_LIMIT_NS};
use crate::config::Config;
use crate::endpoint::Path;
use crate::time::Time;

/// STATEs without an answer that leave under the address of the host's choice before every second one leaves under that at which the peer was heard last.
const MOST_BY_CHOICE: u32 = 2;
/// Times in a row that a peer which is heard has not heard this end, after which the path is bound to that address: a packet may be lost, or wait at a peer that was stopped.
const MOST_SAID_IN_VAIN: u8 = 2;

impl Association {
    /// Whether packets may come over `path`.
    pub fn has_path(&self, path: &Path) -> bool {
        self.path == *path || self.routes.as_ref().is_some_and(|routes| routes.place(path).is_some())
    }

    /// Whether one of its paths leads where `path` does, under whichever of this host's addresses.
    pub fn reaches(&self, path: &Path) -> bool {
        self.paths().any(|known| known.unbound() == path.unbound())
    }

    /// All paths of it.
    pub fn paths(&self) -> impl Iterator<Item = Path> + '_ {
        let several = self.routes.iter().flat_map(|routes| routes.paths());
        std::iter::once(self.path).chain(several)
    }

    /// The path bound to the own address under which the peer knows it, if the host may have chosen another since: the peer has not answered lately.
    pub fn usual_path(&self) -> Path {
        let may_be_another = self.states_unanswered >= MOST_BY_CHOICE && self.path.own() == 0;
        if may_be_another { self.path.bound(self.spoken_to) } else { self.path }
    }

    /// The peer has been heard. Where it had to be asked so, it knows this end under one address alone.
    pub fn keep_usual_path(&mut self) {
        if self.routes.is_none() && self.states_unanswered > MOST_BY_CHOICE {
            self.path = self.usual_path();
        }
        self.states_unanswered = 0;
    }

    /// Whether the host chooses the address under which this end speaks, and the peer may not know it.
    fn is_left_to_host(&self) -> bool {
        self.path.own() == 0 && self.spoken_to != 0 && self.routes.is_none()
    }

    /// Something with the header of this moment has left. The peer is given the time to hear it, and so long nothing that follows counts.
    pub(super) fn note_said(&mut self, config: &Config, now: Time) {
        if !self.is_left_to_host() {
            return;
        }
        if self.said_at == Time::MAX || now.since(self.said_at) >= self.question_ns(config) {
            self.said_at = now;
        }
    }

    /// A header shows whether the peer hears this end, as its being heard does not: what comes without an echo was made when it had heard nothing for `ECHO_LIMIT_NS`, be it as nothing was said.
    pub fn note_echo(&mut self, header: &Header, config: &Config, now: Time) {
        if header.flags.contains(Flags::ECHO) {
            (self.said_at, self.said_in_vain) = (Time::MAX, 0);
            return;
        }
        let ns = now.since(self.said_at);
        if ns < self.question_ns(config) {
            return;
        }
        self.said_at = Time::MAX;
        // What was said longer ago than that is echoed no more.
        if ns > ECHO_LIMIT_NS + self.rtt.least_ns() || !self.is_left_to_host() {
            return;
        }
        self.said_in_vain += 1;
        if self.said_in_vain >= MOST_SAID_IN_VAIN {
            self.path = self.path.bound(self.spoken_to);
        }
    }
}
