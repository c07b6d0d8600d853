//! Connections that go through exec: the next image takes them up again, when it alone holds them.

use ropeway_testkit::faults::{Over, Peer, peer_program, program};
use ropeway_testkit::{Stats, World, net};

/// Rounds of 32 bytes, with pauses: time to register, to be paired, and to move both directions, several times over.
const ROUNDS: u64 = 300;
/// Most of them.
const OVER_SHM: u64 = ROUNDS * 32 / 2;

/// Runs both scripts to their end, which must be as on plain TCP, and returns the statistics of each image.
fn run(accepting: &[&str], connecting: &[&str]) -> Vec<Stats> {
    let world = World::new();
    let (one, two) = Peer::pair(Over::Ropeway(&world), net::free_port(), accepting, connecting);
    two.all_right();
    one.all_right();
    world.stats()
}

fn shm(stats: &Stats) -> u64 {
    stats.bytes.shm.sent.min(stats.bytes.shm.received)
}

#[test]
fn a_promoted_connection_is_promoted_again_after_exec() {
    let stats = run(&["pong=1200"], &["calm=300", "image", "calm=300", "image", "calm=300", "image", "calm=300"]);
    assert_eq!(stats.len(), 5, "four images and the other end: {stats:#?}");
    for image in &stats {
        assert!(shm(image) >= OVER_SHM, "every image goes over shared memory: {stats:#?}");
    }
}

#[test]
fn both_ends_may_exec() {
    let stats = run(&["pong=300", "image", "pong=300"], &["calm=300", "image", "calm=300"]);
    assert_eq!(stats.len(), 4, "{stats:#?}");
    assert!(stats.iter().all(|image| shm(image) >= OVER_SHM), "{stats:#?}");
}

#[test]
fn a_connection_that_was_never_registered_is_promoted_after_exec() {
    // The image between does not touch it.
    let stats = run(&["pong=302"], &["calm=2", "image", "image", "calm=300"]);
    let last = stats.iter().max_by_key(|image| shm(image)).expect("statistics");
    assert!(shm(last) >= OVER_SHM, "{stats:#?}");
}

#[test]
fn what_is_unread_at_exec_is_read_by_the_next_image() {
    let connecting = ["calm=300", "wait", "image", "recv=100k", "calm=300"];
    let world = World::new();
    let port = net::free_port();
    let (one, mut two) =
        Peer::pair(Over::Ropeway(&world), port, &["pong=300", "send=100k", "mark=sent", "pong=300"], &connecting);
    one.reached("sent 0 ok");
    two.go();
    two.all_right();
    one.all_right();
    assert!(world.stats().iter().all(|image| shm(image) >= OVER_SHM), "{:#?}", world.stats());
}

#[test]
fn a_child_that_execs_is_alone_when_its_parent_has_closed() {
    let stats = run(&["pong=900"], &["calm=300", "child", "calm=600"]);
    assert!(stats.iter().filter(|image| shm(image) >= OVER_SHM).count() >= 3, "parent, child, other end: {stats:#?}");
}

#[test]
fn a_connection_that_a_parent_keeps_stays_on_tcp_in_the_child() {
    let stats = run(&["pong=600"], &["calm=300", "childkeeps", "calm=300"]);
    let kept: Vec<_> = stats.iter().filter(|image| image.reasons.contains_key("exec") && shm(image) == 0).collect();
    assert_eq!(kept.len(), 1, "the child's image: {stats:#?}");
}

#[test]
fn an_image_that_follows_a_static_one_does_not_take_it_up() {
    let static_peer = program("peer").flag("-static").flag("-ldl").build();
    let (between, last) = (format!("image={}", static_peer.display()), format!("image={}", peer_program().display()));
    let stats = run(&["pong=900"], &["calm=300", &between, "calm=300", &last, "calm=300"]);
    let after: Vec<_> = stats.iter().filter(|image| shm(image) == 0).collect();
    assert_eq!(after.len(), 1, "the last image: {stats:#?}");
    assert!(after[0].reasons.contains_key("exec"), "{stats:#?}");
}
