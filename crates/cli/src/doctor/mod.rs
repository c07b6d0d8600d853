//! `ropeway doctor [CMD]`: can this machine, and this program, be accelerated; if not, why, and what to do.
//!
//! [`machine`] tries what Ropeway needs, [`program`] looks at the file a command would run, [`elf`] reads its headers.
//! Nothing is started and nothing changed.

mod elf;
mod machine;
mod program;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::output::{self, tell};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A program to look at, as you would start it; its arguments are ignored
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How a finding bears on acceleration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// Works, with less gain or with something to know.
    Note,
    /// Everything stays on TCP.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub what: &'static str,
    pub text: String,
}

impl Finding {
    pub fn new(verdict: Verdict, what: &'static str, text: impl Into<String>) -> Finding {
        Finding { verdict, what, text: text.into() }
    }
}

pub fn main(args: &Args) -> ExitCode {
    let mut findings = machine::examine();
    let mut text = lines(&findings);
    if let Some(command) = args.command.first() {
        let of_program = program::examine(command);
        text += "\n";
        text += &lines(&of_program);
        findings.extend(of_program);
    }
    let bad = findings.iter().any(|f| f.verdict == Verdict::Bad);
    let what = args.command.first().map_or("this machine".into(), |c| c.display().to_string());
    text += &if bad {
        format!("\nNo: {what} cannot be accelerated; its connections stay on TCP. What is marked BAD above says why.\n")
    } else {
        format!("\nYes: {what} can be accelerated with `ropeway run`.\n")
    };
    let shown = output::show(&text);
    if let Err(error) = &shown {
        tell!("ropeway doctor: cannot write: {error}");
    }
    if bad || shown.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn lines(findings: &[Finding]) -> String {
    let line = |Finding { verdict, what, text }: &Finding| {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        format!("{mark}  {what:15}  {text}\n")
    };
    findings.iter().map(line).collect()
}
