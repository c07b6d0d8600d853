//! Which node has which address.

use crate::failure::{Failure, Outcome};
use ropeway_socket::api::cluster::{self, CLUSTER_VAR, Cluster, Forwarder, LEAST_NETWORKS_OF_GATEWAY, Node, Place};
use ropeway_socket::{Address, PacketAddress};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::SocketAddr;

/// A file of lines `NODE ADDRESS`, or the same inline: `1=10.0.0.1,2=10.0.0.2`.
const NODES_VAR: &str = "ROPEWAY_NODES";
const USUAL_FILE: &str = "/etc/ropeway/nodes";

/// All nodes.
#[derive(Debug)]
pub enum Nodes {
    Listed {
        places: BTreeMap<c_int, Place>,
        /// The device for hardware addresses.
        device: String,
    },
    /// Those of the cluster's description, with the ways to them.
    Described(&'static Cluster),
}

impl Nodes {
    /// What the environment says, the cluster's description, or the usual file.
    ///
    /// # Errors
    /// There is nothing, or it is not understood.
    pub fn read(device: &str) -> Outcome<Nodes> {
        let said = std::env::var(NODES_VAR).ok().filter(|said| !said.is_empty());
        if said.is_none()
            && let Some(cluster) = cluster::get()?
        {
            return Ok(Nodes::Described(cluster));
        }
        let said = said.as_deref().unwrap_or(USUAL_FILE);
        let text = if said.contains('/') {
            std::fs::read_to_string(said).map_err(|error| {
                let what = format!(
                    "cannot read {said}, which says where nodes are: {error} ({NODES_VAR} names another file, {CLUSTER_VAR} the description of a cluster)"
                );
                Failure::new(error.raw_os_error().unwrap_or(libc::EIO), what)
            })?
        } else {
            said.replace(',', "\n").replace('=', " ")
        };
        Nodes::parse(&text, device).map_err(|what| Failure::new(libc::EINVAL, format!("{said}: {what}")))
    }

    /// Takes the part of a node.
    ///
    /// # Errors
    /// The process has another one already.
    pub fn settle(&self, node: c_int) -> Outcome<()> {
        if let Nodes::Described(_) = self {
            cluster::settle(u16::try_from(node).unwrap_or_default())?;
        }
        Ok(())
    }

    /// What a node needs to forward between interfaces for the others.
    ///
    /// # Errors
    /// There are too few, or nobody says what is behind them.
    pub fn forwarder(&self, node: c_int, interfaces: &[&str]) -> Outcome<Forwarder> {
        if interfaces.len() < LEAST_NETWORKS_OF_GATEWAY {
            let what = format!("a node that forwards needs {LEAST_NETWORKS_OF_GATEWAY} interfaces at least");
            return Err(Failure::new(libc::EINVAL, what));
        }
        match self {
            Nodes::Described(cluster) => Ok(Forwarder::prepare(cluster, described(cluster, node)?, interfaces)?),
            Nodes::Listed { .. } => {
                let what = format!(
                    "to forward, a node must know which networks there are: describe the cluster in a file that {CLUSTER_VAR} names, and unset {NODES_VAR}"
                );
                Err(Failure::new(libc::EINVAL, what))
            }
        }
    }

    fn parse(text: &str, device: &str) -> Result<Nodes, String> {
        let mut places = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let wrong =
                || format!("line {}: write NODE ADDRESS, as in `7 10.0.0.7` or `7 02:00:00:00:00:07`", number + 1);
            let (node, place) = match words[..] {
                [] => continue,
                [node, place] => (node.parse::<c_int>().map_err(|_| wrong())?, place),
                _ => return Err(wrong()),
            };
            if places.insert(node, place.parse().map_err(|_| wrong())?).is_some() {
                return Err(format!("line {}: node {node} is there already", number + 1));
            }
        }
        Ok(Nodes::Listed { places, device: device.into() })
    }

    /// The address of a port of a node.
    ///
    /// # Errors
    /// Nobody knows the node.
    pub fn at(&self, node: c_int, port: u16) -> Outcome<Address> {
        let (places, device) = match self {
            Nodes::Listed { places, device } => (places, device),
            Nodes::Described(cluster) => {
                return Ok(Address::Node { node: described(cluster, node)?.number.into(), port });
            }
        };
        let missing = || unknown(node, &format!("a line in the file that {NODES_VAR} names"));
        Ok(match *places.get(&node).ok_or_else(missing)? {
            Place::Ip(ip) => Address::Udp(SocketAddr::new(ip, port)),
            Place::Ether(mac) => Address::Packet(PacketAddress { device: device.clone(), mac: Some(mac), port }),
        })
    }

    /// Any port of this node.
    ///
    /// # Errors
    /// It is not known.
    pub fn own(&self, node: c_int) -> Outcome<Address> {
        self.at(node, 0)
    }

    /// The node at an address; -1 if it is nobody's.
    pub fn node_of(&self, address: &Address) -> c_int {
        let (places, _) = match (self, address) {
            (Nodes::Listed { places, device }, _) => (places, device),
            (Nodes::Described(_), Address::Node { node, .. }) => return c_int::try_from(*node).unwrap_or(-1),
            (Nodes::Described(cluster), address) => {
                let known = match address {
                    Address::Packet(address) => address.mac.and_then(|mac| cluster.at_place(Place::Ether(mac))),
                    address => address.socket_addr().and_then(|address| cluster.at(address.ip())),
                };
                return known.map_or(-1, |node| node.number.into());
            }
        };
        let place = match address {
            Address::Udp(address) => Some(Place::Ip(address.ip())),
            Address::Packet(address) => address.mac.map(Place::Ether),
            Address::Sim { .. } | Address::Node { .. } => None,
        };
        places.iter().find(|(_, known)| Some(**known) == place).map_or(-1, |(node, _)| *node)
    }
}

fn described(cluster: &Cluster, node: c_int) -> Outcome<&Node> {
    let known = u16::try_from(node).ok().and_then(|number| cluster.node(number));
    known.ok_or_else(|| unknown(node, &format!("a [[node]] in {}", cluster.path().display())))
}

fn unknown(node: c_int, needed: &str) -> Failure {
    Failure::new(libc::EHOSTUNREACH, format!("nobody says where node {node} is: give it {needed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_number_and_by_address() {
        let text = "# ours\n1 10.0.0.1\n2 fd00::2  # the second\n\n3 02:00:00:00:00:03\n";
        let nodes = Nodes::parse(text, "eth0").unwrap();
        for (node, expected) in [(1, "10.0.0.1:7"), (2, "[fd00::2]:7"), (3, "eth0/02:00:00:00:00:03:7")] {
            let address = nodes.at(node, 7).unwrap();
            assert_eq!((address.to_string().as_str(), nodes.node_of(&address)), (expected, node));
        }
        assert_eq!(nodes.at(4, 7).unwrap_err().errno, libc::EHOSTUNREACH);
        assert_eq!(nodes.node_of(&"10.0.0.9:7".parse().unwrap()), -1);
    }

    #[test]
    fn what_is_not_understood_is_named_by_its_line() {
        for text in [
            "1",
            "1 10.0.0.1 more",
            "one 10.0.0.1",
            "1 host",
            "1 10.0.0.1\n1 10.0.0.2",
            "1 *",
            "1 eth0/02:00:00:00:00:03",
        ] {
            assert!(Nodes::parse(text, "eth0").unwrap_err().starts_with("line "), "{text}");
        }
    }
}
