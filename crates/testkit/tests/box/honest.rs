//! The switch keeps its rate and drops what its buffer cannot hold, and no sender is held back by what it has in there.

use std::time::{Duration, Instant};

use ropeway_testkit::boxes::{Port, TestBox};
use ropeway_testkit::incast::TcpIncast;
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::{need_box, need_program};

use super::{LIMIT, UNKNOWN_TYPE, frames, receive_frames, received_by_now, until};

/// What a frame takes on the line besides what the counters count: check sum, preamble, gap.
const LINE_OVERHEAD_BYTES: u64 = 24;

/// Whether a port kept its rate between two looks: what it sent fits into the time between the start of the first and the end of the
/// second, and what it may send at once after a pause.
fn assert_within_the_line(before: &Port, after: &Port, time: Duration) {
    let bytes = after.sent_bytes - before.sent_bytes;
    let on_line = bytes + (after.sent_packets - before.sent_packets) * LINE_OVERHEAD_BYTES;
    let rate = after.rate_bits_per_s.expect("the port has a rate");
    let room = (rate as f64 / 8.0 * time.as_secs_f64()) as u64 + after.burst_bytes.expect("and a burst");
    let mbits = |bytes: u64| bytes as f64 * 8.0 / time.as_secs_f64() / 1e6;
    println!("    {:.1} Mbit/s on the line ({:.1} in frames)", mbits(on_line), mbits(bytes));
    assert!(on_line <= room, "{on_line} bytes in {time:?}, {room} fit");
}

/// TCP senders overrun one port. On a machine that is busy with other things they may need several rounds for it.
fn overrun(senders: usize, rate: &str) {
    const ROUNDS: usize = 8;
    const ENOUGH_DROPS: u64 = 300;
    let hosts = (senders + 1).to_string();
    let cluster = TestBox::up(&["--hosts", &hosts, "--rate", rate, "--port-buffer", "128KiB"]);
    let first = cluster.port("h1");
    assert_eq!(first.buffer_bytes, Some(128 * 1024));
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let before = cluster.port("h1");
        let incast = TcpIncast::start(&cluster, senders, 2.0, "cubic");
        let said = incast.end();
        let after = cluster.port("h1");
        let (drops, missed) = (after.drops - before.drops, after.missed_packets - before.missed_packets);
        println!("{senders} senders, {rate}: {said}; {drops} drops at the port, {missed} missed");
        assert_within_the_line(&before, &after, start.elapsed());
        assert!(after.queue_bytes <= 128 * 1024);
        if after.drops - first.drops >= ENOUGH_DROPS {
            return;
        }
    }
    let drops = cluster.port("h1").drops - first.drops;
    panic!("{drops} drops in {ROUNDS} rounds: TCP does not overrun the port");
}

#[test]
fn eight_tcp_senders_overrun_a_port() {
    need_box!();
    overrun(8, "1gbit");
    overrun(8, "100mbit");
}

#[test]
fn thirty_two_tcp_senders_overrun_a_port() {
    need_box!();
    overrun(32, "1gbit");
    overrun(32, "100mbit");
}

/// Datagrams of the largest size that h2 sends to h1 from a socket with a small buffer, and how long its calls took.
fn blast(cluster: &TestBox, count: u32) -> Duration {
    let address = cluster.v4("h1");
    let script = format!(
        "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)\nd = bytes(1472)\nt = time.monotonic()\n\
         for _ in range({count}):\n    s.sendto(d, ('{address}', 9))\nprint(time.monotonic() - t)"
    );
    let said = cluster.run("h2", &command("python3", ["-c", &script]), LIMIT).expect_success().stdout;
    Duration::from_secs_f64(said.trim().parse().unwrap_or_else(|_| panic!("not a time: {said}")))
}

#[test]
fn a_socket_does_not_get_back_from_the_port_what_it_sent() {
    need_box!();
    need_program!("python3");
    const COUNT: u32 = 5_000;
    // At 10 Mbit/s they need six seconds on the line. A port that kept them on their socket's account would let 28 of them in
    // and have the sender wait for each of the others, and drop none: that is what a bridge with the same queue does.
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "10mbit", "--port-buffer", "128KiB"]);
    let elapsed = blast(&cluster, COUNT);
    let port = cluster.port("h1");
    println!("{COUNT} datagrams sent in {elapsed:?}, {} drops, {} bytes waiting", port.drops, port.queue_bytes);
    assert!(port.drops > 500, "{} drops", port.drops);
    assert!(elapsed < Duration::from_secs(6), "the sender waited for the port: {elapsed:?}");
}

/// Puts a bridge in the place of a box's switch, before the same queues.
#[track_caller]
fn bridge(cluster: &TestBox) {
    let switch = cluster.namespace("switch");
    let run = |program: &str, args: &[&str]| Process::spawn(command(program, args)).succeed(LIMIT);
    run("ip", &["-n", &switch, "link", "add", "bridge", "type", "bridge"]);
    // Packet filters that look at bridged frames (br_netfilter) take them from their sockets, as the switch does.
    let unfiltered = "for each in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $each ] || echo 0 >$each; done";
    run("ip", &["netns", "exec", &switch, "sh", "-c", unfiltered]);
    for Port { port, .. } in cluster.ports() {
        run("tc", &["-n", &switch, "qdisc", "del", "dev", &port, "clsact"]);
        run("ip", &["-n", &switch, "link", "set", &port, "master", "bridge"]);
    }
    run("ip", &["-n", &switch, "link", "set", "bridge", "up"]);
}

#[test]
fn a_bridge_before_the_same_queue_would_hold_a_socket_back_and_drop_nothing() {
    need_box!();
    need_program!("python3");
    const COUNT: u32 = 500;
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "10mbit", "--port-buffer", "128KiB", "--shaper", "tbf"]);
    blast(&cluster, COUNT);
    let by_switch = cluster.port("h1").drops;
    until("the port is empty", || cluster.port("h1").queue_bytes == 0);
    bridge(&cluster);
    let before = cluster.port("h1");
    let elapsed = blast(&cluster, COUNT);
    let after = cluster.port("h1");
    let (drops, sent) = (after.drops - before.drops, after.sent_packets - before.sent_packets);
    println!("{COUNT} datagrams: {by_switch} drops at the switch; {drops} at the bridge, in {elapsed:?}");
    assert!(by_switch > 50, "{by_switch} drops at the switch");
    assert_eq!(drops, 0, "at the bridge");
    // 0.6 s on the line, less what may wait in the socket's buffer.
    assert!(sent > 400 && elapsed > Duration::from_millis(400), "{sent} passed the bridge in {elapsed:?}");
}

#[test]
fn with_a_rate_of_its_own_a_host_waits_for_its_own_interface() {
    need_box!();
    need_program!("python3");
    const COUNT: u32 = 2_000;
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "10mbit", "--host-rate", "10mbit"]);
    let elapsed = blast(&cluster, COUNT);
    let port = cluster.port("h1");
    println!("{COUNT} datagrams sent in {elapsed:?}, {} drops", port.drops);
    assert_eq!(port.host_rate_bits_per_s, Some(10_000_000));
    // 2.46 s on the line, less what may wait in the socket's buffer.
    assert!(elapsed > Duration::from_secs(2), "{elapsed:?}");
    assert_eq!((port.drops, cluster.port("h2").host_drops), (0, 0));
}

#[test]
fn a_port_sends_at_its_rate_and_holds_its_buffer() {
    need_box!();
    const COUNT: usize = 3_000;
    let cluster = TestBox::up(&["--hosts", "3", "--rate", "1mbit", "--port-buffer", "64KiB"]);
    let receiver = receive_frames(&cluster, "h1", UNKNOWN_TYPE, COUNT);
    let start = Instant::now();
    let before = cluster.port("h1");
    let mac = before.mac.clone();
    cluster.run("h2", &frames(["send", "eth0", &mac, UNKNOWN_TYPE, &COUNT.to_string()]), LIMIT).expect_success();
    // 100 bytes each: 655 fit into the buffer, and the line takes one a millisecond.
    until("the port is empty", || cluster.port("h1").queue_bytes == 0);
    let arrived = received_by_now(&receiver)[0];
    let after = cluster.port("h1");
    assert_within_the_line(&before, &after, start.elapsed());
    println!("{arrived} of {COUNT} arrived, {} drops", after.drops);
    assert_eq!(arrived as u64 + after.drops + after.missed_packets, COUNT as u64);
    assert!(arrived >= 655, "{arrived} arrived: less than the buffer holds");
    assert!(after.drops > 0);
}
