//! The rendezvous daemon killed and stopped: it is never on the path of the bytes, so nothing is lost and nobody waits for it.

use ropeway_testkit::compat::is_bare;
use ropeway_testkit::faults::{LIMIT, Over, Peer, Random, assert_over_shm, daemon_pid, traffic};
use ropeway_testkit::proc::command;
use ropeway_testkit::{World, net, skip};
use rustix::process::{Signal, kill_process};
use std::time::{Duration, Instant};

/// What a connection may take while the daemon answers nothing: many times what it takes without one.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(10);

/// A process that found no daemon looks again once a second.
const RECONNECT_PAUSE: Duration = Duration::from_millis(1200);

/// Kills the daemon and waits until it is gone.
fn kill_daemon(world: &World) {
    if is_bare() {
        return;
    }
    let pid = daemon_pid(world);
    kill_process(pid, Signal::KILL).expect("one's own daemon can be killed");
    let deadline = Instant::now() + LIMIT;
    let number = pid.as_raw_nonzero().get().unsigned_abs();
    while world.daemon_pid() == Some(number) {
        assert!(Instant::now() < deadline, "the daemon survives SIGKILL");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A script as it would be typed.
fn words(script: &str) -> Vec<&str> {
    script.split(' ').collect()
}

/// Starts a daemon if there is none, as every `ropeway run` does.
fn start_daemon(over: Over) {
    ropeway_testkit::proc::Process::spawn(over.command(command::<&str>("true", []))).succeed(LIMIT);
}

#[test]
fn transfers_go_on_without_the_daemon_and_new_connections_wait_for_its_return() {
    let test = "daemon::transfers_go_on_without_the_daemon";
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let again = format!("connect={port}");
    let served = "accept pong=100 pong=2000 recv=eof";
    let (accepting, mut connecting) = Peer::pair(
        over,
        port,
        &words(&format!("pong=100 mark=go send=1g pong=100 recv=eof {served} {served}")),
        &words(&format!(
            "calm=100 recv=1g ping=100 close {again} calm=100 ping=2000 close mark=alone wait {again} calm=100 ping=2000"
        )),
    );
    accepting.reached("go ");
    std::thread::sleep(Duration::from_millis(50));
    kill_daemon(&world);
    // The second connection begins and ends without a daemon.
    connecting.reached("alone ");
    start_daemon(over);
    std::thread::sleep(RECONNECT_PAUSE);
    connecting.go();
    connecting.all_right();
    accepting.all_right();
    for end in [&accepting, &connecting] {
        // The transfer, and most of the rounds of the connection that began after the daemon's return.
        assert_over_shm(&world, test, end.process.pid(), (1 << 29) + 2000 * 32);
        if let Some(traffic) = traffic(&world, test, end.process.pid()) {
            assert_eq!(traffic.connections, 3);
            // Two directions of the first and of the third connection, at least.
            assert!(traffic.promoted >= 4, "{traffic:#?}");
        }
    }
}

#[test]
fn a_daemon_killed_again_and_again_during_promotion_costs_no_byte() {
    let test = "daemon::a_daemon_killed_again_and_again";
    let world = World::new();
    let over = Over::tested(&world);
    let mut random = Random::of_test(test);
    let port = net::free_port();
    let (listen, connect) = (format!("listen={port}"), format!("connect={port}"));
    let connections = 40;
    let repeat = |steps: &[&str]| -> Vec<String> {
        steps.iter().cycle().take(connections * steps.len()).map(|step| step.to_string()).collect()
    };
    let served = repeat(&["accept", "pong=300", "send=300k", "pong=50", "recv=eof", "close"]);
    let accepting = Peer::start(over, [vec![listen], served].concat());
    accepting.reached("listen ");
    let connecting = Peer::start(over, repeat(&[&connect, "ping=250", "calm=50", "recv=300k", "ping=50", "close"]));
    let mut kills = 0;
    while connecting.process.is_running() && accepting.process.is_running() && kills < 200 {
        random.pause(Duration::from_millis(150));
        kill_daemon(&world);
        start_daemon(over);
        kills += 1;
    }
    println!("killed {kills} daemons");
    connecting.all_right();
    accepting.all_right();
    assert!(kills > 3, "the connections were over before a daemon was killed");
    assert_over_shm(&world, test, connecting.process.pid(), 1 << 10);
}

#[test]
fn a_stopped_daemon_keeps_nobody_waiting() {
    if is_bare() {
        skip!("there is no daemon on plain TCP");
    }
    let world = World::new();
    let over = Over::tested(&world);
    start_daemon(over);
    let port = net::free_port();
    let again = format!("connect={port}");
    let served = "pong=100 pong=2000 recv=eof close";
    let asks = "calm=100 ping=2000";
    let (accepting, mut connecting) = Peer::pair(
        over,
        port,
        &words(&format!("{served} accept {served} accept {served}")),
        &words(&format!("{asks} mark=paired wait close {again} {asks} close mark=closed wait {again} {asks}")),
    );
    connecting.reached("paired ");
    let daemon = daemon_pid(&world);
    kill_process(daemon, Signal::STOP).expect("one's own daemon can be stopped");
    let stopped = Instant::now();
    connecting.go();
    connecting.reached("closed ");
    let waited = stopped.elapsed();
    kill_process(daemon, Signal::CONT).expect("one's own daemon can be continued");
    assert!(waited < UNANSWERED_LIMIT, "closing and a new connection took {waited:?} with a stopped daemon");
    connecting.go();
    connecting.all_right();
    accepting.all_right();
    let traffic = traffic(&world, "daemon::a_stopped_daemon_keeps_nobody_waiting", connecting.process.pid());
    let traffic = traffic.expect("not bare");
    // The first and the third connection; the one in the middle may be promoted at its end or not at all.
    assert!(traffic.promoted >= 4 && traffic.shm_bytes > 2 * 2000 * 32, "{traffic:#?}");
}

/// Both ends have registered, the daemon dies before both have their half, a new one comes: each half alone is void.
#[test]
fn a_daemon_stopped_and_killed_in_the_middle_of_pairing_leaves_a_working_connection() {
    if is_bare() {
        skip!("there is no daemon on plain TCP");
    }
    let test = "daemon::a_daemon_stopped_and_killed_in_the_middle_of_pairing";
    let world = World::new();
    let over = Over::tested(&world);
    let mut random = Random::of_test(test);
    for _ in 0..10 {
        start_daemon(over);
        let (accepting, mut connecting) =
            Peer::pair(over, net::free_port(), &["pong=20k", "recv=eof"], &["wait", "ping=20k"]);
        // Both are past their `ropeway run`, which would start another daemon.
        connecting.reached("connect ");
        let daemon = daemon_pid(&world);
        connecting.go();
        random.pause(Duration::from_millis(3));
        kill_process(daemon, Signal::STOP).expect("one's own daemon can be stopped");
        random.pause(Duration::from_millis(20));
        kill_daemon(&world);
        start_daemon(over);
        connecting.all_right();
        accepting.all_right();
    }
}
