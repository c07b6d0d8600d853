//! Over AF_XDP (`ROPEWAY_LINK=xdp:eth0`): the same sockets and the same frames as over packet sockets, and one process for each device.

use crate::{
    Carrier, LIMIT, Mode, PORT, Waiting, counter, engine_of, engines, last_line, peer, receiver, shaped, until,
};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::proc::command;
use ropeway_testkit::{env, need_box, need_program};
use serde_json::Value;

const BYTES: u64 = 4 << 20;
const XDP: (&str, &str) = ("ROPEWAY_LINK", "xdp:eth0");
/// A veth device hands its frames over, and cannot write into our memory.
const USUAL_MODE: &str = "xdp copy";

fn link_of(engine: &Value) -> &str {
    engine["links"][0]["name"].as_str().unwrap_or_else(|| panic!("no link: {engine}"))
}

/// Whether a program of XDP is on the device of a host.
fn has_program(cluster: &TestBox, host: &str) -> bool {
    let shown = cluster.run(host, &command("ip", ["-d", "link", "show", "eth0"]), LIMIT).expect_success();
    shown.stdout.contains("xdp")
}

#[test]
fn streams_and_messages_pass_between_ends_of_either_kind() {
    need_box!();
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    for names in [[USUAL_MODE, USUAL_MODE], [USUAL_MODE, "packet"], ["packet", USUAL_MODE]] {
        let kinds = names.map(|name| if name == USUAL_MODE { &[XDP][..] } else { &[] });
        for mode in [Mode::Stream, Mode::Messages] {
            let receiver = receiver(&cluster, "h1", &Carrier::Packet.at(PORT), mode, kinds[0]);
            let to = Carrier::Packet.to(&cluster.port("h1"), PORT);
            let mut sender = Waiting::sender(&cluster, "h2", &to, 0, mode, kinds[1]);
            sender.is_connected();
            for (host, process, name) in [("h1", &receiver, names[0]), ("h2", &sender, names[1])] {
                let engine = engine_of(&cluster, host, &process.process);
                assert_eq!(link_of(&engine), name, "{engine}");
                assert_eq!(engine["connections"][0]["link"], name, "{engine}");
                assert_eq!(has_program(&cluster, host), name == USUAL_MODE, "{host}");
            }
            // People see it too.
            let listed = cluster.run("h1", &command(env::ropeway(), ["ss"]), LIMIT).expect_success();
            assert!(listed.stdout.contains(names[0]), "{}", listed.stdout);
            until("bytes flow", || receiver_has(&cluster, &receiver, BYTES));
            sender.end();
            let result = sender.result();
            println!("{mode:?} from {} to {}: {} Mbit/s", names[1], names[0], result["mbit_per_s"]);
            assert!(result["sent"].as_u64() > Some(BYTES), "{result}");
            for name in ["dropped_malformed", "dropped_unknown_id", "violations"] {
                assert_eq!(counter(&engine_of(&cluster, "h1", &receiver.process), name), 0, "{name}");
            }
        }
    }
}

fn receiver_has(cluster: &TestBox, receiver: &Waiting, bytes: u64) -> bool {
    counter(&engine_of(cluster, "h1", &receiver.process), "payload_received_bytes") > bytes
}

#[test]
fn plain_addresses_mean_the_ends_on_the_device() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let receiver = receiver(&cluster, "h1", &Carrier::Udp4.at(PORT), Mode::Stream, &[XDP]);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, &[("ROPEWAY_LINK", "packet:eth0")]).result();
    Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, &[XDP]).result();
    assert_eq!(link_of(&engine_of(&cluster, "h1", &receiver.process)), USUAL_MODE);
}

#[test]
fn a_process_that_is_killed_leaves_its_device_to_the_next() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let to = Carrier::Packet.to(&cluster.port("h1"), PORT);
    for _ in 0..3 {
        let receiver = receiver(&cluster, "h1", &Carrier::Packet.at(PORT), Mode::Stream, &[XDP]);
        let sender = Waiting::sender(&cluster, "h2", &to, 0, Mode::Stream, &[XDP]);
        sender.is_connected();
        // In the middle of it, on both sides.
        sender.process.kill();
        receiver.process.kill();
    }
    for host in ["h1", "h2"] {
        until("the program is gone", || !has_program(&cluster, host));
    }
    // The device is as it was, for IP and for packet sockets.
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _receiver = receiver(&cluster, "h1", &carrier.at(PORT + 1), Mode::Stream, &[]);
        let to = carrier.to(&cluster.port("h1"), PORT + 1);
        Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, &[]).result();
    }
}

#[test]
fn a_process_has_one_engine_for_all_that_it_does_on_a_device() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "3"]);
    let last = receiver(&cluster, "h1", &Carrier::Packet.at(PORT), Mode::Stream, &[XDP]);
    let ports = [PORT + 1, PORT + 2];
    let between = {
        let at = ports.map(|port| Carrier::Packet.at(port)).join(",");
        let to = Carrier::Packet.to(&cluster.port("h1"), PORT);
        Waiting::start(&cluster, "h2", &peer(&["pass", &at, &to], Mode::Stream, &[XDP, ("PEER_ONCE", "1")]))
    };
    between.process.wait_for_output("ready", LIMIT);
    let send_to = |port: u16| {
        let to = Carrier::Packet.to(&cluster.port("h2"), port);
        assert_eq!(Waiting::sender(&cluster, "h3", &to, BYTES, Mode::Stream, &[]).result()["sent"], BYTES);
    };
    send_to(ports[0]);
    let all = engines(&cluster, "h2");
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!((link_of(&all[0]), counter(&all[0], "channels_accepted")), (USUAL_MODE, 1));
    // A port where it listens no more is anybody's, and frames that open connections to it as well.
    let other = receiver_at_free(&cluster, "h2", ports[0]);
    send_to(ports[0]);
    assert_eq!(counter(&engine_of(&cluster, "h2", &other.process), "channels_accepted"), 1);
    send_to(ports[1]);
    between.process.succeed(LIMIT);
    assert_eq!(counter(&engine_of(&cluster, "h1", &last.process), "channels_accepted"), 2);
}

/// A receiver over packet sockets, as soon as the port is given back.
fn receiver_at_free(cluster: &TestBox, host: &str, port: u16) -> Waiting {
    let mut found = None;
    until("the port is given back", || {
        let next = Waiting::start(cluster, host, &peer(&["receive", &Carrier::Packet.at(port)], Mode::Stream, &[]));
        until("it listens or ends", || next.process.stdout().contains("ready") || !next.process.is_running());
        found = next.process.is_running().then_some(next);
        found.is_some()
    });
    found.expect("just found")
}

#[test]
fn a_device_has_one_such_process_and_any_number_of_others_beside_it() {
    need_box!();
    need_program!("setpriv");
    let cluster = TestBox::up(&["--hosts", "2"]);
    let beside = receiver(&cluster, "h1", &Carrier::Packet.at(PORT), Mode::Stream, &[]);
    let past = receiver(&cluster, "h1", &Carrier::Packet.at(PORT + 1), Mode::Stream, &[XDP]);
    let refused = |at: u16, variables: &[(&str, &str)], what: &str| {
        let finished = cluster.run("h1", &peer(&["receive", &Carrier::Udp4.at(at)], Mode::Stream, variables), LIMIT);
        println!("{}", finished.stderr);
        assert!(!finished.success() && finished.stderr.contains(what), "{}", finished.stderr);
    };
    refused(PORT + 2, &[XDP], "eth0 has an XDP program already, or its queue 0 belongs to another process");
    // Ports are claimed across kinds.
    refused(PORT, &[XDP], "port 7470 on eth0 is in use");
    refused(PORT + 1, &[("ROPEWAY_LINK", "packet:eth0")], "port 7471 on eth0 is in use");
    refused(PORT + 2, &[("ROPEWAY_LINK", "xdp:eth7")], "there is no network device eth7");
    refused(PORT + 2, &[("ROPEWAY_LINK", "xdp")], "xdp:DEVICE");
    let finished = {
        let (at, nobody) = (Carrier::Packet.at(PORT + 2), ["--reuid", "65534", "--clear-groups", "--"]);
        let peer = peer(&["receive", &at], Mode::Stream, &[]);
        let mut unprivileged = command("setpriv", nobody);
        unprivileged.arg(peer.get_program()).args(peer.get_args()).envs([XDP, ("ROPEWAY_TRUSTED", "1")]);
        cluster.run("h1", &unprivileged, LIMIT)
    };
    assert!(finished.stderr.contains("CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"), "{}", finished.stderr);
    // Both get what is meant for them, at once, and nothing else.
    let senders = [PORT, PORT + 1].map(|port| {
        Waiting::sender(&cluster, "h2", &Carrier::Packet.to(&cluster.port("h1"), port), BYTES, Mode::Stream, &[])
    });
    senders.iter().for_each(|sender| assert_eq!(sender.result()["sent"], BYTES));
    for receiver in [&beside, &past] {
        let engine = engine_of(&cluster, "h1", &receiver.process);
        assert_eq!(counter(&engine, "channels_accepted"), 1, "{engine}");
        for name in crate::processes::FOREIGN {
            assert_eq!(counter(&engine, name), 0, "{name} of {engine}");
        }
    }
    // Where nobody listens nobody answers, not even who takes frames first.
    let quick = [("ROPEWAY_TUNE", "connect_timeout=1000")];
    let to = Carrier::Packet.to(&cluster.port("h1"), PORT + 3);
    let failure = last_line(&cluster.run("h2", &peer(&["send", &to, "1000"], Mode::Stream, &quick), LIMIT));
    assert_eq!(failure["kind"], "TimedOut", "{failure}");
}
