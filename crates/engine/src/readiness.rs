//! Descriptors that become readable when a connection does something: for epoll, poll, mio.

use crate::engine::Engine;
use crate::error::Error;
use crate::wait::Subject;
use ropeway_proto::ChannelId;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a descriptor should tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    pub read: bool,
    pub write: bool,
}

/// What a watch is to say of a connection or a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub reads: bool,
    /// All there is to read is the end.
    pub at_end: bool,
    pub writes: bool,
}

/// A descriptor that tells of a connection or a listener. What it says may be out of date in one direction: after it was ready, an operation may
/// still find that it would have to wait.
#[derive(Clone, Debug)]
pub struct Watch {
    shape: Shape,
}

#[derive(Clone, Debug)]
enum Shape {
    /// Readable while the interest is fulfilled.
    Event { fd: Arc<OwnedFd>, interest: Interest },
    /// Readable while there is something to read, writable while there is room, as a socket's own descriptor.
    Socket(Arc<Stand>),
}

/// A pair of sockets, of which the user polls the front. A byte from the back makes it readable, another one tells an edge-triggered poller of the end; bytes that the back has not
/// taken make it unwritable.
#[derive(Debug)]
struct Stand {
    front: OwnedFd,
    back: OwnedFd,
    /// What the front says now. Changed under the engine's lock.
    reads: AtomicBool,
    at_end: AtomicBool,
    writes: AtomicBool,
}

/// More than a quarter of the least buffer that a socket can have (4.5 KiB): from there on it is not writable.
const FILLING_BYTES: usize = 2048;

impl Stand {
    fn new() -> io::Result<Stand> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (front, back) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The kernel takes its least.
        sockopt::set_socket_send_buffer_size(&front, 1)?;
        let [reads, at_end, writes] = [false, false, true].map(AtomicBool::new);
        Ok(Stand { front, back, reads, at_end, writes })
    }

    /// None of these can fail for good: the buffers are ours, and hold what is put there.
    fn show(&self, Shown { reads, at_end, writes }: Shown) {
        let mut bytes = [0; FILLING_BYTES];
        // Who got less than asked for takes all as read, and would wait for an end that is there already: that is a change as well.
        let ends = !self.at_end.swap(at_end, Ordering::Relaxed) && at_end;
        if self.reads.swap(reads, Ordering::Relaxed) != reads || ends {
            let _ = match reads {
                true => send(&self.back, &bytes[..1], SendFlags::NOSIGNAL).map(drop),
                false => recv(&self.front, &mut bytes, RecvFlags::empty()).map(drop),
            };
        }
        if self.writes.swap(writes, Ordering::Relaxed) != writes {
            let _ = match writes {
                true => recv(&self.back, &mut bytes, RecvFlags::empty()).map(drop),
                false => send(&self.front, &bytes, SendFlags::NOSIGNAL).map(drop),
            };
        }
    }
}

impl Watch {
    pub(crate) fn new(interest: Interest) -> io::Result<Watch> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Watch { shape: Shape::Event { fd, interest } })
    }

    pub(crate) fn like_socket() -> io::Result<Watch> {
        Ok(Watch { shape: Shape::Socket(Arc::new(Stand::new()?)) })
    }

    pub(crate) fn is(&self, other: &Watch) -> bool {
        match (&self.shape, &other.shape) {
            (Shape::Event { fd: one, .. }, Shape::Event { fd: another, .. }) => Arc::ptr_eq(one, another),
            (Shape::Socket(one), Shape::Socket(another)) => Arc::ptr_eq(one, another),
            _ => false,
        }
    }

    /// Brings it up to date.
    pub(crate) fn update(&self, shown: Shown) {
        match &self.shape {
            // Also where it is readable already: who polls by edges is told of what is new. It counts further than anybody can write.
            Shape::Event { fd, interest } if interest.read && shown.reads || interest.write && shown.writes => {
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
            Shape::Event { fd, .. } => {
                let _ = rustix::io::read(fd, &mut [0u8; 8]);
            }
            Shape::Socket(stand) => stand.show(shown),
        }
    }
}

impl Engine {
    /// A descriptor that is readable while `interest` is fulfilled, for event loops. The engine keeps it, and its helper polls for it, until [`Engine::unwatch`] or [`Engine::close`].
    ///
    /// # Errors
    /// No descriptors left.
    pub fn watch(&self, channel: ChannelId, interest: Interest) -> Result<Watch, Error> {
        let watch = Watch::new(interest).map_err(Error::link("making an eventfd"))?;
        self.watch_subject(Subject::Channel(channel), watch)
    }

    /// The same for a listener: readable while a connection waits.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn watch_port(&self, port: u16) -> Result<Watch, Error> {
        let watch = Watch::new(Interest { read: true, write: false }).map_err(Error::link("making an eventfd"))?;
        self.watch_subject(Subject::Port(port), watch)
    }

    /// A descriptor that polls as a socket's own: readable while a read, writable while a write would not have to wait.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn watch_like_socket(&self, channel: ChannelId) -> Result<Watch, Error> {
        let watch = Watch::like_socket().map_err(Error::link("making a pair of sockets"))?;
        self.watch_subject(Subject::Channel(channel), watch)
    }

    /// The same for a listener: readable while a connection waits, never writable.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn watch_port_like_socket(&self, port: u16) -> Result<Watch, Error> {
        let watch = Watch::like_socket().map_err(Error::link("making a pair of sockets"))?;
        self.watch_subject(Subject::Port(port), watch)
    }

    fn watch_subject(&self, subject: Subject, watch: Watch) -> Result<Watch, Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        core.waiters.watch(subject, watch.clone());
        core.refresh_watches(subject);
        // It may rest, as nothing has needed it.
        inner.note_needed(inner.now());
        inner.wake_helper(&mut core);
        Ok(watch)
    }

    /// Takes a watch out of use; its descriptor tells nothing any more.
    pub fn unwatch(&self, watch: &Watch) {
        if let Ok(inner) = self.inner() {
            inner.lock().waiters.unwatch(watch);
        }
    }
}

/// For event loops that ask for it (tokio's `AsyncFd`).
impl AsRawFd for Watch {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.shape {
            Shape::Event { fd, .. } => fd.as_fd(),
            Shape::Socket(stand) => stand.front.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

    fn polled(watch: &Watch) -> PollFlags {
        let mut fds = [PollFd::new(watch, PollFlags::IN | PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents()
    }

    #[test]
    fn one_like_a_socket_shows_both_directions_in_every_order() {
        let watch = Watch::like_socket().unwrap();
        let all = [(true, true), (true, false), (false, false), (false, true)];
        for (reads, writes) in all.into_iter().chain(all.into_iter().rev()).cycle().take(100) {
            for _ in 0..3 {
                watch.update(Shown { reads, writes, at_end: false });
                let shown = polled(&watch);
                assert_eq!((shown.contains(PollFlags::IN), shown.contains(PollFlags::OUT)), (reads, writes));
            }
        }
    }

    #[test]
    fn one_like_a_socket_shows_the_end_once_and_is_readable_no_longer_than_it_is_told() {
        let watch = Watch::like_socket().unwrap();
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&edges, &watch, epoll::EventData::new_u64(0), flags).unwrap();
        let has_edge = || {
            let mut events = Vec::with_capacity(1);
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&edges, rustix::buffer::spare_capacity(&mut events), Some(&none)).unwrap() > 0
        };
        let show = |reads, at_end| watch.update(Shown { reads, at_end, writes: true });
        // Bytes; bytes; the end behind them; nothing new.
        for (at_end, is_told) in [(false, true), (false, false), (true, true), (true, false)] {
            show(true, at_end);
            assert_eq!(has_edge(), is_told, "{at_end}");
        }
        show(false, false);
        assert!(!polled(&watch).contains(PollFlags::IN));
    }
}
