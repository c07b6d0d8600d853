//! Several engines at one UDP address, or on one Ethernet device: the kernel brings each packet to the one that it is for.

use ropeway_engine::{Engine, Error, Mode, Options, Workers, usual_packet_bytes};
use ropeway_link::packet::{self, PacketLink};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Link};
use ropeway_testkit::skip;
use std::time::{Duration, Instant};

use crate::support::{self, DEVICE, Hosts};

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

/// Clients of `workers`, half of them engines of their own that `single` makes, half spread over other workers: every message comes back. The workers have shared the packets among them.
fn all_are_served(workers: &Workers, spread: &Workers, single: impl Fn(usize) -> Engine) {
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
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            if client % 2 == 0 {
                return spread.connect(to, 7, Mode::Messages, soon()).unwrap();
            }
            let engine = single(client);
            let target = ropeway_engine::Target { link: engine.links()[0].0, address: to };
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
    for engine in workers.engines() {
        let counters = engine.counters();
        assert!(counters.packets_received > 0, "each has some of the work: {counters:?}");
        assert_eq!(counters.dropped_unknown_id, 0, "and none of another's: {counters:?}");
    }
    drop(port);
    assert!(workers.engines().iter().all(|engine| engine.try_accept(7).is_err()), "the port is gone");
}

fn engine_over(options: &Options, link: impl Link + 'static) -> Engine {
    let engine = Engine::new(options).unwrap();
    engine.add_link(Box::new(link)).unwrap();
    engine
}

#[test]
fn workers_share_an_address_and_nothing_else() {
    let workers = || Workers::over_udp(&Options::default(), 2, &local()).unwrap();
    let (served, spread) = (workers(), workers());
    all_are_served(&served, &spread, |_| engine_over(&Options::default(), UdpLink::open(&local()).unwrap()));
    assert!(spread.engines().iter().all(|engine| engine.counters().dropped_unknown_id == 0));
}

#[test]
fn workers_share_a_device() {
    if let Some(reason) = support::reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    let device = packet::Options::new(DEVICE);
    let workers = |host, steering| {
        let options = Options { steering, ..Options::default() };
        hosts.on(host, || Workers::over_packet(&options, 2, &device)).unwrap()
    };
    all_are_served(&workers(1, 0), &workers(0, 0), |client| {
        let options = Options { steering: 2 + client as u16, ..Options::default() };
        engine_over(&options, hosts.on(0, || PacketLink::open(&device)).unwrap())
    });
    let odd = Options { steering: 3, ..Options::default() };
    let error = hosts.on(1, || Workers::over_packet(&odd, 2, &device)).err().unwrap();
    assert!(error.to_string().contains("a multiple of 2, not 3"), "{error}");
}

#[test]
fn workers_listen_all_at_one_port_or_none_of_them() {
    let workers = Workers::over_udp(&Options::default(), 3, &local()).unwrap();
    let [first, second, third] = workers.engines() else { panic!("three") };
    third.listen(7, Mode::Stream, 1).unwrap();
    assert!(matches!(workers.listen(7, Mode::Stream, 3), Err(Error::Listen(_))));
    for engine in [first, second] {
        assert!(matches!(engine.try_accept(7), Err(Error::Closed)), "nobody is left to listen there");
    }
    let port = workers.listen(0, Mode::Stream, 3).unwrap();
    for engine in workers.engines() {
        assert!(matches!(engine.try_accept(port.number()), Err(Error::WouldBlock)), "it listens");
    }
}

#[test]
fn no_workers_or_too_many_are_refused() {
    for count in [0, ropeway_engine::MOST_WORKERS + 1] {
        assert!(Workers::over_udp(&Options::default(), count, &local()).is_err());
    }
}

#[test]
fn packets_are_as_long_as_an_ethernet_bears_and_over_udp_as_any_does() {
    if let Some(reason) = support::reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(9000);
    let frames = hosts.on(0, || PacketLink::open(&packet::Options::new(DEVICE))).unwrap();
    let at = std::net::SocketAddr::new(support::address(0, false), 0);
    let udp = hosts.on(0, || UdpLink::open(&udp::Options::new(at))).unwrap();
    assert_eq!((frames.max_packet(), udp.max_packet()), (9000, 8972));
    assert_eq!([usual_packet_bytes(&frames), usual_packet_bytes(&udp)], [9000, 1472]);
}
