//! Network devices of this network namespace.

use super::syscall;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A device's name in the form of the kernel's requests.
pub type Name = [u8; libc::IFNAMSIZ];

/// # Errors
/// The name is empty or too long, or holds a zero.
pub fn name(text: &str) -> io::Result<Name> {
    let mut name = [0; libc::IFNAMSIZ];
    // One byte at least is the closing zero.
    if text.is_empty() || text.len() >= name.len() || text.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{text:?} is no name of a network device")));
    }
    name[..text.len()].copy_from_slice(text.as_bytes());
    Ok(name)
}

/// Asks for one thing about a device: the request's union afterwards.
fn request(fd: BorrowedFd<'_>, code: u64, name: &Name) -> io::Result<[u8; 24]> {
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name);
    exchange(fd, code, &mut request)?;
    Ok(request[16..].try_into().expect("24 bytes"))
}

/// Makes a request that reads and writes one `ifreq`.
fn exchange(fd: BorrowedFd<'_>, code: u64, request: &mut [u8; 40]) -> io::Result<()> {
    // SAFETY: all requests used here read and write one `ifreq`, which has 40 bytes, and nothing behind it.
    unsafe {
        let at = request.as_mut_ptr() as usize;
        syscall(libc::SYS_ioctl, [fd.as_raw_fd() as usize, code as usize, at, 0, 0, 0]).map(drop)
    }
}

fn first_int(union: [u8; 24]) -> i32 {
    i32::from_ne_bytes(union[..4].try_into().expect("4 bytes"))
}

/// The longest payload of its frames.
pub fn mtu(fd: BorrowedFd<'_>, name: &Name) -> io::Result<usize> {
    request(fd, libc::SIOCGIFMTU, name).map(|union| first_int(union).max(0) as usize)
}

pub fn index(fd: BorrowedFd<'_>, name: &Name) -> io::Result<u32> {
    request(fd, libc::SIOCGIFINDEX, name).map(|union| first_int(union) as u32)
}

/// The name that the device of this index has now.
pub fn name_of(fd: BorrowedFd<'_>, index: u32) -> io::Result<Name> {
    let mut request = [0u8; 40];
    request[16..20].copy_from_slice(&index.to_ne_bytes());
    exchange(fd, libc::SIOCGIFNAME, &mut request)?;
    Ok(request[..16].try_into().expect("16 bytes"))
}

/// `IFF_UP`, `IFF_RUNNING` and others.
pub fn flags(fd: BorrowedFd<'_>, name: &Name) -> io::Result<i32> {
    request(fd, libc::SIOCGIFFLAGS, name).map(|union| i32::from(u16::from_ne_bytes([union[0], union[1]])))
}

/// Kind of hardware (`ARPHRD_ETHER` and so on) and address.
pub fn hardware_address(fd: BorrowedFd<'_>, name: &Name) -> io::Result<(u16, [u8; 6])> {
    let union = request(fd, libc::SIOCGIFHWADDR, name)?;
    Ok((u16::from_ne_bytes([union[0], union[1]]), union[2..8].try_into().expect("6 bytes")))
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
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn loopback_is_there_with_its_mtu() {
        let found = addresses().expect("listed");
        let loopback = found.iter().find(|entry| entry.address == IpAddr::from([127, 0, 0, 1])).expect("127.0.0.1");
        assert!(loopback.is_loopback);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert_eq!(loopback.device, name("lo").expect("a name"));
        assert!(mtu(socket.as_fd(), &loopback.device).expect("an MTU") >= 1500);
        assert_eq!(index(socket.as_fd(), &loopback.device).expect("an index"), 1);
        assert_eq!(name_of(socket.as_fd(), 1).expect("a name"), loopback.device);
        assert_ne!(flags(socket.as_fd(), &loopback.device).expect("flags") & libc::IFF_UP, 0);
        assert_eq!(hardware_address(socket.as_fd(), &loopback.device).expect("one").1, [0; 6]);
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        assert!(["", "a\0b", "a-name-that-is-far-too-long"].iter().all(|text| name(text).is_err()));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(mtu(socket.as_fd(), &name("no-such-dev").expect("a name")).is_err());
        let error = name_of(socket.as_fd(), i32::MAX as u32).expect_err("no such device");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
