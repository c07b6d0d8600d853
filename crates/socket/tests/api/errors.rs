//! What goes wrong, and what a program is told.

use crate::{A_WHILE, SOON, connect, kind, pair, wait_until};
use ropeway_socket::{Listener, Stream};
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

#[test]
fn nobody_listening_refuses() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let begin = Instant::now();
    assert_eq!(kind(Stream::connect(("127.0.0.1", port))), ErrorKind::ConnectionRefused);
    assert!(begin.elapsed() < Duration::from_secs(5), "the network says so at once");
}

#[test]
fn nobody_answering_takes_as_long_as_it_was_given() {
    // Somebody is there, but does not speak the protocol.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().into();
    let begin = Instant::now();
    assert_eq!(kind(Stream::connect_timeout(&to, A_WHILE)), ErrorKind::TimedOut);
    assert!(begin.elapsed() >= A_WHILE);
}

#[test]
fn a_full_queue_refuses_and_an_accepted_connection_makes_room() {
    let listener = Listener::bind_with_backlog("127.0.0.1:0", 2).unwrap();
    let to = listener.local_addr().unwrap();
    let _waiting = [Stream::connect(&to).unwrap(), Stream::connect(&to).unwrap()];
    assert_eq!(kind(Stream::connect(&to)), ErrorKind::ConnectionRefused);
    let _accepted = listener.accept().unwrap();
    Stream::connect(&to).unwrap();
}

#[test]
fn closing_with_unread_data_resets() {
    let (mut client, server) = pair();
    client.write_all(b"never read").unwrap();
    client.drain(Some(SOON)).unwrap();
    drop(server);
    assert_eq!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset);
    wait_until("writes fail too", || client.write(b"more").is_err());
    assert_eq!(client.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn an_abort_resets_both_ends() {
    let (client, mut server) = pair();
    let reader = client.try_clone().unwrap();
    client.abort();
    assert_eq!(kind((&reader).read(&mut [0])), ErrorKind::NotConnected);
    assert_eq!(kind(server.read(&mut [0])), ErrorKind::ConnectionReset);
}

#[test]
fn writing_to_a_peer_that_closed_is_a_broken_pipe() {
    let (mut client, server) = pair();
    drop(server);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    wait_until("the pipe is broken", || match client.write(b"x") {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            true
        }
    });
}

#[test]
fn an_address_in_use_is_free_again_when_its_listener_is_gone() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    assert_eq!(kind(Listener::bind(&at)), ErrorKind::AddrInUse);
    let (mut client, mut server) = connect(&listener);
    drop(listener);
    assert_eq!(kind(Stream::connect(&at)), ErrorKind::ConnectionRefused);
    // Its connection lives, and somebody listens there again.
    let listener = Listener::bind(&at).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 1);
    let (second, second_server) = connect(&listener);
    drop((listener, client, server, second, second_server));
    for _ in 0..5 {
        let listener = Listener::bind(&at).unwrap();
        connect(&listener).0.write_all(b"on its way").unwrap();
    }
}

#[test]
fn a_listener_that_goes_resets_who_waits() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    drop(listener);
    assert!(matches!(kind(client.read(&mut [0])), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted));
}

#[test]
fn addresses_of_others_and_nonsense_are_refused() {
    assert_eq!(kind(Listener::bind("192.0.2.1:0")), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(Listener::bind("eth0/7000")), ErrorKind::InvalidInput);
    assert_eq!(kind(Stream::connect("nonsense")), ErrorKind::InvalidInput);
    assert_eq!(kind(Stream::connect("eth0/*:7000")), ErrorKind::InvalidInput);
    assert!(matches!(kind(Listener::bind("no-such-device/*:7000")), ErrorKind::NotFound | ErrorKind::PermissionDenied));
}

#[test]
fn accepting_ends_with_its_time() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    listener.set_accept_timeout(Some(A_WHILE)).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
}
