//! A simulated network in virtual time: hosts, cables, switches with bounded queues, and all that can go wrong.
//!
//! Whoever drives it moves time on and lets the hosts work in between; nothing here looks at a clock or asks the system for randomness, so a
//! seed and the same calls give the same run, down to the order of events within one instant.
//!
//! ```
//! use ropeway_link::{Address, Batch, Link, sim};
//! use std::io::IoSlice;
//!
//! let network = sim::Network::new(sim::Config::default(), 1);
//! let (mut a, mut b) = (network.attach(0), network.attach(1));
//! let packet = [7; 1500];
//! a.send(&Batch::new(Address::Sim(1), &[IoSlice::new(&packet)])).unwrap();
//! // 1538 bytes on the wire, twice, and two cables of 5 us.
//! assert_eq!(network.advance_until_ready(sim::Time::MAX), 2 * (1538 * 8 + 5_000));
//! assert_eq!(b.receive(1, &mut |packet| assert_eq!(packet.bytes, [7; 1500])).unwrap(), 1);
//! ```
//!
//! # The model
//! A packet waits in its host's queue ([`Host::send_queue_bytes`]; urgent packets first), is serialised at the card's rate, travels, and is
//! whole in the switch after its last bit ("store and forward"). There it finds room in the queue of its output port or is dropped, is
//! serialised again, travels, and takes one of the host's receive slots or is dropped. The frame being sent still counts in its queue. Rates are
//! exact over back-to-back frames: fractions of nanoseconds are carried on.
//!
//! Faults happen in cables, in each direction on their own: a packet is lost, doubled (the copy in its place), held back, or corrupted; a corrupted one
//! is dropped by whoever checks it next, or delivered as it is. Partitions are decided when a packet reaches its first switch, and at each one
//! after it. A stopped host neither sends nor takes; what arrives meanwhile fills its slots.
//!
//! Not modelled: what the hosts' own work costs, pause frames, and address learning (switches know where everybody is).

mod config;
mod frame;
mod link;
mod port;
mod world;

#[cfg(test)]
mod tests;

pub use config::{Config, Direction, Framing, Host, NetworkCounters, PortCounters, SharedBuffer, Switch, Trunk};
pub use link::SimLink;

use crate::{FaultCounters, Faults};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use world::World;

/// Nanoseconds since the network was made.
pub type Time = u64;

const NS_PER_S: u64 = 1_000_000_000;

/// Hosts have numbers below this: they index a table.
pub const MOST_HOSTS: u32 = 1 << 16;

/// A simulated network. Copies are handles to the same one.
#[derive(Clone, Debug)]
pub struct Network {
    world: Arc<Mutex<World>>,
}

fn locked(world: &Mutex<World>) -> MutexGuard<'_, World> {
    // A test that panicked elsewhere says more than a second panic here.
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    /// # Panics
    /// The configuration names no switch, a trunk without two switches, or a rate of 0.
    pub fn new(config: Config, seed: u64) -> Network {
        Network { world: Arc::new(Mutex::new(World::new(config, seed))) }
    }

    /// The end of host `host`, which is made as [`Config::host`] says if it is not there yet. A link attached to it before fails from now on, and
    /// what waited for it is gone: the process was started anew.
    ///
    /// # Panics
    /// As [`Network::attach_as`].
    pub fn attach(&self, host: u32) -> SimLink {
        let mut world = locked(&self.world);
        let config = world.station(host).map_or_else(|| world.default_host(), |station| station.config);
        let generation = world.attach(host, config);
        drop(world);
        SimLink::new(self.world.clone(), host, generation)
    }

    /// The end of a host that is made as `config` says. Of one that is there, the configuration stays.
    ///
    /// # Panics
    /// `host` is not below [`MOST_HOSTS`], its switch is not there, or its rate is 0.
    pub fn attach_as(&self, host: u32, config: Host) -> SimLink {
        let generation = locked(&self.world).attach(host, config);
        SimLink::new(self.world.clone(), host, generation)
    }

    pub fn now(&self) -> Time {
        locked(&self.world).now
    }

    /// When the next event happens, of whatever kind.
    pub fn next_event(&self) -> Option<Time> {
        locked(&self.world).next_event()
    }

    /// Lets happen all events up to `to`, that instant included, and sets the time to it. Time never goes back.
    pub fn advance(&self, to: Time) {
        locked(&self.world).advance(to);
    }

    /// Moves on to the first instant in which some host can do something (see [`Network::take_ready`]), all of whose events then have happened, or
    /// to `limit`; not at all if one can now. Returns the time. A limit of [`Time::MAX`] is none: time then ends with the last event.
    pub fn advance_until_ready(&self, limit: Time) -> Time {
        let mut world = locked(&self.world);
        world.advance_until_ready(limit);
        world.now
    }

    /// Appends the hosts that can do something, in the order in which they came to, each once: packets arrived, a receive left some, there is room again
    /// after a refused send, or it goes on after a stop.
    pub fn take_ready(&self, hosts: &mut Vec<u32>) {
        locked(&self.world).take_ready(hosts);
    }

    /// Packets on their way or waiting to be received.
    pub fn packets_inside(&self) -> usize {
        locked(&self.world).frames.len()
    }

    /// Lets nothing pass between hosts of `a` and hosts of `b`, in both directions, from `from` until before `until` ([`Time::MAX`]: until
    /// [`Network::heal`]).
    pub fn partition(&self, a: &[u32], b: &[u32], from: Time, until: Time) {
        locked(&self.world).add_partition(a, b, from, until);
    }

    /// Ends all partitions, those to come too.
    pub fn heal(&self) {
        locked(&self.world).heal();
    }

    /// Stops a host: it neither sends nor takes anything, as a process that got SIGSTOP.
    pub fn stop(&self, host: u32) {
        locked(&self.world).set_stopped(host, true);
    }

    /// Lets a stopped host go on.
    pub fn resume(&self, host: u32) {
        locked(&self.world).set_stopped(host, false);
    }

    /// Changes the faults of a host's cable for what comes out of its end from now on.
    pub fn set_faults(&self, host: u32, direction: Direction, faults: Faults) {
        locked(&self.world).set_faults(host, direction, faults);
    }

    /// The switch's port to a host: where incast overflows. `None`: no such host.
    pub fn port(&self, host: u32) -> Option<PortCounters> {
        locked(&self.world).port_counters(host, Direction::ToHost)
    }

    /// The card of a host.
    pub fn card(&self, host: u32) -> Option<PortCounters> {
        locked(&self.world).port_counters(host, Direction::ToSwitch)
    }

    /// The trunk's port at the first (0) or second (1) switch.
    pub fn trunk(&self, switch: usize) -> Option<PortCounters> {
        locked(&self.world).trunk_counters(switch)
    }

    pub fn cable(&self, host: u32, direction: Direction) -> Option<FaultCounters> {
        locked(&self.world).cable_counters(host, direction)
    }

    pub fn counters(&self) -> NetworkCounters {
        locked(&self.world).counters
    }
}
