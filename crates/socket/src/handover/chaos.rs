//! Disturbances of promoted connections, for tests.

use super::{lock_rx, lock_tx};
use crate::fdtable::Handle;
use crate::reason::Reason;
use crate::send::still_leads;
use crate::settings;
use ropeway_shm::table::Sock;

/// Tests only: disturbs a promoted connection when chaos says so.
#[inline]
pub fn chaos(s: &Sock, h: Handle, fd: i32) {
    if let Some(draw) = settings::chaos() {
        disturb(s, h, fd, draw);
    }
}

#[cold]
fn disturb(s: &Sock, h: Handle, mut fd: i32, draw: u32) {
    if draw & 1 == 0 {
        let mut tx = lock_tx(s);
        if still_leads(&mut fd, h) {
            tx.demote(h, fd, Reason::Off);
        }
    } else {
        let mut rx = lock_rx(s);
        if still_leads(&mut fd, h) {
            rx.demote(h, fd, Reason::Off);
        }
    }
}
