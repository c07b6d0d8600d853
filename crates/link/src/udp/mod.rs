//! UDP over IPv4 or IPv6: the link that needs no privileges.
//!
//! Many packets go out in one system call (`sendmmsg`), runs of equal length in one segmented send (GSO, `UDP_SEGMENT`); arrivals come in batches
//! (`recvmmsg`) and merged (GRO, `UDP_GRO`). A path whose device cannot segment refuses at run time, whatever a probe said: it then gets
//! single packets for good, and the batch is sent again. Packets are never fragmented, and path MTU reports, which anybody can forge, change nothing.
//!
//! What goes to hosts that may be off leaves by a socket of its own (`apart`).
//!
//! What is not here: what the packets mean, which packet size the path really bears (who opens a connection proves it by padded packets), and when to
//! try again after a full queue.

mod apart;
mod errors;
mod name;
mod own;
mod receive;
mod send;

#[cfg(test)]
mod tests;

use crate::sys::program::{RET, plain};
use crate::sys::{self, Descriptor, device, message::Incoming};
use crate::{Address, Batch, Counters, Link, Own, Received, Report, Steering};
use apart::Pauses;
use errors::Reports;
use own::OwnAddresses;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use send::Paths;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

/// How a UDP link is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address to bind to; port 0 lets the kernel choose. At a wildcard address all of the host's hear, and answers
    /// leave under the one that was asked.
    pub local: SocketAddr,
    /// Bytes that the kernel may keep for us, as it counts them (more than the packets' own). Without `CAP_NET_ADMIN` the kernel caps it
    /// at twice `net.core.rmem_max`; see [`Link::receive_slots`] for what it came to.
    pub receive_buffer_bytes: usize,
    /// Bytes that may wait in the host's queues, as the kernel counts them.
    pub send_buffer_bytes: usize,
    /// Mark packets as ECN capable, ECT(0).
    pub ecn: bool,
    /// Send runs of equal packets as one (GSO), where the kernel can.
    pub segmentation: bool,
    /// Take arrivals merged (GRO), where the kernel can.
    pub aggregation: bool,
    /// The longest packet, if less than the device bears.
    pub most_packet_bytes: Option<usize>,
    /// The kernel's priority of urgent packets, for queueing disciplines that look at it (`pfifo_fast`, `prio`); 0: none, 6 at most without `CAP_NET_ADMIN`.
    /// It needs Linux 6.14, and is left out where the kernel refuses it.
    pub urgent_priority: u8,
    /// Share the address with other links of this process.
    pub group: Option<Group>,
}

/// A group of links with the same address, among which the kernel spreads arrivals. They are opened one after the other, by one process: the first is member 0. What comes before
/// all are there, and [`UdpLink::hear`] was called of each, is dropped: it would reach the wrong one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which of them this one is.
    pub member: u32,
    pub members: u32,
    /// Which member a packet is for, modulo their number.
    pub steering: Steering,
}

/// 4 MiB as the kernel counts: 1800 full packets of 1500 bytes, 14 times a port's buffer of a cheap switch.
const USUAL_RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// 42 full packets as the kernel counts. While less is waiting it takes a whole segmented send more, so two of them wait at most, cut by this host's queue or still whole for the card. Who waits for room goes on
/// when half of one is left: the card has something to go on with, and what is urgent waits for no more than that.
const USUAL_SEND_BUFFER_BYTES: usize = 96 << 10;

/// "Interactive": the highest that needs no privileges, in the first band of the disciplines that have bands.
pub const USUAL_URGENT_PRIORITY: u8 = 6;

impl Options {
    pub fn new(local: SocketAddr) -> Options {
        Options {
            local,
            receive_buffer_bytes: USUAL_RECEIVE_BUFFER_BYTES,
            send_buffer_bytes: USUAL_SEND_BUFFER_BYTES,
            ecn: true,
            segmentation: true,
            aggregation: true,
            most_packet_bytes: None,
            urgent_priority: USUAL_URGENT_PRIORITY,
            group: None,
        }
    }
}

/// The longest UDP payload: 65,535 bytes of IP packet or IPv6 payload, less the IPv4 and UDP headers. The few bytes more of IPv6 are not used.
const MOST_PAYLOAD_BYTES: usize = 65_507;

/// Room for each arrival, merged or not. Also for single ones longer than this end's own: another end does not know at first what is too long for the devices here, and both agree on less when its
/// first packet has come.
const RECEIVED_BYTES: usize = MOST_PAYLOAD_BYTES.next_multiple_of(1 << 16);

/// Where no device tells better: Ethernet.
const USUAL_MTU: usize = 1500;

const UDP_HEADER_BYTES: usize = 8;

/// Constants that the libc crate does not have.
mod constant {
    /// `SO_RXQ_OVFL`: each arrival says how many were dropped before it.
    pub const SO_RXQ_OVFL: i32 = 40;
    pub const SOL_UDP: i32 = 17;
    /// `SO_NETNS_COOKIE`, since Linux 5.14: which network namespace a socket is in.
    pub const SO_NETNS_COOKIE: i32 = 71;
    /// One IPv6 packet is never fragmented by its sender.
    pub const IPV6_DONTFRAG: i32 = 62;
    pub const IPV6_RECVPKTINFO: i32 = 49;
}

/// Packets over a UDP socket.
#[derive(Debug)]
pub struct UdpLink {
    socket: Descriptor,
    /// For destinations that have not answered, once there was one, or from the beginning where it could not be opened later.
    apart: Option<Descriptor>,
    apart_pauses: Pauses,
    options: Options,
    local: SocketAddr,
    max_packet: usize,
    receive_slots: usize,
    paths: Paths,
    /// Empty where the socket is bound to one address.
    own: OwnAddresses,
    incoming: Incoming,
    /// Messages that the last call took, and the most packets that were merged in one of them.
    last_messages: usize,
    last_merged: usize,
    /// The kernel's running count of dropped arrivals, when it was last told.
    drops_seen: u32,
    reports: Reports,
    counters: Counters,
}

impl UdpLink {
    /// # Errors
    /// The address is not this host's, the port is taken, or there are no descriptors left.
    pub fn open(options: &Options) -> io::Result<UdpLink> {
        let (socket, has_priority) = sending_socket(options)?;
        let fd = socket.as_fd();
        if options.local.is_ipv4() { hear_by_ip(fd) } else { hear_by_ipv6(fd) }?;
        sys::set_int(fd, libc::SOL_SOCKET, constant::SO_RXQ_OVFL, 1)?;
        if options.local.ip().is_unspecified() {
            own::ask(fd, &options.local)?;
        }
        set_buffer(fd, (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), options.receive_buffer_bytes)?;
        let receive_buffer_bytes = sys::get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as usize;
        let max_packet = max_packet(fd, options);
        // Kernels before 5.0 and 4.18 know neither; single packets work everywhere.
        if options.aggregation {
            let _ = sys::set_int(fd, constant::SOL_UDP, libc::UDP_GRO, 1);
        }
        let segments = options.segmentation && sys::get_int(fd, constant::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        let share = || sys::set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        // The first takes the address for itself and lets others in afterwards: in a group that another process has it would get that one's packets.
        let joins = options.group.is_some_and(|group| group.member > 0);
        if joins {
            share()?;
        }
        if options.group.is_some() {
            sys::set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &[plain(RET, 0)])?;
        }
        rustix::net::bind(fd, &options.local)?;
        if options.group.is_some() && !joins {
            share()?;
        }
        if let Some(group) = options.group.filter(|_| joins) {
            // One for the group, which begins with its second member.
            let program = group.steering.program(Some(group.members));
            sys::set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)?;
        }
        let local = SocketAddr::try_from(rustix::net::getsockname(fd)?)?;
        let mut link = UdpLink {
            local: name::plain(local),
            max_packet,
            receive_slots: (receive_buffer_bytes / kernel_bytes(max_packet)).max(1),
            paths: Paths::new(segments, has_priority),
            own: OwnAddresses::default(),
            incoming: Incoming::new(RECEIVED_BYTES),
            last_messages: 0,
            last_merged: 1,
            drops_seen: 0,
            reports: Reports::default(),
            counters: Counters::default(),
            apart: None,
            apart_pauses: Pauses::default(),
            options: options.clone(),
            socket,
        };
        // A group lets its other members in first.
        if link.options.group.is_none() {
            link.open_apart_while_it_may();
        }
        Ok(link)
    }

    /// Takes what comes from now on: all members of its group are there.
    ///
    /// # Errors
    /// It is in no group.
    pub fn hear(&mut self) -> io::Result<()> {
        self.open_apart_while_it_may();
        sys::set_int(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
    }

    /// The address that the socket is bound to.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }
}

/// A socket that is to send, and whether it has the priority of what is urgent.
fn sending_socket(options: &Options) -> io::Result<(Descriptor, bool)> {
    let is_v4 = options.local.is_ipv4();
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = Descriptor::from(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?);
    let fd = socket.as_fd();
    if is_v4 { set_ip_options(fd, options) } else { set_ipv6_options(fd, options) }?;
    set_buffer(fd, (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF), options.send_buffer_bytes)?;
    // After the ECN bits, which set a priority as well. Of the socket, so that short sends need not say it; bulk data says that it has none.
    let has_priority = options.urgent_priority > 0 && set_priority(fd, options.urgent_priority).is_ok();
    Ok((socket, has_priority))
}

fn set_ip_options(fd: BorrowedFd<'_>, options: &Options) -> io::Result<()> {
    let set = |name, value| sys::set_int(fd, libc::IPPROTO_IP, name, value);
    if options.ecn {
        set(libc::IP_TOS, name::ECT0)?;
    }
    // Never fragmented, and no report from the network makes packets shorter.
    set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
}

/// What comes with arrivals, and reports.
fn hear_by_ip(fd: BorrowedFd<'_>) -> io::Result<()> {
    let set = |name| sys::set_int(fd, libc::IPPROTO_IP, name, 1);
    set(libc::IP_RECVTOS)?;
    set(libc::IP_RECVERR)
}

fn hear_by_ipv6(fd: BorrowedFd<'_>) -> io::Result<()> {
    let set = |name| sys::set_int(fd, libc::IPPROTO_IPV6, name, 1);
    set(libc::IPV6_RECVTCLASS)?;
    set(libc::IPV6_RECVERR)
}

fn set_ipv6_options(fd: BorrowedFd<'_>, options: &Options) -> io::Result<()> {
    let set = |name, value| sys::set_int(fd, libc::IPPROTO_IPV6, name, value);
    // One address of each kind for one link: peers are known by it.
    set(libc::IPV6_V6ONLY, 1)?;
    if options.ecn {
        set(libc::IPV6_TCLASS, name::ECT0)?;
    }
    set(constant::IPV6_DONTFRAG, 1)?;
    set(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
}

fn set_priority(fd: BorrowedFd<'_>, priority: u8) -> io::Result<()> {
    sys::set_int(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, priority.into())
}

/// Sizes one of the socket's buffers as far as this process may.
fn set_buffer(fd: BorrowedFd<'_>, (force, plain): (i32, i32), bytes: usize) -> io::Result<()> {
    // The kernel doubles what it is given, to have room for its own.
    let half = i32::try_from(bytes / 2).unwrap_or(i32::MAX);
    sys::set_int(fd, libc::SOL_SOCKET, force, half).or_else(|_| sys::set_int(fd, libc::SOL_SOCKET, plain, half))
}

/// What the kernel counts against the buffer for a packet of this length: its data with headers and the kernel's own notes, rounded up as
/// its allocator does, and the packet's descriptor.
fn kernel_bytes(packet_bytes: usize) -> usize {
    /// Ethernet, IP and UDP headers, and room before them.
    const HEADERS: usize = 128;
    /// `struct skb_shared_info` and `struct sk_buff`.
    const SHARED_INFO: usize = 320;
    const DESCRIPTOR: usize = 256;
    (packet_bytes + HEADERS + SHARED_INFO).next_power_of_two() + DESCRIPTOR
}

/// The longest packet that fits into a frame of the device that has the local address; for a wildcard address, of the smallest device.
fn max_packet(fd: BorrowedFd<'_>, options: &Options) -> usize {
    let ip = options.local.ip().to_canonical();
    let configured = device::addresses().unwrap_or_default();
    let is_ours = |entry: &&device::Configured| {
        if ip.is_unspecified() { entry.is_up && !entry.is_loopback } else { entry.address == ip }
    };
    let whole_net = ip.is_loopback().then(|| configured.iter().find(|entry| entry.is_loopback)).flatten();
    let ours = configured.iter().filter(is_ours).chain(whole_net);
    let mtu = ours.filter_map(|entry| device::mtu(fd, &entry.device).ok()).min().unwrap_or(USUAL_MTU);
    let headers = UDP_HEADER_BYTES + if matches!(ip, IpAddr::V4(_)) { 20 } else { 40 };
    let most = options.most_packet_bytes.unwrap_or(MOST_PAYLOAD_BYTES).min(MOST_PAYLOAD_BYTES);
    mtu.saturating_sub(headers).min(most).max(1)
}

impl Link for UdpLink {
    fn name(&self) -> String {
        "udp".into()
    }

    fn local(&self) -> Address {
        Address::Udp(self.local)
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        Some(Address::Udp(self.own.get(own)?.at_port(self.local.port())))
    }

    fn max_packet(&self) -> usize {
        self.max_packet
    }

    fn receive_slots(&self) -> Option<usize> {
        Some(self.receive_slots)
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        self.send_batch(batch)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.receive_batch(limit, sink)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn take_error(&mut self) -> Option<Report> {
        self.reports.take()
    }

    fn fetch_errors(&mut self) {
        self.fetch_reports();
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
