//! Printing for commands that end after one page of text.

use std::io::{self, Write};

/// Writes text to standard output. A reader that has gone (`| head`) is no error.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
