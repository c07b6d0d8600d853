//! Tools see a running engine and change its tunables.

use ropeway_engine::control::{self, Answer, Question};
use ropeway_engine::{Engine, Mode, Options, Target};
use ropeway_link::{Address, Batch, Counters, Link, Received, memory};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A link whose device goes away when somebody says so.
struct Mortal<L> {
    link: L,
    is_gone: Arc<AtomicBool>,
}

impl<L: Link> Link for Mortal<L> {
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
        self.link.send(batch)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        match self.is_gone.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => self.link.receive(limit, sink),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }
}

#[test]
fn an_engine_shows_its_connections_and_takes_tunables_and_is_gone_afterwards() {
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let (client, server) = (Engine::new(&Options::default()).unwrap(), Engine::new(&Options::default()).unwrap());
    let is_gone = Arc::new(AtomicBool::new(false));
    let link = client.add_link(Box::new(Mortal { link: one, is_gone: is_gone.clone() })).unwrap();
    server.add_link(Box::new(other)).unwrap();
    server.listen(7, Mode::Stream, 8).unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    let channel = client.connect(Target { link, address: Address::Sim(1) }, 7, Mode::Stream, deadline).unwrap();
    client.send_all(channel, &[1; 10_000], deadline).map_err(|error| error.1).unwrap();
    client.drain(channel, deadline).unwrap();

    let ours = format!("/{}.", std::process::id());
    let mine: Vec<String> = control::names().unwrap().into_iter().filter(|name| name.contains(&ours)).collect();
    assert_eq!(mine.len(), 2, "{mine:?}");
    let show = |name: &String| match control::ask(name, &Question::Show).unwrap() {
        Answer::Shown(shown) => *shown,
        other => panic!("{other:?}"),
    };
    let shown: Vec<_> = mine.iter().map(show).collect();
    let all: Vec<_> = shown.iter().flat_map(|shown| &shown.connections).collect();
    assert_eq!(all.len(), 2);
    assert!(all.iter().any(|connection| connection.sent_bytes == 10_000 && connection.remote_port == 7), "{all:?}");
    assert!(all.iter().any(|connection| connection.unread_bytes == 10_000 && connection.local_port == 7), "{all:?}");
    assert!(all.iter().all(|connection| connection.link == "memory" && connection.round_trip_us > 0.0), "{all:?}");
    assert!(all.iter().all(|connection| connection.credit_bytes > 0 && connection.expired_messages == 0), "{all:?}");
    assert!(shown.iter().all(|shown| !shown.gate_unshared), "{shown:?}");

    let set = |name: &str, value: &str| {
        let question = Question::Set { name: name.into(), value: value.into() };
        control::ask(&mine[0], &question).unwrap()
    };
    assert!(matches!(set("port_buffer", "65536"), Answer::Set { before } if before == "131072"));
    assert!(matches!(set("order", "srpt"), Answer::Set { before } if before == "fifo"));
    assert!(matches!(set("order", "lifo"), Answer::Error(text) if text.contains("fifo or srpt or fair")));
    assert!(matches!(set("port_buffer", "1"), Answer::Error(text) if text.contains("16384")));
    assert!(matches!(set("nonsense", "1"), Answer::Error(text) if text.contains("tune list")));
    assert!(matches!(set("receive_memory", "1048576"), Answer::Error(text) if text.contains("ROPEWAY_TUNE")));
    assert!(matches!(set("receive_memory", "536870912"), Answer::Set { before } if before == "268435456"));
    let Answer::Tunables(values) = control::ask(&mine[0], &Question::Tunables).unwrap() else { panic!() };
    assert_eq!(values.iter().find(|value| value.name == "port_buffer").unwrap().value, 65_536);

    let failed = || mine.iter().map(|name| show(name).links[0].failed).collect::<Vec<_>>();
    assert_eq!(failed(), [false, false]);
    is_gone.store(true, Ordering::Relaxed);
    client.send_all(channel, &[1; 10], deadline).map_err(|error| error.1).unwrap();
    // The client is the only one, and looks at its link at the latest when it asks whether that arrived.
    let limit = Instant::now() + Duration::from_secs(10);
    while !failed().contains(&true) {
        assert!(Instant::now() < limit, "a link that failed is not shown");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(failed().contains(&false));

    drop((client, server));
    let gone = || control::names().unwrap().iter().all(|name| !name.contains(&ours));
    let limit = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < limit, "an engine's address outlives it");
        std::thread::sleep(Duration::from_millis(10));
    }
}
