//! The wire connections: those of engines, which programs opened through Ropeway's own calls. Engines are asked; see `ropeway_engine::control`.

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
