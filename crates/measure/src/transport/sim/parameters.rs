//! What a simulated network is made of.

use serde::{Deserialize, Serialize};

use super::Cost;

/// The parameters of a simulated network. Times are in nanoseconds.
///
/// A message of s bytes that is sent at t keeps its sender's processor until t + os(s). Its interface takes it up when it is free of the message before, and is busy
/// with it for g + (s-1) G ([`Model::LogGp`]) or g(s) ([`Model::PLogP`]). Its last byte is at the receiver's port L + (s-1) G after the end of os(s), or in
/// P-LogP, where L begins with the sending, so that a waiting receiver has it L + g(s) after that. The receiver's processor then takes or(s).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimParameters {
    pub model: Model,
    /// L.
    pub latency_ns: f64,
    pub send_overhead: Cost,
    pub receive_overhead: Cost,
    /// g, or in P-LogP g(s).
    pub gap: Cost,
    /// G; LogGP only.
    pub gap_per_byte_ns: f64,
    /// Messages that may wait for their interface before a sender must.
    pub queue: usize,
    /// Bytes under way from one rank to another: a reliable sender waits for room, an unreliable one's messages are lost beyond it.
    pub window: usize,
    /// Bytes per second into each receiver, over all senders. None: no limit.
    pub rate: Option<f64>,
    /// Bytes that wait at a receiver's port; what comes to a full one is lost. None: no limit.
    pub buffer: Option<usize>,
    /// Probability that a message is lost on its way.
    pub loss: f64,
    /// Whether lost messages are sent again (and order is kept), or are gone.
    pub reliable: bool,
    /// What a lost message costs where it is sent again.
    pub retransmit_ns: f64,
    /// How long a receiver waits for a message that may be lost.
    pub timeout_ns: f64,
    /// Relative standard deviation of each time above, symmetric (normal, cut at three deviations): median and mean stay what is given.
    pub noise: f64,
    /// Rare slow operations; they are what makes times skewed.
    pub outliers: Option<Outliers>,
    /// Another protocol for large messages.
    pub switch: Option<Switch>,
    /// What reading the clock takes, and asking which rank has sent something, or for a message that is not there. Not 0: a loop that only looks must end.
    pub clock_ns: f64,
    pub poll_ns: f64,
    pub seed: u64,
}

/// Which model's parameters these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    LogGp,
    PLogP,
}

/// Operations that take much longer than usual.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Outliers {
    pub probability: f64,
    /// So many times the usual time.
    pub factor: f64,
}

/// Large messages go another way, such as with a question to the receiver first (rendezvous).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// Bytes of the smallest message that does so.
    pub from: usize,
    /// Added to the latency of each; None: a round trip.
    pub delay_ns: Option<f64>,
    /// G of such messages; None: as before.
    pub gap_per_byte_ns: Option<f64>,
}

impl Default for SimParameters {
    fn default() -> SimParameters {
        SimParameters {
            model: Model::LogGp,
            latency_ns: 5_000.0,
            send_overhead: Cost::constant(1_000.0),
            receive_overhead: Cost::constant(1_000.0),
            gap: Cost::constant(2_000.0),
            gap_per_byte_ns: 1.0,
            queue: 64,
            window: 16 << 20,
            rate: None,
            buffer: None,
            loss: 0.0,
            reliable: true,
            retransmit_ns: 200_000.0,
            timeout_ns: 1_000_000.0,
            noise: 0.0,
            outliers: None,
            switch: None,
            clock_ns: 1.0,
            poll_ns: 50.0,
            seed: 1,
        }
    }
}

/// Larger noise would be cut so often that its size is not what was asked for.
const MOST_NOISE: f64 = 0.33;

impl SimParameters {
    /// Checks what the types do not; the error says what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let time = |ns: f64| ns.is_finite() && ns >= 0.0;
        let costs = [("os", &self.send_overhead), ("or", &self.receive_overhead), ("g", &self.gap)];
        if let Some((name, _)) = costs.into_iter().find(|(_, cost)| !cost.is_valid()) {
            return Err(format!("{name} must be a time that is not negative, for every size"));
        }
        let times = [
            ("L", self.latency_ns),
            ("G", self.gap_per_byte_ns),
            ("retransmit", self.retransmit_ns),
            ("switch-delay", self.switch.and_then(|switch| switch.delay_ns).unwrap_or(0.0)),
            ("switch-G", self.switch.and_then(|switch| switch.gap_per_byte_ns).unwrap_or(0.0)),
        ];
        if let Some((name, _)) = times.into_iter().find(|(_, ns)| !time(*ns)) {
            return Err(format!("{name} must be a time that is not negative"));
        }
        let positive =
            [("L", self.latency_ns), ("timeout", self.timeout_ns), ("clock", self.clock_ns), ("poll", self.poll_ns)];
        if let Some((name, _)) = positive.into_iter().find(|(_, ns)| !(*ns >= 0.001 && ns.is_finite())) {
            return Err(format!("{name} must be at least 1 ps: a loop of ranks that takes no time would never end"));
        }
        let parts = [("loss", self.loss), ("outliers", self.outliers.map_or(0.0, |outliers| outliers.probability))];
        if let Some((name, _)) = parts.into_iter().find(|(_, part)| !(0.0..1.0).contains(part)) {
            return Err(format!("{name} must be a probability below 1, such as 1%"));
        }
        if !(0.0..=MOST_NOISE).contains(&self.noise) {
            return Err(format!("noise must be from 0 to {:.0} %; slower operations are outliers", 100.0 * MOST_NOISE));
        }
        if self.outliers.is_some_and(|outliers| !(outliers.factor >= 1.0 && outliers.factor.is_finite())) {
            return Err("outliers must have a factor of at least 1".to_owned());
        }
        if self.rate.is_some_and(|rate| !(rate >= 1.0 && rate.is_finite())) {
            return Err("rate must be at least 1 byte per second".to_owned());
        }
        if self.buffer.is_some() && self.rate.is_none() {
            return Err("buffer has no meaning without rate: a port without a limit never fills".to_owned());
        }
        if self.queue == 0 || self.window == 0 || self.buffer == Some(0) {
            return Err("queue, window and buffer must be at least 1".to_owned());
        }
        Ok(())
    }

    /// G for a message of this size.
    pub(super) fn per_byte_ns(&self, bytes: usize) -> f64 {
        let other = self.switch.filter(|switch| bytes >= switch.from).and_then(|switch| switch.gap_per_byte_ns);
        other.unwrap_or(self.gap_per_byte_ns)
    }

    /// Time for which the interface is busy with a message.
    pub fn gap_ns(&self, bytes: usize) -> f64 {
        let symbols = bytes.saturating_sub(1) as f64;
        match self.model {
            Model::LogGp => self.gap.of(bytes) + symbols * self.per_byte_ns(bytes),
            Model::PLogP => self.gap.of(bytes),
        }
    }

    /// Time that the protocol for large messages adds.
    pub(super) fn switch_delay_ns(&self, bytes: usize) -> f64 {
        let Some(switch) = self.switch.filter(|switch| bytes >= switch.from) else { return 0.0 };
        let round_trip = 2.0 * (self.latency_ns + self.send_overhead.of(0) + self.receive_overhead.of(0));
        switch.delay_ns.unwrap_or(round_trip)
    }

    /// From the moment at which the interface takes a message up to its last byte at the receiver's port.
    pub(super) fn flight_ns(&self, bytes: usize) -> f64 {
        let symbols = bytes.saturating_sub(1) as f64;
        match self.model {
            Model::LogGp => self.latency_ns + symbols * self.per_byte_ns(bytes),
            Model::PLogP => self.latency_ns + (self.gap.of(bytes) - self.receive_overhead.of(bytes)).max(0.0),
        }
    }
}
