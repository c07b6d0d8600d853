//! Plain Ethernet through a packet socket (`AF_PACKET`): lower latency than UDP, with the capability `CAP_NET_RAW`.
//!
//! A packet is the payload of an Ethernet frame of our own EtherType. Arrivals lie in a ring that the kernel fills and this process reads
//! without system calls; they are handed over where they lie. Sends are `sendto` and `sendmmsg` past the host's queueing discipline. Network cards pad
//! frames to 60 bytes: an arrival may be longer than what was sent (up to 46 bytes), so packets have to know their own length.
//!
//! Frames with a VLAN tag belong to the VLAN's own device and are no packets of this link; open that device to use them. So are frames for other
//! hosts, which appear while somebody captures on the device.
//!
//! Several processes on a host each have a link with a filter ([`PacketLink::accept`]); several workers of one process share arrivals by a
//! field of the packet ([`Fanout`]).

mod claim;
mod filter;

pub use claim::claim;
pub(crate) use filter::not_too_many;
pub use filter::{FieldMatch, MOST_ALTERNATIVES};

use crate::device::Device;
use crate::sys::message::{self, Outgoing, VECTOR};
use crate::sys::ring::Ring;
use crate::sys::{self, device, packet};
use crate::{Address, Batch, Counters, Ecn, Link, Own, Received, Steering};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The EtherType that IEEE keeps for local experiments: used unless told otherwise.
pub const DEFAULT_ETHERTYPE: u16 = 0x88b5;

/// How a packet link is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The network device, by name.
    pub device: String,
    pub ethertype: u16,
    /// Frames that the ring holds, at least. More survive a longer absence of this process; fewer stay in the cache.
    pub receive_slots: usize,
    /// Bytes that may wait in the device's queue, as the kernel counts them.
    pub send_buffer_bytes: usize,
    /// Send past the device's queueing discipline: faster, and no shaping set there applies.
    pub bypass_queue: bool,
    /// Take only packets to which one of these applies; all, if there is none.
    pub accept: Vec<FieldMatch>,
    /// Share arrivals with other links of this process.
    pub fanout: Option<Fanout>,
    /// The longest packet, if less than the device bears.
    pub most_packet_bytes: Option<usize>,
    /// Look at a packet's first bytes before its slot's status: who spins finds it sooner so, but one that begins with eight zeros, as none of the protocol's does, only after up to
    /// 16 looks. `false`: at the status alone, as a bare ring is read, to measure against.
    pub looks_early: bool,
}

/// A group of links among which the kernel spreads arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// The group's number; `None`: one that is nobody else's in this network namespace ([`PacketLink::group`] says which).
    pub group: Option<u16>,
    /// The field that says which member: the first to join is 0, the next 1; modulo their number. When a member leaves, the last takes its number.
    pub steering: Steering,
}

/// 2 MB at the usual MTU: survives 12 ms of absence at 1 Gbit/s.
const USUAL_RECEIVE_SLOTS: usize = 1024;

const USUAL_SEND_BUFFER_BYTES: usize = 256 << 10;

impl Options {
    pub fn new(device: impl Into<String>) -> Options {
        Options {
            device: device.into(),
            ethertype: DEFAULT_ETHERTYPE,
            receive_slots: USUAL_RECEIVE_SLOTS,
            send_buffer_bytes: USUAL_SEND_BUFFER_BYTES,
            bypass_queue: true,
            accept: Vec::new(),
            fanout: None,
            most_packet_bytes: None,
            looks_early: true,
        }
    }
}

/// The longest packet for which a ring is made: jumbo frames. Loopback's 64 KiB would make slots of which most stays unused.
const MOST_PACKET_BYTES: usize = 9_216;

/// The kernel reports that a device goes down, and no more of one that was down when it is taken away. Who takes one away that is up does both, one right
/// after the other: for so long the report keeps the descriptor readable, so that nobody goes to sleep between the two.
const DOWN_REPORTED_NS: u64 = 50_000_000;

mod constant {
    pub const PACKET_FANOUT: i32 = 18;
    pub const PACKET_QDISC_BYPASS: i32 = 20;
    pub const PACKET_FANOUT_DATA: i32 = 22;
    pub const FANOUT_CBPF: i32 = 6;
    pub const FANOUT_FLAG_UNIQUEID: i32 = 0x2000;
}

/// Packets in Ethernet frames.
#[derive(Debug)]
pub struct PacketLink {
    ring: Ring,
    looks_early: bool,
    socket: OwnedFd,
    device: Device,
    /// The address of a frame to send, but for its destination.
    address: [u8; packet::ADDRESS_BYTES],
    own: [u8; 6],
    most_packet_bytes: usize,
    /// What the device bears of that, as far as it is known.
    device_bytes: usize,
    max_packet: usize,
    /// The most that a ring was made for, or was to be. `None`: it stays as it is.
    ring_bytes: Option<usize>,
    /// When the device was first seen down, since it was last up.
    down_since_ns: Option<u64>,
    counters: Counters,
}

impl PacketLink {
    /// # Errors
    /// `CAP_NET_RAW` is missing, there is no such device, or it is not an Ethernet.
    pub fn open(options: &Options) -> io::Result<PacketLink> {
        let socket = open_socket()?;
        let fd = socket.as_fd();
        let device = Device::find(fd, &options.device)?;
        let (kind, own) = device::hardware_address(fd, device.name())?;
        if !matches!(kind, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            let what = format!("the device {} is not an Ethernet (its kind is {kind})", options.device);
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let most_packet_bytes = options.most_packet_bytes.unwrap_or(MOST_PACKET_BYTES).clamp(1, MOST_PACKET_BYTES);
        let max_packet = device::mtu(fd, device.name())?.min(most_packet_bytes);
        let ring = Ring::new(fd, options.receive_slots, max_packet)?;
        sys::set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter::accepting(&options.accept)?)?;
        let half = i32::try_from(options.send_buffer_bytes / 2).unwrap_or(i32::MAX);
        sys::set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, half)?;
        if options.bypass_queue {
            sys::set_int(fd, libc::SOL_PACKET, constant::PACKET_QDISC_BYPASS, 1)?;
        }
        let address = packet::link_address(options.ethertype, device.index());
        sys::bind(fd, &address)?;
        if let Some(fanout) = options.fanout {
            join(fd, fanout)?;
        }
        Ok(PacketLink {
            most_packet_bytes,
            device_bytes: max_packet,
            max_packet,
            // In a group that would change which member is which.
            ring_bytes: options.fanout.is_none().then_some(max_packet),
            ring,
            looks_early: options.looks_early,
            device,
            address,
            own,
            down_since_ns: None,
            counters: Counters::default(),
            socket,
        })
    }

    /// Takes from now on only packets to which one of these applies; all, if there is none. What already arrived stays.
    ///
    /// # Errors
    /// There are more than [`MOST_ALTERNATIVES`].
    pub fn accept(&mut self, alternatives: &[FieldMatch]) -> io::Result<()> {
        let program = filter::accepting(alternatives)?;
        sys::set_program(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// The group that it shares arrivals with.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn group(&self) -> io::Result<u16> {
        let group = sys::get_int(self.socket.as_fd(), libc::SOL_PACKET, constant::PACKET_FANOUT)?;
        // The mode is in the upper half.
        Ok(group as u16)
    }

    /// Asks the device what changed. Says whether it is up.
    ///
    /// # Errors
    /// It is gone.
    fn refresh(&mut self) -> io::Result<bool> {
        let state = self.device.ask(self.socket.as_fd())?;
        self.device_bytes = state.mtu.map_or(self.device_bytes, |mtu| mtu.min(self.most_packet_bytes));
        self.max_packet = self.device_bytes.min(self.ring.packet_bytes());
        self.own = state.own.unwrap_or(self.own);
        Ok(state.is_up)
    }

    /// Now and then when there is nothing to receive: learns what changed, and fetches the socket's error, which keeps the descriptor readable.
    ///
    /// # Errors
    /// The device is gone.
    fn check(&mut self) -> io::Result<()> {
        let Some(now_ns) = self.device.is_due() else { return Ok(()) };
        if self.refresh()? {
            self.down_since_ns = None;
        } else if now_ns - *self.down_since_ns.get_or_insert(now_ns) < DOWN_REPORTED_NS {
            return Ok(());
        }
        // What it is does not matter: the device was asked.
        let _ = sys::get_int(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        self.follow_mtu()
    }

    /// Makes room for packets as long as the device bears by now: who begins to use it sends such.
    fn follow_mtu(&mut self) -> io::Result<()> {
        let wanted = self.device_bytes;
        if self.ring_bytes.is_some_and(|bytes| bytes < wanted) {
            // Once for each length: what the kernel refused it will refuse again, and frames may be lost each time.
            self.ring_bytes = Some(wanted);
            self.ring.replace(self.socket.as_fd(), wanted)?;
            self.max_packet = wanted.min(self.ring.packet_bytes());
        }
        Ok(())
    }

    /// Adds what the kernel dropped since it was last asked.
    fn count_drops(&mut self) {
        if let Ok((_, drops)) = packet::statistics(self.socket.as_fd()) {
            self.counters.receive_drops += drops;
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol: nothing arrives until it is bound, ring and filter in place.
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None).map_err(|error| match error {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "a packet socket needs the capability CAP_NET_RAW: run as root, or allow it to this program (setcap cap_net_raw+ep)",
        ),
        other => other.into(),
    })
}

fn join(fd: BorrowedFd<'_>, fanout: Fanout) -> io::Result<()> {
    let (group, flags) = fanout.group.map_or((0, constant::FANOUT_FLAG_UNIQUEID), |group| (group, 0));
    let mode = (constant::FANOUT_CBPF | flags) << 16;
    sys::set_int(fd, libc::SOL_PACKET, constant::PACKET_FANOUT, i32::from(group) | mode)?;
    sys::set_program(fd, libc::SOL_PACKET, constant::PACKET_FANOUT_DATA, &fanout.steering.program(None))
}

/// Sends packets as a message each and says how many the kernel took.
fn send_each(fd: BorrowedFd<'_>, address: &[u8], packets: &[IoSlice<'_>]) -> io::Result<usize> {
    if packets.len() == 1 {
        return message::send_message(fd, address, &Outgoing { parts: packets, control: &[] }).map(|()| 1);
    }
    let mut messages = [Outgoing { parts: &[], control: &[] }; VECTOR];
    for (message, parts) in messages.iter_mut().zip(packets.chunks(1)) {
        message.parts = parts;
    }
    message::send_messages(fd, address, &messages[..packets.len()])
}

impl Link for PacketLink {
    fn name(&self) -> String {
        "packet".into()
    }

    fn local(&self) -> Address {
        Address::Ether(self.own)
    }

    fn max_packet(&self) -> usize {
        self.max_packet
    }

    fn receive_slots(&self) -> Option<usize> {
        Some(self.ring.slots())
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let Address::Ether(to) = batch.to else {
            self.counters.send_errors += batch.packets.len() as u64;
            return Ok(batch.packets.len());
        };
        let mut address = self.address;
        address[12..18].copy_from_slice(&to);
        let mut done = 0;
        while let rest @ [first, ..] = &batch.packets[done..] {
            let fits = |len: usize| len > 0 && len <= self.max_packet;
            if !fits(first.len()) {
                self.counters.send_errors += 1;
                done += 1;
                continue;
            }
            let fitting = rest.iter().take(VECTOR).take_while(|packet| fits(packet.len())).count();
            self.counters.send_calls += 1;
            match send_each(self.socket.as_fd(), &address, &rest[..fitting]) {
                Ok(count) => {
                    self.counters.sent_packets += count as u64;
                    self.counters.sent_bytes += rest[..count].iter().map(|packet| packet.len() as u64).sum::<u64>();
                    done += count;
                }
                Err(error) => match error.raw_os_error() {
                    // Without a carrier the device is never ready, though the descriptor says so: as with a cable that is pulled out, that is loss.
                    Some(libc::ENOBUFS) if self.device.is_cut(self.socket.as_fd()) => {
                        self.counters.send_errors += fitting as u64;
                        done += fitting;
                    }
                    Some(libc::EAGAIN | libc::ENOBUFS) => {
                        self.counters.send_full += 1;
                        break;
                    }
                    Some(libc::EINTR) => {}
                    // The device is down, or its MTU was lowered: for the protocol that is loss.
                    Some(libc::ENETDOWN | libc::EMSGSIZE | libc::EINVAL) => {
                        self.counters.send_errors += 1;
                        done += 1;
                        self.refresh()?;
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(done)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let PacketLink { ring, counters, looks_early, .. } = self;
        let (mut packets, mut looks, mut losing) = (0, 0, false);
        // Frames that are not ours cost a look, and no more of them than the ring holds.
        let most_looks = limit.saturating_add(ring.slots());
        while packets < limit && looks < most_looks {
            looks += 1;
            if *looks_early && !ring.may_have_next() {
                break;
            }
            let taken = ring.take(|frame| {
                losing |= frame.losing;
                let ours = frame.packet_type == libc::PACKET_HOST && frame.vlan() == 0;
                if !ours || frame.truncated || frame.bytes.is_empty() {
                    counters.receive_bad += 1;
                    return;
                }
                packets += 1;
                counters.received_packets += 1;
                counters.received_bytes += frame.bytes.len() as u64;
                sink(Received {
                    from: Address::Ether(frame.from),
                    to: Own::ANY,
                    ecn: Ecn::NotCapable,
                    bytes: frame.bytes,
                });
            });
            if !taken {
                break;
            }
        }
        if losing {
            self.count_drops();
        }
        if packets == 0 {
            self.check()?;
        }
        Ok(packets)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
