//! Engines and gateways that end where no descriptor is left leave nothing behind, nor do calls that find none. One test at a time in their process, as each takes all descriptors there are.

use ropeway_engine::gateway::{self, Gateway, Limits, Neighbour};
use ropeway_engine::link::{Address, memory};
use ropeway_engine::{Engine, Mode, Options, Workers, control};
use ropeway_testkit::proc::until;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The threads of engines and gateways, and the addresses where they are asked.
fn left() -> (usize, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let ours = format!("/{}.", std::process::id());
    let addresses = control::names().unwrap().into_iter().chain(gateway::names().unwrap());
    (names.filter(|name| name.starts_with("ropeway")).count(), addresses.filter(|name| name.contains(&ours)).count())
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All descriptors that the process may have.
fn all_descriptors() -> Vec<File> {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(64), ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn who_cannot_watch_all_workers_watches_none() {
    let _alone = alone();
    let mut ends = Vec::new();
    let workers = Workers::new(&Options::default(), 2, |_| {
        let (one, other) = memory::pair(memory::Config::default())?;
        ends.push(other);
        Ok(Box::new(one))
    });
    let port = workers.unwrap().listen(7, Mode::Stream, 8).unwrap();
    let mut taken = all_descriptors();
    taken.pop();
    assert!(port.accept(Some(Instant::now() + Duration::from_millis(1))).is_err());
    let free = File::open("/dev/null");
    drop(taken);
    free.expect("the one descriptor that was free");
}

#[test]
fn who_ends_where_no_descriptor_is_left_leaves_no_thread_and_no_address() {
    let _alone = alone();
    let engine = Engine::new(&Options::default()).unwrap();
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let table = [(1, 0), (2, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(node) });
    let gateway = Gateway::new(vec![Box::new(one), Box::new(other)], &table, Limits::default()).unwrap();
    gateway.tell().unwrap();
    // Those of the test before may end only now.
    until("a helper, and who tells of the engine and of the gateway", || left() == (3, 2));
    let taken = all_descriptors();
    drop((engine, gateway));
    // What ends gives some back, which are no help to it.
    std::thread::sleep(Duration::from_millis(100));
    drop(taken);
    until("nothing left", || left() == (0, 0));
}
