//! An engine at an address: how it is made over UDP or over frames, alone or as one of several. Who uses it, and how long it lives, is not known here.

use crate::api::address::Address;
use crate::api::claim::Claim;
use crate::api::cluster::{self, Keys};
use crate::api::environment::{self, engine_options, udp_options};
use crate::api::frames::{self, Opening, Shared, Steered};
use ropeway_engine::gateway::engine_number;
use ropeway_engine::link::{self, Link};
use ropeway_engine::{Engine, LinkId, Options, Workers, udp_links, usual_packet_bytes};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// By device, what all places there share whose frames go past the kernel's stack.
pub type PastTheStack = BTreeMap<String, Weak<Shared>>;

/// An engine with its one link, and what holds its place on the host.
#[derive(Clone)]
pub struct Place {
    pub engine: Engine,
    pub link: LinkId,
    /// The network device that frames go over; empty for UDP.
    pub device: String,
    /// The engine is that of all places on its device, and this one's port is open there: until it is closed nobody else can claim it.
    _shared: Option<(Arc<Shared>, Option<Arc<Opening>>)>,
    claims: Arc<Vec<Claim>>,
    /// Why it does without the cluster's key, if there may be one.
    pub keyless: Option<Arc<str>>,
    /// All engines at the address, where this one has others beside it. The kernel counts their sockets in order: they come and go together.
    workers: Option<Workers>,
}

impl Place {
    /// In somebody's own engine.
    pub fn of(engine: Engine, link: LinkId) -> Place {
        Place {
            engine,
            link,
            device: String::new(),
            claims: Arc::default(),
            keyless: None,
            workers: None,
            _shared: None,
        }
    }

    /// Engines at the address.
    pub fn count(&self) -> usize {
        self.workers.as_ref().map_or(1, |workers| workers.engines().len())
    }

    /// Whether its device is gone.
    pub fn has_failed(&self) -> bool {
        self.engine.has_failed(self.link)
    }

    /// All places at the address.
    pub fn all(&self) -> Vec<Place> {
        let Some(workers) = &self.workers else { return vec![self.clone()] };
        workers.engines().iter().map(|engine| Place { engine: engine.clone(), ..self.clone() }).collect()
    }

    pub fn is_at(&self, at: &Address) -> bool {
        match (self.engine.local(self.link), at) {
            (Some(link::Address::Udp(local)), Address::Udp(at)) => local == *at,
            (Some(link::Address::Ether(_)), Address::Packet(at)) => {
                self.device == at.device && self.claims.iter().any(|claim| claim.is_port(at.port))
            }
            _ => false,
        }
    }
}

/// `is_found`: gateways may bring packets for it, if there are any.
pub fn over_udp(local: SocketAddr, stays_here: bool, is_found: bool, count: usize) -> io::Result<Vec<Place>> {
    let Keys { keys, keyless } = cluster::keys(stays_here)?;
    let own = if is_found { cluster::behind_gateways(local.ip())? } else { None };
    if own.is_some() && count > 1 {
        // What stands before their packets hides by what the kernel would tell the workers apart.
        return Err(no_workers("where gateways bring packets an address has one"));
    }
    let links = udp_links(count, &udp_options(local)?)?;
    let mut options = Options { keys, ..Options::default() };
    if let (Some(own), Some(link::Address::Udp(local))) = (own, links.first().map(Link::local)) {
        options.node = Some(engine_number(own.number, local.port()).into());
        options.gateways = true;
    }
    let places = make(links, options, "", Vec::new())?;
    Ok(places.into_iter().map(|place| Place { keyless: keyless.clone(), ..place }).collect())
}

fn no_workers(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{why}, no several workers"))
}

/// Over frames on `device`, with a port to listen at or without.
pub fn over_frames(
    past_the_stack: &mut PastTheStack,
    device: &str,
    port: Option<(u16, Claim)>,
    count: usize,
) -> io::Result<Vec<Place>> {
    let number = port.as_ref().map(|(port, _)| *port);
    let claimed = port.map(|(_, claim)| claim);
    if !environment::get()?.link.is_xdp(device) {
        let keys = cluster::keys(false)?.keys;
        let Steered { links, steering, mut claims } = frames::packets(device, number, count)?;
        claims.extend(claimed);
        return make(links, Options { keys, steering, ..Options::default() }, device, claims);
    }
    if count > 1 {
        return Err(no_workers("over AF_XDP a device has one engine"));
    }
    let known = past_the_stack.get(device).and_then(Weak::upgrade);
    let shared = match known.filter(|shared| !shared.engine.has_failed(shared.link)) {
        Some(shared) => shared,
        // Nobody uses the device, or it is a new one of that name.
        None => {
            let keys = cluster::keys(false)?.keys;
            let (link, steering, claims) = frames::past_the_stack(device)?;
            let control = link.control();
            let options = Options { keys, steering, ..Options::default() };
            let Place { engine, link, .. } = make(vec![link], options, device, Vec::new())?.swap_remove(0);
            let shared = Arc::new(Shared::new(engine, link, control, steering, claims));
            past_the_stack.insert(device.into(), Arc::downgrade(&shared));
            shared
        }
    };
    let opening = number.map(|port| shared.open(port)).transpose()?.map(Arc::new);
    let (engine, link, claims) = (shared.engine.clone(), shared.link, Arc::new(claimed.into_iter().collect()));
    let place = Place { device: device.into(), claims, _shared: Some((shared, opening)), ..Place::of(engine, link) };
    Ok(vec![place])
}

/// An engine for each of these links, which have one address.
fn make<L: Link + 'static>(
    links: Vec<L>,
    options: Options,
    device: &str,
    claims: Vec<Claim>,
) -> io::Result<Vec<Place>> {
    // They are of one size.
    let first = links.first().ok_or(io::ErrorKind::InvalidInput)?;
    let options = engine_options(first, usual_packet_bytes(first).into(), options)?;
    let workers = Workers::over(&options, links)?;
    let is_alone = workers.engines().len() == 1;
    let claims = Arc::new(claims);
    let place = |engine: &Engine| Place {
        device: device.into(),
        claims: claims.clone(),
        workers: (!is_alone).then(|| workers.clone()),
        ..Place::of(engine.clone(), Workers::LINK)
    };
    Ok(workers.engines().iter().map(place).collect())
}
