//! Ten thousand connections between two hosts.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, counter, engine_of, last_line, peer, shaped, until};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;

const CONNECTIONS: u64 = 10_000;

#[test]
fn ten_thousand_connections_are_open_at_once_and_each_carries_a_message_both_ways() {
    need_box!();
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let count = CONNECTIONS.to_string();
    let server = Waiting::start(&cluster, "h1", &peer(&["echo", &Carrier::Udp4.at(PORT), &count], Mode::Messages, &[]));
    server.process.wait_for_output("ready", LIMIT);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    let finished = cluster.run("h2", &peer(&["many", &to, &count], Mode::Messages, &[]), LIMIT).expect_success();
    let said = last_line(&finished);
    println!("{said}");
    assert_eq!(said["right"], CONNECTIONS);
    let ended = last_line(&server.process.succeed(LIMIT));
    assert_eq!((&ended["accepted"], &ended["ended"]), (&CONNECTIONS.into(), &CONNECTIONS.into()));
}

#[test]
fn one_after_the_other_leave_nothing_behind() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let receiver = crate::receiver(&cluster, "h1", &Carrier::Udp4.at(PORT), Mode::Messages, &[]);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    for _ in 0..20 {
        Waiting::sender(&cluster, "h2", &to, 100_000, Mode::Messages, &[]).result();
    }
    until("everything is over", || {
        let engine = engine_of(&cluster, "h1", &receiver.process);
        engine["connections"].as_array().is_some_and(Vec::is_empty)
            && counter(&engine, "associations_ended") == counter(&engine, "associations_opened")
    });
    assert_eq!(counter(&engine_of(&cluster, "h1", &receiver.process), "channels_accepted"), 20);
}
