//! Steps that all ranks take together: rank 0 knows when the trial is over, and says so before each step.
//!
//! Between steps only rank 0 speaks, so that nobody who still works in a step is disturbed by others: who waits for any rank must only listen to those from which it expects something.

use super::Trial;
use super::limit::{Limit, Phase};
use super::message;
use crate::Failure;
use crate::transport::Transport;

/// One step.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    pub number: u64,
    /// Its measurements are samples: the warm-up is over.
    pub counted: bool,
}

/// Calls `act` in all ranks until the trial is over; a step gives `samples` samples.
pub fn each(
    transport: &mut dyn Transport,
    trial: &Trial,
    samples: usize,
    act: impl FnMut(&mut dyn Transport, Round) -> Result<(), Failure>,
) -> Result<(), Failure> {
    each_after(0, transport, trial, samples, act)
}

/// The same, with so many steps before the warm-up in which the ranks learn what they need to know.
pub fn each_after(
    learning: u64,
    transport: &mut dyn Transport,
    trial: &Trial,
    samples: usize,
    mut act: impl FnMut(&mut dyn Transport, Round) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut limit = Limit::new(trial, transport.now_ns());
    for number in 0.. {
        if number == learning {
            limit = Limit::new(trial, transport.now_ns());
        }
        let phase = match transport.rank() {
            0 if number < learning => Phase::Warm,
            0 => limit.phase(transport.now_ns()),
            _ => Phase::Over,
        };
        let phase = agree(transport, number, phase)?;
        transport.barrier()?;
        if phase == Phase::Over {
            break;
        }
        let counted = phase == Phase::Counted;
        act(transport, Round { number, counted })?;
        if !transport.is_reliable() {
            // Who still waits for a message that is lost would take the next step's word in its place.
            transport.barrier()?;
        }
        if counted {
            limit.count(samples);
        }
    }
    Ok(())
}

/// What rank 0 says.
fn agree(transport: &mut dyn Transport, step: u64, phase: Phase) -> Result<Phase, Failure> {
    const PHASES: [Phase; 3] = [Phase::Warm, Phase::Counted, Phase::Over];
    if transport.rank() == 0 {
        (1..transport.ranks()).try_for_each(|rank| message::tell(transport, rank, step, phase as u64))?;
        return Ok(phase);
    }
    let value = message::hear(transport, 0, step)?;
    let phase = PHASES.into_iter().find(|phase| *phase as u64 == value);
    phase.ok_or(Failure::Damaged { peer: 0, expected: size_of::<u64>(), what: "there is no such phase of a trial" })
}
