//! As frames on a device, past UDP: at a hardware address, where `ROPEWAY_LINK` says so, and to nodes that share no IP network.

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use ropeway_testkit::need_box;
use ropeway_testkit::proc::command;

use super::{Files, LIMIT, PORT, described, member, peer, ready, receive, send};

#[test]
fn a_file_arrives_at_a_hardware_address_and_goes_on_when_its_receiver_was_killed() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let files = Files::new(12_000_000);
    let bind = format!("eth0/*:{PORT}");
    let first = ready(cluster.spawn("h2", &receive(&files, &bind)));
    // It says where it is in the words that name it elsewhere.
    let to = format!("eth0/{}:{PORT}", cluster.port("h2").mac);
    assert!(first.stderr().contains(&to), "{}", first.stderr());
    let mut cmd = send(&files, &to);
    cmd.args(["--bind", "eth0/*:7461"]);
    let sender = cluster.spawn("h1", &cmd);
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 1_000_000).expect("in time");
    first.kill();
    let _second = ready(cluster.spawn("h2", &receive(&files, &bind)));
    let finished = sender.succeed(LIMIT);
    files.assert_arrived();
    assert!(finished.stderr.contains("were there already"), "{}", finished.stderr);
}

#[test]
fn an_ip_address_means_the_device_that_the_environment_names() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit", "--port-buffer", "128KiB"]);
    let files = Files::new(8_000_000);
    for link in ["packet:eth0", "xdp:eth0"] {
        let over = |mut cmd: std::process::Command| {
            cmd.env("ROPEWAY_LINK", link);
            cmd
        };
        let receiver = ready(cluster.spawn("h2", &over(receive(&files, &format!("0.0.0.0:{PORT}")))));
        assert!(receiver.stderr().contains(" at eth0/"), "{}", receiver.stderr());
        // Over UDP nobody is there.
        let other = cluster.run("h1", &send(&files, &peer(&cluster)), LIMIT);
        assert!(!other.success() && other.stderr.contains("may UDP to that port pass"), "{}", other.stderr);
        cluster.run("h1", &over(send(&files, &peer(&cluster))), LIMIT).expect_success();
        files.assert_arrived();
        std::fs::remove_file(files.target().join("file")).expect("it is there");
    }
    assert_eq!(cluster.port("h2").drops, 0);
}

#[test]
fn nodes_that_share_no_ip_network_are_reached_on_their_ethernet_by_name() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let files = Files::new(1_000_000);
    let addresses = ["h1", "h2"].map(|host| cluster.port(host).mac);
    let description = described(&files, "trusted = true", [&addresses[0], &addresses[1]]);
    let everywhere = command(env::ropeway(), ["cp", "--receive", &files.target().display().to_string()]);
    let _receiver = ready(cluster.spawn("h2", &member(everywhere, &description, Some("node2"))));
    cluster.run("h1", &member(send(&files, "node2"), &description, Some("node1")), LIMIT).expect_success();
    files.assert_arrived();
}

#[test]
fn what_a_device_cannot_do_is_said_with_what_to_do() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let files = Files::new(10);
    let to = format!("eth0/{}", cluster.port("h2").mac);
    let cases: &[(&[&str], &[&str])] = &[
        (&[&to, "--bind", "0.0.0.0:7447"], &["--bind 0.0.0.0:7447 is of UDP", "eth0/*:7447"]),
        (&["10.0.1.2", "--bind", "eth0/*:7447"], &["on an Ethernet", "over UDP"]),
        (&["eth7/02:00:00:00:00:07"], &["cannot use eth7/*:0", "there is no network device eth7"]),
        (&["eth0/02:00"], &["DEVICE/HARDWARE-ADDRESS"]),
        (&["eth0/*"], &["name the other end's hardware address"]),
        (&[&to, "--node", "3"], &["--node is for gateways"]),
    ];
    for (args, texts) in cases {
        let mut cmd = command(env::ropeway(), ["cp", &files.source()]);
        cmd.args(*args);
        let finished = cluster.run("h1", &cmd, LIMIT);
        let told = &finished.stderr;
        assert!(!finished.success() && texts.iter().all(|text| told.contains(text)), "{args:?}: {told}");
    }
    // Nobody refuses there.
    let nobody = cluster.run("h1", &send(&files, &to), LIMIT);
    assert!(!nobody.success() && nobody.stderr.contains("running there on that device"), "{}", nobody.stderr);
}
