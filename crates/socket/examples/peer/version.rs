//! Another version of the protocol: a link that exchanges version 1 for another number, and a stranger's SYN.

use crate::wrong;
use ropeway_socket::api::link::{Address, Batch, Counters, Link, Own, Received, Report};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The version that the engine above speaks.
const OWN: u8 = 1;
/// docs/protocol.md 2.2 and 2.3: the type SYN, and where it says which versions are spoken.
const SYN: u8 = 1;
const SYN_VERSIONS: std::ops::Range<usize> = 50..52;
/// docs/protocol.md 2.5: byte 0 of VERSION, and where its list begins.
const VERSION: u8 = 0;
const VERSION_LIST_AT: usize = 32;

/// Whoever is behind this link speaks version `other`; those who speak version 1 are strangers to it.
pub struct VersionLink {
    inner: Box<dyn Link>,
    other: u8,
}

impl VersionLink {
    pub fn new(inner: Box<dyn Link>, other: u8) -> VersionLink {
        VersionLink { inner, other }
    }

    fn exchanged(&self, version: u8) -> u8 {
        match version {
            OWN => self.other,
            version if version == self.other => OWN,
            version => version,
        }
    }

    /// The packet with the one version in place of the other; the same in both directions.
    fn translated(&self, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let Some(&first) = packet.first() else { return packet };
        if first == VERSION {
            packet.iter_mut().skip(VERSION_LIST_AT).for_each(|version| *version = self.exchanged(*version));
            return packet;
        }
        packet[0] = self.exchanged(first >> 4) << 4 | first & 0xF;
        if first & 0xF == SYN && packet.len() >= SYN_VERSIONS.end {
            packet[SYN_VERSIONS].iter_mut().for_each(|version| *version = self.exchanged(*version));
        }
        packet
    }
}

impl Link for VersionLink {
    fn name(&self) -> String {
        format!("version {} {}", self.other, self.inner.name())
    }

    fn local(&self) -> Address {
        self.inner.local()
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        self.inner.own_address(own)
    }

    fn max_packet(&self) -> usize {
        self.inner.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let packets: Vec<Vec<u8>> = batch.packets.iter().map(|packet| self.translated(packet)).collect();
        let slices: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
        self.inner.send(&Batch { packets: &slices, ..*batch })
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let mut arrived = Vec::new();
        let count = self.inner.receive(limit, &mut |packet| {
            arrived.push((packet.from, packet.to, packet.ecn, packet.bytes.to_vec()));
        })?;
        for (from, to, ecn, bytes) in &arrived {
            sink(Received { from: *from, to: *to, ecn: *ecn, bytes: &self.translated(bytes) });
        }
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn receive_slots(&self) -> Option<usize> {
        self.inner.receive_slots()
    }

    fn take_error(&mut self) -> Option<Report> {
        self.inner.take_error()
    }

    fn fetch_errors(&mut self) {
        self.inner.fetch_errors();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// Sends the SYN of a version that this page knows nothing of but what is the same in all, and prints the answer.
pub fn knock(to: &str, version: u8) -> io::Result<()> {
    const SYN_BYTES: usize = 256;
    const PATIENCE: Duration = Duration::from_secs(5);
    let to: SocketAddr = to.parse().map_err(|_| wrong("syn takes a UDP address"))?;
    let mut syn = [0u8; SYN_BYTES];
    syn[0] = version << 4 | SYN;
    // Source id and nonce: what the answer must repeat.
    syn[24..28].copy_from_slice(&0x0123_4567u32.to_be_bytes());
    syn[28..36].copy_from_slice(&0x89AB_CDEF_0011_2233u64.to_be_bytes());
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // The first is one byte too short to be answered (2.5); the answer to the second, which would come after it, is the first to arrive.
    let mut short = syn;
    short[28] ^= 0xFF;
    socket.send_to(&short[..SYN_BYTES - 1], to)?;
    socket.send_to(&syn, to)?;
    let mut answer = [0; 2048];
    let (bytes, _) = socket.recv_from(&mut answer)?;
    let hex: String = answer[..bytes].iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{}", serde_json::json!({ "state": "over", "answer": hex }));
    Ok(())
}
