//! Which two registrations become a pair.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use ropeway_testkit::{World, need_program, need_root};
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketType};

use crate::client::{
    Answer, Client, Message, REQUEST, RESPONSE, connection, cookie, hello, prefix, reason, registration,
};
use crate::{world, world_with};

fn local() -> (TcpStream, TcpStream) {
    connection("127.0.0.1:0", "127.0.0.1")
}

#[test]
fn both_ends_get_the_halves_of_one_sealed_segment() {
    let world = world();
    let (a, b) = local();
    let (one, two) = (Client::start(&world), Client::start(&world));
    one.register(7, &a, REQUEST, RESPONSE);
    assert!(one.is_quiet(), "nobody is told anything while the other end is not there");
    two.register(8, &b, RESPONSE, REQUEST);
    let (pair, side, ring_bytes, segment) = one.granted(7);
    let (other_pair, other_side, other_ring_bytes, other_segment) = two.granted(8);
    assert_eq!((pair, side, other_side, ring_bytes), (other_pair, 0, 1, other_ring_bytes));
    let stat = rustix::fs::fstat(&segment).expect("a memfd");
    assert_eq!(stat.st_ino, rustix::fs::fstat(&other_segment).expect("a memfd").st_ino);
    assert!(stat.st_size as u64 > 2 * u64::from(ring_bytes));
    let seals = rustix::fs::fcntl_get_seals(&segment).expect("a memfd");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
    // The page counts a message just after it was sent: the welcome and the grant.
    let deadline = Instant::now() + Duration::from_secs(5);
    while (one.mail_count(), two.mail_count()) != (2, 2) {
        assert!(Instant::now() < deadline, "mailboxes: {} and {}", one.mail_count(), two.mail_count());
    }
}

#[test]
fn the_order_of_the_ends_and_the_family_of_their_addresses_do_not_matter() {
    let world = world();
    for (listen, connect) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
        for server_first in [false, true] {
            let (a, b) = connection(listen, connect);
            let (one, two) = (Client::start(&world), Client::start(&world));
            let client = |c: &Client| c.register(1, &a, REQUEST, RESPONSE);
            let server = |c: &Client| c.register(2, &b, RESPONSE, REQUEST);
            if server_first {
                server(&two);
                two.settle(&b);
                client(&one);
            } else {
                client(&one);
                one.settle(&a);
                server(&two);
            }
            assert_eq!(one.granted(1).1, u8::from(server_first), "{listen}: side 0 is who came first");
            assert_eq!(two.granted(2).1, u8::from(!server_first));
        }
    }
}

#[test]
fn a_process_may_hold_both_ends() {
    let world = world();
    let (a, b) = local();
    let both = Client::start(&world);
    both.register(1, &a, REQUEST, RESPONSE);
    both.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(both.granted(1).0, both.granted(2).0);
}

#[test]
fn a_wrong_cookie_is_refused() {
    let world = world();
    let (a, b) = local();
    let client = Client::start(&world);
    for wrong in [0, 1, cookie(&a) + 1, cookie(&b), u64::MAX] {
        client.send(&registration(5, wrong, &a, REQUEST, RESPONSE));
        assert_eq!(client.denied(5), (reason::NOT_OWNER, false), "cookie {wrong}");
    }
}

#[test]
fn a_socket_connected_to_itself_is_refused() {
    let world = world();
    // Binding and connecting to the same port opens a connection to oneself.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    rustix::net::bind(&socket, &any).expect("a port");
    let own = std::net::SocketAddr::try_from(rustix::net::getsockname(&socket).expect("bound")).expect("internet");
    rustix::net::connect(&socket, &own).expect("a simultaneous open with oneself");
    let socket = TcpStream::from(socket);
    let client = Client::start(&world);
    client.register(3, &socket, REQUEST, REQUEST);
    assert_eq!(client.denied(3), (reason::SELF_CONNECT, false));
}

#[test]
fn ends_that_saw_different_bytes_are_both_refused() {
    let world = world();
    let (one, two) = (Client::start(&world), Client::start(&world));
    // The checkpoints are after 1, 2 and 4 bytes.
    for (tx, rx) in [(RESPONSE, &b"GEX key"[..]), (b"-value", REQUEST)] {
        let (a, b) = local();
        one.register(1, &a, REQUEST, RESPONSE);
        two.register(2, &b, tx, rx);
        assert_eq!(one.denied(1), (reason::MISMATCH, false));
        assert_eq!(two.denied(2), (reason::MISMATCH, false));
    }
    let (a, b) = local();
    one.register(3, &a, b"GE", b"");
    two.register(4, &b, b"", b"GET k");
    assert_eq!(one.granted(3).0, two.granted(4).0, "what one end has not seen yet is no difference");
}

#[test]
fn a_withdrawn_registration_is_not_paired() {
    let world = world();
    let (a, b) = local();
    let (one, two) = (Client::start(&world), Client::start(&world));
    one.register(1, &a, REQUEST, RESPONSE);
    one.send(&Message::new(4).u64(1).finish());
    one.settle(&a);
    two.register(2, &b, RESPONSE, REQUEST);
    assert!(one.is_quiet() && two.is_quiet());
    one.register(3, &a, REQUEST, RESPONSE);
    assert_eq!(one.granted(3).0, two.granted(2).0);
}

#[test]
fn of_two_owners_the_one_that_registered_last_is_paired() {
    let world = world();
    let (a, b) = local();
    let (first, last, peer) = (Client::start(&world), Client::start(&world), Client::start(&world));
    first.register(1, &a, REQUEST, RESPONSE);
    first.settle(&a);
    last.register(1, &a, REQUEST, RESPONSE);
    assert_eq!(first.denied(1), (reason::SHARED_OWNERS, true));
    last.settle(&a);
    peer.register(2, &b, RESPONSE, REQUEST);
    assert_eq!(last.granted(1).0, peer.granted(2).0);
}

#[test]
fn what_an_image_passed_on_is_told_to_the_next_and_once() {
    use std::os::fd::AsRawFd;
    let world = world();
    let (a, _b) = local();
    let fd = a.as_raw_fd().cast_unsigned();
    let (local, remote) = (a.local_addr().expect("connected"), a.peer_addr().expect("connected"));
    let legacy = [prefix(REQUEST), prefix(RESPONSE), vec![7, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]].concat();
    let pass_on = |heir: u32| {
        let head = Message::new(9).u32(heir).u64(cookie(&a)).u32(fd).end(local).end(remote);
        head.bytes(&legacy).finish()
    };
    let adopt = || Message::new(7).u64(9).u64(cookie(&a)).u32(fd).finish();
    let first = Client::start(&world);
    first.register(1, &a, REQUEST, RESPONSE);
    first.send(&adopt());
    assert_eq!(first.denied(9), (reason::EXEC, true), "registered, but not passed on");
    first.send(&pass_on(std::process::id() + 1));
    first.send(&adopt());
    assert_eq!(first.denied(9), (reason::EXEC, true), "for another process");
    // A process that goes away leaves answers unread; what it said last counts all the same.
    first.send(&registration(3, 0, &a, b"", b""));
    first.send(&pass_on(std::process::id()));
    drop(first);
    let next = Client::start(&world);
    next.send(&adopt());
    match next.answer() {
        Answer::Adopted { token: 9, legacy: told } => assert_eq!(told, legacy),
        other => panic!("{other:?}"),
    }
    next.send(&adopt());
    assert_eq!(next.denied(9), (reason::EXEC, true), "only once");
}

#[test]
fn rules_and_profiles_of_the_file_are_applied() {
    let world = world_with(
        "[profile.mine]\nspin_us = 7\npromote_after = 8\npromote_after_bytes = 9\nring_size = '32 KiB'\n\
         [[rule]]\nport = 1\naction = 'deny'\n[[rule]]\npeer = '127.0.0.2'\naction = 'deny'\n",
    );
    let asked = Client::connect(&world);
    asked.send(&hello("mine"));
    match asked.answer() {
        Answer::Welcome { spin_ns, promote_after_calls, promote_after_bytes, ring_bytes, .. } => {
            assert_eq!((spin_ns, promote_after_calls, promote_after_bytes, ring_bytes), (7000, 8, 9, 32 * 1024));
        }
        other => panic!("{other:?}"),
    }
    let (a, b) = local();
    let plain = Client::start(&world);
    asked.register(1, &a, REQUEST, RESPONSE);
    plain.register(2, &b, RESPONSE, REQUEST);
    assert!(plain.granted(2).2 > 32 * 1024, "the larger of the two ring sizes");
    asked.granted(1);
    let (a, b) = connection("127.0.0.2:0", "127.0.0.2");
    asked.register(3, &a, REQUEST, RESPONSE);
    plain.register(4, &b, RESPONSE, REQUEST);
    assert_eq!(asked.denied(3), (reason::RULE, false));
    assert!(plain.is_quiet(), "its own peer is 127.0.0.1, which no rule denies: it waits");
}

#[test]
fn a_changed_file_holds_for_the_next_process_and_a_bad_one_changes_nothing() {
    let world = world_with("");
    let file = world.dir().join("config.toml");
    let spin = |world: &World| {
        let client = Client::connect(world);
        client.send(&hello(""));
        match client.answer() {
            Answer::Welcome { spin_ns, .. } => spin_ns,
            other => panic!("{other:?}"),
        }
    };
    let before = spin(&world);
    std::fs::write(&file, "[profile.default]\nspin_us = 123\n").expect("one's own directory");
    assert_ne!(spin(&world), before);
    assert_eq!(spin(&world), 123_000);
    std::fs::write(&file, "[profile.default]\nspin_ms = 1\n").expect("one's own directory");
    assert_eq!(spin(&world), 123_000);
}

#[test]
fn a_limit_on_registrations_holds_until_sockets_are_gone() {
    let world = world_with("[limits]\nregistrations = 2\n");
    let client = Client::start(&world);
    let mut connections: Vec<_> = (0..3).map(|_| local()).collect();
    for (token, (a, _)) in (0..).zip(&connections) {
        client.register(token, a, REQUEST, RESPONSE);
    }
    assert_eq!(client.denied(2), (reason::LIMITS, true));
    let (waiting, _peer) = connections.pop().expect("three");
    drop(connections);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        client.register(2, &waiting, REQUEST, RESPONSE);
        if client.is_quiet() {
            return;
        }
        assert!(Instant::now() < deadline, "the daemon never noticed that two sockets are gone");
    }
}

#[test]
fn a_limit_on_segments_shrinks_rings_and_then_refuses() {
    let world = world_with("[limits]\nsegment_bytes = '128 KiB'\n");
    let client = Client::start(&world);
    let connections: Vec<_> = (0..6).map(|_| local()).collect();
    let mut outcomes = Vec::new();
    for (a, b) in &connections {
        client.register(1, a, REQUEST, RESPONSE);
        client.register(2, b, RESPONSE, REQUEST);
        for _ in 0..2 {
            outcomes.push(match client.answer() {
                Answer::Grant { ring_bytes, .. } => ring_bytes,
                Answer::Deny { reason: reason::LIMITS, retry: true, .. } => 0,
                other => panic!("{other:?}"),
            });
        }
    }
    assert_eq!(&outcomes[..2], [16 * 1024; 2], "the smallest ring, before anything is refused");
    assert_eq!(&outcomes[10..], [0; 2]);
}

#[test]
fn a_thousand_connections_are_paired() {
    let world = world();
    let (one, two) = (Client::start(&world), Client::start(&world));
    let connections: Vec<_> = (0..1000).map(|_| local()).collect();
    let started = Instant::now();
    let mut granted = 0;
    // Nobody reads while both register in blocks: the daemon keeps what does not fit into the sockets.
    for block in connections.chunks(250) {
        for (token, (a, b)) in (0..).zip(block) {
            one.register(token, a, REQUEST, RESPONSE);
            two.register(token, b, RESPONSE, REQUEST);
        }
        for token in 0..block.len() as u64 {
            assert_eq!(one.granted(token).0, two.granted(token).0);
            granted += 1;
        }
    }
    assert_eq!(granted, 1000);
    println!("1000 pairs in {:?}", started.elapsed());
    assert!(started.elapsed().as_secs() < 10, "{:?} for 1000 pairs", started.elapsed());
    let daemon = world.daemon_pid().expect("it runs");
    let open = std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("our daemon").count();
    assert!(open < 20, "the daemon keeps {open} descriptors");
}

#[test]
fn a_socket_that_root_accepted_is_its_holders_and_nobody_elses() {
    need_root!();
    need_program!("python3");
    let world = world();
    let (a, b) = local(); // made by root, and given to a process that is not
    let peer = Client::start(&world);
    peer.register(2, &b, RESPONSE, REQUEST);

    // Another user who knows all about it, but does not hold it under that number: a thread has a user of its own, and its
    // process is root's.
    let hostile = {
        let (a, world) = (&a, &world);
        std::thread::scope(|scope| {
            let attempt = move || {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
                let client = Client::start(world);
                client.register(1, a, REQUEST, RESPONSE);
                client.denied(1)
            };
            scope.spawn(attempt).join().expect("the attempt ran")
        })
    };
    assert_eq!(hostile, (reason::NOT_OWNER, false));

    // The holder, after it gave up being root.
    let granted = crate::abuse::register_as_nobody(&world, &a, &registration(1, cookie(&a), &a, REQUEST, RESPONSE));
    assert!(granted, "the daemon sees in /proc that the process holds the socket");
    assert_eq!(peer.granted(2).1, 0);
}

#[test]
fn a_socket_of_another_network_namespace_is_refused_with_its_reason() {
    need_root!();
    need_program!("python3", "ip");
    let world = world();
    // Connects to the daemon, moves to a namespace of its own, and registers a connection made there.
    const PROGRAM: &str = "\
import ctypes, os, socket, struct, sys
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.settimeout(10)
daemon.connect('\\0' + sys.argv[1])
daemon.send(b'RW\\x01\\x01' + struct.pack('<I', os.getpid()) + bytes(48))
CLONE_NEWNET, SO_COOKIE = 0x40000000, 57
assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
assert os.system('ip link set lo up') == 0
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
def end(address):
    return b'\\0' * 10 + b'\\xff\\xff' + socket.inet_aton(address[0]) + struct.pack('<H', address[1])
cookie = struct.unpack('<Q', client.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
ends = end(client.getsockname()) + end(client.getpeername())
daemon.send(b'RW\\x01\\x03' + struct.pack('<QQi', 1, cookie, client.fileno()) + ends + bytes(88))
answer = daemon.recv(512)
while answer[3] == 2:
    answer = daemon.recv(512)
print(answer[3], struct.unpack('<H', answer[12:14])[0])
";
    let program = ropeway_testkit::proc::command("python3", ["-c", PROGRAM, world.socket()]);
    let finished = ropeway_testkit::proc::Process::spawn(program).succeed(Duration::from_secs(20));
    assert_eq!(finished.stdout, format!("6 {}\n", reason::OTHER_NETNS));
}
