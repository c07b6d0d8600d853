//! Why a call failed, as C is told: a number, and a sentence for people.

use ropeway_socket::api::{Error, ErrorCode, details};
use std::ffi::c_int;
use std::io::{self, ErrorKind};

#[derive(Debug)]
pub struct Failure {
    pub errno: c_int,
    pub text: String,
    /// The process at the other end has left, and somebody else may be there by now.
    pub peer_went: bool,
}

impl Failure {
    pub fn new(errno: c_int, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into(), peer_went: false }
    }
}

pub type Outcome<T> = Result<T, Failure>;

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let peer_went = matches!(details(&error), Some(Error::Failed(ErrorCode::Closed)));
        Failure { errno: errno(&error), text: error.to_string(), peer_went }
    }
}

fn errno(error: &io::Error) -> c_int {
    if let Some(number) = error.raw_os_error() {
        return number;
    }
    match details(error) {
        Some(Error::TooShort { .. } | Error::TooLong { .. }) => return libc::EMSGSIZE,
        Some(Error::Forked) => return libc::EBADFD,
        Some(Error::PacketsTooLong { .. }) => return libc::EMSGSIZE,
        Some(Error::Unreachable(source)) => return source.raw_os_error().unwrap_or(libc::EHOSTUNREACH),
        _ => {}
    }
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::ConnectionReset => libc::ECONNRESET,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::NotConnected => libc::ENOTCONN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        ErrorKind::NetworkDown => libc::ENETDOWN,
        ErrorKind::PermissionDenied => libc::EPERM,
        ErrorKind::NotFound => libc::ENODEV,
        ErrorKind::ResourceBusy => libc::EBUSY,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::InvalidInput | ErrorKind::InvalidData => libc::EINVAL,
        // Some of the system's own have no kind, as that there is no descriptor left.
        _ => match details(error) {
            Some(Error::Link { source, .. }) => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_a_link_keeps_its_number() {
        let errno = |number| {
            let source = io::Error::from_raw_os_error(number);
            Failure::from(io::Error::from(Error::Link { doing: "making a pair of sockets", source })).errno
        };
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRINUSE] {
            assert_eq!(errno(number), number);
        }
    }
}
