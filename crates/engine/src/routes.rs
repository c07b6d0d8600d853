//! The ways to a peer as users of an engine say them: direct, or through a gateway (docs/protocol.md 12).

use std::time::Instant;

use ropeway_link::Address;
use ropeway_proto::{ChannelId, Mode, Path, Route, Time};

use crate::core::{Core, LinkId};
use crate::engine::{Engine, Target};
use crate::error::Error;
use crate::path;
use crate::shimmed::OVERHEAD_BYTES;

/// Ways that an association uses, at most.
pub(crate) const MOST_WAYS: usize = ropeway_proto::MOST_PATHS;

/// One way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The peer's own address.
    Direct(Target),
    /// A gateway's address, and the node behind it.
    Through(Target, u32),
}

impl Way {
    /// Where packets go: the peer itself, or the gateway.
    pub fn target(&self) -> Target {
        let (Way::Direct(target) | Way::Through(target, _)) = *self;
        target
    }

    pub(crate) fn path(&self) -> Path {
        match *self {
            Way::Direct(to) => path::encode(to.link.0, to.address),
            Way::Through(to, node) => path::behind(to.link.0, to.address, node),
        }
    }

    /// What the path leads to.
    fn of(path: &Path) -> Way {
        let place = path::decode(path);
        let target = Target { link: LinkId(place.link as u8), address: place.address };
        place.node.map_or(Way::Direct(target), |node| Way::Through(target, node))
    }
}

/// The ways to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes<'a> {
    /// The first one is the default. [`ropeway_proto::MOST_PATHS`] at most are used.
    pub ways: &'a [Way],
    /// What is sent for the first time is spread over all of them, in equal shares: links of one rate. Otherwise the others carry repetitions, and everything when the
    /// default fails.
    pub bonded: bool,
}

impl Routes<'_> {
    /// Of several ways one that leads nowhere says nothing.
    fn only(&self) -> Option<Path> {
        if let [way] = self.ways { Some(way.path()) } else { None }
    }
}

impl Engine {
    /// Begins to open a connection over any of several ways, of which the first is the default ([docs](../../../docs/engine.md#routes)).
    ///
    /// # Errors
    /// A bound was reached; there is no way, or one over a link that there is not; or through a gateway, and this engine was made without them.
    pub fn open_over(&self, routes: &Routes<'_>, port: u16, mode: Mode) -> Result<ChannelId, Error> {
        self.open_ways(routes, None, port, mode)
    }

    /// The same from a port of the protocol that the caller has chosen, the first of the two; `None`: one of the engine's choice.
    ///
    /// # Errors
    /// As [`Engine::open_over`].
    pub fn open_over_from(
        &self,
        routes: &Routes<'_>,
        (from, port): (Option<u16>, u16),
        mode: Mode,
    ) -> Result<ChannelId, Error> {
        self.open_ways(routes, from, port, mode)
    }

    /// Opens a connection over any of several ways, and waits until the peer has taken it.
    ///
    /// # Errors
    /// As [`Engine::connect`] and [`Engine::open_over`].
    pub fn connect_over(
        &self,
        routes: &Routes<'_>,
        port: u16,
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<ChannelId, Error> {
        self.connect_over_from(routes, (None, port), mode, deadline)
    }

    /// The same from a port of the protocol that the caller has chosen, the first of the two; `None`: one of the engine's choice.
    ///
    /// # Errors
    /// As [`Engine::connect_over`].
    pub fn connect_over_from(
        &self,
        routes: &Routes<'_>,
        ports: (Option<u16>, u16),
        mode: Mode,
        deadline: Option<Instant>,
    ) -> Result<ChannelId, Error> {
        let channel = self.open_over_from(routes, ports, mode)?;
        if let Err(error) = self.wait_opened_over(channel, routes, deadline) {
            self.abort(channel);
            return Err(error);
        }
        Ok(channel)
    }

    /// Waits until the peer has taken a connection that was opened over these ways.
    ///
    /// # Errors
    /// As [`Engine::wait_opened`].
    pub fn wait_opened_over(
        &self,
        channel: ChannelId,
        routes: &Routes<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        self.wait_opened_by(channel, routes.only(), deadline)
    }

    /// What the network, or this host, said of the destination, if that ended the attempt to open this connection.
    pub fn was_unreached(&self, channel: ChannelId) -> Option<Error> {
        self.inner().ok()?.lock().was_unreached(channel)
    }

    /// The way to the peer of a connection when it was opened, and the ports, local first.
    pub fn way_of(&self, channel: ChannelId) -> Option<(Way, u16, u16)> {
        let (path, local, remote) = self.inner().ok()?.lock().endpoint.addresses(channel)?;
        Some((Way::of(&path), local, remote))
    }

    /// Which of this host's addresses the peer of a connection has asked, over a link that is bound to none; `None`: there is no choice, or it was this end that asked, and leaves it to the host.
    pub fn own_address_of(&self, channel: ChannelId) -> Option<Address> {
        let core = self.inner().ok()?.lock();
        let (path, ..) = core.endpoint.addresses(channel)?;
        core.own_address(&path)
    }
}

impl Core {
    /// `from`: the port that the peer is told; any if there is none.
    pub fn connect(
        &mut self,
        now: Time,
        routes: &Routes<'_>,
        from: Option<u16>,
        port: u16,
        mode: Mode,
    ) -> Result<ChannelId, Error> {
        let mut known = Vec::with_capacity(routes.ways.len());
        for way in routes.ways {
            let link = self.link(way.target().link).ok_or(Error::NoLink)?;
            let most = u16::try_from(link.max_packet()).unwrap_or(u16::MAX);
            let packet_bytes = match way {
                Way::Direct(_) => most,
                Way::Through(..) if !self.has_node() => return Err(Error::NoNode),
                Way::Through(..) => most.saturating_sub(OVERHEAD_BYTES),
            };
            let path = way.path();
            self.was_unreachable(&path);
            known.push(Route { path, packet_bytes });
        }
        Ok(self.endpoint.connect_over_from(now, &known, routes.bonded, (from, port), mode)?)
    }
}
