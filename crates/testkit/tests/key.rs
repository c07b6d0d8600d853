//! `ropeway key`: what it makes can be used, and nobody else can read it.

use ropeway_testkit::World;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Exit, Finished, Process, command};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// What would decide for these tests.
const VARIABLES: [&str; 4] = ["ROPEWAY_KEY_FILE", "ROPEWAY_TRUSTED", "XDG_CONFIG_HOME", "ROPEWAY_CONFIG"];

const CLUSTER: &str = "ROPEWAY_CLUSTER";

/// What a shell that works in `home` makes of this line, in which `$0` is the program.
fn shell(home: &Path, line: &str) -> Finished {
    let ropeway = env::ropeway();
    let mut sh = command("sh", ["-c", &format!("umask 022; {line}"), ropeway.to_str().expect("UTF-8")]);
    for name in VARIABLES {
        sh.env_remove(name);
    }
    // Not that of this machine.
    sh.env(CLUSTER, "off").env("HOME", home).current_dir(home);
    Process::spawn(sh).wait(LIMIT).expect("it ends")
}

/// Its key lies beside it.
const CLUSTER_FILE: &str = "\
key_file = 'other'
[[node]]
number = 1
name = 'one'
addresses = { compute = '10.0.1.1' }
[[node]]
number = 2
name = 'two'
addresses = { compute = '10.0.1.2' }
";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it was made").permissions().mode() & 0o777
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).expect("it was made").lines().map(str::to_owned).collect()
}

#[test]
fn a_new_key_is_its_owners_alone_whoever_makes_the_file() {
    let world = World::new();
    let home = world.dir();
    shell(home, "\"$0\" key new named && \"$0\" key new > redirected").expect_success();
    let (named, redirected) = (home.join("named"), home.join("redirected"));
    for path in [&named, &redirected] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
        assert_eq!(lines(path).len(), 1);
    }
    assert_ne!(lines(&named), lines(&redirected));
    assert_eq!(shell(home, "\"$0\" key check named").expect_success().stdout, "named: one key\n");
}

#[test]
fn a_key_is_not_written_into_a_file_that_somebody_opened_before_it_was_closed_to_others() {
    let world = World::new();
    let home = world.dir();
    for redirection in [">", ">>"] {
        let refused = shell(home, &format!(": > file && exec 3< file && \"$0\" key new {redirection} file"));
        assert_eq!(refused.exit, Exit::Code(1), "{redirection}");
        assert!(refused.stderr.contains("somebody has it open"), "{}", refused.stderr);
        assert_eq!(lines(&home.join("file")).len(), 0, "{redirection}");
    }
    shell(home, "\"$0\" key new >> file && \"$0\" key check file").expect_success();
}

#[test]
fn a_second_key_is_appended_and_never_replaces_the_first() {
    let world = World::new();
    let home = world.dir();
    shell(home, "\"$0\" key new file").expect_success();
    let first = lines(&home.join("file"));
    let again = shell(home, "\"$0\" key new file");
    assert!(!again.success() && again.stderr.contains(">> file"), "{}", again.stderr);
    shell(home, "\"$0\" key new >> file").expect_success();
    let both = lines(&home.join("file"));
    assert_eq!((both.len(), &both[..1]), (2, &first[..]));
    assert!(shell(home, "\"$0\" key check file").expect_success().stdout.contains("2 keys"));
}

#[test]
fn a_key_is_appended_on_a_line_of_its_own() {
    let world = World::new();
    let home = world.dir();
    for line in [
        "\"$0\" key new file && truncate -s -1 file && \"$0\" key new >> file",
        "\"$0\" key new file && printf '# a note' >> file && \"$0\" key new >> file",
        ": > file && \"$0\" key new >> file && \"$0\" key new >> file",
    ] {
        shell(home, line).expect_success();
        assert!(shell(home, "\"$0\" key check file").expect_success().stdout.contains("2 keys"), "{line}");
        fs::remove_file(home.join("file")).expect("it is there");
    }
}

#[test]
fn a_key_is_not_added_to_what_would_be_no_key_file_then() {
    let world = World::new();
    let home = world.dir();
    let full = "\"$0\" key new file && for i in 2 3 4; do \"$0\" key new >> file; done";
    let other = "(umask 077; echo 'no key' > file)";
    for (line, why) in [(full, "4 keys"), (other, "line 1")] {
        shell(home, line).expect_success();
        let before = fs::read(home.join("file")).expect("it was made");
        let refused = shell(home, "\"$0\" key new >> file");
        assert_eq!(refused.exit, Exit::Code(1), "{line}");
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        assert_eq!(fs::read(home.join("file")).expect("it was made"), before, "{line}");
        fs::remove_file(home.join("file")).expect("it is there");
    }
}

#[test]
fn a_file_that_others_can_read_is_neither_used_nor_added_to() {
    let world = World::new();
    let home = world.dir();
    shell(home, "\"$0\" key new file && chmod 644 file").expect_success();
    for line in ["\"$0\" key check file", "\"$0\" key new >> file"] {
        let refused = shell(home, line);
        assert_eq!(refused.exit, Exit::Code(1), "{line}");
        assert!(refused.stderr.contains("0644") && refused.stderr.contains("chmod 600"), "{}", refused.stderr);
        let key = &lines(&home.join("file"))[0];
        assert!(!refused.stderr.contains(&key[..8]), "an error shows the key");
    }
    assert!(shell(home, "\"$0\" key new >> file").stderr.contains("with mode 0644 and something in it"));
    assert_eq!(lines(&home.join("file")).len(), 1);
}

#[test]
fn which_key_is_used_is_said_by_the_environment_the_cluster_file_and_to_cp_by_the_configuration() {
    let world = World::new();
    let home = world.dir();
    let undecided = shell(home, "\"$0\" key check");
    assert_eq!(undecided.exit, Exit::Code(1));
    for word in ["ropeway key new", "ROPEWAY_KEY_FILE", "ROPEWAY_TRUSTED"] {
        assert!(undecided.stderr.contains(word), "{word} is not in: {}", undecided.stderr);
    }
    shell(home, "mkdir -p .config/ropeway && \"$0\" key new .config/ropeway/key && \"$0\" key new other")
        .expect_success();
    fs::write(home.join(".config/ropeway/config.toml"), "[cluster]\nkey_file = 'key'\n").unwrap();
    fs::write(home.join("cluster.toml"), CLUSTER_FILE).unwrap();
    let check = |variables: &str| shell(home, &format!("{variables} \"$0\" key check")).expect_success().stdout;
    let at = |name: &str| home.join(name).display().to_string();
    let of_cp =
        format!("{}: one key ({}, for `ropeway cp`)", at(".config/ropeway/key"), at(".config/ropeway/config.toml"));
    let alone = check("");
    assert!(alone.starts_with(&format!("{of_cp}\nnothing for other programs")), "{alone}");
    let both = check("ROPEWAY_CLUSTER=cluster.toml");
    assert_eq!(both, format!("{of_cp}\nother: one key (cluster.toml, for other programs)\n"));
    fs::remove_file(home.join(".config/ropeway/config.toml")).unwrap();
    assert_eq!(check("ROPEWAY_CLUSTER=cluster.toml"), "other: one key (cluster.toml)\n");
    assert_eq!(
        check("ROPEWAY_CLUSTER=cluster.toml ROPEWAY_KEY_FILE=.config/ropeway/key"),
        ".config/ropeway/key: one key (ROPEWAY_KEY_FILE)\n"
    );
    let trusted = check("ROPEWAY_CLUSTER=cluster.toml ROPEWAY_TRUSTED=1");
    assert!(trusted.contains("are trusted (ROPEWAY_TRUSTED)"), "{trusted}");
    let missing = shell(home, "ROPEWAY_CLUSTER=missing.toml \"$0\" key check");
    assert!(!missing.success() && missing.stderr.contains("missing.toml"), "{}", missing.stderr);
}
