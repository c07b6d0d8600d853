//! When a process stops following its sockets: the kernel alone serves their descriptors from then on.

use super::drop_reference;
use crate::epoll;
use crate::fdtable::{self, Handle, Kind};
use core::sync::atomic::Ordering;
use ropeway_shm::table::{RX_TCP, TX_TCP};

/// Lets go of every socket and set, once all sockets have been taken back to TCP for good ([`super::leave`]): no call on one
/// finds anything of ours any more. False when some are followed on, because others share what is in a ring or in a set.
pub fn let_go() -> bool {
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.is_sock() && is_the_kernels(h) && epoll::leave_to_kernel(h, fd) {
            fdtable::remove(fd);
            drop_reference(h, fd);
        }
    });
    let mut all = true;
    fdtable::for_each_in(0, u32::MAX, |fd, h| match h.kind() {
        Kind::Set if epoll::is_native(h) => {
            fdtable::remove(fd);
            epoll::set_closing(h, fd);
        }
        Kind::Internal | Kind::Closing | Kind::Replacing | Kind::SetClosing => {}
        _ => all = false,
    });
    all
}

/// True when the kernel's answer to any call is the right one.
fn is_the_kernels(h: Handle) -> bool {
    let s = h.sock();
    s.rx.phase.load(Ordering::Acquire) == RX_TCP
        && s.tx.phase.load(Ordering::Acquire) == TX_TCP
        && s.error.load(Ordering::Acquire) == 0
}

/// In a child that follows nothing: its descriptors lead nowhere. The records stay as the parent has them.
pub fn forget_all() {
    fdtable::for_each_in(0, u32::MAX, |fd, h| {
        if h.kind() != Kind::Internal {
            fdtable::remove(fd);
        }
    });
}
