//! The preload library by itself: what it exports and needs, and that functions which it stands in front of do what they did.
//!
//! The programs in `crates/testkit/programs/preload` write what they observe. Here they run with nothing but the library
//! preloaded: most without a rendezvous, so that every connection stays on TCP; bytes over shared memory are the matter of other suites.

use ropeway_testkit::env::{self, CProgram, workspace_root};
use ropeway_testkit::proc::{Exit, Finished, Process, command};
use ropeway_testkit::{Stats, World, need_program, need_root, parse_stats, skip};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

fn program(name: &str) -> PathBuf {
    source(name).build()
}

fn source(name: &str) -> CProgram {
    CProgram::new(format!("crates/testkit/programs/preload/{name}.c"))
}

/// A program of the suite, with the libraries preloaded.
fn preloaded(program: &Path, args: &[&str], libraries: &[&Path]) -> Command {
    let list: Vec<&str> = libraries.iter().map(|path| path.to_str().expect("a path in UTF-8")).collect();
    let mut cmd = command(program, args);
    // An address where nobody listens: what is on this machine besides the test does not matter.
    cmd.env("LD_PRELOAD", list.join(":")).env("ROPEWAY_SOCKET", "ropeway-test/nobody");
    cmd
}

fn run(cmd: Command) -> Finished {
    Process::spawn(cmd).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a program without and with the library, and wants no difference.
fn assert_same(name: &str) {
    let program = program(name);
    let (bare, with) = (run(command(&program, [""; 0])), run(preloaded(&program, &[], &[&env::preload()])));
    assert!(bare.success(), "{name} fails without the library already: {bare:?}");
    let lines = bare.stdout.lines().zip(with.stdout.lines());
    let first = lines.clone().position(|(a, b)| a != b).unwrap_or(lines.count());
    let shown = |text: &str| text.lines().skip(first).take(3).collect::<Vec<_>>().join("\n  ");
    assert!(
        bare.stdout == with.stdout && bare.exit == with.exit,
        "{name} differs from line {} on\nwithout the library:\n  {}\nwith it ({:?}):\n  {}\n{}",
        first + 1,
        shown(&bare.stdout),
        with.exit,
        shown(&with.stdout),
        with.stderr
    );
}

#[test]
fn handlers_are_installed_called_and_shown_as_before() {
    assert_same("handlers");
}

#[test]
fn processes_and_programs_start_as_before() {
    assert_same("launch");
}

#[test]
fn variable_arguments_checked_sizes_and_calls_by_number_come_through() {
    assert_same("formats");
}

#[test]
fn programs_that_close_or_replace_everything_see_no_difference() {
    assert_same("numbers");
}

#[test]
fn a_filter_that_allows_the_program_alone_is_not_offended() {
    assert_same("filtered");
    let by_number = run(preloaded(&program("filtered"), &["by number"], &[&env::preload()]));
    assert!(by_number.success(), "{by_number:?}");
}

#[test]
fn a_filter_is_not_offended_after_connections_were_over_shared_memory() {
    let filtered = program("filtered");
    for way in ["", "by number", "shared"] {
        let world = World::new();
        let (bare, with) = (command(&filtered, [way]), world.command(&command(&filtered, [way])));
        let (bare, with) = (run(bare), run(with));
        assert!(bare.success() && bare.stdout == with.stdout, "{way}: {with:?}");
        let bytes = world.shm_bytes();
        assert!(bytes.sent > 0 && bytes.received > 0, "{way}: nothing was over shared memory: {:?}", world.stats());
    }
}

#[test]
fn descriptors_of_its_own_are_there_for_the_test_to_find() {
    let count = |cmd: Command| run(cmd).expect_success().stdout.trim().parse::<u32>().expect("a number");
    let numbers = program("numbers");
    assert_eq!(count(command(&numbers, ["strangers"])), 0);
    assert!(
        count(preloaded(&numbers, &["strangers"], &[&env::preload()])) > 0,
        "nothing to protect: the test above is void"
    );
}

#[test]
fn a_storm_of_signals_reaches_its_handler_whole_and_in_order() {
    let world = World::new();
    let storm = run(world.command(&command(program("storm"), [""; 0])));
    assert_eq!(
        storm.stdout.lines().last(),
        Some("20000 signals, 0 wrong, 0 messages broken, mask as before"),
        "{storm:?}"
    );
    let bytes = world.shm_bytes();
    assert!(bytes.sent > 0 && bytes.received > 0, "no message over shared memory was interrupted: {:?}", world.stats());
}

/// The statistics that processes of one program left, which was started with this setting of the environment.
fn stats_of(way: &str, libraries: &[&Path], setting: Option<(&str, &str)>) -> (Finished, Vec<Stats>) {
    let dir = tempfile_dir();
    let stats = dir.path().join("stats.jsonl");
    let mut cmd = preloaded(&program("exits"), &[way], libraries);
    cmd.env("ROPEWAY_STATS", &stats).envs(setting);
    let finished = run(cmd);
    // A background process may still be leaving.
    let deadline = Instant::now() + Duration::from_millis(if way == "daemon" { 500 } else { 0 });
    while Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    (finished, parse_stats(&stats))
}

fn tempfile_dir() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ropeway-preload-").tempdir().expect("a temporary directory")
}

#[test]
fn every_way_out_leaves_the_statistics_once() {
    for way in ["return", "exit", "_exit", "_Exit", "quick_exit", "exit_group", "exec", "vfork"] {
        let (finished, stats) = stats_of(way, &[&env::preload()], None);
        assert_eq!(finished.exit, Exit::Code(3), "{way}");
        assert_eq!(stats.len(), 1, "{way}: {stats:?}");
        assert_eq!((stats[0].bytes.tcp.sent, stats[0].bytes.tcp.received), (10, 10), "{way}");
    }
}

#[test]
fn what_is_written_by_several_processes_or_twice_adds_up() {
    for (way, bytes, exit) in [("exec in vain", 20, 3), ("daemon", 10, 0)] {
        let (finished, stats) = stats_of(way, &[&env::preload()], None);
        assert_eq!(finished.exit, Exit::Code(exit), "{way}");
        assert_eq!(stats.iter().map(|s| s.bytes.tcp.sent).sum::<u64>(), bytes, "{way}: {stats:?}");
        assert_eq!(stats.iter().map(|s| s.connections).sum::<u64>(), 2, "{way}: {stats:?}");
    }
}

#[test]
fn switched_off_it_does_nothing() {
    let (finished, stats) = stats_of("exit", &[&env::preload()], Some(("ROPEWAY", "off")));
    assert_eq!((finished.exit, stats.len()), (Exit::Code(3), 0));
}

#[test]
fn a_second_copy_leaves_the_work_to_the_first() {
    let dir = tempfile_dir();
    let copy = dir.path().join("libropeway_preload.so");
    std::fs::copy(env::preload(), &copy).expect("the library can be copied");
    let (finished, stats) = stats_of("exit", &[&env::preload(), &copy], None);
    assert_eq!(finished.exit, Exit::Code(3), "{finished:?}");
    assert_eq!(stats.len(), 1, "{stats:?}");
    assert_eq!(stats[0].bytes.tcp.sent, 10);
}

#[test]
fn a_program_with_more_rights_than_its_user_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    need_root!();
    need_program!("setpriv");
    let dir = tempfile_dir();
    let (privileged, stats) = (dir.path().join("exits"), dir.path().join("stats.jsonl"));
    env::install(&program("exits"), &privileged);
    for (path, mode) in [(dir.path(), 0o777), (&privileged, 0o4755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("one's own file");
    }
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut cmd = command("setpriv", user);
    cmd.arg(&privileged).arg("exit").env("LD_PRELOAD", env::preload()).env("ROPEWAY_STATS", &stats);
    assert_eq!(run(cmd).exit, Exit::Code(3));
    assert!(!stats.exists(), "the library worked in a set-user-id program");
}

#[test]
fn an_allocator_before_or_after_it_makes_no_difference() {
    let allocator = Path::new("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2");
    if !allocator.is_file() {
        skip!("not installed: libjemalloc2 (scripts/setup test installs it)");
    }
    for libraries in [[allocator, &env::preload()], [&env::preload(), allocator]] {
        let (finished, stats) = stats_of("exit", &libraries, None);
        assert_eq!((finished.exit, stats.len()), (Exit::Code(3), 1), "{libraries:?}: {finished:?}");
        let launch = run(preloaded(&program("launch"), &[], &libraries));
        assert!(launch.success(), "{libraries:?}: {launch:?}");
    }
}

#[test]
fn a_sanitizer_beside_it_finds_nothing() {
    for name in ["formats", "handlers"] {
        let sanitized = source(name).flag("-fsanitize=address").build();
        let mut cmd = preloaded(&sanitized, &[], &[&env::preload()]);
        // The order of libraries is what the test is about; leaks are the program's own.
        cmd.env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0:handle_segv=0:allow_user_segv_handler=1");
        let finished = run(cmd);
        assert!(finished.success() && !finished.stderr.contains("ERROR: AddressSanitizer"), "{name}: {finished:?}");
    }
}

#[test]
fn libraries_that_start_before_it_may_use_everything() {
    let early = source("early").flag("-shared").flag("-fPIC").build();
    for libraries in [[&env::preload(), &early], [&early, &env::preload()]] {
        let (finished, stats) = stats_of("exit", &libraries.map(PathBuf::as_path), None);
        assert_eq!(finished.stdout, "through: early\nchild exited with 0\nthrough: ten bytes.\n", "{finished:?}");
        assert_eq!((finished.exit, stats.len()), (Exit::Code(3), 1), "{stats:?}");
    }
}

#[test]
fn a_program_of_another_c_library_runs() {
    need_program!("musl-gcc");
    let foreign = source("foreign").compiler("musl-gcc").build();
    let finished = run(preloaded(&foreign, &[], &[&env::preload()]));
    assert_eq!((finished.exit, finished.stdout.trim()), (Exit::Code(0), "hello, child 3, signal 1"), "{finished:?}");
}

#[test]
fn io_uring_is_not_there_unless_it_is_allowed() {
    let uring = program("uring");
    let with = |setting: Option<(&str, &str)>| {
        let mut cmd = preloaded(&uring, &[], &[&env::preload()]);
        cmd.envs(setting);
        run(cmd).expect_success().stdout
    };
    assert_eq!(with(None), "io_uring: ENOSYS\n");
    assert_eq!(with(Some(("ROPEWAY_IO_URING", "allow"))), run(command(&uring, [""; 0])).stdout);
}

#[test]
fn a_program_whose_files_must_be_small_is_not_ended() {
    let bounded = program("bounded");
    let world = World::new();
    let first = run(world.command(&command(&bounded, ["files"])));
    assert!(first.success() && first.stdout == "through: to the end\n", "no table, all on TCP: {first:?}");
    run(world.command(&command(&bounded, [""]))).expect_success();
    let lines = world.stats().len();
    assert!(lines > 0 && world.shm_bytes().sent > 0, "nothing was over shared memory: {:?}", world.stats());
    let later = run(world.command(&command(&bounded, ["files later"])));
    assert!(later.success() && later.stdout == first.stdout, "{later:?}");
    assert_eq!(world.stats().len(), lines, "the file of statistics may not become longer");
}

#[test]
fn a_program_that_locks_its_memory_locks_what_it_uses() {
    need_root!();
    const MOST_KIB: u64 = 1024;
    let world = World::new();
    let locked = run(world.command(&command(program("bounded"), ["memory"]))).expect_success();
    assert!(world.shm_bytes().sent > 0, "nothing was over shared memory: {:?}", world.stats());
    let kib: u64 = locked.stdout.lines().last().and_then(|line| line.parse().ok()).expect("a number");
    assert!(kib < MOST_KIB, "{kib} KiB of shared memory are there");
}

/// The names in the first column of the tables of docs/interposition.md.
fn documented() -> BTreeSet<String> {
    let path = workspace_root().join("docs/interposition.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let names = cells
        .flat_map(|cell| cell.split('`').filter(|name| !name.trim().is_empty()).map(str::to_owned).collect::<Vec<_>>());
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn it_exports_what_the_documentation_lists_and_nothing_else() {
    need_program!("nm");
    let listed = run(command("nm", ["-D", "--defined-only", env::preload().to_str().expect("a path in UTF-8")]));
    let symbols = listed.expect_success().stdout;
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| Some(line.split_whitespace().last()?.to_owned())).collect();
    let documented = documented();
    let missing: Vec<_> = documented.difference(&exported).collect();
    let unlisted: Vec<_> = exported.difference(&documented).collect();
    assert!(!exported.is_empty() && missing.is_empty(), "in docs/interposition.md, but not exported: {missing:?}");
    assert!(unlisted.is_empty(), "exported, but not in docs/interposition.md: {unlisted:?}");
}

#[test]
fn it_needs_the_c_library_alone() {
    need_program!("readelf");
    let library = env::preload();
    let dynamic = run(command("readelf", ["-dW", library.to_str().expect("a path in UTF-8")])).expect_success().stdout;
    let needed: Vec<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    assert_eq!(needed, ["libc.so.6"]);
    assert!(dynamic.contains("NOW") && !dynamic.contains("TEXTREL"), "{dynamic}");
}

#[test]
fn it_loads_in_less_than_a_millisecond() {
    const RUNS: usize = 60;
    let exits = program("uring");
    let time = |cmd: &dyn Fn() -> Command| {
        let mut times: Vec<Duration> = (0..RUNS)
            .map(|_| {
                let mut cmd = cmd();
                cmd.stdout(std::process::Stdio::null());
                let start = Instant::now();
                cmd.status().expect("the program runs");
                start.elapsed()
            })
            .collect();
        times.sort();
        // The least disturbed tenth of the runs.
        times[RUNS / 10]
    };
    let bare = time(&|| command(&exits, [""; 0]));
    let with = time(&|| preloaded(&exits, &[], &[&env::preload()]));
    let cost = with.saturating_sub(bare);
    assert!(cost < Duration::from_millis(1), "{cost:?}: {with:?} with the library, {bare:?} without");
}
