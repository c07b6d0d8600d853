//! Engines and gateways that end where no descriptor is left leave nothing behind, nor do calls that find none. One test at a time in their process, as each takes all descriptors there are.

use ropeway_engine::gateway::{self, Gateway, Limits, Neighbour};
use ropeway_engine::link::Address;
use ropeway_engine::link::memory::{self, MemoryLink};
use ropeway_engine::{Engine, Mode, Options, Target, Workers, control};
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
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // They take descriptors until then.
    until("those of the test before have ended", || left() == (0, 0));
    alone
}

fn limit_descriptors(count: u64) {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(count), ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
}

/// All descriptors that the process may have.
fn all_descriptors() -> Vec<File> {
    limit_descriptors(64);
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn who_cannot_watch_all_workers_watches_none() {
    let _alone = alone();
    let mut ends = Vec::new();
    // Who spins opens what tells how busy the machine is.
    let options = Options { spin: Duration::ZERO, ..Options::default() };
    let workers = Workers::new(&options, 2, |_| {
        let (one, other) = memory::pair(memory::Config::default())?;
        ends.push(other);
        Ok(Box::new(one))
    });
    let port = workers.unwrap().listen(7, Mode::Stream, 8).unwrap();
    let mut taken = all_descriptors();
    taken.pop();
    assert!(port.accept(Some(Instant::now() + Duration::from_millis(1))).is_err());
    // Helpers take it for a moment, to look whose boards there are.
    until("the one descriptor that was free is so again", || File::open("/dev/null").is_ok());
    drop(taken);
}

fn gateway_between(one: MemoryLink, other: MemoryLink) -> Gateway {
    let table = [(1, 0), (2, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(node) });
    Gateway::new(vec![Box::new(one), Box::new(other)], &table, Limits::default()).unwrap()
}

#[test]
fn who_ends_where_no_descriptor_is_left_leaves_no_thread_and_no_address() {
    let _alone = alone();
    let engine = Engine::new(&Options::default()).unwrap();
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let gateway = gateway_between(one, other);
    gateway.tell().unwrap();
    until("a helper, and who tells of the engine and of the gateway", || left() == (3, 2));
    let taken = all_descriptors();
    drop((engine, gateway));
    // What ends gives some back, which are no help to it.
    std::thread::sleep(Duration::from_millis(100));
    drop(taken);
    until("nothing left", || left() == (0, 0));
}

/// As a program has it that goes into a sandbox: what is open stays, but the kernel polls no more descriptors at a time than the limit.
#[test]
fn who_may_have_fewer_descriptors_than_there_are_to_poll_does_not_spin() {
    let _alone = alone();
    limit_descriptors(64);
    let engine = || Engine::new(&Options { spin: Duration::ZERO, ..Options::default() }).unwrap();
    let (client, server) = (engine(), engine());
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let to = Target { link: client.add_link(Box::new(one)).unwrap(), address: Address::Sim(1) };
    server.add_link(Box::new(other)).unwrap();
    server.listen(7, Mode::Stream, 8).unwrap();
    let soon = || Some(Instant::now() + Duration::from_secs(20));
    let near = client.connect(to, 7, Mode::Stream, soon()).unwrap();
    let far = server.accept(7, soon()).unwrap();
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let gateway = gateway_between(one, other);
    std::thread::scope(|scope| {
        limit_descriptors(0);
        scope.spawn(|| gateway.run());
        let waits = scope.spawn(|| server.recv(far, &mut [0; 16], soon()));
        std::thread::sleep(Duration::from_millis(100));
        let before = busy();
        std::thread::sleep(Duration::from_millis(500));
        let busy = busy() - before;
        client.send_all(near, b"hello", soon()).unwrap();
        let received = waits.join().unwrap();
        limit_descriptors(64);
        gateway.stop();
        assert_eq!(received.unwrap(), Some(5));
        assert!(busy < Duration::from_millis(100), "{busy:?} of 500 ms");
    });
}

/// Processor time of this process.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_forked_child_that_drops_a_gateway_takes_nothing_from_its_parent() {
    let _alone = alone();
    limit_descriptors(64);
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let gateway = gateway_between(one, other);
    let name = gateway.tell().unwrap();
    // SAFETY: the child only drops what it has, and leaves without running anything of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(gateway);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    gateway::ask(&name).expect("it is still there");
}
