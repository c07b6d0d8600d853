//! Bytes in order, ends, halves and time limits.

use crate::{A_WHILE, SOON, connect, kind, pair};
use ropeway_socket::{Listener, Stream};
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// What a socket of either kind can do.
trait Socket: Read + Write + Send {
    fn shutdown(&self, how: Shutdown) -> std::io::Result<()>;
    fn set_nonblocking(&self, on: bool) -> std::io::Result<()>;
    fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()>;
}

macro_rules! socket {
    ($kind:ty) => {
        impl Socket for $kind {
            fn shutdown(&self, how: Shutdown) -> std::io::Result<()> {
                <$kind>::shutdown(self, how)
            }
            fn set_nonblocking(&self, on: bool) -> std::io::Result<()> {
                <$kind>::set_nonblocking(self, on)
            }
            fn set_read_timeout(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                <$kind>::set_read_timeout(self, limit)
            }
        }
    };
}

socket!(Stream);
socket!(TcpStream);

/// Runs a test over TCP, which says what is expected, and over Ropeway.
fn over_both(test: impl Fn(&str, &mut dyn Socket, &mut dyn Socket)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    test("tcp", &mut client, &mut server);
    let (mut client, mut server) = pair();
    test("ropeway", &mut client, &mut server);
}

#[test]
fn bytes_arrive_in_order_and_then_the_end() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 11)) as u8).collect();
    let expected = sent.clone();
    let sender = thread::spawn(move || {
        let mut stream = Stream::connect(to).unwrap();
        stream.write_all(&sent).unwrap();
        // Dropped without ado: what was written arrives all the same.
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received == expected, "{} bytes", received.len());
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end stays the end");
    sender.join().unwrap();
}

#[test]
fn half_a_connection_goes_on_after_the_other_half_has_ended() {
    over_both(|name, client, server| {
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question", "{name}");
        server.write_all(b"answer").unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer", "{name}");
        assert_eq!(kind(client.write(b"more")), ErrorKind::BrokenPipe, "{name}");
    });
}

#[test]
fn after_reading_was_ended_what_is_there_is_read_and_then_the_end() {
    over_both(|name, client, server| {
        server.write_all(b"here").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        let mut buffer = [0; 2];
        client.read_exact(&mut buffer).unwrap();
        client.shutdown(Shutdown::Read).unwrap();
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"re", "{name}");
        assert_eq!(client.read(&mut buffer).unwrap(), 0, "{name}");
        // The other direction is not touched.
        client.write_all(b"still").unwrap();
        let mut buffer = [0; 5];
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"still", "{name}");
    });
}

#[test]
fn ending_a_direction_wakes_the_thread_that_reads_it() {
    let (client, _server) = pair();
    let reader = client.try_clone().unwrap();
    let (begun, begins) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        begun.send(()).unwrap();
        (&reader).read(&mut [0; 10])
    });
    begins.recv().unwrap();
    thread::sleep(A_WHILE);
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 0);
}

#[test]
fn time_limits_end_a_wait_as_they_do_with_tcp() {
    over_both(|name, client, server| {
        client.set_read_timeout(Some(A_WHILE)).unwrap();
        let begin = std::time::Instant::now();
        assert_eq!(kind(client.read(&mut [0])), ErrorKind::WouldBlock, "{name}");
        assert!(begin.elapsed() >= A_WHILE, "{name}");
        assert_eq!(kind(client.set_read_timeout(Some(std::time::Duration::ZERO))), ErrorKind::InvalidInput, "{name}");
        server.write_all(b"x").unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 1, "{name}");
    });
}

#[test]
fn a_write_that_nobody_reads_ends_with_its_time_and_says_how_much_it_took() {
    let (mut client, mut server) = pair();
    client.set_write_timeout(Some(A_WHILE)).unwrap();
    let block = vec![7; 1 << 20];
    let mut sent = 0;
    let error = loop {
        match client.write(&block) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(sent > 0);
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent);
}

#[test]
fn calls_that_would_wait_say_so_when_told_not_to() {
    over_both(|name, client, server| {
        client.set_nonblocking(true).unwrap();
        assert_eq!(kind(client.read(&mut [0])), ErrorKind::WouldBlock, "{name}");
        let mut sent = 0;
        loop {
            match client.write(&[1; 65536]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert!(sent > 0, "{name}");
        // This end waits, as ever.
        server.read_exact(&mut vec![0; sent.min(1 << 16)]).unwrap();
    });
}

#[test]
fn peeking_takes_nothing() {
    let (mut client, mut server) = pair();
    client.write_all(b"look").unwrap();
    let mut buffer = [0; 8];
    assert_eq!(server.peek(&mut buffer[..2]).unwrap(), 2);
    crate::wait_until("all of it is there", || server.peek(&mut buffer).unwrap() == 4);
    assert_eq!(&buffer[..4], b"look");
    server.read_exact(&mut buffer[..4]).unwrap();
    assert_eq!(&buffer[..4], b"look");
    // Into no buffer nothing is waited for.
    assert_eq!((server.peek(&mut []).unwrap(), server.try_peek(&mut []).unwrap()), (0, 0));
    drop(client);
    assert_eq!(server.peek(&mut buffer).unwrap(), 0);
}

#[test]
fn a_look_at_all_waits_for_what_can_come_before_something_is_read() {
    let (client, mut server) = pair();
    let mut buffer = [0; 8];
    thread::scope(|scope| {
        scope.spawn(|| {
            (&client).write_all(b"abc").unwrap();
            thread::sleep(A_WHILE);
            (&client).write_all(b"defgh").unwrap();
        });
        assert_eq!((server.peek_all(&mut buffer).unwrap(), &buffer), (8, b"abcdefgh"));
    });
    server.read_exact(&mut buffer[..2]).unwrap();
    server.set_read_timeout(Some(A_WHILE)).unwrap();
    let begin = Instant::now();
    assert_eq!((server.peek_all(&mut buffer).unwrap(), &buffer[..6]), (6, &b"cdefgh"[..]));
    assert!(begin.elapsed() >= A_WHILE);
    server.read_exact(&mut buffer[..6]).unwrap();
    assert_eq!(kind(server.peek_all(&mut buffer)), ErrorKind::WouldBlock);
    server.set_read_timeout(None).unwrap();
    // More than the peer may send before it is read.
    client.set_write_timeout(Some(A_WHILE)).unwrap();
    let block = vec![7; 1 << 20];
    let mut sent = 0;
    while let Ok(count) = (&client).write(&block) {
        sent += count;
    }
    let mut all = vec![0; sent + 1];
    let seen = server.peek_all(&mut all).unwrap();
    assert!((1..=sent).contains(&seen), "{seen} of {sent}");
    server.read_exact(&mut all[..sent]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.peek_all(&mut all).unwrap(), 0);
}

#[test]
fn several_reads_share_one_limit() {
    let (mut client, server) = pair();
    client.write_all(b"xy").unwrap();
    let deadline = Instant::now() + A_WHILE;
    let mut byte = [0];
    assert_eq!((server.read_by(&mut byte, Some(deadline)).unwrap(), byte), (1, *b"x"));
    assert_eq!((server.read_by(&mut byte, None).unwrap(), byte), (1, *b"y"));
    assert_eq!(kind(server.read_by(&mut byte, Some(deadline))), ErrorKind::WouldBlock);
    assert!(Instant::now() >= deadline);
    assert_eq!(server.read_by(&mut [], None).unwrap(), 0);
    server.set_nonblocking(true).unwrap();
    assert_eq!(kind(server.read_by(&mut byte, None)), ErrorKind::WouldBlock);
}

#[test]
fn buffered_readers_and_writers_work_on_references() {
    let (client, server) = pair();
    let echo = thread::spawn(move || {
        let mut lines = BufReader::new(&server).lines();
        while let Some(Ok(line)) = lines.next() {
            writeln!(&server, "{}", line.to_uppercase()).unwrap();
        }
    });
    let mut answers = BufReader::new(&client);
    for round in 0..200 {
        writeln!(&client, "line {round}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("LINE {round}\n"));
    }
    client.shutdown(Shutdown::Write).unwrap();
    echo.join().unwrap();
}

#[test]
fn many_threads_share_one_connection() {
    const THREADS: usize = 8;
    const EACH: usize = 200_000;
    let (client, server) = pair();
    let writers: Vec<_> = (0..THREADS)
        .map(|number| {
            let mut stream = client.try_clone().unwrap();
            thread::spawn(move || {
                for _ in 0..EACH / 1000 {
                    stream.write_all(&[number as u8; 1000]).unwrap();
                }
            })
        })
        .collect();
    let readers: Vec<_> = (0..THREADS)
        .map(|_| {
            let mut stream = server.try_clone().unwrap();
            thread::spawn(move || {
                let (mut counts, mut buffer) = ([0usize; THREADS], [0; 4096]);
                loop {
                    match stream.read(&mut buffer).unwrap() {
                        0 => return counts,
                        count => buffer[..count].iter().for_each(|&byte| counts[usize::from(byte)] += 1),
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    client.shutdown(Shutdown::Write).unwrap();
    let mut total = [0; THREADS];
    for reader in readers {
        for (sum, count) in total.iter_mut().zip(reader.join().unwrap()) {
            *sum += count;
        }
    }
    assert_eq!(total, [EACH; THREADS]);
}

#[test]
fn addresses_say_where_both_ends_are() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let listener = Listener::bind(local).unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(at.port(), listener.port());
        let (client, server) = connect(&listener);
        assert_eq!(client.peer_addr().unwrap(), at);
        assert_eq!(server.local_addr().unwrap(), at);
        assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
        let (own, other) = client.ports();
        assert_eq!(server.ports(), (other, own));
        let (second, _server) = connect(&listener);
        assert_ne!(second.ports(), client.ports());
    }
}

#[test]
fn an_iterator_accepts_and_a_name_is_resolved() {
    let listener = Listener::bind("localhost:0").unwrap();
    let port = listener.port();
    let clients = thread::spawn(move || {
        for number in 0..5u8 {
            Stream::connect(("localhost", port)).unwrap().write_all(&[number]).unwrap();
        }
    });
    for (expected, stream) in (0..5u8).zip(listener.incoming()) {
        let mut byte = [0];
        stream.unwrap().read_exact(&mut byte).unwrap();
        assert_eq!(byte[0], expected);
    }
    clients.join().unwrap();
}

/// Bytes by their places.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at ^ (at >> 9)) as u8).collect()
}

/// Slices of these lengths, one after the other.
fn slices<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<IoSlice<'a>> {
    lens.iter().map(|len| IoSlice::new(bytes.split_off(..*len).expect("there"))).collect()
}

#[test]
fn vectored_writes_and_reads_carry_all_slices_in_order() {
    over_both(|which, client, server| {
        let lens = [5, 0, 1000, 100_000, 1, 30_000];
        let sent = bytes(lens.iter().sum());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut parts = slices(&sent, &lens);
                let mut parts = &mut parts[..];
                while !parts.is_empty() {
                    let count = client.write_vectored(parts).unwrap();
                    assert!(count > 0, "{which}");
                    IoSlice::advance_slices(&mut parts, count);
                }
                client.shutdown(Shutdown::Write).unwrap();
            });
            let (mut received, mut buffers) = (Vec::new(), [vec![0; 7], Vec::new(), vec![0; 3000], vec![0; 20_000]]);
            loop {
                let mut parts = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut count = server.read_vectored(&mut parts).unwrap();
                if count == 0 {
                    break;
                }
                for buffer in &buffers {
                    received.extend_from_slice(&buffer[..count.min(buffer.len())]);
                    count -= count.min(buffer.len());
                }
                assert_eq!(count, 0, "{which}");
            }
            assert!(received == sent, "{which}");
        });
    });
}

#[test]
fn a_vectored_read_waits_for_the_first_byte_only() {
    over_both(|which, client, server| {
        client.write_all(b"hello").unwrap();
        let (mut one, mut other) = ([0; 3], [0; 100]);
        let mut received = 0;
        while received < 5 {
            let mut parts = [IoSliceMut::new(&mut one[received.min(3)..]), IoSliceMut::new(&mut other[..])];
            received += server.read_vectored(&mut parts).unwrap();
        }
        assert_eq!((received, &one, &other[..2]), (5, b"hel", &b"lo"[..]), "{which}");
        server.set_nonblocking(true).unwrap();
        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
        assert_eq!(kind(server.read_vectored(&mut parts)), ErrorKind::WouldBlock, "{which}");
        assert_eq!(server.read_vectored(&mut []).unwrap(), 0, "{which}");
    });
}

#[test]
fn vectored_calls_take_what_there_is_room_for() {
    let (client, mut server) = pair();
    let chunk = bytes(100_000);
    let parts = slices(&chunk, &[10, 99_990]);
    let mut sent = Vec::new();
    loop {
        match client.try_write_vectored(&parts) {
            Ok(count) => sent.extend_from_slice(&chunk[..count]),
            Err(error) => break assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert!(received == sent);
    assert_eq!(server.try_read_vectored(&mut [IoSliceMut::new(&mut [0; 5])]).unwrap(), 0, "the end");
    assert_eq!(kind((&client).write_vectored(&parts)), ErrorKind::BrokenPipe);
}

#[test]
fn a_vectored_write_that_ends_early_leaves_nothing_out() {
    const FIRST: usize = 3 << 20;
    const TOTAL: usize = FIRST + (64 << 10);
    for waits in [false, true] {
        let (client, mut server) = pair();
        client.set_write_timeout(Some(Duration::from_millis(2))).unwrap();
        client.set_nonblocking(!waits).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut received, mut buffer) = (Vec::new(), vec![0; 100_000]);
            loop {
                match server.read(&mut buffer).unwrap() {
                    0 => return received,
                    count => received.extend_from_slice(&buffer[..count]),
                }
                // So that room comes while the writer is between two parts.
                if received.len() % 7 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        let chunk = bytes(TOTAL);
        let mut sent = 0;
        for _ in 0..10 {
            let mut at = 0;
            while at < TOTAL {
                let parts = match at {
                    0..FIRST => vec![IoSlice::new(&chunk[at..FIRST]), IoSlice::new(&chunk[FIRST..])],
                    _ => vec![IoSlice::new(&chunk[at..])],
                };
                match (&client).write_vectored(&parts) {
                    Ok(count) => at += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            sent += at;
        }
        client.shutdown(Shutdown::Write).unwrap();
        let received = reader.join().unwrap();
        assert_eq!(received.len(), sent);
        assert!(received.chunks(TOTAL).all(|part| part == chunk), "waits: {waits}");
    }
}

#[test]
fn short_buffers_of_one_write_leave_in_one_packet() {
    use ropeway_socket::api::{Engine, Options, Target, link::memory};
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let address = ropeway_socket::api::link::Link::local(&other);
    let [near, far] = [(); 2].map(|()| Engine::new(&Options::default()).unwrap());
    let links = (near.add_link(Box::new(one)).unwrap(), far.add_link(Box::new(other)).unwrap());
    let listener = Listener::bind_on(&far, links.1, 7000, 10).unwrap();
    let mut client = Stream::connect_on(&near, Target { link: links.0, address }, 7000, Some(SOON)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    let sent = bytes(700);
    const ROUNDS: u64 = 50;
    let mut packets = |vectored: bool| {
        let before = far.counters().packets_received;
        for _ in 0..ROUNDS {
            let parts = slices(&sent, &[16, 600, 84]);
            match vectored {
                true => assert_eq!(client.write_vectored(&parts).unwrap(), 700),
                false => parts.iter().for_each(|part| client.write_all(part).unwrap()),
            }
            let mut received = vec![0; 700];
            server.read_exact(&mut received).unwrap();
            assert!(received == sent);
        }
        far.counters().packets_received - before
    };
    let (apart, together) = (packets(false), packets(true));
    assert!(apart >= 2 * ROUNDS, "{apart} packets");
    // Besides these there is little to say.
    assert!((ROUNDS..2 * ROUNDS).contains(&together), "{together} packets");
}
