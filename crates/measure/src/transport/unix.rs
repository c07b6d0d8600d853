//! `unix`: AF_UNIX streams between processes of one host.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::Rank;
use super::streams::{self, Manner, Stream, Streams};
use crate::Failure;

pub type Unix = Streams<UnixStream>;

/// A rank that can be reached and is not connected yet.
#[derive(Debug)]
pub struct Pending {
    listener: UnixListener,
    address: String,
}

/// Before an abstract name, which leaves no file behind when a rank is killed.
const ABSTRACT: char = '@';

/// Begins to listen: at a socket in that directory, else at an abstract name.
pub fn listen(directory: Option<&Path>) -> Result<Pending, Failure> {
    let mut number = [0u8; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Failure::System { what: "draw a random name", cause: errno.into() })?;
    let name = format!("ropeway-bench-{:016x}", u64::from_le_bytes(number));
    let address = match directory {
        Some(directory) => directory.join(name).to_string_lossy().into_owned(),
        None => format!("{ABSTRACT}{name}"),
    };
    let bound = socket_address(&address).and_then(|address| UnixListener::bind_addr(&address));
    Ok(Pending { listener: bound.map_err(Failure::system("listen at an AF_UNIX address"))?, address })
}

fn socket_address(address: &str) -> io::Result<SocketAddr> {
    match address.strip_prefix(ABSTRACT) {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(address),
    }
}

impl Pending {
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn connect(self, manner: Manner, rank: Rank, addresses: &[String]) -> Result<Unix, Failure> {
        let own = (!self.address.starts_with(ABSTRACT)).then(|| self.address.clone());
        let joined = streams::join(manner, rank, self.listener, addresses, |_: &UnixStream| Ok(()));
        if let Some(path) = own {
            // All are connected; `reconnect` needs an abstract name.
            let _ = std::fs::remove_file(path);
        }
        joined
    }
}

impl Stream for UnixStream {
    type Listener = UnixListener;

    fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
        Ok(listener.accept()?.0)
    }

    fn connect(address: &str) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&socket_address(address)?)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }
}
