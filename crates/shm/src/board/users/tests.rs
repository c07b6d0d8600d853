use super::super::tests::{Directory, VALID_NS, hold, pass, wanted, wants};
use super::super::{Board, Others, Word};
use super::*;
use crate::sys::Uncancelled;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

const LOOK_NS: u64 = 100_000;
const PATIENCE_NS: u64 = VALID_NS + FOUND_NS;
const US: u32 = 10;

/// Another user's file, with whatever it pleases to write.
struct Liar(std::path::PathBuf);

impl Liar {
    fn of(directory: &Directory, user: u32) -> Liar {
        let path = directory.place(user).board();
        std::fs::write(&path, [0; BYTES]).unwrap();
        Liar(path)
    }

    fn says(&self, slot: usize, used: u64, words: Words) {
        let Words { demand_bytes, whole_bytes, packet_bytes, held_bytes, written_ns, valid_until_ns } = words;
        let file = OpenOptions::new().write(true).open(&self.0).unwrap();
        let words = [used, demand_bytes, whole_bytes, packet_bytes, held_bytes, written_ns, valid_until_ns];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, (slot * SLOT_BYTES) as u64).unwrap();
    }

    /// That it wants and holds all there is, for so long.
    fn holds_all(&self, now_ns: u64, valid_ns: u64) {
        let valid_until_ns = now_ns.saturating_add(valid_ns);
        let all = u64::MAX;
        self.says(
            0,
            1,
            Words {
                demand_bytes: all,
                whole_bytes: all,
                packet_bytes: all,
                held_bytes: all,
                written_ns: now_ns,
                valid_until_ns,
            },
        );
    }
}

fn waits_for_half(board: &mut Board, most_ns: u64, others: impl Fn(u64)) -> Option<u64> {
    waits_for(board, 50, most_ns, others)
}

/// Asks for so much of a budget of 100, until it has it or so long is over; how long it took.
fn waits_for(board: &mut Board, bytes: u64, most_ns: u64, others: impl Fn(u64)) -> Option<u64> {
    let began = board.now_ns();
    loop {
        let passed_ns = board.now_ns() - began;
        others(board.now_ns());
        board.publish(wants(bytes));
        board.others();
        if hold(board, bytes, 10, 100) == bytes {
            return Some(passed_ns);
        }
        if passed_ns > most_ns {
            return None;
        }
        pass(LOOK_NS);
    }
}

#[test]
fn users_see_what_the_others_want_together_and_leave_them_what_they_hold() {
    let directory = Directory::new("users");
    let mut boards = [10, 10, 20, 30].map(|user| directory.open(user));
    // Those who have begun since are found a moment later.
    pass(finder::LOOK_NS);
    boards.iter().for_each(|board| assert_eq!(board.publish(wants(1000)), 0));
    let users = |users: &[Wanted], users_before| {
        let mut users: Vec<u64> = users.iter().map(|user| user.bytes).collect();
        users.sort_unstable();
        (users, users_before)
    };
    let mut seen = |board: usize| {
        let others = boards[board].others();
        assert_eq!(others.demands, vec![wanted(1500); usize::from(board < 2)]);
        users(&others.users, others.users_before)
    };
    assert_eq!(seen(0), (vec![1500, 1500], 0));
    assert_eq!(seen(1), (vec![1500, 1500], 0));
    assert_eq!(seen(2), (vec![1500, 3000], 1));
    assert_eq!(seen(3), (vec![1500, 3000], 2));
    assert_eq!(hold(&mut boards[0], 30, 10, 100), 30);
    assert_eq!(hold(&mut boards[1], 30, 10, 100), 30);
    assert_eq!(hold(&mut boards[2], 60, 10, 100), 40);
    assert_eq!(hold(&mut boards[3], 50, 10, 100), 0);
    boards[0].release(10);
    assert_eq!(hold(&mut boards[3], 50, 10, 100), 20);
    pass(VALID_NS + 1);
    boards[3].publish(wants(1000));
    assert_eq!(hold(&mut boards[3], 100, 10, 100), 100, "the others were silent");
}

#[test]
fn what_users_hold_together_never_exceeds_the_whole() {
    const WHOLE: u64 = 100;
    let directory = Directory::new("together");
    let place = |user| Place { clock: crate::sys::monotonic_ns, ..directory.place(user) };
    let open = |user| Board::open_at(place(user)).unwrap();
    // So that everybody finds everybody at once.
    (0..3).for_each(|user| drop(open(user)));
    // Relaxed: what checks must not order anything.
    let (used, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let claims = |mut board: Board, mut wanted: u64| {
        for _ in 0..5000 {
            board.publish(Word { valid_ns: LONGEST_NS, ..wants(1000) });
            wanted = wanted * 7 % 97;
            let held = hold(&mut board, wanted, 10, WHOLE);
            most.fetch_max(used.fetch_add(held, Ordering::Relaxed) + held, Ordering::Relaxed);
            // Not so short that the others never look meanwhile.
            board.others();
            used.fetch_sub(held, Ordering::Relaxed);
            board.release(0);
        }
    };
    std::thread::scope(|scope| {
        (0..3).map(open).zip([5, 20, 40]).for_each(|(board, wanted)| drop(scope.spawn(move || claims(board, wanted))));
    });
    let most = most.into_inner();
    assert!((WHOLE * 4 / 5..=WHOLE).contains(&most), "{most}");
}

#[test]
fn nobody_is_cancelled_while_the_boards_of_others_are_read() {
    thread_local! {
        static COULD_BE: Cell<bool> = const { Cell::new(false) };
    }
    fn clock() -> u64 {
        COULD_BE.set(COULD_BE.get() || !Uncancelled::begin().is_nested());
        1
    }
    let directory = Directory::new("cancelled");
    let _other = directory.open(20);
    let mut board = Board::open_at(Place { clock, ..directory.place(US) }).unwrap();
    assert!(COULD_BE.get(), "elsewhere one can be");
    COULD_BE.set(false);
    board.others();
    hold(&mut board, 50, 10, 100);
    assert!(!COULD_BE.get());
}

#[test]
fn one_who_is_alone_has_no_other_users_and_an_idle_one_is_none() {
    let directory = Directory::new("alone");
    let mut board = directory.open(US);
    let idle = directory.open(20);
    pass(finder::LOOK_NS);
    assert_eq!(board.others(), Others::default());
    assert_eq!(board.users.all.len(), 1);
    drop(idle);
    std::fs::remove_file(directory.place(20).board()).unwrap();
    reads_the_directory(&mut board);
    assert_eq!(board.others(), Others::default());
    assert_eq!(board.users.all.len(), 0, "its descriptor is closed");
}

#[test]
fn who_holds_all_for_ever_is_waited_for_once() {
    let directory = Directory::new("forever");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    let (valid_ns, patience_ns) = (2 * VALID_NS, 2 * VALID_NS + FOUND_NS);
    let lies = |now_ns| liar.holds_all(now_ns, valid_ns);
    let waited_ns = waits_for_half(&mut board, 2 * patience_ns, lies).expect("patience ends");
    assert!((patience_ns..patience_ns + 3 * LOOK_NS).contains(&waited_ns), "{waited_ns}");
    // And has no more to wait, as long as that one does not come down.
    for pause_ns in [LOOK_NS, SILENT_NS, DISTRUST_TIMES * patience_ns - LOOK_NS] {
        board.release(0);
        pass(pause_ns);
        assert_eq!(waits_for_half(&mut board, 0, lies), Some(0), "after {pause_ns}");
    }
    // One that was good for as long is believed again.
    board.release(0);
    pass(DISTRUST_TIMES * patience_ns);
    let waited_ns = waits_for_half(&mut board, 2 * patience_ns, lies).expect("patience ends");
    assert!((patience_ns..patience_ns + 3 * LOOK_NS).contains(&waited_ns), "{waited_ns}");
    // One that takes its board away, and makes a new one, does not.
    std::fs::remove_file(&liar.0).unwrap();
    reads_the_directory(&mut board);
    board.publish(wants(50));
    assert_eq!(board.others(), Others::default());
    assert_eq!(hold(&mut board, 100, 10, 100), 100);
    let liar = Liar::of(&directory, 20);
    board.release(0);
    reads_the_directory(&mut board);
    assert_eq!(board.users.all.len(), 1);
    assert_eq!(waits_for_half(&mut board, 0, |now_ns| liar.holds_all(now_ns, valid_ns)), Some(0));
}

/// One that holds all, in a new file each 12 ms, of the user with the number that belongs to it.
fn lies_anew(directory: &Directory, user: impl Fn(u64) -> u32) -> impl Fn(u64) {
    const FILE_NS: u64 = 12_000_000;
    let last = Cell::new(None);
    move |now_ns| {
        let file = now_ns / FILE_NS;
        let path = |file| directory.place(user(file)).board();
        let before = last.replace(Some(file));
        if before == Some(file) {
            return Liar(path(file)).holds_all(now_ns, VALID_NS);
        }
        let made = directory.place(0).directory;
        let new = Liar(made.join("new"));
        std::fs::write(&new.0, [0; BYTES]).unwrap();
        new.holds_all(now_ns, VALID_NS);
        std::fs::rename(&new.0, path(file)).unwrap();
        if let Some(before) = before.filter(|&before| user(before) != user(file)) {
            std::fs::remove_file(path(before)).unwrap();
        }
        // Whatever the ticks of the file system's clock are.
        let changed = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(now_ns);
        File::open(made).unwrap().set_modified(changed).unwrap();
    }
}

/// Receives in bursts of 3 ms, with 5 ms between them, for so long. How long it waits in all.
fn bursts_wait(board: &mut Board, ns: u64, others: impl Fn(u64)) -> u64 {
    let end = board.now_ns() + ns;
    let mut waits_ns = 0;
    while board.now_ns() < end {
        waits_ns += waits_for_half(board, 2 * MOST_PATIENCE_NS, &others).expect("patience ends");
        pass(3_000_000);
        board.release(0);
        pass(5_000_000);
    }
    waits_ns
}

#[test]
fn who_makes_its_board_anew_is_waited_for_once() {
    let directory = Directory::new("anew");
    let mut board = directory.open(US);
    let lies = lies_anew(&directory, |_| 20);
    let waits_ns = bursts_wait(&mut board, 100 * PATIENCE_NS, lies);
    assert!(waits_ns < 3 * PATIENCE_NS, "{waits_ns}");
}

#[test]
fn who_lies_under_many_numbers_is_waited_for_once() {
    let directory = Directory::new("numbers");
    let mut board = directory.open(US);
    let lies = lies_anew(&directory, |file| 20 + file as u32);
    let waits_ns = bursts_wait(&mut board, 100 * PATIENCE_NS, lies);
    assert!(waits_ns < 3 * PATIENCE_NS, "{waits_ns}");
}

#[test]
fn who_comes_down_for_a_moment_and_up_again_is_not_waited_for_each_time() {
    let directory = Directory::new("moment");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    // Whatever leases it says that it has.
    for valid_ns in [VALID_NS, LONGEST_NS] {
        let lies = |now_ns| match now_ns % (PATIENCE_NS - 1_000_000) < 2 * LOOK_NS {
            true => liar.says(0, 1, said_at(now_ns)),
            false => liar.holds_all(now_ns, valid_ns),
        };
        let waits_ns = bursts_wait(&mut board, 100 * PATIENCE_NS, lies);
        assert!(waits_ns < 3 * PATIENCE_NS, "{waits_ns}");
        board.release(0);
        pass(DISTRUST_TIMES * 2 * PATIENCE_NS);
    }
}

/// From its beginning, after what was left of the last time.
fn reads_the_directory(board: &mut Board) {
    pass(SILENT_NS);
    (0..3).for_each(|_| {
        board.others();
    });
}

#[test]
fn who_holds_all_and_wants_nothing_counts_for_nothing_in_the_end() {
    let directory = Directory::new("unwanted");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    let lies = |now_ns| liar.says(0, 1, Words { demand_bytes: 0, held_bytes: 100, ..said_at(now_ns) });
    assert!(waits_for(&mut board, 100, 2 * PATIENCE_NS, lies).is_some());
}

#[test]
fn who_lacks_little_of_its_part_waits_for_nobody() {
    let directory = Directory::new("little");
    let liar = Liar::of(&directory, 20);
    for (held_bytes, is_waited_for) in [(56, false), (57, true)] {
        let mut board = directory.open(US);
        let lies = |now_ns| liar.says(0, 1, Words { demand_bytes: 100, held_bytes, ..said_at(now_ns) });
        assert_eq!(waits_for_half(&mut board, 2 * PATIENCE_NS, lies).is_some(), is_waited_for, "{held_bytes}");
    }
}

#[test]
fn whoever_waited_and_was_stopped_meanwhile_has_patience_left() {
    let directory = Directory::new("stopped");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    let lies = |now_ns| liar.holds_all(now_ns, VALID_NS);
    assert_eq!(waits_for_half(&mut board, PATIENCE_NS / 2, lies), None);
    pass(PATIENCE_NS - LOOK_NS);
    assert_eq!(waits_for_half(&mut board, PATIENCE_NS / 4, lies), None);
    assert!(waits_for_half(&mut board, PATIENCE_NS / 2, lies).is_some());
}

#[test]
fn who_comes_down_in_time_is_believed() {
    let directory = Directory::new("honest");
    let (mut one, mut other) = (directory.open(US), directory.open(20));
    pass(SILENT_NS);
    for _ in 0..20 {
        other.publish(wants(1000));
        other.others();
        assert_eq!(hold(&mut other, 100, 10, 100), 100);
        // It says now and then that it is there, and at last lets go.
        let says = |_| {
            other.publish(wants(1000));
        };
        assert_eq!(waits_for_half(&mut one, PATIENCE_NS - 2 * LOOK_NS, says), None);
        other.release(50);
        assert_eq!(waits_for_half(&mut one, 0, says), Some(0));
        one.release(0);
        pass(DISTRUST_TIMES * PATIENCE_NS);
    }
    assert!(one.users.all.iter().all(|user| user.doubted_until_ns == 0));
}

#[test]
fn who_comes_down_at_once_is_believed_however_often() {
    let directory = Directory::new("prompt");
    let (mut one, mut other) = (directory.open(US), directory.open(20));
    pass(SILENT_NS);
    for _ in 0..1000 {
        other.publish(wants(1000));
        other.others();
        assert_eq!(hold(&mut other, 100, 10, 100), 100, "what nobody wants");
        assert_eq!(waits_for_half(&mut one, FRESH_NS, |_| ()), None);
        other.release(50);
        assert_eq!(waits_for_half(&mut one, 0, |_| ()), Some(0));
        one.release(0);
        pass(WISH_NS);
    }
    assert!(one.users.all.iter().all(|user| user.doubted_until_ns == 0));
}

#[test]
fn what_another_user_says_counts_for_a_bounded_time() {
    let directory = Directory::new("bounded");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    let began = board.now_ns();
    // Nobody writes in the future.
    liar.holds_all(began + 1, u64::MAX);
    board.publish(wants(50));
    assert_eq!(board.others(), Others::default());
    assert_eq!(hold(&mut board, 100, 10, 100), 100);
    board.release(0);
    pass(1);
    board.publish(wants(50));
    assert_eq!(board.others().users, [Wanted { bytes: u64::MAX, packet_bytes: LONGEST_PACKET_BYTES }]);
    assert_eq!(hold(&mut board, 100, 10, 100), 0);
    pass(LONGEST_NS);
    board.publish(wants(50));
    assert_eq!(board.others(), Others::default(), "a wish fades");
    assert_eq!(hold(&mut board, 100, 10, 100), 0);
    pass(1);
    board.publish(wants(50));
    assert_eq!(hold(&mut board, 100, 10, 100), 100);
    // And is not waited for as long, while it goes on.
    board.release(0);
    let lies = |now_ns| liar.holds_all(now_ns, u64::MAX);
    let waited_ns = waits_for_half(&mut board, 2 * MOST_PATIENCE_NS, lies).expect("patience ends");
    assert!(waited_ns <= LONGER_TIMES * VALID_NS + FOUND_NS + 3 * LOOK_NS, "{waited_ns}");
}

#[test]
fn sixty_four_who_lie_are_one_user() {
    let directory = Directory::new("sixty-four");
    let liar = Liar::of(&directory, 20);
    let mut board = directory.open(US);
    let lies = |now_ns| {
        let valid_until_ns = now_ns + VALID_NS;
        let words = || Words {
            demand_bytes: 1000,
            whole_bytes: 100,
            packet_bytes: 10,
            held_bytes: 100,
            written_ns: now_ns,
            valid_until_ns,
        };
        (0..SLOTS).for_each(|slot| liar.says(slot, u64::MAX, words()));
    };
    lies(board.now_ns());
    board.publish(wants(50));
    assert_eq!(board.others(), Others { users: vec![wanted(96_000)], ..Others::default() });
    assert!(waits_for_half(&mut board, PATIENCE_NS + 3 * LOOK_NS, lies).is_some());
}

#[test]
fn more_liars_than_packets_keep_nobody_from_a_turn() {
    let directory = Directory::new("crowd");
    let liars: Vec<Liar> = (0..USERS as u32).map(|user| Liar::of(&directory, user)).collect();
    let mut board = directory.open(99);
    // A thousand bytes, of which a packet takes a hundred and twenty.
    let began = board.now_ns();
    let held = loop {
        liars.iter().for_each(|liar| liar.holds_all(board.now_ns(), VALID_NS));
        board.publish(wants(50));
        assert_eq!(board.others().users.len(), USERS);
        let held = hold(&mut board, 120, 120, 1000);
        if held > 0 || board.now_ns() - began > 2 * PATIENCE_NS {
            break held;
        }
        pass(LOOK_NS);
    };
    assert_eq!(held, 120);
}

#[test]
fn a_file_that_is_no_board_does_no_harm() {
    let directory = Directory::new("nonsense");
    let place = directory.place(US);
    let path = |user: u32| directory.place(user).board();
    let garbage: Vec<u8> = (0..2 * BYTES).map(|index| (index * index / 3) as u8 | 1).collect();
    std::fs::write(path(20), &garbage).unwrap();
    std::fs::write(path(21), &garbage[..BYTES / 2 + 13]).unwrap();
    std::fs::write(path(22), "").unwrap();
    std::fs::create_dir(path(23)).unwrap();
    std::os::unix::fs::symlink(path(20), path(24)).unwrap();
    let fifo = std::ffi::CString::new(path(25).into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: a string that ends with zero.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }, 0);
    let _socket = std::os::unix::net::UnixListener::bind(path(26)).unwrap();
    let mut board = Board::open_at(place).unwrap();
    let mut known: Vec<u32> = board.users.all.iter().map(|user| user.id).collect();
    known.sort_unstable();
    assert_eq!(known, [20, 21, 22]);
    board.publish(wants(50));
    assert_eq!(board.others(), Others::default(), "garbage is of another time");
    assert_eq!(hold(&mut board, 100, 10, 100), 100);
    // One that is cut short while it is read again and again.
    let liar = Liar::of(&directory, 27);
    (0..SLOTS).for_each(|slot| liar.says(slot, SLOTS as u64, said_at(board.now_ns())));
    pass(SILENT_NS);
    board.publish(wants(50));
    let file = OpenOptions::new().write(true).open(&liar.0).unwrap();
    for slots in [SLOTS, 10, 1, 0] {
        file.set_len((slots * SLOT_BYTES + 13).min(BYTES) as u64).unwrap();
        (0..slots).for_each(|slot| liar.says(slot, SLOTS as u64, said_at(board.now_ns())));
        let expected = [wanted(10 * slots as u64)];
        assert_eq!(board.others().users, expected[..usize::from(slots > 0)], "{slots} slots");
    }
}

fn said_at(now_ns: u64) -> Words {
    Words {
        demand_bytes: 7,
        whole_bytes: 100,
        packet_bytes: 10,
        held_bytes: 1,
        written_ns: now_ns,
        valid_until_ns: now_ns,
    }
}

#[test]
fn a_file_of_somebody_else_is_nobodys_board() {
    let directory = Directory::new("owner");
    let liar = Liar::of(&directory, 20);
    let place = Place { is_owner: |_, user| user == US, ..directory.place(US) };
    let mut board = Board::open_at(place).unwrap();
    liar.holds_all(board.now_ns(), VALID_NS);
    assert_eq!(board.others(), Others::default());
}

#[test]
fn of_many_users_those_who_say_something_are_seen() {
    let directory = Directory::new("crowded");
    let mut board = directory.open(999);
    let many: Vec<Board> = (0..3 * USERS as u32).map(|user| directory.open(user)).collect();
    for speaking in many.chunks(USERS) {
        pass(SILENT_NS);
        let sees_all = |_| {
            pass(LOOK_NS);
            for speaking in speaking {
                speaking.publish(wants(7));
            }
            board.others().users == [wanted(10); USERS]
        };
        assert!((0..20).any(sees_all));
    }
}

#[test]
fn another_user_is_believed_a_budget_as_large_as_our_own_was_before_it_was_cut() {
    let directory = Directory::new("cut");
    let (mut cut, mut uncut) = (directory.open(US), directory.open(20));
    pass(finder::LOOK_NS);
    uncut.publish(wants(1000));
    uncut.others();
    assert_eq!(hold(&mut uncut, 50, 10, 100), 50);
    cut.publish(Word { whole_bytes: 20, ..wants(1000) });
    cut.others();
    assert_eq!(hold(&mut cut, 10, 10, 20), 10);
    assert_eq!(hold(&mut cut, 1000, 10, 20), 50, "and no larger");
    cut.release(0);
    uncut.publish(Word { whole_bytes: u64::MAX, ..wants(1000) });
    assert_eq!(hold(&mut cut, 1000, 10, 20), 50);
}
