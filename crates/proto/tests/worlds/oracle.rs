//! Random programs over a bad network against an oracle: each direction of each channel is a queue, whatever is sent, closed and aborted.

use std::collections::VecDeque;

use crate::world::*;
use proptest::prelude::*;
use ropeway_proto::config::{GateMode, Order};
use ropeway_proto::{ChannelId, Config, ErrorCode, Mode, RecvError, SendError};

/// What one program does next, on one end of one channel, or what happens to its host.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Receive(usize),
    Shutdown,
    Close,
    Abort,
    Cancel,
    Pass(u64),
    /// From here on nothing passes in either direction, or nothing that this host sends, ...
    Cut(bool),
    /// ... until now.
    Heal,
    /// The host's clock is set.
    SetClock(i64),
}

impl Step {
    /// Whether it happens to a channel, which may be closed by then.
    fn is_of_channel(self) -> bool {
        !matches!(self, Step::Pass(_) | Step::Cut(_) | Step::Heal | Step::SetClock(_))
    }
}

fn step() -> impl Strategy<Value = (usize, usize, Step)> {
    let step = prop_oneof![
        10 => (0usize..6000).prop_map(Step::Send),
        2 => (0usize..200_000).prop_map(Step::Send),
        2 => Just(Step::Send(0)),
        12 => (1usize..20_000).prop_map(Step::Receive),
        1 => Just(Step::Shutdown),
        1 => Just(Step::Close),
        1 => Just(Step::Abort),
        1 => Just(Step::Cancel),
        12 => (0u64..300).prop_map(|us| Step::Pass(us * US)),
        2 => (0u64..50).prop_map(|ms| Step::Pass(ms * MS)),
        1 => any::<bool>().prop_map(Step::Cut),
        3 => Just(Step::Heal),
        // All steps together are shorter than the patience with a silent peer, but for those that show a host that it did not run.
        1 => prop_oneof![-5i64..20, Just(5_000i64), Just(20_000i64)].prop_map(|ms| Step::SetClock(ms * MS as i64)),
    ];
    (0usize..CHANNELS, 0usize..2, step)
}

const CHANNELS: usize = 4;

/// One end of a channel, and what the oracle knows of it.
struct End {
    host: usize,
    id: ChannelId,
    mode: Mode,
    /// What was taken from this end's program and not given to the other's.
    sent: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that the other end has read.
    read: usize,
    shut: bool,
    closed: bool,
    /// It closed with bytes unread, or aborted: the other end may lose what is under way.
    broke: bool,
}

struct Oracle {
    world: World,
    ends: Vec<[End; 2]>,
    serial: u8,
}

impl Oracle {
    fn new(net: Net, seed: u64, config: Config) -> Oracle {
        let config = Config {
            send_buffer_bytes: 300 << 10,
            receive_buffer_bytes: 256 << 10,
            longest_message_bytes: 1 << 20,
            ..config
        };
        let mut world = World::new(2, net, &config, seed);
        let ends = (0..CHANNELS)
            .map(|index| {
                let mode = if index % 2 == 0 { Mode::Stream } else { Mode::Messages };
                let (from, to) = if index < 2 { (0, 1) } else { (1, 0) };
                let (a, b) = open(&mut world, from, to, 7 + index as u16, mode);
                [(from, a), (to, b)].map(|(host, id)| End {
                    host,
                    id,
                    mode,
                    sent: VecDeque::new(),
                    read: 0,
                    shut: false,
                    closed: false,
                    broke: false,
                })
            })
            .collect();
        Oracle { world, ends, serial: 0 }
    }

    fn run(&mut self, channel: usize, side: usize, step: Step) {
        let now = self.world.clock(self.ends[channel][side].host);
        let End { host, id, closed, .. } = self.ends[channel][side];
        if closed && step.is_of_channel() {
            assert_eq!(self.world.hosts[host].readiness(id), None, "closed is closed");
            return;
        }
        match step {
            Step::Pass(ns) => pass(&mut self.world, ns),
            Step::Cut(both) => self.world.filter = Some(Box::new(move |_, from, _, _| !both && from != host)),
            Step::Heal => self.world.filter = None,
            Step::SetClock(ns) => self.world.step_clock(host, ns),
            Step::Send(size) => self.send(channel, side, size),
            Step::Receive(size) => drop(self.receive(channel, side, size)),
            Step::Shutdown => {
                let _ = self.world.hosts[host].shutdown(now, id);
                self.ends[channel][side].shut = true;
            }
            Step::Close => {
                self.ends[channel][side].closed = true;
                // With something unread the other end is reset; whether all of it has arrived yet is the network's affair.
                self.ends[channel][side].broke |= !self.ends[channel][1 - side].sent.is_empty();
                self.world.hosts[host].close(now, id);
            }
            Step::Abort => {
                (self.ends[channel][side].closed, self.ends[channel][side].broke) = (true, true);
                self.world.hosts[host].abort(now, id);
            }
            Step::Cancel => {
                let count = self.world.hosts[host].cancel(id);
                let end = &mut self.ends[channel][side];
                assert!(count as usize <= end.sent.len());
                let keep = end.sent.len() - count as usize;
                end.sent.truncate(keep);
            }
        }
    }

    fn send(&mut self, channel: usize, side: usize, size: usize) {
        self.serial = self.serial.wrapping_add(1);
        let bytes: Vec<u8> = (0..size).map(|at| pattern(at as u64) ^ self.serial).collect();
        let other_is_gone = self.ends[channel][1 - side].closed;
        let end = &mut self.ends[channel][side];
        let now = self.world.clock(end.host);
        match self.world.hosts[end.host].send(now, end.id, &bytes) {
            Ok(0) if end.mode == Mode::Stream => {}
            Ok(count) => {
                assert!(!end.shut && (end.mode == Mode::Stream || count == size));
                end.sent.push_back(bytes[..count].to_vec());
            }
            Err(SendError::WouldBlock) => {}
            Err(SendError::Closed) => assert!(end.shut),
            Err(SendError::TooLong { limit }) => assert!(size as u64 > limit),
            Err(SendError::PeerClosed | SendError::Failed(ErrorCode::Reset)) => assert!(other_is_gone),
            Err(error) => panic!("{error}"),
        }
        self.world.hosts[end.host].flush(end.id);
    }

    /// What the end `side` reads is what the other end sent next. `None`: it met the end, or an error.
    fn receive(&mut self, channel: usize, side: usize, size: usize) -> Option<usize> {
        let [first, second] = &mut self.ends[channel];
        let (end, peer) = if side == 0 { (first, second) } else { (second, first) };
        let mut out = vec![0; if end.mode == Mode::Stream { size } else { 300_000 }];
        match self.world.hosts[end.host].recv(end.id, &mut out) {
            Ok(Some(count)) => {
                if end.mode == Mode::Messages {
                    let sent = peer.sent.pop_front().expect("a message out of nothing");
                    assert_eq!(out[..count], sent[..]);
                    return Some(count);
                }
                assert!(count > 0);
                for &byte in &out[..count] {
                    let piece = peer.sent.front().expect("bytes out of nothing");
                    assert_eq!(byte, piece[peer.read]);
                    peer.read += 1;
                    if peer.read == piece.len() {
                        peer.sent.pop_front();
                        peer.read = 0;
                    }
                }
                Some(count)
            }
            Ok(None) => {
                assert!(peer.shut || peer.closed);
                assert!(peer.broke || end.broke || peer.sent.is_empty(), "the end before everything was read");
                None
            }
            Err(RecvError::WouldBlock) => Some(0),
            Err(RecvError::Failed(code)) => {
                assert!(code == ErrorCode::Reset && (peer.broke || peer.closed), "{code:?}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Everything that was sent comes, unless somebody broke the channel; then all is closed, and nothing is left.
    fn finish(mut self) {
        self.world.filter = None;
        for channel in 0..CHANNELS {
            for side in 0..2 {
                if !self.ends[channel][side].closed {
                    self.run(channel, side, Step::Shutdown);
                }
            }
        }
        let begin = self.world.now;
        let mut reading: Vec<_> = (0..CHANNELS).flat_map(|channel| [(channel, 0), (channel, 1)]).collect();
        reading.retain(|&(channel, side)| !self.ends[channel][side].closed);
        while !reading.is_empty() {
            // What is unread of one may keep a message of another waiting for memory: all are read in turn.
            let mut count = 0;
            reading.retain(|&(channel, side)| {
                let read = self.receive(channel, side, 100_000);
                count += read.unwrap_or(0);
                read.is_some()
            });
            if count == 0 {
                pass(&mut self.world, MS);
            }
            assert!(self.world.now - begin < 100 * S, "{reading:?} never end");
        }
        let ends: Vec<_> = self.ends.iter().flatten().filter(|end| !end.closed).map(|end| (end.host, end.id)).collect();
        close_all_channels(&mut self.world, &ends);
        for host in 0..self.world.hosts.len() {
            self.world.close_all(host);
            let host = &self.world.hosts[host];
            assert_eq!((host.sizes(), host.buffers_in_use()), ((0, 0), (0, 0)));
        }
    }
}

in_every_way!(channels_are_queues_whatever_the_network_and_the_programs_do);
proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Replay with `cargo test -p ropeway-proto --test worlds oracle`: a failure writes its seed to tests/proptest-regressions/oracle.txt, which is run first from then on.
    fn channels_are_queues_whatever_the_network_and_the_programs_do(
        steps in prop::collection::vec(step(), 1..120),
        loss in 0u64..200_000,
        reordering in prop_oneof![Just(0u64), 0u64..200_000],
        duplication in prop_oneof![Just(0u64), 0u64..100_000],
        corruption in prop_oneof![Just(0u64), 0u64..50_000],
        rate in prop_oneof![Just(0u64), Just(1_000_000_000u64), Just(50_000_000u64)],
        gate_mode in prop_oneof![3 => Just(GateMode::Grants), 1 => Just(GateMode::Esp)],
        order in prop_oneof![Just(Order::Fifo), Just(Order::Srpt), Just(Order::Fair)],
        first_number in prop_oneof![Just(None), (0u64..200).prop_map(|below| Some(0u64.wrapping_sub(below)))],
        seed: u64,
    ) {
        let net = Net {
            loss_ppm: loss,
            reordering_ppm: reordering,
            duplication_ppm: duplication,
            corruption_ppm: corruption,
            rate,
            ..Net::default()
        };
        run_all(net, seed, Config { gate_mode, order, first_number, ..Config::default() }, &steps);
    }
}

in_every_way!(channels_are_queues_in_too_little_memory_for_what_is_not_read);
proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// What finds no memory is given back, withdrawn and sent again.
    fn channels_are_queues_in_too_little_memory_for_what_is_not_read(
        steps in prop::collection::vec(step(), 50..400),
        loss in prop_oneof![Just(0u64), 0u64..200_000],
        reordering in prop_oneof![Just(0u64), 0u64..200_000],
        duplication in prop_oneof![Just(0u64), 0u64..100_000],
        rate in prop_oneof![Just(0u64), Just(1_000_000_000u64), Just(50_000_000u64)],
        seed: u64,
    ) {
        let net =
            Net { loss_ppm: loss, reordering_ppm: reordering, duplication_ppm: duplication, rate, ..Net::default() };
        run_all(net, seed, Config { receive_memory_bytes: 64 << 10, ..Config::default() }, &steps);
    }
}

fn run_all(net: Net, seed: u64, config: Config, steps: &[(usize, usize, Step)]) {
    let mut oracle = Oracle::new(net, seed, config);
    for &(channel, side, step) in steps {
        oracle.run(channel, side, step);
    }
    oracle.finish();
}
