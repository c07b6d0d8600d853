//! Several messages in one direction, and how fast they arrive.

use super::message;
use crate::Failure;
use crate::transport::{Rank, Transport};

/// What a step moves at most, unless messages are larger: some milliseconds on fast networks, so that the start does not matter.
const STEP_BYTES: usize = 4 << 20;

/// What the usual number of messages moves at most, unless one is larger: at 1 Gbit/s two seconds, and a trial has two steps at least.
const MOST_STEP_BYTES: usize = 256 << 20;

/// Messages of a step: enough to measure a rate, few enough to end soon.
pub fn messages(size: usize) -> u32 {
    few_if_huge((STEP_BYTES / size.max(1)).clamp(4, 1024), size)
}

/// So many messages, or as few of this size as a step has time for.
pub fn few_if_huge(count: usize, size: usize) -> u32 {
    count.min(MOST_STEP_BYTES / size.max(1)).max(1) as u32
}

/// What arrived of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Arrived {
    pub messages: u64,
    /// From the start of the step to the last message that arrived.
    pub ns: u64,
}

impl Arrived {
    pub fn goodput(&self, size: usize) -> f64 {
        rate(self.messages * size as u64, self.ns)
    }

    /// Part of the messages that did not arrive.
    pub fn loss(&self, sent: u32) -> f64 {
        1.0 - self.messages as f64 / f64::from(sent)
    }
}

/// So many in so long, in a second. What took no time (of a simulation) took a nanosecond.
pub fn rate(count: u64, ns: u64) -> f64 {
    count as f64 * 1e9 / ns.max(1) as f64
}

/// Sends messages `first`, `first + 1` and so on.
pub fn send(transport: &mut dyn Transport, to: Rank, bytes: &mut [u8], first: u64, count: u32) -> Result<(), Failure> {
    (first..first + u64::from(count)).try_for_each(|number| message::send(transport, to, bytes, number))
}

/// Receives what [`send`] sends.
pub fn receive(
    transport: &mut dyn Transport,
    from: Rank,
    into: &mut [u8],
    first: u64,
    count: u32,
) -> Result<Arrived, Failure> {
    let end = first + u64::from(count);
    let start_ns = transport.now_ns();
    let mut arrived = Arrived::default();
    let mut next = first;
    while next < end {
        let Some(number) = message::receive(transport, from, into, next)? else { break };
        arrived.messages += 1;
        next = number + 1;
        // Later, where the rest may be lost, nobody knows any more when this one came.
        if next == end || !transport.is_reliable() {
            arrived.ns = transport.now_ns() - start_ns;
        }
    }
    Ok(arrived)
}

/// Sends to a peer that sends as much at the same time, never more than `ahead` messages before it has received.
pub fn exchange(
    transport: &mut dyn Transport,
    peer: Rank,
    [out, into]: [&mut [u8]; 2],
    first: u64,
    count: u32,
    ahead: u32,
) -> Result<Arrived, Failure> {
    let end = first + u64::from(count);
    let start_ns = transport.now_ns();
    let mut arrived = Arrived::default();
    let (mut sent, mut next) = (first, first);
    while next < end {
        if sent < end && sent < next + u64::from(ahead.max(1)) {
            message::send(transport, peer, out, sent)?;
            sent += 1;
            continue;
        }
        match message::receive(transport, peer, into, next)? {
            Some(number) => {
                arrived.messages += 1;
                next = number + 1;
                if next >= end || !transport.is_reliable() {
                    arrived.ns = transport.now_ns() - start_ns;
                }
            }
            // The peer had as much time: what it sent until now is lost.
            None => next = next.max(sent),
        }
    }
    while sent < end {
        message::send(transport, peer, out, sent)?;
        sent += 1;
    }
    Ok(arrived)
}
