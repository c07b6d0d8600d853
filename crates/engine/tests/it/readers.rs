//! Threads that read what is there already: neither each other nor the links wait for them.

use ropeway_engine::link::memory::{self, MemoryLink};
use ropeway_engine::link::{Batch, Counters, Link, Received};
use ropeway_engine::{ChannelId, Engine, Error, ErrorCode, LinkId, Mode, Options, Target};
use ropeway_link::Address;
use ropeway_testkit::proc::until;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 7;
/// For so long two threads read at the same time, however long the part is that they put back.
const READS_FOR: Duration = Duration::from_secs(3);

fn within(limit: Duration) -> Option<Instant> {
    Some(Instant::now() + limit)
}

fn soon() -> Option<Instant> {
    within(Duration::from_secs(20))
}

/// Two engines, and the first one's way to the second.
fn engines() -> (Engine, Engine, Target) {
    engines_over(|link| Box::new(link))
}

/// The same with what the first one's link is made into.
fn engines_over(made_into: impl FnOnce(MemoryLink) -> Box<dyn Link>) -> (Engine, Engine, Target) {
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let engine = |link: Box<dyn Link>| {
        // Who waits sleeps at once, as where more threads want to run than there are processors.
        let engine = Engine::new(&Options { spin: Duration::ZERO, ..Options::default() }).unwrap();
        let link: LinkId = engine.add_link(link).unwrap();
        (engine, link)
    };
    let ((client, link), (server, _)) = (engine(made_into(one)), engine(Box::new(other)));
    server.listen(PORT, Mode::Messages, 8).unwrap();
    (client, server, Target { link, address: Address::Sim(1) })
}

fn channel(client: &Engine, server: &Engine, to: Target) -> (ChannelId, ChannelId) {
    let there = client.connect(to, PORT, Mode::Messages, soon()).unwrap();
    (there, server.accept(PORT, soon()).unwrap())
}

#[test]
fn of_two_that_read_the_part_of_a_message_behind_which_the_channel_failed_neither_hangs() {
    let (client, server, to) = engines();
    let (there, back) = channel(&client, &server, to);
    // The part that came within that time is what there is of it.
    let _ = client.send_all(there, &vec![1; 24_000_000], within(Duration::from_millis(2)));
    until("a part of it", || server.links()[0].3.received_bytes > 10_000);
    drop(client);
    let ended = server.recv(back, &mut vec![0; 24_000_000], soon());
    assert!(matches!(ended, Err(Error::Failed(ErrorCode::Closed))), "{ended:?}");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = vec![0; 24_000_000];
                let begun = Instant::now();
                while begun.elapsed() < READS_FOR {
                    let ended = server.recv(back, &mut out, within(Duration::from_secs(3)));
                    assert!(matches!(ended, Err(Error::Failed(ErrorCode::Closed))), "{ended:?}");
                }
            });
        }
    });
}

#[test]
fn who_reads_what_is_there_now_and_then_does_not_keep_the_helper_from_the_links() {
    const ROUNDS: usize = 9;
    let (client, server, to) = engines();
    let (there, back) = channel(&client, &server, to);
    let (other, _other_back) = channel(&client, &server, to);
    for _ in 0..2000 {
        client.send_all(there, &[1; 8], soon()).unwrap();
    }
    client.drain(there, soon()).unwrap();
    let is_over = AtomicBool::new(false);
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && server.recv(back, &mut [0; 8], soon()).is_ok() {
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let rounds = (0..ROUNDS).map(|_| {
            std::thread::sleep(Duration::from_millis(13));
            let begun = Instant::now();
            client.send_all(other, b"acknowledge", soon()).unwrap();
            client.drain(other, soon()).unwrap();
            begun.elapsed()
        });
        let took = rounds.collect();
        is_over.store(true, Ordering::Relaxed);
        took
    });
    took.sort_unstable();
    assert!(took[ROUNDS / 2] < Duration::from_millis(8), "{took:?}");
}

/// A link on which so many packets leave, and what is sent then is lost.
struct Cut {
    link: MemoryLink,
    left: Arc<AtomicUsize>,
}

impl Link for Cut {
    fn name(&self) -> String {
        self.link.name()
    }

    fn local(&self) -> Address {
        self.link.local()
    }

    fn max_packet(&self) -> usize {
        self.link.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let count = batch.packets.len();
        let takes = |left: usize| left.checked_sub(count);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, takes) {
            Ok(_) => self.link.send(batch),
            Err(_) => Ok(count),
        }
    }

    fn receive(&mut self, most: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.link.receive(most, sink)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

#[test]
fn a_reader_that_gives_up_with_a_part_of_a_message_leaves_it_to_the_next_call() {
    const BYTES: usize = 8_000_000;
    const PACKETS_BEFORE: usize = 2000;
    let left = Arc::new(AtomicUsize::new(PACKETS_BEFORE));
    let (client, server, to) = engines_over(|link| Box::new(Cut { link, left: left.clone() }));
    let (there, back) = channel(&client, &server, to);
    let message: Vec<u8> = (0..BYTES).map(|place| (place / 1000) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| client.send_all(there, &message, soon()).map_err(|error| error.1).unwrap());
        let mut out = vec![0xEE; BYTES];
        // The second one is given parts, and has to put them back.
        for patience in [900, 1100].map(Duration::from_millis) {
            let given_up = server.recv(back, &mut out, within(patience));
            assert!(matches!(given_up, Err(Error::TimedOut)), "{given_up:?}");
            assert_eq!(out[0] == 0xEE, patience < Duration::from_secs(1), "{patience:?}");
        }
        out.fill(0xEE);
        left.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(server.recv(back, &mut out, soon()).unwrap(), Some(BYTES));
        assert!(out == message);
    });
}
