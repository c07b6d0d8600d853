//! From result files to figures that can be compared: reading ([`read`]), gathering trials into cases ([`group`]), what a case's samples say ([`summary`]),
//! two sides against each other ([`mod@compare`]), models as tables ([`fits`]), and tables for other programs ([`csv`]).
//! Statistics are [`crate::stats`]'s.
//!
//! What does not live here: how figures are drawn (`plot`) and the page (`report`). The form of the files is [`crate::record`]'s.

pub mod compare;
pub mod csv;
pub mod fits;
pub mod group;
pub mod read;
pub mod select;
pub mod summary;
pub mod units;

pub use group::{Group, groups};
pub use read::{ReadError, Results};
pub use summary::{Side, Verdict};
