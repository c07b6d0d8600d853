//! Capture files: Ethernet frames that carry packets, as Wireshark reads them.

/// The classic format, in this machine's byte order, with times of nothing but zeros.
const MAGIC: u32 = 0xA1B2_C3D4;
const LINKTYPE_ETHERNET: u32 = 1;
const SNAP_BYTES: u32 = 65_535;

/// Of frames that carry packets.
const ETHERTYPE: u16 = 0x88B5;
const ETHERTYPE_IPV4: u16 = 0x0800;
const PROTOCOL_UDP: u8 = 17;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Shorter payloads of Ethernet frames are filled up with zeros.
const MIN_ETHERNET_PAYLOAD: usize = 46;

pub fn file(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(MAGIC.to_ne_bytes());
    file.extend([2u16, 4].map(u16::to_ne_bytes).concat());
    file.extend([0, 0, SNAP_BYTES, LINKTYPE_ETHERNET].map(u32::to_ne_bytes).concat());
    for frame in frames {
        let length = frame.len() as u32;
        file.extend([0, 0, length, length].map(u32::to_ne_bytes).concat());
        file.extend(frame);
    }
    file
}

/// A packet in an Ethernet frame of our own type.
pub fn ethernet(packet: &[u8]) -> Vec<u8> {
    frame(ETHERTYPE, packet)
}

/// A packet in UDP over IPv4, from `port` to the next one.
pub fn udp(packet: &[u8], port: u16) -> Vec<u8> {
    let udp_bytes = (UDP_BYTES + packet.len()) as u16;
    let total = udp_bytes + IPV4_BYTES as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, PROTOCOL_UDP, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    ip.extend(port.to_be_bytes());
    ip.extend((port + 1).to_be_bytes());
    ip.extend(udp_bytes.to_be_bytes());
    // No checksum, which IPv4 allows.
    ip.extend([0, 0]);
    ip.extend(packet);
    frame(ETHERTYPE_IPV4, &ip)
}

fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len() + MIN_ETHERNET_PAYLOAD.saturating_sub(payload.len()), 0);
    frame
}
