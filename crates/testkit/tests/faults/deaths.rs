//! Ends of a connection that are killed or stopped: the other end sees what TCP would have shown it.

use ropeway_testkit::faults::{LIMIT, Over, Peer, Random, Step, assert_over_shm, last, traffic};
use ropeway_testkit::{World, net};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Less than what the calm rounds at the beginning move once the connection is promoted.
const WARM_BYTES: u64 = 20 * 32;
/// How often each fault is tried under Ropeway.
const TRIALS: usize = 8;
/// TCP is asked at least so often, and up to [`MAX_TCP_RUNS`] times while an outcome of Ropeway has not been seen on it:
/// which errno a survivor gets depends on what was under way at the moment of the kill.
const MIN_TCP_RUNS: usize = 4;
const MAX_TCP_RUNS: usize = 60;
/// The kill comes within this time, in which a gigabyte is still under way on either carrier.
const KILL_WITHIN: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Accepting,
    Connecting,
}

/// Runs both scripts until both print "go", kills one at a random moment and returns how the survivor's `step` ended,
/// with whether that was before the end of the transfer.
fn killed(over: Over, random: &mut Random, victim: Victim, scripts: [&[&str]; 2], step: &str) -> (String, bool) {
    let accepting = [&["pong=100", "mark=go"], scripts[0]].concat();
    let connecting = [&["calm=100", "mark=go"], scripts[1]].concat();
    let (accepting, connecting) = Peer::pair(over, net::free_port(), &accepting, &connecting);
    accepting.reached("go ");
    connecting.reached("go ");
    random.pause(KILL_WITHIN);
    let (victim, survivor) =
        if victim == Victim::Accepting { (accepting, connecting) } else { (connecting, accepting) };
    victim.process.signal(Signal::KILL);
    let killed_at = Instant::now();
    let steps = survivor.finish();
    // A survivor that learned of the death by a timeout would be right in the end and still useless.
    assert!(killed_at.elapsed() < Duration::from_secs(10), "the survivor took {:?}", killed_at.elapsed());
    if let Over::Ropeway(world) = over {
        let stats = world.stats().into_iter().find(|stats| stats.pid == survivor.process.pid());
        let moved = stats.map(|stats| stats.bytes.shm.sent + stats.bytes.shm.received);
        assert!(moved > Some(WARM_BYTES), "the survivor did not use shared memory: {moved:?} bytes");
    }
    let Step { count, end, .. } = last(&steps, step).clone();
    (end, count < 1 << 30)
}

/// How an end finishes on TCP whose peer had read everything at the moment of its death: a FIN comes, which a reader takes for
/// the end of the stream, and a reset for what is sent after it. In a transfer over TCP the queues are never empty; a ring
/// that the reader keeps up with often is.
const READ_UP: &[&str] = &["EPIPE", "eof"];

/// Every way in which a survivor ends under Ropeway is one in which it ends on TCP, or one of `also`.
fn same_end_as_on_tcp(test: &str, victim: Victim, scripts: [&[&str]; 2], step: &str, also: &[&str]) {
    let world = World::new();
    let mut random = Random::of_test(test);
    let mut during_transfer = 0;
    let ropeway: BTreeSet<String> = (0..TRIALS)
        .map(|_| {
            let (end, during) = killed(Over::tested(&world), &mut random, victim, scripts, step);
            during_transfer += usize::from(during);
            end
        })
        .collect();
    assert!(during_transfer > 0, "every transfer was over before the kill: the fault did not happen");
    let mut tcp: BTreeSet<String> = also.iter().map(|end| end.to_string()).collect();
    for run in 0..MAX_TCP_RUNS {
        if run >= MIN_TCP_RUNS && ropeway.is_subset(&tcp) {
            break;
        }
        tcp.insert(killed(Over::Tcp, &mut random, victim, scripts, step).0);
    }
    assert!(ropeway.is_subset(&tcp), "under Ropeway the survivor's {step} ends with {ropeway:?}, on TCP with {tcp:?}");
}

#[test]
fn a_receiver_whose_sender_is_killed_sees_what_tcp_shows() {
    let scripts: [&[&str]; 2] = [&["send=1g"], &["recv=eof"]];
    same_end_as_on_tcp("a_receiver_whose_sender_is_killed", Victim::Accepting, scripts, "recv", &[]);
}

#[test]
fn a_sender_whose_receiver_is_killed_sees_what_tcp_shows() {
    let scripts: [&[&str]; 2] = [&["send=1g"], &["recv=eof"]];
    same_end_as_on_tcp("a_sender_whose_receiver_is_killed", Victim::Connecting, scripts, "send", READ_UP);
}

#[test]
fn a_sender_and_receiver_in_one_whose_peer_is_killed_sees_what_tcp_shows() {
    let scripts: [&[&str]; 2] = [&["both=1g"], &["both=1g"]];
    same_end_as_on_tcp("a_sender_and_receiver_in_one", Victim::Connecting, scripts, "both", READ_UP);
}

#[test]
fn a_program_that_waits_for_an_answer_sees_the_death_as_on_tcp() {
    let scripts: [&[&str]; 2] = [&["pong=100m"], &["ping=100m"]];
    same_end_as_on_tcp("a_program_that_waits_for_an_answer", Victim::Accepting, scripts, "ping", &[]);
}

/// The killed end had said that it would send nothing more, and left bytes unread: the other end reads the end of the
/// stream first, and then finds out by sending.
#[test]
fn a_peer_killed_after_shut_wr_is_seen_as_on_tcp() {
    let scenario = |over| {
        let (mut half_closed, survivor) = Peer::pair(
            over,
            net::free_port(),
            &["pong=100", "send=1m", "shut", "mark=shut", "wait"],
            &["calm=100", "recv=eof", "send=100k", "mark=sent", "wait", "send=1k", "sleep=50", "send=1k", "recv=eof"],
        );
        let mut survivor = survivor;
        half_closed.reached("shut 0 ok");
        survivor.reached("sent ");
        half_closed.process.signal(Signal::KILL);
        half_closed.go();
        half_closed.process.wait(LIMIT).expect("a killed process ends");
        survivor.go();
        survivor.finish()
    };
    let world = World::new();
    assert_eq!(scenario(Over::tested(&world)), scenario(Over::Tcp));
}

#[test]
fn an_end_stopped_for_a_while_loses_nothing() {
    let test = "deaths::an_end_stopped_for_a_while_loses_nothing";
    let world = World::new();
    let mut random = Random::of_test(test);
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "mark=go", "send=1g", "pong=100", "recv=eof"],
        &["calm=100", "recv=1g", "ping=100"],
    );
    accepting.reached("go ");
    for round in 0..6 {
        let stopped = if round % 2 == 0 { &accepting } else { &connecting };
        random.pause(Duration::from_millis(50));
        stopped.process.signal(Signal::STOP);
        // Longer than any time after which an end gives up on a peer that does not move.
        std::thread::sleep(Duration::from_millis(150));
        stopped.process.signal(Signal::CONT);
    }
    connecting.all_right();
    accepting.all_right();
    for end in [&accepting, &connecting] {
        assert_over_shm(&world, test, end.process.pid(), 1 << 20);
    }
}

#[test]
fn both_ends_may_send_a_megabyte_before_either_reads() {
    let test = "deaths::both_ends_may_send_a_megabyte_before_either_reads";
    let world = World::new();
    let steps = |first| vec![first, "send=1m", "recv=1m", "send=1m", "recv=1m"];
    let (accepting, connecting) =
        Peer::pair(Over::tested(&world), net::free_port(), &steps("pong=100"), &steps("calm=100"));
    for end in [&accepting, &connecting] {
        end.all_right();
        assert_over_shm(&world, test, end.process.pid(), WARM_BYTES);
    }
}

/// A process that leaves Ropeway asks the writer for what is unread, and dies before it has the answer. Who has the socket with it
/// reads on.
#[test]
fn what_a_process_was_killed_over_taking_back_comes_once() {
    let test = "deaths::what_a_process_was_killed_over_taking_back_comes_once";
    let world = World::new();
    let (mut writer, mut reader) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "sndbuf=8", "send=24", "mark=unread", "wait", "send=16"],
        &["calm=100", "mark=calm", "wait", "leaver", "recv=4", "mark=part", "wait", "recv=eof"],
    );
    writer.reached("unread ");
    reader.reached("calm ");
    reader.go();
    reader.reached("part ");
    writer.go();
    writer.all_right();
    reader.go();
    let steps = reader.finish();
    assert_eq!((last(&steps, "recv").count, last(&steps, "recv").end.as_str()), (36, "eof"));
    if traffic(&world, test, reader.process.pid()).is_some() {
        assert_eq!(last(&steps, "leaver").end, "killed", "it had to wait for the writer");
    }
}

/// A process is the only owner of its sockets again once a child is dead, whatever that had come to by then.
#[test]
fn a_child_killed_at_its_birth_keeps_no_connection_from_shared_memory() {
    let test = "deaths::a_child_killed_at_its_birth_keeps_no_connection_from_shared_memory";
    let world = World::new();
    let (accepting, connecting) =
        Peer::pair(Over::tested(&world), net::free_port(), &["pong=200"], &["stillborn=80", "calm=200"]);
    for end in [&accepting, &connecting] {
        end.all_right();
        assert_over_shm(&world, test, end.process.pid(), WARM_BYTES);
    }
}

/// More of them than forks can be under way at a time.
#[test]
fn children_killed_in_their_own_fork_keep_no_connection_from_shared_memory() {
    let test = "deaths::children_killed_in_their_own_fork_keep_no_connection_from_shared_memory";
    let world = World::new();
    let (accepting, connecting) =
        Peer::pair(Over::tested(&world), net::free_port(), &["pong=200"], &["barren=70", "calm=200"]);
    for end in [&accepting, &connecting] {
        end.all_right();
        assert_over_shm(&world, test, end.process.pid(), WARM_BYTES);
    }
}
