//! Engines with the cluster's keys: over real links, and across fork.

use ropeway_engine::restart::{Secret, SecretError};
use ropeway_engine::{ClusterKey, ClusterKeys, Engine, Error, ErrorCode, Interest, LinkId, Mode, Options, Target};
use ropeway_link::fault::FaultLink;
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Faults, Link};
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn keys(numbers: &[u8]) -> Option<Arc<ClusterKeys>> {
    let line = |&number: &u8| ClusterKey::new(std::array::from_fn(|at| number.wrapping_add(at as u8))).line();
    let text: String = numbers.iter().map(|number| format!("{}\n", *line(number))).collect();
    (!numbers.is_empty()).then(|| Arc::new(ClusterKeys::parse(&text).unwrap()))
}

struct End {
    engine: Engine,
    link: LinkId,
    address: Address,
}

impl End {
    fn to(&self, other: &End) -> Target {
        Target { link: self.link, address: other.address }
    }
}

fn end_at(address: &str, options: &Options) -> End {
    let engine = Engine::new(options).unwrap();
    let udp = udp::Options { most_packet_bytes: Some(1472), ..udp::Options::new(address.parse().unwrap()) };
    let link = UdpLink::open(&udp).unwrap();
    let address = link.local();
    let link = engine.add_link(Box::new(link)).unwrap();
    End { engine, link, address }
}

fn end(numbers: &[u8]) -> End {
    end_at("127.0.0.1:0", &Options { keys: keys(numbers), ..Options::default() })
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn pattern(count: u64) -> Vec<u8> {
    (0..count).map(|at| (at ^ (at >> 8)) as u8).collect()
}

#[test]
fn streams_and_messages_go_between_two_engines_with_the_same_key() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let options = Options { keys: keys(&[1]), ..Options::default() };
        let (client, server) = (end_at(address, &options), end_at(address, &options));
        server.engine.listen(7, Mode::Stream, 8).unwrap();
        server.engine.listen(8, Mode::Messages, 8).unwrap();
        let data = pattern(5_000_000);
        let receiver = server.engine.clone();
        let expected = data.clone();
        let thread = std::thread::spawn(move || {
            let channel = receiver.accept(7, soon()).unwrap();
            let (mut got, mut buffer) = (Vec::new(), vec![0; 65_536]);
            while let Some(count) = receiver.recv(channel, &mut buffer, soon()).unwrap() {
                got.extend_from_slice(&buffer[..count]);
            }
            assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
            receiver.close(channel);
            let channel = receiver.accept(8, soon()).unwrap();
            while let Some(count) = receiver.recv(channel, &mut buffer, soon()).unwrap() {
                receiver.send_all(channel, &buffer[..count], soon()).unwrap();
            }
            receiver.close(channel);
        });
        let channel = client.engine.connect(client.to(&server), 7, Mode::Stream, soon()).unwrap();
        client.engine.send_all(channel, &data, soon()).map_err(|error| error.1).unwrap();
        client.engine.shutdown(channel).unwrap();
        client.engine.drain(channel, soon()).unwrap();
        client.engine.close(channel);
        let channel = client.engine.connect(client.to(&server), 8, Mode::Messages, soon()).unwrap();
        let mut buffer = vec![0; 65_536];
        for size in [0, 1, 1423, 1424, 1425, 60_000].into_iter().cycle().take(300) {
            client.engine.send_all(channel, &data[..size], soon()).unwrap();
            assert_eq!(client.engine.recv(channel, &mut buffer, soon()).unwrap(), Some(size));
            assert!(buffer[..size] == data[..size]);
        }
        client.engine.close(channel);
        thread.join().unwrap();
        let refused: u64 = [&client, &server].map(|end| end.engine.counters().dropped_sealed.iter().sum()).iter().sum();
        assert_eq!(refused, 0, "every packet that arrived opened");
    }
}

#[test]
fn who_has_no_key_or_another_one_gets_an_error_that_says_so() {
    let server = end(&[1]);
    server.engine.listen(7, Mode::Stream, 8).unwrap();
    for other in [&[][..], &[2]] {
        let client = end(other);
        // Less time than an attempt has: what the server says is told when it is over.
        let deadline = Some(Instant::now() + Duration::from_millis(if other.is_empty() { 20_000 } else { 1000 }));
        let error = client.engine.connect(client.to(&server), 7, Mode::Stream, deadline).unwrap_err();
        assert!(matches!(error, Error::Failed(ErrorCode::Key)), "{error:?}");
        assert!(error.to_string().contains("key"), "{error}");
    }
    let keyless = end(&[]);
    let error = server
        .engine
        .connect(server.to(&keyless), 7, Mode::Stream, Some(Instant::now() + Duration::from_secs(1)))
        .unwrap_err();
    assert!(matches!(error, Error::Failed(ErrorCode::Key)), "{error:?}");
    assert!(matches!(server.engine.try_accept(7), Err(Error::WouldBlock)));
}

#[test]
fn keys_are_replaced_while_an_engine_runs() {
    let (client, server) = (end(&[1]), end(&[1]));
    server.engine.listen(7, Mode::Messages, 8).unwrap();
    let old = client.engine.connect(client.to(&server), 7, Mode::Messages, soon()).unwrap();
    let old_end = server.engine.accept(7, soon()).unwrap();
    server.engine.replace_keys(keys(&[2, 1]).unwrap()).unwrap();
    let late = end(&[2]);
    let channel = late.engine.connect(late.to(&server), 7, Mode::Messages, soon()).unwrap();
    late.engine.send_all(channel, b"new", soon()).unwrap();
    let channel = server.engine.accept(7, soon()).unwrap();
    assert_eq!(server.engine.recv(channel, &mut [0; 10], soon()).unwrap(), Some(3));
    client.engine.send_all(old, b"still", soon()).unwrap();
    assert_eq!(server.engine.recv(old_end, &mut [0; 10], soon()).unwrap(), Some(5));
    assert!(matches!(end(&[]).engine.replace_keys(keys(&[1]).unwrap()), Err(Error::Keyless)));
}

#[test]
fn an_engine_may_talk_to_itself() {
    for numbers in [&[1][..], &[]] {
        let one = end(numbers);
        talks_to_itself(&one, one.address);
    }
}

#[test]
fn an_engine_at_a_wildcard_address_may_talk_to_itself_at_each_address_of_the_host() {
    for numbers in [&[1][..], &[]] {
        for (wildcard, own) in [("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "::1")] {
            let one = end_at(wildcard, &Options { keys: keys(numbers), ..Options::default() });
            let Address::Udp(local) = one.address else { panic!("a UDP link has a UDP address") };
            talks_to_itself(&one, Address::Udp((own.parse::<IpAddr>().unwrap(), local.port()).into()));
        }
    }
}

fn talks_to_itself(one: &End, at: Address) {
    one.engine.listen(7, Mode::Messages, 8).unwrap();
    let channel = one.engine.connect(Target { link: one.link, address: at }, 7, Mode::Messages, soon()).unwrap();
    let other = one.engine.accept(7, soon()).unwrap();
    one.engine.send_all(channel, b"hello", soon()).unwrap();
    assert_eq!(one.engine.recv(other, &mut [0; 10], soon()).unwrap(), Some(5));
}

#[test]
fn a_forked_child_seals_nothing_with_its_parents_keys() {
    let (client, server) = (end(&[1]), end(&[1]));
    server.engine.listen(7, Mode::Messages, 8).unwrap();
    let channel = client.engine.connect(client.to(&server), 7, Mode::Messages, soon()).unwrap();
    let accepted = server.engine.accept(7, soon()).unwrap();
    let exchange = |message: &[u8]| {
        client.engine.send_all(channel, message, soon()).unwrap();
        let mut buffer = [0; 100];
        let count = server.engine.recv(accepted, &mut buffer, soon()).unwrap().unwrap();
        assert_eq!(&buffer[..count], message);
    };
    exchange(b"before");
    // SAFETY: the child calls only what must work in one, and leaves without running anything of its parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
        let engine = &client.engine;
        let all = is_forked(engine.try_send(channel, b"from the child").map(drop))
            && is_forked(engine.send_all(channel, b"from the child", soon()).map_err(|error| error.1))
            && is_forked(engine.try_recv(channel, &mut [0; 10]).map(drop))
            && is_forked(engine.recv(channel, &mut [0; 10], soon()).map(drop))
            && is_forked(engine.shutdown(channel))
            && is_forked(engine.drain(channel, soon()))
            && is_forked(engine.open(client.to(&server), 7, Mode::Messages).map(drop))
            && is_forked(engine.connect(client.to(&server), 7, Mode::Messages, soon()).map(drop))
            && is_forked(engine.listen(9, Mode::Messages, 1).map(drop))
            && is_forked(engine.unlisten(7))
            && is_forked(engine.watch(channel, Interest { read: true, write: true }).map(drop))
            && is_forked(engine.wait(channel, Interest { read: true, write: true }, soon()).map(drop))
            && engine.readiness(channel).is_none();
        engine.close(channel);
        engine.abort(channel);
        engine.set_no_delay(channel, true);
        // Dropping says goodbye to nobody, and hangs on no lock.
        drop(client);
        drop(server);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // Had the child sealed and sent anything, a counter of the parent's would be refused as replayed, or the association be over.
    for _ in 0..100 {
        exchange(b"after");
    }
    let dropped = [&client, &server].map(|end| end.engine.counters().dropped_sealed);
    assert_eq!(dropped, [[0; 7]; 2]);
}

#[test]
fn an_engine_that_comes_back_with_its_secret_ends_what_it_had_before() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    // A port of one's own: bound, and left again.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    // A child that another of these tests forks has the lock, too, until it ends.
    let open = || {
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            match Secret::open(&file) {
                Err(SecretError::InUse { .. }) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                opened => return opened.unwrap(),
            }
        }
    };
    let start = || {
        let secret = Arc::new(open());
        let options = Options { keys: keys(&[1]), secret: Some(secret), ..Options::default() };
        let udp = udp::Options { most_packet_bytes: Some(1472), ..udp::Options::new(address.parse().unwrap()) };
        let link = FaultLink::new(UdpLink::open(&udp).unwrap(), 1);
        let control = link.control();
        let engine = Engine::new(&options).unwrap();
        let address = link.local();
        let link = engine.add_link(Box::new(link)).unwrap();
        engine.listen(7, Mode::Messages, 8).unwrap();
        (End { engine, link, address }, control)
    };
    let client = end(&[1]);
    let (first, control) = start();
    let channel = client.engine.connect(client.to(&first), 7, Mode::Messages, soon()).unwrap();
    client.engine.send_all(channel, b"hello", soon()).unwrap();
    let accepted = first.engine.accept(7, soon()).unwrap();
    assert_eq!(first.engine.recv(accepted, &mut [0; 10], soon()).unwrap(), Some(5));
    // It goes without a word that anybody hears, as if it had been killed.
    control.set_send(Faults { loss_ppm: 1_000_000, ..Faults::default() });
    drop(first);
    let (_second, _) = start();
    let begin = Instant::now();
    let _ = client.engine.send_all(channel, &[1; 100], soon());
    let error = client.engine.recv(channel, &mut [0; 10], soon()).unwrap_err();
    assert!(matches!(error, Error::Failed(ErrorCode::Unknown)), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "that was silence, not a reset");
}
