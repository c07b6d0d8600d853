//! What both ends connect by: sockets over an engine with one UDP link, whose port is the Ropeway port as well, or over a device's frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ropeway_engine::gateway::engine_number;
use ropeway_engine::link::{self, Link, udp};
use ropeway_engine::{ClusterKeys, Config as Tunables, Engine, Error, LinkId, Options};
use ropeway_socket::api::cluster::{self, Keys};
use ropeway_socket::api::{
    Address, Local, MessageListener, MessageSocket, PacketAddress, details, engine_options, udp_options,
};

use super::CpError;
use super::frame::{Frame, MOST_MESSAGE_BYTES};
use crate::config::Config;

/// How long one attempt to connect lasts.
pub const ATTEMPT: Duration = Duration::from_secs(5);
/// A connection whose peer says nothing for so long is given up, and tried again.
const GIVE_UP_MS: u64 = 5_000;
/// Who waits for data learns by this that the other end is gone, and not only slow.
const KEEP_ALIVE_S: u64 = 2;
const IDLE_LIMIT_S: u64 = 8;
/// Senders that may wait.
const BACKLOG: usize = 64;
/// Over frames there are none.
pub const WITHOUT_GATEWAYS: &str = "--node is for gateways, which are reached over UDP, not as frames on a device";
/// Memory for a long path: 4 MiB in flight are 1 Gbit/s over 32 ms.
const BUFFER_BYTES: u64 = 4 << 20;

/// Who is there acknowledges within this what it is asked, on a busy host and through losses too. A cut that is longer ends a connection only where another sender waits
/// for its file.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// A connection with the other `ropeway cp`.
pub struct Connection(Arc<Socket>);

struct Socket {
    messages: MessageSocket,
    /// How many messages were received.
    received: AtomicU64,
}

/// A connection that is another thread's, for as long as it is there.
pub struct Other(Weak<Socket>);

impl Socket {
    fn is_there(&self) -> bool {
        matches!(self.messages.is_connected(), Ok(true)) && matches!(self.messages.is_ended(), Ok(false))
    }
}

impl Other {
    /// Whether the other end has neither closed nor been given up.
    pub fn is_there(&self) -> bool {
        self.0.upgrade().is_some_and(|socket| socket.is_there())
    }

    /// Has the other end show that it is there. Where it does not, the connection is ended.
    pub fn ask(&self) {
        let Some(socket) = self.0.upgrade() else { return };
        let received = socket.received.load(Ordering::Relaxed);
        // When there is no room for the question, something else waits to be acknowledged.
        let _ = socket.messages.try_send(&Frame::Ask.to_message());
        let is_acknowledged = socket.messages.drain(Some(SIGN_OF_LIFE)).is_ok();
        if !is_acknowledged && socket.received.load(Ordering::Relaxed) == received {
            socket.messages.abort();
        }
    }
}

impl Connection {
    pub fn over(socket: MessageSocket) -> Connection {
        Connection(Arc::new(Socket { messages: socket, received: AtomicU64::new(0) }))
    }

    /// For a thread that wants to know whether the other end is there.
    pub fn other(&self) -> Other {
        Other(Arc::downgrade(&self.0))
    }

    /// Who has refused what is sent closes afterwards, and why is still to be heard then.
    pub fn send(&self, message: &[u8]) -> Result<(), CpError> {
        self.0.messages.send(message).map_err(|error| {
            let limit = || self.0.messages.write_timeout().ok().flatten().unwrap_or_default();
            let is_over = error.kind() == io::ErrorKind::WouldBlock;
            self.refusal().unwrap_or_else(|| if is_over { CpError::Silent(limit()) } else { CpError::Lost(error) })
        })
    }

    fn refusal(&self) -> Option<CpError> {
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        loop {
            match self.heard(&mut buffer) {
                Ok(Some(Frame::Refused(why))) => return Some(CpError::refused(why)),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next message if it is there.
    pub fn heard<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<Frame<'a>>, CpError> {
        loop {
            match self.0.messages.try_recv(buffer) {
                Ok(Some(count)) if matches!(Frame::parse(&buffer[..count]), Ok(Frame::Ask)) => {}
                Ok(Some(count)) => return Frame::parse(&buffer[..count]).map(Some),
                Ok(None) => return Err(CpError::ended()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Whether the other end has neither closed nor been given up.
    pub fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// How long sending and receiving wait for the other end: [`CpError::Silent`] then.
    pub fn set_patience(&self, limit: Option<Duration>) {
        // Only a limit of zero is refused, and none is.
        let _ = self.0.messages.set_read_timeout(limit).and_then(|()| self.0.messages.set_write_timeout(limit));
    }

    /// The next message; `None` at the end.
    pub fn recv<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, CpError> {
        match self.0.messages.recv(buffer) {
            Ok(count) => {
                self.0.received.fetch_add(1, Ordering::Relaxed);
                Ok(count.map(|count| &buffer[..count]))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(CpError::Silent(self.0.messages.read_timeout().ok().flatten().unwrap_or_default()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Lets the other end say what it was about to say, until it has heard a refusal and closes: what is not read when this end closes would take the refusal with it.
    pub fn hear_out(&self, buffer: &mut [u8]) {
        let deadline = Instant::now() + ATTEMPT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.0.messages.set_read_timeout(Some(left)).is_err() {
                return;
            }
            match self.0.messages.recv(buffer) {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Ends it so that the other end does not take it for the end of all.
    pub fn abort(self) {
        self.0.messages.abort();
    }

    /// Waits until everything has arrived, and lets go.
    pub fn finish(self) -> Result<(), CpError> {
        self.0.messages.drain(Some(ATTEMPT)).map_err(CpError::Lost)
    }
}

fn failed(error: io::Error) -> CpError {
    match details(&error) {
        Some(Error::TooShort { .. }) => CpError::Nonsense("a message is too long"),
        _ => CpError::Lost(error),
    }
}

/// Has the keys of the configuration hold where the environment says nothing of keys.
pub fn choose_keys() -> Result<(), CpError> {
    match Config::load().map_err(|error| CpError::Cluster(io::Error::other(error)))?.keys() {
        Some(choice) => cluster::choose_keys(choice).map_err(CpError::Cluster),
        None => Ok(()),
    }
}

/// By what gateways know an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// By what somebody told them.
    Told(u32),
    /// By its node in the cluster's description, and its UDP port.
    OfNode(u16),
}

impl Number {
    /// That of an engine at an address of this host, as the cluster's description has it. `None`: no gateways are there.
    pub fn of_cluster(local: IpAddr) -> Result<Option<Number>, CpError> {
        let node = cluster::behind_gateways(local).map_err(CpError::Cluster)?;
        Ok(node.map(|node| Number::OfNode(node.number)))
    }
}

/// An engine with one UDP link at `local`, as the environment has them but for what [`tuned`] sets.
pub fn engine(
    local: SocketAddr,
    number: Option<Number>,
    keys: Option<Arc<ClusterKeys>>,
) -> io::Result<(Engine, LinkId)> {
    let opening = |source| Error::Link { doing: "opening a UDP socket", source };
    let link = udp::UdpLink::open(&udp_options(local)?).map_err(opening)?;
    let node = number.map(|number| match number {
        Number::Told(number) => number.into(),
        Number::OfNode(node) => engine_number(node, link.local_address().port()).into(),
    });
    let options = Options { keys, node, gateways: node.is_some(), ..Options::default() };
    let options = engine_options(&link, link.max_packet(), options)?;
    let engine = Engine::new(&Options { config: tuned(options.config.clone()), ..options })?;
    let id = engine.add_link(Box::new(link))?;
    Ok((engine, id))
}

/// A place on a device of this host, for frames.
pub fn on_device(at: &PacketAddress) -> io::Result<Local> {
    let local = Local::bind(Address::Packet(at.clone()))?;
    local.engine().configure(tuned(local.engine().config()?))?;
    Ok(local)
}

/// With the settings of `ropeway cp`.
fn tuned(mut config: Tunables) -> Tunables {
    let settings = [
        ("give_up", GIVE_UP_MS),
        ("keep_alive", KEEP_ALIVE_S),
        ("idle_limit", IDLE_LIMIT_S),
        ("send_buffer", BUFFER_BYTES),
        ("receive_buffer", BUFFER_BYTES),
    ];
    for (name, value) in settings {
        // The values lie in the ranges, which a test of the protocol's crate keeps.
        let _ = config.set(name, value);
    }
    config
}

/// Listens at an address as [`Address::to_listen`] gives it. Gateways know this end by the number that was told them, or that the cluster's description has.
pub fn listen(at: &Address, told: Option<u32>) -> Result<MessageListener, CpError> {
    let failed = |source| CpError::Bind { address: at.to_string(), source };
    match at {
        Address::Packet(_) if told.is_some() => Err(CpError::Usage(WITHOUT_GATEWAYS.into())),
        Address::Packet(at) => {
            on_device(at).and_then(|local| MessageListener::bind_to(&local, BACKLOG)).map_err(failed)
        }
        at => {
            let local = udp_address(at)?;
            let number = match told {
                Some(number) => Some(Number::Told(number)),
                None => Number::of_cluster(local.ip())?,
            };
            let Keys { keys, .. } = cluster::keys(local.ip().is_loopback()).map_err(CpError::Cluster)?;
            let (engine, link) = engine(local, number, keys).map_err(failed)?;
            // Port 0 was replaced by one that is free.
            let port = match engine.local(link) {
                Some(link::Address::Udp(address)) => address.port(),
                _ => local.port(),
            };
            MessageListener::bind_on(&engine, link, port, BACKLOG).map_err(failed)
        }
    }
}

/// An address that is one of UDP.
pub fn udp_address(at: &Address) -> Result<SocketAddr, CpError> {
    let what = || CpError::Usage(format!("--bind {at} is on an Ethernet, and the receiver is reached over UDP"));
    at.socket_addr().ok_or_else(what)
}

/// The two ends of a connection over loopback.
#[cfg(test)]
pub fn pair() -> [Connection; 2] {
    let listener = listen(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let peer = super::peer::Peer::at(address);
    let client = peer.connect(None, None).unwrap();
    [client, Connection::over(listener.accept().unwrap().0)]
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    #[test]
    fn who_takes_nothing_is_as_silent_as_who_says_nothing() {
        const LIMIT: Duration = Duration::from_millis(100);
        let [one, other] = pair();
        one.set_patience(Some(LIMIT));
        let said = one.recv(&mut [0; 8]).unwrap_err();
        // More than fits into the memory of both ends.
        let taken = (0..200).find_map(|_| one.send(&frame::data()).err()).expect("nobody reads");
        for error in [said, taken] {
            assert!(matches!(error, CpError::Silent(LIMIT)), "{error}");
        }
        drop(other);
    }
}
