//! How things end without loss: a connection, a reader that wants no more, an engine whose connections are closed but not through, a process that exits.

use crate::core::Core;
use crate::engine::Engine;
use crate::error::Error;
use crate::inner::Inner;
use crate::sleep::until_told;
use crate::wait::Subject;
use ropeway_proto::{ChannelId, ErrorCode, Time};
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// How often [`Engine::drain_all`] looks while another thread sees to the links: an exit is not in a hurry.
const DRAIN_LOOKS_EVERY: Duration = Duration::from_millis(1);
/// For so long an engine that ends, or all of a program that exits, takes leave while its links are full: no exit waits longer for a card that has stopped.
pub const LEAVE_TAKES: Duration = Duration::from_millis(100);
/// How often it tries links that should have said that they have room.
const LEAVE_TRIES_EVERY: Duration = Duration::from_millis(2);

impl Engine {
    /// Waits until everything sent has been acknowledged.
    ///
    /// # Errors
    /// The connection failed before, or the time is over; [`Error::PeerClosed`]: it had not read what was still to be sent, and that was thrown away.
    pub fn drain(&self, channel: ChannelId, deadline: Option<Instant>) -> Result<(), Error> {
        self.block(Subject::Channel(channel), deadline, |core, _| {
            core.endpoint.await_drained(channel);
            let Some(readiness) = core.endpoint.readiness(channel) else { return Some(Err(Error::Closed)) };
            match readiness.failed {
                // The peer's engine has left in order, and had all of it.
                Some(ErrorCode::Closed) if readiness.drained => Some(Ok(())),
                Some(code) => Some(Err(Error::Failed(code))),
                None if readiness.undelivered => Some(Err(Error::PeerClosed)),
                None => readiness.drained.then_some(Ok(())),
            }
        })
    }

    /// Whether the peer has taken the connection, or something was written that it has not: nobody waits for the end of one of which neither is so.
    pub fn has_begun(&self, channel: ChannelId) -> bool {
        self.inner().is_ok_and(|inner| inner.lock().endpoint.has_begun(channel))
    }

    /// No more will be sent; the peer reads the end.
    ///
    /// # Errors
    /// The connection ended already.
    pub fn shutdown(&self, channel: ChannelId) -> Result<(), Error> {
        self.attempt(Subject::Channel(channel), |core, now| Ok(core.endpoint.shutdown(now, channel)?))
    }

    /// Gives a connection up; what was sent is still delivered while the engine lives.
    pub fn close(&self, channel: ChannelId) {
        self.end(channel, |core, now| core.endpoint.close(now, channel));
    }

    /// Whether what is unread then, or when the engine finishes, makes no reset of that, as it does at first: it is forgotten.
    pub fn set_forgets_unread(&self, channel: ChannelId, on: bool) {
        if let Ok(inner) = self.inner() {
            inner.lock().endpoint.set_forgets_unread(channel, on);
        }
    }

    /// Ends a connection at once: the peer sees a reset.
    pub fn abort(&self, channel: ChannelId) {
        self.end(channel, |core, now| {
            core.endpoint.abort(now, channel);
            // Another handle's event loop may have it.
            core.refresh_watches(Subject::Channel(channel));
        });
    }

    fn end(&self, channel: ChannelId, end: impl FnOnce(&mut Core, Time)) {
        let Ok(inner) = self.inner() else { return };
        let mut core = inner.lock();
        let now = inner.now();
        end(&mut core, now);
        core.unreached.remove(&channel);
        core.waiters.forget(Subject::Channel(channel));
        inner.follow_up(&mut core, now);
        if core.sleeps_until.is_some() {
            // It may be this connection that the sleeper waits for.
            inner.ring(&core);
        }
    }

    /// Reads end after what has arrived; threads that wait for more are woken. The peer is not told.
    ///
    /// # Errors
    /// The process was forked.
    pub fn stop_reading(&self, channel: ChannelId) -> Result<(), Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        core.endpoint.stop_reading(channel);
        inner.follow_up(&mut core, inner.now());
        drop(core);
        self.wake(channel)
    }

    /// Has all threads that wait for something of this connection look again.
    ///
    /// # Errors
    /// The process was forked.
    pub fn wake(&self, channel: ChannelId) -> Result<(), Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        core.waiters.wake(Subject::Channel(channel));
        if core.sleeps_until.is_some() {
            // It may be this connection that the sleeper waits for.
            inner.ring(&core);
        }
        Ok(())
    }

    /// For who is about to end the process: closes all connections and listeners of these engines, waits until what was sent has been acknowledged, and takes leave of the
    /// peers. Messages that other threads are handing over are still sent.
    pub fn finish_all(engines: &[Engine], deadline: Instant) {
        engines.iter().for_each(Engine::close_for_exit);
        for engine in engines {
            // Meanwhile the others go on by themselves: a peer that is silent costs those of others no time.
            engine.drain_all(deadline);
        }
        let until = Instant::now() + LEAVE_TAKES;
        for inner in engines.iter().filter_map(|engine| engine.inner().ok()) {
            // One whose turn comes late still tells those that its links take at once.
            inner.take_leave(&mut inner.lock(), until.max(Instant::now() + LEAVE_TRIES_EVERY));
        }
    }

    fn close_for_exit(&self) {
        let Ok(inner) = self.inner() else { return };
        let mut core = inner.lock();
        let now = inner.now();
        core.endpoint.close_channels(now);
        core.waiters.wake_all();
        inner.follow_up(&mut core, now);
        inner.ring(&core);
    }

    /// Waits until everything sent has been acknowledged, on connections that were closed too. Whether that came about in time.
    pub fn drain_all(&self, deadline: Instant) -> bool {
        loop {
            let Ok(inner) = self.inner() else { return true };
            if inner.lock().endpoint.is_drained() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            // No single connection tells when the last one is through: look every so often, and see to the links meanwhile.
            let look = deadline.min(Instant::now() + DRAIN_LOOKS_EVERY);
            let _ = self.block(Subject::Everything, Some(look), |core, _| core.endpoint.is_drained().then_some(Ok(())));
        }
    }
}

impl Inner {
    /// Ends all associations, and tells the peers as the links take it, until then at most. The lock is held for as long as that takes: nobody has anything to do here any more.
    pub(crate) fn take_leave(&self, core: &mut Core, until: Instant) {
        let until = self.time_of(Some(until));
        loop {
            let now = self.now();
            let all_closed = core.endpoint.close_all(now);
            core.transmit(now);
            if all_closed && !core.endpoint.wants_to_transmit() || now >= until {
                return;
            }
            wait_for_room(core);
        }
    }
}

/// Until a full link has room, or for a moment; not at all if all was taken.
fn wait_for_room(core: &mut Core) {
    if !core.is_full() {
        // What waits is for peers that may be off, and nothing tells when there is room for that.
        if core.endpoint.wants_to_transmit() {
            std::thread::sleep(LEAVE_TRIES_EVERY);
        }
        return;
    }
    let room = core.room_wait();
    let now = core.clock.now();
    let most = room.tries_at.map_or(LEAVE_TRIES_EVERY, |at| Duration::from_nanos(at.since(now)));
    let descriptors = core.descriptors();
    let full: Vec<_> = descriptors.iter().filter(|(place, _)| room.places.contains(place)).collect();
    let mut fds: Vec<_> = full.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::OUT)).collect();
    until_told(&mut fds, Some(most));
    for ((place, _), _) in full.iter().zip(&fds).filter(|(_, fd)| fd.revents().contains(PollFlags::OUT)) {
        core.promise_room(*place);
    }
}
