//! Requests that are due at given times, whether or not the answers to earlier ones have come (open loop). A client that waits for an answer before it asks again
//! does not ask while the server stalls, and so leaves out just the requests that would have waited longest ("coordinated omission"). Here every request has
//! a due time, and its response time counts from there.

use std::collections::VecDeque;

use crate::random::Random;

/// Due times, and the requests that are under way.
#[derive(Debug, Clone)]
pub struct OpenLoop {
    /// Time between requests, on the mean.
    interval_ns: f64,
    /// Random intervals, as of many clients that know nothing of each other; else equal ones.
    random: Option<Random>,
    next_ns: f64,
    /// Due times of requests that were sent and not answered yet, oldest first.
    sent: VecDeque<u64>,
}

impl OpenLoop {
    /// A request every so many nanoseconds.
    pub fn steady(start_ns: u64, interval_ns: f64) -> OpenLoop {
        OpenLoop { interval_ns, random: None, next_ns: start_ns as f64, sent: VecDeque::new() }
    }

    /// Exponentially distributed times between requests (a Poisson process).
    pub fn poisson(start_ns: u64, interval_ns: f64, seed: u64) -> OpenLoop {
        OpenLoop { random: Some(Random::new(seed)), ..OpenLoop::steady(start_ns, interval_ns) }
    }

    /// When the next request is due: the time to wait for, if nothing is to be received before.
    pub fn next_due_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Whether a request is due by now. The caller sends it (late, if it must) and calls [`OpenLoop::sent`].
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.next_due_ns() <= now_ns
    }

    /// The request that was due next is on its way.
    pub fn sent(&mut self) {
        self.sent.push_back(self.next_due_ns());
        self.next_ns += match &mut self.random {
            Some(random) => random.exponential() * self.interval_ns,
            None => self.interval_ns,
        };
    }

    /// Requests under way.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// The oldest request under way was answered: nanoseconds since it was due. None: nothing was under way.
    pub fn answered(&mut self, now_ns: u64) -> Option<u64> {
        self.sent.pop_front().map(|due| now_ns.saturating_sub(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_seen_by_every_request_that_was_due_in_it() {
        // A server that answers at once, but for a stall from 1,000 to 2,000; requests are due every 100.
        let mut open = OpenLoop::steady(0, 100.0);
        let (mut responses, mut now) = (Vec::new(), 0);
        while now < 3_000 {
            while open.is_due(now) {
                open.sent();
            }
            if !(1_000..2_000).contains(&now) {
                while let Some(response) = open.answered(now) {
                    responses.push(response);
                }
            }
            now += 10;
        }
        assert_eq!(responses.len(), 30);
        // A client that waits for each answer would have seen one slow request; ten were due in the stall.
        assert_eq!(responses.iter().filter(|ns| **ns > 0).count(), 10);
        assert_eq!(responses.iter().max(), Some(&1_000));
    }

    #[test]
    fn random_intervals_have_the_mean_that_was_asked_for() {
        let mut open = OpenLoop::poisson(0, 250.0, 5);
        for _ in 0..10_000 {
            open.sent();
        }
        assert!((open.next_due_ns() as f64 / 10_000.0 / 250.0 - 1.0).abs() < 0.05);
        assert_eq!(open.outstanding(), 10_000);
    }
}
