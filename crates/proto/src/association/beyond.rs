//! What is asked for beyond the newest number that has come (docs/protocol.md 5). What is missing below it is in `received`.

use super::Association;
use crate::time::Time;

/// What is asked for beyond the newest number: what was granted, or may have been a busy period's last, and nothing comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// Its first number: whether that was lost, or is late with all the rest, is not known. Where nothing has come for long, a few.
    First,
    /// All of it: the first was lost, and so is what was sent before that was repeated.
    All,
}

/// That has been asked for.
#[derive(Clone, Copy, Debug)]
pub struct AskedBeyond {
    /// The first number that was not.
    pub end: u64,
    pub what: Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// [`Beyond::First`], which has not come: what came last was delayed so long by queues.
    First { queueing_ns: u64 },
    /// [`Beyond::All`], or what is to become that: since then.
    All { at: Time },
}

impl Association {
    /// When everything beyond the newest number was asked for, if it was.
    pub fn asked_all_at(&self) -> Option<Time> {
        let AskedBeyond { end, what: Asked::All { at } } = self.asked_beyond? else { return None };
        (end.wrapping_sub(self.received.next()) as i64 > 0).then_some(at)
    }

    /// A number that was not known to be missing has come, and not as a repetition. If it was asked for with everything beyond the newest one, it had not been sent by then, nor had any behind it.
    pub fn note_original(&mut self, number: u64) {
        if let Some(AskedBeyond { end, what: Asked::All { .. } }) = &mut self.asked_beyond
            && (end.wrapping_sub(number) as i64) > 0
        {
            *end = number;
        }
    }

    /// What is asked for beyond the newest number when nothing comes any more.
    pub fn beyond_due(&self) -> Beyond {
        // Of all that was asked for some has come, and then no more: the rest was lost again. As long as none has, the port may stand still with it.
        let is_lost_again = self.asked_all_at().is_some_and(|at| self.arrived_at > at);
        if is_lost_again { Beyond::All } else { Beyond::First }
    }
}

#[cfg(test)]
mod tests {
    use ropeway_wire::Id;

    use super::super::Phase;
    use super::*;
    use crate::config::Config;
    use crate::endpoint::Path;

    #[test]
    fn what_was_sent_after_everything_was_asked_for_is_not_taken_for_lost_again() {
        let at = |ms: u64| Time::from_nanos(1_000_000_000 + ms * 1_000_000);
        let mut association =
            Association::new(Id::default(), Path([0; Path::BYTES]), Phase::Open, (0, 0), 0, &Config::default(), at(0));
        let arrive = |association: &mut Association, number, ms| {
            association.received.arrive(number, at(ms));
            association.arrived_at = at(ms);
        };
        arrive(&mut association, 0, 0);
        association.asked_beyond = Some(AskedBeyond { end: 16, what: Asked::All { at: at(1) } });
        arrive(&mut association, 1, 2);
        assert_eq!(association.beyond_due(), Beyond::All, "a repetition has come, and then no more");
        arrive(&mut association, 2, 3);
        association.note_original(2);
        arrive(&mut association, 3, 4);
        assert_eq!(association.beyond_due(), Beyond::First);
    }
}
