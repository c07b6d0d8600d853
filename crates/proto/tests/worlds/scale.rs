//! Many: channels, associations, and what each costs.

#![allow(clippy::disallowed_methods, reason = "figures for people beside the virtual time; nothing is decided by them")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use crate::world::*;
use ropeway_proto::{Config, Mode};

/// Counts what is allocated by the thread at hand: a world lives in one, and other tests run beside it.
struct Counting;

thread_local! {
    static ALLOCATED_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends has nothing more to count.
    let _ = ALLOCATED_BYTES.try_with(|allocated| allocated.set(allocated.get() + bytes));
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated() -> isize {
    ALLOCATED_BYTES.get()
}

with_and_without_a_key!(ten_thousand_channels_of_one_association);
fn ten_thousand_channels_of_one_association() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.hosts[1].listen(7, Mode::Stream, 20_000).unwrap();
    let first = try_connect(&mut world, 0, 1, 7).unwrap();
    wait_for(&mut world, S, "open", |world| world.hosts[0].readiness(first).unwrap().opened);
    let count = 10_000;
    let (before, begin) = (allocated(), Instant::now());
    let channels: Vec<_> = (1..count).map(|_| try_connect(&mut world, 0, 1, 7).unwrap()).collect();
    let mut accepted = Vec::new();
    wait_for(&mut world, 5 * S, "all are accepted", |world| {
        while let Ok(id) = world.hosts[1].accept(7) {
            accepted.push(id);
        }
        accepted.len() == count
    });
    // What all of them needed at once goes back.
    pass(&mut world, 3 * S);
    let each = (allocated() - before) / count as isize;
    println!("{} ns to open a channel, {each} bytes for both its ends", begin.elapsed().as_nanos() / count as u128);
    assert!(each < 2 * 1024, "{each}");
    // Every one works, in the order in which they were opened.
    let begin = Instant::now();
    for (&from, &to) in channels.iter().zip(&accepted[1..]).step_by(97) {
        stream(&mut world, (0, from), (1, to), 3000, S);
    }
    println!("{} us for each transfer of 3000 bytes", begin.elapsed().as_micros() / (count as u128 / 97));
    let mut ends: Vec<_> = accepted.into_iter().map(|id| (1, id)).collect();
    ends.extend(channels.into_iter().chain([first]).map(|id| (0, id)));
    let begin = Instant::now();
    close_all_channels(&mut world, &ends);
    println!("{} ns to close one", begin.elapsed().as_nanos() / count as u128);
    assert_eq!(world.hosts[0].sizes(), (1, 0));
}

with_and_without_a_key!(channel_numbers_go_round_past_those_that_stay_open);
/// Numbers have 16 bits, and of the client's every second one: they go round twice, past those that stay taken.
fn channel_numbers_go_round_past_those_that_stay_open() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.hosts[1].listen(7, Mode::Stream, 1000).unwrap();
    let (mut staying, mut opened) = (Vec::new(), 0);
    while opened < 70_000 {
        let clients: Vec<_> = (0..500).map(|_| try_connect(&mut world, 0, 1, 7).unwrap()).collect();
        let mut servers = Vec::new();
        wait_for(&mut world, S, "all are accepted", |world| {
            while let Ok(id) = world.hosts[1].accept(7) {
                servers.push(id);
            }
            servers.len() == clients.len()
        });
        let mut ends: Vec<_> = clients.into_iter().zip(servers).collect();
        if opened % 10_000 == 0 {
            staying.extend(ends.pop());
        }
        opened += 500;
        for (client, server) in ends {
            let now = world.time();
            world.hosts[0].close(now, client);
            world.hosts[1].close(now, server);
        }
        wait_for(&mut world, S, "they are gone", |world| {
            world.hosts.iter().all(|host| host.sizes() == (1, staying.len()))
        });
    }
    assert_eq!(staying.len(), 7);
    for &(client, server) in &staying {
        stream(&mut world, (0, client), (1, server), 10_000, S);
        stream(&mut world, (1, server), (0, client), 10_000, S);
    }
    let counters = [0, 1].map(|host| world.hosts[host].counters());
    assert_eq!(counters.map(|it| (it.violations, it.channels_refused)), [(0, 0); 2]);
    assert_eq!((counters[0].channels_opened, counters[1].channels_accepted), (70_000, 70_000));
    let ends = staying.into_iter().flat_map(|(client, server)| [(0, client), (1, server)]);
    close_all_channels(&mut world, &ends.collect::<Vec<_>>());
}

with_and_without_a_key!(ten_thousand_associations_and_what_an_idle_one_costs);
fn ten_thousand_associations_and_what_an_idle_one_costs() {
    let mut world = World::new(2, Net::default(), &Config::default(), 1);
    world.hosts[1].listen(7, Mode::Stream, 20_000).unwrap();
    // What the tests' oracle remembers is not the endpoints'.
    world.counters.off = true;
    let count = 10_000u64;
    let (before, begin) = (allocated(), Instant::now());
    let now = world.time();
    let clients: Vec<_> =
        (0..count).map(|name| world.hosts[0].connect(now, &alias(1, name), 7, Mode::Stream).unwrap()).collect();
    let mut servers = Vec::new();
    wait_for(&mut world, 30 * S, "all are accepted", |world| {
        while let Ok(id) = world.hosts[1].accept(7) {
            servers.push(id);
        }
        servers.len() as u64 == count
    });
    pass(&mut world, S);
    println!("{} us to open an association, both ends", begin.elapsed().as_micros() / u128::from(count));
    // A little data each way, then idleness.
    for (host, ids) in [(0, &clients), (1, &servers)] {
        let now = world.clock(host);
        for &id in ids {
            assert_eq!(world.hosts[host].send(now, id, b"hello"), Ok(5));
            world.hosts[host].flush(id);
        }
    }
    pass(&mut world, S);
    let mut out = [0; 10];
    for (host, ids) in [(0, &clients), (1, &servers)] {
        ids.iter().for_each(|&id| assert_eq!(world.hosts[host].recv(id, &mut out), Ok(Some(5))));
    }
    pass(&mut world, 5 * S);
    while world.hosts.iter_mut().any(|host| host.poll_event().is_some()) {}
    let each = (allocated() - before) as u64 / (2 * count);
    println!("{each} bytes for an idle connection at one end, allocations and tables and all");
    // With a key: two expanded keys, two secrets and a short replay window more.
    let most = if is_keyed() { 3832 } else { 2376 };
    assert!(each <= most, "{each}");
    let begin = Instant::now();
    pass(&mut world, 61 * S);
    println!("{} ns for a PIN and its answer", begin.elapsed().as_nanos() / u128::from(count));
    assert_eq!(world.hosts[0].sizes(), (count as usize, count as usize));
}

with_and_without_a_key!(a_burst_gives_its_memory_back);
fn a_burst_gives_its_memory_back() {
    let mut world = World::new(2, Net { loss_ppm: 50_000, ..Net::default() }, &Config::default(), 1);
    let (client, server) = pair(&mut world, Mode::Stream);
    stream(&mut world, (0, client), (1, server), 10_000, S);
    pass(&mut world, S);
    let before = allocated();
    stream(&mut world, (0, client), (1, server), 5_000_000, 10 * S);
    // Soon, but not at once: another burst may follow.
    pass(&mut world, 3 * S);
    while world.hosts.iter_mut().any(|host| host.poll_event().is_some()) {}
    // Two pools keep their watermark of free buffers; nothing else stays.
    let kept = allocated() - before;
    println!("{kept} bytes more than before a burst of 5 MB");
    assert!(kept < 2 * 400 * 1506 + 64 * 1024, "{kept}");
}

with_and_without_a_key!(a_burst_that_is_read_late_gives_its_memory_back);
/// Whenever its last buffer comes back, and whether there is an association or not.
fn a_burst_that_is_read_late_gives_its_memory_back() {
    for is_gone in [false, true] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        let (client, server) = pair(&mut world, Mode::Stream);
        stream(&mut world, (0, client), (1, server), 10_000, S);
        pass(&mut world, 5 * S);
        let before = allocated();
        let now = world.clock(0);
        let sent = world.hosts[0].send(now, client, &vec![1; 900_000]).unwrap();
        pass(&mut world, 5 * S);
        if is_gone {
            world.close_all(0);
            pass(&mut world, S);
            assert_eq!(world.hosts[1].sizes().0, 0);
        }
        let (mut out, mut read) = (vec![0; 100_000], 0);
        while let Ok(Some(count)) = world.hosts[1].recv(server, &mut out) {
            read += count;
        }
        drop(out);
        assert!(read == sent && sent > 500_000, "{read} of {sent}");
        pass(&mut world, 3 * S);
        while world.hosts.iter_mut().any(|host| host.poll_event().is_some()) {}
        let kept = allocated() - before;
        assert!(kept < 2 * 400 * 1506 + 64 * 1024, "{kept}, gone: {is_gone}");
    }
}
