//! Network devices of this network namespace.

use super::syscall;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A device's name in the form of the kernel's requests.
pub type Name = [u8; libc::IFNAMSIZ];

/// Asks for one thing about a device: the request's union afterwards.
fn request(fd: BorrowedFd<'_>, code: u64, name: &Name) -> io::Result<[u8; 24]> {
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name);
    // SAFETY: all requests used here read and write one `ifreq`, which has 40 bytes, and nothing behind it.
    unsafe {
        let at = request.as_mut_ptr() as usize;
        syscall(libc::SYS_ioctl, [fd.as_raw_fd() as usize, code as usize, at, 0, 0, 0])?;
    }
    Ok(request[16..].try_into().expect("24 bytes"))
}

fn first_int(union: [u8; 24]) -> i32 {
    i32::from_ne_bytes(union[..4].try_into().expect("4 bytes"))
}

/// The longest payload of its frames.
pub fn mtu(fd: BorrowedFd<'_>, name: &Name) -> io::Result<usize> {
    request(fd, libc::SIOCGIFMTU, name).map(|union| first_int(union).max(0) as usize)
}

/// One address of a device.
#[derive(Clone, Copy, Debug)]
pub struct Configured {
    pub device: Name,
    pub is_up: bool,
    pub is_loopback: bool,
    pub address: IpAddr,
}

/// All IP addresses of this namespace with their devices.
pub fn addresses() -> io::Result<Vec<Configured>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the C library fills a list that is ours until we free it.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: an entry of the list, whose pointers stay valid until it is freed.
        let (entry, address) = unsafe { (&*at, ip_address((*at).ifa_addr)) };
        if let Some(address) = address {
            let mut device = [0; libc::IFNAMSIZ];
            // SAFETY: a C string of at most 15 bytes, by the kernel's rule for names.
            let text = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_bytes();
            let len = text.len().min(device.len() - 1);
            device[..len].copy_from_slice(&text[..len]);
            let has = |flag: i32| entry.ifa_flags & flag as u32 != 0;
            found.push(Configured { device, is_up: has(libc::IFF_UP), is_loopback: has(libc::IFF_LOOPBACK), address });
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list from above, not used after this.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address in a `sockaddr`, if it is one of IP.
///
/// # Safety
/// The pointer is null or leads to a socket address of the length that its family has.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by the caller; reads are unaligned, so no alignment is asked of it.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                Some(Ipv6Addr::from(address.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}
