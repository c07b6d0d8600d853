//! An echo server and its client.
//!
//!     echo serve 127.0.0.1:7000
//!     echo say 127.0.0.1:7000 hello

use ropeway_socket::{Listener, Stream};
use std::io::{self, Read, Write};

fn echo(stream: &Stream) -> io::Result<()> {
    let (mut from, mut to) = (stream, stream);
    io::copy(&mut from, &mut to).map(drop)
}

fn serve(address: &str) -> io::Result<()> {
    let listener = Listener::bind(address)?;
    println!("listening at {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept()?;
        std::thread::spawn(move || {
            if let Err(error) = echo(&stream) {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

fn say(address: &str, text: &str) -> io::Result<()> {
    let mut stream = Stream::connect(address)?;
    stream.write_all(text.as_bytes())?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer)?;
    println!("{}", String::from_utf8_lossy(&answer));
    Ok(())
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address),
        ["say", address, text] => say(address, text),
        _ => {
            eprintln!("usage: echo serve ADDRESS | echo say ADDRESS TEXT");
            std::process::exit(2);
        }
    }
}
