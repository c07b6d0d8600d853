//! `tcp`: the kernel's TCP, blocking or spinning, with the congestion control that is asked for.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use super::Rank;
use super::streams::{self, Manner, Stream, Streams};
use crate::Failure;

pub type Tcp = Streams<TcpStream>;

/// A rank that can be reached and is not connected yet.
#[derive(Debug)]
pub struct Pending {
    listener: TcpListener,
    address: String,
}

/// Begins to listen where other ranks reach this host: at the address `host`, or on all addresses of a host of that name.
pub fn listen(host: &str) -> Result<Pending, Failure> {
    let listener =
        TcpListener::bind(&bind_addresses(host)[..]).map_err(Failure::system("listen for TCP connections"))?;
    let port = listener.local_addr().map_err(Failure::system("listen for TCP connections"))?.port();
    Ok(Pending { listener, address: join_host_port(host, port) })
}

/// Where to listen so that others reach us at `host`; the first that this host has. A literal address is used as it is. A name may mean another address here than at the other hosts
/// (many hosts know their own as 127.0.1.1), so that all addresses are used.
pub(super) fn bind_addresses(host: &str) -> Vec<SocketAddr> {
    let any = || vec![IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let addresses = host.parse::<IpAddr>().map_or_else(|_| any(), |address| vec![address]);
    addresses.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()
}

pub(super) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl Pending {
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Joins the ranks whose addresses these are. `joins_small_sends`: the kernel may put small messages into one packet, as it does by default; where latency counts, programs forbid it
    /// (TCP_NODELAY).
    pub fn connect(
        self,
        manner: Manner,
        rank: Rank,
        addresses: &[String],
        congestion: Option<&str>,
        joins_small_sends: bool,
    ) -> Result<Tcp, Failure> {
        streams::join(manner, rank, self.listener, addresses, |stream: &TcpStream| {
            if let Some(name) = congestion {
                set_congestion(stream, name)?;
            }
            stream.set_nodelay(!joins_small_sends)
        })
    }
}

fn set_congestion(stream: &TcpStream, name: &str) -> io::Result<()> {
    setsockopt(stream, sockopt::TcpCongestion, &OsString::from(name)).map_err(|errno| {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
        io::Error::other(format!("congestion control {name}: {}; this host has {}", errno.desc(), known.trim()))
    })
}

impl Stream for TcpStream {
    type Listener = TcpListener;

    fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        Ok(listener.accept()?.0)
    }

    fn connect(address: &str) -> io::Result<TcpStream> {
        /// Of each address that the name has.
        const LIMIT: Duration = Duration::from_secs(5);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, LIMIT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }
}
