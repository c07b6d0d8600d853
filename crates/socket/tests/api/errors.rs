//! What goes wrong, and what a program is told.

use crate::{A_WHILE, SOON, connect, kind, pair, wait_until};
use ropeway_socket::{Listener, Local, MessageListener, MessageSocket, Stream};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, UdpSocket};
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
fn how_many_may_wait_can_be_changed() {
    let listener = Listener::bind_with_backlog("127.0.0.1:0", 1).unwrap();
    let to = listener.local_addr().unwrap();
    let _first = Stream::connect(&to).unwrap();
    assert_eq!(kind(Stream::connect(&to)), ErrorKind::ConnectionRefused);
    listener.set_backlog(2).unwrap();
    let _second = Stream::connect(&to).unwrap();
    listener.set_backlog(1).unwrap();
    assert_eq!(kind(Stream::connect(&to)), ErrorKind::ConnectionRefused);
    assert!(listener.try_accept().is_ok() && listener.try_accept().is_ok(), "who waits already stays");
    listener.close();
    assert_eq!(kind(listener.set_backlog(1)), ErrorKind::NotConnected);
}

#[test]
fn what_this_host_does_not_let_go_is_said_at_once_to_who_does_not_wait_as_well() {
    // The broadcast address of the loopback device.
    let nobody = "127.255.255.255:9".parse().unwrap();
    let waiting = Stream::connect(&nobody).unwrap_err();
    let begun = Stream::connect_nonblocking(&nobody).unwrap_err();
    for error in [waiting, begun] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("no packet gets there"), "{error}");
    }
}

#[test]
fn nobody_is_the_peer_of_what_was_not_taken() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Stream::connect_nonblocking(&silent.local_addr().unwrap().into()).unwrap();
    assert_eq!(kind(client.peer_addr()), ErrorKind::NotConnected);
    let listener = Listener::bind_with_backlog("127.0.0.1:0", 1).unwrap();
    let (full, closed) =
        (listener.local_addr().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let _waits = Stream::connect(&full).unwrap();
    // The one is refused by an engine, the other by the kernel.
    for to in [full, closed.into()] {
        let client = Stream::connect_nonblocking(&to).unwrap();
        assert_eq!(kind(client.wait_connected(Some(SOON))), ErrorKind::ConnectionRefused);
        assert_eq!(kind(client.peer_addr()), ErrorKind::NotConnected, "{to}");
    }
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
            assert_eq!(error.to_string(), "the peer has closed the connection: nobody reads what is sent");
            true
        }
    });
}

#[test]
fn a_peer_whose_process_left_in_order_is_an_end_and_no_error() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let (mut client, mut server) = connect(&listener);
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    server.write_all(b"answer").unwrap();
    drop((listener, server));
    wait_until("nobody is there any more", || client.write(b"").is_err());
    // Whether all was read or not.
    for left in [6, 0] {
        assert!(client.take_error().unwrap().is_none() && client.is_connected().unwrap(), "{left} bytes are left");
        client.drain(Some(SOON)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client.peer_addr().unwrap();
        assert_eq!(client.read(&mut [0; 10]).unwrap(), left);
    }
}

#[test]
fn what_the_peer_did_not_wait_for_is_an_error_and_not_acknowledged() {
    let listener = MessageListener::bind("127.0.0.1:0").unwrap();
    let client = MessageSocket::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_forgets_unread(true);
    // What the server takes is full, and then what the client keeps.
    let is_refused = |_| {
        std::thread::sleep(A_WHILE / 20);
        client.try_send(&[7; 10_000]).is_err()
    };
    wait_until("no room", || (0..20).all(is_refused));
    drop(server);
    assert_eq!(kind(client.drain(Some(SOON))), ErrorKind::BrokenPipe);
    assert_eq!(client.take_error().unwrap().unwrap().kind(), ErrorKind::BrokenPipe);
    assert!(!client.recv_vec(&mut Vec::new()).unwrap(), "the peer's end is one all the same");
    drop(listener);
}

#[test]
fn of_a_connection_that_was_reset_there_is_nothing_left_to_end() {
    let (client, server) = pair();
    server.abort();
    wait_until("it is over", || client.take_error().unwrap().is_some());
    assert_eq!(kind(client.shutdown(Shutdown::Write)), ErrorKind::NotConnected);
    assert_eq!(kind(client.drain(Some(SOON))), ErrorKind::ConnectionReset);
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
    assert_eq!(kind(Listener::bind("127.0.0.1:99999")), ErrorKind::InvalidInput);
    assert_eq!(kind(Listener::bind("eth0/7000")), ErrorKind::InvalidInput);
    assert_eq!(kind(Stream::connect("nonsense")), ErrorKind::InvalidInput);
    assert_eq!(kind(Stream::connect("eth0/*:7000")), ErrorKind::InvalidInput);
}

#[test]
fn accepting_ends_with_its_time() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    listener.set_accept_timeout(Some(A_WHILE)).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
}

#[test]
fn an_address_that_was_taken_is_for_one_use_and_one_user() {
    let local = Local::bind("127.0.0.1:0").unwrap();
    let at = local.local_addr().unwrap();
    assert_eq!(kind(Local::bind(&at)), ErrorKind::AddrInUse);
    assert_eq!(kind(Listener::bind(&at)), ErrorKind::AddrInUse);
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let mut client = Stream::connect_from(&local.with_port(77), &to, Some(SOON)).unwrap();
    let (server, from) = listener.accept().unwrap();
    assert_eq!((&from, client.local_addr().unwrap()), (&at, at.clone()));
    assert_eq!(server.ports(), (to.port(), 77));
    client.write_all(b"x").unwrap();
    let other_kind = "[::1]:7".parse().unwrap();
    assert_eq!(kind(Stream::connect_from(&local, &other_kind, None)), ErrorKind::InvalidInput);
    let second = Listener::bind_to(&local, 8).unwrap();
    assert_eq!(kind(Listener::bind_to(&local, 8)), ErrorKind::AddrInUse);
    assert_eq!(second.local_addr().unwrap(), at);
    drop(local);
    assert_eq!(kind(Listener::bind(&at)), ErrorKind::AddrInUse, "it listens there");
    drop(second);
    Listener::bind(&at).unwrap();
}

#[test]
fn closing_a_listener_wakes_who_waits_at_it() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    std::thread::scope(|scope| {
        let waiting = [(); 2].map(|()| scope.spawn(|| kind(listener.accept())));
        std::thread::sleep(A_WHILE);
        listener.close();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), ErrorKind::NotConnected);
        }
    });
    assert_eq!(kind(Stream::connect(listener.local_addr().unwrap())), ErrorKind::ConnectionRefused);
}

#[test]
fn ending_a_direction_wakes_the_thread_that_waits_for_room_in_it() {
    let (client, _server) = pair();
    let mut writer = client.try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        loop {
            if let Err(error) = writer.write_all(&[0; 65536]) {
                return error.kind();
            }
        }
    });
    std::thread::sleep(4 * A_WHILE);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(thread.join().unwrap(), ErrorKind::BrokenPipe);
}

#[test]
fn who_listens_again_at_an_address_is_reached_at_once() {
    let at = Listener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for round in 0..30 {
        let listener = Listener::bind(&at).unwrap();
        let mut client = Stream::connect(&at).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        // Nobody is there between the rounds, and connections say so.
        drop((listener, server));
        assert_eq!(kind(Stream::connect(&at)), ErrorKind::ConnectionRefused, "round {round}");
    }
}

#[test]
fn what_is_being_opened_can_be_waited_for_and_called_off() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let client = Stream::connect_nonblocking(&listener.local_addr().unwrap()).unwrap();
    client.wait_connected(Some(SOON)).unwrap();
    assert!(client.is_connected().unwrap());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = Stream::connect_nonblocking(&silent.local_addr().unwrap().into()).unwrap();
    assert_eq!(kind(client.wait_connected(Some(A_WHILE))), ErrorKind::TimedOut);
    let waiter = client.try_clone().unwrap();
    let thread = std::thread::spawn(move || kind(waiter.wait_connected(None)));
    std::thread::sleep(A_WHILE);
    client.abort();
    assert_eq!(thread.join().unwrap(), ErrorKind::NotConnected);
    drop(silent);
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Stream::connect_nonblocking(&nobody.into()).unwrap();
    assert_eq!(kind(client.wait_connected(Some(SOON))), ErrorKind::ConnectionRefused);
}
