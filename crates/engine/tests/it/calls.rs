//! What a program sees of an engine: connections over real links, from many threads.

use nix::poll::{PollFd, PollFlags, poll};
use ropeway_engine::{Config, Engine, Error, ErrorCode, Interest, LinkId, Mode, Options, Target};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Batch, Link, Received, Report, memory};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

struct End {
    engine: Engine,
    link: LinkId,
    address: Address,
}

impl End {
    fn target(&self, to: &End) -> Target {
        Target { link: self.link, address: to.address }
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn end(link: Box<dyn ropeway_link::Link>) -> End {
    let engine = Engine::new(&Options::default()).unwrap();
    let address = link.local();
    let link = engine.add_link(link).unwrap();
    End { engine, link, address }
}

/// Two ends over each kind of link that needs no privileges.
fn pairs() -> Vec<(&'static str, End, End)> {
    let (one, other) = memory::pair(memory::Config::default()).unwrap();
    let udp = |local: &str| -> Box<dyn ropeway_link::Link> {
        let options = udp::Options { most_packet_bytes: Some(1472), ..udp::Options::new(local.parse().unwrap()) };
        Box::new(UdpLink::open(&options).unwrap())
    };
    vec![
        ("memory", end(Box::new(one)), end(Box::new(other))),
        ("udp4", end(udp("127.0.0.1:0")), end(udp("127.0.0.1:0"))),
        ("udp6", end(udp("[::1]:0")), end(udp("[::1]:0"))),
    ]
}

#[test]
fn who_drains_beside_a_thread_that_polls_is_told() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Stream, 8).unwrap();
        client.engine.listen(9, Mode::Stream, 8).unwrap();
        let channel = client.engine.connect(client.target(&server), 7, Mode::Stream, soon()).unwrap();
        let other = client.engine.clone();
        let polls = std::thread::spawn(move || other.accept(9, soon()));
        std::thread::sleep(Duration::from_millis(20));
        client.engine.send_all(channel, b"a question", soon()).unwrap();
        let begun = Instant::now();
        client.engine.drain(channel, soon()).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{name}: {:?}", begun.elapsed());
        server.engine.connect(server.target(&client), 9, Mode::Stream, soon()).unwrap();
        polls.join().unwrap().unwrap();
    }
}

#[test]
fn messages_go_back_and_forth() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 8).unwrap();
        let echo = server.engine.clone();
        let thread = std::thread::spawn(move || {
            let channel = echo.accept(7, soon()).unwrap();
            let mut buffer = vec![0; 100_000];
            while let Some(count) = echo.recv(channel, &mut buffer, soon()).unwrap() {
                echo.send_all(channel, &buffer[..count], soon()).unwrap();
            }
            echo.close(channel);
        });
        let channel = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let mut buffer = vec![0; 100_000];
        for size in [0, 1, 64, 1444, 1445, 50_000, 100_000].into_iter().cycle().take(700) {
            let message: Vec<u8> = (0..size).map(|index| index as u8).collect();
            client.engine.send_all(channel, &message, soon()).unwrap();
            assert_eq!(client.engine.recv(channel, &mut buffer, soon()).unwrap(), Some(size), "{name}");
            assert!(buffer[..size] == message[..], "{name}: {size} bytes");
        }
        client.engine.shutdown(channel).unwrap();
        assert_eq!(client.engine.recv(channel, &mut buffer, soon()).unwrap(), None);
        client.engine.close(channel);
        thread.join().unwrap();
    }
}

/// As where the device has an MTU that leaves the protocol no room.
#[test]
fn packets_that_are_shorter_than_the_protocol_needs_are_refused() {
    for (gateways, least) in [(false, 256), (true, 256 + 12)] {
        let engine = |packet_bytes: u16| {
            let config = Config { packet_bytes, ..Config::default() };
            Engine::new(&Options { config, gateways, node: Some(1), ..Options::default() })
        };
        for packet_bytes in [0, 11, 40, least - 1] {
            let error = engine(packet_bytes).err().expect("too short");
            assert!(error.to_string().contains(&format!("{least} at least")), "{packet_bytes}: {error}");
        }
        assert!(engine(least).is_ok());
    }
}

/// As where one host has a device with a shorter MTU, whichever its packets take.
#[test]
fn ends_that_bear_packets_of_different_lengths_understand_each_other() {
    let narrow_or_not = |packet_bytes: u16| {
        let options = udp::Options {
            most_packet_bytes: Some(packet_bytes.into()),
            ..udp::Options::new("127.0.0.1:0".parse().unwrap())
        };
        let config = Config { packet_bytes, ..Config::default() };
        let engine = Engine::new(&Options { config, ..Options::default() }).unwrap();
        let link = UdpLink::open(&options).unwrap();
        let address = ropeway_link::Link::local(&link);
        let link = engine.add_link(Box::new(link)).unwrap();
        End { engine, link, address }
    };
    for (one, other) in [(1472, 1200), (1200, 1472)] {
        let (client, server) = (narrow_or_not(one), narrow_or_not(other));
        server.engine.listen(7, Mode::Messages, 8).unwrap();
        let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let back = server.engine.accept(7, soon()).unwrap();
        let (message, mut buffer) = (vec![7; 50_000], vec![0; 50_000]);
        client.engine.send_all(there, &message, soon()).unwrap();
        assert_eq!(server.engine.recv(back, &mut buffer, soon()).unwrap(), Some(message.len()), "{one} to {other}");
        assert!(buffer == message);
    }
}

#[test]
fn what_was_sent_arrives_although_its_sender_never_calls_again() {
    // Whatever the last of them waits for: company, a grant, or nothing.
    for count in [1, 2, 3, 40, 200, 5_000u64] {
        for (name, client, server) in pairs() {
            server.engine.listen(7, Mode::Messages, 4).unwrap();
            let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
            let back = server.engine.accept(7, soon()).unwrap();
            for number in 0..count {
                client.engine.send_all(there, &number.to_be_bytes(), soon()).map_err(|error| error.1).unwrap();
            }
            let mut message = [0; 8];
            for number in 0..count {
                let received = server.engine.recv(back, &mut message, soon());
                assert_eq!(received.ok(), Some(Some(8)), "{name}: {number} of {count}");
                assert_eq!(u64::from_be_bytes(message), number, "{name}");
            }
        }
    }
}

#[test]
fn streams_from_many_threads_share_one_engine() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Stream, 64).unwrap();
        let sink = server.engine.clone();
        let receivers = std::thread::spawn(move || {
            let each: Vec<_> = (0..8)
                .map(|_| {
                    let (sink, channel) = (sink.clone(), sink.accept(7, soon()).unwrap());
                    std::thread::spawn(move || {
                        let (mut buffer, mut total, mut sum) = (vec![0; 65_536], 0u64, 0u64);
                        while let Some(count) = sink.recv(channel, &mut buffer, soon()).unwrap() {
                            for &byte in &buffer[..count] {
                                assert_eq!(byte, (total ^ (total >> 8)) as u8);
                                total += 1;
                            }
                            sum += 1;
                        }
                        sink.close(channel);
                        (total, sum)
                    })
                })
                .collect();
            each.into_iter().map(|thread| thread.join().unwrap().0).collect::<Vec<_>>()
        });
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let (engine, target) = (client.engine.clone(), client.target(&server));
                std::thread::spawn(move || {
                    let channel = engine.connect(target, 7, Mode::Stream, soon()).unwrap();
                    let data: Vec<u8> = (0..2_000_000u64).map(|at| (at ^ (at >> 8)) as u8).collect();
                    engine.send_all(channel, &data, soon()).map_err(|error| error.1).unwrap();
                    engine.shutdown(channel).unwrap();
                    engine.drain(channel, soon()).unwrap();
                    engine.close(channel);
                })
            })
            .collect();
        senders.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(receivers.join().unwrap(), vec![2_000_000; 8], "{name}");
    }
}

#[test]
fn nobody_listening_is_refused_and_nobody_there_times_out() {
    for (name, client, server) in pairs() {
        let refused = client.engine.connect(client.target(&server), 9, Mode::Stream, soon());
        assert!(matches!(refused, Err(Error::Failed(ErrorCode::Refused))), "{name}: {refused:?}");
        if let Address::Udp(mut gone) = server.address {
            drop(server);
            // The port that was just given back is closed: the network says so.
            let begin = Instant::now();
            let result = client.engine.connect(
                Target { link: client.link, address: Address::Udp(gone) },
                9,
                Mode::Stream,
                soon(),
            );
            assert!(matches!(result, Err(Error::Failed(ErrorCode::Refused))), "{name}: {result:?}");
            assert!(begin.elapsed() < Duration::from_secs(5));
            gone.set_port(9);
        }
        let silent = Some(Instant::now() + Duration::from_millis(50));
        let engine = Engine::new(&Options::default()).unwrap();
        let (link, _other) = memory::pair(memory::Config::default()).unwrap();
        let link = engine.add_link(Box::new(link)).unwrap();
        let result = engine.connect(Target { link, address: Address::Sim(1) }, 9, Mode::Stream, silent);
        assert!(matches!(result, Err(Error::TimedOut)), "{result:?}");
    }
}

#[test]
fn a_watch_tells_an_event_loop_of_arrivals() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 8).unwrap();
        let listener = server.engine.watch_port(7).unwrap();
        let channel = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        assert!(becomes_readable(&listener), "{name}");
        let accepted = server.engine.try_accept(7).unwrap();
        assert!(!is_readable(&listener), "{name}");
        let watch = server.engine.watch(accepted, Interest { read: true, write: false }).unwrap();
        assert!(!is_readable(&watch), "{name}");
        for round in 0..50u8 {
            client.engine.send_all(channel, &[round], soon()).unwrap();
            assert!(becomes_readable(&watch), "{name}: round {round}");
            let mut byte = [0];
            assert_eq!(server.engine.try_recv(accepted, &mut byte).unwrap(), Some(1));
            assert_eq!(byte[0], round);
            assert!(matches!(server.engine.try_recv(accepted, &mut byte), Err(Error::WouldBlock)));
            assert!(!is_readable(&watch), "{name}: round {round}");
        }
        client.engine.close(channel);
        assert!(becomes_readable(&watch), "{name}: the end is news");
    }
}

fn is_readable(watch: &ropeway_engine::Watch) -> bool {
    ready_within(watch, Duration::ZERO)
}

fn becomes_readable(watch: &ropeway_engine::Watch) -> bool {
    ready_within(watch, Duration::from_secs(10))
}

fn ready_within(watch: &ropeway_engine::Watch, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).unwrap() > 0
}

#[test]
fn a_helper_that_slept_when_its_place_was_taken_takes_it_again_when_the_caller_is_gone() {
    // Whether the helper or the caller hears the bell first is up to the scheduler.
    const ROUNDS: usize = 200;
    for round in 0..ROUNDS {
        let server = Engine::new(&Options { spin: Duration::ZERO, ..Options::default() }).unwrap();
        // The helper looks, finds nothing, and sleeps.
        std::thread::sleep(Duration::from_millis(2));
        let link = UdpLink::open(&udp::Options::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = ropeway_link::Link::local(&link);
        server.listen(7, Mode::Stream, 8).unwrap();
        server.add_link(Box::new(link)).unwrap();
        let nobody = server.accept(7, Some(Instant::now() + Duration::from_millis(1)));
        assert!(matches!(nobody, Err(Error::TimedOut)), "{nobody:?}");
        // From now on only the helper can answer.
        let client = end(Box::new(UdpLink::open(&udp::Options::new("127.0.0.1:0".parse().unwrap())).unwrap()));
        let deadline = Some(Instant::now() + Duration::from_secs(3));
        let connected = client.engine.connect(Target { link: client.link, address }, 7, Mode::Stream, deadline);
        assert!(connected.is_ok(), "round {round}: {connected:?}");
    }
}

#[test]
fn whoever_waits_for_any_of_several_is_told_which_and_passes_nobody_over() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 8).unwrap();
        let opened: Vec<_> = (0..3)
            .map(|_| {
                let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
                (there, server.engine.accept(7, soon()).unwrap())
            })
            .collect();
        let here: Vec<_> = opened.iter().map(|pair| pair.1).collect();
        let in_vain = server.engine.wait_any(&here, 0, Some(Instant::now() + Duration::from_millis(20)));
        assert!(matches!(in_vain, Err(Error::TimedOut)), "{name}");

        let (engine, there) = (client.engine.clone(), opened[1].0);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            engine.send_all(there, b"late", None).unwrap();
        });
        assert_eq!(server.engine.wait_any(&here, 0, soon()).unwrap(), 1, "{name}: it sleeps until then");
        thread.join().unwrap();
        for (there, _) in &opened {
            client.engine.send_all(*there, b"more", None).unwrap();
            client.engine.drain(*there, soon()).unwrap();
        }
        let served: Vec<usize> = (0..3).map(|first| server.engine.wait_any(&here, first, soon()).unwrap()).collect();
        assert_eq!(served, [0, 1, 2], "{name}");

        client.engine.abort(opened[2].0);
        let mut buffer = [0; 8];
        while !matches!(server.engine.recv(here[2], &mut buffer, soon()), Err(Error::Failed(_)) | Ok(None)) {}
        assert_eq!(server.engine.wait_any(&here, 2, soon()).unwrap(), 2, "{name}: an end is news too");
    }
}

/// What a long message is made of, so that none can be taken for another.
fn long_message(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place / 1000) as u8 ^ number).collect()
}

#[test]
fn long_messages_of_several_threads_on_one_channel_stay_whole() {
    const EACH: u8 = 6;
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 4).unwrap();
        let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let back = server.engine.accept(7, soon()).unwrap();
        // Longer than what is kept of a channel: their senders wait in the middle.
        let bytes = |number: u8| 1_500_000 + 100_000 * usize::from(number);
        std::thread::scope(|scope| {
            let senders: Vec<_> = (0..3)
                .map(|sender| {
                    let engine = &client.engine;
                    scope.spawn(move || {
                        for number in (0..EACH).map(|round| round * 3 + sender) {
                            let message = long_message(number, bytes(number));
                            engine.send_all(there, &message, soon()).map_err(|error| error.1).unwrap();
                        }
                    })
                })
                .collect();
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let engine = &server.engine;
                    scope.spawn(move || {
                        let (mut out, mut seen) = (vec![0; 4_000_000], Vec::new());
                        while let Some(count) = engine.recv(back, &mut out, soon()).unwrap() {
                            assert!(out[..count] == long_message(out[0], count)[..], "{name}: {count} bytes");
                            assert_eq!(count, bytes(out[0]), "{name}");
                            seen.push(out[0]);
                        }
                        seen
                    })
                })
                .collect();
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            client.engine.shutdown(there).unwrap();
            let mut seen: Vec<u8> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..3 * EACH).collect::<Vec<_>>(), "{name}");
        });
    }
}

#[test]
fn a_reader_that_gives_up_in_the_middle_of_a_message_leaves_it_to_the_next_call() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 4).unwrap();
        let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let back = server.engine.accept(7, soon()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..4 {
                    let message = long_message(number, 24_000_000);
                    client.engine.send_all(there, &message, soon()).map_err(|error| error.1).unwrap();
                }
            });
            let mut out = vec![0; 24_000_000];
            for number in 0..4 {
                let count = loop {
                    // Who waits for longer is given parts (readers.rs).
                    let patience = [Duration::from_micros(300), Duration::from_millis(21)][usize::from(number) % 2];
                    match server.engine.recv(back, &mut out, Some(Instant::now() + patience)) {
                        Err(Error::TimedOut) => {}
                        other => break other.unwrap(),
                    }
                    out[..1000].fill(0xEE);
                };
                assert_eq!(count, Some(24_000_000), "{name}");
                assert!(out == long_message(number, 24_000_000), "{name}: message {number}");
            }
        });
    }
}

#[test]
fn a_message_longer_than_the_buffers_waits_for_nobody_who_does_not_read() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 4).unwrap();
        let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let back = server.engine.accept(7, soon()).unwrap();
        // Both ends send first: should one wait for the other to read, neither would come to it.
        let message = long_message(1, 24_000_000);
        std::thread::scope(|scope| {
            for (engine, channel) in [(&client.engine, there), (&server.engine, back)] {
                let message = &message;
                scope.spawn(move || {
                    for _ in 0..2 {
                        engine.send_all(channel, message, soon()).map_err(|error| error.1).unwrap();
                        let mut out = vec![0; message.len()];
                        assert_eq!(engine.recv(channel, &mut out, soon()).unwrap(), Some(message.len()), "{name}");
                        assert!(out == *message, "{name}");
                    }
                });
            }
        });
    }
}

#[test]
fn the_end_waits_for_a_message_that_another_thread_hands_over() {
    for (name, client, server) in pairs() {
        server.engine.listen(7, Mode::Messages, 4).unwrap();
        let there = client.engine.connect(client.target(&server), 7, Mode::Messages, soon()).unwrap();
        let back = server.engine.accept(7, soon()).unwrap();
        let message = long_message(3, 16_000_000);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| client.engine.send_all(there, &message, soon()).map_err(|error| error.1));
            let end = scope.spawn(|| {
                // Whether it comes before the message, into it or behind it.
                std::thread::sleep(Duration::from_micros(500));
                client.engine.shutdown(there).unwrap();
            });
            let mut out = vec![0; message.len()];
            match server.engine.recv(back, &mut out, soon()).unwrap() {
                Some(count) => {
                    assert!(count == message.len() && out == message, "{name}");
                    sender.join().unwrap().unwrap();
                }
                None => assert!(matches!(sender.join().unwrap(), Err(Error::Closed)), "{name}"),
            }
            end.join().unwrap();
        });
    }
}

/// What is told of a packet in a report.
type Told = fn(&[u8]) -> Option<Vec<u8>>;

/// A link of which the network reports the same of every packet, or somebody who does not see it, some time after the first one at the earliest.
struct Reported {
    errno: i32,
    /// What is reported as the beginning of a packet.
    told: Told,
    after: Duration,
    sent: Option<(Address, Option<Vec<u8>>)>,
    first_sent: Option<Instant>,
}

impl Reported {
    fn new(errno: i32, told: Told, after: Duration) -> Box<Reported> {
        Box::new(Reported { errno, told, after, sent: None, first_sent: None })
    }
}

impl Link for Reported {
    fn name(&self) -> String {
        "reported".into()
    }

    fn local(&self) -> Address {
        Address::Sim(0)
    }

    fn max_packet(&self) -> usize {
        1472
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        self.sent = Some((batch.to, (self.told)(&batch.packets[0])));
        self.first_sent.get_or_insert_with(Instant::now);
        Ok(batch.packets.len())
    }

    fn receive(&mut self, _most: usize, _sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_error(&mut self) -> Option<Report> {
        self.first_sent.filter(|at| at.elapsed() >= self.after)?;
        let (to, packet) = self.sent.take()?;
        Some(Report { to, error: io::Error::from_raw_os_error(self.errno), packet: packet.map(Vec::into) })
    }

    fn counters(&self) -> ropeway_link::Counters {
        ropeway_link::Counters::default()
    }
}

fn by_this_host(_: &[u8]) -> Option<Vec<u8>> {
    None
}

fn by_the_network(packet: &[u8]) -> Option<Vec<u8>> {
    Some(packet[..64].to_vec())
}

#[test]
fn what_the_network_says_of_a_host_is_what_connecting_there_ends_with() {
    let connect = |errno| {
        let engine = Engine::new(&Options::default()).unwrap();
        // By the network, or by this host itself.
        let told: Told = if errno == libc::EPERM { by_this_host } else { by_the_network };
        let link = engine.add_link(Reported::new(errno, told, Duration::ZERO)).unwrap();
        let begin = Instant::now();
        let result = engine.connect(Target { link, address: Address::Sim(1) }, 9, Mode::Stream, soon());
        assert!(begin.elapsed() < Duration::from_secs(5));
        result.unwrap_err()
    };
    assert!(matches!(connect(libc::ECONNREFUSED), Error::Failed(ErrorCode::Refused)));
    for (errno, kind) in [
        (libc::EHOSTUNREACH, io::ErrorKind::HostUnreachable),
        (libc::ENETUNREACH, io::ErrorKind::NetworkUnreachable),
        (libc::EPERM, io::ErrorKind::PermissionDenied),
    ] {
        let error = connect(errno);
        assert!(matches!(&error, Error::Unreachable(source) if source.raw_os_error() == Some(errno)), "{error:?}");
        assert_eq!(io::Error::from(error).kind(), kind);
    }
    let too_long = connect(libc::EMSGSIZE).to_string();
    assert!(
        too_long.starts_with("packets of 1472 bytes do not get there") && too_long.contains("ROPEWAY_PACKET_BYTES")
    );
}

#[test]
fn what_somebody_says_who_has_not_seen_the_packet_ends_no_attempt() {
    let tellings: [Told; 4] = [
        |_| Some(Vec::new()),
        // Without the nonce, or with another one, or as another packet.
        |packet| Some(packet[..32].to_vec()),
        |packet| Some([&packet[..35], &[!packet[35]]].concat()),
        |packet| Some([&[0x17], &packet[1..64]].concat()),
    ];
    for (case, told) in tellings.into_iter().enumerate() {
        for errno in [libc::ECONNREFUSED, libc::EHOSTUNREACH] {
            let engine = Engine::new(&Options::default()).unwrap();
            let link = engine.add_link(Reported::new(errno, told, Duration::ZERO)).unwrap();
            let deadline = Some(Instant::now() + Duration::from_millis(30));
            let error = engine.connect(Target { link, address: Address::Sim(1) }, 9, Mode::Stream, deadline);
            assert!(matches!(error, Err(Error::TimedOut)), "{case}: {error:?}");
        }
    }
}

#[test]
fn who_does_not_wait_for_a_connection_is_told_as_well_what_the_network_says() {
    for (errno, after) in [(libc::EHOSTUNREACH, Duration::ZERO), (libc::EACCES, Duration::from_millis(50))] {
        let engine = Engine::new(&Options::default()).unwrap();
        let link = engine.add_link(Reported::new(errno, by_the_network, after)).unwrap();
        let target = Target { link, address: Address::Sim(1) };
        let (one, other) =
            (engine.open(target, 9, Mode::Stream).unwrap(), engine.open(target, 9, Mode::Stream).unwrap());
        let watch = engine.watch_like_socket(one).unwrap();
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLOUT)];
        assert_eq!(poll(&mut fds, 5000u16).unwrap(), 1, "{errno} after {after:?}");
        for channel in [one, other] {
            let readiness = engine.readiness(channel).unwrap();
            assert!(readiness.failed.is_some() && !readiness.opened);
            let said = engine.was_unreached(channel);
            assert!(matches!(&said, Some(Error::Unreachable(what)) if what.raw_os_error() == Some(errno)), "{said:?}");
            engine.close(channel);
            assert!(engine.was_unreached(channel).is_none());
        }
    }
}

/// A thread of this name is told what [`Reported`] has to tell, and no other one.
const TOLD: &str = "told";

/// A link that reports of the first packet, to that thread alone.
struct ReportedToOne(Box<Reported>);

impl Link for ReportedToOne {
    fn name(&self) -> String {
        self.0.name()
    }

    fn local(&self) -> Address {
        self.0.local()
    }

    fn max_packet(&self) -> usize {
        self.0.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        if self.0.first_sent.is_none() { self.0.send(batch) } else { Ok(batch.packets.len()) }
    }

    fn receive(&mut self, most: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.0.receive(most, sink)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_error(&mut self) -> Option<Report> {
        (std::thread::current().name() == Some(TOLD)).then(|| self.0.take_error()).flatten()
    }

    fn counters(&self) -> ropeway_link::Counters {
        self.0.counters()
    }
}

#[test]
fn who_sleeps_on_the_links_learns_at_once_what_another_thread_was_told() {
    // SYNs are repeated 0.63 and 1.27 s after the first: in between only the other thread can wake it.
    let [report, give_up, late] = [500, 750, 1000].map(Duration::from_millis);
    let engine = Engine::new(&Options::default()).unwrap();
    let link = ReportedToOne(Reported::new(libc::EHOSTUNREACH, by_the_network, report));
    let link = engine.add_link(Box::new(link)).unwrap();
    let to = |host| Target { link, address: Address::Sim(host) };
    let begun = Instant::now();
    let took = std::thread::scope(|scope| {
        let sleeps = scope.spawn(|| {
            let ended = engine.connect(to(1), 9, Mode::Stream, soon());
            assert!(matches!(ended, Err(Error::Unreachable(_))), "{ended:?}");
            begun.elapsed()
        });
        std::thread::sleep(Duration::from_millis(20));
        let told = || {
            let channel = engine.open(to(2), 9, Mode::Stream).unwrap();
            let ended = engine.wait_opened(channel, to(2), Some(begun + give_up));
            assert!(matches!(ended, Err(Error::TimedOut)), "{ended:?}");
        };
        std::thread::Builder::new().name(TOLD.into()).spawn_scoped(scope, told).unwrap();
        sleeps.join().unwrap()
    });
    assert!(took < late, "{took:?}");
}
