//! Servers that wait by epoll or poll while the carriers of their connections change all the time: no byte and no wake-up
//! is lost. Replay a failure with `ROPEWAY_CHAOS=<seed>:<period> cargo test -p ropeway-socket --test readiness_chaos`.

mod support;

use ropeway_socket::settings;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::Duration;
use support::*;

const CONNECTIONS: usize = 12;
const ROUNDS: usize = 400;
/// A wake-up that is lost would be noticed by a wait that never ends; this one ends a little earlier, and fails.
const LOST_MS: i32 = 10_000;

fn start() {
    static START: Once = Once::new();
    static CHAOS: OnceLock<std::ffi::CString> = OnceLock::new();
    START.call_once(|| {
        let chaos = std::env::var("ROPEWAY_CHAOS").unwrap_or_else(|_| "11:40".into());
        let chaos = CHAOS.get_or_init(|| std::ffi::CString::new(chaos).expect("no NUL"));
        settings::init(|name| if name == b"ROPEWAY_CHAOS" { chaos.as_ptr().cast() } else { std::ptr::null() });
    });
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Sends pieces of many sizes and wants each back.
fn client(end: &End, seed: u64) {
    let mut numbers = Numbers(seed * 77 + 1);
    let mut back = vec![0u8; 40_000];
    for round in 0..ROUNDS {
        let most = if numbers.below(10) == 0 { 40_000 } else { 100 };
        let piece = vec![(round % 251) as u8; 1 + numbers.below(most) as usize];
        // The echo starts before all is sent, so more than fits into the buffers on the way would never go through.
        assert_eq!(end.send(&piece), piece.len() as isize);
        let mut at = 0;
        while at < piece.len() {
            let got = end.recv(&mut back[at..piece.len()]);
            assert!(got > 0, "recv answered {got} in round {round}");
            at += got as usize;
        }
        assert_eq!(back[..at], piece[..], "round {round}");
        if numbers.below(30) == 0 {
            thread::sleep(Duration::from_micros(numbers.below(3000)));
        }
    }
    assert_eq!(end.shutdown(libc::SHUT_WR), 0);
    assert_eq!(end.recv(&mut back), 0);
}

/// One connection of a server: what came in and has not gone out yet.
struct Echo {
    end: End,
    pending: Vec<u8>,
    over: bool,
}

impl Echo {
    fn new(end: End) -> Echo {
        end.nonblocking(true);
        Echo { end, pending: Vec::new(), over: false }
    }

    /// Moves all that can be moved. True when the connection is over.
    fn step(&mut self) -> bool {
        let mut piece = vec![0u8; 16_384];
        loop {
            match self.end.recv(&mut piece) {
                0 => {
                    self.over = true;
                    break;
                }
                n if n > 0 => self.pending.extend_from_slice(&piece[..n as usize]),
                n => break assert_eq!(n, -(libc::EAGAIN as isize)),
            }
        }
        while !self.pending.is_empty() {
            match self.end.send(&self.pending) {
                n if n > 0 => drop(self.pending.drain(..n as usize)),
                n => {
                    assert_eq!(n, -(libc::EAGAIN as isize));
                    break;
                }
            }
        }
        self.over && self.pending.is_empty()
    }
}

/// Runs clients against `serve`, which gets the other ends.
fn run(what: &'static str, serve: impl FnOnce(Vec<Echo>) + Send + 'static) {
    start();
    within(Duration::from_secs(100), what, move || {
        let (clients, servers): (Vec<End>, Vec<Echo>) =
            (0..CONNECTIONS).map(|_| connected()).map(|(a, b)| (a, Echo::new(b))).unzip();
        let ends: Vec<_> = servers.iter().map(|echo| echo.end.h).collect();
        thread::scope(|scope| {
            scope.spawn(move || serve(servers));
            for (i, end) in clients.iter().enumerate() {
                scope.spawn(move || client(end, i as u64 + 1));
            }
        });
        let promoted: u32 = clients.iter().map(|c| c.h.sock().promotions.load(Ordering::Relaxed)).sum();
        assert_eq!(ends.len(), CONNECTIONS);
        assert!(promoted > 2 * CONNECTIONS as u32, "{promoted} promotions are no chaos");
    });
}

/// What a level-triggered program asks for.
fn level_events(echo: &Echo) -> u32 {
    (if echo.over { 0 } else { IN }) | (if echo.pending.is_empty() { 0 } else { OUT })
}

#[test]
fn a_level_triggered_server_echoes_everything() {
    run("level", |mut all| {
        let set = Set::new();
        let mut asked = vec![IN; all.len()];
        all.iter().enumerate().for_each(|(i, echo)| set.add(&echo.end, IN, i as u64));
        let mut left = all.len();
        while left > 0 {
            let got = set.wait_max(4, LOST_MS);
            assert!(!got.is_empty(), "a wake-up was lost with {left} connections left");
            for (_, i) in got {
                let i = i as usize;
                if all[i].step() {
                    assert_eq!(set.delete(&all[i].end), 0);
                    all[i].end.shutdown(libc::SHUT_RDWR);
                    left -= 1;
                } else if level_events(&all[i]) != asked[i] {
                    asked[i] = level_events(&all[i]);
                    set.modify(&all[i].end, asked[i], i as u64);
                }
            }
        }
    });
}

#[test]
fn an_edge_triggered_server_echoes_everything() {
    run("edge", |mut all| {
        let set = Set::new();
        all.iter().enumerate().for_each(|(i, echo)| set.add(&echo.end, IN | OUT | RDHUP | ET, i as u64));
        let mut left = all.len();
        while left > 0 {
            let got = set.wait_max(5, LOST_MS);
            assert!(!got.is_empty(), "an edge was lost with {left} connections left");
            for (_, i) in got {
                if all[i as usize].step() {
                    assert_eq!(set.delete(&all[i as usize].end), 0);
                    all[i as usize].end.shutdown(libc::SHUT_RDWR);
                    left -= 1;
                }
            }
        }
    });
}

#[test]
fn a_server_of_several_threads_with_oneshot_members_echoes_everything() {
    run("oneshot", |all| {
        let set = Set::new();
        let all: Vec<std::sync::Mutex<Echo>> = all.into_iter().map(std::sync::Mutex::new).collect();
        let left = AtomicUsize::new(all.len());
        for (i, echo) in all.iter().enumerate() {
            set.add(&echo.lock().expect("echo").end, IN | ONESHOT, i as u64);
        }
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while left.load(Ordering::SeqCst) > 0 {
                        let mut idle = 0;
                        let got = loop {
                            let got = set.wait_max(1, 100);
                            idle += 100;
                            if !got.is_empty() || left.load(Ordering::SeqCst) == 0 {
                                break got;
                            }
                            assert!(idle < LOST_MS, "a wake-up was lost");
                        };
                        for (_, i) in got {
                            let mut echo = all[i as usize].try_lock().expect("a oneshot member wakes one thread");
                            if echo.step() {
                                assert_eq!(set.delete(&echo.end), 0);
                                echo.end.shutdown(libc::SHUT_RDWR);
                                left.fetch_sub(1, Ordering::SeqCst);
                            } else {
                                let (h, fd, events) = (echo.end.h, echo.end.fd, level_events(&echo) | ONESHOT);
                                // Once armed, another thread may have it: the lock must be free by then.
                                drop(echo);
                                assert!(h.is_current());
                                assert_eq!(set.ctl(libc::EPOLL_CTL_MOD, fd, events, i), 0);
                            }
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn a_server_that_polls_echoes_everything() {
    run("poll", |mut all| {
        let mut left = all.len();
        while left > 0 {
            let asked: Vec<(i32, i16)> = all
                .iter()
                .map(|echo| {
                    let done = echo.over && echo.pending.is_empty();
                    (if done { -1 } else { echo.end.fd }, level_events(echo) as i16)
                })
                .collect();
            let (n, shown) = poll_on(&asked, LOST_MS);
            assert!(n > 0, "a wake-up was lost with {left} connections left");
            for (i, _) in shown.iter().enumerate().filter(|(_, events)| **events != 0) {
                if all[i].step() {
                    all[i].end.shutdown(libc::SHUT_RDWR);
                    left -= 1;
                }
            }
        }
    });
}
