//! Patterns over the MPIs that are installed: this program starts itself under their launchers.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ropeway_measure::pattern::{Bound, Trial, catalogue, named, run};
use ropeway_measure::transport::Transport;
use ropeway_measure::transport::mpi::OverMpi;
use ropeway_testkit::need_program;

/// Says what the rank is to do.
const PART_VAR: &str = "ROPEWAY_TEST_PART";

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a part in so many ranks. A launcher that hangs is ended by `timeout`, and all its ranks with it.
fn launch(launcher: &str, options: &[&str], part: &str, cache: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args(["120", launcher]).args(options);
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_rank", "--nocapture"]);
    command.env(PART_VAR, part).env("XDG_CACHE_HOME", cache);
    // The rest of the machine may be busy: ranks that wait give way.
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    // Jobs that begin and end at the same time take each other's directory away where they share one.
    command.env("OMPI_MCA_orte_tmpdir_base", cache);
    command.output().expect("timeout is installed")
}

const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe", "-n", "3"];
const MPICH: &[&str] = &["-n", "3"];

fn check(output: &Output, library: &str) {
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let about = || format!("{}\n{said}\n{complained}", output.status);
    assert!(output.status.success(), "{}", about());
    assert!(said.contains(library), "{}", about());
    for entry in catalogue().iter().filter(|entry| has_all(entry.name)) {
        assert!(said.contains(&format!("measured {}", entry.name)), "{}: {}", entry.name, about());
    }
}

/// Those that need nothing but messages.
fn has_all(pattern: &str) -> bool {
    !["connections", "search", "stages"].contains(&pattern)
}

#[test]
fn open_mpi_carries_the_patterns() {
    need_program!("mpirun.openmpi", "mpicc.openmpi");
    let cache = tempfile::tempdir().expect("a directory");
    check(&launch("mpirun.openmpi", OPEN_MPI, "patterns", cache.path()), "Open MPI");
}

#[test]
fn mpich_carries_the_patterns() {
    need_program!("mpirun.mpich", "mpicc.mpich");
    let cache = tempfile::tempdir().expect("a directory");
    check(&launch("mpirun.mpich", MPICH, "patterns", cache.path()), "MPICH");
}

#[test]
fn a_rank_that_waits_in_vain_ends_with_a_reason() {
    need_program!("mpirun.openmpi", "mpicc.openmpi");
    let cache = tempfile::tempdir().expect("a directory");
    let output = launch("mpirun.openmpi", OPEN_MPI, "silence", cache.path());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("rank 1 did not answer within"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn without_a_launcher_the_error_says_how_to_start() {
    if ropeway_mpi::shim::launcher().is_some() {
        ropeway_testkit::skip!("these tests themselves run under a launcher");
    }
    let error = OverMpi::begin(PATIENCE).err().expect("nobody launched it");
    assert!(error.to_string().contains("mpirun -n 2"), "{error}");
}

/// What a rank does that a test above has started; the launcher's own test is that its ranks have said what they did.
#[test]
fn a_rank() {
    match std::env::var(PART_VAR).as_deref() {
        Ok("silence") => keep_silent(),
        Ok(_) => measure_patterns(),
        // Among the tests it is none.
        Err(_) => {}
    }
}

fn measure_patterns() {
    let mut mpi = OverMpi::begin(PATIENCE).expect("a rank of a job");
    for entry in catalogue().iter().filter(|entry| has_all(entry.name)) {
        // Beyond what MPI sends before the receiver is ready, too: both directions at once must not lock up.
        for size in [8, 1 << 20] {
            let pattern = named(entry.name, size, &Default::default()).expect(entry.name);
            let trial = Trial { pattern, size, bound: Bound::Samples(2), warm_up_ns: 0, seed: 5 };
            let series = run(&mut mpi, &trial).expect(entry.name);
            if !series.is_empty() {
                println!("rank {} measured {} with {size} bytes", mpi.rank(), entry.name);
            }
        }
    }
    println!("over {}", mpi.version().expect("a version"));
}

fn keep_silent() {
    let mut mpi = OverMpi::begin(Duration::from_millis(500)).expect("a rank of a job");
    if mpi.rank() == 0 {
        println!("{}", mpi.receive(1, &mut [0]).expect_err("nothing was sent"));
    }
}
