//! Real servers as the suites run them: their configuration, their users, their versions.

use crate::env::{self, find_program, workspace_root};
use crate::net;
use crate::proc::{Exit, Finished, Process, command};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a server may take to listen. PostgreSQL under load on two cores needs the most.
pub const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a server may take to end after it was asked to.
pub const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How long a client may take: far above what any needs, so that only a hang reaches it.
pub const LOAD_LIMIT: Duration = Duration::from_secs(60);

const SIGTERM: i32 = 15;

/// Asks a server to end with SIGTERM and requires that it ends by itself, or by that signal if it installs no handler.
///
/// # Panics
/// With its output, when it crashes, fails or stays.
#[track_caller]
pub fn stop(server: &Process) -> Finished {
    let finished = server.terminate(STOP_LIMIT);
    // 128 + SIGTERM is how a JVM, and HAProxy's master, report an orderly end by that signal.
    let orderly = [Exit::Code(0), Exit::Code(128 + SIGTERM), Exit::Signal(SIGTERM)];
    assert!(
        orderly.contains(&finished.exit),
        "{} ended with {:?}:\n{}",
        finished.command,
        finished.exit,
        finished.stderr
    );
    finished
}

/// The version that a program prints: the first word with a digit and a dot.
///
/// # Panics
/// When it prints none.
#[track_caller]
pub fn version(program: impl AsRef<Path>, args: &[&str]) -> String {
    let finished = Process::spawn(command(program.as_ref(), args)).wait(LOAD_LIMIT).unwrap_or_else(|e| panic!("{e}"));
    let text = finished.stdout + &finished.stderr;
    let digits = |word: &str| word.find(|c: char| c.is_ascii_digit()).map(|start| word[start..].to_owned());
    let trimmed = |word: String| word.trim_end_matches([',', ')', '"', ']']).to_owned();
    text.split_ascii_whitespace()
        .filter(|word| word.contains('.'))
        .find_map(|word| digits(word).map(trimmed).filter(|word| word.contains('.')))
        .unwrap_or_else(|| panic!("no version in the output of {}:\n{text}", program.as_ref().display()))
}

/// The command, run as another user. Root's own rendezvous serves it: `ropeway run` is what root starts, around this command.
///
/// # Panics
/// When there is no such user.
pub fn as_user(user: &str, cmd: &Command) -> Command {
    let group = primary_group(user);
    let mut wrapped = command("setpriv", ["--reuid", user, "--regid", &group, "--init-groups", "--"]);
    wrapped.arg(cmd.get_program()).args(cmd.get_args());
    wrapped
}

/// The number of a user's own group.
fn primary_group(user: &str) -> String {
    let accounts = std::fs::read_to_string("/etc/passwd").expect("there is a list of users");
    let account = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == user);
    account.and_then(|fields| fields.get(3).map(|gid| gid.to_string())).unwrap_or_else(|| panic!("no user {user}"))
}

/// Debian's own Python, not one that a version manager puts before it in `PATH`.
pub fn python() -> PathBuf {
    let debian = PathBuf::from("/usr/bin/python3");
    if debian.exists() { debian } else { find_program("python3").unwrap_or(debian) }
}

/// A program text of the suites, from `crates/testkit/programs/apps`.
pub fn app(name: &str) -> PathBuf {
    workspace_root().join("crates/testkit/programs/apps").join(name)
}

/// A program of the suites in Python.
pub fn python_app<'a>(name: &str, args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut cmd = Command::new(python());
    cmd.arg(app(name)).args(args);
    cmd
}

/// A file of `bytes` bytes whose content repeats nowhere nearby.
///
/// # Panics
/// When it cannot be written.
pub fn make_file(path: &Path, bytes: usize) {
    let word = |index: u64| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index >> 3)).to_le_bytes();
    let content: Vec<u8> = (0..).flat_map(word).take(bytes).collect();
    std::fs::write(path, content).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
}

/// Requires that two files hold the same bytes.
///
/// # Panics
/// With their names, when they do not.
#[track_caller]
pub fn assert_same_file(left: &Path, right: &Path) {
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    let (a, b) = (read(left), read(right));
    assert_eq!(a.len(), b.len(), "{} and {} differ in length", left.display(), right.display());
    assert!(a == b, "{} and {} differ", left.display(), right.display());
}

/// nginx with workers of another user, keep-alive and sendfile, serving `root` on 127.0.0.1.
pub fn nginx(dir: &Path, root: &Path, port: u16) -> Command {
    let config = format!(
        "daemon off; user www-data; worker_processes 2; pid {dir}/nginx.pid; error_log {dir}/nginx.log;\n\
         events {{ worker_connections 2048; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_timeout 60; keepalive_requests 10000000;\n\
         server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n",
        dir = dir.display(),
        root = root.display(),
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, config).expect("the configuration of nginx can be written");
    let mut cmd = Command::new(find_program("nginx").expect("the caller has asked for nginx"));
    cmd.arg("-c").arg(file);
    cmd
}

/// HAProxy on 127.0.0.1:`port` in front of 127.0.0.1:`backend`, as another user in an empty root directory.
pub fn haproxy(dir: &Path, port: u16, backend: u16) -> Command {
    let jail = dir.join("jail");
    std::fs::create_dir_all(&jail).expect("a directory can be made");
    let config = format!(
        "global\n  chroot {jail}\n  user haproxy\n  group haproxy\n  nbthread 2\n\
         defaults\n  mode http\n  http-reuse always\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
         frontend front\n  bind 127.0.0.1:{port}\n  default_backend back\n\
         backend back\n  server only 127.0.0.1:{backend}\n",
        jail = jail.display(),
    );
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, config).expect("the configuration of HAProxy can be written");
    let mut cmd = Command::new(find_program("haproxy").expect("the caller has asked for haproxy"));
    cmd.arg("-db").arg("-f").arg(file);
    cmd
}

/// Ends HAProxy, which listens on `port`, in its orderly way (SIGTERM would end it where it stands), once its clients have
/// gone and it has nothing to do. Version 2.6 reads freed memory if a change to its epoll set is pending when it ends, with
/// or without Ropeway (mended in 2.7: "fd: always remove late updates when freeing fd_updt[]").
///
/// # Panics
/// With what it printed, when it does not end, or badly.
#[track_caller]
pub fn stop_haproxy(haproxy: &Process, port: u16) {
    let is_idle = || !net::has_connections(haproxy.pid(), port) && haproxy.is_asleep();
    haproxy.wait_until("HAProxy has nothing to do", STOP_LIMIT, is_idle).unwrap_or_else(|e| panic!("{e}"));
    haproxy.signal(Signal::USR1);
    haproxy.succeed(STOP_LIMIT);
}

/// The programs of the newest PostgreSQL that Debian installed, which are not in `PATH`.
pub fn postgres_bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|entry| entry.path().join("bin"));
    versions.filter(|bin| bin.join("postgres").is_file() && bin.join("pgbench").is_file()).max()
}

/// A fresh PostgreSQL cluster in `dir`, listening on 127.0.0.1:`port` alone; returns the command of its server.
///
/// # Panics
/// When the cluster cannot be made.
pub fn postgres(bin: &Path, dir: &Path, port: u16) -> Command {
    let data = dir.join("pg");
    let mut initdb = Command::new(bin.join("initdb"));
    initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]).arg(&data);
    Process::spawn(as_user("postgres", &initdb)).succeed(LOAD_LIMIT);
    let mut server = Command::new(bin.join("postgres"));
    server.arg("-D").arg(&data).arg("-k").arg(dir).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    for setting in ["fsync=off", "max_connections=50", "shared_buffers=32MB"] {
        server.args(["-c", setting]);
    }
    as_user("postgres", &server)
}

/// A class of Java, compiled into `dir`; returns the command that runs it.
///
/// # Panics
/// When it does not compile.
pub fn java_app(class: &str, dir: &Path) -> Command {
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(dir).arg(app(&format!("{class}.java")));
    Process::spawn(javac).succeed(LOAD_LIMIT);
    let mut java = Command::new("java");
    java.arg("-cp").arg(dir).arg(class);
    java
}

/// The static echo program of the suites, compiled by Go.
///
/// # Panics
/// When it does not compile.
pub fn go_echo(dir: &Path) -> PathBuf {
    let program = dir.join("go-echo");
    let mut go = Command::new("go");
    go.env("CGO_ENABLED", "0").args(["build", "-o"]).arg(&program).arg(app("static/echo.go"));
    // The first build on a machine compiles Go's own library too.
    Process::spawn(go).succeed(3 * LOAD_LIMIT);
    program
}

/// The static echo program of the suites, against musl.
pub fn musl_echo() -> PathBuf {
    env::CProgram::new("crates/testkit/programs/apps/static/echo.c").compiler("musl-gcc").flag("-static").build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_word_with_digits_and_a_dot() {
        assert_eq!(version("echo", &["Redis server v=7.0.15 sha=0:0"]), "7.0.15");
        assert_eq!(version("echo", &["nginx version: nginx/1.22.1"]), "1.22.1");
        assert_eq!(version("echo", &[r#"openjdk version "17.0.15" 2025-04-15"#]), "17.0.15");
    }
}
