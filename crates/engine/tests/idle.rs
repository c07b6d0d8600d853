//! An idle engine sleeps. Alone in its process, so that every wake-up counted is its own.

use ropeway_engine::{Engine, LinkId, Mode, Options, Target};
use ropeway_link::Link;
use ropeway_link::udp::{self, UdpLink};
use std::time::{Duration, Instant};

/// Wake-ups of an idle second that are tolerated: the ends of timers of what came before.
const MOST_WAKE_UPS: u64 = 5;

fn end() -> (Engine, LinkId, ropeway_link::Address) {
    let engine = Engine::new(&Options::default()).unwrap();
    let options = udp::Options { most_packet_bytes: Some(1472), ..udp::Options::new("127.0.0.1:0".parse().unwrap()) };
    let link = UdpLink::open(&options).unwrap();
    let address = link.local();
    let link = engine.add_link(Box::new(link)).unwrap();
    (engine, link, address)
}

/// Times that the threads of engines went to sleep, which is how often they were awake.
fn sleeps_of_helpers() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let helpers: Vec<String> = statuses.filter(|status| status.starts_with("Name:\tropeway\n")).collect();
    assert_eq!(helpers.len(), 2, "one helper for each engine");
    let sleeps = |status: &String| -> u64 {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    helpers.iter().map(sleeps).sum()
}

#[test]
fn a_connection_without_traffic_wakes_nobody() {
    let soon = || Some(Instant::now() + Duration::from_secs(20));
    let ((client, link, _), (server, _, address)) = (end(), end());
    server.listen(7, Mode::Stream, 8).unwrap();
    let channel = client.connect(Target { link, address }, 7, Mode::Stream, soon()).unwrap();
    let accepted = server.accept(7, soon()).unwrap();
    for _ in 0..100 {
        client.send_all(channel, b"hello", soon()).unwrap();
        assert_eq!(server.recv(accepted, &mut [0; 16], soon()).unwrap(), Some(5));
    }
    std::thread::sleep(Duration::from_millis(500));
    let before = sleeps_of_helpers();
    std::thread::sleep(Duration::from_secs(1));
    let woken = sleeps_of_helpers() - before;
    assert!(woken <= MOST_WAKE_UPS, "{woken} wake-ups in an idle second");
    // And it still lives.
    client.send_all(channel, b"again", soon()).unwrap();
    assert_eq!(server.recv(accepted, &mut [0; 16], soon()).unwrap(), Some(5));
}
