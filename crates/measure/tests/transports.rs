//! One suite for all transports whose ranks can be threads of one process: what the patterns take for granted.

use std::time::{Duration, Instant};

use ropeway_measure::Failure;
use ropeway_measure::transport::kind::{self, Setting};
use ropeway_measure::transport::{Rank, Transport};

/// All that can be opened without privileges and without other programs.
const NAMES: [&str; 9] = ["tcp", "tcp-spin", "tcp:cubic", "udp", "udp-spin", "unix", "unix-spin", "shm", "shm-spin"];

const PATIENCE_MS: u64 = 2000;

/// Opens a transport among threads and has each play its part.
fn among(name: &str, ranks: usize, part: impl Fn(&mut dyn Transport) + Sync) {
    let setting = |rank| Setting {
        transport: name.to_owned(),
        rank,
        ranks,
        host: "127.0.0.1".to_owned(),
        patience_ms: PATIENCE_MS,
        joins_small_sends: false,
    };
    let pending: Vec<_> = (0..ranks).map(|rank| kind::listen(&setting(rank)).expect("a rank that listens")).collect();
    let addresses: Vec<String> = pending.iter().map(|pending| pending.address().to_owned()).collect();
    std::thread::scope(|scope| {
        for (rank, pending) in pending.into_iter().enumerate() {
            let (addresses, part) = (&addresses, &part);
            scope.spawn(move || part(&mut *pending.connect(&setting(rank), addresses).expect("ranks that are joined")));
        }
    });
}

/// Content that says whose message it is, which one, and how long.
fn content(from: Rank, number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 + from * 7 + number * 3 + size) as u8).collect()
}

/// Receives one that may be lost, where messages may be.
fn receive(transport: &mut dyn Transport, from: Rank, number: usize, size: usize) -> bool {
    let mut into = vec![0; size];
    if !transport.receive(from, &mut into).expect("a channel that is open") {
        assert!(!transport.is_reliable(), "a reliable transport has lost message {number} of {size} bytes");
        return false;
    }
    // One that was given up may come late.
    let possible = if transport.is_reliable() { number..number + 1 } else { 0..number + 1 };
    let found = possible.into_iter().any(|number| into == content(from, number, size));
    assert!(found, "message {number} of {size} bytes from rank {from} is another one");
    true
}

fn order(transport: &mut dyn Transport) {
    transport.barrier().expect("a barrier");
    for (number, size) in [1, 2, 7, 8, 9, 64, 1000, 4096, 65_000, 1 << 20, 4 << 20].into_iter().enumerate() {
        if size > transport.largest_message() {
            continue;
        }
        for again in 0..3 {
            match transport.rank() {
                0 => transport.send(1, &content(0, number + again, size)).expect("sent"),
                1 => drop(receive(transport, 0, number + again, size)),
                _ => {}
            }
        }
        // Lost ones do not make later ones wrong.
        transport.barrier().expect("a barrier");
    }
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    for name in NAMES {
        among(name, 3, order);
    }
}

fn everybody_at_once(transport: &mut dyn Transport, size: usize) {
    let own = transport.rank();
    let size = size.min(transport.largest_message());
    let others: Vec<Rank> = (0..transport.ranks()).filter(|rank| *rank != own).collect();
    transport.barrier().expect("a barrier");
    for number in 0..3 {
        for to in &others {
            transport.send(*to, &content(own, number, size)).expect("sent, though nobody receives yet");
        }
        for from in &others {
            receive(transport, *from, number, size);
        }
    }
    transport.barrier().expect("a barrier");
}

#[test]
fn all_pairs_send_before_anybody_receives() {
    for name in NAMES {
        for size in [1, 1 << 10, 4 << 20] {
            among(name, 3, |transport| everybody_at_once(transport, size));
        }
    }
}

fn many_to_one(transport: &mut dyn Transport) {
    const EACH: usize = 50;
    transport.barrier().expect("a barrier");
    let mut got = vec![0; transport.ranks()];
    if transport.rank() != 0 {
        for number in 0..EACH {
            transport.send(0, &content(transport.rank(), number, 100)).expect("sent");
        }
    } else {
        while got[1..].iter().sum::<usize>() < EACH * (transport.ranks() - 1) {
            let Some(from) = transport.wait_any().expect("somebody has sent") else {
                assert!(!transport.is_reliable());
                break;
            };
            let mut into = [0; 100];
            if transport.try_receive(from, &mut into).expect("an open channel") {
                assert!(into[..] == content(from, got[from], 100), "message {} of rank {from}", got[from]);
                got[from] += 1;
                let most = got[1..].iter().max().copied().unwrap_or(0);
                let least = got[1..].iter().min().copied().unwrap_or(0);
                // All have sent, but nothing says when: who is there is served in turn. Seen only at the end.
                assert!(most <= EACH && least <= most);
            }
        }
        assert!(got[1..].iter().all(|count| *count == EACH) || !transport.is_reliable(), "{got:?}");
    }
    transport.barrier().expect("a barrier");
}

#[test]
fn whoever_sends_is_found() {
    for name in NAMES {
        among(name, 4, many_to_one);
    }
}

fn turns(transport: &mut dyn Transport) {
    const EACH: usize = 20;
    transport.barrier().expect("a barrier");
    if transport.rank() != 0 {
        (0..EACH).for_each(|number| transport.send(0, &content(transport.rank(), number, 10)).expect("sent"));
    }
    // All of it has been sent before the first look.
    transport.barrier().expect("a barrier");
    if transport.rank() == 0 && transport.is_reliable() {
        let found: Vec<Rank> = (0..3 * EACH)
            .map(|_| {
                let from = transport.wait_any().expect("there is something").expect("a rank");
                assert!(transport.receive(from, &mut [0; 10]).expect("what was promised"));
                from
            })
            .collect();
        for turn in found.chunks(3) {
            let mut turn = turn.to_vec();
            turn.sort_unstable();
            assert_eq!(turn, [1, 2, 3], "somebody was passed over: {found:?}");
        }
    }
    transport.barrier().expect("a barrier");
}

#[test]
fn nobody_is_passed_over() {
    for name in ["unix", "unix-spin", "shm", "shm-spin"] {
        among(name, 4, turns);
    }
}

fn in_pieces(transport: &mut dyn Transport) {
    const SIZE: usize = 3000;
    transport.barrier().expect("a barrier");
    if transport.rank() == 0 {
        let mut into = vec![0; SIZE];
        assert!(!transport.try_receive(1, &mut into).expect("open"), "nothing was sent");
        transport.barrier().expect("a barrier");
        let end = Instant::now() + Duration::from_secs(5);
        while !transport.try_receive(1, &mut into).expect("open") {
            if Instant::now() > end {
                assert!(!transport.is_reliable(), "nothing came");
                break;
            }
        }
        // No more than is expected: what comes next is the barrier's.
        let mut rest = vec![0; SIZE];
        let mut got = 0;
        while got < SIZE {
            match transport.receive_some(1, &mut rest[got..]).expect("open") {
                0 => break,
                n => got += n,
            }
        }
        assert!(rest == content(1, 1, SIZE) || !transport.is_reliable());
    } else {
        transport.barrier().expect("a barrier");
        (0..2).for_each(|number| transport.send(0, &content(1, number, SIZE)).expect("sent"));
    }
    transport.barrier().expect("a barrier");
}

#[test]
fn looking_does_not_wait_and_pieces_are_as_large_as_they_come() {
    for name in NAMES {
        among(name, 2, in_pieces);
    }
}

fn leaves(transport: &mut dyn Transport) {
    transport.barrier().expect("a barrier");
    if transport.rank() == 1 {
        return;
    }
    let begin = Instant::now();
    let failure = loop {
        match transport.receive(1, &mut [0; 8]) {
            Err(failure) => break failure,
            Ok(arrived) => assert!(!arrived && !transport.is_reliable()),
        }
        if let Err(failure) = transport.send(1, &[0; 8]) {
            break failure;
        }
    };
    assert!(matches!(failure, Failure::Closed { peer: 1 }), "{failure}");
    assert!(begin.elapsed() < Duration::from_millis(3 * PATIENCE_MS), "{:?}", begin.elapsed());
}

#[test]
fn a_rank_that_has_gone_is_noticed() {
    for name in NAMES {
        among(name, 2, leaves);
    }
}

fn silent(transport: &mut dyn Transport) {
    transport.barrier().expect("a barrier");
    if transport.rank() == 1 {
        std::thread::sleep(Duration::from_millis(2 * PATIENCE_MS));
        return;
    }
    let begin = Instant::now();
    let failure = transport.barrier().expect_err("rank 1 does not come");
    assert!(matches!(failure, Failure::Silent { peer: 1, .. }), "{failure}");
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(PATIENCE_MS / 2), "{waited:?}");
}

#[test]
fn patience_ends() {
    std::thread::scope(|scope| {
        for name in NAMES {
            scope.spawn(move || among(name, 2, silent));
        }
    });
}

fn reconnects(transport: &mut dyn Transport) {
    transport.barrier().expect("a barrier");
    for _ in 0..5 {
        match transport.rank() {
            // Both want rank 2 at once.
            2 => [0, 1].into_iter().for_each(|peer| transport.reconnect(peer).expect("a connection")),
            _ => transport.reconnect(2).expect("a connection"),
        }
    }
    transport.barrier().expect("the old connections are as good as before");
}

#[test]
fn connections_are_made_anew() {
    for name in ["tcp", "tcp-spin", "unix", "unix-spin"] {
        among(name, 3, reconnects);
    }
}

fn wrong_length(transport: &mut dyn Transport) {
    transport.barrier().expect("a barrier");
    match transport.rank() {
        0 => transport.send(1, &[0; 8]).expect("sent"),
        _ => match transport.receive(0, &mut [0; 9]) {
            Err(failure) => assert!(failure.to_string().contains("another length"), "{failure}"),
            Ok(arrived) => assert!(!arrived, "eight bytes were taken for nine"),
        },
    }
    transport.barrier().expect("a barrier");
}

#[test]
fn where_messages_have_borders_another_length_is_damage() {
    for name in ["udp", "udp-spin"] {
        among(name, 2, wrong_length);
    }
}
