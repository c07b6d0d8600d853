//! Measures two hosts, or more, with one program for every carrier, so that only the carrier differs:
//!
//! ```text
//! wire serve CARRIER:LOCAL
//! wire CASE CARRIER:LOCAL PEER[,PEER...] [--bytes N] [--seconds S] [--messages M]
//! ```
//! Carriers: `udp:ADDRESS:PORT`, `packet:DEVICE` and `xdp:DEVICE` are engines; `tcp:ADDRESS:PORT` is a blocking socket, `tcp-spin:` one that polls; `raw-udp:ADDRESS:PORT` and
//! `raw-packet:DEVICE` are the floor under the engines: a socket, and a ring read by its slots' status, without a protocol (`pingpong` and `messages` only); `link-packet:DEVICE` is the
//! ring as the engines read it; `raw-udp-batch:` sends 64 messages a call (`sendmmsg`). A PEER is `ADDRESS:PORT` or a MAC address.
//!
//! Cases: `pingpong` (messages and answers), `stream` (one direction, sends of 256 KiB), `messages` (one direction, a send for each), `rounds` (asks all peers for
//! so many bytes each and waits for all: an incast of one moment), `incast` (asks each peer again when what it sent is here, as in document 2: its next
//! message follows the answer to the last, M in all). Each prints one line of JSON. Environment: `SPIN_US`; `TUNE=NAME=VALUE,...`; `ROPEWAY_KEY_FILE`; `CONGESTION` for TCP
//! (`cubic` unless told otherwise).

mod carriers {
    pub mod engine;
    pub mod raw;
    pub mod tcp;
}
mod cases;

use carriers::{engine, raw, tcp};

/// One end of a connection. Errors end the program: what is measured must not fail.
pub trait Connection: Send {
    fn send(&mut self, bytes: &[u8]);
    /// Fills `into`: one message, or so many bytes. `false`: the peer has closed.
    fn receive(&mut self, into: &mut [u8]) -> bool;
    /// Some bytes of a stream, 0 at its end.
    fn receive_some(&mut self, into: &mut [u8]) -> usize;
    /// Nothing more will be sent.
    fn finish(&mut self);
    /// What [`Carrier::any`] is told of it.
    fn handle(&self) -> Handle {
        panic!("it can only be waited for alone")
    }
}

/// A connection to wait for, beside others.
pub enum Handle {
    Channel(ropeway_engine::ChannelId),
    Socket(std::net::TcpStream),
}

/// What is asked of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Messages,
    Stream,
}

/// A way to make connections.
pub trait Carrier: Sync {
    fn accept(&self, kind: Kind) -> Box<dyn Connection>;
    fn connect(&self, peer: &str, kind: Kind) -> Box<dyn Connection>;
    /// Waits until some of these can be read, and adds their places to `ready`; who looks at one looks from place `first` on.
    fn any(&self, _connections: &[Handle], _first: usize, _ready: &mut Vec<usize>) {
        panic!("it has one connection")
    }
    /// What the carrier counted, as JSON.
    fn counters(&self) -> String {
        "null".into()
    }
}

fn open(text: &str) -> Box<dyn Carrier> {
    let (name, local) = text.split_once(':').expect("CARRIER:LOCAL");
    match name {
        "udp" | "packet" | "xdp" => Box::new(engine::Engines::open(name, local)),
        "tcp" | "tcp-spin" => Box::new(tcp::Tcp::new(local, name == "tcp-spin")),
        "raw-udp" | "raw-udp-batch" | "raw-packet" | "link-packet" => Box::new(raw::Raw::open(name, local)),
        _ => panic!(
            "there is no carrier {name}: udp, packet, xdp, tcp, tcp-spin, raw-udp, raw-udp-batch, raw-packet, link-packet"
        ),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(place + 1)?.parse::<f64>().expect("a number"))
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).take_while(|word| !word.starts_with("--")).collect();
    match words[..] {
        ["serve", local] => cases::serve(&*open(local)),
        [name, local, peers] => {
            let case = cases::Case {
                bytes: option("--bytes").unwrap_or(64.0) as usize,
                seconds: option("--seconds").unwrap_or(1.0),
                messages: option("--messages").unwrap_or(100.0) as usize,
                peers: peers.split(',').collect(),
            };
            let carrier = open(local);
            match name {
                "pingpong" => case.ping_pong(&*carrier),
                "stream" => case.stream(&*carrier),
                "messages" => case.messages(&*carrier),
                "rounds" => case.rounds(&*carrier),
                "incast" => case.incast(&*carrier),
                other => panic!("there is no case {other}: pingpong, stream, messages, rounds, incast ({case:?})"),
            }
        }
        _ => {
            panic!("usage: wire serve CARRIER:LOCAL | wire CASE CARRIER:LOCAL PEER[,PEER...] [--bytes N] [--seconds S]")
        }
    }
}
