//! Sends messages to and fro and says how long they take, one way.
//!
//!     pingpong serve 127.0.0.1:7002
//!     pingpong measure 127.0.0.1:7002 [BYTES [COUNT]]

use ropeway_socket::{MessageListener, MessageSocket};
use std::io;
use std::time::Instant;

/// One client, until it is through.
fn serve(address: &str) -> io::Result<()> {
    let listener = MessageListener::bind(address)?;
    println!("listening at {}", listener.local_addr()?);
    let (socket, _) = listener.accept()?;
    let mut message = Vec::new();
    while socket.recv_vec(&mut message)? {
        socket.send(&message)?;
    }
    Ok(())
}

fn measure(address: &str, bytes: usize, count: usize) -> io::Result<()> {
    let socket = MessageSocket::connect(address)?;
    let mut message = vec![0; bytes];
    let mut samples_us = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        socket.send(&message)?;
        if socket.recv(&mut message)? != Some(bytes) {
            return Err(io::Error::other("the answer is not as long as the question"));
        }
        samples_us.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    samples_us.sort_by(f64::total_cmp);
    print!("{count} messages of {bytes} bytes, one way in us:");
    for percentile in [50.0, 90.0, 99.0, 99.9] {
        print!("  p{percentile} {:.2}", samples_us[((count - 1) as f64 * percentile / 100.0) as usize]);
    }
    println!();
    Ok(())
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| args.get(at).map_or(Some(usual), |text| text.parse().ok());
    match (args.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), number(2, 64), number(3, 10_000)) {
        (["serve", address], ..) => serve(address),
        (["measure", address, rest @ ..], Some(bytes), Some(count @ 1..)) if rest.len() <= 2 => {
            measure(address, bytes, count)
        }
        _ => {
            eprintln!("usage: pingpong serve ADDRESS | pingpong measure ADDRESS [BYTES [COUNT]]");
            std::process::exit(2);
        }
    }
}
