//! Congestion marks of a real network: a router that marks instead of dropping is obeyed by the gate, over UDP of both families.

#[path = "../../link/tests/support/mod.rs"]
mod support;

use ropeway_engine::{ChannelId, Engine, LinkId, Mode, Options, Target};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Link};
use ropeway_testkit::{need_program, skip};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Hosts, address, reason_against_hosts};

const PORT: u16 = 7;
const BYTES: usize = 4 << 20;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

struct End {
    engine: Engine,
    link: LinkId,
    address: Address,
}

impl End {
    fn on(hosts: &Hosts, end: usize, v6: bool) -> End {
        let link = hosts.on(end, || UdpLink::open(&udp::Options::new(SocketAddr::new(address(end, v6), 0))).unwrap());
        let engine = Engine::new(&Options::default()).unwrap();
        let address = link.local();
        let link = engine.add_link(Box::new(link)).unwrap();
        End { engine, link, address }
    }

    fn cuts(&self) -> u64 {
        self.engine.counters().gate.cuts
    }
}

/// Sends so much that segments and merged arrivals are among it, and reads it.
fn carry(from: (&End, ChannelId), to: (&End, ChannelId)) {
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| from.0.engine.send_all(from.1, &bytes, soon()).unwrap());
        let (mut buffer, mut received) = (vec![0; 64 << 10], 0);
        while received < BYTES {
            let count = to.0.engine.recv(to.1, &mut buffer, soon()).unwrap().expect("no end yet");
            assert!(buffer[..count] == bytes[received..received + count], "from byte {received} on");
            received += count;
        }
    });
}

#[test]
fn marks_on_the_way_reach_the_gate_of_the_receiver_and_cut_its_budget() {
    if let Some(reason) = reason_against_hosts() {
        skip!("{reason}");
    }
    need_program!("nft");
    for v6 in [false, true] {
        let hosts = Hosts::new(1500);
        let [client, server] = [0, 1].map(|end| End::on(&hosts, end, v6));
        server.engine.listen(PORT, Mode::Stream, 4).unwrap();
        let target = Target { link: client.link, address: server.address };
        let there = client.engine.connect(target, PORT, Mode::Stream, soon()).unwrap();
        let here = server.engine.accept(PORT, soon()).unwrap();
        carry((&client, there), (&server, here));
        let before = [server.cuts(), client.cuts()];
        // On the way out, which is a router's way as well.
        let family = if v6 { "ip6" } else { "ip" };
        let rules = format!(
            "add table {family} marks; add chain {family} marks out {{ type filter hook output priority 0; }}; \
             add rule {family} marks out meta l4proto udp {family} ecn set ce"
        );
        let marked = hosts.on(0, || Command::new("nft").arg(&rules).output().unwrap());
        assert!(marked.status.success(), "{}", String::from_utf8_lossy(&marked.stderr));
        carry((&client, there), (&server, here));
        let after = [server.cuts(), client.cuts()];
        println!("IPv{}: cuts at the receiver and the sender: {before:?}, then {after:?}", if v6 { 6 } else { 4 });
        // A busy machine may lose a few packets, which cost a cut or two.
        assert!(after[0] > before[0] + 20, "each packet was marked");
        assert_eq!(after[1], before[1], "what goes back is not marked");
    }
}
