//! Hosts that are off, whether one connects to them or was connected: nobody else waits for the kernel, which keeps what is for them while it asks for their hardware addresses.

#[path = "../../link/tests/support/mod.rs"]
mod support;

use nix::time::{ClockId, clock_gettime};
use ropeway_engine::{ChannelId, Config, Engine, Error, ErrorCode, LinkId, Mode, Options, Target};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Counters};
use ropeway_testkit::proc::until;
use ropeway_testkit::skip;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use support::{DEVICE, Hosts, address, reason_against_hosts};

const PORT: u16 = 7;
/// As many hosts as a rack has, and more than fit into a rack.
const CROWDS: [usize; 2] = [12, 40];
/// No connection to a host that is there stands still for so long. A kernel keeps what is for who is off for three seconds; less is a busy machine's doing (mostly it is 10 to 60 ms).
const MOST_GAP: Duration = Duration::from_millis(500);
/// Longer than a kernel asks, and than it takes to find out that a host is off.
const GIVE_UP: Duration = Duration::from_secs(6);
/// For so long a kernel asks for a hardware address, and time for a busy machine.
const ASKED: Duration = Duration::from_secs(10);

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(30))
}

/// The address of one of many hosts.
fn nth(place: usize, v6: bool) -> IpAddr {
    let last = 50 + place as u8;
    if v6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]) } else { IpAddr::from([10, 90, 0, last]) }
}

/// An engine with a link of host `end`; its helper is there, too.
fn engine(hosts: &Hosts, end: usize, local: IpAddr) -> (Engine, LinkId) {
    hosts.on(end, || {
        let config = Config { give_up_ns: GIVE_UP.as_nanos() as u64, ..Config::default() };
        let engine = Engine::new(&Options { config, ..Options::default() }).unwrap();
        let link = UdpLink::open(&udp::Options::new(SocketAddr::new(local, 0))).unwrap();
        let link = engine.add_link(Box::new(link)).unwrap();
        (engine, link)
    })
}

fn any(v6: bool) -> IpAddr {
    if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) }
}

fn counters(engine: &Engine) -> Counters {
    engine.links()[0].3
}

/// A connection of a client on host 0, as programs have one, to a server that sends back what it gets.
struct Live {
    client: Engine,
    link: LinkId,
    channel: ChannelId,
    server: Engine,
}

impl Live {
    fn new(hosts: &Hosts, v6: bool) -> Live {
        let ((client, link), (server, of_server)) = (engine(hosts, 0, any(v6)), engine(hosts, 1, address(1, v6)));
        server.listen(PORT, Mode::Messages, 8).unwrap();
        let target = Target { link, address: server.local(of_server).unwrap() };
        let channel = hosts.on(0, || client.connect(target, PORT, Mode::Messages, soon())).unwrap();
        Live { client, link, channel, server }
    }

    /// Asks and is answered all the time while `body` runs on the same host, and says what that gave, and for how long an answer was waited for at most.
    fn during<T: Send>(&self, hosts: &Hosts, body: impl FnOnce() -> T + Send) -> (T, Duration) {
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let answers = || {
                let accepted = self.server.accept(PORT, soon()).unwrap();
                let mut message = [0; 100];
                while let Ok(Some(bytes)) = self.server.recv(accepted, &mut message, None) {
                    self.server.send_all(accepted, &message[..bytes], soon()).unwrap();
                }
            };
            scope.spawn(move || hosts.on(1, answers));
            let asks = || {
                let (mut most, mut rounds) = (Duration::ZERO, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    self.client.send_all(self.channel, &[1; 100], soon()).unwrap();
                    self.client.recv(self.channel, &mut [0; 100], soon()).unwrap();
                    most = most.max(begin.elapsed());
                    rounds += 1;
                }
                assert!(rounds > 100, "{rounds}");
                most
            };
            let asks = scope.spawn(move || hosts.on(0, asks));
            let result = hosts.on(0, body);
            is_over.store(true, Ordering::Relaxed);
            let most = asks.join().unwrap();
            self.client.close(self.channel);
            (result, most)
        })
    }
}

static ALONE: RwLock<()> = RwLock::new(());

/// Of the tests that look at processor time, which is the whole process's, one runs at a time, and no other test beside it.
fn alone() -> RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

/// The others mostly wait.
fn beside_others() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Has host 0 find out within a second or two that another one is off, where it takes eight seconds and more otherwise.
fn find_out_soon(hosts: &Hosts) {
    for (name, value) in [("base_reachable_time_ms", "100"), ("delay_first_probe_time", "1"), ("ucast_solicit", "1")] {
        for family in ["ipv4", "ipv6"] {
            let path = format!("/proc/sys/net/{family}/neigh/{DEVICE}/{name}");
            hosts.on(0, || std::fs::write(&path, value)).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
}

/// What each attempt to connect ended with, all of them at the same time.
fn connect_all(live: &Live, crowd: usize, v6: bool) -> Vec<Error> {
    let connect = |place| {
        let target = Target { link: live.link, address: Address::Udp(SocketAddr::new(nth(place, v6), 9)) };
        live.client.connect(target, PORT, Mode::Stream, soon()).unwrap_err()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..crowd).map(|place| scope.spawn(move || connect(place))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Processor time that this process used within a second.
fn busy() -> Duration {
    let used = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    used() - before
}

#[test]
fn attempts_to_hosts_that_are_off_hold_up_no_other_connection() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let _alone = alone();
    for (crowd, v6) in CROWDS.into_iter().zip([false, true]) {
        let hosts = Hosts::new(1500);
        let live = Live::new(&hosts, v6);
        let begin = Instant::now();
        let (errors, most) = live.during(&hosts, || connect_all(&live, crowd, v6));
        let took = begin.elapsed();
        println!("{crowd} hosts, {took:?}, longest wait {most:?}, {:?}", counters(&live.client));
        let is_unreachable = |error: &&Error| matches!(error, Error::Unreachable(source) if source.raw_os_error() == Some(libc::EHOSTUNREACH));
        assert_eq!(errors.iter().filter(is_unreachable).count(), crowd, "{errors:?}");
        assert!(took < ASKED, "{took:?}");
        assert!(most < MOST_GAP, "{most:?}");
        assert_eq!(counters(&live.client).sent_unparted, 0);
        let used = busy();
        assert!(used < Duration::from_millis(20), "{used:?} of an idle second");
    }
}

#[test]
fn waiting_for_hosts_that_are_off_takes_no_processor_time() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let _alone = alone();
    let hosts = Hosts::new(1500);
    let (client, link) = engine(&hosts, 0, any(false));
    hosts.on(0, || {
        for place in 0..100 {
            let address = Address::Udp(SocketAddr::new(nth(place, false), 9));
            client.open(Target { link, address }, PORT, Mode::Stream).unwrap();
        }
        until("there is no room for all of that", || counters(&client).send_full > 0);
        let (before, begin) = (counters(&client), Instant::now());
        let used = busy();
        println!("{used:?} in a second, {:?}", counters(&client));
        let tries = counters(&client).send_full - before.send_full;
        let most = begin.elapsed().as_millis() as u64 / 16 + 10;
        assert!((1..=most).contains(&tries), "{tries}");
        assert!(used < Duration::from_millis(100), "{used:?}");
    });
}

#[test]
fn an_engine_that_ends_tells_a_peer_that_is_there_however_many_others_are_off() {
    // More than a socket has room for.
    const OFF: u16 = 200;
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let _beside = beside_others();
    let hosts = Hosts::new(1500);
    let off = || (0..OFF).map(|place| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 1, place]));
    hosts.ip_batch(1, off().map(|ip| format!("address add {ip}/64 dev {DEVICE} nodad")));
    let (peer, link) = engine(&hosts, 1, any(true));
    peer.listen(PORT, Mode::Messages, 1000).unwrap();
    let Some(Address::Udp(local)) = peer.local(link) else { panic!("a UDP link has a UDP address") };
    let (ending, link) = engine(&hosts, 0, any(true));
    let connect = |ip| {
        let target = Target { link, address: Address::Udp(SocketAddr::new(ip, local.port())) };
        ending.connect(target, PORT, Mode::Messages, soon()).unwrap();
    };
    hosts.on(0, || off().chain([address(1, true)]).for_each(connect));
    let accepted: Vec<_> = (0..=OFF).map(|_| peer.accept(PORT, soon()).unwrap()).collect();
    hosts.ip_batch(1, off().map(|ip| format!("address delete {ip}/64 dev {DEVICE}")));
    // Nobody is heard meanwhile, nor is it known that they are off.
    std::thread::sleep(Duration::from_secs(4));
    hosts.ip(0, &format!("neighbour flush dev {DEVICE}"));
    hosts.on(0, || drop(ending));
    let begin = Instant::now();
    let ended = peer.recv(accepted[usize::from(OFF)], &mut [0; 1], Some(begin + Duration::from_secs(2)));
    assert!(matches!(ended, Err(Error::Failed(ErrorCode::Closed))), "{ended:?} after {:?}", begin.elapsed());
}

#[test]
fn peers_that_go_off_hold_up_no_other_connection() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    let _beside = beside_others();
    for (crowd, v6) in CROWDS.into_iter().zip([false, true]) {
        let hosts = Hosts::new(1500);
        find_out_soon(&hosts);
        let prefix = if v6 { "/64 nodad" } else { "/24" };
        let addresses: Vec<String> = (0..crowd).map(|place| format!("{}{prefix}", nth(place, v6))).collect();
        hosts.ip_batch(1, addresses.iter().map(|address| format!("address add {address} dev {DEVICE}")));
        let live = Live::new(&hosts, v6);
        let peers: Vec<_> = (0..crowd).map(|place| engine(&hosts, 1, nth(place, v6))).collect();
        let channels = peers.iter().map(|(peer, link)| {
            peer.listen(PORT, Mode::Messages, 8).unwrap();
            let target = Target { link: live.link, address: peer.local(*link).unwrap() };
            hosts.on(0, || live.client.connect(target, PORT, Mode::Messages, soon())).unwrap()
        });
        let channels: Vec<_> = channels.collect();
        let go_off = || {
            let addresses = addresses.iter().map(|address| address.replace(" nodad", ""));
            hosts.ip_batch(1, addresses.map(|address| format!("address delete {address} dev {DEVICE}")));
            channels.iter().for_each(|&channel| live.client.try_send(channel, &[2; 100]).map(drop).unwrap());
            std::thread::sleep(GIVE_UP + Duration::from_secs(1));
        };
        let ((), most) = live.during(&hosts, go_off);
        println!("{crowd} peers, longest wait {most:?}, {:?}", counters(&live.client));
        assert!(most < MOST_GAP, "{most:?}");
        let failed = channels.iter().filter(|&&channel| live.client.try_send(channel, &[3; 100]).is_err()).count();
        assert_eq!(failed, crowd);
        assert!(counters(&live.client).sent_apart > 10 * crowd as u64, "they were asked");
    }
}
