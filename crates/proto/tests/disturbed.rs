//! The network is cut for a while, or a clock is set, at any moment of what goes on: opening, messages, incast, closing. It costs time, and nothing else.

mod world;

use ropeway_proto::{ChannelId, Config, ErrorCode, Event, Mode};
use world::*;

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

#[test]
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
