//! A connection to the daemon: who is at its other end, what is still to be sent there, and what is waited for.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ropeway_socket::rendezvous::os::Credentials;
use ropeway_socket::rendezvous::wire::Message;
use rustix::event::epoll::EventFlags;

/// A process with this many unread answers is not read from: what it may still be owed is bounded by what it registered.
pub const QUEUE_HIGH: usize = 256;

pub struct Connection {
    pub socket: OwnedFd,
    pub peer: Credentials,
    /// Said hello.
    pub process: Option<Process>,
    pub queue: VecDeque<(Message, Option<Rc<OwnedFd>>)>,
    pub interest: EventFlags,
    /// Not read while as many descriptors of its user's wait to be closed as may.
    pub held_back: bool,
}

/// What a hello brought.
pub struct Process {
    pub comm: [u8; 16],
    pub table: Option<Rc<OwnedFd>>,
    pub mailbox: Rc<OwnedFd>,
    /// Messages sent, as the mailbox counts them.
    pub sent: u32,
}

impl Connection {
    /// What the kernel is to tell of it.
    pub fn wanted(&self) -> EventFlags {
        let room = if self.queue.is_empty() { EventFlags::empty() } else { EventFlags::OUT };
        if self.held_back {
            // Its end is told unasked; once is enough.
            return room | EventFlags::ET;
        }
        if self.queue.len() < QUEUE_HIGH { room | EventFlags::IN } else { room }
    }

    /// Counts a sent message in the mailbox, after the message itself: what the page counts is in the queue.
    pub fn announce(&mut self) {
        if let Some(process) = &mut self.process {
            process.sent = process.sent.wrapping_add(1);
            // The page is the daemon's own memfd and stays writable; a failure would only delay the mail.
            let _ = rustix::io::pwrite(&process.mailbox, &process.sent.to_ne_bytes(), 0);
        }
    }
}

/// Whose rights a message has. A process that connected as root and is somebody else now has kept the connection, not the
/// rights: the kernel puts the sender's present real user id beside each message. (Of others it need not be the one that
/// connected, which is the effective one: a set-user-id program has two.)
pub fn speaks_as(peer: Credentials, sender: Credentials) -> u32 {
    if peer.uid == 0 { sender.uid } else { peer.uid }
}
