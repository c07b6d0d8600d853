//! The process's side of the rendezvous, called inside hooks of the preload.
//!
//! One connection to the daemon per process, made on the first need and kept. Nothing here blocks, allocates, touches
//! `errno` or calls a C library function that the preload interposes; every function may be called from any thread and
//! from signal handlers. A stopped or dead daemon costs one failed system call, then nothing for a second.
//!
//! Order of use: [`init`] once; [`register`] when a connection is worth promoting; [`mail_waiting`] at every hook call
//! (two loads) and [`poll`] when it says so. A process whose registrations wait should also call `poll` once in a while
//! (every few hundred calls) so that a daemon that died without a word is noticed.
//!
//! The program may close or replace any descriptor, also ours: before every use the inode behind the number is compared,
//! so that no message ever goes to, or is taken from, a stranger's socket.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use ropeway_shm::sys::{self, Errno};

use super::os::{self, ReceivedFd};
use super::wire::{self, DaemonName, Endpoint, Legacy, MAX_MESSAGE_BYTES, Message, Prefix, Settings, Side, WireError};
use crate::fdtable;
use crate::reason::Reason;

/// Pause after the daemon could not be reached: long enough to cost nothing, short enough that a restart is soon used.
const RETRY_NS: u64 = 1_000_000_000;
/// Pause after a daemon of another version answered; it will not change its mind soon.
const RETRY_VERSION_NS: u64 = 60_000_000_000;
/// Turns of waiting for another thread that is inside for a few system calls. A signal handler that interrupted the
/// holder must not wait for ever; it gives up after this.
const LOCK_TURNS: u32 = 2_000;
/// Messages handled by one [`poll`]: a flooding daemon must not keep a hook from returning.
const POLL_BATCH: usize = 64;
const NAME_BYTES: usize = 107;
const NO_FD: i32 = -1;

/// What the caller knows of a socket it wants promoted.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The caller's name for the connection; comes back in every reply. Registering the same token again replaces.
    pub token: u64,
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// A descriptor of this process for the socket (the daemon may look at it in /proc; it is not passed).
    pub fd: i32,
    pub local: Endpoint,
    pub remote: Endpoint,
    /// The beginning of what this end sent / received.
    pub tx: Prefix,
    pub rx: Prefix,
}

/// Why nothing was sent to the daemon. The connection stays on TCP; the caller may try again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// No daemon answers, or it is not trusted. The next attempt happens after a second.
    NoDaemon,
    /// The daemon is there and does not read (stopped, or far behind).
    Full,
    /// Another thread is inside.
    Busy,
    /// The connection to the daemon was lost; call [`poll`] for [`Reply::Lost`], then register again.
    Lost,
}

/// What the daemon said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The segment of the pair. The caller owns `fd`, maps it and closes it (by `sys::close`), also when it does not know
    /// the token any more. The segment is not to be trusted before its seals and size are checked.
    Granted { token: u64, side: Side, pair_id: u64, ring_bytes: u32, fd: i32 },
    /// No. With `retry` the caller may register again later.
    Denied { token: u64, reason: Reason, retry: bool },
    /// What is known of a socket that another image held before.
    Adopted { token: u64, legacy: Legacy },
    /// The connection to the daemon died: registrations that were not granted are gone and must be made again.
    Lost,
}

static LOCK: AtomicBool = AtomicBool::new(false);
/// The connection to the daemon. Written under the lock; read by [`fd`] without.
static FD: AtomicI32 = AtomicI32::new(NO_FD);
/// Inode behind `FD` when it was made. Under the lock.
static INODE: AtomicU64 = AtomicU64::new(0);
/// Set under the lock when the connection died; cleared when [`Reply::Lost`] is delivered.
static LOST: AtomicBool = AtomicBool::new(false);
/// No attempt to connect before this instant. Under the lock.
static RETRY_AT_NS: AtomicU64 = AtomicU64::new(0);
static TABLE_FD: AtomicI32 = AtomicI32::new(NO_FD);

/// Where [`mail_waiting`] looks: one of the two words below, or the mailbox page. Never null.
static MAILBOX: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const QUIET).cast_mut());
/// Value of the mailbox up to which everything was read.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// Mailbox without a connection: nothing ever waits. Equals the initial `SEEN`.
static QUIET: AtomicU32 = AtomicU32::new(0);
/// Mailbox while something may wait that no page announces: the first answer of the daemon, or a loss to report.
static UNSURE: AtomicU32 = AtomicU32::new(1);
/// Calls of [`mail_waiting`] in the unsure state.
static UNSURE_CALLS: AtomicU32 = AtomicU32::new(0);
/// The mapped page once there was one (reused for the next connection). Null before.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

static OVERRIDE: [AtomicU8; NAME_BYTES] = [const { AtomicU8::new(0) }; NAME_BYTES];
static OVERRIDE_LEN: AtomicUsize = AtomicUsize::new(0);
static PROFILE: [AtomicU8; 32] = [const { AtomicU8::new(0) }; 32];

static SPIN_NS: AtomicU32 = AtomicU32::new(Settings::DEFAULT.spin_ns);
static PROMOTE_CALLS: AtomicU32 = AtomicU32::new(Settings::DEFAULT.promote_after_calls);
static PROMOTE_BYTES: AtomicU64 = AtomicU64::new(Settings::DEFAULT.promote_after_bytes);
static RING_BYTES: AtomicU32 = AtomicU32::new(Settings::DEFAULT.ring_bytes);
static FLAGS: AtomicU32 = AtomicU32::new(Settings::DEFAULT.flags);

/// Held for a few system calls at most; released on drop.
struct Guard;

impl Guard {
    fn try_lock() -> Option<Guard> {
        for _ in 0..LOCK_TURNS {
            if !LOCK.swap(true, Acquire) {
                return Some(Guard);
            }
            core::hint::spin_loop();
        }
        None
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        LOCK.store(false, Release); // pairs with the Acquire of try_lock
    }
}

/// Sets where the daemon listens, if not at the usual names (tests). Call once, before any thread uses the client.
pub fn init(name_override: Option<&[u8]>) {
    let name = name_override.unwrap_or(&[]);
    let n = name.len().min(NAME_BYTES);
    OVERRIDE.iter().zip(&name[..n]).for_each(|(slot, b)| slot.store(*b, Relaxed));
    OVERRIDE_LEN.store(n, Release);
}

/// Names the profile this process asked for (`ROPEWAY_PROFILE`); empty leaves it to the daemon's rules.
pub fn set_profile(name: &[u8]) {
    PROFILE.iter().zip(wire::padded::<32>(name)).for_each(|(slot, b)| slot.store(b, Relaxed));
}

/// Gives the memfd of the process family's socket table, which goes to the daemon with the first message so that
/// `ropeway ss` can read it. The descriptor stays the caller's.
pub fn set_table_fd(fd: i32) {
    TABLE_FD.store(fd, Relaxed);
}

/// That memfd, unless the program has taken its number.
pub fn table_fd() -> Option<i32> {
    Some(TABLE_FD.load(Relaxed)).filter(|fd| fdtable::is_internal(*fd))
}

/// Says hello to the daemon without registering anything, so that [`settings`] become the daemon's early.
pub fn start() -> Result<(), Unavailable> {
    let _guard = Guard::try_lock().ok_or(Unavailable::Busy)?;
    connected().map(drop)
}

/// Offers a connection for promotion. The answer, if the other end comes too, arrives by [`poll`].
pub fn register(reg: &Register) -> Result<(), Unavailable> {
    let Register { token, cookie, fd, local, remote, tx, rx } = *reg;
    submit(&Message::Register { token, cookie, fd, local, remote, tx, rx })
}

/// Tells what the next image of process `heir` (0: none after all) must know of a socket that it alone holds then.
pub fn pass_on(heir: u32, socket: &Register, sent: u64, received: u64) -> Result<(), Unavailable> {
    let Register { cookie, fd, local, remote, tx, rx, .. } = *socket;
    submit(&Message::PassOn { heir, cookie, fd, local, remote, legacy: Legacy { tx, rx, sent, received } })
}

/// Asks what was known of a socket that came by exec; [`Reply::Adopted`] or [`Reply::Denied`] answers.
pub fn adopt(token: u64, cookie: u64, fd: i32) -> Result<(), Unavailable> {
    submit(&Message::Adopt { token, cookie, fd })
}

/// Takes a registration back. A message that cannot be sent now is not repeated: the daemon drops registrations of sockets
/// that are gone by itself, and a grant for a forgotten token is closed by the caller.
pub fn unregister(token: u64) {
    if FD.load(Relaxed) != NO_FD {
        let _ = submit(&Message::Unregister { token });
    }
}

/// True if [`poll`] has something to do. Two loads on the usual path.
#[inline]
pub fn mail_waiting() -> bool {
    let mailbox = MAILBOX.load(Acquire); // pairs with the Release of `watch`
    // SAFETY: `MAILBOX` holds the address of a static or of the mailbox page, which is never unmapped.
    let sent = unsafe { (*mailbox).load(Acquire) };
    sent != SEEN.load(Relaxed) && (!core::ptr::eq(mailbox, &UNSURE) || sometimes())
}

/// While only the kernel could tell, ask at calls 1, 2, 4, 8 .. 128 and then at every 256th: an answer usually is there
/// at once, and a stopped daemon must not cost a system call per hook.
#[cold]
fn sometimes() -> bool {
    let n = UNSURE_CALLS.fetch_add(1, Relaxed).wrapping_add(1);
    n.is_multiple_of(256) || (n < 256 && n.is_power_of_two())
}

/// Hands what the daemon sent to `f`, which may call [`register`] and the others. Returns at once when another thread is
/// polling.
pub fn poll(f: &mut dyn FnMut(Reply)) {
    for _ in 0..POLL_BATCH {
        let next = match Guard::try_lock() {
            Some(_guard) => take(),
            None => return,
        };
        match next {
            Next::Reply(reply) => f(reply),
            Next::Inner => {}
            Next::Empty => return,
        }
    }
}

/// The daemon's settings; the built-in ones before it has answered.
pub fn settings() -> Settings {
    Settings {
        spin_ns: SPIN_NS.load(Relaxed),
        promote_after_calls: PROMOTE_CALLS.load(Relaxed),
        promote_after_bytes: PROMOTE_BYTES.load(Relaxed),
        ring_bytes: RING_BYTES.load(Relaxed),
        flags: FLAGS.load(Relaxed),
    }
}

/// The number of our descriptor, for hooks of `close_range` and the like.
pub fn fd() -> Option<i32> {
    Some(FD.load(Relaxed)).filter(|fd| *fd != NO_FD)
}

/// True if the number is our connection to the daemon: the program's `close` must answer EBADF for it.
pub fn owns_fd(fd: i32) -> bool {
    fd != NO_FD && FD.load(Relaxed) == fd
}

/// In the child of a fork: leaves the inherited connection to the parent and starts fresh at the next need.
pub fn after_fork_child() {
    LOCK.store(false, Release); // a thread of the parent may have held it
    drop_connection();
    LOST.store(false, Relaxed);
    RETRY_AT_NS.store(0, Relaxed);
}

enum Next {
    Reply(Reply),
    /// Something was handled that is not the caller's business.
    Inner,
    Empty,
}

/// Points [`mail_waiting`] at `mailbox`, of which `seen` is read.
fn watch(mailbox: *const AtomicU32, seen: u32) {
    SEEN.store(seen, Relaxed);
    UNSURE_CALLS.store(0, Relaxed);
    MAILBOX.store(mailbox.cast_mut(), Release); // pairs with the Acquire of `mail_waiting`
}

/// Our descriptor if its number still means our socket. Under the lock.
fn live_fd() -> Option<i32> {
    let fd = fd()?;
    if os::inode(fd) == Ok(INODE.load(Relaxed)) { Some(fd) } else { None }
}

/// Forgets the connection; closes the descriptor if it is still ours.
fn drop_connection() {
    let ours = live_fd();
    FD.store(NO_FD, Relaxed);
    if let Some(fd) = ours {
        let _ = sys::close(fd);
    }
    watch(&QUIET, 0);
}

/// The connection died. The caller of the client hears of it by the next `poll`. A daemon that never answered the hello
/// (full, or of another kind) is left alone for a while; one that served us and died may be back already.
fn lose(pause_ns: u64) {
    let welcomed = core::ptr::eq(MAILBOX.load(Relaxed), PAGE.load(Relaxed));
    let pause_ns = if welcomed { pause_ns } else { pause_ns.max(RETRY_NS) };
    drop_connection();
    LOST.store(true, Relaxed);
    RETRY_AT_NS.store(if pause_ns == 0 { 0 } else { sys::monotonic_ns() + pause_ns }, Relaxed);
    watch(&UNSURE, 0);
}

/// One step of `poll`. Under the lock.
fn take() -> Next {
    if LOST.swap(false, Relaxed) {
        watch(&QUIET, 0);
        return Next::Reply(Reply::Lost);
    }
    if fd().is_none() {
        return Next::Empty;
    }
    let Some(fd) = live_fd() else {
        lose(0);
        return Next::Inner;
    };
    let mailbox = MAILBOX.load(Relaxed);
    // SAFETY: as in `mail_waiting`. Read before the receive: what it counts is in the queue by then.
    let sent = unsafe { (*mailbox).load(Acquire) };
    let mut buf = [0; MAX_MESSAGE_BYTES];
    let received = match os::recv(fd, &mut buf, ReceivedFd::close) {
        Ok(received) => received,
        Err(libc::EAGAIN) => {
            if !core::ptr::eq(mailbox, &UNSURE) {
                SEEN.store(sent, Relaxed);
            }
            return Next::Empty;
        }
        // Reported once, before what is still queued.
        Err(libc::ECONNRESET | libc::EINTR) => return Next::Inner,
        Err(_) => {
            lose(0);
            return Next::Inner;
        }
    };
    if received.len == 0 {
        lose(0);
        return Next::Inner;
    }
    match buf.get(..received.len).ok_or(WireError::Malformed).and_then(Message::decode) {
        Ok(message) => accept(message, received.fd),
        Err(error) => {
            if let Some(fd) = received.fd {
                fd.close();
            }
            lose(if matches!(error, WireError::Version(_)) { RETRY_VERSION_NS } else { RETRY_NS });
            Next::Inner
        }
    }
}

/// Turns a message of the daemon into a reply. Under the lock.
fn accept(message: Message, attached: Option<ReceivedFd>) -> Next {
    match (message, attached) {
        (Message::Grant { token, pair_id, ring_bytes, side }, Some(fd)) => {
            Next::Reply(Reply::Granted { token, side, pair_id, ring_bytes, fd: fd.into_raw() })
        }
        // The kernel drops a descriptor for which the process has no free number.
        (Message::Grant { token, .. }, None) => {
            Next::Reply(Reply::Denied { token, reason: Reason::Limits, retry: true })
        }
        (Message::Welcome { settings }, attached) => {
            welcome(settings, attached);
            Next::Inner
        }
        (other, attached) => {
            if let Some(fd) = attached {
                fd.close();
            }
            match other {
                Message::Deny { token, reason, retry } => Next::Reply(Reply::Denied { token, reason, retry }),
                Message::Adopted { token, legacy } => Next::Reply(Reply::Adopted { token, legacy }),
                _ => Next::Inner,
            }
        }
    }
}

fn welcome(settings: Settings, attached: Option<ReceivedFd>) {
    SPIN_NS.store(settings.spin_ns, Relaxed);
    PROMOTE_CALLS.store(settings.promote_after_calls, Relaxed);
    PROMOTE_BYTES.store(settings.promote_after_bytes, Relaxed);
    RING_BYTES.store(settings.ring_bytes, Relaxed);
    FLAGS.store(settings.flags, Relaxed);
    let Some(mailbox) = attached else { return };
    let fd = mailbox.into_raw();
    let page = PAGE.load(Relaxed);
    // SAFETY: `PAGE` is null or an earlier answer of `map_mailbox`, mapped for ever.
    let mapped = os::map_mailbox(fd, unsafe { page.cast_const().as_ref() });
    let _ = sys::close(fd);
    // Without a page (out of memory) the client stays unsure and asks the kernel now and then.
    if let Ok(page) = mapped {
        PAGE.store(core::ptr::from_ref(page).cast_mut(), Relaxed);
        // Not what the page says now: mail may have come before it was mapped. One more receive settles it.
        watch(page, page.load(Acquire).wrapping_sub(1));
    }
}

/// Sends one message, connecting first if need be.
fn submit(message: &Message) -> Result<(), Unavailable> {
    let _guard = Guard::try_lock().ok_or(Unavailable::Busy)?;
    let fd = connected()?;
    let mut buf = [0; MAX_MESSAGE_BYTES];
    match os::send(fd, message.encode(&mut buf), None) {
        Ok(()) => Ok(()),
        Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Err(Unavailable::Full),
        Err(_) => {
            lose(0);
            Err(Unavailable::Lost)
        }
    }
}

/// The connection, made if there is none and the pause is over. Under the lock.
fn connected() -> Result<i32, Unavailable> {
    if LOST.load(Relaxed) {
        return Err(Unavailable::Lost);
    }
    if fd().is_some() {
        return live_fd().ok_or_else(|| {
            lose(0);
            Unavailable::Lost
        });
    }
    let now = sys::monotonic_ns();
    if now < RETRY_AT_NS.load(Relaxed) {
        return Err(Unavailable::NoDaemon);
    }
    RETRY_AT_NS.store(now + RETRY_NS, Relaxed);
    let fd = sys::move_high(dial().map_err(|_| Unavailable::NoDaemon)?);
    let Ok(inode) = os::inode(fd) else {
        let _ = sys::close(fd);
        return Err(Unavailable::NoDaemon);
    };
    if hello(fd).is_err() {
        let _ = sys::close(fd);
        return Err(Unavailable::NoDaemon);
    }
    INODE.store(inode, Relaxed);
    FD.store(fd, Relaxed);
    watch(&UNSURE, 0);
    Ok(fd)
}

fn hello(fd: i32) -> Result<(), Errno> {
    let mut profile = [0; 32];
    profile.iter_mut().zip(&PROFILE).for_each(|(b, slot)| *b = slot.load(Relaxed));
    let pid = sys::getpid().unwrap_or(0) as u32;
    let message = Message::Hello { pid, comm: os::thread_name(), profile };
    let mut buf = [0; MAX_MESSAGE_BYTES];
    let bytes = message.encode(&mut buf);
    let table = Some(TABLE_FD.load(Relaxed)).filter(|fd| *fd != NO_FD);
    match os::send(fd, bytes, table) {
        // The program closed the table's descriptor, or the daemon takes none at present.
        Err(libc::EBADF | libc::EPERM) => os::send(fd, bytes, None),
        done => done,
    }
}

/// Connects to the daemon of this user, else to root's; to nobody else: an abstract name can be taken by anyone.
fn dial() -> Result<i32, Errno> {
    let uid = os::real_uid();
    let len = OVERRIDE_LEN.load(Acquire);
    if len > 0 {
        let mut name = [0; NAME_BYTES];
        name.iter_mut().zip(&OVERRIDE).for_each(|(b, slot)| *b = slot.load(Relaxed));
        return dial_name(&name[..len], uid);
    }
    match dial_name(DaemonName::of(uid).bytes(), uid) {
        Err(_) if uid != 0 => dial_name(DaemonName::of(0).bytes(), uid),
        done => done,
    }
}

fn dial_name(name: &[u8], uid: u32) -> Result<i32, Errno> {
    let fd = os::packet_socket()?;
    let trusted = os::connect(fd, name)
        .and_then(|()| os::peer(fd))
        .and_then(|daemon| if daemon.uid == uid || daemon.uid == 0 { Ok(fd) } else { Err(libc::EPERM) });
    if trusted.is_err() {
        let _ = sys::close(fd);
    }
    trusted
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
