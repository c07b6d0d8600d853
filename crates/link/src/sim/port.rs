//! A queue and what sends from it: the output port of a switch, and a host's network card.

use super::config::PortCounters;
use super::frame::FrameId;
use super::{NS_PER_S, Time};
use crate::random::Random;
use crate::{FaultCounters, Faults};
use std::collections::VecDeque;

/// The other end of a cable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Switch(usize),
    Host(u32),
}

/// A queue, what sends from it, and the cable it sends into.
#[derive(Debug)]
pub(super) struct Port {
    /// The switch whose buffer the queue lies in; none for a host's card.
    pub switch: Option<usize>,
    rate_bits_per_s: u64,
    pub delay_ns: u64,
    pub to: Place,
    pub faults: Faults,
    pub random: Random,
    /// Frames that wait: urgent ones, and all others.
    urgent: VecDeque<FrameId>,
    bulk: VecDeque<FrameId>,
    /// The frame on its way out.
    pub sending: Option<FrameId>,
    /// Sends nothing new: its host is stopped.
    pub stopped: bool,
    /// What the last transmission took beyond whole nanoseconds, in 1/rate of one: carried on, so that back-to-back frames keep the exact rate.
    rest: u64,
    pub counters: PortCounters,
    pub cable: FaultCounters,
}

impl Port {
    pub fn new(
        switch: Option<usize>,
        rate_bits_per_s: u64,
        delay_ns: u64,
        to: Place,
        faults: Faults,
        random: Random,
    ) -> Port {
        assert!(rate_bits_per_s > 0, "a rate of 0 never sends");
        Port {
            switch,
            rate_bits_per_s,
            delay_ns,
            to,
            faults,
            random,
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            sending: None,
            stopped: false,
            rest: 0,
            counters: PortCounters::default(),
            cable: FaultCounters::default(),
        }
    }

    /// Whether so many bytes more find room below `limit`.
    pub fn has_room(&self, frame_bytes: u64, limit: u64) -> bool {
        self.counters.queued_bytes + frame_bytes <= limit
    }

    pub fn enqueue(&mut self, frame: FrameId, frame_bytes: u64, urgent: bool) {
        if urgent { &mut self.urgent } else { &mut self.bulk }.push_back(frame);
        self.counters.queued_bytes += frame_bytes;
        self.counters.most_queued_bytes = self.counters.most_queued_bytes.max(self.counters.queued_bytes);
    }

    pub fn dropped(&mut self, frame_bytes: u64) {
        self.counters.dropped_packets += 1;
        self.counters.dropped_bytes += frame_bytes;
    }

    /// Takes the next frame to send, if the port is idle and may.
    pub fn next(&mut self) -> Option<FrameId> {
        if self.sending.is_some() || self.stopped {
            return None;
        }
        self.sending = self.urgent.pop_front().or_else(|| self.bulk.pop_front());
        self.sending
    }

    /// How long so many bytes take. `back_to_back`: right after the frame before.
    pub fn duration(&mut self, wire_bytes: u64, back_to_back: bool) -> Time {
        let rest = if back_to_back { self.rest } else { 0 };
        // 64 KiB are 2^19 bits, a second is less than 2^30 ns, and the rest is below the rate: far from 2^64.
        let scaled = wire_bytes * 8 * NS_PER_S + rest;
        self.rest = scaled % self.rate_bits_per_s;
        scaled / self.rate_bits_per_s
    }

    /// The frame that was being sent is out.
    pub fn sent(&mut self, frame_bytes: u64) {
        self.sending = None;
        self.counters.queued_bytes -= frame_bytes;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += frame_bytes;
    }
}
