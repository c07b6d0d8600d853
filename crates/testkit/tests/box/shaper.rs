//! What holds ports to their rate, and the switch of the whole machine that goes with it.

use std::fs;

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Finished, Process, command};
use ropeway_testkit::{need_box, skip};

use super::{LIMIT, until};

/// Of HTB, for the whole machine.
const SWITCH: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

fn is_on() -> bool {
    fs::read_to_string(SWITCH).expect("htb is there").trim() != "0"
}

/// On a kernel without HTB there is nothing to see.
macro_rules! need_htb {
    () => {
        need_box!();
        if TestBox::up(&["--hosts", "1", "--rate", "1gbit"]).status().shaper.as_deref() != Some("htb") {
            skip!("the kernel has no htb, or does not let {SWITCH} be set");
        }
    };
}

fn boxes() -> String {
    Process::spawn(command(env::ropeway(), ["box", "list"])).succeed(LIMIT).stdout
}

#[test]
fn the_machines_switch_is_on_while_boxes_need_it() {
    need_htb!();
    let shaped = &["--hosts", "2", "--rate", "1gbit", "--shaper", "htb"];
    let (first, second) = (TestBox::up(shaped), TestBox::up(shaped));
    assert_eq!(first.status().shaper.as_deref(), Some("htb"));
    assert!(is_on());
    drop(first);
    assert!(is_on(), "the second needs it");
    drop(second);
    // Other tests have boxes too.
    until("it is off, or another box needs it", || !is_on() || !boxes().is_empty());
}

#[test]
fn a_box_that_comes_while_another_goes_has_it_on() {
    need_htb!();
    const ROUNDS: usize = 8;
    let come_and_go = || {
        for _ in 0..ROUNDS {
            let cluster = TestBox::up(&["--hosts", "1", "--rate", "1gbit"]);
            assert!(is_on());
            assert_eq!(cluster.status().htb_hysteresis, Some(true));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(come_and_go);
        }
    });
    // Those that went at the same time did not each leave it to the other.
    until("it is off, or another box needs it", || !is_on() || !boxes().is_empty());
}

#[test]
fn a_box_with_tbf_needs_nothing_of_the_machine() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit", "--shaper", "tbf"]);
    assert_eq!(cluster.status().shaper.as_deref(), Some("tbf"));
    let label = cluster.run("switch", &command("ip", ["link", "show", "dev", "lo"]), LIMIT).expect_success().stdout;
    assert!(label.contains("alias complete rate=1000000000 burst=16384"), "{label}");
    assert!(cluster.ropeway(&["status"]).expect_success().stdout.contains("rate 1gbit (tbf), port buffer"));
}

/// Makes a box, looks at it and takes it away where the switch cannot be set: an empty directory hides it, for these programs alone.
fn where_it_cannot_be_set(name: &str, options: &str) -> Finished {
    let dir = SWITCH.rsplit_once('/').expect("a path").0;
    let ropeway = env::ropeway().display().to_string();
    // Namespaces that are made here are mounted here alone too, and go with the shell.
    let script = format!(
        "mount -t tmpfs none {dir} && {ropeway} box --name {name} up --hosts 2 {options} && {ropeway} box --name {name} status; \
         end=$?; {ropeway} box --name {name} down 2>/dev/null; exit $end"
    );
    Process::spawn(command("unshare", ["--mount", "sh", "-c", &script])).wait(LIMIT).expect("an end")
}

#[test]
fn where_the_switch_cannot_be_set_a_port_has_tbf_or_says_why_not() {
    need_htb!();
    let name = |what: &str| format!("s{}-{what}", std::process::id());
    let made = where_it_cannot_be_set(&name("any"), "--rate 100mbit");
    assert!(made.success() && made.stdout.contains("rate 100mbit (tbf)"), "{made:?}");
    let refused = where_it_cannot_be_set(&name("htb"), "--rate 100mbit --shaper htb");
    assert!(!refused.success(), "{refused:?}");
    assert!(refused.stderr.contains("htb_hysteresis cannot be set; leave --shaper away"), "{refused:?}");
    let unshaped = where_it_cannot_be_set(&name("none"), "");
    assert!(unshaped.success() && unshaped.stdout.contains("rate none\n"), "{unshaped:?}");
}
