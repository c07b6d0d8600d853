//! Descriptors for event loops.

use crate::{SOON, kind, wait_until};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use ropeway_socket::api::Watch;
use ropeway_socket::{Listener, MessageListener, MessageSocket, Stream};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

const LISTENER: Token = Token(usize::MAX);

fn register(poll: &Poll, watch: &Watch, token: Token, interest: Interest) {
    poll.registry().register(&mut SourceFd(&watch.as_fd().as_raw_fd()), token, interest).unwrap();
}

/// Accepts `expected` connections and echoes what comes until all have ended. mio is edge-triggered: everything is read and written until it
/// would block.
fn echo(listener: &Listener, expected: usize) -> usize {
    struct Client {
        stream: Stream,
        unsent: Vec<u8>,
        ended: bool,
        /// Kept for its descriptor.
        _watch: Watch,
    }
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(64);
    let watch = listener.watch().unwrap();
    listener.set_nonblocking(true).unwrap();
    register(&poll, &watch, LISTENER, Interest::READABLE);
    let (mut clients, mut accepted, mut echoed) = (HashMap::new(), 0, 0);
    while accepted < expected || !clients.is_empty() {
        poll.poll(&mut events, Some(SOON)).unwrap();
        assert!(!events.is_empty(), "{accepted} accepted, {} left", clients.len());
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).unwrap();
                    let watch = stream.watch().unwrap();
                    register(&poll, &watch, Token(accepted), Interest::READABLE | Interest::WRITABLE);
                    let client = Client { stream, unsent: Vec::new(), ended: false, _watch: watch };
                    clients.insert(Token(accepted), client);
                    accepted += 1;
                }
                continue;
            }
            let Some(client) = clients.get_mut(&event.token()) else { continue };
            let mut buffer = [0; 8192];
            loop {
                // Writes first: what cannot leave must not pile up.
                match client.stream.write(&client.unsent) {
                    Ok(count) => drop(client.unsent.drain(..count)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                if !client.unsent.is_empty() || client.ended {
                    break;
                }
                match client.stream.read(&mut buffer) {
                    Ok(0) => client.ended = true,
                    Ok(count) => {
                        client.unsent.extend(&buffer[..count]);
                        echoed += count;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            if client.ended && client.unsent.is_empty() {
                clients.remove(&event.token());
            }
        }
    }
    echoed
}

#[test]
fn a_hundred_connections_are_served_by_one_thread_with_mio() {
    const CLIENTS: usize = 100;
    const BYTES: usize = 30_000;
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let server = thread::spawn(move || echo(&listener, CLIENTS));
    let clients: Vec<_> = (0..4)
        .map(|thread| {
            let to = to.clone();
            thread::spawn(move || {
                let streams: Vec<_> = (0..CLIENTS / 4).map(|_| Stream::connect(&to).unwrap()).collect();
                let data = |number| -> Vec<u8> { (0..BYTES).map(|at| (at * 7 + number + thread) as u8).collect() };
                for (number, mut stream) in streams.iter().enumerate() {
                    stream.write_all(&data(number)).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                }
                for (number, mut stream) in streams.iter().enumerate() {
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).unwrap();
                    assert!(answer == data(number), "{} bytes", answer.len());
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(server.join().unwrap(), CLIENTS * BYTES);
}

#[test]
fn a_descriptor_shows_room_to_write_as_a_socket_does() {
    let (mut client, mut server) = crate::pair();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    let watch = client.watch().unwrap();
    register(&poll, &watch, Token(1), Interest::READABLE | Interest::WRITABLE);
    poll.poll(&mut events, Some(SOON)).unwrap();
    assert!(events.iter().all(|event| event.is_writable() && !event.is_readable()) && !events.is_empty());
    client.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Until the other end's memory is full as well: then there is nothing to say until it reads. (There may be a little room: as with TCP, who was
    // told that there is none hears of it when it is worth while.)
    while !events.is_empty() {
        while let Ok(count) = client.write(&[1; 65536]) {
            sent += count;
        }
        poll.poll(&mut events, Some(10 * crate::A_WHILE)).unwrap();
    }
    server.read_exact(&mut vec![0; sent]).unwrap();
    poll.poll(&mut events, Some(SOON)).unwrap();
    assert!(events.iter().any(|event| event.is_writable()));
    client.write_all(b"more").unwrap();
    drop(server);
    wait_until("the end is readable", || {
        poll.poll(&mut events, Some(SOON)).unwrap();
        events.iter().any(|event| event.is_readable())
    });
}

#[test]
fn a_connection_can_be_opened_without_waiting() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let client = Stream::connect_nonblocking(&listener.local_addr().unwrap()).unwrap();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    register(&poll, &client.watch().unwrap(), Token(1), Interest::WRITABLE);
    wait_until("it is connected", || {
        poll.poll(&mut events, Some(SOON)).unwrap();
        client.is_connected().unwrap()
    });
    let (mut server, _) = listener.accept().unwrap();
    (&client).write_all(b"hello").unwrap();
    let mut buffer = [0; 5];
    server.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
}

#[test]
fn a_refusal_wakes_who_waits_for_a_connection_that_opens() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Stream::connect_nonblocking(&port.into()).unwrap();
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    register(&poll, &client.watch().unwrap(), Token(1), Interest::WRITABLE);
    poll.poll(&mut events, Some(SOON)).unwrap();
    assert!(!events.is_empty());
    assert_eq!(kind(client.is_connected()), ErrorKind::ConnectionRefused);
}

#[test]
fn who_opens_a_connection_to_a_peer_that_has_left_is_refused_and_then_taken_by_the_next() {
    let at = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for round in 0..10 {
        let listener = Listener::bind(&at).unwrap();
        let client = Stream::connect_nonblocking(&at).unwrap();
        client.wait_connected(Some(SOON)).unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop((listener.accept().unwrap(), listener));
        let client = Stream::connect_nonblocking(&at).unwrap();
        assert_eq!(kind(client.wait_connected(Some(SOON))), ErrorKind::ConnectionRefused, "round {round}");
    }
}

/// Two ends of a connection that carries messages; the first does not wait, and is watched.
fn watched_messages() -> (MessageSocket, MessageSocket, Poll, Watch) {
    let listener = MessageListener::bind("127.0.0.1:0").unwrap();
    let client = MessageSocket::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    let (poll, watch) = (Poll::new().unwrap(), client.watch().unwrap());
    register(&poll, &watch, Token(1), Interest::WRITABLE);
    (client, server, poll, watch)
}

/// What one without edges is told.
fn is_writable_now(watch: &Watch) -> bool {
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(1));
    register(&poll, watch, Token(1), Interest::WRITABLE);
    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
    !events.is_empty()
}

#[test]
fn a_message_that_found_too_little_room_is_told_of_enough() {
    // Ten of them leave some room in the usual buffer, and not enough for another one.
    const MESSAGE_BYTES: usize = 100_000;
    const MESSAGES: usize = 200;
    let (client, server, mut poll, watch) = watched_messages();
    let reader = thread::spawn(move || {
        let mut message = Vec::new();
        for number in 0..MESSAGES {
            if number % 20 == 0 {
                thread::sleep(crate::A_WHILE);
            }
            assert!(server.recv_vec(&mut message).unwrap());
            assert!(message.len() == MESSAGE_BYTES && message.iter().all(|byte| *byte == number as u8));
        }
    });
    let mut events = Events::with_capacity(8);
    let (mut sent, mut refused, mut woken) = (0, 0, 0);
    while sent < MESSAGES {
        // mio tells of changes only: one that is not told is waited for in vain.
        poll.poll(&mut events, Some(SOON)).unwrap();
        assert!(events.iter().any(|event| event.is_writable()), "{sent} sent, {refused} refused");
        woken += 1;
        while sent < MESSAGES {
            match client.send(&[sent as u8; MESSAGE_BYTES]) {
                Ok(_) => sent += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    // It may have been acknowledged in between.
                    refused += usize::from(!is_writable_now(&watch));
                    break;
                }
            }
        }
    }
    assert!(refused > 0 && woken <= MESSAGES, "{refused} {woken}");
    reader.join().unwrap();
}

#[test]
fn what_another_handle_ends_wakes_an_event_loop() {
    let (client, _server, mut poll, _watch) = watched_messages();
    let mut events = Events::with_capacity(8);
    poll.poll(&mut events, Some(SOON)).unwrap();
    // Full, and nobody reads.
    while !events.is_empty() {
        while client.send(&[1; 60_000]).is_ok() {}
        poll.poll(&mut events, Some(10 * crate::A_WHILE)).unwrap();
    }
    client.try_clone().unwrap().abort();
    poll.poll(&mut events, Some(SOON)).unwrap();
    assert!(!events.is_empty());
    assert!(client.send(b"more").is_err_and(|error| error.kind() != ErrorKind::WouldBlock));

    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let watch = listener.watch().unwrap();
    register(&poll, &watch, LISTENER, Interest::READABLE);
    poll.poll(&mut events, Some(crate::A_WHILE)).unwrap();
    assert!(events.iter().all(|event| event.token() != LISTENER));
    listener.close();
    poll.poll(&mut events, Some(SOON)).unwrap();
    assert!(events.iter().any(|event| event.token() == LISTENER && event.is_readable()));
    assert!(listener.try_accept().is_err_and(|error| error.kind() != ErrorKind::WouldBlock));
}

#[test]
fn a_descriptor_is_what_asynchronous_runtimes_ask_for() {
    fn takes(of: impl AsRawFd + AsFd + Send + 'static) -> i32 {
        of.as_raw_fd()
    }
    let (client, _server) = crate::pair();
    assert!(takes(client.watch().unwrap()) >= 0);
}
