//! The wire connections: those of engines, which programs opened through Ropeway's own calls; and what engines have counted. Engines are asked; see
//! `ropeway_engine::control`.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::time::Duration;

use ropeway_engine::control::{self, Answer, ConnectionShown, Question, Shown};
use serde_json::{Value, json};

use super::view::{Directions, RATES, columns, rates, short};
use crate::output::printable;

/// What all engines of this network namespace tell, and what kept others from telling.
#[derive(Debug, Default)]
pub struct Wires {
    pub engines: Vec<Shown>,
    pub problems: Vec<String>,
}

pub fn look() -> Wires {
    let (mut wires, mut round) = (Wires::default(), control::Round::default());
    // Without /proc there are no engines to be found, and nothing else either.
    for name in control::names_that_answer().unwrap_or_default() {
        match round.ask(&name, &Question::Show) {
            Ok(Answer::Shown(shown)) => wires.engines.push(*shown),
            Err(error) if control::is_absence(&error) => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                // Once for all that are left.
                let problem = control::unasked(&name, &error);
                if !wires.problems.contains(&problem) {
                    wires.problems.push(problem);
                }
            }
            Ok(other) => wires.problems.push(format!("{name}: unexpected answer {other:?}")),
            Err(error) => wires.problems.push(format!("{name}: {error}")),
        }
    }
    wires.engines.sort_by(|a, b| (&a.program, a.pid).cmp(&(&b.program, b.pid)));
    wires
}

/// One connection, of the engine that has it.
#[derive(Debug)]
pub struct Row<'a> {
    engine: &'a Shown,
    connection: &'a ConnectionShown,
    /// Bytes per second since the look before; nothing at the first.
    rate: Option<Directions<u64>>,
}

/// What the former look saw, for the rates.
#[derive(Debug, Default)]
pub struct Former(HashMap<(u32, String, u16, String, u16), Directions<u64>>);

impl Former {
    pub fn of(engines: &[Shown]) -> Former {
        Former(connections(engines).map(|(engine, c)| (key(engine, c), sums(c))).collect())
    }
}

fn connections(engines: &[Shown]) -> impl Iterator<Item = (&Shown, &ConnectionShown)> {
    engines.iter().flat_map(|engine| engine.connections.iter().map(move |c| (engine, c)))
}

/// By what a connection is the same as at the former look.
fn key(engine: &Shown, c: &ConnectionShown) -> (u32, String, u16, String, u16) {
    (engine.pid, c.local.clone(), c.local_port, c.peer.clone(), c.remote_port)
}

fn sums(c: &ConnectionShown) -> Directions<u64> {
    Directions { tx: c.sent_bytes, rx: c.received_bytes }
}

/// Rows for all connections, with rates against a former look.
pub fn rows<'a>(engines: &'a [Shown], former: Option<(&Former, Duration)>) -> Vec<Row<'a>> {
    let rate = |engine: &Shown, c: &ConnectionShown| {
        former.and_then(|(former, since)| Some(sums(c).rate(*former.0.get(&key(engine, c))?, since)))
    };
    connections(engines).map(|(engine, c)| Row { engine, connection: c, rate: rate(engine, c) }).collect()
}

/// What only these connections have.
pub const HEAD: [&str; 5] = ["RTT", "Resent", "Expired", "Credit", "Waits for"];

/// A table with a line for each connection; empty if there is none.
pub fn table(rows: &[Row<'_>]) -> String {
    let with_rates = rows.iter().any(|row| row.rate.is_some());
    let mut head = vec!["Program", "Pid", "Recv-Q", "Send-Q", "Local", "Peer", "Tx", "Rx", "Sent", "Received"];
    if with_rates {
        head.extend(RATES);
    }
    head.extend(HEAD);
    let line = |row: &Row<'_>| {
        let Row { engine, connection: c, .. } = row;
        let mut cells = vec![
            engine.program.clone(),
            engine.pid.to_string(),
            c.unread_bytes.to_string(),
            c.queued_bytes.saturating_add(c.unacked_bytes).to_string(),
            format!("{} {}", c.local, c.local_port),
            format!("{} {}", c.peer, c.remote_port),
            c.link.clone(),
            c.link.clone(),
            short(c.sent_bytes),
            short(c.received_bytes),
        ];
        if with_rates {
            cells.extend(rates(row.rate));
        }
        let has_failed = engine.links.iter().any(|link| link.failed && link.name == c.link && link.local == c.local);
        cells.extend([
            format!("{:.0}us", c.round_trip_us),
            c.resent.to_string(),
            c.expired_messages.to_string(),
            short(c.credit_bytes),
            if has_failed { "link, which failed".into() } else { c.waits_for.clone() },
        ]);
        cells
    };
    if rows.is_empty() { String::new() } else { columns(&head, rows.iter().map(line).collect()) }
}

/// The same as objects that stand beside those of the other connections; `carrier` tells them apart.
pub fn objects(rows: &[Row<'_>]) -> Vec<Value> {
    let object = |row: &Row<'_>| {
        let mut object = serde_json::to_value(row.connection).unwrap_or_default();
        object["pid"] = json!(row.engine.pid);
        object["program"] = json!(row.engine.program);
        object["carrier"] = json!({ "tx": "wire", "rx": "wire" });
        if let Some(rate) = row.rate {
            object["rate"] = json!(rate);
        }
        object
    };
    rows.iter().map(object).collect()
}

/// What all engines have counted, a line for each counter that is not 0, under what it is of. Those of the gate begin with `gate_`.
pub fn counters(engines: &[Shown]) -> String {
    engines.iter().map(of_engine).collect::<Vec<_>>().join("\n")
}

fn of_engine(engine: &Shown) -> String {
    let links = engine.links.iter().map(|link| {
        let fields = serde_json::to_value(link).unwrap_or_default();
        let counts = fields.as_object().into_iter().flatten().filter_map(|(name, count)| Some((name, count.as_u64()?)));
        let failed = if link.failed { ", failed: its device is gone" } else { "" };
        part(&format!("link {} {}{failed}", link.name, link.local), counts)
    });
    let (budget, charged) = (engine.gate_budget_bytes, engine.gate_charged_bytes);
    let port = engine.gate_port_estimate_bytes.map(|bytes| format!(", {bytes} bytes seem to fit into the port"));
    let unshared = if engine.gate_unshared { ", which the other processes of this host do not see" } else { "" };
    let gate = format!("gate: a budget of {budget} bytes, {charged} charged{unshared}{}", port.unwrap_or_default());
    let counts = |of_gate: bool| {
        let counters = engine.counters.iter().map(|(name, &count)| (name, count));
        counters.filter(move |(name, _)| name.starts_with("gate_") == of_gate)
    };
    let head = format!("{}, process {}\n", printable(&engine.program), engine.pid);
    [head].into_iter().chain(links).chain([part(&gate, counts(true)), part("endpoint", counts(false))]).collect()
}

fn part<'a>(head: &str, counts: impl Iterator<Item = (&'a String, u64)>) -> String {
    let counts =
        counts.filter(|&(_, count)| count > 0).map(|(name, count)| format!("    {} {count}\n", printable(name)));
    [format!("  {}\n", printable(head))].into_iter().chain(counts).collect()
}

/// The same with all counters, as an object for each engine.
pub fn counted(engines: &[Shown]) -> Vec<Value> {
    let without_connections = |engine: &Shown| {
        let mut engine = serde_json::to_value(engine).unwrap_or_default();
        engine.as_object_mut().map(|fields| fields.remove("connections"));
        engine
    };
    engines.iter().map(without_connections).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(pid: u32, ports: &[u16], bytes: u64) -> Shown {
        let connection = |&port: &u16| {
            json!({
                "link": "udp", "local": "10.0.1.1:7480", "peer": "10.0.1.2:7480", "local_port": port, "remote_port": 7,
                "queued_bytes": 1, "unacked_bytes": 2, "unread_bytes": 4, "sent_bytes": bytes, "received_bytes": 2 * bytes,
                "credit_bytes": 20_000, "expired_messages": 5, "round_trip_us": 50.0, "resent": 3, "lost": 0,
                "waits_for": "silence", "waited_ms": {},
            })
        };
        let engine = json!({
            "pid": pid, "program": "copy", "links": [{ "name": "udp", "local": "10.0.1.1:7480" }], "counters": {},
            "connections": ports.iter().map(connection).collect::<Vec<_>>(), "gate_budget_bytes": 9, "gate_charged_bytes": 8,
        });
        serde_json::from_value(engine).unwrap()
    }

    #[test]
    fn rates_are_against_the_former_look_at_the_same_connection() {
        let former = Former::of(&[engine(1, &[40, 41], 1000), engine(2, &[40], 500)]);
        let now = [engine(1, &[41, 42], 4000), engine(2, &[40], 600)];
        let rows = rows(&now, Some((&former, Duration::from_millis(500))));
        let rates: Vec<_> = rows.iter().map(|row| row.rate).collect();
        let of = |tx| Some(Directions { tx, rx: 2 * tx });
        assert_eq!(rates, [of(6000), None, of(200)], "the second one is new");
        let objects = objects(&rows);
        assert_eq!(objects[0]["rate"], json!({ "tx": 6000, "rx": 12_000 }));
        assert!(objects[1].get("rate").is_none());
        let expected = "\
Program  Pid  Recv-Q  Send-Q  Local             Peer             Tx   Rx   Sent  Received  Sent/s  Received/s  RTT   Resent  Expired  Credit  Waits for
copy     1    4       3       10.0.1.1:7480 41  10.0.1.2:7480 7  udp  udp  4000  8000      6000    11.7K       50us  3       5        19.5K   silence
copy     1    4       3       10.0.1.1:7480 42  10.0.1.2:7480 7  udp  udp  4000  8000      -       -           50us  3       5        19.5K   silence
copy     2    4       3       10.0.1.1:7480 40  10.0.1.2:7480 7  udp  udp  600   1200      200     400         50us  3       5        19.5K   silence
";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn without_a_former_look_there_are_no_rates() {
        let engines = [engine(1, &[40], 1000)];
        let rows = rows(&engines, None);
        assert!(!table(&rows).contains("/s") && objects(&rows)[0].get("rate").is_none());
        assert_eq!(
            (&objects(&rows)[0]["credit_bytes"], &objects(&rows)[0]["expired_messages"]),
            (&json!(20_000), &json!(5))
        );
    }

    #[test]
    fn what_is_at_an_engines_address_gives_the_terminal_no_orders() {
        let mut engines = [engine(1, &[40], 1000)];
        engines[0].program = "copy\x1b[2J".into();
        engines[0].links[0].name = "udp\x1b[2J".into();
        engines[0].counters = [("count\x1b[2J".into(), 1)].into();
        engines[0].connections[0].waits_for = "silence\x1b[2J".into();
        let text = counters(&engines) + &table(&rows(&engines, None));
        assert!(!text.contains('\x1b') && text.matches("?[2J").count() >= 4, "{text}");
    }

    #[test]
    fn a_link_that_failed_and_a_budget_that_others_do_not_see_are_named() {
        let mut engines = [engine(1, &[40], 1000)];
        assert!(!counters(&engines).contains("failed") && !counters(&engines).contains("do not see"));
        (engines[0].links[0].failed, engines[0].gate_unshared) = (true, true);
        let text = counters(&engines);
        assert!(text.contains("  link udp 10.0.1.1:7480, failed: its device is gone\n"), "{text}");
        assert!(text.contains("8 charged, which the other processes of this host do not see\n"), "{text}");
        assert!(table(&rows(&engines, None)).contains("link, which failed"));
    }
}
