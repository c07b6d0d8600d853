//! Messages keep their boundaries, whatever their length.

use crate::{A_WHILE, kind};
use ropeway_socket::api::{Error, details};
use ropeway_socket::{Listener, MessageListener, MessageSocket, Stream};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

fn pair() -> (MessageSocket, MessageSocket) {
    let listener = MessageListener::bind("127.0.0.1:0").unwrap();
    let client = MessageSocket::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn messages_of_every_length_come_out_as_they_went_in() {
    let (client, server) = pair();
    let lengths = [0, 1, 55, 1443, 1444, 1445, 65_536, 3_000_000];
    let echo = thread::spawn(move || {
        let (mut message, mut count) = (Vec::new(), 0);
        while server.recv_vec(&mut message).unwrap() {
            server.send(&message).unwrap();
            count += 1;
        }
        count
    });
    let mut answer = Vec::new();
    for (round, length) in lengths.into_iter().cycle().take(24).enumerate() {
        let message: Vec<u8> = (0..length).map(|at| (at + round) as u8).collect();
        client.send(&message).unwrap();
        assert!(client.recv_vec(&mut answer).unwrap());
        assert!(answer == message, "{length} bytes, got {}", answer.len());
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert!(!client.recv_vec(&mut answer).unwrap());
    assert!(answer.is_empty());
    assert_eq!(echo.join().unwrap(), 24);
}

/// What this process has in memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

#[test]
fn what_a_long_message_has_left_of_room_is_not_filled_for_each_short_one() {
    /// More than all other tests, which run meanwhile, have in memory.
    const ROOM_BYTES: u64 = 512 << 20;
    let (client, server) = pair();
    // Nothing has been written there, so none of it takes memory until it is.
    let mut message = Vec::with_capacity(ROOM_BYTES as usize);
    let before = resident_bytes();
    for length in [0, 5, 70_000, 5] {
        client.send(&vec![7; length]).unwrap();
        assert!(server.recv_vec(&mut message).unwrap());
        assert!(message == vec![7; length], "{length} bytes");
    }
    let more = resident_bytes().saturating_sub(before);
    assert!(more < ROOM_BYTES / 2, "{more} bytes more in memory");
}

#[test]
fn a_message_that_does_not_fit_stays_and_its_length_is_told() {
    let (client, server) = pair();
    client.send(&[7; 100]).unwrap();
    client.send(b"next").unwrap();
    assert_eq!(server.next_len().unwrap(), Some(100));
    let error = server.recv(&mut [0; 99]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(matches!(details(&error), Some(Error::TooShort { message_bytes: 100 })), "{error:?}");
    let mut buffer = [0; 100];
    assert_eq!(server.recv(&mut buffer).unwrap(), Some(100));
    assert_eq!(buffer, [7; 100]);
    assert_eq!(server.recv(&mut buffer).unwrap(), Some(4));
    server.set_nonblocking(true).unwrap();
    assert_eq!(kind(server.next_len()), ErrorKind::WouldBlock);
    drop(client);
    server.set_nonblocking(false).unwrap();
    assert_eq!(server.next_len().unwrap(), None);
    assert_eq!(server.recv(&mut buffer).unwrap(), None);
}

#[test]
fn messages_longer_than_the_peer_takes_are_refused_before_they_are_sent() {
    let (client, server) = pair();
    let most = client.max_message_len();
    assert_eq!(most, server.max_message_len());
    let error = client.send(&vec![0; most as usize + 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(&most.to_string()), "{error}");
    client.send(b"still here").unwrap();
    assert_eq!(server.recv(&mut [0; 100]).unwrap(), Some(10));
}

#[test]
fn what_a_peer_sent_before_it_closed_can_still_be_read() {
    let (client, server) = pair();
    for number in 0..10u8 {
        client.send(&[number]).unwrap();
    }
    drop(client);
    thread::sleep(A_WHILE);
    for number in 0..10u8 {
        let mut byte = [0];
        assert_eq!(server.recv(&mut byte).unwrap(), Some(1));
        assert_eq!(byte[0], number);
    }
    assert_eq!(server.recv(&mut []).unwrap(), None);
    assert_eq!(kind(server.send(b"too late")), ErrorKind::BrokenPipe);
}

#[test]
fn whole_messages_reach_whichever_thread_asks() {
    let (client, server) = pair();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let socket = server.try_clone().unwrap();
            thread::spawn(move || {
                let (mut message, mut sum) = (Vec::new(), 0u64);
                while socket.recv_vec(&mut message).unwrap() {
                    assert!(message.iter().all(|&byte| byte == message[0]));
                    sum += message.len() as u64;
                }
                sum
            })
        })
        .collect();
    let lengths = (1..500u64).map(|round| round * 37 % 4000 + 1);
    for length in lengths.clone() {
        client.send(&vec![length as u8; length as usize]).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    let sum: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert_eq!(sum, lengths.sum::<u64>());
}

#[test]
fn streams_and_messages_do_not_meet() {
    let messages = MessageListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(kind(Stream::connect(messages.local_addr().unwrap())), ErrorKind::ConnectionRefused);
    let streams = Listener::bind("127.0.0.1:0").unwrap();
    assert_eq!(kind(MessageSocket::connect(streams.local_addr().unwrap())), ErrorKind::ConnectionRefused);
}

/// Sends messages of 1000 bytes, numbered from `count` on, until there is no room for more, and says how many have been sent then.
fn fill(mut count: u32, mut send: impl FnMut(&[u8]) -> std::io::Result<()>) -> u32 {
    loop {
        let mut message = [0; 1000];
        message[..4].copy_from_slice(&u32::to_ne_bytes(count));
        match send(&message) {
            Ok(()) => count += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                return count;
            }
        }
    }
}

/// Reads numbered messages up to one that says `end`, and gives their numbers.
fn numbers(server: &MessageSocket) -> Vec<u32> {
    let mut message = Vec::new();
    let mut all = Vec::new();
    while server.recv_vec(&mut message).unwrap() && message != b"end" {
        all.push(u32::from_ne_bytes(*message.first_chunk().unwrap()));
    }
    all
}

#[test]
fn messages_whose_life_is_over_are_dropped_whole_and_counted() {
    let (client, server) = pair();
    // Nobody reads: what the receiver lets in, in its own time, is under way, the rest waits here.
    let mut count = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.expired().unwrap() == 0 {
        assert!(Instant::now() < deadline, "{count} messages, and none is dropped");
        count = fill(count, |message| client.try_send_within(message, Duration::from_millis(50)));
        thread::sleep(Duration::from_millis(1));
    }
    // There is room now, and this one has time.
    client.send_within(b"end", Duration::from_secs(100)).unwrap();
    let arrived = numbers(&server);
    assert_eq!(arrived.len() as u64 + client.expired().unwrap(), u64::from(count));
    assert!(arrived.is_sorted_by(|one, next| one < next), "{arrived:?}");
}

#[test]
fn cancelled_messages_never_arrive_and_those_under_way_do() {
    let (client, server) = pair();
    let (mut count, mut cancelled) = (0, 0);
    // It may all be under way by then, until the receiver lets no more in.
    while cancelled == 0 {
        count = fill(count, |message| client.try_send(message));
        assert_eq!(server.next_len().unwrap(), Some(1000));
        cancelled = client.cancel().unwrap();
    }
    assert!(cancelled < u64::from(count), "the first one was under way");
    assert_eq!(client.cancel().unwrap(), 0);
    client.send(b"end").unwrap();
    assert_eq!(numbers(&server), (0..count - cancelled as u32).collect::<Vec<_>>());
    assert_eq!(client.expired().unwrap(), 0, "they were not too old");
}
