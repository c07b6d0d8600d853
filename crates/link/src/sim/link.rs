//! One host's end of a simulated network, as a link.

use super::world::World;
use crate::{Address, Batch, Counters, Ecn, Link, Own, Received};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// A host's end. When it is dropped, nobody takes the host's packets any more.
#[derive(Debug)]
pub struct SimLink {
    world: Arc<Mutex<World>>,
    host: u32,
    mtu: usize,
    receive_slots: usize,
    generation: u64,
    /// Packets out of the network while the sink looks at them: the network is not locked meanwhile.
    taken: Vec<Taken>,
}

#[derive(Debug)]
struct Taken {
    from: u32,
    ecn: Ecn,
    bytes: Vec<u8>,
}

impl SimLink {
    pub(super) fn new(world: Arc<Mutex<World>>, host: u32, generation: u64) -> SimLink {
        let config = super::locked(&world).station(host).expect("attached").config;
        SimLink { world, host, mtu: config.mtu, receive_slots: config.receive_slots, generation, taken: Vec::new() }
    }

    /// The number of this host.
    pub fn host(&self) -> u32 {
        self.host
    }

    /// The network, if this is still the link of its host.
    fn network(&self) -> io::Result<MutexGuard<'_, World>> {
        let world = super::locked(&self.world);
        if world.station(self.host).is_some_and(|station| station.generation == self.generation) {
            return Ok(world);
        }
        Err(io::Error::new(io::ErrorKind::NotConnected, format!("another link was attached to host {}", self.host)))
    }
}

impl Link for SimLink {
    fn name(&self) -> String {
        "sim".into()
    }

    fn local(&self) -> Address {
        Address::Sim(self.host)
    }

    fn max_packet(&self) -> usize {
        self.mtu
    }

    fn receive_slots(&self) -> Option<usize> {
        Some(self.receive_slots)
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let mut world = self.network()?;
        let (mut taken, mut sent, mut sent_bytes, mut errors) = (0, 0, 0, 0);
        for packet in batch.packets {
            match batch.to {
                Address::Sim(to) if packet.len() <= self.mtu => {
                    if !world.send(self.host, to, packet, batch.urgency) {
                        break;
                    }
                    sent += 1;
                    sent_bytes += packet.len() as u64;
                }
                _ => errors += 1,
            }
            taken += 1;
        }
        let counters = &mut world.station_mut(self.host).expect("attached").counters;
        counters.send_calls += 1;
        counters.sent_packets += sent;
        counters.sent_bytes += sent_bytes;
        counters.send_errors += errors;
        counters.send_full += u64::from(taken < batch.packets.len());
        Ok(taken)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let mut taken = std::mem::take(&mut self.taken);
        let mut world = self.network()?;
        while taken.len() < limit
            && let Some((from, ecn, bytes)) = world.receive(self.host)
        {
            taken.push(Taken { from, ecn, bytes });
        }
        let station = world.station_mut(self.host).expect("attached");
        station.counters.receive_calls += 1;
        station.counters.received_packets += taken.len() as u64;
        station.counters.received_bytes += taken.iter().map(|packet| packet.bytes.len() as u64).sum::<u64>();
        if !station.inbox.is_empty() {
            world.list(self.host);
        }
        drop(world);
        let count = taken.len();
        for packet in &taken {
            sink(Received { from: Address::Sim(packet.from), to: Own::ANY, ecn: packet.ecn, bytes: &packet.bytes });
        }
        if count > 0 {
            let mut world = super::locked(&self.world);
            taken.drain(..).for_each(|packet| world.frames.recycle(packet.bytes));
        }
        self.taken = taken;
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> Counters {
        let world = super::locked(&self.world);
        world.station(self.host).map(|station| station.counters).unwrap_or_default()
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        let current = self.network().is_ok();
        if current {
            super::locked(&self.world).detach(self.host);
        }
    }
}
