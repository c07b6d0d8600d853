//! Engines and gateways that end where no descriptor is left leave nothing behind. One test in its process, as it takes all descriptors there are.

use ropeway_engine::gateway::{self, Gateway, Limits, Neighbour};
use ropeway_engine::link::{Address, memory};
use ropeway_engine::{Engine, Options, control};
use ropeway_testkit::proc::until;
use std::fs::File;

/// The threads of engines and gateways, and the addresses where they are asked.
fn left() -> (usize, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let ours = format!("/{}.", std::process::id());
    let addresses = control::names().unwrap().into_iter().chain(gateway::names().unwrap());
    (names.filter(|name| name.starts_with("ropeway")).count(), addresses.filter(|name| name.contains(&ours)).count())
}

#[test]
fn who_ends_where_no_descriptor_is_left_leaves_no_thread_and_no_address() {
    let engine = Engine::new(&Options::default()).unwrap();
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let table = [(1, 0), (2, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(node) });
    let gateway = Gateway::new(vec![Box::new(one), Box::new(other)], &table, Limits::default()).unwrap();
    gateway.tell().unwrap();
    until("a helper, and who tells of the engine and of the gateway", || left() == (3, 2));
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(64), ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    drop((engine, gateway));
    // What ends gives some back, which are no help to it.
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(taken);
    until("nothing left", || left() == (0, 0));
}
