//! The registry against a machine made of tables.

use super::*;
use std::collections::HashSet;
use std::io;

use crate::config::Program;
use crate::daemon::diag::Counters;
use crate::daemon::diag::TcpSocket;
use ropeway_socket::rendezvous::wire::{CHECKPOINTS, Settings};

const CLIENT_END: Endpoint = Endpoint::v4([127, 0, 0, 1], 40000);
const SERVER_END: Endpoint = Endpoint::v4([127, 0, 0, 1], 6379);
const MIB: u64 = 1 << 20;

struct Machine {
    sockets: HashMap<u64, (Endpoint, Endpoint, TcpSocket)>,
    held: HashSet<u32>,
    other_netns: bool,
    memory: bool,
    looks: usize,
    start: Instant,
    elapsed: Duration,
}

impl Machine {
    fn new() -> Machine {
        Machine {
            sockets: HashMap::new(),
            held: HashSet::new(),
            other_netns: false,
            memory: true,
            looks: 0,
            start: Instant::now(),
            elapsed: Duration::ZERO,
        }
    }

    fn socket(&mut self, cookie: u64, local: Endpoint, remote: Endpoint, counters: Counters) {
        let socket = TcpSocket { established: true, uid: 1000, inode: cookie as u32, counters };
        self.sockets.insert(cookie, (local, remote, socket));
    }

    /// A connection on which the client (cookie 1) sent 10 bytes and the server (cookie 2) 7.
    fn connection(&mut self) {
        self.connection_at(0);
    }

    fn connection_at(&mut self, n: u16) {
        let client_end = Endpoint { port: CLIENT_END.port + n, ..CLIENT_END };
        let cookie = u64::from(n) * 2;
        self.socket(cookie + 1, client_end, SERVER_END, Counters { sent: 10, acked: 11, received: 7 });
        self.socket(cookie + 2, SERVER_END, client_end, Counters { sent: 7, acked: 7, received: 10 });
    }

    fn change(&mut self, cookie: u64, f: impl FnOnce(&mut TcpSocket)) {
        f(&mut self.sockets.get_mut(&cookie).unwrap().2);
    }
}

impl Host for Machine {
    fn find(&mut self, local: &Endpoint, remote: &Endpoint, cookie: u64) -> io::Result<Option<TcpSocket>> {
        self.looks += 1;
        let found = self.sockets.get(&cookie).filter(|(l, r, _)| (l, r) == (local, remote));
        Ok(found.map(|(_, _, socket)| *socket))
    }

    fn live_cookies(&mut self) -> io::Result<HashSet<u64>> {
        Ok(self.sockets.keys().copied().collect())
    }

    fn holds(&mut self, _: &Client, _: i32, inode: u32) -> bool {
        self.held.contains(&inode)
    }

    fn in_other_netns(&mut self, _: &Client) -> bool {
        self.other_netns
    }

    fn take_memory(&mut self, _: &Client, _: u64) -> bool {
        self.memory
    }

    fn segment(&mut self, _: usize) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed
    }
}

fn registry(limits: Limits) -> Registry {
    let mut registry = Registry::new(Config::built_in(), limits, 100);
    for id in [1, 2] {
        registry.join(id, client(1000));
    }
    registry
}

fn limits() -> Limits {
    Limits { segment_bytes: 1 << 30, registrations: 10_000, processes: 10 }
}

fn client(uid: u32) -> Client {
    client_of(uid, 5)
}

fn client_of(uid: u32, pid: u32) -> Client {
    Client { pid, uid, program: Program::default(), image: None, ring_bytes: Settings::DEFAULT.ring_bytes }
}

fn prefix(text: &str) -> Prefix {
    let hash = |i: usize| text.bytes().take(1 << i).fold(5u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    Prefix { hash: std::array::from_fn::<_, CHECKPOINTS, _>(hash), len: text.len() as u64 }
}

fn client_side(n: u16) -> Registration {
    Registration {
        token: 10 + u64::from(n),
        cookie: 1 + 2 * u64::from(n),
        fd: 3,
        local: Endpoint { port: CLIENT_END.port + n, ..CLIENT_END },
        remote: SERVER_END,
        tx: prefix("GET foo..."),
        rx: prefix("$3 bar."),
    }
}

fn server_side(n: u16) -> Registration {
    let mirror = client_side(n);
    Registration {
        token: 20 + u64::from(n),
        cookie: 2 + 2 * u64::from(n),
        local: mirror.remote,
        remote: mirror.local,
        tx: mirror.rx,
        rx: mirror.tx,
        ..mirror
    }
}

/// What was answered since the last call, as (to, token, reason) with `Reason::None` for a grant.
fn answers(registry: &mut Registry) -> Vec<(ClientId, u64, Reason)> {
    let answer = |out: Outgoing| match out.message {
        Message::Grant { token, .. } => (out.to, token, Reason::None),
        Message::Deny { token, reason, .. } => (out.to, token, reason),
        other => panic!("{other:?}"),
    };
    registry.outbox.drain(..).map(answer).collect()
}

#[test]
fn two_ends_of_a_connection_get_the_two_halves_of_one_segment() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    registry.register(&mut machine, 1, client_side(0));
    assert!(registry.outbox.is_empty(), "alone, it waits");
    registry.register(&mut machine, 2, server_side(0));
    let [first, second] = &registry.outbox[..] else { panic!("{:?}", registry.outbox) };
    let ring_bytes = Settings::DEFAULT.ring_bytes;
    assert_eq!((first.to, first.message), (1, Message::Grant { token: 10, pair_id: 100, ring_bytes, side: 0 }));
    assert_eq!((second.to, second.message), (2, Message::Grant { token: 20, pair_id: 100, ring_bytes, side: 1 }));
    assert!(Rc::ptr_eq(first.segment.as_ref().unwrap(), second.segment.as_ref().unwrap()));
    assert_eq!(registry.counts().live_pairs, 1);
    assert_eq!(registry.counts().live_pending, 0);
}

/// A name, what is different, and the expected reason.
type Case<Change> = (&'static str, Change, Reason);

#[test]
fn only_the_owner_of_a_live_socket_may_register_it() {
    let cases: [Case<fn(&mut Machine)>; 6] = [
        ("wrong cookie or ends", |m| _ = m.sockets.remove(&1), Reason::NotOwner),
        (
            "in another namespace",
            |m| {
                m.sockets.clear();
                m.other_netns = true;
            },
            Reason::OtherNetns,
        ),
        ("someone else's", |m| m.change(1, |s| s.uid = 1001), Reason::NotOwner),
        ("root's", |m| m.change(1, |s| s.uid = 0), Reason::NotOwner),
        ("closing", |m| m.change(1, |s| s.established = false), Reason::HalfClosed),
        (
            "root's, but seen in the process",
            |m| {
                m.change(1, |s| s.uid = 0);
                m.held.insert(1);
            },
            Reason::None,
        ),
    ];
    for (case, change, expected) in cases {
        let (mut machine, mut registry) = (Machine::new(), registry(limits()));
        machine.connection();
        change(&mut machine);
        registry.register(&mut machine, 1, client_side(0));
        let expected = if expected == Reason::None { vec![] } else { vec![(1, 10, expected)] };
        assert_eq!(answers(&mut registry), expected, "{case}");
    }
}

#[test]
fn a_socket_connected_to_itself_is_refused_without_a_look() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    registry.register(&mut machine, 1, Registration { remote: CLIENT_END, ..client_side(0) });
    assert_eq!(answers(&mut registry), [(1, 10, Reason::SelfConnect)]);
    assert_eq!(machine.looks, 0);
}

#[test]
fn ends_that_do_not_carry_the_same_bytes_are_both_refused() {
    type Change = fn(&mut Machine, &mut Registration);
    let cases: [Case<Change>; 7] = [
        ("received more than was sent", |m, _| m.change(2, |s| s.counters.received = 11), Reason::Mismatch),
        ("acknowledged more than was received", |m, _| m.change(1, |s| s.counters.acked = 12), Reason::Mismatch),
        ("other direction", |m, _| m.change(1, |s| s.counters.received = 8), Reason::Mismatch),
        ("acknowledged in the other direction", |m, _| m.change(2, |s| s.counters.acked = 9), Reason::Mismatch),
        ("other beginning", |_, r| r.rx = prefix("GET goo..."), Reason::Mismatch),
        ("shorter other beginning", |_, r| r.tx = prefix("+OK"), Reason::Mismatch),
        (
            "nothing in common yet",
            |_, r| {
                r.rx = prefix("");
                r.tx = prefix("");
            },
            Reason::TooYoung,
        ),
    ];
    for (case, change, expected) in cases {
        let (mut machine, mut registry) = (Machine::new(), registry(limits()));
        machine.connection();
        let mut server = server_side(0);
        change(&mut machine, &mut server);
        registry.register(&mut machine, 1, client_side(0));
        registry.register(&mut machine, 2, server);
        assert_eq!(answers(&mut registry), [(1, 10, expected), (2, 20, expected)], "{case}");
    }
}

#[test]
fn bytes_in_flight_do_not_matter() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    machine.change(1, |s| s.counters = Counters { sent: 500, acked: 301, received: 7 });
    machine.change(2, |s| s.counters = Counters { sent: 7, acked: 0, received: 400 });
    registry.register(&mut machine, 2, Registration { rx: prefix("GET"), ..server_side(0) });
    registry.register(&mut machine, 1, client_side(0));
    assert_eq!(answers(&mut registry), [(2, 20, Reason::None), (1, 10, Reason::None)]);
}

#[test]
fn an_end_that_is_gone_is_dropped_and_the_other_waits_on() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    registry.register(&mut machine, 1, client_side(0));
    machine.sockets.remove(&1);
    registry.register(&mut machine, 2, server_side(0));
    assert_eq!(answers(&mut registry), [(1, 10, Reason::PeerClosed)]);
    assert_eq!(registry.counts().live_pending, 1);
    // The 4-tuple is used again by another socket, of another process.
    machine.connection();
    machine.socket(7, CLIENT_END, SERVER_END, Counters { sent: 10, acked: 11, received: 7 });
    registry.register(&mut machine, 1, Registration { cookie: 7, token: 11, ..client_side(0) });
    assert_eq!(answers(&mut registry), [(2, 20, Reason::None), (1, 11, Reason::None)]);
}

#[test]
fn a_withdrawn_or_abandoned_offer_is_not_paired() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    registry.register(&mut machine, 1, client_side(0));
    registry.unregister(1, 10);
    registry.register(&mut machine, 2, server_side(0));
    assert!(registry.outbox.is_empty());
    registry.leave(2);
    registry.register(&mut machine, 1, client_side(0));
    assert!(registry.outbox.is_empty());
    // Registering again, as after a loss of the daemon, replaces.
    registry.register(&mut machine, 1, client_side(0));
    registry.join(2, client(1000));
    registry.register(&mut machine, 2, server_side(0));
    assert_eq!(answers(&mut registry), [(1, 10, Reason::None), (2, 20, Reason::None)]);
}

#[test]
fn of_two_processes_with_one_socket_the_last_wins() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    registry.join(3, client(1000));
    registry.register(&mut machine, 1, client_side(0));
    registry.register(&mut machine, 3, client_side(0));
    assert_eq!(answers(&mut registry), [(1, 10, Reason::SharedOwners)]);
    registry.register(&mut machine, 2, server_side(0));
    assert_eq!(answers(&mut registry), [(3, 10, Reason::None), (2, 20, Reason::None)]);
}

/// The client's socket, passed on to the next image of process 5.
fn passed_on() -> PassedOn {
    let Registration { cookie, fd, local, remote, tx, rx, .. } = client_side(0);
    PassedOn { heir: 5, cookie, fd, local, remote, legacy: Legacy { tx, rx, sent: 10, received: 7 } }
}

fn adopted(registry: &mut Registry) -> Legacy {
    let answers: Vec<Message> = registry.outbox.drain(..).map(|out| out.message).collect();
    let [Message::Adopted { legacy, .. }] = answers[..] else { panic!("{answers:?}") };
    legacy
}

#[test]
fn an_image_after_exec_adopts_what_the_former_passed_on() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    machine.connection();
    registry.adopt(&mut machine, 1, 77, 1, 3);
    assert_eq!(answers(&mut registry), [(1, 77, Reason::Exec)], "never heard of");
    registry.register(&mut machine, 1, client_side(0));
    registry.pass_on(&mut machine, 1, &passed_on());
    registry.leave(1);
    registry.join(3, client(1000));
    registry.join(4, client_of(1001, 5));
    registry.adopt(&mut machine, 4, 79, 1, 3);
    assert_eq!(answers(&mut registry), [(4, 79, Reason::NotOwner)]);
    registry.adopt(&mut machine, 3, 78, 1, 3);
    assert_eq!(adopted(&mut registry), passed_on().legacy);
    registry.adopt(&mut machine, 3, 78, 1, 3);
    assert_eq!(answers(&mut registry), [(3, 78, Reason::Exec)], "once");
    registry.register(&mut machine, 3, client_side(0));
    registry.register(&mut machine, 2, server_side(0));
    assert_eq!(answers(&mut registry), [(3, 10, Reason::None), (2, 20, Reason::None)]);
}

#[test]
fn only_the_heir_adopts_and_only_what_its_owner_passed_on() {
    type Change = fn(&mut Machine, &mut Registry);
    let cases: [Case<Change>; 5] = [
        ("registered, not passed on", |m, r| r.register(m, 2, client_side(0)), Reason::Exec),
        ("to another process", |m, r| r.pass_on(m, 1, &PassedOn { heir: 6, ..passed_on() }), Reason::Exec),
        ("by somebody who does not own it", |m, r| r.pass_on(m, 4, &passed_on()), Reason::Exec),
        (
            "taken back",
            |m, r| {
                r.pass_on(m, 1, &passed_on());
                r.pass_on(m, 1, &PassedOn { heir: 0, ..passed_on() });
            },
            Reason::Exec,
        ),
        (
            "claimed by another process",
            |m, r| {
                r.register(m, 2, client_side(0));
                r.pass_on(m, 1, &passed_on());
            },
            Reason::Exec,
        ),
    ];
    for (case, change, expected) in cases {
        let (mut machine, mut registry) = (Machine::new(), registry(limits()));
        machine.connection();
        registry.join(3, client(1000));
        registry.join(4, client(1001));
        change(&mut machine, &mut registry);
        registry.adopt(&mut machine, 3, 77, 1, 3);
        assert_eq!(answers(&mut registry), [(3, 77, expected)], "{case}");
    }
}

#[test]
fn the_limit_on_registrations_counts_live_sockets_only() {
    let (mut machine, mut registry) = (Machine::new(), registry(Limits { registrations: 2, ..limits() }));
    for n in 0..4 {
        machine.connection_at(n);
    }
    for n in 0..3 {
        registry.register(&mut machine, 1, client_side(n));
    }
    assert_eq!(answers(&mut registry), [(1, 12, Reason::Limits)]);
    machine.sockets.remove(&1);
    registry.register(&mut machine, 1, client_side(2));
    assert_eq!(answers(&mut registry), [(1, 12, Reason::Limits)], "no second audit at once");
    machine.elapsed += AUDIT_PAUSE;
    registry.register(&mut machine, 1, client_side(2));
    assert!(registry.outbox.is_empty());
    registry.register(&mut machine, 1, client_side(1));
    assert!(registry.outbox.is_empty(), "one that is known needs no room");
}

#[test]
fn segments_are_charged_until_both_sockets_are_gone() {
    let small = pair_bytes(MIN_RING_BYTES) as u64;
    let (mut machine, mut registry) = (Machine::new(), registry(Limits { segment_bytes: small, ..limits() }));
    for n in 0..2 {
        machine.connection_at(n);
    }
    let both = |registry: &mut Registry, machine: &mut Machine, n| {
        machine.elapsed += AUDIT_PAUSE;
        registry.register(machine, 1, client_side(n));
        registry.register(machine, 2, server_side(n));
        answers(registry)[1].2
    };
    assert_eq!(both(&mut registry, &mut machine, 0), Reason::None);
    assert_eq!(registry.counts().live_segment_bytes, small, "the limit made the rings small");
    assert_eq!(both(&mut registry, &mut machine, 1), Reason::Limits);
    machine.sockets.remove(&1);
    assert_eq!(both(&mut registry, &mut machine, 1), Reason::Limits);
    machine.sockets.remove(&2);
    assert_eq!(both(&mut registry, &mut machine, 1), Reason::None);
    assert_eq!(registry.counts().live_pairs, 1);
    machine.memory = false;
    registry.limits.segment_bytes = MIB;
    assert_eq!(both(&mut registry, &mut machine, 1), Reason::Memory);
    machine.memory = true;
    assert_eq!(both(&mut registry, &mut machine, 1), Reason::None);
    assert_eq!(registry.counts().live_pairs, 1, "a connection paired again has one segment");
    assert_eq!(registry.used(1000).segment_bytes, registry.counts().live_segment_bytes);
}

#[test]
fn what_is_gone_is_forgotten_after_many_registrations() {
    let (mut machine, mut registry) = (Machine::new(), registry(limits()));
    for n in 0..AUDIT_EVERY as u16 + 10 {
        machine.connection_at(n);
        registry.register(&mut machine, 1, client_side(n));
        machine.sockets.clear();
    }
    assert!(registry.counts().live_sockets <= 20);
    assert_eq!(registry.counts().audits, 1);
    assert!(registry.members[&1].tokens.len() <= 20);
    assert_eq!(registry.by_ends.len(), registry.sockets.len());
}

#[test]
fn rings_shrink_before_a_limit_refuses() {
    let (limit, full) = (1u64 << 30, Settings::DEFAULT.ring_bytes);
    let mut left = limit;
    let mut sizes = Vec::new();
    while let Some(ring_bytes) = ring_within(full, left, limit) {
        assert!(ropeway_shm::segment::valid_ring_bytes(ring_bytes));
        left -= pair_bytes(ring_bytes) as u64;
        sizes.push(ring_bytes);
    }
    assert!(sizes.is_sorted_by(|a, b| a >= b));
    let full_ones = sizes.iter().filter(|size| **size == full).count();
    assert!(full_ones as u64 * pair_bytes(full) as u64 >= limit / 5, "{full_ones} of full size");
    assert!(sizes.len() > 12_000, "{} pairs", sizes.len());
    assert!(left < pair_bytes(MIN_RING_BYTES) as u64, "{left} bytes unused");
    assert_eq!(ring_within(MIN_RING_BYTES, 0, limit), None);
    assert_eq!(ring_within(full, MIB, MIB), Some(MIN_RING_BYTES), "a small limit");
}

#[test]
fn rings_grow_again_when_connections_go() {
    const CROWD: u16 = 10_000;
    let built_in = Config::built_in().limits(8 << 30);
    let (mut machine, mut registry) = (Machine::new(), registry(built_in));
    let pair = |registry: &mut Registry, machine: &mut Machine, n: u16| {
        machine.connection_at(n);
        registry.register(machine, 1, client_side(n));
        registry.register(machine, 2, server_side(n));
        let Message::Grant { ring_bytes, .. } = registry.outbox[0].message else {
            panic!("{n}: {:?}", registry.outbox)
        };
        registry.outbox.clear();
        ring_bytes
    };
    assert_eq!(pair(&mut registry, &mut machine, 0), Settings::DEFAULT.ring_bytes);
    for n in 1..CROWD {
        pair(&mut registry, &mut machine, n);
    }
    assert_eq!(pair(&mut registry, &mut machine, CROWD), MIN_RING_BYTES);
    assert_eq!(registry.counts().live_pairs, u64::from(CROWD) + 1);
    assert!(registry.counts().live_segment_bytes <= built_in.segment_bytes);
    machine.sockets.clear();
    machine.elapsed += AUDIT_PAUSE;
    assert_eq!(pair(&mut registry, &mut machine, CROWD + 1), Settings::DEFAULT.ring_bytes);
    assert_eq!(registry.counts().live_pairs, 1);
}
