//! Real programs, unmodified, under Ropeway: each is checked for its right result and, from the statistics of every process,
//! for the carrier that moved its bytes. `docs/compatibility.md` is the table of these cases.
//!
//! `ROPEWAY_TEST_BARE=1` runs them on plain TCP to check the tests; `ROPEWAY_WRITE_COMPAT=1` writes the table.

mod databases;
mod one_end;
mod runtimes;
mod streams;
mod web;

/// The least share of bytes over shared memory that proves that long-lived connections were promoted: what stays on TCP is
/// the beginning of each connection, longer on a busy machine.
const LONG_LIVED: f64 = 0.8;

/// The same for a program that sends one stream at full speed and ends: on a busy machine half of it may have passed before
/// the rendezvous gets its turn.
const ONE_STREAM: f64 = 0.3;
