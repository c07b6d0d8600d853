//! Connections whose peer is killed: what the kernel closes for it, and what it left unread on which carrier.

use crate::support::{End, connected, warm, within};
use ropeway_shm::sys;
use ropeway_socket::reason::Reason;
use ropeway_socket::{lifecycle, options};
use std::time::Duration;

const RESET: isize = -(libc::ECONNRESET as isize);

/// What the kernel does for a process that is killed: its descriptor is closed, and nobody marks anything.
fn kill(end: &End) {
    // SAFETY: no pointers but a valid C string; the number goes on as another file's.
    let number = unsafe {
        let other = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        let number = libc::dup2(other, end.fd);
        libc::close(other);
        number
    };
    assert_eq!(number, end.fd);
    std::thread::sleep(Duration::from_millis(20));
}

/// An end that has shut its direction down behind a request in its ring, and more over TCP if it is to be reset, with the peer,
/// which is killed without having read any of it.
fn after_half_close(resets: bool) -> (End, End) {
    let (a, b) = connected();
    warm(&a, &b);
    assert_eq!(a.send(b"request"), 7);
    if resets {
        lifecycle::pin(a.h, a.fd, Reason::UnsupportedOption);
        assert_eq!(a.send(b"more"), 4);
    }
    assert_eq!(a.shutdown(libc::SHUT_WR), 0);
    kill(&b);
    (a, b)
}

fn pending_error(end: &End) -> i32 {
    let (mut error, mut len) = (0i32, 4u32);
    let value = (&raw mut error).cast();
    // SAFETY: value and length are valid; the closure makes the same call on the kernel.
    let answer = unsafe {
        options::getsockopt(end.h, end.fd, libc::SOL_SOCKET, libc::SO_ERROR, value, || {
            sys::getsockopt(end.fd, libc::SOL_SOCKET, libc::SO_ERROR, value.cast(), &raw mut len).map_or(-1, |_| 0)
        })
    };
    assert_eq!(answer, 0);
    error
}

#[test]
fn a_reset_is_told_once_after_ones_own_half_close() {
    within(Duration::from_secs(20), "receives", || {
        for resets in [true, false] {
            let (a, _b) = after_half_close(resets);
            let answers = [(); 3].map(|()| a.recv(&mut [0; 8]));
            assert_eq!(answers, [RESET, 0, 0], "the kernel has a reset: {resets}");
        }
    });
}

#[test]
fn a_reset_that_so_error_has_told_is_not_told_again_after_ones_own_half_close() {
    within(Duration::from_secs(20), "receives", || {
        let (a, _b) = after_half_close(true);
        assert_eq!(pending_error(&a), libc::ECONNRESET);
        assert_eq!([(); 2].map(|()| a.recv(&mut [0; 8])), [0, 0]);
    });
}
