//! Ranks that are threads, each with its engine: over loopback, and over raw frames between two network namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use ropeway_testkit::{need_program, need_root};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::pattern::{Bound, Pattern, Trial, catalogue, named, run};

const PATIENCE: Duration = Duration::from_secs(10);

fn over_loopback(rank: Rank, ranks: usize) -> Options {
    let local = "127.0.0.1:0".parse().expect("an address");
    Options { patience: PATIENCE, ..Options::new(Over::Udp(local), rank, ranks) }
}

/// Runs something in all ranks.
fn in_all<R: Send>(pending: Vec<(Pending, String)>, act: impl Fn(&mut Wire) -> R + Sync) -> Vec<R> {
    let addresses: Vec<String> = pending.iter().map(|(_, address)| address.clone()).collect();
    std::thread::scope(|scope| {
        let (act, addresses) = (&act, &addresses);
        let ranks: Vec<_> = pending
            .into_iter()
            .map(|(pending, _)| scope.spawn(move || act(&mut pending.connect(addresses).expect("connected"))))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn ranks(count: usize) -> Vec<(Pending, String)> {
    (0..count).map(|rank| listen(over_loopback(rank, count)).expect("loopback")).collect()
}

#[test]
fn messages_of_all_sizes_go_between_all_pairs_at_once() {
    in_all(ranks(3), |wire| {
        for size in [1, 64, 1444, 100_000, 4 << 20] {
            for turn in 1..3 {
                let (to, from) = ((wire.rank() + turn) % 3, (wire.rank() + 3 - turn) % 3);
                let (out, mut into) = (vec![wire.rank() as u8; size], vec![9; size]);
                wire.send(to, &out).expect("sent");
                assert!(wire.receive(from, &mut into).expect("received"));
                assert!(into.iter().all(|byte| usize::from(*byte) == from), "{size} bytes from {from}");
            }
            wire.barrier().expect("all came");
        }
    });
}

#[test]
fn every_pattern_runs_over_it() {
    for entry in catalogue().iter().filter(|entry| entry.ranks > 1) {
        let settings = match entry.name {
            "search" => [("burst_length".to_owned(), 16.0)].into(),
            _ => Default::default(),
        };
        let pattern = named(entry.name, entry.size, &settings).expect(entry.name);
        let trial = Trial { pattern, size: entry.size, bound: Bound::Samples(2), warm_up_ns: 0, seed: 3 };
        let measured = in_all(ranks(3), |wire| run(wire, &trial).expect(entry.name));
        assert!(measured.iter().any(|series| !series.is_empty()), "{}", entry.name);
    }
}

#[test]
fn any_rank_is_waited_for_without_passing_one_over() {
    in_all(ranks(4), |wire| {
        if wire.rank() != 0 {
            (0..10).for_each(|_| wire.send(0, &[wire.rank() as u8]).expect("sent"));
            return wire.barrier().expect("all came");
        }
        let mut left = [0, 10, 10, 10];
        while left.iter().any(|count| *count > 0) {
            let from = wire.wait_any().expect("some have sent").expect("reliable");
            let mut byte = [0];
            if left[from] > 0 && wire.try_receive(from, &mut byte).expect("received") {
                assert_eq!(usize::from(byte[0]), from);
                left[from] -= 1;
            }
        }
        wire.barrier().expect("all came");
    });
}

#[test]
fn a_rank_that_is_gone_or_silent_ends_the_wait() {
    let short = |rank| Options { patience: Duration::from_millis(300), ..over_loopback(rank, 2) };
    let pending = [0, 1].map(|rank| listen(short(rank)).expect("loopback")).into();
    in_all(pending, |wire| {
        if wire.rank() == 0 {
            let error = wire.receive(1, &mut [0]).expect_err("nothing was sent");
            assert!(matches!(error, Failure::Silent { peer: 1, .. } | Failure::Closed { peer: 1 }), "{error}");
            let error = wire.wait_any().map(|_| wire.receive(1, &mut [0])).map_or_else(Some, Result::err);
            assert!(error.is_some());
        } else {
            std::thread::sleep(Duration::from_millis(400));
        }
    });
}

#[test]
fn a_message_of_another_length_is_damage() {
    in_all(ranks(2), |wire| {
        if wire.rank() == 0 {
            wire.send(1, &[1; 100]).expect("sent");
            wire.send(1, &[1; 10]).expect("sent");
        } else {
            assert!(matches!(wire.receive(0, &mut [0; 50]), Err(Failure::Damaged { expected: 50, .. })));
        }
        // The other one leaves with a message unread, and so resets.
        let _ = wire.engine.drain(wire.all[0], wire.deadline());
    });
}

#[test]
fn addresses_that_are_none_are_refused() {
    for text in ["", "udp:", "udp:host:1", "packet:02:00:00:00:00", "packet:x", "10.0.0.1:1"] {
        assert_eq!(parse(text), None, "{text}");
    }
    assert_eq!(parse("packet:02:00:00:00:00:0a"), Some(Address::Ether([2, 0, 0, 0, 0, 10])));
    let (pending, own) = listen(over_loopback(0, 2)).expect("loopback");
    let error = pending.connect(&[own]).err().expect("one address for two ranks");
    assert!(error.to_string().contains("addresses of 2 ranks"), "{error}");
}

#[test]
fn without_keys_nobody_talks_to_other_hosts_by_mistake() {
    if std::env::var_os(key_file::KEY_FILE_VAR).is_some() || std::env::var_os(key_file::TRUSTED_VAR).is_some() {
        ropeway_testkit::skip!("the environment decides about keys");
    }
    let anywhere = "0.0.0.0:0".parse().expect("an address");
    let error = listen(Options::new(Over::Udp(anywhere), 0, 2)).err().expect("nobody decided");
    assert!(error.to_string().contains("ropeway key new"), "{error}");
}

#[test]
fn a_device_that_there_is_not_is_named() {
    need_root!();
    for over in [Over::Packet("none0".to_owned()), Over::Xdp("none0".to_owned())] {
        let error = listen(Options::new(over, 0, 2)).err().expect("no such device");
        assert!(error.to_string().contains("none0"), "{error}");
    }
}

/// Two network namespaces with a veth pair between them.
struct Hosts([String; 2]);

fn ip(args: &str) {
    let output = Command::new("ip").args(args.split_whitespace()).output().expect("ip is installed");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Hosts {
    fn new() -> Hosts {
        let hosts = Hosts(["a", "b"].map(|end| format!("rwmeasure-{}-{end}", std::process::id())));
        let [a, b] = &hosts.0;
        hosts.0.iter().for_each(|name| ip(&format!("netns add {name}")));
        ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"));
        hosts.0.iter().for_each(|name| ip(&format!("-n {name} link set eth0 up")));
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            // Not checked: whatever failed before is what should be reported.
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

#[test]
fn raw_frames_carry_it_between_two_hosts_with_a_key() {
    need_root!();
    need_program!("ip");
    let hosts = Hosts::new();
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    std::fs::write(
        &key,
        ropeway_engine::ClusterKey::new(std::array::from_fn(|place| (place * 37 + 11) as u8)).line().as_bytes(),
    )
    .expect("a file");
    let chmod = Command::new("chmod").arg("600").arg(&key).status().expect("chmod");
    assert!(chmod.success());
    let pending: Vec<_> = (0..2)
        .map(|rank| {
            let namespace = File::open(format!("/run/netns/{}", hosts.0[rank])).expect("the namespace is there");
            let options = Options {
                key_file: Some(key.clone()),
                patience: PATIENCE,
                ..Options::new([Over::Packet, Over::Xdp][rank]("eth0".to_owned()), rank, 2)
            };
            let inside = move || {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
                listen(options).expect("a device with frames")
            };
            std::thread::spawn(inside).join().expect("no panic")
        })
        .collect();
    let trial = Trial {
        pattern: Pattern::PingPong { batch: 1 },
        size: 3000,
        bound: Bound::Samples(20),
        warm_up_ns: 0,
        seed: 1,
    };
    let measured = in_all(pending, |wire| {
        assert_eq!(wire.name(), ["ropeway-packet", "ropeway-xdp"][wire.rank()]);
        run(wire, &trial).expect("a ping-pong")
    });
    assert_eq!(measured[0].len(), 1);
}
