//! A link around a link that writes every packet to a capture file (pcapng), for Wireshark and its kin.
//!
//! Packets of UDP links get made-up Ethernet, IP and UDP headers, and those of all others an Ethernet header with our EtherType, so that a
//! dissector finds what it looks for. Hardware addresses of UDP hosts are made up, those of simulated hosts hold their number. A file that cannot
//! be written to ends the capture, never the link.

mod headers;

use crate::packet::DEFAULT_ETHERTYPE;
use crate::{Address, Batch, Clock, Counters, Ecn, Link, Own, Received, Report, wall_clock};
use headers::Headers;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

/// How a capture is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of frames without IP.
    pub ethertype: u16,
    /// The capture ends with the packet that reaches this size: a forgotten one must not fill the disk.
    pub most_bytes: u64,
}

impl Default for Options {
    /// Our EtherType, 1 GiB.
    fn default() -> Options {
        Options { ethertype: DEFAULT_ETHERTYPE, most_bytes: 1 << 30 }
    }
}

/// A link whose packets are captured.
pub struct PcapLink<L> {
    inner: L,
    capture: Capture,
}

impl<L: Link> PcapLink<L> {
    /// Wraps a link and writes the head of the file. The output should be buffered; it is flushed when nothing arrives, and at the end.
    ///
    /// # Errors
    /// The output cannot be written to.
    pub fn new(inner: L, output: Box<dyn Write + Send>, options: Options) -> io::Result<PcapLink<L>> {
        PcapLink::with_clock(inner, output, options, wall_clock())
    }

    /// The same with a clock of its own, such as that of a simulated network.
    ///
    /// # Errors
    /// As [`PcapLink::new`].
    pub fn with_clock(
        inner: L,
        output: Box<dyn Write + Send>,
        options: Options,
        clock: Clock,
    ) -> io::Result<PcapLink<L>> {
        let mut capture = Capture { output: Some(output), options, clock, written_bytes: 0, dirty: false, error: None };
        let head = [section_header(), interface_description(&inner.name())].concat();
        capture.write(&head);
        match capture.error.take() {
            Some(error) => Err(error),
            None => Ok(PcapLink { inner, capture }),
        }
    }

    /// One of this host's addresses, as it is written.
    fn own(&self, own: Own) -> Address {
        self.inner.own_address(own).unwrap_or_else(|| self.inner.local())
    }

    /// What ended the capture before its time.
    pub fn error(&self) -> Option<&io::Error> {
        self.capture.error.as_ref()
    }
}

impl<L: fmt::Debug> fmt::Debug for PcapLink<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PcapLink").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The file.
struct Capture {
    /// Gone when the capture has ended.
    output: Option<Box<dyn Write + Send>>,
    options: Options,
    clock: Clock,
    written_bytes: u64,
    /// Something was written since it was last flushed.
    dirty: bool,
    error: Option<io::Error>,
}

/// A packet that the link has just handed over, and when.
struct Arrival {
    time_ns: u64,
    from: Address,
    to: Own,
    ecn: Ecn,
    bytes: Vec<u8>,
}

/// Which way a packet went, as the flags of pcapng say it.
#[derive(Clone, Copy)]
enum Way {
    Arrived = 1,
    Sent = 2,
}

impl Capture {
    fn arrival(&mut self, packet: Received<'_>) -> Option<Arrival> {
        let Received { from, to, ecn, bytes } = packet;
        self.output.as_ref()?;
        Some(Arrival { time_ns: self.clock.now_ns(), from, to, ecn, bytes: bytes.to_vec() })
    }

    fn packet(&mut self, time_ns: u64, way: Way, [source, destination]: [Address; 2], ecn: Ecn, bytes: &[u8]) {
        if self.output.is_none() {
            return;
        }
        let headers = Headers::new(source, destination, ecn, self.options.ethertype, bytes);
        self.write(&enhanced_packet(time_ns, way, headers.bytes(), bytes));
        if self.written_bytes >= self.options.most_bytes {
            self.flush();
            self.output = None;
        }
    }

    fn write(&mut self, block: &[u8]) {
        let Some(output) = &mut self.output else { return };
        let result = output.write_all(block);
        self.written_bytes += block.len() as u64;
        self.dirty = true;
        self.end_on_error(result);
    }

    fn flush(&mut self) {
        if let (Some(output), true) = (&mut self.output, self.dirty) {
            let result = output.flush();
            self.dirty = false;
            self.end_on_error(result);
        }
    }

    fn end_on_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.output = None;
            self.error = Some(error);
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u32 = 1;

/// Options of blocks: the end of the list, an interface's name, the resolution of its times, a packet's flags.
const OPTION_END: u16 = 0;
const OPTION_NAME: u16 = 2;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_FLAGS: u16 = 2;

/// A block: its type, its length at both ends, and a body padded to whole words.
fn block(kind: u32, body: &[&[u8]]) -> Vec<u8> {
    let body_bytes = body.iter().map(|part| part.len()).sum::<usize>().next_multiple_of(4);
    let length = (body_bytes as u32 + 12).to_le_bytes();
    let mut block = Vec::with_capacity(body_bytes + 12);
    block.extend(kind.to_le_bytes());
    block.extend(length);
    body.iter().for_each(|part| block.extend_from_slice(part));
    block.resize(body_bytes + 8, 0);
    block.extend(length);
    block
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    option.extend_from_slice(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

fn section_header() -> Vec<u8> {
    // Version 1.0, a section of unknown length.
    block(SECTION_HEADER, &[&BYTE_ORDER.to_le_bytes(), &1u32.to_le_bytes(), &u64::MAX.to_le_bytes()])
}

fn interface_description(name: &str) -> Vec<u8> {
    // Times in nanoseconds, packets whole.
    let options = [option(OPTION_NAME, name.as_bytes()), option(OPTION_TIME_RESOLUTION, &[9]), option(OPTION_END, &[])];
    block(INTERFACE_DESCRIPTION, &[&LINKTYPE_ETHERNET.to_le_bytes(), &0u32.to_le_bytes(), &options.concat()])
}

fn enhanced_packet(time_ns: u64, way: Way, headers: &[u8], bytes: &[u8]) -> Vec<u8> {
    let frame_bytes = headers.len() + bytes.len();
    let padding = [0; 3];
    let len = (frame_bytes as u32).to_le_bytes();
    let options = [option(OPTION_FLAGS, &(way as u32).to_le_bytes()), option(OPTION_END, &[])].concat();
    block(
        ENHANCED_PACKET,
        &[
            &0u32.to_le_bytes(),
            &((time_ns >> 32) as u32).to_le_bytes(),
            &(time_ns as u32).to_le_bytes(),
            &len,
            &len,
            headers,
            bytes,
            &padding[..frame_bytes.next_multiple_of(4) - frame_bytes],
            &options,
        ],
    )
}

impl<L: Link> Link for PcapLink<L> {
    fn name(&self) -> String {
        format!("pcap {}", self.inner.name())
    }

    fn local(&self) -> Address {
        self.inner.local()
    }

    fn own_address(&self, own: Own) -> Option<Address> {
        self.inner.own_address(own)
    }

    fn max_packet(&self) -> usize {
        self.inner.max_packet()
    }

    fn send(&mut self, batch: &Batch<'_>) -> io::Result<usize> {
        let taken = self.inner.send(batch)?;
        let own = self.own(batch.from);
        for packet in &batch.packets[..taken] {
            let time_ns = self.capture.clock.now_ns();
            self.capture.packet(time_ns, Way::Sent, [own, batch.to], Ecn::NotCapable, packet);
        }
        Ok(taken)
    }

    fn receive(&mut self, limit: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        // The link says what its numbers stand for when it has handed over all: only then it knows those of addresses that are new.
        let mut arrived = Vec::new();
        let capture = &mut self.capture;
        let received = self.inner.receive(limit, &mut |packet| {
            arrived.extend(capture.arrival(packet));
            sink(packet);
        });
        for Arrival { time_ns, from, to, ecn, bytes } in arrived {
            let own = self.own(to);
            self.capture.packet(time_ns, Way::Arrived, [from, own], ecn, &bytes);
        }
        let count = received?;
        if count == 0 {
            self.capture.flush();
        }
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn receive_slots(&self) -> Option<usize> {
        self.inner.receive_slots()
    }

    fn take_error(&mut self) -> Option<Report> {
        self.inner.take_error()
    }

    fn fetch_errors(&mut self) {
        self.inner.fetch_errors();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests;
