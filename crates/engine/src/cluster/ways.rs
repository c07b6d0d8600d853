//! How nodes reach each other: directly where they share a network, else through the gateways that are fewest steps away.
//!
//! All nodes and gateways have the same file, and so the same picture: packets never go in circles.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ropeway_link::Address;

use super::{Cluster, ClusterError, Node};
use crate::core::LinkId;
use crate::engine::Target;
use crate::gateway::Host;
use crate::routes::{MOST_WAYS, Way};
use crate::shimmed::MOST_HOPS;

/// One way from a node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// An address of its own.
    Direct(IpAddr),
    /// An address of its own on an Ethernet, where the one who sends has the first of the two.
    Ether([u8; 6], [u8; 6]),
    /// A gateway's.
    Through(SocketAddr),
}

impl Hop {
    /// The way to the engine at a UDP port of the other node, which gateways know by its `number`. `None`: frames lead there, and no UDP link.
    pub fn over_udp(&self, link: LinkId, port: u16, number: u32) -> Option<Way> {
        let target = |address| Target { link, address: Address::Udp(address) };
        match *self {
            Hop::Direct(ip) => Some(Way::Direct(target(SocketAddr::new(ip, port)))),
            Hop::Ether(..) => None,
            Hop::Through(gateway) => Some(Way::Through(target(gateway), number)),
        }
    }
}

/// What a gateway opens, and for whom it forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Where it receives, in the order of the networks' names.
    pub links: Vec<SocketAddr>,
    pub hosts: Vec<Host>,
}

/// The IP networks that two nodes share, and the second one's addresses there.
fn shared<'a>(one: &'a Node, other: &'a Node) -> impl Iterator<Item = (&'a str, IpAddr)> {
    other.ips().filter(|(network, _)| one.addresses.contains_key(*network))
}

fn share_one(one: &Node, other: &Node) -> bool {
    shared(one, other).next().is_some()
}

/// Gateways by number, and how many of them a packet for somebody passes from each on, itself included.
type Steps = BTreeMap<u16, u8>;

impl Cluster {
    fn gateways(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.gateway.is_some())
    }

    fn steps_to(&self, to: &Node) -> Steps {
        let mut steps = Steps::new();
        let mut reached = vec![to];
        for step in 1..=MOST_HOPS {
            let is_next = |gateway: &&Node| {
                let is_new = gateway.number != to.number && !steps.contains_key(&gateway.number);
                is_new && reached.iter().any(|node| share_one(gateway, node))
            };
            let next: Vec<&Node> = self.gateways().filter(is_next).collect();
            steps.extend(next.iter().map(|gateway| (gateway.number, step)));
            reached = next;
        }
        steps
    }

    /// The gateways on a network of `from` from which it is fewest steps to `to`, in the order of the file.
    fn next_gateways(&self, from: &Node, to: &Node) -> Vec<&Node> {
        let steps = self.steps_to(to);
        let is_near = |gateway: &&Node| gateway.number != from.number && share_one(from, gateway);
        let near: Vec<(&Node, u8)> = self
            .gateways()
            .filter(is_near)
            .filter_map(|gateway| Some((gateway, *steps.get(&gateway.number)?)))
            .collect();
        let least = near.iter().map(|(_, steps)| *steps).min();
        near.into_iter().filter(|(_, steps)| Some(*steps) == least).map(|(gateway, _)| gateway).collect()
    }

    /// The ways from a node to another one, of which the first is the default: all IP networks that they share; or, where there is none, one Ethernet; or gateways. A
    /// host that is none of the nodes (`None`) tries all addresses.
    ///
    /// # Errors
    /// There is no way.
    pub fn ways(&self, from: Option<&Node>, to: &Node) -> Result<Vec<Hop>, ClusterError> {
        let no_way = |from: &str| {
            let (path, from, to) = (self.path.clone(), from.to_owned(), to.name.clone());
            Err(ClusterError::NoWay { path, from, to })
        };
        let Some(from) = from else {
            let ways: Vec<Hop> = to.ips().map(|(_, address)| Hop::Direct(address)).collect();
            return if ways.is_empty() { no_way("this host, which is no node") } else { Ok(ways) };
        };
        let mut ways: Vec<Hop> = shared(from, to).map(|(_, address)| Hop::Direct(address)).collect();
        if from.number == to.number {
            ways.truncate(1);
        }
        if ways.is_empty() {
            let beside = |(network, own)| {
                to.hardware_addresses().find(|(other, _)| *other == network).map(|(_, peer)| Hop::Ether(own, peer))
            };
            ways.extend(from.hardware_addresses().find_map(beside));
        }
        if ways.is_empty() {
            let mut gateways = self.next_gateways(from, to);
            if gateways.is_empty() {
                return no_way(&from.name);
            }
            // Not everybody's default is the same gateway; but that of two nodes is the same in both directions.
            let first = (usize::from(from.number) + usize::from(to.number)) % gateways.len();
            gateways.rotate_left(first);
            ways =
                gateways.into_iter().filter_map(|gateway| at(from, gateway)).map(|(_, at)| Hop::Through(at)).collect();
        }
        ways.truncate(MOST_WAYS);
        Ok(ways)
    }

    /// What a gateway needs to know.
    ///
    /// # Errors
    /// It is none.
    pub fn forwarding(&self, gateway: &Node) -> Result<Forwarding, ClusterError> {
        let Some(port) = gateway.gateway else {
            return Err(ClusterError::NoGateway { path: self.path.clone(), name: gateway.name.clone() });
        };
        let links = gateway.ips().map(|(_, address)| SocketAddr::new(address, port)).collect();
        // Gateways beside each other hand on to different ones, so that the end of one is the end of one way only.
        let rank = self.gateways().take_while(|other| other.number != gateway.number).count();
        let host = |node: &Node| {
            let (network, address) = match shared(gateway, node).next() {
                Some((network, address)) => (network, SocketAddr::new(address, 0)),
                None => {
                    let next = self.next_gateways(gateway, node);
                    at(gateway, next.get(rank.checked_rem(next.len())?)?)?
                }
            };
            let link = gateway.ips().position(|(known, _)| known == network)?;
            Some(Host { number: node.number, link, address: Address::Udp(address) })
        };
        let others = self.nodes.iter().filter(|node| node.number != gateway.number);
        Ok(Forwarding { links, hosts: others.filter_map(host).collect() })
    }
}

/// Where a gateway is for a node beside it: the first network that they share, and its address there.
fn at<'a>(from: &'a Node, gateway: &'a Node) -> Option<(&'a str, SocketAddr)> {
    let (network, address) = shared(from, gateway).next()?;
    Some((network, SocketAddr::new(address, gateway.gateway?)))
}
