//! What an endpoint tells about its associations and channels, for `ropeway ss` and for who asks why something is slow.

use super::{Endpoint, Path};
use crate::association::Association;
use crate::channel::{Channel, ChannelId};
use crate::statistics::{AssociationStatistics, ChannelStatistics};
use crate::time::Time;

impl Endpoint {
    /// A channel as it is now. `None`: there is no such channel.
    pub fn statistics(&self, now: Time, id: ChannelId) -> Option<ChannelStatistics> {
        Some(self.of_channel(now, &self.channels[self.channel_index(id)? as usize]))
    }

    /// All channels that have a user or wait to be accepted, in no particular order.
    pub fn channel_statistics(&self, now: Time) -> impl Iterator<Item = ChannelStatistics> + '_ {
        self.channels
            .iter()
            .filter(|(_, channel)| !channel.released)
            .map(move |(_, channel)| self.of_channel(now, channel))
    }

    fn of_channel(&self, now: Time, channel: &Channel) -> ChannelStatistics {
        let association = (!channel.detached).then(|| self.associations.get(channel.association as usize)).flatten();
        let (outgoing, incoming) = (&channel.outgoing, &channel.incoming);
        ChannelStatistics {
            local_port: channel.local_port,
            remote_port: channel.remote_port,
            queued_bytes: outgoing.queued_bytes(),
            unacked_bytes: outgoing.unacked_bytes(),
            credit_bytes: outgoing.credit_left(),
            unread_bytes: incoming.unread_bytes(),
            sent_bytes: outgoing.sent_bytes(),
            received_bytes: incoming.received_bytes(),
            expired_messages: outgoing.expired_messages,
            association: association.map(|association| self.of_association(now, association)),
        }
    }

    /// All associations, in no particular order.
    pub fn association_statistics(&self, now: Time) -> impl Iterator<Item = AssociationStatistics> + '_ {
        self.associations.iter().map(move |(_, association)| self.of_association(now, association))
    }

    /// The association through which `path` is reached, if there is one.
    pub fn statistics_of(&self, now: Time, path: &Path) -> Option<AssociationStatistics> {
        let index = *self.peers.get(&path.unbound())?;
        Some(self.of_association(now, self.associations.get(index as usize)?))
    }

    fn of_association(&self, now: Time, association: &Association) -> AssociationStatistics {
        let (waits_for, waited) = association.limits(now);
        AssociationStatistics {
            path: association.path,
            paths: association.routes.as_ref().map_or(1, |routes| routes.len()),
            good_paths: association.routes.as_ref().map_or(1, |routes| routes.good()),
            is_open: association.is_open(),
            is_opener: association.is_opener(),
            channels: association.channel_count(),
            packet_bytes: association.packet_bytes,
            round_trip_ns: association.rtt.smoothed_ns(),
            least_round_trip_ns: association.rtt.least_ns(),
            variation_ns: association.rtt.variation_ns(),
            reorder_window_ns: association.reorder_ns,
            in_flight_packets: association.sent.in_flight(),
            backlog_bytes: association.backlog_bytes,
            allowance_packets: association.allowance(now),
            peer_backlog_bytes: association.peer_backlog,
            granted_packets: association.outstanding_packets(),
            missing_packets: association.received.missing(),
            waits_for,
            waited,
            counters: association.counters,
            sealing: association.sealing.statistics(),
        }
    }
}
