//! Files that decide about security: opened without waiting, and believed only if nobody else could have put there what they say.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const PERMISSIONS: u32 = 0o7777;
const ROOT: u32 = 0;

/// Why a file is not believed.
#[derive(Debug)]
pub enum Distrust {
    /// It cannot be looked at.
    Metadata(io::Error),
    NotAFile,
    /// Others than its owner may do with it what they must not.
    Permissions {
        mode: u32,
    },
    Owner {
        owner: u32,
        user: u32,
    },
}

/// Opens a file to read it. A pipe in its place must be an error, not a program that hangs.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

/// Whether it is a regular file of this user or of root, with none of the permissions `refused`. Asks the open file, not its name: what was looked at is what
/// is read.
pub fn check(file: &File, refused: u32) -> Result<(), Distrust> {
    let about = file.metadata().map_err(Distrust::Metadata)?;
    if !about.is_file() {
        return Err(Distrust::NotAFile);
    }
    if about.mode() & refused != 0 {
        return Err(Distrust::Permissions { mode: about.mode() & PERMISSIONS });
    }
    let user = rustix::process::geteuid().as_raw();
    if about.uid() != user && about.uid() != ROOT {
        return Err(Distrust::Owner { owner: about.uid(), user });
    }
    Ok(())
}
