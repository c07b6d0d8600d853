//! The estimators against networks whose parameters are known.

use std::collections::BTreeMap;

use super::*;
use crate::pattern::{self, Bound, Pattern, Trial};
use crate::record::{Case, Line, Measured, Site};
use crate::stats::Estimate;
use crate::transport::Transport;
use crate::transport::sim::{self, Sim, SimParameters};

/// What rank 0 measures in these trials, in so many rounds.
fn measure(text: &str, pattern_name: &str, trials: &[Trial], rounds: u32) -> Vec<Measured> {
    let parameters: SimParameters = text.parse().expect("parameters");
    let ends = sim::ranks(2, &parameters).expect("a network");
    let work = |mut end: Sim| {
        let mut all = Vec::new();
        for (round, trial) in (0..rounds).flat_map(|round| trials.iter().map(move |trial| (round, trial))) {
            let case = Case {
                transport: "sim".into(),
                pattern: pattern_name.into(),
                size: trial.size as u64,
                ranks: 2,
                site: Site::Here,
                parameters: BTreeMap::new(),
            };
            let at_ns = end.now_ns();
            let series = pattern::run(&mut end, trial).expect("a trial");
            all.push(Measured { case, rank: end.rank(), round, at_ns, cpu: None, series });
        }
        all
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(move || work(end))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).next().expect("rank 0")
    })
}

fn trials_of(pattern: Pattern, sizes: &[usize], samples: u32) -> Vec<Trial> {
    let trial = |size: &usize| Trial {
        pattern: pattern.clone(),
        size: *size,
        bound: Bound::Samples(samples),
        warm_up_ns: 0,
        seed: 1,
    };
    sizes.iter().map(trial).collect()
}

const LOGGP: Pattern = Pattern::LogGp { messages: MESSAGES };
const PLOGP: Pattern = Pattern::PLogP { messages: MESSAGES };

const FEW_SIZES: &[usize] = &[1, 1 << 10, 4 << 10, 16 << 10, 64 << 10];

fn loggp(text: &str, sizes: &[usize], samples: u32) -> LogGp {
    let trials = trials_of(LOGGP, sizes, samples);
    loggp::fit(&measure(text, loggp::PATTERN, &trials, 1)).expect("a fit")
}

fn plogp(text: &str, sizes: &[usize], samples: u32) -> PLogP {
    let trials = trials_of(PLOGP, sizes, samples);
    plogp::fit(&measure(text, plogp::PATTERN, &trials, 1)).expect("a fit")
}

#[track_caller]
fn near(what: &str, estimate: Estimate, truth: f64, part: f64) {
    assert!((estimate.value / truth - 1.0).abs() <= part, "{what}: {} for {truth}", estimate.value);
}

/// (L, o, g, G) in ns: a LAN of today, a fast network, an old Ethernet, shared memory.
const LOGGP_SETS: [(f64, f64, f64, f64); 4] = [
    (5_000.0, 1_000.0, 2_000.0, 1.0),
    (900.0, 150.0, 300.0, 0.08),
    (40_000.0, 6_000.0, 11_000.0, 80.0),
    (80.0, 20.0, 60.0, 0.05),
];

#[test]
fn loggp_recovers_known_parameters() {
    for (noise, samples, part) in [(0, 20, 0.01), (5, 100, 0.05), (20, 200, 0.10)] {
        for (latency, overhead, gap, per_byte) in LOGGP_SETS {
            let text = format!("L={latency}ns,o={overhead}ns,g={gap}ns,G={per_byte}ns,noise={noise}%,clock=0.5ns");
            let found = loggp(&text, FEW_SIZES, samples);
            assert!(found.switches.is_empty(), "{text}: {:?}", found.switches);
            let piece = &found.pieces[0];
            near(&format!("L of {text}"), piece.latency_ns, latency, part);
            near(&format!("o of {text}"), piece.overhead_ns, overhead, part);
            near(&format!("g of {text}"), piece.gap_ns, gap, part);
            near(&format!("G of {text}"), piece.gap_per_byte_ns, per_byte, part);
        }
    }
}

#[test]
fn an_overhead_that_grows_with_the_size_is_found() {
    let found = loggp("L=5us,o=1us+0.3ns/B,g=2us,G=1ns,noise=5%", SIZES, 100);
    near("o", found.pieces[0].overhead_ns, 1_000.0, 0.05);
    near("o per byte", found.pieces[0].overhead_per_byte_ns, 0.3, 0.05);
    near("G", found.pieces[0].gap_per_byte_ns, 1.0, 0.05);
}

#[test]
fn rare_slow_operations_do_not_move_the_fit() {
    let found = loggp("L=5us,o=1us,g=2us,G=1ns,noise=5%,outliers=0.2%*100", SIZES, 100);
    let piece = &found.pieces[0];
    near("L", piece.latency_ns, 5_000.0, 0.05);
    near("o", piece.overhead_ns, 1_000.0, 0.05);
    near("g", piece.gap_ns, 2_000.0, 0.05);
    near("G", piece.gap_per_byte_ns, 1.0, 0.05);
}

#[test]
fn plogp_recovers_known_parameters() {
    let sets = [
        (6_300.0, "1us+0.3ns/B", "1.2us+0.5ns/B", "2us+8ns/B"),
        (1_000.0, "[1:100ns 4Ki:400ns 64Ki:20us]", "[1:200ns 4Ki:600ns 64Ki:15us]", "[1:300ns 4Ki:900ns 64Ki:30us]"),
        (30_000.0, "5us", "8us+1ns/B", "12us+80ns/B"),
    ];
    for (noise, samples, part) in [(0, 10, 0.01), (5, 60, 0.05), (20, 200, 0.10)] {
        for (latency, sends, receives, gaps) in sets {
            let text =
                format!("model=plogp,L={latency}ns,os={sends},or={receives},g={gaps},noise={noise}%,clock=0.5ns");
            let truth: SimParameters = text.parse().expect("parameters");
            let found = plogp(&text, FEW_SIZES, samples);
            near(&format!("L of {text}"), found.latency_ns, latency, part);
            for at in &found.sizes {
                let bytes = at.bytes as usize;
                near(&format!("g({bytes}) of {text}"), at.gap_ns, truth.gap.of(bytes), part);
                near(&format!("os({bytes}) of {text}"), at.send_overhead_ns, truth.send_overhead.of(bytes), part);
                near(&format!("or({bytes}) of {text}"), at.receive_overhead_ns, truth.receive_overhead.of(bytes), part);
            }
        }
    }
}

/// How often the interval of each estimate contains the truth, over seeds.
fn covered(count: u64, one: impl Fn(u64) -> Vec<(Estimate, f64)> + Sync) -> Vec<u32> {
    let half = |seeds: std::ops::Range<u64>| {
        let mut hits: Vec<u32> = Vec::new();
        for found in seeds.map(&one) {
            hits.resize(found.len(), 0);
            for (hit, (estimate, truth)) in hits.iter_mut().zip(found) {
                *hit += u32::from(estimate.interval.is_some_and(|interval| interval.contains(truth)));
            }
        }
        hits
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(count / 2..count));
        let first = half(0..count / 2);
        first.iter().zip(other.join().expect("no panic")).map(|(a, b)| a + b).collect()
    })
}

#[test]
fn intervals_of_loggp_cover_the_truth_in_nine_of_ten_runs() {
    let hits = covered(200, |seed| {
        let found = loggp(&format!("L=5us,o=1us,g=2us,G=1ns,noise=10%,clock=0.5ns,seed={seed}"), FEW_SIZES, 30);
        let piece = &found.pieces[0];
        vec![
            (piece.latency_ns, 5_000.0),
            (piece.overhead_ns, 1_000.0),
            (piece.gap_ns, 2_000.0),
            (piece.gap_per_byte_ns, 1.0),
        ]
    });
    println!("L, o, g, G: {hits:?} of 200");
    assert!(hits.iter().all(|hits| *hits >= 180), "L, o, g, G: {hits:?} of 200");
}

#[test]
fn intervals_of_plogp_cover_the_truth_in_nine_of_ten_runs() {
    let text = "model=plogp,L=5us,os=1us+0.2ns/B,or=1us+0.3ns/B,g=2us+2ns/B,noise=10%,clock=0.5ns";
    let truth: SimParameters = text.parse().expect("parameters");
    let hits = covered(200, |seed| {
        let found = plogp(&format!("{text},seed={seed}"), &[1, 1 << 10, 16 << 10], 30);
        let mut all = vec![(found.latency_ns, truth.latency_ns)];
        for at in &found.sizes {
            let bytes = at.bytes as usize;
            all.push((at.gap_ns, truth.gap.of(bytes)));
            all.push((at.send_overhead_ns, truth.send_overhead.of(bytes)));
            all.push((at.receive_overhead_ns, truth.receive_overhead.of(bytes)));
        }
        all
    });
    println!("L, then g, o_s, o_r by size: {hits:?} of 200");
    assert!(hits.iter().all(|hits| *hits >= 180), "L, then g, o_s, o_r by size: {hits:?} of 200");
}

#[test]
fn a_protocol_switch_is_found_at_its_size_and_nowhere_else() {
    let base = "L=5us,o=1us,g=2us,G=1ns,noise=5%";
    let (mut right, mut alarms, runs) = (0, 0, 20);
    for seed in 0..runs {
        alarms += u32::from(!loggp(&format!("{base},seed={seed}"), SIZES, 25).switches.is_empty());
        let found = loggp(&format!("{base},switch=32Ki,switch-delay=15us,seed={seed}"), SIZES, 25);
        right += u32::from(matches!(found.switches[..], [ProtocolSwitch { after: 16_384, before: 32_768, .. }]));
    }
    assert!(right >= 19 && alarms <= 1, "{right} right, {alarms} false, of {runs}");
    // A change of the slope alone: more bytes per second for large messages.
    let found = loggp(&format!("{base},switch=32Ki,switch-delay=0,switch-G=0.3ns"), SIZES, 60);
    assert!(
        matches!(found.switches[..], [ProtocolSwitch { before: 32_768, gap_change, .. }] if gap_change < -0.5),
        "{:?}",
        found.switches
    );
    near("G of small messages", found.pieces[0].gap_per_byte_ns, 1.0, 0.05);
    near("G of large messages", found.pieces[1].gap_per_byte_ns, 0.3, 0.05);
    let found = plogp("model=plogp,L=5us,os=1us,or=1us,g=2us+1ns/B,noise=5%,switch=32Ki,switch-delay=20us", SIZES, 60);
    assert!(
        matches!(found.switches[..], [ProtocolSwitch { before: 32_768, one_way_change, .. }] if one_way_change > 0.1),
        "{:?}",
        found.switches
    );
}

#[test]
fn a_processor_that_is_slower_than_the_network_is_said() {
    let found = loggp("L=5us,o=3us,g=1us,G=0.01ns,noise=2%", FEW_SIZES, 30);
    assert!(
        found.warnings.iter().any(|warning| warning.contains("no slower than the processor")),
        "{:?}",
        found.warnings
    );
}

#[test]
fn every_transport_has_its_fits_and_files_keep_them() {
    let trials = trials_of(LOGGP, FEW_SIZES, 30);
    let mut all = measure("noise=5%", loggp::PATTERN, &trials, 2);
    let mut others = all.clone();
    others.iter_mut().for_each(|one| one.case.transport = "other".into());
    all.append(&mut others);
    let trials = trials_of(PLOGP, FEW_SIZES, 30);
    all.extend(measure("model=plogp,noise=5%,g=2us+1ns/B", plogp::PATTERN, &trials, 2));
    let fits = fit_all(&all);
    let names: Vec<&str> = fits.iter().map(|(transport, _)| transport.as_str()).collect();
    assert_eq!(names, ["other", "sim", "sim"]);
    for (_, fit) in fits {
        let line = Line::Fit(fit.expect("a fit"));
        let text = serde_json::to_string(&line).expect("JSON");
        assert_eq!(serde_json::from_str::<Line>(&text).expect("a line"), line, "{text}");
    }
}

#[test]
fn trials_of_other_parameters_are_of_another_model() {
    let told = |messages: f64, text: &str| {
        let mut all = measure(text, loggp::PATTERN, &trials_of(LOGGP, FEW_SIZES, 30), 1);
        all.iter_mut().for_each(|one| one.case.parameters = [("messages".into(), messages)].into());
        all
    };
    let networks = [told(2.0, "L=5us"), told(64.0, "L=50us")];
    let alone = networks.each_ref().map(|measured| Fitted::LogGp(loggp::fit(measured).expect("a fit")));
    let fits = fit_all(&networks.concat());
    let names: Vec<&str> = fits.iter().map(|(subject, _)| subject.as_str()).collect();
    assert_eq!(names, ["sim, messages 2", "sim, messages 64"]);
    let models: Vec<Fitted> = fits.into_iter().map(|(_, fit)| fit.expect("a fit").model).collect();
    assert_eq!(models, alone);
}

#[test]
fn what_cannot_be_fitted_says_why() {
    assert_eq!(loggp::fit(&[]), Err(FitFailure::Nothing { pattern: "loggp" }));
    let trials = trials_of(LOGGP, &[1, 2], 20);
    let two = measure("", loggp::PATTERN, &trials, 1);
    assert_eq!(loggp::fit(&two), Err(FitFailure::FewSizes { sizes: 2 }));
    let trials = trials_of(LOGGP, &[1, 2, 3], 3);
    let mut few = measure("", loggp::PATTERN, &trials, 1);
    assert_eq!(loggp::fit(&few), Err(FitFailure::FewSamples { size: 1 }));
    few[1].case.transport = "tcp".into();
    assert!(loggp::fit(&few).expect_err("two").to_string().contains("sim and tcp"));
    let lossy: SimParameters = "reliable=no".parse().expect("parameters");
    let mut ends = sim::ranks(1, &lossy).expect("a network");
    assert!(pattern::run(&mut ends[0], &trials[0]).is_err());
}
