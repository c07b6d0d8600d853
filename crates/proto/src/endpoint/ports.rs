//! Ports of this end for channels that name none: no two that are open have the same one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// First port given to channels that name none, as TCP's.
pub(super) const FIRST_FREE_PORT: u16 = 49_152;

/// Which are given out.
#[derive(Debug)]
pub(super) struct Ports {
    /// Those that nobody has had.
    unused: RangeInclusive<u16>,
    /// Those that were given back, in that order: the peer may still have the other end of the channel before.
    free: VecDeque<u16>,
    /// The next one that several have, when none is free.
    next_shared: u16,
    /// How many more than one have a port.
    shared: BTreeMap<u16, u32>,
}

impl Ports {
    pub fn new() -> Ports {
        let unused = FIRST_FREE_PORT..=u16::MAX;
        Ports { unused, free: VecDeque::new(), next_shared: FIRST_FREE_PORT, shared: BTreeMap::new() }
    }

    pub fn take(&mut self) -> u16 {
        if let Some(port) = self.unused.next().or_else(|| self.free.pop_front()) {
            return port;
        }
        let port = self.next_shared;
        self.next_shared = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
        *self.shared.entry(port).or_default() += 1;
        port
    }

    pub fn give_back(&mut self, port: u16) {
        match self.shared.get_mut(&port) {
            Some(1) => drop(self.shared.remove(&port)),
            Some(more) => *more -= 1,
            None => self.free.push_back(port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = (u16::MAX - FIRST_FREE_PORT) as usize + 1;

    #[test]
    fn a_port_is_given_out_again_when_it_was_given_back_and_as_late_as_possible() {
        let mut ports = Ports::new();
        let kept = ports.take();
        let mut last = Vec::new();
        for _ in 0..3 * COUNT {
            let port = ports.take();
            assert!(port >= FIRST_FREE_PORT && port != kept);
            let since = last.iter().rev().position(|&other| other == port);
            assert!(since.is_none_or(|others| others == COUNT - 2), "{since:?} others since {port}");
            last.push(port);
            ports.give_back(port);
            let older = last.len().saturating_sub(COUNT);
            last.drain(..older);
        }
    }

    #[test]
    fn where_none_is_free_they_are_shared_in_turn() {
        let mut ports = Ports::new();
        let all: Vec<u16> = (0..3 * COUNT).map(|_| ports.take()).collect();
        assert!(all[..COUNT] == all[COUNT..2 * COUNT] && all[..COUNT] == all[2 * COUNT..]);
        // One that three have is free when the last has given it back.
        let (one, other) = (all[5], all[9]);
        [one, one, other, one].into_iter().for_each(|port| ports.give_back(port));
        assert_eq!(ports.take(), one);
        assert_eq!(ports.take(), all[0]);
        [other, other].into_iter().for_each(|port| ports.give_back(port));
        assert_eq!(ports.take(), other);
    }
}
