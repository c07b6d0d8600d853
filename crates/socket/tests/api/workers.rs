//! Several engines at one address, for threads that share nothing.

use crate::{SOON, kind};
use ropeway_socket::api::Local;
use ropeway_socket::{Listener, MessageListener, MessageSocket, Stream};
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Each with an engine of its own; that all of them come to one worker of two happens once in 2^31 runs.
const CLIENTS: usize = 32;

/// Answers each of `clients` connections with what it sends.
fn serve(listeners: Vec<Listener>, clients: usize) -> thread::JoinHandle<Vec<usize>> {
    let done = std::sync::Arc::new(AtomicUsize::new(0));
    let serve = move |listener: Listener| {
        let done = done.clone();
        thread::spawn(move || {
            listener.set_accept_timeout(Some(crate::A_WHILE)).unwrap();
            let mut served = 0;
            while done.load(Ordering::Relaxed) < clients {
                let Ok((mut stream, _)) = listener.accept() else { continue };
                done.fetch_add(1, Ordering::Relaxed);
                served += 1;
                let mut word = [0; 8];
                stream.read_exact(&mut word).unwrap();
                stream.write_all(&word).unwrap();
            }
            (served, listener)
        })
    };
    let threads: Vec<_> = listeners.into_iter().map(serve).collect();
    thread::spawn(move || threads.into_iter().map(|thread| thread.join().unwrap().0).collect())
}

fn ask(to: &ropeway_socket::api::Address, locals: impl Iterator<Item = Local>) {
    let clients: Vec<_> = locals
        .enumerate()
        .map(|(number, local)| {
            let mut client = Stream::connect_from(&local, to, Some(SOON)).unwrap();
            client.write_all(&number.to_be_bytes()).unwrap();
            client
        })
        .collect();
    for (number, mut client) in clients.into_iter().enumerate() {
        let mut word = [0; 8];
        client.read_exact(&mut word).unwrap();
        assert_eq!(usize::from_be_bytes(word), number);
    }
}

#[test]
fn each_listener_at_an_address_serves_its_part_of_the_peers() {
    let listeners = Listener::bind_workers("127.0.0.1:0", 2).unwrap();
    let to = listeners[0].local_addr().unwrap();
    assert_eq!(listeners[1].local_addr().unwrap(), to);
    let server = serve(listeners, CLIENTS);
    ask(&to, (0..CLIENTS).map(|_| Local::bind("127.0.0.1:0").unwrap()));
    let served = server.join().unwrap();
    assert!(served.iter().sum::<usize>() == CLIENTS && !served.contains(&0), "{served:?}");
    // What was accepted is gone, or says its last words: they listen there again, all of them.
    let again = Listener::bind_workers(&to, 2).unwrap();
    let server = serve(again, CLIENTS);
    let locals = [(); 2].map(|()| Local::bind("127.0.0.1:0").unwrap());
    ask(&to, locals.into_iter().cycle().take(CLIENTS));
    assert_eq!(server.join().unwrap().iter().sum::<usize>(), CLIENTS);
}

#[test]
fn an_address_of_workers_is_theirs_alone() {
    let listeners = MessageListener::bind_workers("127.0.0.1:0", 3).unwrap();
    let at = listeners[0].local_addr().unwrap();
    for count in [1, 2, 3, 4] {
        assert_eq!(kind(Local::bind_workers(&at, count)), ErrorKind::AddrInUse, "{count}");
    }
    let another = std::net::UdpSocket::bind(at.socket_addr().unwrap());
    assert_eq!(kind(another), ErrorKind::AddrInUse);
    // One that goes on has the address with all that belong to it.
    let client = MessageSocket::connect(&at).unwrap();
    let mut listeners = listeners;
    for listener in &listeners {
        listener.set_accept_timeout(Some(crate::A_WHILE)).unwrap();
    }
    let mut accepted = None;
    crate::wait_until("it is accepted", || {
        accepted = listeners.iter().find_map(|listener| listener.accept().ok());
        accepted.is_some()
    });
    listeners.clear();
    assert_eq!(kind(Local::bind(&at)), ErrorKind::AddrInUse, "a single one would get what is for others");
    let listeners = MessageListener::bind_workers(&at, 3).unwrap();
    client.send(b"still here").unwrap();
    let mut message = Vec::new();
    assert!(accepted.as_ref().unwrap().0.recv_vec(&mut message).unwrap());
    assert_eq!(message, b"still here");
    drop((listeners, accepted, client));
    crate::wait_until("the address is free", || Local::bind(&at).is_ok());
}

#[test]
fn who_connects_does_not_do_it_from_an_address_of_several() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let local = Local::bind_workers("127.0.0.1:0", 2).unwrap().swap_remove(0);
    let error = Stream::connect_from(&local, &listener.local_addr().unwrap(), Some(SOON)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("bind an address for each"), "{error}");
}

#[test]
fn no_workers_or_too_many_are_refused() {
    for count in [0, 65, usize::MAX] {
        let error = Listener::bind_workers("127.0.0.1:0", count).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("1 to 64 workers"), "{error}");
    }
}
