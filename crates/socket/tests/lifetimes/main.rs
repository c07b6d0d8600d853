//! What a thread still uses while another one closes the socket, or gives its pair back: records of the table, descriptors,
//! mapped rings. What a test gets wrong here may end the whole program (SIGSEGV).

mod halves;
mod kept;
mod members;
mod numbers;
mod records;
mod rings;
mod sets;
#[path = "../support/mod.rs"]
mod support;

use ropeway_shm::segment::{MIN_RING_BYTES, PAGE_BYTES, Pair, Stamps};
use ropeway_shm::sys;
use ropeway_shm::table::{FLAG_PEER_FIN, PAIR_LEFT, PAIR_MAPPED, PAIR_NONE, PAIR_REGISTERED, RX_ATTACHED, Sock};
use ropeway_socket::fdtable::{self, Handle};
use ropeway_socket::reason::Reason;
use ropeway_socket::{adopt, epoll, handover, lifecycle, process, promote, recv, send, shadow, thread, wait};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use support::{
    ET, End, IN, Set, connected, forked, native, new_pair, on_tcp, poll_on, recv_on, rest, says_yes, send_on, warm,
    warm_pair, within,
};

const LIMIT: Duration = Duration::from_secs(60);

const ROUNDS: u64 = 500;

/// A number that leads nowhere.
const NOTHING: i32 = -1;

/// One test at a time: they depend on which record is taken next, and one of them forks.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn receive(h: Handle, fd: i32) -> isize {
    recv_on(h, fd, &mut [0; 8], 0)
}

fn is_open(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

fn descriptors(h: Handle) -> u32 {
    process::local(h.index()).fds.load(Ordering::Acquire)
}

/// Waits until the thread with this number sleeps in the kernel.
fn until_asleep(tid: &AtomicU32) {
    let sleeps = || match tid.load(Ordering::Acquire) {
        0 => false,
        tid => {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).expect("a thread of ours");
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
        }
    };
    while !sleeps() {
        std::thread::yield_now();
    }
}

/// Starts a call on an end that waits on the ring, and comes back when it sleeps.
fn asleep_on(end: &End, call: fn(Handle, i32) -> isize) -> JoinHandle<isize> {
    let (h, fd) = (end.h, end.fd);
    let tid = Arc::new(AtomicU32::new(0));
    let thread = std::thread::spawn({
        let tid = Arc::clone(&tid);
        move || {
            tid.store(sys::gettid().expect("gettid") as u32, Ordering::Release);
            call(h, fd)
        }
    });
    until_asleep(&tid);
    thread
}

/// The same, and closes the end then.
fn close_sleeping(end: End, call: fn(Handle, i32) -> isize) -> JoinHandle<isize> {
    let thread = asleep_on(&end, call);
    drop(end);
    thread
}

/// Closes the number of an end as `dup2` of a pipe does, on which nothing ever happens.
fn give_to_a_quiet_pipe(end: &End, quiet: &impl AsRawFd) {
    let _until_replaced = lifecycle::replacing(end.fd, quiet.as_raw_fd()).expect("a descriptor of the program");
    sys::dup2(quiet.as_raw_fd(), end.fd).expect("dup2");
}

/// The numbers of Ropeway's own descriptors.
fn ropeways_own() -> impl Iterator<Item = i32> {
    (0..fdtable::MAX_FDS as i32).filter(|fd| fdtable::is_internal(*fd))
}

/// Tracks and closes a descriptor again and again: every so often this looks for abandoned records.
fn come_and_go(fd: i32) {
    for _ in 0..100_000 {
        lifecycle::accepted(None, fd, 0);
        lifecycle::closing(fd);
    }
}

fn socket() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    TcpStream::connect(listener.local_addr().expect("address")).expect("connect")
}

/// What random moments are drawn from; says how to draw the same again.
fn first_draw() -> u64 {
    let draw = std::env::var("ROPEWAY_SEED").map_or(0x9E37_79B9, |seed| seed.parse().expect("a number")) | 1u64;
    println!("again: ROPEWAY_SEED={draw} cargo test -p ropeway-socket --test lifetimes");
    draw
}

fn next_delay(draw: &mut u64, most: Duration) -> Duration {
    *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    Duration::from_nanos((*draw >> 33) % most.as_nanos() as u64)
}

/// Sends a file of so many bytes.
fn send_file_on(h: Handle, fd: i32, bytes: usize) -> isize {
    // SAFETY: a valid C string.
    let file = unsafe { sys::memfd_create(c"file".as_ptr().cast(), libc::MFD_CLOEXEC) }.expect("memfd");
    // SAFETY: nobody else has it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(file as i32) });
    file.write_all(&vec![7; bytes]).expect("written");
    let mut offset = 0;
    // SAFETY: the offset is valid.
    unsafe { send::sendfile(h, fd, file.as_raw_fd(), &raw mut offset, bytes, || panic!("on a ring")) }
}

/// What a wait on the number of a set reports within `ms`, for which the kernel has to be asked alone: `ask` makes the call that it is
/// given.
fn reported_by(ep: i32, ms: i32, ask: impl FnOnce(&dyn Fn() -> isize) -> isize) -> Vec<(u32, u64)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let (p, max) = (events.as_mut_ptr(), events.len() as i32);
    // SAFETY: the array is valid for `max` events.
    let kernel = || unsafe { native(sys::epoll_pwait(ep, p, max, ms, std::ptr::null(), sys::SIGSET_BYTES)) };
    // SAFETY: as above.
    let n = unsafe { epoll::wait(ep, p, max, ms, std::ptr::null(), || ask(&kernel)) };
    assert!(n >= 0, "epoll_wait answered {n}");
    events[..n as usize].iter().map(|e| (e.events, e.u64)).collect()
}

/// Gives the number of a set to another one, as `dup2` does.
fn give_set_to(ep: i32, next: &Set) {
    let _until_replaced = lifecycle::replacing(ep, next.ep).expect("a descriptor of the program");
    sys::dup2(next.ep, ep).expect("dup2");
    lifecycle::duplicated(next.ep, ep);
}

/// Gives the number of an end to another connection, as `dup2` does.
fn give_to(end: &End, next: &End) {
    let _until_replaced = lifecycle::replacing(end.fd, next.fd).expect("a descriptor of the program");
    sys::dup2(next.fd, end.fd).expect("dup2");
    lifecycle::duplicated(next.fd, end.fd);
}
