//! Hosts with several addresses: who listens at all of them is reached at each, and nobody is led astray by what comes to another one.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ropeway_engine::{ChannelId, Engine, LinkId, Mode, Options, Target, Workers};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Batch, Counters, Link, Received};
use ropeway_testkit::skip;

#[path = "../../link/tests/support/mod.rs"]
mod support;
use support::{Hosts, reason_against_hosts};

const PORT: u16 = 7;
/// Enough for segmented sends, and for as many acknowledgments.
const BYTES: usize = 1_000_000;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// Packets that every device here bears.
fn options(local: &str) -> udp::Options {
    udp::Options { most_packet_bytes: Some(1300), ..udp::Options::new(local.parse().unwrap()) }
}

fn engine(link: impl Link + 'static) -> (Engine, LinkId) {
    let engine = Engine::new(&Options::default()).unwrap();
    let link = engine.add_link(Box::new(link)).unwrap();
    (engine, link)
}

fn engine_at(local: &str) -> (Engine, LinkId) {
    engine(UdpLink::open(&options(local)).unwrap())
}

fn port(engine: &Engine) -> u16 {
    let Address::Udp(local) = engine.links()[0].2 else { panic!("it is UDP") };
    local.port()
}

fn at(ip: &str, port: u16) -> Address {
    Address::Udp(SocketAddr::new(ip.parse().unwrap(), port))
}

fn counters(engine: &Engine) -> Counters {
    engine.links()[0].3
}

/// Opens a connection; the ends of it, with the client's engine first.
fn connect(client: &(Engine, LinkId), server: &Engine, to: Address) -> (ChannelId, ChannelId) {
    let target = Target { link: client.1, address: to };
    let channel = client.0.connect(target, PORT, Mode::Stream, soon()).unwrap_or_else(|error| panic!("{to}: {error}"));
    (channel, server.accept(PORT, soon()).unwrap())
}

/// Bytes both ways, all of them verified.
fn talk(ends: [(&Engine, ChannelId); 2]) {
    for [(from, sending), (to, receiving)] in [ends, [ends[1], ends[0]]] {
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at ^ (at >> 8)) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| from.send_all(sending, &bytes, soon()).map_err(|(_, error)| error).unwrap());
            let mut seen = vec![0; BYTES];
            let mut count = 0;
            while count < BYTES {
                count += to.recv(receiving, &mut seen[count..], soon()).unwrap().expect("more to come");
            }
            assert!(seen == bytes);
        });
    }
}

#[test]
fn who_listens_at_a_wildcard_is_reached_at_every_address() {
    for client_at in ["127.0.0.1:0", "0.0.0.0:0"] {
        let (server, _) = engine_at("0.0.0.0:0");
        server.listen(PORT, Mode::Stream, 8).unwrap();
        let client = engine_at(client_at);
        // At each a second time, over the association that is there.
        for ip in ["127.0.0.2", "127.0.0.1", "127.4.5.6", "127.0.0.2"] {
            let asked = at(ip, port(&server));
            let before = counters(&server);
            let (ours, theirs) = connect(&client, &server, asked);
            talk([(&client.0, ours), (&server, theirs)]);
            let after = counters(&server);
            assert!(after.sent_bytes - before.sent_bytes > BYTES as u64, "it went over UDP");
            assert!(after.received_bytes - before.received_bytes > BYTES as u64, "it went over UDP");
            assert_eq!((server.own_address_of(theirs), client.0.own_address_of(ours)), (Some(asked), None));
        }
        assert_eq!(server.counters().associations_opened, 3, "one for each address");
        for engine in [&server, &client.0] {
            let protocol = engine.counters();
            assert_eq!((protocol.dropped_foreign_path, protocol.dropped_unasked), (0, 0));
            assert_eq!((counters(engine).send_errors, counters(engine).send_fallbacks), (0, 0));
        }
    }
}

#[test]
fn who_was_reached_connects_back_over_the_same_association() {
    let [one, other] = ["0.0.0.0:0"; 2].map(engine_at);
    for (engine, _) in [&one, &other] {
        engine.listen(PORT, Mode::Stream, 8).unwrap();
    }
    let (ours, theirs) = connect(&one, &other.0, at("127.0.0.2", port(&other.0)));
    // The other knows this end as 127.0.0.1, which the host chose for it.
    let (back, accepted) = connect(&other, &one.0, at("127.0.0.1", port(&one.0)));
    talk([(&one.0, ours), (&other.0, theirs)]);
    talk([(&other.0, back), (&one.0, accepted)]);
    for engine in [&one.0, &other.0] {
        assert_eq!(engine.counters().associations_opened, 1);
    }
}

#[test]
fn workers_at_a_wildcard_are_reached_at_every_address() {
    let workers = Workers::over_udp(&Options::default(), 3, &options("0.0.0.0:0")).unwrap();
    let listening = workers.listen(PORT, Mode::Stream, 64).unwrap();
    let to = port(&workers.engines()[0]);
    for number in 0..24 {
        let client = engine_at("0.0.0.0:0");
        let asked = at(["127.0.0.1", "127.0.0.2", "127.0.0.3"][number % 3], to);
        let target = Target { link: client.1, address: asked };
        let ours = client.0.connect(target, PORT, Mode::Stream, soon()).unwrap();
        let (server, theirs) = listening.accept(soon()).unwrap();
        talk([(&client.0, ours), (&server, theirs)]);
        assert_eq!(server.own_address_of(theirs), Some(asked));
    }
    let busy = workers.engines().iter().filter(|engine| engine.counters().associations_opened > 0).count();
    assert!(busy > 1, "that all 24 meet the same one does not happen");
}

/// A link whose packets go to another address as well, from the same one: whoever sends them there, the other end cannot tell.
struct Forging {
    inner: UdpLink,
    also_to: SocketAddr,
    forged: Arc<AtomicU64>,
    /// Who answered.
    heard: Arc<Mutex<Vec<Address>>>,
}

impl Link for Forging {
    fn name(&self) -> String {
        "forging".into()
    }

    fn local(&self) -> Address {
        self.inner.local()
    }

    fn max_packet(&self) -> usize {
        self.inner.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let packets: Vec<IoSlice<'_>> = batch.packets.to_vec();
        let sent = self.inner.send(&Batch { to: Address::Udp(self.also_to), packets: &packets, ..*batch })?;
        self.forged.fetch_add(sent as u64, Ordering::Relaxed);
        self.inner.send(batch)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let heard = &self.heard;
        self.inner.receive(limit, &mut |packet| {
            heard.lock().unwrap().push(packet.from);
            sink(packet);
        })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

#[test]
fn a_packet_that_is_forged_to_another_address_changes_nothing() {
    let (server, _) = engine_at("0.0.0.0:0");
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let asked = at("127.0.0.2", port(&server));
    let (forged, heard) = (Arc::default(), Arc::default());
    let also_to = SocketAddr::from(([127, 0, 0, 3], port(&server)));
    let inner = UdpLink::open(&options("127.0.0.1:0")).unwrap();
    let client = engine(Forging { inner, also_to, forged: Arc::clone(&forged), heard: Arc::clone(&heard) });
    let (ours, theirs) = connect(&client, &server, asked);
    // What opens is answered by who is asked for it; from then on the path is known.
    heard.lock().unwrap().clear();
    let (forged_before, before) = (forged.load(Ordering::Relaxed), server.counters());
    talk([(&client.0, ours), (&server, theirs)]);
    let (forged_after, after) = (forged.load(Ordering::Relaxed), server.counters());
    assert!(forged_after > forged_before + 100, "{forged_before} to {forged_after}");
    assert!(after.dropped_foreign_path > before.dropped_foreign_path + 100, "{after:?}");
    assert_eq!(after.dropped_duplicate, before.dropped_duplicate, "none of them was taken");
    let heard = heard.lock().unwrap();
    assert!(heard.len() > 100 && heard.iter().all(|from| *from == asked), "answers from elsewhere");
    assert_eq!(server.own_address_of(theirs), Some(asked));
}

/// An engine on a host of these, at its wildcard.
fn on(hosts: &Hosts, host: usize, v6: bool) -> (Engine, LinkId) {
    let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
    engine(hosts.on(host, || UdpLink::open(&options(any))).unwrap())
}

#[test]
fn further_addresses_of_a_device_and_those_of_other_devices_are_reached() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    for further in
        ["10.90.0.7/24 dev eth0", "10.92.0.7/32 dev lo", "fd00::7/64 dev eth0 nodad", "fd02::7/128 dev lo nodad"]
    {
        hosts.ip(1, &format!("address add {further}"));
    }
    hosts.ip(0, "route add 10.92.0.7 via 10.90.0.2");
    hosts.ip(0, "route add fd02::7 via fd00::2");
    for (v6, all) in [(false, ["10.90.0.7", "10.90.0.2", "10.92.0.7"]), (true, ["fd00::7", "fd00::2", "fd02::7"])] {
        let ((server, _), client) = (on(&hosts, 1, v6), on(&hosts, 0, v6));
        server.listen(PORT, Mode::Stream, 8).unwrap();
        for ip in all {
            let (ours, theirs) = connect(&client, &server, at(ip, port(&server)));
            talk([(&client.0, ours), (&server, theirs)]);
            assert_eq!(server.own_address_of(theirs), Some(at(ip, port(&server))));
        }
        assert_eq!(counters(&server).send_errors, 0);
    }
}

#[test]
fn an_address_that_is_taken_away_takes_its_connections_along_and_no_others() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let hosts = Hosts::new(1500);
    hosts.ip(1, "address add 10.90.0.7/24 dev eth0");
    let ((server, link), client) = (on(&hosts, 1, false), on(&hosts, 0, false));
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let [gone, stays] = ["10.90.0.7", "10.90.0.2"].map(|ip| connect(&client, &server, at(ip, port(&server))));
    talk([(&client.0, gone.0), (&server, gone.1)]);
    hosts.ip(1, "address del 10.90.0.7/24 dev eth0");
    server.send_all(gone.1, b"into the void", soon()).unwrap();
    let lost = || counters(&server).send_errors > 0;
    while !lost() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!server.has_failed(link));
    talk([(&client.0, stays.0), (&server, stays.1)]);
    // It comes back before anybody has given up.
    hosts.ip(1, "address add 10.90.0.7/24 dev eth0");
    let mut word = [0; 13];
    assert_eq!(client.0.recv(gone.0, &mut word, soon()).unwrap(), Some(13));
    assert_eq!(&word, b"into the void");
}
