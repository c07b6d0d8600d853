//! `ropeway gateway`: forwards packets between hosts that do not reach each other, and tells what it has forwarded. docs/engine.md describes it.
//!
//! [`table`] is what the command line and the file say. Forwarding is the engine's.

mod table;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use ropeway_engine::cluster::{Cluster, ClusterError};
use ropeway_engine::control;
use ropeway_engine::gateway::{self, Gateway, GatewayError, Host, Limits, Neighbour, Shown, udp_options};
use ropeway_engine::link::Link;
use ropeway_engine::link::udp::UdpLink;

use crate::config::Size;
use crate::output;
use crate::output::{EXIT_USAGE, tell};
use table::{Table, TableError};

#[derive(clap::Args, Debug)]
#[command(after_help = "ropeway gateway --link inner=udp:10.0.1.201:7700 --link outer=udp:10.0.2.201:7700 \\\n    \
                  --route 1=inner/10.0.1.1:7447 --route 3=outer/10.0.2.3:7447\n\
                  ropeway gateway --cluster /etc/ropeway/cluster.toml")]
pub struct Args {
    /// A link: its name, and `udp:ADDRESS:PORT`, `packet:DEVICE` or `xdp:DEVICE`
    #[arg(long, value_name = "NAME=LINK")]
    link: Vec<String>,
    /// Where a node is: its number, a link's name, and its address there (ADDRESS:PORT, or the Ethernet address)
    #[arg(long, value_name = "NODE=NAME/ADDRESS")]
    route: Vec<String>,
    /// A file with `[links]`, `[routes]`, `queue` and `mark`; what the command line says comes on top
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The description of the cluster, which says it all; without any of these the one that ROPEWAY_CLUSTER names, or /etc/ropeway/cluster.toml
    #[arg(long, value_name = "FILE", conflicts_with_all = ["link", "route", "config"])]
    cluster: Option<PathBuf>,
    /// Which of the cluster's nodes this is [default: ROPEWAY_NODE, or the one that has an address of this host]
    #[arg(long, value_name = "NUMBER|NAME", conflicts_with_all = ["link", "route", "config"])]
    node: Option<String>,
    /// Bytes that wait for one neighbour, at most [default: 256 KiB]
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// With so many bytes waiting packets are marked [default: a quarter of the queue]
    #[arg(long, value_name = "SIZE")]
    mark: Option<Size>,
    /// Show what this user's gateways (root: anybody's) in this network namespace have counted, and leave
    #[arg(long, conflicts_with_all = ["link", "route", "config", "cluster", "node", "queue", "mark"])]
    show: bool,
    /// With --show: as JSON
    #[arg(long, requires = "show")]
    json: bool,
}

pub fn main(args: &Args) -> ExitCode {
    let result = if args.show { show(args.json).map_err(Error::Show) } else { forward(args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("ropeway gateway: {error}");
            if error.is_usage() { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Why a gateway does not run.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("--json is for --show")]
    Json,
    #[error(
        "a queue of {queue_bytes} bytes has no room for a packet, which may be of {packet_bytes} bytes on these links"
    )]
    Queue { queue_bytes: usize, packet_bytes: usize },
    #[error("{0}")]
    Show(String),
    #[error("nothing says what to forward between: name --link and --route, or a --cluster")]
    Nothing,
    #[error("{0}: this host has the address of none of its nodes; say with --node which it is")]
    NoNode(PathBuf),
    #[error("cannot receive at {address}, where the cluster has this gateway: {source}")]
    Open { address: std::net::SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    Engine(#[from] ropeway_engine::Error),
}

impl Error {
    /// Whether it is the command line that cannot be meant.
    fn is_usage(&self) -> bool {
        match self {
            Error::Table(error) => error.is_usage(),
            Error::Nothing | Error::Json | Error::Queue { .. } => true,
            _ => false,
        }
    }
}

/// Between what, and for whom.
struct Plan {
    links: Vec<Box<dyn Link>>,
    neighbours: Vec<Neighbour>,
    hosts: Vec<Host>,
    queue: Option<Size>,
    mark: Option<Size>,
}

/// What the command line says, with the file that it names.
fn planned(args: &Args) -> Result<Plan, Error> {
    if args.link.is_empty() && args.route.is_empty() && args.config.is_none() {
        return planned_by_cluster(args);
    }
    let mut table = match &args.config {
        Some(path) => Table::read(path)?,
        None => Table::default(),
    };
    table.add(&args.link, &args.route)?;
    let (neighbours, links) = (table.neighbours()?, table.open()?);
    Ok(Plan { links, neighbours, hosts: Vec::new(), queue: table.queue, mark: table.mark })
}

fn planned_by_cluster(args: &Args) -> Result<Plan, Error> {
    let cluster = match &args.cluster {
        Some(path) => Cluster::read(path)?,
        None => Cluster::from_environment()?.ok_or(Error::Nothing)?,
    };
    let node = match &args.node {
        Some(said) => cluster.meant_by(said)?,
        None => cluster.here()?.ok_or_else(|| Error::NoNode(cluster.path().to_owned()))?,
    };
    let forwarding = cluster.forwarding(node)?;
    let open = |address| match UdpLink::open(&udp_options(address)) {
        Ok(link) => Ok(Box::new(link) as Box<dyn Link>),
        Err(source) => Err(Error::Open { address, source }),
    };
    let links = forwarding.links.into_iter().map(open).collect::<Result<_, _>>()?;
    Ok(Plan { links, neighbours: Vec::new(), hosts: forwarding.hosts, queue: None, mark: None })
}

fn forward(args: &Args) -> Result<(), Error> {
    if args.json {
        // clap asks for no --show, as that conflicts with the other options.
        return Err(Error::Json);
    }
    let Plan { links, neighbours, hosts, queue, mark } = planned(args)?;
    let (queue, mark) = (args.queue.or(queue), args.mark.or(mark));
    let usual = Limits::default();
    let queue_bytes = queue.map_or(usual.queue_bytes, |size| size.0 as usize);
    let packet_bytes = links.iter().map(|link| link.max_packet()).max().unwrap_or_default();
    if queue_bytes < packet_bytes {
        return Err(Error::Queue { queue_bytes, packet_bytes });
    }
    let mark_bytes = mark.map_or(queue_bytes / 4, |size| size.0 as usize);
    let (nodes, count) = (neighbours.len() + hosts.len(), links.len());
    let gateway = Gateway::with_hosts(links, &neighbours, &hosts, Limits { queue_bytes, mark_bytes })?;
    if let Err(error) = gateway.tell() {
        tell!("ropeway gateway: cannot be asked what it has counted: {error}");
    }
    tell!("ropeway gateway: forwarding for {nodes} nodes over {count} links");
    gateway.run()?;
    Ok(())
}

fn show(json: bool) -> Result<(), String> {
    let names = gateway::names_that_answer().map_err(|error| format!("cannot look for gateways: {error}"))?;
    let (all, problems) = look(&names);
    problems.iter().for_each(|problem| tell!("ropeway gateway: {}", output::printable(problem)));
    let text = match json {
        true => serde_json::to_string_pretty(&all).map_err(|error| error.to_string())? + "\n",
        false => all.iter().map(as_lines).collect(),
    };
    output::show(&text).map_err(|error| format!("cannot write: {error}"))?;
    match (all.is_empty(), problems.is_empty()) {
        (false, _) => Ok(()),
        (true, true) => Err("no gateway of this user runs in this network namespace".into()),
        (true, false) => Err("no gateway tells what it has counted".into()),
    }
}

/// What these gateways tell, and what kept others from telling.
fn look(names: &[String]) -> (Vec<Shown>, Vec<String>) {
    let (mut all, mut problems, mut round) = (Vec::new(), Vec::new(), control::Round::default());
    for name in names {
        match gateway::ask_in(&mut round, name) {
            Ok(shown) => all.push(shown),
            Err(error) if control::is_absence(&error) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => problems.push(control::unasked(name, &error)),
            Err(error) => problems.push(format!("{name}: {error}")),
        }
    }
    // Of many that were not asked there is one reason.
    problems.dedup();
    (all, problems)
}

fn as_lines(shown: &Shown) -> String {
    let Shown { pid, links, counters, waiting_packets, waiting_bytes } = shown;
    let head = format!("process {pid}: {waiting_packets} packets, {waiting_bytes} bytes wait\n");
    let links = links.iter().map(|link| {
        let end = output::printable(&format!("{} {}", link.name, link.local));
        let refused = match link.send_errors {
            0 => String::new(),
            count => format!(", {count} refused"),
        };
        format!("  {end}: {} sent, {} received{refused}\n", link.sent_packets, link.received_packets)
    });
    let counters = counters.iter().map(|(name, count)| format!("  {} {count}\n", output::printable(name)));
    [head].into_iter().chain(links).chain(counters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// Who says `answer` at an abstract address to the one that asks, as a gateway would.
    fn stranger(name: &str, answer: &'static str) -> std::thread::JoinHandle<()> {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(answer.as_bytes()).unwrap())
    }

    #[test]
    fn a_link_of_which_packets_were_refused_says_how_many() {
        let link = |send_errors| control::LinkShown {
            name: "udp".into(),
            local: "a".into(),
            send_errors,
            ..Default::default()
        };
        let counters = [("forwarded".to_owned(), 9)].into();
        let shown = Shown { pid: 1, links: vec![link(0), link(3)], counters, waiting_packets: 2, waiting_bytes: 80 };
        let lines = [
            "process 1: 2 packets, 80 bytes wait",
            "  udp a: 0 sent, 0 received",
            "  udp a: 0 sent, 0 received, 3 refused",
            "  forwarded 9",
        ];
        assert_eq!(as_lines(&shown).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn gateways_of_others_and_those_that_ended_are_passed_over_and_who_talks_nonsense_is_named() {
        let mut table = Table::default();
        let links = ["a=udp:127.0.0.1:0", "b=udp:127.0.0.1:0"].map(String::from);
        table.add(&links, &["1=a/127.0.0.1:1", "2=b/127.0.0.1:1"].map(String::from)).unwrap();
        let (neighbours, links) = (table.neighbours().unwrap(), table.open().unwrap());
        let gateway = Gateway::new(links, &neighbours, Limits::default()).unwrap();
        let own = gateway.tell().unwrap();
        let [gone, others, odd] = ["gone", "others", "odd"].map(|word| format!("{own}.{word}"));
        // Nobody but a gateway's user and root is told a word.
        let strangers = [stranger(&others, ""), stranger(&odd, "what?")];
        let (all, problems) = look(&[gone, others, own, odd.clone()]);
        let pids: Vec<u32> = all.iter().map(|shown| shown.pid).collect();
        assert_eq!(pids, [std::process::id()]);
        assert!(matches!(&problems[..], [one] if one.starts_with(&odd)), "{problems:?}");
        strangers.into_iter().for_each(|stranger| stranger.join().unwrap());
    }
}
