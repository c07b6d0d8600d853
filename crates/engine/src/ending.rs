//! How things end without loss: a reader that wants no more, an engine whose connections are closed but not through, a process that exits.

use crate::engine::Engine;
use crate::error::Error;
use crate::wait::Subject;
use ropeway_proto::ChannelId;
use std::time::{Duration, Instant};

/// How often [`Engine::drain_all`] looks while another thread sees to the links: an exit is not in a hurry.
const DRAIN_LOOKS_EVERY: Duration = Duration::from_millis(1);

impl Engine {
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

    /// For who is about to end the process: closes all connections and listeners, waits until what was sent has been acknowledged, and takes leave of the
    /// peers. Whether all was acknowledged in time.
    pub fn finish(&self, deadline: Instant) -> bool {
        let Ok(inner) = self.inner() else { return true };
        let mut core = inner.lock();
        let now = inner.now();
        core.endpoint.close_channels(now);
        core.waiters.wake_all();
        inner.follow_up(&mut core, now);
        inner.ring(&core);
        drop(core);
        let drained = self.drain_all(deadline);
        let mut core = inner.lock();
        core.endpoint.close_all();
        core.transmit(inner.now());
        drained
    }

    /// Waits until everything sent has been acknowledged, on connections that were closed too. Whether that came about in time.
    pub fn drain_all(&self, deadline: Instant) -> bool {
        loop {
            let Ok(inner) = self.inner() else { return true };
            if inner.lock().endpoint.buffers_in_use().0 == 0 {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            // No single connection tells when the last one is through: look every so often, and see to the links meanwhile.
            let look = deadline.min(Instant::now() + DRAIN_LOOKS_EVERY);
            let _ = self.block(Subject::Everything, Some(look), |core, _| {
                (core.endpoint.buffers_in_use().0 == 0).then_some(Ok(()))
            });
        }
    }
}
