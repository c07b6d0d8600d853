//! Test support: drives the built `ropeway` program, its preload library and unmodified programs from outside, as a user does.
//!
//! What lives here: where the artifacts are ([`mod@env`]), processes that cannot outlive their test ([`proc`]), ports ([`net`]),
//! one private rendezvous per test ([`World`]), clusters in a box ([`boxes`]), one of Slurm ([`slurm`]), TCP to compare them with ([`incast`]), the line of figures a process leaves behind ([`Stats`]), and skips that are
//! counted ([`skip!`](macro@skip)). What does not: anything that links the crates under test. The suites are in `crates/testkit/tests`,
//! one file (or directory) per suite; `cargo xtask test` finds them by itself.
//!
//! A test reads like this:
//!
//! ```no_run
//! use ropeway_testkit::{World, need_program, net, proc::{Process, command}};
//! use std::time::Duration;
//!
//! # fn main() {
//! need_program!("redis-server", "redis-cli");
//! let world = World::new();
//! let port = net::free_port();
//! let server = world.spawn(command("redis-server", ["--port", &port.to_string(), "--save", ""]));
//! server.wait_for_port(port, Duration::from_secs(5));
//! let ping = world.spawn(command("redis-cli", ["-p", &port.to_string(), "ping"]));
//! assert_eq!(ping.succeed(Duration::from_secs(5)).stdout.trim(), "PONG");
//! server.terminate(Duration::from_secs(5));
//! assert!(world.stats().iter().any(|s| s.comm == "redis-server" && s.connections == 1));
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod boxes;
pub mod compat;
pub mod env;
pub mod faults;
pub mod incast;
pub mod net;
pub mod proc;
pub mod random;
pub mod semantics;
pub mod servers;
pub mod skip;
pub mod slurm;
mod stats;
pub mod training;
mod world;

pub use stats::{Bells, ByDirection, BytesByCarrier, Spins, Stats, parse_stats};
pub use world::{DAEMON_SOCKET_VAR, World, ropeway_run};
