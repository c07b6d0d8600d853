//! What an engine knows of its links: which it has, what they can be slept on by, whether they have room, failed or reported anything.

use super::Core;
use crate::error::Error;
use crate::path;
use crate::room::Room;
use crate::shimmed::Shimmed;
use nix::errno::Errno;
use ropeway_link::{Address, Batch, Link, Own, Presence, Report};
use ropeway_proto::{ChannelId, ErrorCode, Path, Taken, Time};
use ropeway_shm::sys::Uncancelled;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Hosts of which what the network reported is remembered.
const MOST_UNREACHABLE: usize = 1024;

/// A link's place in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(pub(crate) u8);

/// One link and what is known of it.
pub(super) struct Member {
    pub link: Box<dyn Link>,
    /// The last of its own addresses of which the endpoint knows that it may talk to itself there.
    pub known_own: Own,
    /// Turns since it last brought something.
    pub quiet: u32,
    /// Whether it takes packets.
    pub room: Room,
    /// It failed; kept so that places stay.
    pub failed: bool,
}

impl Member {
    /// Sends by way of the gateway at the address if `node` is behind it, and counts what the link drops for want of room.
    pub fn send(&mut self, batch: &Batch<'_>, node: Option<u32>, shimmed: &mut Shimmed) -> io::Result<Taken> {
        if self.room.rests() && batch.presence == Presence::Heard {
            return Ok(Taken::default());
        }
        // Only what is for who is silent may be dropped for want of room, and asking a link for its counters may be a system call.
        let discards = batch.presence == Presence::Silent;
        let before = if discards { self.link.counters().send_discarded } else { 0 };
        let count = match node {
            None => self.link.send(batch)?,
            Some(node) => shimmed.send(&mut *self.link, node, batch)?,
        };
        if batch.presence != Presence::Unheard {
            self.room.note(count, batch.packets.len());
        }
        let after = if discards { self.link.counters().send_discarded } else { 0 };
        // A link of the user's may count as it likes.
        let discarded = usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX);
        Ok(Taken { packets: count, discarded: discarded.min(count) })
    }
}

/// How to wait until full links take packets again.
pub struct RoomWait {
    /// The places of those whose descriptors will tell.
    pub places: Vec<u8>,
    /// There are others, to be tried then.
    pub tries_at: Option<Time>,
}

impl Core {
    /// `None`: there are [`path::MOST_LINKS`] already. `descriptor`: a copy of the link's own.
    pub fn add_link(&mut self, link: Box<dyn Link>, descriptor: Option<OwnedFd>) -> Option<LinkId> {
        let place = u8::try_from(self.members.len()).ok().filter(|place| usize::from(*place) < path::MOST_LINKS)?;
        Arc::make_mut(&mut self.descriptors).extend(descriptor.map(|fd| (place, Arc::new(fd))));
        if let Some(slots) = link.receive_slots() {
            self.endpoint.gate().add_receive_slots(slots as u64);
        }
        self.members.push(Member { link, known_own: Own::ANY, quiet: 0, room: Room::default(), failed: false });
        self.endpoint.tell_links_apart(self.members.len(), path::link);
        Some(LinkId(place))
    }

    /// The end: what is sent from now on is lost.
    pub fn drop_links(&mut self) {
        self.members.clear();
        self.descriptors = Arc::default();
    }

    /// What the links can be slept on by.
    pub fn descriptors(&self) -> Arc<Vec<(u8, Arc<OwnedFd>)>> {
        self.descriptors.clone()
    }

    pub fn link(&self, id: LinkId) -> Option<&dyn Link> {
        self.members.get(usize::from(id.0)).map(|member| &*member.link)
    }

    pub fn links(&self) -> impl Iterator<Item = (LinkId, &dyn Link)> {
        self.members.iter().enumerate().map(|(place, member)| (LinkId(place as u8), &*member.link))
    }

    /// Whether a link's device is gone.
    pub fn has_failed(&self, id: LinkId) -> bool {
        self.members.get(usize::from(id.0)).is_some_and(|member| member.failed)
    }

    /// Something woke who slept on the links: it may be one that has been quiet.
    pub fn look_at_all_links(&mut self) {
        self.members.iter_mut().for_each(|member| member.quiet = 0);
    }

    /// Whether a link waits for room to send.
    pub fn is_full(&self) -> bool {
        self.members.iter().any(|member| member.room.is_full())
    }

    /// How to wait for that.
    pub fn room_wait(&self) -> RoomWait {
        let members = || self.members.iter().zip(0..);
        RoomWait {
            places: members().filter(|(member, _)| member.room.will_tell()).map(|(_, place)| place).collect(),
            tries_at: members().filter_map(|(member, _)| member.room.tries_at()).min(),
        }
    }

    /// The link at `place`, which was full, is writable.
    pub fn promise_room(&mut self, place: u8) {
        if let Some(member) = self.members.get_mut(usize::from(place)) {
            member.room.promise();
        }
    }

    /// The descriptor of the link at `place` shows an error condition.
    pub fn fetch_errors(&mut self, place: u8) {
        if let Some(member) = self.members.get_mut(usize::from(place)) {
            member.link.fetch_errors();
        }
    }

    /// Whether all links have failed.
    pub fn is_cut_off(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|member| member.failed)
    }

    /// Links have failed: nobody sleeps on them any more, or waits for room there.
    #[cold]
    pub(super) fn bury_failed(&mut self) {
        // It closes descriptors, in whichever thread looked.
        let _uncancelled = Uncancelled::begin();
        let members = &mut self.members;
        members.iter_mut().filter(|member| member.failed).for_each(|member| member.room = Room::default());
        let is_dead = |place: u8| members.get(usize::from(place)).is_some_and(|member| member.failed);
        Arc::make_mut(&mut self.descriptors).retain(|&(place, _)| !is_dead(place));
        self.descriptors_changed = true;
        if self.is_cut_off() {
            self.waiters.wake_all();
            for subject in self.waiters.watched() {
                self.refresh_watches(subject);
            }
        }
    }

    /// Which of this host's own addresses a path is bound to.
    pub fn own_address(&self, path: &Path) -> Option<Address> {
        let place = path::decode(path);
        self.members.get(place.link)?.link.own_address(place.own)
    }

    pub fn path(link: LinkId, to: Address) -> Path {
        path::encode(link.0, to)
    }

    /// Reports from the network about destinations, as hints for who connects there, if they are about a packet of such an attempt: anybody can make others up. Whether one was about an attempt that
    /// nobody has answered.
    pub fn take_reports(&mut self) -> bool {
        let mut concerns = false;
        for (place, member) in self.members.iter_mut().enumerate() {
            while let Some(Report { to, error, packet }) = member.link.take_error() {
                let path = path::encode(place as u8, to);
                if packet.is_some_and(|packet| !self.endpoint.is_of_attempt(&path, &packet)) {
                    continue;
                }
                concerns |= match error.kind() {
                    io::ErrorKind::ConnectionRefused => self.endpoint.refuse_unanswered(&path),
                    _ => {
                        let ended = self.endpoint.give_up_unanswered(&path);
                        let number = error.raw_os_error().unwrap_or(0);
                        self.unreached.extend(ended.iter().map(|&channel| (channel, number)));
                        !ended.is_empty()
                    }
                };
                if self.unreachable.len() >= MOST_UNREACHABLE {
                    // Hints, of which those of hosts that nobody asked any more stay. Who is asked will be spoken of again.
                    self.unreachable.clear();
                }
                self.unreachable.insert(path, error.raw_os_error().unwrap_or(0));
            }
        }
        concerns
    }

    /// What the network reported of this path since the last question, if it was that nothing comes there.
    pub fn was_unreachable(&mut self, path: &Path) -> Option<Error> {
        self.unreachable.remove(path).map(|number| self.reported(number))
    }

    /// What the network reported that ended the attempt to open this connection.
    pub fn was_unreached(&self, channel: ChannelId) -> Option<Error> {
        self.unreached.get(&channel).map(|&number| self.reported(number))
    }

    fn reported(&self, number: i32) -> Error {
        match Errno::from_raw(number) {
            Errno::ECONNREFUSED => Error::Failed(ErrorCode::Refused),
            Errno::EMSGSIZE => Error::PacketsTooLong { packet_bytes: self.endpoint.config().packet_bytes },
            _ => Error::Unreachable(io::Error::from_raw_os_error(number)),
        }
    }
}
