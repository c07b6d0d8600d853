//! What holds of several paths between hosts that trust each other holds between hosts with a key as well. Apart from `keyed`, some of whose tests measure the
//! memory of the whole program.
#![allow(clippy::duplicate_mod, reason = "the file has the world that it has as a program of its own")]

#[path = "routes.rs"]
mod routes;
