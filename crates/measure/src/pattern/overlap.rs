//! How much of a transfer's time a computation beside it hides [2:6.4].
//!
//! A step times three things in rank 0: the transfer of a message to rank 1 until its one-byte answer (t), a computation of the same length beside nothing (c), and the two together (b): send, compute, wait for the
//! answer. The part that was hidden is (t + c - b) / min(t, c): 1 when the transfer went on by itself, 0 when it stood still, below 0 when the two disturbed each other. With `polling` the computation
//! is cut into slices and looks for the answer after each, as programs do for libraries that move data only inside their calls.

use super::{Trial, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// A slice of the computation with polling.
const SLICE_NS: u64 = 5_000;

const PEER: Rank = 1;

/// Transfers of a step: alone, and beside the computation.
const TRANSFERS: u64 = 2;

pub fn run(transport: &mut dyn Transport, trial: &Trial, polling: bool) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut overlap, mut alone_ns, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    rounds::each(transport, trial, 1, |transport, round| {
        let first = round.number * TRANSFERS;
        match transport.rank() {
            0 => {
                let measured = ask(transport, &mut bytes, first, polling)?;
                if round.counted {
                    lost.push(f64::from(u8::from(measured.is_none())));
                    if let Some([transfer_ns, compute_ns, both_ns]) = measured {
                        let hidden_ns = (transfer_ns + compute_ns) as f64 - both_ns as f64;
                        overlap.push(hidden_ns / transfer_ns.min(compute_ns).max(1) as f64);
                        alone_ns.push(transfer_ns as f64);
                    }
                }
                Ok(())
            }
            PEER => answer(transport, &mut bytes, first),
            _ => Ok(()),
        }
    })?;
    let lost = super::unless(transport.is_reliable(), lost);
    Ok(super::series([(Metric::Overlap, overlap), (Metric::Completion, alone_ns), (Metric::Loss, lost)]))
}

/// The times of the transfer, of the computation, and of both together; `None` if a message was lost.
fn ask(
    transport: &mut dyn Transport,
    bytes: &mut [u8],
    first: u64,
    polling: bool,
) -> Result<Option<[u64; 3]>, Failure> {
    let mut answer = [0];
    let start_ns = transport.now_ns();
    message::send(transport, PEER, bytes, first)?;
    let alone = message::receive(transport, PEER, &mut answer, first)?;
    let alone_ns = transport.now_ns();
    let transfer_ns = alone_ns - start_ns;
    transport.compute(transfer_ns);
    let computed_ns = transport.now_ns();

    message::send(transport, PEER, bytes, first + 1)?;
    let mut beside = None;
    if polling {
        let mut left_ns = transfer_ns;
        while left_ns > 0 {
            let slice_ns = left_ns.min(SLICE_NS);
            transport.compute(slice_ns);
            left_ns -= slice_ns;
            if beside.is_none() {
                beside = message::take(transport, PEER, &mut answer, first + 1)?;
            }
        }
    } else {
        transport.compute(transfer_ns);
    }
    if beside.is_none() {
        beside = message::receive(transport, PEER, &mut answer, first + 1)?;
    }
    let both_ns = transport.now_ns() - computed_ns;
    let is_whole = alone.is_some() && beside.is_some();
    Ok(is_whole.then_some([transfer_ns, computed_ns - alone_ns, both_ns]))
}

fn answer(transport: &mut dyn Transport, bytes: &mut [u8], first: u64) -> Result<(), Failure> {
    let (mut next, mut quiets) = (first, 0);
    while next < first + TRANSFERS && quiets < message::QUIETS {
        match message::receive(transport, 0, bytes, next)? {
            Some(number) => {
                transport.send(0, &[number as u8])?;
                (next, quiets) = (number + 1, 0);
            }
            None => quiets += 1,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use crate::record::Metric;

    #[test]
    fn each_step_gives_a_part() {
        for polling in [false, true] {
            let measured = all(Pattern::Overlap { polling }, 10_000, Bound::Samples(5), 3, RELIABLE);
            assert_eq!((measured[0].count(Metric::Overlap), measured[0].count(Metric::Completion)), (5, 5));
            assert!(measured[0].values(Metric::Overlap).iter().all(|part| part.is_finite()));
            assert!(measured[1].is_empty() && measured[2].is_empty());
        }
    }

    #[test]
    fn a_step_with_a_loss_gives_none() {
        let measured = all(Pattern::Overlap { polling: false }, 100, Bound::Samples(20), 2, LOSSY);
        let lost: f64 = measured[0].values(Metric::Loss).iter().sum();
        assert_eq!(measured[0].count(Metric::Overlap) + lost as usize, 20);
        assert!(lost > 0.0);
    }
}
