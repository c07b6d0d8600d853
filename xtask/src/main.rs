//! The project's chores: `cargo xtask build | tidy | test | soak | demo | figures`. `make` calls them; `make help` lists what is worth calling.
#![forbid(unsafe_code)]

mod demo;
mod figures;
mod product;
mod soak;
mod test;
mod tidy;

use std::error::Error;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
usage: cargo xtask <chore>

  build                      what `make install` installs, into `product` of the target directory, compiled by what a training
                             run has shown of it (docs/building.md); GUIDED=no in the environment: without that
  tidy                       the rules no compiler knows: arrows between crates, file sizes, where `unsafe` may stand,
                             links in the documents, marks of unfinished work, paths of one machine
  test [OPTIONS] [-- ARGS]   build ropeway and its preload, run every suite, print one table and the totals
       --suite NAME[=PART]   only this suite, or its tests whose names contain PART; may be repeated (`--list` names them)
       --list                name the suites and stop
       --for SECONDS         again and again for so long, or until something fails
       --limit SECONDS       the time limit of each suite instead of its own
       -- ARGS               handed to the test programs: a part of a test's name, --nocapture, ...
  soak [OPTIONS]             real programs on the hosts of a box, while the network and the programs are disturbed at random (root only)
       --seconds N           with each carrier, instead of 120
       --seed S              the choices of an earlier run; odd: with a key
       --hosts H             2 to 16, instead of 4
       --carrier C           udp, packet or both, one after the other
       --keys on|off         whatever the seed
  demo                       the same unmodified programs over TCP and over Ropeway, in turn, in one table
  figures [OPTIONS]          the table of speed, with the tools that people use; keeps the raw results in `results/`
       --case NAME           only this case; may be repeated (`--list` names them)
       --rounds N            rounds of each arm, instead of 5
       --out DIR             keep the results there
       --show DIR            measure nothing, print the table of these results
       --list                name the cases and stop";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // What is behind `--` is for the test programs.
    if args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let outcome = match args.split_first() {
        Some((chore, [])) if chore == "build" => product::install_ready(),
        Some((chore, rest)) if chore == "tidy" && rest.is_empty() => tidy::run(),
        Some((chore, rest)) if chore == "test" => test::run(rest),
        Some((chore, rest)) if chore == "soak" => soak::run(rest),
        Some((chore, rest)) if chore == "demo" && rest.is_empty() => demo::run(),
        Some((chore, rest)) if chore == "figures" => figures::run(rest),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
