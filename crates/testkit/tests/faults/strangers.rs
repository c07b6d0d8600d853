//! What lies between or beside the two ends: address translation, sockets connected to themselves, readers that no preload
//! sees, and images of another C library.

use ropeway_testkit::env::CProgram;
use ropeway_testkit::faults::{LIMIT, Over, Peer, assert_over_shm, assert_over_tcp, peer_program, program};
use ropeway_testkit::proc::{Exit, Process, command};
use ropeway_testkit::{World, compat, env, need_program, need_root, net, skip};
use std::process::Command;

/// A network namespace of the test's own, alive as long as this value.
struct Namespace {
    holder: Process,
}

impl Namespace {
    /// With the loopback interface up and rules of nft, if the kernel has what they need.
    fn new(rules: &str) -> Self {
        let holder = Process::spawn(command("unshare", ["-n", "sleep", "600"]));
        let own = std::fs::read_link("/proc/self/ns/net").expect("/proc is mounted");
        let theirs = || std::fs::read_link(format!("/proc/{}/ns/net", holder.pid()));
        holder
            .wait_until("a namespace", LIMIT, || theirs().is_ok_and(|ns| ns != own))
            .unwrap_or_else(|e| panic!("{e}"));
        let namespace = Self { holder };
        namespace.run(command("ip", ["link", "set", "lo", "up"]));
        if !rules.is_empty() {
            namespace.run(command("nft", [rules]));
        }
        namespace
    }

    /// The command, inside.
    fn inside(&self, cmd: &Command) -> Command {
        let mut wrapped = command("nsenter", ["-n", "-t", &self.holder.pid().to_string(), "--"]);
        wrapped.arg(cmd.get_program()).args(cmd.get_args());
        for (name, value) in cmd.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped
    }

    fn run(&self, cmd: Command) {
        Process::spawn(self.inside(&cmd)).succeed(LIMIT);
    }

    fn peer(&self, over: Over, steps: &[&str]) -> Peer {
        let peer = command(peer_program(), steps);
        Peer::from_command(self.inside(&over.command(peer)))
    }

    /// Ends the daemon in here: from outside its address is not there.
    fn stop_daemon(&self, world: &World) {
        if !compat::is_bare() {
            let mut stop = command(env::ropeway(), ["daemon", "stop"]);
            stop.env("ROPEWAY_SOCKET", world.socket());
            self.run(stop);
        }
    }
}

#[test]
fn a_redirected_connection_stays_on_tcp() {
    need_root!();
    need_program!("nft", "unshare", "nsenter", "ip");
    let test = "strangers::a_redirected_connection_stays_on_tcp";
    let world = World::new();
    let over = Over::tested(&world);
    let namespace = Namespace::new(
        "add table ip t; add chain ip t out { type nat hook output priority -100; }; \
         add rule ip t out tcp dport 5555 redirect to :6666",
    );
    let accepting = namespace.peer(over, &["listen=6666", "accept", "pong=2000", "send=10m", "recv=eof"]);
    accepting.reached("listen ");
    let connecting = namespace.peer(over, &["connect=5555", "ping=2000", "recv=10m"]);
    connecting.all_right();
    accepting.all_right();
    namespace.stop_daemon(&world);
    for end in [&accepting, &connecting] {
        assert_over_tcp(&world, test, end.process.pid(), &["peer-not-registered", "mismatch"]);
    }
}

/// Two connections whose address pairs mirror each other as the two ends of one do, though translation leads both elsewhere:
/// at the same moment both have moved the same number of bytes.
#[test]
fn two_translated_connections_that_mirror_each_other_are_not_joined() {
    need_root!();
    need_program!("nft", "unshare", "nsenter", "ip");
    let test = "strangers::two_translated_connections_that_mirror_each_other";
    let world = World::new();
    let over = Over::tested(&world);
    let namespace = Namespace::new(
        "add table ip t; add chain ip t out { type nat hook output priority -100; }; \
         add rule ip t out tcp sport 5001 tcp dport 5002 redirect to :7001; \
         add rule ip t out tcp sport 5002 tcp dport 5001 redirect to :7002",
    );
    // The servers are under Ropeway as well: their address pairs mirror nobody's.
    let server = |port: &str, salt: &str, rsalt: &str| {
        let server = namespace.peer(over, &[port, salt, rsalt, "accept", "pong=100", "pong=2000", "recv=eof"]);
        server.reached("listen ");
        server
    };
    let servers = [server("listen=7001", "salt=2", "rsalt=1"), server("listen=7002", "salt=4", "rsalt=3")];
    let client = |steps: &[&str]| {
        let client = namespace.peer(over, &[steps, &["ping=100", "mark=equal", "wait", "ping=2000"]].concat());
        client.reached("equal ");
        client
    };
    let mut clients = [
        client(&["salt=1", "rsalt=2", "bind=5001", "connect=5002"]),
        client(&["salt=3", "rsalt=4", "bind=5002", "connect=5001"]),
    ];
    clients.iter_mut().for_each(Peer::go);
    clients.iter().chain(&servers).for_each(|peer| drop(peer.all_right()));
    namespace.stop_daemon(&world);
    for client in &clients {
        assert_over_tcp(&world, test, client.process.pid(), &["mismatch"]);
    }
}

/// A promoted connection goes on where one end, a child that has no bell yet, is in another network namespace from then on.
fn goes_on_from_elsewhere(test: &str, steps: &[&str]) {
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "pong=50", "send=1m", "recv=eof"],
        &[&["calm=100"], steps, &["calm=50", "recv=1m"]].concat(),
    );
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM);
}

#[test]
fn a_promoted_connection_goes_on_from_a_new_network_namespace() {
    need_root!();
    goes_on_from_elsewhere("strangers::a_promoted_connection_goes_on_from_a_new_network_namespace", &["fork", "netns"]);
}

#[test]
fn a_promoted_connection_goes_on_in_a_child_that_begins_in_a_new_network_namespace() {
    need_root!();
    let test = "strangers::a_promoted_connection_goes_on_in_a_child_that_begins";
    goes_on_from_elsewhere(test, &["clone"]);
    goes_on_from_elsewhere(test, &["clone=function"]);
}

#[test]
fn a_promoted_connection_goes_on_from_the_network_namespace_of_another_process() {
    need_root!();
    need_program!("unshare", "nsenter", "ip");
    let namespace = Namespace::new("");
    let test = "strangers::a_promoted_connection_goes_on_from_the_network_namespace_of_another";
    goes_on_from_elsewhere(test, &["fork", &format!("netns={}", namespace.holder.pid())]);
}

/// Skips a test where the kernel gives nobody a PID namespace.
macro_rules! need_pid_namespaces {
    () => {
        need_root!();
        need_program!("unshare");
        if !command("unshare", ["--pid", "true"]).status().is_ok_and(|status| status.success()) {
            skip!("the kernel refuses a PID namespace here");
        }
    };
}

/// A child that numbers processes otherwise than its parent has the connection, too, and closes it: the parent goes on with it, and
/// then with another one.
#[test]
fn a_child_in_another_pid_namespace_takes_nothing_from_its_parent() {
    need_pid_namespaces!();
    let test = "strangers::a_child_in_another_pid_namespace_takes_nothing_from_its_parent";
    // Who has left the namespace to its children goes on over TCP.
    for (way, least_over_shm) in [("apart", 1 << 20), ("apart=function", 1 << 20), ("apart=unshare", ROUNDS_OVER_SHM)] {
        let (world, port) = (World::new(), net::free_port());
        let again = format!("connect={port}");
        let (accepting, connecting) = Peer::pair(
            Over::tested(&world),
            port,
            &["pong=100", "pong=50", "both=1m", "accept", "pong=100", "both=1m", "recv=eof"],
            &["calm=100", way, "calm=50", "both=1m", &again, "calm=100", "both=1m"],
        );
        connecting.all_right();
        accepting.all_right();
        assert_over_shm(&world, test, accepting.process.pid(), least_over_shm);
    }
}

/// What is unread in a ring whose writer has ended its stream needs a relay, which must not become the init of the new namespace.
#[test]
fn a_process_that_makes_children_in_another_pid_namespace_loses_no_unread_bytes() {
    need_pid_namespaces!();
    let test = "strangers::a_process_that_makes_children_in_another_pid_namespace";
    for way in ["apart", "apart=unshare"] {
        let world = World::new();
        let (accepting, connecting) = Peer::pair(
            Over::tested(&world),
            net::free_port(),
            &["pong=100", "send=8k", "shut", "recv=eof"],
            &["calm=100", "sleep=200", way, "recv=8k", "recv=eof"],
        );
        connecting.all_right();
        accepting.all_right();
        assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM + (8 << 10));
    }
}

/// Skips a test where the kernel's Landlock cannot restrict what the step says.
macro_rules! need_landlock {
    ($step:literal) => {
        let probe = Process::spawn(command(peer_program(), [$step]));
        if probe.wait(LIMIT).is_ok_and(|finished| finished.exit == Exit::Code(5)) {
            skip!(concat!("this kernel has no Landlock for ", $step));
        }
    };
}

#[test]
fn a_promoted_connection_stays_on_shared_memory_after_one_end_has_given_up_files() {
    need_landlock!("restrict=files");
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "send=1m", "recv=eof"],
        &["calm=100", "restrict=files", "recv=1m"],
    );
    connecting.all_right();
    accepting.all_right();
    let test = "strangers::a_promoted_connection_stays_on_shared_memory_after_one_end_has_given_up_files";
    assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM + (1 << 19));
}

/// Who may not ring the other end any more wakes it by TCP.
#[test]
fn a_promoted_connection_goes_on_after_one_end_has_restricted_itself() {
    need_landlock!("restrict");
    let test = "strangers::a_promoted_connection_goes_on_after_one_end_has_restricted_itself";
    goes_on_from_elsewhere(test, &["restrict"]);
}

#[test]
fn a_socket_connected_to_itself_stays_on_tcp() {
    let test = "strangers::a_socket_connected_to_itself_stays_on_tcp";
    let world = World::new();
    let port = net::free_port();
    let (bind, connect) = (format!("bind={port}"), format!("connect={port}"));
    // With a pause in which the answer of the rendezvous arrives.
    let rounds = [["send=1k", "recv=1k"].repeat(100), vec!["sleep=100"], ["send=1k", "recv=1k"].repeat(100)].concat();
    let peer =
        Peer::start(Over::tested(&world), [&[bind.as_str(), &connect], &rounds[..], &["shut", "recv=eof"]].concat());
    peer.all_right();
    assert_over_tcp(&world, test, peer.process.pid(), &["self-connect"]);
}

/// A connection that is promoted first, then read in another way; the other end goes on sending through Ropeway.
fn read_otherwise(test: &str, step: &str, least_over_shm: u64) {
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "send=400k", "pong=10", "recv=eof"],
        &["calm=100", "recv=100k", step, "recv=100k", "ping=10"],
    );
    // A child prints its own step into the same output.
    let steps = connecting.all_right();
    let other = step.split('=').next().expect("a step has a name");
    let received = steps.iter().filter(|step| step.name == "recv" || step.name == other).map(|step| step.count);
    assert_eq!(received.sum::<u64>(), 400 << 10, "{steps:#?}");
    accepting.all_right();
    assert_over_shm(&world, test, accepting.process.pid(), least_over_shm);
}

/// Most of the rounds before the other way of reading.
const ROUNDS_OVER_SHM: u64 = 20 * 2 * 32;

#[test]
fn stdio_reads_a_promoted_socket() {
    // A stream of stdio may read ahead, so what it is asked for ends where the sender pauses.
    let test = "strangers::stdio_reads_a_promoted_socket";
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "send=300k", "recv=32", "send=100k", "recv=eof"],
        &["calm=100", "recv=100k", "stdio=200k", "send=32", "recv=100k"],
    );
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM);
}

/// What is unread does not fit into the kernel's buffers, and the sender waits for an answer.
#[test]
fn stdio_reads_more_than_the_kernel_has_room_for() {
    let test = "strangers::stdio_reads_more_than_the_kernel_has_room_for";
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "kernelbuf=8k", "send=400k", "recv=32", "send=100k", "recv=eof"],
        &["calm=100", "kernelbuf=8k", "recv=100k", "stdio=300k", "send=32", "recv=100k"],
    );
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM + (400 << 10));
}

#[test]
fn a_deep_bound_library_reads_a_promoted_socket() {
    let library = deep_library();
    let test = "strangers::a_deep_bound_library_reads_a_promoted_socket";
    read_otherwise(test, &format!("deepbind={library}:200k"), ROUNDS_OVER_SHM);
}

#[test]
fn a_connection_read_by_a_deep_bound_library_from_the_start_stays_on_tcp() {
    let test = "strangers::a_connection_read_by_a_deep_bound_library_from_the_start";
    let world = World::new();
    let deep = format!("deepbind={}:3200", deep_library());
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["send=3200", "pong=100", "send=1m", "recv=eof"],
        &[&deep, "calm=100", "recv=1m"],
    );
    connecting.all_right();
    accepting.all_right();
    assert_over_tcp(&world, test, connecting.process.pid(), &["foreign-bytes", "mismatch", "peer-not-registered"]);
}

fn deep_library() -> String {
    let library = program("deep").flag("-shared").flag("-fPIC").build();
    library.to_str().expect("the build directory has a name in UTF-8").to_owned()
}

fn musl_peer(flags: &[&str]) -> String {
    let build = |program: CProgram, flag: &&str| program.flag(flag);
    let peer = flags.iter().fold(program("peer").compiler("musl-gcc"), build).build();
    peer.to_str().expect("the build directory has a name in UTF-8").to_owned()
}

#[test]
fn a_child_of_dynamic_musl_goes_on_with_a_promoted_socket() {
    need_program!("musl-gcc");
    let test = "strangers::a_child_of_dynamic_musl_goes_on";
    read_otherwise(test, &format!("exec={}:200k", musl_peer(&[])), ROUNDS_OVER_SHM);
}

#[test]
fn a_static_child_goes_on_with_a_promoted_socket() {
    need_program!("musl-gcc");
    let test = "strangers::a_static_child_goes_on";
    read_otherwise(test, &format!("exec={}:200k", musl_peer(&["-static"])), ROUNDS_OVER_SHM);
}

#[test]
fn a_child_under_ropeway_goes_on_with_a_promoted_socket() {
    let peer = peer_program();
    let test = "strangers::a_child_under_ropeway_goes_on";
    read_otherwise(test, &format!("exec={}:200k", peer.display()), ROUNDS_OVER_SHM);
}

/// The reader pauses until the ring is full and the sender has gone back to TCP: what a reader that knows no ring must get
/// next is in the ring, and what comes after it waits in the kernel.
fn read_otherwise_behind_a_full_ring(test: &str, step: &str) {
    let world = World::new();
    let (accepting, connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "send=2m", "recv=32", "send=100k", "recv=eof"],
        &["calm=100", "recv=10k", "sleep=200", step, "send=32", "recv=100k"],
    );
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, accepting.process.pid(), ROUNDS_OVER_SHM);
}

#[test]
fn stdio_reads_on_behind_a_full_ring() {
    read_otherwise_behind_a_full_ring("strangers::stdio_reads_on_behind_a_full_ring", "stdio=2038k");
}

/// The preload is built for glibc: in an image of another C library it must not even fail to load.
#[test]
fn a_dynamic_musl_program_works_under_ropeway() {
    need_program!("musl-gcc");
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let (listen, connect) = (format!("listen={port}"), format!("connect={port}"));
    let accepting = Peer::start(over, [&listen, "accept", "pong=100", "send=1m", "recv=eof"]);
    accepting.reached("listen ");
    // Once as the command itself, once as the child of a shell that does have the preload.
    let script = [connect.as_str(), "calm=100", "recv=1m"];
    let mut shell = command("sh", ["-c", "\"$0\" mark=first && exec \"$0\" \"$@\"", &musl_peer(&[])]);
    shell.args(script);
    let connecting = Peer::from_command(over.command(shell));
    let steps = connecting.all_right();
    assert_eq!(steps.iter().filter(|step| step.name == "first").count(), 1, "{steps:#?}");
    accepting.all_right();
    let alone = Peer::from_command(over.command(command(musl_peer(&[]), ["mark=alone"])));
    assert_eq!(alone.all_right().len(), 1);
}
