//! What packet sockets have of their own: addresses and statistics.

use std::io;
use std::os::fd::BorrowedFd;

const PACKET_STATISTICS: i32 = 6;
/// `sockaddr_ll`.
pub const ADDRESS_BYTES: usize = 20;

/// The address of a device, for frames of one EtherType; its last eight bytes are for the address of a host there, and 0.
pub fn link_address(ethertype: u16, device: u32) -> [u8; ADDRESS_BYTES] {
    let mut address = [0; ADDRESS_BYTES];
    address[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&ethertype.to_be_bytes());
    address[4..8].copy_from_slice(&device.to_ne_bytes());
    address[11] = 6;
    address
}

/// Frames that arrived at the socket since it was last asked, those dropped included, and how many the kernel dropped.
pub fn statistics(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let mut statistics = [0; 8];
    super::get_option(fd, libc::SOL_PACKET, PACKET_STATISTICS, &mut statistics)?;
    let both = u64::from_ne_bytes(statistics);
    Ok((both & u64::from(u32::MAX), both >> 32))
}
