//! The paths of an association: which there are, how each does, and which one a packet takes (docs/protocol.md 12).
//!
//! Only associations for which there is a choice have this; for all others `Association::path` is everything. Paths that stand by carry repetitions and
//! questions; bonded ones also share what is sent for the first time. Nothing is sent from here: the endpoint asks where to, and tells what came of it.

use ropeway_wire::Type;

use crate::endpoint::Path;
use crate::time::Time;

/// Paths of one association, at most: more gateways between two nodes help nobody, and a header's worth of state for each bounds what a peer can ask for.
pub const MOST_PATHS: usize = 8;
/// First repetition of a join, and of a question to a path that is suspected ...
const FIRST_RETRY_NS: u64 = 100_000_000;
/// ... doubling up to this.
const MOST_RETRY_NS: u64 = 10_000_000_000;
/// Questions without an answer, while the peer is heard over another path, that make a path suspected: one may be lost on a good path.
const QUESTIONS: u8 = 2;
/// The default path changes when more than so many ...
const TROUBLE_PACKETS: u32 = 32;
/// ... of this many packets were asked for again: an eighth.
const TROUBLE_WINDOW_PACKETS: u32 = 256;
/// For so many patiences a bonded path that brings nothing is waited for before a number counts as lost.
const BONDED_PATIENCES: u64 = 8;
/// Nothing from any path for so long is a pause.
const PAUSE_NS: u64 = 1_000_000;

/// How a path does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Known here, not yet to the peer.
    Unjoined,
    Good,
    /// Questions over it were not answered, and the peer is there.
    Suspect,
}

/// One path.
#[derive(Debug)]
pub struct Way {
    pub path: Path,
    pub condition: Condition,
    /// Of the join under way.
    pub nonce: u64,
    /// The next join, the next question to a suspect, or the end of the patience with a question.
    next_at: Option<Time>,
    retry_ns: u64,
    heard_at: Time,
    /// Since when a question over it has no answer.
    asked_at: Option<Time>,
    questions: u8,
    question_due: bool,
    answer_due: bool,
    joined_at: Time,
    /// The highest number known to have been sent before something that came over it, and when that was.
    highest: Option<(u64, Time)>,
    /// For the shares of bonded paths.
    sent_bytes: u64,
}

impl Way {
    fn new(path: Path, condition: Condition, now: Time) -> Way {
        Way {
            path,
            condition,
            nonce: 0,
            next_at: None,
            retry_ns: FIRST_RETRY_NS,
            heard_at: now,
            asked_at: None,
            questions: 0,
            question_due: false,
            answer_due: false,
            joined_at: now,
            highest: None,
            sent_bytes: 0,
        }
    }

    fn retry(&mut self, now: Time) {
        self.next_at = Some(now.after(self.retry_ns));
        self.retry_ns = (self.retry_ns * 2).min(MOST_RETRY_NS);
    }
}

/// What became of the paths by something that was heard, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub suspected: u64,
    pub recovered: u64,
    /// The default is another one.
    pub default_changed: bool,
}

/// The paths of one association.
#[derive(Debug)]
pub struct Routes {
    ways: Vec<Way>,
    default: usize,
    /// First-sent packets are spread over all good paths.
    bonded: bool,
    /// The path of the packet at hand.
    came_by: usize,
    window_sent: u32,
    window_lost: u32,
    /// When something was delivered last, over any path; and when it was before the last pause, and after it.
    delivered_at: Time,
    paused_at: Time,
    resumed_at: Time,
}

impl Routes {
    /// With `path` as default, for now the only one.
    pub fn new(path: Path, bonded: bool, now: Time) -> Routes {
        let first = Way::new(path, Condition::Good, now);
        Routes {
            ways: vec![first],
            default: 0,
            bonded,
            came_by: 0,
            window_sent: 0,
            window_lost: 0,
            delivered_at: now,
            paused_at: now,
            resumed_at: now,
        }
    }

    pub fn is_bonded(&self) -> bool {
        self.bonded
    }

    pub fn set_bonded(&mut self, bonded: bool) {
        self.bonded |= bonded;
    }

    pub fn len(&self) -> usize {
        self.ways.len()
    }

    pub fn paths(&self) -> impl Iterator<Item = Path> + '_ {
        self.ways.iter().map(|way| way.path)
    }

    pub fn way(&self, place: usize) -> &Way {
        &self.ways[place]
    }

    pub fn place(&self, path: &Path) -> Option<usize> {
        self.ways.iter().position(|way| way.path == *path)
    }

    /// The place of a path that the peer has proved. One that this end wants to join from whichever of its addresses becomes that very path.
    pub fn place_of_proved(&mut self, path: &Path) -> Option<usize> {
        self.place(path).or_else(|| {
            let is_it = |way: &Way| way.condition == Condition::Unjoined && way.path == path.unbound();
            let place = self.ways.iter().position(is_it)?;
            self.ways[place].path = *path;
            Some(place)
        })
    }

    pub fn default_path(&self) -> Path {
        self.ways[self.default].path
    }

    pub fn is_good(&self, path: &Path) -> bool {
        self.place(path).is_some_and(|place| self.ways[place].condition == Condition::Good)
    }

    /// Paths that carry packets.
    pub fn good(&self) -> usize {
        self.ways.iter().filter(|way| way.condition == Condition::Good).count()
    }

    /// A path that this end will join. `false`: it is known already, or there are too many.
    pub fn add(&mut self, path: Path, now: Time) -> bool {
        if self.place(&path).is_some() || self.ways.len() >= MOST_PATHS {
            return false;
        }
        self.ways.push(Way { next_at: Some(now), ..Way::new(path, Condition::Unjoined, now) });
        true
    }

    /// A path that the peer has proved to be one of its own, and the one that made room for it if there are as many as can be: a suspected one. `None`: there is none.
    pub fn admit(&mut self, path: Path, now: Time) -> Option<(usize, Option<Path>)> {
        let (place, replaced) = match self.place(&path) {
            Some(place) => (place, None),
            None if self.ways.len() < MOST_PATHS => {
                self.ways.push(Way::new(path, Condition::Unjoined, now));
                (self.ways.len() - 1, None)
            }
            None => {
                let suspect = |way: &Way| way.condition == Condition::Suspect;
                let place = (0..self.ways.len()).find(|&at| at != self.default && suspect(&self.ways[at]))?;
                let replaced = std::mem::replace(&mut self.ways[place], Way::new(path, Condition::Unjoined, now));
                (place, Some(replaced.path))
            }
        };
        self.join(place, now);
        Some((place, replaced))
    }

    /// Both ends know the path.
    pub fn join(&mut self, place: usize, now: Time) {
        let least = self.ways.iter().filter(|way| way.condition == Condition::Good).map(|way| way.sent_bytes).min();
        let way = &mut self.ways[place];
        if way.condition == Condition::Unjoined {
            way.sent_bytes = least.unwrap_or(0);
            way.joined_at = now;
        }
        way.condition = Condition::Good;
        (way.heard_at, way.next_at, way.retry_ns) = (now, None, FIRST_RETRY_NS);
        (way.asked_at, way.questions) = (None, 0);
    }

    /// The association has opened over `path`; the others are to be joined.
    pub fn opened(&mut self, path: &Path, now: Time) {
        let Some(place) = self.place(path) else { return };
        self.default = place;
        for (at, way) in self.ways.iter_mut().enumerate() {
            way.condition = if at == place { Condition::Good } else { Condition::Unjoined };
            (way.heard_at, way.joined_at) = (now, now);
            way.next_at = (at != place).then_some(now);
        }
    }

    /// The next one after the default, for an attempt that is not answered.
    pub fn turn(&mut self) -> Path {
        self.default = (self.default + 1) % self.ways.len();
        self.default_path()
    }

    pub fn set_nonce(&mut self, place: usize, nonce: u64) {
        self.ways[place].nonce = nonce;
    }

    /// Notes by which path the packet at hand came. `false`: by none of these.
    pub fn arrives(&mut self, path: &Path) -> bool {
        // Mostly it is the one of the packet before.
        if self.ways[self.came_by].path == *path {
            return true;
        }
        let place = self.place(path);
        self.came_by = place.unwrap_or(self.came_by);
        place.is_some()
    }

    // Where to.

    /// The path of packets that are sent for the first time.
    pub fn for_new(&self) -> usize {
        if !self.bonded {
            return self.default;
        }
        let good = self.ways.iter().enumerate().filter(|(_, way)| way.condition == Condition::Good);
        good.min_by_key(|(_, way)| way.sent_bytes).map_or(self.default, |(place, _)| place)
    }

    /// The path of packets that went over `last` before: another one if there is one that is good (document 1, routing).
    pub fn for_repeated(&self, last: usize) -> usize {
        let others = (1..self.ways.len()).map(|step| (last + step) % self.ways.len());
        others.into_iter().find(|&place| self.ways[place].condition == Condition::Good).unwrap_or(self.default)
    }

    /// The path of a STATE when so many before it were not answered: the default first, then all that have been joined in turn.
    pub fn for_state(&self, unanswered: u32) -> usize {
        let joined = |place: &usize| self.ways[*place].condition != Condition::Unjoined;
        let all = (0..self.ways.len()).map(|step| (self.default + step) % self.ways.len()).filter(joined);
        let count = all.clone().count().max(1);
        all.into_iter().nth(unanswered as usize % count).unwrap_or(self.default)
    }

    /// A path that is owed a question or an answer, and whether it is a question.
    pub fn due(&self) -> Option<(usize, bool)> {
        let is_due = |way: &Way| way.question_due || way.answer_due;
        self.ways.iter().position(is_due).map(|place| (place, !self.ways[place].answer_due))
    }

    pub fn said(&mut self, place: usize, is_question: bool) {
        let way = &mut self.ways[place];
        if is_question {
            way.question_due = false;
        } else {
            way.answer_due = false;
        }
    }

    /// Nothing is owed to anybody any more.
    pub fn fall_silent(&mut self) {
        self.ways.iter_mut().for_each(|way| (way.question_due, way.answer_due, way.next_at) = (false, false, None));
    }

    /// A question has left over a path: somebody should be heard there.
    pub fn asked(&mut self, place: usize, now: Time, patience_ns: u64) {
        let way = &mut self.ways[place];
        if way.condition == Condition::Good && way.asked_at.is_none() {
            (way.asked_at, way.questions, way.next_at) = (Some(now), 1, Some(now.after(patience_ns)));
        }
    }

    /// Packets for the first time over a path.
    pub fn note_sent(&mut self, place: usize, packets: u32, bytes: u64) {
        self.ways[place].sent_bytes += bytes;
        if place == self.default {
            self.window_sent += packets;
            if self.window_sent >= TROUBLE_WINDOW_PACKETS {
                (self.window_sent, self.window_lost) = (0, 0);
            }
        }
    }

    // What came of it.

    /// A packet that went over `place` is asked for again. Too many of them, and the default changes; and a path over which nothing was heard
    /// meanwhile is asked whether it still leads there.
    pub fn note_lost(&mut self, place: usize, now: Time, patience_ns: u64) -> Changes {
        let mut changes = Changes::default();
        let Some(way) = self.ways.get_mut(place) else { return changes };
        let is_quiet = way.asked_at.is_none() && now.since(way.heard_at) > patience_ns;
        way.question_due |= way.condition == Condition::Good && is_quiet;
        if place == self.default && !self.bonded {
            self.window_lost += 1;
            if self.window_lost > TROUBLE_PACKETS {
                (self.window_sent, self.window_lost) = (0, 0);
                changes.default_changed = self.change_default();
            }
        }
        changes
    }

    /// The peer was heard over the path of the packet at hand, by one of this type. A question is answered there.
    pub fn heard(&mut self, now: Time, kind: Type, patience_ns: u64) -> Changes {
        let (mut changes, place) = (Changes::default(), self.came_by);
        let default_heard_at = self.ways[self.default].heard_at;
        let way = &mut self.ways[place];
        way.heard_at = now;
        way.answer_due |= matches!(kind, Type::State | Type::Pin) && place != self.default;
        let answered = way.asked_at.take();
        way.questions = 0;
        match way.condition {
            Condition::Unjoined => return changes,
            Condition::Good => way.next_at = None,
            Condition::Suspect => {
                self.recover(place);
                changes.recovered = 1;
            }
        }
        for (_, other) in self.ways.iter_mut().enumerate().filter(|(at, _)| *at != place) {
            let Some(asked_at) = other.asked_at else { continue };
            if answered.is_some_and(|answered| asked_at < answered) {
                // A later question over this path was answered sooner.
                other.suspect(now);
                changes.suspected += 1;
            } else if other.next_at.is_none() {
                other.next_at = Some(now.after(patience_ns));
            }
        }
        let is_default_good = self.ways[self.default].condition == Condition::Good;
        // Who has something undelivered and asks over another path than the default, which is silent, has no answer there.
        let has_no_answer = kind == Type::State && now.since(default_heard_at) > patience_ns;
        if place != self.default && (!is_default_good || has_no_answer) {
            self.default = place;
            self.ways[place].answer_due = false;
            changes.default_changed = true;
        }
        changes
    }

    fn recover(&mut self, place: usize) {
        let least = self.ways.iter().filter(|way| way.condition == Condition::Good).map(|way| way.sent_bytes).min();
        let way = &mut self.ways[place];
        way.condition = Condition::Good;
        (way.next_at, way.retry_ns) = (None, FIRST_RETRY_NS);
        // It does not make up for the time that it was away.
        way.sent_bytes = way.sent_bytes.max(least.unwrap_or(0));
    }

    fn change_default(&mut self) -> bool {
        let next = self.for_repeated(self.default);
        std::mem::replace(&mut self.default, next) != next
    }

    /// When [`Routes::run`] has something to do.
    pub fn due_at(&self) -> Option<Time> {
        self.ways.iter().filter_map(|way| way.next_at).min()
    }

    /// Runs what is due; calls `join` for paths to be joined. `heard_at`: when the peer was last heard, over any path.
    pub fn run(&mut self, now: Time, heard_at: Time, patience_ns: u64, mut join: impl FnMut(usize, &Path)) -> Changes {
        let mut changes = Changes::default();
        for (place, way) in self.ways.iter_mut().enumerate() {
            if way.next_at.is_none_or(|at| at > now) {
                continue;
            }
            match way.condition {
                Condition::Unjoined => {
                    join(place, &way.path);
                    way.retry(now);
                }
                Condition::Suspect => {
                    way.question_due = true;
                    way.retry(now);
                }
                // The peer is silent altogether: that says nothing about this path. It is looked at again when somebody was heard.
                Condition::Good if way.asked_at.is_none_or(|asked_at| heard_at <= asked_at) => way.next_at = None,
                Condition::Good if way.questions >= QUESTIONS => {
                    way.suspect(now);
                    changes.suspected += 1;
                }
                Condition::Good => {
                    way.questions += 1;
                    way.question_due = true;
                    way.next_at = Some(now.after(patience_ns));
                }
            }
        }
        if self.ways[self.default].condition == Condition::Suspect {
            changes.default_changed = self.change_default();
        }
        changes
    }

    /// Good paths whose links are stuck are suspected, if there is a better one. Says how many.
    pub fn leave_stuck(&mut self, now: Time, is_stuck: impl Fn(&Path) -> bool) -> u64 {
        let is_good = |way: &Way| way.condition == Condition::Good;
        if !self.ways.iter().any(|way| is_good(way) && !is_stuck(&way.path)) {
            return 0;
        }
        let stuck = self.ways.iter_mut().filter(|way| is_good(way) && is_stuck(&way.path));
        stuck.map(|way| way.suspect(now)).count() as u64
    }

    // Which numbers are lost.

    /// The packet at hand says that everything up to `number` was sent before it, and was not sent before itself.
    pub fn delivered(&mut self, number: u64, now: Time) {
        if now.since(self.delivered_at) >= PAUSE_NS {
            (self.paused_at, self.resumed_at) = (self.delivered_at, now);
        }
        self.delivered_at = now;
        let way = &mut self.ways[self.came_by];
        let is_higher = way.highest.is_none_or(|(highest, _)| number.wrapping_sub(highest) as i64 > 0);
        way.highest = Some((if is_higher { number } else { way.highest.unwrap_or_default().0 }, now));
    }

    /// Whether the path of the packet at hand has brought a later number before: then it was late, and not only on a slower path.
    pub fn is_late(&self, number: u64) -> bool {
        self.ways[self.came_by].highest.is_some_and(|(highest, _)| highest.wrapping_sub(number) as i64 > 0)
    }

    /// Missing numbers from this one on may still be under way over a path that is slower than the others, relative to `base`. `None`: none may.
    pub fn lost_below(&self, base: u64, now: Time, patience_ns: u64) -> Option<u64> {
        let fresh_ns = if self.bonded { BONDED_PATIENCES * patience_ns } else { patience_ns };
        let ahead = |way: &Way| {
            // A path that has just been joined may bring its first packet at any moment.
            let (highest, at) = way.highest.unwrap_or((base, way.joined_at));
            // What comes after a pause goes over all bonded paths: one that was in use before it may be about to bring its first.
            let may_resume = self.bonded && self.paused_at.since(at) <= fresh_ns;
            let at = if may_resume { at.max(self.resumed_at) } else { at };
            let counts = way.condition == Condition::Good && now.since(at) <= fresh_ns;
            counts.then(|| (highest.wrapping_sub(base) as i64).max(0))
        };
        let least = self.ways.iter().filter_map(ahead).min()?;
        Some(base.wrapping_add(least as u64))
    }
}

impl Way {
    fn suspect(&mut self, now: Time) {
        self.condition = Condition::Suspect;
        (self.asked_at, self.questions) = (None, 0);
        (self.question_due, self.answer_due) = (false, false);
        self.retry_ns = FIRST_RETRY_NS;
        self.retry(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PATIENCE: u64 = 2 * MS;

    fn path(number: u8) -> Path {
        Path([number; Path::BYTES])
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * MS)
    }

    /// Three paths, all joined.
    fn three(bonded: bool) -> Routes {
        let mut routes = Routes::new(path(0), bonded, at(0));
        for number in 1..3 {
            assert!(routes.add(path(number), at(0)));
            routes.join(usize::from(number), at(0));
        }
        routes
    }

    fn hear(routes: &mut Routes, number: u8, ms: u64) -> Changes {
        assert!(routes.arrives(&path(number)));
        routes.heard(at(ms), Type::Data, PATIENCE)
    }

    #[test]
    fn a_repetition_never_takes_the_path_of_the_packet_before_while_another_is_good() {
        let mut routes = three(false);
        assert_eq!([0, 1, 2].map(|last| routes.for_repeated(last)), [1, 2, 0]);
        routes.ways[1].suspect(at(1));
        assert_eq!([0, 1, 2].map(|last| routes.for_repeated(last)), [2, 2, 0]);
        routes.ways[2].suspect(at(1));
        assert_eq!(routes.for_repeated(0), 0, "the only one that is left");
    }

    #[test]
    fn a_path_whose_question_waits_while_a_later_one_is_answered_is_suspected_and_not_the_default_any_more() {
        let mut routes = three(false);
        routes.asked(routes.for_state(0), at(10), PATIENCE);
        routes.asked(routes.for_state(1), at(14), PATIENCE);
        let changes = hear(&mut routes, 1, 15);
        assert_eq!(changes, Changes { suspected: 1, recovered: 0, default_changed: true });
        assert_eq!((routes.default, routes.good()), (1, 2));
        // It is asked from time to time, and good again when it answers.
        assert_eq!(routes.due_at(), Some(at(115)));
        routes.run(at(115), at(110), PATIENCE, |_, _| panic!("all are joined"));
        assert_eq!(routes.due(), Some((0, true)));
        routes.said(0, true);
        assert_eq!(routes.due_at(), Some(at(315)));
        assert_eq!(hear(&mut routes, 0, 120).recovered, 1);
        assert_eq!((routes.default, routes.good()), (1, 3), "the default stays");
    }

    #[test]
    fn only_a_state_over_another_path_than_a_silent_default_changes_it() {
        let mut routes = three(false);
        for (kind, ms, default) in
            [(Type::Data, 10, 0), (Type::Pin, 10, 0), (Type::State, 1, 0), (Type::State, 10, 1), (Type::State, 11, 1)]
        {
            assert!(routes.arrives(&path(1)));
            let before = routes.default;
            assert_eq!(routes.heard(at(ms), kind, PATIENCE).default_changed, before != default, "{kind:?} at {ms}");
            assert_eq!(routes.default, default);
        }
        // Questions are answered where they came, if that is not where everything goes.
        assert!(routes.arrives(&path(2)));
        routes.heard(at(11), Type::Pin, PATIENCE);
        assert_eq!(routes.due(), Some((2, false)));
    }

    #[test]
    fn silence_on_all_paths_is_no_reason_to_suspect_one() {
        let mut routes = three(false);
        routes.asked(0, at(10), PATIENCE);
        routes.asked(1, at(14), PATIENCE);
        for ms in 10..1000 {
            let changes = routes.run(at(ms), at(5), PATIENCE, |_, _| ());
            assert_eq!(changes, Changes::default());
        }
        assert_eq!(hear(&mut routes, 0, 1000), Changes::default(), "the first one answers after all");
        assert_eq!(routes.good(), 3);
    }

    #[test]
    fn a_bonded_path_that_loses_is_asked_twice_before_it_is_suspected() {
        let mut routes = three(true);
        hear(&mut routes, 0, 20);
        routes.note_lost(1, at(20), PATIENCE);
        assert_eq!(routes.due(), Some((1, true)));
        routes.said(1, true);
        routes.asked(1, at(20), PATIENCE);
        hear(&mut routes, 0, 21);
        routes.run(at(22), at(21), PATIENCE, |_, _| ());
        assert_eq!((routes.due(), routes.good()), (Some((1, true)), 3));
        routes.said(1, true);
        let changes = routes.run(at(24), at(23), PATIENCE, |_, _| ());
        assert_eq!((changes.suspected, routes.good()), (1, 2));
        assert!(routes.for_new() != 1);
    }

    #[test]
    fn the_default_changes_when_an_eighth_is_lost_and_not_before() {
        let mut routes = three(false);
        for round in 0..10 {
            hear(&mut routes, 0, round);
            routes.note_sent(0, 256, 0);
            for _ in 0..20 {
                assert!(!routes.note_lost(0, at(round), PATIENCE).default_changed);
            }
            routes.note_sent(0, 256, 0);
        }
        let changed = (0..40).filter(|_| routes.note_lost(0, at(10), PATIENCE).default_changed).count();
        assert_eq!((changed, routes.default), (1, 1));
    }

    #[test]
    fn bonded_paths_get_equal_shares_and_a_new_one_no_arrears() {
        let mut routes = Routes::new(path(0), true, at(0));
        routes.note_sent(0, 10, 10_000);
        routes.add(path(1), at(0));
        routes.join(1, at(0));
        for _ in 0..10 {
            let place = routes.for_new();
            routes.note_sent(place, 1, 1000);
        }
        assert_eq!([0, 1].map(|place| routes.way(place).sent_bytes), [15_000, 15_000]);
    }

    #[test]
    fn a_number_is_lost_once_every_path_in_use_has_brought_a_higher_one() {
        let mut routes = three(true);
        for (number, highest) in [(0, 110u64), (1, 105), (2, 120)] {
            routes.arrives(&path(number));
            routes.delivered(highest, at(1));
        }
        assert_eq!(routes.lost_below(100, at(1), PATIENCE), Some(105));
        // After a pause those are waited for that were in use before it ...
        routes.arrives(&path(0));
        routes.delivered(130, at(30));
        routes.arrives(&path(2));
        routes.delivered(125, at(30));
        assert_eq!(routes.lost_below(100, at(30), PATIENCE), Some(105));
        // ... and one that brings nothing for long is not.
        routes.arrives(&path(0));
        routes.delivered(130, at(50));
        assert_eq!(routes.lost_below(100, at(50), PATIENCE), Some(125));
        routes.arrives(&path(2));
        assert!(routes.is_late(120) && !routes.is_late(126));
    }

    #[test]
    fn no_more_paths_than_the_bound_and_a_suspect_makes_room() {
        let mut routes = Routes::new(path(0), false, at(0));
        for number in 1..20 {
            assert_eq!(routes.admit(path(number), at(0)).is_some(), usize::from(number) < MOST_PATHS);
        }
        routes.ways[3].suspect(at(1));
        assert_eq!(routes.admit(path(99), at(2)), Some((3, Some(path(3)))));
        assert_eq!(routes.len(), MOST_PATHS);
    }
}
