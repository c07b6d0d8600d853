//! Work done inside a network namespace without starting a program there: kernel parameters, `/sys`, `/proc`.
//!
//! A namespace belongs to a thread, so each piece of work gets one of its own, which ends with it; the rest of the process
//! never leaves its place.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::error::{Error, Result};
use super::names::Namespace;

/// Runs `work` inside the namespace.
pub fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let path = namespace.path();
    let entered = || -> io::Result<()> {
        let file = File::open(&path)?;
        Ok(move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))?)
    };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            entered().map_err(Error::system(format!("enter the namespace {}", path.display())))?;
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Sets kernel parameters of the namespace that the calling thread is in: (name below `/proc/sys/net`, value).
pub fn set_parameters(parameters: &[(&str, &str)]) -> Result<()> {
    for (name, value) in parameters {
        // Below /proc/sys the kernel shows each thread its own namespace.
        let path = format!("/proc/sys/net/{name}");
        std::fs::write(&path, value).map_err(Error::system(format!("write {value} to {path}")))?;
    }
    Ok(())
}

/// Has every frame that arrives at a device handled on one processor, in the namespace that the calling thread is in.
pub fn pin_receiving(devices: &[(String, Processor)]) -> Result<()> {
    let what = "set the processors of devices in a namespace's /sys";
    // /sys shows the namespace in which it was mounted: this one is mounted nowhere and seen by nobody else.
    let sys = || -> rustix::io::Result<_> {
        let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    let sys = sys().map_err(Error::system(what))?;
    for (device, processor) in devices {
        let path = format!("class/net/{device}/queues/rx-0/rps_cpus");
        let file = rustix::fs::openat(&sys, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let mut file = File::from(file.map_err(Error::system(what))?);
        file.write_all(processor.mask().as_bytes()).map_err(Error::system(what))?;
    }
    Ok(())
}

/// One processor of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor(pub usize);

impl Processor {
    /// All that are switched on.
    pub fn all() -> Result<Vec<Processor>> {
        const LIST: &str = "/sys/devices/system/cpu/online";
        let text = std::fs::read_to_string(LIST).map_err(Error::system(format!("read {LIST}")))?;
        let list = parse_list(text.trim());
        list.ok_or_else(|| Error::Unclear { command: LIST.into(), why: format!("`{}` is no list", text.trim()) })
    }

    /// As /sys wants it: words of 32 bits in hexadecimal, the highest first.
    fn mask(self) -> String {
        format!("{:x}{}", 1u32 << (self.0 % 32), ",00000000".repeat(self.0 / 32))
    }
}

/// Far more than any machine has; keeps a wrong list from becoming a long one.
const MAX_PROCESSORS: usize = 8192;

/// `0-3,8`
fn parse_list(text: &str) -> Option<Vec<Processor>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MAX_PROCESSORS).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().map(Processor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        let numbers = |text: &str| parse_list(text).map(|list| list.into_iter().map(|p| p.0).collect::<Vec<_>>());
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        for bad in ["", "a", "1-", "3-1", "0-99999999999"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
        assert!(!Processor::all().unwrap().is_empty());
    }

    #[test]
    fn masks_are_words_of_32_bits() {
        assert_eq!(Processor(0).mask(), "1");
        assert_eq!(Processor(31).mask(), "80000000");
        assert_eq!(Processor(33).mask(), "2,00000000");
    }
}
