//! The network is cut for a while, or a clock is set, at any moment of what goes on: opening, messages, incast, closing. It costs time, and nothing else.

use crate::world::*;
use ropeway_proto::{ChannelId, Config, ErrorCode, Mode};

/// What happens to the world at one moment.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// Nothing passes for so long.
    Cut(u64),
    /// Nothing that this host sends.
    CutFrom(usize, u64),
    /// A host's clock is set.
    Step(usize, i64),
}

const DISTURBANCES: [Disturbance; 14] = [
    Disturbance::Cut(3 * MS),
    Disturbance::Cut(300 * MS),
    Disturbance::Cut(5 * S),
    Disturbance::CutFrom(0, 100 * MS),
    Disturbance::CutFrom(1, 100 * MS),
    Disturbance::CutFrom(0, 5 * S),
    Disturbance::CutFrom(1, 5 * S),
    Disturbance::Step(0, 10 * MS as i64),
    Disturbance::Step(1, 400 * MS as i64),
    Disturbance::Step(0, 20 * S as i64),
    Disturbance::Step(1, 20 * S as i64),
    Disturbance::Step(0, 1000 * S as i64),
    Disturbance::Step(0, -5 * MS as i64),
    Disturbance::Step(1, -5 * MS as i64),
];

impl Disturbance {
    /// Puts it into effect, for now.
    fn begin(self, world: &mut World) {
        match self {
            Disturbance::Cut(_) => world.filter = Some(Box::new(|_, _, _, _| false)),
            Disturbance::CutFrom(host, _) => world.filter = Some(Box::new(move |_, from, _, _| from != host)),
            Disturbance::Step(host, ns) => world.step_clock(host, ns),
        }
    }

    fn lasts_ns(self) -> u64 {
        match self {
            Disturbance::Cut(ns) | Disturbance::CutFrom(_, ns) => ns,
            Disturbance::Step(..) => 0,
        }
    }

    fn happen(self, world: &mut World) {
        self.begin(world);
        pass(world, self.lasts_ns());
        world.filter = None;
    }
}

/// Every timer is at most `timer_max`.
const SOON: u64 = 300 * MS;
/// What opens asks at least once a second.
const SOON_OPEN: u64 = 1300 * MS;
/// As long as a cookie lives, who opens believes in it.
const COOKIE: u64 = 3 * S;

fn failure(world: &mut World, host: usize, channel: ChannelId) -> Option<ErrorCode> {
    world.hosts[host].readiness(channel).unwrap().failed
}

fn wait_empty(world: &mut World, limit_ns: u64, what: &str) {
    wait_for(world, limit_ns, what, |world| {
        world.hosts.iter().all(|host| host.sizes().1 == 0 && host.buffers_in_use() == (0, 0))
    });
}

with_and_without_a_key!(what_opens_is_open_soon_after);
fn what_opens_is_open_soon_after() {
    // How long an attempt lasts is the clock's word, whoever has set it.
    let is_patient = |disturbance: &Disturbance| !matches!(disturbance, Disturbance::Step(0, 10_000_000_000..));
    for disturbance in DISTURBANCES.into_iter().filter(is_patient) {
        for moment in 0..10 {
            let what = format!("{disturbance:?} after {moment} x 10 us");
            let mut world = World::new(2, Net::default(), &Config::default(), moment);
            world.hosts[1].listen(7, Mode::Stream, 8).unwrap();
            let client = try_connect(&mut world, 0, 1, 7).unwrap();
            pass(&mut world, moment * 10 * US);
            disturbance.happen(&mut world);
            // A server whose clock was set takes none from before.
            let limit_ns = if matches!(disturbance, Disturbance::Step(1, _)) { COOKIE + SOON_OPEN } else { SOON_OPEN };
            wait_for(&mut world, limit_ns, &what, |world| world.hosts[0].readiness(client).unwrap().opened);
            assert_eq!(failure(&mut world, 0, client), None, "{what}");
            // Of several that the server may have taken, one talks to this client; it forgets the others when they ask.
            let now = world.clock(0);
            assert_eq!(world.hosts[0].send(now, client, b"here"), Ok(4));
            world.hosts[0].flush(client);
            let mut accepted = Vec::new();
            let mut heard = None;
            wait_for(&mut world, SOON, &what, |world| {
                accepted.extend(world.hosts[1].accept(7));
                let mut out = [0; 8];
                heard = accepted.iter().copied().find(|&id| world.hosts[1].recv(id, &mut out) == Ok(Some(4)));
                heard.is_some()
            });
            pass(&mut world, SOON);
            accepted.extend(world.hosts[1].accept(7));
            assert_eq!((world.hosts[0].sizes().0, world.hosts[1].sizes().0), (1, 1), "{what}: {accepted:?}");
            for &id in &accepted {
                let code = failure(&mut world, 1, id);
                assert_eq!(code.is_none(), Some(id) == heard, "{what}: {code:?}");
            }
            let mut ends: Vec<_> = accepted.into_iter().map(|id| (1, id)).collect();
            ends.push((0, client));
            close_all_channels(&mut world, &ends);
        }
    }
}

with_and_without_a_key!(messages_arrive_whole_in_order_and_soon_after);
fn messages_arrive_whole_in_order_and_soon_after() {
    for disturbance in DISTURBANCES {
        for moment in 0..4 {
            let what = format!("{disturbance:?} at {moment}");
            let mut world = World::new(2, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), moment);
            let (client, server) = pair(&mut world, Mode::Messages);
            let mut flows = [
                Flow::messages((0, client), (1, server), 700, 600),
                Flow::messages((1, server), (0, client), 30_000, 20),
            ];
            let until = moment * 100_000;
            assert!(carry_until(&mut world, &mut flows, S, |_, flows| flows[0].received >= until));
            disturbance.happen(&mut world);
            let taken = carry(&mut world, &mut flows, S);
            assert!(taken < SOON, "{taken} ns, {what}");
            assert_eq!((failure(&mut world, 0, client), failure(&mut world, 1, server)), (None, None), "{what}");
            close_all_channels(&mut world, &[(0, client), (1, server)]);
        }
    }
}

with_and_without_a_key!(many_senders_to_one_go_on_and_share_its_line_as_before);
fn many_senders_to_one_go_on_and_share_its_line_as_before() {
    const SENDERS: usize = 9;
    for disturbance in DISTURBANCES {
        let mut world = World::new(SENDERS + 1, Net { rate: 1_000_000_000, ..Net::default() }, &Config::default(), 1);
        let mut flows: Vec<_> = (1..=SENDERS)
            .map(|from| {
                let (client, server) = open(&mut world, from, 0, 7, Mode::Stream);
                Flow::stream((from, client), (0, server), 1 << 30)
            })
            .collect();
        carry_until(&mut world, &mut flows, 5 * MS, |_, _| false);
        disturbance.happen(&mut world);
        carry_until(&mut world, &mut flows, SOON / 2, |_, _| false);
        let before: Vec<_> = flows.iter().map(|flow| flow.received).collect();
        carry_until(&mut world, &mut flows, 20 * MS, |_, _| false);
        let shares: Vec<_> = flows.iter().zip(&before).map(|(flow, before)| flow.received - before).collect();
        let full = 20e6 / 8.0 * payload_bytes() / 1518.0;
        let got = shares.iter().sum::<u64>() as f64;
        assert!(got > 0.95 * full && jain(&shares) > 0.9, "{disturbance:?}: {shares:?} of {full}");
        flows.iter_mut().for_each(|flow| flow.total = flow.sent);
        carry(&mut world, &mut flows, S);
        assert_eq!(world.hosts[0].gate().charged_bytes(), 0, "{disturbance:?}");
    }
}

with_and_without_a_key!(what_closes_is_closed_soon_after);
fn what_closes_is_closed_soon_after() {
    #[derive(Clone, Copy, Debug)]
    enum End {
        Close,
        Abort,
        Shutdown,
    }
    for disturbance in DISTURBANCES {
        for (first, second) in
            [End::Close, End::Abort, End::Shutdown].iter().flat_map(|&a| [End::Close, End::Shutdown].map(|b| (a, b)))
        {
            for moment in 0..6 {
                let what = format!("{first:?}, {second:?}, {disturbance:?} {moment} x 15 us after that");
                let mut world = World::new(2, Net::default(), &Config::default(), moment);
                let (client, server) = pair(&mut world, Mode::Stream);
                let mut flows =
                    [Flow::stream((0, client), (1, server), 40_000), Flow::stream((1, server), (0, client), 20_000)];
                carry_until(&mut world, &mut flows, 20 * US, |_, _| false);
                for (host, channel, end) in [(0, client, first), (1, server, second)] {
                    let now = world.clock(host);
                    match end {
                        End::Close => world.hosts[host].close(now, channel),
                        End::Abort => world.hosts[host].abort(now, channel),
                        End::Shutdown => world.hosts[host].shutdown(now, channel).unwrap(),
                    }
                }
                pass(&mut world, moment * 15 * US);
                disturbance.happen(&mut world);
                for (host, channel) in [(0, client), (1, server)] {
                    let now = world.clock(host);
                    world.hosts[host].close(now, channel);
                }
                wait_empty(&mut world, SOON, &what);
                assert_eq!((world.hosts[0].sizes().0, world.hosts[1].sizes().0), (1, 1), "by closing alone: {what}");
            }
        }
    }
}
