//! Tools see a running engine and change its tunables.

use ropeway_engine::control::{self, Answer, Question};
use ropeway_engine::{Engine, Mode, Options, Target};
use ropeway_link::{Address, memory};
use std::time::{Duration, Instant};

#[test]
fn an_engine_shows_its_connections_and_takes_tunables_and_is_gone_afterwards() {
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let (client, server) = (Engine::new(&Options::default()).unwrap(), Engine::new(&Options::default()).unwrap());
    let link = client.add_link(Box::new(one)).unwrap();
    server.add_link(Box::new(other)).unwrap();
    server.listen(7, Mode::Stream, 8).unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(20));
    let channel = client.connect(Target { link, address: Address::Sim(1) }, 7, Mode::Stream, deadline).unwrap();
    client.send_all(channel, &[1; 10_000], deadline).map_err(|error| error.1).unwrap();
    client.drain(channel, deadline).unwrap();

    let ours = format!("/{}.", std::process::id());
    let mine: Vec<String> = control::names().unwrap().into_iter().filter(|name| name.contains(&ours)).collect();
    assert_eq!(mine.len(), 2, "{mine:?}");
    let shown: Vec<_> = mine
        .iter()
        .map(|name| match control::ask(name, &Question::Show).unwrap() {
            Answer::Shown(shown) => *shown,
            other => panic!("{other:?}"),
        })
        .collect();
    let all: Vec<_> = shown.iter().flat_map(|shown| &shown.connections).collect();
    assert_eq!(all.len(), 2);
    assert!(all.iter().any(|connection| connection.sent_bytes == 10_000 && connection.remote_port == 7), "{all:?}");
    assert!(all.iter().any(|connection| connection.unread_bytes == 10_000 && connection.local_port == 7), "{all:?}");
    assert!(all.iter().all(|connection| connection.link == "memory" && connection.round_trip_us > 0.0), "{all:?}");

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

    drop((client, server));
    let gone = || control::names().unwrap().iter().all(|name| !name.contains(&ours));
    let limit = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < limit, "an engine's address outlives it");
        std::thread::sleep(Duration::from_millis(10));
    }
}
