//! From result files to figures that can be compared: reading ([`read`]), gathering trials into cases ([`group`]), what a case's samples say ([`summary`]),
//! two sides against each other ([`mod@compare`]), and tables for other programs ([`csv`]).
//!
//! What does not live here: how figures are drawn (`plot`) and the page (`report`). The form of the files is [`crate::record`]'s.

pub mod compare;
pub mod csv;
pub mod group;
pub mod read;
pub mod select;
pub mod summary;
pub mod units;

pub use group::{Group, groups};
pub use read::{ReadError, Results};
pub use summary::{Distribution, Summary, Verdict};
