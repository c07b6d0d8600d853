//! Closing: in order, at once, from both ends, in every state, with loss.

use std::cell::Cell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, ErrorCode, Event, Mode, Part, Presence, RecvError, SendError};

fn lossy(seed: u64) -> World {
    let net = Net {
        loss_ppm: seed % 3 * 100_000,
        reordering_ppm: seed % 2 * 100_000,
        corruption_ppm: seed % 5 * 10_000,
        ..Net::default()
    };
    World::new(2, net, &Config::default(), seed)
}

fn send(world: &mut World, host: usize, channel: ChannelId, bytes: &[u8]) -> Result<usize, SendError> {
    let now = world.clock(host);
    let sent = world.hosts[host].send(now, channel, bytes);
    world.hosts[host].flush(channel);
    sent
}

fn close(world: &mut World, host: usize, channel: ChannelId) {
    let now = world.clock(host);
    world.hosts[host].close(now, channel);
}

fn wait_to_read(world: &mut World, channel: ChannelId) -> Vec<u8> {
    let mut out = vec![0; 100];
    let mut count = 0;
    wait_for(world, 10 * S, "a message", |world| match world.hosts[1].recv(channel, &mut out) {
        Ok(Some(bytes)) => {
            count = bytes;
            true
        }
        _ => false,
    });
    out.truncate(count);
    out
}

fn wait_empty(world: &mut World) {
    wait_for(world, 60 * S, "nothing is left", |world| {
        world.hosts.iter().all(|host| host.sizes().1 == 0 && host.buffers_in_use() == (0, 0))
    });
}

fn failure(world: &mut World, host: usize, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

#[test]
fn what_a_channel_was_promised_is_free_when_its_peer_has_aborted_it() {
    const BYTES: usize = 100_000;
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    assert_eq!(send(&mut world, 0, client, &[7; BYTES]), Ok(BYTES));
    let read = |world: &mut World, bytes: usize| {
        let mut left = bytes;
        wait_for(world, S, "what was sent", |world| {
            left -= world.hosts[1].recv(server, &mut vec![0; left]).unwrap_or_default().unwrap_or_default();
            left == 0
        });
    };
    read(&mut world, BYTES / 2);
    pass(&mut world, S);
    assert!(world.hosts[1].promised_bytes() > 0);
    let now = world.clock(0);
    world.hosts[0].abort(now, client);
    pass(&mut world, S);
    assert_eq!(failure(&mut world, 1, server), Some(ErrorCode::Reset));
    assert_eq!(world.hosts[1].promised_bytes(), 0);
    // Nothing comes for what is read now.
    read(&mut world, BYTES / 2);
    assert_eq!(world.hosts[1].promised_bytes(), 0);
}

in_every_way!(the_end_arrives_with_the_last_of_what_is_before_it);
fn the_end_arrives_with_the_last_of_what_is_before_it() {
    // One packet, some, and more than is granted at once.
    for bytes in [1_000, 10_000, 500_000] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        pass(&mut world, 10 * MS);
        let now = world.time();
        assert_eq!(world.hosts[0].send(now, client, &vec![7; bytes]), Ok(bytes));
        world.hosts[0].shutdown(now, client).unwrap();
        let (mut out, mut unread) = (vec![0; bytes], bytes);
        let mut read = |world: &mut World| loop {
            match world.hosts[1].recv(server, &mut out) {
                Ok(Some(count)) => unread -= count,
                end => return (end, unread),
            }
        };
        wait_for(&mut world, S, "all of it", |world| read(world).1 == 0);
        assert_eq!(read(&mut world), (Ok(None), 0), "{bytes} bytes");
    }
}

in_every_way!(a_half_closed_stream_still_carries_the_other_way);
fn a_half_closed_stream_still_carries_the_other_way() {
    for seed in 0..6 {
        let mut world = lossy(seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 20_000, 10 * S);
        let now = world.time();
        world.hosts[0].shutdown(now, client).unwrap();
        world.hosts[0].shutdown(now, client).unwrap();
        assert_eq!(send(&mut world, 0, client, b"x"), Err(SendError::Closed));
        wait_for(&mut world, 10 * S, "the end", |world| world.hosts[1].recv(server, &mut [0; 1]) == Ok(None));
        stream(&mut world, (1, server), (0, client), 200_000, 10 * S);
        close(&mut world, 1, server);
        wait_for(&mut world, 10 * S, "the other end", |world| world.hosts[0].recv(client, &mut [0; 1]) == Ok(None));
        close(&mut world, 0, client);
        wait_empty(&mut world);
    }
}

in_every_way!(a_close_after_a_shutdown_tells_the_peer_that_nobody_reads);
fn a_close_after_a_shutdown_tells_the_peer_that_nobody_reads() {
    let mut world = lossy(0);
    let (client, server) = pair(&mut world, Mode::Stream);
    let now = world.time();
    world.hosts[0].shutdown(now, client).unwrap();
    pass(&mut world, MS);
    assert_eq!(send(&mut world, 1, server, b"still heard"), Ok(11));
    pass(&mut world, MS);
    assert_eq!(world.hosts[0].recv(client, &mut [0; 20]), Ok(Some(11)));
    close(&mut world, 0, client);
    pass(&mut world, MS);
    assert_eq!(send(&mut world, 1, server, b"not any more"), Err(SendError::PeerClosed));
    close(&mut world, 1, server);
    wait_empty(&mut world);
}

in_every_way!(who_forgets_what_is_unread_takes_nothing_from_the_peer);
fn who_forgets_what_is_unread_takes_nothing_from_the_peer() {
    for seed in 0..6 {
        // Closed alone, or with all channels, as by a process that ends.
        for (has_part, alone) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = lossy(seed);
            let (client, server) = pair(&mut world, Mode::Messages);
            let (long, reply) = (vec![1; 3_000_000], vec![2; 500_000]);
            send(&mut world, 0, client, b"never read").unwrap();
            if has_part {
                assert_eq!(wait_to_read(&mut world, server), b"never read");
            }
            let mut sent = 0;
            wait_for(&mut world, 10 * S, "room", |world| {
                let now = world.time();
                sent = world.hosts[0].send_part(now, client, &long, 0).unwrap_or(0);
                sent > 0
            });
            // A beginning of it is here, and a reader has that, perhaps.
            let (mut out, mut part) = (vec![0; long.len()], Part::default());
            pass(&mut world, 20 * MS);
            if has_part {
                wait_for(&mut world, 10 * S, "a part", |world| {
                    let received = world.hosts[1].recv_partly(server, &mut out, &mut part);
                    received == Err(RecvError::WouldBlock) && part.bytes > 0
                });
            }
            assert_eq!(send(&mut world, 1, server, &reply), Ok(reply.len()));
            let now = world.clock(1);
            world.hosts[1].set_forgets_unread(server, true);
            if alone {
                world.hosts[1].close(now, server);
            } else {
                world.hosts[1].close_channels(now);
            }
            wait_for(&mut world, 10 * S, "the reply", |world| {
                let now = world.time();
                if sent < long.len() {
                    // Until the end has come.
                    sent += world.hosts[0].send_part(now, client, &long, sent).unwrap_or(0);
                }
                world.hosts[0].recv(client, &mut out) == Ok(Some(reply.len()))
            });
            assert!(out[..reply.len()] == reply);
            wait_for(&mut world, 10 * S, "the end", |world| world.hosts[0].recv(client, &mut out) == Ok(None));
            assert_eq!(failure(&mut world, 0, client), None);
            assert_eq!(send(&mut world, 0, client, b"x"), Err(SendError::PeerClosed));
            close(&mut world, 0, client);
            wait_empty(&mut world);
        }
    }
}

in_every_way!(what_was_written_before_a_close_arrives_and_can_be_read_long_after);
fn what_was_written_before_a_close_arrives_and_can_be_read_long_after() {
    for seed in 0..6 {
        let mut world = lossy(seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        let bytes: Vec<u8> = (0..100_000).map(pattern).collect();
        assert_eq!(send(&mut world, 0, client, &bytes), Ok(bytes.len()));
        close(&mut world, 0, client);
        wait_for(&mut world, 20 * S, "the sender is through", |world| world.hosts[0].sizes().1 == 0);
        pass(&mut world, 20 * S);
        // Document 0's zombie: the peer is gone, and everything it sent is there.
        let (mut read, mut out) = (Vec::new(), [0; 7000]);
        while let Some(count) = world.hosts[1].recv(server, &mut out).unwrap() {
            read.extend_from_slice(&out[..count]);
        }
        assert_eq!(read, bytes);
        assert_eq!(send(&mut world, 1, server, b"x"), Err(SendError::PeerClosed));
        close(&mut world, 1, server);
        wait_empty(&mut world);
    }
}

in_every_way!(a_close_with_unread_data_resets_the_peer);
fn a_close_with_unread_data_resets_the_peer() {
    for seed in 0..6 {
        let mut world = lossy(seed);
        let (client, server) = pair(&mut world, Mode::Stream);
        send(&mut world, 0, client, b"nobody will read this").unwrap();
        wait_for(&mut world, 5 * S, "it is there", |world| world.hosts[1].readiness(server).unwrap().readable);
        close(&mut world, 1, server);
        wait_for(&mut world, 5 * S, "reset", |world| failure(world, 0, client).is_some());
        assert_eq!(world.hosts[0].recv(client, &mut [0; 1]), Err(RecvError::Failed(ErrorCode::Reset)));
        close(&mut world, 0, client);
        wait_empty(&mut world);
    }
}

in_every_way!(a_lost_reset_leaves_no_reader_waiting);
fn a_lost_reset_leaves_no_reader_waiting() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let mut lost = 0;
    world.filter = Some(Box::new(move |_, _, _, bytes| {
        let is_abort = bytes[0] == 0x1A;
        lost += usize::from(is_abort);
        !is_abort || lost > 3
    }));
    let now = world.time();
    world.hosts[0].abort(now, client);
    let taken = wait_for(&mut world, S, "the reader learns", |world| failure(world, 1, server).is_some());
    assert!(taken < 50 * MS, "{taken}");
    close(&mut world, 1, server);
    wait_empty(&mut world);
}

in_every_way!(what_comes_late_for_an_aborted_channel_breaks_no_rule);
/// A packet that comes again, for a channel that this end has aborted since, behind one that arrived long ago: nobody has done anything wrong.
fn what_comes_late_for_an_aborted_channel_breaks_no_rule() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let (other_client, other_server) = open(&mut world, 0, 1, 8, Mode::Stream);
    pass(&mut world, MS);
    // The packets are known by their lengths, also with a key.
    let lost = Rc::new(Cell::new(200));
    let from = Rc::clone(&lost);
    world.filter = Some(Box::new(move |_, host, _, bytes| host == 0 || bytes.len() < from.get()));
    for (channel, bytes) in [(other_server, 600), (server, 100), (server, 300)] {
        send(&mut world, 1, channel, &vec![7; bytes]).unwrap();
        pass(&mut world, MS);
    }
    let now = world.clock(0);
    world.hosts[0].abort(now, client);
    pass(&mut world, MS);
    // The packet behind the one that had arrived comes, and what all of them stand behind is still missing.
    lost.set(500);
    wait_for(&mut world, S, "it comes", |world| world.hosts[0].counters().dropped_channel > 0);
    lost.set(usize::MAX);
    let mut out = [0; 1000];
    wait_for(&mut world, S, "the other channel goes on", |world| {
        world.hosts[0].recv(other_client, &mut out) == Ok(Some(600))
    });
    assert_eq!([0, 1].map(|host: usize| world.hosts[host].counters().violations), [0; 2]);
    for (host, channel) in [(0, client), (1, server), (0, other_client), (1, other_server)] {
        close(&mut world, host, channel);
    }
    wait_empty(&mut world);
}

in_every_way!(both_ends_may_close_abort_and_shut_down_at_any_moment);
fn both_ends_may_close_abort_and_shut_down_at_any_moment() {
    #[derive(Clone, Copy, Debug)]
    enum End {
        Close,
        Abort,
        Shutdown,
    }
    let ends = [End::Close, End::Abort, End::Shutdown];
    for (seed, (first, second)) in ends.iter().flat_map(|&a| ends.map(|b| (a, b))).enumerate() {
        for moment in 0..12u64 {
            for mode in [Mode::Stream, Mode::Messages] {
                let mut world = lossy(seed as u64 + moment);
                let (client, server) = pair(&mut world, mode);
                let bytes = vec![7; 30_000];
                let _ = send(&mut world, 0, client, &bytes);
                let _ = send(&mut world, 1, server, &bytes);
                pass(&mut world, moment * 15 * US);
                for (host, channel, end) in [(0, client, first), (1, server, second)] {
                    let now = world.clock(host);
                    match end {
                        End::Close => world.hosts[host].close(now, channel),
                        End::Abort => world.hosts[host].abort(now, channel),
                        End::Shutdown => drop(world.hosts[host].shutdown(now, channel)),
                    }
                }
                pass(&mut world, moment * 10 * US);
                close(&mut world, 0, client);
                close(&mut world, 1, server);
                wait_empty(&mut world);
            }
        }
    }
}

in_every_way!(both_ends_may_close_with_more_queued_than_the_other_has_given_credit_for);
fn both_ends_may_close_with_more_queued_than_the_other_has_given_credit_for() {
    let config = Config { receive_buffer_bytes: 256 << 10, ..Config::default() };
    for size in [65_537, 150_000, 600_000] {
        for mode in [Mode::Stream, Mode::Messages] {
            let mut world = World::new(2, Net::default(), &config, 0);
            let (client, server) = pair(&mut world, mode);
            let bytes = vec![7; size];
            assert_eq!(send(&mut world, 0, client, &bytes), Ok(size));
            assert_eq!(send(&mut world, 1, server, &bytes), Ok(size));
            close(&mut world, 0, client);
            close(&mut world, 1, server);
            wait_for(&mut world, 100 * MS, "both are through", |world| {
                world.hosts.iter().all(|host| host.sizes().1 == 0 && host.buffers_in_use() == (0, 0))
            });
            assert!(world.hosts.iter().all(|host| host.promised_bytes() == 0));
        }
    }
}

in_every_way!(who_closes_all_channels_beside_a_message_that_is_being_handed_over_loses_nothing);
/// Another thread is in the middle of a send when the process exits.
fn who_closes_all_channels_beside_a_message_that_is_being_handed_over_loses_nothing() {
    let config = Config { receive_buffer_bytes: 256 << 10, ..Config::default() };
    for seed in 0..6 {
        // What the peer says meanwhile is read by nobody, and no reason to reset what it is sent.
        for (at_both_ends, says_more) in [(false, false), (false, true), (true, false)] {
            let mut world = World::new(2, lossy(seed).net, &config, seed);
            let (client, server) = pair(&mut world, Mode::Messages);
            let messages = [vec![1; 60_000], vec![2; 60_000], vec![3; 500_000]];
            let senders = if at_both_ends { &[(0, client), (1, server)][..] } else { &[(0, client)] };
            let mut parts = Vec::new();
            for &(host, channel) in senders {
                let now = world.clock(host);
                assert_eq!(send(&mut world, host, channel, &messages[0]), Ok(60_000));
                assert_eq!(send(&mut world, host, channel, &messages[1]), Ok(60_000));
                parts.push(world.hosts[host].send_part(now, channel, &messages[2], 0).unwrap());
                assert!(world.hosts[host].is_owed(channel));
                world.hosts[host].close_channels(now);
                assert_eq!(world.hosts[host].send(now, channel, b"x"), Err(SendError::Closed));
            }
            if says_more {
                assert_eq!(send(&mut world, 1, server, b"nobody reads this"), Ok(17));
            }
            pass(&mut world, 10 * MS);
            for (&(host, channel), sent) in senders.iter().zip(&mut parts) {
                while world.hosts[host].poll_event().is_some() {}
                while *sent < messages[2].len() {
                    assert!(!world.hosts[host].is_drained());
                    let now = world.clock(host);
                    *sent += world.hosts[host].send_part(now, channel, &messages[2], *sent).unwrap();
                }
                // Who waits for what comes on it learns that it is closed.
                assert_eq!(world.hosts[host].poll_event(), Some(Event::Changed(channel)));
            }
            if !at_both_ends {
                let mut out = vec![0; messages[2].len()];
                for message in &messages {
                    wait_for(&mut world, 10 * S, "a message", |world| {
                        world.hosts[1].recv(server, &mut out) == Ok(Some(message.len()))
                    });
                    assert!(out[..message.len()] == *message);
                }
                wait_for(&mut world, 10 * S, "the end", |world| world.hosts[1].recv(server, &mut out) == Ok(None));
                assert_eq!(failure(&mut world, 1, server), None);
                close(&mut world, 1, server);
            }
            wait_empty(&mut world);
            assert!(world.hosts.iter().all(|host| host.is_drained()));
        }
    }
}

in_every_way!(what_the_peer_did_not_wait_for_is_not_delivered);
fn what_the_peer_did_not_wait_for_is_not_delivered() {
    let config = Config { receive_buffer_bytes: 256 << 10, ..Config::default() };
    for (mode, bytes, unsent) in
        [(Mode::Stream, 1_000, false), (Mode::Stream, 600_000, true), (Mode::Messages, 600_000, true)]
    {
        let mut world = World::new(2, Net::default(), &config, 0);
        let (client, server) = pair(&mut world, mode);
        if mode == Mode::Messages {
            // In parts, of which the last is not handed over when the peer closes.
            let now = world.clock(0);
            let sent = world.hosts[0].send_part(now, client, &vec![7; bytes], 0).unwrap();
            assert!(sent < bytes);
            world.hosts[1].set_forgets_unread(server, true);
        } else {
            // What is beyond the first window has no credit.
            assert_eq!(send(&mut world, 0, client, &vec![7; bytes]), Ok(bytes));
        }
        pass(&mut world, 10 * MS);
        let mut out = vec![0; 65_536];
        if mode == Mode::Stream {
            // It closes before the rest can come.
            while matches!(world.hosts[1].recv(server, &mut out), Ok(Some(_))) {}
        }
        close(&mut world, 1, server);
        wait_for(&mut world, S, "the end", |world| world.hosts[0].recv(client, &mut out) == Ok(None));
        pass(&mut world, 10 * MS);
        let readiness = world.hosts[0].readiness(client).unwrap();
        assert_eq!((readiness.undelivered, readiness.drained), (unsent, !unsent), "{bytes} bytes of {mode:?}");
        world.close_all(1);
        pass(&mut world, 10 * MS);
        let readiness = world.hosts[0].readiness(client).unwrap();
        assert_eq!((readiness.undelivered, readiness.drained), (unsent, !unsent), "{bytes} bytes of {mode:?}");
        assert!(readiness.failed.is_none() || readiness.orderly != unsent);
        close(&mut world, 0, client);
        wait_empty(&mut world);
    }
}

in_every_way!(an_engine_that_goes_away_lets_the_others_read_what_arrived);
fn an_engine_that_goes_away_lets_the_others_read_what_arrived() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    let second = try_connect(&mut world, 0, 1, 7).unwrap();
    send(&mut world, 0, second, b"not yet accepted").unwrap();
    send(&mut world, 0, client, b"last words").unwrap();
    pass(&mut world, MS);
    world.close_all(0);
    pass(&mut world, MS);
    assert_eq!(world.hosts[1].sizes().0, 0);
    let mut out = [0; 100];
    assert_eq!(world.hosts[1].recv(server, &mut out), Ok(Some(10)));
    assert_eq!(world.hosts[1].recv(server, &mut out), Err(RecvError::Failed(ErrorCode::Closed)));
    let late = world.hosts[1].accept(7).expect("it had arrived whole");
    assert_eq!(world.hosts[1].recv(late, &mut out), Ok(Some(16)));
    assert_eq!(world.hosts[1].recv(late, &mut out), Err(RecvError::Failed(ErrorCode::Closed)));
    for (host, channel) in [(0, client), (0, second), (1, server), (1, late)] {
        close(&mut world, host, channel);
    }
    wait_empty(&mut world);
}

in_every_way!(an_engine_that_goes_away_tells_more_peers_than_answers_may_wait);
fn an_engine_that_goes_away_tells_more_peers_than_answers_may_wait() {
    const PEERS: u64 = 2500;
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.hosts[1].listen(7, Mode::Stream, PEERS as usize).unwrap();
    world.counters.off = true;
    let now = world.clock(0);
    for name in 0..PEERS {
        world.hosts[0].connect(now, &alias(1, name), 7, Mode::Stream).unwrap();
    }
    pass(&mut world, S);
    assert_eq!(world.hosts[1].sizes().0, PEERS as usize);
    let mut portions = 1;
    while !world.close_all(0) {
        world.flush(0);
        portions += 1;
    }
    pass(&mut world, MS);
    assert_eq!((world.hosts[0].sizes().0, world.hosts[1].sizes().0, portions), (0, 0, 3));
    assert_eq!(world.hosts[0].counters().replies_suppressed, 0);
}

in_every_way!(an_engine_that_goes_away_tells_those_first_whom_it_heard_last);
fn an_engine_that_goes_away_tells_those_first_whom_it_heard_last() {
    let mut world = World::new(5, Net::default(), &Config::default(), 1);
    let ends = [1, 2, 3, 4].map(|to| {
        pass(&mut world, S);
        open(&mut world, 0, to, 7, Mode::Stream)
    });
    stream(&mut world, (2, ends[1].1), (0, ends[1].0), 1000, S);
    pass(&mut world, 2 * S);
    stream(&mut world, (1, ends[0].1), (0, ends[0].0), 1000, S);
    pass(&mut world, 2 * S);
    assert!(world.close_all(0));
    let (now, mut told) = (world.clock(0), Vec::new());
    // As long as there is no room for who may be off, the last of them waits.
    for has_room in [false, true] {
        world.hosts[0].transmit(now, &mut |to, handling, packets| {
            let takes = has_room || handling.presence == Presence::Heard;
            if takes {
                told.push((u64::from_be_bytes(to.0[..8].try_into().unwrap()), handling.presence));
            }
            if takes { packets.len() } else { 0 }
        });
    }
    let (heard, unheard) = (Presence::Heard, Presence::Unheard);
    assert_eq!(told, [(1, heard), (2, unheard), (4, unheard), (3, unheard)]);
}

in_every_way!(who_stops_listening_resets_those_it_never_accepted);
fn who_stops_listening_resets_those_it_never_accepted() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.hosts[1].listen(7, Mode::Stream, 8).unwrap();
    let waiting: Vec<_> = (0..5).map(|_| try_connect(&mut world, 0, 1, 7).unwrap()).collect();
    // So long that nothing has been heard for more than the patience of a transfer.
    pass(&mut world, 30 * S);
    world.hosts[1].unlisten(7);
    for &channel in &waiting {
        wait_for(&mut world, S, "reset", |world| failure(world, 0, channel) == Some(ErrorCode::Reset));
        close(&mut world, 0, channel);
    }
    wait_empty(&mut world);
    assert_eq!(world.hosts[1].sizes().0, 1, "the association lives on");
}

in_every_way!(a_message_longer_than_the_limit_is_refused_before_it_is_sent);
fn a_message_longer_than_the_limit_is_refused_before_it_is_sent() {
    let config = Config { longest_message_bytes: 10_000, ..Config::default() };
    let mut world = World::of(vec![endpoint(0, &Config::default(), 1), endpoint(1, &config, 1)], Net::default(), 1);
    let (client, server) = pair(&mut world, Mode::Messages);
    assert_eq!(send(&mut world, 0, client, &[0; 10_001]), Err(SendError::TooLong { limit: 10_000 }));
    assert_eq!(send(&mut world, 0, client, &[1; 10_000]), Ok(10_000));
    let mut out = vec![0; 20_000];
    wait_for(&mut world, S, "it arrives", |world| world.hosts[1].recv(server, &mut out) == Ok(Some(10_000)));
    close_all_channels(&mut world, &[(0, client), (1, server)]);
}

in_every_way!(an_end_behind_data_that_nobody_will_take_does_not_wait_for_credit);
fn an_end_behind_data_that_nobody_will_take_does_not_wait_for_credit() {
    let config = Config { receive_buffer_bytes: 256 << 10, ..Config::default() };
    let mut world = World::new(2, Net::default(), &config, 0);
    let (client, server) = pair(&mut world, Mode::Stream);
    // One byte more than the first window; then the end; and then the news that the other end has closed.
    close(&mut world, 1, server);
    assert_eq!(send(&mut world, 0, client, &[0; 65_537]), Ok(65_537));
    let now = world.time();
    world.hosts[0].shutdown(now, client).unwrap();
    pass(&mut world, 10 * MS);
    close(&mut world, 0, client);
    wait_empty(&mut world);
}
