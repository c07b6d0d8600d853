//! The client against a daemon played by the test. The client is one per process, so this is one test, step by step.

use super::*;
use core::ffi::{c_int, c_void};

struct FakeDaemon {
    listener: c_int,
    served: Option<c_int>,
    mailbox: c_int,
    sent: u32,
}

impl FakeDaemon {
    fn listen(name: &[u8]) -> FakeDaemon {
        let listener = os::packet_socket().unwrap();
        let (addr, len) = sys::abstract_address(name);
        // SAFETY: `addr` is valid for `len` bytes; listen takes no pointer.
        unsafe {
            sys::bind(listener, (&raw const addr).cast(), len).unwrap();
            assert_eq!(libc::listen(listener, 8), 0);
        }
        FakeDaemon { listener, served: None, mailbox: -1, sent: 0 }
    }

    fn accept(&mut self) {
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept(self.listener, core::ptr::null_mut(), core::ptr::null_mut()) };
        assert!(fd >= 0, "the client connected");
        self.served = Some(fd);
    }

    fn next(&self) -> (Message, Option<c_int>) {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        let got = os::recv(self.served.unwrap(), &mut buf, os::ReceivedFd::close).expect("a message waits");
        (Message::decode(&buf[..got.len]).unwrap(), got.fd.map(ReceivedFd::into_raw))
    }

    fn send(&mut self, message: &Message, attach: Option<c_int>) {
        let mut buf = [0; MAX_MESSAGE_BYTES];
        os::send(self.served.unwrap(), message.encode(&mut buf), attach).unwrap();
        self.sent += 1;
        if self.mailbox >= 0 {
            let count = self.sent.to_ne_bytes();
            // SAFETY: four readable bytes.
            assert_eq!(unsafe { libc::pwrite(self.mailbox, count.as_ptr().cast::<c_void>(), 4, 0) }, 4);
        }
    }

    fn welcome(&mut self) {
        self.mailbox = memfd();
        self.sent = 0;
        let settings = Settings { spin_ns: 77, ..Settings::DEFAULT };
        self.send(&Message::Welcome { settings }, Some(self.mailbox));
    }

    fn hang_up(&mut self) {
        sys::close(self.served.take().unwrap()).unwrap();
        self.mailbox = -1;
    }
}

fn memfd() -> c_int {
    // SAFETY: a constant name.
    let fd = unsafe { sys::memfd_create(c"test".as_ptr().cast(), libc::MFD_ALLOW_SEALING) }.unwrap() as c_int;
    sys::ftruncate(fd, 4096).unwrap();
    sys::fcntl(fd, libc::F_ADD_SEALS, (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) as usize).unwrap();
    fd
}

fn polled() -> Vec<Reply> {
    let mut replies = Vec::new();
    poll(&mut |reply| replies.push(reply));
    replies
}

fn sample(token: u64) -> Register {
    let end = Endpoint::v4([127, 0, 0, 1], 1);
    Register { token, cookie: 9, fd: 3, local: end, remote: end, tx: Prefix::default(), rx: Prefix::default() }
}

#[test]
fn the_client_lives_with_a_daemon_that_comes_and_goes() {
    let name = format!("ropeway-test/client/{}", std::process::id());
    init(Some(name.as_bytes()));
    assert_eq!(settings(), Settings::DEFAULT);
    assert!(!mail_waiting());

    // Nobody listens; the next attempt waits for its time, then for the daemon.
    assert_eq!(register(&sample(1)), Err(Unavailable::NoDaemon));
    let mut daemon = FakeDaemon::listen(name.as_bytes());
    assert_eq!(register(&sample(1)), Err(Unavailable::NoDaemon), "no second attempt within the pause");
    RETRY_AT_NS.store(0, Relaxed);

    // Hello with the table, then the registration.
    let table = memfd();
    set_table_fd(table);
    set_profile(b"latency");
    register(&sample(1)).unwrap();
    daemon.accept();
    let (hello, shown) = daemon.next();
    assert!(matches!(hello, Message::Hello { pid, profile, .. }
        if pid == std::process::id() && wire::unpadded(&profile) == b"latency"));
    assert_eq!(os::inode(shown.unwrap()), os::inode(table));
    assert!(matches!(daemon.next(), (Message::Register { token: 1, cookie: 9, .. }, None)));
    assert!(owns_fd(fd().unwrap()) && !owns_fd(-1) && !owns_fd(0));

    // A silent daemon costs few looks.
    let looks = (0..1000).filter(|_| mail_waiting()).count();
    assert!((4..=16).contains(&looks), "{looks} looks in 1000 calls");

    // The welcome brings settings and the mailbox, after which there is no guessing.
    daemon.welcome();
    assert!(polled().is_empty());
    assert_eq!(settings().spin_ns, 77);
    assert!((0..1000).all(|_| !mail_waiting()));

    // Mail is announced by the page, and handed out in order.
    let segment = memfd();
    daemon.send(&Message::Deny { token: 5, reason: Reason::Rule, retry: false }, None);
    daemon.send(&Message::Grant { token: 1, pair_id: 2, ring_bytes: 4096, side: 1 }, Some(segment));
    assert!(mail_waiting());
    let replies = polled();
    assert_eq!(replies[0], Reply::Denied { token: 5, reason: Reason::Rule, retry: false });
    let Reply::Granted { token: 1, side: 1, pair_id: 2, ring_bytes: 4096, fd: granted } = replies[1] else {
        panic!("{replies:?}");
    };
    assert_eq!(os::inode(granted), os::inode(segment));
    assert!(!mail_waiting());

    // A grant whose descriptor got lost is no grant.
    daemon.send(&Message::Grant { token: 6, pair_id: 3, ring_bytes: 4096, side: 0 }, None);
    assert_eq!(polled(), [Reply::Denied { token: 6, reason: Reason::Limits, retry: true }]);

    // The daemon dies and is back: what it sent last still arrives, then the loss, once.
    daemon.send(&Message::Deny { token: 7, reason: Reason::Memory, retry: true }, None);
    daemon.hang_up();
    assert!(mail_waiting());
    assert_eq!(polled(), [Reply::Denied { token: 7, reason: Reason::Memory, retry: true }, Reply::Lost]);
    assert!(!mail_waiting() && polled().is_empty() && fd().is_none());
    register(&sample(1)).unwrap();
    daemon.accept();
    assert!(matches!(daemon.next().0, Message::Hello { .. }));
    assert!(matches!(daemon.next().0, Message::Register { token: 1, .. }));
    daemon.welcome();
    assert!(polled().is_empty() && !mail_waiting());

    // Death noticed by a send: the caller is told to poll first.
    daemon.hang_up();
    assert_eq!(register(&sample(2)), Err(Unavailable::Lost));
    assert_eq!(register(&sample(2)), Err(Unavailable::Lost));
    assert!(mail_waiting());
    assert_eq!(polled(), [Reply::Lost]);
    register(&sample(2)).unwrap();
    daemon.accept();
    daemon.welcome();
    assert!(polled().is_empty());

    // The program put its own socket where ours was: nothing is read from it or written to it, and it stays open.
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, pair.as_mut_ptr()) }, 0);
    let number = fd().unwrap();
    sys::dup2(pair[0], number).unwrap();
    os::send(pair[1], b"theirs", None).unwrap();
    assert_eq!(register(&sample(3)), Err(Unavailable::Lost));
    assert_eq!(polled(), [Reply::Lost]);
    let mut buf = [0; MAX_MESSAGE_BYTES];
    assert_eq!(os::recv(number, &mut buf, os::ReceivedFd::close).unwrap().len, 6);
    assert_eq!(os::recv(pair[1], &mut buf, os::ReceivedFd::close).unwrap_err(), libc::EAGAIN);

    // A daemon that talks nonsense is left alone for a while.
    register(&sample(4)).unwrap();
    daemon.accept();
    os::send(daemon.served.unwrap(), b"nonsense", None).unwrap();
    assert_eq!(polled(), [Reply::Lost]);
    assert_eq!(register(&sample(4)), Err(Unavailable::NoDaemon));

    // A forked child starts afresh at once, with a lock that a thread of its parent held.
    RETRY_AT_NS.store(0, Relaxed);
    start().unwrap();
    daemon.accept();
    LOCK.store(true, Relaxed);
    assert_eq!(register(&sample(5)), Err(Unavailable::Busy));
    let inherited = fd().unwrap();
    after_fork_child();
    assert_eq!(os::inode(inherited), Err(libc::EBADF));
    start().unwrap();
    assert!(fd().is_some());
}
