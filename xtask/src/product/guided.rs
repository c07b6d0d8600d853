//! Profile-guided builds (docs/building.md): an instrumented copy of the product runs what the product is for, and the compiler then lays out the code by what ran how often.

use super::{PRODUCT, WIRE, WIRE_PACKAGE, cargo, directory, succeed};
use crate::Result;
use crate::tidy::Tree;
use ropeway_testkit::{DAEMON_SOCKET_VAR, env, skip, training};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Below the target directory: the instrumented copy, what it wrote, and the guided product with the records that it was compiled by.
const TRAINING_DIR: &str = "guided-training";
const RAW_DIR: &str = "raw";
const GUIDED_DIR: &str = "guided";

/// Counters that live in the file itself, and so survive whatever ends a process.
const KEPT_COUNTERS: &str = "-Cllvm-args=-runtime-counter-relocation";
/// No values of arguments, which cannot be recorded that way; who reads the record has to know.
const NO_VALUES: &str = "-Cllvm-args=-disable-vp";
/// Where a process writes its counters: one file for each program or library in it.
const RAW_FILE: &str = "%c%p-%m.profraw";
const RAW_FILE_VAR: &str = "LLVM_PROFILE_FILE";

/// The instrumented copy's hosts, where there may be some.
const BOX: &str = "ropeway-training";
/// Seconds of each part: some thousand messages.
const SECONDS: &str = "0.2";

/// Cargo that compiles all with a record, and its target directory.
pub fn cargo_with(profile: &Path) -> (Command, PathBuf) {
    let guide = format!("-Cprofile-use={}", profile.display());
    cargo_into(GUIDED_DIR, &[&guide, NO_VALUES])
}

fn cargo_into(dir: &str, flags: &[&str]) -> (Command, PathBuf) {
    let (mut cargo, target) = (cargo(), env::target_dir().join(dir));
    let own = own_flags();
    let flags: Vec<&str> = own.split_whitespace().chain(flags.iter().copied()).collect();
    // In this form a path may contain spaces.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env("CARGO_TARGET_DIR", &target);
    // Always the same selection: a crate's features may depend on it, and on those the names by which the record knows functions.
    cargo.args(["build", "--release", "--lib", "--bins"]).args(PRODUCT);
    cargo.args(["-p", WIRE_PACKAGE, "--example", WIRE]);
    (cargo, target)
}

/// What whoever builds wants of the compiler besides.
fn own_flags() -> String {
    std::env::var("RUSTFLAGS").unwrap_or_default()
}

/// The record for the sources and the compiler as they are: a new training run if there is none.
pub fn profile() -> Result<PathBuf> {
    let merge = profdata()?;
    let dir = env::target_dir().join(GUIDED_DIR);
    let profile = dir.join(format!("{:016x}.profdata", stamp()?));
    if profile.is_file() {
        return Ok(profile);
    }
    directory(&dir)?;
    let new = train(&merge)?;
    for record in files_of(&dir, "profdata")? {
        fs::remove_file(&record).map_err(|e| format!("cannot remove {}: {e}", record.display()))?;
    }
    fs::rename(&new, &profile).map_err(|e| format!("cannot rename {}: {e}", new.display()))?;
    Ok(profile)
}

/// The compiler's own `llvm-profdata`: another version may not read what this one writes.
fn profdata() -> Result<PathBuf> {
    let libraries = rustc(&["--print", "target-libdir"])?;
    let tool = Path::new(libraries.trim()).parent().map(|dir| dir.join("bin/llvm-profdata"));
    tool.filter(|tool| tool.is_file()).ok_or_else(|| {
        "this compiler's llvm-profdata is not here (`rustup component add llvm-tools` installs it)".into()
    })
}

fn rustc(args: &[&str]) -> Result<String> {
    let output = Command::new("rustc").args(args).current_dir(env::workspace_root()).output();
    let output = output.map_err(|e| format!("cannot run rustc: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A number that changes with all that a record depends on.
fn stamp() -> Result<u64> {
    let compiler = rustc(&["-vV"])? + &own_flags();
    Ok(stamp_of(&compiler, &Tree::read(&env::workspace_root())?))
}

fn stamp_of(compiler: &str, tree: &Tree) -> u64 {
    let is_source = |path: &str| {
        (path.starts_with("crates/") && !path.contains("/tests/")) || path.starts_with("Cargo.") || path == file!()
    };
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    for file in tree.files.iter().filter(|file| is_source(&file.path)) {
        (&file.path, &file.text).hash(&mut hasher);
    }
    hasher.finish()
}

/// Builds the instrumented copy, runs it, and merges what it wrote.
fn train(merge: &Path) -> Result<PathBuf> {
    let training = env::target_dir().join(TRAINING_DIR);
    let raw = training.join(RAW_DIR);
    let _ = fs::remove_dir_all(&raw);
    directory(&raw)?;
    eprintln!("building a copy that records what runs how often, once for these sources");
    let generate = format!("-Cprofile-generate={}", raw.display());
    let (mut cargo, target) = cargo_into(TRAINING_DIR, &[&generate, KEPT_COUNTERS, NO_VALUES]);
    // What runs while it is built is not what it is for.
    cargo.env(RAW_FILE_VAR, "/dev/null");
    succeed(&mut cargo, "the instrumented ropeway does not build")?;
    Trainee { program: target.join("release/ropeway"), dir: &training }.run_all()?;

    let merged = training.join("merged.profdata");
    let mut command = Command::new(merge);
    command.arg("merge").arg("-o").arg(&merged).args(files_of(&raw, "profraw")?);
    succeed(&mut command, "what the training run wrote cannot be merged")?;
    let _ = fs::remove_dir_all(&raw);
    Ok(merged)
}

/// The instrumented copy, with a rendezvous of its own.
struct Trainee<'a> {
    program: PathBuf,
    dir: &'a Path,
}

impl Trainee<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env(RAW_FILE_VAR, self.dir.join(RAW_DIR).join(RAW_FILE));
        command.env(DAEMON_SOCKET_VAR, format!("ropeway-training/{}", std::process::id()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Whether it did what it was told.
    fn does(&self, args: &[&str]) -> bool {
        self.command(args).status().is_ok_and(|status| status.success())
    }

    /// What cannot run here is only not learnt from.
    fn runs(&self, parts: Vec<Vec<String>>) {
        for part in parts {
            let args: Vec<&str> = part.iter().map(String::as_str).collect();
            if !self.does(&args) {
                eprintln!(
                    "this part of the training run failed, and nothing is learnt from it: ropeway {}",
                    part.join(" ")
                );
            }
        }
    }

    fn run_all(&self) -> Result<()> {
        eprintln!("running it");
        let key = self.dir.join("key");
        let _ = fs::remove_file(&key);
        if !self.does(&["key", "new", &key.display().to_string()]) {
            return Err("the instrumented ropeway makes no key".into());
        }
        self.runs(training::on_one_host(&key, SECONDS));
        if skip::is_root() {
            // One that was broken off may have left its hosts.
            self.does(&["box", "down", "--name", BOX]);
            let hosts = training::HOSTS.to_string();
            if self.does(&["box", "up", "--name", BOX, "--hosts", &hosts, "--wire-frames"]) {
                self.runs(training::between_hosts(BOX, SECONDS));
            } else {
                eprintln!("`ropeway box up` failed: nothing is learnt of raw Ethernet frames");
            }
            self.does(&["box", "down", "--name", BOX]);
        } else {
            eprintln!("nothing is learnt of raw Ethernet frames: that needs root");
        }
        self.does(&["daemon", "stop"]);
        Ok(())
    }
}

/// The files in a directory that have this extension.
fn files_of(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::fixture::tree;

    #[test]
    fn a_record_stands_for_one_compiler_and_one_state_of_the_sources() {
        let files = [("crates/a/src/lib.rs", "fn a() {}"), ("Cargo.lock", "version = 4"), ("docs/a.md", "A.")];
        let stamp = stamp_of("1.95", &tree(&files));
        assert_eq!(stamp_of("1.95", &tree(&files)), stamp);
        assert_ne!(stamp_of("1.96", &tree(&files)), stamp);
        let changed = |at: usize| {
            let mut files = files;
            files[at].1 = "changed";
            stamp_of("1.95", &tree(&files))
        };
        assert_ne!(changed(0), stamp);
        assert_ne!(changed(1), stamp, "what it is linked with");
        assert_eq!(changed(2), stamp, "documents");
    }

    #[test]
    fn only_what_processes_wrote_is_merged() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["1-a.profraw", "key", "2-b.profraw"] {
            fs::write(dir.path().join(name), "").expect("written");
        }
        assert_eq!(files_of(dir.path(), "profraw").expect("read").len(), 2);
    }
}
