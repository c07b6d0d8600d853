//! Locks between the processes that work on boxes: files in /run that root alone can open. What anybody can open, anybody can lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The lock of that name.
pub fn path(name: &str) -> PathBuf {
    Path::new("/run").join(name).with_added_extension("lock")
}

/// Waits until nobody else has the lock. It lasts as long as the file is open, in this process or in a program that inherited it.
pub fn take(path: &Path) -> io::Result<File> {
    loop {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(path)?;
        file.lock()?;
        // Who had it may have removed it.
        if leads_to(path, &file)? {
            return Ok(file);
        }
    }
}

/// Whether `path` leads to what is open.
pub fn leads_to(path: &Path, open: &File) -> io::Result<bool> {
    let open = open.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a lock that the caller has.
pub fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn a_lock_excludes_others_until_it_ends_also_when_it_is_removed_meanwhile() {
        let path = std::env::temp_dir().join(format!("ropeway-lock-{}", std::process::id()));
        let held = take(&path).unwrap();
        assert_eq!(held.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| take(&path).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            remove(&path);
            drop(held);
            // Not what was removed.
            let held = waiting.join().unwrap();
            assert!(leads_to(&path, &held).unwrap());
        });
        remove(&path);
    }

    #[test]
    fn a_link_is_no_lock() {
        let path = std::env::temp_dir().join(format!("ropeway-lock-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(take(&path).is_err());
        remove(&path);
    }
}
