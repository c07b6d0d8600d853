//! `ropeway ss`: the connections of all programs that run under Ropeway, with their carriers and reasons.
//!
//! [`source`] finds and reads the socket tables, [`view`] prints. Reading disturbs nobody: no process is stopped or asked.

mod source;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON: one array of connections (with -w one per line)
    #[arg(long)]
    json: bool,
    /// Look again every second and show rates, until interrupted
    #[arg(short, long)]
    watch: bool,
}

const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Clears a terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

pub fn main(args: &Args) -> ExitCode {
    match show(args) {
        Ok(code) => code,
        // `ropeway ss -w | head` ends like this.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropeway ss: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(args: &Args) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let mut former: Option<(view::Former, Instant)> = None;
    loop {
        let seen = source::look();
        let now = Instant::now();
        for problem in &seen.problems {
            eprintln!("ropeway ss: {problem}");
        }
        if !seen.anyone && !args.watch {
            eprintln!(
                "ropeway ss: no program runs under Ropeway here, and no daemon; start one with `ropeway run -- CMD`"
            );
            return Ok(ExitCode::FAILURE);
        }
        let since = former.as_ref().map(|(former, at)| (former, now.duration_since(*at)));
        let rows = view::rows(&seen.ends, since);
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&rows).map_err(io::Error::other)?)?;
        } else {
            let clear = if args.watch && out.is_terminal() { CLEAR } else { "" };
            write!(out, "{clear}{}", view::table(&rows))?;
        }
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        former = Some((view::Former::of(&seen.ends), now));
        std::thread::sleep(WATCH_PAUSE);
    }
}
