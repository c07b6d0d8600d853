//! `ropeway tune`: shows and changes the tunables of running engines.

use std::io::ErrorKind;
use std::process::ExitCode;

use ropeway_engine::control::{self, Answer, Question, Round, Value};

use crate::output;
use crate::output::tell;

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
    Get {
        /// The tunable, as `list` names it
        name: String,
    },
    /// Change one tunable, for what is decided from now on
    Set {
        /// The tunable, as `list` names it
        name: String,
        /// A number in its unit, or one of its words
        value: String,
    },
}

pub fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(mut problems) => {
            // Of many that were not asked there is one reason.
            problems.dedup();
            problems.iter().for_each(|problem| tell!("ropeway tune: {}", output::printable(problem)));
            ExitCode::FAILURE
        }
    }
}

/// What a program that reads JSON gets where nobody has said anything.
const NO_VALUES: &str = "[]\n";

/// What was not done, a line for each engine that is concerned.
type Problems = Vec<String>;

fn run(args: &Args) -> Result<(), Problems> {
    let engines = engines(args.pid).map_err(|problem| vec![problem]);
    if let (Err(_), Command::List { json: true }) = (&engines, &args.command) {
        written(NO_VALUES).map_err(|problem| vec![problem])?;
    }
    let engines = engines?;
    let round = &mut Round::default();
    match &args.command {
        Command::List { json } => list(round, &engines, *json),
        Command::Get { name } => get(round, &engines, name),
        Command::Set { name, value } => set(round, &engines, name, value),
    }
}

/// The addresses of the engines meant. Those of other users answer root only.
fn engines(pid: Option<u32>) -> Result<Vec<String>, String> {
    let names = control::names_that_answer().map_err(|error| format!("cannot look for engines: {error}"))?;
    let belongs = |name: &String| pid.is_none_or(|pid| process(name) == pid.to_string());
    let found: Vec<String> = names.into_iter().filter(belongs).collect();
    match pid {
        Some(pid) if found.is_empty() => Err(format!(
            "process {pid} has no engine of this user here; `ropeway ss --counters` lists engines, and they belong to a network namespace"
        )),
        _ => Ok(found),
    }
}

/// The process of an engine, out of its address.
fn process(name: &str) -> &str {
    name.rsplit('/').next().and_then(|last| last.split('.').next()).unwrap_or_default()
}

/// What an engine answers; `None` if it has ended since it was found. Engines of others are not asked, so who closes without a word is ending.
fn ask(round: &mut Round, engine: &str, question: &Question) -> Result<Option<Answer>, String> {
    match round.ask(engine, question) {
        Ok(Answer::Error(error)) => Err(format!("process {}: {error}", process(engine))),
        Ok(answer) => Ok(Some(answer)),
        Err(error) if control::is_absence(&error) => Ok(None),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(format!("process {} does not answer", process(engine)))
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(control::unasked(engine, &error)),
        Err(error) => Err(format!("process {}: {error}", process(engine))),
    }
}

/// Asks all engines, whatever some of them say, and shows the text of what each answers. `nobody`: the problem, if none is there any more.
fn ask_all(
    round: &mut Round,
    engines: &[String],
    question: &Question,
    nobody: &str,
    text: impl Fn(&str, Answer) -> Result<String, String>,
) -> Result<(), Problems> {
    let mut problems = Problems::new();
    let mut is_anybody_there = false;
    for engine in engines {
        let answer = ask(round, engine, question);
        is_anybody_there |= !matches!(answer, Ok(None));
        let text = answer.and_then(|answer| answer.map_or(Ok(String::new()), |answer| text(process(engine), answer)));
        problems.extend(text.and_then(|text| written(&text)).err());
    }
    if !is_anybody_there {
        problems.push(nobody.into());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Lines that repeat what engines say, who may be anybody where root asks.
fn written(text: &str) -> Result<(), String> {
    let text: String = text.split('\n').map(printable_line).collect::<Vec<_>>().join("\n");
    output::show(&text).map_err(|error| format!("cannot write: {error}"))
}

/// With the gaps between columns.
fn printable_line(line: &str) -> String {
    line.split('\t').map(output::printable).collect::<Vec<_>>().join("\t")
}

fn unexpected(process: &str, answer: &Answer) -> String {
    format!("process {process}: unexpected answer {answer:?}")
}

/// One of the values a tunable can have, as people write it.
fn text(tunable: &Value, value: u64) -> String {
    tunable.words.get(value as usize).cloned().unwrap_or_else(|| value.to_string())
}

fn with(unit: &str, value: String) -> String {
    if unit.is_empty() { value } else { format!("{value} {unit}") }
}

/// The first engine that tells its values, with those behind it; the values; and why others before it did not. Those that ended are passed over, and if there is nobody else there are
/// neither engines nor values.
fn first_values<'a>(round: &mut Round, engines: &'a [String]) -> (&'a [String], Vec<Value>, Problems) {
    let mut problems = Problems::new();
    for (place, engine) in engines.iter().enumerate() {
        match ask(round, engine, &Question::Tunables) {
            Ok(Some(Answer::Tunables(values))) => return (&engines[place..], values, problems),
            Ok(Some(answer)) => problems.push(unexpected(process(engine), &answer)),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    (&[], Vec::new(), problems)
}

fn list(round: &mut Round, engines: &[String], json: bool) -> Result<(), Problems> {
    let (engines, mut values, mut problems) = first_values(round, engines);
    if engines.is_empty() && problems.is_empty() {
        // Else somebody has values, which need not be these.
        values = control::usual_tunables();
    }
    let text = match (values.is_empty(), json) {
        (_, true) => as_json(&values),
        (false, false) => Ok(as_list(engines, &values)),
        (true, false) => Ok(String::new()),
    };
    problems.extend(text.and_then(|text| written(&text)).err());
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn as_json(values: &[Value]) -> Result<String, String> {
    serde_json::to_string_pretty(values).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// The values of the first of these engines, or of none.
fn as_list(engines: &[String], values: &[Value]) -> String {
    let about = |value: &Value| {
        let Value { name, unit, words, usual, least, most, about, cost, .. } = value;
        let range =
            if words.is_empty() { format!("{least} to {most}") } else { format!("one of: {}", words.join(", ")) };
        let (now, usual) = (with(unit, text(value, value.value)), text(value, *usual));
        format!("{name} = {now}   (default {usual}; {range})\n    {about}\n    {cost}\n")
    };
    let whose = match engines {
        [] => "No engine runs here: these are the defaults.".to_owned(),
        [one] => format!("Values of process {}.", process(one)),
        [first, others @ ..] => {
            let (process, more) = (process(first), others.len());
            format!("Values of process {process}; {more} more engines run, see `ropeway tune get NAME`.")
        }
    };
    values.iter().map(about).chain([format!("\n{whose}\n")]).collect()
}

fn get(round: &mut Round, engines: &[String], name: &str) -> Result<(), Problems> {
    if !control::usual_tunables().iter().any(|value| value.name == name) {
        return Err(vec![format!("there is no tunable `{name}`; `ropeway tune list` names them all")]);
    }
    let nobody = "no engine runs here; `ropeway tune list` shows the defaults";
    ask_all(round, engines, &Question::Tunables, nobody, |process, answer| match answer {
        Answer::Tunables(values) => {
            let line = |value: &Value| format!("{process}\t{name}\t{}\n", with(&value.unit, text(value, value.value)));
            Ok(values.iter().filter(|value| value.name == name).map(line).collect())
        }
        other => Err(unexpected(process, &other)),
    })
}

fn set(round: &mut Round, engines: &[String], name: &str, value: &str) -> Result<(), Problems> {
    let nobody = "no engine runs here; set ROPEWAY_TUNE for programs that are started";
    let question = Question::Set { name: name.into(), value: value.into() };
    ask_all(round, engines, &question, nobody, |process, answer| match answer {
        Answer::Set { before } => Ok(format!("{process}\t{name}\t{before} -> {value}\n")),
        other => Err(unexpected(process, &other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_engine::{Config, Engine, Options};
    use std::cell::RefCell;

    /// An engine and its address. Other tests of this process have some, too: this one is known by a value of its own.
    fn engine() -> (Engine, String) {
        const LEASE_US: u64 = 12_321;
        let config = Config { lease_ns: LEASE_US * 1000, ..Config::default() };
        let engine = Engine::new(&Options { config, ..Options::default() }).unwrap();
        let own = std::process::id().to_string();
        let is_it = |name: &String| {
            let answer = ask(&mut Round::default(), name, &Question::Tunables);
            matches!(answer, Ok(Some(Answer::Tunables(values))) if values.iter().any(|value| value.value == LEASE_US))
        };
        let name = control::names().unwrap().into_iter().filter(|name| process(name) == own).find(is_it);
        (engine, name.expect("it is listed"))
    }

    #[test]
    fn what_an_engine_says_gives_the_terminal_no_orders() {
        assert_eq!(printable_line("1\tlease\t\x1b[2J -> 2"), "1\tlease\t?[2J -> 2");
    }

    #[test]
    fn who_ended_since_it_was_listed_is_left_out_and_who_refuses_is_named_while_the_others_are_asked() {
        let (engine, name) = engine();
        let round = &mut Round::default();
        let gone = name.replace(&format!("/{}.", std::process::id()), "/1.");
        let all = [gone.clone(), name.clone(), gone.clone()];
        let asked = RefCell::new(Vec::new());
        let show = |process: &str, _| {
            asked.borrow_mut().push(process.to_owned());
            Ok(String::new())
        };
        ask_all(round, &all, &Question::Tunables, "nobody", show).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(asked.take(), std::slice::from_ref(&own));
        let (engines, values, problems) = first_values(round, &all);
        assert_eq!((engines, problems), (&all[1..], Problems::new()));
        assert_eq!(values.len(), control::usual_tunables().len());

        let bad = Question::Set { name: "lease".into(), value: "1".into() };
        let problems = ask_all(round, &[name.clone(), name], &bad, "nobody", show).unwrap_err();
        assert_eq!(problems.len(), 2, "both were asked");
        assert!(problems.iter().all(|problem| problem.starts_with(&format!("process {own}: lease takes "))));
        assert_eq!(ask_all(round, &[gone], &Question::Tunables, "nobody", show).unwrap_err(), ["nobody"]);
        drop(engine);
    }
}
