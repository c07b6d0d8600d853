//! Options that were set before a socket was followed.

use crate::support::listener;
use ropeway_shm::sys;
use ropeway_socket::{adopt, fdtable, lifecycle, options, process};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

fn ask_for_bytes_left(fd: i32) {
    let on: libc::c_int = 1;
    // SAFETY: a number, valid for its length.
    let set = unsafe { sys::setsockopt(fd, libc::IPPROTO_TCP, options::TCP_INQ, (&raw const on).cast(), 4) };
    assert!(set.is_ok());
}

#[test]
fn what_an_inherited_socket_was_asked_to_tell_it_tells() {
    let follow: [fn(i32); 2] = [adopt::inherited, |fd| lifecycle::accepted(None, fd, 0)];
    while !process::ready() {
        std::thread::yield_now();
    }
    for follow in follow {
        for asked in [false, true] {
            let listener = listener();
            let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
            let fd = stream.as_raw_fd();
            if asked {
                ask_for_bytes_left(fd);
            }
            follow(fd);
            let h = fdtable::sock(fd).expect("the socket is tracked");
            assert_eq!(options::bytes_left(h, fd), asked.then_some(0));
            lifecycle::closing(fd);
        }
    }
}
