//! A delay line: every frame that arrives at one of some network devices is sent from another a fixed time later, in the order of arrival.
//!
//! Arrivals are seen by a packet socket, which copies them with their time into a ring that the kernel fills. The ring *is* the line: a frame stays in
//! its slot until its time has come, and is sent from there. So the memory is bounded and taken beforehand, nothing is copied
//! twice, and time passes for a frame from the moment when the kernel saw it, however late this process comes to look. As the time is the same for all
//! frames, only the first can be due.
//!
//! The frame itself is not this module's: whoever had it arrive there also has it dropped. A delay line is no [`Link`](crate::Link):
//! it carries what others send.
//!
//! Times are those of the machine's clock (since 1970). When that is set anew, frames under way leave too early or too late, once.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::steering::Width;
use crate::sys::message::{self, Outgoing};
use crate::sys::program::{JGE, RET, WHOLE, jump, load, plain};
use crate::sys::ring::{Frame, Ring};
use crate::sys::{self, packet};

const PACKET_IGNORE_OUTGOING: i32 = 23;
/// All protocols.
const ETH_P_ALL: u16 = 3;
const ALL_DEVICES: u32 = 0;
/// Where a filter finds the number of a frame's device: SKF_AD_OFF + SKF_AD_IFINDEX.
const DEVICE: u32 = (-0x1000_i32 + 8) as u32;
/// Two Ethernet addresses, after which a tag stands.
const ADDRESSES_BYTES: usize = 12;
/// A VLAN tag on top of the longest frame.
const TAG_BYTES: usize = 4;

/// What may wait behind the devices, in the queues of ports, as the kernel counts it (twice this number, and up to 13 bytes for each of a short
/// frame): so much that those queues drop what does not fit, and not this socket.
const SEND_BUFFER_BYTES: i32 = 1 << 29;

/// A frame that seems to be seen so much later than now was seen before the clock was set back. A little later is usual: the caller looked at the
/// clock first.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// Frames that one call sends at most, so that the caller comes to do something else even if there are always more.
const MOST_FRAMES_AT_ONCE: usize = 64;

/// How a delay line is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Frames are taken from the devices with this number and higher ones.
    pub first_from: u32,
    /// Those of the first are sent from the device with this number, those of the second from the next, and so on.
    pub first_to: u32,
    /// Of the longest packet, without the Ethernet header.
    pub mtu: usize,
    /// How many frames can be under way, at least.
    pub frames: usize,
    pub delay: Duration,
}

/// Free-running counts of a delay line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that arrived, those that were dropped included.
    pub arrived: u64,
    /// Frames whose time came.
    pub passed: u64,
    /// Frames for which there was no room here.
    pub dropped: u64,
    /// By how much frames left too late: the sum, and the most.
    pub late: Duration,
    pub latest: Duration,
}

/// Frames under way.
#[derive(Debug)]
pub struct DelayLine {
    ring: Ring,
    socket: OwnedFd,
    first_from: u32,
    first_to: u32,
    delay: Duration,
    counters: Counters,
}

impl DelayLine {
    /// # Errors
    /// `CAP_NET_RAW` or `CAP_NET_ADMIN` is missing, or the kernel has no memory for so many frames.
    pub fn open(options: &Options) -> io::Result<DelayLine> {
        // Without a protocol: nothing arrives until it is bound, ring and filter in place.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let fd = socket.as_fd();
        // All devices of the namespace are heard, so that one ring keeps the order of all frames; the filter leaves the line's own.
        let program =
            [load(Width::Four, DEVICE), jump(JGE, options.first_from, 0, 1), plain(RET, WHOLE), plain(RET, 0)];
        sys::set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        sys::set_int(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        sys::set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)?;
        let ring = Ring::new(fd, options.frames, options.mtu + TAG_BYTES)?;
        sys::bind(fd, &packet::link_address(ETH_P_ALL, ALL_DEVICES))?;
        let Options { first_from, first_to, delay, .. } = *options;
        Ok(DelayLine { ring, socket, first_from, first_to, delay, counters: Counters::default() })
    }

    /// How many frames can be under way.
    pub fn frames(&self) -> usize {
        self.ring.slots()
    }

    /// Sends the frames that are due at the time `now` (since 1970), or some of them. Says how long it is until the next is due; `None`: there is none, and
    /// the [descriptor](Self::descriptor) becomes readable with the next.
    pub fn pass(&mut self, now: Duration) -> Option<Duration> {
        for _ in 0..MOST_FRAMES_AT_ONCE {
            let frame = self.ring.first()?;
            let (due, limit) = (frame.seen() + self.delay, now + self.delay + CLOCK_STEP);
            if due > now && due < limit {
                return Some(due - now);
            }
            let late = now.saturating_sub(due);
            let to = self.first_to.saturating_add(frame.device.saturating_sub(self.first_from));
            let sent = !frame.truncated && send(self.socket.as_fd(), to, &frame);
            self.ring.release();
            let Counters { passed, dropped, late: all_late, latest, .. } = &mut self.counters;
            *(if sent { passed } else { dropped }) += 1;
            *all_late += late;
            *latest = late.max(*latest);
        }
        Some(Duration::ZERO)
    }

    /// Readable while a frame is under way.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What it has counted since it was made.
    pub fn counters(&mut self) -> Counters {
        if let Ok((arrived, dropped)) = packet::statistics(self.socket.as_fd()) {
            self.counters.arrived += arrived;
            self.counters.dropped += dropped;
        }
        self.counters
    }
}

/// Sends a frame from a device; `false` if the kernel does not take it.
fn send(fd: BorrowedFd<'_>, device: u32, frame: &Frame<'_>) -> bool {
    let address = packet::link_address(ETH_P_ALL, device);
    let tag = frame.tag.unwrap_or_default();
    let (addresses, rest) = frame.bytes.split_at(ADDRESSES_BYTES.min(frame.bytes.len()));
    let (whole, tagged) = ([IoSlice::new(frame.bytes)], [addresses, &tag[..], rest].map(IoSlice::new));
    let parts = if frame.tag.is_some() { &tagged[..] } else { &whole };
    loop {
        match message::send_message(fd, &address, &Outgoing { parts, control: &[] }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A queue was full, or a filter dropped it: counted there.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return true,
            sent => return sent.is_ok(),
        }
    }
}
