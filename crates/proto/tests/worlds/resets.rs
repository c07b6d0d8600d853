//! An engine goes away at every moment of a connection's life, and the other end learns of it at once and by the right name, whatever it is doing
//! (docs/protocol.md 8).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::world::*;
use ropeway_proto::{ChannelId, Config, ErrorCode, Mode};

const CONFIRM: u8 = 0x13;
const OPENED: u8 = 0x14;
const RST: u8 = 0x1E;

/// A step of the life.
const STEP: u64 = 10 * US;
const STEPS: u64 = 60;

/// What the end that stays is doing when the other one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It has heard of nobody.
    Listening,
    /// SYN is sent, ...
    Asking,
    /// ... and CONFIRM.
    Confirming,
    /// Nobody has accepted the channel.
    Queued,
    Idle,
    Sending,
    /// Its own end is sent.
    HalfClosed,
    /// The other's has come.
    PeerClosed,
    BothEnded,
    /// Its program has closed, and the channel is not over.
    Closing,
    /// There is no channel any more.
    Over,
}

/// A client, host 0, and a server, host 1, that open, send both ways and close, a step at a time.
struct Life {
    world: World,
    ids: [Option<ChannelId>; 2],
    shut: [bool; 2],
    closed: [bool; 2],
    /// When the client closes: before the server's end has come, or after.
    closes_at: u64,
    confirmed: Rc<Cell<bool>>,
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut world = World::new(2, Net::default(), &Config::default(), seed);
        world.hosts[1].listen(7, Mode::Stream, 4).unwrap();
        let confirmed = Rc::new(Cell::new(false));
        let out = Rc::clone(&confirmed);
        world.filter = Some(Box::new(move |_, _, _, bytes| {
            out.set(out.get() || bytes[0] == CONFIRM);
            true
        }));
        let client = try_connect(&mut world, 0, 1, 7).unwrap();
        Life {
            world,
            ids: [Some(client), None],
            shut: [false; 2],
            closed: [false; 2],
            closes_at: 39 + seed % 2 * 5,
            confirmed,
        }
    }

    fn step(&mut self, step: u64) {
        pass(&mut self.world, STEP);
        if step.is_multiple_of(4) {
            self.ids[1] = self.ids[1].or_else(|| self.world.hosts[1].accept(7).ok());
        }
        for host in 0..2 {
            let Some(id) = self.ids[host].filter(|_| !self.closed[host]) else { continue };
            while self.world.hosts[host].recv(id, &mut [0; 9000]).is_ok_and(|count| count.is_some()) {}
            let now = self.world.clock(host);
            match (step, host) {
                (14, _) => drop(self.send(host, &[7; 20_000])),
                (30, 0) | (38, 1) => {
                    self.world.hosts[host].shutdown(now, id).unwrap();
                    self.shut[host] = true;
                }
                (_, 0) | (46, 1) if host == 1 || step == self.closes_at => {
                    self.world.hosts[host].close(now, id);
                    self.closed[host] = true;
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, host: usize, bytes: &[u8]) -> bool {
        let Some(id) = self.ids[host].filter(|_| !self.closed[host]) else { return false };
        let now = self.world.clock(host);
        let is_taken = self.world.hosts[host].send(now, id, bytes).is_ok();
        self.world.hosts[host].flush(id);
        is_taken
    }

    fn phase(&mut self, host: usize) -> Phase {
        let now = self.world.clock(host);
        let Some(association) = self.world.hosts[host].association_statistics(now).next() else {
            return Phase::Listening;
        };
        if !association.is_open {
            return if self.confirmed.get() { Phase::Confirming } else { Phase::Asking };
        }
        if self.closed[host] {
            return if self.world.hosts[host].sizes().1 > 0 { Phase::Closing } else { Phase::Over };
        }
        let Some(id) = self.ids[host] else { return Phase::Queued };
        match (self.shut[host], self.world.hosts[host].readiness(id).unwrap().ended) {
            (true, true) => Phase::BothEnded,
            (true, false) => Phase::HalfClosed,
            (false, true) => Phase::PeerClosed,
            (false, false) if self.has_undelivered(host) => Phase::Sending,
            (false, false) => Phase::Idle,
        }
    }

    fn has_undelivered(&self, host: usize) -> bool {
        let now = self.world.clock(host);
        let mut associations = self.world.hosts[host].association_statistics(now);
        associations.any(|association| association.in_flight_packets > 0 || association.backlog_bytes > 0)
    }

    /// Whether both directions were through.
    fn has_ended(&mut self, host: usize) -> bool {
        let id = self.ids[host].filter(|_| self.shut[host]);
        id.is_some_and(|id| self.world.hosts[host].readiness(id).unwrap().ended)
    }

    fn ends(mut self, what: &str) {
        for host in 0..2 {
            self.ids[host] = self.ids[host].or_else(|| self.world.hosts[host].accept(7).ok());
            if let Some(id) = self.ids[host].filter(|_| !self.closed[host]) {
                let now = self.world.clock(host);
                self.world.hosts[host].close(now, id);
            }
        }
        // Also what was still on its way leaves nothing.
        pass(&mut self.world, AT_ONCE);
        for host in &self.world.hosts {
            assert_eq!((host.sizes(), host.buffers_in_use()), ((0, 0), (0, 0)), "{what}");
        }
    }

    fn failure(&mut self, host: usize) -> Option<ErrorCode> {
        let id = self.ids[host].filter(|_| !self.closed[host])?;
        self.world.hosts[host].readiness(id).unwrap().failed
    }

    /// The host's engine goes away, and says so; it may be lost.
    fn goes(&mut self, host: usize, is_lost: bool) {
        let went = self.world.now;
        self.world.filter = Some(Box::new(move |now, _, _, bytes| !(is_lost && now == went && bytes[0] == RST)));
        if host == 1 {
            self.world.hosts[1].unlisten(7);
        }
        self.world.close_all(host);
    }
}

/// Two round trips, and what is left of a step: what was on its way has arrived, and been answered.
const AT_ONCE: u64 = 100 * US;
/// The first STATE, with its answer.
const SOON: u64 = 3 * MS;

/// The other end goes at each moment. Gives what the one that stays was doing then.
fn sweep(goer: usize, is_lost: bool) -> BTreeSet<Phase> {
    let stayer = 1 - goer;
    let mut met = BTreeSet::new();
    for moment in 0..STEPS {
        let what = format!("host {goer} after {moment} steps, lost: {is_lost}");
        let mut life = Life::new(moment);
        (0..moment).for_each(|step| life.step(step));
        let phase = life.phase(stayer);
        met.insert(phase);
        let is_known = life.world.hosts[goer].sizes().0 > 0;
        life.goes(goer, is_lost);
        if is_lost {
            pass(&mut life.world, AT_ONCE);
            // It shows as soon as somebody wants something of who is gone.
            let is_asked = life.send(stayer, b"who is there?") || life.has_undelivered(stayer);
            if !is_asked && life.world.hosts[stayer].sizes().0 > 0 {
                wait_for(&mut life.world, 300 * S, &what, |world| world.hosts[stayer].sizes().0 == 0);
                continue;
            }
        }
        let limit_ns = if is_lost { SOON } else { AT_ONCE };
        wait_for(&mut life.world, limit_ns, &what, |world| world.hosts[stayer].sizes().0 == 0);
        let expected = match phase {
            Phase::Listening | Phase::Queued | Phase::Closing | Phase::Over => None,
            Phase::Asking | Phase::Confirming if !is_known => Some(ErrorCode::Refused),
            _ if is_lost => Some(ErrorCode::Unknown),
            _ => Some(ErrorCode::Closed),
        };
        let failure = life.failure(stayer);
        // What had ended well by then has.
        assert!(failure == expected || failure.is_none() && life.has_ended(stayer), "{failure:?}, {phase:?}, {what}");
        life.ends(&what);
    }
    met
}

in_every_way!(who_stays_learns_at_once_and_keeps_nothing_whatever_it_was_doing);
fn who_stays_learns_at_once_and_keeps_nothing_whatever_it_was_doing() {
    for is_lost in [false, true] {
        let client = [
            Phase::Asking,
            Phase::Confirming,
            Phase::Idle,
            Phase::Sending,
            Phase::HalfClosed,
            Phase::BothEnded,
            Phase::Closing,
            Phase::Over,
        ];
        assert_eq!(sweep(1, is_lost), client.into());
        let server = [
            Phase::Listening,
            Phase::Queued,
            Phase::Idle,
            Phase::Sending,
            Phase::PeerClosed,
            Phase::BothEnded,
            Phase::Closing,
            Phase::Over,
        ];
        assert_eq!(sweep(0, is_lost), server.into());
    }
}

in_every_way!(a_client_whose_server_went_before_it_could_say_opened_is_told_when_it_repeats_its_question);
fn a_client_whose_server_went_before_it_could_say_opened_is_told_when_it_repeats_its_question() {
    let mut life = Life::new(1);
    life.world.filter = Some(Box::new(|_, from, _, bytes| !(from == 1 && [OPENED, RST].contains(&bytes[0]))));
    pass(&mut life.world, AT_ONCE);
    assert_eq!(life.world.hosts[1].sizes().0, 1, "the server has taken it");
    life.goes(1, true);
    // The first repetition comes after 10 ms; with a key it is answered by what the first one was, byte for byte, and the rest is as above.
    let is_told = |life: &mut Life| life.failure(0).is_some() || life.send(0, b"who is there?");
    let end = life.world.now + 20 * MS;
    while !is_told(&mut life) && life.world.now < end {
        pass(&mut life.world, STEP);
    }
    pass(&mut life.world, SOON);
    assert_eq!(life.failure(0), Some(if is_keyed() { ErrorCode::Unknown } else { ErrorCode::Closed }));
    life.ends("the server went first");
}

in_every_way!(a_channel_that_is_opened_while_the_other_end_ends_the_unused_association_opens_anew);
fn a_channel_that_is_opened_while_the_other_end_ends_the_unused_association_opens_anew() {
    for opener in [0, 1] {
        let mut world = World::new(2, Net::default(), &Config::default(), 1);
        world.hosts[1 - opener].listen(8, Mode::Stream, 4).unwrap();
        let (client, server) = pair(&mut world, Mode::Stream);
        close_all_channels(&mut world, &[(0, client), (1, server)]);
        // By its clock it is over a little sooner at the other end.
        world.step_clock(1 - opener, MS as i64);
        wait_for(&mut world, 61 * S, "one end is over", |world| world.hosts[1 - opener].sizes().0 == 0);
        assert_eq!(world.hosts[opener].sizes().0, 1);
        let again = try_connect(&mut world, opener, 1 - opener, 8).unwrap();
        let took_ns = wait_for(&mut world, S, "open", |world| {
            let readiness = world.hosts[opener].readiness(again).unwrap();
            assert_eq!(readiness.failed, None, "opened by host {opener}");
            readiness.opened
        });
        assert!(took_ns < AT_ONCE + 100 * US, "{took_ns} ns");
    }
}
