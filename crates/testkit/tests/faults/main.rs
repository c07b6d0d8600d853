//! Faults and abuse: ends killed, stopped and starved, the rendezvous killed and stopped, strangers, crowds and attackers.
//!
//! Where a fault has a meaning on TCP, the same scenario runs there too and what the surviving program sees must be the same.
//! `ROPEWAY_TEST_BARE=1` runs everything on plain TCP to check the tests.

mod crowds;
mod daemon;
mod deaths;
mod hostile;
mod memory;
mod strangers;
