//! The part of the host's receive budget that this process may hand out, where several processes of a host receive over the network (docs/engine.md).

use ropeway_proto::{Endpoint, Time};
use ropeway_shm::board::{Board, Claim, Others, Word, faded, usable};
use ropeway_shm::fair::{self, Wanted};

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
            if self.look_at.take().is_some() || self.held_bytes > 0 {
                self.allow_none(endpoint);
                self.give_back(0);
                if let Some(board) = &mut self.board {
                    board.end_wait();
                }
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
        let Some(board) = &mut self.board else { return false };
        let lease_ns = endpoint.config().lease_ns;
        let gate = endpoint.gate();
        let before = gate.grantable_bytes();
        let (wish, others) = (gate.wish(), board.others());
        let is_alone = others.demands.is_empty() && others.users.is_empty();
        // The budget of a host with several processes is another one.
        gate.set_share((!is_alone).then_some(u64::MAX));
        // What was cut lets a packet through all the same.
        let (packet, budget) = (wish.packet_bytes, gate.whole_budget_bytes().max(wish.packet_bytes));
        let age_ns = self.said_at.map_or(u64::MAX, |at| now.since(at));
        self.demand_bytes = wish.bytes.min(budget).max(faded(self.demand_bytes, age_ns));
        self.lease_ns = wish.lease_ns.max(lease_ns);
        (self.said_at, self.next_at, self.look_at) = (Some(now), now.after(UPDATE_NS), None);
        // What is granted at the end of one lease is used for another one, and takes a round trip, of which a lease has eight.
        let valid_ns = 2 * self.lease_ns + self.lease_ns / 8;
        self.held_bytes = board.publish(Word {
            demand: Wanted { bytes: self.demand_bytes, packet_bytes: packet },
            whole_bytes: budget,
            valid_ns,
        });
        // All processes of the host count the same turns.
        let clock_ns = board.now_ns();
        let turn = clock_ns / TURN_NS;
        self.part_bytes = share(budget, packet, &others, turn);
        gate.set_share((!is_alone).then_some(self.part_bytes));
        let usable_bytes = usable(self.demand_bytes, packet);
        let wanted = self.part_bytes.min(if is_alone { budget } else { usable_bytes });
        if wanted > self.held_bytes {
            self.held_bytes = board.hold(&Claim {
                wanted_bytes: wanted,
                least_bytes: packet,
                whole_bytes: budget,
                uncut_bytes: gate.uncut_budget_bytes().max(budget),
                usable: Wanted {
                    bytes: others.demands.iter().fold(usable_bytes, |all, one| all.saturating_add(one.bytes)),
                    packet_bytes: packet_of_user(budget, packet, &others),
                },
                patience_ns: valid_ns,
            });
        } else if self.part_bytes > 0 {
            // Between its turns it waits on.
            board.end_wait();
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
        let removed = self.board.as_mut().filter(|board| board.is_removed());
        if let Some(Ok(())) = removed.map(Board::reopen) {
            self.held_bytes = 0;
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
    let (had, since, users) = turns_of_user(budget, packet, others, turn);
    // Where users take turns the part is this, or will be.
    let part = match users {
        1 => part_of_user(budget, packet, others, turn),
        _ => fair::longest(budget, packet_of_user(budget, packet, others), &others.users),
    };
    let processes = fair::rounds(part, packet, &others.demands);
    let until = processes - (others.before + had) % processes;
    until * users - since
}

/// How many turns this process's user has had, how long ago the last one was, and how many it takes until every user has had one. Where users take none every turn is everybody's.
fn turns_of_user(budget: u64, packet: u64, others: &Others, turn: u64) -> (u64, u64, u64) {
    match fair::rounds(budget, packet_of_user(budget, packet, others), &others.users) {
        1 => (turn, 0, 1),
        rounds => ((others.users_before + turn) / rounds, (others.users_before + turn) % rounds, rounds),
    }
}

/// This process's part of what its user may have of the budget.
fn share(budget: u64, packet: u64, others: &Others, turn: u64) -> u64 {
    let (had, ..) = turns_of_user(budget, packet, others, turn);
    match part_of_user(budget, packet, others, turn) {
        0 => 0,
        part_of_user => part(part_of_user, packet, &others.demands, others.before + had),
    }
}

fn part_of_user(budget: u64, packet: u64, others: &Others, turn: u64) -> u64 {
    part(budget, packet_of_user(budget, packet, others), &others.users, others.users_before + turn)
}

/// The longest packet of this user's processes.
fn packet_of_user(budget: u64, packet: u64, others: &Others) -> u64 {
    fair::longest(budget, packet, &others.demands)
}

/// Everybody may have an equal part, and of what others do not want of theirs an equal part again. Never less than a packet: where there is not one for each in it they have one, as long as the
/// longest, by turns.
fn part(budget: u64, packet: u64, others: &[Wanted], turn: u64) -> u64 {
    match fair::rounds(budget, packet, others) {
        1 => fair::part(budget, packet, &mut others.to_vec()),
        rounds if turn.is_multiple_of(rounds) => fair::longest(budget, packet, others),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
