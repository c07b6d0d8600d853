//! Between two ends: listens at several addresses and passes every stream on.

use crate::is_set;
use ropeway_socket::api::{Listener, Stream};
use std::io::{self, Read, Write};
use std::net::Shutdown;

const CHUNK_BYTES: usize = 64 << 10;

/// Takes connections at all addresses of `at`, which have commas between them, and opens one to `to` for each. With `PEER_ONCE` each address takes one,
/// and is given back.
pub fn pass(at: &str, to: &str) -> io::Result<()> {
    let listeners: io::Result<Vec<Listener>> = at.split(',').map(Listener::bind).collect();
    let threads: Vec<_> = listeners?
        .into_iter()
        .map(|listener| {
            let to = to.to_owned();
            std::thread::spawn(move || take(listener, &to))
        })
        .collect();
    println!("{}", serde_json::json!({ "state": "ready" }));
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a panic"))?)
}

fn take(listener: Listener, to: &str) -> io::Result<()> {
    if is_set("PEER_ONCE") {
        let (near, _) = listener.accept()?;
        drop(listener);
        serve(near, Stream::connect(to)?);
        return Ok(());
    }
    loop {
        let (near, _) = listener.accept()?;
        let far = Stream::connect(to)?;
        std::thread::spawn(move || serve(near, far));
    }
}

/// Both ends know what must arrive: one that has it may be gone before it is told of the end.
fn serve(near: Stream, far: Stream) {
    let ends = std::thread::scope(|scope| {
        let back = scope.spawn(|| copy(&far, &near));
        [copy(&near, &far), back.join().unwrap_or_else(|_| Err(io::Error::other("a panic")))]
    });
    ends.into_iter().filter_map(Result::err).for_each(|error| eprintln!("peer: {error}"));
}

fn copy(mut from: &Stream, mut to: &Stream) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            count => to.write_all(&buffer[..count])?,
        }
    }
}
