//! Packets to and from nodes behind gateways: behind a shim (docs/protocol.md 2.9). The protocol above sees paths, the links below addresses; neither knows of it.

use std::io::{self, IoSlice};

use ropeway_link::{Batch, Link, Received};
use ropeway_proto::{BATCH_PACKETS, Path, SHIM_BYTES, Shim};

use crate::path;

/// Gateways that a packet may pass. Tables that lead in a circle cost so many forwardings of a packet, and no more.
pub const MOST_HOPS: u8 = 4;

/// Puts shims before packets, and takes them off.
pub struct Shimmed {
    /// Our own number; without one nothing comes to us through gateways.
    node: Option<u32>,
    /// A batch with its shims, one packet behind the other. Kept for the next.
    bytes: Vec<u8>,
}

impl Shimmed {
    pub fn new(node: Option<u32>) -> Shimmed {
        Shimmed { node, bytes: Vec::new() }
    }

    pub fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// Whether these bytes should be looked at by [`Shimmed::take`].
    #[inline]
    pub fn may_precede(&self, bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|&first| Shim::precedes(first))
    }

    /// The path by which a packet came, whether a gateway marked it, and the packet. `None`: it is not for us, and the endpoint counts it as malformed.
    #[cold]
    pub fn take<'a>(&self, link: u8, received: &Received<'a>) -> Option<(Path, bool, &'a [u8])> {
        let (shim, packet) = Shim::parse(received.bytes).ok()?;
        let is_ours = self.node == Some(shim.destination);
        is_ours.then(|| {
            let path = path::behind(link, received.from, shim.source).bound(received.to.0);
            (path, shim.congested, packet)
        })
    }

    /// Sends packets for `node` to a gateway. This copies them; equal ones stay equal, so that they can go out as one.
    pub fn send(&mut self, link: &mut dyn Link, node: u32, batch: &Batch<'_>) -> io::Result<usize> {
        // Without a number of our own nobody could answer.
        let Some(source) = self.node else { return Ok(batch.packets.len()) };
        let shim = Shim { congested: false, hops: MOST_HOPS, destination: node, source }.to_bytes();
        self.bytes.clear();
        let mut ends = [0; BATCH_PACKETS];
        let packets = &batch.packets[..batch.packets.len().min(BATCH_PACKETS)];
        for (end, packet) in ends.iter_mut().zip(packets) {
            self.bytes.extend_from_slice(&shim);
            self.bytes.extend_from_slice(packet);
            *end = self.bytes.len();
        }
        let mut slices = [IoSlice::new(&[]); BATCH_PACKETS];
        let mut at = 0;
        for (slice, &end) in slices.iter_mut().zip(&ends[..packets.len()]) {
            *slice = IoSlice::new(&self.bytes[at..end]);
            at = end;
        }
        link.send(&Batch { packets: &slices[..packets.len()], ..*batch })
    }
}

/// What a shim takes of the longest packet (docs/protocol.md 2.9).
pub const OVERHEAD_BYTES: u16 = SHIM_BYTES as u16;
