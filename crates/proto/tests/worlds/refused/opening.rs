//! What opens no association, or not yet.

use super::*;

#[test]
fn no_more_answers_wait_for_the_link_than_have_a_place() {
    const MOST: u64 = 1024;
    let mut server = Server::new();
    for nonce in 0..2 * MOST {
        server.endpoint.handle_packet(NOW.after(MS), &path(nonce as usize), false, &attempt(nonce));
    }
    server.endpoint.finish_batch(NOW.after(MS));
    assert_eq!(server.endpoint.counters().replies_suppressed, MOST);
    assert_eq!(sent(&mut server.endpoint, NOW.after(MS)).len() as u64, MOST);
    // Whoever asks again has a place.
    assert_eq!(server.takes(&attempt(1)).len(), 1);
}

#[test]
fn a_confirm_is_no_longer_than_the_packet_size_accepted() {
    let most = 256 - BASE_HEADER_BYTES - ConfirmFields::BYTES - OpenFields::BYTES;
    let mut server = Server::new();
    let cookie = server.takes_over(&path(1), &attempt(1)).pop().expect("a COOKIE");
    let with = |flags, early: &[u8]| another_confirm(&cookie, flags, early);
    let whole = Flags::FIRST | Flags::LAST;
    for (about, bytes) in [
        ("a byte too many", with(whole, &vec![1; most + 1])),
        ("a record of 60,000 bytes", with(Flags::RECORDS, &[&[0xC0, 0xEA, 0x60][..], &[1; 60_000]].concat())),
        ("most of 100,000 bytes", with(Flags::FIRST, &[&100_000u32.to_be_bytes()[..], &[1; 60_000]].concat())),
        ("60,000 empty records", with(Flags::RECORDS, &[0; 60_000])),
    ] {
        let malformed = Malformed::PayloadLength.index();
        server.drops(&path(1), &bytes, about, |counters| counters.dropped_malformed[malformed] += 1);
    }
    assert_eq!(server.takes_over(&path(1), &with(whole, &vec![1; most]))[0][0], 0x14);
    server.endpoint.accept(7000).unwrap();
    let channel = server.endpoint.accept(7000).unwrap();
    assert_eq!(server.endpoint.recv(channel, &mut [0; 256]), Ok(Some(most)));
}

#[test]
fn who_opens_more_than_there_are_places_for_spent_cookies_is_refused_until_they_are_old() {
    const MOST: u64 = 65_536;
    let mut server = Server::new();
    // Each association is over before the next one begins.
    let open = |server: &mut Server, host: usize, nonce: u64, now: Time| {
        let mut answer = |bytes: &[u8]| {
            server.endpoint.handle_packet(now, &path(host), false, bytes);
            server.endpoint.finish_batch(now);
            // Behind it there may be credit for the channel.
            sent(&mut server.endpoint, now).swap_remove(0)
        };
        let cookie = answer(&attempt(nonce));
        let mut bytes = confirm(&cookie);
        bytes[28..36].copy_from_slice(&nonce.to_be_bytes());
        let opened = answer(&bytes);
        if opened[0] == 0x14 {
            let mut reset = RST.clone();
            reset[4..8].copy_from_slice(&opened[32..36]);
            server.endpoint.handle_packet(now, &path(host), false, &reset);
            // What came with it could still be read.
            while let Ok(channel) = server.endpoint.accept(7000) {
                server.endpoint.close(now, channel);
            }
        }
        (opened[0], opened[32..34].to_vec())
    };
    let now = NOW.after(2 * MS);
    let busy = u16::from(ErrorCode::Busy).to_be_bytes().to_vec();
    // Each host gets four fifths of what the ones before have left. One is spent already.
    let mut left = MOST - 1;
    for host in 1.. {
        let most = if host == 1 { left - 13_107 } else { (4 * left).div_ceil(5) };
        for nonce in 1..=most {
            assert_eq!(open(&mut server, host, nonce, now).0, 0x14, "attempt {nonce} of {host}");
        }
        assert_eq!(open(&mut server, host, most + 1, now), (0x15, busy.clone()), "{host} after {most}");
        left -= most;
        if left == 0 {
            break;
        }
    }
    assert_eq!(server.endpoint.sizes().0, 1, "the first one");
    assert_eq!(open(&mut server, 1000, 1, now), (0x15, busy));
    // They are good for three seconds, and remembered for a little longer.
    assert_eq!(open(&mut server, 1000, 1, now.after(3 * S)).0, 0x15);
    assert_eq!(open(&mut server, 1000, 1, now.after(3 * S + 10 * MS)).0, 0x14);
}

#[test]
fn an_opened_with_bytes_behind_the_parameters_opens_nothing() {
    let config = Config::default();
    let mut world = world::World::new(2, world::Net::default(), &config, 1);
    world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
    let mut left = 1;
    world.attacker = Some(Box::new(move |_, from, to, bytes| {
        let mut bytes = bytes.to_vec();
        if bytes[0] == 0x14 && left > 0 {
            left -= 1;
            bytes.push(0);
            let length = u16::from_be_bytes([bytes[2], bytes[3]]) + 1;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
        }
        vec![(from, to, bytes)]
    }));
    let client = world::try_connect(&mut world, 0, 1, 7).unwrap();
    let taken = world::wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(client).unwrap().opened);
    assert!(taken >= 10 * MS, "by the next one, {taken}");
    let mut expected = [0; Malformed::COUNT];
    expected[Malformed::PayloadLength.index()] = 1;
    assert_eq!(world.hosts[0].counters().dropped_malformed, expected);
}
