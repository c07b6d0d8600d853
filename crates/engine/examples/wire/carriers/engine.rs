//! Ropeway's engine over a link.

use crate::{Carrier, Connection, Handle, Kind};
use ropeway_engine::key_file::Choice;
use ropeway_engine::{ChannelId, Config, Engine, LinkId, Mode, Options, Target};
use ropeway_link::packet::{self, PacketLink};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::xdp::{self, XdpLink};
use ropeway_link::{Address, Link};
use std::time::{Duration, Instant};

const PORT: u16 = 7;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// So that the port buffer that a measurement sets is the limit, not the socket's.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

pub struct Engines {
    engine: Engine,
    link: LinkId,
}

struct Channel {
    engine: Engine,
    channel: ChannelId,
}

fn port(kind: Kind) -> (u16, Mode) {
    match kind {
        Kind::Messages => (PORT, Mode::Messages),
        Kind::Stream => (PORT + 1, Mode::Stream),
    }
}

impl Engines {
    pub fn open(name: &str, local: &str) -> Engines {
        let link: Box<dyn Link> = match name {
            "udp" => {
                let options = udp::Options::new(local.parse().expect("an address"));
                let options = udp::Options { receive_buffer_bytes: RECEIVE_BUFFER_BYTES, ..options };
                Box::new(UdpLink::open(&options).expect("a UDP socket"))
            }
            "xdp" => Box::new(XdpLink::open(&xdp::Options::new(local)).expect("AF_XDP")),
            _ => Box::new(PacketLink::open(&packet::Options::new(local)).expect("a packet socket")),
        };
        let mut config = Config { packet_bytes: link.max_packet() as u16, ..Config::default() };
        for setting in std::env::var("TUNE").unwrap_or_default().split(',').filter(|text| !text.is_empty()) {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            config.set(name, value.parse().expect("a number")).expect("a tunable");
        }
        let keys = Choice::from_environment().expect("keys").and_then(|choice| choice.load().expect("keys"));
        let mut options = Options { config, keys, ..Options::default() };
        if let Ok(us) = std::env::var("SPIN_US") {
            options.spin = Duration::from_micros(us.parse().expect("SPIN_US is a number"));
        }
        let engine = Engine::new(&options).expect("an engine");
        let link = engine.add_link(link).expect("a link");
        for kind in [Kind::Messages, Kind::Stream] {
            let (port, mode) = port(kind);
            engine.listen(port, mode, 256).expect("a free port");
        }
        Engines { engine, link }
    }
}

impl Carrier for Engines {
    fn accept(&self, kind: Kind) -> Box<dyn Connection> {
        let channel = self.engine.accept(port(kind).0, None).expect("a connection");
        Box::new(Channel { engine: self.engine.clone(), channel })
    }

    fn connect(&self, peer: &str, kind: Kind) -> Box<dyn Connection> {
        let address = match peer.parse() {
            Ok(address) => Address::Udp(address),
            Err(_) => Address::Ether(super::raw::mac(peer)),
        };
        let (port, mode) = port(kind);
        let deadline = Some(Instant::now() + CONNECT_TIMEOUT);
        let target = Target { link: self.link, address };
        let channel = self.engine.connect(target, port, mode, deadline).expect("a connection");
        Box::new(Channel { engine: self.engine.clone(), channel })
    }

    fn any(&self, connections: &[Handle], first: usize, ready: &mut Vec<usize>) {
        let channel = |handle: &Handle| match handle {
            Handle::Channel(channel) => *channel,
            Handle::Socket(_) => unreachable!("these are an engine's"),
        };
        let channels: Vec<ChannelId> = connections.iter().map(channel).collect();
        ready.push(self.engine.wait_any(&channels, first, None).expect("a wait"));
    }

    fn counters(&self) -> String {
        let counters = self.engine.counters();
        format!(
            r#"{{"packets_sent":{},"packets_received":{},"resent":{},"lost":{},"states_sent":{},"grants":{},"cuts":{}}}"#,
            counters.packets_sent,
            counters.packets_received,
            counters.resent,
            counters.lost,
            counters.states_sent,
            counters.gate.grants,
            counters.gate.cuts
        )
    }
}

impl Connection for Channel {
    fn send(&mut self, bytes: &[u8]) {
        self.engine.send_all(self.channel, bytes, None).map_err(|error| error.1).expect("send");
    }

    fn receive(&mut self, into: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < into.len() {
            match self.receive_some(&mut into[filled..]) {
                0 => return false,
                count => filled += count,
            }
        }
        true
    }

    fn receive_some(&mut self, into: &mut [u8]) -> usize {
        // A peer that ends resets what it did not read.
        self.engine.recv(self.channel, into, None).ok().flatten().unwrap_or(0)
    }

    fn finish(&mut self) {
        let _ = self.engine.shutdown(self.channel);
    }

    fn handle(&self) -> Handle {
        Handle::Channel(self.channel)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _ = self.engine.drain(self.channel, Some(Instant::now() + CONNECT_TIMEOUT));
        self.engine.close(self.channel);
    }
}
