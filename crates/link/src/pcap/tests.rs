use super::*;
use crate::{memory, sim};
use ropeway_testkit::need_program;
use ropeway_testkit::proc::until;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// A file in memory that tests can look into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn len(&self) -> usize {
        self.0.lock().expect("no panics").len()
    }

    /// Type and body of each block.
    fn blocks(&self) -> Vec<(u32, Vec<u8>)> {
        let all = self.0.lock().expect("no panics").clone();
        let mut rest = all.as_slice();
        let mut blocks = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
            let len = word(4) as usize;
            assert_eq!((len % 4, word(len - 4) as usize), (0, len), "both ends say the same length");
            blocks.push((word(0), rest[8..len - 4].to_vec()));
            rest = &rest[len..];
        }
        blocks
    }
}

fn send(link: &mut impl Link, to: Address, bytes: &[u8]) {
    let packets = [IoSlice::new(bytes)];
    assert_eq!(link.send(&Batch::new(to, &packets)).expect("works"), 1);
}

#[test]
fn packets_are_written_with_their_time_and_way() {
    let network = sim::Network::new(sim::Config::default(), 1);
    let file = Shared::default();
    let mut plain = network.attach(0);
    let clock = network.clone();
    let clock = Clock::new(move || clock.now());
    let mut link =
        PcapLink::with_clock(network.attach(1), Box::new(file.clone()), Options::default(), clock).expect("writes");
    send(&mut plain, Address::Sim(1), &[7; 1500]);
    network.advance_until_ready(sim::Time::MAX);
    assert_eq!(link.receive(10, &mut |_| ()).expect("works"), 1);
    send(&mut link, Address::Sim(0), &[8; 3]);
    let blocks = file.blocks();
    let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, ENHANCED_PACKET]);
    let body = &blocks[2].1;
    let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!((word(8), word(12), word(16)), (34_608, 1514, 1514), "time, lengths");
    assert_eq!(body[20..34], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0x88, 0xb5]);
    assert_eq!(body[34..1534], [7; 1500]);
    assert_eq!(word(1536 + 4), Way::Arrived as u32, "after two bytes of padding and the option's header");
    let body = &blocks[3].1;
    assert_eq!(body[20..37], [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 8, 8, 8]);
}

#[test]
fn what_arrives_at_one_of_several_addresses_is_written_with_that_one() {
    let open = |local: &str| {
        let local = local.parse().expect("an address");
        crate::udp::UdpLink::open(&crate::udp::Options::new(local)).expect("a socket")
    };
    // Where the destination stands behind the Ethernet header, of 14 bytes.
    for (all, host, place) in [("0.0.0.0:0", "127.0.0.1", 30..34), ("[::]:0", "::1", 38..54)] {
        let file = Shared::default();
        let mut link = PcapLink::new(open(all), Box::new(file.clone()), Options::default()).expect("writes");
        let Address::Udp(local) = link.local() else { panic!("the address of a UDP link") };
        let host: IpAddr = host.parse().expect("an address");
        let octets = match host {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let mut plain = open(&SocketAddr::new(host, 0).to_string());
        // The first tells the link of the address.
        for count in 1..=2 {
            send(&mut plain, Address::Udp(SocketAddr::new(host, local.port())), &[7; 100]);
            until("it arrives", || link.receive(10, &mut |_| ()).expect("works") > 0);
            let (_, body) = file.blocks().pop().expect("a packet");
            assert_eq!(body[20..][place.clone()], octets, "{all}, packet {count}");
        }
    }
}

#[test]
fn made_up_udp_headers_are_right() {
    for (source, destination) in [("10.0.0.1:7000", "10.0.0.2:7001"), ("[2001:db8::1]:7000", "[2001:db8::2]:7001")] {
        let [source, destination] = [source, destination].map(|text| text.parse::<SocketAddr>().expect("an address"));
        for len in [1, 2, 1471] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let to = Address::Udp(destination);
            let headers = Headers::new(Address::Udp(source), to, Ecn::Congested, DEFAULT_ETHERTYPE, &bytes);
            let frame = [headers.bytes(), &bytes].concat();
            let ip = &frame[14..];
            let (ip_bytes, ecn, addresses) =
                if source.is_ipv4() { (20, ip[1], &ip[12..20]) } else { (40, ip[1] >> 4, &ip[8..40]) };
            assert_eq!(ecn & 0b11, 0b11);
            if source.is_ipv4() {
                assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
                assert_eq!(internet_sum(&ip[..20]), 0xffff, "a header with its checksum sums up to ones");
            }
            let udp = &ip[ip_bytes..];
            assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
            let pseudo = [addresses, &[0, 17], &(udp.len() as u16).to_be_bytes(), udp].concat();
            assert_eq!(internet_sum(&pseudo), 0xffff);
        }
    }
}

/// The checksum's sum as RFC 1071 has it, word by word.
fn internet_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn a_capture_ends_at_its_size_and_the_link_goes_on() {
    let file = Shared::default();
    let (a, mut b) = memory::pair(memory::Config::default()).expect("a pair");
    let options = Options { most_bytes: 5_000, ..Options::default() };
    let mut link = PcapLink::new(a, Box::new(file.clone()), options).expect("writes");
    (0..100).for_each(|_| send(&mut link, Address::Sim(1), &[1; 1000]));
    assert!((5_000..6_200).contains(&file.len()), "{} bytes", file.len());
    assert!(link.error().is_none());
    assert_eq!(b.receive(1000, &mut |_| ()).expect("works"), 100);
}

#[test]
fn a_full_disk_ends_the_capture_and_the_link_goes_on() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    let (a, _b) = memory::pair(memory::Config::default()).expect("a pair");
    assert!(PcapLink::new(a, Box::new(full.try_clone().expect("another")), Options::default()).is_err());
    let (a, mut b) = memory::pair(memory::Config::default()).expect("a pair");
    let output = Box::new(io::BufWriter::with_capacity(1000, full));
    let mut link = PcapLink::new(a, output, Options::default()).expect("the head fits into the buffer");
    (0..10).for_each(|_| send(&mut link, Address::Sim(1), &[1; 1000]));
    assert_eq!(link.error().expect("an error").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(b.receive(1000, &mut |_| ()).expect("works"), 10);
}

#[test]
fn tshark_reads_what_was_written() {
    need_program!("tshark");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("capture.pcapng");
    let file = std::fs::File::create(&path).expect("created");
    let local = "127.0.0.1:0".parse().expect("an address");
    let [a, mut b] = [0, 1].map(|_| crate::udp::UdpLink::open(&crate::udp::Options::new(local)).expect("a socket"));
    let mut link = PcapLink::new(a, Box::new(io::BufWriter::new(file)), Options::default()).expect("writes");
    send(&mut link, b.local(), &[5; 100]);
    let from = link.local();
    send(&mut b, from, &[6; 333]);
    let start = std::time::Instant::now();
    while link.receive(1, &mut |_| ()).expect("works") == 0 {
        assert!(start.elapsed().as_secs() < 10, "nothing arrives");
    }
    drop(link);
    let fields = ["ip.dst", "udp.length", "udp.checksum.status", "ip.checksum.status", "ip.dsfield.ecn"];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let checks = ["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields"];
    let output = Command::new("tshark").arg("-r").arg(&path).args(checks).args(fields).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["127.0.0.1\t108\t1\t1\t0", "127.0.0.1\t341\t1\t1\t2"], "{output:?}");
}
