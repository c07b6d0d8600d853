//! Small sends that follow each other share a packet, and wait for that no longer than promised (docs/protocol.md 4).

use std::cell::RefCell;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, Mode};

const COALESCE_NS: u64 = 200 * US;
/// Small enough to wait: less than three quarters of a packet.
const SMALL: usize = 100;

/// When packets with data left host 0, after a moment, and how long their payloads are.
type Left = Rc<RefCell<Vec<(u64, usize)>>>;

struct Sending {
    world: World,
    channel: ChannelId,
    begin: u64,
    left: Left,
}

/// A channel on which a small packet has just been handed over, `delay_ns` away from its reader.
fn begun(delay_ns: u64, coalesce_ns: u64, mode: Mode) -> Sending {
    let config = Config { coalesce_ns, ..Config::default() };
    let mut world = World::new(2, Net { delay_ns, ..Net::default() }, &config, 1);
    let (channel, server) = pair(&mut world, mode);
    // Each may begin with several packets: nothing here waits for a grant.
    let mut flow = [Flow::messages((0, channel), (1, server), SMALL, 4)];
    if mode == Mode::Stream {
        flow = [Flow::stream((0, channel), (1, server), 400)];
    }
    carry(&mut world, &mut flow, S);
    pass(&mut world, 3 * MS);
    let (begin, left) = (world.now, Left::default());
    let out = Rc::clone(&left);
    world.filter = Some(Box::new(move |now, from, _, bytes| {
        if from == 0 && bytes[0] == 0x17 {
            let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
            out.borrow_mut().push((now - begin, length));
        }
        true
    }));
    let mut sending = Sending { world, channel, begin, left };
    sending.send(SMALL);
    sending
}

impl Sending {
    fn send(&mut self, bytes: usize) {
        let now = self.world.time();
        assert_eq!(self.world.hosts[0].send(now, self.channel, &vec![7; bytes]), Ok(bytes));
    }

    /// Goes on until so long after the first send.
    fn until(&mut self, ns: u64) {
        let end = self.begin + ns;
        self.world.run(end, |_| false);
    }

    fn left(mut self) -> Vec<(u64, usize)> {
        self.until(50 * MS);
        self.left.take()
    }
}

#[test]
fn the_second_small_send_leaves_exactly_at_the_end_of_its_time() {
    for mode in [Mode::Stream, Mode::Messages] {
        let mut sending = begun(MS, COALESCE_NS, mode);
        sending.until(50 * US);
        sending.send(SMALL);
        assert_eq!(sending.left(), [(0, SMALL), (COALESCE_NS, SMALL)], "{mode:?}");
    }
}

#[test]
fn what_is_sent_meanwhile_leaves_in_the_same_packet() {
    let mut sending = begun(MS, COALESCE_NS, Mode::Stream);
    for us in [50, 100, 150] {
        sending.until(us * US);
        sending.send(SMALL);
    }
    assert_eq!(sending.left(), [(0, SMALL), (COALESCE_NS, 3 * SMALL)]);

    // A packet of which three quarters are full waits no longer.
    let mut sending = begun(MS, COALESCE_NS, Mode::Stream);
    for us in 1..=12 {
        sending.until(us * US);
        sending.send(SMALL);
    }
    let left = sending.left();
    assert_eq!((left[0], left[1].0 <= 12 * US), ((0, SMALL), true), "{left:?}");
}

#[test]
fn a_small_send_waits_only_behind_an_unacknowledged_packet_of_just_now() {
    let one_way = 60 * US;
    // An acknowledgment comes a round trip and the receiver's patience later, long before the end.
    let acknowledged = 2 * one_way + Config::default().ack_delay_ns;
    for (about, delay_ns, sends_at, leaves_at) in [
        ("the packet before left too long ago", MS, COALESCE_NS, COALESCE_NS),
        ("just not", MS, COALESCE_NS - US, COALESCE_NS),
        ("nothing is under way", one_way, 3 * MS, 3 * MS),
    ] {
        let mut sending = begun(delay_ns, COALESCE_NS, Mode::Stream);
        sending.until(sends_at);
        sending.send(SMALL);
        assert_eq!(sending.left(), [(0, SMALL), (leaves_at, SMALL)], "{about}");
    }
    for (sends_at, leaves_at) in [(acknowledged - US, acknowledged), (acknowledged, acknowledged)] {
        let mut sending = begun(one_way, 10 * MS, Mode::Stream);
        sending.until(sends_at);
        sending.send(SMALL);
        assert_eq!(sending.left(), [(0, SMALL), (leaves_at, SMALL)], "acknowledged while it waits");
    }
}

#[test]
fn who_wants_no_delay_has_none() {
    let mut none = begun(MS, 0, Mode::Stream);
    none.until(50 * US);
    none.send(SMALL);
    assert_eq!(none.left(), [(0, SMALL), (50 * US, SMALL)], "the tunable is 0");

    let mut no_delay = begun(MS, COALESCE_NS, Mode::Stream);
    no_delay.world.hosts[0].set_no_delay(no_delay.channel, true);
    no_delay.until(50 * US);
    no_delay.send(SMALL);
    assert_eq!(no_delay.left(), [(0, SMALL), (50 * US, SMALL)], "the channel is set to it");

    let mut flushed = begun(MS, COALESCE_NS, Mode::Stream);
    flushed.until(50 * US);
    flushed.send(SMALL);
    flushed.until(80 * US);
    flushed.world.hosts[0].flush(flushed.channel);
    flushed.until(90 * US);
    flushed.send(SMALL);
    let next = 80 * US + COALESCE_NS;
    assert_eq!(flushed.left(), [(0, SMALL), (80 * US, SMALL), (next, SMALL)], "its user waits, then no more");

    let mut large = begun(MS, COALESCE_NS, Mode::Stream);
    large.until(50 * US);
    large.send(1200);
    assert_eq!(large.left(), [(0, SMALL), (50 * US, 1200)], "three quarters of a packet are enough");
}
