//! The ways to a peer as users of an engine say them: direct, or through a gateway (docs/protocol.md 12).

use ropeway_proto::{ChannelId, Mode, Path, Route, Time};

use crate::core::Core;
use crate::engine::Target;
use crate::error::Error;
use crate::path;
use crate::shimmed::OVERHEAD_BYTES;

/// One way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The peer's own address.
    Direct(Target),
    /// A gateway's address, and the node behind it.
    Through(Target, u32),
}

impl Way {
    fn target(&self) -> Target {
        let (Way::Direct(target) | Way::Through(target, _)) = *self;
        target
    }

    pub(crate) fn path(&self) -> Path {
        match *self {
            Way::Direct(to) => path::encode(to.link.0, to.address),
            Way::Through(to, node) => path::behind(to.link.0, to.address, node),
        }
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
        if let (Some(from), [only]) = (from, &known[..]) {
            return Ok(self.endpoint.connect_from(now, &only.path, from, port, mode)?);
        }
        Ok(self.endpoint.connect_over(now, &known, routes.bonded, port, mode)?)
    }
}
