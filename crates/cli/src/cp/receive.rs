//! The receiving end: writes below one directory, each file first under a name of its own, and under the real one when it is whole.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropeway_socket::api::{Address, MessageListener};
use rustix::process::Resource;

use super::CpError;
use super::connect::{self, Connection};
use super::frame::{End, Frame, Have, MOST_MESSAGE_BYTES, Offer, UNFINISHED, WRITTEN_EVERY, Written};
use super::progress::Progress;
use super::senders::{Limits, Senders, Writers};
use super::store::{self, Part, begin_anew, is_whole, keep, open_part, part_of, plain_name, sync_name};
use crate::output::{printable, tell};
use crate::{rlimit, signals};

#[derive(Clone, Debug)]
pub struct Options {
    pub directory: PathBuf,
    pub once: bool,
    pub force: bool,
    pub quiet: bool,
    pub limits: Limits,
}

/// Nobody reads what was sent before more slowly.
const SLOW_DISK_BYTES_PER_S: u64 = 10 << 20;

/// Receives until it is killed, or from one sender. Gateways know this end by the number that was told them, or that the cluster's description has.
pub fn run(at: &Address, told: Option<u32>, options: &Options) -> Result<(), CpError> {
    let meta = std::fs::metadata(&options.directory).map_err(CpError::file(options.directory.display().to_string()))?;
    if !meta.is_dir() {
        let what = io::ErrorKind::NotADirectory.into();
        return Err(CpError::file(options.directory.display().to_string())(what));
    }
    rlimit::raise(Resource::Fsize);
    signals::outlive_file_limit();
    let failed = |source| CpError::Bind { address: at.to_string(), source };
    let listener = connect::listen(at, told)?;
    if !options.quiet {
        let at = listener.local_addr().map_err(failed)?;
        tell!("ropeway cp: receiving into {} at {at}", options.directory.display());
    }
    if options.once {
        return serve(Connection::over(listener.accept().map_err(failed)?.0), options, &Writers::default());
    }
    Err(failed(serve_all(&listener, options)))
}

/// Serves all who come, until accepting them fails so.
fn serve_all(listener: &MessageListener, options: &Options) -> io::Error {
    let mut senders = Senders::new(&options.limits);
    let writers = Writers::default();
    loop {
        let connection = match listener.accept() {
            Ok((socket, _)) => Connection::over(socket),
            Err(error) => return error,
        };
        let (options, writers) = (options.clone(), writers.clone());
        senders.admit(connection, move |connection| {
            if let Err(error) = serve(connection, &options, &writers) {
                tell!("ropeway cp: {error}");
            }
        });
    }
}

/// Takes files until the sender has no more.
fn serve(connection: Connection, options: &Options, writers: &Writers) -> Result<(), CpError> {
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let mut has_taken = false;
    let result = loop {
        match take_file(&connection, &mut buffer, options, writers) {
            Ok(true) => has_taken = true,
            Ok(false) if options.once && !has_taken => break Err(CpError::Nothing),
            Ok(false) => break Ok(()),
            Err(error) => {
                let why = match &error {
                    CpError::Damaged { .. } => Some("damaged".into()),
                    CpError::Declined(why) => Some(why.clone()),
                    CpError::File { .. } => Some(error.to_string()),
                    CpError::Nonsense(what) => Some(format!("what arrived is not as `ropeway cp` speaks: {what}")),
                    _ => None,
                };
                if let Some(why) = why
                    && connection.send(&Frame::Refused(why).to_message()).is_ok()
                {
                    connection.hear_out(&mut buffer);
                }
                break Err(error);
            }
        }
    };
    let _ = connection.finish();
    result
}

/// Takes one file. `false`: there is none any more.
fn take_file(
    connection: &Connection,
    buffer: &mut [u8],
    options: &Options,
    writers: &Writers,
) -> Result<bool, CpError> {
    let Limits { answer, silence, .. } = options.limits;
    connection.set_patience(Some(answer));
    let Some(message) = connection.recv(buffer)? else { return Ok(false) };
    let Frame::Offer(mut offer) = Frame::parse(message)? else {
        return Err(CpError::Nonsense("something other than an offer"));
    };
    let target = options.directory.join(plain_name(&offer.name)?);
    let part = part_of(&target);
    let Part { mut file, there, is_exposed } = loop {
        match look_for(&offer, &target, &part, options, writers, connection)? {
            Present::Part(part) => break part,
            Present::AsLong(bytes) => offer = again_with_its_end(&offer, bytes, connection, buffer, options)?,
            Present::Whole => {
                // Who gave it its name may have died since.
                sync_name(&target).map_err(CpError::file(target.display().to_string()))?;
                connection.send(&Frame::Done.to_message())?;
                return Ok(true);
            }
        }
    };
    let _writer = offer.asked.then(|| writers.enter(&part, connection));
    let mut hasher = blake3::Hasher::new();
    if store::hash(&mut file, &part, there, &mut hasher, Some(connection))? != there {
        return Err(CpError::file(part.display().to_string())(io::ErrorKind::UnexpectedEof.into()));
    }
    let hash = hasher.finalize().to_hex().to_string();
    let have = Have { bytes: there, hash, written: offer.written };
    connection.send(&Frame::Have(have).to_message())?;
    connection.set_patience(Some(answer + time_to_hash(there)));
    let Some(message) = connection.recv(buffer)? else { return Err(CpError::ended()) };
    let Frame::From(from) = Frame::parse(message)? else { return Err(CpError::Nonsense("no offset after an offer")) };
    let offset = if from.offset == there { there } else { 0 };
    if from.offset != offset {
        return Err(CpError::Nonsense("an offset that was not offered"));
    }
    if offset == 0 {
        hasher.reset();
        file = begin_anew(file, &part, is_exposed, options).map_err(|error| match error.kind() {
            // Another sender was faster.
            io::ErrorKind::AlreadyExists | io::ErrorKind::WouldBlock => CpError::Declined(UNFINISHED.into()),
            _ => CpError::file(part.display().to_string())(error),
        })?;
    }
    // The only one keeps no other waiting, and would find nobody when it comes again.
    connection.set_patience((!options.once).then_some(silence));
    let progress = Progress::new(&offer.name, offer.size, offset, options.quiet);
    let mut taker = Taker {
        file: &mut file,
        part: &part,
        hasher: &mut hasher,
        size: offset,
        most: offer.size,
        says: offer.written,
    };
    let end = taker.take(connection, buffer, &progress).map_err(|error| error.of_file(&offer.name))?;
    let size = taker.size;
    if end.size != size || end.hash != hasher.finalize().to_hex().as_str() {
        let _ = store::remove(&file, &part);
        return Err(CpError::Damaged { name: printable(&offer.name) });
    }
    let sync = || file.sync_all();
    keep(&file, &part, &target, offer.mode, options, sync).map_err(|error| match error.kind() {
        // Somebody has made it while it was on its way.
        io::ErrorKind::AlreadyExists => exists(&offer.name),
        _ => CpError::file(target.display().to_string())(error),
    })?;
    connection.send(&Frame::Done.to_message())?;
    progress.finish(size);
    Ok(true)
}

/// What a sender may take at most to hash so much.
fn time_to_hash(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOW_DISK_BYTES_PER_S)
}

/// The offer once more, with how the file ends.
fn again_with_its_end(
    offer: &Offer,
    bytes: u64,
    connection: &Connection,
    buffer: &mut [u8],
    options: &Options,
) -> Result<Offer, CpError> {
    connection.send(&Frame::Exists.to_message())?;
    connection.set_patience(Some(options.limits.answer + time_to_hash(bytes)));
    let Some(message) = connection.recv(buffer)? else { return Err(CpError::ended()) };
    match Frame::parse(message)? {
        Frame::Offer(again) if again.name == offer.name && again.end.is_some() => Ok(again),
        _ => Err(CpError::Nonsense("no end of a file that is there")),
    }
}

/// What is there of a file that is offered.
enum Present {
    Whole,
    /// A file of so many bytes, as many as the one that is offered.
    AsLong(u64),
    Part(Part),
}

/// Looks for it, and has the part to itself.
fn look_for(
    offer: &Offer,
    target: &Path,
    part: &Path,
    options: &Options,
    writers: &Writers,
    connection: &Connection,
) -> Result<Present, CpError> {
    loop {
        // What was not sent may have got another mode on purpose since it came here.
        let mode = offer.mode.filter(|_| !offer.compared);
        if let Some(end) = &offer.end
            && is_whole(target, end, mode, options, connection)?
        {
            return Ok(Present::Whole);
        }
        if let Ok(meta) = std::fs::symlink_metadata(target) {
            if !options.force {
                let is_as_long = meta.is_file() && meta.len() == offer.size.unwrap_or(0);
                let can_tell_its_end = offer.compared && offer.end.is_none();
                return if is_as_long && can_tell_its_end {
                    Ok(Present::AsLong(meta.len()))
                } else {
                    Err(exists(&offer.name))
                };
            }
            if meta.is_dir() {
                return Err(CpError::Declined(format!("{} is a directory there", printable(&offer.name))));
            }
        }
        match open_part(part, offer, options, || writers.ask(part)) {
            Ok(Some(part)) => return Ok(Present::Part(part)),
            // Who had the part before may have given it its name meanwhile.
            Ok(None) => {}
            // Nothing more comes to it, so it is free some time.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !writers.are_there(part) => {
                return Err(CpError::Declined(UNFINISHED.into()));
            }
            Err(error) => return Err(CpError::file(part.display().to_string())(error)),
        }
    }
}

fn exists(name: &str) -> CpError {
    CpError::Declined(format!("{} exists there; receive with --force to replace files", printable(name)))
}

/// Writes the data of one file.
struct Taker<'a> {
    file: &'a mut File,
    part: &'a Path,
    hasher: &'a mut blake3::Hasher,
    size: u64,
    /// As much as was offered.
    most: Option<u64>,
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
                Frame::Data(bytes) if self.most.is_some_and(|most| most - self.size < bytes.len() as u64) => {
                    return Err(CpError::Nonsense("more data than was offered"));
                }
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

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
