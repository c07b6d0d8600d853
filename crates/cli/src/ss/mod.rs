//! `ropeway ss`: the connections of all programs that run under Ropeway, with their carriers and reasons.
//!
//! [`source`] finds and reads the socket tables, [`wire`] asks the engines of programs that use the wire protocol, [`view`] prints. Nobody is stopped.

mod source;
mod view;
mod wire;

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
        let (seen, wires) = (source::look(), wire::look());
        let now = Instant::now();
        for problem in seen.problems.iter().chain(&wires.problems) {
            eprintln!("ropeway ss: {problem}");
        }
        if !seen.anyone && wires.engines.is_empty() && !args.watch {
            eprintln!(
                "ropeway ss: no program runs under Ropeway here, and no daemon; start one with `ropeway run -- CMD`"
            );
            return Ok(ExitCode::FAILURE);
        }
        let since = former.as_ref().map(|(former, at)| (former, now.duration_since(*at)));
        let rows = view::rows(&seen.ends, since);
        if args.json {
            let mut all: Vec<serde_json::Value> =
                rows.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(io::Error::other)?;
            all.extend(wire::rows(&wires.engines));
            writeln!(out, "{}", serde_json::Value::Array(all))?;
        } else {
            let clear = if args.watch && out.is_terminal() { CLEAR } else { "" };
            let (carried, wires) = (view::table(&rows), wire::table(&wires.engines));
            let carried = if rows.is_empty() && !wires.is_empty() { String::new() } else { carried };
            let gap = if carried.is_empty() || wires.is_empty() { "" } else { "\n" };
            write!(out, "{clear}{carried}{gap}{wires}")?;
        }
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        former = Some((view::Former::of(&seen.ends), now));
        std::thread::sleep(WATCH_PAUSE);
    }
}
