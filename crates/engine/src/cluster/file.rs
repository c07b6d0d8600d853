//! The form of the file, and what has to hold beyond it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::{Cluster, ClusterError, LEAST_NETWORKS_OF_GATEWAY, Node, Place};
use crate::key_file::Choice;

/// The longest name of a node: what a label of DNS has room for.
const MOST_NAME_BYTES: usize = 63;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    key_file: Option<PathBuf>,
    trusted: Option<Spanned<bool>>,
    #[serde(default)]
    bonded: bool,
    #[serde(default)]
    node: Vec<FileNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    number: Spanned<u16>,
    name: Spanned<String>,
    addresses: Spanned<BTreeMap<Spanned<String>, Spanned<String>>>,
    gateway: Option<Spanned<u16>>,
}

/// Of what kinds the addresses are that were seen so far.
#[derive(Default)]
struct Kinds {
    /// Whether a network has hardware addresses.
    by_network: BTreeMap<String, bool>,
    /// Whether all IP addresses are of IPv4.
    is_v4: Option<bool>,
}

/// What is wrong, and at which byte of the text.
type Wrong = (usize, String);

impl Cluster {
    /// The cluster that `text` describes; `path` is where it stands.
    pub(super) fn parse(text: &str, path: &Path) -> Result<Cluster, ClusterError> {
        let file: File = toml::from_str(text)
            .map_err(|source| ClusterError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        file.check(path).map_err(|(at, what)| {
            let line = text[..at.min(text.len())].lines().count().max(1);
            ClusterError::Value { path: path.to_owned(), line, what }
        })
    }

    fn add(&mut self, given: FileNode, kinds: &mut Kinds) -> Result<(), Wrong> {
        let (number_at, name_at, addresses_at) =
            (given.number.span().end, given.name.span().end, given.addresses.span().start + 1);
        let (number, name) = (given.number.into_inner(), given.name.into_inner());
        let node_at = self.nodes.len();
        if number == 0 {
            return Err((number_at, "nodes are numbered from 1 to 65535".into()));
        }
        if self.by_number.insert(number, node_at).is_some() {
            return Err((number_at, format!("there is another node {number}; give each a number of its own")));
        }
        check_name(&name).map_err(|what| (name_at, what))?;
        if self.by_name.insert(name.clone(), node_at).is_some() {
            return Err((name_at, format!("there is another node `{name}`; give each a name of its own")));
        }
        let mut addresses = BTreeMap::new();
        for (network, address) in given.addresses.into_inner() {
            let at = address.span().end;
            let place = place_of(address.get_ref()).map_err(|what| (at, what))?;
            let is_ether = matches!(place, Place::Ether(_));
            if *kinds.by_network.entry(network.get_ref().clone()).or_insert(is_ether) != is_ether {
                let what = format!(
                    "{place} is of another kind than the addresses before it on `{}`: one network has IP addresses or hardware addresses",
                    network.get_ref()
                );
                return Err((at, what));
            }
            if let Place::Ip(ip) = place
                && *kinds.is_v4.get_or_insert(ip.is_ipv4()) != ip.is_ipv4()
            {
                return Err((at, format!("{place} is of another kind than those before it: use IPv4 or IPv6 in all")));
            }
            if self.by_address.insert(place, node_at).is_some() {
                return Err((
                    at,
                    format!("{place} is there already; every address belongs to one node and one network"),
                ));
            }
            addresses.insert(network.into_inner(), place);
        }
        if addresses.is_empty() {
            return Err((
                addresses_at,
                format!("`{name}` has no address: write addresses = {{ NETWORK = \"10.0.0.1\" }}"),
            ));
        }
        if let Some(gateway) = &given.gateway {
            let at = gateway.span().end;
            if *gateway.get_ref() == 0 {
                return Err((at, "a gateway forwards at a UDP port of its own, from 1 to 65535".into()));
            }
            if addresses.values().filter(|place| matches!(place, Place::Ip(_))).count() < LEAST_NETWORKS_OF_GATEWAY {
                return Err((
                    at,
                    format!("`{name}` has one IP address only: a gateway joins two IP networks at least"),
                ));
            }
        }
        let gateway = given.gateway.map(Spanned::into_inner);
        self.nodes.push(Node { number, name, addresses, gateway });
        Ok(())
    }
}

impl File {
    fn check(self, path: &Path) -> Result<Cluster, Wrong> {
        let keys = match (self.key_file, self.trusted.filter(|trusted| *trusted.get_ref())) {
            (Some(_), Some(trusted)) => {
                return Err((
                    trusted.span().end,
                    "`trusted` means no key, so it cannot stand beside `key_file`".into(),
                ));
            }
            (Some(key_file), None) => Some(Choice::File(path.parent().unwrap_or(Path::new("")).join(key_file))),
            (None, Some(_)) => Some(Choice::Trusted),
            (None, None) => None,
        };
        let mut cluster = Cluster {
            path: path.to_owned(),
            nodes: Vec::new(),
            by_number: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_address: BTreeMap::new(),
            bonded: self.bonded,
            keys,
        };
        let mut kinds = Kinds::default();
        // Who is alone on a network is mostly a mistake in its name.
        let mut members: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for node in self.node {
            for network in node.addresses.get_ref().keys() {
                members.entry(network.get_ref().clone()).or_insert((0, network.span().end)).0 += 1;
            }
            cluster.add(node, &mut kinds)?;
        }
        if cluster.nodes.is_empty() {
            return Err((0, "there is no node: each is a table [[node]] with number, name and addresses".into()));
        }
        match members.iter().find(|(_, (count, _))| *count == 1) {
            Some((network, (_, at))) => {
                let what =
                    format!("nobody else is on the network `{network}`: correct the name, or leave the address out");
                Err((*at, what))
            }
            None => Ok(cluster),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    if begins && name.len() <= MOST_NAME_BYTES && name.bytes().all(is_known) && !name.eq_ignore_ascii_case("localhost")
    {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no name for a node: 1 to {MOST_NAME_BYTES} letters, digits, `-`, `_` and `.`, beginning with a letter, and not `localhost`"
    ))
}

fn place_of(text: &str) -> Result<Place, String> {
    let place = text.parse::<Place>().map_err(|error| error.to_string())?;
    let is_of_one = match place {
        Place::Ether(mac) => mac != [0; 6] && mac[0] & 1 == 0,
        Place::Ip(ip) => {
            let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            !ip.is_unspecified() && !ip.is_multicast() && !is_link_local
        }
    };
    is_of_one
        .then_some(place)
        .ok_or_else(|| format!("{place} is not the address of one host everywhere in the cluster"))
}
