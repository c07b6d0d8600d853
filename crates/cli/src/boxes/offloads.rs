//! Switches off what makes a host hand frames larger than the MTU to its interface, or frames without their check sums, and on what gives
//! a device a ring, through ethtool's netlink interface.
//!
//! Programs and TCP may still make large segments; the kernel then cuts them into frames before they leave the host, and computes
//! the check sums of TCP and UDP, as an interface without these abilities has it do. Message layouts: `linux/ethtool_netlink.h`, `linux/genetlink.h`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::error::{Error, Result};

/// Whether an ability of an interface (by its name in `ethtool -k`) lets it take segments larger than a frame. The kernel's own
/// segmentation is none: it is what does the work instead.
fn takes_large_segments(ability: &str) -> bool {
    let segments =
        ability.starts_with("tx-") && ability.ends_with("-segmentation") && ability != "tx-generic-segmentation";
    segments || ability == "tx-gso-list"
}

/// Whether an ability lets an interface take frames whose check sum it is to compute.
fn takes_partial_checksums(ability: &str) -> bool {
    ability.starts_with("tx-checksum-")
}

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// Generic netlink's own family, which knows the numbers of the others.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
/// No answer but the acknowledgment.
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
/// Without the bits that say how a value is packed.
const NLA_TYPE_MASK: u16 = 0x3fff;

const NETLINK_HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;

/// Answers are some hundred bytes.
const REPLY_BYTES: usize = 16 * 1024;

/// Makes a device of the calling thread's namespace send frames of at most its MTU, and if asked with their check sums.
pub fn switch_off(device: &str, checksums_too: bool) -> Result<()> {
    let change = || -> io::Result<()> {
        let mut netlink = Netlink::open()?;
        let family = netlink.family("ethtool")?;
        let answer = netlink.request(family, ETHTOOL_MSG_FEATURES_GET, &header(device, 0))?;
        // Those of this kernel, whatever its version.
        let mut names = active_features(&answer);
        names.retain(|name| takes_large_segments(name) || checksums_too && takes_partial_checksums(name));
        netlink.request(family, ETHTOOL_MSG_FEATURES_SET, &features(device, &names, false)).map(drop)
    };
    change().map_err(Error::system(format!("switch off the offloads of {device}")))
}

/// Has a veth device of the calling thread's namespace receive through a ring, as an interface with interrupts does: that is what the kernel's
/// merging of received frames (GRO) needs, and comes with it.
pub fn receive_through_ring(device: &str) -> Result<()> {
    let change = || -> io::Result<()> {
        let mut netlink = Netlink::open()?;
        let family = netlink.family("ethtool")?;
        netlink.request(family, ETHTOOL_MSG_FEATURES_SET, &features(device, &["rx-gro".into()], true)).map(drop)
    };
    change().map_err(Error::system(format!("give {device} a ring")))
}

/// The attribute that names the device.
fn header(device: &str, flags: u32) -> Vec<u8> {
    let name = attribute(ETHTOOL_A_HEADER_DEV_NAME, &zero_terminated(device));
    let flags = attribute(ETHTOOL_A_HEADER_FLAGS, &flags.to_ne_bytes());
    nested(ETHTOOL_A_FEATURES_HEADER, &[name, flags].concat())
}

/// The attributes of a request that switches these abilities on or off.
fn features(device: &str, names: &[String], on: bool) -> Vec<u8> {
    // A bit that is named and not marked as set is to be cleared; others stay as they are.
    let set = if on { attribute(ETHTOOL_A_BITSET_BIT_VALUE, &[]) } else { Vec::new() };
    let name = |name: &String| [attribute(ETHTOOL_A_BITSET_BIT_NAME, &zero_terminated(name)), set.clone()].concat();
    let bits = names.iter().flat_map(|bit| nested(ETHTOOL_A_BITSET_BITS_BIT, &name(bit))).collect::<Vec<u8>>();
    let wanted = nested(ETHTOOL_A_FEATURES_WANTED, &nested(ETHTOOL_A_BITSET_BITS, &bits));
    [header(device, ETHTOOL_FLAG_OMIT_REPLY), wanted].concat()
}

/// The names of the abilities that are switched on.
fn active_features(answer: &[u8]) -> Vec<String> {
    let active = attributes(answer).find(|(kind, _)| *kind == ETHTOOL_A_FEATURES_ACTIVE).map_or(&[][..], |(_, v)| v);
    let bits = attributes(active).find(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS).map_or(&[][..], |(_, v)| v);
    let name = |bit| attributes(bit).find(|(kind, _)| *kind == ETHTOOL_A_BITSET_BIT_NAME);
    let names = attributes(bits).filter_map(|(_, bit)| name(bit));
    names.map(|(_, name)| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()).collect()
}

fn zero_terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, value)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // All values here are names and short lists of them.
    let length = (ATTRIBUTE_HEADER + value.len()) as u16;
    let mut bytes = Vec::with_capacity(usize::from(length).next_multiple_of(4));
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(usize::from(length).next_multiple_of(4), 0);
    bytes
}

/// A socket of generic netlink.
struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    fn open() -> io::Result<Netlink> {
        let (family, kind, flags) = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, kind, flags, Some(netlink::GENERIC))?;
        rustix::net::connect(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// The number of a family of messages.
    fn family(&mut self, name: &str) -> io::Result<u16> {
        let request = attribute(CTRL_ATTR_FAMILY_NAME, &zero_terminated(name));
        let answer = self.request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &request)?;
        let number = attributes(&answer).find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID);
        let number = number.and_then(|(_, value)| value.first_chunk());
        number
            .map(|bytes| u16::from_ne_bytes(*bytes))
            .ok_or_else(|| io::Error::other("the kernel's answer has no number"))
    }

    /// Sends a request and waits for its acknowledgment; returns the attributes of the answer, if one came before.
    fn request(&mut self, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = NETLINK_HEADER + GENERIC_HEADER + attributes.len();
        let mut message = Vec::with_capacity(length);
        message.extend((length as u32).to_ne_bytes());
        message.extend(family.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        // Version 1 of both families.
        message.extend([command, 1, 0, 0]);
        message.extend(attributes);
        rustix::net::send(&self.socket, &message, SendFlags::empty())?;
        let mut reply = vec![0; REPLY_BYTES];
        let mut answer = Vec::new();
        loop {
            let (n, _) = rustix::net::recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
            let mut rest = &reply[..n];
            while let Some((kind, body, next)) = split_message(rest) {
                rest = next;
                if kind != NLMSG_ERROR {
                    answer = body.get(GENERIC_HEADER..).unwrap_or(&[]).to_vec();
                    continue;
                }
                return match body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code)) {
                    0 => Ok(answer),
                    code => Err(io::Error::from_raw_os_error(-code)),
                };
            }
        }
    }
}

/// The first message of `bytes`: its type, its body, and the bytes after it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let message = bytes.get(..length).filter(|message| message.len() >= NETLINK_HEADER)?;
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, &message[NETLINK_HEADER..], next))
}

/// The attributes one after the other, up to the first that is cut off.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & NLA_TYPE_MASK;
        let value = rest.get(ATTRIBUTE_HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_again() {
        let inner = attribute(7, b"x");
        let list = [attribute(1, b"abc"), nested(2, &inner), attribute(3, &[])].concat();
        let read: Vec<_> = attributes(&list).collect();
        assert_eq!(read, [(1, &b"abc"[..]), (2, &inner[..]), (3, &[][..])]);
        assert_eq!(list.len(), 8 + 12 + 4);
    }

    #[test]
    fn cut_messages_are_not_read_past_their_end() {
        let list = [attribute(1, b"abcd"), attribute(2, b"efgh")].concat();
        for n in 0..list.len() {
            assert_eq!(attributes(&list[..n]).count(), n / 8);
        }
        assert_eq!(attributes(&[0; 8]).count(), 0, "a length of zero would never end");
        assert!(split_message(&[0; 15]).is_none() && split_message(&[0; 16]).is_none());
        assert!(split_message(&[200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
    }

    #[test]
    fn only_the_devices_own_segmentation_goes() {
        for name in ["tx-tcp-segmentation", "tx-tcp-accecn-segmentation", "tx-udp-segmentation", "tx-gso-list"] {
            assert!(takes_large_segments(name), "{name}");
        }
        for name in ["tx-generic-segmentation", "tx-scatter-gather", "tx-checksum-ip-generic", "rx-gro"] {
            assert!(!takes_large_segments(name), "{name}");
        }
        assert!(takes_partial_checksums("tx-checksum-ip-generic") && takes_partial_checksums("tx-checksum-sctp"));
        assert!(!takes_partial_checksums("rx-checksum") && !takes_partial_checksums("tx-scatter-gather"));
    }

    #[test]
    fn the_kernel_knows_the_family_and_the_loopback_device() {
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.family("no-such-family").unwrap_err().kind(), io::ErrorKind::NotFound);
        let family = netlink.family("ethtool").unwrap();
        let answer = netlink.request(family, ETHTOOL_MSG_FEATURES_GET, &header("lo", 0)).unwrap();
        let names = active_features(&answer);
        assert!(names.iter().any(|name| name == "tx-scatter-gather"), "{names:?}");
        let request = features("no-such-dev", &["tx-tcp-segmentation".into()], false);
        let error = netlink.request(family, ETHTOOL_MSG_FEATURES_SET, &request).unwrap_err();
        // Without root the kernel refuses the change itself, with root it does not know the device.
        let expected = [rustix::io::Errno::NODEV, rustix::io::Errno::PERM].map(|e| e.raw_os_error());
        assert!(error.raw_os_error().is_some_and(|code| expected.contains(&code)), "{error}");
    }
}
