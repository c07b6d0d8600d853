//! What a program tells the kernel of its short packets, and that it can be told not to.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, receiver};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::proc::command;
use ropeway_testkit::{need_box, need_kernel, need_program};

const BYTES: u64 = 1 << 20;
const RULES: &str = "add table inet seen; add chain inet seen out { type filter hook output priority 0; }; \
                     add rule inet seen out meta l4proto udp meta priority 0:6 counter";

#[test]
fn short_packets_have_a_priority_unless_the_environment_says_otherwise() {
    need_box!();
    need_program!("nft");
    need_kernel!(6, 14);
    let cluster = TestBox::up(&["--hosts", "2"]);
    cluster.run("h2", &command("nft", [RULES]), LIMIT).expect_success();
    let seen = || {
        let listed = cluster.run("h2", &command("nft", ["list", "table", "inet", "seen"]), LIMIT).expect_success();
        let mut words = listed.stdout.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{}", listed.stdout))
    };
    let _receiver = receiver(&cluster, "h1", &Carrier::Udp4.at(PORT), Mode::Stream, &[]);
    let to = Carrier::Udp4.to(&cluster.port("h1"), PORT);
    let send =
        |variables: &[(&str, &str)]| Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, variables).result();
    send(&[("ROPEWAY_URGENT_PRIORITY", "0")]);
    assert_eq!(seen(), 0);
    send(&[]);
    assert!(seen() > 0);
}
