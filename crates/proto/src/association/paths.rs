//! Where the peer is, and under which own address it knows this end (docs/protocol.md 12).

use super::Association;
use crate::endpoint::Path;

/// STATEs without an answer that leave under the address of the host's choice before every second one leaves under that at which the peer was heard last.
const MOST_BY_CHOICE: u32 = 2;

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
}
