//! `libropeway_preload.so`: the C library's entries through which a socket's bytes or readiness can pass, each a few lines
//! in front of `ropeway-socket`.
//!
//! A hook looks its descriptor up (one load) and, when the descriptor is not ours, goes straight on to the next library
//! that defines the name. `docs/interposition.md` lists every exported name and what its hook does; a test compares the
//! list with the library. What lives here: the names, their C types, `errno`, the order of calls around fork, exec and
//! signals. What does not: any decision about carriers.
//!
//! Hooks run in signal handlers, in children of vfork and before any constructor: they allocate nothing and take no lock
//! of their own.

#[macro_use]
mod hook;

mod exec;
mod exit;
mod fork;
mod image;
mod io;
mod lifecycle;
mod loading;
mod messages;
mod next;
mod options;
mod signal_api;
mod signals;
mod splice;
mod startup;
mod stdio;
mod syscall;
mod thread;
mod tls;
mod transfer;
mod unwind;
mod vfork;
mod wait;
mod whole_process;
