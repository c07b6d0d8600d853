//! `getsockopt` and `setsockopt`: which options there are, and their form.

use crate::failure::{Failure, Outcome};
use crate::socket::Socket;
use std::ffi::c_int;
use std::time::Duration;

/// The level of options that only Ropeway has; the numbers are those of ropeway.h.
pub const SOL_ROPEWAY: c_int = 0x5257;
pub const NONBLOCK: c_int = 1;
pub const NODELAY: c_int = 2;
pub const MAX_MESSAGE: c_int = 3;
pub const NEXT_MESSAGE: c_int = 4;
pub const ENDED: c_int = 5;
pub const LOCAL_PORT: c_int = 6;
pub const PEER_PORT: c_int = 7;
pub const EXPIRED: c_int = 8;

fn unknown(level: c_int, name: c_int) -> Failure {
    Failure::new(libc::ENOPROTOOPT, format!("there is no option {name} of level {level} here"))
}

fn int(value: &[u8]) -> Outcome<c_int> {
    let bytes = value.first_chunk().ok_or_else(|| Failure::new(libc::EINVAL, "the option's value is an int"))?;
    Ok(c_int::from_ne_bytes(*bytes))
}

/// The bytes of a `struct timeval`; zero means without end.
fn timeval(limit: Option<Duration>) -> Vec<u8> {
    let limit = limit.unwrap_or_default();
    [limit.as_secs() as i64, i64::from(limit.subsec_micros())].iter().flat_map(|part| part.to_ne_bytes()).collect()
}

fn limit(value: &[u8]) -> Outcome<Option<Duration>> {
    const HALF: usize = size_of::<i64>();
    let part =
        |at: usize| value.get(at..at + HALF).map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap_or_default()));
    let (Some(seconds), Some(us)) = (part(0), part(HALF)) else {
        return Err(Failure::new(libc::EINVAL, "the option's value is a struct timeval"));
    };
    let seconds = u64::try_from(seconds).map_err(|_| Failure::new(libc::EDOM, "a time limit is not negative"))?;
    match u32::try_from(us) {
        Ok(us @ 0..1_000_000) => {
            let limit = Duration::new(seconds, us * 1000);
            Ok((!limit.is_zero()).then_some(limit))
        }
        _ => Err(Failure::new(libc::EDOM, "the microseconds of a time limit are less than a million")),
    }
}

/// The bytes of a `struct linger`.
fn lingers(linger: Option<Duration>) -> Vec<u8> {
    let seconds = linger.map_or(0, |linger| c_int::try_from(linger.as_secs()).unwrap_or(c_int::MAX));
    [c_int::from(linger.is_some()), seconds].iter().flat_map(|part| part.to_ne_bytes()).collect()
}

pub fn set(socket: &Socket, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
            let limit = limit(value)?;
            socket.set_options(|options| options.receive_limit = limit)
        }
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
            let limit = limit(value)?;
            socket.set_options(|options| options.send_limit = limit)
        }
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let (on, seconds) = (int(value)?, int(value.get(size_of::<c_int>()..).unwrap_or_default())?);
            // Less than none is very long, as the kernel has it: 0 would be a reset.
            let linger = (on != 0).then(|| Duration::from_secs(u64::from(seconds.cast_unsigned())));
            socket.set_options(|options| options.linger = linger)
        }
        // An address is free when its last user is gone, with or without it.
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => int(value).map(drop),
        // Peers are asked whether they are still there with or without it.
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => match int(value)? {
            0 => {
                let what = "SO_KEEPALIVE cannot be switched off: idle peers are always asked whether they are there, as often as \
                            ROPEWAY_TUNE=keep_alive=SECONDS says";
                Err(Failure::new(libc::EOPNOTSUPP, what))
            }
            _ => Ok(()),
        },
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) | (SOL_ROPEWAY, NODELAY) => {
            let on = int(value)? != 0;
            socket.set_options(|options| options.no_delay = on)
        }
        (SOL_ROPEWAY, NONBLOCK) => socket.set_nonblocking(int(value)? != 0),
        _ => Err(unknown(level, name)),
    }
}

pub fn get(socket: &Socket, level: c_int, name: c_int) -> Outcome<Vec<u8>> {
    let options = socket.options();
    let int = |value: c_int| Ok(value.to_ne_bytes().to_vec());
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Ok(timeval(options.receive_limit)),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Ok(timeval(options.send_limit)),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Ok(lingers(options.linger)),
        (libc::SOL_SOCKET, libc::SO_ERROR) => int(socket.error()?),
        (libc::SOL_SOCKET, libc::SO_TYPE) => int(socket.kind.number()),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => int(c_int::from(socket.is_listening())),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_KEEPALIVE) => int(1),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) | (SOL_ROPEWAY, NODELAY) => int(c_int::from(options.no_delay)),
        (SOL_ROPEWAY, NONBLOCK) => int(c_int::from(socket.is_nonblocking())),
        (SOL_ROPEWAY, MAX_MESSAGE) => Ok(socket.connection()?.max_message()?.to_ne_bytes().to_vec()),
        (SOL_ROPEWAY, NEXT_MESSAGE) => match socket.connection()?.next_message()? {
            Some(bytes) => Ok((bytes as u64).to_ne_bytes().to_vec()),
            None => Err(Failure::new(libc::ENODATA, "the peer has closed: no message follows")),
        },
        (SOL_ROPEWAY, ENDED) => int(c_int::from(socket.connection()?.is_ended()?)),
        (SOL_ROPEWAY, EXPIRED) => Ok(socket.connection()?.expired()?.to_ne_bytes().to_vec()),
        (SOL_ROPEWAY, LOCAL_PORT) => int(c_int::from(socket.connection()?.ports().0)),
        (SOL_ROPEWAY, PEER_PORT) => int(c_int::from(socket.connection()?.ports().1)),
        _ => Err(unknown(level, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linger_time_below_zero_is_a_long_one_and_no_reset() {
        let socket = Socket::new(libc::SOCK_STREAM).unwrap();
        for (seconds, expected) in [(0, 0), (5, 5), (-1, u64::from(u32::MAX))] {
            let value = [1, seconds].map(c_int::to_ne_bytes).concat();
            set(&socket, libc::SOL_SOCKET, libc::SO_LINGER, &value).unwrap();
            assert_eq!(socket.options().linger, Some(Duration::from_secs(expected)));
        }
    }
}
