//! How long an end waits for what is to come, when it asks for it or whether it has arrived, and when it takes the peer for silent (docs/protocol.md 3, 5, 8).

use ropeway_wire::ErrorCode;

use super::Association;
use crate::arrivals::Drain;
use crate::config::{Config, GateMode};
use crate::endpoint::{Path, Presence, Taken};
use crate::time::Time;

/// Who only waits for its turn asks after so many times the usual patience.
const TURN_PATIENCE: u64 = 4;
/// The receiver takes an unused grant back after so many leases: the sender's own clock has then run out for long.
pub const TAKE_BACK_LEASES: u64 = 2;
/// Nor is who speaks expected any more to send what it was asked for after so many: enough for repetitions that are lost, too.
pub const IN_VAIN_LEASES: u64 = 8;
/// Doublings of a timer: more would only overflow.
const MOST_DOUBLINGS: u32 = 10;
/// A repeated STATE comes up to this part of its time sooner, at random: those who fell silent in one moment do not go on asking in one.
const STATE_JITTER: u64 = 8;
/// An association ends when the lowest missing number has been asked for so often, the peer having been heard between any two of them: on a path that loses nine
/// packets of ten, one of 40,000 would be hit ...
pub const MOST_ASKED_IN_VAIN: u32 = 100;
/// ... and for so many times `give_up`.
pub const IN_VAIN_GIVE_UPS: u64 = 2;

/// A number is asked for again after so many of the least round trips, or `timer_max`, at the latest ...
const AGAIN_ROUND_TRIPS: u64 = 2;
/// ... or so many times what all that is granted takes on a slow line: its port may be as full of what nobody granted.
const AGAIN_DRAINS: u64 = 2;

/// Who owes an answer for so many times the patience with one is doubted. By then it has been asked six times, after one, three, seven ... of them, so that it is neither loss nor a busy machine: who
/// is doubted and is there has to share what room there is with those that are not. The kernel knows a host that goes off for some seconds more, and queues nothing for it until then.
const DOUBT_PATIENCES: u64 = 64;

/// A time in which the own link took nothing counts as silence of the peer for so long at most: what left before could be answered. A buffer that hosts which are off keep full has room for some of each every 3 s, for
/// which the kernel asks for them, and they are to be given up as soon as others ...
const HELD_UP_NS: u64 = 3_500_000_000;
/// ... but for no longer than this part of `give_up`, as what left before may have been lost ...
const HELD_UP_MOST_SHARE: u64 = 2;
/// ... and for no less than this: four questions are enough.
const HELD_UP_LEAST_SHARE: u64 = 4;
/// An association ends when the own link has taken nothing of it for so many times `give_up` while something was undelivered: by default time enough for a card that hangs, whose driver resets it after some 5 s,
/// and for the line to be there again.
pub const HELD_UP_GIVE_UPS: u64 = 4;

/// When the oldest packet has been sent again so often, STATE is sent besides, however much is heard of the peer: that may hear of this end only what is too long for the path.
const MOST_UNHEARD: u32 = 8;

/// How long the lowest missing number has been asked for, of a peer that is heard, and has not come.
#[derive(Clone, Copy, Debug)]
pub struct InVain {
    number: u64,
    /// When it was asked for first.
    first_at: Time,
    /// Since when it has not come, either.
    since: Time,
    /// Requests before each of which the peer was heard since the last.
    times: u32,
    last_at: Time,
    /// Since when some of the numbers below `all_below`, all that were missing then, have been asked for: one that comes now and then is not what is waited for.
    all_since: Time,
    all_below: u64,
    /// How long all that flew then took to arrive.
    all_take_ns: u64,
}

impl InVain {
    fn new(number: u64, next: u64, all_take_ns: u64, now: Time) -> InVain {
        InVain {
            number,
            first_at: now,
            since: now,
            times: 0,
            last_at: now,
            all_since: now,
            all_below: next,
            all_take_ns,
        }
    }

    /// Another number is the lowest one now.
    fn go_on(&mut self, number: u64, next: u64, all_take_ns: u64, now: Time) {
        let before = *self;
        *self = InVain::new(number, next, all_take_ns, now);
        if before.lacks(number) {
            let InVain { all_since, all_below, all_take_ns, .. } = before;
            *self = InVain { all_since, all_below, all_take_ns, ..*self };
        }
    }

    /// Whether some of the numbers that were missing are, if `lowest` is the lowest that is.
    fn lacks(&self, lowest: u64) -> bool {
        (lowest.wrapping_sub(self.all_below) as i64) < 0
    }
}

/// How long all that flies takes to arrive. On a slow line that is longer than the time after which each is asked for again.
fn all_take_ns(config: &Config, drain: Drain) -> u64 {
    drain.ns.min(config.timer_max_ns / 2).max(drain.slow_ns)
}

impl Association {
    /// When an unused grant goes back: what was used in time may stand behind all that is granted, in a port that lets it out since `moves_at`.
    pub fn take_back_at(&self, config: &Config, moves_at: Time, drain: impl FnOnce() -> Drain) -> Option<Time> {
        (self.outstanding_packets() > 0).then(|| {
            let drain = drain();
            let arrives_in_ns = drain.ns.min(self.longest_ns(config, drain));
            let used_by = self.granted_at.max(self.arrived_at).after(TAKE_BACK_LEASES * self.lease.lasts_ns());
            used_by.max(moves_at).after(arrives_in_ns)
        })
    }

    /// When a sender is not expected any more to send what it was asked for, as it says nothing, or does not send it.
    pub fn asked_back_at(&self, config: &Config, drain: Drain) -> Time {
        let arrives_in_ns = drain.ns.min(config.timer_max_ns / 2);
        let lasts_ns = self.lease.lasts_ns();
        let silent_at = self.heard_at.after(TAKE_BACK_LEASES * lasts_ns + arrives_in_ns);
        let lacks_some = |in_vain: &&InVain| self.received.missing() > 0 && in_vain.lacks(self.received.base());
        let in_vain_at = |in_vain: &InVain| {
            let all_take_ns = in_vain.all_take_ns.max(all_take_ns(config, drain));
            in_vain.all_since.after(self.lease.many_ns(IN_VAIN_LEASES) + all_take_ns)
        };
        self.in_vain.as_deref().filter(lacks_some).map_or(silent_at, |in_vain| silent_at.min(in_vain_at(in_vain)))
    }

    /// When the sender asks whether its data arrived, or for credit.
    pub fn state_due_at(&self, config: &Config) -> Option<Time> {
        let quiet_at = self.quiet_due_at(config)?;
        // Credit is said once, and may be lost whatever else is heard of the peer.
        Some(quiet_at.min(self.question_due_at(self.blocked_since, self.want_doublings, config)))
    }

    /// The same for who hears nothing of the peer.
    fn quiet_due_at(&self, config: &Config) -> Option<Time> {
        let heard_at = if self.sent.oldest_again() < MOST_UNHEARD { self.heard_at } else { Time::ZERO };
        let is_waiting = self.has_undelivered();
        is_waiting.then(|| self.question_due_at(self.waiting_since.max(heard_at), self.state_doublings, config))
    }

    /// It is due.
    pub fn ask_by_state(&mut self, jitter: u16, config: &Config, now: Time) {
        let is_quiet = self.quiet_due_at(config).is_some_and(|at| at <= now);
        self.state_doublings = self.state_doublings.saturating_add(u8::from(is_quiet));
        self.want_doublings = self.want_doublings.saturating_add(1);
        (self.state_due, self.state_at, self.state_jitter) = (true, now, jitter);
    }

    /// When to ask what has waited for an answer since then, and was asked so often.
    fn question_due_at(&self, since: Time, doublings: u8, config: &Config) -> Time {
        // Among many senders a turn takes long, and the receiver asks for what it granted and does not see. Where there are several paths the question is also
        // how a dead one is found out.
        let is_in_line = !self.round.is_empty() && self.routes.is_none();
        let patience_ns = self.rtt.patience_ns().max(config.state_min_ns) * if is_in_line { TURN_PATIENCE } else { 1 };
        let timeout = (patience_ns << u32::from(doublings).min(MOST_DOUBLINGS)).min(config.timer_max_ns);
        // The first one comes exactly when it was promised.
        let jitter = if doublings > 0 { u64::from(self.state_jitter) } else { 0 };
        let timeout = timeout - ((timeout / STATE_JITTER * jitter) >> u16::BITS);
        since.max(self.state_at).after(timeout)
    }

    /// Whether the receiver waits for something to come: what it misses, or has granted and never seen.
    fn is_expecting(&self, config: &Config) -> bool {
        // A busy period whose sender has nothing more to send, and that is not over, has lost its end; and so has one, with `gate = esp`, whose sender needs no grant.
        let may_send = || match config.gate_mode {
            GateMode::Grants => false,
            GateMode::Esp => (self.esp_limit(config).wrapping_sub(self.received.next()) as i64) > 0,
        };
        let lacks_end = self.peer_busy && (self.peer_backlog == 0 || may_send());
        self.received.missing() > 0 || self.outstanding_packets() > 0 || lacks_end
    }

    /// When the receiver asks for that.
    pub fn request_due_at(&self, config: &Config, drain: impl FnOnce() -> Drain) -> Option<Time> {
        // What has waited for the link since the last time has not been asked for yet, and leaves as soon as there is room.
        let waits_for_link = self.ask_beyond.is_some() && self.queued_in.is_some();
        if waits_for_link || !self.is_expecting(config) {
            return None;
        }
        let drain = drain();
        let patience = (self.rtt.patience_ns() + drain.ns).max(config.request_min_ns);
        let timeout =
            (patience << u32::from(self.request_doublings).min(MOST_DOUBLINGS)).min(self.longest_ns(config, drain));
        Some(self.arrived_at.max(self.granted_at).max(self.request_at).after(timeout))
    }

    /// Whether it has something to ask for now.
    pub fn asks(&self, now: Time) -> bool {
        self.ask_beyond.is_some() || self.ask_at.is_some_and(|at| at <= now)
    }

    /// Whether its window is so wide that it is not looked through for gaps before their time.
    pub fn rests_from_looking(&self, now: Time) -> bool {
        self.received.is_wide() && self.ask_at.is_some_and(|at| at > now)
    }

    /// Whether what is sent over `path` now may be for a host that is off. `awake_at`: since when this end has looked in time.
    pub fn presence(&self, path: &Path, config: &Config, awake_at: Time, now: Time) -> Presence {
        let is_doubtful =
            self.is_silent(config, awake_at, now) || self.routes.as_ref().is_some_and(|routes| !routes.is_good(path));
        if is_doubtful { Presence::Silent } else { Presence::Heard }
    }

    /// Whether the peer owes an answer, and has for long.
    fn is_silent(&self, config: &Config, awake_at: Time, now: Time) -> bool {
        let long_ns = DOUBT_PATIENCES * self.question_ns(config);
        // Mostly the peer has just been heard.
        if now.since(self.heard_at.max(awake_at)) < long_ns {
            return false;
        }
        // A PIN comes after long silence.
        let asks = self.pin_due || self.pin_at > self.heard_at || self.is_expecting(config);
        asks || self.has_undelivered() && now.since(self.silent_since(awake_at)) >= long_ns
    }

    /// What is to be sent waits for the link.
    pub fn note_held_up(&mut self, now: Time) {
        self.held_up_since = self.held_up_since.min(now);
        self.link_refused = true;
    }

    /// What the link did with what it was offered.
    pub fn note_link_did(&mut self, taken: Taken, awake_at: Time, now: Time, config: &Config) {
        if taken.packets == 0 {
            self.note_held_up(now);
        } else if taken.packets == taken.discarded {
            self.held_up_since = self.held_up_since.min(now);
        } else if self.held_up_since < Time::MAX {
            let excused_ns = self.excused_ns(awake_at, now, config);
            if excused_ns > 0 {
                self.waiting_since = self.silent_since(awake_at).after(excused_ns);
            }
            (self.held_up_since, self.link_refused) = (Time::MAX, false);
        }
    }

    /// Since when the peer has been silent while something was undelivered.
    fn silent_since(&self, awake_at: Time) -> Time {
        self.heard_at.max(self.waiting_since).max(awake_at)
    }

    /// Of that time, the one in which the link took nothing, and that does not count.
    fn excused_ns(&self, awake_at: Time, now: Time, config: &Config) -> u64 {
        let held_up_ns = now.since(self.held_up_since.max(self.silent_since(awake_at)));
        let give_up_ns = config.give_up_ns;
        let counts_ns = HELD_UP_NS.clamp(give_up_ns / HELD_UP_LEAST_SHARE, give_up_ns / HELD_UP_MOST_SHARE);
        held_up_ns.saturating_sub(counts_ns)
    }

    /// What ends the association if the peer has been silent for too long, or the own link has.
    pub fn ended_by_silence(&self, awake_at: Time, now: Time, config: &Config) -> Option<ErrorCode> {
        let lasts_ns = |since: Time| now.since(since.max(awake_at));
        if self.has_undelivered() {
            if lasts_ns(self.held_up_since.max(self.waiting_since)) >= HELD_UP_GIVE_UPS * config.give_up_ns {
                // What has room apart for few is full where many are gone: that is no fault of the link.
                return Some(if self.link_refused { ErrorCode::LinkFull } else { ErrorCode::Timeout });
            }
            let silent_ns = now.since(self.silent_since(awake_at));
            if silent_ns - self.excused_ns(awake_at, now, config) >= config.give_up_ns {
                return Some(ErrorCode::Timeout);
            }
        }
        (lasts_ns(self.heard_at) >= config.idle_limit_ns).then_some(ErrorCode::Timeout)
    }

    /// The lowest missing number has been asked for.
    pub fn note_asked(&mut self, config: &Config, drain: Drain, now: Time) {
        let (number, next) = (self.received.base(), self.received.next());
        let all_take_ns = all_take_ns(config, drain);
        match &mut self.in_vain {
            Some(in_vain) if in_vain.number == number => {
                if self.heard_at > in_vain.last_at {
                    in_vain.times += 1;
                    in_vain.last_at = now;
                }
            }
            Some(in_vain) => in_vain.go_on(number, next, all_take_ns, now),
            None => self.in_vain = Some(Box::new(InVain::new(number, next, all_take_ns, now))),
        }
    }

    /// A number came and could not be kept: that the path does not bear it is not said; nor, if memory `is_short` and it is not its sender's doing, that this leaves unused what it was granted.
    /// The next one is asked for again `spacing_ns` later than this one.
    pub fn note_no_memory(&mut self, number: u64, is_short: bool, spacing_ns: u64, now: Time) {
        let is_granted = number.wrapping_sub(self.received.next()) < self.outstanding_packets();
        let shortage = self.shortage.get_or_insert_default();
        if is_short && is_granted {
            shortage.dropped_at = now;
        }
        shortage.again_at = shortage.again_at.max(now).after(spacing_ns);
        self.received.put_off(number, shortage.again_at);
        if let Some(in_vain) = self.in_vain.as_mut().filter(|in_vain| in_vain.number == number) {
            (in_vain.since, in_vain.times) = (now, 0);
        }
    }

    /// What is known of the lowest missing number if it has been asked for.
    fn lowest_in_vain(&self) -> Option<&InVain> {
        self.in_vain.as_deref().filter(|in_vain| self.received.missing() > 0 && in_vain.number == self.received.base())
    }

    /// For how long the lowest missing number has been asked for.
    pub fn in_vain_ns(&self, now: Time) -> u64 {
        self.lowest_in_vain().map_or(0, |in_vain| now.since(in_vain.first_at))
    }

    /// Whether the path does not bear what the peer sends.
    pub fn is_in_vain(&self, awake_at: Time, now: Time, give_up_ns: u64) -> bool {
        self.lowest_in_vain().is_some_and(|in_vain| {
            let lasts_ns = now.since(in_vain.since.max(awake_at));
            in_vain.times >= MOST_ASKED_IN_VAIN && lasts_ns >= IN_VAIN_GIVE_UPS * give_up_ns
        })
    }

    /// How long a number that was sent may be under way, over any path, before it counts as lost.
    pub fn late_ns(&self, config: &Config) -> u64 {
        self.rtt.patience_ns().max(config.request_min_ns)
    }

    /// How long to wait before a number is asked for again. A process that was stopped while it connected takes that time for a round trip; the least of all is none of these for long, and
    /// before that is over no repetition can be there.
    pub fn again_ns(&self, config: &Config, drain: Drain) -> u64 {
        // The slow line may be another sender's, on its way here, and what is short stands behind none of that.
        let behind_ns = if self.is_in_line() { drain.slow_ns } else { 0 };
        (self.late_ns(config) + behind_ns).min(self.longest_ns(config, drain))
    }

    /// The longest that something is waited for before it is asked for.
    fn longest_ns(&self, config: &Config, drain: Drain) -> u64 {
        config.timer_max_ns.max(AGAIN_ROUND_TRIPS * self.rtt.least_ns()).max(AGAIN_DRAINS * drain.slow_ns)
    }

    /// How long an answer over any path may take before somebody asks after it.
    pub fn question_ns(&self, config: &Config) -> u64 {
        self.rtt.patience_ns().max(config.state_min_ns)
    }
}

#[cfg(test)]
mod tests {
    use ropeway_wire::{Id, Type};

    use super::super::Phase;
    use super::*;
    use crate::sent::{NOBODY, Packet};

    const S: u64 = 1_000_000_000;

    fn at(s: u64) -> Time {
        Time::from_nanos((1000 + s) * S)
    }

    fn open() -> Association {
        let (id, path) = (Id::default(), Path([0; Path::BYTES]));
        Association::new(id, path, Phase::Open, (0, 0), 0, &Config::default(), at(0))
    }

    #[test]
    fn who_was_stopped_does_not_doubt_whom_it_waits_for() {
        let mut association = open();
        association.lend(10, at(0));
        let presence = |awake_at| association.presence(&association.path, &Config::default(), awake_at, at(60));
        assert_eq!([Time::ZERO, at(60)].map(presence), [Presence::Silent, Presence::Heard]);
    }

    #[test]
    fn what_was_asked_for_in_vain_before_a_stop_does_not_count() {
        let (config, drain) = (Config::default(), Drain { ns: 1000, slow_ns: 0 });
        let mut association = open();
        association.received.arrive(1, at(0));
        for ms in 1..=u64::from(MOST_ASKED_IN_VAIN) + 1 {
            let now = at(0).after(ms * 1_000_000);
            association.heard_at = now;
            association.note_asked(&config, drain, now);
        }
        let is_in_vain = |awake_at| association.is_in_vain(awake_at, at(60), 10 * S);
        assert_eq!([Time::ZERO, at(39), at(60)].map(is_in_vain), [true, true, false]);
    }

    #[test]
    fn who_fills_one_gap_now_and_then_is_charged_no_longer_than_who_fills_none() {
        let (config, drain) = (Config::default(), Drain { ns: 1000, slow_ns: 0 });
        let mut association = open();
        let lease_ns = association.lease.lasts_ns();
        let is_charged = |association: &Association, now| now < association.asked_back_at(&config, drain);
        let hear = |association: &mut Association, now: Time| {
            association.heard_at = now;
            association.note_asked(&config, drain, now);
        };
        association.received.learn_next(10, at(0));
        // One of ten comes every two leases, and each time one more is missing.
        for number in 0..10 {
            let now = at(0).after(2 * number * lease_ns);
            hear(&mut association, now);
            assert_eq!(is_charged(&association, now), 2 * number <= IN_VAIN_LEASES, "{number}");
            association.received.learn_next(11 + number, now);
            association.received.arrive(number, now);
            association.received.advance(|_| {});
            assert_eq!(is_charged(&association, now), 2 * number <= IN_VAIN_LEASES || number == 9, "{number}");
        }
        // All that were missing at first have come. As many are missing, and it begins anew.
        let now = at(0).after(20 * lease_ns);
        hear(&mut association, now);
        for (leases, is) in [(0, true), (IN_VAIN_LEASES, true), (IN_VAIN_LEASES + 1, false)] {
            association.heard_at = now.after(leases * lease_ns);
            assert_eq!(is_charged(&association, association.heard_at), is, "{leases}");
        }
        // On a slow line that takes as long as all that flies.
        let slow = Drain { ns: S, slow_ns: S };
        assert_eq!(association.asked_back_at(&config, slow), association.heard_at.after(50_000_000 + 2 * lease_ns));
        association.heard_at = at(100);
        assert_eq!(association.asked_back_at(&config, slow), now.after(S + IN_VAIN_LEASES * lease_ns));
        // What flew when they were asked for first, and not only what still does.
        association.received.learn_next(40, now);
        for number in 10..21 {
            association.received.arrive(number, now);
        }
        association.received.advance(|_| {});
        association.note_asked(&config, slow, now);
        assert_eq!(association.asked_back_at(&config, drain), now.after(S + IN_VAIN_LEASES * lease_ns));
    }

    #[test]
    fn of_the_time_in_which_the_link_took_nothing_a_part_counts_as_silence() {
        // Between a quarter and a half of the patience, and 3.5 s if that is between them.
        for (give_up_ns, counts_ns) in [(40 * S, 10 * S), (10 * S, HELD_UP_NS), (4 * S, 2 * S)] {
            let config = Config { give_up_ns, ..Config::default() };
            let mut association = open();
            association.sent.push(Packet::new(Type::Data, NOBODY));
            association.note_held_up(at(0));
            let took_at = at(0).after(2 * give_up_ns);
            assert_eq!(association.ended_by_silence(Time::ZERO, took_at, &config), None);
            association.note_link_did(1.into(), Time::ZERO, took_at, &config);
            let ends_at = took_at.after(give_up_ns - counts_ns);
            let just_before = Time::from_nanos(ends_at.as_nanos() - 1);
            let ends = [just_before, ends_at].map(|now| association.ended_by_silence(Time::ZERO, now, &config));
            assert_eq!(ends, [None, Some(ErrorCode::Timeout)], "{give_up_ns}");
        }
    }
}
