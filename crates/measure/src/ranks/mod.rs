//! Ranks: the processes (or threads) between which a transport moves messages, and the coordinator's hold on them.
//!
//! [`control`] is what both sides say, [`serve`] the rank's side, [`start`] how ranks come to run ([`job`]: by a launcher; [`copy`] brings the program to where it is not), [`group`] the coordinator's side. What does not live here: which trials are run.

pub mod control;
pub mod copy;
pub mod group;
pub mod job;
pub mod member;
pub mod serve;
pub mod start;
