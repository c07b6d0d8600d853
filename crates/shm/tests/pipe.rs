//! Pipes between threads with mappings of their own, and between processes.

#![cfg(not(loom))]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::rc::Rc;

use ropeway_shm::pipe::{Broken, Doorbell, Pipe};
use ropeway_shm::segment::MIN_RING_BYTES;
use ropeway_shm::sys;

/// Longer than a test should take, so that one that would never end fails.
const PATIENCE_S: i64 = 30;

/// Far more than the rings hold, so that both sides sleep for room as well as for data.
const STREAM_BYTES: usize = 4 << 20;

fn byte_at(place: usize) -> u8 {
    (place * 31 + place / 251) as u8
}

fn sleep(doorbell: &Doorbell) {
    let mut fd = libc::pollfd { fd: doorbell.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut limit = libc::timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
    // SAFETY: one valid entry and a valid time.
    let rung = unsafe { sys::ppoll(&mut fd, 1, &mut limit, core::ptr::null(), sys::SIGSET_BYTES) };
    assert_eq!(rung, Ok(1), "nobody rang");
    doorbell.silence();
}

/// Writes the stream in pieces of changing length; sleeps when there is no room.
fn write_stream(pipe: &mut Pipe, doorbell: &Doorbell) {
    let (mut at, mut size) = (0, 1);
    while at < STREAM_BYTES {
        let piece: Vec<u8> = (at..(at + size).min(STREAM_BYTES)).map(byte_at).collect();
        let mut done = 0;
        while done < piece.len() {
            let mut n = pipe.try_write(&piece[done..]).unwrap();
            if n == 0 {
                pipe.ask_for_room();
                n = pipe.try_write(&piece[done..]).unwrap();
                if n == 0 {
                    sleep(doorbell);
                }
            }
            done += n;
        }
        at += piece.len();
        size = size * 3 % 40_009 + 1;
    }
}

/// Reads and checks the stream to its end; sleeps when there is nothing.
fn read_stream(pipe: &mut Pipe, doorbell: &Doorbell) {
    let (mut at, mut into) = (0, vec![0; 10_000]);
    while at < STREAM_BYTES {
        let mut n = pipe.try_read(&mut into).unwrap();
        if n == 0 {
            pipe.ask_for_data();
            n = pipe.try_read(&mut into).unwrap();
            if n == 0 {
                sleep(doorbell);
            }
        }
        for (i, byte) in into[..n].iter().enumerate() {
            assert_eq!(*byte, byte_at(at + i), "byte {} of the stream", at + i);
        }
        at += n;
    }
    assert_eq!(at, STREAM_BYTES);
}

fn first() -> (Pipe, OwnedFd, Rc<Doorbell>) {
    let doorbell = Doorbell::create().unwrap();
    let (pipe, segment) = Pipe::create(MIN_RING_BYTES, &doorbell).unwrap();
    (pipe, segment, doorbell)
}

fn second(segment: &OwnedFd) -> (Pipe, Rc<Doorbell>) {
    let doorbell = Doorbell::create().unwrap();
    (Pipe::open(segment.as_fd(), MIN_RING_BYTES, &doorbell).unwrap(), doorbell)
}

#[test]
fn a_full_pipe_takes_no_more_until_it_is_read() {
    let (mut a, segment, _) = first();
    let (mut b, _) = second(&segment);
    let (all, mut into) = (vec![5; 2 * MIN_RING_BYTES as usize], vec![0; 2 * MIN_RING_BYTES as usize]);
    assert_eq!(b.try_read(&mut into), Ok(0));
    assert!(!b.has_news());
    let written = a.try_write(&all).unwrap();
    assert!(written > MIN_RING_BYTES as usize / 2 && written < all.len(), "{written}");
    assert_eq!(a.try_write(&all), Ok(0));
    assert!(b.has_news());
    assert_eq!(b.try_read(&mut into), Ok(written));
    assert_eq!(into[..written], all[..written]);
    assert!(a.try_write(&all).unwrap() > 0);
}

#[test]
fn what_was_written_is_read_before_the_end() {
    let (mut a, segment, _) = first();
    let (mut b, _) = second(&segment);
    assert_eq!(a.try_write(b"last words"), Ok(10));
    drop(a);
    let mut into = [0; 20];
    assert_eq!(b.try_read(&mut into), Ok(10));
    assert_eq!(&into[..10], b"last words");
    assert_eq!(b.try_read(&mut into), Err(Broken::Closed));
    assert_eq!(b.try_write(b"to nobody"), Err(Broken::Closed));
}

#[test]
fn whoever_sleeps_learns_of_the_end() {
    let (a, segment, _) = first();
    let (mut b, doorbell) = second(&segment);
    b.ask_for_data();
    assert_eq!(b.try_read(&mut [0; 8]), Ok(0));
    drop(a);
    sleep(&doorbell);
    assert_eq!(b.try_read(&mut [0; 8]), Err(Broken::Closed));
}

#[test]
fn a_segment_of_another_size_is_refused() {
    let (_a, segment, doorbell) = first();
    assert!(Pipe::open(segment.as_fd(), 2 * MIN_RING_BYTES, &doorbell).is_err());
}

#[test]
fn threads_sleep_for_data_and_for_room_and_lose_nothing() {
    let (mut a, segment, doorbell) = first();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut b, doorbell) = second(&segment);
            read_stream(&mut b, &doorbell);
            write_stream(&mut b, &doorbell);
        });
        write_stream(&mut a, &doorbell);
        read_stream(&mut a, &doorbell);
    });
}

/// Where the other process finds the segment.
const SEGMENT: &str = "ROPEWAY_TEST_PIPE";

#[test]
fn processes_exchange_a_stream() {
    if let Some(path) = std::env::var_os(SEGMENT) {
        // We are the other process.
        let segment = std::fs::File::options().read(true).write(true).open(path).expect("the segment");
        let (mut b, doorbell) = second(&segment.into());
        read_stream(&mut b, &doorbell);
        return write_stream(&mut b, &doorbell);
    }
    let (mut a, segment, doorbell) = first();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes_exchange_a_stream", "--test-threads=1"])
        .env(SEGMENT, format!("/proc/{}/fd/{}", std::process::id(), segment.as_raw_fd()))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("another process");
    write_stream(&mut a, &doorbell);
    read_stream(&mut a, &doorbell);
    assert!(other.wait().expect("the other process").success());
}
