//! Engines that talk through gateways, and over several links, in real time: gateways die, links fail, and the stream goes on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropeway_engine::gateway::{self, Gateway, Limits, Neighbour};
use ropeway_engine::link::fault::FaultLink;
use ropeway_engine::link::memory::{self, MemoryLink};
use ropeway_engine::link::udp::{self, UdpLink};
use ropeway_engine::link::{Address, Faults, Link, PER_MILLION};
use ropeway_engine::{
    ChannelId, ClusterKey, ClusterKeys, Config, Engine, Error, ErrorCode, LinkId, Mode, Options, Routes, Target, Way,
};

const PORT: u16 = 7;
/// For everything that takes no time on an idle machine.
const LIMIT: Duration = Duration::from_secs(30);
const CLIENT: u32 = 1;
const SERVER: u32 = 3;

/// One test at a time: all engines of a host share its budget, and with more of them than quanta they take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn deadline() -> Option<Instant> {
    Some(Instant::now() + LIMIT)
}

fn engine(node: u32, links: Vec<Box<dyn Link>>) -> (Engine, Vec<LinkId>) {
    engine_with(None, node, links)
}

fn engine_with(keys: Option<Arc<ClusterKeys>>, node: u32, links: Vec<Box<dyn Link>>) -> (Engine, Vec<LinkId>) {
    let packet_bytes = links.iter().map(|link| link.max_packet()).min().expect("a link") as u16;
    let config = Config { packet_bytes, ..Config::default() };
    let options = Options { config, keys, node: Some(node.into()), gateways: true, ..Options::default() };
    let engine = Engine::new(&options).unwrap();
    let links = links.into_iter().map(|link| engine.add_link(link).unwrap()).collect();
    (engine, links)
}

/// A gateway on a thread of its own.
struct Running {
    gateway: Gateway,
    thread: Option<std::thread::JoinHandle<Result<(), Error>>>,
}

impl Running {
    fn start(links: Vec<Box<dyn Link>>, table: &[Neighbour]) -> Running {
        let mut running = Running { gateway: Gateway::new(links, table, Limits::default()).unwrap(), thread: None };
        running.revive();
        running
    }

    fn revive(&mut self) {
        let gateway = self.gateway.clone();
        self.thread = Some(std::thread::spawn(move || gateway.run()));
    }

    fn kill(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.gateway.stop();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn boxed(link: MemoryLink) -> Box<dyn Link> {
    Box::new(link)
}

/// A client and a server that share nothing but two gateways.
struct Apart {
    client: Engine,
    server: Engine,
    gateways: [Running; 2],
    ways: [Way; 2],
}

impl Apart {
    fn new() -> Apart {
        Apart::with(None)
    }

    fn with(keys: Option<Arc<ClusterKeys>>) -> Apart {
        // The first hub is the client's side, the second the server's; members 1 and 2 of both are the gateways'.
        let side = || {
            let mut members = memory::hub(3, memory::Config::default()).unwrap().into_iter();
            [members.next(), members.next(), members.next()].map(|member| boxed(member.unwrap()))
        };
        let ([client, near_one, near_two], [server, far_one, far_two]) = (side(), side());
        let table = [(CLIENT, 0), (SERVER, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(0) });
        let gateways = [vec![near_one, far_one], vec![near_two, far_two]].map(|links| Running::start(links, &table));
        let (client, link) = engine_with(keys.clone(), CLIENT, vec![client]);
        let (server, _) = engine_with(keys, SERVER, vec![server]);
        let way = |gateway| Way::Through(Target { link: link[0], address: Address::Sim(gateway) }, SERVER);
        Apart { client, server, gateways, ways: [way(1), way(2)] }
    }

    fn connect(&self) -> (ChannelId, ChannelId) {
        self.server.listen(PORT, Mode::Stream, 8).unwrap();
        let routes = Routes { ways: &self.ways, bonded: false };
        let client = self.client.connect_over(&routes, PORT, Mode::Stream, deadline()).unwrap();
        (client, self.server.accept(PORT, deadline()).unwrap())
    }
}

fn pattern(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Sends `total` bytes and checks each; calls `at_half` when half of them have arrived.
fn carry(from: (&Engine, ChannelId), to: (&Engine, ChannelId), total: usize, at_half: impl FnOnce()) {
    let (engine, channel) = (from.0.clone(), from.1);
    let sender = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..total).map(pattern).collect();
        for piece in bytes.chunks(50_000) {
            engine.send_all(channel, piece, deadline()).unwrap();
        }
    });
    let (mut received, mut at_half, mut out) = (0, Some(at_half), vec![0; 65_536]);
    while received < total {
        let count = to.0.recv(to.1, &mut out, deadline()).unwrap().expect("not the end yet");
        out[..count].iter().enumerate().for_each(|(at, &byte)| assert_eq!(byte, pattern(received + at)));
        received += count;
        if received >= total / 2 {
            at_half.take().into_iter().for_each(|act| act());
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_stream_goes_on_through_the_other_gateway_when_one_dies() {
    let _alone = alone();
    goes_on(Apart::new());
}

#[test]
fn with_a_key_as_well_of_which_gateways_know_nothing() {
    let _alone = alone();
    goes_on(Apart::with(Some(Arc::new(ClusterKeys::one(ClusterKey::new(std::array::from_fn(|at| at as u8)))))));
}

fn goes_on(mut apart: Apart) {
    let (client, server) = apart.connect();
    let mut before = 0;
    let gateways = &mut apart.gateways;
    carry((&apart.client, client), (&apart.server, server), 8_000_000, || {
        // The default is mostly the first one: on a busy machine its answer may have come too late.
        gateways.sort_by_key(|running| std::cmp::Reverse(running.gateway.counters().forwarded));
        before = gateways[1].gateway.counters().forwarded;
        gateways[0].kill();
    });
    let after = apart.gateways[1].gateway.counters().forwarded;
    assert!(after > before + 2_000, "{before} packets through the other one before, {after} then");
    // The same association: nobody has opened anything anew.
    assert_eq!(apart.server.counters().associations_opened, 1);
    assert!(apart.client.counters().defaults_changed >= 1);
    carry((&apart.server, server), (&apart.client, client), 1_000_000, || ());
    for gateway in &apart.gateways {
        let counters = gateway.gateway.counters();
        assert!(counters.forwarded > 0 && counters.dropped() == counters.dropped_full, "{counters:?}");
    }
}

#[test]
fn a_gateway_that_is_started_anew_is_used_again_as_it_keeps_nothing() {
    let _alone = alone();
    let mut apart = Apart::new();
    let (client, server) = apart.connect();
    apart.gateways[0].kill();
    carry((&apart.client, client), (&apart.server, server), 2_000_000, || ());
    let before = apart.gateways[0].gateway.counters().forwarded;
    apart.gateways[0].revive();
    apart.gateways[1].kill();
    carry((&apart.client, client), (&apart.server, server), 2_000_000, || ());
    assert!(apart.gateways[0].gateway.counters().forwarded > before + 1000);
}

#[test]
fn what_a_gateway_has_counted_can_be_asked_for() {
    let _alone = alone();
    let apart = Apart::new();
    let name = apart.gateways[0].gateway.tell().unwrap();
    let (client, server) = apart.connect();
    carry((&apart.client, client), (&apart.server, server), 100_000, || ());
    assert!(gateway::names().unwrap().contains(&name));
    let shown = gateway::ask(&name).unwrap();
    assert_eq!((shown.pid, shown.links.len()), (std::process::id(), 2));
    assert!(shown.counters["forwarded"] > 70, "{shown:?}");
}

#[test]
fn what_is_longer_than_the_link_beyond_a_gateway_bears_is_counted_as_such() {
    let _alone = alone();
    let pair = |max_packet| memory::pair(memory::Config { max_packet, ..memory::Config::default() }).unwrap();
    let ((client, near), (far, server)) = (pair(9000), pair(1500));
    let table =
        [(CLIENT, 0, 0), (SERVER, 1, 1)].map(|(node, link, at)| Neighbour { node, link, address: Address::Sim(at) });
    let running = Running::start(vec![boxed(near), boxed(far)], &table);
    let (client, links) = engine_with(None, CLIENT, vec![boxed(client)]);
    let (server, _) = engine_with(None, SERVER, vec![boxed(server)]);
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let ways = [Way::Through(Target { link: links[0], address: Address::Sim(1) }, SERVER)];
    let soon = Some(Instant::now() + Duration::from_millis(200));
    let refused = client.connect_over(&Routes { ways: &ways, bonded: false }, PORT, Mode::Stream, soon);
    let counters = running.gateway.counters();
    assert!(refused.is_err() && counters.received > 0, "{refused:?} {counters:?}");
    assert_eq!((counters.forwarded, counters.dropped_too_long), (0, counters.received), "{counters:?}");
}

#[test]
fn without_a_number_nobody_talks_through_gateways() {
    let _alone = alone();
    let (one, _other) = memory::pair(memory::Config::default()).unwrap();
    let engine = Engine::new(&Options::default()).unwrap();
    let link = engine.add_link(boxed(one)).unwrap();
    let ways = [Way::Through(Target { link, address: Address::Sim(1) }, 3)];
    let refused = engine.open_over(&Routes { ways: &ways, bonded: false }, PORT, Mode::Stream);
    assert!(matches!(refused, Err(Error::NoNode)), "{refused:?}");
    let refused = Engine::new(&Options { gateways: true, ..Options::default() });
    assert!(matches!(refused.err(), Some(Error::NoNode)));
}

fn loopback(port: u16) -> UdpLink {
    at([127, 0, 0, 1], port)
}

fn at(ip: [u8; 4], port: u16) -> UdpLink {
    UdpLink::open(&udp::Options::new(SocketAddr::from((ip, port)))).unwrap()
}

#[test]
fn whoever_says_that_many_nodes_are_behind_him_has_the_places_of_one_host() {
    let _alone = alone();
    let (server, links) = engine(SERVER, vec![Box::new(loopback(0))]);
    server.configure(Config { max_associations: 10, ..server.config().unwrap() }).unwrap();
    server.listen(PORT, Mode::Stream, 64).unwrap();
    let address = server.local(links[0]).unwrap();
    // They send to it as if it were a gateway, and it takes them for one.
    let claimed: Vec<_> = (1..=12)
        .map(|host| {
            let (engine, links) = engine(gateway::engine_number(host, 1), vec![Box::new(loopback(0))]);
            let ways = [Way::Through(Target { link: links[0], address }, SERVER)];
            let opened = engine.connect_over(&Routes { ways: &ways, bonded: false }, PORT, Mode::Stream, deadline());
            (engine, opened)
        })
        .collect();
    let outcomes: Vec<_> = claimed.iter().map(|(_, opened)| opened).collect();
    let busy = outcomes.iter().filter(|opened| matches!(opened, Err(Error::Failed(ErrorCode::Busy)))).count();
    assert_eq!((outcomes.len(), busy), (12, 4), "four fifths of ten are in: {outcomes:?}");
    let (other, links) = engine(CLIENT, vec![Box::new(at([127, 0, 0, 2], 0))]);
    let opened = other.connect(Target { link: links[0], address }, PORT, Mode::Stream, deadline());
    assert!(opened.is_ok(), "{opened:?}");
}

#[test]
fn two_bonded_links_share_a_stream_and_one_that_fails_is_left_out() {
    let _alone = alone();
    // Links that do not reach each other crosswise: two networks.
    let config = memory::Config::default();
    let ((near_one, far_one), (near_two, far_two)) = (memory::pair(config).unwrap(), memory::pair(config).unwrap());
    let near_two = FaultLink::new(near_two, 1);
    let faults = near_two.control();
    let (client, links) = engine(CLIENT, vec![boxed(near_one), Box::new(near_two)]);
    let (server, _) = engine(SERVER, vec![boxed(far_one), boxed(far_two)]);
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let ways = [0, 1].map(|place| Way::Direct(Target { link: links[place], address: Address::Sim(1) }));
    let routes = Routes { ways: &ways, bonded: true };
    let sending = client.connect_over(&routes, PORT, Mode::Stream, deadline()).unwrap();
    let receiving = server.accept(PORT, deadline()).unwrap();
    carry((&client, sending), (&server, receiving), 4_000_000, || ());
    let sent: Vec<u64> = client.links().iter().map(|(_, _, _, counters)| counters.sent_packets).collect();
    println!("packets over each link: {sent:?}");
    assert!(sent.iter().all(|&count| count > 800), "{sent:?}");
    carry((&client, sending), (&server, receiving), 4_000_000, || {
        faults.set_send(Faults::loss(PER_MILLION));
        faults.set_receive(Faults::loss(PER_MILLION));
    });
    // On a fast machine that was all before two questions were in vain.
    let begin = Instant::now();
    while client.counters().paths_suspected == 0 {
        assert!(begin.elapsed() < LIMIT, "{:?}", client.counters());
        carry((&client, sending), (&server, receiving), 100_000, || ());
    }
}

#[test]
fn over_udp_a_dead_address_among_several_is_passed_over() {
    let _alone = alone();
    let (near, far) = (loopback(0), loopback(0));
    let (Address::Udp(far_address), nobody) = (far.local(), {
        // Bound and gone: the network says that nobody is there.
        loopback(0).local()
    }) else {
        panic!("a UDP link has a UDP address")
    };
    let (client, links) = engine(CLIENT, vec![Box::new(near)]);
    let (server, _) = engine(SERVER, vec![Box::new(far)]);
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let ways = [nobody, Address::Udp(far_address)].map(|address| Way::Direct(Target { link: links[0], address }));
    let begin = Instant::now();
    let routes = Routes { ways: &ways, bonded: false };
    let sending = client.connect_over(&routes, PORT, Mode::Stream, deadline()).unwrap();
    println!("connected after {:?}", begin.elapsed());
    let receiving = server.accept(PORT, deadline()).unwrap();
    carry((&client, sending), (&server, receiving), 200_000, || ());
    let alone = client.connect(Target { link: links[0], address: nobody }, PORT, Mode::Stream, deadline());
    assert!(alone.is_ok(), "its association is known by all its addresses: {alone:?}");
    let stranger = loopback(0).local();
    let refused = client.connect(Target { link: links[0], address: stranger }, PORT, Mode::Stream, deadline());
    assert!(matches!(refused, Err(Error::Failed(ErrorCode::Refused))), "{refused:?}");
}
