//! A peer that speaks another version of the protocol: what docs/protocol.md 2.5 answers, what the client is told, what is counted.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, counter, engine_of, last_line, peer, receiver};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;

const OTHER: (&str, &str) = ("PEER_VERSION", "2");

#[test]
fn a_syn_of_another_version_is_answered_with_those_that_are_spoken_here() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let receiver = receiver(&cluster, "h1", &Carrier::Udp4.at(PORT), Mode::Stream, &[]);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    let before = counter(&engine_of(&cluster, "h1", &receiver.process), "dropped_malformed");
    for version in ["2", "9"] {
        let finished = cluster.run("h2", &peer(&["syn", &to, version], Mode::Stream, &[]), LIMIT).expect_success();
        let expected = ["00", "00", "0009", "01234567", &"00".repeat(16), "89abcdef00112233", "01"].concat();
        assert_eq!(last_line(&finished)["answer"], expected);
    }
    // The short ones, which nobody answers, count as well.
    let after = counter(&engine_of(&cluster, "h1", &receiver.process), "dropped_malformed");
    assert_eq!(after - before, 4);
    // 0 and 15 are no versions, and what is no version is not answered.
    let silent = cluster.run("h2", &peer(&["syn", &to, "15"], Mode::Stream, &[]), LIMIT);
    assert!(!silent.success(), "{}", silent.stdout);
    // And all of it was no matter to those who speak the same version.
    Waiting::sender(&cluster, "h2", &to, 100_000, Mode::Stream, &[]).result();
}

#[test]
fn two_versions_do_not_talk_and_say_so() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let receiver_two = receiver(&cluster, "h1", &Carrier::Udp4.at(PORT), Mode::Stream, &[OTHER]);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    let failure = Waiting::sender(&cluster, "h2", &to, 100_000, Mode::Stream, &[]).failure();
    println!("{failure}");
    assert!(failure["error"].as_str().is_some_and(|text| text.contains("version")), "{failure}");
    // At once, and not when time is up.
    assert_eq!(failure["sent"], 0);
    assert!(failure["seconds"].as_f64().is_some_and(|seconds| seconds < 9.0), "{failure}");
    assert_eq!(counter(&engine_of(&cluster, "h1", &receiver_two.process), "associations_opened"), 0);
    assert!(counter(&engine_of(&cluster, "h1", &receiver_two.process), "dropped_malformed") > 0);

    // The other way round, and both of the other version.
    let receiver_one = receiver(&cluster, "h1", &Carrier::Udp4.at(PORT + 1), Mode::Stream, &[]);
    let to_one = Carrier::Udp4.to(&cluster.port("h1"), PORT + 1);
    let failure = Waiting::sender(&cluster, "h2", &to_one, 100_000, Mode::Stream, &[OTHER]).failure();
    assert!(failure["error"].as_str().is_some_and(|text| text.contains("version")), "{failure}");
    assert!(counter(&engine_of(&cluster, "h1", &receiver_one.process), "dropped_malformed") > 0);
    Waiting::sender(&cluster, "h2", &to, 100_000, Mode::Stream, &[OTHER]).result();
    Waiting::sender(&cluster, "h2", &to_one, 100_000, Mode::Stream, &[]).result();
}
