//! The sending end.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use ropeway_socket::api::Address;

use super::CpError;
use super::connect::{self, Connection};
use super::frame::{self, End, Frame, Have, MOST_MESSAGE_BYTES, Offer};
use super::peer::Peer;
use super::pipe::{self, Pipe};
use super::progress::Progress;
use super::store;

use crate::output::{printable, tell};

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
/// A place is free when another copy has ended.
const PAUSE_FOR_A_PLACE: Duration = Duration::from_secs(1);

/// Sends all sources, connecting again as often as needed; a file that was begun goes on where it was.
pub fn run(sources: &[String], from: &From, options: &Options) -> Result<(), CpError> {
    match sources.iter().filter(|source| *source == "-").count() {
        0 if options.name.is_some() => {
            let what = "--name is for standard input, and no `-` is among what is sent: files keep their names";
            return Err(CpError::Usage(what.into()));
        }
        1 if options.name.is_none() => {
            return Err(CpError::Usage("standard input needs a --name at the other end".into()));
        }
        0 | 1 => {}
        _ => return Err(CpError::Usage("standard input can be sent once".into())),
    }
    // Each would take the place of the one before, or be refused when that has arrived.
    let mut names = HashSet::new();
    for source in sources {
        let name = if source == "-" { options.name.clone() } else { name_of(source) };
        if let Some(name) = name.filter(|name| !names.insert(name.clone())) {
            return Err(CpError::Usage(format!("two of what is sent would be {name} at the other end")));
        }
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
        File::open(source).map_err(CpError::file(source))?;
    }
    let mut connection = from.connect()?;
    for source in sources {
        let mut losses = Losses::default();
        let mut source = Source::new(source, options);
        loop {
            let begin = Instant::now();
            match source.send(&connection, options) {
                Ok(()) => break,
                Err(why @ (CpError::Lost(_) | CpError::Busy(_))) => {
                    // Its engine has the address that the next one wants.
                    drop(connection);
                    losses.count(why, source.there(), begin.elapsed(), options)?;
                    connection = connect_again(from, options.patience)?;
                }
                Err(error) => {
                    // What the receiver has is not all, and an end in order would say so.
                    connection.abort();
                    return Err(error);
                }
            }
        }
        source.finish();
    }
    connection.finish()
}

/// The connections that were lost, or had no place, one after the other without any of it arriving: who closes each of them at once is no network that comes back.
#[derive(Default)]
struct Losses {
    since: Option<Instant>,
    /// What the receiver had when the last one began.
    there: Option<u64>,
}

impl Losses {
    /// One more, which has lasted for so long and begun with so much there. It is the last when patience is over.
    fn count(&mut self, why: CpError, there: Option<u64>, lasted: Duration, options: &Options) -> Result<(), CpError> {
        // To be told so may take a while, too.
        let is_busy = matches!(why, CpError::Busy(_));
        if there != self.there || (!is_busy && lasted > options.patience.max(connect::ATTEMPT)) {
            self.since = None;
        }
        self.there = there;
        match self.since {
            Some(since) if since.elapsed() > options.patience => return Err(why),
            Some(_) => std::thread::sleep(if is_busy { PAUSE_FOR_A_PLACE } else { PAUSE }),
            None => {
                self.since = Some(Instant::now());
                match why {
                    _ if options.quiet => {}
                    CpError::Busy(_) => tell!("ropeway cp: {why}; trying again"),
                    _ => tell!("ropeway cp: the connection was lost; trying again"),
                }
            }
        }
        Ok(())
    }
}

/// One of what is sent, and what is known of it from one connection to the next.
enum Source<'a> {
    File(SentFile<'a>),
    Pipe(Box<Pipe>),
}

struct SentFile<'a> {
    path: &'a str,
    /// What the receiver had of it when it was last asked.
    there: Option<u64>,
    /// Once it was said, or asked for.
    end: Option<End>,
    /// What the file was before it was read for an end that was asked for.
    compared: Option<State>,
}

impl Source<'_> {
    fn new<'a>(source: &'a str, options: &Options) -> Source<'a> {
        match &options.name {
            Some(name) if source == "-" => Source::Pipe(Box::new(Pipe::new(name.clone(), options.quiet))),
            _ => Source::File(SentFile::new(source)),
        }
    }

    fn send(&mut self, connection: &Connection, options: &Options) -> Result<(), CpError> {
        match self {
            Source::File(file) => file.send(connection, options),
            Source::Pipe(pipe) => pipe.send(connection),
        }
    }

    fn there(&self) -> Option<u64> {
        match self {
            Source::File(file) => file.there,
            Source::Pipe(pipe) => pipe.there(),
        }
    }

    fn finish(self) {
        if let Source::Pipe(pipe) = self {
            pipe.finish();
        }
    }
}

fn connect_again(from: &From, patience: Duration) -> Result<Connection, CpError> {
    let begin = Instant::now();
    loop {
        match from.connect() {
            // An address or a device of this host may be away for a while, too.
            Err(CpError::Connect { .. } | CpError::Bind { .. }) if begin.elapsed() < patience => {
                std::thread::sleep(PAUSE)
            }
            other => return other,
        }
    }
}

/// What a file is called at the other end.
fn name_of(source: &str) -> Option<String> {
    Path::new(source).file_name().map(|name| name.to_string_lossy().into_owned())
}

impl SentFile<'_> {
    fn new(path: &str) -> SentFile<'_> {
        SentFile { path, there: None, end: None, compared: None }
    }

    fn send(&mut self, connection: &Connection, options: &Options) -> Result<(), CpError> {
        let failed = || CpError::file(self.path);
        let mut file = File::open(self.path).map_err(failed())?;
        let meta = file.metadata().map_err(failed())?;
        let name = name_of(self.path).ok_or_else(|| CpError::Usage(format!("{} has no file name", self.path)))?;
        let mode = Some(meta.permissions().mode() & 0o777);
        // What the kernel makes up while it is read, as in /proc, has a size of 0.
        let size = (meta.len() > 0).then_some(meta.len());
        let said = Offer {
            name: name.clone(),
            size,
            mode,
            written: false,
            asked: true,
            compared: self.end.is_none() || self.compared.is_some(),
            end: self.end.clone(),
        };
        let have = match offer(connection, said)? {
            Answer::Have(have) => have,
            Answer::Exists => {
                let mut hasher = blake3::Hasher::new();
                // One byte more than it had tells that it grows; somebody may go on writing it for ever. Who waits for the answer may lose patience with a slow disk, and hears it then
                // over the next connection.
                let bytes = store::hash(&mut file, Path::new(self.path), meta.len() + 1, &mut hasher, None)?;
                if size.is_some_and(|size| size != bytes) {
                    return Err(CpError::Changed { name: printable(&name) });
                }
                self.end = Some(End { size: bytes, hash: hasher.finalize().to_hex().to_string() });
                self.compared = Some(State::of(&meta));
                return self.send(connection, options);
            }
            Answer::Done => {
                let now = file.metadata().map_err(failed())?;
                if self.compared.as_ref().is_some_and(|before| *before != State::of(&now)) {
                    return Err(CpError::Changed { name: printable(&name) });
                }
                let bytes = self.end.as_ref().map_or(meta.len(), |end| end.size);
                Progress::new(&name, Some(bytes), bytes, options.quiet).finish(bytes);
                return Ok(());
            }
        };
        self.there = Some(have.bytes);
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
        let progress = Progress::new(&name, size, offset, options.quiet);
        // A file that somebody goes on writing may never end.
        let mut of_file = Read::by_ref(&mut file).take(size.map_or(u64::MAX, |size| size - offset));
        let sent = pump(connection, &mut of_file, &mut hasher, &progress).map_err(|error| error.of(self.path))?;
        let bytes = offset + sent;
        let is_longer = file.read(&mut [0]).map_err(failed())? > 0;
        let now = file.metadata().map_err(failed())?;
        if is_longer || size.is_some_and(|size| size != bytes || State::of(&now) != State::of(&meta)) {
            return Err(CpError::Changed { name: printable(&name) });
        }
        let end = End { size: bytes, hash: hasher.finalize().to_hex().to_string() };
        self.end = Some(end.clone());
        self.compared = None;
        conclude(connection, end, &name)?;
        progress.finish(bytes);
        Ok(())
    }
}

/// What a receiver says to an offer.
pub enum Answer {
    /// To be gone on from.
    Have(Have),
    /// The file is there, and ends as was offered.
    Done,
    /// One of its name and size is there: how does this one end? Said once, and not of standard input.
    Exists,
}

pub fn offer(connection: &Connection, offer: Offer) -> Result<Answer, CpError> {
    let (may_be_done, can_be_compared) = (offer.end.is_some(), offer.compared);
    connection.send(&Frame::Offer(offer).to_message())?;
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    match answer(connection, &mut buffer)? {
        Frame::Have(have) => Ok(Answer::Have(have)),
        Frame::Done if may_be_done => Ok(Answer::Done),
        Frame::Exists if can_be_compared && !may_be_done => Ok(Answer::Exists),
        Frame::Refused(why) => Err(CpError::refused(why)),
        _ => Err(CpError::Nonsense("an offer was not answered")),
    }
}

/// The next message; the end instead of one is a lost connection.
pub fn answer<'a>(connection: &Connection, buffer: &'a mut [u8]) -> Result<Frame<'a>, CpError> {
    loop {
        let count = connection.recv(buffer)?.ok_or_else(CpError::ended)?.len();
        if !matches!(Frame::parse(&buffer[..count])?, Frame::Ask) {
            return Frame::parse(&buffer[..count]);
        }
    }
}

/// By which it shows that a file was written to.
#[derive(PartialEq, Eq)]
struct State {
    bytes: u64,
    /// Files without a size, which the kernel makes up, have another time whenever they are asked.
    last_write: Option<(i64, i64)>,
}

impl State {
    fn of(meta: &Metadata) -> State {
        let bytes = meta.len();
        State { bytes, last_write: (bytes > 0).then(|| (meta.mtime(), meta.mtime_nsec())) }
    }
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
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let mut total = 0;
    loop {
        let count = pipe::read_full(input, &mut piece[1..]).map_err(PumpError::Read)?;
        if count == 0 {
            return Ok(total);
        }
        match connection.heard(&mut buffer).map_err(PumpError::Send)? {
            None => {}
            Some(Frame::Refused(why)) => return Err(PumpError::Send(CpError::refused(why))),
            Some(_) => return Err(PumpError::Send(CpError::Nonsense("data was answered"))),
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
            Frame::Refused(why) if why == "damaged" => Err(CpError::Damaged { name: printable(name) }),
            Frame::Refused(why) => Err(CpError::refused(why)),
            _ => Err(CpError::Nonsense("the end of a file was not answered")),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_the_other_end_says_at_the_end_is_an_error_that_says_what_to_do() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-source-{}", std::process::id()));
        std::fs::write(&source, b"contents").unwrap();
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        let said = [
            ("damaged", "BLAKE3 hash differs); nothing was kept, send it again"),
            ("full", "says: full"),
            (frame::UNFINISHED, frame::UNFINISHED),
        ];
        for (why, text) in said {
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
            let error = SentFile::new(source.to_str().unwrap()).send(&sender, &options).unwrap_err();
            assert_eq!(matches!(error, CpError::Damaged { .. }), why == "damaged", "{error}");
            assert_eq!(matches!(error, CpError::Busy(_)), why == frame::UNFINISHED, "{error}");
            assert!(error.to_string().contains(text), "{error}");
            sender.finish().unwrap();
            receiving.join().unwrap();
        }
        std::fs::remove_file(&source).unwrap();
    }

    #[test]
    fn a_refusal_in_the_middle_is_heard_even_when_the_other_end_has_left() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-middle-{}", std::process::id()));
        std::fs::write(&source, vec![7; 32 << 20]).unwrap();
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        for (stays, word) in [(true, "full"), (false, "full"), (true, frame::UNFINISHED), (false, frame::UNFINISHED)] {
            let [sender, receiver] = connect::pair();
            let receiving = std::thread::spawn(move || {
                let mut buffer = vec![0; MOST_MESSAGE_BYTES];
                let empty = Have { bytes: 0, hash: blake3::hash(b"").to_hex().to_string(), written: false };
                receiver.recv(&mut buffer).unwrap();
                receiver.send(&Frame::Have(empty).to_message()).unwrap();
                receiver.recv(&mut buffer).unwrap();
                receiver.send(&Frame::Refused(word.into()).to_message()).unwrap();
                if stays {
                    receiver.hear_out(&mut buffer);
                }
                let _ = receiver.finish();
            });
            let error = SentFile::new(source.to_str().unwrap()).send(&sender, &options).unwrap_err();
            match &error {
                CpError::Refused(why) => assert_eq!((why.as_str(), word), ("full", "full"), "{stays}"),
                CpError::Busy(why) => assert_eq!((*why, word), (frame::UNFINISHED, frame::UNFINISHED), "{stays}"),
                _ => panic!("{stays}: {error}"),
            }
            drop(sender);
            receiving.join().unwrap();
        }
        std::fs::remove_file(&source).unwrap();
    }

    #[test]
    fn connections_that_end_at_once_are_tried_again_as_long_as_patience_lasts_and_others_always() {
        let options = Options { name: None, patience: Duration::from_millis(50), quiet: true };
        let lost = || CpError::Lost(io::ErrorKind::ConnectionReset.into());
        let mut losses = Losses::default();
        losses.count(lost(), Some(7), Duration::ZERO, &options).unwrap();
        losses.count(lost(), Some(7), Duration::ZERO, &options).unwrap();
        // The pause before was longer than patience.
        losses.count(lost(), Some(8), Duration::ZERO, &options).unwrap();
        losses.count(lost(), Some(8), Duration::ZERO, &options).unwrap();
        losses.count(lost(), Some(8), Duration::from_secs(10), &options).unwrap();
        losses.count(lost(), Some(8), Duration::ZERO, &options).unwrap();
        assert!(matches!(losses.count(lost(), Some(8), Duration::ZERO, &options), Err(CpError::Lost(_))));
        let busy = || CpError::Busy(frame::UNFINISHED);
        let mut losses = Losses::default();
        losses.count(busy(), None, Duration::from_secs(10), &options).unwrap();
        losses.count(busy(), None, Duration::from_secs(10), &options).unwrap();
        assert!(matches!(losses.count(busy(), None, Duration::from_secs(10), &options), Err(CpError::Busy(_))));
    }

    #[test]
    fn two_sources_that_would_have_one_name_are_refused_before_anything_is_sent() {
        let to = From { bind: None, node: None, to: Peer::at("127.0.0.1:1".parse().unwrap()) };
        let options = Options { name: Some("x".into()), patience: Duration::ZERO, quiet: true };
        for sources in [["a/x", "b/x", "-"], ["a/y", "-", "b/x"]] {
            let error = run(&sources.map(String::from), &to, &options).unwrap_err();
            assert!(error.to_string().contains("two of what is sent would be x at the other end"), "{error}");
        }
    }

    #[test]
    fn patience_without_end_is_no_fault() {
        let from = From { bind: None, node: None, to: Peer::at("127.0.0.1:1".parse().unwrap()) };
        let (sender, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(connect_again(&from, Duration::MAX).is_ok()));
        // It goes on trying.
        assert!(
            heard
                .recv_timeout(Duration::from_millis(500))
                .is_err_and(|e| e == std::sync::mpsc::RecvTimeoutError::Timeout)
        );
    }

    #[test]
    fn an_address_that_is_away_for_a_while_is_waited_for_as_a_peer_is() {
        let listener = connect::listen(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let to = listener.local_addr().unwrap().socket_addr().unwrap();
        // Somebody else has it meanwhile.
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let bind = Some(other.local_addr().unwrap().into());
        let from = From { bind, node: None, to: Peer::at(to) };
        assert!(matches!(connect_again(&from, Duration::ZERO), Err(CpError::Bind { .. })));
        std::thread::scope(|scope| {
            let again = scope.spawn(|| connect_again(&from, Duration::from_secs(60)));
            std::thread::sleep(PAUSE / 2);
            assert!(!again.is_finished(), "patience is not over");
            drop(other);
            again.join().unwrap().unwrap();
        });
    }

    #[test]
    fn of_a_file_that_grows_no_more_is_sent_than_was_offered() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-grows-{}", std::process::id()));
        std::fs::write(&source, b"begun").unwrap();
        let [sender, receiver] = connect::pair();
        let of_file = source.clone();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            let empty = Have { bytes: 0, hash: blake3::hash(b"").to_hex().to_string(), written: false };
            let mut received = 0;
            while let Some(message) = receiver.recv(&mut buffer).unwrap() {
                match Frame::parse(message).unwrap() {
                    Frame::Offer(offer) => {
                        assert_eq!(offer.size, Some(5));
                        std::fs::write(&of_file, b"begun, and gone on with").unwrap();
                        receiver.send(&Frame::Have(empty.clone()).to_message()).unwrap();
                    }
                    Frame::Data(bytes) => received += bytes.len(),
                    Frame::End(_) => panic!("it has no end"),
                    _ => {}
                }
            }
            received
        });
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        let error = SentFile::new(source.to_str().unwrap()).send(&sender, &options).unwrap_err();
        assert!(matches!(error, CpError::Changed { .. }), "{error}");
        sender.finish().unwrap();
        assert_eq!(receiving.join().unwrap(), 5);
        std::fs::remove_file(&source).unwrap();
    }

    #[test]
    fn a_file_that_is_overwritten_while_it_is_sent_has_no_end() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-overwritten-{}", std::process::id()));
        std::fs::write(&source, b"begun").unwrap();
        let [sender, receiver] = connect::pair();
        let of_file = source.clone();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            let empty = Have { bytes: 0, hash: blake3::hash(b"").to_hex().to_string(), written: false };
            while let Some(message) = receiver.recv(&mut buffer).unwrap() {
                match Frame::parse(message).unwrap() {
                    Frame::Offer(_) => {
                        let mut file = std::fs::OpenOptions::new().write(true).open(&of_file).unwrap();
                        file.write_all(b"other").unwrap();
                        // Later than any clock tick in which it was made.
                        let later = file.metadata().unwrap().modified().unwrap() + Duration::from_nanos(1);
                        file.set_modified(later).unwrap();
                        receiver.send(&Frame::Have(empty.clone()).to_message()).unwrap();
                    }
                    Frame::End(_) => {
                        receiver.send(&Frame::Done.to_message()).unwrap();
                        return true;
                    }
                    _ => {}
                }
            }
            false
        });
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        let sent = SentFile::new(source.to_str().unwrap()).send(&sender, &options);
        assert!(matches!(sent, Err(CpError::Changed { .. })), "{sent:?}");
        sender.finish().unwrap();
        assert!(!receiving.join().unwrap(), "an end was said");
        std::fs::remove_file(&source).unwrap();
    }

    /// Sends a file to a receiver that has one of its name and size with the same contents. Before each answer this happens to the file.
    fn sent_where_it_is(what: &str, happens: fn(&File, &Offer)) -> Result<(), CpError> {
        let source = std::env::temp_dir().join(format!("ropeway-cp-{what}-{}", std::process::id()));
        std::fs::write(&source, b"begun").unwrap();
        let [sender, receiver] = connect::pair();
        let file = File::options().append(true).open(&source).unwrap();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            while let Some(message) = receiver.recv(&mut buffer).unwrap() {
                let Ok(Frame::Offer(offer)) = Frame::parse(message) else { panic!("nothing is asked for") };
                happens(&file, &offer);
                let answer = if offer.end.is_some() { Frame::Done } else { Frame::Exists };
                receiver.send(&answer.to_message()).unwrap();
            }
        });
        let (told, ended) = std::sync::mpsc::channel();
        let path = source.to_str().unwrap().to_string();
        std::thread::spawn(move || {
            let options = Options { name: None, patience: Duration::ZERO, quiet: true };
            let sent = SentFile::new(&path).send(&sender, &options);
            sender.finish().unwrap();
            told.send(sent)
        });
        let sent = ended.recv_timeout(Duration::from_secs(10)).expect("it ends at once");
        receiving.join().unwrap();
        std::fs::remove_file(&source).unwrap();
        sent
    }

    #[test]
    fn no_more_than_was_offered_is_read_of_a_file_that_is_compared() {
        let sent = sent_where_it_is("compared", |file, _| file.set_len(100 << 30).unwrap());
        assert!(matches!(sent, Err(CpError::Changed { .. })), "{sent:?}");
    }

    #[test]
    fn a_file_that_is_written_to_while_it_is_compared_is_not_the_one_that_is_there() {
        let sent = sent_where_it_is("while-compared", |mut file, offer| {
            if offer.end.is_some() {
                file.write_all(b", and gone on with").unwrap();
            }
        });
        assert!(matches!(sent, Err(CpError::Changed { .. })), "{sent:?}");
        sent_where_it_is("unchanged", |_, _| {}).unwrap();
    }
    #[test]
    fn what_was_compared_is_known_though_the_receiver_has_not_waited_for_it() {
        let source = std::env::temp_dir().join(format!("ropeway-cp-impatient-{}", std::process::id()));
        // More than is hashed at once.
        File::create(&source).unwrap().set_len(65 << 20).unwrap();
        let [sender, receiver] = connect::pair();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            receiver.recv(&mut buffer).unwrap();
            receiver.send(&Frame::Exists.to_message()).unwrap();
            receiver.finish().unwrap();
        });
        let options = Options { name: None, patience: Duration::ZERO, quiet: true };
        let mut file = SentFile::new(source.to_str().unwrap());
        let sent = file.send(&sender, &options);
        assert!(sent.is_err() && file.end.is_some(), "{sent:?}");
        receiving.join().unwrap();
        std::fs::remove_file(&source).unwrap();
    }
}
