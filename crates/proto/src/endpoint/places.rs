//! Places: how many of the associations that there may be, and of the spent cookies that are remembered, one host has at most, and who gives way where all are taken (docs/protocol.md 3, Places).

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use ropeway_wire::{ErrorCode, Id};

use super::resets::generation;
use super::{Endpoint, Path};
use crate::association::Association;
use crate::keyed::Sealing;
use crate::time::Time;

/// A host has less than so many times as many as there are places left: alone four fifths of them, and whoever has few finds one.
pub(super) const SHARE: usize = 4;
/// An association gives way that has been at rest for so long: by then the peer knows that all has arrived, even if the acknowledgment had to be said ten times.
pub(super) const AT_REST_NS: u64 = 1_000_000_000;
/// So many of those without a channel are looked at for one that may give way: who comes when all are taken shall not cost a search of them.
const MOST_LOOKED_AT: usize = 64;

/// Who has how many, and who needs none.
#[derive(Debug)]
pub(super) struct Places {
    hosts: BTreeMap<Path, Has>,
    /// Open associations without a channel, by when they were left by the last one.
    resting: BTreeMap<NonZeroU64, u32>,
    /// The number of the next of these.
    next_rest: NonZeroU64,
}

/// What a host has taken.
#[derive(Debug, Default)]
struct Has {
    associations: u32,
    cookies: u32,
}

fn has_share(taken: u32, left: usize) -> bool {
    (taken as usize) < SHARE * left
}

impl Places {
    pub(super) fn new() -> Places {
        Places { hosts: BTreeMap::new(), resting: BTreeMap::new(), next_rest: NonZeroU64::MIN }
    }

    fn associations_of(&self, host: &Path) -> u32 {
        self.hosts.get(host).map_or(0, |has| has.associations)
    }

    /// The host's figures change; those of one that has nothing any more are forgotten.
    fn change(&mut self, host: Path, change: impl FnOnce(&mut Has)) {
        let has = self.hosts.entry(host).or_default();
        change(has);
        if (has.associations, has.cookies) == (0, 0) {
            self.hosts.remove(&host);
        }
    }

    /// Whether the host at `path` has spent cookies that are remembered.
    pub(super) fn has_spent(&self, path: &Path) -> bool {
        self.hosts.get(&path.host()).is_some_and(|has| has.cookies > 0)
    }

    /// Whether a host may spend another cookie, of which so many more may be remembered.
    pub(super) fn may_spend(&self, path: &Path, left: usize) -> bool {
        has_share(self.hosts.get(&path.host()).map_or(0, |has| has.cookies), left)
    }

    pub(super) fn add_cookie(&mut self, path: &Path) {
        self.change(path.host(), |has| has.cookies += 1);
    }

    pub(super) fn remove_cookie(&mut self, path: &Path) {
        self.change(path.host(), |has| has.cookies -= 1);
    }
}

impl Endpoint {
    /// A new entry in the table of associations, for the host at `asking` or for this end. `None`: there are too many.
    pub(super) fn add_association(
        &mut self,
        now: Time,
        asking: Option<&Path>,
        make: impl FnOnce(Id) -> Association,
    ) -> Option<u32> {
        if !self.make_place(now, asking) {
            return None;
        }
        let slot = self.associations.vacant_key();
        if slot > usize::from(u16::MAX) {
            return None;
        }
        let id = Id::new(self.steering, slot as u16, generation(self.incarnations.of_slot(slot)));
        let mut association = make(id);
        if self.keys.is_some() {
            association.sealing = Sealing::with_key();
        }
        let index = self.associations.insert(Box::new(association)) as u32;
        asking.into_iter().for_each(|path| self.take_place(path));
        Some(index)
    }

    /// Whether there is a place for one more association: of the host at `path`, which asks, or of this end. If need be an association at rest gives way.
    fn make_place(&mut self, now: Time, path: Option<&Path>) -> bool {
        let most = self.config.max_associations as usize;
        let taken = path.map_or(0, |path| self.places.associations_of(&path.host()));
        if has_share(taken, most.saturating_sub(self.associations.len())) {
            return true;
        }
        // There may be more of them than there may be by now.
        if self.associations.len() > most {
            return false;
        }
        let Some(index) = self.at_rest(now, taken) else { return false };
        self.counters.associations_displaced += 1;
        // As when it is over by itself: a channel of the peer that is on its way is opened anew.
        self.say_goodbye(now, index, ErrorCode::Unknown);
        self.end_association(index, ErrorCode::Closed);
        true
    }

    /// The association that has been without a channel for longest, of those whose host has no less than `taken`: nobody takes the place of who has less. Those before it that were used meanwhile go to the
    /// end of the line: or so many of these would stand before all others for ever.
    fn at_rest(&mut self, now: Time, taken: u32) -> Option<u32> {
        let (mut found, mut used) = (None, Vec::new());
        for &index in self.places.resting.values().take(MOST_LOOKED_AT) {
            let association = &self.associations[index as usize];
            let used_at = association.used_at().max(self.awake_at);
            if association.has_undelivered() || now.since(used_at) < AT_REST_NS {
                used.push(index);
            } else if association.host.map_or(0, |host| self.places.associations_of(&host)) >= taken {
                found = Some(index);
                break;
            }
        }
        used.into_iter().for_each(|index| self.rest_behind_others(index));
        found
    }

    /// An association was opened by the host at `path`.
    fn take_place(&mut self, path: &Path) {
        self.places.change(path.host(), |has| has.associations += 1);
    }

    /// An association is over, which was of this host and at rest since then, if it was.
    pub(super) fn give_place(&mut self, host: Option<Path>, rest: Option<NonZeroU64>) {
        if let Some(host) = host {
            self.places.change(host, |has| has.associations -= 1);
        }
        rest.map(|rest| self.places.resting.remove(&rest));
    }

    /// An association may have got its first channel, or lost its last.
    pub(super) fn note_rest(&mut self, index: u32) {
        let association = &mut self.associations[index as usize];
        let rests = association.is_open() && association.channels.is_empty();
        match association.rest {
            Some(rest) if !rests => {
                association.rest = None;
                self.places.resting.remove(&rest);
            }
            None if rests => self.rest_behind_others(index),
            _ => {}
        }
    }

    /// An association without a channel takes the last place among these.
    fn rest_behind_others(&mut self, index: u32) {
        let rest = self.places.next_rest;
        let former = self.associations[index as usize].rest.replace(rest);
        former.map(|former| self.places.resting.remove(&former));
        self.places.resting.insert(rest, index);
        self.places.next_rest = rest.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many each of `hosts` gets that go on asking in turn until nobody gets any more.
    fn shares(hosts: usize, most: usize) -> Vec<u32> {
        let mut taken = vec![0; hosts];
        loop {
            let before: u32 = taken.iter().sum();
            for at in 0..hosts {
                let left = most - taken.iter().sum::<u32>() as usize;
                taken[at] += u32::from(has_share(taken[at], left));
            }
            if taken.iter().sum::<u32>() == before {
                return taken;
            }
        }
    }

    #[test]
    fn hosts_that_take_all_they_get_leave_places_for_others() {
        for (hosts, most, each, left) in [
            (1, 16_384, 13_108..=13_108, 3276),
            (2, 16_384, 7281..=7282, 1820),
            (8, 16_384, 1985..=1986, 496),
            (100, 16_384, 163..=164, 40),
            (1, 100, 80..=80, 20),
            (1, 8, 7..=7, 1),
            // Very few are not divided.
            (1, 4, 4..=4, 0),
            (1, 1, 1..=1, 0),
        ] {
            let taken = shares(hosts, most);
            assert!(taken.iter().all(|taken| each.contains(taken)), "{hosts} of {most}: {taken:?}");
            let sum = taken.iter().sum::<u32>() as usize;
            assert!((most - sum).abs_diff(left) <= 1, "{hosts} of {most}: {sum} are taken");
        }
    }

    #[test]
    fn of_hosts_that_have_nothing_any_more_nothing_is_kept() {
        let mut places = Places::new();
        let paths: Vec<Path> = (0..100).map(|at| Path([at; Path::BYTES])).collect();
        paths.iter().for_each(|path| places.add_cookie(path));
        assert_eq!(places.hosts.len(), 100);
        paths.iter().for_each(|path| places.remove_cookie(path));
        assert!(places.hosts.is_empty());
    }
}
