//! The asking side: who holds an address of ours need not be one of ours, and may be stopped. Whoever asks gets an answer within bounds, or an error.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{ANSWER_LIMIT, PATIENCE};

/// A connection is less than a thousand bytes of an answer, and a hundred thousand of them are many.
const MOST_ANSWER_BYTES: usize = 128 << 20;
/// What is read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Says `question` at the abstract address `name`, and hears what is said there until a line or the connection ends.
pub fn ask(name: &str, question: &[u8]) -> io::Result<String> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    let mut stream = connect(name).map_err(silent)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question).map_err(silent)?;
    let mut answer = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = match stream.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count.map_err(silent)?,
        };
        answer.extend_from_slice(&piece[..count]);
        if count == 0 || piece[..count].contains(&b'\n') {
            return String::from_utf8(answer).map_err(|_| nonsense("what is no text"));
        }
        if answer.len() > MOST_ANSWER_BYTES || Instant::now() > deadline {
            return Err(nonsense("an answer without end"));
        }
    }
}

/// Where a process is stopped its queue of new connections fills up, and the kernel would wait for ever.
fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket.into())
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
