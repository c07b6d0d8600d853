//! A program's signals are its own: one that blocks a signal in all its threads, before or after it makes an engine, gets it where it waits for it. One test in its process, so that all
//! threads of engines are its own.

use ropeway_engine::gateway::{Gateway, Limits, Neighbour};
use ropeway_engine::link::{Address, memory};
use ropeway_engine::{Engine, Options};
use ropeway_testkit::proc::until;

const SIGSEGV: u64 = 1 << 10;
const SIGTERM: u64 = 1 << 14;

/// What a thread blocks, by the text that Linux tells of it.
fn blocked(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// The texts of all threads of engines and gateways.
fn ours() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    statuses.filter(|status| status.starts_with("Name:\tropeway")).collect()
}

#[test]
fn threads_of_engines_and_gateways_take_no_signals_of_the_program() {
    let own = || blocked(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
    let before = own();
    let _engine = Engine::new(&Options::default()).unwrap();
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let table = [(1, 0), (2, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(node) });
    let gateway = Gateway::new(vec![Box::new(one), Box::new(other)], &table, Limits::default()).unwrap();
    gateway.tell().unwrap();
    assert_eq!(own(), before, "who makes an engine blocks what it did");
    // A thread has its name a moment after it begins.
    until("a helper, and who tells of the engine and of the gateway", || ours().len() == 3);
    for status in ours() {
        assert_eq!(blocked(&status) & (SIGTERM | SIGSEGV), SIGTERM, "{status}");
    }
}
