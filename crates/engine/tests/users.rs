//! Processes of two users divide one budget.

use ropeway_shm::board::{Board, Claim, Place, Word, remove_all_of, usable};
use ropeway_shm::fair::Wanted;
use ropeway_testkit::{env, need_root};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const WHOLE: u64 = 100;
const PACKET: u64 = 10;
/// What each of them wants.
const DEMANDS: [u64; 2] = [500, 1000];
/// Set in the process of the other user, which is nobody.
const NAMESPACE_VAR: &str = "ROPEWAY_TEST_NAMESPACE";
const NOBODY: u32 = 65_534;

/// In the real directory, and in a network namespace that is not there.
fn place(namespace: u64) -> Place {
    Place { namespace, ..Place::here().unwrap() }
}

fn wanted(bytes: u64) -> Wanted {
    Wanted { bytes, packet_bytes: PACKET }
}

fn says(board: &Board, own: usize) {
    board.publish(Word { demand: wanted(DEMANDS[own]), whole_bytes: WHOLE, valid_ns: 1_000_000_000 });
}

/// Says what this user wants until it sees what the other one does, and can hold so much of what it would.
fn holds(board: &mut Board, own: usize, wanted_bytes: u64, held_bytes: u64) {
    let end = Instant::now() + LIMIT;
    loop {
        says(board, own);
        let others = board.others();
        // Words of each millisecond are as good as new.
        if others.users == [wanted(usable(DEMANDS[1 - own], PACKET))] {
            assert_eq!(others.users_before, own as u64, "both have the same order");
            let claim = Claim {
                wanted_bytes,
                least_bytes: PACKET,
                whole_bytes: WHOLE,
                uncut_bytes: WHOLE,
                usable: wanted(wanted_bytes),
                patience_ns: 1_000_000_000,
            };
            if board.hold(&claim) == held_bytes {
                return;
            }
            board.release(0);
        }
        assert!(Instant::now() < end, "the other one is not seen: {others:?}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn processes_of_two_users_see_each_other_and_divide_one_budget() {
    if let Ok(namespace) = std::env::var(NAMESPACE_VAR) {
        let mut board = Board::open_at(place(namespace.parse().unwrap())).unwrap();
        holds(&mut board, 1, 60, 60);
        // It says so until it is killed.
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            says(&board, 1);
            std::thread::sleep(Duration::from_micros(500));
        }
        return;
    }
    // To become another user.
    need_root!();
    let namespace = 1 << 40 | u64::from(std::process::id());
    // Where this test lies not everybody may go.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("test");
    env::install(&std::env::current_exe().unwrap(), &program);
    let name = "processes_of_two_users_see_each_other_and_divide_one_budget";
    let mut cmd = Command::new(program);
    cmd.args([name, "--exact", "--nocapture"]).env(NAMESPACE_VAR, namespace.to_string()).current_dir("/");
    let mut other = cmd.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).spawn().unwrap();
    let outcome = std::panic::catch_unwind(|| {
        let here = place(namespace);
        let mut board = Board::open_at(here.clone()).unwrap();
        holds(&mut board, 0, WHOLE, WHOLE - 60);
        let board_of_nobody = Place { user: NOBODY, ..here.clone() }.board();
        let meta = std::fs::metadata(board_of_nobody).unwrap();
        assert!((here.is_owner)(&meta, NOBODY) && !(here.is_owner)(&meta, 0));
    });
    let _ = other.kill();
    other.wait().unwrap();
    remove_all_of(namespace);
    outcome.unwrap();
}
