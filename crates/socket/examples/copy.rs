//! Copies a file to another host, and shows how far it is.
//!
//!     copy receive 127.0.0.1:7001 there
//!     copy send here 127.0.0.1:7001
//!
//! First the length of the file goes over, in 8 bytes, then its content; the receiver answers with one byte when it has written it all. The example in C
//! speaks the same. (`ropeway cp` does more: it checks what arrived, and goes on after a cut.)

use ropeway_socket::{Listener, Stream};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 256 * 1024;
const BAR_WIDTH: usize = 40;
/// Often enough to see it move.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// A bar on standard error.
struct Progress {
    total: u64,
    begin: Instant,
    shown: Option<Instant>,
}

impl Progress {
    fn new(total: u64) -> Progress {
        Progress { total, begin: Instant::now(), shown: None }
    }

    fn show(&mut self, done: u64) {
        let now = Instant::now();
        if done < self.total && self.shown.is_some_and(|shown| now - shown < SHOW_EVERY) {
            return;
        }
        self.shown = Some(now);
        let part = if self.total == 0 { 1.0 } else { done as f64 / self.total as f64 };
        let bar = "#".repeat((part * BAR_WIDTH as f64) as usize);
        let rate = done as f64 / 1e6 / self.begin.elapsed().as_secs_f64().max(1e-9);
        let end = if done == self.total { "\n" } else { "" };
        eprint!("\r[{bar:BAR_WIDTH$}] {:3.0} %  {rate:.1} MB/s{end}", (part * 100.0).floor());
    }
}

/// Moves exactly `total` bytes.
fn pump(from: &mut impl Read, to: &mut impl Write, total: u64) -> io::Result<()> {
    let mut progress = Progress::new(total);
    let mut block = vec![0; BLOCK_BYTES];
    let mut done = 0;
    while done < total {
        let wanted = block.len().min(usize::try_from(total - done).unwrap_or(usize::MAX));
        let count = from.read(&mut block[..wanted])?;
        if count == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, format!("it ended after {done} of {total} bytes")));
        }
        to.write_all(&block[..count])?;
        done += count as u64;
        progress.show(done);
    }
    Ok(())
}

fn send(path: &str, address: &str) -> io::Result<()> {
    let mut file = File::open(path)?;
    let total = file.metadata()?.len();
    let mut stream = Stream::connect(address)?;
    stream.write_all(&total.to_be_bytes())?;
    pump(&mut file, &mut stream, total)?;
    // The word that it has everything.
    stream.read_exact(&mut [0])
}

fn receive(address: &str, path: &str) -> io::Result<()> {
    let listener = Listener::bind(address)?;
    let mut file = File::create(path)?;
    let (mut stream, _) = listener.accept()?;
    let mut total = [0; 8];
    stream.read_exact(&mut total)?;
    pump(&mut stream, &mut file, u64::from_be_bytes(total))?;
    stream.write_all(&[1])
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["send", path, address] => send(path, address),
        ["receive", address, path] => receive(address, path),
        _ => {
            eprintln!("usage: copy send FILE ADDRESS | copy receive ADDRESS FILE");
            std::process::exit(2);
        }
    }
}
