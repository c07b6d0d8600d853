//! What the protocol knows of the way that a packet took or is to take.

use std::ops::Range;

/// A way to a peer, in the caller's terms: which link, which address there, which engine at that address, and, in the last byte, which of this host's own addresses the path is bound to (0: to none). The
/// protocol compares and returns it, and proves that a peer receives under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub [u8; Path::BYTES]);

impl Path {
    pub const BYTES: usize = 24;
    const OWN_AT: usize = Path::BYTES - 1;
    /// What tells the engines of one host apart, as UDP's port does, or those behind a gateway; all 0 where nothing but their ids does.
    pub const ENGINE_AT: Range<usize> = 17..Path::OWN_AT;

    /// The same path, bound to the own address that has this number.
    #[must_use]
    pub fn bound(mut self, own: u8) -> Path {
        self.0[Path::OWN_AT] = own;
        self
    }

    /// The same path, bound to no own address: where the peer is, and nothing else.
    #[must_use]
    pub fn unbound(self) -> Path {
        self.bound(0)
    }

    /// The own address that it is bound to; 0: to none.
    #[must_use]
    pub fn own(&self) -> u8 {
        self.0[Path::OWN_AT]
    }

    /// The host that it leads to, whichever engine there.
    #[must_use]
    pub fn host(mut self) -> Path {
        self.0[Path::ENGINE_AT].fill(0);
        self.unbound()
    }

    /// Whether what came over `other` is of this path: one that is bound to no own address takes what comes to any.
    pub(super) fn takes(&self, other: &Path) -> bool {
        *self == *other || self.own() == 0 && *self == other.unbound()
    }
}
