//! Programs in C between hosts, over raw Ethernet: the examples of the library, whose addresses are hardware addresses there.

use crate::{Carrier, LIMIT, PORT, Waiting};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env::{self, CProgram};
use ropeway_testkit::need_box;
use ropeway_testkit::proc::command;
use std::process::Command;

/// An example of `crates/capi/examples`, with the library.
fn example(name: &str, arguments: &[&str]) -> Command {
    let library = env::c_library();
    let include = env::workspace_root().join("crates/capi/include");
    let program = CProgram::new(format!("crates/capi/examples/{name}.c"))
        .flag(&format!("-I{}", include.display()))
        .flag(&format!("-L{}", library.display()))
        .flag("-lropeway");
    let mut command = command(program.build(), arguments);
    command.env("LD_LIBRARY_PATH", library);
    for name in ["ROPEWAY_LINK", "ROPEWAY_NODES", "ROPEWAY_CDP_LIMIT", "ROPEWAY_CLUSTER", "ROPEWAY_NODE"] {
        command.env_remove(name);
    }
    command
}

#[test]
fn an_echo_comes_back_over_raw_ethernet() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let host = cluster.port("h1");
    let serving = cluster.spawn("h1", &example("echo", &["serve", &Carrier::Packet.at(PORT)]));
    serving.wait_for_output("\n", LIMIT);
    // What the calls resolve, bind, tell and format is the same address.
    assert_eq!(serving.stdout(), format!("listening at {}\n", Carrier::Packet.to(&host, PORT)));
    let packets = cluster.port("h1").received_packets;
    // Shorter than the least frame, and longer than one.
    for text in ["hello".to_owned(), "once more ".repeat(1000)] {
        let say = example("echo", &["say", &Carrier::Packet.to(&host, PORT), &text]);
        let said = cluster.run("h2", &say, LIMIT).expect_success();
        assert_eq!(said.stdout, format!("{text}\n"));
    }
    assert!(cluster.port("h1").received_packets > packets, "they passed the switch");
}

#[test]
fn nodes_of_document_0_talk_over_raw_ethernet() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    let nodes = format!("1={},2={}", cluster.port("h1").mac, cluster.port("h2").mac);
    let node = |arguments: &[&str]| {
        let mut node = example("cdp", arguments);
        node.env("ROPEWAY_NODES", &nodes);
        node
    };
    let receiver = Waiting::start(&cluster, "h1", &node(&["1", "eth0"]));
    receiver.process.wait_for_output("listening\n", LIMIT);
    // The longest datagram of the document, which is more than one frame with the headers.
    let longest = "x".repeat(1472);
    cluster.run("h2", &node(&["2", "eth0", "some", "words", &longest]), LIMIT).expect_success();
    let received = receiver.process.succeed(LIMIT).stdout;
    assert_eq!(received, format!("listening\nfrom node 2\nsome\nwords\n{longest}\n"));
}
