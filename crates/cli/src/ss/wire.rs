//! The wire connections: those of engines, which programs opened through Ropeway's own calls; and what engines have counted. Engines are asked; see
//! `ropeway_engine::control`.

use ropeway_engine::control::{self, Answer, ConnectionShown, Question, Shown};
use serde_json::{Value, json};

use super::view::{columns, short};

/// What all engines of this network namespace tell, and what kept others from telling.
#[derive(Debug, Default)]
pub struct Wires {
    pub engines: Vec<Shown>,
    pub problems: Vec<String>,
}

pub fn look() -> Wires {
    let mut wires = Wires::default();
    // Without /proc there are no engines to be found, and nothing else either.
    for name in control::names().unwrap_or_default() {
        match control::ask(&name, &Question::Show) {
            Ok(Answer::Shown(shown)) => wires.engines.push(*shown),
            // It ended between the two looks, or belongs to another user.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::PermissionDenied
                ) => {}
            Ok(other) => wires.problems.push(format!("{name}: unexpected answer {other:?}")),
            Err(error) => wires.problems.push(format!("{name}: {error}")),
        }
    }
    wires.engines.sort_by(|a, b| (&a.program, a.pid).cmp(&(&b.program, b.pid)));
    wires
}

/// A table with a line for each connection; empty if there is none.
pub fn table(engines: &[Shown]) -> String {
    let head = [
        "Program",
        "Pid",
        "Recv-Q",
        "Send-Q",
        "Local",
        "Peer",
        "Tx",
        "Rx",
        "Sent",
        "Received",
        "RTT",
        "Resent",
        "Waits for",
    ];
    let line = |engine: &Shown, c: &ConnectionShown| {
        vec![
            engine.program.clone(),
            engine.pid.to_string(),
            c.unread_bytes.to_string(),
            (c.queued_bytes + c.unacked_bytes).to_string(),
            format!("{} {}", c.local, c.local_port),
            format!("{} {}", c.peer, c.remote_port),
            c.link.clone(),
            c.link.clone(),
            short(c.sent_bytes),
            short(c.received_bytes),
            format!("{:.0}us", c.round_trip_us),
            c.resent.to_string(),
            c.waits_for.clone(),
        ]
    };
    let lines: Vec<Vec<String>> =
        engines.iter().flat_map(|engine| engine.connections.iter().map(move |c| line(engine, c))).collect();
    if lines.is_empty() { String::new() } else { columns(&head, lines) }
}

/// The same as objects that stand beside those of the other connections; `carrier` tells them apart.
pub fn rows(engines: &[Shown]) -> Vec<Value> {
    let row = |engine: &Shown, c: &ConnectionShown| {
        let mut row = serde_json::to_value(c).unwrap_or_default();
        row["pid"] = json!(engine.pid);
        row["program"] = json!(engine.program);
        row["carrier"] = json!({ "tx": "wire", "rx": "wire" });
        row
    };
    engines.iter().flat_map(|engine| engine.connections.iter().map(move |c| row(engine, c))).collect()
}

/// What all engines have counted, a line for each counter that is not 0, under what it is of. Those of the gate begin with `gate_`.
pub fn counters(engines: &[Shown]) -> String {
    engines.iter().map(of_engine).collect::<Vec<_>>().join("\n")
}

fn of_engine(engine: &Shown) -> String {
    let links = engine.links.iter().map(|link| {
        let fields = serde_json::to_value(link).unwrap_or_default();
        let counts = fields.as_object().into_iter().flatten().filter_map(|(name, count)| Some((name, count.as_u64()?)));
        part(&format!("link {} {}", link.name, link.local), counts)
    });
    let (budget, charged) = (engine.gate_budget_bytes, engine.gate_charged_bytes);
    let port = engine.gate_port_estimate_bytes.map(|bytes| format!(", {bytes} bytes seem to fit into the port"));
    let gate = format!("gate: a budget of {budget} bytes, {charged} charged{}", port.unwrap_or_default());
    let counts = |of_gate: bool| {
        let counters = engine.counters.iter().map(|(name, &count)| (name, count));
        counters.filter(move |(name, _)| name.starts_with("gate_") == of_gate)
    };
    let head = format!("{}, process {}\n", engine.program, engine.pid);
    [head].into_iter().chain(links).chain([part(&gate, counts(true)), part("endpoint", counts(false))]).collect()
}

fn part<'a>(head: &str, counts: impl Iterator<Item = (&'a String, u64)>) -> String {
    let counts = counts.filter(|&(_, count)| count > 0).map(|(name, count)| format!("    {name} {count}\n"));
    [format!("  {head}\n")].into_iter().chain(counts).collect()
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
