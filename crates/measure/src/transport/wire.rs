//! Ropeway's own protocol between ranks: one engine in each rank, over UDP (`ropeway-udp`) or raw Ethernet frames (`ropeway-packet`, `ropeway-xdp`), and a message channel between each two.
//!
//! [`listen`] gives this rank's address, and [`Pending::connect`] takes everybody's. Of two ranks the lower one opens the channel.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ropeway_engine::key_file::{self, Choice};
use ropeway_engine::link::packet::{self, PacketLink};
use ropeway_engine::link::udp::{self, UdpLink};
use ropeway_engine::link::xdp::{self, XdpLink};
use ropeway_engine::link::{Address, Link, hardware_address};
use ropeway_engine::{ChannelId, Config, Engine, Error, ErrorCode, LinkId, Mode, Target, usual_packet_bytes};

use super::{Rank, Transport, monotonic_ns};
use crate::Failure;

mod tunables;

#[cfg(test)]
mod tests;

/// The port of the protocol where ranks meet; each has an engine of its own, so that it is always free.
const PORT: u16 = 7;

/// So that the port buffer that a measurement sets is the limit, not the socket's.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// How long the end of a rank waits for its peers to have everything.
const DRAIN: Duration = Duration::from_secs(1);

/// What a link's address begins with where ranks tell theirs to each other.
const UDP: &str = "udp:";
const PACKET: &str = "packet:";

/// What the ranks' engines talk over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// This address of the host; port 0 takes a free one.
    Udp(SocketAddr),
    /// Raw frames on this network device. Nobody else in the network namespace may use Ropeway on it.
    Packet(String),
    /// The same past the kernel's network stack.
    Xdp(String),
}

/// How a rank joins.
#[derive(Debug, Clone)]
pub struct Options {
    pub over: Over,
    pub rank: Rank,
    pub ranks: usize,
    /// How long a call that waits polls before it sleeps; 0: it sleeps at once. A core that nobody else wants can be given away by hours.
    pub spin: Duration,
    /// The cluster's key. `None`: what the environment says (docs/api.md), and none over loopback.
    pub key_file: Option<PathBuf>,
    /// What [`Transport::tune`] can set, from the start: some things are fixed when channels open.
    pub tunables: Vec<(String, f64)>,
    /// The longest packet, if the link bears it; `None`: what an Ethernet bears, and the protocol's usual over UDP.
    pub packet_bytes: Option<u16>,
    /// After so long without a peer every call gives up.
    pub patience: Duration,
}

impl Options {
    /// The engine's usual spinning, and a patience of ten seconds.
    pub fn new(over: Over, rank: Rank, ranks: usize) -> Options {
        let spin = ropeway_engine::Options::default().spin;
        let patience = Duration::from_secs(10);
        Options { over, rank, ranks, spin, key_file: None, tunables: Vec::new(), packet_bytes: None, patience }
    }
}

/// A rank that listens, and does not know the others yet.
pub struct Pending {
    engine: Engine,
    link: LinkId,
    options: Options,
}

/// Starts a rank's engine, and gives the address that all others need.
///
/// # Errors
/// The address or the device cannot be used; the privilege for raw frames, or the decision about keys, is missing; an unknown tunable.
pub fn listen(options: Options) -> Result<(Pending, String), Failure> {
    let link = open(&options.over)?;
    let packet_bytes = options.packet_bytes.unwrap_or_else(|| usual_packet_bytes(&*link)).min(link.max_packet() as u16);
    let mut config = Config { packet_bytes, ..Config::default() };
    for (name, value) in &options.tunables {
        tunables::set(&mut config, name, *value).map_err(Failure::Unsupported)?;
    }
    let keys = keys(&options).map_err(|error| Failure::Unsupported(error.to_string()))?;
    let of_engine = ropeway_engine::Options { config, spin: options.spin, keys, ..Default::default() };
    let engine = Engine::new(&of_engine).map_err(begin("start an engine"))?;
    let link = engine.add_link(link).map_err(begin("give the engine its link"))?;
    engine.listen(PORT, Mode::Messages, options.ranks).map_err(begin("listen"))?;
    let address = match engine.local(link) {
        Some(Address::Udp(address)) => format!("{UDP}{address}"),
        Some(address) => format!("{PACKET}{address}"),
        None => return Err(Failure::Unsupported("the link has no address".to_owned())),
    };
    Ok((Pending { engine, link, options }, address))
}

fn open(over: &Over) -> Result<Box<dyn Link>, Failure> {
    match over {
        Over::Udp(local) => {
            let of_link = udp::Options { receive_buffer_bytes: RECEIVE_BUFFER_BYTES, ..udp::Options::new(*local) };
            Ok(Box::new(UdpLink::open(&of_link).map_err(Failure::system("open a UDP socket for ropeway-udp"))?))
        }
        Over::Packet(device) => match PacketLink::open(&packet::Options::new(device)) {
            Ok(link) => Ok(Box::new(link)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Failure::Unsupported(format!(
                "raw Ethernet frames on {device} need the privilege CAP_NET_RAW: run as root, or inside `ropeway box`, or \
                 `setcap cap_net_raw+ep` this program; ropeway-udp needs none"
            ))),
            Err(error) => {
                Err(Failure::Unsupported(format!("cannot send raw frames over the network device {device}: {error}")))
            }
        },
        Over::Xdp(device) => match XdpLink::open(&xdp::Options::new(device)) {
            Ok(link) => Ok(Box::new(link)),
            Err(error) => Err(Failure::Unsupported(format!(
                "cannot send frames through AF_XDP over the network device {device}: {error}"
            ))),
        },
    }
}

/// Over loopback nobody needs a key who has said nothing of one.
fn keys(options: &Options) -> Result<Option<std::sync::Arc<ropeway_engine::ClusterKeys>>, key_file::KeyError> {
    if let Some(path) = &options.key_file {
        return Choice::File(path.clone()).load();
    }
    let is_loopback = matches!(&options.over, Over::Udp(local) if local.ip().is_loopback());
    key_file::decide(is_loopback.then_some(Choice::Trusted))
}

fn parse(text: &str) -> Option<Address> {
    if let Some(address) = text.strip_prefix(UDP) {
        return address.parse().ok().map(Address::Udp);
    }
    hardware_address(text.strip_prefix(PACKET)?).map(Address::Ether)
}

impl Pending {
    /// Opens the channels to all ranks, whose addresses come in their order; every rank calls this.
    ///
    /// # Errors
    /// An address is none, or a rank does not answer within the patience.
    pub fn connect(self, addresses: &[String]) -> Result<Wire, Failure> {
        let Options { rank, ranks, patience, .. } = self.options;
        let targets: Option<Vec<Target>> = addresses
            .iter()
            .map(|text| Some(Target { link: self.link, address: parse(text)? }))
            .collect::<Option<_>>()
            .filter(|targets: &Vec<Target>| targets.len() == ranks);
        let Some(targets) = targets else {
            let why =
                format!("the addresses of {ranks} ranks were expected, such as {UDP}10.0.0.1:7000, not {addresses:?}");
            return Err(Failure::Unsupported(why));
        };
        let deadline = Some(Instant::now() + patience);
        let mut channels: Vec<Option<ChannelId>> = vec![None; ranks];
        for (peer, target) in targets.iter().enumerate().skip(rank + 1) {
            let failed = |error| failure(error, peer, patience);
            let channel = self.engine.connect(*target, PORT, Mode::Messages, deadline).map_err(failed)?;
            self.engine.send_all(channel, &(rank as u64).to_le_bytes(), deadline).map_err(|error| failed(error.1))?;
            channels[peer] = Some(channel);
        }
        for _ in 0..rank {
            // Who has not come yet is any of those that are missing.
            let missing = channels[..rank].iter().position(Option::is_none).unwrap_or_default();
            let failed = |error| failure(error, missing, patience);
            let channel = self.engine.accept(PORT, deadline).map_err(failed)?;
            let mut name = [0; size_of::<u64>()];
            let length = self.engine.recv(channel, &mut name, deadline).map_err(failed)?;
            let peer = usize::try_from(u64::from_le_bytes(name)).unwrap_or(usize::MAX);
            match channels[..rank].get_mut(peer) {
                Some(place @ None) if length == Some(name.len()) => *place = Some(channel),
                _ => {
                    let what = "a rank introduced itself as one that it cannot be";
                    return Err(Failure::Damaged { peer: missing, expected: name.len(), what });
                }
            }
        }
        let peers: Vec<(Rank, ChannelId)> =
            channels.iter().enumerate().filter_map(|(peer, channel)| Some((peer, (*channel)?))).collect();
        let all = peers.iter().map(|(_, channel)| *channel).collect();
        let ranks_of_all = peers.iter().map(|(peer, _)| *peer).collect();
        Ok(Wire { engine: self.engine, options: self.options, targets, channels, all, ranks_of_all, next: 0 })
    }
}

/// A rank that can talk to all others.
pub struct Wire {
    engine: Engine,
    options: Options,
    targets: Vec<Target>,
    /// By rank; none to itself.
    channels: Vec<Option<ChannelId>>,
    /// Those that there are, and whose they are.
    all: Vec<ChannelId>,
    ranks_of_all: Vec<Rank>,
    /// Where [`Transport::wait_any`] looks first.
    next: usize,
}

impl Wire {
    fn channel(&self, peer: Rank) -> Result<ChannelId, Failure> {
        let none = || Failure::Unsupported(format!("rank {} has no channel to rank {peer}", self.options.rank));
        self.channels.get(peer).copied().flatten().ok_or_else(none)
    }

    fn deadline(&self) -> Option<Instant> {
        Some(Instant::now() + self.options.patience)
    }

    fn judge(&self, peer: Rank, received: Result<Option<usize>, Error>, expected: usize) -> Result<usize, Failure> {
        match received {
            Ok(Some(length)) => Ok(length),
            Ok(None) => Err(Failure::Closed { peer }),
            Err(Error::TooShort { .. }) => Err(Failure::Damaged { peer, expected, what: "it is longer" }),
            Err(error) => Err(failure(error, peer, self.options.patience)),
        }
    }
}

/// What an engine's error means to a trial.
fn failure(error: Error, peer: Rank, limit: Duration) -> Failure {
    match error {
        Error::TimedOut | Error::Failed(ErrorCode::Timeout) => Failure::Silent { peer, limit },
        Error::Closed | Error::PeerClosed | Error::Failed(ErrorCode::Closed) => Failure::Closed { peer },
        Error::Failed(_) => Failure::Unsupported(format!("rank {peer}: {error}")),
        error => Failure::System { what: "use the engine", cause: error.into() },
    }
}

fn begin(what: &'static str) -> impl FnOnce(Error) -> Failure {
    move |error| Failure::System { what, cause: error.into() }
}

fn exact(peer: Rank, length: usize, expected: usize) -> Result<bool, Failure> {
    match length == expected {
        true => Ok(true),
        false => Err(Failure::Damaged { peer, expected, what: "another length" }),
    }
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        match self.options.over {
            Over::Udp(_) => "ropeway-udp",
            Over::Packet(_) => "ropeway-packet",
            Over::Xdp(_) => "ropeway-xdp",
        }
    }

    fn rank(&self) -> Rank {
        self.options.rank
    }

    fn ranks(&self) -> usize {
        self.options.ranks
    }

    fn largest_message(&self) -> usize {
        let longest = self.all.iter().filter_map(|channel| self.engine.longest_message(*channel)).min();
        longest.map_or(usize::MAX, |bytes| bytes as usize)
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.engine.send_all(self.channel(to)?, bytes, self.deadline());
        sent.map_err(|(_, error)| failure(error, to, self.options.patience))
    }

    fn receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        let received = self.engine.recv(self.channel(from)?, into, self.deadline());
        exact(from, self.judge(from, received, into.len())?, into.len())
    }

    fn try_receive(&mut self, from: Rank, into: &mut [u8]) -> Result<bool, Failure> {
        match self.engine.try_recv(self.channel(from)?, into) {
            Err(Error::WouldBlock) => Ok(false),
            received => exact(from, self.judge(from, received, into.len())?, into.len()),
        }
    }

    fn receive_some(&mut self, from: Rank, into: &mut [u8]) -> Result<usize, Failure> {
        let received = self.engine.recv(self.channel(from)?, into, self.deadline());
        self.judge(from, received, into.len())
    }

    fn wait_any(&mut self) -> Result<Option<Rank>, Failure> {
        let waited = self.engine.wait_any(&self.all, self.next, self.deadline());
        let nobody = self.ranks_of_all.get(self.next).copied().unwrap_or(self.options.rank);
        let place = waited.map_err(|error| failure(error, nobody, self.options.patience))?;
        self.next = (place + 1) % self.all.len();
        Ok(Some(self.ranks_of_all[place]))
    }

    /// Everybody tells rank 0, and rank 0 tells everybody.
    fn barrier(&mut self) -> Result<(), Failure> {
        const HERE: [u8; 1] = [0xB0];
        let mut token = [0];
        if self.options.rank != 0 {
            self.send(0, &HERE)?;
            return self.receive(0, &mut token).map(drop);
        }
        (1..self.options.ranks).try_for_each(|peer| self.receive(peer, &mut token).map(drop))?;
        (1..self.options.ranks).try_for_each(|peer| self.send(peer, &HERE))
    }

    fn reconnect(&mut self, peer: Rank) -> Result<(), Failure> {
        let (deadline, patience) = (self.deadline(), self.options.patience);
        let failed = |error| failure(error, peer, patience);
        let opens = self.options.rank < peer;
        let channel = match opens {
            true => self.engine.connect(self.targets[peer], PORT, Mode::Messages, deadline).map_err(failed)?,
            false => self.engine.accept(PORT, deadline).map_err(failed)?,
        };
        let mut byte = [0];
        if opens {
            self.engine.send_all(channel, &byte, deadline).map_err(|error| failed(error.1))?;
        }
        let received = self.engine.recv(channel, &mut byte, deadline);
        self.judge(peer, received, byte.len())?;
        if !opens {
            self.engine.send_all(channel, &byte, deadline).map_err(|error| failed(error.1))?;
        }
        self.engine.close(channel);
        Ok(())
    }

    fn tune(&mut self, name: &str, value: f64) -> Result<(), Failure> {
        let mut config = self.engine.config().map_err(begin("read the engine's settings"))?;
        tunables::set(&mut config, name, value).map_err(Failure::Unsupported)?;
        self.engine.configure(config).map_err(begin("change the engine's settings"))
    }

    fn tuned(&self, name: &str) -> Option<f64> {
        tunables::get(&self.engine.config().ok()?, name)
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let deadline = Some(Instant::now() + DRAIN);
        for channel in &self.all {
            // A peer that is gone needs nothing any more.
            let _ = self.engine.drain(*channel, deadline);
            self.engine.close(*channel);
        }
    }
}
