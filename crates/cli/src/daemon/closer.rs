//! Closes what came from other processes, away from the event loop.
//!
//! Whoever passes a descriptor decides how long its last close takes: a TCP socket that lingers waits for the bytes in it to be acknowledged, a file of a FUSE
//! file system for its server. The descriptors in the queue of a connection are closed with it. So what each user sent is closed by a thread of that user's, which is there only
//! while there is something to close.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::numbers;

/// Users beyond these share one more thread: who is let to act for many users should not make as many threads.
const MOST_USERS: usize = 64;
/// Of users that share a thread; it is the number of no user.
const SHARED: u32 = u32::MAX;
/// Who has so many descriptors waiting gives no more of them until some are closed.
const MOST_WAITING: usize = 256;
/// A close that takes so long while as many wait does not come to its end. In a burst of them the thread may only have had no turn yet.
const HANGS_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub struct Closer {
    users: HashMap<u32, Arc<Mutex<Waiting>>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// And who sent each.
    descriptors: VecDeque<(OwnedFd, u32)>,
    /// A thread is at it, and may have one more in hand.
    closing: bool,
    in_hand: Option<InHand>,
}

/// What is being closed.
#[derive(Debug)]
struct InHand {
    number: RawFd,
    user: u32,
    since: Instant,
}

impl Closer {
    /// Closes what `user` sent, or what he may have sent something through.
    pub fn close(&mut self, user: u32, descriptors: impl IntoIterator<Item = OwnedFd>) {
        let mut descriptors = descriptors.into_iter().peekable();
        if descriptors.peek().is_none() {
            return;
        }
        self.users.retain(|_, waiting| lock(waiting).count() > 0);
        let has_own = self.users.contains_key(&user) || self.users.len() < MOST_USERS;
        let shared = self.users.entry(if has_own { user } else { SHARED }).or_default();
        let mut waiting = lock(shared);
        waiting.descriptors.extend(descriptors.map(|descriptor| (descriptor, user)));
        if !waiting.closing {
            let theirs = Arc::clone(shared);
            let thread = thread::Builder::new().name("ropeway-closer".into()).stack_size(64 << 10);
            // Where there is no thread to be had, they wait for the next.
            waiting.closing = thread.spawn(move || close_all(&theirs)).is_ok();
        }
    }

    /// Whether as many of this user's wait as may.
    pub fn is_behind(&self, user: u32) -> bool {
        self.threads_for(user).any(|waiting| lock(waiting).is_behind(|whose| whose == user))
    }

    /// Whether that is so because a close does not come to its end.
    pub fn hangs(&self, user: u32) -> bool {
        self.threads_for(user).any(|waiting| lock(waiting).hangs(|whose| whose == user))
    }

    /// Whether anybody's does not.
    pub fn any_hangs(&self) -> bool {
        self.users.values().any(|waiting| lock(waiting).hangs(|_| true))
    }

    fn threads_for(&self, user: u32) -> impl Iterator<Item = &Arc<Mutex<Waiting>>> {
        [user, SHARED].into_iter().filter_map(|key| self.users.get(&key))
    }
}

impl Waiting {
    fn count(&self) -> usize {
        self.descriptors.len() + usize::from(self.closing)
    }

    fn is_behind(&self, of: impl Fn(u32) -> bool) -> bool {
        let in_hand = self.in_hand.iter().map(|closing| (closing.number, closing.user));
        let all = self.descriptors.iter().map(|(descriptor, user)| (descriptor.as_raw_fd(), *user)).chain(in_hand);
        let numbers = || all.clone().filter(|(_, user)| of(*user)).map(|(number, _)| number);
        // One that has the place of what others pass is enough.
        numbers().count() >= MOST_WAITING || numbers().max().is_some_and(numbers::is_reserved)
    }

    fn hangs(&self, of: impl Fn(u32) -> bool) -> bool {
        self.in_hand.as_ref().is_some_and(|closing| closing.since.elapsed() >= HANGS_AFTER) && self.is_behind(of)
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close_all(waiting: &Mutex<Waiting>) {
    let next = || {
        let mut waiting = lock(waiting);
        let next = waiting.descriptors.pop_front();
        waiting.closing = next.is_some();
        waiting.in_hand = next.as_ref().map(|(descriptor, user)| InHand {
            number: descriptor.as_raw_fd(),
            user: *user,
            since: Instant::now(),
        });
        next
    };
    while let Some((descriptor, _)) = next() {
        drop(descriptor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// A socket whose close waits until the other, which is beside it, has read or is gone.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let deaf = listener.accept().unwrap().0;
        lingering.set_nonblocking(true).unwrap();
        while lingering.write(&[0; 1 << 16]).is_ok() {}
        lingering.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&lingering, Some(Duration::from_secs(1000))).unwrap();
        (lingering, deaf)
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The other end of a connection that the closer has.
    fn given_away(closer: &mut Closer, user: u32) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        closer.close(user, [listener.accept().unwrap().0.into()]);
        other.set_nonblocking(true).unwrap();
        other
    }

    fn is_closed(other: &TcpStream) -> bool {
        other.peek(&mut [0]).is_ok()
    }

    #[test]
    fn a_close_that_hangs_holds_up_its_user_alone() {
        let mut closer = Closer::default();
        let (lingering, deaf) = lingering();
        closer.close(1, [lingering.into()]);
        let held_up = given_away(&mut closer, 1);
        let other = given_away(&mut closer, 2);
        wait_until(|| is_closed(&other));
        assert!(!is_closed(&held_up) && !closer.any_hangs());
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        closer.close(1, (0..MOST_WAITING).map(|_| null()));
        assert!(closer.is_behind(1) && !closer.is_behind(2));
        wait_until(|| closer.hangs(1));
        assert!(closer.any_hangs() && !closer.hangs(2));
        drop(deaf);
        wait_until(|| is_closed(&held_up) && !closer.any_hangs());
    }

    #[test]
    fn users_beyond_some_share_a_thread() {
        let mut closer = Closer::default();
        let users = MOST_USERS as u32;
        let deaf: Vec<_> = (0..users)
            .map(|user| {
                let (lingering, deaf) = lingering();
                closer.close(user, [lingering.into()]);
                deaf
            })
            .collect();
        let others = [users, users + 1].map(|user| given_away(&mut closer, user));
        wait_until(|| others.iter().all(is_closed));
        assert!(closer.users.len() <= MOST_USERS + 1);
        // And each of them has his own count of what waits there.
        let (lingering, still_deaf) = lingering();
        closer.close(users, [lingering.into()]);
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        closer.close(users + 1, (0..MOST_WAITING).map(|_| null()));
        wait_until(|| closer.hangs(users + 1));
        assert!(closer.any_hangs() && !closer.hangs(users) && !closer.hangs(users + 2));
        drop((deaf, still_deaf));
    }
}
