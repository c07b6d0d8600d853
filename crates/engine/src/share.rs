//! The part of the host's receive budget that this process may hand out, where several processes of a host receive over the network (docs/engine.md).

use ropeway_proto::{Endpoint, Time};
use ropeway_shm::board::{Board, Others};
use ropeway_shm::sys::monotonic_ns;

/// The board is written and read this often at most, and only while there is traffic.
const UPDATE_NS: u64 = 500_000;
/// What another process said longer ago counts for nothing: two leases, after which its grants are void too.
const LEASES: u64 = 2;
/// Where there are more processes than quanta they take turns of this length.
const TURN_NS: u64 = 2_000_000;

/// This process's place among those of the host.
#[derive(Debug)]
pub struct Share {
    /// `None`: there is no board here (no `/dev/shm`), and this process takes the whole budget.
    board: Option<Board>,
    updated_at: Option<Time>,
    /// When the turn of this process begins, which may grant nothing until then.
    turn_at: Option<Time>,
}

impl Share {
    pub fn new() -> Share {
        Share { board: Board::open().ok(), updated_at: None, turn_at: None }
    }

    /// Says what this process wants, and takes its share for the time until the next update. Whether it may now grant more than before.
    pub fn update(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        let Some(board) = &self.board else { return false };
        let before = endpoint.gate().budget_bytes();
        // Who is refused everything needs to know until when.
        let is_shut_out = before == 0 && self.turn_at.is_none() && endpoint.gate().is_waited_at();
        if !is_shut_out && self.updated_at.is_some_and(|at| now.since(at) < UPDATE_NS) {
            return false;
        }
        (self.updated_at, self.turn_at) = (Some(now), None);
        let fresh_ns = LEASES * endpoint.config().lease_ns;
        let gate = endpoint.gate();
        board.publish(gate.demand_bytes());
        let others = board.others(fresh_ns);
        // All processes of the host count the same turns.
        let clock_ns = monotonic_ns();
        let (budget, quantum, turn) = (gate.whole_budget_bytes(), gate.quantum_bytes(), clock_ns / TURN_NS);
        let share = share(budget, quantum, &others, turn);
        gate.set_share((!others.demands.is_empty()).then_some(share));
        if share == 0 && gate.is_waited_at() {
            let turns = turns_until_own(budget, quantum, &others, turn);
            self.turn_at = Some(now.after(turns * TURN_NS - clock_ns % TURN_NS));
        }
        gate.budget_bytes() > before
    }

    /// Nothing else may happen until then: somebody waits for a grant, and has said so.
    pub fn turn_at(&self) -> Option<Time> {
        self.turn_at
    }

    /// The turn of this process has come, or it is time to look whether the others have gone.
    pub fn take_turn(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        let is_due = self.turn_at.is_some_and(|at| at <= now);
        if is_due {
            self.updated_at = None;
            let _ = self.update(endpoint, now);
        }
        is_due
    }
}

/// In how many turns this process has its own, where they take turns.
fn turns_until_own(budget: u64, quantum: u64, others: &Others, turn: u64) -> u64 {
    let rounds = rounds(budget, quantum, others);
    rounds - (others.before + turn) % rounds
}

/// How many turns it takes until everybody has had one.
fn rounds(budget: u64, quantum: u64, others: &Others) -> u64 {
    (others.demands.len() as u64 + 1).div_ceil((budget / quantum.max(1)).max(1))
}

/// Everybody may have an equal part, and of what others do not want of theirs an equal part again. Never less than a quantum: where there are more processes than
/// quanta they have one by turns.
fn share(budget: u64, quantum: u64, others: &Others, turn: u64) -> u64 {
    let count = others.demands.len() as u64 + 1;
    if budget / count < quantum {
        return if (others.before + turn).is_multiple_of(rounds(budget, quantum, others)) { quantum } else { 0 };
    }
    // Who wants less than an equal part of what is left gets that; we want all we can get, so we are served last.
    let mut demands = others.demands.clone();
    demands.sort_unstable();
    let (mut left, mut sharers) = (budget, count);
    for demand in demands {
        left -= demand.min(left.div_ceil(sharers));
        sharers -= 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of processes that want so much each, and know it of each other.
    fn shares(budget: u64, quantum: u64, demands: &[u64], turn: u64) -> Vec<u64> {
        let others = |own: usize| {
            let mut demands = demands.to_vec();
            demands.remove(own);
            Others { demands, before: own as u64 }
        };
        (0..demands.len()).map(|own| share(budget, quantum, &others(own), turn)).collect()
    }

    #[test]
    fn what_is_used_never_exceeds_the_budget() {
        for demands in [vec![1000, 1000], vec![10, 1000], vec![10, 10], vec![1000, 1000, 1000], vec![5, 700, 1000, 20]]
        {
            let shares = shares(900, 12, &demands, 0);
            let used: u64 = shares.iter().zip(&demands).map(|(share, demand)| share.min(demand)).sum();
            assert!(used <= 900, "{demands:?} {shares:?}");
        }
        assert_eq!(shares(900, 12, &[1000, 1000], 0), [450, 450]);
        assert_eq!(shares(900, 12, &[10, 1000], 0)[1], 890, "what the other does not want");
    }

    #[test]
    fn who_has_no_turn_knows_when_it_comes() {
        for (own, turn) in (0..20).flat_map(|own| (0..30).map(move |turn| (own, turn))) {
            let others = Others { demands: vec![1000; 19], before: own };
            if share(90, 12, &others, turn) == 0 {
                let next = turn + turns_until_own(90, 12, &others, turn);
                assert!(
                    (turn + 1..next).all(|turn| share(90, 12, &others, turn) == 0) && share(90, 12, &others, next) > 0
                );
            }
        }
    }

    #[test]
    fn more_processes_than_quanta_take_turns_and_nobody_is_left_out() {
        let demands = vec![1000; 20];
        let mut had = vec![0; 20];
        for turn in 0..30 {
            let shares = shares(90, 12, &demands, turn);
            assert!(shares.iter().sum::<u64>() <= 90, "{shares:?}");
            had.iter_mut().zip(&shares).for_each(|(had, share)| *had += share);
        }
        assert!(had.iter().all(|&bytes| bytes == had[0] && bytes > 0), "{had:?}");
    }
}
