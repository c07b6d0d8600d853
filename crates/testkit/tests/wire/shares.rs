//! Several processes of a host share the budget that stands for the one port before it, and what a dead one had is the others' at once.

use crate::{Carrier, Mode, PORT, Waiting, budget_of, receiver, shaped, until};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;

const RECEIVERS: u16 = 3;

#[test]
fn the_share_of_a_killed_process_goes_to_the_others() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let hosts = (1 + 2 * RECEIVERS).to_string();
        let cluster = TestBox::up(&["--hosts", &hosts, "--rate", "1gbit", "--port-buffer", "128KiB"]);
        let place = cluster.port("h1");
        let whole = place.buffer_bytes.expect("with a rate") * 3 / 4;
        let ports = PORT..PORT + RECEIVERS;
        let receivers: Vec<Waiting> =
            ports.clone().map(|port| receiver(&cluster, "h1", &carrier.at(port), Mode::Stream, &[])).collect();
        // Two senders for each, without an end of their own.
        let senders = (2..).zip(ports.clone().chain(ports));
        let mut senders: Vec<Waiting> = senders
            .map(|(host, port)| {
                let to = carrier.to(&place, port);
                Waiting::sender(&cluster, &format!("h{host}"), &to, 0, Mode::Stream, &[])
            })
            .collect();
        senders.iter().for_each(Waiting::is_connected);
        let budgets = |of: &[Waiting]| -> Vec<u64> { of.iter().map(|one| budget_of(&cluster, one)).collect() };
        // Each has what the others leave: a third, or more where another one wants less for a moment, and never all.
        until("all of them share", || budgets(&receivers).iter().all(|&bytes| bytes < whole * 3 / 4));
        let shared = budgets(&receivers);

        receivers[0].process.kill();
        let dead = [0, usize::from(RECEIVERS)];
        dead.iter().for_each(|&sender| drop(senders[sender].process.kill()));
        let survivors = &receivers[1..];
        until("the survivors have half each", || budgets(survivors).iter().all(|&bytes| bytes >= whole * 2 / 5));
        let halves = budgets(survivors);

        // The senders of the second one come to their end: the last one has everything.
        for (number, sender) in senders.iter_mut().enumerate() {
            if number % usize::from(RECEIVERS) == 1 {
                sender.end();
                sender.result();
            }
        }
        until("the last one has all of it", || budgets(&receivers[2..]) == [whole]);
        println!("{carrier:?}: of {whole} first {shared:?}, then {halves:?}, then all");
        for (number, sender) in senders.iter_mut().enumerate() {
            if number % usize::from(RECEIVERS) == 2 {
                sender.end();
                sender.result();
            }
        }
        assert_eq!(cluster.port("h1").drops, 0, "three processes let no more fly than one");
    }
}
