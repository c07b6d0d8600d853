//! Reads result files as they are found: cut off, damaged in places, with lines that a newer Ropeway writes. What cannot be used is said with its line number, and
//! the rest counts. Nothing in a file makes the reader panic.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::record::{FORMAT, Failed, Fit, Line, Measured, Run};

/// The longest line that is read. A series of ten million samples takes about 200 MB; a longer line is no result, and reading on would only fill the memory.
const LONGEST_LINE_BYTES: u64 = 1 << 30;

/// Damaged lines that are named one by one; of more, the number is said.
const MOST_NAMED: usize = 20;

/// What one run left in a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Results {
    /// Where it was read from, as the user named it.
    pub source: String,
    /// Missing when the line was damaged.
    pub run: Option<Run>,
    pub measured: Vec<Measured>,
    pub failed: Vec<Failed>,
    /// What the run itself warned of.
    pub warnings: Vec<String>,
    pub end: Option<End>,
    /// What carried the bytes of a preloaded transport.
    pub carried: Vec<(String, Value)>,
    /// Models that were fitted to what a transport's ranks measured.
    pub fits: Vec<Fit>,
    /// What the reader could not use, in sentences.
    pub notes: Vec<String>,
}

/// The last line of a run that came to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    pub trials: u64,
    pub failed: u64,
    pub seconds: f64,
}

/// Why a file gave nothing at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("{file} is empty: the run died before it wrote anything")]
    Empty { file: String },
    #[error("{file} is no result file of `ropeway bench`: not one of its lines could be read ({first})")]
    NotResults { file: String, first: String },
    #[error(
        "{file} has format {format}, this Ropeway reads formats up to {FORMAT}: read it with the Ropeway that wrote it, or a newer one"
    )]
    Newer { file: String, format: u64 },
    #[error("{} has no result files (names that end in .jsonl)", path.display())]
    NoFiles { path: PathBuf },
}

/// Reads a file, or every `.jsonl` file of a directory in the order of names. One entry for each run.
pub fn read(path: &Path) -> Result<Vec<Results>, ReadError> {
    let mut all = Vec::new();
    for file in files(path)? {
        let io = |cause| ReadError::Io { path: file.clone(), cause };
        let reader = BufReader::with_capacity(1 << 20, File::open(&file).map_err(io)?);
        all.extend(parse(&file.display().to_string(), reader)?);
    }
    Ok(all)
}

/// The files that a path means.
fn files(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let io = |cause| ReadError::Io { path: path.to_owned(), cause };
    let mut found = Vec::new();
    for entry in path.read_dir().map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            found.push(file);
        }
    }
    found.sort();
    if found.is_empty() { Err(ReadError::NoFiles { path: path.to_owned() }) } else { Ok(found) }
}

/// Reads the runs of one stream of lines; `source` is its name in messages. Files that were joined give several runs.
pub fn parse(source: &str, reader: impl BufRead) -> Result<Vec<Results>, ReadError> {
    let mut parser = Parser::new(source);
    let cause = |cause| ReadError::Io { path: source.into(), cause };
    let mut reader = reader;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line).map_err(cause)?;
        if read == 0 {
            return parser.finish();
        }
        let whole = line.last() == Some(&b'\n');
        if !whole && read as u64 == LONGEST_LINE_BYTES {
            reader.skip_until(b'\n').map_err(cause)?;
            parser.damaged("it is longer than any result".into());
        } else {
            parser.line(line.trim_ascii(), whole)?;
        }
    }
}

/// What every line has, whatever its kind.
#[derive(Deserialize)]
struct Head {
    line: String,
    format: Option<u64>,
}

const KINDS: [&str; 7] = ["run", "measured", "failed", "warning", "end", "carried", "fit"];

struct Parser {
    source: String,
    runs: Vec<Results>,
    number: u64,
    understood: u64,
    damaged: Vec<(u64, String)>,
    unknown: BTreeMap<String, u64>,
    cut_off: bool,
    left_out: BTreeMap<u64, u64>,
}

impl Parser {
    fn new(source: &str) -> Parser {
        Parser {
            source: source.into(),
            runs: Vec::new(),
            number: 0,
            understood: 0,
            damaged: Vec::new(),
            unknown: BTreeMap::new(),
            cut_off: false,
            left_out: BTreeMap::new(),
        }
    }

    /// Takes one line; `whole` when its end was there.
    fn line(&mut self, text: &[u8], whole: bool) -> Result<(), ReadError> {
        self.number += 1;
        if text.is_empty() {
            return Ok(());
        }
        let head: Head = match serde_json::from_slice(text) {
            Ok(head) => head,
            Err(_) if !whole => {
                self.cut_off = true;
                return Ok(());
            }
            Err(error) => {
                self.note_damage(error.to_string());
                return Ok(());
            }
        };
        if head.line == "run" && head.format.is_some_and(|format| format > u64::from(FORMAT)) {
            return Err(ReadError::Newer { file: self.source.clone(), format: head.format.unwrap_or_default() });
        }
        if !KINDS.contains(&head.line.as_str()) {
            let name: String = head.line.chars().take(40).collect();
            *self.unknown.entry(name).or_default() += 1;
            return Ok(());
        }
        match serde_json::from_slice(text).or_else(|error| self.without_nulls(text).ok_or(error)) {
            Ok(line) => self.take(line),
            Err(error) => self.note_damage(error.to_string()),
        }
        Ok(())
    }

    /// The line without those samples that are no numbers: JSON has none for infinities and the result of 0/0, and `null` stands there.
    fn without_nulls(&mut self, text: &[u8]) -> Option<Line> {
        let mut value: Value = serde_json::from_slice(text).ok()?;
        let mut dropped = 0;
        for series in value.get_mut("series")?.as_array_mut()? {
            if let Some(Value::Array(samples)) = series.pointer_mut("/values/samples") {
                let before = samples.len();
                samples.retain(|sample| !sample.is_null());
                dropped += before - samples.len();
            }
        }
        let line = serde_json::from_value(value).ok()?;
        self.left_out.insert(self.number, dropped as u64);
        Some(line)
    }

    fn take(&mut self, line: Line) {
        self.understood += 1;
        if self.runs.is_empty() || matches!(line, Line::Run(_)) {
            self.start_run();
        }
        let Some(results) = self.runs.last_mut() else { return };
        match line {
            Line::Run(run) => results.run = Some(run),
            Line::Measured(measured) => results.measured.push(measured),
            Line::Failed(failed) => results.failed.push(failed),
            Line::Warning { text } => results.warnings.push(text),
            Line::Carried { transport, carried } => results.carried.push((transport, carried)),
            Line::Fit(fit) => results.fits.push(fit),
            Line::End { trials, failed, seconds } => results.end = Some(End { trials, failed, seconds }),
        }
    }

    fn start_run(&mut self) {
        let source = match self.runs.len() {
            0 => self.source.clone(),
            before => format!("{} (run {})", self.source, before + 1),
        };
        self.runs.push(Results { source, ..Results::default() });
    }

    fn damaged(&mut self, reason: String) {
        self.number += 1;
        self.note_damage(reason);
    }

    fn note_damage(&mut self, reason: String) {
        self.damaged.push((self.number, reason));
    }

    fn finish(mut self) -> Result<Vec<Results>, ReadError> {
        if self.understood == 0 {
            let file = self.source;
            let Some((number, reason)) = self.damaged.first() else {
                return Err(match self.number {
                    0 => ReadError::Empty { file },
                    _ => ReadError::NotResults { file, first: "no line of a kind that is known".into() },
                });
            };
            return Err(ReadError::NotResults { file, first: format!("line {number}: {reason}") });
        }
        let notes = self.notes();
        for results in &mut self.runs {
            if results.run.is_none() {
                results.notes.push("the line that says whose figures these are is missing or damaged".into());
            }
            if results.end.is_none() {
                results.notes.push("the run did not come to its end: it died, or still goes on".into());
            }
        }
        if let Some(last) = self.runs.last_mut() {
            last.notes.extend(notes);
        }
        Ok(self.runs)
    }

    /// What the whole file's reading found.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.cut_off {
            notes.push(format!("line {} is cut off and was left out", self.number));
        }
        for (number, reason) in self.damaged.iter().take(MOST_NAMED) {
            notes.push(format!("line {number} is damaged and was left out: {reason}"));
        }
        if self.damaged.len() > MOST_NAMED {
            notes.push(format!("{} more lines are damaged and were left out", self.damaged.len() - MOST_NAMED));
        }
        for (kind, count) in &self.unknown {
            notes.push(format!("{count} lines of a kind that this Ropeway does not know ({kind}) were left out"));
        }
        for (number, count) in &self.left_out {
            notes.push(format!("line {number}: {count} values that are no numbers were left out"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    const RUN: &str = r#"{"line":"run","format":1,"command":["ropeway","bench"],"seed":1,"started_unix_s":1,"ropeway_version":"0","commit":null,"hosts":[]}"#;
    const MEASURED: &str = r#"{"line":"measured","transport":"tcp","pattern":"pingpong","size":64,"ranks":2,"rank":0,"round":0,"at_ns":1,"series":[{"metric":"one-way","batch":1,"values":{"samples":[3500.0,3612.5]}}]}"#;
    const END: &str = r#"{"line":"end","trials":1,"failed":0,"seconds":0.5}"#;

    fn parsed(text: &str) -> Vec<Results> {
        parse("a.jsonl", text.as_bytes()).expect("a result file")
    }

    #[test]
    fn a_whole_file_has_nothing_to_note() {
        let runs = parsed(&format!("{RUN}\n{MEASURED}\n{END}\n"));
        assert_eq!((runs.len(), runs[0].measured.len()), (1, 1));
        assert_eq!(runs[0].notes, [""; 0]);
    }

    #[test]
    fn a_cut_off_line_is_said_and_the_rest_counts() {
        let runs = parsed(&format!("{RUN}\n{MEASURED}\n{}", &MEASURED[..90]));
        assert_eq!(runs[0].measured.len(), 1);
        let notes = runs[0].notes.join("\n");
        assert!(notes.contains("line 3 is cut off") && notes.contains("did not come to its end"), "{notes}");
    }

    #[test]
    fn damaged_lines_are_named_and_unknown_kinds_are_counted() {
        let strange = r#"{"line":"weather","text":"fine"}"#;
        let runs =
            parsed(&format!("{RUN}\n{{\"line\":\"measured\"}}\n\u{1}\n{MEASURED}\n{strange}\n{strange}\n{END}\n"));
        assert_eq!(runs[0].measured.len(), 1);
        let notes = runs[0].notes.join("\n");
        for part in ["line 2 is damaged", "line 3 is damaged", "2 lines of a kind", "(weather)"] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_with_what_to_do() {
        let error = parse("a.jsonl", RUN.replace("\"format\":1", "\"format\":99").as_bytes()).expect_err("too new");
        assert!(error.to_string().contains("format 99") && error.to_string().contains("newer"), "{error}");
    }

    #[test]
    fn what_is_no_result_file_is_refused() {
        for (text, reason) in
            [("", "is empty"), ("hello\n", "line 1"), ("[1]\n\n", "no result file"), ("{\"line\":\"x\"}\n", "known")]
        {
            let error = parse("a", text.as_bytes()).expect_err("no results").to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn samples_that_are_no_numbers_are_left_out_and_counted() {
        let runs = parsed(&format!("{RUN}\n{}\n{END}\n", MEASURED.replace("3612.5", "null,4.0,null")));
        assert_eq!(runs[0].notes, ["line 2: 2 values that are no numbers were left out"]);
        let crate::record::Values::Samples(samples) = &runs[0].measured[0].series[0].values else { panic!("samples") };
        assert_eq!(samples, &[3500.0, 4.0]);
    }

    #[test]
    fn joined_files_are_several_runs() {
        let runs = parsed(&format!("{RUN}\n{MEASURED}\n{END}\n{RUN}\n{MEASURED}\n{MEASURED}\n{END}\n"));
        assert_eq!(runs.iter().map(|run| run.measured.len()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(runs[1].source, "a.jsonl (run 2)");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse("fuzz", &bytes[..]);
        }

        #[test]
        fn a_file_with_flipped_bytes_keeps_its_other_lines(at in 0usize..10_000, byte in any::<u8>(), cut in 0usize..10_000) {
            let whole = format!("{RUN}\n{MEASURED}\n{MEASURED}\n{MEASURED}\n{END}\n");
            let mut bytes = whole.clone().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(runs) = parse("fuzz", &bytes[..]) {
                // Without the newline between them, two lines are damaged; one of three stays.
                prop_assert!(runs.iter().map(|run| run.measured.len()).sum::<usize>() >= 1);
            }
            let _ = parse("fuzz", &bytes[..cut % bytes.len()]);
        }

        #[test]
        fn any_numbers_in_a_line_are_taken_or_named(text in "[-0-9.eE,nul\\[\\] ]{0,60}") {
            let line = MEASURED.replace("3500.0,3612.5", &text);
            let runs = parse("fuzz", format!("{RUN}\n{line}\n{END}\n").as_bytes()).expect("two lines are good");
            prop_assert!(runs[0].measured.len() == 1 || runs[0].notes.iter().any(|note| note.contains("line 2")));
        }
    }
}
