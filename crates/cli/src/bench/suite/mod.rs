//! `ropeway bench suite`: many measurements one after the other, a result file for each, and one page with all of them.
//!
//! Every part is a `ropeway bench` of its own, whose command line anybody can repeat; a part that fails costs no other. Boxes are made for the parts that need them and taken down again.

mod formula;
mod parts;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::ValueEnum;

use super::interrupt::{Interrupt, Second};
use crate::output::tell;
use parts::{At, Part};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure
    #[arg(value_enum)]
    suite: Suite,
    /// Directory of the result files and of report.html
    #[arg(long, value_name = "DIR", default_value = "ropeway-bench")]
    out: PathBuf,
    /// Only these parts, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// List the parts with their commands, and measure nothing
    #[arg(long)]
    list: bool,
    /// Between these hosts, over ssh, as for a single measurement: the parts for two hosts run there, and the others are left out
    #[arg(long, value_name = "LIST")]
    hosts: Option<String>,
    /// How `ropeway` is started on the other hosts
    #[arg(long, value_name = "COMMAND", default_value = "ropeway")]
    remote_command: String,
    /// Copy this program to the other hosts first, and start it there
    #[arg(long, requires = "hosts", conflicts_with = "remote_command")]
    copy: bool,
    /// The program that reaches other hosts
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    ssh: String,
    /// Rounds of each part, in place of 6
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// What matters most, in less than two minutes
    Quick,
    /// Every pattern over the transports to which it means something; about ten minutes
    Full,
    /// The figures of the source documents, with today's transports beside the printed values; about nine minutes
    Figures,
}

impl Suite {
    fn parts(self) -> &'static [Part] {
        match self {
            Suite::Quick => parts::QUICK,
            Suite::Full => parts::FULL,
            Suite::Figures => parts::FIGURES,
        }
    }
}

/// Rates and buffers of a box whose ports are to be the limit.
const PORT: &[&str] = &["--rate", "1gbit", "--port-buffer", "128KiB"];

pub fn main(args: &Args) -> Result<ExitCode, String> {
    let chosen = chosen(args)?;
    if args.list {
        let entry = |part: &&Part| {
            format!("{:<20} {}\n{:<20} ropeway {}\n", part.name, part.about, "", shown(&line(args, part, None)))
        };
        super::show(&chosen.iter().map(entry).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Ctrl-C is for the part that is measured as well, and a second one ends that at once.
    let interrupt = Interrupt::heed(Second::IsAsTheFirst)?;
    fs::create_dir_all(&args.out).map_err(|e| format!("cannot make the directory {}: {e}", args.out.display()))?;
    let (mut failed, mut left_out) = (Vec::new(), Vec::new());
    for (number, part) in chosen.iter().enumerate() {
        tell!("[{} of {}] {}: {}", number + 1, chosen.len(), part.name, part.about);
        match measure(args, part, &interrupt) {
            Ok(true) => {}
            Ok(false) => failed.push(part.name),
            Err(LeftOut(why)) => left_out.push((part.name, why)),
        }
        if interrupt.is_asked() {
            break;
        }
    }
    for (name, why) in &left_out {
        tell!("ropeway bench: {name} was left out: {why}");
    }
    if let Some(code) = interrupt.exit_code() {
        match report(args) {
            Ok(page) => tell!("broken off: what was measured until then is in {}", page.display()),
            Err(message) => tell!("ropeway bench: broken off: {message}"),
        }
        return Ok(ExitCode::from(code));
    }
    if left_out.len() == chosen.len() {
        return Err("no part of the suite could be measured".to_owned());
    }
    let page = report(args)?;
    tell!("the page is {}", page.display());
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => {
            Err(format!("something failed in {}: what was measured is in the files all the same", failed.join(", ")))
        }
    }
}

fn chosen(args: &Args) -> Result<Vec<&'static Part>, String> {
    let all = args.suite.parts();
    if let Some(wrong) = args.only.iter().find(|name| all.iter().all(|part| part.name != **name)) {
        let names: Vec<&str> = all.iter().map(|part| part.name).collect();
        return Err(format!("the suite has no part `{wrong}`; it has {}", names.join(", ")));
    }
    Ok(all.iter().filter(|part| args.only.is_empty() || args.only.iter().any(|name| name == part.name)).collect())
}

/// Why a part was not tried.
struct LeftOut(String);

/// Runs one part; whether all of it could be measured.
fn measure(args: &Args, part: &Part, interrupt: &Interrupt) -> Result<bool, LeftOut> {
    let hosts = match (part.at, &args.hosts) {
        (At::Here | At::Anywhere, Some(_)) => {
            return Err(LeftOut("it runs on one host, and --hosts names others".to_owned()));
        }
        (At::Direct(2), Some(_)) | (At::Here | At::Anywhere, None) => None,
        (At::Port(_) | At::Direct(_), Some(_)) => {
            return Err(LeftOut(
                "it needs a box with a switch of known rates, and --hosts names real hosts".to_owned(),
            ));
        }
        (At::Direct(count), None) => Some(TestBox::up(count, &[])?),
        (At::Port(count), None) => Some(TestBox::up(count, PORT)?),
    };
    if interrupt.is_asked() {
        return Ok(false);
    }
    let name = hosts.as_ref().map(|hosts| hosts.name.as_str());
    let status = Command::new(own()?)
        .args(line(args, part, name))
        .stdin(Stdio::null())
        .status()
        .map_err(|e| LeftOut(format!("cannot start myself: {e}")))?;
    if part.name == parts::TIMER_NEEDED {
        formula::write(&args.out.join(FORMULA)).map_err(LeftOut)?;
    }
    Ok(status.success())
}

/// Result file of what the document's formula gives.
const FORMULA: &str = "timer-needed-formula.jsonl";

/// The arguments of a part.
fn line(args: &Args, part: &Part, in_box: Option<&str>) -> Vec<OsString> {
    let mut words = vec!["bench".to_owned(), part.pattern.to_owned(), "--transport".to_owned()];
    // Raw frames have other names on other machines.
    let transports = match args.hosts {
        Some(_) => {
            part.transports.split(',').filter(|name| !name.starts_with("ropeway-packet")).collect::<Vec<_>>().join(",")
        }
        None => part.transports.to_owned(),
    };
    words.push(transports);
    words.extend(part.arguments.split_whitespace().map(str::to_owned));
    if let (Some(rounds), false) = (args.rounds, part.arguments.contains("--rounds")) {
        words.extend(["--rounds".to_owned(), rounds.to_string()]);
    }
    match (part.at, in_box, &args.hosts) {
        (At::Direct(count) | At::Port(count), Some(name), _) => {
            words.push(format!("--box={name}"));
            if !part.arguments.contains("--ranks") {
                words.extend(["--ranks".to_owned(), count.to_string()]);
            }
        }
        (At::Direct(_), None, Some(hosts)) => {
            words.extend(["--hosts", hosts, "--ssh", &args.ssh].map(str::to_owned));
            match args.copy {
                true => words.push("--copy".to_owned()),
                false => words.extend(["--remote-command", &args.remote_command].map(str::to_owned)),
            }
        }
        _ => {}
    }
    let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    words.extend(["--out".into(), file(&args.out, part).into()]);
    words
}

fn file(out: &Path, part: &Part) -> PathBuf {
    out.join(format!("{}.jsonl", part.name))
}

fn shown(words: &[OsString]) -> String {
    words.join(OsStr::new(" ")).display().to_string()
}

fn own() -> Result<PathBuf, LeftOut> {
    std::env::current_exe().map_err(|e| LeftOut(format!("cannot find my own path: {e}")))
}

/// Hosts that go when the part is over.
struct TestBox {
    name: String,
}

impl TestBox {
    fn up(count: usize, options: &[&str]) -> Result<TestBox, LeftOut> {
        if !rustix::process::geteuid().is_root() {
            return Err(LeftOut("the hosts of a box are network namespaces: run as root".to_owned()));
        }
        let hosts = TestBox { name: format!("bench{}", std::process::id()) };
        let count = count.to_string();
        let made = hosts.command("up", &[&["--hosts", &count], options].concat())?;
        match made.status.success() {
            true => Ok(hosts),
            false => Err(LeftOut(format!("its box cannot be made: {}", String::from_utf8_lossy(&made.stderr).trim()))),
        }
    }

    fn command(&self, what: &str, options: &[&str]) -> Result<std::process::Output, LeftOut> {
        Command::new(own()?)
            .args(["box", what, "--name", &self.name])
            .args(options)
            .stdin(Stdio::null())
            // Ctrl-C does not end it in the middle: a box is there, or it is not.
            .process_group(0)
            .output()
            .map_err(|e| LeftOut(format!("cannot start myself: {e}")))
    }
}

impl Drop for TestBox {
    fn drop(&mut self) {
        // What a box leaves behind, `ropeway box down` names when somebody asks for it.
        let _ = self.command("down", &[]);
    }
}

/// Makes the page of all result files that are there.
fn report(args: &Args) -> Result<PathBuf, String> {
    let page = args.out.join("report.html");
    let parts = args.suite.parts().iter().map(|part| file(&args.out, part));
    let files: Vec<PathBuf> = parts.chain([args.out.join(FORMULA)]).filter(|path| path.exists()).collect();
    if files.is_empty() {
        return Err("nothing was measured that a page could show".to_owned());
    }
    let mut command = Command::new(own().map_err(|LeftOut(why)| why)?);
    command.args(["bench", "report"]).args(&files).arg("--out").arg(&page);
    if args.suite == Suite::Figures {
        command.arg("--references");
    }
    let status = command.stdin(Stdio::null()).status().map_err(|e| format!("cannot start myself: {e}"))?;
    match status.success() {
        true => Ok(page),
        false => Err("the page could not be made: see above".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropeway_measure::pattern;
    use ropeway_measure::transport::kind::Spec;

    #[test]
    fn every_part_names_a_pattern_and_transports_that_there_are() {
        for part in [Suite::Quick, Suite::Full, Suite::Figures].into_iter().flat_map(Suite::parts) {
            assert!(pattern::catalogue().iter().any(|entry| entry.name == part.pattern), "{}", part.name);
            Spec::list(part.transports).unwrap_or_else(|e| panic!("{}: {e}", part.name));
        }
    }

    #[test]
    fn the_formula_stands_beside_what_is_simulated() {
        let part = parts::FIGURES.iter().find(|part| part.name == parts::TIMER_NEEDED).expect("the part");
        let windows: Vec<String> = parts::TIMER_WINDOWS.iter().map(u32::to_string).collect();
        assert!(part.arguments.contains(&format!("window={} ", windows.join(","))));
        for percent in parts::TIMER_LOSSES_PERCENT {
            assert!(part.transports.contains(&format!("loss={percent}%,")));
        }
    }

    #[test]
    fn boxes_with_different_ports_are_told_apart_by_the_transports() {
        let in_box = |part: &Part| matches!(part.at, At::Direct(_) | At::Port(_));
        for suite in [Suite::Quick, Suite::Full, Suite::Figures] {
            let parts = suite.parts();
            for (one, other) in parts.iter().flat_map(|one| parts.iter().map(move |other| (one, other))) {
                if one.pattern != other.pattern || one.at == other.at || in_box(one) != in_box(other) {
                    continue;
                }
                let specs = Spec::list(one.transports).expect("a list");
                let both = Spec::list(other.transports).expect("a list").into_iter().find(|spec| specs.contains(spec));
                assert_eq!(both, None, "{} and {} would be one line of a figure", one.name, other.name);
            }
        }
    }

    #[test]
    fn names_of_parts_are_files_of_their_own() {
        for suite in [Suite::Quick, Suite::Full, Suite::Figures] {
            let mut names: Vec<&str> = suite.parts().iter().map(|part| part.name).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}
