//! `libropeway`: Ropeway's sockets between hosts for programs in C (`include/ropeway.h`), and the nine calls of document 0 (`include/cdp.h`).
//!
//! `calls` and `cdp::calls` are what C sees: each is one line inside `guard`, which keeps panics from C and turns failures into `errno`. `memory`
//! is the only place that touches the program's pointers. Everything else is safe code over `ropeway_socket`. What does not live here: what the calls
//! do between hosts.

mod address;
mod calls;
mod cdp;
mod connection;
mod failure;
mod guard;
mod memory;
mod options;
mod socket;
mod table;
