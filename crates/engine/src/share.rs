//! The part of the host's receive budget that this process may hand out, where several processes of a host receive over the network (docs/engine.md).

use ropeway_proto::{Endpoint, Time};
use ropeway_shm::board::{Board, Others, Word, faded};

/// A process that is busy says what it wants and takes its part so often.
const UPDATE_NS: u64 = 500_000;
/// Who has less than its part, and could use more, so often.
const LOOK_NS: u64 = 100_000;
/// Where there are more processes than packets in the budget they take turns of this length.
const TURN_NS: u64 = 2_000_000;

/// So often it is seen to that the board is the one that others find who begin now.
const REOPEN_NS: u64 = 1_000_000_000;

/// This process's place among those of the host.
#[derive(Debug)]
pub struct Share {
    /// `None`: there is no board here (no `/dev/shm`), and this process takes the whole budget.
    board: Option<Board>,
    /// When that was last seen to.
    found_at: Time,
    said_at: Option<Time>,
    /// For so long after that this process may grant.
    lease_ns: u64,
    /// Not before this is the board looked at again, unless somebody waits in vain.
    next_at: Time,
    /// Somebody does, and then the board is looked at, whatever else happens.
    look_at: Option<Time>,
    /// What this process wants: what it has said, fading.
    demand_bytes: u64,
    /// Its part of the budget.
    part_bytes: u64,
    /// What it may have granted.
    allowed_bytes: u64,
    /// What it holds by the board: more than it is allowed while some of that is granted still.
    held_bytes: u64,
}

impl Share {
    /// Nothing is granted before the first update.
    pub fn new(endpoint: &mut Endpoint) -> Share {
        Share::on(Board::open().ok(), endpoint)
    }

    fn on(board: Option<Board>, endpoint: &mut Endpoint) -> Share {
        if board.is_some() {
            endpoint.gate().set_allowed(0);
        }
        Share {
            board,
            found_at: Time::ZERO,
            said_at: None,
            lease_ns: 0,
            next_at: Time::ZERO,
            look_at: None,
            demand_bytes: 0,
            part_bytes: 0,
            allowed_bytes: 0,
            held_bytes: 0,
        }
    }

    /// Whether the other processes do not see what this one grants: there is no board, or no slot is left on it.
    pub fn is_unshared(&self) -> bool {
        self.board.as_ref().is_none_or(|board| !board.has_slot())
    }

    /// When to call [`Share::refresh`], whatever else happens.
    pub fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    /// To be called before anything is granted: after a long silence nothing is, as the others may soon not count it, and if that is due the board is looked at.
    /// Whether more may be granted than before.
    pub fn refresh(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        if self.allowed_bytes > 0 && self.said_at.is_some_and(|at| now.since(at) > self.lease_ns) {
            self.allow_none(endpoint);
        }
        self.look_at.is_some_and(|at| at <= now) && self.take_part(endpoint, now)
    }

    /// Until the board is looked at, with the next wish.
    fn allow_none(&mut self, endpoint: &mut Endpoint) {
        (self.allowed_bytes, self.next_at) = (0, Time::ZERO);
        endpoint.gate().set_allowed(0);
    }

    /// To be called after what arrived has been granted again: says what this process wants, and takes its part. Whether more may be granted than before.
    pub fn update(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        let gate = endpoint.gate();
        if gate.is_idle() {
            // The others may have it.
            self.look_at = None;
            if self.held_bytes > 0 {
                self.allow_none(endpoint);
                self.give_back(0);
            }
            return false;
        }
        if now >= self.next_at {
            return self.take_part(endpoint, now);
        }
        if gate.is_short() && self.allowed_bytes < self.part_bytes.max(1) && self.look_at.is_none() {
            self.look_at = self.said_at.map(|at| at.after(LOOK_NS));
        }
        self.give_back(gate.charged_bytes());
        false
    }

    /// Seldom, and out of the way of every turn.
    #[inline(never)]
    fn take_part(&mut self, endpoint: &mut Endpoint, now: Time) -> bool {
        if now.since(self.found_at) >= REOPEN_NS {
            self.found_at = now;
            self.follow_board();
        }
        let Some(board) = &self.board else { return false };
        let lease_ns = endpoint.config().lease_ns;
        let gate = endpoint.gate();
        let before = gate.grantable_bytes();
        let others = board.others();
        let is_alone = others.demands.is_empty();
        // The budget of a host with several processes is another one.
        gate.set_share((!is_alone).then_some(u64::MAX));
        let (budget, wish) = (gate.whole_budget_bytes(), gate.wish());
        let age_ns = self.said_at.map_or(u64::MAX, |at| now.since(at));
        self.demand_bytes = wish.bytes.min(budget).max(faded(self.demand_bytes, age_ns));
        self.lease_ns = wish.lease_ns.max(lease_ns);
        (self.said_at, self.next_at, self.look_at) = (Some(now), now.after(UPDATE_NS), None);
        // What is granted at the end of one lease is used for another one, and takes a round trip, of which a lease has eight.
        let valid_ns = 2 * self.lease_ns + self.lease_ns / 8;
        self.held_bytes = board.publish(Word { demand_bytes: self.demand_bytes, whole_bytes: budget, valid_ns });
        // All processes of the host count the same turns.
        let clock_ns = board.now_ns();
        let (packet, turn) = (wish.packet_bytes, clock_ns / TURN_NS);
        self.part_bytes = share(budget, packet, &others, turn);
        gate.set_share((!is_alone).then_some(self.part_bytes));
        // A little more than it wants, for those who begin.
        let usable = if is_alone { budget } else { (self.demand_bytes + self.demand_bytes / 2).max(packet) };
        let wanted = self.part_bytes.min(usable);
        if wanted > self.held_bytes {
            self.held_bytes = board.hold(wanted, packet, budget);
        }
        self.allowed_bytes = wanted.min(self.held_bytes);
        if self.allowed_bytes < packet {
            self.allowed_bytes = 0;
        }
        gate.set_allowed(self.allowed_bytes);
        if gate.is_waited_at() && (self.allowed_bytes < wanted || self.part_bytes == 0) {
            let wait_ns = match self.part_bytes {
                0 => turns_until_own(budget, packet, &others, turn) * TURN_NS - clock_ns % TURN_NS,
                _ => LOOK_NS,
            };
            self.look_at = Some(now.after(wait_ns));
        }
        let (more, charged) = (gate.grantable_bytes() > before, gate.charged_bytes());
        self.give_back(charged);
        more
    }

    /// Goes over to the board that is there now, should somebody have removed this one.
    #[cold]
    fn follow_board(&mut self) {
        let removed = self.board.as_ref().filter(|board| board.is_removed());
        if let Some(Ok(board)) = removed.map(Board::reopened) {
            (self.board, self.held_bytes) = (Some(board), 0);
        }
    }

    /// Lets go of what it holds above what it is allowed, as far as that has arrived.
    fn give_back(&mut self, charged_bytes: u64) {
        let left = self.allowed_bytes.max(charged_bytes);
        if let Some(board) = self.board.as_ref().filter(|_| left < self.held_bytes) {
            board.release(left);
            self.held_bytes = left;
        }
    }
}

/// In how many turns this process has its own, where they take turns.
fn turns_until_own(budget: u64, packet: u64, others: &Others, turn: u64) -> u64 {
    let rounds = rounds(budget, packet, others);
    rounds - (others.before + turn) % rounds
}

/// How many turns it takes until everybody has had one.
fn rounds(budget: u64, packet: u64, others: &Others) -> u64 {
    (others.demands.len() as u64 + 1).div_ceil((budget / packet.max(1)).max(1))
}

/// Everybody may have an equal part, and of what others do not want of theirs an equal part again. Never less than a packet: where there are more processes than
/// packets in it they have one by turns.
fn share(budget: u64, packet: u64, others: &Others, turn: u64) -> u64 {
    let count = others.demands.len() as u64 + 1;
    if budget / count < packet {
        return if (others.before + turn).is_multiple_of(rounds(budget, packet, others)) { packet } else { 0 };
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
    use ropeway_proto::{Config, Demand};
    use ropeway_shm::board::SLOTS;
    use std::cell::Cell;

    /// The shares of processes that want so much each, and know it of each other.
    fn shares(budget: u64, packet: u64, demands: &[u64], turn: u64) -> Vec<u64> {
        let others = |own: usize| {
            let mut demands = demands.to_vec();
            demands.remove(own);
            Others { demands, before: own as u64 }
        };
        (0..demands.len()).map(|own| share(budget, packet, &others(own), turn)).collect()
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

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
    }

    /// A process with one sender that has so many packets left.
    struct Process {
        share: Share,
        endpoint: Endpoint,
        outstanding: u64,
        backlog: u64,
    }

    impl Process {
        fn on(path: &std::path::Path, number: u8) -> Process {
            let mut endpoint = Endpoint::new(Config::default(), u64::from(number), 1, [number; 32]);
            let board = Board::open_at(path.to_path_buf(), || NOW_NS.get()).unwrap();
            let share = Share::on(Some(board), &mut endpoint);
            Process { share, endpoint, outstanding: 0, backlog: 0 }
        }

        fn grant(&mut self, now: Time) {
            self.endpoint.gate().distribute(now, |_, packets| self.outstanding += packets);
        }

        /// So many of the granted packets have arrived.
        fn turn(&mut self, now: Time, arrived: u64) {
            NOW_NS.set(now.since(Time::ZERO));
            let arrived = arrived.min(self.outstanding);
            (self.outstanding, self.backlog) = (self.outstanding - arrived, self.backlog - arrived);
            let more = self.share.refresh(&mut self.endpoint, now);
            let demand = Demand {
                outstanding_packets: self.outstanding,
                backlog_bytes: self.backlog * 1444,
                wanted_packets: self.backlog - self.outstanding,
                frame_bytes: 1546,
                overhead_bytes: 1546 - 1444,
                round_trip_ns: 1_000_000_000,
                ..Demand::default()
            };
            self.endpoint.gate().report(0, demand, now, now);
            self.grant(now);
            if self.share.update(&mut self.endpoint, now) || more {
                self.grant(now);
            }
        }

        fn charged(&mut self) -> u64 {
            self.endpoint.gate().charged_bytes()
        }

        /// Nothing has arrived; only what is due is done.
        fn wait(&mut self, now: Time) {
            NOW_NS.set(now.since(Time::ZERO));
            if self.share.refresh(&mut self.endpoint, now) {
                self.grant(now);
            }
        }
    }

    fn board(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("ropeway-share-{name}-{}", std::process::id()))
    }

    fn at_us(us: u64) -> Time {
        Time::from_nanos(us * 1000)
    }

    #[test]
    fn who_is_not_seen_by_the_others_says_so() {
        let path = board("unseen");
        let mut endpoint = Endpoint::new(Config::default(), 1, 1, [1; 32]);
        assert!(Share::on(None, &mut endpoint).is_unshared());
        let mut on_board = || Share::on(Some(Board::open_at(path.clone(), || 1).unwrap()), &mut endpoint);
        let all: Vec<Share> = (0..=SLOTS).map(|_| on_board()).collect();
        let (last, seen) = all.split_last().unwrap();
        assert!(last.is_unshared() && !seen.iter().any(Share::is_unshared));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_waits_for_what_another_one_holds_looks_for_it_and_gets_it_when_it_comes_back() {
        let path = board("looks");
        let [mut bulk, mut late] = [1, 2].map(|number| Process::on(&path, number));
        let whole = bulk.endpoint.gate().whole_budget_bytes();
        bulk.backlog = 100_000;
        bulk.turn(at_us(1), 0);
        assert!(bulk.charged() > whole * 9 / 10, "alone it has all");
        late.backlog = 1000;
        late.turn(at_us(10), 0);
        assert_eq!(late.charged(), 0);
        assert!(late.share.look_at().is_some_and(|at| at <= at_us(110)));
        // What arrives is not granted again beyond the part, and given back.
        bulk.turn(at_us(600), 2);
        (0..40).for_each(|packet| bulk.turn(at_us(601 + packet), 1));
        assert!(bulk.charged() < whole * 6 / 10);
        late.wait(at_us(700));
        assert!(late.charged() > whole / 4 && late.charged() + bulk.charged() <= whole);
        // And all of it when nobody wants it any more.
        bulk.backlog = bulk.outstanding;
        bulk.turn(at_us(800), 1000);
        assert_eq!(bulk.charged(), 0);
        late.turn(at_us(7000), 0);
        assert!(late.charged() > whole * 9 / 10, "{} of {whole}", late.charged());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_begins_after_the_board_was_removed_is_seen_by_those_who_were_there_before() {
        let path = board("removed");
        let mut old = Process::on(&path, 1);
        let whole = old.endpoint.gate().whole_budget_bytes();
        old.backlog = 100_000;
        old.turn(at_us(1), 0);
        // As a login manager does when the user's last session ends.
        std::fs::remove_file(&path).unwrap();
        let mut new = Process::on(&path, 2);
        new.backlog = 100_000;
        (0..4000).for_each(|step| {
            old.turn(at_us(1000 + step * 1000), 5);
            new.turn(at_us(1500 + step * 1000), 5);
        });
        let charged = [old.charged(), new.charged()];
        assert!(charged.iter().sum::<u64>() <= whole, "{charged:?} of {whole}");
        assert!(charged.iter().all(|&bytes| bytes > whole / 4), "{charged:?} of {whole}");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_budget_that_was_cut_gets_its_part_beside_one_that_was_not() {
        let path = board("cut");
        let [mut bulk, mut cut] = [1, 2].map(|number| Process::on(&path, number));
        for ms in 1..40 {
            cut.endpoint.gate().observe(at_us(ms * 1000), 100_000, 100, 50, false);
        }
        let (small, whole) = (cut.endpoint.gate().whole_budget_bytes(), bulk.endpoint.gate().whole_budget_bytes());
        assert!(small * 4 < whole, "{small} of {whole}");
        bulk.backlog = 1_000_000;
        let mut arrived = 0;
        for step in 0..1000 {
            if cut.backlog == 0 {
                cut.backlog = 20;
            }
            let before = cut.backlog;
            bulk.turn(at_us(50_000 + step * 100), 5);
            cut.turn(at_us(50_050 + step * 100), 1);
            arrived += before - cut.backlog;
        }
        assert!(arrived > 500, "{arrived} packets in 1000 steps");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn after_a_silence_nothing_is_granted_before_the_board_was_asked() {
        let path = board("silence");
        let mut one = Process::on(&path, 1);
        one.backlog = 1000;
        one.turn(at_us(1), 0);
        let charged = one.charged();
        let lease_us = one.share.lease_ns / 1000;
        one.wait(at_us(1 + lease_us));
        assert!(one.share.allowed_bytes > 0);
        one.wait(at_us(2 + lease_us));
        assert_eq!((one.share.allowed_bytes, one.endpoint.gate().grantable_bytes()), (0, 0));
        assert!(one.share.held_bytes >= charged, "what was granted is held");
        one.turn(at_us(3 + lease_us), 10);
        assert!(one.charged() > charged - 10 * 1546, "it has asked");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn processes_that_come_and_go_never_grant_more_than_there_is_and_all_get_theirs() {
        let path = board("many");
        let mut all: Vec<Process> = (1..=3).map(|number| Process::on(&path, number)).collect();
        let whole = all[0].endpoint.gate().whole_budget_bytes();
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut arrived, mut most) = ([0; 3], 0);
        for step in 0..30_000u64 {
            let now = Time::from_nanos(1 + step * 10_000);
            let process = draw(3) as usize;
            let one = &mut all[process];
            // Short ones and long ones, with pauses.
            if one.backlog == 0 && draw(4) == 0 {
                one.backlog = [1, 30, 300, 3000][draw(4) as usize];
            }
            let before = one.backlog;
            one.turn(now, draw(8));
            arrived[process] += before - one.backlog;
            let charged: u64 = all.iter_mut().map(Process::charged).sum();
            assert!(charged <= whole, "step {step}: {charged} of {whole}");
            most = charged.max(most);
        }
        std::fs::remove_file(path).unwrap();
        assert!(most > whole * 9 / 10, "{most} of {whole}: it is used");
        assert!(arrived.iter().all(|&packets| packets > 10_000), "{arrived:?}");
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
    fn more_processes_than_packets_take_turns_and_nobody_is_left_out() {
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
