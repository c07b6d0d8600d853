use super::*;
use crate::{Address, Batch, Counters, Ecn, Link, PER_MILLION, Received, Urgency};
use std::io::IoSlice;

/// 1500 bytes in an Ethernet frame, in buffers and on the wire.
const FRAME: u64 = 1518;
const WIRE: u64 = 1538;

/// Time of a full frame at 1 Gbit/s, and the delay of the usual cable.
const FRAME_NS: Time = WIRE * 8;
const CABLE_NS: Time = 5_000;

fn network(change: impl FnOnce(&mut Config)) -> Network {
    let mut config = Config::default();
    change(&mut config);
    Network::new(config, 1)
}

fn send_as(link: &mut SimLink, to: u32, packets: &[&[u8]], urgency: Urgency) -> usize {
    let packets: Vec<IoSlice<'_>> = packets.iter().map(|packet| IoSlice::new(packet)).collect();
    link.send(&Batch { urgency, ..Batch::new(Address::Sim(to), &packets) }).expect("the link works")
}

fn send(link: &mut SimLink, to: u32, packets: &[&[u8]]) -> usize {
    send_as(link, to, packets, Urgency::Bulk)
}

fn send_copies(link: &mut SimLink, to: u32, packet: &[u8], count: usize) -> usize {
    send(link, to, &vec![packet; count])
}

fn receive(link: &mut SimLink) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while link.receive(32, &mut |packet: Received<'_>| packets.push(packet.bytes.to_vec())).expect("the link works") > 0
    {
    }
    packets
}

/// Lets all events happen.
fn settle(network: &Network) {
    while let Some(at) = network.next_event() {
        network.advance(at);
    }
}

#[test]
fn a_frame_arrives_exactly_when_its_last_bit_does() {
    let network = network(|_| ());
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    assert_eq!(send(&mut a, 1, &[&[1; 1500]]), 1);
    let expected = 2 * (FRAME_NS + CABLE_NS);
    network.advance(expected - 1);
    assert_eq!(receive(&mut b).len(), 0);
    network.advance(expected);
    assert_eq!(receive(&mut b), [vec![1; 1500]]);
    assert_eq!(network.now(), 34_608);
    assert_eq!(network.next_event(), None);
}

#[test]
fn short_packets_are_padded_on_the_wire_and_arrive_as_they_were() {
    let network = network(|_| ());
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    send(&mut a, 1, &[&[9]]);
    assert_eq!(network.advance_until_ready(Time::MAX), 2 * (84 * 8 + CABLE_NS));
    assert_eq!(receive(&mut b), [[9]]);
}

#[test]
fn back_to_back_frames_keep_the_exact_rate() {
    // At 7 Gbit/s a frame takes 1757.714.. ns; a thousand take a thousand times that, not 1757 or 1758 each.
    let network = network(|config| {
        config.host.rate_bits_per_s = 7_000_000_000;
        config.host.send_queue_bytes = u64::MAX;
        config.switches[0].port_buffer_bytes = u64::MAX;
    });
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    assert_eq!(send_copies(&mut a, 1, &[0; 1500], 1000), 1000);
    settle(&network);
    assert_eq!(receive(&mut b).len(), 1000);
    // One more for the way from the switch, which begins when the first is whole there.
    assert_eq!(network.now(), 1001 * FRAME_NS / 7 + 2 * CABLE_NS);
}

#[test]
fn a_port_overflows_at_exactly_its_buffer() {
    // Three senders at once into one port: while three frames come in, one goes out.
    let network = network(|config| config.switches[0].port_buffer_bytes = 10 * FRAME);
    let mut senders: Vec<SimLink> = (1..=3).map(|n| network.attach(n)).collect();
    let mut receiver = network.attach(0);
    for sender in &mut senders {
        assert_eq!(send_copies(sender, 0, &[0; 1500], 10), 10);
    }
    settle(&network);
    // The frames of round r (0..9) arrive together, just when the port has finished frame r - 1; its last bit goes out before they are
    // looked at. So after r rounds 3 r were offered and r - 1 had left. Round 3 fills the port with 12 - 3 = 9, round 4 has room for 2 of 3, and
    // each later round for the one that left.
    let port = network.port(0).expect("host 0");
    assert_eq!(port.dropped_packets, 1 + 5 * 2);
    assert_eq!(port.dropped_bytes, port.dropped_packets * FRAME);
    assert_eq!(port.most_queued_bytes, 10 * FRAME);
    assert_eq!(port.queued_bytes, 0);
    assert_eq!(receive(&mut receiver).len() as u64, 30 - port.dropped_packets);
    assert_eq!(port.sent_packets, 30 - port.dropped_packets);
}

#[test]
fn one_sender_never_overflows_a_port_of_its_own_rate() {
    let network = network(|config| config.switches[0].port_buffer_bytes = FRAME);
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    send_copies(&mut a, 1, &[0; 1500], 100);
    settle(&network);
    assert_eq!(receive(&mut b).len(), 100);
    assert_eq!(network.port(1).expect("host 1").dropped_packets, 0);
}

#[test]
fn a_full_send_queue_takes_part_and_says_when_there_is_room() {
    let network = network(|config| config.host.send_queue_bytes = 4 * FRAME);
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    assert_eq!(send_copies(&mut a, 1, &[0; 1500], 10), 4);
    assert_eq!(send_copies(&mut a, 1, &[0; 1500], 6), 0);
    assert_eq!((a.counters().send_full, a.counters().sent_packets), (2, 4));
    let mut ready = Vec::new();
    network.take_ready(&mut ready);
    assert!(ready.is_empty());
    assert_eq!(network.advance_until_ready(Time::MAX), FRAME_NS);
    network.take_ready(&mut ready);
    assert_eq!(ready, [0]);
    assert_eq!(send_copies(&mut a, 1, &[0; 1500], 6), 1);
    settle(&network);
    assert_eq!(receive(&mut b).len(), 5);
}

#[test]
fn urgent_packets_overtake_bulk_in_the_host_only() {
    let network = network(|_| ());
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    send(&mut a, 1, &[&[1; 1500], &[2; 1500], &[3; 1500]]);
    send_as(&mut a, 1, &[&[4; 100]], Urgency::Urgent);
    settle(&network);
    let order: Vec<u8> = receive(&mut b).iter().map(|packet| packet[0]).collect();
    assert_eq!(order, [1, 4, 2, 3], "the first was already being sent");
}

#[test]
fn hosts_are_ready_in_the_order_of_their_arrivals_and_stay_so_while_something_is_left() {
    let network = network(|_| ());
    let mut a = network.attach(0);
    let mut others: Vec<SimLink> = (1..4).map(|n| network.attach(n)).collect();
    for to in [3, 1, 2, 3] {
        send(&mut a, to, &[&[0; 64]]);
    }
    settle(&network);
    let mut ready = Vec::new();
    network.take_ready(&mut ready);
    assert_eq!(ready, [3, 1, 2]);
    ready.clear();
    assert_eq!(others[2].receive(1, &mut |_| ()).expect("works"), 1);
    network.take_ready(&mut ready);
    assert_eq!(ready, [3]);
    assert_eq!(receive(&mut others[2]).len(), 1);
}

#[test]
fn receive_slots_are_bounded() {
    let network = network(|config| config.host.receive_slots = 7);
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    assert_eq!(b.receive_slots(), Some(7));
    send_copies(&mut a, 1, &[0; 100], 10);
    settle(&network);
    assert_eq!(receive(&mut b).len(), 7);
    assert_eq!(b.counters().receive_drops, 3);
    assert_eq!((b.counters().received_packets, b.counters().received_bytes), (7, 700));
}

#[test]
fn a_shared_buffer_gives_a_port_its_share_of_what_is_free() {
    // Alpha 1: one congested port takes half of the memory, as the other half is then free.
    let network = network(|config| {
        config.switches[0].port_buffer_bytes = u64::MAX;
        config.switches[0].shared = Some(SharedBuffer { bytes: 40 * FRAME, threshold_percent: 100 });
    });
    let mut receivers = [network.attach(0), network.attach(1)];
    let mut senders: Vec<SimLink> = (2..12).map(|n| network.attach(n)).collect();
    for sender in &mut senders {
        send_copies(sender, 0, &[0; 1500], 10);
    }
    settle(&network);
    assert_eq!(network.port(0).expect("host 0").most_queued_bytes, 20 * FRAME);
    assert!(network.port(0).expect("host 0").dropped_packets > 0);
    // Two of them take a third each.
    for (n, sender) in senders.iter_mut().enumerate() {
        send_copies(sender, n as u32 % 2, &[0; 1500], 20);
    }
    settle(&network);
    let second = network.port(1).expect("host 1").most_queued_bytes;
    assert!((12 * FRAME..=15 * FRAME).contains(&second), "{} frames", second / FRAME);
    receivers.iter_mut().for_each(|receiver| assert!(!receive(receiver).is_empty()));
}

#[test]
fn marks_begin_at_the_threshold_and_spare_the_incapable() {
    for ecn in [Ecn::Capable0, Ecn::NotCapable] {
        let network = network(|config| {
            config.switches[0].ecn_threshold_bytes = Some(3 * FRAME);
            config.host.ecn = ecn;
        });
        let mut senders = [network.attach(1), network.attach(2)];
        let mut receiver = network.attach(0);
        senders.iter_mut().for_each(|sender| assert_eq!(send_copies(sender, 0, &[0; 1500], 8), 8));
        settle(&network);
        let mut marks = Vec::new();
        receiver.receive(100, &mut |packet| marks.push(packet.ecn)).expect("works");
        let marked = marks.iter().filter(|mark| **mark == Ecn::Congested).count();
        assert_eq!(marks.len(), 16);
        assert_eq!(network.port(0).expect("host 0").marked_packets, marked as u64);
        // The queue grows by one per round and holds 2 after the first: the second frame of the third round is the first beyond 3.
        let first = marks.iter().position(|mark| *mark == Ecn::Congested);
        assert_eq!(first, (ecn == Ecn::Capable0).then_some(5));
    }
}

#[test]
fn a_partition_begins_and_ends_and_parts_only_what_it_names() {
    let network = network(|_| ());
    let (mut a, mut b, mut c) = (network.attach(0), network.attach(1), network.attach(2));
    network.partition(&[0], &[1], 1_000_000, 2_000_000);
    for ms in 0..3 {
        network.advance(ms * 1_000_000);
        let packet: &[u8] = &[ms as u8; 64];
        send(&mut a, 1, &[packet]);
        send(&mut b, 0, &[packet]);
        send(&mut a, 2, &[packet]);
    }
    settle(&network);
    let times = |link: &mut SimLink| receive(link).iter().map(|packet| packet[0]).collect::<Vec<u8>>();
    assert_eq!((times(&mut a), times(&mut b), times(&mut c)), (vec![0, 2], vec![0, 2], vec![0, 1, 2]));
    assert_eq!(network.counters().partitioned, 2);
}

#[test]
fn a_partition_without_end_is_healed() {
    let network = network(|_| ());
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    network.partition(&[0], &[1], 0, Time::MAX);
    send(&mut a, 1, &[&[1; 64]]);
    settle(&network);
    network.heal();
    send(&mut a, 1, &[&[2; 64]]);
    settle(&network);
    assert_eq!(receive(&mut b), [[2; 64]]);
}

#[test]
fn a_stopped_host_neither_sends_nor_takes_and_goes_on_where_it_was() {
    let network = network(|config| config.host.receive_slots = 2);
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    send_copies(&mut b, 0, &[1; 1500], 3);
    network.stop(1);
    assert_eq!(send(&mut b, 0, &[&[2; 64]]), 0);
    send_copies(&mut a, 1, &[3; 64], 5);
    settle(&network);
    assert_eq!(receive(&mut a).len(), 1, "only the frame that was being sent");
    assert_eq!(receive(&mut b).len(), 0);
    network.resume(1);
    let mut ready = Vec::new();
    network.take_ready(&mut ready);
    assert!(ready.contains(&1));
    settle(&network);
    assert_eq!(receive(&mut a).len(), 2);
    assert_eq!((receive(&mut b).len(), b.counters().receive_drops), (2, 3));
}

#[test]
fn faults_of_a_cable_do_what_they_say() {
    let all = |faults: Faults| {
        let network = network(|config| config.host.to_host = faults);
        let (mut a, mut b) = (network.attach(0), network.attach(1));
        let packets: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 100]).collect();
        assert_eq!(send(&mut a, 1, &packets.iter().map(Vec::as_slice).collect::<Vec<_>>()), 100);
        settle(&network);
        let cable = network.cable(1, Direction::ToHost).expect("host 1");
        (receive(&mut b), cable, b.counters())
    };
    let (packets, cable, _) = all(Faults::loss(PER_MILLION));
    assert_eq!((packets.len(), cable.lost), (0, 100));
    let (packets, cable, _) = all(Faults { duplicate_ppm: PER_MILLION, ..Faults::default() });
    assert_eq!((packets.len(), cable.duplicated), (200, 100));
    assert!(packets.chunks(2).all(|pair| pair[0] == pair[1]), "copies lie side by side");
    let (packets, cable, _) = all(Faults { reorder_ppm: 100_000, reorder_ns: 50_000, ..Faults::default() });
    assert_eq!(packets.len(), 100);
    assert!(cable.held > 0 && !packets.is_sorted());
    let corrupting = Faults { corrupt_ppm: PER_MILLION, ..Faults::default() };
    let (packets, cable, counters) = all(corrupting);
    assert_eq!((packets.len(), cable.corrupted, counters.receive_bad), (0, 100, 100));
    let (packets, _, counters) = all(Faults { corrupt_delivered: true, ..corrupting });
    assert_eq!((packets.len(), counters.receive_bad), (100, 0));
    assert!(packets.iter().enumerate().all(|(n, packet)| *packet != vec![n as u8; 100]));
}

#[test]
fn a_switch_checks_frames_before_it_forwards_them() {
    let network = network(|config| config.host.to_switch.corrupt_ppm = PER_MILLION);
    let (mut a, mut b) = (network.attach(0), network.attach(1));
    send_copies(&mut a, 1, &[0; 64], 5);
    settle(&network);
    assert_eq!((receive(&mut b).len(), network.counters().bad_at_switch), (0, 5));
}

#[test]
fn two_switches_are_joined_by_their_trunk_or_not_at_all() {
    for trunk in [Some(Trunk { rate_bits_per_s: 100_000_000, delay_ns: 7_000, faults: Faults::default() }), None] {
        let network = network(|config| {
            config.switches.push(Switch::default());
            config.trunk = trunk;
        });
        let mut a = network.attach(0);
        let mut b = network.attach_as(1, Host { switch: 1, ..Host::default() });
        send(&mut a, 1, &[&[0; 1500]]);
        settle(&network);
        assert_eq!(receive(&mut b).len(), usize::from(trunk.is_some()));
        if trunk.is_some() {
            assert_eq!(network.now(), 2 * (FRAME_NS + CABLE_NS) + 10 * FRAME_NS + 7_000);
            assert_eq!(network.trunk(0).expect("a trunk").sent_packets, 1);
        } else {
            assert_eq!(network.counters().nobody, 1);
        }
    }
}

#[test]
fn what_cannot_be_delivered_is_counted() {
    let network = network(|_| ());
    let mut a = network.attach(0);
    let mut small = network.attach_as(1, Host { mtu: 100, ..Host::default() });
    assert_eq!(send(&mut a, 1, &[&[0; 1501], &[0; 101], &[0; 100]]), 3, "refused for good is taken");
    assert_eq!(send(&mut a, 77, &[&[0; 64]]), 1);
    let to = Address::Ether([0; 6]);
    assert_eq!(a.send(&Batch::new(to, &[IoSlice::new(&[0])])).expect("works"), 1);
    settle(&network);
    assert_eq!(receive(&mut small).len(), 1);
    assert_eq!((a.counters().send_errors, a.counters().sent_packets), (2, 3));
    assert_eq!(small.counters().receive_bad, 1);
    drop(small);
    send(&mut a, 1, &[&[0; 64]]);
    settle(&network);
    assert_eq!((network.counters().nobody, network.packets_inside()), (2, 0));
}

#[test]
fn a_new_link_of_a_host_starts_anew_and_voids_the_old_one() {
    let network = network(|_| ());
    let (mut a, mut old) = (network.attach(0), network.attach(1));
    send(&mut a, 1, &[&[0; 64]]);
    settle(&network);
    let mut new = network.attach(1);
    assert_eq!(old.receive(1, &mut |_| ()).expect_err("void").kind(), std::io::ErrorKind::NotConnected);
    drop(old);
    assert_eq!(receive(&mut new).len(), 0);
    send(&mut a, 1, &[&[1; 64]]);
    settle(&network);
    assert_eq!(receive(&mut new), [[1; 64]]);
}

/// A world with all faults at once; what each host saw, and when it ended.
fn noisy_world(seed: u64) -> (Vec<Vec<Vec<u8>>>, Vec<Counters>, Time) {
    let faults = Faults {
        loss_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        reorder_ns: 30_000,
        corrupt_ppm: 50_000,
        corrupt_delivered: false,
    };
    let mut config =
        Config { host: Host { to_switch: faults, to_host: faults, ..Host::default() }, ..Config::default() };
    config.switches[0].port_buffer_bytes = 20 * FRAME;
    let network = Network::new(config, seed);
    let mut links: Vec<SimLink> = (0..8).map(|n| network.attach(n)).collect();
    for round in 0..20u8 {
        for (from, link) in links.iter_mut().enumerate() {
            for to in (0..8).filter(|to| *to as usize != from) {
                send(link, to, &[&vec![round; 100 + 10 * from]]);
            }
        }
        network.advance(network.now() + 50_000);
    }
    settle(&network);
    let seen = links.iter_mut().map(receive).collect();
    assert_eq!(network.packets_inside(), 0);
    (seen, links.iter().map(Link::counters).collect(), network.now())
}

#[test]
fn a_seed_replays_and_another_differs() {
    assert!(noisy_world(3) == noisy_world(3));
    assert!(noisy_world(3).0 != noisy_world(4).0);
}

#[test]
fn every_packet_is_accounted_for() {
    let network = network(|config| config.host.to_switch = Faults::loss(100_000));
    let mut receiver = network.attach(0);
    let mut senders: Vec<SimLink> = (1..=32).map(|n| network.attach(n)).collect();
    for sender in &mut senders {
        send_copies(sender, 0, &[0; 1500], 100);
    }
    settle(&network);
    let sent: u64 = senders.iter().map(|sender| sender.counters().sent_packets).sum();
    let lost: u64 = (1..=32).map(|n| network.cable(n, Direction::ToSwitch).expect("there").lost).sum();
    let port = network.port(0).expect("host 0");
    assert!(lost > 0 && port.dropped_packets > 0);
    assert_eq!(sent, 3200);
    assert_eq!(sent, lost + port.dropped_packets + receive(&mut receiver).len() as u64);
    assert_eq!(port.sent_bytes, port.sent_packets * FRAME);
}

#[test]
fn a_large_incast_is_simulated_whole() {
    // 128 senders of 250 packets each; what they may have in flight is what the port holds.
    let network = network(|_| ());
    let mut receiver = network.attach(0);
    let mut senders: Vec<SimLink> = (1..=128).map(|n| network.attach(n)).collect();
    let (mut sent, mut received, total) = (0, 0, 128 * 250);
    let in_flight = (128 << 10) / FRAME;
    while received < total {
        while sent < total && sent - received < in_flight {
            send_copies(&mut senders[sent as usize % 128], 0, &[0; 1500], 1);
            sent += 1;
        }
        network.advance_until_ready(Time::MAX);
        network.take_ready(&mut Vec::new());
        received += receiver.receive(usize::MAX, &mut |_| ()).expect("works") as u64;
    }
    let port = network.port(0).expect("host 0");
    assert_eq!((port.dropped_packets, port.sent_packets), (0, total));
    // The port never idles: the first frame's way, then the line at its rate.
    assert_eq!(network.now(), 2 * CABLE_NS + FRAME_NS * (total + 1));
}
