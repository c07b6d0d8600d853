//! Finds the boards of other users by reading the directory, a little at a time: it may be long, and is read by who has packets to grant.

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::super::{LAYOUT, PREFIX};
use crate::sys;

/// So often it is looked at whether the directory has changed.
pub(super) const LOOK_NS: u64 = 10_000_000;
/// And so often it is read whether or not it has.
const SCAN_NS: u64 = 1_000_000_000;
/// What is read of it at a time: 18 boards, or 32 files with short names. About 10 us.
const BATCH_BYTES: usize = 1024;

/// Reads the directory again and again.
#[derive(Debug)]
pub(super) struct Finder {
    /// `None`: it may not be read, and nobody is found.
    directory: Option<File>,
    is_reading: bool,
    looked_at_ns: Option<u64>,
    read_at_ns: u64,
    /// When it was changed last.
    changed: (i64, i64),
    /// It had just been changed when it was read last: what else happened to it in the same tick of the clock does not show.
    again: bool,
}

/// Some entries of the directory, as the kernel gives them (`getdents64`).
pub(super) struct Batch {
    entries: [u8; BATCH_BYTES],
    bytes: usize,
}

impl Finder {
    pub(super) fn new(directory: &Path) -> Finder {
        let directory = File::open(directory).ok();
        Finder { directory, is_reading: false, looked_at_ns: None, read_at_ns: 0, changed: (0, 0), again: false }
    }

    /// Begins to read it, if that is due.
    pub(super) fn begins(&mut self, now_ns: u64) -> bool {
        let since_look = self.looked_at_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        if self.is_reading || since_look.is_some_and(|ns| ns < LOOK_NS) {
            return false;
        }
        self.looked_at_ns = Some(now_ns);
        let Some(meta) = self.directory.as_ref().and_then(|directory| directory.metadata().ok()) else { return false };
        let changed = (meta.mtime(), meta.mtime_nsec());
        let has_changed = std::mem::replace(&mut self.changed, changed) != changed;
        let had_just_changed = std::mem::replace(&mut self.again, has_changed);
        if !has_changed && !had_just_changed && now_ns.saturating_sub(self.read_at_ns) < SCAN_NS {
            return false;
        }
        (self.read_at_ns, self.is_reading) = (now_ns, true);
        if let Some(mut directory) = self.directory.as_ref() {
            let _ = directory.rewind();
        }
        true
    }

    /// Some more of it; `None`: it has been read.
    pub(super) fn next(&mut self) -> Option<Batch> {
        let directory = self.directory.as_ref().filter(|_| self.is_reading)?;
        let mut batch = Batch { entries: [0; BATCH_BYTES], bytes: 0 };
        // SAFETY: the kernel writes to a buffer of that length.
        let read = unsafe { sys::getdents64(directory.as_raw_fd(), batch.entries.as_mut_ptr(), BATCH_BYTES) };
        batch.bytes = read.unwrap_or(0);
        self.is_reading = batch.bytes > 0;
        self.is_reading.then_some(batch)
    }
}

impl Batch {
    /// The users whose boards in a network namespace are among them.
    pub(super) fn users(&self, namespace: u64) -> impl Iterator<Item = u32> {
        Names(&self.entries[..self.bytes]).filter_map(move |name| user_of(name, namespace))
    }
}

/// The names of entries: each has two words, its length in two bytes, a byte, and the name up to a zero byte.
struct Names<'a>(&'a [u8]);

impl<'a> Iterator for Names<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const LENGTH: usize = 16;
        const NAME: usize = 19;
        let length = u16::from_ne_bytes(self.0.get(LENGTH..LENGTH + 2)?.try_into().ok()?);
        let (entry, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        entry.get(NAME..)?.split(|&byte| byte == 0).next()
    }
}

/// Whose board in a network namespace bears that name. There is one way to write a number, so nobody has two boards.
fn user_of(name: &[u8], namespace: u64) -> Option<u32> {
    let rest = str::from_utf8(name.strip_prefix(PREFIX.as_bytes())?).ok()?;
    let (layout, rest) = rest.split_once('-')?;
    let (user, of) = rest.split_once('-')?;
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        text.parse::<u64>().ok().filter(|_| is_plain)
    };
    let is_here = number(layout) == Some(u64::from(LAYOUT)) && number(of) == Some(namespace);
    number(user).filter(|_| is_here)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_has_one_name() {
        let of = |name: &str| user_of(name.as_bytes(), 17);
        let board = |user: &str| format!("{PREFIX}{LAYOUT}-{user}-17");
        assert_eq!(of(&board("0")), Some(0));
        assert_eq!(of(&board("4294967295")), Some(u32::MAX));
        for user in ["", "00", "01", "+1", "-1", " 1", "1-1", "4294967296", "18446744073709551617", "locks-1"] {
            assert_eq!(of(&board(user)), None, "{user}");
        }
        for name in [format!("{PREFIX}2-1-17"), format!("{PREFIX}{LAYOUT}-1-18"), "other".into(), String::new()] {
            assert_eq!(of(&name), None, "{name}");
        }
    }

    #[test]
    fn the_directory_is_read_when_it_has_changed_and_else_each_second() {
        let directory = std::env::temp_dir().join(format!("ropeway-finder-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mut finder = Finder::new(&directory);
        let mut reads = |now_ns: u64| {
            let begins = finder.begins(now_ns);
            let mut users: Vec<u32> =
                std::iter::from_fn(|| finder.next()).flat_map(|batch| batch.users(17).collect::<Vec<_>>()).collect();
            users.sort_unstable();
            begins.then_some(users)
        };
        assert_eq!(reads(1), Some(vec![]));
        assert_eq!(reads(LOOK_NS), None, "it has just been looked at");
        assert_eq!(reads(1 + LOOK_NS), Some(vec![]), "it had just been made");
        assert_eq!(reads(1 + 2 * LOOK_NS), None);
        // Until the directory has another time, whatever the ticks of the file system's clock are.
        let time = || std::fs::metadata(&directory).unwrap().modified().unwrap();
        let before = time();
        let many: Vec<u32> = (0..100).collect();
        while time() == before {
            many.iter().for_each(|user| {
                let path = directory.join(format!("{PREFIX}{LAYOUT}-{user}-17"));
                let _ = std::fs::remove_file(&path);
                std::fs::write(path, "").unwrap();
            });
        }
        assert_eq!(reads(1 + 3 * LOOK_NS), Some(many.clone()));
        assert_eq!(reads(1 + 4 * LOOK_NS), Some(many.clone()), "and once more");
        assert_eq!(reads(1 + 5 * LOOK_NS), None);
        assert_eq!(reads(1 + 4 * LOOK_NS + SCAN_NS), Some(many));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
