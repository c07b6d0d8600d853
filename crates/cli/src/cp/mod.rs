//! `ropeway cp`: copies files, or standard input, to another host over the wire protocol, checked and resumable. docs/cp.md describes it.
//!
//! [`receive`] is the end that writes files, [`store`] what it has on its disk, [`send`] the one that reads them, [`pipe`] what it keeps of standard input, [`frame`] what they say to each other,
//! [`connect`] what carries it, [`peer`] how a receiver is named and reached, [`senders`] how many a receiver serves.

mod connect;
mod frame;
mod peer;
mod pipe;
mod progress;
mod receive;
mod send;
mod senders;
mod store;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ropeway_socket::api::Address;

use crate::output::{EXIT_USAGE, printable, tell};
use senders::Limits;

/// The port where `--receive` listens if none is named.
pub const USUAL_PORT: u16 = 7447;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "On the receiving host:  ropeway cp --receive DIR\nOn the sending host:    ropeway cp FILE... HOST[:PORT]\n\
                        From standard input:    tar c . | ropeway cp - HOST --name work.tar\n\
                        Past UDP:               ropeway cp FILE... eth0/02:00:00:00:00:07, to --receive DIR --bind 'eth0/*'\n\
                        To a cluster's node:    ropeway cp FILE... node3, by the ways that the file in ROPEWAY_CLUSTER, or\n                        \
                        /etc/ropeway/cluster.toml, shows; ROPEWAY_NODE says which node this is, if its addresses do not"
)]
pub struct Args {
    /// Files to send (`-` is standard input), then `HOST[:PORT]`, `DEVICE/HARDWARE-ADDRESS[:PORT]` or `@NODE[:PORT]`, where HOST may be the name and NODE the number of a node in the cluster
    /// file; with --receive the directory to write into: nothing is written to standard output
    #[arg(required = true, value_parser = OsStringValueParser::new().try_map(text))]
    paths: Vec<String>,
    /// Receive files into this directory
    #[arg(long)]
    receive: bool,
    /// Receive from one sender, then leave; for the receiver
    #[arg(long, requires = "receive")]
    once: bool,
    /// Address and port to receive at (0.0.0.0:7447 if none is given, or `[::]:7447` where the addresses in the cluster file are IPv6), or to send from; ADDRESS may be this node's name in the
    /// cluster file, or `eth0/*`: a device, past UDP
    #[arg(long, value_name = "ADDRESS:PORT")]
    bind: Option<String>,
    /// The number by which gateways with tables of their own (`ropeway gateway --route`) know this host, at the address of --bind
    #[arg(long)]
    node: Option<u32>,
    /// A gateway on the way to @NODE, without the cluster file; of several one carries everything, and the next takes over when it fails
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "receive", requires_all = ["node", "bind"])]
    gateway: Vec<String>,
    /// Replace files that exist; for the receiver, as it decides about them
    #[arg(long, requires = "receive")]
    force: bool,
    /// The name that standard input (`-`) gets at the other end
    #[arg(long, conflicts_with = "receive")]
    name: Option<String>,
    /// How long to go on trying when the connection is lost or the receiver serves as many senders as it may, in seconds
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// What crosses as a name is a text.
fn text(argument: OsString) -> Result<String, &'static str> {
    argument
        .into_string()
        .map_err(|_| "names are UTF-8 here; a file with another one goes as `ropeway cp - HOST --name NAME < FILE`")
}

pub fn main(args: &Args) -> ExitCode {
    let run = if args.receive { receiving } else { sending };
    match connect::choose_keys().and_then(|()| run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell!("ropeway cp: {error}");
            let is_usage = matches!(error, CpError::Usage(_));
            if is_usage { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

fn receiving(args: &Args) -> Result<(), CpError> {
    let [directory] = &args.paths[..] else {
        return Err(CpError::Usage("--receive takes one directory, and nothing to send".into()));
    };
    if directory == "-" {
        let what = "--receive writes into a directory, and nothing to standard output; one of the name `-` is `./-`";
        return Err(CpError::Usage(what.into()));
    }
    let options = receive::Options {
        directory: PathBuf::from(directory),
        once: args.once,
        force: args.force,
        quiet: args.quiet,
        limits: Limits::default(),
    };
    let bind = match bind(args)? {
        Some(bind) => bind,
        None => peer::everywhere()?,
    };
    receive::run(&bind, args.node, &options)
}

fn sending(args: &Args) -> Result<(), CpError> {
    let Some((to, sources)) = args.paths.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(CpError::Usage("name at least one file, and then the HOST[:PORT] that receives".into()));
    };
    let options =
        send::Options { name: args.name.clone(), patience: Duration::from_secs(args.patience), quiet: args.quiet };
    let to = peer::Peer::parse(to, &args.gateway)?;
    if args.node.is_some() && to.is_of_cluster() {
        let what = "--node is for gateways that are named with --gateway; which node of the cluster file this is says ROPEWAY_NODE";
        return Err(CpError::Usage(what.into()));
    }
    send::run(sources, &send::From { bind: bind(args)?, node: args.node, to }, &options)
}

fn bind(args: &Args) -> Result<Option<Address>, CpError> {
    args.bind.as_deref().map(peer::own_address).transpose()
}

/// Why a copy did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CpError {
    #[error("{0}; see `ropeway cp --help`")]
    Usage(String),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error(
        "cannot resolve {host}: {source}; give an address, a name of /etc/hosts or the DNS, or that of a node in {cluster}"
    )]
    Resolve { host: String, source: std::io::Error, cluster: String },
    #[error("cannot use {address}: {source}")]
    Bind { address: String, source: std::io::Error },
    /// With what to do about it.
    #[error("{peer}: {source}{advice}")]
    Connect { peer: String, source: std::io::Error, advice: String },
    /// Keys, the cluster file, or `ROPEWAY_LINK`.
    #[error("{0}")]
    Cluster(std::io::Error),
    /// Worth another attempt: what has arrived stays there.
    #[error("the connection was lost: {0}")]
    Lost(std::io::Error),
    /// The same, of the receiver.
    #[error(
        "{name} is not whole, as its connection was lost: {source}; what came of it stays for a sender that goes on"
    )]
    Unfinished { name: String, source: std::io::Error },
    #[error("the other end says: {0}")]
    Refused(String),
    /// Worth another attempt as well.
    #[error("the other end says: {0}")]
    Busy(&'static str),
    #[error("a sender said or took nothing for {} s, and its connection was closed", .0.as_secs())]
    Silent(Duration),
    /// What this end says to that.
    #[error("{0}")]
    Declined(String),
    #[error("the other end does not speak as `ropeway cp` does: {0}")]
    Nonsense(&'static str),
    #[error("{name} arrived damaged (its BLAKE3 hash differs); nothing was kept, send it again")]
    Damaged { name: String },
    #[error(
        "{name}: the other end has less of it now than it had written, and the pipe gave the rest once; send it again"
    )]
    Gone { name: String },
    #[error("the sender has left and sent nothing")]
    Nothing,
    #[error("{name} changed while it was sent; send it again")]
    Changed { name: String },
}

impl CpError {
    /// What the other end has refused to do.
    pub fn refused(why: String) -> CpError {
        let busy = [frame::BUSY, frame::UNFINISHED].into_iter().find(|word| *word == why);
        busy.map_or(CpError::Refused(why), CpError::Busy)
    }

    /// The other end has closed before it was time.
    pub fn ended() -> CpError {
        CpError::Lost(std::io::Error::new(ErrorKind::UnexpectedEof, "the other end has closed it"))
    }

    /// Where that was lost by which a file came.
    pub fn of_file(self, name: &str) -> CpError {
        match self {
            CpError::Lost(source) => CpError::Unfinished { name: printable(name), source },
            other => other,
        }
    }

    /// A path may end in a name that the other end has chosen.
    pub fn file(path: impl AsRef<str>) -> impl FnOnce(std::io::Error) -> CpError {
        let path = printable(path.as_ref());
        move |source| CpError::File { path, source }
    }
}
