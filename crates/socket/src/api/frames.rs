//! Engines on an Ethernet device: what their links take, so that each gets what is meant for it and no engine answers for another one.
//!
//! Every address has a packet socket and an engine of its own. An AF_XDP link owns its device's receive queue, so there all that this process does
//! shares one engine, whose link is told at which ports it listens; what it does not take is left to the packet sockets of other processes.

use super::claim::Claim;
use ropeway_engine::link::packet::{self, FieldMatch, PacketLink};
use ropeway_engine::link::xdp::{self, XdpLink};
use ropeway_engine::link::{Link, Width};
use ropeway_engine::{Engine, LinkId};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a packet has its destination id (docs/protocol.md 2.1), and what steering takes of it.
const ID_OFFSET: u32 = 4;
const STEERING_BITS: u32 = 0xFFF0_0000;

/// A link that takes what bears its steering bits.
pub struct Steered<L: Link> {
    pub link: L,
    pub steering: u16,
    pub claim: Claim,
}

fn field(mask: u32, value: u32) -> FieldMatch {
    FieldMatch { offset: ID_OFFSET, width: Width::Four, mask, value }
}

/// What bears the steering bits, and what opens a connection to one of these ports.
fn meant_for(steering: u16, ports: &[u16]) -> Vec<FieldMatch> {
    let opening = |port: &u16| field(0xFFFF_FFF0, STEERING_BITS | u32::from(*port) << 4);
    let own = field(STEERING_BITS, u32::from(steering) << 20);
    std::iter::once(own).chain(ports.iter().map(opening)).collect()
}

/// A packet socket, for an engine that listens at a port or at none.
pub fn packets(device: &str, port: Option<u16>) -> io::Result<Steered<PacketLink>> {
    let (steering, claim) = Claim::steering(device)?;
    let accept = meant_for(steering, port.as_slice());
    let link = PacketLink::open(&packet::Options { accept, ..packet::Options::new(device) })?;
    Ok(Steered { link, steering, claim })
}

/// The link past the kernel's network stack, for an engine that does not listen yet.
pub fn past_the_stack(device: &str) -> io::Result<Steered<XdpLink>> {
    let (steering, claim) = Claim::steering(device)?;
    let accept = meant_for(steering, &[]);
    let link = XdpLink::open(&xdp::Options { accept, ..xdp::Options::new(device) })?;
    Ok(Steered { link, steering, claim })
}

/// The engine that all of this process shares on a device.
pub struct Shared {
    pub engine: Engine,
    pub link: LinkId,
    control: xdp::Control,
    steering: u16,
    _claim: Claim,
    open: Mutex<Vec<u16>>,
}

impl Shared {
    pub fn new(engine: Engine, link: LinkId, control: xdp::Control, steering: u16, claim: Claim) -> Shared {
        Shared { engine, link, control, steering, _claim: claim, open: Mutex::default() }
    }

    fn ports(&self) -> MutexGuard<'_, Vec<u16>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what opens connections to this port too.
    ///
    /// # Errors
    /// There are as many ports as the link can tell apart.
    pub fn open(self: &Arc<Shared>, port: u16) -> io::Result<Opening> {
        let mut ports = self.ports();
        ports.push(port);
        if let Err(error) = self.control.accept(&meant_for(self.steering, &ports)) {
            ports.pop();
            return Err(error);
        }
        drop(ports);
        Ok(Opening { shared: self.clone(), port })
    }
}

/// A port of a shared engine that is open until this is dropped.
pub struct Opening {
    shared: Arc<Shared>,
    port: u16,
}

impl Drop for Opening {
    fn drop(&mut self) {
        // In a forked child the link is the parent's.
        if self.shared.engine.local(self.shared.link).is_none() {
            return;
        }
        let mut ports = self.shared.ports();
        // One of them: somebody may have opened it again already.
        if let Some(place) = ports.iter().position(|port| *port == self.port) {
            ports.swap_remove(place);
        }
        // Should it fail, the engine refuses who comes.
        let _ = self.shared.control.accept(&meant_for(self.shared.steering, &ports));
    }
}
