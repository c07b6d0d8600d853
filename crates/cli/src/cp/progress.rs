//! A bar on a terminal, nothing on a pipe, and one line at the end.

use std::io::IsTerminal;
use std::time::Instant;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::output::{printable, tell};

/// The progress of one file.
pub struct Progress {
    bar: ProgressBar,
    name: String,
    begin: Instant,
    resumed: u64,
    quiet: bool,
}

impl Progress {
    /// The name may be one that the other end has chosen, or anything that a file can be called.
    pub fn new(name: &str, size: Option<u64>, offset: u64, quiet: bool) -> Progress {
        let name = printable(name);
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = match (shown, size) {
            (false, _) => ProgressBar::hidden(),
            (true, Some(size)) => {
                ProgressBar::new(size).with_style(style("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"))
            }
            (true, None) => ProgressBar::new_spinner().with_style(style("{msg} {spinner} {bytes} {bytes_per_sec}")),
        };
        bar.set_message(name.clone());
        bar.set_position(offset);
        bar.reset_eta();
        Progress { bar, name, begin: Instant::now(), resumed: offset, quiet }
    }

    pub fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// The line that stays.
    pub fn finish(self, size: u64) {
        self.bar.finish_and_clear();
        if self.quiet {
            return;
        }
        let seconds = self.begin.elapsed().as_secs_f64().max(1e-9);
        let moved = size.saturating_sub(self.resumed);
        let resumed =
            if self.resumed > 0 { format!(", {} were there already", HumanBytes(self.resumed)) } else { String::new() };
        tell!(
            "{}: {} in {seconds:.2} s, {:.1} Mbit/s, BLAKE3 verified{resumed}",
            self.name,
            HumanBytes(size),
            moved as f64 * 8.0 / 1e6 / seconds
        );
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are ours and valid; the default would do as well.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
