//! Cuts and losses: what passes, what does not, and what comes back.

use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::incast::TcpIncast;
use ropeway_testkit::need_box;
use ropeway_testkit::proc::Process;

use super::{LIMIT, UNKNOWN_TYPE, receive_frames, received, received_by_now, send_frames, until};

#[test]
fn nothing_passes_a_cut_in_either_direction_and_everything_after_it_is_healed() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit"]);
    cluster.cut("h2");
    assert!(cluster.port("h2").cut && !cluster.port("h1").cut);
    assert!(cluster.ropeway(&["status"]).expect_success().stdout.contains("  cut\n"));
    for (from, to) in [("h1", "h2"), ("h2", "h1")] {
        let receiver = receive_frames(&cluster, to, UNKNOWN_TYPE, 1);
        let lost = cluster.port("h2").lost_packets;
        send_frames(&cluster, from, to, 50);
        until("all are lost", || cluster.port("h2").lost_packets >= lost + 50);
        assert_eq!(received_by_now(&receiver)[0], 0, "{from} to {to}");
    }
    let others = receive_frames(&cluster, "h3", UNKNOWN_TYPE, 50);
    send_frames(&cluster, "h1", "h3", 50);
    assert_eq!(received(&others)[0], 50, "the rest of the box goes on");
    cluster.heal("h2");
    assert!(!cluster.port("h2").cut);
    let receiver = receive_frames(&cluster, "h2", UNKNOWN_TYPE, 50);
    send_frames(&cluster, "h1", "h2", 50);
    assert_eq!(received(&receiver)[0], 50);
    // What is not cut can be healed, and what is cut can be cut again.
    cluster.heal("h2");
    cluster.cut("h2");
    cluster.cut("h2");
    cluster.heal("h2");
    assert!(!cluster.port("h2").cut);
}

#[test]
fn those_who_cut_and_heal_at_once_are_not_in_each_others_way() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "1gbit"]);
    for _ in 0..10 {
        cluster.cut("h2");
        cluster.loss("h2", "5%");
        let heal = || Process::spawn(cluster.ropeway_command(&["heal", "h2"]));
        let end_loss = || Process::spawn(cluster.ropeway_command(&["loss", "h2", "0%"]));
        let all = [heal(), end_loss(), heal(), end_loss(), heal()];
        all.into_iter().for_each(|process| drop(process.succeed(LIMIT)));
        let port = cluster.port("h2");
        assert!(!port.cut && port.loss_to_host_percent == 0.0, "{port:?}");
    }
}

#[test]
fn a_connection_stands_still_during_a_cut_and_goes_on_after_it() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2", "--rate", "100mbit"]);
    let _stream = TcpIncast::start(&cluster, 1, 300.0, "cubic");
    let sent = || cluster.port("h1").sent_bytes;
    until("bytes flow", || sent() > 1_000_000);
    cluster.cut("h2");
    // What was in the port's buffer still comes out.
    until("the port is empty", || cluster.port("h1").queue_bytes == 0);
    let still = sent();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(sent(), still);
    cluster.heal("h2");
    until("bytes flow again", || sent() > still + 1_000_000);
}

/// Six standard deviations of the number of frames that `share` of them loses: by chance, once in a hundred million runs.
fn chance(frames: usize, share: f64) -> f64 {
    6.0 * (frames as f64 * share * (1.0 - share)).sqrt()
}

#[test]
fn the_share_of_lost_frames_is_the_one_that_was_asked_for() {
    need_box!();
    const COUNT: usize = 20_000;
    let cluster = TestBox::up(&["--hosts", "2"]);
    for (text, share) in [("1%", 0.01), ("25%", 0.25)] {
        cluster.loss("h2", text);
        let port = cluster.port("h2");
        assert_eq!((port.loss_to_host_percent, port.loss_from_host_percent), (share * 100.0, share * 100.0));
        for (from, to) in [("h1", "h2"), ("h2", "h1")] {
            let before = cluster.port("h2").lost_packets;
            let receiver = receive_frames(&cluster, to, UNKNOWN_TYPE, COUNT);
            send_frames(&cluster, from, to, COUNT);
            let arrived = received_by_now(&receiver)[0];
            let lost = cluster.port("h2").lost_packets - before;
            let missed: u64 = cluster.ports().iter().map(|port| port.missed_packets).sum();
            println!("{text}, {from} to {to}: {lost} of {COUNT} lost, {missed} missed");
            let expected = COUNT as f64 * share;
            assert!((lost as f64 - expected).abs() <= chance(COUNT, share), "{lost} lost, {expected} expected");
            // Frames of the hosts' own, to find each other, may be among the lost.
            let counted = arrived as u64 + lost + missed;
            assert!((COUNT as u64..COUNT as u64 + 20).contains(&counted), "{arrived} arrived, {lost} lost");
        }
    }
    cluster.loss("h2", "0%");
    let receiver = receive_frames(&cluster, "h2", UNKNOWN_TYPE, 1000);
    send_frames(&cluster, "h1", "h2", 1000);
    assert_eq!(received(&receiver)[0], 1000);
    assert_eq!(cluster.port("h2").loss_to_host_percent, 0.0);
}

#[test]
fn a_loss_can_be_in_one_direction() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    cluster.ropeway(&["loss", "h2", "90%", "--from"]).expect_success();
    let port = cluster.port("h2");
    assert_eq!((port.loss_from_host_percent, port.loss_to_host_percent), (90.0, 0.0));
    let (there, back) =
        (receive_frames(&cluster, "h2", UNKNOWN_TYPE, 500), receive_frames(&cluster, "h1", UNKNOWN_TYPE, 500));
    send_frames(&cluster, "h1", "h2", 500);
    send_frames(&cluster, "h2", "h1", 500);
    let (there, back) = (received(&there)[0], received_by_now(&back)[0]);
    assert_eq!(there, 500);
    assert!((back as f64 - 50.0).abs() <= chance(500, 0.9), "{back} of 500 came back");
    cluster.ropeway(&["loss", "h2", "0%", "--to"]).expect_success();
    assert_eq!(cluster.port("h2").loss_from_host_percent, 90.0, "only the named direction ends");
    cluster.ropeway(&["loss", "h2", "5%", "--to"]).expect_success();
    let table = cluster.ropeway(&["status"]).expect_success().stdout;
    assert!(table.contains("loss 90% from, 5% to the host"), "{table}");
    // A cut is not a loss: healing leaves it.
    cluster.cut("h2");
    cluster.heal("h2");
    assert_eq!(cluster.port("h2").loss_to_host_percent, 5.0);
}
