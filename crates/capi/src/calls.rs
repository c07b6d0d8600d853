//! The functions of ropeway.h.

use crate::address;
use crate::failure::{Failure, Outcome};
use crate::guard::said;
use crate::memory::{self, bytes, bytes_mut, put_address, put_sized};
use crate::options;
use crate::socket::{SOCKETS, Socket};
use libc::{iovec, sockaddr, socklen_t};
use ropeway_socket::{Address, ToAddresses};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Defines exported functions, whose bodies run inside the guard that is named.
///
/// The bodies are unsafe code: the program's arguments are what ropeway.h asks for.
macro_rules! exports {
    (in $guard:ident; $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null, or point to what the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            // SAFETY: the contract of the C function, which the program keeps.
            crate::guard::$guard(|| unsafe { $body })
        }
    )* };
}

pub(crate) use exports;

exports! {
    in call_to_the_end;

    fn ropeway_socket(kind: c_int) -> c_int {
        SOCKETS.add(Socket::new(kind)?)
    }

    fn ropeway_bind(s: c_int, at: *const sockaddr, len: socklen_t) -> c_int {
        let socket = SOCKETS.get(s)?;
        socket.bind(&address::read(bytes(at.cast(), len as usize)?)?)?;
        Ok(0)
    }

    fn ropeway_listen(s: c_int, backlog: c_int) -> c_int {
        SOCKETS.get(s)?.listen(backlog)?;
        Ok(0)
    }

    fn ropeway_accept(s: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // Before a connection is taken that nobody could be told of.
        memory::check_address(from, len)?;
        let (socket, peer) = SOCKETS.get(s)?.accept(false)?;
        put_address(&address::write(&peer)?, from, len)?;
        SOCKETS.add(socket)
    }

    fn ropeway_connect(s: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        let socket = SOCKETS.get(s)?;
        socket.connect(&address::read(bytes(to.cast(), len as usize)?)?, None)?;
        Ok(0)
    }

    fn ropeway_connect_to(s: c_int, to: *const c_char) -> c_int {
        let socket = SOCKETS.get(s)?;
        each(memory::text(to)?, |to| socket.connect(to, None))?;
        Ok(0)
    }

    fn ropeway_cancel(s: c_int) -> isize {
        Ok(SOCKETS.get(s)?.connection()?.cancel()? as isize)
    }

    fn ropeway_shutdown(s: c_int, how: c_int) -> c_int {
        SOCKETS.get(s)?.connection()?.shutdown(how)?;
        Ok(0)
    }

    fn ropeway_drain(s: c_int, limit_ms: c_int) -> c_int {
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        SOCKETS.get(s)?.drain(limit)?;
        Ok(0)
    }

    fn ropeway_close(s: c_int) -> c_int {
        SOCKETS.remove(s)?.close();
        Ok(0)
    }

    fn ropeway_getsockname(s: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let local = SOCKETS.get(s)?.local()?;
        put_sized(&address::write(&local)?, name.cast(), len)?;
        Ok(0)
    }

    fn ropeway_getpeername(s: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let peer = SOCKETS.get(s)?.peer()?;
        put_sized(&address::write(&peer)?, name.cast(), len)?;
        Ok(0)
    }

    fn ropeway_getsockopt(s: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let found = options::get(&*SOCKETS.get(s)?, level, name)?;
        // The length is that of what was written, as the kernel says it.
        let room = memory::get(len, "the length")? as usize;
        put_sized(&found[..found.len().min(room)], value, len)?;
        Ok(0)
    }

    fn ropeway_setsockopt(s: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let socket = SOCKETS.get(s)?;
        options::set(&socket, level, name, bytes(value, len as usize)?)?;
        Ok(0)
    }

    fn ropeway_descriptor(s: c_int) -> c_int {
        // The socket keeps it as long as it lives.
        Ok(SOCKETS.get(s)?.watch()?.as_fd().as_raw_fd())
    }

    fn ropeway_dial(to: *const c_char, kind: c_int) -> c_int {
        let socket = Socket::new(kind)?;
        let begun = each(memory::text(to)?, |to| match socket.connect(to, None) {
            Err(failure) if failure.errno == libc::EINPROGRESS => Ok(()),
            other => other,
        });
        begun?;
        SOCKETS.add(socket)
    }

    fn ropeway_serve(at: *const c_char, kind: c_int, backlog: c_int) -> c_int {
        let socket = Socket::new(kind)?;
        each(memory::text(at)?, |at| socket.bind(at))?;
        socket.listen(backlog)?;
        SOCKETS.add(socket)
    }

    fn ropeway_resolve(text: *const c_char, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let addresses = addresses(memory::text(text)?)?;
        let first = addresses.first().ok_or_else(|| Failure::new(libc::ENOENT, "the name stands for no address"))?;
        put_sized(&address::write(first)?, to.cast(), len)?;
        Ok(0)
    }

    fn ropeway_format(from: *const sockaddr, len: socklen_t, text: *mut c_char, room: usize) -> c_int {
        let mut shown = address::read(bytes(from.cast(), len as usize)?)?.to_string().into_bytes();
        shown.push(0);
        let out = bytes_mut(text.cast(), room)?;
        let Some(out) = out.get_mut(..shown.len()) else {
            return Err(Failure::new(libc::ENOSPC, format!("the text needs {} bytes", shown.len())));
        };
        out.copy_from_slice(&shown);
        Ok(0)
    }
}

exports! {
    in call;

    fn ropeway_send(s: c_int, from: *const c_void, len: usize, flags: c_int) -> isize {
        SOCKETS.with(s, |socket| Ok(socket.send(bytes(from, len)?, flags)? as isize))
    }

    fn ropeway_send_within(s: c_int, from: *const c_void, len: usize, flags: c_int, life_us: c_uint) -> isize {
        let life = Duration::from_micros(life_us.into());
        SOCKETS.with(s, |socket| Ok(socket.send_within(bytes(from, len)?, flags, life)? as isize))
    }

    fn ropeway_recv(s: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize {
        SOCKETS.with(s, |socket| Ok(socket.recv(bytes_mut(to, len)?, flags)?.unwrap_or(0) as isize))
    }

    fn ropeway_sendv(s: c_int, from: *const iovec, count: c_int, flags: c_int) -> isize {
        SOCKETS.with(s, |socket| Ok(socket.send_parts(&memory::parts(from, count)?, flags)? as isize))
    }

    fn ropeway_recvv(s: c_int, to: *const iovec, count: c_int, flags: c_int) -> isize {
        SOCKETS.with(s, |socket| Ok(socket.recv_parts(&mut memory::parts_mut(to, count)?, flags)?.unwrap_or(0) as isize))
    }
}

/// What the calling thread's last call that failed had to say. It stays until its next one that fails.
#[unsafe(no_mangle)]
pub extern "C" fn ropeway_error() -> *const c_char {
    said()
}

/// What a text stands for. That a name is not known has no number of its own.
fn addresses(text: &str) -> Outcome<Vec<Address>> {
    text.to_addresses().map_err(Failure::from).map_err(|failure| match failure.errno {
        libc::EIO => Failure::new(libc::ENOENT, failure.text),
        _ => failure,
    })
}

/// The first success, or the last failure. One that goes on by itself is the last.
fn each(text: &str, mut act: impl FnMut(&Address) -> Outcome<()>) -> Outcome<()> {
    let mut result = Err(Failure::new(libc::ENOENT, "the name stands for no address"));
    for address in addresses(text)? {
        result = act(&address);
        if !matches!(&result, Err(failure) if failure.errno != libc::EINPROGRESS) {
            break;
        }
    }
    result
}
