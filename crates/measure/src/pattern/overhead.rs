//! What a message costs its caller ([2:6.3.5], figure 18): the time inside the send call, and inside the receive call of a message that is there already.
//!
//! Nobody can see from outside whether a message is there, so rank 1 stays away from the transport for twice as long as any message has taken so far, and a fraction of a millisecond at least. Messages beyond the buffers
//! between the two cannot be there: their send call then waits for the receiver, and both figures contain the transfer. What the kernel does outside of the calls is in neither [2:6.4].

use super::{Trial, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::Transport;

/// The shortest time that a message is given to arrive.
const SETTLE_NS: u64 = 300_000;

/// The longest: a hiccup of the machine must not make a trial slow for good.
const MOST_SETTLE_NS: u64 = 100_000_000;

/// First steps in which the time that a message takes is learnt.
const LEARNING: u64 = 3;

pub fn run(transport: &mut dyn Transport, trial: &Trial) -> Result<Vec<Series>, Failure> {
    let mut bytes = vec![0; trial.size];
    let (mut send_ns, mut receive_ns, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    let mut settle_ns = SETTLE_NS;
    rounds::each_after(LEARNING, transport, trial, 1, |transport, round| {
        let is_learning = round.number < LEARNING;
        match transport.rank() {
            0 => {
                message::write(&mut bytes, round.number);
                let start_ns = transport.now_ns();
                transport.send(1, &bytes)?;
                let taken_ns = transport.now_ns() - start_ns;
                if round.counted {
                    send_ns.push(taken_ns as f64);
                }
            }
            1 => {
                if !is_learning {
                    transport.compute(settle_ns);
                }
                let start_ns = transport.now_ns();
                let arrived = message::receive(transport, 0, &mut bytes, round.number)?;
                let taken_ns = transport.now_ns() - start_ns;
                if is_learning && arrived.is_some() {
                    settle_ns = settle_ns.max(2 * taken_ns).min(MOST_SETTLE_NS);
                }
                if round.counted {
                    lost.push(f64::from(u8::from(arrived.is_none())));
                    receive_ns.extend(arrived.map(|_| taken_ns as f64));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let lost = super::unless(transport.is_reliable(), lost);
    Ok(super::series([(Metric::SendOverhead, send_ns), (Metric::ReceiveOverhead, receive_ns), (Metric::Loss, lost)]))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use crate::record::Metric;

    #[test]
    fn the_sender_has_one_side_and_the_receiver_the_other() {
        let measured = all(Pattern::Overhead, 1000, Bound::Samples(10), 2, RELIABLE);
        assert_eq!((measured[0].count(Metric::SendOverhead), measured[0].count(Metric::ReceiveOverhead)), (10, 0));
        assert_eq!((measured[1].count(Metric::SendOverhead), measured[1].count(Metric::ReceiveOverhead)), (0, 10));
    }

    #[test]
    fn a_lost_message_has_no_receive_overhead() {
        let measured = all(Pattern::Overhead, 1000, Bound::Samples(40), 2, LOSSY);
        let lost: f64 = measured[1].values(Metric::Loss).iter().sum();
        assert_eq!(measured[1].count(Metric::ReceiveOverhead) + lost as usize, 40);
        assert!(lost > 0.0);
    }
}
