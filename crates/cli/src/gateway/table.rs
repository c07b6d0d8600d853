//! A gateway's links and nodes, as the command line and a file name them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ropeway_engine::gateway::{Neighbour, udp_options};
use ropeway_engine::link::packet::{self, PacketLink};
use ropeway_engine::link::udp::UdpLink;
use ropeway_engine::link::xdp::{self, XdpLink};
use ropeway_engine::link::{Address, Link, hardware_address};
use serde::Deserialize;

use crate::config::Size;

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("a link is NAME=udp:ADDRESS:PORT, NAME=packet:DEVICE or NAME=xdp:DEVICE, not {0}")]
    Link(String),
    #[error(
        "a route is NODE=NAME/ADDRESS, with a number, the name of a link, and ADDRESS:PORT or an Ethernet address, not {0}"
    )]
    Route(String),
    #[error("the command line says twice where {0} is")]
    Twice(String),
    #[error("there is no link {link}, over which node {node} is said to be; --link names links")]
    NoLink { node: u32, link: String },
    #[error("{address} of node {node} is no address of the link {link}")]
    Kind { node: u32, link: String, address: String },
    #[error("cannot open the link {name}: {source}")]
    Open { name: String, source: std::io::Error },
}

impl TableError {
    /// Whether what is said cannot be meant, and not only done.
    pub fn is_usage(&self) -> bool {
        !matches!(self, TableError::Read { .. } | TableError::Syntax { .. } | TableError::Open { .. })
    }
}

/// Links by name, and nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// `udp:ADDRESS:PORT`, `packet:DEVICE` or `xdp:DEVICE`, by name.
    #[serde(default)]
    links: BTreeMap<String, String>,
    /// `NAME/ADDRESS`, by node.
    #[serde(default)]
    routes: BTreeMap<String, String>,
    pub queue: Option<Size>,
    pub mark: Option<Size>,
}

impl Table {
    pub fn read(path: &Path) -> Result<Table, TableError> {
        let path = path.to_owned();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(TableError::Read { path, source }),
        };
        toml::from_str(&text).map_err(|source| TableError::Syntax { path, source: Box::new(source) })
    }

    /// What the command line says, of each link and node once.
    pub fn add(&mut self, links: &[String], routes: &[String]) -> Result<(), TableError> {
        self.links.extend(pairs(links, TableError::Link)?);
        self.routes.extend(pairs(routes, TableError::Route)?);
        Ok(())
    }

    /// Where the nodes are. Links are numbered in the order of their names.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, TableError> {
        let neighbour = |(node, place): (&String, &String)| {
            let wrong = || TableError::Route(format!("{node}={place}"));
            let (name, address) = place.split_once('/').ok_or_else(wrong)?;
            let node: u32 = node.parse().map_err(|_| wrong())?;
            let parsed = parse_address(address).ok_or_else(wrong)?;
            let missing = || TableError::NoLink { node, link: name.into() };
            let link = self.links.keys().position(|known| known == name).ok_or_else(missing)?;
            let is_of_link = match (self.links[name].strip_prefix("udp:"), parsed) {
                // What is no address of a link is said when that is opened.
                (Some(local), Address::Udp(to)) => {
                    local.parse().map_or(true, |local: SocketAddr| local.is_ipv4() == to.is_ipv4())
                }
                (local, parsed) => local.is_some() == matches!(parsed, Address::Udp(_)),
            };
            if !is_of_link {
                return Err(TableError::Kind { node, link: name.into(), address: address.into() });
            }
            Ok(Neighbour { node, link, address: parsed })
        };
        self.routes.iter().map(neighbour).collect()
    }

    /// Opens the links, in the order of their names.
    pub fn open(&self) -> Result<Vec<Box<dyn Link>>, TableError> {
        let open = |(name, text): (&String, &String)| {
            let wrong = || TableError::Link(format!("{name}={text}"));
            let failed = |source| TableError::Open { name: name.clone(), source };
            Ok(match text.split_once(':') {
                Some(("udp", local)) => {
                    let local = local.parse().map_err(|_| wrong())?;
                    Box::new(UdpLink::open(&udp_options(local)).map_err(failed)?) as Box<dyn Link>
                }
                Some(("packet", device)) if !device.is_empty() => {
                    let accept = vec![with_shim()];
                    let options = packet::Options { accept, ..packet::Options::new(device) };
                    Box::new(PacketLink::open(&options).map_err(failed)?)
                }
                Some(("xdp", device)) if !device.is_empty() => {
                    let accept = vec![with_shim()];
                    let options = xdp::Options { accept, ..xdp::Options::new(device) };
                    Box::new(XdpLink::open(&options).map_err(failed)?)
                }
                _ => return Err(wrong()),
            })
        };
        self.links.iter().map(open).collect()
    }
}

/// A gateway takes frames with a shim only: others are for engines of its host.
fn with_shim() -> packet::FieldMatch {
    packet::FieldMatch { offset: 0, width: ropeway_engine::link::Width::One, mask: 0xF0, value: 0xF0 }
}

/// What stands before and behind each `=`.
fn pairs(texts: &[String], wrong: fn(String) -> TableError) -> Result<BTreeMap<String, String>, TableError> {
    let mut pairs = BTreeMap::new();
    for text in texts {
        let (name, value) = text.split_once('=').ok_or_else(|| wrong(text.clone()))?;
        if pairs.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(TableError::Twice(name.into()));
        }
    }
    Ok(pairs)
}

fn parse_address(text: &str) -> Option<Address> {
    text.parse().ok().map(Address::Udp).or_else(|| hardware_address(text).map(Address::Ether))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(links: &[&str], routes: &[&str]) -> Result<Vec<Neighbour>, TableError> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let mut table = Table::default();
        table.add(&owned(links), &owned(routes))?;
        table.neighbours()
    }

    #[test]
    fn nodes_are_behind_the_links_that_their_routes_name() {
        let links = ["b=packet:eth1", "a=udp:10.0.1.201:7700"];
        let neighbours = table(&links, &["1=a/10.0.1.1:7447", "3=b/02:52:57:02:00:03"]).unwrap();
        let address = Address::Udp("10.0.1.1:7447".parse().unwrap());
        assert_eq!(neighbours[0], Neighbour { node: 1, link: 0, address });
        assert_eq!(neighbours[1], Neighbour { node: 3, link: 1, address: Address::Ether([2, 0x52, 0x57, 2, 0, 3]) });
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let links = ["a=udp:10.0.1.201:7700"];
        for (route, named) in [
            ("1=c/10.0.1.1:7447", "no link c"),
            ("1=a/02:52:57:02:00:03", "no address of the link a"),
            ("1=a/[::1]:7447", "no address of the link a"),
            ("1=a", "1=a"),
            ("x=a/10.0.1.1:7447", "x=a"),
            ("1=a/10.0.1.1", "1=a/10.0.1.1"),
            ("4294967296=a/10.0.1.1:1", "4294967296"),
            ("1", "not 1"),
        ] {
            let error = table(&links, &[route]).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(table(&["a"], &[]).unwrap_err().to_string().contains("NAME=udp"));
        let twice = ["1=a/10.0.1.1:7447", "1=a/10.0.1.2:7447"];
        assert!(table(&links, &twice).unwrap_err().to_string().ends_with("twice where 1 is"));
        assert!(
            table(&["a=udp:10.0.1.201:7700", "a=packet:eth0"], &[]).unwrap_err().to_string().ends_with("where a is")
        );
    }

    #[test]
    fn a_file_says_the_same() {
        let text = "queue = \"64 KiB\"\n[links]\na = \"udp:10.0.1.201:7700\"\n[routes]\n1 = \"a/10.0.1.1:7447\"\n";
        let table: Table = toml::from_str(text).unwrap();
        assert_eq!((table.neighbours().unwrap().len(), table.queue), (1, Some(Size(65_536))));
        assert!(toml::from_str::<Table>("[nodes]\n").is_err());
    }
}
