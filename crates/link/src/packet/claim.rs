//! Numbers of which each is one process's, and that only those can have who may have a packet socket.
//!
//! Names, which anybody may take, would let any user keep all others from a device. A fan-out group takes the capability that the links take: who has a number is the one member
//! of the group with that number. Groups go with their process, and each network namespace has its own, whatever the device.

use super::constant;
use crate::sys::{self, packet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Reserved by IEEE for ever (RFC 1701): no frame has it, so that nothing arrives.
const ETHERTYPE_OF_NOTHING: u16 = 0xffff;

/// Any device: a claim is the same wherever it is made, and on devices that are down.
const ANY_DEVICE: u32 = 0;

/// Groups are numbered in 16 bits. Ours are the last of them, above the usual ones, which count from 0 or are process numbers.
const FIRST_GROUP: u16 = 0xf000;

/// The first of `numbers`, below 4096, that nobody has in this network namespace, and the socket by which it is this process's as long as it is open.
///
/// # Errors
/// `CAP_NET_RAW` is missing, or there is no descriptor or memory left.
pub fn claim(numbers: impl IntoIterator<Item = u16>) -> io::Result<Option<(u16, OwnedFd)>> {
    let socket = super::open_socket()?;
    let fd = socket.as_fd();
    // As little as the kernel lets wait, for frames that there are all the same.
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
    sys::bind(fd, &packet::link_address(ETHERTYPE_OF_NOTHING, ANY_DEVICE))?;
    for number in numbers {
        let group = FIRST_GROUP.checked_add(number).ok_or(io::ErrorKind::InvalidInput)?;
        match sys::set_option(fd, libc::SOL_PACKET, constant::PACKET_FANOUT, &group_of_one(group)) {
            Ok(()) => return Ok(Some((number, socket))),
            // It has its member, or is a group of another kind: somebody else's.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EINVAL)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// `struct fanout_args` (Linux 5.11): the group, its mode and flags, and its most members.
fn group_of_one(group: u16) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&group.to_ne_bytes());
    bytes[4..].copy_from_slice(&1u32.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_testkit::need_root;

    #[test]
    fn each_number_is_one_sockets_as_long_as_that_is_open() {
        need_root!();
        let claim = |numbers: std::ops::Range<u16>| claim(numbers).unwrap();
        // Others on this machine may have some.
        let (one, first) = claim(100..4000).unwrap();
        let (other, second) = claim(100..4000).unwrap();
        assert!(one < other);
        assert!(claim(one..one + 1).is_none() && claim(other..other + 1).is_none());
        drop(first);
        assert_eq!(claim(one..other + 1).unwrap().0, one);
        drop(second);
        assert!(super::claim([u16::MAX - FIRST_GROUP + 1]).is_err());
    }
}
