//! The cluster that this process belongs to, as its description says (docs/configuration.md, The cluster file): which node this is, how others are reached
//! from here, and forwarding for them. The description itself is `ropeway_engine::cluster`'s.

use super::per_process::PerProcess;
use once_cell::race::OnceBox;
use ropeway_engine::ClusterKeys;
use ropeway_engine::cluster::{ClusterError, Forwarding, Hop, NODE_VAR};
use ropeway_engine::gateway::{Gateway, Limits, udp_options};
use ropeway_engine::key_file::{self, Choice, KeyError};
use ropeway_engine::link::udp::UdpLink;
use ropeway_engine::link::{self, Link, local_addresses, local_hardware_addresses};
use ropeway_engine::thread::{self, USUAL_STACK_BYTES};
use ropeway_shm::fork::Birthmark;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

pub use ropeway_engine::cluster::{CLUSTER_VAR, Cluster, LEAST_NETWORKS_OF_GATEWAY, Node, Place};

/// The number of the node that this process is, once that is settled; `None`: it is none of the cluster's.
static OWN: PerProcess<OnceLock<Option<u16>>> = PerProcess::new();

fn invalid(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what)
}

pub(super) fn of_cluster(error: ClusterError) -> io::Error {
    let kind = match error {
        ClusterError::NoWay { .. } => ErrorKind::HostUnreachable,
        _ => ErrorKind::InvalidInput,
    };
    io::Error::new(kind, error.to_string())
}

/// The cluster of the file that `ROPEWAY_CLUSTER` names, or of the usual one. It is kept once it was read; `None`: there is none.
///
/// # Errors
/// The file cannot be used.
pub fn get() -> io::Result<Option<&'static Cluster>> {
    // Without a lock, as the environment.
    static CLUSTER: OnceBox<Result<Option<Cluster>, String>> = OnceBox::new();
    let read = CLUSTER.get_or_init(|| Box::new(Cluster::from_environment().map_err(|error| error.to_string())));
    read.as_ref().map(Option::as_ref).map_err(|what| invalid(what.clone()))
}

/// The cluster, for what stays on this host and may do without: a usual file that cannot be used is nobody's business there. One that is named is.
///
/// # Errors
/// The file that `ROPEWAY_CLUSTER` names cannot be used.
pub(super) fn on_loopback() -> io::Result<Option<&'static Cluster>> {
    unless_usual(get(), Cluster::is_named())
}

fn unless_usual<T>(read: io::Result<Option<T>>, is_named: bool) -> io::Result<Option<T>> {
    if is_named { read } else { Ok(read.unwrap_or_default()) }
}

/// The cluster, where one is needed for `what`.
pub(super) fn needed(what: &str) -> io::Result<&'static Cluster> {
    let missing = || invalid(format!("{what} needs the description of a cluster: name the file in {CLUSTER_VAR}"));
    get()?.ok_or_else(missing)
}

/// The node of that name. What no node can be called needs no cluster.
///
/// # Errors
/// The file cannot be used.
pub fn named(name: &str) -> io::Result<Option<&'static Node>> {
    if name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") {
        return Ok(None);
    }
    Ok(get()?.and_then(|cluster| cluster.named(name)))
}

/// The node that this process is: the one that was [settled](settle), that `ROPEWAY_NODE` names, or that has an address of this host.
///
/// # Errors
/// The file cannot be used, or does not say.
pub fn own() -> io::Result<Option<&'static Node>> {
    let Some(cluster) = get()? else { return Ok(None) };
    let place = OWN.get_or_make(OnceLock::new)?.value;
    let number = match place.get() {
        Some(number) => *number,
        None => {
            let here = cluster.here().map_err(of_cluster)?;
            *place.get_or_init(|| here.map(|node| node.number))
        }
    };
    Ok(number.and_then(|number| cluster.node(number)))
}

/// Says which node this process is, before its first socket.
///
/// # Errors
/// There is no such node, or it is another one already.
pub fn settle(number: u16) -> io::Result<&'static Node> {
    let cluster = needed("to be a node")?;
    let missing = || invalid(format!("{} has no node {number}", cluster.path().display()));
    let node = cluster.node(number).ok_or_else(missing)?;
    let settled = OWN.get_or_make(OnceLock::new)?.value.get_or_init(|| Some(number));
    match settled {
        Some(settled) if *settled == number => Ok(node),
        _ => Err(invalid(format!(
            "this process is not {}: it has had sockets as another node, or as none of the cluster's",
            node.name
        ))),
    }
}

/// The ways from here to a node.
pub(super) fn ways_to(number: u32) -> io::Result<Vec<Hop>> {
    let cluster = needed("to reach a node by its number")?;
    let node = u16::try_from(number).ok().and_then(|number| cluster.node(number));
    let missing = || invalid(format!("{} has no node {number}", cluster.path().display()));
    cluster.ways(own()?, node.ok_or_else(missing)?).map_err(of_cluster)
}

/// This host's device that has a hardware address of the cluster's.
///
/// # Errors
/// It has none.
pub(super) fn device_of(mac: [u8; 6]) -> io::Result<String> {
    let found = local_hardware_addresses().into_iter().find(|(_, known)| *known == mac);
    let missing = || {
        let what =
            format!("no device of this host has the address {} that the cluster has for it", link::Address::Ether(mac));
        io::Error::new(ErrorKind::NotFound, what)
    };
    found.map(|(device, _)| device).ok_or_else(missing)
}

/// The address at which this node has its sockets: its only one, or all of its host.
pub(super) fn own_ip() -> io::Result<IpAddr> {
    match get()? {
        Some(cluster) => Ok(cluster.socket_ip(own()?)),
        None => Ok(Ipv4Addr::UNSPECIFIED.into()),
    }
}

/// The node by which gateways know what is bound to an address of this host, if there are gateways: this one.
///
/// # Errors
/// As [`own`].
pub fn behind_gateways(local: IpAddr) -> io::Result<Option<&'static Node>> {
    let is_node = !local.is_loopback() || on_loopback()?.is_some_and(|cluster| cluster.at(local).is_some());
    if is_node && get()?.is_some_and(Cluster::has_gateways) { own() } else { Ok(None) }
}

/// The keys of an engine, or why it does without.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    pub keys: Option<Arc<ClusterKeys>>,
    /// Why there are none, if there may be some for others.
    pub keyless: Option<Arc<str>>,
}

/// What a program's own configuration says about keys.
static CHOICE: OnceBox<Choice> = OnceBox::new();

/// Says what holds about keys where the environment does not, before the first socket: it goes before the cluster's description.
///
/// # Errors
/// Something else was said before.
pub fn choose_keys(choice: Choice) -> io::Result<()> {
    if *CHOICE.get_or_init(|| Box::new(choice.clone())) == choice {
        return Ok(());
    }
    Err(invalid("this process has been told before where its keys are".into()))
}

/// The keys that the environment names, the [choice](choose_keys) of the program, or the cluster's description. Within one host none is needed unless one was chosen, and the cluster's is not for
/// users who cannot read it.
///
/// # Errors
/// There are none, and no word that none is needed; or they cannot be read.
pub fn keys(stays_here: bool) -> io::Result<Keys> {
    let without = |why: Option<String>| Ok(Keys { keys: None, keyless: why.map(Arc::from) });
    let is_chosen = CHOICE.get().is_some() || Choice::from_environment().is_ok_and(|choice| choice.is_some());
    let configured = if is_chosen {
        CHOICE.get().cloned()
    } else {
        let cluster = if stays_here { on_loopback()? } else { get()? };
        cluster.and_then(Cluster::keys)
    };
    match key_file::decide(configured) {
        Err(KeyError::Undecided) if stays_here => without(get().err().map(|error| error.to_string())),
        Err(KeyError::Read { path, source })
            if stays_here && !is_chosen && source.kind() == io::ErrorKind::PermissionDenied =>
        {
            without(Some(KeyError::Read { path, source }.to_string()))
        }
        Ok(keys) => Ok(Keys { keys, keyless: None }),
        Err(error) => Err(io::Error::new(io::ErrorKind::PermissionDenied, error)),
    }
}

/// Makes this process forward between those networks of its node that are on these interfaces, at the node's gateway port, until it ends or one of the
/// devices goes.
///
/// # Errors
/// As [`Forwarder::prepare`]; or this process is no node.
pub fn forward(interfaces: &[&str]) -> io::Result<()> {
    let cluster = needed("to forward for other nodes")?;
    let missing = || {
        let what = format!("this host is no node of {}, so it cannot forward for others", cluster.path().display());
        invalid(format!("{what}; say which it is with {NODE_VAR}"))
    };
    Forwarder::prepare(cluster, own()?.ok_or_else(missing)?, interfaces)?.start();
    Ok(())
}

/// Everything that forwarding needs, which [`Forwarder::start`] cannot fail for want of any more. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct Forwarder {
    go: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    birthmark: Birthmark,
}

impl Forwarder {
    /// For those networks of a node that are on these interfaces.
    ///
    /// # Errors
    /// The node is no gateway, or not on two networks there; the port is taken, or this host has not the addresses.
    pub fn prepare(cluster: &Cluster, node: &Node, interfaces: &[&str]) -> io::Result<Forwarder> {
        let mut forwarding = cluster.forwarding(node).map_err(of_cluster)?;
        keep_those_on(&mut forwarding, node, interfaces, &local_addresses()?)?;
        let open = |address| Ok(Box::new(UdpLink::open(&udp_options(address))?) as Box<dyn Link>);
        let links = forwarding.links.iter().copied().map(open).collect::<io::Result<Vec<_>>>()?;
        let gateway = Gateway::with_hosts(links, &[], &forwarding.hosts, Limits::default())
            .map_err(|error| invalid(error.to_string()))?;
        Forwarder::waiting(move || {
            // Without an abstract address it is not to be seen, and works all the same.
            let _ = gateway.tell();
            // A device is gone: what went over it finds other gateways.
            let _ = gateway.run();
        })
    }

    /// A thread that does so once it is told to.
    fn waiting(forward: impl FnOnce() + Send + 'static) -> io::Result<Forwarder> {
        let birthmark = Birthmark::new()?;
        let (go, told) = channel();
        let run = move || {
            if told.recv().is_ok() {
                forward();
            }
        };
        let thread = thread::spawn("ropeway-gateway", USUAL_STACK_BYTES, run)?;
        Ok(Forwarder { go: Some(go), thread: Some(thread), birthmark })
    }

    pub fn start(mut self) {
        if let Some(go) = self.go.take() {
            // The thread waits for it, and for nothing else.
            let _ = go.send(());
        }
        self.thread = None;
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let (go, thread) = (self.go.take(), self.thread.take());
        if self.birthmark.is_inherited() {
            // The thread is the parent's, and here there is none to wait for.
            std::mem::forget((go, thread));
            return;
        }
        drop(go);
        // So that its ports are free afterwards.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Leaves those networks out that are on other interfaces.
fn keep_those_on(
    forwarding: &mut Forwarding,
    node: &Node,
    interfaces: &[&str],
    present: &[(String, IpAddr)],
) -> io::Result<()> {
    let is_on = |interface: &str, address: IpAddr| {
        present.iter().any(|(device, known)| device == interface && known.to_canonical() == address)
    };
    for interface in interfaces {
        if !forwarding.links.iter().any(|link| is_on(interface, link.ip())) {
            return Err(invalid(format!(
                "{interface} has none of the addresses that {} has in the cluster",
                node.name
            )));
        }
    }
    let is_kept: Vec<bool> =
        forwarding.links.iter().map(|link| interfaces.iter().any(|interface| is_on(interface, link.ip()))).collect();
    let count = is_kept.iter().filter(|is_kept| **is_kept).count();
    if count < LEAST_NETWORKS_OF_GATEWAY {
        return Err(invalid(format!(
            "to forward, {} needs interfaces on {LEAST_NETWORKS_OF_GATEWAY} of its networks, and got {count}",
            node.name
        )));
    }
    forwarding.hosts.retain(|host| is_kept[host.link]);
    for host in &mut forwarding.hosts {
        host.link = is_kept[..host.link].iter().filter(|is_kept| **is_kept).count();
    }
    let mut kept = is_kept.iter();
    forwarding.links.retain(|_| *kept.next().unwrap_or(&false));
    Ok(())
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod in_children;

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_engine::gateway::Host;
    use ropeway_engine::link::Address;
    use std::collections::BTreeMap;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn three_networks() -> (Forwarding, Node) {
        let networks = [("a", "10.0.1.9"), ("b", "10.0.2.9"), ("c", "10.0.3.9")];
        let addresses: BTreeMap<String, Place> =
            networks.iter().map(|(name, address)| ((*name).to_owned(), Place::Ip(ip(address)))).collect();
        let host = |number, link, address: &str| {
            let address = Address::Udp(std::net::SocketAddr::new(ip(address), 0));
            Host { number, link, address }
        };
        let links = networks.iter().map(|(_, address)| std::net::SocketAddr::new(ip(address), 7700)).collect();
        let hosts = vec![host(1, 0, "10.0.1.1"), host(2, 1, "10.0.2.2"), host(3, 2, "10.0.3.3")];
        (Forwarding { links, hosts }, Node { number: 9, name: "n9".into(), addresses, gateway: Some(7700) })
    }

    #[test]
    fn on_loopback_a_usual_file_that_cannot_be_used_is_done_without() {
        let failed = || Err::<Option<()>, _>(invalid("mend it".into()));
        assert!(unless_usual(failed(), false).unwrap().is_none());
        assert!(unless_usual(failed(), true).is_err(), "somebody named it");
        for is_named in [false, true] {
            assert_eq!(unless_usual(Ok(Some(())), is_named).unwrap(), Some(()));
        }
    }

    #[test]
    fn networks_on_other_interfaces_are_left_out() {
        let (whole, node) = three_networks();
        let present: Vec<(String, IpAddr)> =
            [("eth0", "10.0.1.9"), ("eth1", "10.0.2.9"), ("eth2", "10.0.3.9"), ("lo", "127.0.0.1")]
                .iter()
                .map(|(device, address)| ((*device).to_owned(), ip(address)))
                .collect();
        let kept = |interfaces: &[&str]| {
            let mut forwarding = whole.clone();
            keep_those_on(&mut forwarding, &node, interfaces, &present).map(|()| forwarding)
        };
        assert_eq!(kept(&["eth0", "eth1", "eth2"]).unwrap(), whole);
        let two = kept(&["eth2", "eth0"]).unwrap();
        assert_eq!((&two.links[..], two.hosts.len()), (&[whole.links[0], whole.links[2]][..], 2));
        assert_eq!((two.hosts[1].number, two.hosts[1].link), (3, 1));
        assert!(kept(&["eth0"]).unwrap_err().to_string().contains("got 1"));
        assert!(kept(&["eth0", "lo"]).unwrap_err().to_string().starts_with("lo has none"));
    }
}
