//! A network that reorders: what is only late is not asked for again.

use crate::{Carrier, Mode, PORT, Waiting, counter, engine_of, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;

/// Some ten thousand packets, so that a thousandth is a number.
const BYTES: u64 = 24 << 20;
/// Of all data packets, at most one in so many is asked for although it was only late.
const ONE_IN: u64 = 1000;

/// Whatever the reason, at most one in so many comes twice. The timers, which ask and repeat because nothing comes, add to it where programs wait for a processor: beside other
/// work 17 of 17,000 at most, in 20 runs.
const ONE_COPY_IN: u64 = 250;

/// Several streams at once into h1; says how many packets came, and how many requests were for what was only late.
fn spurious(cluster: &TestBox, carrier: Carrier, variables: &[(&str, &str)]) -> (u64, u64) {
    let receiver = receiver(cluster, "h1", &carrier.at(PORT), Mode::Stream, variables);
    let to = carrier.to(&cluster.port("h1"), PORT);
    let one = |host: &str| Waiting::sender(cluster, host, &to, BYTES / 2, Mode::Stream, &[]);
    let senders = ["h2", "h3"].map(one);
    senders.iter().for_each(|sender| drop(sender.result()));
    let engine = engine_of(cluster, "h1", &receiver.process);
    let (packets, late) = (counter(&engine, "packets_received"), counter(&engine, "spurious_requests"));
    let (duplicates, lost) = (counter(&engine, "dropped_duplicate"), counter(&engine, "lost"));
    println!(
        "{carrier:?} {variables:?}: {packets} packets, {late} late ones asked for, {duplicates} twice, {lost} missing"
    );
    assert!(duplicates * ONE_COPY_IN <= packets, "{duplicates} of {packets} came twice, and none was lost");
    (packets, late)
}

#[test]
fn frames_without_an_order_cause_hardly_any_needless_requests() {
    need_box!();
    let _one = shaped();
    // Without a rate frames go whatever way the processors take them.
    let cluster = TestBox::up(&["--hosts", "3"]);
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let (packets, late) = spurious(&cluster, carrier, &[]);
        assert!(packets > BYTES / 1500, "{packets} packets are too few");
        assert!(late * ONE_IN <= packets, "{late} of {packets}");
    }
}

#[test]
fn packets_that_are_overtaken_cause_hardly_any_needless_requests() {
    need_box!();
    let _one = shaped();
    let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit"]);
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        // One in fifty, by up to as many packets as arrive in 200 us.
        let (packets, late) = spurious(&cluster, carrier, &[("PEER_REORDER", "20000:200")]);
        assert!(late > 0, "the first that were late cannot be known to be only late: was nothing overtaken?");
        assert!(packets > BYTES / 1500, "{packets} packets are too few");
        assert!(late * ONE_IN <= packets, "{late} of {packets}");
    }
}
