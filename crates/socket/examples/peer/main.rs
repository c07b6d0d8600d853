//! One end of a connection between hosts, with contents that the other end verifies: what the suite `wire` runs in boxes.
//!
//! `peer receive AT`, `peer send TO BYTES` (0: until standard input ends), `peer pass AT,.. TO`, `peer echo AT COUNT`, `peer many TO COUNT`, `peer syn TO VERSION`, `peer show`, and `peer serve` and `peer load`
//! ([`load`]).
//! AT and TO are addresses as `ropeway_socket::api::Address` reads them. Every result is a line of JSON.
//!
//! In the environment, besides what the library reads: `PEER_MESSAGES=1` messages instead of a stream; `PEER_HOLD=1` waits for a line on standard input
//! before it sends (`send`), or before it reads what it is sent (`receive`); `PEER_ONCE=1` takes one connection at each address (`pass`); `PEER_WORKERS=N` listens with N engines at one address (`receive`, `serve`); `PEER_REORDER=PPM:MICROSECONDS` holds back so many packets of a million that arrive, at most so
//! long; `PEER_VERSION=N` speaks version N of the protocol, which is version 1 under another number.

mod content;
mod load;
mod many;
mod pass;
mod place;
mod show;
mod transfer;
mod version;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> io::Result<()> {
    match *arguments {
        ["receive", at] => transfer::receive(at),
        ["send", to, bytes] => transfer::send(to, number(bytes)?),
        ["pass", at, to] => pass::pass(at, to),
        ["echo", at, count] => many::echo(at, number(count)?),
        ["many", to, count] => many::many(to, number(count)?),
        ["syn", to, version] => version::knock(to, number(version)? as u8),
        ["show"] => show::print(),
        ["serve", streams, messages] => load::serve(streams, messages),
        ["load", seed, ref peers @ ..] if !peers.is_empty() => load::load(number(seed)?, peers),
        _ => Err(wrong(
            "usage: peer receive AT | send TO BYTES | pass AT,.. TO | echo AT COUNT | many TO COUNT | syn TO VERSION | show | serve STREAMS MESSAGES | load SEED NAME=STREAMS,MESSAGES...",
        )),
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| wrong(&format!("`{text}` is no number")))
}

pub(crate) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Whether a variable of the test's is set.
pub(crate) fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some()
}
