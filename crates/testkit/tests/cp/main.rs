//! `ropeway cp` between the hosts of a box: through losses, cuts and deaths, every byte arrives once or the copy says why not.

mod frames;
mod local;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::need_box;
use ropeway_testkit::proc::{Process, command};
use tempfile::TempDir;

/// For a copy of some megabytes through a bad network on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// Where the receivers of these tests listen.
const PORT: u16 = 7460;

/// A directory with one file to send, and one to receive into.
struct Files {
    dir: TempDir,
    contents: Vec<u8>,
}

impl Files {
    fn new(bytes: usize) -> Files {
        let dir = TempDir::new().expect("a temporary directory");
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let contents: Vec<u8> = (0..bytes)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        std::fs::create_dir(dir.path().join("to")).expect("a directory");
        std::fs::write(dir.path().join("file"), &contents).expect("a file");
        Files { dir, contents }
    }

    fn source(&self) -> String {
        self.dir.path().join("file").display().to_string()
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("to")
    }

    #[track_caller]
    fn assert_arrived(&self) {
        let arrived = std::fs::read(self.target().join("file")).expect("the file arrived");
        assert!(arrived == self.contents, "{} bytes arrived of {}, or other ones", arrived.len(), self.contents.len());
        let left: Vec<_> =
            std::fs::read_dir(self.target()).expect("readable").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["file"], "nothing else is left behind");
    }

    /// Bytes of the part that has arrived so far.
    fn part_bytes(&self) -> u64 {
        std::fs::metadata(self.target().join("file.ropeway-part")).map_or(0, |meta| meta.len())
    }
}

fn receive(files: &Files, bind: &str) -> Command {
    command(env::ropeway(), ["cp", "--receive", &files.target().display().to_string(), "--bind", bind])
}

fn send(files: &Files, to: &str) -> Command {
    command(env::ropeway(), ["cp", &files.source(), to])
}

#[track_caller]
fn receiver(cluster: &TestBox, files: &Files) -> Process {
    ready(cluster.spawn("h2", &receive(files, &format!("0.0.0.0:{PORT}"))))
}

/// A receiver, once it listens.
#[track_caller]
fn ready(receiver: Process) -> Process {
    receiver.wait_until("it receives", LIMIT, || receiver.stderr().contains("receiving into")).expect("in time");
    receiver
}

fn peer(cluster: &TestBox) -> String {
    format!("{}:{PORT}", cluster.v4("h2"))
}

#[test]
fn a_file_arrives_over_a_shaped_port_without_a_drop() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit", "--port-buffer", "128KiB"]);
    let files = Files::new(8_000_000);
    let _receiver = receiver(&cluster, &files);
    let sent = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT).expect_success();
    println!("{}", sent.stderr);
    files.assert_arrived();
    assert_eq!(cluster.port("h2").drops, 0);
}

#[test]
fn a_file_arrives_through_one_and_five_percent_loss() {
    need_box!();
    for share in ["1%", "5%"] {
        let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
        cluster.loss("h2", share);
        let files = Files::new(4_000_000);
        let _receiver = receiver(&cluster, &files);
        let sent = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT).expect_success();
        println!("{share}: {}", sent.stderr);
        files.assert_arrived();
        assert!(cluster.port("h2").lost_packets > 0, "the network did lose packets");
    }
}

#[test]
fn a_file_arrives_in_jumbo_frames_and_over_ipv6() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--mtu", "9000"]);
    let files = Files::new(3_000_000);
    let _receiver = cluster.spawn("h2", &receive(&files, &format!("[::]:{PORT}")));
    _receiver.wait_until("it receives", LIMIT, || _receiver.stderr().contains("receiving into")).expect("in time");
    let to = format!("[{}]:{PORT}", cluster.v6("h2"));
    cluster.run("h1", &send(&files, &to), LIMIT).expect_success();
    files.assert_arrived();
    let port = cluster.port("h2");
    assert!(port.sent_bytes / port.sent_packets.max(1) > 4_000, "long frames: {port:?}");
}

#[test]
fn of_the_addresses_of_a_name_the_one_where_somebody_receives_is_found() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    for at in [format!("0.0.0.0:{PORT}"), format!("[{}]:{PORT}", cluster.v6("h2"))] {
        let files = Files::new(1000);
        let _receiver = ready(cluster.spawn("h2", &receive(&files, &at)));
        cluster.run("h1", &send(&files, &format!("h2:{PORT}")), LIMIT).expect_success();
        files.assert_arrived();
    }
    // Those of the family that one's own address has.
    let files = Files::new(1000);
    let ends = |host| [cluster.v4(host).to_string(), format!("[{}]", cluster.v6(host))];
    for (own, to) in ends("h1").into_iter().zip(ends("h2")) {
        let mut cmd = send(&files, &format!("h2:{PORT}"));
        cmd.args(["--bind", &format!("{own}:0")]);
        let nobody = cluster.run("h1", &cmd, LIMIT);
        assert!(!nobody.success() && nobody.stderr.contains(&to), "{}", nobody.stderr);
    }
}

#[test]
fn packets_are_as_short_as_the_environment_wants_them() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--wire-frames"]);
    let files = Files::new(1_000_000);
    let _receiver = receiver(&cluster, &files);
    cluster.run("h1", send(&files, &peer(&cluster)).env("ROPEWAY_PACKET_BYTES", "512"), LIMIT).expect_success();
    files.assert_arrived();
    let port = cluster.port("h2");
    assert!(port.sent_packets > 1_000_000 / 512, "short frames: {port:?}");
}

#[test]
fn a_copy_waits_out_a_cut_and_goes_on() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let files = Files::new(12_000_000);
    let _receiver = receiver(&cluster, &files);
    let sender = cluster.spawn("h1", &send(&files, &peer(&cluster)));
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 1_000_000).expect("in time");
    cluster.cut("h2");
    std::thread::sleep(Duration::from_secs(2));
    assert!(sender.is_running(), "a cut of two seconds is nothing to say");
    cluster.heal("h2");
    sender.succeed(LIMIT);
    files.assert_arrived();
}

#[test]
fn a_copy_waits_until_its_own_address_is_back() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let files = Files::new(12_000_000);
    let _receiver = receiver(&cluster, &files);
    let own = cluster.v4("h1");
    let mut cmd = send(&files, &peer(&cluster));
    cmd.args(["--bind", &format!("{own}:0")]);
    let sender = cluster.spawn("h1", &cmd);
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 1_000_000).expect("in time");
    // Both learn sooner that nothing passes.
    for host in ["h1", "h2"] {
        let tune = command(env::ropeway(), ["tune", "set", "give_up", "100"]);
        cluster.run(host, &tune, LIMIT).expect_success();
    }
    let address = |does| {
        let cmd = command("ip", ["address", does, &format!("{own}/24"), "dev", "eth0"]);
        cluster.run("h1", &cmd, LIMIT).expect_success();
    };
    address("del");
    sender.wait_until("it is lost", LIMIT, || sender.stderr().contains("the connection was lost")).expect("in time");
    std::thread::sleep(Duration::from_millis(300));
    assert!(sender.is_running(), "{}", sender.stderr());
    address("add");
    sender.succeed(LIMIT);
    files.assert_arrived();
}

#[test]
fn a_receiver_that_was_killed_goes_on_where_it_was() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let files = Files::new(12_000_000);
    let first = receiver(&cluster, &files);
    let sender = cluster.spawn("h1", &send(&files, &peer(&cluster)));
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 1_000_000).expect("in time");
    first.kill();
    let there = files.part_bytes();
    let _second = receiver(&cluster, &files);
    let finished = sender.succeed(LIMIT);
    files.assert_arrived();
    assert!(finished.stderr.contains("were there already"), "{there} bytes were there: {}", finished.stderr);
}

#[test]
fn what_came_from_a_pipe_waits_out_a_cut_and_a_receiver_that_was_killed() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    // More than a sender keeps.
    let files = Files::new(30_000_000);
    let first = receiver(&cluster, &files);
    let mut piped = command("sh", ["-c", "cat \"$1\" | \"$2\" cp - \"$3\" --name file", "sh"]);
    piped.arg(files.source()).arg(env::ropeway()).arg(peer(&cluster));
    let sender = cluster.spawn("h1", &piped);
    let is_there =
        |bytes| sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > bytes).expect("in time");
    is_there(1_000_000);
    // Longer than the sender waits for a word: it connects again.
    cluster.cut("h2");
    std::thread::sleep(Duration::from_secs(8));
    cluster.heal("h2");
    is_there(20_000_000);
    first.kill();
    let _second = receiver(&cluster, &files);
    let finished = sender.succeed(LIMIT);
    files.assert_arrived();
    assert_eq!(finished.stderr.matches("the connection was lost").count(), 2, "{}", finished.stderr);
}

#[test]
fn a_sender_that_was_killed_is_no_matter_to_the_next() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let files = Files::new(12_000_000);
    let receiver = receiver(&cluster, &files);
    let sender = cluster.spawn("h1", &send(&files, &peer(&cluster)));
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 1_000_000).expect("in time");
    sender.kill();
    let finished = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT).expect_success();
    files.assert_arrived();
    assert!(finished.stderr.contains("were there already"), "{}", finished.stderr);
    assert!(receiver.is_running());
}

#[test]
fn what_cannot_be_copied_is_said_clearly() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let files = Files::new(1000);
    let nobody = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT);
    assert!(
        !nobody.success() && nobody.stderr.contains("is `ropeway cp --receive DIR` running there"),
        "{}",
        nobody.stderr
    );
    let _receiver = receiver(&cluster, &files);
    cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT).expect_success();
    std::fs::write(files.source(), "other").expect("written");
    let again = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT);
    assert!(!again.success() && again.stderr.contains("exists there"), "{}", again.stderr);
    let missing = cluster.run("h1", &command(env::ropeway(), ["cp", "/no/such/file", &peer(&cluster)]), LIMIT);
    assert!(!missing.success() && missing.stderr.contains("/no/such/file"), "{}", missing.stderr);
    files.assert_arrived();
}

#[test]
fn a_key_lets_those_who_have_it_copy_and_nobody_else() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let files = Files::new(1_000_000);
    let key = |name: &str| {
        let path = files.dir.path().join(name).display().to_string();
        Process::spawn(command(env::ropeway(), ["key", "new", &path])).succeed(LIMIT);
        path
    };
    let (key, other) = (key("key"), key("other"));
    let with = |mut cmd: Command, key: &str| {
        cmd.env("ROPEWAY_KEY_FILE", key);
        cmd
    };
    let bind = format!("0.0.0.0:{PORT}");
    let receiver = cluster.spawn("h2", &with(receive(&files, &bind), &key));
    receiver.wait_until("it receives", LIMIT, || receiver.stderr().contains("receiving into")).expect("in time");
    for wrong in [send(&files, &peer(&cluster)), with(send(&files, &peer(&cluster)), &other)] {
        let refused = cluster.run("h1", &wrong, LIMIT);
        println!("{}", refused.stderr);
        assert!(!refused.success() && refused.stderr.contains("`ropeway key check`"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("running there"), "it has answered: {}", refused.stderr);
    }
    cluster.run("h1", &with(send(&files, &peer(&cluster)), &key), LIMIT).expect_success();
    files.assert_arrived();
}

#[test]
fn between_hosts_somebody_must_have_decided_about_keys() {
    let files = Files::new(10);
    let mut undecided = send(&files, "192.0.2.1");
    undecided.env_remove("ROPEWAY_TRUSTED").env_remove("ROPEWAY_KEY_FILE");
    let finished = Process::spawn(undecided).wait(LIMIT).expect("in time");
    assert!(!finished.success() && finished.stderr.contains("ropeway key new"), "{}", finished.stderr);
}

/// The description of a cluster of two nodes, so that nobody else can write it whatever the umask.
fn described(files: &Files, first: &str, addresses: [&str; 2]) -> PathBuf {
    let node = |number: usize, address: &str| {
        format!("[[node]]\nnumber = {number}\nname = \"node{number}\"\naddresses = {{ net = \"{address}\" }}\n")
    };
    let path = files.dir.path().join("cluster.toml");
    std::fs::write(&path, [format!("{first}\n"), node(1, addresses[0]), node(2, addresses[1])].concat())
        .expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("it is ours");
    path
}

/// A command of a member of a cluster; `node`: where the addresses do not say which it is.
fn member(mut cmd: Command, description: &Path, node: Option<&str>) -> Command {
    cmd.env("ROPEWAY_CLUSTER", description);
    if let Some(node) = node {
        cmd.env("ROPEWAY_NODE", node);
    }
    cmd
}

#[test]
fn a_node_of_the_cluster_is_named_and_what_is_none_is_a_hosts_name() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let files = Files::new(1_000_000);
    let addresses = ["h1", "h2"].map(|host| cluster.v4(host).to_string());
    let description = described(&files, "trusted = true", [&addresses[0], &addresses[1]]);
    let receiver = cluster.spawn("h2", &member(receive(&files, &format!("node2:{PORT}")), &description, None));
    receiver.wait_until("it receives", LIMIT, || receiver.stderr().contains("receiving into")).expect("in time");
    for to in [format!("node2:{PORT}"), format!("@2:{PORT}"), peer(&cluster)] {
        cluster.run("h1", &member(send(&files, &to), &description, None), LIMIT).expect_success();
        files.assert_arrived();
        std::fs::remove_file(files.target().join("file")).expect("it is there");
    }
    // The usual port, where nobody is.
    let nobody = cluster.run("h1", &member(send(&files, "node2"), &description, None), LIMIT);
    assert!(!nobody.success() && nobody.stderr.contains("node2:7447: "), "{}", nobody.stderr);
    // Only at the node's address.
    let elsewhere = cluster.run("h2", &send(&files, &format!("127.0.0.1:{PORT}")), LIMIT);
    assert!(!elsewhere.success(), "{}", elsewhere.stderr);
    let other = cluster.run("h1", &member(receive(&files, "node2:0"), &description, None), LIMIT);
    assert!(!other.success() && other.stderr.contains("this host is node1 in"), "{}", other.stderr);
}

#[test]
fn the_keys_of_the_cluster_hold_where_nobody_says_otherwise() {
    let files = Files::new(100_000);
    for name in ["key", "other"] {
        let path = files.dir.path().join(name).display().to_string();
        Process::spawn(command(env::ropeway(), ["key", "new", &path])).succeed(LIMIT);
    }
    let description = described(&files, "key_file = \"key\"", ["127.0.0.1", "127.0.0.2"]);
    let of = |mut cmd: Command, node: &str| {
        cmd.env_remove("ROPEWAY_TRUSTED").env_remove("ROPEWAY_KEY_FILE").env("ROPEWAY_CONFIG", "/dev/null");
        member(cmd, &description, Some(node))
    };
    let receiver = Process::spawn(of(receive(&files, "node2:0"), "node2"));
    receiver.wait_until("it receives", LIMIT, || receiver.stderr().contains(" at 127.0.0.2:")).expect("in time");
    let port = receiver.stderr().trim_end().rsplit(':').next().expect("a port").to_owned();
    let to = format!("node2:{port}");
    let mut other = of(send(&files, &to), "node1");
    other.env("ROPEWAY_KEY_FILE", files.dir.path().join("other"));
    let refused = Process::spawn(other).wait(LIMIT).expect("in time");
    assert!(!refused.success() && refused.stderr.contains("`ropeway key check`"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("running there"), "it has answered: {}", refused.stderr);
    Process::spawn(of(send(&files, &to), "node1")).succeed(LIMIT);
    files.assert_arrived();
}

#[test]
fn what_the_cluster_file_cannot_mean_is_said_with_what_to_do() {
    let files = Files::new(10);
    let description = described(&files, "trusted = true", ["198.51.100.1", "198.51.100.2"]);
    let broken = files.dir.path().join("broken.toml");
    std::fs::write(&broken, "trusted = true\n[[node]]\nnumber = 0\n").expect("written");
    let missing = files.dir.path().join("missing.toml");
    let off = PathBuf::from("off");
    let cases: &[(&Path, &[&str], &[&str])] = &[
        (&description, &["no-such-node.invalid"], &["cannot resolve", "a node in", "cluster.toml"]),
        (&off, &["no-such-node.invalid"], &["cannot resolve", "ROPEWAY_CLUSTER"]),
        (&description, &["node2:x"], &["from 1 to 65535", "node2:x"]),
        (&description, &["node2:0"], &["port 0"]),
        (&description, &["node2:70000"], &["from 1 to 65535"]),
        (&description, &["@9"], &["cluster.toml has no node with the number 9"]),
        (&off, &["@2"], &["--gateway", "ROPEWAY_CLUSTER"]),
        (&description, &["node2", "--node", "1"], &["--gateway", "ROPEWAY_NODE"]),
        (&broken, &["node2"], &["broken.toml", "line 2", "missing field `name`"]),
        (&missing, &["node2"], &["missing.toml", "ROPEWAY_CLUSTER"]),
        (
            &description,
            &["node2", "--bind", "node1:7447"],
            &["--bind node1", "this host is no node of", "ROPEWAY_NODE"],
        ),
        (&description, &["node2", "--bind", "node9:7447"], &["--bind takes ADDRESS:PORT", "node9"]),
    ];
    for (description, args, texts) in cases {
        let mut cmd = command(env::ropeway(), ["cp", &files.source()]);
        cmd.args(*args);
        let finished = Process::spawn(member(cmd, description, None)).wait(LIMIT).expect("in time");
        let told = &finished.stderr;
        assert!(!finished.success() && texts.iter().all(|text| told.contains(text)), "{args:?}: {told}");
    }
    // An address needs none of it where somebody else has decided about keys.
    let mut by_address = member(send(&files, "127.0.0.1:9"), &broken, None);
    by_address.env_remove("ROPEWAY_KEY_FILE").env("ROPEWAY_TRUSTED", "1");
    let finished = Process::spawn(by_address).wait(LIMIT).expect("in time");
    assert!(!finished.success() && finished.stderr.contains("nobody listens"), "{}", finished.stderr);
}
