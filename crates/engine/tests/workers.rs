//! Several engines at one UDP address: the kernel brings each packet to the one that it is for.

use ropeway_engine::{Engine, Mode, Options, Workers};
use ropeway_link::Address;
use ropeway_link::udp::{self, UdpLink};
use std::time::{Duration, Instant};

/// Half of them have an association each, whose worker its random nonce decides: that all of these meet the same one does not happen.
const CLIENTS: usize = 48;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn local() -> udp::Options {
    udp::Options::new("127.0.0.1:0".parse().unwrap())
}

fn address(engine: &Engine) -> Address {
    engine.links()[0].2
}

#[test]
fn workers_share_an_address_and_nothing_else() {
    let workers = Workers::over_udp(&Options::default(), 2, &local()).unwrap();
    let port = workers.listen(7, Mode::Messages, 2 * CLIENTS).unwrap();
    let to = address(&workers.engines()[0]);
    assert_eq!(to, address(&workers.engines()[1]));
    let server = std::thread::spawn(move || {
        let each = (0..CLIENTS).map(|_| {
            let (engine, channel) = port.accept(soon()).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 8];
                while let Ok(Some(count)) = engine.recv(channel, &mut buffer, soon()) {
                    engine.send_all(channel, &buffer[..count], soon()).unwrap();
                }
                engine.close(channel);
            })
        });
        each.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        port
    });
    // Some clients are workers themselves, so that answers are spread too.
    let spread = Workers::over_udp(&Options::default(), 2, &local()).unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            if client % 2 == 0 {
                return spread.connect(to, 7, Mode::Messages, soon()).unwrap();
            }
            let engine = Engine::new(&Options::default()).unwrap();
            let link = engine.add_link(Box::new(UdpLink::open(&local()).unwrap())).unwrap();
            let target = ropeway_engine::Target { link, address: to };
            (engine.clone(), engine.connect(target, 7, Mode::Messages, soon()).unwrap())
        })
        .collect();
    for round in 0..50u64 {
        for (engine, channel) in &clients {
            engine.send_all(*channel, &round.to_be_bytes(), soon()).unwrap();
        }
        for (engine, channel) in &clients {
            let mut buffer = [0; 8];
            assert_eq!(engine.recv(*channel, &mut buffer, soon()).unwrap(), Some(8));
            assert_eq!(u64::from_be_bytes(buffer), round);
        }
    }
    clients.iter().for_each(|(engine, channel)| engine.close(*channel));
    let port = server.join().unwrap();
    for engine in workers.engines().iter().chain(spread.engines()) {
        let counters = engine.counters();
        assert!(counters.packets_received > 0, "each has some of the work: {counters:?}");
        assert_eq!(counters.dropped_unknown_id, 0, "and none of another's: {counters:?}");
    }
    drop(port);
    assert!(workers.engines().iter().all(|engine| engine.try_accept(7).is_err()), "the port is gone");
}

#[test]
fn no_workers_or_too_many_are_refused() {
    for count in [0, ropeway_engine::MOST_WORKERS + 1] {
        assert!(Workers::over_udp(&Options::default(), count, &local()).is_err());
    }
}
