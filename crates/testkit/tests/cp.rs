//! `ropeway cp` between the hosts of a box: through losses, cuts and deaths, every byte arrives once or the copy says why not.

use std::path::PathBuf;
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
    let receiver = cluster.spawn("h2", &receive(files, &format!("0.0.0.0:{PORT}")));
    receiver.wait_until("it receives", LIMIT, || receiver.stderr().contains("receiving into")).expect("in time");
    receiver
}

fn peer(cluster: &TestBox) -> String {
    format!("{}:{PORT}", cluster.v4("h2"))
}

#[test]
fn a_file_arrives_over_a_shaped_port_at_nearly_its_rate_without_a_drop() {
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
        assert!(!refused.success() && refused.stderr.contains("key"), "{}", refused.stderr);
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
