//! `cargo xtask figures`: the table of speed, measured with the tools that people use, TCP and Ropeway in turn.
//!
//! Every case runs in a process of its own under a [`guard`], so that a case that fails or is interrupted leaves nothing running and costs
//! no other case. What a case measured stays as one JSON file in `results/<date>-<commit>/`; the table is made from those files alone.

mod agreement;
mod bed;
mod builtin;
pub mod cases;
mod guard;
mod hand_off;
mod idle;
mod ports;
pub mod row;
pub mod stored;
mod tools;
mod web;
mod wire;

use crate::product::Build;
use crate::{Result, product};
use bed::Bed;
use cases::Case;
use guard::Product;
use ropeway_testkit::{env, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use stored::{Outcome, Stored};

/// Rounds of each arm. Five give a median that one disturbed round cannot move, and keep a case below 15 s.
const ROUNDS: u32 = 5;

/// What the arguments ask for.
struct Options {
    cases: Vec<String>,
    rounds: u32,
    out: Option<PathBuf>,
    show: Option<PathBuf>,
    list: bool,
    /// Internal: the process that guards one case, and the process that measures it.
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Whole,
    Guard,
    Case,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options =
            Self { cases: Vec::new(), rounds: ROUNDS, out: None, show: None, list: false, role: Role::Whole };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--case" => options.cases.push(value()?.clone()),
                "--rounds" => {
                    options.rounds =
                        value()?.parse().ok().filter(|n| *n > 0).ok_or("--rounds needs a number above 0")?;
                }
                "--out" => options.out = Some(PathBuf::from(value()?)),
                "--show" => options.show = Some(PathBuf::from(value()?)),
                "--list" => options.list = true,
                guard::GUARD_ARG => options.role = Role::Guard,
                guard::CASE_ARG => options.role = Role::Case,
                _ => {
                    return Err(format!(
                        "figures does not know {arg}: --case NAME, --rounds N, --out DIR, --show DIR, --list"
                    )
                    .into());
                }
            }
        }
        Ok(options)
    }
}

/// Measures the chosen cases and prints the table; `false` when a figure falls short or a case gave none.
pub fn run(args: &[String]) -> Result<bool> {
    let options = Options::parse(args)?;
    match (options.role, options.cases.as_slice(), &options.out) {
        (Role::Whole, ..) => measure_all(&options),
        (Role::Guard, [case], Some(out)) => guard::watch(case, options.rounds, out),
        (Role::Case, [case], Some(out)) => {
            measure_one(case, options.rounds).and_then(|stored| stored.write(out)).map(|()| true)
        }
        _ => Err("this form of the command is for internal use".into()),
    }
}

fn measure_all(options: &Options) -> Result<bool> {
    if options.list {
        cases::ALL.iter().for_each(|case| println!("{:<16} {}", case.name, case.about));
        return Ok(true);
    }
    if let Some(dir) = &options.show {
        let table = stored::table(dir)?;
        print!("{}", table.text);
        return Ok(table.all_reached);
    }
    let mut chosen = Vec::new();
    for name in &options.cases {
        chosen.push(cases::find(name)?);
    }
    if chosen.is_empty() {
        chosen = cases::ALL.iter().collect();
    }
    let out = match &options.out {
        Some(dir) => dir.clone(),
        None => env::workspace_root().join("results").join(format!("{}-{}", today()?, commit())),
    };
    let build = Build::installed();
    if matches!(build, Build::Plain) {
        product::plain_example(product::WIRE_PACKAGE, product::WIRE)?;
    }
    measure_into(&out, &chosen, options.rounds, &build)?;
    let table = stored::table(&out)?;
    std::fs::write(out.join("table.md"), &table.text).map_err(|e| format!("cannot write the table: {e}"))?;
    print!("{}", table.text);
    Ok(table.all_reached)
}

/// Builds the product and measures the cases; what each gave, or why it gave nothing, is kept in `out`.
pub fn measure_into(out: &Path, chosen: &[&Case], rounds: u32, build: &Build) -> Result<()> {
    let product = Product { dir: build.make()?, description: format!("{} ({})", commit(), build.name()) };
    std::fs::create_dir_all(out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    for case in chosen {
        eprintln!("{}: {}", case.name, case.about);
        if let Some(reason) = skip::missing_program(case.needs) {
            Stored::without_figures(case.name, Outcome::Skipped(reason)).write(out)?;
            continue;
        }
        // Whatever an earlier run left must not pass for this one's result.
        let _ = std::fs::remove_file(stored::path(out, case.name));
        if let Err(said) = guard::run(case.name, rounds, out, &product) {
            Stored::without_figures(case.name, Outcome::failed(&said)).write(out)?;
        }
    }
    Ok(())
}

fn measure_one(name: &str, rounds: u32) -> Result<Stored> {
    let case = cases::find(name)?;
    let bed = Bed::new(rounds)?;
    let machine = builtin::machine(&bed)?;
    let rows = (case.measure)(&bed)?;
    Ok(Stored {
        case: name.to_owned(),
        machine,
        rounds,
        outcome: Outcome::Measured { rows, commands: bed.commands(), raw: bed.raw() },
    })
}

/// The commit that is measured, marked when the tree differs from it outside `results`.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(env::workspace_root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else { return "unknown".to_owned() };
    match git(&["status", "--porcelain", "--", "crates", "xtask", "Cargo.toml", "Cargo.lock"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + "-dirty",
    }
}

fn today() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().map_err(|e| format!("cannot run date: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
