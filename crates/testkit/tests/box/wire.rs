//! What the switch does with frames: which ports they reach, in which order, how large they are.

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::incast::TcpIncast;
use ropeway_testkit::need_box;
use rustix::process::Signal;

use super::{LIMIT, UNKNOWN_TYPE, frames, numbers, receive_frames, received, received_by_now, send_frames};

#[test]
fn a_frame_of_an_unknown_type_reaches_the_port_of_its_address_and_no_other() {
    need_box!();
    for options in [&["--hosts", "3"][..], &["--hosts", "3", "--rate", "1gbit", "--host-rate", "1gbit"]] {
        let cluster = TestBox::up(options);
        let meant = receive_frames(&cluster, "h2", UNKNOWN_TYPE, 200);
        let other = receive_frames(&cluster, "h3", UNKNOWN_TYPE, 1);
        let before = cluster.port("h2").sent_packets;
        send_frames(&cluster, "h1", "h2", 200);
        assert_eq!(received(&meant)[..2], [200, 0], "{options:?}");
        assert_eq!(received_by_now(&other)[0], 0, "{options:?}");
        assert!(cluster.port("h2").sent_packets >= before + 200);
    }
}

#[test]
fn broadcasts_multicasts_and_unknown_addresses_reach_every_port_but_their_own() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "4"]);
    for address in ["ff:ff:ff:ff:ff:ff", "33:33:00:00:12:34", "02:00:00:00:00:99"] {
        // The one that sends would see its own frames, were they sent back: `frames` does not count those that go out.
        let [own, others @ ..] = ["h1", "h2", "h3", "h4"].map(|host| receive_frames(&cluster, host, UNKNOWN_TYPE, 10));
        cluster.run("h1", &frames(["send", "eth0", address, UNKNOWN_TYPE, "10"]), LIMIT).expect_success();
        assert_eq!(others.each_ref().map(|receiver| received(receiver)[0]), [10, 10, 10], "{address}");
        assert_eq!(received_by_now(&own)[0], 0, "{address}");
    }
}

/// The longest frame that h1 gets while another host sends it a stream.
fn longest_frame(options: &[&str]) -> usize {
    let cluster = TestBox::up(&[&["--hosts", "2"], options].concat());
    const ANY_TYPE: &str = "0003";
    let watch = receive_frames(&cluster, "h1", ANY_TYPE, 5000);
    let incast = TcpIncast::start(&cluster, 1, 3.0, "cubic");
    let [count, _, longest] = received(&watch);
    assert!(count > 500, "only {count} frames");
    incast.end();
    longest
}

#[test]
fn with_a_rate_frames_are_as_large_as_the_mtu_says() {
    need_box!();
    const HEADER_BYTES: usize = 14;
    assert_eq!(longest_frame(&["--rate", "1gbit"]), 1500 + HEADER_BYTES);
    assert_eq!(longest_frame(&["--rate", "1gbit", "--mtu", "9000"]), 9000 + HEADER_BYTES);
    assert_eq!(longest_frame(&["--wire-frames"]), 1500 + HEADER_BYTES);
    // Otherwise the test would say nothing: without a rate, hosts hand over segments of many frames.
    assert!(longest_frame(&[]) > 1500 + HEADER_BYTES);
}

#[test]
fn with_a_rate_frames_stay_in_order() {
    need_box!();
    const COUNT: &str = "100000";
    for options in [&[][..], &["--shaper", "tbf"], &["--host-rate", "1gbit"]] {
        let cluster = TestBox::up(&[&["--hosts", "5", "--rate", "1gbit"], options].concat());
        // Senders, receiver, and the timers of the ports are at work on all processors at once.
        let watch = cluster.spawn("h1", &frames(["order", "eth0", COUNT]));
        watch.wait_for_output("ready", LIMIT);
        let incast = TcpIncast::start(&cluster, 4, 3.0, "cubic");
        incast.end();
        watch.signal(Signal::TERM);
        let [seen, flows, late] = numbers(&watch.succeed(LIMIT));
        println!("{options:?}: {seen} frames of {flows} flows, {late} late");
        assert!(seen > 10_000 && flows == 4, "{seen} frames of {flows} flows are too few to say anything");
        assert_eq!(late, 0, "of {seen}");
    }
}
