//! `ropeway bench suite`: parts one after the other, a result file for each, one page.

use ropeway_testkit::World;
use ropeway_testkit::proc::{Exit, Finished, Process, behind, command};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn suite(world: &World, args: &[&str]) -> Finished {
    let args = [&["bench", "suite"], args].concat();
    Process::spawn(world.ropeway_command(&args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_suite_lists_commands_that_can_be_repeated() {
    let world = World::new();
    for name in ["quick", "full", "figures"] {
        let listed = suite(&world, &[name, "--list"]).expect_success().stdout;
        let commands = listed.lines().filter(|line| line.trim_start().starts_with("ropeway bench ")).count();
        assert!(commands >= 7 && listed.contains("--out ropeway-bench/"), "{listed}");
    }
}

#[test]
fn a_simulated_part_stands_beside_its_formula_on_the_page() {
    let world = World::new();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("results");
    let out_text = out.to_str().expect("UTF-8");
    suite(&world, &["figures", "--only", "timer-needed", "--rounds", "2", "--out", out_text]).expect_success();
    let measured = text(&out.join("timer-needed.jsonl"));
    assert!(measured.contains("\"metric\":\"timer-needed\"") && measured.contains("\"line\":\"end\""));
    assert!(text(&out.join("timer-needed-formula.jsonl")).contains("formula:p=10%"));
    let page = text(&out.join("report.html"));
    assert!(page.contains("formula:p=30%") && page.contains("<svg"), "{} bytes", page.len());
}

#[test]
fn a_directory_may_have_any_name() {
    let world = World::new();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join(OsStr::from_bytes(b"\xff"));
    let mut suite = world.ropeway_command(&["bench", "suite", "figures", "--only", "timer-needed", "--rounds", "2"]);
    suite.arg("--out").arg(&out);
    Process::spawn(suite).succeed(LIMIT);
    assert!(text(&out.join("timer-needed.jsonl")).contains("\"metric\":\"timer-needed\""));
    assert_eq!(std::fs::read_dir(dir.path()).expect("our directory").count(), 1, "there is another one");
}

#[test]
fn a_part_that_there_is_not_is_refused_with_those_there_are() {
    let world = World::new();
    let refused = suite(&world, &["quick", "--only", "nonsense"]);
    assert_eq!(refused.exit, Exit::Code(1));
    assert!(refused.stderr.contains("`nonsense`") && refused.stderr.contains("latency"), "{}", refused.stderr);
}

#[test]
fn parts_that_cannot_run_between_real_hosts_are_left_out_and_said() {
    let world = World::new();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("results");
    let finished = suite(
        &world,
        &["quick", "--only", "latency,noise", "--hosts", "local=127.0.0.1,b", "--out", out.to_str().expect("UTF-8")],
    );
    assert_eq!(finished.exit, Exit::Code(1));
    assert!(finished.stderr.contains("latency was left out"), "{}", finished.stderr);
}

#[test]
fn a_ctrl_c_takes_the_box_away_and_keeps_what_was_measured() {
    ropeway_testkit::need_box!();
    let world = World::new();
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("results");
    let args = ["bench", "suite", "quick", "--only", "hosts-latency,noise", "--rounds", "1000", "--out"];
    let mut suite = world.ropeway_command(&args);
    suite.arg(&out);
    // What whoever runs the tests ignores the program would ignore, too.
    let suite = Process::spawn(behind(&["env", "--default-signal=INT"], &suite));
    let file = out.join("hosts-latency.jsonl");
    let measured = || std::fs::read_to_string(&file).unwrap_or_default().lines().count() >= 3;
    suite.wait_until("two trials are in the file", LIMIT, measured).unwrap_or_else(|e| panic!("{e}"));
    let listed = || {
        let list = command(ropeway_testkit::env::ropeway(), ["box", "list"]);
        let listed = Process::spawn(list).wait(LIMIT).unwrap_or_else(|e| panic!("{e}")).expect_success();
        listed.stdout.contains(&format!("bench{}", suite.pid()))
    };
    assert!(listed(), "the part runs in a box");
    // As the terminal does it: to everybody in the group.
    let group = Pid::from_raw(suite.pid() as i32).expect("a pid");
    rustix::process::kill_process_group(group, Signal::INT).expect("a signal for our child");
    let finished = suite.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(finished.exit, Exit::Code(130), "{}", finished.stderr);
    assert!(!listed(), "the box is left");
    assert!(text(&out.join("report.html")).contains("ropeway-udp"));
    assert!(!out.join("noise.jsonl").exists(), "the next part was begun");
}
