//! Links that are full or fail cost no processor time while nothing can be done about it, and are used again when they can.

use ropeway_engine::gateway::{Gateway, Limits, Neighbour};
use ropeway_engine::link::memory::{self, MemoryLink};
use ropeway_engine::link::udp::{self, UdpLink};
use ropeway_engine::link::{Address, Batch, Counters, Link, Presence, Received};
use ropeway_engine::{Config, Engine, Error, ErrorCode, LinkId, Mode, Options, Routes, Target, Way};
use ropeway_testkit::proc::until;
use rustix::net::SendFlags;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const PORT: u16 = 7;
/// How long looks at the links are counted.
const WATCHED: Duration = Duration::from_millis(300);
/// A thread that does not sleep looks hundreds of thousands of times.
const MOST_LOOKS: usize = 2000;
/// Who tries a link that goes on taking nothing does so each 8 ms in the end, and looks then; for other reasons, a few times more.
const MOST_TRIES: usize = 150;

/// What a test does to a link, and sees of it.
#[derive(Default)]
struct Strings {
    /// It takes nothing.
    is_full: AtomicBool,
    /// Nor does it then for who is silent, but drops that.
    discards: AtomicBool,
    discarded: AtomicUsize,
    /// Its counter of that begins anew, once.
    forgets: AtomicBool,
    /// It takes one packet in a millisecond at most.
    is_slow: AtomicBool,
    /// Its device is gone.
    is_gone: AtomicBool,
    /// The next look by a thread of this name panics.
    panics: Mutex<Option<&'static str>>,
    looks: AtomicUsize,
}

impl Strings {
    fn panics(&self) -> MutexGuard<'_, Option<&'static str>> {
        self.panics.lock().unwrap()
    }

    /// Looks at the link within [`WATCHED`].
    fn looks(&self) -> usize {
        let before = self.looks.load(Ordering::Relaxed);
        std::thread::sleep(WATCHED);
        self.looks.load(Ordering::Relaxed) - before
    }
}

/// A link on strings.
struct Puppet<L> {
    link: L,
    strings: Arc<Strings>,
    /// What is slept on instead of the link's own descriptor.
    descriptor: Option<UnixStream>,
    /// When it took a packet last, while it was slow.
    taken_at: Option<Instant>,
}

impl<L: Link> Link for Puppet<L> {
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
        if self.strings.is_full.load(Ordering::Relaxed) {
            let discards = batch.presence == Presence::Silent && self.strings.discards.load(Ordering::Relaxed);
            let discarded = if discards { batch.packets.len() } else { 0 };
            self.strings.discarded.fetch_add(discarded, Ordering::Relaxed);
            if discards && self.strings.forgets.swap(false, Ordering::Relaxed) {
                self.strings.discarded.store(0, Ordering::Relaxed);
            }
            return Ok(discarded);
        }
        if !self.strings.is_slow.load(Ordering::Relaxed) {
            return self.link.send(batch);
        }
        if self.taken_at.is_some_and(|at| at.elapsed() < Duration::from_millis(1)) {
            return Ok(0);
        }
        self.taken_at = Some(Instant::now());
        self.link.send(&Batch { packets: &batch.packets[..1], ..*batch })
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.strings.looks.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current();
        if thread.name().is_some() && self.strings.panics().take_if(|who| thread.name() == Some(who)).is_some() {
            panic!("a link that panics");
        }
        match self.strings.is_gone.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => self.link.receive(limit, sink),
        }
    }

    fn fetch_errors(&mut self) {
        self.link.fetch_errors();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map_or_else(|| self.link.descriptor(), |descriptor| Some(descriptor.as_fd()))
    }

    fn counters(&self) -> Counters {
        let mut counters = self.link.counters();
        counters.send_discarded = self.strings.discarded.load(Ordering::Relaxed) as u64;
        counters
    }
}

fn engine() -> Engine {
    Engine::new(&Options::default()).unwrap()
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// A link of `engine` on strings, and the other end.
fn puppet(engine: &Engine, descriptor: Option<UnixStream>) -> (LinkId, Arc<Strings>, MemoryLink) {
    let (link, other) = memory::pair(memory::Config::default()).unwrap();
    let (link, strings) = on_strings(engine, link, descriptor);
    (link, strings, other)
}

fn on_strings(engine: &Engine, link: impl Link + 'static, descriptor: Option<UnixStream>) -> (LinkId, Arc<Strings>) {
    let strings = Arc::new(Strings::default());
    let link = Puppet { link, strings: strings.clone(), descriptor, taken_at: None };
    (engine.add_link(Box::new(link)).unwrap(), strings)
}

/// A descriptor that is neither readable nor writable, and its other end.
fn clogged() -> (UnixStream, UnixStream) {
    let (mut one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 4096]).is_ok() {}
    (one, other)
}

#[test]
fn a_link_that_failed_is_not_slept_on() {
    let client = engine();
    let (one, other) = UnixStream::pair().unwrap();
    let (_, failing, _end) = puppet(&client, Some(one));
    let (link, kept, far) = puppet(&client, None);
    failing.is_gone.store(true, Ordering::Relaxed);
    // Its descriptor says from now on that it hung up.
    drop(other);
    std::thread::sleep(Duration::from_millis(50));
    let looks = kept.looks();
    assert!(looks <= MOST_LOOKS, "{looks} looks while nothing happens");
    let server = engine();
    server.add_link(Box::new(far)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
}

#[test]
fn who_waits_for_a_connection_learns_that_the_only_device_is_gone() {
    let server = engine();
    let (one, other) = UnixStream::pair().unwrap();
    let (link, strings, _end) = puppet(&server, Some(one));
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let watch = server.watch_port(PORT).unwrap();
    let waits = |server: Engine| std::thread::spawn(move || server.accept(PORT, soon()).unwrap_err());
    let waiting = [waits(server.clone()), waits(server.clone())];
    std::thread::sleep(Duration::from_millis(50));
    strings.is_gone.store(true, Ordering::Relaxed);
    drop(other);
    for thread in waiting {
        let error = thread.join().unwrap();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NetworkDown);
    }
    let mut fds = [rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&now)).unwrap(), 1, "event loops are told");
    let target = Target { link, address: Address::Sim(1) };
    let begin = Instant::now();
    let error = server.connect(target, PORT, Mode::Stream, soon()).unwrap_err();
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NetworkDown);
    assert!(begin.elapsed() < Duration::from_secs(5) && server.has_failed(link));
}

#[test]
fn a_link_with_room_wakes_nobody_who_waits_for_one_that_is_full() {
    let client = engine();
    let (descriptor, _other) = clogged();
    let (link, full, _end) = puppet(&client, Some(descriptor));
    let (_, with_room, _other_end) = puppet(&client, None);
    full.is_full.store(true, Ordering::Relaxed);
    client.open(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream).unwrap();
    let looks = with_room.looks();
    assert!(looks <= MOST_LOOKS / 10, "{looks} looks while nothing can be sent");
}

/// The ways to a server behind a gateway, the client, and the gateway, whose link to the server is on strings.
fn through_a_gateway() -> ([Way; 1], Engine, Engine, Gateway, Arc<Strings>) {
    let through = |node| {
        let (near, end) = memory::pair(memory::Config::default()).unwrap();
        let config = Config { packet_bytes: end.max_packet() as u16, ..Config::default() };
        let options = Options { config, node: Some(node), gateways: true, ..Options::default() };
        let engine = Engine::new(&options).unwrap();
        (engine.add_link(Box::new(end)).unwrap(), engine, near)
    };
    let ((link, client, near), (_, server, far)) = (through(1), through(2));
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let strings = Arc::new(Strings::default());
    let far = Puppet { link: far, strings: strings.clone(), descriptor: None, taken_at: None };
    let table = [(1, 0), (2, 1)].map(|(node, link)| Neighbour { node, link, address: Address::Sim(1) });
    let gateway = Gateway::new(vec![Box::new(near), Box::new(far)], &table, Limits::default()).unwrap();
    ([Way::Through(Target { link, address: Address::Sim(0) }, 2)], client, server, gateway, strings)
}

/// A device's queue may be full while the socket is writable, as a memory link's descriptor always is.
#[test]
fn a_link_that_takes_nothing_although_writable_is_tried_now_and_then_until_it_does() {
    let (client, server) = (engine(), engine());
    let (link, full, end) = puppet(&client, None);
    server.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    full.is_full.store(true, Ordering::Relaxed);
    let to = Target { link, address: Address::Sim(1) };
    let channel = client.open(to, PORT, Mode::Stream).unwrap();
    let looks = full.looks();
    assert!((10..=MOST_LOOKS).contains(&looks), "{looks} looks while nothing can be sent");
    full.is_full.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    client.wait_opened(channel, to, soon()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_gateway_tries_a_link_that_takes_nothing_although_writable_now_and_then_until_it_does() {
    let (ways, client, _server, gateway, full) = through_a_gateway();
    full.is_full.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let forwarding = scope.spawn(|| gateway.run());
        let connecting = scope
            .spawn(move || client.connect_over(&Routes { ways: &ways, bonded: false }, PORT, Mode::Stream, soon()));
        until("a packet waits", || gateway.shown().waiting_packets > 0);
        let looks = full.looks();
        full.is_full.store(false, Ordering::Relaxed);
        connecting.join().unwrap().unwrap();
        gateway.stop();
        forwarding.join().unwrap().unwrap();
        assert!((10..=MOST_TRIES).contains(&looks), "{looks} looks while nothing can be sent");
    });
}

#[test]
fn what_waits_for_a_link_that_goes_on_taking_nothing_has_it_tried_less_and_less_often() {
    let (client, server) = (engine(), engine());
    let (link, full, end) = puppet(&client, None);
    server.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let near = client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
    let far = server.accept(PORT, soon()).unwrap();
    full.is_full.store(true, Ordering::Relaxed);
    client.send_all(near, b"waits", soon()).unwrap();
    let looks = full.looks();
    assert!((10..=MOST_TRIES).contains(&looks), "{looks} looks while nothing can be sent");
    full.is_full.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    assert_eq!(server.recv(far, &mut [0; 16], soon()).unwrap(), Some(5));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn nobody_looks_at_a_full_link_any_more_when_what_waited_for_it_is_gone() {
    let give_up = Duration::from_millis(100);
    let config = Config { give_up_ns: give_up.as_nanos() as u64, ..Config::default() };
    let client = Engine::new(&Options { config, ..Options::default() }).unwrap();
    let server = engine();
    let (link, full, end) = puppet(&client, None);
    server.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    // Whether the link is left alone just when the association ends is a matter of milliseconds.
    for _ in 0..3 {
        full.is_full.store(false, Ordering::Relaxed);
        let near = client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
        full.is_full.store(true, Ordering::Relaxed);
        client.try_send(near, b"never leaves").unwrap();
        // Nobody is in a call meanwhile.
        std::thread::sleep(10 * give_up);
        let looks = full.looks();
        assert!(looks <= MOST_TRIES, "{looks} looks while there is nothing to send");
        assert_eq!(client.readiness(near).unwrap().failed, Some(ErrorCode::LinkFull));
        client.close(near);
    }
}

#[test]
fn a_gateway_goes_on_after_a_panic() {
    let (ways, client, _server, gateway, strings) = through_a_gateway();
    *strings.panics() = Some("forwards");
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("forwards".into());
        let forwarding = thread.spawn_scoped(scope, || gateway.run()).unwrap();
        client.connect_over(&Routes { ways: &ways, bonded: false }, PORT, Mode::Stream, soon()).unwrap();
        assert!(strings.panics().is_none());
        gateway.stop();
        forwarding.join().unwrap().unwrap();
    });
}

/// Its time and its answers hang on the helper.
#[test]
fn an_engine_goes_on_after_a_panic_of_its_helper() {
    let (client, server) = (engine(), engine());
    let (_, strings, end) = puppet(&server, None);
    let link = client.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    *strings.panics() = Some("ropeway");
    let to = Target { link, address: Address::Sim(0) };
    let channel = client.open(to, PORT, Mode::Stream).unwrap();
    until("a panic", || strings.panics().is_none());
    // Nobody calls the server.
    client.wait_opened(channel, to, soon()).unwrap();
}

/// The helper is parked while a caller sleeps on the links, and those who wait beside it are woken by nobody else.
#[test]
fn who_waits_beside_another_thread_goes_on_after_a_panic_of_that_one() {
    let (client, server) = (engine(), engine());
    let (_, strings, end) = puppet(&server, None);
    let to = Target { link: client.add_link(Box::new(end)).unwrap(), address: Address::Sim(0) };
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let [first, second] = [0, 1].map(|_| {
        let near = client.connect(to, PORT, Mode::Stream, soon()).unwrap();
        (near, server.accept(PORT, soon()).unwrap())
    });
    let receive = |channel| server.recv(channel, &mut [0; 16], soon());
    std::thread::scope(|scope| {
        let polls = std::thread::Builder::new().name("polls".into());
        let polls = polls.spawn_scoped(scope, || receive(first.1)).unwrap();
        // For as long as the helper takes to see that it is not needed.
        std::thread::sleep(WATCHED);
        let beside = scope.spawn(|| receive(second.1));
        std::thread::sleep(WATCHED);
        *strings.panics() = Some("polls");
        client.send_all(first.0, b"first", soon()).unwrap();
        assert!(polls.join().is_err(), "it panics");
        client.send_all(second.0, b"second", soon()).unwrap();
        assert_eq!(beside.join().unwrap().unwrap(), Some(6));
    });
    assert_eq!(receive(first.1).unwrap(), Some(5), "and so does the engine");
}

#[test]
fn a_full_link_keeps_nothing_from_another() {
    let client = engine();
    let mut ends = [0, 1].map(|_| {
        let (link, strings, end) = puppet(&client, None);
        let server = engine();
        server.add_link(Box::new(end)).unwrap();
        server.listen(PORT, Mode::Stream, 8).unwrap();
        let near = client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
        let far = server.accept(PORT, soon()).unwrap();
        (near, strings, server, far)
    });
    ends[0].1.is_full.store(true, Ordering::Relaxed);
    client.send_all(ends[0].0, b"late", soon()).unwrap();
    for _ in 0..100 {
        let (near, _, server, far) = &ends[1];
        client.send_all(*near, &[1; 5000], soon()).unwrap();
        let mut left = 5000;
        while left > 0 {
            left -= server.recv(*far, &mut vec![0; left], soon()).unwrap().unwrap();
        }
        server.send_all(*far, &[2; 100], soon()).unwrap();
        assert_eq!(client.recv(*near, &mut [0; 100], soon()).unwrap(), Some(100));
    }
    let (_, full, server, far) = &mut ends[0];
    assert!(matches!(server.try_recv(*far, &mut [0; 10]), Err(Error::WouldBlock)));
    full.is_full.store(false, Ordering::Relaxed);
    assert_eq!(server.recv(*far, &mut [0; 10], soon()).unwrap(), Some(4));
}

fn udp_link() -> UdpLink {
    UdpLink::open(&udp::Options::new("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// A link whose descriptor shows an error condition, by a report of the network that fails no call any more.
fn reported_link() -> UdpLink {
    let link = udp_link();
    let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = link.descriptor().unwrap();
    rustix::net::sendto(socket, b"?", SendFlags::empty(), &nowhere).unwrap();
    until("it is reported", || rustix::net::sockopt::socket_error(socket).unwrap().is_err());
    link
}

#[test]
fn a_report_that_fails_no_call_wakes_a_sleeper_once() {
    let server = Engine::new(&Options { spin: Duration::ZERO, ..Options::default() }).unwrap();
    let (_, strings) = on_strings(&server, reported_link(), None);
    server.listen(PORT, Mode::Stream, 8).unwrap();
    let waiting = server.accept(PORT, Some(Instant::now() + WATCHED));
    assert!(matches!(waiting, Err(Error::TimedOut)), "{waiting:?}");
    let looks = strings.looks.load(Ordering::Relaxed);
    assert!(looks <= MOST_LOOKS / 20, "{looks} looks while nothing happens");

    let strings = Arc::new(Strings::default());
    let link = Puppet { link: reported_link(), strings: strings.clone(), descriptor: None, taken_at: None };
    let address = |node: u16| Address::Udp(([127, 0, 0, 1], node).into());
    let table = [1, 2].map(|node| Neighbour { node: node.into(), link: 0, address: address(node) });
    let gateway = Gateway::new(vec![Box::new(link)], &table, Limits::default()).unwrap();
    std::thread::scope(|scope| {
        let forwarding = scope.spawn(|| gateway.run());
        let looks = strings.looks();
        gateway.stop();
        forwarding.join().unwrap().unwrap();
        assert!(looks <= MOST_LOOKS / 20, "{looks} looks of a gateway while nothing happens");
    });
}

#[test]
fn an_engine_that_ends_tells_all_peers_although_its_link_takes_only_some_at_once() {
    for finishes in [false, true] {
        let server = engine();
        let (at, strings) = on_strings(&server, udp_link(), None);
        let address = server.local(at).unwrap();
        server.listen(PORT, Mode::Stream, 64).unwrap();
        let peers: Vec<_> = (0..30)
            .map(|_| {
                let peer = engine();
                let link = peer.add_link(Box::new(udp_link())).unwrap();
                let channel = peer.connect(Target { link, address }, PORT, Mode::Stream, soon()).unwrap();
                (peer, channel)
            })
            .collect();
        strings.is_slow.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        if finishes {
            Engine::finish_all(std::slice::from_ref(&server), Instant::now());
        }
        drop(server);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        for (peer, channel) in peers {
            let ended = peer.recv(channel, &mut [0; 10], soon());
            assert!(matches!(ended, Err(Error::Failed(ErrorCode::Closed | ErrorCode::Reset))), "{ended:?}");
        }
    }
}

#[test]
fn an_engine_does_not_wait_long_for_a_link_that_takes_nothing_to_end() {
    let (client, server) = (engine(), engine());
    let (link, full, end) = puppet(&client, None);
    server.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Stream, 8).unwrap();
    client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
    full.is_full.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    drop(client);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn engines_that_finish_together_wait_no_longer_for_links_that_take_nothing_than_one_does() {
    /// Each of them alone waits for 100 ms.
    const ENGINES: usize = 8;
    let server = engine();
    server.listen(PORT, Mode::Stream, 64).unwrap();
    let (clients, full): (Vec<_>, Vec<_>) = (0..ENGINES)
        .map(|_| {
            let client = engine();
            let (link, full, end) = puppet(&client, None);
            server.add_link(Box::new(end)).unwrap();
            client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Stream, soon()).unwrap();
            full.is_full.store(true, Ordering::Relaxed);
            (client, full)
        })
        .unzip();
    let begun = Instant::now();
    Engine::finish_all(&clients, begun);
    assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
    full.iter().for_each(|full| full.is_full.store(false, Ordering::Relaxed));
}

#[test]
fn a_peer_is_not_given_up_for_what_the_own_link_dropped() {
    const GIVE_UP: Duration = Duration::from_secs(1);
    let config = Config { give_up_ns: GIVE_UP.as_nanos() as u64, ..Config::default() };
    let client = Engine::new(&Options { config, ..Options::default() }).unwrap();
    let server = engine();
    let (link, full, end) = puppet(&client, None);
    server.add_link(Box::new(end)).unwrap();
    server.listen(PORT, Mode::Messages, 8).unwrap();
    let near = client.connect(Target { link, address: Address::Sim(1) }, PORT, Mode::Messages, soon()).unwrap();
    let far = server.accept(PORT, soon()).unwrap();
    full.discarded.store(5, Ordering::Relaxed);
    full.forgets.store(true, Ordering::Relaxed);
    for ends in [false, true] {
        full.discards.store(true, Ordering::Relaxed);
        full.is_full.store(true, Ordering::Relaxed);
        let before = full.discarded.load(Ordering::Relaxed);
        client.try_send(near, b"hello?").unwrap();
        until("it drops", || full.discarded.load(Ordering::Relaxed) > before + 10);
        if ends {
            let error = client.recv(near, &mut [0; 10], soon()).unwrap_err();
            assert!(matches!(error, Error::Failed(ErrorCode::LinkFull)), "{error:?}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NetworkDown);
        } else {
            std::thread::sleep(GIVE_UP * 6 / 5);
            full.is_full.store(false, Ordering::Relaxed);
            assert_eq!(server.recv(far, &mut [0; 10], soon()).unwrap(), Some(6));
        }
    }
}
