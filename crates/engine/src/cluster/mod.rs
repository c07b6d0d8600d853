//! The description of a cluster: its nodes, the networks on which they are, and which of them forward for others (docs/configuration.md, The cluster file).
//!
//! `file` reads and checks it, `ways` says how a node reaches another one and what a gateway's table is. What does not live here: engines and links, which
//! whoever uses the description makes.

mod file;
#[cfg(test)]
mod tests;
mod ways;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ropeway_link::{Address, hardware_address};

use crate::key_file::Choice;
use crate::trusted_file::{self, Distrust};

pub use ways::{Forwarding, Hop};

/// Names the file; `off`: none is read.
pub const CLUSTER_VAR: &str = "ROPEWAY_CLUSTER";
/// Says which node this is, by number or name, where its addresses do not.
pub const NODE_VAR: &str = "ROPEWAY_NODE";
const USUAL_FILE: &str = "/etc/ropeway/cluster.toml";
const OFF: &str = "off";
/// Room for the most nodes that there can be, with comments. A longer file is another file.
const MOST_FILE_BYTES: u64 = 32 << 20;
/// What a mode must not have: the file may say that all are trusted, or name the key.
const OTHERS_WRITE: u32 = 0o022;
/// With two networks there is something to forward between.
pub const LEAST_NETWORKS_OF_GATEWAY: usize = 2;

/// Why a description cannot be used, or does not say what is asked. The text names the file.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "cannot read the cluster file {path}: {source}; mend it, or name another one in {CLUSTER_VAR} (`{OFF}`: none)"
    )]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a file, so it cannot be the cluster file")]
    NotAFile { path: PathBuf },
    #[error(
        "{path} has mode {mode:04o}: others than its owner can write it, and it says whom to trust. See whether somebody has changed it, and `chmod go-w` it"
    )]
    Permissions { path: PathBuf, mode: u32 },
    #[error(
        "{path} belongs to user {owner}, and it says whom to trust: it must belong to root or to the user of this program ({user}). See what it says, and `chown` it"
    )]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("{path}: {source}")]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}, line {line}: {what}")]
    Value { path: PathBuf, line: usize, what: String },
    #[error("{path} has no node `{said}`; {NODE_VAR} is the number or the name of the node that this host is")]
    NoSuchNode { path: PathBuf, said: String },
    #[error("this host has addresses of {first} and of {second} in {path}: say which one it is with {NODE_VAR}")]
    SeveralNodes { path: PathBuf, first: String, second: String },
    #[error("cannot look at this host's addresses: {0}")]
    Addresses(io::Error),
    #[error(
        "{path} shows no way from {from} to {to}: they share no network, and no gateways join theirs; give a node on both sides `gateway = PORT`"
    )]
    NoWay { path: PathBuf, from: String, to: String },
    #[error("{path}: {name} is no gateway; give it `gateway = PORT`, and addresses on the networks that it is to join")]
    NoGateway { path: PathBuf, name: String },
}

/// Where a node is on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Ip(IpAddr),
    /// A hardware address: the network is one Ethernet, and no gateways forward there.
    Ether([u8; 6]),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Place::Ip(ip) => ip.fmt(f),
            Place::Ether(mac) => Address::Ether(mac).fmt(f),
        }
    }
}

/// A text is no address of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a hardware address (02:00:00:00:00:07)")]
pub struct ParsePlaceError(String);

impl FromStr for Place {
    type Err = ParsePlaceError;

    fn from_str(text: &str) -> Result<Place, ParsePlaceError> {
        let ip = || text.parse().ok().map(|ip: IpAddr| Place::Ip(ip.to_canonical()));
        hardware_address(text).map(Place::Ether).or_else(ip).ok_or_else(|| ParsePlaceError(text.into()))
    }
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// From 1; gateways know its engines by it and their UDP ports ([`crate::gateway::engine_number`]).
    pub number: u16,
    pub name: String,
    /// By the network's name.
    pub addresses: BTreeMap<String, Place>,
    /// The UDP port at which it forwards between its networks.
    pub gateway: Option<u16>,
}

impl Node {
    /// Its IP addresses with the names of their networks, in the order of these.
    pub fn ips(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.addresses.iter().filter_map(|(network, place)| match place {
            Place::Ip(ip) => Some((network.as_str(), *ip)),
            Place::Ether(_) => None,
        })
    }

    /// Its hardware addresses likewise.
    pub fn hardware_addresses(&self) -> impl Iterator<Item = (&str, [u8; 6])> {
        self.addresses.iter().filter_map(|(network, place)| match place {
            Place::Ip(_) => None,
            Place::Ether(mac) => Some((network.as_str(), *mac)),
        })
    }
}

/// A cluster, as its file describes it.
#[derive(Clone, Debug)]
pub struct Cluster {
    path: PathBuf,
    nodes: Vec<Node>,
    /// Places in `nodes`.
    by_number: BTreeMap<u16, usize>,
    by_name: BTreeMap<String, usize>,
    by_address: BTreeMap<Place, usize>,
    bonded: bool,
    keys: Option<Choice>,
}

impl Cluster {
    /// The cluster of the file that the environment names, or of the usual one if that exists.
    ///
    /// # Errors
    /// See [`ClusterError`]. A file that is named must exist.
    pub fn from_environment() -> Result<Option<Cluster>, ClusterError> {
        Cluster::from_variable(std::env::var_os(CLUSTER_VAR), Path::new(USUAL_FILE))
    }

    fn from_variable(said: Option<OsString>, usual: &Path) -> Result<Option<Cluster>, ClusterError> {
        match said.filter(|said| !said.is_empty()) {
            Some(said) if said == OFF => Ok(None),
            Some(said) => Cluster::read(Path::new(&said)).map(Some),
            // One that cannot be opened for another reason may be there, and say something.
            None => match trusted_file::open(usual) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                opened => Cluster::read_opened(usual, opened).map(Some),
            },
        }
    }

    /// Whether the environment names a file: if not, there is the usual one or none.
    pub fn is_named() -> bool {
        std::env::var_os(CLUSTER_VAR).is_some_and(|said| !said.is_empty())
    }

    /// # Errors
    /// See [`ClusterError`].
    pub fn read(path: &Path) -> Result<Cluster, ClusterError> {
        Cluster::read_opened(path, trusted_file::open(path))
    }

    fn read_opened(path: &Path, opened: io::Result<File>) -> Result<Cluster, ClusterError> {
        let failed = |source| ClusterError::Read { path: path.to_owned(), source };
        let file = opened.map_err(failed)?;
        trusted_file::check(&file, OTHERS_WRITE).map_err(|distrust| {
            let path = path.to_owned();
            match distrust {
                Distrust::Metadata(source) => ClusterError::Read { path, source },
                Distrust::NotAFile => ClusterError::NotAFile { path },
                Distrust::Permissions { mode } => ClusterError::Permissions { path, mode },
                Distrust::Owner { owner, user } => ClusterError::Owner { path, owner, user },
            }
        })?;
        let mut text = String::new();
        file.take(MOST_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MOST_FILE_BYTES {
            return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than any cluster needs")));
        }
        Cluster::parse(&text, path)
    }

    /// The file that it stands in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, number: u16) -> Option<&Node> {
        self.by_number.get(&number).map(|&place| &self.nodes[place])
    }

    pub fn named(&self, name: &str) -> Option<&Node> {
        self.by_name.get(name).map(|&place| &self.nodes[place])
    }

    /// The node that has an IP address.
    pub fn at(&self, address: IpAddr) -> Option<&Node> {
        self.at_place(Place::Ip(address.to_canonical()))
    }

    /// The node that has an address of either kind.
    pub fn at_place(&self, place: Place) -> Option<&Node> {
        self.by_address.get(&place).map(|&place| &self.nodes[place])
    }

    /// Whether what is sent is spread over all networks that two nodes share.
    pub fn is_bonded(&self) -> bool {
        self.bonded
    }

    /// Whether any node forwards for others.
    pub fn has_gateways(&self) -> bool {
        self.nodes.iter().any(|node| node.gateway.is_some())
    }

    /// The address at which a node has its sockets: its only one, or all of its host, as a host that is no node (`None`) has them.
    pub fn socket_ip(&self, node: Option<&Node>) -> IpAddr {
        let any = match self.nodes.iter().find_map(|node| node.ips().next()) {
            Some((_, IpAddr::V6(_))) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        };
        let mut addresses = node.into_iter().flat_map(Node::ips).map(|(_, address)| address);
        let first = addresses.next();
        first.filter(|_| addresses.next().is_none()).unwrap_or(any)
    }

    /// What the file decides about keys; the environment goes before it.
    pub fn keys(&self) -> Option<Choice> {
        self.keys.clone()
    }

    /// The node that a number or a name means.
    ///
    /// # Errors
    /// There is none.
    pub fn meant_by(&self, said: &str) -> Result<&Node, ClusterError> {
        let by_number = || self.node(said.parse().ok()?);
        let missing = || ClusterError::NoSuchNode { path: self.path.clone(), said: said.into() };
        self.named(said).or_else(by_number).ok_or_else(missing)
    }

    /// The node that this host is: the one that the environment names, or the one that has an address of this host. `None`: it is none of them.
    ///
    /// # Errors
    /// There is no such node, or the addresses are those of several.
    pub fn here(&self) -> Result<Option<&Node>, ClusterError> {
        self.here_as(std::env::var_os(NODE_VAR))
    }

    fn here_as(&self, said: Option<OsString>) -> Result<Option<&Node>, ClusterError> {
        match said.filter(|said| !said.is_empty()) {
            // No name has characters that stand for what is no text.
            Some(said) => self.meant_by(&said.to_string_lossy()).map(Some),
            None => {
                let ips = ropeway_link::local_addresses().map_err(ClusterError::Addresses)?;
                let ips = ips.into_iter().map(|(_, address)| Place::Ip(address.to_canonical()));
                let macs = ropeway_link::local_hardware_addresses().into_iter().map(|(_, mac)| Place::Ether(mac));
                self.with_one_of(ips.chain(macs))
            }
        }
    }

    fn with_one_of(&self, places: impl Iterator<Item = Place>) -> Result<Option<&Node>, ClusterError> {
        let mut found: Option<&Node> = None;
        for node in places.filter_map(|place| self.at_place(place)) {
            if let Some(first) = found.filter(|first| first.number != node.number) {
                let (first, second) = (first.name.clone(), node.name.clone());
                return Err(ClusterError::SeveralNodes { path: self.path.clone(), first, second });
            }
            found = Some(node);
        }
        Ok(found)
    }
}
