//! What a receiver has on its disk: the part of a file, who may write it, its mode, and how it gets its name.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::CpError;
use super::connect::Connection;
use super::frame::{End, Offer};
use super::receive::Options;
use crate::output::{printable, tell};

/// Behind the name of a file that is not whole yet.
const PART: &str = ".ropeway-part";
/// Its mode, whatever the file's own will be.
const PART_MODE: u32 = 0o600;
const ASK_EVERY: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// The longest name of a file that Linux takes, less what we put behind it.
const MOST_NAME_BYTES: usize = 255 - PART.len();
/// So much is hashed between two looks at whether the sender is there: a fraction of a second, but for slow disks.
const HASHED_AT_ONCE: u64 = 64 << 20;
/// Of one that is longer.
const SHOWN_CHARACTERS: usize = 40;

/// The part of a file, or an empty one.
pub struct Part {
    pub file: Locked,
    /// So many bytes.
    pub there: u64,
    /// Others may have it open still: its mode let them, or it is theirs.
    pub is_exposed: bool,
}

/// A name that leads nowhere but into the directory.
pub fn plain_name(name: &str) -> Result<&str, CpError> {
    if name.len() > MOST_NAME_BYTES {
        let begin = printable(&name.chars().take(SHOWN_CHARACTERS).collect::<String>());
        let what = format!("{begin}... is longer than the {MOST_NAME_BYTES} bytes that a name may have; rename it");
        return Err(CpError::Declined(what));
    }
    let is_plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if !is_plain {
        return Err(CpError::Declined(format!("{} is no plain name of a file", printable(name))));
    }
    // It may be the part of another file.
    if name.ends_with(PART) {
        return Err(CpError::Declined(format!(
            "{} is called as files are that are not whole; rename it",
            printable(name)
        )));
    }
    Ok(name)
}

pub fn part_of(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(PART);
    target.with_file_name(name)
}

/// Opens what is there of a file, and closes it to others. More than the sender has is of another file. `None`: another sender had it, and when it was free its
/// name had gone.
pub fn open_part(part: &Path, offer: &Offer, options: &Options, ask: impl Fn()) -> io::Result<Option<Part>> {
    // One that lacked nothing but its name has the file's own mode, which may keep us from writing.
    let (file, _) = open_as_owner(part_options().create(true).truncate(false), part)?;
    let file = lock(file, options, ask)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file; remove it, and send again"));
    }
    if !has_name(&file, part) {
        return Ok(None);
    }
    // Or the mode of a file that was sent before, which may be less private than this one.
    let was_open = meta.mode() & 0o077 != 0;
    // What another user has put there is not gone on with, and would be that user's when it has its name.
    let is_ours = is_of_this_process(&meta, &options.directory)?;
    if was_open {
        match file.set_permissions(Permissions::from_mode(PART_MODE)) {
            // What it means for the file is said when it gets its own mode.
            Err(error) if is_without_permissions(&error) => {}
            set => set?,
        }
    }
    let mut there = if is_ours { meta.len() } else { 0 };
    if offer.size.is_some_and(|size| there > size) {
        file.set_len(0)?;
        there = 0;
    }
    Ok(Some(Part { file, there, is_exposed: was_open || !is_ours }))
}

fn part_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(PART_MODE).custom_flags(nofollow());
    options
}

fn is_of_this_process(meta: &Metadata, directory: &Path) -> io::Result<bool> {
    if meta.uid() == rustix::process::geteuid().as_raw() {
        return Ok(true);
    }
    let failed = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("it is another user's, unless all files there are, and none can be made: {error}"),
        )
    };
    Ok(meta.uid() == owner_of_new(directory).map_err(failed)?)
}

/// Whose a file is that this process makes there. Where a file system has one owner for all (vfat), or takes root for nobody (NFS), that is not the user of this process.
fn owner_of_new(directory: &Path) -> io::Result<u32> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = part_of(&directory.join(format!(".owner-{}-{number}", std::process::id())));
        let made = match part_options().create_new(true).open(&path) {
            // Left by a process that had our number, on another host or before; there are only so many.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?.metadata(),
        };
        std::fs::remove_file(&path)?;
        return Ok(made?.uid());
    }
}

/// Empties a part, or takes another file for it where somebody may have this one open who may not read what comes.
pub fn begin_anew(mut file: Locked, part: &Path, is_exposed: bool, options: &Options) -> io::Result<Locked> {
    if is_exposed {
        if !has_name(&file, part) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let failed = |error: io::Error| {
            let what = format!("others may have it open, and it cannot be removed: {error}");
            io::Error::new(error.kind(), what)
        };
        std::fs::remove_file(part).map_err(failed)?;
        let new = part_options().create_new(true).open(part)?;
        let apart = try_lock(&new, options)?;
        file = Locked { _apart: apart, file: new };
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Opens a file, also one of ours whose mode forbids us that: then we may read and write it from now on, and these are its permissions before.
fn open_as_owner(options: &OpenOptions, path: &Path) -> io::Result<(File, Option<Permissions>)> {
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let before = open_up(path).map_err(|_| error)?;
            let file = options.open(path)?;
            // Another one may have its name by now.
            let is_same = is_same_file(&file.metadata()?, &before);
            Ok((file, is_same.then(|| before.permissions())))
        }
        opened => Ok((opened?, None)),
    }
}

/// The file as it was before.
fn open_up(path: &Path) -> io::Result<Metadata> {
    // No more than found, which no mode forbids: what is not ours, or no file, is left as it is.
    let flags = rustix::fs::OFlags::PATH.bits() as i32 | nofollow();
    let found = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = found.metadata()?;
    if !meta.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mode = Permissions::from_mode(opened_up(meta.mode()));
    std::fs::set_permissions(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)?;
    Ok(meta)
}

/// What becomes of a mode by that.
fn opened_up(mode: u32) -> u32 {
    mode & 0o777 | 0o600
}

/// A file that nobody else writes to.
pub struct Locked {
    /// Until this is dropped.
    _apart: Option<Apart>,
    file: File,
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.file
    }
}

/// A file, by its device and number, that this process has to one sender alone where the file system has no locks.
struct Apart((u64, u64));

static APART: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

impl Apart {
    fn try_new(file: &File) -> Result<Apart, TryLockError> {
        let meta = file.metadata().map_err(TryLockError::Error)?;
        let which = (meta.dev(), meta.ino());
        let is_free = APART.lock().unwrap_or_else(PoisonError::into_inner).insert(which);
        if is_free { Ok(Apart(which)) } else { Err(TryLockError::WouldBlock) }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        APART.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Two senders of one name would write into one file. The other one may have died, or be this sender's lost connection, which is noticed when it is asked.
fn lock(file: File, options: &Options, ask: impl Fn()) -> io::Result<Locked> {
    let begin = Instant::now();
    let mut asked_at = None;
    loop {
        match try_lock(&file, options) {
            Ok(apart) => return Ok(Locked { _apart: apart, file }),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        if begin.elapsed() >= options.limits.lock {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another sender is writing this file"));
        }
        if asked_at.is_none_or(|at: Instant| at.elapsed() >= ASK_EVERY) {
            ask();
            asked_at = Some(Instant::now());
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

fn try_lock(file: &File, options: &Options) -> Result<Option<Apart>, TryLockError> {
    match file.try_lock() {
        // Lustre and NFS as some are mounted, and FUSE file systems.
        Err(TryLockError::Error(error)) if is_without_locks(&error) => {
            static SAID: Once = Once::new();
            let directory = options.directory.display();
            say_once(&SAID, options, || {
                format!("files cannot be locked in {directory}: {error}; only one receiver may write there")
            });
            Apart::try_new(file).map(Some)
        }
        locked => locked.map(|()| None),
    }
}

fn is_without_locks(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK))
}

fn say_once(said: &Once, options: &Options, what: impl FnOnce() -> String) {
    if !options.quiet {
        said.call_once(|| tell!("ropeway cp: {}", what()));
    }
}

/// A link under the name of a part would lead out of the directory.
fn nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}

/// Gives the part its name, once `sync` has its data on the disk.
pub fn keep(
    file: &File,
    part: &Path,
    target: &Path,
    mode: Option<u32>,
    options: &Options,
    sync: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    set_mode(file, mode, options)?;
    sync().map_err(|error| untaken(file, part, &error))?;
    // Another sender of it may have had it opened up meanwhile, to wait for it.
    set_mode(file, mode, options)?;
    if !has_name(file, part) {
        return Err(io::Error::other("its part was removed or replaced meanwhile; send it again"));
    }
    if options.force {
        std::fs::rename(part, target)?;
    } else {
        match rustix::fs::renameat_with(CWD, part, CWD, target, RenameFlags::NOREPLACE) {
            // Not every file system can leave what is there; it was looked for before.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => std::fs::rename(part, target)?,
            kept => kept?,
        }
    }
    sync_name(target)
}

fn set_mode(file: &File, mode: Option<u32>, options: &Options) -> io::Result<()> {
    match file.set_permissions(Permissions::from_mode(mode.unwrap_or(0o644) & 0o777)) {
        // vfat and some network file systems have none, and the data is worth more.
        Err(error) if is_without_permissions(&error) => {
            static SAID: Once = Once::new();
            let directory = options.directory.display();
            say_once(&SAID, options, || format!("permissions are not kept in {directory}: {error}"));
        }
        set => return set,
    }
    Ok(())
}

/// Drops what the disk did not take. The kernel may have it in memory still, as if it were written: the next copy would read that, find the hash right, and hear of no fault when it syncs.
fn untaken(file: &File, part: &Path, error: &io::Error) -> io::Error {
    let what = match remove(file, part).or_else(|_| file.set_len(0)) {
        Ok(()) => "nothing was kept, send it again".into(),
        Err(_) => {
            let part = printable(&part.display().to_string());
            format!("{part} is not what is on the disk, and cannot be removed; remove it before you send it again")
        }
    };
    io::Error::new(error.kind(), format!("{error}; {what}"))
}

/// Removes a part, and no other file that has its name by now.
pub fn remove(file: &File, part: &Path) -> io::Result<()> {
    if has_name(file, part) { std::fs::remove_file(part) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn is_without_permissions(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// A crash does not take the name back after this, as far as the file system can promise that and the directory may be read.
pub fn sync_name(target: &Path) -> io::Result<()> {
    let directory = match File::open(target.parent().unwrap_or(Path::new("."))) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        opened => opened?,
    };
    sync(&directory)
}

fn sync(file: &File) -> io::Result<()> {
    match rustix::fs::fsync(file) {
        // Some file systems cannot for directories, and one that is read-only has nothing to write.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        // Nor some, over SMB, for a file that is open for reading alone.
        Err(Errno::ACCESS | Errno::BADF) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Is it the file that ended so? Then it is on the disk, and has the mode that it was offered with, unless somebody gave it another one.
pub fn is_whole(
    target: &Path,
    end: &End,
    mode: Option<u32>,
    options: &Options,
    connection: &Connection,
) -> Result<bool, CpError> {
    match std::fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == end.size => {
            has_ended_so(target, &found, end, mode, options, connection)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(CpError::file(target.display().to_string())(error)),
    }
}

/// The same of a file that was found, and of no other one that has its name by now.
pub fn has_ended_so(
    target: &Path,
    found: &Metadata,
    end: &End,
    mode: Option<u32>,
    options: &Options,
    connection: &Connection,
) -> Result<bool, CpError> {
    let failed = |error| CpError::file(target.display().to_string())(error);
    let (mut file, before) = match open_as_owner(OpenOptions::new().read(true).custom_flags(nofollow()), target) {
        // A link, or gone by now, or not ours to read.
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::LOOP | Errno::NOENT | Errno::ACCESS | Errno::PERM)
            ) =>
        {
            return Ok(false);
        }
        opened => opened.map_err(failed)?,
    };
    // What has been opened up is open now, and as it was sent again.
    if let Some(before) = before {
        file.set_permissions(before).map_err(failed)?;
    }
    if !is_same_file(&file.metadata().map_err(failed)?, found) {
        return Ok(false);
    }
    let mut hasher = blake3::Hasher::new();
    hash(&mut file, target, u64::MAX, &mut hasher, Some(connection))?;
    let is_whole = hasher.finalize().to_hex().as_str() == end.hash;
    // Who waited for it while it was a part may have opened it up. To know what a file holds gives nobody more of a say in its mode.
    let now = file.metadata().map_err(failed)?.mode() & 0o777;
    if is_whole && mode.is_some_and(|mode| now == opened_up(mode) && now != mode & 0o777) {
        set_mode(&file, mode, options).map_err(failed)?;
    }
    if is_whole {
        // Whoever wrote it may not have waited for that.
        sync(&file).map_err(failed)?;
    }
    Ok(is_whole)
}

/// Hashes what is there, up to `most` bytes, and says how many these are; where it is for `somebody`, as long as that one is there: who comes again for a lost connection waits for the lock.
pub fn hash(
    file: &mut File,
    path: &Path,
    most: u64,
    hasher: &mut blake3::Hasher,
    somebody: Option<&Connection>,
) -> Result<u64, CpError> {
    let mut hashed = 0;
    loop {
        if somebody.is_some_and(|connection| !connection.is_there()) {
            return Err(CpError::ended());
        }
        let piece = HASHED_AT_ONCE.min(most - hashed);
        let read = io::copy(&mut file.take(piece), hasher).map_err(CpError::file(path.display().to_string()))?;
        hashed += read;
        if read < HASHED_AT_ONCE {
            return Ok(hashed);
        }
    }
}

/// Whether this is still the file of that name: who removes it lets another sender begin another one.
fn has_name(file: &File, path: &Path) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(meta)) => is_same_file(&named, &meta),
        _ => false,
    }
}

fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
