//! Who is stopped or killed holds up nobody but those who wait for it, and leaves no budget behind.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, charged, counter, engine_of, receiver, shaped, until};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;
use rustix::process::Signal;
use std::time::Duration;

/// For each sender: a quarter of a second at least, with four at 1 Gbit/s.
const BYTES: u64 = 8 << 20;
const SENDERS: usize = 4;

/// Stopped so often while they send, some hold a grant at that moment.
const STOPS: usize = 10;
/// What a sender that is stopped after it has looked at the clock may send too late: one batch.
const MOST_IN_HAND: u64 = 44;
/// Longer than two leases.
const STOPPED: Duration = Duration::from_millis(60);

fn cluster() -> TestBox {
    TestBox::up(&["--hosts", "5", "--rate", "1gbit", "--port-buffer", "128KiB"])
}

/// Senders in h2, h3, ... that are connected.
fn senders(cluster: &TestBox, carrier: Carrier, port: u16, hosts: std::ops::Range<usize>, bytes: u64) -> Vec<Waiting> {
    let to = carrier.to(&cluster.port("h1"), port);
    let one = |host| {
        let hold = [("PEER_HOLD", "1")];
        Waiting::sender(cluster, &format!("h{host}"), &to, bytes, Mode::Stream, &hold)
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
        others.iter().for_each(|one| drop(one.result()));
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
        others.iter().for_each(|one| drop(one.result()));
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
    goes_on.iter().for_each(|one| drop(one.result()));
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
