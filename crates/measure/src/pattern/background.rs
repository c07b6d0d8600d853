//! Latency beside bulk: short messages go to and fro between ranks 0 and 1, first alone, then while bulk flows run.
//!
//! Where the bulk runs: `shared` = 0: between pairs of other ranks (2 to 3, 4 to 5, ...; 4 ranks at least), so that only the network is shared. `shared` = 1: from all other ranks to rank 1, which also answers the short messages; with
//! two ranks rank 0 sends a bulk message before each short one, on the same channel.
//!
//! A bulk flow always has a message under way beside the one that is being taken. Its receiver answers each with a byte that says whether to go on, so that it ends when the short messages have.

use serde::{Deserialize, Serialize};

use super::{Trial, flow, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// Who asks and who answers.
const ASKER: Rank = 0;
const ANSWERER: Rank = 1;

/// Bulk messages have numbers from here on; short ones are below.
const BULK: u64 = 1 << 48;

/// Room for the bulk messages of a step: more than can be sent in a day.
const STEP_BITS: u32 = 24;

/// The bytes that answer a bulk message.
const GO_ON: u8 = 0;
const STOP: u8 = 1;

/// Where messages may be lost: no short message for so long means that there was the last.
const NO_MORE_SHORT_NS: u64 = 1_000_000_000;

/// What the ranks do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// Short messages of a step: so many alone, then as many beside the bulk.
    pub messages: u32,
    /// Bytes of a bulk message.
    pub bytes: usize,
    pub shared: bool,
}

impl Bulk {
    /// Who sends bulk to whom.
    fn flows(&self, ranks: usize) -> Vec<(Rank, Rank)> {
        match self.shared {
            true => (2..ranks).map(|from| (from, ANSWERER)).collect(),
            false => (2..ranks - 1).step_by(2).map(|from| (from, from + 1)).collect(),
        }
    }
}

/// What a rank has in its hands in a step.
struct Step<'a> {
    bulk: &'a Bulk,
    short: &'a mut [u8],
    long: &'a mut [u8],
    round: u64,
    flows: &'a [(Rank, Rank)],
}

impl Step<'_> {
    /// The first short message, of those alone and of those beside the bulk.
    fn first(&self, beside: bool) -> u64 {
        (2 * self.round + u64::from(beside)) * u64::from(self.bulk.messages)
    }

    fn first_bulk(&self) -> u64 {
        BULK + (self.round << STEP_BITS)
    }

    /// Of the words inside the step: another one than that which began it.
    fn word(&self) -> u64 {
        BULK + self.round
    }

    /// With two ranks there is nobody else to send bulk.
    fn is_own(&self) -> bool {
        self.bulk.shared && self.flows.is_empty()
    }

    /// Ranks that take bulk, each once.
    fn takers(&self) -> Vec<Rank> {
        let mut takers: Vec<Rank> = self.flows.iter().map(|flow| flow.1).collect();
        takers.dedup();
        takers
    }
}

pub fn run(transport: &mut dyn Transport, trial: &Trial, bulk: Bulk) -> Result<Vec<Series>, Failure> {
    let (mut short, mut long) = (vec![0; trial.size], vec![0; bulk.bytes]);
    let (mut alone, mut beside, mut goodput, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let flows = bulk.flows(transport.ranks());
    rounds::each(transport, trial, bulk.messages as usize, |transport, round| {
        let mut step = Step { bulk: &bulk, short: &mut short, long: &mut long, round: round.number, flows: &flows };
        let rank = transport.rank();
        match rank {
            ASKER => {
                let mut without = ask(transport, &mut step, false)?;
                transport.barrier()?;
                let mut with = ask_beside(transport, &mut step)?;
                if round.counted {
                    let arrived = without.len() + with.len();
                    lost.push(1.0 - arrived as f64 / f64::from(2 * bulk.messages));
                    alone.append(&mut without);
                    beside.append(&mut with);
                }
                return Ok(());
            }
            ANSWERER => answer(transport, &mut step)?,
            _ => {}
        }
        transport.barrier()?;
        let froms: Vec<Rank> = flows.iter().filter(|flow| flow.1 == rank).map(|flow| flow.0).collect();
        if let Some(&(_, to)) = flows.iter().find(|flow| flow.0 == rank) {
            pour(transport, &mut step, to)?;
        } else if rank == ANSWERER && step.is_own() {
            goodput.extend(answer_after_bulk(transport, &mut step)?.filter(|_| round.counted));
        } else if rank == ANSWERER || !froms.is_empty() {
            goodput.extend(drain(transport, &mut step, &froms)?.filter(|_| round.counted));
        }
        Ok(())
    })?;
    let lost = super::unless(transport.is_reliable(), lost);
    Ok(super::series([
        (Metric::OneWay, alone),
        (Metric::LoadedOneWay, beside),
        (Metric::Goodput, goodput),
        (Metric::Loss, lost),
    ]))
}

fn ask_beside(transport: &mut dyn Transport, step: &mut Step<'_>) -> Result<Vec<f64>, Failure> {
    // Each who takes bulk says so when all its flows run.
    step.takers().into_iter().try_for_each(|taker| message::hear(transport, taker, step.word()).map(drop))?;
    let taken = ask(transport, step, true)?;
    let mut others = step.takers();
    // It knows by itself.
    others.retain(|taker| *taker != ANSWERER);
    others.into_iter().try_for_each(|taker| message::tell(transport, taker, step.word(), 0))?;
    Ok(taken)
}

/// Half of each round trip in nanoseconds; what was lost has none.
fn ask(transport: &mut dyn Transport, step: &mut Step<'_>, beside: bool) -> Result<Vec<f64>, Failure> {
    let first = step.first(beside);
    let mut halves = Vec::with_capacity(step.bulk.messages as usize);
    for number in first..first + u64::from(step.bulk.messages) {
        if beside && step.is_own() {
            message::send(transport, ANSWERER, step.long, BULK + number)?;
        }
        let since_ns = transport.now_ns();
        message::send(transport, ANSWERER, step.short, number)?;
        if message::receive(transport, ANSWERER, step.short, number)?.is_some() {
            halves.push((transport.now_ns() - since_ns) as f64 / 2.0);
        }
    }
    Ok(halves)
}

/// Answers the short messages that come alone.
fn answer(transport: &mut dyn Transport, step: &mut Step<'_>) -> Result<(), Failure> {
    let end = step.first(true);
    let (mut next, mut quiets) = (step.first(false), 0);
    while next < end && quiets < message::QUIETS {
        match message::receive(transport, ASKER, step.short, next)? {
            Some(number) => {
                message::send(transport, ASKER, step.short, number)?;
                (next, quiets) = (number + 1, 0);
            }
            None => quiets += 1,
        }
    }
    Ok(())
}

/// Takes a bulk message before each short one, and gives the rate of the bulk.
fn answer_after_bulk(transport: &mut dyn Transport, step: &mut Step<'_>) -> Result<Option<f64>, Failure> {
    let first = step.first(true);
    let end = first + u64::from(step.bulk.messages);
    let start_ns = transport.now_ns();
    let (mut next, mut arrived, mut last_ns, mut quiets) = (first, 0, start_ns, 0);
    while next < end && quiets < message::QUIETS {
        let Some(bulk) = message::receive(transport, ASKER, step.long, BULK + next)? else {
            quiets += 1;
            continue;
        };
        (arrived, last_ns, quiets) = (arrived + 1, transport.now_ns(), 0);
        next = bulk - BULK;
        if let Some(number) = message::receive(transport, ASKER, step.short, next)? {
            message::send(transport, ASKER, step.short, number)?;
            next = next.max(number);
        }
        next += 1;
    }
    let goodput = flow::rate(arrived * step.long.len() as u64, last_ns - start_ns);
    Ok((arrived > 0).then_some(goodput))
}

/// Sends bulk until its receiver says stop.
fn pour(transport: &mut dyn Transport, step: &mut Step<'_>, to: Rank) -> Result<(), Failure> {
    let mut quiets = 0;
    let mut number = step.first_bulk();
    message::send(transport, to, step.long, number)?;
    while quiets < message::QUIETS {
        number += 1;
        message::send(transport, to, step.long, number)?;
        match verdict(transport, to)? {
            Some(STOP) => break,
            Some(_) => quiets = 0,
            None => quiets += 1,
        }
    }
    Ok(())
}

/// The next answer to a bulk message, if it was not lost.
fn verdict(transport: &mut dyn Transport, from: Rank) -> Result<Option<u8>, Failure> {
    let mut answer = [GO_ON];
    loop {
        match transport.receive(from, &mut answer) {
            Ok(arrived) => return Ok(arrived.then_some(answer[0])),
            Err(Failure::Damaged { .. }) if !transport.is_reliable() => {}
            Err(error) => return Err(error),
        }
    }
}

/// The receiver's side of a bulk flow.
struct Flow {
    from: Rank,
    next: u64,
    arrived: u64,
    /// It was told to stop; one message is still under way then.
    is_stopped: bool,
    is_over: bool,
}

/// Takes bulk, and answers short messages in rank 1, whichever comes; gives the rate of the bulk.
fn drain(transport: &mut dyn Transport, step: &mut Step<'_>, froms: &[Rank]) -> Result<Option<f64>, Failure> {
    let next = step.first_bulk();
    let flow = |from: &Rank| Flow { from: *from, next, arrived: 0, is_stopped: false, is_over: false };
    let mut flows: Vec<Flow> = froms.iter().map(flow).collect();
    let start_ns = transport.now_ns();
    let mut short = Short { next: step.first(true), end: step.first(true), since_ns: start_ns };
    let is_answerer = transport.rank() == ANSWERER;
    if is_answerer {
        short.end += u64::from(step.bulk.messages);
    }
    let (mut last_ns, mut quiets, mut runs, mut told) = (start_ns, 0, flows.is_empty(), false);
    while (short.next < short.end || flows.iter().any(|flow| !flow.is_over)) && quiets < message::QUIETS {
        let Some(from) = transport.wait_any()? else {
            quiets += 1;
            continue;
        };
        if from == ASKER && is_answerer && short.next < short.end {
            if short.answer(transport, step)? {
                quiets = 0;
            }
            continue;
        }
        if from == ASKER && !is_answerer && !told {
            told = message::has_heard(transport, ASKER, step.word())?;
            continue;
        }
        let Some(flow) = flows.iter_mut().find(|flow| flow.from == from && !flow.is_over) else {
            message::pass_over(transport, from)?;
            continue;
        };
        let Some(number) = message::take(transport, from, step.long, flow.next)? else { continue };
        let now_ns = transport.now_ns();
        (last_ns, quiets) = (now_ns, 0);
        (flow.next, flow.arrived) = (number + 1, flow.arrived + 1);
        let was_stopped = flow.is_stopped;
        flow.is_stopped = match is_answerer {
            true => was_stopped || runs && short.is_over(transport.is_reliable(), now_ns),
            false => told,
        };
        match was_stopped {
            false => transport.send(from, &[if flow.is_stopped { STOP } else { GO_ON }])?,
            true => flow.is_over = true,
        }
        if !runs && flows.iter().all(|flow| flow.arrived > 0) {
            runs = true;
            message::tell(transport, ASKER, step.word(), 0)?;
            short.since_ns = transport.now_ns();
        }
    }
    let arrived: u64 = flows.iter().map(|flow| flow.arrived).sum();
    Ok((arrived > 0).then(|| flow::rate(arrived * step.long.len() as u64, last_ns - start_ns)))
}

/// The short messages that rank 1 answers beside the bulk.
struct Short {
    next: u64,
    end: u64,
    /// When the last one came.
    since_ns: u64,
}

impl Short {
    fn answer(&mut self, transport: &mut dyn Transport, step: &mut Step<'_>) -> Result<bool, Failure> {
        let Some(number) = message::take(transport, ASKER, step.short, self.next)? else { return Ok(false) };
        message::send(transport, ASKER, step.short, number)?;
        (self.next, self.since_ns) = (number + 1, transport.now_ns());
        Ok(true)
    }

    fn is_over(&self, is_reliable: bool, now_ns: u64) -> bool {
        self.next >= self.end || !is_reliable && now_ns - self.since_ns > NO_MORE_SHORT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use super::*;

    fn pattern(shared: bool) -> Pattern {
        Pattern::Background(Bulk { messages: 20, bytes: 5000, shared })
    }

    #[test]
    fn short_messages_are_measured_alone_and_beside_bulk() {
        for (shared, ranks, takers) in
            [(true, 2, vec![1]), (true, 4, vec![1]), (false, 4, vec![3]), (false, 7, vec![3, 5])]
        {
            let measured = all(pattern(shared), 8, Bound::Samples(40), ranks, RELIABLE);
            assert_eq!((measured[0].count(Metric::OneWay), measured[0].count(Metric::LoadedOneWay)), (40, 40));
            for (rank, of_rank) in measured.iter().enumerate() {
                let expected = if takers.contains(&rank) { 2 } else { 0 };
                assert_eq!(of_rank.count(Metric::Goodput), expected, "rank {rank} of {ranks}, shared: {shared}");
            }
        }
    }

    #[test]
    fn it_ends_although_messages_are_lost() {
        for (shared, ranks) in [(true, 2), (true, 3), (false, 4)] {
            let measured = all(pattern(shared), 8, Bound::Samples(20), ranks, LOSSY);
            let lost = measured[0].values(Metric::Loss);
            assert!(lost.iter().all(|part| *part > 0.0 && *part < 1.0), "{lost:?}");
        }
    }

    #[test]
    fn flows_are_where_the_manual_says() {
        let flows = |shared, ranks| Bulk { messages: 1, bytes: 1, shared }.flows(ranks);
        assert_eq!(flows(false, 7), [(2, 3), (4, 5)]);
        assert_eq!(flows(true, 4), [(2, 1), (3, 1)]);
        assert!(flows(true, 2).is_empty());
    }
}
