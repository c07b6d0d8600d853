//! What may fail, and when: an error is right if a fault that leads to it was there, and a bug if none was.

use std::time::Duration;

/// What the programs run with: faults are noticed soon, so that a run sees many of them.
pub const GIVE_UP: Duration = Duration::from_secs(4);
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub const KEEP_ALIVE: Duration = Duration::from_secs(2);
pub const IDLE_LIMIT: Duration = Duration::from_secs(8);

/// A call that gets on by nothing for longer than this hangs: whoever waits for a peer that is gone learns of it within the idle limit, and whoever has something undelivered within the
/// time to give up; what remains is for a machine that is slow, and for faults that follow each other.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// So long after a fault a connection may still end by it: what is stopped may have noticed nothing, and its peer learns of it by the idle limit.
const REACH: Duration = Duration::from_secs(22);

/// Less silence than this, within the reach of a moment, ends nothing: it is far from the time to give up.
const HARMLESS_SILENCE: Duration = Duration::from_millis(2500);

/// What an error of a connection is called that a fault has ended.
const KINDS: &[&str] = &[
    "TimedOut",
    "ConnectionReset",
    "ConnectionRefused",
    "ConnectionAborted",
    "BrokenPipe",
    "NotConnected",
    "HostUnreachable",
    "NetworkUnreachable",
    "NetworkDown",
];

/// Of opening one where transfers have all of `send_memory`.
const NO_MEMORY: &str = "OutOfMemory";

/// What a fault does to the connections of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// They may end.
    Ends,
    /// Nothing is heard of the host for so long.
    Silence,
    /// There may be no memory to open another one from there; those that are open go on, slower.
    Memory,
    /// They go on, slower.
    None,
}

/// A fault that was, or is.
#[derive(Clone, Debug)]
pub struct Past {
    pub host: usize,
    pub harm: Harm,
    pub began_ms: u64,
    /// None while it lasts.
    pub ended_ms: Option<u64>,
}

/// All faults of a run.
#[derive(Debug, Default)]
pub struct History(pub Vec<Past>);

impl History {
    /// Whether a connection of the first of two hosts with the other one may have failed with an error of this kind at a moment.
    pub fn excuses(&self, hosts: [usize; 2], kind: &str, at_ms: u64) -> bool {
        if kind == NO_MEMORY {
            return self.near(&hosts[..1], at_ms).any(|past| past.harm == Harm::Memory);
        }
        KINDS.contains(&kind) && self.may_end(&hosts, at_ms)
    }

    /// The faults of these hosts within reach of a moment.
    fn near(&self, hosts: &[usize], at_ms: u64) -> impl Iterator<Item = &Past> {
        let from_ms = at_ms.saturating_sub(REACH.as_millis() as u64);
        self.0.iter().filter(move |past| {
            hosts.contains(&past.host) && past.began_ms <= at_ms && past.ended_ms.is_none_or(|end| end >= from_ms)
        })
    }

    fn may_end(&self, hosts: &[usize], at_ms: u64) -> bool {
        let mut silence_ms = 0;
        for past in self.near(hosts, at_ms) {
            match past.harm {
                Harm::Ends => return true,
                Harm::Silence => silence_ms += past.ended_ms.unwrap_or(at_ms).min(at_ms) - past.began_ms,
                Harm::Memory | Harm::None => {}
            }
        }
        silence_ms >= HARMLESS_SILENCE.as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(host: usize, harm: Harm, began_ms: u64, ended_ms: u64) -> Past {
        Past { host, harm, began_ms, ended_ms: Some(ended_ms) }
    }

    #[test]
    fn an_error_is_excused_by_a_fault_of_one_of_its_hosts_within_reach() {
        let history = History(vec![past(1, Harm::Ends, 1_000, 1_000)]);
        assert!(history.excuses([1, 2], "TimedOut", 10_000) && history.excuses([2, 1], "TimedOut", 10_000));
        assert!(!history.excuses([2, 3], "TimedOut", 10_000) && !history.excuses([1, 2], "TimedOut", 30_000));
        assert!(!history.excuses([1, 2], "TimedOut", 500), "before the fault");
        assert!(!history.excuses([1, 2], "Wrong", 10_000), "no fault makes bytes wrong");
    }

    #[test]
    fn that_there_is_no_memory_is_excused_where_there_is_little() {
        let history = History(vec![past(1, Harm::Memory, 1_000, 2_000)]);
        assert!(history.excuses([1, 2], NO_MEMORY, 1_500) && !history.excuses([2, 1], NO_MEMORY, 1_500));
        assert!(!history.excuses([1, 2], "TimedOut", 1_500));
    }

    #[test]
    fn short_silences_end_nothing_but_may_add_up() {
        let silences = |ms| History(vec![past(1, Harm::Silence, 0, ms), past(2, Harm::Silence, 5_000, 5_000 + ms)]);
        assert!(!silences(1_000).excuses([1, 2], "TimedOut", 10_000));
        assert!(silences(1_500).excuses([1, 2], "TimedOut", 10_000));
        assert!(!silences(1_500).excuses([1, 3], "TimedOut", 10_000));
    }
}
