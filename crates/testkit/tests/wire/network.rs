//! A network that loses, that is cut and heals, with short and long frames: what arrives is right, and what cannot arrive is told in time.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, engine_of, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;
use std::time::Duration;

const CARRIERS: [Carrier; 3] = [Carrier::Udp4, Carrier::Udp6, Carrier::Packet];

/// Packets of a transfer: if each is lost with one percent, that none is happens once in a million.
const PACKETS: u64 = 1400;

/// Streams and messages of all lengths through a network that loses, in frames of this size.
fn through_losses(mtu: u64) {
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit", "--mtu", &mtu.to_string()]);
    let (packet, bytes) = (mtu.to_string(), mtu * PACKETS);
    // As long as the frames allow; the default is for Ethernet's usual 1500.
    let variables = [("ROPEWAY_PACKET_BYTES", packet.as_str())];
    for mode in [Mode::Stream, Mode::Messages] {
        for carrier in CARRIERS {
            let receiver = receiver(&cluster, "h1", &carrier.at(PORT), mode, &variables);
            for loss in ["1%", "5%"] {
                cluster.loss("h1", loss);
                let before = cluster.port("h1");
                let to = carrier.to(&before, PORT);
                let sender = Waiting::sender(&cluster, "h2", &to, bytes, mode, &variables);
                let result = sender.result();
                let after = cluster.port("h1");
                cluster.loss("h1", "0%");
                let lost = after.lost_packets - before.lost_packets;
                println!(
                    "{mode:?} over {carrier:?}, MTU {mtu}, {loss}: {} Mbit/s, {lost} frames lost",
                    result["mbit_per_s"]
                );
                assert!(lost > 0, "the network did lose frames: {after:?}");
                let (frames, bytes) = (after.sent_packets - before.sent_packets, after.sent_bytes - before.sent_bytes);
                assert!(bytes / frames > mtu / 2, "long frames: {bytes} bytes in {frames}");
            }
            let engine = engine_of(&cluster, "h1", &receiver.process);
            assert_eq!(engine["counters"]["dropped_malformed"], 0, "{engine}");
            assert_eq!(engine["counters"]["violations"], 0, "{engine}");
        }
    }
}

#[test]
fn everything_arrives_through_losses_in_usual_frames() {
    need_box!();
    through_losses(1500);
}

#[test]
fn everything_arrives_through_losses_in_jumbo_frames() {
    need_box!();
    through_losses(9000);
}

#[test]
fn connections_stand_still_during_a_cut_and_go_on_after_it() {
    need_box!();
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    for (carrier, mode) in CARRIERS.into_iter().zip([Mode::Stream, Mode::Messages, Mode::Stream]) {
        let _receiver = receiver(&cluster, "h1", &carrier.at(PORT), mode, &[]);
        let mut sender = Waiting::sender(&cluster, "h2", &carrier.to(&cluster.port("h1"), PORT), 0, mode, &[]);
        sender.is_connected();
        let flows = |from: u64| crate::until("bytes flow", || cluster.port("h1").sent_bytes > from + 1_000_000);
        flows(cluster.port("h1").sent_bytes);
        cluster.cut("h1");
        std::thread::sleep(Duration::from_millis(1200));
        assert!(sender.process.is_running(), "a cut of a second is nothing to say");
        let before = cluster.port("h1").sent_bytes;
        cluster.heal("h1");
        flows(before);
        sender.end();
        println!("{mode:?} over {carrier:?}: {}", sender.result());
    }
}

/// docs/protocol.md 8: silence of `give_up` with data undelivered, seen when a timer of at most `timer_max` fires.
#[test]
fn a_long_cut_ends_a_connection_with_the_right_error_and_not_before_its_time() {
    need_box!();
    const GIVE_UP_S: f64 = 1.5;
    /// Says nothing about the protocol, only that the test machine is slow.
    const PATIENCE_S: f64 = 15.0;
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    let tuned = [("ROPEWAY_TUNE", "give_up=1500,idle_limit=3")];
    for (carrier, mode) in CARRIERS.into_iter().zip([Mode::Stream, Mode::Messages, Mode::Stream]) {
        let receiver = receiver(&cluster, "h1", &carrier.at(PORT), mode, &tuned);
        let sender = Waiting::sender(&cluster, "h2", &carrier.to(&cluster.port("h1"), PORT), 0, mode, &tuned);
        sender.is_connected();
        let began = std::time::Instant::now();
        cluster.cut("h1");
        let failure = sender.failure();
        let took = began.elapsed().as_secs_f64();
        println!("{mode:?} over {carrier:?}: {took:.2} s: {failure}");
        assert_eq!(failure["kind"], "TimedOut", "{failure}");
        assert!(
            failure["error"].as_str().is_some_and(|text| text.contains("heard nothing from the other for too long")),
            "{failure}"
        );
        assert!(failure["seconds"].as_f64().is_some_and(|seconds| seconds >= GIVE_UP_S), "{failure}");
        assert!(took < GIVE_UP_S + PATIENCE_S, "{took} s");
        // The other end has nothing that is not delivered: it learns of it when nothing was heard for too long.
        receiver.process.wait_for_output("over", LIMIT);
        let said = receiver.process.stdout();
        assert!(said.contains("heard nothing from the other for too long"), "{said}");
        cluster.heal("h1");
        // Both are still good for others.
        let again =
            Waiting::sender(&cluster, "h2", &carrier.to(&cluster.port("h1"), PORT), 1500 * PACKETS, mode, &tuned);
        again.result();
        assert!(receiver.process.is_running());
    }
}
