//! The sending end.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ropeway_socket::api::Address;

use super::CpError;
use super::connect::Connection;
use super::frame::{self, End, Frame, Have, MOST_MESSAGE_BYTES, Offer};
use super::peer::Peer;
use super::pipe::{self, Pipe};
use super::progress::Progress;

pub struct Options {
    pub name: Option<String>,
    pub patience: Duration,
    pub quiet: bool,
}

/// From where, and to whom.
pub struct From {
    pub bind: Option<Address>,
    pub node: Option<u32>,
    pub to: Peer,
}

impl From {
    fn connect(&self) -> Result<Connection, CpError> {
        self.to.connect(self.bind.as_ref(), self.node)
    }
}

/// Between two attempts to connect again.
const PAUSE: Duration = Duration::from_millis(200);

/// Sends all sources, connecting again as often as needed; a file that was begun goes on where it was.
pub fn run(sources: &[String], from: &From, options: &Options) -> Result<(), CpError> {
    match sources.iter().filter(|source| *source == "-").count() {
        0 if options.name.is_some() => {
            let what = "--name is for standard input, and no `-` is among what is sent: files keep their names";
            return Err(CpError::Usage(what.into()));
        }
        0 | 1 => {}
        _ => return Err(CpError::Usage("standard input can be sent once".into())),
    }
    // What cannot be read is said before anything is sent.
    for source in sources.iter().filter(|source| *source != "-") {
        let meta = std::fs::metadata(source).map_err(CpError::file(source))?;
        if !meta.is_file() {
            let what = io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a file; send directories as `tar c DIR | ropeway cp - HOST --name DIR.tar`",
            );
            return Err(CpError::File { path: source.clone(), source: what });
        }
    }
    let mut connection = from.connect()?;
    for source in sources {
        let mut lost_at: Option<Instant> = None;
        let mut source = Source::new(source, options)?;
        loop {
            match source.send(&connection, options) {
                Ok(()) => break,
                Err(CpError::Lost(_)) => {
                    let since = *lost_at.get_or_insert_with(Instant::now);
                    // Its engine has the address that the next one wants.
                    drop(connection);
                    connection = connect_again(from, since + options.patience, options.quiet)?;
                    lost_at = None;
                }
                Err(error) => return Err(error),
            }
        }
        source.finish();
    }
    connection.finish()
}

/// One of what is sent, and what is known of it from one connection to the next.
enum Source<'a> {
    /// With its end, once that was said.
    File(&'a str, Option<End>),
    Pipe(Box<Pipe>),
}

impl Source<'_> {
    fn new<'a>(source: &'a str, options: &Options) -> Result<Source<'a>, CpError> {
        if source == "-" { Pipe::new(options).map(Box::new).map(Source::Pipe) } else { Ok(Source::File(source, None)) }
    }

    fn send(&mut self, connection: &Connection, options: &Options) -> Result<(), CpError> {
        match self {
            Source::File(path, end) => send_file(connection, path, end, options),
            Source::Pipe(pipe) => pipe.send(connection),
        }
    }

    fn finish(self) {
        if let Source::Pipe(pipe) = self {
            pipe.finish();
        }
    }
}

fn connect_again(from: &From, deadline: Instant, quiet: bool) -> Result<Connection, CpError> {
    if !quiet {
        eprintln!("ropeway cp: the connection was lost; trying again");
    }
    loop {
        match from.connect() {
            Err(CpError::Connect { .. }) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

fn send_file(connection: &Connection, source: &str, said: &mut Option<End>, options: &Options) -> Result<(), CpError> {
    let failed = || CpError::file(source);
    let mut file = File::open(source).map_err(failed())?;
    let meta = file.metadata().map_err(failed())?;
    let name = Path::new(source).file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| CpError::Usage(format!("{source} has no file name")))?;
    let mode = Some(meta.permissions().mode() & 0o777);
    let have = match offer(
        connection,
        Offer { name: name.clone(), size: Some(meta.len()), mode, written: false, end: said.clone() },
    )? {
        Answer::Have(have) => have,
        Answer::Done => {
            Progress::new(&name, Some(meta.len()), meta.len(), options.quiet).finish(meta.len());
            return Ok(());
        }
    };
    let mut hasher = blake3::Hasher::new();
    let mut offset = 0;
    if have.bytes > 0 && have.bytes <= meta.len() {
        hash_prefix(&mut file, have.bytes, &mut hasher).map_err(failed())?;
        if hasher.finalize().to_hex().as_str() == have.hash {
            offset = have.bytes;
        } else {
            hasher.reset();
            file.seek(SeekFrom::Start(0)).map_err(failed())?;
        }
    }
    connection.send(&Frame::From(frame::From { offset }).to_message())?;
    let progress = Progress::new(&name, Some(meta.len()), offset, options.quiet);
    let size = offset + pump(connection, &mut file, &mut hasher, &progress).map_err(|error| error.of(source))?;
    if size != meta.len() {
        return Err(CpError::Changed { name });
    }
    let end = End { size, hash: hasher.finalize().to_hex().to_string() };
    *said = Some(end.clone());
    conclude(connection, end, &name)?;
    progress.finish(size);
    Ok(())
}

/// What a receiver says to an offer.
pub enum Answer {
    /// To be gone on from.
    Have(Have),
    /// The file is there; what ended it was heard over an earlier connection.
    Done,
}

pub fn offer(connection: &Connection, offer: Offer) -> Result<Answer, CpError> {
    let may_be_done = offer.end.is_some();
    connection.send(&Frame::Offer(offer).to_message())?;
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    match answer(connection, &mut buffer)? {
        Frame::Have(have) => Ok(Answer::Have(have)),
        Frame::Done if may_be_done => Ok(Answer::Done),
        Frame::Refused(why) => Err(CpError::Refused(why)),
        _ => Err(CpError::Nonsense("an offer was not answered")),
    }
}

/// The next message; the end instead of one is a lost connection.
pub fn answer<'a>(connection: &Connection, buffer: &'a mut [u8]) -> Result<Frame<'a>, CpError> {
    let message = connection.recv(buffer)?;
    Frame::parse(message.ok_or_else(CpError::ended)?)
}

fn hash_prefix(file: &mut File, bytes: u64, hasher: &mut blake3::Hasher) -> io::Result<()> {
    let copied = io::copy(&mut file.take(bytes), hasher)?;
    if copied == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// What can fail while data goes through.
enum PumpError {
    Read(io::Error),
    Send(CpError),
}

impl PumpError {
    fn of(self, source: &str) -> CpError {
        match self {
            PumpError::Read(error) => CpError::File { path: source.into(), source: error },
            PumpError::Send(error) => error,
        }
    }
}

/// Sends all that `input` gives, and says how much.
fn pump(
    connection: &Connection,
    input: &mut impl Read,
    hasher: &mut blake3::Hasher,
    progress: &Progress,
) -> Result<u64, PumpError> {
    let mut piece = frame::data();
    let mut total = 0;
    loop {
        let count = pipe::read_full(input, &mut piece[1..]).map_err(PumpError::Read)?;
        if count == 0 {
            return Ok(total);
        }
        hasher.update(&piece[1..=count]);
        connection.send(&piece[..=count]).map_err(PumpError::Send)?;
        progress.advance(count as u64);
        total += count as u64;
    }
}

/// Says the end, and waits for the word that the file is there.
pub fn conclude(connection: &Connection, end: End, name: &str) -> Result<(), CpError> {
    connection.send(&Frame::End(end).to_message())?;
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    loop {
        return match answer(connection, &mut buffer)? {
            Frame::Written(_) => continue,
            Frame::Done => Ok(()),
            Frame::Refused(why) if why == "damaged" => Err(CpError::Damaged { name: name.into() }),
            Frame::Refused(why) => Err(CpError::Refused(why)),
            _ => Err(CpError::Nonsense("the end of a file was not answered")),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::*;

    #[test]
    fn what_the_other_end_found_damaged_is_an_error_that_says_what_to_do() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-source-{}", std::process::id()));
        std::fs::write(&source, b"contents").unwrap();
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        for (why, text) in
            [("damaged", "BLAKE3 hash differs); nothing was kept, send it again"), ("full", "says: full")]
        {
            let [sender, receiver] = connect::pair();
            let receiving = std::thread::spawn(move || {
                let mut buffer = vec![0; MOST_MESSAGE_BYTES];
                let empty = Have { bytes: 0, hash: blake3::hash(b"").to_hex().to_string(), written: false };
                while let Some(message) = receiver.recv(&mut buffer).unwrap() {
                    match Frame::parse(message).unwrap() {
                        Frame::Offer(_) => receiver.send(&Frame::Have(empty.clone()).to_message()).unwrap(),
                        Frame::End(_) => receiver.send(&Frame::Refused(why.into()).to_message()).unwrap(),
                        _ => {}
                    }
                }
            });
            let error = send_file(&sender, source.to_str().unwrap(), &mut None, &options).unwrap_err();
            assert_eq!(matches!(error, CpError::Damaged { .. }), why == "damaged", "{error}");
            assert!(error.to_string().contains(text), "{error}");
            sender.finish().unwrap();
            receiving.join().unwrap();
        }
        std::fs::remove_file(&source).unwrap();
    }
}
