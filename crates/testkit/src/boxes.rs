//! Clusters in a box for tests: a guard around `ropeway box`, with a name of its own, that takes its box away.
//!
//! ```no_run
//! use ropeway_testkit::boxes::{self, TestBox};
//! use ropeway_testkit::{need_box, proc::command};
//! use std::time::Duration;
//!
//! # fn main() {
//! need_box!();
//! let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit", "--port-buffer", "128KiB"]);
//! let server = cluster.spawn("h1", &command("iperf3", ["-s", "-1"]));
//! server.wait_for_port(5201, Duration::from_secs(5));
//! cluster.loss("h2", "1%");
//! let address = cluster.v4("h1").to_string();
//! cluster.run("h2", &command("iperf3", ["-c", &address, "-t", "1"]), Duration::from_secs(20)).expect_success();
//! assert_eq!(cluster.port("h1").drops, 0);
//! # }
//! ```

use crate::env;
use crate::proc::{Finished, Process, command};
use serde::Deserialize;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Skips the calling test where boxes cannot be made.
#[macro_export]
macro_rules! need_box {
    () => {
        $crate::need_root!();
        $crate::need_program!("ip", "tc");
    };
}

/// How long a command of `ropeway box` may take; the largest box comes up in some seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Names of boxes of tests: this, the pid of the test program, a number.
const PREFIX: &str = "t";

/// Numbers the boxes of this process. Relaxed: only uniqueness matters, nothing is published by it.
static NEXT_BOX: AtomicU32 = AtomicU32::new(0);

/// A box that lives as long as its guard, with the processes in it. Declare it before the processes that run in it: Rust drops in
/// reverse order.
#[derive(Debug)]
pub struct TestBox {
    name: String,
}

/// A port of the switch, as `ropeway box status --json` prints it. "Sent" goes to the host.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Port {
    pub port: String,
    pub host: String,
    pub segment: String,
    pub addresses: (Ipv4Addr, Ipv6Addr),
    /// The Ethernet address of the host at this port.
    pub mac: String,
    pub rate_bits_per_s: Option<u64>,
    pub buffer_bytes: Option<u64>,
    pub burst_bytes: Option<u64>,
    pub host_rate_bits_per_s: Option<u64>,
    pub delay_us: Option<f64>,
    pub queue_bytes: u64,
    pub queue_packets: u64,
    /// Frames that found the buffer full.
    pub drops: u64,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    pub host_drops: u64,
    /// By loss and cut, in both directions.
    pub lost_packets: u64,
    /// For want of processor time, in both directions.
    pub missed_packets: u64,
    pub cut: bool,
    pub loss_from_host_percent: f64,
    pub loss_to_host_percent: f64,
}

/// A box, as `ropeway box status --json` prints it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Status {
    /// `htb` or `tbf`, if ports have a rate.
    pub shaper: Option<String>,
    pub htb_hysteresis: Option<bool>,
    /// `netem` or `delay-line`, if there is a delay.
    pub delay_by: Option<String>,
    /// While it lives.
    pub delay_line: Option<DelayLine>,
    pub ports: Vec<Port>,
}

/// What the process that delays says of itself.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DelayLine {
    pub pid: i32,
    pub frames: u64,
    pub waiting: u64,
    pub passed: u64,
    pub dropped: u64,
    pub late_mean_us: f64,
    pub late_most_us: f64,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
}

impl TestBox {
    /// A new box; `options` are those of `ropeway box up`.
    ///
    /// # Panics
    /// With what `ropeway box` says, when it cannot be made. See [`need_box!`](crate::need_box).
    #[track_caller]
    pub fn up(options: &[&str]) -> Self {
        let new = Self::unmade();
        new.ropeway(&[&["up"], options].concat()).expect_success();
        new
    }

    /// The guard of a box that the test makes by itself.
    pub fn unmade() -> Self {
        take_away_left_ones();
        let number = NEXT_BOX.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{PREFIX}-{}-{number}", std::process::id()) }
    }

    /// The name of the box.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The network namespace of a host, or of `switch`.
    pub fn namespace(&self, host: &str) -> String {
        format!("ropeway-{}-{host}", self.name)
    }

    /// The command, wrapped to run in a host. Its environment changes and working directory are kept. It combines with
    /// [`World::command`](crate::World::command), for programs under Ropeway.
    pub fn command(&self, host: &str, cmd: &Command) -> Command {
        let mut exec = command(env::ropeway(), ["box", "exec", "--name", &self.name, host, "--"]);
        exec.arg(cmd.get_program()).args(cmd.get_args());
        for (name, value) in cmd.get_envs() {
            match value {
                Some(value) => exec.env(name, value),
                None => exec.env_remove(name),
            };
        }
        if let Some(dir) = cmd.get_current_dir() {
            exec.current_dir(dir);
        }
        exec
    }

    /// Starts a command in a host. The process is the command's own: its pid, its signals, its exit code.
    #[track_caller]
    pub fn spawn(&self, host: &str, cmd: &Command) -> Process {
        Process::spawn(self.command(host, cmd))
    }

    /// Runs a command in a host to its end.
    ///
    /// # Panics
    /// When it takes longer than `limit`.
    #[track_caller]
    pub fn run(&self, host: &str, cmd: &Command, limit: Duration) -> Finished {
        self.spawn(host, cmd).wait(limit).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The command `ropeway box ARGS --name NAME`.
    pub fn ropeway_command(&self, args: &[&str]) -> Command {
        let mut ropeway = command(env::ropeway(), ["box", "--name", &self.name]);
        ropeway.args(args);
        ropeway
    }

    /// Runs `ropeway box ARGS` on this box, to its end.
    #[track_caller]
    pub fn ropeway(&self, args: &[&str]) -> Finished {
        Process::spawn(self.ropeway_command(args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Lets nothing pass to or from a host, or a port, any more.
    #[track_caller]
    pub fn cut(&self, host: &str) {
        self.ropeway(&["cut", host]).expect_success();
    }

    /// Ends a cut.
    #[track_caller]
    pub fn heal(&self, host: &str) {
        self.ropeway(&["heal", host]).expect_success();
    }

    /// Loses a share (`"1%"`) of a host's frames, in each direction.
    #[track_caller]
    pub fn loss(&self, host: &str, share: &str) {
        self.ropeway(&["loss", host, share]).expect_success();
    }

    /// The box as it is now.
    #[track_caller]
    pub fn status(&self) -> Status {
        let printed = self.ropeway(&["status", "--json"]).expect_success().stdout;
        serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e} in: {printed}"))
    }

    /// All ports as they are now.
    #[track_caller]
    pub fn ports(&self) -> Vec<Port> {
        self.status().ports
    }

    /// One port as it is now; that of a host has the host's name.
    ///
    /// # Panics
    /// When there is none of that name.
    #[track_caller]
    pub fn port(&self, name: &str) -> Port {
        let ports = self.ports();
        ports.into_iter().find(|port| port.port == name).unwrap_or_else(|| panic!("{} has no port {name}", self.name))
    }

    /// The IPv4 address of a host (or, by the name of a port, of a gateway's leg).
    #[track_caller]
    pub fn v4(&self, port: &str) -> Ipv4Addr {
        self.port(port).addresses.0
    }

    /// The IPv6 address likewise.
    #[track_caller]
    pub fn v6(&self, port: &str) -> Ipv6Addr {
        self.port(port).addresses.1
    }
}

impl Drop for TestBox {
    fn drop(&mut self) {
        // One that the test took away itself, or never made, needs nothing more.
        let _ = Process::spawn(self.ropeway_command(&["down"])).wait(LIMIT);
    }
}

/// Takes away, once per process, boxes of test programs that were killed before they could do it.
fn take_away_left_ones() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let listed = Process::spawn(command(env::ropeway(), ["box", "list", "--json"])).succeed(LIMIT).stdout;
        let listed: Vec<Listed> = serde_json::from_str(&listed).unwrap_or_else(|e| panic!("{e} in: {listed}"));
        for left in listed.into_iter().filter(|listed| is_left(&listed.name)) {
            let down = command(env::ropeway(), ["box", "down", "--name", &left.name]);
            // Another test program may do the same right now.
            let _ = Process::spawn(down).wait(LIMIT);
        }
    });
}

/// Whether a box belongs to a test program that has ended.
fn is_left(name: &str) -> bool {
    let mut parts = name.split('-');
    let (prefix, pid) = (parts.next(), parts.next().and_then(|pid| pid.parse::<u32>().ok()));
    prefix == Some(PREFIX) && pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_boxes_of_ended_test_programs_are_left_ones() {
        let own = format!("{PREFIX}-{}-0", std::process::id());
        // Above the largest pid that Linux gives.
        assert!(is_left("t-4194305-0"));
        for name in [own.as_str(), "box", "t", "t-x-1", "other-4194305-0"] {
            assert!(!is_left(name), "{name}");
        }
    }
}
