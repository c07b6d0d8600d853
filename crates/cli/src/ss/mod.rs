//! `ropeway ss`: the connections of all programs that run under Ropeway, with their carriers and reasons; and what engines have counted.
//!
//! [`source`] finds and reads the socket tables, [`wire`] asks the engines of programs that use the wire protocol, [`view`] prints. Nobody is stopped.

mod source;
mod view;
mod wire;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::output::{printable, tell};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "K, M, G and T behind numbers of bytes are 1024, 1024 x K, and so on; a dash stands for what cannot be known.\n\
                  What every column says, and every reason for TCP with what to do about it: ropeway(1) and docs/ss.md"
)]
pub struct Args {
    /// Print JSON: one array of connections, or of engines (with -w one per line)
    #[arg(long)]
    json: bool,
    /// Instead of connections: what the engines of programs that use the wire protocol have counted, of their links, their gates and their packets
    #[arg(long)]
    counters: bool,
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
            tell!("ropeway ss: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(args: &Args) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let mut former = None::<Former>;
    loop {
        let found = if args.counters { counters(args, &mut out) } else { connections(args, &mut out, &mut former) }?;
        out.flush()?;
        if !args.watch {
            return Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        std::thread::sleep(WATCH_PAUSE);
    }
}

fn clear(args: &Args) -> &'static str {
    if args.watch && io::stdout().is_terminal() { CLEAR } else { "" }
}

/// Of nobody there is nothing to print; a program that reads JSON gets an array all the same.
fn nothing(args: &Args, out: &mut impl Write) -> io::Result<bool> {
    if args.json {
        writeln!(out, "[]")?;
    }
    Ok(false)
}

fn report(problems: &[String]) {
    problems.iter().for_each(|problem| tell!("ropeway ss: {}", printable(problem)));
}

/// What the look before saw, and when.
struct Former {
    carried: view::Former,
    wires: wire::Former,
    at: Instant,
}

/// Prints all connections, and leaves what the next look compares with. `false`: there is nobody who could have some, not even a daemon.
fn connections(args: &Args, out: &mut impl Write, former: &mut Option<Former>) -> io::Result<bool> {
    let (seen, wires) = (source::look(), wire::look());
    let now = Instant::now();
    report(&seen.problems);
    report(&wires.problems);
    if !seen.anyone && wires.engines.is_empty() && !args.watch {
        // Who does not answer is there all the same.
        if wires.problems.is_empty() {
            tell!("ropeway ss: no program runs under Ropeway here, and no daemon; start one with `ropeway run -- CMD`");
        }
        return nothing(args, out);
    }
    let since = former.as_ref().map(|former| (former, now.duration_since(former.at)));
    let rows = view::rows(&seen.ends, since.map(|(former, since)| (&former.carried, since)));
    let wire_rows = wire::rows(&wires.engines, since.map(|(former, since)| (&former.wires, since)));
    if args.json {
        let mut all: Vec<serde_json::Value> =
            rows.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(io::Error::other)?;
        all.extend(wire::objects(&wire_rows));
        writeln!(out, "{}", serde_json::Value::Array(all))?;
    } else {
        let (carried, wires) = (view::table(&rows), wire::table(&wire_rows));
        let carried = if rows.is_empty() && !wires.is_empty() { String::new() } else { carried };
        let gap = if carried.is_empty() || wires.is_empty() { "" } else { "\n" };
        if rows.is_empty() && wires.is_empty() && !args.watch {
            tell!("ropeway ss: no connections now");
        }
        write!(out, "{}{carried}{gap}{wires}", clear(args))?;
    }
    *former = Some(Former { carried: view::Former::of(&seen.ends), wires: wire::Former::of(&wires.engines), at: now });
    Ok(true)
}

/// Prints what engines have counted. `false`: there is none.
fn counters(args: &Args, out: &mut impl Write) -> io::Result<bool> {
    let wires = wire::look();
    report(&wires.problems);
    if wires.engines.is_empty() && !args.watch {
        if wires.problems.is_empty() {
            tell!("ropeway ss: no engine runs here; programs have one as soon as they use the wire protocol");
        }
        return nothing(args, out);
    }
    if args.json {
        writeln!(out, "{}", serde_json::Value::Array(wire::counted(&wires.engines)))?;
    } else {
        write!(out, "{}{}", clear(args), wire::counters(&wires.engines))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use ropeway_socket::reason::Reason;

    #[test]
    fn the_documents_explain_every_reason_and_column() {
        let document = include_str!("../../../../docs/ss.md");
        let page = include_str!("../../../../docs/man/ropeway.1").replace("\\-", "-");
        for reason in Reason::ALL {
            let (name, sentence) = (reason.name(), reason.explain());
            assert!(document.contains(&format!("| `{name}` | {sentence}")), "docs/ss.md: {name}");
            assert!(page.contains(&format!(".B {name}\n{sentence}")), "ropeway(1): {name}");
        }
        let words = |text: &str| text.split([' ', '\n']).map(str::to_owned).collect::<Vec<_>>();
        let titles = super::view::table(&[]) + &super::wire::HEAD.join(" ");
        for title in words(&titles).iter().filter(|title| !title.is_empty()) {
            assert!(document.contains(title.as_str()), "docs/ss.md: {title}");
        }
    }
}
