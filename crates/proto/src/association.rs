//! The state that two engines share: numbers, grants, round-trip time, timers (docs/protocol.md 4, 5, 8). The endpoint moves it; here are the sums that
//! are the same wherever they are needed.

mod attempt;
mod beyond;
mod channels;
pub mod grants;
mod limits;
mod paths;
pub mod patience;
pub mod probation;
mod rest;
mod shortage;

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;

use ropeway_wire::{self as wire, ErrorCode, Flags, Header, Id, Type};

use crate::answers::Answers;
use crate::channel::Numbers;
use crate::config::{Config, GateMode};
use crate::crypto::token::{self, TOKEN_BYTES};
use crate::endpoint::{BATCH_PACKETS, Path};
use crate::keyed::Sealing;
use crate::lease::{self, Lease};
use crate::ledger::AccountId;
use crate::pace::Pace;
use crate::rate::Rate;
use crate::received::{Received, WINDOW_PACKETS};
use crate::routes::Routes;
use crate::rtt::Rtt;
use crate::sent::Sent;
use crate::statistics::{AssociationCounters, Limit, LimitTimes};
use crate::time::{TICK_NS, Time};
pub use attempt::{Attempt, Crossed, FIRST_RETRY_NS};
pub use beyond::{Asked, AskedBeyond, Beyond};
use patience::InVain;
use probation::Probation;
use shortage::Shortage;
pub use shortage::Standing;

/// An echo older than this is not sent: the 16-bit clock turns over after 262 ms.
pub const ECHO_LIMIT_NS: u64 = 100_000_000;
/// ABORTs for channels that were refused at once, waiting to be sent, at most; an OPEN beyond that counts as lost.
pub const MOST_REFUSALS: usize = 64;

/// One call sends what goes in this time at the rate of late: a link may be busy with all of it before the first packet of it is on its way ...
const BATCH_NS: u64 = 50_000;
/// ... nor more than one segmented send over UDP has room for: a second one for what is left would cost as much as the first ...
const BATCH_BYTES: usize = 65_487;
/// ... but no fewer packets, as each call has its price.
const LEAST_BATCH_PACKETS: usize = 4;

fn most_batch_packets(packet_bytes: usize) -> usize {
    (BATCH_BYTES / packet_bytes).clamp(LEAST_BATCH_PACKETS, BATCH_PACKETS)
}

#[derive(Debug)]
pub enum Phase {
    Opening(Box<Attempt>),
    Open,
}

#[derive(Debug)]
pub struct Association {
    pub id: Id,
    pub peer: Id,
    /// Where everything goes for which there is no choice.
    pub path: Path,
    /// The own address that the peer spoke to last.
    pub spoken_to: u8,
    /// When something was said, under an address of the host's choice, of which it is not known whether the peer has heard it; [`Time::MAX`]: there is nothing of that kind.
    said_at: Time,
    /// So many times in a row it has not.
    said_in_vain: u8,
    /// `None`: there is one path, and so never a choice.
    pub routes: Option<Box<Routes>>,
    pub phase: Phase,
    /// The host that opened it, among whose associations it counts, whatever its paths are by now. `None`: this end did.
    pub host: Option<Path>,
    /// Its place among those without a channel.
    pub rest: Option<NonZeroU64>,
    /// To this port: there the peer's engine listens. `None`: the peer asked.
    pub asked_port: Option<u16>,
    /// The longest packet, fixed at open.
    pub packet_bytes: usize,
    /// What of that is payload.
    pub payload_bytes: usize,
    /// So many packets may leave in one call however fast they are acknowledged.
    most_batch_packets: usize,
    pub sealing: Sealing,
    /// What the peer was told that it may send on each new channel.
    pub own_window: u32,
    /// And how long its messages may be.
    pub own_longest: u32,
    pub peer_window: u32,
    pub peer_longest: u32,
    pub peer_token: [u8; 16],
    /// Somebody who saw this end ask says that the peer does not know this association, and nothing has come since that would show otherwise: nothing new is opened by it.
    pub disowned: bool,

    // Sending.
    pub first_number: u64,
    pub sent: Sent,
    /// What the peer allows.
    pub lease: Lease,
    /// Packets acknowledged.
    pub acked: Rate,
    /// A busy period has begun and is not over.
    pub busy: bool,
    pub backlog_bytes: u64,
    /// Numbers of channels with something queued and no credit for it.
    pub blocked: BTreeSet<u16>,
    /// Of these, the next one to ask credit for.
    pub want_next: u16,
    /// Since when there are some ([`Time::MAX`]: there are none, or nobody has looked), and how often credit was asked for since then.
    pub blocked_since: Time,
    pub want_doublings: u8,
    /// Channels with something queued and the credit for it.
    pub round: VecDeque<u32>,
    /// Of these, the ones whose next packet needs no grant.
    pub ending: VecDeque<u32>,
    /// Channels of the peer that were refused and of which nothing is kept but this.
    pub refusals: VecDeque<(u16, ErrorCode)>,
    /// Messages are queued that are to be dropped if they are not under way by then.
    pub deadline_at: Option<Time>,
    /// When a new number was last given out.
    pub new_at: Time,
    /// Nothing is kept back until this moment has passed.
    pub flush: bool,
    pub flush_at: Option<Time>,
    /// Since when something is undelivered, later by the time in which the link took nothing.
    pub waiting_since: Time,
    /// Since when the link has taken nothing of what is to be sent; [`Time::MAX`]: it took the last of it.
    held_up_since: Time,
    /// Some of that it has refused; else it dropped what was for who is silent.
    link_refused: bool,
    /// Lost packets are being repeated until everything below this number is acknowledged.
    pub recovers_to: u64,
    pub limit_kind: Limit,
    pub limit_since: Time,
    pub limit_times: LimitTimes,

    /// When it last gave memory back because it was not used.
    rested_at: Time,

    // Receiving.
    pub received: Received,
    pub peer_backlog: u64,
    /// Numbers below this have been granted.
    pub granted: u64,
    /// When more was granted.
    pub given_at: Time,
    /// A grant was taken back, and nothing has come of what has been granted since.
    pub left_unused: bool,
    /// When it was told of what is granted, the last time.
    pub granted_at: Time,
    /// How fast it uses that.
    pub pace: Pace,
    /// If it has ever left some of it unused.
    probation: Option<Box<Probation>>,
    pub arrivals_unacked: u16,
    /// Packets with short headers sent since something was said of the moment.
    pub unsaid_packets: u16,
    pub arrived_at: Time,
    /// How long a number may be late before it is asked for.
    pub reorder_ns: u64,
    /// Packets since the reorder window was last made smaller.
    pub quiet_arrivals: u16,
    /// The newest packet was not the last of its busy period.
    pub peer_busy: bool,
    /// The acknowledgment as last released (`gate = esp`).
    pub esp_ack: u64,
    pub epoch: u64,
    pub lost_unreported: u32,
    pub arrived_unreported: u32,

    // Control packets due.
    pub ack_due: bool,
    /// The peer has asked for it.
    pub asked: bool,
    pub ack_at: Option<Time>,
    /// Whether an answer may carry it.
    pub answers: Answers,
    pub ask_at: Option<Time>,
    /// Ask also for what was granted and never seen.
    pub ask_beyond: Option<Beyond>,
    /// What was asked for beyond the newest number, the last time.
    pub asked_beyond: Option<AskedBeyond>,
    /// Nothing while nothing is missing.
    pub in_vain: Option<Box<InVain>>,
    pub state_due: bool,
    pub pin_due: bool,
    /// To which the memory is charged that what it has sent takes up.
    pub account: AccountId,
    /// Nothing before memory is short.
    pub shortage: Option<Box<Shortage>>,
    /// Channels with a CREDIT or HOLD to say.
    pub words: Vec<u32>,

    // Time.
    pub rtt: Rtt,
    pub heard_at: Time,
    pub peer_time: Option<(u16, Time)>,
    pub timer_at: Option<Time>,
    pub state_at: Time,
    pub state_doublings: u8,
    /// How much sooner the next STATE comes, of 65,536 parts of the most that it may be; drawn for each repetition.
    pub state_jitter: u16,
    pub states_unanswered: u32,
    /// When what is expected was asked for, or was to be asked for, the last time.
    pub request_at: Time,
    /// How often it has been asked for since something came.
    pub request_doublings: u16,
    pub pin_at: Time,

    pub channels: Numbers,
    /// Where the search for a free number begins.
    next_number: u16,

    /// In which of the endpoint's queues of those with something to transmit it stands.
    pub queued_in: Option<u8>,
    /// Something arrived in the batch at hand.
    pub touched: bool,
    /// Its earliest timer may have changed since it was looked up.
    pub unsettled: bool,
    pub counters: AssociationCounters,
}

impl Association {
    pub fn new(
        id: Id,
        path: Path,
        phase: Phase,
        windows: (u32, u32),
        first_number: u64,
        config: &Config,
        now: Time,
    ) -> Association {
        let is_opener = matches!(phase, Phase::Opening(_));
        Association {
            id,
            peer: Id::default(),
            path,
            spoken_to: 0,
            said_at: Time::MAX,
            said_in_vain: 0,
            routes: None,
            phase,
            host: (!is_opener).then(|| path.host()),
            rest: None,
            asked_port: None,
            packet_bytes: 0,
            payload_bytes: 0,
            most_batch_packets: LEAST_BATCH_PACKETS,
            sealing: Sealing::default(),
            own_window: windows.0,
            own_longest: windows.1,
            peer_window: 0,
            peer_longest: 0,
            peer_token: [0; 16],
            disowned: false,
            first_number,
            sent: Sent::starting_at(first_number),
            lease: Lease::new(first_number, config.lease_ns, now),
            acked: Rate::default(),
            busy: false,
            backlog_bytes: 0,
            blocked: BTreeSet::new(),
            want_next: 0,
            blocked_since: Time::MAX,
            want_doublings: 0,
            round: VecDeque::new(),
            ending: VecDeque::new(),
            refusals: VecDeque::new(),
            deadline_at: None,
            new_at: Time::ZERO,
            flush: false,
            flush_at: None,
            waiting_since: now,
            held_up_since: Time::MAX,
            link_refused: false,
            recovers_to: first_number,
            rested_at: Time::ZERO,
            limit_kind: Limit::default(),
            limit_since: now,
            limit_times: LimitTimes::default(),
            received: Received::starting_at(0),
            peer_backlog: 0,
            granted: 0,
            given_at: now,
            left_unused: false,
            granted_at: now,
            pace: Pace::default(),
            probation: None,
            arrivals_unacked: 0,
            unsaid_packets: 0,
            arrived_at: now,
            reorder_ns: 0,
            quiet_arrivals: 0,
            peer_busy: false,
            esp_ack: 0,
            epoch: 0,
            lost_unreported: 0,
            arrived_unreported: 0,
            ack_due: false,
            asked: false,
            ack_at: None,
            answers: Answers::default(),
            ask_at: None,
            ask_beyond: None,
            asked_beyond: None,
            in_vain: None,
            state_due: false,
            pin_due: false,
            account: AccountId::NOBODY,
            shortage: None,
            words: Vec::new(),
            rtt: Rtt::assumed(config.round_trip_time_ns),
            heard_at: now,
            peer_time: None,
            timer_at: None,
            state_at: now,
            state_doublings: 0,
            state_jitter: 0,
            states_unanswered: 0,
            request_at: now,
            request_doublings: 0,
            pin_at: now,
            channels: Numbers::default(),
            next_number: u16::from(!is_opener),
            queued_in: None,
            touched: false,
            unsettled: false,
            counters: AssociationCounters::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// The parameters of both ends are known: from here on packets flow.
    pub fn open(&mut self, peer: &wire::Parameters, packet_bytes: usize) {
        self.phase = Phase::Open;
        self.peer = peer.id;
        self.peer_window = peer.window;
        self.peer_longest = peer.longest_message;
        self.peer_token = peer.reset_token;
        self.set_packet_bytes(packet_bytes);
        self.received = Received::starting_at(peer.first_number);
        self.granted = peer.first_number;
        self.esp_ack = peer.first_number;
        // Who was asked to open has measured none yet.
        self.lease.follow(self.rtt.known_least_ns().unwrap_or(0));
    }

    pub fn set_packet_bytes(&mut self, packet_bytes: usize) {
        self.packet_bytes = packet_bytes;
        self.payload_bytes = packet_bytes - wire::CHANNEL_HEADER_BYTES - self.sealing.overhead_bytes();
        self.most_batch_packets = most_batch_packets(packet_bytes);
    }

    /// How many new numbers may be given out now.
    pub fn allowance(&self, now: Time) -> u64 {
        let allowed = self.lease.allowance(self.sent.una(), self.sent.next(), now);
        let start = u64::from(!self.busy && self.sent.in_flight() == 0);
        allowed.max(start).min(self.window())
    }

    /// How many new numbers the receiver's window has room for, whatever was granted.
    pub fn window(&self) -> u64 {
        (WINDOW_PACKETS - 1).saturating_sub(self.sent.in_flight())
    }

    /// So many packets may leave in one call.
    pub fn batch_packets(&self) -> usize {
        let most = self.most_batch_packets;
        match self.acked.per_ms() {
            0 => most,
            per_ms => ((per_ms * BATCH_NS / 1_000_000) as usize).clamp(LEAST_BATCH_PACKETS, most),
        }
    }

    /// Takes over the grant of an arriving header, whose `ack` has been expanded and which the peer made at `told_at`. Says whether the sender may now send more.
    pub fn take_grant(&mut self, header: &Header, ack: u64, is_newest: bool, told_at: Time, now: Time) -> bool {
        if is_newest {
            // Towards who has not been heard for long, as an idle end, there is no echo, and a flight is new even so.
            let flight_told_at = if header.flags.contains(Flags::ECHO) { told_at } else { now };
            self.lease.take_flight(header.first_flight, flight_told_at, now);
        }
        // A grant that comes when there is nothing to send is not kept: the receiver takes it back when it sees the end of the busy period.
        let is_wanted = self.backlog_bytes > 0;
        header.grant > 0 && is_wanted && self.lease.take_limit(ack.wrapping_add(u64::from(header.grant)), told_at, now)
    }

    /// A header of the moment, for the packet with `number` or, if it consumes none, with the next.
    pub fn header(&self, kind: Type, number: u64, first_flight: u8, config: &Config, now: Time) -> Header {
        let mut header = Header::new(kind, self.peer);
        header.number = number as u32;
        let (ack, granted) = match config.gate_mode {
            GateMode::Grants if self.tells_grant(now) => (self.received.base(), self.granted),
            GateMode::Grants => (self.received.base(), self.received.base()),
            GateMode::Esp => (self.esp_ack, self.esp_limit(config)),
        };
        header.ack = ack as u32;
        header.grant = (granted.wrapping_sub(ack) as i64).clamp(0, i64::from(u16::MAX)) as u16;
        header.first_flight = first_flight;
        header.backlog = wire::Backlog::from_bytes(self.backlog_bytes);
        header.time = now.ticks();
        if let Some((time, at)) = self.peer_time
            && now.since(at) <= ECHO_LIMIT_NS
        {
            header.flags.insert(Flags::ECHO);
            header.echo = time.wrapping_add((now.since(at) / TICK_NS) as u16);
        }
        header
    }

    /// What a peer that does not know this association answers to a STATE of this moment. That says what nobody knows who has not seen a packet of it.
    pub fn stranger_token(&self, config: &Config) -> [u8; TOKEN_BYTES] {
        let header = self.header(Type::State, self.sent.next(), 0, config, Time::ZERO);
        token::stranger_token(header.destination.0, header.number, header.ack)
    }

    /// A packet with the header of this moment has left: acknowledgment, grant and times are told.
    pub fn said(&mut self, config: &Config, now: Time) {
        self.note_said(config, now);
        (self.ack_due, self.asked) = (false, false);
        self.answers.acknowledged();
        self.unsaid_packets = 0;
        self.ack_at = None;
        self.arrivals_unacked = 0;
        if self.outstanding_packets() > 0 && self.tells_grant(now) {
            self.granted_at = now;
        }
    }

    /// Nothing can be sealed any more: what is due is never said. The peer's silence timer ends the association, then its silence ours.
    pub fn fall_silent(&mut self) {
        self.sealing.mute = true;
        (self.ack_due, self.state_due, self.pin_due) = (false, false, false);
        (self.ack_at, self.ask_at, self.ask_beyond, self.flush_at) = (None, None, None, None);
        if let Some(routes) = &mut self.routes {
            routes.fall_silent();
        }
        self.words.clear();
        self.sent.forget_voids();
        self.forget_returns();
    }

    /// Takes over the times of an arriving header, which may have lain in its socket since the links were empty.
    pub fn take_time(&mut self, header: &Header, empty_at: Time, now: Time) {
        if header.flags.contains(Flags::ECHO) {
            let ns = lease::since_echo_ns(header, now);
            // An echo from the future is a clock that was stepped, or a lie.
            if ns <= ECHO_LIMIT_NS * 2 {
                // The clock may have turned over since.
                let may_be_more = now.since(empty_at) > ECHO_LIMIT_NS;
                self.rtt.sample(ns.max(TICK_NS / 2), may_be_more);
                // Among several paths the least is not the one that a grant takes.
                if self.routes.is_none() {
                    self.lease.follow(self.rtt.least_ns());
                }
            }
        }
        let is_newer = self
            .peer_time
            .is_none_or(|(time, at)| header.time.wrapping_sub(time) as i16 > 0 || now.since(at) > ECHO_LIMIT_NS);
        if is_newer {
            self.peer_time = Some((header.time, now));
        }
    }

    /// What was sent after this moment of our clock had not reached the peer when it made this header, unless it overtook something. `None`: not known.
    pub fn reached_by(header: &Header, now: Time) -> Option<Time> {
        let ns = lease::since_echo_ns(header, now);
        let is_known = header.flags.contains(Flags::ECHO) && ns <= ECHO_LIMIT_NS * 2;
        // Both clocks were read in whole ticks.
        is_known.then(|| Time::from_nanos(now.as_nanos().saturating_sub(ns)).after(2 * TICK_NS))
    }

    pub fn frame_bytes(&self, config: &Config) -> u64 {
        self.packet_bytes as u64 + u64::from(config.frame_overhead_bytes)
    }

    /// How much of the round trip was spent in queues, as far as can be told: paths differ in delay.
    pub fn queueing_ns(&self) -> u64 {
        if self.routes.is_some() { 0 } else { self.rtt.queueing_ns() }
    }

    /// This end sent the SYN.
    pub fn is_opener(&self) -> bool {
        self.host.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_one_segmented_send_has_room_for() {
        for (packet_bytes, packets) in [(256, 64), (1452, 45), (1472, 44), (8972, 7), (65_507, 4)] {
            assert_eq!(most_batch_packets(packet_bytes), packets, "{packet_bytes} bytes");
        }
    }

    fn open_at(now: Time) -> Association {
        let (id, path) = (Id::default(), Path([0; Path::BYTES]));
        Association::new(id, path, Phase::Open, (0, 0), 0, &Config::default(), now)
    }

    #[test]
    fn a_grant_that_comes_when_there_is_nothing_to_send_is_not_kept() {
        let now = Time::from_nanos(1_000_000_000);
        let mut association = open_at(now);
        let mut header = Header::new(Type::Control, Id::default());
        header.grant = 10;
        let mut allowed_after = |backlog_bytes| {
            association.backlog_bytes = backlog_bytes;
            (association.take_grant(&header, 0, false, now, now), association.allowance(now))
        };
        assert_eq!([0, 1].map(&mut allowed_after), [(false, 1), (true, 10)]);
    }

    #[test]
    fn who_waited_for_credit_and_is_gone_is_nothing_undelivered() {
        let mut association = open_at(Time::from_nanos(1_000_000_000));
        for number in [4, 6] {
            association.attach(number, 1);
            association.blocked.insert(number);
        }
        let mut waits_after = |number| {
            association.detach(number);
            association.has_undelivered()
        };
        assert_eq!([4, 6].map(&mut waits_after), [true, false]);
    }

    #[test]
    fn among_several_paths_a_lease_does_not_follow_the_round_trip() {
        let now = Time::from_nanos(1_000_000_000);
        let mut header = Header::new(Type::Control, Id::default());
        header.flags = Flags::ECHO;
        header.echo = Time::from_nanos(now.as_nanos() - 50_000_000).ticks();
        let lasts_ns = |has_routes: bool| {
            let mut association = open_at(now);
            association.routes = has_routes.then(|| Box::new(Routes::new(association.path, true, now)));
            association.take_time(&header, now, now);
            association.lease.lasts_ns()
        };
        let least_ns = Config::default().lease_ns;
        assert!(lasts_ns(false) > 300_000_000 && lasts_ns(true) == least_ns, "{} {}", lasts_ns(false), lasts_ns(true));
    }

    #[test]
    fn a_first_flight_that_echoes_nothing_is_new() {
        let now = Time::from_nanos(1_000_000_000);
        let told_at = Time::from_nanos(now.as_nanos() - 2 * Config::default().lease_ns);
        let mut header = Header::new(Type::Control, Id::default());
        header.first_flight = 5;
        for (flags, allowed) in [(Flags::NONE, 5), (Flags::ECHO, 1)] {
            let mut association = open_at(now);
            header.flags = flags;
            association.take_grant(&header, 0, true, told_at, now);
            assert_eq!(association.allowance(now), allowed, "{flags:?}");
        }
    }
}
