//! The functions of cdp.h.

use super::{Cdp, CdpAddress};
use crate::calls::exports;
use crate::failure::Failure;
use crate::memory::{self, bytes, bytes_mut};
use std::ffi::{c_char, c_int, c_void};

exports! {
    in call_to_the_end;

    fn cdp_init(node: c_int, interfaces: *const *const c_char, count: c_int, forward: c_int) -> c_int {
        let count = usize::try_from(count).map_err(|_| Failure::new(libc::EINVAL, "fewer than no interfaces"))?;
        super::init(node, &memory::texts(interfaces, count)?, forward)?;
        Ok(0)
    }

    fn cdp_socket() -> c_int {
        Cdp::get()?.socket()
    }

    fn cdp_bind(s: c_int, local: *const CdpAddress) -> c_int {
        Cdp::get()?.bind(s, memory::get(local, "the address")?)?;
        Ok(0)
    }

    fn cdp_listen(s: c_int, backlog: c_int) -> c_int {
        Cdp::get()?.listen(s, backlog)?;
        Ok(0)
    }

    fn cdp_accept(s: c_int, from: *mut CdpAddress, nonblocking: c_int) -> c_int {
        let (accepted, peer) = Cdp::get()?.accept(s, nonblocking != 0)?;
        memory::put(from, peer);
        Ok(accepted)
    }

    fn cdp_connect(s: c_int, to: *const CdpAddress) -> c_int {
        Cdp::get()?.connect(s, memory::get(to, "the address")?)?;
        Ok(0)
    }

    fn cdp_close(s: c_int) -> c_int {
        Cdp::get()?.close(s)?;
        Ok(0)
    }
}

exports! {
    in call;

    fn cdp_send(s: c_int, from: *const c_void, len: usize) -> c_int {
        Cdp::get()?.send(s, bytes(from, len)?)
    }

    fn cdp_recv(s: c_int, to: *mut c_void, len: usize, nonblocking: c_int) -> c_int {
        Cdp::get()?.recv(s, bytes_mut(to, len)?, nonblocking != 0)
    }

    /// The name that the document's list has for it.
    fn cdp_rcv(s: c_int, to: *mut c_void, len: usize, nonblocking: c_int) -> c_int {
        Cdp::get()?.recv(s, bytes_mut(to, len)?, nonblocking != 0)
    }
}
