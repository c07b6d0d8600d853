//! What goes over the cables of a box, as Wireshark sees it: all of it is Ropeway, none of it malformed, and with a key none of it readable.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::proc::{Finished, Process, command};
use ropeway_testkit::{need_box, need_program};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// docs/protocol.md 2.2.
const OPENING: [&str; 4] = ["1", "2", "3", "4"];
const DATA: &str = "7";
const FIN: &str = "9";
const CONTROL: &str = "11";
/// docs/protocol.md 2.8.
const RRQ: &str = "1";

/// A capture at a port of the switch, running.
struct Capture {
    dir: TempDir,
    dumpcap: Process,
}

impl Capture {
    #[track_caller]
    fn start(cluster: &TestBox, port: &str) -> Capture {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().join("frames.pcapng").display().to_string();
        let dumpcap = cluster.spawn("switch", &command("dumpcap", ["-q", "-i", port, "-B", "64", "-w", &path]));
        dumpcap.wait_for_output("File:", LIMIT);
        Capture { dir, dumpcap }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("frames.pcapng")
    }

    /// Waits until all that was captured is written: dumpcap gets it from the kernel some time later, and loses the rest when it is told to end.
    fn settle(&self) {
        const QUIET: Duration = Duration::from_millis(500);
        let written = || std::fs::metadata(self.path()).map_or(0, |meta| meta.len());
        let (mut bytes, mut since) = (written(), Instant::now());
        while since.elapsed() < QUIET {
            std::thread::sleep(QUIET / 20);
            if written() != bytes {
                (bytes, since) = (written(), Instant::now());
            }
        }
    }

    /// Ends it. Says what was captured, a row of these fields for each frame for which `filter` holds.
    #[track_caller]
    fn end(&self, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
        self.settle();
        self.dumpcap.signal(Signal::INT);
        self.dumpcap.succeed(LIMIT);
        let script = env::workspace_root().join("share/wireshark/ropeway.lua");
        let mut tshark = command("tshark", ["-n", "-X", &format!("lua_script:{}", script.display()), "-Y", filter]);
        // The other end's port, which the kernel chose, may be another protocol's.
        tshark.args(["-o", "udp.try_heuristic_first:TRUE"]);
        // A home without anybody's settings, and without another copy of the dissector.
        tshark.env("HOME", self.dir.path()).env("XDG_CONFIG_HOME", self.dir.path());
        tshark.arg("-r").arg(self.path()).args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
        tshark.args(fields.iter().flat_map(|field| ["-e", field]));
        let finished: Finished = Process::spawn(tshark).succeed(LIMIT);
        assert!(!finished.stdout.contains("Lua Error") && !finished.stderr.contains("Lua Error"), "{finished:?}");
        finished.stdout.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }
}

/// All values of a column, of those that are lists each.
fn values(rows: &[Vec<String>], column: usize) -> BTreeSet<&str> {
    rows.iter().flat_map(|row| row[column].split(',')).filter(|value| !value.is_empty()).collect()
}

const FIELDS: [&str; 5] = ["frame.protocols", "ropeway.type", "ropeway.block", "_ws.expert", "ropeway.sealed"];

/// All frames are Ropeway's, and nothing is wrong with any.
#[track_caller]
fn assert_sound(rows: &[Vec<String>]) {
    for row in rows {
        assert!(row[0].ends_with(":ropeway") || row[0].contains(":ropeway:"), "not seen as Ropeway's: {row:?}");
        // What happens on a network that loses is worth a note, and no more.
        let is_wrong = ["Warn", "Error", "Malformed"].iter().any(|word| row[3].contains(word));
        assert!(!row[0].contains("malformed") && !is_wrong, "{row:?}");
    }
}

/// No two packets are sealed with the same nonce: that is the counter, and each direction of an association has a key of its own, as it has a destination id.
#[track_caller]
fn assert_sealed_once(rows: &[Vec<String>]) {
    let mut seen = BTreeSet::new();
    for row in rows.iter().filter(|row| !row[4].is_empty()) {
        let (destination, counter) = (&row[5], &row[7]);
        assert!(!destination.is_empty() && !counter.is_empty(), "sealed without a counter: {row:?}");
        assert!(seen.insert((destination, counter)), "twice the counter {counter} to {destination}");
    }
    assert!(seen.len() > 1000, "{} sealed packets", seen.len());
}

#[test]
fn a_capture_of_streams_and_messages_is_dissected_without_a_malformed_packet() {
    need_box!();
    need_program!("dumpcap", "tshark");
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    // So that there are requests and repetitions.
    cluster.loss("h1", "2%");
    for (carrier, filter) in [
        (Carrier::Udp4, format!("udp.port == {PORT}")),
        (Carrier::Udp6, format!("udp.port == {PORT}")),
        (Carrier::Packet, "eth.type == 0x88b5".to_owned()),
    ] {
        for mode in [Mode::Stream, Mode::Messages] {
            let capture = Capture::start(&cluster, "h1");
            let _receiver = receiver(&cluster, "h1", &carrier.at(PORT), mode, &[]);
            let to = carrier.to(&cluster.port("h1"), PORT);
            Waiting::sender(&cluster, "h2", &to, 2_000_000, mode, &[]).result();
            let rows = capture.end(&filter, &FIELDS);
            let (types, blocks) = (values(&rows, 1), values(&rows, 2));
            println!(
                "{mode:?} over {carrier:?}: {} frames of the types {types:?} with the blocks {blocks:?}",
                rows.len()
            );
            assert!(rows.len() > 1000, "{} frames are not all", rows.len());
            assert_sound(&rows);
            for expected in OPENING.into_iter().chain([DATA, FIN, CONTROL]) {
                assert!(types.contains(expected), "no packet of type {expected} in {types:?}");
            }
            assert!(blocks.contains(RRQ), "nothing was asked for again: {blocks:?}");
            assert!(values(&rows, 4).is_empty(), "nothing is encrypted without a key");
        }
    }
}

#[test]
fn a_capture_of_a_copy_with_a_key_shows_sealed_packets_only() {
    need_box!();
    need_program!("dumpcap", "tshark");
    const MARK: &[u8] = b"nobody on the way should read this";
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    // So that there are repetitions, which are sealed anew.
    cluster.loss("h1", "2%");
    let dir = TempDir::new().expect("a temporary directory");
    let place = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(place("to")).expect("a directory");
    std::fs::write(place("file"), MARK.repeat(50_000)).expect("a file");
    Process::spawn(command(env::ropeway(), ["key", "new", &place("key")])).succeed(LIMIT);
    let copy = |arguments: &[&str], keyed: bool| {
        let mut cp = command(env::ropeway(), ["cp"]);
        cp.args(arguments);
        match keyed {
            true => cp.env("ROPEWAY_KEY_FILE", place("key")),
            false => cp.env_remove("ROPEWAY_KEY_FILE"),
        };
        cp
    };
    for keyed in [true, false] {
        // Before what is lost on the way to h1 is lost.
        let capture = Capture::start(&cluster, "h2");
        let bind = format!("0.0.0.0:{PORT}");
        let receiver = cluster.spawn("h1", &copy(&["--force", "--receive", &place("to"), "--bind", &bind], keyed));
        receiver.wait_for_output("receiving into", LIMIT);
        let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
        cluster.run("h2", &copy(&[&place("file"), &to], keyed), LIMIT).expect_success();
        let numbering = ["ropeway.destination", "ropeway.number", "ropeway.counter"];
        let rows = capture.end(&format!("udp.port == {PORT}"), &[&FIELDS[..], &numbering].concat());
        assert_sound(&rows);
        let types = values(&rows, 1);
        assert!(OPENING.iter().chain(&[DATA]).all(|kind| types.contains(kind)), "{types:?}");
        let data: Vec<_> = rows.iter().filter(|row| row[1] == DATA).collect();
        assert!(data.len() > 1000, "{} packets of data", data.len());
        assert!(data.iter().all(|row| row[4].is_empty() != keyed), "keyed: {keyed}");
        let distinct = |column: usize| data.iter().map(|row| [&row[5], &row[column]]).collect::<BTreeSet<_>>().len();
        assert!(distinct(6) < data.len(), "nothing was repeated");
        if keyed {
            assert_sealed_once(&rows);
        }
        let bytes = std::fs::read(capture.path()).expect("the capture");
        let is_readable = bytes.windows(MARK.len()).any(|window| window == MARK);
        assert_eq!(is_readable, !keyed, "what can be read on the cable");
    }
}
