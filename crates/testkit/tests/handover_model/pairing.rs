//! Clause 1: two halves of a pair, of which either may be lost on the way, and a daemon that may die between them.

use stateright::{Model, Property};

/// How far one end has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Half {
    Unregistered,
    Registered,
    /// Mapped; the stamp comes next (1.3).
    Mapped,
    Stamped,
    /// Has seen that it waits too long, and that the other stamp is not there; withdraws next.
    Withdrawing,
    /// Both stamps were seen: this end may offer and switch.
    Ready,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pairing {
    pub halves: [Half; 2],
    /// Which segment each end has, or had last.
    pub segment: [u8; 2],
    /// The stamp word of each segment: bits 0 and 1 for the ends, bit 2 for void.
    pub stamps: Vec<u8>,
    /// Grants on their way: the segment for that end.
    pub mail: [Option<u8>; 2],
    /// Whether the daemon knows of that end's registration; it may die and come back knowing nothing.
    pub known: [bool; 2],
    pub daemon_deaths: u8,
    pub losses: u8,
    pub kills: u8,
}

const VOID: u8 = 4;
const BOTH: u8 = 3;
/// Segments that a run may use up: enough to fail once and succeed then.
const SEGMENTS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Register(usize),
    Grant,
    Receive(usize),
    /// A grant that never arrives, or cannot be mapped.
    Lose(usize),
    Stamp(usize),
    Look(usize),
    /// 1.4: has waited too long.
    Impatience(usize),
    Withdraw(usize),
    DaemonDies,
    Kill(usize),
}

pub struct Pairs {
    /// 1.4: giving up is a compare-and-swap that fails once both stamps are there.
    pub cas: bool,
}

impl Pairs {
    /// The stamp word of the segment that `end` has.
    fn word<'a>(&self, s: &'a mut Pairing, end: usize) -> &'a mut u8 {
        let segment = usize::from(s.segment[end]);
        &mut s.stamps[segment]
    }
}

impl Model for Pairs {
    type State = Pairing;
    type Action = Action;

    fn init_states(&self) -> Vec<Pairing> {
        vec![Pairing {
            halves: [Half::Unregistered; 2],
            segment: [0; 2],
            stamps: vec![],
            mail: [None; 2],
            known: [false; 2],
            daemon_deaths: 1,
            losses: 1,
            kills: 1,
        }]
    }

    fn actions(&self, s: &Pairing, actions: &mut Vec<Action>) {
        for end in [0, 1] {
            match s.halves[end] {
                Half::Unregistered if s.stamps.len() < SEGMENTS => actions.push(Action::Register(end)),
                Half::Mapped => actions.push(Action::Stamp(end)),
                Half::Stamped => actions.extend([Action::Look(end), Action::Impatience(end)]),
                Half::Withdrawing => actions.push(Action::Withdraw(end)),
                _ => {}
            }
            if s.mail[end].is_some() {
                actions.push(Action::Receive(end));
                if s.losses > 0 {
                    actions.push(Action::Lose(end));
                }
            }
            if s.kills > 0 && s.halves[end] != Half::Dead {
                actions.push(Action::Kill(end));
            }
        }
        if s.known == [true; 2] && s.mail == [None; 2] && s.stamps.len() < SEGMENTS {
            actions.push(Action::Grant);
        }
        if s.daemon_deaths > 0 {
            actions.push(Action::DaemonDies);
        }
    }

    fn next_state(&self, last: &Pairing, action: Action) -> Option<Pairing> {
        let mut s = last.clone();
        match action {
            Action::Register(end) => {
                s.halves[end] = Half::Registered;
                s.known[end] = true;
            }
            Action::Grant => {
                s.mail = [Some(s.stamps.len() as u8); 2];
                s.stamps.push(0);
                s.known = [false; 2];
            }
            Action::Receive(end) => {
                let segment = s.mail[end].take()?;
                if s.halves[end] == Half::Registered {
                    (s.halves[end], s.segment[end]) = (Half::Mapped, segment);
                } else {
                    // Not wanted any more: void, unless the other end counts on it, which it cannot.
                    s.stamps[usize::from(segment)] |= VOID;
                }
            }
            Action::Lose(end) => {
                s.losses -= 1;
                s.mail[end] = None;
                if s.halves[end] == Half::Registered {
                    s.halves[end] = Half::Unregistered;
                }
            }
            Action::Stamp(end) => {
                let word = self.word(&mut s, end);
                if *word & VOID == 0 {
                    *word |= 1 << end;
                }
                s.halves[end] = Half::Stamped;
            }
            Action::Look(end) => {
                let word = *self.word(&mut s, end);
                if word & VOID != 0 {
                    s.halves[end] = Half::Unregistered;
                } else if word & BOTH == BOTH {
                    s.halves[end] = Half::Ready;
                }
            }
            Action::Impatience(end) => {
                if *self.word(&mut s, end) & BOTH != BOTH {
                    s.halves[end] = Half::Withdrawing;
                }
            }
            Action::Withdraw(end) => {
                let cas = self.cas;
                let word = self.word(&mut s, end);
                if cas && *word & VOID == 0 && *word & BOTH == BOTH {
                    s.halves[end] = Half::Stamped;
                } else {
                    *word |= VOID;
                    s.halves[end] = Half::Unregistered;
                }
            }
            Action::DaemonDies => {
                // Grants on their way die with it; each end notices, and what is not stamped registers again (1.4).
                s.daemon_deaths -= 1;
                s.known = [false; 2];
                for end in [0, 1] {
                    s.mail[end] = s.mail[end].filter(|_| s.halves[end] == Half::Dead);
                    if s.halves[end] == Half::Registered {
                        s.halves[end] = Half::Unregistered;
                    }
                }
            }
            Action::Kill(end) => {
                s.kills -= 1;
                s.halves[end] = Half::Dead;
                s.known[end] = false;
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("who is ready is not alone", |_, s: &Pairing| {
                [0, 1].iter().all(|&end| {
                    let other = 1 - end;
                    s.halves[end] != Half::Ready
                        || s.halves[other] == Half::Dead
                        || (matches!(s.halves[other], Half::Stamped | Half::Withdrawing | Half::Ready)
                            && s.segment == [s.segment[end]; 2])
                })
            }),
            Property::always("nobody waits for a half that will not come", |model: &Pairs, s: &Pairing| {
                let mut actions = Vec::new();
                model.actions(s, &mut actions);
                !actions.is_empty()
                    || s.halves.iter().all(|h| !matches!(h, Half::Mapped | Half::Stamped | Half::Withdrawing))
            }),
            Property::sometimes("both are ready", |_, s: &Pairing| s.halves == [Half::Ready; 2]),
            Property::sometimes("both are ready after a half was lost", |_, s: &Pairing| {
                s.halves == [Half::Ready; 2] && s.losses == 0 && s.daemon_deaths == 0
            }),
        ]
    }
}
