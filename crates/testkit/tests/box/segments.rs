//! Two segments with gateways between them.

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::proc::command;
use ropeway_testkit::{need_box, need_program};

use super::{LIMIT, UNKNOWN_TYPE, frames, receive_frames, received, received_by_now, until};

/// Sends UDP datagrams from different ports, so that they take different ways where there are several.
#[track_caller]
fn send_datagrams(cluster: &TestBox, from: &str, address: &str, count: usize) {
    let script = format!(
        "import socket\nfor _ in range({count}):\n    s = socket.socket(socket.AF_INET6 if ':' in '{address}' else socket.AF_INET, \
         socket.SOCK_DGRAM)\n    s.sendto(b'x' * 100, ('{address}', 9))\n    s.close()"
    );
    cluster.run(from, &command("python3", ["-c", &script]), LIMIT).expect_success();
}

#[test]
fn the_segments_reach_each_other_through_the_gateways_only() {
    need_box!();
    need_program!("python3");
    const COUNT: usize = 200;
    let cluster = TestBox::up(&["--hosts", "4", "--gateways", "2", "--rate", "1gbit"]);
    let ports = cluster.ports();
    let place = |port: &ropeway_testkit::boxes::Port| (port.port.clone(), port.segment.clone());
    let expected = [
        ("h1", "compute"),
        ("h2", "compute"),
        ("h3", "io"),
        ("h4", "io"),
        ("g1-compute", "compute"),
        ("g1-io", "io"),
        ("g2-compute", "compute"),
        ("g2-io", "io"),
    ];
    assert_eq!(ports.iter().map(place).collect::<Vec<_>>(), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    let sent = |port: &str| cluster.port(port).sent_packets;
    for address in [cluster.v4("h3").to_string(), cluster.v6("h3").to_string()] {
        let before = ["h3", "g1-compute", "g2-compute"].map(sent);
        send_datagrams(&cluster, "h1", &address, COUNT);
        // The first ones wait for the addresses of the gateway and of the host; the kernel keeps some of them.
        until("most datagrams arrive", || sent("h3") >= before[0] + COUNT as u64 / 2);
        let [_, g1, g2] = ["h3", "g1-compute", "g2-compute"].map(sent);
        assert!(g1 > before[1] + 10 && g2 > before[2] + 10, "both gateways carry some: {g1} {g2}, {before:?} before");
    }
    cluster.cut("g1");
    cluster.cut("g2");
    assert!(["g1-compute", "g1-io", "g2-compute", "g2-io"].iter().all(|port| cluster.port(port).cut));
    let (address, before) = (cluster.v4("h3").to_string(), sent("h3"));
    let lost = |port: &str| cluster.port(port).lost_packets;
    let lost_before = lost("g1-compute") + lost("g2-compute");
    send_datagrams(&cluster, "h1", &address, COUNT);
    until("they are lost at the gateways", || {
        lost("g1-compute") + lost("g2-compute") >= lost_before + COUNT as u64 / 2
    });
    assert!(sent("h3") < before + 10, "{} frames came through", sent("h3") - before);
}

#[test]
fn a_frame_for_the_other_segment_stays_in_its_own() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "3", "--gateways", "1", "--io-hosts", "1"]);
    let [far, near] = ["h3", "h2"].map(|host| receive_frames(&cluster, host, UNKNOWN_TYPE, 10));
    let to_h3 = cluster.port("h3").mac;
    cluster.run("h1", &frames(["send", "eth0", &to_h3, UNKNOWN_TYPE, "10"]), LIMIT).expect_success();
    // In the segment of the sender nobody has that address.
    assert_eq!(received(&near)[0], 10);
    assert_eq!(received_by_now(&far)[0], 0);
}

#[test]
fn one_leg_of_a_gateway_can_be_cut() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--gateways", "1"]);
    cluster.cut("g1-io");
    assert!(cluster.port("g1-io").cut && !cluster.port("g1-compute").cut);
    cluster.heal("g1");
    assert!(!cluster.port("g1-io").cut);
    let unknown = cluster.ropeway(&["cut", "g2"]);
    assert!(unknown.stderr.contains("h1, h2, g1, g1-compute, g1-io"), "{}", unknown.stderr);
    let names = cluster.run("g1", &command("cat", ["/etc/hosts"]), LIMIT).expect_success().stdout;
    assert!(names.contains("10.0.1.201 g1 g1-compute\n") && names.contains("10.0.2.201 g1-io\n"), "{names}");
}
