//! Throughput from rank 0 to rank 1 at one point of the plane of two tunables, such as the window w and the acknowledgment delay r_ACK [2:6.2]. [`grid`] gives the points; each is a case of its own, with the settings as parameters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Pattern, Trial, flow, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// Document 2's names for w and r_ACK.
const WINDOW: &str = "burst_length";
const ACK_DELAY: &str = "packets_to_ack";

/// The most points of a plane: 1024 are document 2's, and a day is too long to wait for more than that by mistake.
const MOST_POINTS: usize = 16_384;

/// A point: the messages of a step, and what is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub messages: u32,
    pub settings: BTreeMap<String, f64>,
}

/// One side of the plane.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// A tunable, as `ropeway tune list` shows it.
    pub name: String,
    pub from: f64,
    pub to: f64,
    pub step: f64,
}

impl Axis {
    /// `NAME=FROM..TO` or `NAME=FROM..TO/STEP`, both ends included.
    ///
    /// # Errors
    /// It is not of that form, or would have no or too many values.
    pub fn parse(text: &str) -> Result<Axis, String> {
        let usage = || format!("`{text}`: give NAME=FROM..TO or NAME=FROM..TO/STEP, such as {WINDOW}=1..32");
        let (name, range) = text.split_once('=').ok_or_else(usage)?;
        let (from, rest) = range.split_once("..").ok_or_else(usage)?;
        let (to, step) = rest.split_once('/').unwrap_or((rest, "1"));
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(usage);
        let axis = Axis { name: name.trim().to_owned(), from: number(from)?, to: number(to)?, step: number(step)? };
        match axis.step > 0.0 && axis.to >= axis.from && (axis.to - axis.from) / axis.step < MOST_POINTS as f64 {
            true if !axis.name.is_empty() => Ok(axis),
            _ => Err(usage()),
        }
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        // Multiplied and not added up, so that the last value is exact.
        let count = ((self.to - self.from) / self.step + 1e-9).floor() as usize + 1;
        (0..count).map(|place| self.from + place as f64 * self.step)
    }
}

/// The patterns of all points of the plane, for messages of that size. With the `fixed` settings at every point, such as `gate_esp = 1`. Points with w < r_ACK are left out: the sender would stop before any
/// acknowledgment is due, and only timers would go on.
///
/// # Errors
/// The plane has too many points.
pub fn grid(axes: [&Axis; 2], fixed: &BTreeMap<String, f64>, size: usize) -> Result<Vec<Pattern>, String> {
    let mut points = Vec::new();
    for first in axes[0].values() {
        for second in axes[1].values() {
            let mut settings = fixed.clone();
            settings.extend([(axes[0].name.clone(), first), (axes[1].name.clone(), second)]);
            let stalls = match (settings.get(WINDOW), settings.get(ACK_DELAY)) {
                // A window of 0 is none.
                (Some(window), Some(delay)) => *window > 0.0 && window < delay,
                _ => false,
            };
            if !stalls {
                points.push(Pattern::Search(Point { messages: flow::messages(size), settings }));
            }
            if points.len() > MOST_POINTS {
                return Err(format!("the plane has more than {MOST_POINTS} points: give larger steps"));
            }
        }
    }
    Ok(points)
}

pub fn run<T: Transport>(transport: &mut T, trial: &Trial, point: &Point) -> Result<Vec<Series>, Failure> {
    let before: Vec<(&String, Option<f64>)> = point.settings.keys().map(|name| (name, transport.tuned(name))).collect();
    point.settings.iter().try_for_each(|(name, value)| transport.tune(name, *value))?;
    let measured = one_way(transport, trial, point.messages);
    // The next trial of another pattern on this transport must not be one with these settings.
    for (name, value) in before {
        value.map_or(Ok(()), |value| transport.tune(name, value))?;
    }
    measured
}

fn one_way<T: Transport>(transport: &mut T, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut goodput, mut loss) = (Vec::new(), Vec::new());
    rounds::each(transport, trial, 1, |transport, round| {
        let first = round.number * u64::from(messages);
        match transport.rank() {
            0 => flow::send(transport, 1, &mut bytes, first, messages),
            1 => {
                let arrived = flow::receive(transport, 0, &mut bytes, first, messages)?;
                if round.counted {
                    goodput.push(arrived.goodput(trial.size));
                    loss.push(arrived.loss(messages));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    let loss = super::unless(transport.is_reliable(), loss);
    Ok(super::series([(Metric::Goodput, goodput), (Metric::Loss, loss)]))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all, check_losses, outcomes};
    use super::super::{Bound, parameters};
    use super::*;

    fn axis(text: &str) -> Axis {
        Axis::parse(text).expect("an axis")
    }

    #[test]
    fn the_plane_has_document_2s_points() {
        let fixed = BTreeMap::from([("gate_esp".to_owned(), 1.0)]);
        let points =
            grid([&axis("burst_length=1..32"), &axis("packets_to_ack=1..32")], &fixed, 1 << 16).expect("points");
        assert_eq!(points.len(), 32 * 33 / 2, "those with r_ACK <= w");
        let last = parameters(points.last().expect("one"));
        assert_eq!((last["burst_length"], last["packets_to_ack"], last["gate_esp"]), (32.0, 32.0, 1.0));
        let any =
            grid([&axis("coalesce=0..40/20"), &axis("ack_delay=0..100/50")], &BTreeMap::new(), 64).expect("points");
        assert_eq!(any.len(), 9);
    }

    #[test]
    fn a_malformed_axis_is_refused_with_its_form() {
        for text in ["", "w", "w=", "w=1", "w=1..", "w=3..1", "w=1..2/0", "w=1..2/-1", "=1..2", "w=0..1e9", "w=nan..3"]
        {
            let error = Axis::parse(text).expect_err(text);
            assert!(error.contains("NAME=FROM..TO/STEP"), "{error}");
        }
    }

    #[test]
    fn a_point_gives_the_throughput_at_it() {
        let point = Point { messages: 20, settings: BTreeMap::from([("patience_ms".to_owned(), 3000.0)]) };
        let measured = all(Pattern::Search(point.clone()), 64, Bound::Samples(3), 2, RELIABLE);
        assert_eq!(measured[1].count(Metric::Goodput), 3);
        check_losses(&all(Pattern::Search(point), 64, Bound::Samples(3), 2, LOSSY), &[1]);
    }

    #[test]
    fn a_tunable_that_the_transport_does_not_have_is_an_error_in_every_rank() {
        let point = Point { messages: 1, settings: BTreeMap::from([("unknown".to_owned(), 3.0)]) };
        for outcome in outcomes(Pattern::Search(point), 64, Bound::Samples(1), 2, RELIABLE) {
            assert!(outcome.expect_err("a failure").to_string().contains("no tunable"));
        }
    }
}
