//! Engines on an Ethernet device: what their links take, so that each gets what is meant for it and no engine answers for another one.
//!
//! Every address has a packet socket and an engine of its own. An AF_XDP link owns its device's receive queue, so there all that this process does
//! shares one engine, whose link is told at which ports it listens; what it does not take is left to the packet sockets of other processes.

use super::claim::Claim;
use ropeway_engine::link::Width;
use ropeway_engine::link::packet::{self, FieldMatch, PacketLink};
use ropeway_engine::link::xdp::{self, XdpLink};
use ropeway_engine::{Engine, LinkId, packet_links};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a packet has its destination id (docs/protocol.md 2.1), and what steering takes of it.
const ID_OFFSET: u32 = 4;
const STEERING_BITS: u32 = 0xFFF0_0000;

fn field(mask: u32, value: u32) -> FieldMatch {
    FieldMatch { offset: ID_OFFSET, width: Width::Four, mask, value }
}

/// What bears these steering bits, and what opens a connection to one of these ports.
fn meant_for(steering: impl Iterator<Item = u16>, ports: &[u16]) -> Vec<FieldMatch> {
    let opening = |port: &u16| field(0xFFFF_FFF0, STEERING_BITS | u32::from(*port) << 4);
    let own = |steering: u16| field(STEERING_BITS, u32::from(steering) << 20);
    steering.map(own).chain(ports.iter().map(opening)).collect()
}

/// Packet sockets for engines that share a port to listen at, or have none. They take what bears the first one's steering bits or the next ones'.
pub struct Steered {
    pub links: Vec<PacketLink>,
    pub steering: u16,
    pub claims: Vec<Claim>,
}

/// # Errors
/// No privileges, no such device, or not so many steering bits left there.
pub fn packets(device: &str, port: Option<u16>, count: usize) -> io::Result<Steered> {
    let (steering, claims) = Claim::steering(count)?;
    let accept = meant_for((steering..).take(count), port.as_slice());
    let links = packet_links(count, &packet::Options { accept, ..packet::Options::new(device) })?;
    Ok(Steered { links, steering, claims })
}

/// The link past the kernel's network stack, for an engine that does not listen yet.
pub fn past_the_stack(device: &str) -> io::Result<(XdpLink, u16, Vec<Claim>)> {
    // Who may not have steering bits lacks more than that.
    let needs =
        |error: io::Error| if error.kind() == io::ErrorKind::PermissionDenied { xdp::not_permitted() } else { error };
    let (steering, claims) = Claim::steering(1).map_err(needs)?;
    let accept = meant_for(std::iter::once(steering), &[]);
    Ok((XdpLink::open(&xdp::Options { accept, ..xdp::Options::new(device) })?, steering, claims))
}

/// The engine that all of this process shares on a device.
pub struct Shared {
    pub engine: Engine,
    pub link: LinkId,
    control: xdp::Control,
    steering: u16,
    _claims: Vec<Claim>,
    open: Mutex<Vec<u16>>,
}

impl Shared {
    pub fn new(engine: Engine, link: LinkId, control: xdp::Control, steering: u16, claims: Vec<Claim>) -> Shared {
        Shared { engine, link, control, steering, _claims: claims, open: Mutex::default() }
    }

    fn ports(&self) -> MutexGuard<'_, Vec<u16>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, ports: &[u16]) -> io::Result<()> {
        self.control.accept(&meant_for(std::iter::once(self.steering), ports))
    }

    /// Takes what opens connections to this port too.
    ///
    /// # Errors
    /// There are as many ports as the link can tell apart.
    pub fn open(self: &Arc<Shared>, port: u16) -> io::Result<Opening> {
        let mut ports = self.ports();
        ports.push(port);
        if let Err(error) = self.accept(&ports) {
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
        let _ = self.shared.accept(&ports);
    }
}
