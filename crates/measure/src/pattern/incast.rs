//! One rank and many, in both directions ([2:2.4.4]). Rank 0 is the server, all others are its clients.
//!
//! * `many-one`: every client sends full messages to the server, which takes from whoever has sent (`wait_any`) and answers each with one byte. The last hop towards the server is the bottleneck: its port's buffer
//!   overflows unless somebody keeps the senders in check.
//! * `one-many`: the server sends full messages to every client, and each is answered with one byte.
//!
//! Whoever sends full messages has one under way for each answer that it waits for, and measures each from its first byte to the answer. Fairness is Jain's index over the rates at which the clients got through their messages.

use super::{Trial, flow, message, rounds};
use crate::Failure;
use crate::record::{Metric, Series};
use crate::transport::{Rank, Transport};

/// What this rank has measured.
#[derive(Default)]
struct Measured {
    completion_ns: Vec<f64>,
    goodput: Vec<f64>,
    fairness: Vec<f64>,
    loss: Vec<f64>,
}

impl Measured {
    fn into_series(self, is_reliable: bool) -> Vec<Series> {
        let loss = super::unless(is_reliable, self.loss);
        super::series([
            (Metric::Completion, self.completion_ns),
            (Metric::Goodput, self.goodput),
            (Metric::Fairness, self.fairness),
            (Metric::Loss, loss),
        ])
    }
}

/// A server's account of one client in one step.
#[derive(Clone, Copy)]
struct Client {
    /// The number of the message that comes next.
    next: u64,
    arrived: u64,
    last_ns: u64,
    sent_ns: u64,
}

pub fn many_one(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut measured = Measured::default();
    let mut bytes = vec![0; trial.size];
    rounds::each(transport, trial, messages as usize, |transport, round| {
        let first = round.number * u64::from(messages);
        if transport.rank() == 0 {
            let start_ns = transport.now_ns();
            let clients = serve(transport, &mut bytes, first, messages)?;
            if round.counted {
                account(&mut measured, &clients, start_ns, messages, trial.size);
            }
            return Ok(());
        }
        let mut taken = Vec::new();
        for number in first..first + u64::from(messages) {
            let since_ns = transport.now_ns();
            message::send(transport, 0, &mut bytes, number)?;
            // A later answer than that to the last question cannot be.
            if message::receive(transport, 0, &mut [0], number)?.is_some() {
                taken.push((transport.now_ns() - since_ns) as f64);
            }
        }
        if round.counted {
            measured.completion_ns.append(&mut taken);
        }
        Ok(())
    })?;
    Ok(measured.into_series(transport.is_reliable()))
}

/// Takes messages from all clients and answers them, until each client has sent its last, or all are quiet.
fn serve(transport: &mut dyn Transport, bytes: &mut [u8], first: u64, messages: u32) -> Result<Vec<Client>, Failure> {
    let end = first + u64::from(messages);
    let mut clients =
        vec![Client { next: first, arrived: 0, last_ns: transport.now_ns(), sent_ns: 0 }; transport.ranks()];
    clients[0].next = end;
    let (mut open, mut quiets) = (clients.len() - 1, 0);
    while open > 0 && quiets < message::QUIETS {
        let Some(from) = transport.wait_any()? else {
            quiets += 1;
            continue;
        };
        let client = &mut clients[from];
        if client.next == end {
            message::pass_over(transport, from)?;
            continue;
        }
        let Some(number) = message::take(transport, from, bytes, client.next)? else { continue };
        transport.send(from, &[number as u8])?;
        quiets = 0;
        *client = Client { next: number + 1, arrived: client.arrived + 1, last_ns: transport.now_ns(), sent_ns: 0 };
        open -= usize::from(client.next >= end);
    }
    Ok(clients)
}

pub fn one_many(transport: &mut dyn Transport, trial: &Trial, messages: u32) -> Result<Vec<Series>, Failure> {
    let mut measured = Measured::default();
    let mut bytes = vec![0; trial.size];
    rounds::each(transport, trial, messages as usize, |transport, round| {
        let first = round.number * u64::from(messages);
        if transport.rank() == 0 {
            let start_ns = transport.now_ns();
            let mut taken = Vec::new();
            let clients = spread(transport, &mut bytes, first, messages, &mut taken)?;
            if round.counted {
                measured.completion_ns.append(&mut taken);
                account(&mut measured, &clients, start_ns, messages, trial.size);
            }
            return Ok(());
        }
        let end = first + u64::from(messages);
        let (mut next, mut quiets) = (first, 0);
        while next < end && quiets < message::QUIETS {
            match message::receive(transport, 0, &mut bytes, next)? {
                Some(number) => {
                    transport.send(0, &[number as u8])?;
                    (next, quiets) = (number + 1, 0);
                }
                None => quiets += 1,
            }
        }
        Ok(())
    })?;
    Ok(measured.into_series(transport.is_reliable()))
}

/// Sends messages to all clients, the next one to each that has answered the last.
fn spread(
    transport: &mut dyn Transport,
    bytes: &mut [u8],
    first: u64,
    messages: u32,
    taken_ns: &mut Vec<f64>,
) -> Result<Vec<Client>, Failure> {
    let end = first + u64::from(messages);
    let mut clients = vec![Client { next: first, arrived: 0, last_ns: 0, sent_ns: 0 }; transport.ranks()];
    clients[0].next = end;
    let mut ask = |transport: &mut dyn Transport, to: Rank, client: &mut Client| {
        client.sent_ns = transport.now_ns();
        message::send(transport, to, bytes, client.next)
    };
    for (to, client) in clients.iter_mut().enumerate().skip(1) {
        ask(transport, to, client)?;
    }
    let mut open = clients.len() - 1;
    while open > 0 {
        let Some(from) = transport.wait_any()? else {
            // Everything under way is lost, in one direction or the other.
            for (to, client) in clients.iter_mut().enumerate().filter(|(_, client)| client.next < end) {
                client.next += 1;
                match client.next < end {
                    true => ask(transport, to, client)?,
                    false => open -= 1,
                }
            }
            continue;
        };
        let client = &mut clients[from];
        if client.next == end {
            message::pass_over(transport, from)?;
            continue;
        }
        if message::take(transport, from, &mut [0], client.next)?.is_none() {
            continue;
        }
        client.last_ns = transport.now_ns();
        taken_ns.push((client.last_ns - client.sent_ns) as f64);
        client.arrived += 1;
        client.next += 1;
        match client.next < end {
            true => ask(transport, from, client)?,
            false => open -= 1,
        }
    }
    Ok(clients)
}

/// The server's figures of a step.
fn account(measured: &mut Measured, clients: &[Client], start_ns: u64, messages: u32, size: usize) {
    let clients = &clients[1..];
    let last_ns = clients.iter().map(|client| client.last_ns).max().unwrap_or(start_ns);
    let arrived: u64 = clients.iter().map(|client| client.arrived).sum();
    measured.goodput.push(flow::rate(arrived * size as u64, last_ns.saturating_sub(start_ns)));
    measured.loss.push(1.0 - arrived as f64 / (clients.len() as f64 * f64::from(messages)));
    let rates = clients.iter().map(|client| flow::rate(client.arrived, client.last_ns.saturating_sub(start_ns)));
    measured.fairness.push(fairness(rates));
}

/// Jain's index: 1 when all have the same, 1/n when one has all.
fn fairness(shares: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) =
        shares.fold((0u32, 0.0, 0.0), |(count, sum, squares), share| (count + 1, sum + share, squares + share * share));
    if squares > 0.0 { sum * sum / (f64::from(count) * squares) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LOSSY, RELIABLE, all};
    use super::super::{Bound, Pattern};
    use super::*;

    #[test]
    fn every_message_of_every_client_is_answered() {
        for size in [1, 64, 100_000] {
            let measured = all(Pattern::ManyOne { messages: 5 }, size, Bound::Samples(10), 4, RELIABLE);
            for client in &measured[1..] {
                assert_eq!(client.count(Metric::Completion), 10, "two steps of five messages");
                assert_eq!(client.count(Metric::Goodput), 0);
            }
            assert_eq!(measured[0].count(Metric::Goodput), 2);
            assert!(measured[0].values(Metric::Fairness).iter().all(|index| (0.33..=1.0 + 1e-9).contains(index)));
        }
    }

    #[test]
    fn the_server_reaches_every_client() {
        let measured = all(Pattern::OneMany { messages: 5 }, 64, Bound::Samples(10), 4, RELIABLE);
        assert_eq!(measured[0].count(Metric::Completion), 2 * 5 * 3);
        assert_eq!((measured[0].count(Metric::Goodput), measured[0].count(Metric::Fairness)), (2, 2));
        assert!(measured[1..].iter().all(|client| client.is_empty()));
    }

    #[test]
    fn losses_are_counted_in_both_directions_of_the_pattern() {
        for pattern in [Pattern::ManyOne { messages: 30 }, Pattern::OneMany { messages: 30 }] {
            let measured = all(pattern.clone(), 64, Bound::Samples(30), 3, LOSSY);
            let losses = measured[0].values(Metric::Loss);
            assert!(losses.iter().all(|part| *part > 0.0 && *part < 0.9), "{pattern:?}: {losses:?}");
        }
    }

    #[test]
    fn fairness_is_one_for_equals_and_least_when_one_has_all() {
        assert_eq!(fairness([3.0, 3.0, 3.0].into_iter()), 1.0);
        assert_eq!(fairness([5.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
    }
}
