//! The `ropeway` program: runs unmodified programs over shared memory, and shows what happens to their connections.
//!
//! Each subcommand has a module of its own; this file only names them. What does not live here: anything that runs inside
//! a program (that is `libropeway_preload.so`).
#![forbid(unsafe_code)]

mod bench;
mod boxes;
mod cgroup;
mod config;
mod cp;
mod daemon;
mod doctor;
mod gateway;
mod key;
mod output;
mod rlimit;
mod run;
mod signals;
mod ss;
mod tune;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser, Debug)]
#[command(
    name = "ropeway",
    version,
    about = "Moves same-host TCP connections of unmodified programs to shared memory, and data between hosts over a protocol of its own"
)]
#[command(max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Run a program with its same-host TCP connections over shared memory
    Run(run::Args),
    /// Start, ask or stop the rendezvous daemon (`ropeway run` starts it by itself)
    Daemon(daemon::Args),
    /// List the connections of all programs that run under Ropeway
    Ss(ss::Args),
    /// Copy files or standard input to another host, checked and resumable
    Cp(cp::Args),
    /// Forward packets between hosts that do not reach each other
    Gateway(gateway::Args),
    /// Show and change the tunables of programs that use the wire protocol
    Tune(tune::Args),
    /// Say whether this machine, or a program, can be accelerated, and if not why
    Doctor(doctor::Args),
    /// Make, use and take away a cluster in a box: hosts in network namespaces, joined by a switch
    Box(boxes::Args),
    /// Make or check the cluster's key, without which no stranger joins, reads or resets
    Key(key::Args),
    /// Measure Ropeway beside TCP, AF_UNIX and the limits of this machine
    Bench(Box<bench::Args>),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Where nobody can be told, the exit code tells.
            let _ = error.print();
            return refusal(&error, std::env::args_os());
        }
    };
    match cli.command {
        Command::Run(args) => run::main(args),
        Command::Daemon(args) => daemon::main(&args),
        Command::Ss(args) => ss::main(&args),
        Command::Cp(args) => cp::main(&args),
        Command::Gateway(args) => gateway::main(&args),
        Command::Tune(args) => tune::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Box(args) => boxes::main(&args),
        Command::Key(args) => key::main(&args),
        Command::Bench(args) => bench::main(*args),
    }
}

/// The exit code when this is no command line, or only asks for help. Of what becomes another program it must be none of that one's.
fn refusal(error: &clap::Error, words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut words = words.skip(1);
    let becomes_another = match words.next() {
        Some(word) if word == "box" => subcommand_of_box(words).is_some_and(|word| word == "exec"),
        word => word.is_some_and(|word| word == "run"),
    };
    match error.use_stderr() {
        true if becomes_another => ExitCode::from(run::EXIT_ROPEWAY),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}

/// The name of a box may stand in front of it.
fn subcommand_of_box(mut words: impl Iterator<Item = OsString>) -> Option<OsString> {
    loop {
        let word = words.next()?;
        if word == "--name" {
            words.next();
        } else if !word.to_string_lossy().starts_with("--name=") {
            return Some(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn wrong_usage_of_what_becomes_another_program_is_none_of_its_exit_codes() {
        for (line, code) in [
            ("ropeway run", 125),
            ("ropeway box exec", 125),
            ("ropeway box exec --name", 125),
            ("ropeway box --name a exec h1", 125),
            ("ropeway box --name=a exec h1", 125),
            ("ropeway box --name exec up", 2),
            ("ropeway run --no-deamon redis-server", 125),
            ("ropeway box exec h1 -x", 125),
            ("ropeway run --help", 0),
            ("ropeway box up --hosts x", 2),
            ("ropeway nonsense", 2),
            ("ropeway --version", 0),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(refusal(&error, line.split(' ').map(OsString::from)), ExitCode::from(code), "{line}");
        }
    }

    #[test]
    fn options_behind_a_program_are_its_own() {
        for line in ["ropeway run --no-daemon redis-server --port 7 --strict", "ropeway run -- -odd --stats"] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert!(format!("{cli:?}").contains("strict: false, profile: None"), "{cli:?}");
        }
        let own = Cli::try_parse_from("ropeway box exec h1 ip -br addr --name".split(' ')).expect("a command");
        assert!(format!("{own:?}").contains(r#"["ip", "-br", "addr", "--name"]"#), "{own:?}");
        Cli::try_parse_from("ropeway doctor redis-server -x".split(' ')).expect("a command");
    }

    /// With the words that lead to it.
    fn check(command: &mut clap::Command, path: &str) {
        let help = command.render_long_help().to_string();
        assert!(!help.contains("]("), "{path} --help has a link of rustdoc:\n{help}");
        let dumb: Vec<_> =
            command.get_arguments().filter(|arg| arg.get_help().is_none() && !arg.is_hide_set()).collect();
        assert!(dumb.is_empty(), "{path} --help says nothing of {dumb:?}");
        for subcommand in command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set()) {
            let path = format!("{path} {}", subcommand.get_name());
            check(subcommand, &path);
        }
    }

    #[test]
    fn help_says_something_of_every_argument_in_words_for_a_terminal() {
        let mut command = Cli::command();
        command.build();
        check(&mut command, "ropeway");
    }
}
