//! The device under a link, which others rename, change and take away while the link has it.

use crate::sys::{self, device};
use std::io;
use std::os::fd::BorrowedFd;

/// What a device is at the moment. Nothing stands where the kernel did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub mtu: Option<usize>,
    pub own: Option<[u8; 6]>,
    pub is_up: bool,
}

/// Asking takes several calls into the kernel: who sleeps between two short messages must not do it for each. Who is woken because something happened to the device looks in vain for
/// no longer.
const ASK_EVERY_NS: u64 = 10_000_000;

/// A device that is known by its index: its name may become another's.
#[derive(Debug)]
pub(crate) struct Device {
    index: u32,
    name: device::Name,
    asked_at_ns: u64,
}

impl Device {
    /// # Errors
    /// There is no device of this name.
    pub fn find(fd: BorrowedFd<'_>, text: &str) -> io::Result<Device> {
        let name = device::name(text)?;
        let index = device::index(fd, &name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => io::Error::new(io::ErrorKind::NotFound, format!("there is no network device {text}")),
            _ => error,
        })?;
        Ok(Device { index, name, asked_at_ns: 0 })
    }

    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn name(&self) -> &device::Name {
        &self.name
    }

    /// Whether it is time to ask again, for who looks and finds nothing. The time, if so.
    pub fn is_due(&mut self) -> Option<u64> {
        let now_ns = sys::coarse_time_ns();
        let is_due = now_ns - self.asked_at_ns >= ASK_EVERY_NS;
        if is_due {
            self.asked_at_ns = now_ns;
        }
        is_due.then_some(now_ns)
    }

    /// Asks what it is now.
    ///
    /// # Errors
    /// It is gone from this network namespace.
    pub fn ask(&mut self, fd: BorrowedFd<'_>) -> io::Result<State> {
        match device::name_of(fd, self.index) {
            Ok(name) => self.name = name,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Err(error),
            Err(_) => return Ok(State::default()),
        }
        // It may be renamed right now: then the next time tells.
        Ok(State {
            mtu: device::mtu(fd, &self.name).ok(),
            own: device::hardware_address(fd, &self.name).ok().map(|(_, own)| own),
            is_up: device::flags(fd, &self.name).is_ok_and(|flags| flags & libc::IFF_UP != 0),
        })
    }

    /// Whether frames that the device does not take now are lost: it is down, or has no carrier. The kernel says so up to a second after a cable is pulled out.
    pub fn is_cut(&self, fd: BorrowedFd<'_>) -> bool {
        let name = device::name_of(fd, self.index).unwrap_or(self.name);
        device::flags(fd, &name).is_ok_and(|flags| flags & libc::IFF_RUNNING == 0)
    }
}
