//! Who waits asks, and is answered: when STATE is sent, and what the other end says to it (docs/protocol.md 7, 8).

mod world;

use std::cell::RefCell;
use std::rc::Rc;

use ropeway_proto::{Config, Mode};
use world::*;

const STATE: u8 = 0x1C;

const ASKERS: usize = 8;

/// Ends of `ASKERS` hosts that have each something to say to host 0 when nothing passes any more, and when they asked for it in five seconds; and when the
/// first asked anew, once all had been heard again.
fn questions(seed: u64) -> (Vec<Vec<u64>>, Vec<u64>) {
    let mut world = World::new(ASKERS + 1, Net::default(), &Config::default(), seed);
    let ends: Vec<_> = (1..=ASKERS).map(|from| (from, open(&mut world, from, 0, 7, Mode::Messages).0)).collect();
    let asked = Rc::new(RefCell::new(vec![Vec::new(); ASKERS]));
    let out = Rc::clone(&asked);
    let say = |world: &mut World| {
        pass(world, 50 * MS);
        let (begin, out) = (world.now, Rc::clone(&out));
        out.borrow_mut().iter_mut().for_each(Vec::clear);
        world.filter = Some(Box::new(move |now, from, _, bytes| {
            if from > 0 && bytes[0] == STATE {
                out.borrow_mut()[from - 1].push(now - begin);
            }
            false
        }));
        for &(host, channel) in &ends {
            let now = world.clock(host);
            world.hosts[host].send(now, channel, b"hello?").unwrap();
            world.hosts[host].flush(channel);
        }
    };
    say(&mut world);
    pass(&mut world, 5 * S);
    let first = asked.borrow().clone();
    world.filter = None;
    pass(&mut world, S);
    say(&mut world);
    pass(&mut world, 5 * MS);
    let anew = asked.borrow().iter().map(|times| times[0]).collect();
    (first, anew)
}

#[test]
fn those_who_fell_silent_together_do_not_go_on_asking_together() {
    let config = Config::default();
    let (asked, anew) = questions(1);
    for times in &asked {
        assert_eq!(times[0], config.state_min_ns, "the first question comes exactly when it was promised");
        for (at, pair) in times.windows(2).enumerate() {
            let full = (config.state_min_ns << (at + 1).min(10)).min(config.timer_max_ns);
            let gap = pair[1] - pair[0];
            assert!((full - full / 8..=full).contains(&gap), "{gap} ns between questions {at} and {}", at + 1);
        }
        assert!(times.len() > 50, "{} questions", times.len());
    }
    // Of the repetitions no two fall together, and of each asker some come sooner than others.
    for at in 1..50 {
        let mut moments: Vec<u64> = asked.iter().map(|times| times[at]).collect();
        moments.sort_unstable();
        assert!(moments.windows(2).all(|pair| pair[1] > pair[0]), "question {at}: {moments:?}");
    }
    assert_eq!(anew, [config.state_min_ns; ASKERS], "and so does the first after an answer");
    assert_eq!(questions(1).0, asked, "the same seed asks at the same times");
    assert_ne!(questions(2).0, asked, "another at others");
}
