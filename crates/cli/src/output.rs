//! Printing for commands that end after one page of text, and of what others have said.

use std::io::{self, Write};

/// The exit code where the command line cannot be meant, as clap has it.
pub const EXIT_USAGE: u8 = 2;

/// Writes text to standard output. A reader that has gone (`| head`) is no error.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// A line on standard error, of which it is no matter to the work whether somebody can read it: `eprintln!` ends the thread where the terminal or the pipe has gone.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::output::line(format_args!($($arg)*)) };
}

pub(crate) use tell;

pub fn line(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(format_args!("{text}\n"));
}

/// What a stranger says is printed without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
