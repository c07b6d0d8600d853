//! What happens while a run goes on: a progress bar on a terminal, complaints at once, every line into the result file.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ropeway_measure::record::Line;
use ropeway_measure::run::{Observer, Plan};

use super::options::Options;
use super::table::Table;
use crate::output::tell;

pub struct Watch {
    out: Option<(PathBuf, File)>,
    bar: ProgressBar,
    table: Table,
}

/// Steps of the bar.
const STEPS: u64 = 1000;

impl Watch {
    pub fn new(plan: &Plan, options: &Options) -> Result<Watch, String> {
        let out = match &options.out {
            None => None,
            Some(path) => {
                let file = File::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
                Some((path.clone(), file))
            }
        };
        let bar = match std::io::stderr().is_terminal() {
            // A template that does not parse is a bar without our words.
            true => ProgressBar::new(STEPS).with_style(
                ProgressStyle::with_template("[{bar:30}] {prefix:>7} left  {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            ),
            false => ProgressBar::hidden(),
        };
        Ok(Watch { out, bar, table: Table::new(plan) })
    }

    /// Takes the bar away; what there is to show.
    pub fn finish(self) -> Table {
        self.bar.finish_and_clear();
        self.table.finish()
    }

    fn complain(&self, text: &str) {
        self.bar.suspend(|| tell!("ropeway bench: {text}"));
    }
}

impl Observer for Watch {
    fn line(&mut self, line: &Line) -> Result<(), String> {
        if let Some((path, file)) = &mut self.out {
            let mut text = serde_json::to_string(line).map_err(|e| e.to_string())?;
            text.push('\n');
            file.write_all(text.as_bytes()).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        match line {
            Line::Failed(failed) => {
                let case = &failed.case;
                self.complain(&format!("{} {} {}: {}", case.transport, case.pattern, case.size, failed.reason));
            }
            Line::Warning { text } => self.complain(text),
            _ => {}
        }
        self.table.add(line);
        Ok(())
    }

    fn progress(&mut self, done: f64, left: Duration, next: &str) {
        self.bar.set_position((done * STEPS as f64) as u64);
        let seconds = left.as_secs();
        self.bar.set_prefix(if seconds < 90 {
            format!("{seconds} s")
        } else {
            format!("{} min", seconds.div_ceil(60))
        });
        self.bar.set_message(next.to_owned());
    }
}
