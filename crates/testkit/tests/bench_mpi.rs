//! `ropeway bench` with the transport `mpi`, and with a launcher for all transports: the ranks of Open MPI and of MPICH measure, end with their coordinator, and what is missing is said.

use ropeway_testkit::World;
use ropeway_testkit::proc::{Exit, Finished, Process};
use ropeway_testkit::slurm::Slurm;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(90);

/// One measurement at a time: ranks of MPI spin.
static CORES: Mutex<()> = Mutex::new(());

fn bench(world: &World, args: &[&str], env: &[(&str, &str)]) -> Finished {
    let args: Vec<&str> = std::iter::once("bench").chain(args.iter().copied()).collect();
    let mut command = world.ropeway_command(&args);
    command.envs(env.iter().copied());
    Process::spawn(command).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

fn ranks_are_started_and_measure(mpirun: &str) {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    // The shim is compiled by all ranks at once.
    let cache = world.dir().join("cache");
    let env = [("XDG_CACHE_HOME", cache.to_str().expect("a path"))];
    let args =
        ["pingpong", "--transport", "mpi,tcp", "--mpirun", mpirun, "--seconds", "0.1", "--rounds", "2", "--json"];
    let finished = bench(&world, &args, &env).expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let row = |name: &str| report["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["transport"] == name));
    for transport in ["mpi", "tcp"] {
        let figure = row(transport).and_then(|row| row["figure"]["median"].as_f64());
        assert!(figure.is_some_and(|figure| figure > 0.0), "{transport}: {report}");
    }
    let shim = bench(&world, &["mpi-shim", "--mpirun", mpirun], &env).expect_success();
    assert!(std::path::Path::new(shim.stdout.trim()).is_file(), "{}", shim.stdout);
    assert_eq!(std::fs::read_dir(cache.join("ropeway")).expect("a directory").count(), 1, "one shim, and nothing else");
    // A compiler that does not work.
    let broken = [env[0], ("ROPEWAY_MPICC", "/nowhere/mpicc")];
    let finished = bench(&world, &args, &broken);
    assert_eq!(finished.exit, Exit::Code(1));
    assert!(
        finished.stderr.contains("no MPI compiler") && finished.stderr.contains("/nowhere/mpicc"),
        "{}",
        finished.stderr
    );
}

#[test]
fn ranks_of_open_mpi_are_started_and_measure() {
    ropeway_testkit::need_program!("mpirun.openmpi", "mpicc.openmpi");
    ranks_are_started_and_measure("mpirun.openmpi");
}

#[test]
fn ranks_of_mpich_are_started_and_measure() {
    ropeway_testkit::need_program!("mpirun.mpich", "mpicc.mpich");
    ranks_are_started_and_measure("mpirun.mpich");
}

fn ranks_end_with_the_program(mpirun: &str) {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    for victim in ["the coordinator", "a rank"] {
        let args = ["bench", "pingpong", "--transport", "mpi", "--mpirun", mpirun, "--seconds", "30", "--rounds", "1"];
        let bench = Process::spawn(world.ropeway_command(&args));
        // Ranks and launcher alike are told where the coordinator is.
        let of_the_job = || world.processes_with("--control\0");
        let ranks = || -> Vec<u32> {
            let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            of_the_job().into_iter().filter(|pid| name(pid).trim() == "ropeway").collect()
        };
        let busy = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat
                .rsplit_once(") ")
                .map(|(_, rest)| rest.split(' ').skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum());
            fields.unwrap_or(0u64) >= 50
        };
        bench
            .wait_until("two ranks work", LIMIT, || ranks().len() == 2 && ranks().iter().all(busy))
            .unwrap_or_else(|e| panic!("{e}"));
        if victim == "a rank" {
            let pid = Pid::from_raw(ranks()[0] as i32).expect("a pid");
            rustix::process::kill_process(pid, Signal::KILL).expect("a signal for a rank");
            let finished = bench.wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(finished.exit, Exit::Code(1));
            assert!(finished.stderr.contains("is gone"), "{}", finished.stderr);
        } else {
            bench.signal(Signal::KILL);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while !of_the_job().is_empty() {
            assert!(Instant::now() < deadline, "{victim} was killed, and these live on: {:?}", of_the_job());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn ranks_of_open_mpi_end_with_the_program() {
    ropeway_testkit::need_program!("mpirun.openmpi", "mpicc.openmpi");
    ranks_end_with_the_program("mpirun.openmpi");
}

#[test]
fn ranks_of_mpich_end_with_the_program() {
    ropeway_testkit::need_program!("mpirun.mpich", "mpicc.mpich");
    ranks_end_with_the_program("mpirun.mpich");
}

/// Checks that so many transports were measured.
#[track_caller]
fn assert_measured(finished: &Finished, transports: usize) {
    let report: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), transports, "{report}");
    assert!(rows.iter().all(|row| row["figure"]["median"].as_f64().is_some_and(|figure| figure > 0.0)), "{report}");
}

/// One launcher for all transports; `meet`: as if the ranks were on other hosts.
fn a_launcher_starts_the_ranks_of_every_transport(launcher: &str, meet: &[&str]) {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let result = world.dir().join("result.jsonl");
    let ropeway = world.ropeway_command(&[]).get_program().to_str().expect("a path").to_owned();
    let mut args =
        vec!["pingpong", "--transport", "tcp,ropeway,ropeway-udp,mpi", "--launcher", launcher, "--seconds", "0.1"];
    args.extend(["--rounds", "2", "--json", "--out", result.to_str().expect("a path"), "--remote-command", &ropeway]);
    assert_measured(&bench(&world, &[&args, meet].concat(), &[]).expect_success(), 4);
    // The statistics of preloaded ranks are files, and on this host only.
    let lines = std::fs::read_to_string(&result).expect("a result");
    let line = |what: &str| lines.lines().find(|line| line.contains(what));
    assert_eq!(line(r#""line":"carried""#).is_some(), meet.is_empty(), "{lines:.2000}");
    assert_eq!(line(r#""site":"hosts""#).is_some(), !meet.is_empty());
    let run: Value = serde_json::from_str(lines.lines().next().expect("a head")).expect("JSON");
    assert_eq!(run["hosts"].as_array().map(Vec::len), Some(if meet.is_empty() { 1 } else { 2 }));
}

#[test]
fn open_mpi_starts_the_ranks_of_every_transport() {
    ropeway_testkit::need_program!("mpirun.openmpi", "mpicc.openmpi");
    a_launcher_starts_the_ranks_of_every_transport("mpirun.openmpi", &[]);
    a_launcher_starts_the_ranks_of_every_transport("mpirun.openmpi", &["--meet", "127.0.0.1"]);
}

#[test]
fn mpich_starts_the_ranks_of_every_transport() {
    ropeway_testkit::need_program!("mpirun.mpich", "mpicc.mpich");
    a_launcher_starts_the_ranks_of_every_transport("mpirun.mpich", &[]);
    a_launcher_starts_the_ranks_of_every_transport("mpirun.mpich", &["--meet", "localhost"]);
}

#[test]
fn srun_starts_the_ranks_of_every_transport_within_an_allocation() {
    ropeway_testkit::need_program!("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo", "mpicc.openmpi");
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let slurm = Slurm::start(&world, 2);
    let bench = |allocation: &[&str], transports: &str| {
        let ropeway = world.ropeway_command(&[]).get_program().to_str().expect("a path").to_owned();
        let args =
            ["bench", "pingpong", "--launcher", "srun --mpi=pmix", "--seconds", "0.1", "--rounds", "2", "--json"];
        let line = [allocation, &[&ropeway], &args, &["--transport", transports]].concat();
        let mut command = ropeway_testkit::proc::command(line[0], &line[1..]);
        slurm.join(&mut command);
        // srun starts what it finds, of whichever MPI it is.
        command.env("ROPEWAY_MPICC", "mpicc.openmpi").env(ropeway_testkit::DAEMON_SOCKET_VAR, world.socket());
        Process::spawn(command).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
    };
    let salloc = ["salloc", "--quiet", "-n", "2"];
    assert_measured(&bench(&salloc, "tcp,ropeway,ropeway-udp,mpi").expect_success(), 4);
    // One transport is a job of its own; several would be on hosts of their own.
    assert_measured(&bench(&[], "tcp").expect_success(), 1);
    let outside = bench(&[], "tcp,unix");
    assert_eq!(outside.exit, Exit::Code(1));
    assert!(outside.stderr.contains("salloc -N 2 ropeway bench"), "{}", outside.stderr);
}

/// A launcher that is this script; its first two arguments are the number of ranks.
fn launcher(world: &World, text: &str) -> String {
    let path = world.script("launcher", &format!("shift 2\n{text}\n"));
    path.to_str().expect("a path").to_owned()
}

#[test]
fn ranks_of_transports_on_different_hosts_are_warned_of() {
    ropeway_testkit::need_root!();
    ropeway_testkit::need_program!("unshare");
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    // Each job has a host of its own, by name.
    let rank = r#"PMI_RANK=$rank unshare --uts sh -c 'hostname "job$0"; exec "$@"' $$ "$@""#;
    let launcher = launcher(&world, &format!("for rank in 0 1; do {rank} & done; wait"));
    let ropeway = world.ropeway_command(&[]).get_program().to_str().expect("a path").to_owned();
    let args = ["pingpong", "--transport", "tcp,unix", "--rounds", "1", "--seconds", "0.1", "--json"];
    let far = ["--meet", "127.0.0.1", "--remote-command", &ropeway, "--launcher", &launcher];
    let finished = bench(&world, &[&args[..], &far].concat(), &[]);
    assert!(finished.stderr.contains("the ranks of tcp run on job"), "{}", finished.stderr);
    let one = ["pingpong", "--transport", "tcp", "--rounds", "1", "--seconds", "0.1", "--json"];
    let finished = bench(&world, &[&one[..], &far].concat(), &[]).expect_success();
    assert!(!finished.stderr.contains("the ranks of"), "{}", finished.stderr);
}

#[test]
fn a_launcher_that_keeps_the_environment_back_is_told_apart_from_one_that_fails() {
    let _alone = CORES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let world = World::new();
    let args = ["pingpong", "--transport", "tcp", "--rounds", "1", "--launcher"];
    let launcher = launcher(&world, "unset ROPEWAY_BENCH_TOKEN\nexec \"$@\"");
    let finished = bench(&world, &[&args[..], &[&launcher]].concat(), &[]);
    assert_eq!(finished.exit, Exit::Code(1));
    assert!(finished.stderr.contains("does not hand its environment on"), "{}", finished.stderr);
}

#[test]
fn without_a_launcher_the_error_says_what_to_install() {
    let world = World::new();
    for args in [&["pingpong", "--transport", "mpi", "--rounds", "1"][..], &["mpi-shim"]] {
        let finished = bench(&world, &[args, &["--mpirun", "/nowhere/mpirun"]].concat(), &[]);
        assert_eq!(finished.exit, Exit::Code(1));
        let said = &finished.stderr;
        assert!(
            said.contains("cannot start /nowhere/mpirun") && said.contains("apt-get install openmpi-bin"),
            "{said}"
        );
    }
}

#[test]
fn under_a_launcher_the_error_says_what_to_do_and_says_it_once() {
    let world = World::new();
    for (rank, says) in [("0", true), ("1", false)] {
        let env = [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")];
        let finished = bench(&world, &["pingpong", "--transport", "tcp"], &env);
        assert_eq!(finished.exit, Exit::Code(1));
        assert_eq!(finished.stderr.contains("--launcher"), says, "{}", finished.stderr);
    }
}
