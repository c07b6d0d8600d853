//! Which suites there are, how each is built, and how long it may take.

use super::options::Choice;
use crate::Result;
use crate::product::cargo;
use ropeway_testkit::env;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A set of tests that is built, run and reported together.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: String,
    pub about: String,
    pub kind: Kind,
    /// The longest that one of its programs may take, building not included.
    pub limit: Duration,
    /// Only the tests whose names contain it.
    pub part: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The tests of each crate: inside it, and in its `tests` directory.
    Unit,
    /// The examples in the documentation.
    Doc,
    /// The tests named after loom, on its atomics: every interleaving, not just some.
    Loom,
    /// One file or directory in `crates/testkit/tests`, against the built product.
    Integration,
}

/// A program of a suite, ready to run.
#[derive(Clone, Debug)]
pub struct Program {
    /// The crate, or the suite of integration tests.
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Its arguments before those of the harness.
    pub args: Vec<String>,
    /// Where cargo would start it.
    pub dir: PathBuf,
}

/// Long enough for a loaded machine with two cores, short enough that a hang is noticed within the run.
const USUAL_LIMIT: Duration = Duration::from_secs(240);

/// Suites that need longer than usual, and why.
const LIMITS: &[(&str, Duration)] = &[
    // Worlds in virtual time, each between three kinds of hosts.
    ("unit", Duration::from_secs(480)),
    // Starts a dozen real servers one after the other.
    ("programs", Duration::from_secs(480)),
    // Each of more than 200 cases on plain TCP and at four moments under Ropeway.
    ("semantics", Duration::from_secs(480)),
    // Transfers of 1 GB, killed at many points.
    ("faults", Duration::from_secs(480)),
];

/// Programs whose tests hardly compute, but wait for what processes and engines do: more of them at a time than there are processors.
const AT_A_TIME: &[(&str, usize)] = &[("cp", 4), ("engine/it", 3), ("semantics", 4)];

/// Examples that suites run as programs: built with the suite, so that its time limit is for its tests alone.
const EXAMPLES: &[(&str, &str)] = &[("bench", "stages"), ("gateways", "copy"), ("wire", "peer")];

/// Suites with programs in C that use the library, which is built with them likewise.
const WITH_LIBRARY: &[&str] = &["gateways", "unit", "wire"];

const TESTKIT: &str = "ropeway-testkit";

const LOOM: &str = "loom";

/// Crates with tests on loom's atomics.
const LOOM_CRATES: &[&str] = &["ropeway-shm"];

/// The chosen suites in their order, or all of them.
pub fn chosen(choices: &[Choice]) -> Result<Vec<Suite>> {
    let all = all()?;
    if let Some(unknown) = choices.iter().find(|choice| !all.iter().any(|suite| suite.name == choice.suite)) {
        let known: Vec<&str> = all.iter().map(|suite| suite.name.as_str()).collect();
        return Err(format!("there is no suite `{}`; there are: {}", unknown.suite, known.join(", ")).into());
    }
    if choices.is_empty() {
        return Ok(all);
    }
    let of = |suite: &Suite| choices.iter().filter(|choice| choice.suite == suite.name).cloned().collect::<Vec<_>>();
    let parts = |suite: Suite| of(&suite).into_iter().map(move |choice| Suite { part: choice.part, ..suite.clone() });
    Ok(all.into_iter().flat_map(parts).collect())
}

fn all() -> Result<Vec<Suite>> {
    let fixed = [
        ("unit", Kind::Unit, "the tests of the crates themselves"),
        ("doc", Kind::Doc, "the examples in the documentation"),
        ("loom", Kind::Loom, "every interleaving of the lock-free code, on loom"),
    ];
    let mut suites: Vec<Suite> = fixed.map(|(name, kind, about)| suite(name, kind, about.into())).into();
    suites.extend(integration_suites(&env::workspace_root().join("crates/testkit/tests"))?);
    Ok(suites)
}

fn suite(name: &str, kind: Kind, about: String) -> Suite {
    let limit = LIMITS.iter().find(|(with, _)| *with == name).map_or(USUAL_LIMIT, |(_, limit)| *limit);
    Suite { name: name.into(), about, kind, limit, part: None }
}

/// How many tests of a program run at a time, if not as many as there are processors.
pub fn at_a_time(program: &str) -> Option<usize> {
    AT_A_TIME.iter().find(|(with, _)| *with == program).map(|(_, count)| *count)
}

/// One suite for each test target that cargo finds there: `name.rs` or `name/main.rs`.
fn integration_suites(dir: &Path) -> Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))? {
        let path = entry?.path();
        let source = if path.is_dir() { path.join("main.rs") } else { path.clone() };
        let is_target = source.extension().is_some_and(|extension| extension == "rs") && source.is_file();
        if let (true, Some(name)) = (is_target, path.file_stem()) {
            suites.push(suite(&name.to_string_lossy(), Kind::Integration, first_sentence(&source)));
        }
    }
    // The smoke suite first: when it fails, the rest says little.
    suites.sort_by_key(|suite| (suite.name != "smoke", suite.name.clone()));
    Ok(suites)
}

/// What the module's documentation says in its first line.
fn first_sentence(source: &Path) -> String {
    let text = std::fs::read_to_string(source).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("//! ")).unwrap_or("(its file has no //! line)").to_owned()
}

/// Builds those of testkit's suites at once that are to run: one after the other, each would have a single processor. An error is not looked at: whose source
/// it is says it when it is built, and the others are there.
pub fn build_ahead(suites: &[Suite]) -> Result<()> {
    let chosen = suites.iter().filter(|suite| suite.kind == Kind::Integration);
    let tests: Vec<&str> = chosen.flat_map(|suite| ["--test", &suite.name]).collect();
    if !tests.is_empty() {
        cargo().args(["build", "-p", TESTKIT, "--keep-going"]).args(tests).status()?;
    }
    Ok(())
}

/// Builds the programs of a suite.
pub fn build(suite: &Suite) -> Result<Vec<Program>> {
    let mut programs = match suite.kind {
        Kind::Doc => doc_programs(),
        // All that testkit's suites, which have rows of their own, leave out.
        Kind::Unit => {
            build_examples(&suite.name);
            let others = ["--workspace", "--exclude", TESTKIT, "--lib", "--bins", "--tests"];
            [
                build_tests(cargo().args(test_args(&others)))?,
                build_tests(cargo().args(test_args(&["-p", TESTKIT, "--lib"])))?,
            ]
            .concat()
        }
        Kind::Integration => {
            build_examples(&suite.name);
            build_tests(cargo().args(test_args(&["-p", TESTKIT, "--test", &suite.name])))?
        }
        Kind::Loom => loom_programs()?,
    };
    programs.iter_mut().for_each(|program| program.args.extend(suite.part.clone()));
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

fn test_args<'a>(chosen: &[&'a str]) -> Vec<&'a str> {
    [&["test"], chosen, &["--no-run", "--message-format", "json-render-diagnostics"]].concat()
}

fn build_tests(cargo: &mut Command) -> Result<Vec<Program>> {
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !output.status.success() {
        return Err("it does not build: see above".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(built_test).collect())
}

/// As the tests will find them.
fn build_examples(suite: &str) {
    for (_, example) in EXAMPLES.iter().filter(|(of, _)| *of == suite) {
        env::example(example);
    }
    if WITH_LIBRARY.contains(&suite) {
        env::c_library();
    }
}

/// Tests named after loom: files of that name whole, and inside the crates only the tests with it in their path, because the others
/// use loom's atomics where no model runs, which loom forbids.
fn loom_programs() -> Result<Vec<Program>> {
    let mut cargo = cargo();
    // A directory of its own, or every change between with and without loom would build the world anew.
    cargo.env("CARGO_TARGET_DIR", env::target_dir().join(LOOM)).env("RUSTFLAGS", "--cfg loom");
    let crates = LOOM_CRATES.iter().flat_map(|name| ["-p", name]);
    let chosen: Vec<&str> = ["--lib", "--test", "*loom*"].into_iter().chain(crates).collect();
    let mut programs = build_tests(cargo.args(test_args(&chosen)))?;
    for program in programs.iter_mut().filter(|program| !program.name.contains(LOOM)) {
        program.args.push(LOOM.into());
    }
    Ok(programs)
}

/// Examples are compiled and run by rustdoc, which only cargo can start. Those of testkit apart: with it, the others would be built with features that no other suite has.
fn doc_programs() -> Vec<Program> {
    let program = |name: &str, chosen: &[&str]| {
        let cargo = cargo();
        let args = [&["test", "--doc"], chosen, &["--"]].concat().into_iter().map(String::from).collect();
        Program { name: name.into(), path: cargo.get_program().into(), args, dir: env::workspace_root() }
    };
    vec![program("doc", &["--workspace", "--exclude", TESTKIT]), program("doc/testkit", &["-p", TESTKIT])]
}

/// A line of cargo's JSON messages, as far as it is read here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn built_test(line: &str) -> Option<Program> {
    let message: Message = serde_json::from_str(line).ok()?;
    let (path, manifest, target) = (message.executable?, message.manifest_path?, message.target?);
    let is_test = message.reason == "compiler-artifact" && message.profile?.test;
    let dir = manifest.parent()?.to_path_buf();
    let crate_name = dir.file_name()?.to_string_lossy().into_owned();
    let is_integration = target.kind.iter().any(|kind| kind == "test");
    let name = match crate_name.as_str() {
        "testkit" if is_integration => target.name,
        _ if is_integration => format!("{crate_name}/{}", target.name),
        _ => crate_name,
    };
    is_test.then_some(Program { name, path, args: Vec::new(), dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_the_targets_that_cargo_sees() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("created");
            std::fs::write(path, text).expect("written");
        };
        write("random.rs", "//! Random calls.\n");
        write("smoke.rs", "//! The tools.\n");
        write("programs/main.rs", "//! Real programs.\n");
        write("programs/redis.rs", "");
        write("common/mod.rs", "");
        write("notes.txt", "");
        let suites = integration_suites(dir.path()).expect("readable");
        let names: Vec<_> = suites.iter().map(|suite| (suite.name.as_str(), suite.about.as_str())).collect();
        assert_eq!(names, [("smoke", "The tools."), ("programs", "Real programs."), ("random", "Random calls.")]);
    }

    fn choice(suite: &str, part: Option<&str>) -> Choice {
        Choice { suite: suite.into(), part: part.map(String::from) }
    }

    #[test]
    fn two_parts_of_a_suite_are_two_runs() {
        let suites =
            chosen(&[choice("smoke", Some("a")), choice("unit", None), choice("smoke", Some("b"))]).expect("known");
        let names: Vec<_> = suites.iter().map(|suite| (suite.name.as_str(), suite.part.as_deref())).collect();
        assert_eq!(names, [("unit", None), ("smoke", Some("a")), ("smoke", Some("b"))]);
    }

    #[test]
    fn an_unknown_suite_is_an_error_that_names_the_known_ones() {
        let error = chosen(&[choice("no-such-suite", None)]).expect_err("unknown").to_string();
        assert!(error.contains("no-such-suite") && error.contains("unit, doc, loom"), "{error}");
    }

    #[test]
    fn a_test_executable_is_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/shm/Cargo.toml","target":{"kind":["lib"],"name":"ropeway_shm"},"profile":{"test":true},"executable":"/t/x"}"#;
        let program = built_test(line).expect("a test");
        assert_eq!((program.name.as_str(), program.dir.as_path()), ("shm", Path::new("/w/crates/shm")));
        let integration = line.replace("\"lib\"", "\"test\"").replace("ropeway_shm", "oracle");
        assert_eq!(built_test(&integration).expect("a test").name, "shm/oracle");
        assert_eq!(built_test(&integration.replace("crates/shm", "crates/testkit")).expect("a test").name, "oracle");
        assert!(built_test(&line.replace("true", "false")).is_none());
        assert!(built_test(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
