//! Several servers in one host: each client reaches the one that it means, and none of them disturbs the others.

use crate::{Carrier, LIMIT, Mode, PORT, Waiting, counter, engine_of, engines, last_line, peer, receiver, shaped};
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::need_box;

const BYTES: u64 = 4 << 20;

/// Of packets that were meant for another engine, none was looked at.
pub const FOREIGN: [&str; 5] =
    ["dropped_unknown_id", "dropped_foreign_path", "dropped_malformed", "dropped_reset", "channels_refused"];

#[test]
fn each_client_reaches_its_server_and_no_other_process_answers_for_it() {
    need_box!();
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit"]);
        let ports = [PORT, PORT + 1];
        let servers = ports.map(|port| receiver(&cluster, "h1", &carrier.at(port), Mode::Stream, &[]));
        let place = cluster.port("h1");
        let send = |host: &str, port: u16, bytes: u64| {
            Waiting::sender(&cluster, host, &carrier.to(&place, port), bytes, Mode::Stream, &[])
        };
        // Two hosts, each with a client for each server, which share their device as well.
        let mut clients: Vec<Waiting> =
            ["h2", "h3"].iter().flat_map(|host| ports.map(|port| send(host, port, 0))).collect();
        clients.iter().for_each(Waiting::is_connected);
        // One server comes and goes meanwhile, and clients of it.
        for _ in 0..3 {
            let third = receiver(&cluster, "h1", &carrier.at(PORT + 2), Mode::Stream, &[]);
            send("h2", PORT + 2, BYTES).result();
            third.process.kill();
        }
        clients.iter_mut().for_each(Waiting::end);
        let seeds: Vec<u64> = clients
            .iter()
            .map(|client| {
                let result = client.result();
                assert!(result["sent"].as_u64() > Some(0), "{result}");
                u64::from(client.process.pid())
            })
            .collect();
        for (number, server) in servers.iter().enumerate() {
            let engine = engine_of(&cluster, "h1", &server.process);
            assert_eq!(counter(&engine, "channels_accepted"), 2, "{engine}");
            for name in FOREIGN {
                assert_eq!(counter(&engine, name), 0, "{carrier:?}: {name} of {engine}");
            }
            let said = server.process.stdout();
            for (client, seed) in seeds.iter().enumerate() {
                let is_ours = client % ports.len() == number;
                assert_eq!(said.contains(&format!("\"seed\":{seed}")), is_ours, "server {number}: {said}");
            }
        }
    }
}

#[test]
fn several_engines_at_one_address_share_the_peers_beside_another_process() {
    need_box!();
    // Each in a process, so that they come as strangers. All at one of two workers: once in 2,000 runs.
    const CLIENTS: u64 = 12;
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let _one = shaped();
        let cluster = TestBox::up(&["--hosts", "3", "--rate", "1gbit"]);
        let server = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Messages, &[("PEER_WORKERS", "2")]);
        let _other = receiver(&cluster, "h1", &carrier.at(PORT + 1), Mode::Stream, &[]);
        let place = cluster.port("h1");
        let to = carrier.to(&place, PORT);
        let client = |number| {
            let host = if number % 2 == 0 { "h2" } else { "h3" };
            Waiting::sender(&cluster, host, &to, BYTES / 4, Mode::Messages, &[])
        };
        let clients: Vec<Waiting> = (0..CLIENTS).map(client).collect();
        clients.iter().for_each(|client| drop(client.result()));
        let all = engines(&cluster, "h1");
        let workers: Vec<_> = all.iter().filter(|engine| engine["pid"] == server.process.pid()).collect();
        let accepted: Vec<u64> = workers.iter().map(|engine| counter(engine, "channels_accepted")).collect();
        assert!(
            accepted.len() == 2 && accepted.iter().sum::<u64>() == CLIENTS && !accepted.contains(&0),
            "{accepted:?}"
        );
        for (engine, name) in workers.iter().flat_map(|engine| FOREIGN.map(|name| (engine, name))) {
            assert_eq!(counter(engine, name), 0, "{carrier:?}: {name} of {engine}");
        }
    }
}

#[test]
fn an_address_that_is_taken_is_refused_and_says_so() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    for carrier in [Carrier::Udp4, Carrier::Packet] {
        let first = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let second = cluster.run("h1", &peer(&["receive", &carrier.at(PORT)], Mode::Stream, &[]), LIMIT);
        println!("{carrier:?}: {}", second.stderr);
        assert!(!second.success() && second.stderr.to_lowercase().contains("in use"), "{}", second.stderr);
        let to = carrier.to(&cluster.port("h1"), PORT);
        Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, &[]).result();
        // When it is gone, whatever way, the address is free.
        first.process.kill();
        let _third = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        Waiting::sender(&cluster, "h2", &to, BYTES, Mode::Stream, &[]).result();
    }
}

#[test]
fn a_port_at_which_nobody_listens_is_told_over_udp_and_times_out_over_packet() {
    need_box!();
    let cluster = TestBox::up(&["--hosts", "2"]);
    for (carrier, kind) in [(Carrier::Udp4, "ConnectionRefused"), (Carrier::Packet, "TimedOut")] {
        // Somebody else is there.
        let _other = receiver(&cluster, "h1", &carrier.at(PORT), Mode::Stream, &[]);
        let to = carrier.to(&cluster.port("h1"), PORT + 1);
        let quick = [("ROPEWAY_TUNE", "connect_timeout=1000")];
        let finished = cluster.run("h2", &peer(&["send", &to, "1000"], Mode::Stream, &quick), LIMIT);
        let failure = last_line(&finished);
        println!("{carrier:?}: {failure}");
        assert_eq!(failure["kind"], kind, "{failure}");
    }
}
