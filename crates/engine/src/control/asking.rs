//! The asking side: who holds an address of ours need not be one of ours, and may be stopped. Whoever asks gets an answer within bounds, or an error; and who asks many, of all of another user's
//! together.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{ANSWER_LIMIT, PATIENCE, user};

/// A connection is less than a thousand bytes of an answer, and a hundred thousand of them are many.
const MOST_ANSWER_BYTES: usize = 128 << 20;
/// What is read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Asks one after another, as who looks at all of them does. Those of another user get no more time, and say no more, than one alone.
#[derive(Debug, Default)]
pub struct Round {
    /// By the user in the name.
    left: HashMap<u32, Left>,
}

/// What may still be spent.
#[derive(Debug)]
struct Left {
    /// On places in full queues. Whose these are nobody knows before.
    connecting: Duration,
    answers: Duration,
    answer_bytes: usize,
}

impl Default for Left {
    fn default() -> Left {
        Left { connecting: PATIENCE, answers: ANSWER_LIMIT, answer_bytes: MOST_ANSWER_BYTES }
    }
}

impl Round {
    /// Says `question` at the abstract address `name`, and hears what is said there until a line or the connection ends.
    pub fn ask(&mut self, name: &str, question: &[u8]) -> io::Result<String> {
        let user = user(name).ok_or_else(stranger)?;
        let left = self.left.entry(user).or_default();
        if user == rustix::process::geteuid().as_raw() {
            *left = Left { connecting: left.connecting, ..Left::default() };
        }
        let begin = Instant::now();
        let stream = connect(name, left.connecting);
        left.connecting = left.connecting.saturating_sub(begin.elapsed());
        let stream = stream.map_err(silent)?;
        // Anybody can have any name.
        if socket_peercred(&stream)?.uid.as_raw() != user {
            return Err(stranger());
        }
        let begin = Instant::now();
        let answer = left.hear(stream, question);
        left.answers = left.answers.saturating_sub(begin.elapsed());
        answer
    }
}

impl Left {
    fn hear(&mut self, mut stream: UnixStream, question: &[u8]) -> io::Result<String> {
        if self.answers.is_zero() || self.answer_bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "not all were asked; others take too long, or say too much",
            ));
        }
        let deadline = Instant::now() + self.answers;
        stream.set_read_timeout(Some(PATIENCE.min(self.answers)))?;
        stream.write_all(question).map_err(silent)?;
        let mut answer = Vec::new();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = match stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count.map_err(silent)?,
            };
            answer.extend_from_slice(&piece[..count]);
            self.answer_bytes = self.answer_bytes.saturating_sub(count);
            if count == 0 || piece[..count].contains(&b'\n') {
                return String::from_utf8(answer).map_err(|_| nonsense("what is no text"));
            }
            if self.answer_bytes == 0 || Instant::now() > deadline {
                return Err(nonsense("an answer without end"));
            }
        }
    }
}

/// Where a process is stopped its queue of new connections fills up, and the kernel would wait for ever.
fn connect(name: &str, patience: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let connected = rustix::net::connect(&socket, &address);
    ioctl_fionbio(&socket, false)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    if connected == Err(Errno::AGAIN) && !patience.is_zero() {
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        rustix::net::connect(&socket, &address)?;
    } else {
        connected?;
    }
    Ok(socket.into())
}

fn stranger() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the address is not that of the user in its name")
}

fn silent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(error.kind(), "it does not answer; is the process stopped?"),
        _ => error,
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it says {what}; something else has the address"))
}
