//! What a simulated network does, to the nanosecond.

use super::*;
use crate::Failure;
use crate::pattern::{self, Bound, Pattern, Trial};
use crate::record::{Series, Values};
use crate::transport::Transport;

/// Runs `work` in every rank, each a thread, and gives what each returned.
fn together<R: Send>(text: &str, count: usize, work: impl Fn(&mut Sim) -> R + Sync) -> Vec<R> {
    let parameters: SimParameters = text.parse().expect("parameters");
    let ends = ranks(count, &parameters).expect("a network");
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ends.into_iter().map(|mut end| scope.spawn(move || work(&mut end))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

const EXACT: &str = "L=5us,o=1us,g=2us,G=1ns,clock=0.001ns";

fn one_way(text: &str, sizes: &[usize]) -> Vec<u64> {
    together(text, 2, |end| {
        let mut times = Vec::new();
        for size in sizes {
            end.barrier().expect("a barrier");
            let start = end.now_ns();
            let mut message = vec![7u8; *size];
            if end.rank() == 0 {
                end.send(1, &message).expect("sent");
            } else {
                assert!(end.receive(0, &mut message).expect("received"));
                times.push(end.now_ns() - start);
            }
        }
        times
    })
    .remove(1)
}

#[test]
fn a_message_takes_what_loggp_says() {
    // o + L + (s-1) G + o.
    assert_eq!(one_way(EXACT, &[1, 1_001]), [7_000, 8_000]);
}

#[test]
fn a_message_takes_what_plogp_says() {
    // L + g(s).
    let text = "model=plogp,L=5us,os=1us,or=1us,g=2us+3ns/B,clock=0.001ns";
    assert_eq!(one_way(text, &[0, 1_000]), [7_000, 10_000]);
}

#[test]
fn large_messages_go_the_other_way() {
    let text = format!("{EXACT},switch=1Ki,switch-delay=20us,switch-G=2ns");
    assert_eq!(one_way(&text, &[1_001, 2_001]), [8_000, 7_000 + 20_000 + 4_000]);
    // Without a delay of its own, a round trip of an empty message.
    assert_eq!(one_way(&format!("{EXACT},switch=1Ki"), &[2_001]), [7_000 + 14_000 + 2_000]);
}

#[test]
fn messages_follow_each_other_by_the_gap_and_their_sender_waits_for_the_queue() {
    for (queue, sender_ns) in [(64, 10_000), (1, 18_000)] {
        let times = together(&format!("{EXACT},queue={queue}"), 2, |end| {
            let mut message = [0u8; 1];
            for _ in 0..10 {
                match end.rank() {
                    0 => end.send(1, &message).expect("sent"),
                    _ => assert!(end.receive(0, &mut message).expect("received")),
                }
            }
            end.now_ns()
        });
        assert_eq!(times, [sender_ns, 1_000 + 9 * 2_000 + 5_000 + 1_000], "queue {queue}");
    }
}

/// Ranks that send and receive in an order that depends on everything: noise, losses, a full port, polling.
fn busy(seed: u64) -> Vec<Vec<u64>> {
    let text = format!("noise=20%,loss=2%,outliers=1%*20,rate=200MB/s,buffer=4Ki,seed={seed}");
    together(&text, 5, |end| {
        let mut times = Vec::new();
        let mut message = [0u8; 1_000];
        if end.rank() == 0 {
            for _ in 0..4 * 30 {
                let from = end.wait_any().expect("a message").expect("reliable");
                assert!(end.receive(from, &mut message).expect("received"));
                times.push(end.now_ns() * 8 + from as u64);
                end.send(from, &message[..10]).expect("sent");
            }
        } else {
            for _ in 0..30 {
                end.send(0, &message).expect("sent");
                while !end.try_receive(0, &mut message[..10]).expect("received") {}
                times.push(end.now_ns());
            }
        }
        end.barrier().expect("a barrier");
        times.push(end.now_ns());
        times
    })
}

#[test]
fn the_same_seed_gives_the_same_times_to_the_nanosecond() {
    let first = busy(3);
    for _ in 0..5 {
        assert_eq!(busy(3), first);
    }
    assert_ne!(busy(4), first);
}

#[test]
fn a_full_port_loses_what_nobody_repeats() {
    let text = "g=100ns,o=100ns,rate=10MB/s,buffer=2Ki,G=0,reliable=no,timeout=1ms";
    let received = together(text, 9, |end| {
        let mut message = [0u8; 1_000];
        if end.rank() > 0 {
            end.send(0, &message).expect("sent");
            return 0;
        }
        let mut count = 0;
        while let Some(from) = end.wait_any().expect("no failure") {
            count += u32::from(end.receive(from, &mut message).expect("no failure"));
        }
        count
    });
    assert_eq!(received[0], 2, "of 8 messages of 1,000 bytes that come at once, 2 fit into 2 KiB");
}

#[test]
fn a_full_port_delays_what_is_repeated_and_keeps_its_order() {
    let text = "g=100ns,o=100ns,rate=10MB/s,buffer=2Ki,G=0,retransmit=150us,loss=10%";
    let received = together(text, 3, |end| {
        let mut orders = vec![Vec::new(); 3];
        let mut message = [0u8; 1_000];
        for i in 0..20 {
            message[0] = i;
            if end.rank() > 0 {
                end.send(0, &message).expect("sent");
                continue;
            }
            for from in [1, 2] {
                assert!(end.receive(from, &mut message).expect("received"));
                orders[from].push(message[0]);
            }
        }
        orders
    });
    let all: Vec<u8> = (0..20).collect();
    assert_eq!((&received[0][1], &received[0][2]), (&all, &all));
}

#[test]
fn lost_messages_are_counted_by_who_waits_for_them() {
    let came = together("loss=30%,reliable=no,timeout=100us", 2, |end| {
        let mut message = [0u8; 8];
        let mut came = 0;
        for _ in 0..500 {
            end.barrier().expect("a barrier");
            match end.rank() {
                0 => end.send(1, &message).expect("sent"),
                _ => came += u32::from(end.receive(0, &mut message).expect("no failure")),
            }
        }
        came
    });
    assert!((300..400).contains(&came[1]), "{came:?} of 500 with 30 % loss");
}

#[test]
fn a_sender_waits_for_its_receivers_window() {
    let clocks = together("o=100ns,g=100ns,G=0,window=10Ki", 2, |end| {
        let mut message = [0u8; 1_024];
        if end.rank() == 0 {
            for _ in 0..20 {
                end.send(1, &message).expect("sent");
            }
            return end.now_ns();
        }
        end.compute(1_000_000);
        for _ in 0..20 {
            assert!(end.receive(0, &mut message).expect("received"));
        }
        end.now_ns()
    });
    assert!(clocks[0] > 1_000_000, "{clocks:?}: ten messages fit, the rest had to wait for the receiver");
}

#[test]
fn who_waits_for_each_other_fails_and_does_not_hang() {
    let failures = together(EXACT, 3, |end| {
        let mut message = [0u8; 1];
        end.receive((end.rank() + 1) % 3, &mut message).expect_err("nobody sends")
    });
    assert!(matches!(failures[0], Failure::Deadlock { rank: 0, .. }), "{failures:?}");
    assert!(failures[0].to_string().contains("a message from rank 1"));
    let closed = together(EXACT, 2, |end| match end.rank() {
        0 => end.barrier().map(|()| false),
        _ => Ok(true),
    });
    assert!(matches!(closed[0], Err(Failure::Closed { peer: 1 })), "{closed:?}");
    // A barrier that somebody never joins because he waits for something else.
    let stuck = together(EXACT, 2, |end| match end.rank() {
        0 => end.barrier(),
        _ => end.receive(0, &mut [0u8]).map(drop),
    });
    assert!(matches!(stuck[1], Err(Failure::Deadlock { rank: 1, .. })), "{stuck:?}");
}

#[test]
fn nobody_is_passed_over() {
    let order = together("o=10us,g=100ns", 4, |end| {
        let mut message = [0u8; 4];
        if end.rank() > 0 {
            (0..20).for_each(|_| end.send(0, &message).expect("sent"));
            return Vec::new();
        }
        end.compute(1_000_000);
        let mut order = Vec::new();
        for _ in 0..60 {
            let from = end.wait_any().expect("a message").expect("reliable");
            assert!(end.receive(from, &mut message).expect("received"));
            order.push(from);
        }
        order
    });
    assert!(order[0].chunks(3).all(|three| three.iter().sum::<usize>() == 6), "{:?}", order[0]);
}

#[test]
fn who_looks_again_and_again_does_not_stop_time() {
    let looks = together(EXACT, 3, |end| {
        match end.rank() {
            0 => {}
            1 => end.send(0, &[1]).expect("sent"),
            _ => {
                end.compute(50_000);
                end.send(0, &[2]).expect("sent");
            }
        }
        // Rank 0 leaves the message of rank 1 where it is, and waits for that of rank 2.
        let mut looks = 0;
        while end.rank() == 0 && end.wait_any().expect("no failure") != Some(2) {
            looks += 1;
        }
        looks
    });
    assert!((100..2_000).contains(&looks[0]), "{looks:?}");
}

#[test]
fn a_connection_takes_two_round_trips() {
    let times = together(EXACT, 2, |end| {
        end.reconnect(1 - end.rank()).expect("a connection");
        end.now_ns()
    });
    assert_eq!(times, [28_000, 22_000]);
}

#[test]
fn trials_follow_each_other_on_one_network() {
    let trial = |size| Trial {
        pattern: Pattern::PingPong { batch: 4 },
        size,
        bound: Bound::Samples(5),
        warm_up_ns: 100_000,
        seed: 1,
    };
    let measured: Vec<Vec<Series>> = together(EXACT, 3, |end| {
        let mut all = pattern::run(end, &trial(1)).expect("a trial");
        // Between trials ranks do nothing for any real time; the others' part of the trial must not wait for them.
        std::thread::sleep(std::time::Duration::from_millis(10 * end.rank() as u64));
        all.extend(pattern::run(end, &trial(1_001)).expect("a trial"));
        all
    });
    let samples: Vec<&Values> = measured[0].iter().map(|series| &series.values).collect();
    assert_eq!(samples, [&Values::Samples(vec![7_000.0; 5]), &Values::Samples(vec![8_000.0; 5])]);
    let timed = Trial { bound: Bound::DurationNs(1_400_000), ..trial(1) };
    let measured = together(EXACT, 2, |end| pattern::run(end, &timed).expect("a trial"));
    let Values::Samples(samples) = &measured[0][0].values else { panic!("samples") };
    assert_eq!(samples.len(), 25);
}

#[test]
fn who_has_rested_may_go_on_without_a_barrier() {
    let mut ends = ranks(1, &SimParameters::default()).expect("a network");
    ends[0].rest();
    ends[0].send(0, &[1]).expect("sent");
    let mut message = [0u8];
    assert!(ends[0].receive(0, &mut message).expect("received") && message == [1]);
}
