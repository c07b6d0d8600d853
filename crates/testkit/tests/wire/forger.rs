//! A hostile host on the same Ethernet as two others that talk: it knows their addresses, has a record of some of their frames, and sends whatever it likes in their names (docs/protocol.md 11).

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, counter, engine_of, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env::{self, CProgram};
use ropeway_testkit::faults::Random;
use ropeway_testkit::need_box;
use ropeway_testkit::proc::{Process, command};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Frames for each of the two.
const FRAMES: u64 = 12_000;
/// Others that connect meanwhile.
const OTHERS: u64 = 2;
/// For so long the stream may stand still. What a kernel keeps for hosts that are not there it keeps for 3 s.
const MOST_SILENT_MS: f64 = 1500.0;
/// So many frames of theirs it has a record of, from when they met on.
const RECORDED: &str = "3000";
/// A process that is attacked has no more than so much memory, beyond what it had: much more than it has for all that it keeps of packets.
const MOST_MORE_KB: u64 = 48 << 10;

fn forger(arguments: &[&str]) -> Command {
    command(CProgram::new("crates/testkit/programs/wire/forger.c").build(), arguments)
}

/// The most memory that a process has had.
#[track_caller]
fn peak_kb(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// What an engine has dropped.
fn dropped(engine: &Value) -> u64 {
    let counters = engine["counters"].as_object().expect("counters");
    counters.iter().filter(|(name, _)| name.starts_with("dropped_")).filter_map(|(_, count)| count.as_u64()).sum()
}

/// One of the two ends.
struct End<'a> {
    host: &'a str,
    port: u16,
    process: &'a Process,
    peak_kb: u64,
    dropped: u64,
    /// So many it will have opened in the end.
    associations: u64,
}

impl<'a> End<'a> {
    #[track_caller]
    fn new(cluster: &TestBox, (host, port): (&'a str, u16), process: &'a Process, associations: u64) -> End<'a> {
        let dropped = dropped(&engine_of(cluster, host, process));
        End { host, port, process, peak_kb: peak_kb(process), dropped, associations }
    }

    fn address(&self, cluster: &TestBox) -> [String; 3] {
        let port = cluster.port(self.host);
        [port.mac, port.addresses.0.to_string(), self.port.to_string()]
    }

    /// Nothing of what was sent in the other's name has got in, and it has cost nothing to speak of.
    #[track_caller]
    fn assert_withstood(&self, cluster: &TestBox) {
        let engine = engine_of(cluster, self.host, self.process);
        let more_kb = peak_kb(self.process) - self.peak_kb;
        let dropped = dropped(&engine) - self.dropped;
        println!("{}: {dropped} dropped, {more_kb} KiB more", self.host);
        assert!(more_kb < MOST_MORE_KB, "{more_kb} KiB more in {}", self.host);
        // Some were for nobody: frames with a wrong id find no process. And what is answered is not dropped.
        assert!(dropped > FRAMES / 100, "{dropped} of {FRAMES} dropped: {engine}");
        assert_eq!(counter(&engine, "violations"), 0, "{engine}");
        assert_eq!(counter(&engine, "associations_opened"), self.associations, "{engine}");
        assert_eq!(counter(&engine, "associations_ended"), counter(&engine, "associations_ended_closed"), "{engine}");
    }
}

/// A stream goes from h2 to h1 while h3 sends what it likes to both.
fn attack(cluster: &TestBox, carrier: Carrier, key: Option<&Path>, random: &mut Random) {
    let key = key.map(|path| path.display().to_string());
    let variables: Vec<(&str, &str)> = key.iter().map(|path| ("ROPEWAY_KEY_FILE", path.as_str())).collect();
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("frames").display().to_string();
    let record = cluster.spawn("switch", &forger(&["record", "h1", RECORDED, &file]));
    record.wait_for_output("ready", LIMIT);
    let receiver = receiver(cluster, "h1", &carrier.at(PORT), Mode::Stream, &variables);
    let to = carrier.to(&cluster.port("h1"), PORT);
    let mut sender = Waiting::sender(cluster, "h2", &to, 0, Mode::Stream, &variables);
    sender.is_connected();
    let recorded = record.succeed(LIMIT).stdout;
    let shown = engine_of(cluster, "h1", &receiver.process);
    let peer = shown["connections"][0]["peer"].as_str().expect("a connection with a peer");
    let peer_port = if carrier == Carrier::Packet { "0" } else { peer.rsplit(':').next().unwrap_or("0") };
    let peer_port = peer_port.parse().unwrap_or_else(|e| panic!("{e} in {peer}"));
    let ends = [
        End::new(cluster, ("h1", PORT), &receiver.process, 1 + OTHERS),
        End::new(cluster, ("h2", peer_port), &sender.process, 1),
    ];
    let attacks = [(0, 1), (1, 0)].map(|(target, other)| {
        let seed = random.below(1 << 48).to_string();
        let [target, other] = [target, other].map(|at: usize| ends[at].address(cluster));
        let kind = if carrier == Carrier::Packet { "packet" } else { "udp" };
        let (frames, keyed) = (FRAMES.to_string(), if key.is_some() { "1" } else { "0" });
        let mut arguments = vec!["attack", "eth0", &seed, &frames, kind, keyed];
        arguments.extend(target.iter().chain(&other).map(String::as_str));
        arguments.push(&file);
        cluster.spawn("h3", &forger(&arguments))
    });
    for _ in 0..OTHERS {
        Waiting::sender(cluster, "h2", &to, 100_000, Mode::Stream, &variables).result();
    }
    for attack in &attacks {
        let sent = attack.succeed(LIMIT).stdout;
        println!("{carrier:?}, key: {}: {} then {}", key.is_some(), recorded.trim(), sent.replace('\n', ", "));
    }
    ends.iter().for_each(|end| end.assert_withstood(cluster));
    let silent_ms = &engine_of(cluster, "h2", &sender.process)["connections"][0]["waited_ms"]["silence"];
    assert!(silent_ms.as_f64().is_some_and(|ms| ms < MOST_SILENT_MS), "it stood still for {silent_ms} ms");
    sender.end();
    let result = sender.result();
    println!("{result}");
    // What arrives is compared byte for byte, and an end that was made up would be too early.
    assert!(result["sent"].as_u64().is_some_and(|bytes| bytes > 4 << 20), "{result}");
}

#[test]
fn who_sends_whatever_he_likes_in_the_names_of_two_that_talk_changes_nothing() {
    need_box!();
    let mut random = Random::of_suite("wire", "who_sends_whatever_he_likes");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let key = dir.path().join("key");
    Process::spawn(command(env::ropeway(), ["key", "new", &key.display().to_string()])).succeed(LIMIT);
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit"]);
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        for key in [Some(key.as_path()), None] {
            attack(&cluster, carrier, key, &mut random);
        }
    }
}
