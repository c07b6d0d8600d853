//! `ropeway bench report`.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use ropeway_measure::report::{Options, page};

use crate::output::tell;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result files, or directories with some (names that end in .jsonl)
    #[arg(required = true, value_name = "FILES")]
    paths: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Heading of the page
    #[arg(long)]
    title: Option<String>,
    /// The transport that the others are compared with [default: tcp, or the first by name]
    #[arg(long, value_name = "TRANSPORT")]
    baseline: Option<String>,
    /// Show the values that are printed in the source documents beside today's
    #[arg(long)]
    references: bool,
}

pub fn main(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let results = super::read_all(&args.paths)?;
    super::known_transport(&results, args.baseline.as_deref())?;
    let options = Options { title: args.title.clone(), baseline: args.baseline.clone(), references: args.references };
    super::write(&args.out, page(&results, &options).as_bytes())?;
    tell!("{}: open it in a browser", args.out.display());
    Ok(ExitCode::SUCCESS)
}
