//! When a case has been measured for long enough: when the interval of its median (and of its p99, when asked) is narrow enough.
//!
//! Who looks after every sample stops at the first moment at which chance makes the interval narrow and wrong. Two things prevent it: a look is taken only when the
//! samples have grown by a third since the last one; and the looks share one probability of error, of which each takes its part (1/2, 1/6, 1/12, ...: together 1), so that
//! all intervals that were ever looked at contain the truth together with the asked confidence.

use super::{CONFIDENCE, Rounds};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precision {
    /// Half of the interval's width, relative to its value: 0.02 is "plus or minus 2 %".
    pub relative: f64,
    /// Whether the 99th percentile must be as precise, too.
    pub p99: bool,
    pub confidence: f64,
    /// Never enough with fewer rounds: what differs between rounds is not seen in one.
    pub fewest_rounds: usize,
}

impl Precision {
    pub fn of_median(relative: f64) -> Precision {
        Precision { relative, p99: false, confidence: CONFIDENCE, fewest_rounds: 6 }
    }
}

/// What to do next with a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    Enough,
    /// Go on; `rounds`: about so many more at a guess, for showing the remaining time.
    More {
        rounds: u64,
    },
}

/// The state of one case's looks.
#[derive(Debug, Clone)]
pub struct Stopping {
    precision: Precision,
    looks: u32,
    /// Rounds that there must be before the next look.
    next_look: usize,
    /// What the last look said about all rounds needed.
    needed: u64,
}

/// Growth of the number of rounds between looks.
const GROWTH: f64 = 4.0 / 3.0;

impl Stopping {
    pub fn new(precision: Precision) -> Stopping {
        let fewest = precision.fewest_rounds.max(1);
        Stopping { precision, looks: 0, next_look: fewest, needed: fewest as u64 }
    }

    /// To be asked after each round, with all rounds so far.
    pub fn decide(&mut self, rounds: &Rounds<'_>) -> Decision {
        let have = rounds.count();
        if have < self.next_look {
            return self.more(have);
        }
        self.looks += 1;
        self.next_look = (have as f64 * GROWTH).ceil() as usize;
        let error = (1.0 - self.precision.confidence) / f64::from(self.looks * (self.looks + 1));
        let asked: &[f64] = if self.precision.p99 { &[0.5, 0.99] } else { &[0.5] };
        let widths = asked.iter().map(|q| {
            let value = rounds.ordered().quantile(*q)?;
            // Both intervals must hold: they share the look's error.
            let (interval, _) = rounds.interval(*q, 1.0 - error / asked.len() as f64);
            interval.map(|interval| interval.relative(value))
        });
        let widest = widths.reduce(|a, b| Some(a?.max(b?))).flatten();
        match widest {
            Some(width) if width <= self.precision.relative => Decision::Enough,
            Some(width) => {
                let times = (width / self.precision.relative).powi(2).min(1e4);
                self.needed = (have as f64 * times).ceil() as u64;
                self.more(have)
            }
            None => {
                self.needed = 2 * have as u64;
                self.more(have)
            }
        }
    }

    fn more(&self, have: usize) -> Decision {
        let needed = self.needed.max(self.next_look as u64);
        Decision::More { rounds: needed.saturating_sub(have as u64).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::record::Values;

    /// Rounds until it was enough, and whether the 95 % interval at that moment contained the true median, for noise in each sample and in each round.
    fn run(seed: u64, precision: Precision, noise: f64, round_noise: f64) -> (usize, bool) {
        let mut random = Random::new(seed);
        let mut stopping = Stopping::new(precision);
        let mut taken: Vec<Values> = Vec::new();
        loop {
            let level = 100.0 * (1.0 + round_noise * random.normal());
            taken.push(Values::Samples((0..20).map(|_| level * (1.0 + noise * random.normal())).collect()));
            let rounds = Rounds::of(&taken);
            if stopping.decide(&rounds) == Decision::Enough || taken.len() > 3_000 {
                let (interval, _) = rounds.interval(0.5, 0.95);
                return (taken.len(), interval.is_some_and(|interval| interval.contains(100.0)));
            }
        }
    }

    #[test]
    fn looking_often_does_not_make_the_interval_a_lie() {
        for round_noise in [0.0, 0.04] {
            let runs: Vec<(usize, bool)> =
                (0..200).map(|seed| run(seed, Precision::of_median(0.02), 0.2, round_noise)).collect();
            let covered = runs.iter().filter(|(_, covered)| *covered).count();
            assert!(covered >= 184, "{covered} of 200");
            assert!(runs.iter().all(|(rounds, _)| (6..3_000).contains(rounds)));
        }
    }

    #[test]
    fn noise_takes_longer_and_so_does_a_tail() {
        let (quiet, _) = run(1, Precision::of_median(0.02), 0.01, 0.0);
        let (noisy, _) = run(1, Precision::of_median(0.02), 0.3, 0.0);
        let (tail, _) = run(1, Precision { p99: true, ..Precision::of_median(0.02) }, 0.3, 0.0);
        assert!(quiet == 6 && noisy > 3 * quiet && tail > noisy, "{quiet} {noisy} {tail}");
    }

    #[test]
    fn one_round_is_never_enough() {
        let one = [Values::Samples(vec![5.0; 1_000])];
        let decision = Stopping::new(Precision::of_median(0.5)).decide(&Rounds::of(&one));
        assert_eq!(decision, Decision::More { rounds: 5 });
    }
}
