//! `ropeway tune`: shows and changes the tunables of running engines.

use std::process::ExitCode;

use ropeway_engine::control::{self, Answer, Question, Value};

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Only the engine of this process; without it, all of this user (root: of all users) in this network namespace
    #[arg(long, global = true)]
    pid: Option<u32>,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Name all tunables with unit, range, default and cost; the values of engines if some run
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one tunable of every engine
    Get { name: String },
    /// Change one tunable, for what is decided from now on
    Set { name: String, value: String },
}

pub fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropeway tune: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let engines = engines(args.pid)?;
    match &args.command {
        Command::List { json } => list(&engines, *json),
        Command::Get { name } => get(&engines, name),
        Command::Set { name, value } => set(&engines, name, value),
    }
}

/// The addresses of the engines meant. Those of other users answer root only.
fn engines(pid: Option<u32>) -> Result<Vec<String>, String> {
    let names = control::names().map_err(|error| format!("cannot look for engines: {error}"))?;
    let own = rustix::process::geteuid();
    let answers = |name: &String| own.is_root() || user(name) == own.as_raw().to_string();
    let belongs = |name: &String| pid.is_none_or(|pid| process(name) == pid.to_string());
    let found: Vec<String> = names.into_iter().filter(|name| answers(name) && belongs(name)).collect();
    match pid {
        Some(pid) if found.is_empty() => Err(format!(
            "process {pid} has no engine of this user here; `ropeway ss --counters` lists engines, and they belong to a network namespace"
        )),
        _ => Ok(found),
    }
}

/// The user of an engine, out of its address.
fn user(name: &str) -> &str {
    name.strip_prefix(control::PREFIX).and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

/// The process of an engine, out of its address.
fn process(name: &str) -> &str {
    name.rsplit('/').next().and_then(|last| last.split('.').next()).unwrap_or_default()
}

fn values(engine: &str) -> Result<Vec<Value>, String> {
    match control::ask(engine, &Question::Tunables) {
        Ok(Answer::Tunables(values)) => Ok(values),
        Ok(Answer::Error(error)) => Err(error),
        Ok(other) => Err(format!("unexpected answer {other:?}")),
        Err(error) => Err(format!("{engine}: {error}")),
    }
}

/// One of the values a tunable can have, as people write it.
fn text(tunable: &Value, value: u64) -> String {
    tunable.words.get(value as usize).cloned().unwrap_or_else(|| value.to_string())
}

fn with(unit: &str, value: String) -> String {
    if unit.is_empty() { value } else { format!("{value} {unit}") }
}

fn list(engines: &[String], json: bool) -> Result<(), String> {
    let known = engines.first().map_or_else(|| Ok(control::usual_tunables()), |engine| values(engine))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&known).map_err(|error| error.to_string())?);
        return Ok(());
    }
    for value in &known {
        let Value { name, unit, words, usual, least, most, about, .. } = value;
        let range = if words.is_empty() { format!("{least} to {most}") } else { words.join(", ") };
        println!(
            "{name} = {}   (default {}, {range})\n    {about}",
            with(unit, text(value, value.value)),
            text(value, *usual)
        );
    }
    match engines {
        [] => println!("\nNo engine runs here: these are the defaults."),
        [one] => println!("\nValues of process {}.", process(one)),
        [first, others @ ..] => println!(
            "\nValues of process {}; {} more engines run, see `ropeway tune get NAME`.",
            process(first),
            others.len()
        ),
    }
    Ok(())
}

fn get(engines: &[String], name: &str) -> Result<(), String> {
    if !control::usual_tunables().iter().any(|value| value.name == name) {
        return Err(format!("there is no tunable `{name}`; `ropeway tune list` names them all"));
    }
    if engines.is_empty() {
        return Err("no engine runs here; `ropeway tune list` shows the defaults".into());
    }
    for engine in engines {
        for value in values(engine)?.iter().filter(|value| value.name == name) {
            println!("{}\t{}\t{}", process(engine), value.name, with(&value.unit, text(value, value.value)));
        }
    }
    Ok(())
}

fn set(engines: &[String], name: &str, value: &str) -> Result<(), String> {
    if engines.is_empty() {
        return Err("no engine runs here; set ROPEWAY_TUNE for programs that are started".into());
    }
    for engine in engines {
        let question = Question::Set { name: name.into(), value: value.into() };
        match control::ask(engine, &question).map_err(|error| format!("{engine}: {error}"))? {
            Answer::Set { before } => println!("{}\t{name}\t{before} -> {value}", process(engine)),
            Answer::Error(error) => return Err(error),
            other => return Err(format!("unexpected answer {other:?}")),
        }
    }
    Ok(())
}
