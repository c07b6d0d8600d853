//! Requests and responses: rank 0 answers, all others ask.
//!
//! * Closed loop: a client has `outstanding` requests under way, and sends the next one with each answer. Measured is the round trip of each.
//! * Open loop: requests are due at a fixed rate, whether or not earlier ones were answered, as they are where many users ask who know nothing of each other. The response is measured from the moment at which
//!   the request was due. A server that stalls makes the requests of its pause wait, and all of that is in the figures; a closed loop would just have asked less ("coordinated omission").

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Trial, flow, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// How long a client of an open loop computes between two looks for answers: a fraction of any network's latency.
const LOOK_NS: u64 = 200;

/// What the clients do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests of a step, for each client.
    pub messages: u32,
    /// Bytes of an answer.
    pub answer: usize,
    pub pace: Pace,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// So many requests of a client are under way.
    Outstanding(u32),
    /// So many requests of a client are due in a second.
    Rate(f64),
}

impl Pace {
    /// What each request gives.
    pub fn metric(self) -> Metric {
        match self {
            Pace::Outstanding(_) => Metric::RoundTrip,
            Pace::Rate(_) => Metric::Response,
        }
    }
}

pub fn run(transport: &mut dyn Transport, trial: &Trial, load: Load) -> Result<Vec<Series>, Failure> {
    let mut request = vec![0; trial.size];
    let mut answer = vec![0; load.answer];
    let (mut taken_ns, mut rate, mut loss) = (Vec::new(), Vec::new(), Vec::new());
    rounds::each(transport, trial, load.messages as usize, |transport, round| {
        let first = round.number * u64::from(load.messages);
        if transport.rank() == 0 {
            return serve(transport, [&mut request, &mut answer], first, load.messages);
        }
        let start_ns = transport.now_ns();
        let mut client = Client::new(first, load.messages);
        match load.pace {
            Pace::Outstanding(most) => client.closed(transport, [&mut request, &mut answer], u64::from(most.max(1)))?,
            Pace::Rate(per_s) => client.open(transport, [&mut request, &mut answer], 1e9 / per_s)?,
        }
        if round.counted {
            let answered = client.taken_ns.len() as u64;
            rate.push(flow::rate(answered, client.done_ns.saturating_sub(start_ns)));
            loss.push(1.0 - answered as f64 / f64::from(load.messages));
            taken_ns.append(&mut client.taken_ns);
        }
        Ok(())
    })?;
    let loss = super::unless(transport.is_reliable(), loss);
    Ok(super::series([(load.pace.metric(), taken_ns), (Metric::MessageRate, rate), (Metric::Loss, loss)]))
}

/// Answers every client in turn, until each has asked its last, or all are quiet.
fn serve(
    transport: &mut dyn Transport,
    [request, answer]: [&mut [u8]; 2],
    first: u64,
    messages: u32,
) -> Result<(), Failure> {
    let end = first + u64::from(messages);
    let mut next = vec![first; transport.ranks()];
    next[0] = end;
    let (mut open, mut quiets) = (next.len() - 1, 0);
    while open > 0 && quiets < message::QUIETS {
        let Some(from) = transport.wait_any()? else {
            quiets += 1;
            continue;
        };
        if next[from] == end {
            message::pass_over(transport, from)?;
            continue;
        }
        let Some(number) = message::take(transport, from, request, next[from])? else { continue };
        message::send(transport, from, answer, number)?;
        quiets = 0;
        next[from] = number + 1;
        open -= usize::from(next[from] >= end);
    }
    Ok(())
}

/// A client's step.
struct Client {
    /// The next request to be sent, the next answer to come, and the one after the last.
    sent: u64,
    next: u64,
    end: u64,
    /// When each request that is under way was sent, or due.
    since_ns: VecDeque<u64>,
    taken_ns: Vec<f64>,
    /// When the last answer came or, of an open loop, the step was over, if that was later.
    done_ns: u64,
}

impl Client {
    fn new(first: u64, messages: u32) -> Client {
        let (since_ns, taken_ns) = (VecDeque::new(), Vec::with_capacity(messages as usize));
        Client { sent: first, next: first, end: first + u64::from(messages), since_ns, taken_ns, done_ns: 0 }
    }

    fn closed(
        &mut self,
        transport: &mut dyn Transport,
        [request, answer]: [&mut [u8]; 2],
        outstanding: u64,
    ) -> Result<(), Failure> {
        while self.next < self.end {
            while self.sent < self.end && self.sent - self.next < outstanding {
                self.since_ns.push_back(transport.now_ns());
                message::send(transport, 0, request, self.sent)?;
                self.sent += 1;
            }
            match message::receive(transport, 0, answer, self.next)? {
                Some(number) => self.answered(number, transport.now_ns())?,
                None => self.give_up(),
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        transport: &mut dyn Transport,
        [request, answer]: [&mut [u8]; 2],
        interval_ns: f64,
    ) -> Result<(), Failure> {
        let (first, start_ns) = (self.sent, transport.now_ns());
        let due_ns = |number: u64| start_ns.saturating_add(((number - first) as f64 * interval_ns) as u64);
        while self.next < self.end {
            let now_ns = transport.now_ns();
            if self.sent < self.end && now_ns >= due_ns(self.sent) {
                self.since_ns.push_back(due_ns(self.sent));
                message::send(transport, 0, request, self.sent)?;
                self.sent += 1;
            }
            if self.sent == self.end {
                // Only answers are left to come, so it can wait for them.
                match message::receive(transport, 0, answer, self.next)? {
                    Some(number) => self.answered(number, transport.now_ns())?,
                    None => self.give_up(),
                }
            } else if let Some(number) = message::take(transport, 0, answer, self.next)? {
                self.answered(number, transport.now_ns())?;
            } else {
                transport.compute(due_ns(self.sent).saturating_sub(transport.now_ns()).min(LOOK_NS));
            }
        }
        // The first request of the next step is due an interval after the last one of this.
        let over_ns = due_ns(self.end);
        transport.compute(over_ns.saturating_sub(transport.now_ns()));
        self.done_ns = self.done_ns.max(over_ns);
        Ok(())
    }

    /// Answers come in the order of the requests; what was passed over is lost.
    fn answered(&mut self, number: u64, now_ns: u64) -> Result<(), Failure> {
        if number >= self.sent {
            let what = "the answer is one to a request that was not sent yet";
            return Err(Failure::Damaged { peer: 0, expected: 0, what });
        }
        let lost = (number - self.next) as usize;
        self.since_ns.drain(..lost);
        if let Some(since_ns) = self.since_ns.pop_front() {
            self.taken_ns.push((now_ns - since_ns) as f64);
        }
        (self.next, self.done_ns) = (number + 1, now_ns);
        Ok(())
    }

    /// Nothing came for so long that all that is under way is lost.
    fn give_up(&mut self) {
        self.since_ns.clear();
        self.next = self.sent;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all, check_losses};
    use super::super::{Bound, Pattern};
    use super::*;

    fn pattern(pace: Pace) -> Pattern {
        Pattern::RequestResponse(Load { messages: 50, answer: 16, pace })
    }

    #[test]
    fn every_request_is_answered_whatever_is_outstanding() {
        for outstanding in [1, 7, 100] {
            let measured = all(pattern(Pace::Outstanding(outstanding)), 64, Bound::Samples(100), 3, RELIABLE);
            assert!(measured[0].is_empty());
            for client in &measured[1..] {
                assert_eq!(client.count(Metric::RoundTrip), 100);
                assert_eq!(client.count(Metric::MessageRate), 2);
            }
        }
    }

    #[test]
    fn an_open_loop_does_not_wait_for_answers_and_keeps_its_rate() {
        let measured = all(pattern(Pace::Rate(50_000.0)), 64, Bound::Samples(50), 2, RELIABLE);
        assert_eq!(measured[1].count(Metric::Response), 50);
        let rate = measured[1].values(Metric::MessageRate)[0];
        assert!(rate <= 50_000.0, "{rate} in a second");
    }

    #[test]
    fn steps_of_one_request_keep_the_rate_too() {
        let load = Load { messages: 1, answer: 16, pace: Pace::Rate(200.0) };
        let start = std::time::Instant::now();
        let measured = all(Pattern::RequestResponse(load), 64, Bound::Samples(10), 2, RELIABLE);
        assert_eq!(measured[1].count(Metric::Response), 10);
        assert!(start.elapsed().as_millis() >= 50, "ten intervals of 5 ms: {:?}", start.elapsed());
        let rates = measured[1].values(Metric::MessageRate);
        assert!(rates.iter().all(|rate| *rate <= 200.0), "{rates:?}");
    }

    #[test]
    fn what_is_due_while_the_server_stalls_has_waited_from_then_on() {
        let mut client = Client::new(0, 3);
        client.since_ns.extend([0, 1_000, 2_000]);
        client.sent = 3;
        client.answered(0, 10_000).expect("in order");
        client.answered(2, 10_500).expect("one is lost");
        assert_eq!(client.taken_ns, [10_000.0, 8_500.0]);
        assert_eq!(client.next, 3);
    }

    #[test]
    fn losses_are_counted_in_both_loops() {
        for pace in [Pace::Outstanding(4), Pace::Rate(20_000.0)] {
            check_losses(&all(pattern(pace), 64, Bound::Samples(150), 2, LOSSY), &[1]);
        }
    }
}
