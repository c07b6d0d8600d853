//! Links: ways to move packets between engines.
//!
//! A link carries opaque packets to an [`Address`] and hands over those that arrive. It may lose, duplicate and reorder them; it never
//! delivers a damaged one as whole if its medium has a checksum. It knows nothing of what the bytes mean: protocol types do not occur in
//! this crate.
//!
//! The order of calls is free: [`Link::send`] and [`Link::receive`] never block; who wants to wait sleeps on [`Link::descriptor`].
//! Wrappers (faults, packet capture, traces) are links around a link. A [delay line](delay) is none: it carries other people's frames.

mod clock;
pub mod delay;
mod device;
pub mod fault;
mod faults;
pub mod memory;
pub mod packet;
pub mod pcap;
mod random;
pub mod sim;
mod steering;
mod sys;
pub mod trace;
pub mod udp;
pub mod xdp;

pub use clock::{Clock, since_now, wall_clock};
pub use faults::{FaultCounters, Faults, MOST_FLIPS, PER_MILLION};
pub use steering::{Part, Steering, Width};

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// Where packets go to and come from, in the terms of one kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A UDP end point.
    Udp(SocketAddr),
    /// An Ethernet (MAC) address on the link's device.
    Ether([u8; 6]),
    /// A host of a simulated network.
    Sim(u32),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp(address) => address.fmt(f),
            Address::Ether([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Address::Sim(host) => write!(f, "sim:{host}"),
        }
    }
}

/// The IP addresses of this network namespace, each with the name of its device.
///
/// # Errors
/// The kernel does not tell.
pub fn local_addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let name = |device: [u8; 16]| {
        let name = device.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    };
    Ok(sys::device::addresses()?.into_iter().map(|found| (name(found.device), found.address)).collect())
}

/// The hardware address that a text is: six pairs of hexadecimal digits with colons.
pub fn hardware_address(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let is_pair = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        *byte = u8::from_str_radix(parts.next().filter(is_pair)?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// The hardware addresses of this network namespace's devices, each with the device's name, in the order of the names. Several devices may have the same.
pub fn local_hardware_addresses() -> Vec<(String, [u8; 6])> {
    let mac = |text: String| hardware_address(text.trim()).filter(|mac| *mac != [0; 6]);
    let devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut found: Vec<(String, [u8; 6])> = devices
        .filter_map(|device| {
            let address = std::fs::read_to_string(device.path().join("address")).ok().and_then(mac)?;
            Some((device.file_name().to_string_lossy().into_owned(), address))
        })
        .collect();
    found.sort();
    found
}

/// The two ECN bits of IP (RFC 3168), or "not capable" on links without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    #[default]
    NotCapable,
    Capable0,
    Capable1,
    /// A router on the way was congested (CE).
    Congested,
}

/// What the packets of a batch are, for links that can let one kind overtake the other in the host's own queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// Payload of long transfers.
    #[default]
    Bulk,
    /// Acknowledgments, requests and short messages.
    Urgent,
}

/// Which of this host's own addresses packets come to, or leave under: a number of the link's ([`Link::own_address`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Own(pub u8);

impl Own {
    /// The only one there is, or, for a link that has several, whichever the host chooses for the way.
    pub const ANY: Own = Own(0);
}

/// What is known of a destination. A link on which packets for a host that is off would take up the room of others keeps them apart from these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It is there, or nothing is known.
    #[default]
    Heard,
    /// It has been there, and has not answered lately. What finds no room apart is lost, and counts as taken.
    Silent,
    /// It never answered. What finds no room apart is not taken, whatever room there is for others, and nothing tells when there is some.
    Unheard,
}

/// Packets for one destination, in order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub to: Address,
    /// What they leave under. Answers leave under what was asked ([`Received::to`]): the other end knows this one by it.
    pub from: Own,
    /// One slice for each packet, none longer than [`Link::max_packet`]. Runs of equal length can go out as one segmented send.
    pub packets: &'a [IoSlice<'a>],
    pub urgency: Urgency,
    pub presence: Presence,
}

impl<'a> Batch<'a> {
    /// Bulk data for who is there, under whichever address.
    pub fn new(to: Address, packets: &'a [IoSlice<'a>]) -> Batch<'a> {
        Batch { to, from: Own::ANY, packets, urgency: Urgency::Bulk, presence: Presence::Heard }
    }
}

/// One packet that arrived. The bytes are the link's and stay until the sink returns.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub from: Address,
    /// What it came to.
    pub to: Own,
    pub ecn: Ecn,
    pub bytes: &'a [u8],
}

/// What was said of a packet that this link has sent, or was to send.
#[derive(Debug)]
pub struct Report {
    pub to: Address,
    pub error: io::Error,
    /// The first bytes of the packet, as the network has told them, which may be none; `None`: this host itself did not send it. Who is not on the way does not know them.
    pub packet: Option<Box<[u8]>>,
}

/// A way to move packets.
pub trait Link: Send {
    /// A short name for people: `udp`, `packet`, `xdp`, `sim`, with the mode where there are several (`xdp copy`).
    fn name(&self) -> String;

    /// The address under which others reach this link.
    fn local(&self) -> Address;

    /// The address that a number of this link stands for. `None`: none in particular.
    fn own_address(&self, _own: Own) -> Option<Address> {
        None
    }

    /// The longest packet in bytes that can be sent, and is received for sure, without the link's own headers.
    fn max_packet(&self) -> usize;

    /// Hands packets to the medium without waiting, from the first on, and says how many it took; fewer than all means that its queue is
    /// full. Errors that concern one destination (unreachable, refused) are counted, not returned: the protocol sees them as loss.
    ///
    /// # Errors
    /// The link itself failed (device gone, descriptor invalid).
    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize>;

    /// Hands packets that have arrived to `sink`, about `limit` at most (a segmented arrival is never split), and says how many. 0: there is
    /// none now.
    ///
    /// # Errors
    /// The link itself failed.
    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize>;

    /// Readable when there may be something to receive; `None` where nothing can be waited for (a simulated network).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Packets of full length that the host keeps for this link for sure while nobody takes them: no gate should let more fly towards it.
    /// `None`: not known.
    fn receive_slots(&self) -> Option<usize> {
        None
    }

    /// The next error that the network reported about packets to some destination (ICMP: unreachable, refused, too long), or `None`. Reports can be
    /// forged by anybody on the way, and, but for the packet in them, by anybody else: take them as hints. Those that nobody fetches are dropped, oldest first.
    fn take_error(&mut self) -> Option<Report> {
        None
    }

    /// Fetches what the network reported and no call has met, for [`Link::take_error`]. To be called by who sleeps on the descriptor and is told of an error condition there (`POLLERR`):
    /// that stays as long as such a report is there, and does no other harm. A link around another one calls the other's: who sleeps on its descriptor would not sleep any more.
    fn fetch_errors(&mut self) {}

    /// What the link has counted since it was made. Never reset.
    fn counters(&self) -> Counters;
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn local(&self) -> Address {
        (**self).local()
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        (**self).own_address(own)
    }

    fn max_packet(&self) -> usize {
        (**self).max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        (**self).send(batch)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        (**self).receive(limit, sink)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }

    fn receive_slots(&self) -> Option<usize> {
        (**self).receive_slots()
    }

    fn take_error(&mut self) -> Option<Report> {
        (**self).take_error()
    }

    fn fetch_errors(&mut self) {
        (**self).fetch_errors();
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}

/// The number that the kernel has for a network device in this network namespace, whichever of its names is said.
///
/// # Errors
/// There is no such device.
pub fn device_index(name: &str) -> std::io::Result<u32> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    // Any socket can ask.
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::device::index(std::os::fd::AsFd::as_fd(&socket), &sys::device::name(name)?)
}

/// Free-running counts of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    /// System calls made to send.
    pub send_calls: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    /// System calls made to receive; a link that reads from shared memory makes none.
    pub receive_calls: u64,
    /// Packets that the medium refused for a reason of the destination (unreachable, refused, too long).
    pub send_errors: u64,
    /// Segmented sends that a path refused; their packets were sent again one by one, as all later ones there.
    pub send_fallbacks: u64,
    /// Sends that found the host's queue full.
    pub send_full: u64,
    /// Packets for who had not answered lately that found no room apart, and were dropped ([`Presence::Silent`]).
    pub send_discarded: u64,
    /// Packets for who had not answered lately, or ever, that went out apart from others.
    pub sent_apart: u64,
    /// The same that could not, where they should have, and went out among the others.
    pub sent_unparted: u64,
    /// Packets that the kernel dropped because nobody took them in time; those that travelled merged count as one. Kernels may tell with the next
    /// arrival only.
    pub receive_drops: u64,
    /// Arrivals that are no packet of ours (truncated, wrong type, checksum).
    pub receive_bad: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_is_six_pairs_of_digits_and_nothing_else() {
        assert_eq!(hardware_address("02:00:00:00:0a:fF"), Some([2, 0, 0, 0, 10, 255]));
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            " 02:00:00:00:00:01",
            "02-00-00-00-00-01",
        ] {
            assert_eq!(hardware_address(text), None, "{text}");
        }
    }
}
