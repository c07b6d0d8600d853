//! The faults, and what each of them does and undoes.

use super::bed::Bed;
use super::judge::Harm;
use super::program::Role;
use ropeway_testkit::faults::Random;
use ropeway_testkit::proc::{Process, command};
use std::time::Duration;

/// Between two faults, at most.
pub const LONGEST_PAUSE_MS: u64 = 1500;
/// More at a time leave nothing that works.
pub const MOST_AT_A_TIME: usize = 3;

const USUAL_MTU: u64 = 1500;
const LEAST_MTU: u64 = 1280;
const MOST_HOGS: u64 = 5;

const SEND_MEMORY: &str = "send_memory";

/// Knobs that may be anything without that the times of [`super::judge`] change: name, least, most. Where the range is smaller than what can be set, the rest would only make everything slow
/// or refuse what the load needs.
const KNOBS: &[(&str, u64, u64)] = &[
    ("burst_length", 0, 4096),
    ("initial_ack_burst_length", 1, 64),
    ("packets_to_ack", 1, 64),
    ("send_buffer", 16_384, 4 << 20),
    ("receive_buffer", 32_768, 4 << 20),
    ("round_trip_time", 1, 1_000_000),
    ("port_buffer", 16_384, 1 << 20),
    ("port_buffer_most_times", 1, 64),
    ("lease", 1_000, 1_000_000),
    ("ack_delay", 0, 10_000),
    ("state_min", 100, 100_000),
    ("request_min", 50, 100_000),
    ("timer_max", 1, 500),
    ("coalesce", 0, 1_000),
    ("key_volume", 1, 64),
    ("longest_message", 1 << 20, 1 << 31),
    (SEND_MEMORY, 4 << 20, 1 << 30),
];
const WORDS: &[(&str, &[&str])] = &[("order", &["fifo", "srpt", "fair"]), ("gate", &["grants", "esp"])];

/// What is done to a host.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    Cut,
    Loss {
        percent: f64,
    },
    Mtu {
        bytes: u64,
    },
    Down,
    Kill(Role),
    Stop(Role),
    Hogs {
        count: u64,
    },
    Tune {
        name: &'static str,
        value: String,
    },
    /// A step of the exchange of the cluster's key, with which every program of every host starts again.
    Key,
}

impl Fault {
    /// One for a host, and how long it lasts.
    pub fn chosen(random: &mut Random, keys: bool) -> (Self, Duration) {
        let mut lasts = |most_ms: u64| Duration::from_millis(50 + random.below(most_ms));
        let (short, medium, long) = (lasts(2000), lasts(6000), lasts(10_000));
        let role = if random.below(2) == 0 { Role::Server } else { Role::Client };
        match random.below(30) {
            0..4 => (Self::Cut, if random.below(3) == 0 { long } else { short }),
            4..8 => (Self::Loss { percent: random.below(51) as f64 / 10.0 }, long),
            8..10 => (Self::Mtu { bytes: LEAST_MTU + random.below(USUAL_MTU - LEAST_MTU) }, medium),
            10..12 => (Self::Down, if random.below(3) == 0 { medium } else { short }),
            12..15 => (Self::Kill(role), short),
            15..18 => (Self::Stop(role), medium),
            18..20 => (Self::Hogs { count: 1 + random.below(MOST_HOGS) }, medium),
            20 if keys => (Self::Key, Duration::ZERO),
            _ => {
                let at = random.below((KNOBS.len() + WORDS.len()) as u64) as usize;
                let tune = match KNOBS.get(at) {
                    Some(&(name, least, most)) => Self::Tune { name, value: between(random, least, most).to_string() },
                    None => {
                        let (name, words) = WORDS[at - KNOBS.len()];
                        Self::Tune { name, value: words[random.below(words.len() as u64) as usize].into() }
                    }
                };
                (tune, long)
            }
        }
    }

    /// Two of one kind on one host would undo each other.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            || matches!((self, other), (Self::Kill(_), Self::Stop(_)) | (Self::Stop(_), Self::Kill(_)))
            || matches!((self, other), (Self::Key, _) | (_, Self::Key))
    }

    pub fn harm(&self) -> Harm {
        match self {
            Self::Mtu { .. } | Self::Down | Self::Kill(_) | Self::Key => Harm::Ends,
            Self::Cut | Self::Stop(_) => Harm::Silence,
            Self::Tune { name: SEND_MEMORY, .. } => Harm::Memory,
            Self::Loss { .. } | Self::Hogs { .. } | Self::Tune { .. } => Harm::None,
        }
    }
}

/// A number of which each magnitude in the range is as frequent.
fn between(random: &mut Random, least: u64, most: u64) -> u64 {
    let bits = random.below(u64::from((most - least).ilog2()) + 1);
    (least + (1 << bits) - 1 + random.below(1 << bits)).min(most)
}

/// What a fault leaves running until it ends.
#[derive(Default)]
pub struct Running {
    hogs: Vec<Process>,
}

/// Does it.
pub fn begin(bed: &mut Bed, host: usize, fault: &Fault) -> Result<Running, String> {
    let name = format!("h{host}");
    let mut running = Running::default();
    match fault {
        Fault::Cut => bed.cluster().cut(&name),
        Fault::Loss { percent } => bed.cluster().loss(&name, &format!("{percent}%")),
        Fault::Mtu { bytes } => bed.device(host, &["mtu", &bytes.to_string()]),
        Fault::Down => bed.device(host, &["down"]),
        Fault::Kill(role) => bed.program(host, *role).kill(),
        Fault::Stop(role) => bed.program(host, *role).set_stopped(true),
        Fault::Hogs { count } => {
            running.hogs = (0..*count).map(|_| Process::spawn(command("sh", ["-c", "while :; do :; done"]))).collect();
        }
        Fault::Tune { name, value } => bed.tune(host, name, value),
        Fault::Key => bed.next_key()?,
    }
    Ok(running)
}

/// Undoes it.
pub fn end(bed: &mut Bed, host: usize, fault: &Fault, running: Running) -> Result<(), String> {
    let name = format!("h{host}");
    match fault {
        Fault::Cut => bed.cluster().heal(&name),
        Fault::Loss { .. } => bed.cluster().loss(&name, "0%"),
        Fault::Mtu { .. } => bed.device(host, &["mtu", &USUAL_MTU.to_string()]),
        Fault::Down => bed.device(host, &["up"]),
        Fault::Kill(role) => bed.start_program(host, *role)?,
        Fault::Stop(role) => bed.program(host, *role).set_stopped(false),
        Fault::Hogs { .. } => drop(running.hogs),
        Fault::Tune { name, .. } => bed.tune_back(host, name),
        Fault::Key => {}
    }
    Ok(())
}
