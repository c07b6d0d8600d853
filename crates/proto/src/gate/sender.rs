//! What one sender wants of the gate and has of it, what all together want, and what is counted.

use std::ops::{Add, Sub};

use super::Gate;
use super::queue::Place;
use crate::time::Time;

/// This part of what a slow sender holds is charged.
pub const SLOW_COST: u64 = 2;

/// What one sender wants and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Packets that it may send and that have not been seen.
    pub outstanding_packets: u64,
    /// Missing packets that were asked for.
    pub asked_packets: u32,
    /// Bytes that it says it has not sent for the first time.
    pub backlog_bytes: u64,
    /// Packets that it could use beyond those outstanding.
    pub wanted_packets: u64,
    /// A full packet on the medium.
    pub frame_bytes: u64,
    /// What of that is not payload.
    pub overhead_bytes: u64,
    pub round_trip_ns: u64,
    /// How long it may use a grant.
    pub lease_ns: u64,
    /// Its last grant was taken back, and of what it was granted since it has used nothing.
    pub left_unused: bool,
    /// Packets that it may hold beside others, if it is slow to use them, or left some unused of late.
    pub most_held: Option<u64>,
    /// Its own line is not slow: that keeps nothing back.
    pub is_quick: bool,
}

impl Demand {
    pub(super) fn is_granted(&self) -> bool {
        self.outstanding_packets > 0
    }

    /// Whether it wants or holds something, and uses it.
    pub(super) fn is_some(&self) -> bool {
        !self.left_unused && self.outstanding_packets + self.wanted_packets > 0
    }

    /// Whether it has a share of the budget. Who is slow has no use for one.
    pub(super) fn shares(&self) -> bool {
        self.is_some() && !self.is_slow()
    }

    pub(super) fn is_slow(&self) -> bool {
        self.most_held.is_some()
    }

    /// What was granted and has not been seen: short messages are no full packets.
    pub(super) fn granted_bytes(&self) -> u64 {
        let full = self.outstanding_packets * self.frame_bytes;
        full.min(self.backlog_bytes + self.outstanding_packets * self.overhead_bytes)
    }

    pub(super) fn has_slow_line(&self) -> bool {
        self.is_slow() && !self.is_quick
    }

    /// What `bytes` that it was granted cost. A slow line of its own keeps back what it was granted.
    pub(super) fn cost(&self, bytes: u64) -> u64 {
        if self.has_slow_line() { bytes / SLOW_COST } else { bytes }
    }

    pub(super) fn wanted_bytes(&self) -> u64 {
        self.wanted_packets * self.frame_bytes
    }

    /// Nothing is to be charged or granted.
    pub(super) fn is_none(&self) -> bool {
        self.outstanding_packets + self.wanted_packets == 0 && self.asked_packets == 0
    }
}

/// What all senders together want of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// What was granted and what more could be.
    pub bytes: u64,
    /// A full packet on the medium: less is of no use.
    pub packet_bytes: u64,
    /// The longest time that one of them may use a grant.
    pub lease_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender {
    pub(super) demand: Demand,
    pub(super) charged_bytes: u64,
    /// If that is something, its place among those of whom it is.
    pub(super) charged_place: u32,
    /// Of that, what is missing and was asked for.
    pub(super) asked_bytes: u64,
    /// Of what is missing, what may be on its way, be it charged or not.
    pub(super) missing_bytes: u64,
    /// When it last spoke, or was given something to say: who waits for its turn is silent rightly.
    pub(super) heard_at: Time,
    /// Where it waits for more, if it does.
    pub(super) place: Option<Place>,
    pub(super) suspect: bool,
    /// An acknowledgment of it is held back (`gate = esp`).
    pub(super) held: bool,
    /// Bytes granted since the start, for the order `fair`.
    pub(super) served_bytes: u64,
}

/// Sums over senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) charged_bytes: u64,
    /// What was granted and may be on its way: of those who are slow that is more than they are charged.
    pub(super) granted_bytes: u64,
    pub(super) missing_bytes: u64,
    /// Of what is charged as granted, the part of those who are slow ...
    pub(super) slow_bytes: u64,
    /// ... of those whose last grant was taken back, and who have used nothing since ...
    pub(super) unused_bytes: u64,
    /// ... of all that is charged, what is missing and was asked for ...
    pub(super) asked_bytes: u64,
    /// ... and of suspects.
    pub(super) suspect_bytes: u64,
    /// What senders could use beyond what is charged.
    pub(super) wanted_bytes: u64,
    /// Senders that want or hold something, and use it.
    pub(super) demanding: u64,
    /// Senders that have a grant.
    pub(super) holders: u64,
    /// Senders that have a share of the budget.
    pub(super) sharing: u64,
}

impl Sums {
    fn with(self, other: Sums, join: fn(u64, u64) -> u64) -> Sums {
        Sums {
            charged_bytes: join(self.charged_bytes, other.charged_bytes),
            granted_bytes: join(self.granted_bytes, other.granted_bytes),
            missing_bytes: join(self.missing_bytes, other.missing_bytes),
            slow_bytes: join(self.slow_bytes, other.slow_bytes),
            unused_bytes: join(self.unused_bytes, other.unused_bytes),
            asked_bytes: join(self.asked_bytes, other.asked_bytes),
            suspect_bytes: join(self.suspect_bytes, other.suspect_bytes),
            wanted_bytes: join(self.wanted_bytes, other.wanted_bytes),
            demanding: join(self.demanding, other.demanding),
            holders: join(self.holders, other.holders),
            sharing: join(self.sharing, other.sharing),
        }
    }
}

impl Add for Sums {
    type Output = Sums;

    fn add(self, other: Sums) -> Sums {
        self.with(other, |a, b| a + b)
    }
}

impl Sub for Sums {
    type Output = Sums;

    fn sub(self, other: Sums) -> Sums {
        self.with(other, |a, b| a - b)
    }
}

impl Sender {
    /// What it adds to the sums.
    pub(super) fn sums(&self) -> Sums {
        let granted_if = |is: bool| if is { self.charged_bytes - self.asked_bytes } else { 0 };
        Sums {
            charged_bytes: self.charged_bytes,
            granted_bytes: self.demand.granted_bytes(),
            missing_bytes: self.missing_bytes,
            slow_bytes: granted_if(self.demand.is_slow() && !self.demand.left_unused),
            unused_bytes: granted_if(self.demand.left_unused),
            asked_bytes: self.asked_bytes,
            suspect_bytes: if self.suspect { self.charged_bytes } else { 0 },
            wanted_bytes: self.demand.wanted_bytes(),
            demanding: self.demand.is_some().into(),
            holders: self.demand.is_granted().into(),
            sharing: self.demand.shares().into(),
        }
    }

    /// Packets that it was asked for and is charged for.
    pub(super) fn asked_packets(&self) -> u64 {
        match self.asked_bytes {
            0 => 0,
            bytes => bytes.div_ceil(self.demand.frame_bytes),
        }
    }

    /// Nothing is charged to it.
    pub(super) fn holds_nothing(&self) -> bool {
        self.demand.outstanding_packets == 0 && self.asked_bytes == 0
    }

    /// Nothing is charged to it, and it waits for nothing.
    pub(super) fn is_at_rest(&self) -> bool {
        self.demand.is_none() && self.charged_bytes == 0 && self.place.is_none() && !self.suspect
    }
}

impl Gate {
    /// Whether each sum is that over the senders, and the queues have whom they say: for tests.
    pub fn sums_are_true(&self) -> bool {
        let held = self.senders.iter().filter(|sender| sender.held).count();
        let sums = self.senders.iter().fold(Sums::default(), |sums, sender| sums + sender.sums());
        let is_charged = |(place, &index): (usize, &u32)| {
            let sender = &self.senders[index as usize];
            sender.charged_bytes > 0 && sender.charged_place as usize == place
        };
        let charged = self.senders.iter().filter(|sender| sender.charged_bytes > 0).count();
        self.sums == sums
            && self.charged.len() == charged
            && self.charged.iter().enumerate().all(is_charged)
            && self.queue_is_true()
            && self.held.len() == held
            && self.held.iter().all(|&index| self.senders[index as usize].held)
    }
}

/// What the gate has counted. Never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounters {
    pub grants: u64,
    pub granted_packets: u64,
    /// Times a sender wanted more than the budget had.
    pub exhausted: u64,
    /// Senders that became suspect.
    pub suspects: u64,
    /// Senders that turned out slow, each time.
    pub slow: u64,
    /// Times the budget was cut for loss or congestion marks.
    pub cuts: u64,
    /// Acknowledgments held back (`gate = esp`).
    pub acks_held: u64,
}
