//! What Ropeway needs of the machine, tried one by one.

use std::ffi::OsStr;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use ropeway_socket::rendezvous::wire::Message;
use rustix::fs::{MemfdFlags, SealFlags};

use super::Verdict::{Bad, Good, Note};
use super::{Finding, Verdict};
use crate::cgroup::{self, Version};
use crate::config::Config;
use crate::daemon::control::{self, Control, ControlError};
use crate::daemon::diag::Diag;
use crate::daemon::memory;
use crate::run;

/// All findings, in the order in which a user should care.
pub fn examine() -> Vec<Finding> {
    let of_all = [preload(), configuration(), daemon(), shared_memory(), socket_lookup(), memory_room(), processors()];
    switched_off(std::env::var_os("ROPEWAY").as_deref()).into_iter().chain(of_all).collect()
}

/// By what the preload looks at, which is inherited.
fn switched_off(variable: Option<&OsStr>) -> Option<Finding> {
    let text = "ROPEWAY=off is set here: the preload does nothing in what is started; unset it";
    variable.filter(|value| *value == "off").map(|_| Finding::new(Bad, "environment", text))
}

fn preload() -> Finding {
    match run::preload_path() {
        Ok(path) => Finding::new(Good, "library", path.display().to_string()),
        Err(error) => Finding::new(Bad, "library", error),
    }
}

fn configuration() -> Finding {
    match Config::load() {
        Ok(Config { source: Some((path, _)), .. }) => Finding::new(Good, "configuration", path.display().to_string()),
        Ok(_) => Finding::new(Good, "configuration", "no file; built-in values"),
        Err(error) => Finding::new(Bad, "configuration", error.to_string()),
    }
}

fn daemon() -> Finding {
    let name = control::own_name();
    let answer = Control::connect(&name).and_then(|daemon| daemon.ask(&Message::StatusQuery {}));
    let (verdict, text) = match answer {
        Ok(Message::Status { pid, counts, .. }) => {
            let (processes, pairs) = (counts.live_processes, counts.live_pairs);
            (Good, format!("answers at @{name} (pid {pid}), {processes} processes, {pairs} connections paired"))
        }
        Ok(_) => (Bad, ControlError::Strange(name).to_string()),
        Err(ControlError::NotRunning(_)) => (Good, format!("not running at @{name}; `ropeway run` starts it")),
        Err(error) => (Bad, error.to_string()),
    };
    Finding::new(verdict, "daemon", text)
}

fn shared_memory() -> Finding {
    let sealed = || {
        let fd = rustix::fs::memfd_create("ropeway-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, 4096)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
    };
    match sealed() {
        Ok(()) => Finding::new(Good, "shared memory", "memfd_create and seals work (connections need no /dev/shm)"),
        Err(error) => {
            let hint = "a sandbox or a kernel before 3.17 forbids it";
            Finding::new(Bad, "shared memory", format!("memfd_create does not work: {error}; {hint}"))
        }
    }
}

/// Asks sock_diag about a connection of our own.
fn socket_lookup() -> Finding {
    let lookup = || -> io::Result<bool> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let cookie = rustix::net::sockopt::socket_cookie(&socket)?;
        let (local, remote) = (socket.local_addr()?.into(), socket.peer_addr()?.into());
        let found = Diag::open()?.find(&local, &remote, cookie)?;
        let me = rustix::process::geteuid().as_raw();
        Ok(found.is_some_and(|s| s.established && s.uid == me))
    };
    let hint = "load the kernel modules tcp_diag and inet_diag, and allow AF_NETLINK to the daemon";
    match lookup() {
        Ok(true) => Finding::new(Good, "socket lookup", "sock_diag names the owner of a TCP socket"),
        Ok(false) => Finding::new(Bad, "socket lookup", format!("sock_diag does not know our own TCP socket; {hint}")),
        Err(error) => Finding::new(Bad, "socket lookup", format!("sock_diag does not work: {error}; {hint}")),
    }
}

fn memory_room() -> Finding {
    let limits = Config::load().unwrap_or_else(|_| Config::built_in()).limits(memory::machine_total_bytes());
    let mib = limits.segment_bytes >> 20;
    if memory::Headroom::default().take(std::process::id(), 1 << 20) {
        Finding::new(Good, "memory", format!("room for segments; at most {mib} MiB of them per user"))
    } else {
        let hint = "new connections stay on TCP (reason `memory`) until some is freed or the limit raised";
        Finding::new(Bad, "memory", format!("the machine or this memory cgroup is nearly full; {hint}"))
    }
}

/// Spinning pays only when the other end can run meanwhile.
fn processors() -> Finding {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let membership = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let quota = cpu_quota(Path::new(cgroup::ROOT), &membership);
    let (verdict, text) = judge_processors(cpus, quota);
    Finding::new(verdict, "processors", text)
}

fn judge_processors(cpus: usize, quota: Option<f64>) -> (Verdict, String) {
    match quota {
        _ if cpus < 2 => {
            (Note, "only one may be used: waits never spin, so latency gains less; throughput gains".into())
        }
        Some(quota) if quota < 2.0 => (
            Note,
            format!("{cpus}, but the cgroup allows {quota:.1} of their time: waits never spin, latency gains less"),
        ),
        _ => (Good, format!("{cpus}: waits may spin briefly before they sleep")),
    }
}

/// The tightest CPU limit of the process's cgroups, in processors.
fn cpu_quota(root: &Path, membership: &str) -> Option<f64> {
    let dirs = cgroup::directories(root, membership, "cpu");
    dirs.iter().filter_map(|(version, dir)| quota_of(dir, *version)).reduce(f64::min)
}

fn quota_of(dir: &Path, version: Version) -> Option<f64> {
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let (quota, period) = if version == Version::V2 {
        let text = read("cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?) // "max" is no number: no limit
    } else {
        (read("cpu.cfs_quota_us")?.trim().parse().ok()?, read("cpu.cfs_period_us")?.trim().parse().ok()?)
    };
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_switched_off_is_said() {
        assert_eq!(switched_off(Some(OsStr::new("off"))).unwrap().verdict, Bad);
        assert_eq!(switched_off(Some(OsStr::new("on"))), None);
        assert_eq!(switched_off(None), None);
    }

    #[test]
    fn spinning_needs_two_processors() {
        assert_eq!(judge_processors(1, None).0, Note);
        assert_eq!(judge_processors(8, Some(1.5)).0, Note);
        assert_eq!(judge_processors(8, Some(2.0)).0, Good);
        assert_eq!(judge_processors(2, None).0, Good);
    }

    #[test]
    fn the_tightest_cpu_limit_counts() {
        let root = std::env::temp_dir().join(format!("ropeway-cpu-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("cpu/x")).unwrap();
        std::fs::write(root.join("a/cpu.max"), "150000 100000\n").unwrap();
        std::fs::write(root.join("a/b/cpu.max"), "max 100000\n").unwrap();
        std::fs::write(root.join("cpu/x/cpu.cfs_quota_us"), "50000\n").unwrap();
        std::fs::write(root.join("cpu/x/cpu.cfs_period_us"), "100000\n").unwrap();
        assert_eq!(cpu_quota(&root, "0::/a/b\n"), Some(1.5));
        assert_eq!(cpu_quota(&root, "2:cpu,cpuacct:/x\n0::/a/b\n"), Some(0.5));
        assert_eq!(cpu_quota(&root, "0::/c\n"), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
