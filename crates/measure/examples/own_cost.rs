//! What the measuring itself costs: the ping-pong of this crate over AF_UNIX sockets against a loop written by hand on such sockets, in turn, on the same two processors. The difference is the crate's own cost for an
//! operation, one message of one rank.
//!
//! `cargo run --release -p ropeway-measure --example own_cost [ROUNDS]`

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ropeway_measure::machine::{choose_cpus, pin};
use ropeway_measure::pattern::{self, Bound, Pattern, Trial};
use ropeway_measure::record::Values;
use ropeway_measure::transport::Transport;
use ropeway_measure::transport::kind::{self, Setting};

const BATCH: u32 = 16;
const SAMPLES: usize = 2000;

/// Operations of a round trip: two messages are sent and two received, one after the other.
const OPERATIONS: f64 = 4.0;

/// Spins, as the transport does: a wake-up would hide what is looked for.
fn spin(mut call: impl FnMut() -> io::Result<usize>) {
    loop {
        match call() {
            Ok(n) if n > 0 => return,
            Ok(_) => panic!("the other end has gone"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
    }
}

/// Nanoseconds of a round trip, the median of all batches.
fn by_hand(cpus: &[usize]) -> f64 {
    let (mut ours, mut theirs) = UnixStream::pair().expect("two sockets");
    ours.set_nonblocking(true).and_then(|()| theirs.set_nonblocking(true)).expect("sockets that do not block");
    let mut samples = vec![1.0; SAMPLES];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[1]).expect("a processor");
            let mut byte = [0];
            for _ in 0..SAMPLES * BATCH as usize {
                spin(|| theirs.read(&mut byte));
                spin(|| theirs.write(&byte));
            }
        });
        pin(cpus[0]).expect("a processor");
        let (sent, mut back) = ([1], [0]);
        let mut then = Instant::now();
        for sample in &mut samples {
            for _ in 0..BATCH {
                spin(|| ours.write(&sent));
                spin(|| ours.read(&mut back));
            }
            let now = Instant::now();
            *sample = (now - then).as_nanos() as f64 / f64::from(BATCH);
            then = now;
        }
    });
    middle(samples)
}

/// A rank's part of the trial.
fn part(transport: &mut dyn Transport, trial: &Trial) -> Option<Vec<f64>> {
    match pattern::run(transport, trial).expect("a trial").into_iter().next()?.values {
        Values::Samples(samples) => Some(samples),
        Values::Counts(_) => None,
    }
}

/// The same by the crate.
fn by_the_crate(cpus: &[usize]) -> f64 {
    let setting = |rank| Setting {
        transport: "unix-spin".to_owned(),
        rank,
        ranks: 2,
        host: String::new(),
        patience_ms: 10_000,
        joins_small_sends: false,
    };
    let pattern = Pattern::PingPong { batch: BATCH };
    let trial = Trial { pattern, size: 1, bound: Bound::Samples(SAMPLES as u32), warm_up_ns: 0, seed: 0 };
    let pending = [0, 1].map(|rank| kind::listen(&setting(rank)).expect("a rank"));
    let addresses: Vec<String> = pending.iter().map(|pending| pending.address().to_owned()).collect();
    let measured = std::thread::scope(|scope| {
        let ranks = pending.into_iter().enumerate().map(|(rank, pending)| {
            let (addresses, trial) = (&addresses, &trial);
            scope.spawn(move || {
                pin(cpus[rank]).expect("a processor");
                let mut transport = pending.connect(&setting(rank), addresses).expect("two ranks");
                part(&mut *transport, trial)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().find_map(|rank| rank.join().expect("no panic")).expect("the samples of rank 0")
    });
    // The crate says half of a round trip.
    middle(measured) * 2.0
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(40);
    let Ok(Some(cpus)) = choose_cpus(&[], 2) else { return eprintln!("needs two processors") };
    let mut differences = Vec::new();
    let (mut hand, mut own) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (by_hand, by_the_crate) = match round % 2 {
            0 => (by_hand(&cpus), by_the_crate(&cpus)),
            _ => {
                let first = by_the_crate(&cpus);
                (by_hand(&cpus), first)
            }
        };
        differences.push((by_the_crate - by_hand) / OPERATIONS);
        hand.push(by_hand);
        own.push(by_the_crate);
    }
    println!("round trip by hand       {:9.1} ns (median of {rounds} rounds)", middle(hand));
    println!("round trip by the crate  {:9.1} ns", middle(own));
    println!("own cost of an operation {:9.1} ns (median of the differences within rounds)", middle(differences));
}
