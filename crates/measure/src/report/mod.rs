//! Result files as one page of HTML that needs nothing else, and the figures that belong to them.
//!
//! [`mod@panels`] decides what is put next to what, [`figures`] and `tables` show it, [`mod@page`] puts the whole together, [`mod@reference`] has the values that are
//! printed in the source documents. No name from a file reaches the page without passing [`crate::plot::svg::escape`].

pub mod figures;
pub mod page;
pub mod panels;
pub mod reference;
mod tables;
mod words;

pub use page::{Options, page};
pub use panels::{Order, Panel, panels};
