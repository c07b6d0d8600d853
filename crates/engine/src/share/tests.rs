use super::*;
use ropeway_proto::{Config, Demand};
use ropeway_shm::board::{Place, SLOTS};
use std::cell::Cell;
use tempfile::TempDir;

/// The shares of processes that want so much each, and know it of each other.
fn shares(budget: u64, packet: u64, demands: &[u64], turn: u64) -> Vec<u64> {
    let others = |own: usize| {
        let mut demands = demands.to_vec();
        demands.remove(own);
        let demands = demands.into_iter().map(|bytes| Wanted { bytes, packet_bytes: packet }).collect();
        Others { demands, before: own as u64, ..Others::default() }
    };
    (0..demands.len()).map(|own| share(budget, packet, &others(own), turn)).collect()
}

/// In packets of twelve bytes.
fn wanted(bytes: u64) -> Wanted {
    Wanted { bytes, packet_bytes: 12 }
}

#[test]
fn what_is_used_never_exceeds_the_budget() {
    for demands in [vec![1000, 1000], vec![10, 1000], vec![10, 10], vec![1000, 1000, 1000], vec![5, 700, 1000, 20]] {
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

/// After this, a user who was there before has found one who has begun.
const FOUND_NS: u64 = 20_000_000;

/// A process with one sender that has so many packets left.
struct Process {
    share: Share,
    endpoint: Endpoint,
    outstanding: u64,
    backlog: u64,
    frame_bytes: u64,
}

impl Process {
    fn on(place: &Place, number: u8) -> Process {
        Process::with_frames(place, number, 1546)
    }

    fn with_frames(place: &Place, number: u8, frame_bytes: u64) -> Process {
        let mut config = Config::default();
        config.packet_bytes = (frame_bytes - u64::from(config.frame_overhead_bytes)) as u16;
        let mut endpoint = Endpoint::new(config, u64::from(number), 1, [number; 32]);
        let board = Board::open_at(place.clone()).unwrap();
        let share = Share::on(Some(board), &mut endpoint);
        Process { share, endpoint, outstanding: 0, backlog: 0, frame_bytes }
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
            backlog_bytes: self.backlog * (self.frame_bytes - 102),
            wanted_packets: self.backlog - self.outstanding,
            frame_bytes: self.frame_bytes,
            overhead_bytes: 102,
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

/// Where the boards of a test lie.
struct Boards(TempDir);

impl Boards {
    fn new() -> Boards {
        NOW_NS.set(0);
        Boards(tempfile::tempdir().unwrap())
    }

    fn place(&self, user: u32) -> Place {
        let directory = self.0.path().to_path_buf();
        // Whoever's the files are.
        Place { directory, user, namespace: 17, clock: || NOW_NS.get(), is_owner: |_, _| true }
    }

    /// A process of each of these users.
    fn processes<const N: usize>(&self, users: [u32; N]) -> [Process; N] {
        std::array::from_fn(|index| Process::on(&self.place(users[index]), index as u8 + 1))
    }
}

fn at_us(us: u64) -> Time {
    Time::from_nanos(us * 1000)
}

#[test]
fn who_is_not_seen_by_the_others_says_so() {
    let boards = Boards::new();
    let mut endpoint = Endpoint::new(Config::default(), 1, 1, [1; 32]);
    assert!(Share::on(None, &mut endpoint).is_unshared());
    let mut on_board = || Share::on(Some(Board::open_at(boards.place(0)).unwrap()), &mut endpoint);
    let all: Vec<Share> = (0..=SLOTS).map(|_| on_board()).collect();
    let (last, seen) = all.split_last().unwrap();
    assert!(last.is_unshared() && !seen.iter().any(Share::is_unshared));
}

#[test]
fn who_waits_for_what_another_one_holds_looks_for_it_and_gets_it_when_it_comes_back() {
    let boards = Boards::new();
    let [mut bulk, mut late] = boards.processes([0, 0]);
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
}

#[test]
fn who_wants_one_packet_gets_it_beside_processes_of_its_user_that_take_all_they_can_get() {
    // One that has nothing left between two of them, and two that want the next one before they have the last: neither takes what is left for both.
    little_beside_bulk(1, 1);
    little_beside_bulk(2, 1);
    little_beside_bulk(2, 2);
}

fn little_beside_bulk(processes: u8, backlog: u64) {
    let boards = Boards::new();
    let [mut bulk] = boards.processes([0]);
    let mut all: Vec<Process> = (0..processes).map(|index| Process::on(&boards.place(0), index + 2)).collect();
    bulk.backlog = 1_000_000;
    let mut had_at_us = vec![0; all.len()];
    for step in 0..1000 {
        let us = step * 100;
        // Each wish has an age when others look.
        bulk.turn(at_us(us), 5);
        for (index, one) in all.iter_mut().enumerate() {
            one.backlog = one.backlog.max(backlog);
            one.turn(at_us(us + 30 + index as u64 * 30), 1);
            if one.outstanding > 0 {
                had_at_us[index] = us;
            }
            let waits_us = us - had_at_us[index];
            assert!(waits_us < 2000, "{processes} that want {backlog}, the {index}th at {us} us: {waits_us} us");
        }
    }
}

#[test]
fn who_begins_after_the_board_was_removed_is_seen_by_those_who_were_there_before() {
    let boards = Boards::new();
    let mut old = Process::on(&boards.place(0), 1);
    let whole = old.endpoint.gate().whole_budget_bytes();
    old.backlog = 100_000;
    old.turn(at_us(1), 0);
    // As a login manager does when the user's last session ends.
    std::fs::remove_file(boards.place(0).board()).unwrap();
    let mut new = Process::on(&boards.place(0), 2);
    new.backlog = 100_000;
    (0..4000).for_each(|step| {
        old.turn(at_us(1000 + step * 1000), 5);
        new.turn(at_us(1500 + step * 1000), 5);
    });
    let charged = [old.charged(), new.charged()];
    assert!(charged.iter().sum::<u64>() <= whole, "{charged:?} of {whole}");
    assert!(charged.iter().all(|&bytes| bytes > whole / 4), "{charged:?} of {whole}");
}

#[test]
fn a_budget_that_was_cut_gets_its_part_beside_one_that_was_not() {
    [[0, 0], [0, 1], [1, 0]].into_iter().for_each(cut_beside_uncut);
}

fn cut_beside_uncut(users: [u32; 2]) {
    let boards = Boards::new();
    let [mut bulk, mut cut] = boards.processes(users);
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
    assert!(arrived > 800, "{arrived} packets in 1000 steps, users {users:?}");
}

#[test]
fn after_a_silence_nothing_is_granted_before_the_board_was_asked() {
    let boards = Boards::new();
    let mut one = Process::on(&boards.place(0), 1);
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
}

#[test]
fn processes_that_come_and_go_never_grant_more_than_there_is_and_all_get_theirs() {
    // Of one user, of three, and of two.
    for users in [[0, 0, 0], [0, 1, 2], [5, 5, 1]] {
        come_and_go(users, [1546; 3]);
        come_and_go(users, [1546, 9046, 1546]);
        come_and_go(users, [9046, 1546, 20_000]);
    }
}

fn come_and_go(users: [u32; 3], frames: [u64; 3]) {
    let boards = Boards::new();
    let mut all: [Process; 3] =
        std::array::from_fn(|index| Process::with_frames(&boards.place(users[index]), index as u8 + 1, frames[index]));
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
        // Those of several users have found each other.
        let now = Time::from_nanos(FOUND_NS + step * 10_000);
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
        assert!(charged <= whole, "users {users:?}, frames {frames:?}, step {step}: {charged} of {whole}");
        most = charged.max(most);
    }
    let longest = frames[0].max(frames[1]).max(frames[2]);
    assert!(most + longest > whole * 9 / 10, "users {users:?}, frames {frames:?}: {most} of {whole} is used");
    assert!(arrived.iter().all(|&packets| packets > 8000), "users {users:?}, frames {frames:?}: {arrived:?}");
}

#[test]
fn who_has_longer_packets_gets_them_beside_those_who_have_shorter_ones() {
    // One whose packet is more than half of the budget, beside one; and several beside more than there are packets in it.
    for users in [[0, 0], [0, 1], [1, 0]] {
        short_beside_long(users, 1, 1, 65_580);
        short_beside_long(users, 10, 1, 9046);
        short_beside_long(users, 2, 2, 65_580);
    }
}

fn short_beside_long(users: [u32; 2], short: usize, long: usize, frame_bytes: u64) {
    let boards = Boards::new();
    let mut all: Vec<Process> = (0..short + long)
        .map(|index| match index < short {
            true => Process::on(&boards.place(users[0]), index as u8 + 1),
            false => Process::with_frames(&boards.place(users[1]), index as u8 + 1, frame_bytes),
        })
        .collect();
    let whole = all[0].endpoint.gate().whole_budget_bytes();
    all.iter_mut().for_each(|process| process.backlog = 1_000_000);
    let begun: Vec<u64> = all.iter().map(|process| process.backlog).collect();
    for step in 0..2000 {
        for (index, process) in all.iter_mut().enumerate() {
            // So much has arrived of each, if it was under way.
            process.turn(at_us(50_000 + step * 100 + index as u64), if index < short { 5 } else { 1 });
        }
        let charged: u64 = all.iter_mut().map(Process::charged).sum();
        assert!(charged <= whole, "users {users:?}, {frame_bytes} bytes: {charged} of {whole}");
    }
    let arrived: Vec<u64> = all.iter().zip(begun).map(|(process, begun)| begun - process.backlog).collect();
    assert!(arrived.iter().all(|&packets| packets > 100), "users {users:?}, {frame_bytes} bytes: {arrived:?}");
}

#[test]
fn a_budget_that_was_cut_to_less_than_a_packet_lets_one_through() {
    let boards = Boards::new();
    let mut one = Process::with_frames(&boards.place(0), 1, 20_000);
    for ms in 1..60 {
        one.endpoint.gate().observe(at_us(ms * 1000), 100_000, 100, 50, false);
    }
    assert!(one.endpoint.gate().whole_budget_bytes() < 20_000);
    one.backlog = 10;
    one.turn(at_us(70_000), 0);
    assert_eq!(one.outstanding, 1);
}

#[test]
fn a_user_who_begins_beside_a_busy_one_gets_an_equal_part_and_no_more_is_granted_than_there_is() {
    let boards = Boards::new();
    let mut bulk = Process::on(&boards.place(0), 1);
    let whole = bulk.endpoint.gate().whole_budget_bytes();
    bulk.backlog = 1_000_000;
    bulk.turn(at_us(1), 0);
    assert!(bulk.charged() > whole * 9 / 10, "alone it has all");
    // It holds all when the other one begins, so the time until it finds that one's board is no time in which too much is granted.
    let mut late = Process::on(&boards.place(1), 2);
    late.backlog = 1_000_000;
    let mut had_part_at = None;
    for step in 1..600 {
        let us = step * 100;
        bulk.turn(at_us(us), 2);
        late.turn(at_us(us + 50), 2);
        assert!(bulk.charged() + late.charged() <= whole, "{us} us");
        if late.charged() > whole * 2 / 5 {
            had_part_at = had_part_at.or(Some(us));
        }
    }
    let (bulk, late) = (bulk.charged(), late.charged());
    assert!(bulk > whole * 2 / 5 && late > whole * 2 / 5, "{bulk} and {late} of {whole}");
    assert!(had_part_at.is_some_and(|us| us < 30_000), "{had_part_at:?} us");
}

#[test]
fn a_user_who_takes_what_others_leave_between_their_bursts_is_believed_each_time() {
    // Bursts that want their part of the whole, and some that are over before the other user has come down to leave them all they may use.
    [100, 20].into_iter().for_each(bursts_beside_bulk);
}

fn bursts_beside_bulk(packets: u64) {
    let boards = Boards::new();
    let [mut bulk, mut bursts] = boards.processes([0, 1]);
    let whole = bulk.endpoint.gate().whole_budget_bytes();
    bulk.backlog = 1_000_000_000;
    // For some times as long as what all these waits take from patience comes back in.
    for step in 0..50_000 {
        let us = 20_000 + step * 100;
        bulk.turn(at_us(us), 4);
        if step % 200 == 0 {
            assert_eq!(bursts.backlog, 0, "{us} us");
            assert!(step == 0 || bulk.share.held_bytes == whole, "{us} us: it has taken all");
            bursts.backlog = packets;
        }
        bursts.turn(at_us(us + 50), 4);
        let charged = [bulk.charged(), bursts.charged()];
        assert!(charged.iter().sum::<u64>() <= whole, "{packets} packets, {us} us: {charged:?} of {whole}");
    }
}

#[test]
fn processes_of_a_user_hold_no_more_together_than_is_theirs_and_nobody_is_taken_for_a_liar() {
    let boards = Boards::new();
    // One user's wants a little, all the time, and takes a little more; all others take what they can get.
    let [mut little, mut bulk, mut other] = boards.processes([5, 5, 1]);
    let whole = little.endpoint.gate().whole_budget_bytes();
    (bulk.backlog, other.backlog) = (1_000_000, 1_000_000);
    for step in 0..3000 {
        let us = 20_000 + step * 100;
        little.backlog = little.backlog.max(10);
        little.turn(at_us(us), 1);
        bulk.turn(at_us(us + 30), 2);
        other.turn(at_us(us + 60), 2);
        let held = [&little, &bulk, &other].map(|process| process.share.held_bytes);
        assert!(held.iter().sum::<u64>() <= whole, "{us} us: {held:?} of {whole}");
        if step > 1000 {
            assert!(held[0] + held[1] <= whole / 2 && held[2] > whole * 7 / 16, "{us} us: {held:?} of {whole}");
        }
    }
}

/// Says that it has packets of that length, and wants and holds all there is.
fn holds_all(liar: &mut Board, packet_bytes: u64) {
    let demand = Wanted { bytes: u64::MAX, packet_bytes };
    liar.publish(Word { demand, whole_bytes: u64::MAX, valid_ns: 20_000_000 });
    let all = Claim {
        wanted_bytes: u64::MAX,
        least_bytes: 0,
        whole_bytes: u64::MAX,
        uncut_bytes: 0,
        usable: Wanted::default(),
        patience_ns: 0,
    };
    assert_eq!(liar.hold(&all), u64::MAX);
}

#[test]
fn who_waits_in_its_turns_loses_patience_with_those_who_let_nothing_go() {
    let boards = Boards::new();
    let mut liar = Board::open_at(boards.place(1)).unwrap();
    // Of its packets and the other's there is room for one.
    let mut one = Process::with_frames(&boards.place(0), 1, 60_000);
    one.backlog = 10_000;
    let mut had_none = 0;
    let step = (0..2000).find(|step| {
        let us = 100_000 + step * 100;
        NOW_NS.set(us * 1000);
        holds_all(&mut liar, 60_000);
        one.turn(at_us(us), 0);
        had_none += u64::from(one.share.part_bytes == 0);
        one.charged() > 0
    });
    assert!(step.is_some() && had_none > 0, "{step:?}");
}

#[test]
fn a_user_who_lets_nothing_go_is_waited_for_once() {
    let boards = Boards::new();
    let mut liar = Board::open_at(boards.place(1)).unwrap();
    let mut one = Process::on(&boards.place(0), 1);
    let whole = one.endpoint.gate().whole_budget_bytes();
    let mut waited_us = Vec::new();
    for begin_ms in [100, 300, 500] {
        let begin_us = begin_ms * 1000;
        one.backlog = 10_000;
        let step = (0..1000).find(|step| {
            let us = begin_us + step * 100;
            NOW_NS.set(us * 1000);
            holds_all(&mut liar, 12);
            one.turn(at_us(us), 0);
            one.charged() > whole * 2 / 5
        });
        waited_us.push(step.expect("it has its part") * 100);
        assert!(one.charged() <= whole / 2);
        one.backlog = one.outstanding;
        one.turn(at_us(begin_us + 100_000), u64::MAX);
        assert_eq!(one.charged(), 0);
    }
    assert!(waited_us[0] <= 50_000 && waited_us[1..] == [0, 0], "{waited_us:?}");
}

#[test]
fn who_wants_little_leaves_the_rest_to_other_users() {
    let boards = Boards::new();
    let other = Board::open_at(boards.place(1)).unwrap();
    let mut one = Process::on(&boards.place(0), 1);
    let whole = one.endpoint.gate().whole_budget_bytes();
    other.publish(Word { demand: wanted(whole), whole_bytes: whole, valid_ns: 1 });
    one.backlog = 2;
    one.turn(at_us(0), 0);
    let charged = one.charged();
    assert_eq!((one.outstanding, one.share.held_bytes), (2, charged + charged / 2));
}

#[test]
fn a_user_with_many_processes_is_one_user() {
    let boards = Boards::new();
    let many: Vec<Board> = (0..SLOTS).map(|_| Board::open_at(boards.place(1)).unwrap()).collect();
    let mut one = Process::on(&boards.place(0), 1);
    let whole = one.endpoint.gate().whole_budget_bytes();
    many.iter().for_each(|board| {
        board.publish(Word { demand: wanted(1_000_000), whole_bytes: whole, valid_ns: 1 });
    });
    one.backlog = 10_000;
    one.turn(at_us(0), 0);
    assert!((whole * 2 / 5..=whole / 2).contains(&one.charged()), "{} of {whole}", one.charged());
}

#[test]
fn who_has_no_turn_knows_when_it_comes() {
    // Processes of one user, of as many users, and of some with several.
    for (processes, users) in [(20, 1), (1, 20), (3, 20), (9, 2), (20, 5)] {
        for (own, user) in (0..processes).flat_map(|own| (0..users).map(move |user| (own, user))) {
            let others = others_of(own, processes, user, users);
            let shares: Vec<u64> = (0..200).map(|turn| share(90, 12, &others, turn)).collect();
            for turn in (0..100).filter(|&turn| shares[turn] == 0) {
                let next = turn + turns_until_own(90, 12, &others, turn as u64) as usize;
                assert!(shares[turn + 1..next].iter().all(|&share| share == 0) && shares[next] > 0);
            }
        }
    }
}

/// What a process sees of others, where each of some users has as many processes.
fn others_of(own: u64, processes: u64, user: u64, users: u64) -> Others {
    Others {
        demands: vec![wanted(1000); processes as usize - 1],
        before: own,
        users: vec![wanted(1000 * processes); users as usize - 1],
        users_before: user,
    }
}

#[test]
fn more_users_and_processes_than_packets_take_turns_and_nobody_is_left_out() {
    for (processes, users, rounds) in [(20, 1, 3), (1, 20, 3), (3, 20, 9), (9, 2, 3), (20, 5, 20)] {
        let all: Vec<Others> =
            (0..users).flat_map(|user| (0..processes).map(move |own| others_of(own, processes, user, users))).collect();
        let mut had = vec![0; all.len()];
        for turn in 0..2 * rounds {
            let shares: Vec<u64> = all.iter().map(|others| share(90, 12, others, turn)).collect();
            assert!(shares.iter().sum::<u64>() <= 90, "{shares:?}");
            had.iter_mut().zip(&shares).for_each(|(had, share)| *had += share);
        }
        assert!(had.iter().all(|&bytes| bytes == had[0] && bytes > 0), "{processes} of {users} users: {had:?}");
    }
}

#[test]
fn the_budget_is_divided_among_users_and_then_among_their_processes() {
    let shares = |others: &Others| share(900, 12, others, 7);
    let [one, of_three] = [(1, 2), (3, 2)].map(|(processes, users)| others_of(0, processes, 0, users));
    assert_eq!((shares(&one), shares(&of_three)), (450, 150));
    let beside_little = Others { users: vec![wanted(100)], ..of_three.clone() };
    assert_eq!(shares(&beside_little), 266, "what the other user does not want");
    let with_little = Others { demands: vec![wanted(50), wanted(1000)], ..of_three };
    assert_eq!(shares(&with_little), 200, "what is left in the user");
}
