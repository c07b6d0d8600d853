//! The floor: a UDP socket, or the receive ring of a packet socket, with nothing on top. Both spin. What is lost stays lost, so a flood counts what arrived.

use crate::{Carrier, Connection, Kind};
use ropeway_link::packet::{self, PacketLink};
use ropeway_link::udp::{self, UdpLink};
use ropeway_link::{Address, Batch, Link, Urgency};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The end of a flood is said again so often until it is answered.
const END_AGAIN: Duration = Duration::from_millis(20);
const MOST_BYTES: usize = 2048;
/// Datagrams of one `sendmmsg`.
const BATCH: usize = 64;

/// One connection each way is all it is for.
pub struct Raw {
    datagrams: Mutex<Option<Datagrams>>,
}

pub fn mac(text: &str) -> [u8; 6] {
    ropeway_link::hardware_address(text).expect("a MAC address")
}

enum Datagrams {
    Udp(UdpSocket),
    Packet(Box<PacketLink>, Option<Address>),
    Batches(Box<Batches>),
}

/// A UDP socket with `sendmmsg` and `recvmmsg`, a datagram for each message.
struct Batches {
    link: UdpLink,
    to: Option<Address>,
    waiting: Vec<Vec<u8>>,
    waits: usize,
    arrived: Vec<u8>,
    /// Ends of the datagrams in `arrived` that were not looked at, and where the first begins.
    ends: VecDeque<usize>,
    at: usize,
}

impl Batches {
    fn open(local: &str) -> Batches {
        let options = udp::Options::new(local.parse().expect("an address"));
        let options = udp::Options { segmentation: false, aggregation: false, ..options };
        let link = UdpLink::open(&options).expect("a UDP socket");
        let waiting = vec![Vec::new(); BATCH];
        Batches { link, to: None, waiting, waits: 0, arrived: Vec::new(), ends: VecDeque::new(), at: 0 }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.waiting[self.waits].clear();
        self.waiting[self.waits].extend_from_slice(bytes);
        self.waits += 1;
        if self.waits == BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let packets: Vec<_> = self.waiting[..self.waits].iter().map(|bytes| IoSlice::new(bytes)).collect();
        let mut done = 0;
        while done < packets.len() {
            let batch = Batch::new(self.to.expect("connected"), &packets[done..]);
            done += self.link.send(&batch).expect("the link works");
        }
        self.waits = 0;
    }

    fn receive(&mut self, into: &mut [u8; MOST_BYTES]) -> Option<usize> {
        if self.ends.is_empty() {
            self.flush();
            self.arrived.clear();
            self.at = 0;
            let Batches { link, to, arrived, ends, .. } = self;
            let mut keep = |packet: ropeway_link::Received<'_>| {
                to.get_or_insert(packet.from);
                arrived.extend_from_slice(packet.bytes);
                ends.push_back(arrived.len());
            };
            link.receive(BATCH, &mut keep).expect("the link works");
        }
        let end = self.ends.pop_front()?;
        let bytes = &self.arrived[std::mem::replace(&mut self.at, end)..end];
        into[..bytes.len()].copy_from_slice(bytes);
        Some(bytes.len())
    }
}

impl Raw {
    pub fn open(name: &str, local: &str) -> Raw {
        let datagrams = if name == "raw-udp" {
            let socket = UdpSocket::bind(local).expect("an address");
            socket.set_nonblocking(true).expect("non-blocking");
            Datagrams::Udp(socket)
        } else if name == "raw-udp-batch" {
            Datagrams::Batches(Box::new(Batches::open(local)))
        } else {
            let options = packet::Options { looks_early: name == "link-packet", ..packet::Options::new(local) };
            Datagrams::Packet(Box::new(PacketLink::open(&options).expect("a packet socket")), None)
        };
        Raw { datagrams: Mutex::new(Some(datagrams)) }
    }

    fn take(&self) -> Datagrams {
        loop {
            if let Some(datagrams) = self.datagrams.lock().expect("lock").take() {
                return datagrams;
            }
            // Somebody else waits in `accept`: the one connection there is was taken.
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Carrier for Raw {
    fn accept(&self, kind: Kind) -> Box<dyn Connection> {
        if kind == Kind::Stream {
            loop {
                std::thread::park();
            }
        }
        Box::new(Flow { datagrams: self.take(), early: None, answer: None })
    }

    fn connect(&self, peer: &str, _: Kind) -> Box<dyn Connection> {
        let mut datagrams = self.take();
        match &mut datagrams {
            Datagrams::Udp(socket) => socket.connect(peer).expect("an address"),
            Datagrams::Packet(_, to) => *to = Some(Address::Ether(mac(peer))),
            Datagrams::Batches(batches) => batches.to = Some(Address::Udp(peer.parse().expect("an address"))),
        }
        Box::new(Flow { datagrams, early: None, answer: None })
    }
}

impl Datagrams {
    fn send(&mut self, bytes: &[u8]) {
        match self {
            Datagrams::Udp(socket) => loop {
                match socket.send(bytes) {
                    Ok(_) => return,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
                    Err(error) => panic!("{error}"),
                }
            },
            Datagrams::Packet(link, to) => {
                let packets = [IoSlice::new(bytes)];
                let batch = Batch { urgency: Urgency::Urgent, ..Batch::new(to.expect("connected"), &packets) };
                while link.send(&batch).expect("the link works") == 0 {}
            }
            Datagrams::Batches(batches) => batches.send(bytes),
        }
    }

    /// One look.
    fn receive(&mut self, into: &mut [u8; MOST_BYTES]) -> Option<usize> {
        match self {
            Datagrams::Udp(socket) => match socket.recv_from(into) {
                Ok((count, from)) => {
                    if socket.peer_addr().is_err() {
                        socket.connect(from).expect("an address");
                    }
                    Some(count)
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => None,
                Err(error) => panic!("{error}"),
            },
            Datagrams::Packet(link, to) => {
                let mut length = None;
                let mut keep = |packet: ropeway_link::Received<'_>| {
                    to.get_or_insert(packet.from);
                    into[..packet.bytes.len()].copy_from_slice(packet.bytes);
                    length = Some(packet.bytes.len());
                };
                link.receive(1, &mut keep).expect("the link works");
                length
            }
            Datagrams::Batches(batches) => batches.receive(into),
        }
    }
}

struct Flow {
    datagrams: Datagrams,
    /// What came while the answer to the end was waited for.
    early: Option<Vec<u8>>,
    /// What a repeated end is answered with.
    answer: Option<Vec<u8>>,
}

impl Connection for Flow {
    fn send(&mut self, bytes: &[u8]) {
        self.datagrams.send(bytes);
        if self.answer.is_some() {
            self.answer = Some(bytes.to_vec());
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> bool {
        if let Some(early) = self.early.take() {
            into.copy_from_slice(&early);
            return true;
        }
        let mut buffer = [0; MOST_BYTES];
        loop {
            if self.datagrams.receive(&mut buffer) == Some(into.len()) {
                into.copy_from_slice(&buffer[..into.len()]);
                return true;
            }
            std::hint::spin_loop();
        }
    }

    fn receive_some(&mut self, into: &mut [u8]) -> usize {
        let mut buffer = [0; MOST_BYTES];
        loop {
            if let Some(count) = self.datagrams.receive(&mut buffer) {
                into[..count].copy_from_slice(&buffer[..count]);
                if count == 1 {
                    self.answer = Some(Vec::new());
                }
                return count;
            }
            std::hint::spin_loop();
        }
    }

    /// The sender's end: says so until the report comes. The receiver's: answers ends that were repeated.
    fn finish(&mut self) {
        let mut buffer = [0; MOST_BYTES];
        let (mut said, is_sender) = (Instant::now(), self.answer.is_none());
        if is_sender {
            self.datagrams.send(&[0]);
        }
        loop {
            match (self.datagrams.receive(&mut buffer), &self.answer) {
                (Some(count), None) => {
                    self.early = Some(buffer[..count].to_vec());
                    return;
                }
                (Some(1), Some(answer)) => self.datagrams.send(&answer.clone()),
                _ if is_sender && said.elapsed() > END_AGAIN => {
                    self.datagrams.send(&[0]);
                    said = Instant::now();
                }
                _ => std::hint::spin_loop(),
            }
        }
    }
}
