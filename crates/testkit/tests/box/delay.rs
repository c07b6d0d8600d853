//! Delays: by the kernel's netem, or by the box's own delay line where the kernel has none. What both have to keep is tested with whichever is there.

use std::path::PathBuf;
use std::time::Duration;

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env::CProgram;
use ropeway_testkit::incast::TcpIncast;
use ropeway_testkit::proc::command;
use ropeway_testkit::{need_box, need_program, skip};
use rustix::process::{Pid, Signal, kill_process};

use super::{LIMIT, UNKNOWN_TYPE, frames, numbers, receive_frames, received, received_by_now, send_frames, until};

/// What a busy machine may add to a round trip, in the median.
const LATE: Duration = Duration::from_millis(50);

/// Skips the calling test where frames are delayed by the kernel.
macro_rules! need_delay_line {
    ($cluster:expr) => {
        if $cluster.status().delay_by.as_deref() == Some("netem") {
            skip!("this kernel has netem, and so no delay line");
        }
    };
}

/// The least and the median of the times of `count` round trips of which none is lost.
#[track_caller]
fn round_trips(cluster: &TestBox, from: &str, to: &str, count: usize) -> [Duration; 2] {
    let rtt = CProgram::new("crates/testkit/programs/box/rtt.c").build();
    let (address, count) = (cluster.v4(to).to_string(), count.to_string());
    // Who has that address is asked first.
    cluster.run(from, &command(&rtt, [&address, "1", "0"]), LIMIT).expect_success();
    let said = cluster.run(from, &command(&rtt, [&address, &count, "500"]), LIMIT).expect_success().stdout;
    println!("    {from} to {to}: {} (answers; least, median, 99 %, most in ns)", said.trim());
    let numbers: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert_eq!(numbers[0].to_string(), count, "answers");
    [numbers[1], numbers[2]].map(Duration::from_nanos)
}

#[test]
fn no_answer_comes_before_twice_the_delay_and_most_come_soon_after() {
    need_box!();
    const COUNT: usize = 300;
    // Not judged, but printed beside the others: what the machine takes by itself.
    round_trips(&TestBox::up(&["--hosts", "2", "--rate", "1gbit"]), "h1", "h2", COUNT);
    for (text, delay) in [("100us", 100_u32), ("1ms", 1_000), ("10ms", 10_000)] {
        let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit", "--delay", text]);
        assert_eq!(cluster.port("h1").delay_us, Some(f64::from(delay)));
        let twice = Duration::from_micros(2 * u64::from(delay));
        let [least, median] = round_trips(&cluster, "h1", "h2", COUNT);
        assert!(least >= twice, "{text}: {least:?}");
        assert!(median <= twice + LATE, "{text}: {median:?}");
    }
}

#[test]
fn a_delay_counts_on_both_sides_of_a_gateway() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--gateways", "1", "--delay", "2ms"]);
    let [least, _] = round_trips(&cluster, "h1", "h2", 20);
    assert!(least >= Duration::from_millis(8), "{least:?}");
}

#[test]
fn delayed_frames_reach_their_ports_once_and_in_order() {
    need_box!();
    const COUNT: usize = 800;
    const RATE: [&str; 4] = ["--rate", "1gbit", "--port-buffer", "1MiB"];
    for options in [&RATE[..], &[], &[&RATE[..], &["--host-rate", "1gbit"]].concat()] {
        let cluster = TestBox::up(&[&["--hosts", "3", "--delay", "20ms"], options].concat());
        let [meant, other] = ["h2", "h3"].map(|host| receive_frames(&cluster, host, UNKNOWN_TYPE, COUNT));
        send_frames(&cluster, "h1", "h2", COUNT);
        assert_eq!(received(&meant)[..2], [COUNT, 0], "{options:?}");
        assert_eq!(received_by_now(&other)[0], 0, "{options:?}");
        let all = ["h2", "h3"].map(|host| receive_frames(&cluster, host, UNKNOWN_TYPE, COUNT));
        let own = receive_frames(&cluster, "h1", UNKNOWN_TYPE, 1);
        let everybody = frames(["send", "eth0", "ff:ff:ff:ff:ff:ff", UNKNOWN_TYPE, &COUNT.to_string()]);
        cluster.run("h1", &everybody, LIMIT).expect_success();
        assert_eq!(all.each_ref().map(|receiver| received(receiver)[0]), [COUNT; 2], "{options:?}");
        assert_eq!(received_by_now(&own)[0], 0, "{options:?}");
    }
}

#[test]
fn delayed_streams_stay_in_order_and_their_frames_are_as_large_as_the_mtu_says() {
    need_box!();
    const HEADER_BYTES: usize = 14;
    let cluster = TestBox::up(&["--hosts", "3", "--delay", "1ms", "--rate", "1gbit"]);
    let (order, sizes) =
        (cluster.spawn("h1", &frames(["order", "eth0", "1000000"])), receive_frames(&cluster, "h1", "0003", 1_000_000));
    order.wait_for_output("ready", LIMIT);
    println!("    {}", TcpIncast::start(&cluster, 2, 2.0, "cubic").end());
    order.signal(Signal::TERM);
    let [seen, flows, late] = numbers(&order.succeed(LIMIT));
    let longest = received_by_now(&sizes)[2];
    assert!(seen > 1_000 && flows == 2, "{seen} frames of {flows} flows are too few to say anything");
    assert_eq!((late, longest), (0, 1500 + HEADER_BYTES), "of {seen}");
}

#[test]
fn a_file_passes_a_delay_whole() {
    need_box!();
    need_program!("python3");
    const BYTES: usize = 20_000_000;
    // Without a rate hosts would hand over large segments, and check sums that nobody computed, were there no delay line.
    for options in [&[][..], &["--rate", "1gbit", "--mtu", "9000"]] {
        let cluster = TestBox::up(&[&["--hosts", "2", "--delay", "1ms"], options].concat());
        let sink = "import hashlib, socket\ns = socket.create_server(('', 7000))\nprint('ready', flush=True)\nc, _ = s.accept()\n\
                    h, n = hashlib.sha256(), 0\nwhile d := c.recv(1 << 20):\n    h.update(d)\n    n += len(d)\nprint(n, h.hexdigest())";
        let source = format!(
            "import hashlib, random, socket\nd = random.Random(1).randbytes({BYTES})\n\
             s = socket.create_connection(('{}', 7000))\ns.sendall(d)\ns.close()\nprint(len(d), hashlib.sha256(d).hexdigest())",
            cluster.v4("h2")
        );
        let sink = cluster.spawn("h2", &command("python3", ["-c", sink]));
        sink.wait_for_output("ready", LIMIT);
        let sent = cluster.run("h1", &command("python3", ["-c", &source]), LIMIT).expect_success().stdout;
        let got = sink.succeed(LIMIT).stdout;
        assert_eq!(got.trim_start_matches("ready\n"), sent, "{options:?}");
    }
}

#[test]
fn cuts_and_losses_work_with_a_delay() {
    need_box!();
    const COUNT: usize = 800;
    let cluster = TestBox::up(&["--hosts", "2", "--delay", "1ms"]);
    cluster.cut("h2");
    for (from, to) in [("h1", "h2"), ("h2", "h1")] {
        let lost = cluster.port("h2").lost_packets;
        let receiver = receive_frames(&cluster, to, UNKNOWN_TYPE, 1);
        send_frames(&cluster, from, to, 50);
        until("all are lost", || cluster.port("h2").lost_packets >= lost + 50);
        assert_eq!(received_by_now(&receiver)[0], 0, "{from} to {to}");
    }
    cluster.heal("h2");
    round_trips(&cluster, "h1", "h2", 20);
    cluster.loss("h2", "25%");
    for (from, to) in [("h1", "h2"), ("h2", "h1")] {
        let receiver = receive_frames(&cluster, to, UNKNOWN_TYPE, COUNT);
        let before = cluster.port("h2").lost_packets;
        send_frames(&cluster, from, to, COUNT);
        let arrived = received_by_now(&receiver)[0];
        let lost = cluster.port("h2").lost_packets - before;
        println!("    {from} to {to}: {arrived} of {COUNT} arrived, {lost} lost");
        // Ten standard deviations, and some frames of the hosts' own.
        assert!((78..342).contains(&lost), "{lost} lost, 200 expected");
        assert!((COUNT as u64..COUNT as u64 + 20).contains(&(arrived as u64 + lost)), "{arrived} arrived, {lost} lost");
    }
}

#[test]
fn a_delay_line_that_was_killed_is_seen_and_taken_away_with_its_box() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--delay", "1ms"]);
    need_delay_line!(cluster);
    round_trips(&cluster, "h1", "h2", 5);
    let line = cluster.status().delay_line.expect("it lives");
    assert!(line.passed >= 10 && line.frames >= 1_000, "{line:?}");
    let table = cluster.ropeway(&["status"]).expect_success().stdout;
    assert!(table.contains(", delay 1000 us (delay line)\n") && table.contains("delay line: process "), "{table}");
    kill_process(Pid::from_raw(line.pid).expect("a number"), Signal::KILL).expect("it lives");
    until("its end is seen", || cluster.status().delay_line.is_none());
    assert_eq!(cluster.port("h1").delay_us, Some(1000.0), "what was asked for is still known");
    let table = cluster.ropeway(&["status"]).expect_success().stdout;
    let advice = format!("`ropeway box down --name {}`", cluster.name());
    assert!(table.contains("NO FRAME PASSES") && table.contains(&advice), "{table}");
    let receiver = receive_frames(&cluster, "h2", UNKNOWN_TYPE, 1);
    send_frames(&cluster, "h1", "h2", 10);
    assert_eq!(received_by_now(&receiver)[0], 0);
    cluster.ropeway(&["down"]).expect_success();
    cluster.ropeway(&["up", "--hosts", "2", "--delay", "1ms"]).expect_success();
    round_trips(&cluster, "h1", "h2", 5);
}

#[test]
fn a_delay_line_ends_with_its_box_and_uses_no_processor_while_nothing_passes() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--delay", "1ms"]);
    need_delay_line!(cluster);
    let pid = cluster.status().delay_line.expect("it lives").pid;
    let process = PathBuf::from(format!("/proc/{pid}"));
    // The hosts have said what they say at first.
    std::thread::sleep(Duration::from_secs(2));
    let stat = || -> Vec<String> {
        let text = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().map(String::from).collect()
    };
    let used = || stat()[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>();
    let before = used();
    std::thread::sleep(Duration::from_secs(2));
    assert!(used() <= before + 1, "{} ticks in two seconds", used() - before);
    cluster.ropeway(&["down"]).expect_success();
    // Whoever inherited it may not have asked for its end yet.
    assert!(stat().first().is_none_or(|state| state == "Z"), "{:?}", stat());
}

#[test]
fn a_delay_line_with_room_for_less_than_one_line_holds_is_refused() {
    need_box!();
    let probe = TestBox::up(&["--hosts", "1", "--delay", "1ms"]);
    need_delay_line!(probe);
    let cluster = TestBox::unmade();
    let up = cluster.ropeway(&["up", "--hosts", "2", "--rate", "1gbit", "--delay", "10s"]);
    assert!(
        !up.success() && up.stderr.contains("CONFIG_NET_SCH_NETEM") && up.stderr.contains("within 10s"),
        "{}",
        up.stderr
    );
    let listed = cluster.ropeway(&["list"]).expect_success().stdout;
    assert!(!listed.contains(cluster.name()), "{listed}");
}
