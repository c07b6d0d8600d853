//! The receiving end: writes below one directory, each file first under a name of its own, and under the real one when it is whole.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ropeway_socket::api::Address;

use super::CpError;
use super::connect::{self, Connection};
use super::frame::{End, Frame, Have, MOST_MESSAGE_BYTES, Offer, WRITTEN_EVERY, Written, printable};
use super::progress::Progress;

#[derive(Clone, Debug)]
pub struct Options {
    pub directory: PathBuf,
    pub once: bool,
    pub force: bool,
    pub quiet: bool,
}

/// Behind the name of a file that is not whole yet.
const PART: &str = ".ropeway-part";
/// Longer than a lost connection is taken for a living one.
const LOCK_PATIENCE: Duration = Duration::from_secs(12);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// The longest name of a file that Linux takes, less what we put behind it.
const MOST_NAME_BYTES: usize = 255 - PART.len();

/// Receives until it is killed, or from one sender. Gateways know this end by the number that was told them, or that the cluster's description has.
pub fn run(at: &Address, told: Option<u32>, options: &Options) -> Result<(), CpError> {
    let meta = std::fs::metadata(&options.directory).map_err(CpError::file(options.directory.display().to_string()))?;
    if !meta.is_dir() {
        return Err(CpError::Usage(format!("{} is not a directory", options.directory.display())));
    }
    let failed = |source| CpError::Bind { address: at.to_string(), source };
    let listener = connect::listen(at, told)?;
    if !options.quiet {
        let at = listener.local_addr().map_err(failed)?;
        eprintln!("ropeway cp: receiving into {} at {at}", options.directory.display());
    }
    loop {
        let connection = Connection::over(listener.accept().map_err(failed)?.0);
        if options.once {
            return serve(connection, options);
        }
        let options = options.clone();
        std::thread::spawn(move || {
            if let Err(error) = serve(connection, &options) {
                eprintln!("ropeway cp: {error}");
            }
        });
    }
}

/// Takes files until the sender has no more.
fn serve(connection: Connection, options: &Options) -> Result<(), CpError> {
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let result = loop {
        match take_file(&connection, &mut buffer, options) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => {
                if let CpError::File { .. } | CpError::Refused(_) | CpError::Damaged { .. } = &error {
                    let why =
                        if matches!(error, CpError::Damaged { .. }) { "damaged".into() } else { error.to_string() };
                    let _ = connection.send(&Frame::Refused(why).to_message());
                }
                break Err(error);
            }
        }
    };
    let _ = connection.finish();
    result
}

/// Takes one file. `false`: there is none any more.
fn take_file(connection: &Connection, buffer: &mut [u8], options: &Options) -> Result<bool, CpError> {
    let Some(message) = connection.recv(buffer)? else { return Ok(false) };
    let Frame::Offer(offer) = Frame::parse(message)? else {
        return Err(CpError::Nonsense("something other than an offer"));
    };
    let target = options.directory.join(plain_name(&offer.name)?);
    let part = part_of(&target);
    let mut hasher = blake3::Hasher::new();
    let (mut file, there) = loop {
        if let Some(end) = &offer.end
            && is_whole(&target, end).map_err(CpError::file(target.display().to_string()))?
        {
            connection.send(&Frame::Done.to_message())?;
            return Ok(true);
        }
        if target.exists() && !options.force {
            return Err(CpError::Refused(format!(
                "{} exists there; receive with --force to replace files",
                printable(&offer.name)
            )));
        }
        // Who had the part before may have given it its name meanwhile.
        let opened = open_part(&part, &offer, &mut hasher).map_err(CpError::file(part.display().to_string()))?;
        if let Some(opened) = opened {
            break opened;
        }
    };
    let hash = hasher.finalize().to_hex().to_string();
    let have = Have { bytes: there, hash, written: offer.written };
    connection.send(&Frame::Have(have).to_message())?;
    let Some(message) = connection.recv(buffer)? else { return Err(CpError::ended()) };
    let Frame::From(from) = Frame::parse(message)? else { return Err(CpError::Nonsense("no offset after an offer")) };
    let offset = if from.offset == there { there } else { 0 };
    if from.offset != offset {
        return Err(CpError::Nonsense("an offset that was not offered"));
    }
    if offset == 0 {
        hasher.reset();
        file.set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .map_err(CpError::file(part.display().to_string()))?;
    }
    let progress = Progress::new(&printable(&offer.name), offer.size, offset, options.quiet);
    let mut taker = Taker { file: &mut file, part: &part, hasher: &mut hasher, size: offset, says: offer.written };
    let end = taker.take(connection, buffer, &progress)?;
    let size = taker.size;
    if end.size != size || end.hash != hasher.finalize().to_hex().as_str() {
        let _ = std::fs::remove_file(&part);
        return Err(CpError::Damaged { name: printable(&offer.name) });
    }
    keep(&file, &part, &target, offer.mode).map_err(CpError::file(target.display().to_string()))?;
    connection.send(&Frame::Done.to_message())?;
    progress.finish(size);
    Ok(true)
}

/// Writes the data of one file.
struct Taker<'a> {
    file: &'a mut File,
    part: &'a Path,
    hasher: &'a mut blake3::Hasher,
    size: u64,
    /// How much is written.
    says: bool,
}

impl Taker<'_> {
    /// Takes data until its end is said.
    fn take(&mut self, connection: &Connection, buffer: &mut [u8], progress: &Progress) -> Result<End, CpError> {
        let mut said = self.size;
        loop {
            let Some(message) = connection.recv(buffer)? else { return Err(CpError::ended()) };
            match Frame::parse(message)? {
                Frame::Data(bytes) => {
                    self.file.write_all(bytes).map_err(CpError::file(self.part.display().to_string()))?;
                    self.hasher.update(bytes);
                    self.size += bytes.len() as u64;
                    progress.advance(bytes.len() as u64);
                }
                Frame::End(end) => return Ok(end),
                _ => return Err(CpError::Nonsense("something other than data")),
            }
            if self.says && self.size - said >= WRITTEN_EVERY {
                said = self.size;
                connection.send(&Frame::Written(Written { bytes: said }).to_message())?;
            }
        }
    }
}

/// Is it the file that ended so?
fn is_whole(target: &Path, end: &End) -> io::Result<bool> {
    let meta = match std::fs::symlink_metadata(target) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if !meta.is_file() || meta.len() != end.size {
        return Ok(false);
    }
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(target)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().as_str() == end.hash)
}

/// A name that leads nowhere but into the directory.
fn plain_name(name: &str) -> Result<&str, CpError> {
    let is_plain =
        !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']) && name.len() <= MOST_NAME_BYTES;
    if is_plain { Ok(name) } else { Err(CpError::Refused(format!("{} is no plain name of a file", printable(name)))) }
}

fn part_of(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(PART);
    target.with_file_name(name)
}

/// Opens what is there of a file, hashes it, and stands at its end. More than the sender has is of another file. `None`: another sender had it, and when it
/// was free its name had gone.
fn open_part(part: &Path, offer: &Offer, hasher: &mut blake3::Hasher) -> io::Result<Option<(File, u64)>> {
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow()).open(part)?;
    lock(&file)?;
    let meta = file.metadata()?;
    if !std::fs::symlink_metadata(part).is_ok_and(|named| (named.dev(), named.ino()) == (meta.dev(), meta.ino())) {
        return Ok(None);
    }
    let there = meta.len();
    if offer.size.is_some_and(|size| there > size) {
        file.set_len(0)?;
        return Ok(Some((file, 0)));
    }
    let hashed = io::copy(&mut Read::by_ref(&mut file).take(there), hasher)?;
    if hashed != there {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((file, there)))
}

/// Two senders of one name would write into one file. The other one may be this sender's lost connection, which is noticed soon.
fn lock(file: &File) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    while file.try_lock().is_err() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another sender is writing this file"));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(())
}

/// A link under the name of a part would lead out of the directory.
fn nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits() as i32
}

fn keep(file: &File, part: &Path, target: &Path, mode: Option<u32>) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode.unwrap_or(0o644) & 0o777))?;
    file.sync_all()?;
    std::fs::rename(part, target)
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", &"x".repeat(300)] {
            assert!(plain_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "a b", "..a", "ä"] {
            assert_eq!(plain_name(name).unwrap(), name);
        }
    }

    #[test]
    fn what_is_there_is_hashed_and_what_cannot_be_of_this_file_is_dropped() {
        let directory = std::env::temp_dir().join(format!("ropeway-cp-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let part = part_of(&directory.join("file"));
        std::fs::write(&part, b"12345").unwrap();
        let offer = |size| Offer { name: "file".into(), size, mode: None, written: false, end: None };
        let mut hasher = blake3::Hasher::new();
        let (file, there) = open_part(&part, &offer(Some(9)), &mut hasher).unwrap().unwrap();
        assert_eq!((there, hasher.finalize()), (5, blake3::hash(b"12345")));
        let waiter = std::thread::spawn({
            let (part, offer) = (part.clone(), offer(Some(9)));
            move || open_part(&part, &offer, &mut blake3::Hasher::new()).map(|opened| opened.map(|(_, there)| there))
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiter.is_finished(), "another sender has it");
        drop(file);
        assert_eq!(waiter.join().unwrap().unwrap(), Some(5));
        // Standard input has no size, and may go on where it was.
        assert_eq!(open_part(&part, &offer(None), &mut blake3::Hasher::new()).unwrap().unwrap().1, 5);
        let (file, there) = open_part(&part, &offer(Some(4)), &mut blake3::Hasher::new()).unwrap().unwrap();
        assert_eq!(there, 0);
        let waiter = std::thread::spawn({
            let (part, offer) = (part.clone(), offer(Some(9)));
            move || open_part(&part, &offer, &mut blake3::Hasher::new()).map(|opened| opened.is_none())
        });
        std::thread::sleep(Duration::from_millis(100));
        std::fs::rename(&part, directory.join("file")).unwrap();
        drop(file);
        assert!(waiter.join().unwrap().unwrap(), "it has its own name now");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_arrives_damaged_is_not_kept_and_both_ends_are_told() {
        let directory = std::env::temp_dir().join(format!("ropeway-cp-damaged-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let options = Options { directory: directory.clone(), once: true, force: false, quiet: true };
        let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
        let ends = [End { size: 5, hash: hash(b"other") }, End { size: 6, hash: hash(b"right") }];
        for end in ends {
            let [sender, receiver] = connect::pair();
            let serving = std::thread::spawn({
                let options = options.clone();
                move || serve(receiver, &options)
            });
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            let offer = Offer { name: "file".into(), size: Some(5), mode: None, written: false, end: None };
            sender.send(&Frame::Offer(offer).to_message()).unwrap();
            assert!(matches!(Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Have(_))));
            sender.send(&Frame::From(frame::From { offset: 0 }).to_message()).unwrap();
            sender.send(&Frame::Data(b"right").to_message()).unwrap();
            sender.send(&Frame::End(end).to_message()).unwrap();
            let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
            assert!(matches!(&answer, Frame::Refused(why) if why == "damaged"), "{answer:?}");
            let told = serving.join().unwrap().unwrap_err();
            assert!(matches!(&told, CpError::Damaged { name } if name == "file"), "{told}");
            assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "neither the file nor its part");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_whose_end_was_said_may_be_there_and_nothing_else_may() {
        let directory = std::env::temp_dir().join(format!("ropeway-cp-whole-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let options = Options { directory: directory.clone(), once: true, force: false, quiet: true };
        let contents = b"all of it";
        let end = End { size: contents.len() as u64, hash: blake3::hash(contents).to_hex().to_string() };
        std::fs::write(directory.join("whole"), contents).unwrap();
        std::fs::write(directory.join("other"), b"as  long!").unwrap();
        std::os::unix::fs::symlink(directory.join("whole"), directory.join("link")).unwrap();
        for (name, is_there) in [("whole", true), ("other", false), ("link", false)] {
            let [sender, receiver] = connect::pair();
            let serving = std::thread::spawn({
                let options = options.clone();
                move || serve(receiver, &options)
            });
            let offer = Offer { name: name.into(), size: None, mode: None, written: true, end: Some(end.clone()) };
            sender.send(&Frame::Offer(offer).to_message()).unwrap();
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
            assert_eq!(matches!(&answer, Frame::Done), is_there, "{name}: {answer:?}");
            assert_eq!(matches!(&answer, Frame::Refused(why) if why.contains("exists there")), !is_there);
            let _ = sender.finish();
            assert_eq!(serving.join().unwrap().is_ok(), is_there);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
