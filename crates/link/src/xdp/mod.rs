//! Plain Ethernet through AF_XDP: frames of our EtherType are taken where the driver has them, before the rest of the kernel sees them.
//!
//! Where the driver can, frames lie in our own memory from the start ("zero-copy"); elsewhere the kernel copies them once. On a veth pair the latter is
//! slower than [`packet`](crate::packet): this link is for network cards. Frames are the same as there, so a host with one link reaches a host with
//! the other.
//!
//! A link owns one receive queue of its device. Cards put frames that are not IP into their first queue, as far as known; one that does not has to
//! be told (`ethtool -L DEVICE combined 1`). Frames of our EtherType on queues without a link go the usual way, where a packet link may take
//! them. So do those that the link does not [accept](Options::accept): several processes can share a device if all but one use packet links.
//!
//! It needs `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`, and `CAP_IPC_LOCK` if its buffers are more than `RLIMIT_MEMLOCK` allows; all that was set up goes with this process, however it ends.

mod program;

use crate::device::Device;
use crate::packet::{DEFAULT_ETHERTYPE, FieldMatch};
use crate::sys::xsk::{BUFFER_BYTES, KERNEL_HEADROOM_BYTES, Memory, SOL_XDP};
use crate::sys::{self, bpf, device};
use crate::{Address, Batch, Counters, Ecn, Link, Own, Received};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How frames come to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The first of the others that works.
    #[default]
    Automatic,
    /// The driver writes into our memory.
    ZeroCopy,
    /// The driver hands frames over, the kernel copies them.
    Copy,
    /// As with any device: after the kernel made a buffer of its own for the frame.
    CopyGeneric,
}

/// How an XDP link is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The network device, by name.
    pub device: String,
    pub ethertype: u16,
    /// The device's receive queue.
    pub queue: u32,
    pub mode: Mode,
    /// Frames that wait for us at most; rounded up to a power of two.
    pub receive_slots: u32,
    /// Frames that wait in the device's queue at most; rounded up to a power of two.
    pub send_slots: u32,
    /// Take only packets to which one of these applies, and leave the others to packet links; all, if there is none.
    pub accept: Vec<FieldMatch>,
}

impl Options {
    pub fn new(device: impl Into<String>) -> Options {
        Options {
            device: device.into(),
            ethertype: DEFAULT_ETHERTYPE,
            queue: 0,
            mode: Mode::Automatic,
            receive_slots: USUAL_SLOTS,
            send_slots: USUAL_SLOTS / 2,
            accept: Vec::new(),
        }
    }
}

/// 8 MB of buffers: 24 ms at 1 Gbit/s, 2.4 ms at 10.
const USUAL_SLOTS: u32 = 2048;

/// More would be an index too long for the kernel's rings, and 4 GB.
const MOST_SLOTS: u32 = 1 << 20;

const HEADER_BYTES: usize = 14;

/// The longest packet that fits into a buffer.
const MOST_PACKET_BYTES: usize = BUFFER_BYTES - KERNEL_HEADROOM_BYTES - HEADER_BYTES;

/// The kernel sends 32 frames for one call in copy mode; so many calls send all there can be, with some in vain.
const FRAMES_PER_KICK: usize = 32;
const SPARE_KICKS: usize = 4;

/// What a process has left the kernel takes down behind it: who comes right after it waits so long.
const TAKEN_DOWN_WITHIN: Duration = Duration::from_millis(300);
const TRY_EVERY: Duration = Duration::from_millis(5);

mod constant {
    pub const AF_XDP: u16 = 44;
    pub const XDP_OPTIONS: i32 = 8;
    pub const XDP_STATISTICS: i32 = 7;
    pub const BIND_COPY: u16 = 2;
    pub const BIND_ZERO_COPY: u16 = 4;
    pub const BIND_USE_NEED_WAKEUP: u16 = 8;
    pub const ATTACH_GENERIC: u32 = 2;
    pub const ATTACH_DRIVER: u32 = 4;
}

/// Packets in Ethernet frames, past the kernel's network stack.
#[derive(Debug)]
pub struct XdpLink {
    memory: Memory,
    socket: OwnedFd,
    attached: Arc<Attached>,
    /// Any socket: those of AF_XDP do not answer questions about devices.
    questions: OwnedFd,
    mode: Mode,
    device: Device,
    ethertype: u16,
    own: [u8; 6],
    max_packet: usize,
    receive_slots: usize,
    counters: Counters,
}

/// The program on its device: there until this is dropped.
#[derive(Debug)]
struct Attached {
    attachment: OwnedFd,
    map: OwnedFd,
    ethertype: u16,
}

/// Changes what a link takes while it belongs to somebody else.
#[derive(Clone, Debug)]
pub struct Control(Weak<Attached>);

impl Control {
    /// Takes from now on only packets to which one of these applies; all, if there is none. What already arrived stays. Does nothing when the link is gone.
    ///
    /// # Errors
    /// There are more than [`MOST_ALTERNATIVES`](crate::packet::MOST_ALTERNATIVES), or the kernel refuses the program.
    pub fn accept(&self, alternatives: &[FieldMatch]) -> io::Result<()> {
        let Some(attached) = self.0.upgrade() else { return Ok(()) };
        let program = bpf::load(&program::redirecting(attached.ethertype, attached.map.as_raw_fd(), alternatives)?)?;
        bpf::replace(attached.attachment.as_fd(), program.as_fd())
    }
}

impl XdpLink {
    /// # Errors
    /// A capability is missing, there is no such device or queue, the kernel or the driver cannot do it in the mode that was asked for, or
    /// somebody else has an XDP program on the device or the queue.
    pub fn open(options: &Options) -> io::Result<XdpLink> {
        let start = Instant::now();
        loop {
            match XdpLink::open_now(options) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < TAKEN_DOWN_WITHIN => {
                    std::thread::sleep(TRY_EVERY);
                }
                opened => return opened,
            }
        }
    }

    fn open_now(options: &Options) -> io::Result<XdpLink> {
        let socket = sys::xdp_socket().map_err(|error| explained(error, options))?;
        let fd = socket.as_fd();
        let questions = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let device = Device::find(questions.as_fd(), &options.device)?;
        let (_, own) = device::hardware_address(questions.as_fd(), device.name())?;
        let max_packet = device::mtu(questions.as_fd(), device.name())?.min(MOST_PACKET_BYTES);
        let slots = |slots: u32| slots.clamp(1, MOST_SLOTS).next_power_of_two();
        let (receive_slots, send_slots) = (slots(options.receive_slots), slots(options.send_slots));
        let memory = Memory::new(fd, receive_slots, send_slots).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS) => too_little_memory(receive_slots + send_slots),
            _ => explained(error, options),
        })?;
        let (mode, attached) = set_up(fd, device.index(), options).map_err(|error| explained(error, options))?;
        Ok(XdpLink {
            memory,
            attached: Arc::new(attached),
            questions,
            mode,
            device,
            ethertype: options.ethertype,
            own,
            max_packet,
            receive_slots: receive_slots as usize,
            counters: Counters::default(),
            socket,
        })
    }

    /// The mode that it came to: never [`Mode::Automatic`].
    pub fn mode(&self) -> Mode {
        self.mode
    }

    pub fn control(&self) -> Control {
        Control(Arc::downgrade(&self.attached))
    }

    /// Lets the kernel send what is in the ring.
    fn kick(&mut self) -> io::Result<()> {
        self.memory.publish_sends();
        let most = self.memory.sends_to_kick() / FRAMES_PER_KICK + SPARE_KICKS;
        for _ in 0..most {
            if self.memory.sends_to_kick() == 0 {
                break;
            }
            self.counters.send_calls += 1;
            match sys::kick(self.socket.as_fd()) {
                Ok(()) => {}
                Err(error) => match error.raw_os_error() {
                    // It sent as many as it does at once; or completions have to be taken first.
                    Some(libc::EAGAIN) => self.memory.reclaim(),
                    // The device is full or down: the frames stay where they are until the next look or send.
                    Some(libc::ENOBUFS | libc::EBUSY | libc::ENETDOWN | libc::EINTR) => break,
                    _ => return Err(error),
                },
            }
        }
        self.memory.reclaim();
        Ok(())
    }

    /// Puts one packet into the ring. `false`: there is no room.
    fn push(&mut self, to: [u8; 6], packet: &[u8]) -> bool {
        let (own, ethertype) = (self.own, self.ethertype.to_be_bytes());
        self.memory.send(HEADER_BYTES + packet.len(), |frame| {
            frame[..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&own);
            frame[12..14].copy_from_slice(&ethertype);
            frame[HEADER_BYTES..].copy_from_slice(packet);
        })
    }

    /// Now and then when there is nothing to receive: whether the device is still there, with which MTU and address.
    fn check(&mut self) -> io::Result<()> {
        if self.device.is_due().is_none() {
            return Ok(());
        }
        match sys::get_int(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
        let state = self.device.ask(self.questions.as_fd())?;
        self.max_packet = state.mtu.map_or(self.max_packet, |mtu| mtu.min(MOST_PACKET_BYTES));
        self.own = state.own.unwrap_or(self.own);
        Ok(())
    }
}

/// Binds the socket to its queue and attaches the program, in the first mode that works.
fn set_up(fd: BorrowedFd<'_>, index: u32, options: &Options) -> io::Result<(Mode, Attached)> {
    let bind = |flags| sys::bind(fd, &address(index, options.queue, flags | constant::BIND_USE_NEED_WAKEUP));
    let zero_copy = match options.mode {
        Mode::ZeroCopy => bind(constant::BIND_ZERO_COPY).map(|()| true)?,
        Mode::Automatic if bind(constant::BIND_ZERO_COPY).is_ok() => true,
        _ => bind(constant::BIND_COPY).map(|()| false)?,
    };
    let map = bpf::socket_map(options.queue + 1)?;
    let program = bpf::load(&program::redirecting(options.ethertype, map.as_raw_fd(), &options.accept)?)?;
    bpf::enter(map.as_fd(), options.queue, fd)?;
    let attach = |flags| bpf::attach(program.as_fd(), index, flags);
    let (generic, attachment) = match options.mode {
        Mode::CopyGeneric => (true, attach(constant::ATTACH_GENERIC)?),
        Mode::Automatic if !zero_copy => match attach(constant::ATTACH_DRIVER) {
            Ok(attachment) => (false, attachment),
            // Somebody else's program; a driver that knows none would say something else.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
            Err(_) => (true, attach(constant::ATTACH_GENERIC)?),
        },
        _ => (false, attach(constant::ATTACH_DRIVER)?),
    };
    // What the kernel says is what counts.
    let mut flags = [0; 4];
    sys::get_option(fd, SOL_XDP, constant::XDP_OPTIONS, &mut flags)?;
    let mode = match (u32::from_ne_bytes(flags) & 1 != 0, generic) {
        (true, _) => Mode::ZeroCopy,
        (false, false) => Mode::Copy,
        (false, true) => Mode::CopyGeneric,
    };
    Ok((mode, Attached { attachment, map, ethertype: options.ethertype }))
}

/// A `sockaddr_xdp`: family, flags, device, queue, no shared memory.
fn address(index: u32, queue: u32, flags: u16) -> Vec<u8> {
    let mut address = [constant::AF_XDP.to_ne_bytes(), flags.to_ne_bytes()].concat();
    [index, queue, 0].iter().for_each(|word| address.extend(word.to_ne_bytes()));
    address
}

/// The kernel keeps the buffers in memory for good, and lets who lacks a capability have so much of that and no more.
fn too_little_memory(buffers: u32) -> io::Error {
    let kib = buffers as usize * BUFFER_BYTES / 1024;
    let what = format!(
        "AF_XDP keeps {kib} KiB of buffers locked in memory, which is more than this user may have (ulimit -l, RLIMIT_MEMLOCK, for all of \
         the user's links together): raise that, or allow it to this program (CAP_IPC_LOCK)"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// For who may not open such a link.
#[must_use]
pub fn not_permitted() -> io::Error {
    let needs = "AF_XDP needs the capabilities CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (and CAP_IPC_LOCK for its memory): run as root";
    io::Error::new(io::ErrorKind::PermissionDenied, needs)
}

fn explained(error: io::Error, options: &Options) -> io::Error {
    let device = &options.device;
    let (kind, what) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => return not_permitted(),
        Some(libc::ENODEV) => (io::ErrorKind::NotFound, format!("there is no network device {device}")),
        Some(libc::EBUSY) => {
            let queue = options.queue;
            let what = format!("{device} has an XDP program already, or its queue {queue} belongs to another process");
            (io::ErrorKind::ResourceBusy, what)
        }
        Some(libc::EAFNOSUPPORT) => (io::ErrorKind::Unsupported, "this kernel has no AF_XDP".into()),
        Some(libc::EINVAL) => {
            let queue = options.queue;
            (
                io::ErrorKind::InvalidInput,
                format!("{device} has no queue {queue}, or cannot do this ({:?})", options.mode),
            )
        }
        _ => return error,
    };
    io::Error::new(kind, what)
}

impl Link for XdpLink {
    fn name(&self) -> String {
        match self.mode {
            Mode::ZeroCopy => "xdp zero-copy",
            Mode::Automatic | Mode::Copy => "xdp copy",
            Mode::CopyGeneric => "xdp copy generic",
        }
        .into()
    }

    fn local(&self) -> Address {
        Address::Ether(self.own)
    }

    fn max_packet(&self) -> usize {
        self.max_packet
    }

    fn receive_slots(&self) -> Option<usize> {
        Some(self.receive_slots)
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let Address::Ether(to) = batch.to else {
            self.counters.send_errors += batch.packets.len() as u64;
            return Ok(batch.packets.len());
        };
        let mut done = 0;
        for packet in batch.packets {
            if packet.is_empty() || packet.len() > self.max_packet {
                self.counters.send_errors += 1;
            } else if self.push(to, packet) {
                self.counters.sent_packets += 1;
                self.counters.sent_bytes += packet.len() as u64;
            } else {
                self.counters.send_full += 1;
                break;
            }
            done += 1;
        }
        self.kick()?;
        Ok(done)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let XdpLink { memory, counters, own, max_packet, .. } = self;
        let (mut packets, mut looks) = (0, 0);
        // Frames that are not ours cost a look, and no more of them than there are buffers.
        let most_looks = limit.saturating_add(self.receive_slots);
        while packets < limit && looks < most_looks {
            let taken = memory.take(|frame| match frame.split_at_checked(HEADER_BYTES) {
                Some((header, bytes @ [_, ..])) if header[..6] == *own && bytes.len() <= *max_packet => {
                    packets += 1;
                    counters.received_packets += 1;
                    counters.received_bytes += bytes.len() as u64;
                    let from = header[6..12].try_into().expect("6 bytes");
                    sink(Received { from: Address::Ether(from), to: Own::ANY, ecn: Ecn::NotCapable, bytes });
                }
                _ => counters.receive_bad += 1,
            });
            if !taken {
                break;
            }
            looks += 1;
        }
        // Also after frames that are not ours: they may be for an address that the device got meanwhile.
        if packets == 0 {
            self.check()?;
        }
        if looks > 0 && self.memory.done_receiving() {
            self.counters.receive_calls += 1;
            sys::wake_receiver(self.socket.as_fd());
        }
        // What the kernel would not take when it was sent must not wait for the next send. That one meets an error that lasts: a driver that is set up anew has one for a while.
        if self.memory.sends_to_kick() > 0 {
            let _ = self.kick();
        }
        Ok(packets)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> Counters {
        // `struct xdp_statistics`: dropped, two kinds of our mistakes, ring full, and more.
        let mut statistics = [0; 48];
        let known = sys::get_option(self.socket.as_fd(), SOL_XDP, constant::XDP_STATISTICS, &mut statistics);
        let count = |n: usize| u64::from_ne_bytes(statistics[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
        let drops = if known.is_ok() { count(0) + count(3) } else { 0 };
        Counters { receive_drops: drops, ..self.counters }
    }
}
