//! `ropeway gateway`: forwards packets between hosts that do not reach each other, and tells what it has forwarded. docs/engine.md describes it.
//!
//! [`table`] is what the command line and the file say. Forwarding is the engine's.

mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use ropeway_engine::gateway::{self, Gateway, GatewayError, Limits, Shown};

use crate::config::Size;
use table::{Table, TableError};

#[derive(clap::Args, Debug)]
#[command(after_help = "ropeway gateway --link inner=udp:10.0.1.201:7700 --link outer=udp:10.0.2.201:7700 \\\n    \
                  --route 1=inner/10.0.1.1:7447 --route 3=outer/10.0.2.3:7447")]
pub struct Args {
    /// A link: its name, and `udp:ADDRESS:PORT` or `packet:DEVICE`
    #[arg(long, value_name = "NAME=LINK")]
    link: Vec<String>,
    /// Where a node is: its number, a link's name, and its address there (ADDRESS:PORT, or the Ethernet address)
    #[arg(long, value_name = "NODE=NAME/ADDRESS")]
    route: Vec<String>,
    /// A file with `[links]`, `[routes]`, `queue` and `mark`; what the command line says comes on top
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Bytes that wait for one neighbour, at most [default: 256 KiB]
    #[arg(long, value_name = "SIZE")]
    queue: Option<Size>,
    /// With so many bytes waiting packets are marked [default: a quarter of the queue]
    #[arg(long, value_name = "SIZE")]
    mark: Option<Size>,
    /// Show what the gateways of this network namespace have counted, and leave
    #[arg(long, conflicts_with_all = ["link", "route", "config", "queue", "mark"])]
    show: bool,
    /// With --show: as JSON
    #[arg(long, requires = "show")]
    json: bool,
}

pub fn main(args: &Args) -> ExitCode {
    let result = if args.show { show(args.json) } else { forward(args).map_err(|error| error.to_string()) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropeway gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why a gateway does not run.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    Engine(#[from] ropeway_engine::Error),
}

fn forward(args: &Args) -> Result<(), Error> {
    let mut table = match &args.config {
        Some(path) => Table::read(path)?,
        None => Table::default(),
    };
    table.add(&args.link, &args.route)?;
    let (queue, mark) = (args.queue.or(table.queue), args.mark.or(table.mark));
    let usual = Limits::default();
    let queue_bytes = queue.map_or(usual.queue_bytes, |size| size.0 as usize);
    let mark_bytes = mark.map_or(queue_bytes / 4, |size| size.0 as usize);
    let (neighbours, links) = (table.neighbours()?, table.open()?);
    let (nodes, count) = (neighbours.len(), links.len());
    let gateway = Gateway::new(links, &neighbours, Limits { queue_bytes, mark_bytes })?;
    if let Err(error) = gateway.tell() {
        eprintln!("ropeway gateway: cannot be asked what it has counted: {error}");
    }
    eprintln!("ropeway gateway: forwarding for {nodes} nodes over {count} links");
    gateway.run()?;
    Ok(())
}

fn show(json: bool) -> Result<(), String> {
    let names = gateway::names().map_err(|error| format!("cannot look for gateways: {error}"))?;
    let mut all: Vec<Shown> = Vec::new();
    for name in &names {
        match gateway::ask(name) {
            Ok(shown) => all.push(shown),
            // It ended meanwhile, or belongs to somebody else.
            Err(error) => eprintln!("ropeway gateway: {name}: {error}"),
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?);
        return Ok(());
    }
    if all.is_empty() {
        return Err("no gateway of this user runs in this network namespace".into());
    }
    for Shown { pid, links, counters, waiting_packets, waiting_bytes } in &all {
        println!("process {pid}: {waiting_packets} packets, {waiting_bytes} bytes wait");
        for link in links {
            println!("  {} {}: {} sent, {} received", link.name, link.local, link.sent_packets, link.received_packets);
        }
        counters.iter().for_each(|(name, count)| println!("  {name} {count}"));
    }
    Ok(())
}
