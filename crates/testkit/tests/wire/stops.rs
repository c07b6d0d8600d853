//! Who is stopped or killed holds up nobody but those who wait for it, and leaves no budget behind.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, budget_of, charged, counter, engine_of, receiver, shaped, until};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// For each sender: a quarter of a second at least, with four at 1 Gbit/s.
const BYTES: u64 = 8 << 20;
const SENDERS: usize = 4;

/// Stopped so often while they send, some hold a grant at that moment.
const STOPS: usize = 10;
/// What a sender that is stopped after it has looked at the clock may send too late: one batch.
const MOST_IN_HAND: u64 = 44;
/// Longer than two leases.
const STOPPED: Duration = Duration::from_millis(60);

/// What those have together that nobody holds up, in Mbit/s of the port's 1000, at least: far from what they have on an idle machine, and farther from what a stall of a second would
/// leave of it.
const LEAST_MBIT_PER_S: f64 = 300.0;

/// They send the same at the same time: all of them together have what the slowest has, as often as there are senders.
#[track_caller]
fn are_not_held_up(what: &str, senders: &[Waiting]) {
    let rate = |one: &Waiting| one.result()["mbit_per_s"].as_f64().expect("a rate");
    let together = senders.iter().map(rate).fold(f64::INFINITY, f64::min) * senders.len() as f64;
    println!("{what}: {} others have {together:.0} Mbit/s", senders.len());
    assert!(together >= LEAST_MBIT_PER_S, "{what}: {} others have {together:.0} Mbit/s", senders.len());
}

fn cluster() -> TestBox {
    TestBox::up(&["--hosts", "5", "--rate", "1gbit", "--port-buffer", "128KiB"])
}

/// Senders in h2, h3, ... that are connected.
fn senders(cluster: &TestBox, carrier: Carrier, port: u16, hosts: std::ops::Range<usize>, bytes: u64) -> Vec<Waiting> {
    let to = carrier.to(&cluster.port("h1"), port);
    let one = |host| {
        // Patient with whoever is stopped, however long the test takes to look at the rest.
        let variables = [("PEER_HOLD", "1"), ("ROPEWAY_TUNE", "give_up=60000")];
        Waiting::sender(cluster, &format!("h{host}"), &to, bytes, Mode::Stream, &variables)
    };
    let all: Vec<Waiting> = hosts.map(one).collect();
    all.iter().for_each(Waiting::is_connected);
    all
}

#[test]
fn a_stopped_sender_gives_its_budget_back_and_goes_on_afterwards() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = cluster();
        let receiver = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let mut others = senders(&cluster, carrier, PORT, 2..1 + SENDERS, BYTES);
        // This one sends for as long as the test wants.
        let mut stopped = senders(&cluster, carrier, PORT, 1 + SENDERS..2 + SENDERS, 0);
        let stopped = &mut stopped[0];
        stopped.go();
        others.iter_mut().for_each(Waiting::go);
        for _ in 0..STOPS {
            stopped.process.signal(Signal::STOP);
            std::thread::sleep(STOPPED);
            stopped.process.signal(Signal::CONT);
            std::thread::sleep(STOPPED / 4);
        }
        stopped.process.signal(Signal::STOP);
        are_not_held_up("beside one that stops", &others);
        until("nothing is charged any more", || charged(&engine_of(&cluster, "h1", &receiver.process)) == 0);
        let engine = engine_of(&cluster, "h1", &receiver.process);
        // Nothing gets lost here: what was asked for is what had been granted and never came.
        let asked = counter(&engine, "requests_sent");
        assert!(asked > 0, "it never held a grant when it was stopped: {engine}");
        assert!(stopped.process.is_running());
        stopped.process.signal(Signal::CONT);
        stopped.end();
        let result = stopped.result();
        println!("{carrier:?}: {result}; asked {asked} times, {} suspects", counter(&engine, "gate_suspects"));
        // Stopped ones that go on have leases of their own clock, and what has come meanwhile is as old as it says: they send nothing that is not theirs any more, but for what was in
        // hand.
        let drops = cluster.port("h1").drops;
        println!("{drops} drops");
        assert!(drops <= MOST_IN_HAND, "{drops} drops");
    }
}

#[test]
fn a_killed_sender_gives_its_budget_back() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = cluster();
        let receiver = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let mut others = senders(&cluster, carrier, PORT, 2..1 + SENDERS, BYTES);
        let mut killed = senders(&cluster, carrier, PORT, 1 + SENDERS..2 + SENDERS, 0);
        killed[0].go();
        others.iter_mut().for_each(Waiting::go);
        let busy = || charged(&engine_of(&cluster, "h1", &receiver.process)) > 0;
        until("grants are out", busy);
        killed[0].process.kill();
        are_not_held_up("beside one that was killed", &others);
        until("nothing is charged any more", || charged(&engine_of(&cluster, "h1", &receiver.process)) == 0);
        assert_eq!(cluster.port("h1").drops, 0);
        // And what comes later finds all of it.
        let mut later = senders(&cluster, carrier, PORT, 1 + SENDERS..2 + SENDERS, BYTES);
        later[0].go();
        later[0].result();
    }
}

/// Two receiving processes in one host, of which one does nothing for a while: a sender of the one has to wait, that of the other has not.
fn stands_still(
    carrier: Carrier,
    variables: &[(&str, &str)],
    stop: impl Fn(&mut Waiting),
    go_on: impl Fn(&mut Waiting),
) {
    let _one = shaped();
    let cluster = cluster();
    let mut still = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, variables);
    let _other = receiver(&cluster, "h1", &carrier.at(PORT + 1), Mode::Stream, &[]);
    let mut waits = senders(&cluster, carrier, PORT, 2..4, BYTES);
    let mut goes_on = senders(&cluster, carrier, PORT + 1, 4..6, BYTES);
    waits.iter_mut().for_each(Waiting::go);
    stop(&mut still);
    goes_on.iter_mut().for_each(Waiting::go);
    are_not_held_up("beside a receiver that stands still", &goes_on);
    assert!(waits.iter().all(|one| one.process.is_running()), "they cannot have sent everything: nobody read it");
    if !variables.is_empty() {
        // Its engine is awake, and says what it is that they wait for.
        until("the senders wait for the reader", || {
            let engine = engine_of(&cluster, "h2", &waits[0].process);
            engine["connections"][0]["waits_for"] == "reader"
        });
    }
    go_on(&mut still);
    for one in &waits {
        println!("{carrier:?}: {}", one.result());
    }
    assert_eq!(cluster.port("h1").drops, 0);
}

#[test]
fn a_stopped_receiver_holds_up_its_own_senders_only() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let stop = |still: &mut Waiting| {
            still.process.signal(Signal::STOP);
            std::thread::sleep(Duration::from_secs(1));
        };
        stands_still(carrier, &[], stop, |still| still.process.signal(Signal::CONT));
    }
}

#[test]
fn the_part_of_the_budget_that_a_stopped_receiver_holds_is_the_others_soon() {
    const SECOND: Duration = Duration::from_secs(1);
    /// One of them shows it; on a machine that has other things to do not always the first.
    const MOST_SECONDS: usize = 3;
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = cluster();
        let stopped = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let other = receiver(&cluster, "h1", &carrier.at(PORT + 1), Mode::Stream, &[]);
        let mut wait = senders(&cluster, carrier, PORT, 2..4, 0);
        let mut go_on = senders(&cluster, carrier, PORT + 1, 4..6, 0);
        wait.iter_mut().chain(&mut go_on).for_each(Waiting::go);
        let whole = cluster.port("h1").buffer_bytes.expect("with a rate") * 3 / 4;
        let is_shared = || [&stopped, &other].iter().all(|one| budget_of(&cluster, one) < whole * 3 / 4);
        until("both have a part", is_shared);
        stopped.process.signal(Signal::STOP);
        let mut rates = Vec::new();
        while rates.len() < MOST_SECONDS && rates.last() < Some(&LEAST_MBIT_PER_S) {
            rates.push(rate_into(&cluster, SECOND));
        }
        println!("{carrier:?}: {rates:.0?} Mbit/s beside a receiver that stops");
        assert!(rates.last() >= Some(&LEAST_MBIT_PER_S), "{rates:.0?} Mbit/s");
        until("the other one has all of it", || budget_of(&cluster, &other) == whole);
        stopped.process.signal(Signal::CONT);
        wait.iter_mut().chain(&mut go_on).for_each(Waiting::end);
        wait.iter().chain(&go_on).for_each(|one| drop(one.result()));
        let drops = cluster.port("h1").drops;
        println!("{drops} drops");
        // What was granted by the stopped one is the other one's after two leases. A sender that had to wait for a processor meanwhile has a batch in hand.
        assert!(drops <= MOST_IN_HAND * wait.len() as u64, "{drops} drops");
    }
}

/// What goes into h1 in some time, in Mbit/s.
fn rate_into(cluster: &TestBox, time: Duration) -> f64 {
    let (before, began) = (cluster.port("h1").sent_bytes, Instant::now());
    std::thread::sleep(time);
    let bytes = cluster.port("h1").sent_bytes - before;
    bytes as f64 * 8.0 / 1e6 / began.elapsed().as_secs_f64()
}

#[test]
fn a_program_that_does_not_read_holds_up_its_own_senders_only() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        stands_still(carrier, &[("PEER_HOLD", "1")], |_| {}, Waiting::go);
    }
}

#[test]
fn a_killed_receiver_is_noticed_and_nothing_else_of_its_host_is() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = cluster();
        let killed = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let _other = receiver(&cluster, "h1", &carrier.at(PORT + 1), Mode::Stream, &[]);
        let tuned = [("ROPEWAY_TUNE", "give_up=1000")];
        let to = carrier.to(&cluster.port("h1"), PORT);
        let loses = Waiting::sender(&cluster, "h2", &to, 0, Mode::Stream, &tuned);
        let mut goes_on = senders(&cluster, carrier, PORT + 1, 3..4, BYTES);
        loses.is_connected();
        goes_on[0].go();
        killed.process.kill();
        let error = loses.failure();
        println!("{carrier:?}: {error}");
        assert_eq!(error["kind"], "TimedOut", "{error}");
        goes_on[0].result();
        // The address is free again.
        let _again = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let mut later = senders(&cluster, carrier, PORT, 2..3, BYTES);
        later[0].go();
        assert!(later[0].process.wait(LIMIT).is_ok_and(|finished| finished.success()));
    }
}
