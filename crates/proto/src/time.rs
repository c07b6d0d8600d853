//! Time as the protocol sees it: nanoseconds since an origin that the caller chose. Nobody in this crate reads a clock.

/// A moment, in nanoseconds since the caller's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// One unit of the header's `time` and `echo` fields (docs/protocol.md 2.1).
pub const TICK_NS: u64 = 4_000;

impl Time {
    pub const ZERO: Time = Time(0);
    /// Never.
    pub(crate) const MAX: Time = Time(u64::MAX);

    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment and `ns` nanoseconds.
    #[must_use]
    pub const fn after(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` until this moment; 0 when it is not earlier (a clock may be set back).
    pub const fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The header's `time` field.
    pub(crate) const fn ticks(self) -> u16 {
        (self.0 / TICK_NS) as u16
    }
}
