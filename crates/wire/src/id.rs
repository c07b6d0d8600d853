//! The 32-bit ids under which packets reach an association.

use core::fmt;

const SLOT_SHIFT: u32 = 4;
const STEERING_SHIFT: u32 = 20;

/// An id: 12 bits steering, 16 bits slot, 4 bits generation. The id in a packet is the receiver's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u32);

impl Id {
    /// The steering of packets that go to whoever listens at a port: no engine has it.
    pub const ANY_STEERING: u16 = 0xFFF;

    /// The largest steering that an engine or worker can have.
    pub const MAX_STEERING: u16 = Id::ANY_STEERING - 1;

    /// How many generations of a slot can be told apart.
    pub const GENERATIONS: u8 = 16;

    /// Of `steering` the low 12 bits count and of `generation` the low 4.
    #[must_use]
    #[inline]
    pub const fn new(steering: u16, slot: u16, generation: u8) -> Id {
        Id((steering as u32 & 0xFFF) << STEERING_SHIFT | (slot as u32) << SLOT_SHIFT | generation as u32 & 0xF)
    }

    /// Where SYN and CONFIRM go: whoever listens at `port`.
    #[must_use]
    #[inline]
    pub const fn any(port: u16) -> Id {
        Id::new(Id::ANY_STEERING, port, 0)
    }

    /// The port of an id made by [`Id::any`].
    #[must_use]
    #[inline]
    pub const fn port(self) -> Option<u16> {
        if self.steering() == Id::ANY_STEERING && self.generation() == 0 { Some(self.slot()) } else { None }
    }

    /// Which engine or worker of the host.
    #[must_use]
    #[inline]
    pub const fn steering(self) -> u16 {
        (self.0 >> STEERING_SHIFT) as u16
    }

    /// The place in that engine's table of associations.
    #[must_use]
    #[inline]
    pub const fn slot(self) -> u16 {
        (self.0 >> SLOT_SHIFT) as u16
    }

    /// Which of the slot's owners, one after the other.
    #[must_use]
    #[inline]
    pub const fn generation(self) -> u8 {
        (self.0 & 0xF) as u8
    }

    /// Whether packets with this id reach one association, and not whoever listens.
    pub(crate) const fn is_own(self) -> bool {
        self.steering() != Id::ANY_STEERING
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03x}.{:04x}.{:x}", self.steering(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_parts_are_where_the_specification_says() {
        let id = Id::new(0x123, 0x4567, 0x8);
        assert_eq!(id, Id(0x1234_5678));
        assert_eq!((id.steering(), id.slot(), id.generation(), id.port()), (0x123, 0x4567, 8, None));
        assert_eq!(id.to_string(), "123.4567.8");
        assert_eq!(Id::any(0xABCD), Id(0xFFFA_BCD0));
        assert_eq!(Id::any(0xABCD).port(), Some(0xABCD));
        assert_eq!(Id(0xFFFA_BCD1).port(), None, "generation 0 belongs to the form");
    }
}
