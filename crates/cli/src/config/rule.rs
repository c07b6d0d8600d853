//! One rule: which programs, ports and peers it is about, and what it says.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use ropeway_socket::rendezvous::wire::Endpoint;
use serde::{Deserialize, Deserializer, de::Error};
use toml::Spanned;

/// What rules know of a process.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its short name (at most 15 bytes).
    pub comm: String,
    /// The image it runs, if the daemon may see it.
    pub exe: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    #[default]
    Allow,
    Deny,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(default)]
    pub action: Action,
    pub profile: Option<Spanned<String>>,
    program: Option<String>,
    port: Option<Ports>,
    peer: Option<Network>,
}

impl Rule {
    pub fn about_program_only(&self) -> bool {
        self.port.is_none() && self.peer.is_none()
    }

    /// A name without `/` is compared with the short name and with the file name of the image, else with its path.
    pub fn program_matches(&self, program: &Program) -> bool {
        let Some(pattern) = &self.program else { return true };
        let path = program.exe.as_deref();
        if pattern.contains('/') {
            return path.is_some_and(|exe| glob(pattern.as_bytes(), exe.as_os_str().as_encoded_bytes()));
        }
        let file_name = path.and_then(|exe| exe.file_name()).map(|name| name.as_encoded_bytes());
        [Some(program.comm.as_bytes()), file_name].into_iter().flatten().any(|name| glob(pattern.as_bytes(), name))
    }

    pub fn matches(&self, program: &Program, local: &Endpoint, remote: &Endpoint) -> bool {
        self.program_matches(program)
            && self.port.as_ref().is_none_or(|p| p.contain(local.port) || p.contain(remote.port))
            && self.peer.as_ref().is_none_or(|net| net.contains(remote))
    }
}

/// `*` stands for any run of bytes.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        Some((first, rest)) => text.split_first().is_some_and(|(b, text)| b == first && glob(rest, text)),
    }
}

/// One port or a range, of either end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    fn contain(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let ports = match &value {
            toml::Value::Integer(port) => u16::try_from(*port).ok().map(|p| Ports { first: p, last: p }),
            toml::Value::String(range) => range.split_once('-').and_then(|(first, last)| {
                let ports = Ports { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? };
                (ports.first <= ports.last).then_some(ports)
            }),
            _ => None,
        };
        ports.ok_or_else(|| D::Error::custom(format!("{value} is not a port; write 6379 or \"6000-6100\"")))
    }
}

/// An address or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    addr: [u8; 16],
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Network> {
        let (addr, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let addr: IpAddr = addr.trim().parse().ok()?;
        let (mapped, width): (Ipv6Addr, u32) = match addr {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 32),
            IpAddr::V6(v6) => (v6, 128),
        };
        let bits: u32 = bits.map_or(Some(width), |b| b.trim().parse().ok())?;
        (bits <= width).then(|| Network { addr: mapped.octets(), bits: 128 - width + bits })
    }

    fn contains(&self, end: &Endpoint) -> bool {
        let differing = u128::from_be_bytes(self.addr) ^ u128::from_be_bytes(end.addr);
        differing.checked_shr(128 - self.bits).unwrap_or(0) == 0
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        let text = String::deserialize(deserializer)?;
        Network::parse(&text).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is not a peer; write an address or a network like \"10.0.0.0/8\""))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_run() {
        for (pattern, text, expected) in [
            ("redis-*", "redis-server", true),
            ("redis-*", "redis", false),
            ("*", "", true),
            ("*/bin/*", "/usr/bin/python3", true),
            ("python3", "python3.11", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn networks_hold_their_addresses() {
        let v4 = |d: u8| Endpoint::v4([10, 1, 2, d], 5);
        assert!(Network::parse("10.0.0.0/8").unwrap().contains(&v4(3)));
        assert!(!Network::parse("10.1.2.4").unwrap().contains(&v4(3)));
        assert!(Network::parse("0.0.0.0/0").unwrap().contains(&v4(3)));
        assert!(!Network::parse("0.0.0.0/0").unwrap().contains(&Endpoint::v6([0; 16], 1)));
        assert!(Network::parse("::/0").unwrap().contains(&v4(3)));
        assert!(Network::parse("::1").unwrap().contains(&Endpoint::v6(Ipv6Addr::LOCALHOST.octets(), 1)));
        for bad in ["10.0.0.0/33", "localhost", "::1/129", ""] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }
}
