//! A member whose window is full of gaps, or that asks for all of another's: what that makes an end do (docs/protocol.md 5, 11).

use super::*;
use ropeway_wire::{Block, Blocks};

const US: u64 = 1_000;
/// Numbers that may be missing at once.
const WINDOW: u32 = 16_384;

/// How many of these packets ask for something again.
fn asking(packets: &[Vec<u8>]) -> usize {
    let asks = |bytes: &&Vec<u8>| {
        let packet = Packet::parse(bytes).unwrap();
        let is_control = matches!(packet.header.kind, Type::Control | Type::State);
        is_control && Blocks::parse(packet.payload).unwrap().any(|block| matches!(block, Block::Rrq(_)))
    };
    packets.iter().filter(asks).count()
}

#[test]
fn who_leaves_gaps_all_over_its_window_is_not_asked_for_all_of_them_all_the_time() {
    const LASTS_US: u64 = 100_000;
    let mut server = Server::new();
    let data = server.golden("DATA, a whole message");
    let numbered = |number: u32, now: Time| {
        let mut bytes = data.clone();
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        // The round trip is as short as can be.
        bytes[22..24].copy_from_slice(&((now.as_nanos() / (4 * US)) as u16).to_be_bytes());
        bytes
    };
    let mut now = NOW.after(MS);
    // Every other one is missing.
    for gap in 0..WINDOW / 2 - 1 {
        let bytes = numbered(NEXT.wrapping_add(2 * gap + 1), now);
        server.endpoint.handle_packet(now, &path(0), false, &bytes);
    }
    server.endpoint.finish_batch(now);
    assert_eq!(server.state().associations[0].missing_packets, WINDOW / 2 - 1);
    // The lowest of them comes each time, so that nothing is asked for in vain.
    let (mut asked, mut lowest) = (0, NEXT);
    for _ in 0..LASTS_US / 50 {
        now = now.after(50 * US);
        server.endpoint.handle_packet(now, &path(0), false, &numbered(lowest, now));
        lowest = lowest.wrapping_add(2);
        server.endpoint.finish_batch(now);
        server.endpoint.handle_timeout(now);
        asked += asking(&sent(&mut server.endpoint, now));
    }
    let first: u32 = lowest.wrapping_sub(NEXT);
    println!("{asked} requests in {} ms, for what is left of {first}", LASTS_US / 1000);
    // One each 33 us, and the first.
    assert!(asked as u64 <= LASTS_US / 32 + 1, "{asked}");
    assert!(asked >= 100, "all of it is asked for, if not at once: {asked}");
}

#[test]
fn who_asks_for_the_same_all_the_time_is_answered_now_and_then() {
    let mut server = Server::new();
    let channel = server.endpoint.accept(7000).unwrap();
    assert_eq!(server.endpoint.send(NOW.after(MS), channel, b"answer"), Ok(6));
    assert_eq!(sent(&mut server.endpoint, NOW.after(MS)).iter().filter(|bytes| bytes[0] == 0x17).count(), 1);
    let ranges = [(FIRST_NUMBER as u32, 1); 32];
    let bytes = control(&server, Type::Control, &ranges);
    let mut again = |now: Time| {
        server.endpoint.handle_packet(now, &path(0), false, &bytes);
        server.endpoint.finish_batch(now);
        sent(&mut server.endpoint, now).iter().filter(|bytes| bytes[0] == 0x17).count()
    };
    // As many as four windows can be named at once, and five million a second.
    let now = NOW.after(2 * MS);
    let answers: usize = (0..4000).map(|_| again(now)).sum();
    assert_eq!(answers, 4 * WINDOW as usize / ranges.len());
    assert_eq!([again(now), again(now.after(MS))], [0, 1]);
}
