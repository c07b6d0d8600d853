//! Too little memory for segments: connections stay on TCP with a reason, and no program is ended for it.

use ropeway_testkit::compat::is_bare;
use ropeway_testkit::faults::{LIMIT, Over, Peer, assert_over_shm, assert_over_tcp, traffic};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{World, faults, need_program, need_root, net, skip};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// For so long a crowd goes on with its rounds: time for the rendezvous to grant what there is.
const GROWING: Duration = Duration::from_secs(2);

/// A memory cgroup of the test's own, removed with this value. Declare it before the processes in it.
struct Cgroup {
    path: PathBuf,
    limit_file: &'static str,
}

impl Cgroup {
    /// Version 2 where it has the memory controller, else version 1; `None` where neither can be used.
    fn new(name: &str) -> Option<Self> {
        let roots = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        roots.into_iter().find_map(|(root, limit_file)| {
            let path = PathBuf::from(root).join(format!("ropeway-test-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            if path.join(limit_file).exists() {
                return Some(Self { path, limit_file });
            }
            // Best effort: an empty directory that is no memory cgroup does no harm.
            let _ = std::fs::remove_dir(&path);
            None
        })
    }

    fn limit(&self, bytes: u64) {
        std::fs::write(self.path.join(self.limit_file), bytes.to_string()).expect("root may limit its own cgroup");
    }

    /// The command, inside.
    fn inside(&self, cmd: &Command) -> Command {
        let mut wrapped = command("sh", ["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        wrapped.arg(self.path.join("cgroup.procs")).arg(cmd.get_program()).args(cmd.get_args());
        for (name, value) in cmd.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        let removed = (0..200).any(|_| {
            std::fs::remove_dir(&self.path).is_ok() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        if !removed {
            eprintln!("cannot remove {}", self.path.display());
        }
    }
}

#[test]
fn a_full_memory_cgroup_keeps_connections_on_tcp() {
    need_root!();
    let Some(cgroup) = Cgroup::new("full") else {
        skip!("no memory cgroup can be made here: neither version 2 nor version 1 is mounted and writable");
    };
    let test = "memory::a_full_memory_cgroup_keeps_connections_on_tcp";
    let world = World::new();
    let over = Over::tested(&world);
    // The daemon lives outside: it is the program's memory that is short.
    Process::spawn(over.command(command::<&str>("true", []))).succeed(LIMIT);
    // A program with a few pages of its own has less left than two rings.
    cgroup.limit(4 << 20);
    let port = net::free_port();
    let (listen, connect) = (format!("listen={port}"), format!("connect={port}"));
    let peer = |steps: &[&str]| {
        let peer = over.command(command(faults::peer_program(), steps));
        Peer::from_command(cgroup.inside(&peer))
    };
    let accepting = peer(&[&listen, "accept", "pong=100", "send=50m", "recv=eof"]);
    accepting.reached("listen ");
    let connecting = peer(&[&connect, "calm=100", "recv=50m"]);
    connecting.all_right();
    accepting.all_right();
    for end in [&accepting, &connecting] {
        assert_over_tcp(&world, test, end.process.pid(), &["memory"]);
    }
}

/// A tight but sufficient cgroup: many connections are promoted, then the rest stay on TCP. Nobody is ended by the kernel.
#[test]
fn a_cgroup_that_fills_up_stops_promotion_and_kills_nobody() {
    need_root!();
    let Some(cgroup) = Cgroup::new("filling") else {
        skip!("no memory cgroup can be made here: neither version 2 nor version 1 is mounted and writable");
    };
    let test = "memory::a_cgroup_that_fills_up";
    let world = World::new();
    let over = Over::tested(&world);
    Process::spawn(over.command(command::<&str>("true", []))).succeed(LIMIT);
    cgroup.limit(64 << 20);
    let port = net::free_port().to_string();
    let crowd = |args: &[&str]| {
        let crowd = over.command(command(faults::program("crowd").build(), args));
        Peer::from_command(cgroup.inside(&crowd))
    };
    let server = crowd(&["serve", &port]);
    server.process.wait_for_port(port.parse().expect("a port"), LIMIT);
    let mut client = crowd(&["hold", &port, "2000"]);
    client.process.wait_for_output("held 2000", LIMIT);
    std::thread::sleep(GROWING);
    client.go();
    client.process.succeed(LIMIT);
    ropeway_testkit::servers::stop(&server.process);
    if let Some(traffic) = traffic(&world, test, client.process.pid()) {
        assert!(traffic.shm_bytes > 0, "nothing was promoted at all: {traffic:#?}");
    }
}

/// Segments are memfds: a container's tiny /dev/shm is no limit.
#[test]
fn a_tiny_dev_shm_does_not_matter() {
    need_root!();
    need_program!("unshare", "mount");
    let test = "memory::a_tiny_dev_shm_does_not_matter";
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let (listen, connect) = (format!("listen={port}"), format!("connect={port}"));
    let peer = |steps: &[&str]| {
        let peer = over.command(command(faults::peer_program(), steps));
        let script = "mount -t tmpfs -o size=4k none /dev/shm && exec \"$0\" \"$@\"";
        let mut inside = command("unshare", ["-m", "sh", "-c", script]);
        inside.arg(peer.get_program()).args(peer.get_args());
        for (name, value) in peer.get_envs() {
            inside.env(name, value.unwrap_or_default());
        }
        Peer::from_command(inside)
    };
    let accepting = peer(&[&listen, "accept", "pong=100", "send=50m", "recv=eof"]);
    accepting.reached("listen ");
    let connecting = peer(&[&connect, "calm=100", "recv=50m"]);
    connecting.all_right();
    accepting.all_right();
    for end in [&accepting, &connecting] {
        assert_over_shm(&world, test, end.process.pid(), 1 << 20);
    }
}

/// Programs that need no more than the limit per user leaves: the configuration's cap is reached, the rest stays on TCP.
#[test]
fn connections_beyond_the_limit_of_a_user_stay_on_tcp() {
    if is_bare() {
        skip!("there is no limit on plain TCP");
    }
    let test = "memory::connections_beyond_the_limit_of_a_user";
    let world = World::new();
    let config = world.dir().join("ropeway.toml");
    std::fs::write(&config, "[limits]\nsegment_bytes = \"2 MiB\"\n").expect("one's own directory can be written");
    let with_config = |mut cmd: Command| {
        cmd.env("ROPEWAY_CONFIG", &config);
        Over::Ropeway(&world).command(cmd)
    };
    let port = net::free_port().to_string();
    let crowd = |args: &[&str]| Peer::from_command(with_config(command(faults::program("crowd").build(), args)));
    let server = crowd(&["serve", &port]);
    server.process.wait_for_port(port.parse().expect("a port"), LIMIT);
    let mut client = crowd(&["hold", &port, "200"]);
    client.process.wait_for_output("held 200", LIMIT);
    std::thread::sleep(GROWING);
    client.go();
    client.process.succeed(LIMIT);
    ropeway_testkit::servers::stop(&server.process);
    let traffic = traffic(&world, test, client.process.pid()).expect("not bare");
    assert!(traffic.shm_bytes > 0 && traffic.tcp_bytes > traffic.shm_bytes, "{traffic:#?}");
    assert!(traffic.reasons.contains_key("limits"), "{traffic:#?}");
}
