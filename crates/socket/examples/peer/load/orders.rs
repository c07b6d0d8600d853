//! The end that asks: its threads, and the orders that it gets.

use super::random::Random;
use super::watchdog::{self, Watched};
use super::work::{self, Peer};
use super::{end, events, now_ms, say};
use serde_json::json;
use std::io::{self, BufRead};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What the threads are to do, and do.
struct State {
    may_begin: bool,
    at_work: usize,
}

static STATE: Mutex<State> = Mutex::new(State { may_begin: false, at_work: 0 });
/// Tells of every change of it: who has nothing to do sleeps.
static CHANGED: Condvar = Condvar::new();

/// The longest pause of a thread between two pieces of work: two processors are to serve all hosts of a box.
const LONGEST_PAUSE_MS: u64 = 60;

type Work = fn(&Peer, &mut Random, &Watched) -> io::Result<u64>;

/// A thread for each.
const KINDS: [(&str, Work); 8] = [
    ("echo", work::echo),
    ("echo", work::echo),
    ("up", work::up),
    ("slow reader", work::slow_reader),
    ("messages", work::messages),
    ("short", work::many_short),
    ("quit", work::quit),
    ("events", events::echo),
];

pub fn load(seed: u64, peers: &[&str]) -> io::Result<()> {
    watchdog::start(watchdog::patience());
    let peers: Vec<Peer> = peers.iter().map(|text| text.parse()).collect::<io::Result<_>>()?;
    for (number, (name, kind)) in (0..).zip(KINDS) {
        let peers = peers.clone();
        std::thread::spawn(move || work_for_ever(name, kind, &peers, Random::new(seed ^ (number << 48))));
    }
    say(json!({ "event": "ready" }));
    for order in io::stdin().lock().lines() {
        match order?.as_str() {
            "go" => {
                state().may_begin = true;
                CHANGED.notify_all();
            }
            "quiet" => {
                state().may_begin = false;
                drop(CHANGED.wait_while(state(), |state| state.at_work > 0));
                say(json!({ "event": "quiet" }));
            }
            "probe" => {
                let watched = Watched::new("probe");
                for peer in &peers {
                    let began = now_ms();
                    say(end("probe", &peer.name, began, &work::probe(peer, &watched)));
                }
                say(json!({ "event": "probed" }));
            }
            "show" => say(json!({ "event": "shown", "open": state().at_work })),
            other => return Err(crate::wrong(&format!("no such order: {other}"))),
        }
    }
    say(json!({ "event": "over" }));
    Ok(())
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().expect("no panics")
}

fn work_for_ever(name: &str, kind: Work, peers: &[Peer], mut random: Random) {
    let watched = Watched::new(name);
    loop {
        CHANGED.wait_while(state(), |state| !state.may_begin).expect("no panics").at_work += 1;
        let peer = &peers[random.below(peers.len() as u64) as usize];
        let began = now_ms();
        let result = kind(peer, &mut random, &watched);
        say(end(name, &peer.name, began, &result));
        state().at_work -= 1;
        CHANGED.notify_all();
        std::thread::sleep(Duration::from_millis(random.below(LONGEST_PAUSE_MS)));
    }
}
