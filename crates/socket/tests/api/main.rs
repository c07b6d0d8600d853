//! Sockets between hosts as programs see them, compared with those of TCP where both should do the same.

mod errors;
mod event_loops;
mod lifetime;
mod messages;
mod parts;
mod routes;
mod streams;
mod workers;

use ropeway_socket::{Listener, Stream};
use std::io;
use std::time::Duration;

/// For what should happen, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(20);
/// For what should not happen.
const A_WHILE: Duration = Duration::from_millis(50);

/// Two ends of a stream.
fn pair() -> (Stream, Stream) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    connect(&listener)
}

fn connect(listener: &Listener) -> (Stream, Stream) {
    let client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.expect_err("it should fail").kind()
}

/// Waits until `is_so`, and fails with `what` if it never is.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
