//! What must hold when all is healed.

use super::bed::Bed;
use super::judge::{IDLE_LIMIT, PATIENCE};
use super::program::Role;
use std::fs;
use std::time::Duration;

/// Longer than any call may take that began while there were faults, on a machine that is slow.
const QUIET_LIMIT: Duration = PATIENCE.saturating_add(Duration::from_secs(15));
/// For connections whose other end is gone.
const CLOSED_LIMIT: Duration = IDLE_LIMIT.saturating_add(Duration::from_secs(12));
/// Until the last association has ended whose other end was killed: it knows nothing of a successor, and what is opened over it meets silence.
const SETTLED: Duration = IDLE_LIMIT.saturating_add(Duration::from_secs(2));
/// A stream and messages to each of the others, from all at once.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
/// So long a process is watched for what it does when there is nothing to do, and so many clock ticks (of 10 ms) of a processor it may need: one percent.
const WATCHED: Duration = Duration::from_secs(3);
const MOST_TICKS: u64 = 3;
/// What a process of the load has, when all connections are closed: bounds that a leak passes in a run of some minutes.
const MOST_DESCRIPTORS: usize = 48;
const MOST_RESIDENT_BYTES: u64 = 96 << 20;
const PAGE_BYTES: u64 = 4096;

/// What must be 0 whatever the network does.
const NEVER: [&str; 2] = ["violations", "dropped_malformed"];

pub fn all_is_well(bed: &mut Bed) -> Result<(), String> {
    let clients = bed.run().hosts;
    bed.order_clients("quiet");
    bed.wait_for("all clients have ended what they were at", QUIET_LIMIT, |bed| bed.answered("quiet") == clients)?;
    nothing_is_open(bed)?;
    bed.wait(SETTLED)?;
    bed.order_clients("probe");
    bed.wait_for("everybody reaches everybody", PROBE_LIMIT, |bed| bed.answered("probed") == clients)?;
    if let Some(failed) = bed.failed_probe() {
        return Err(format!("somebody is not reached, though all is well: {failed}"));
    }
    nothing_is_open(bed)?;
    engines_are_sane(bed)?;
    processes_rest(bed)
}

fn nothing_is_open(bed: &mut Bed) -> Result<(), String> {
    let programs = bed.programs().len();
    let (mut open, mut is_asked) = (Vec::new(), false);
    let result = bed.wait_for("all connections are closed", CLOSED_LIMIT, |bed| {
        // One question at a time: on a busy machine answers take longer than it takes to look for them.
        if !std::mem::replace(&mut is_asked, true) {
            bed.order_all("show");
        }
        if bed.answered("shown") < programs {
            return false;
        }
        is_asked = false;
        open = bed.take_answers().into_iter().filter(|(_, line)| line["open"] != 0).collect();
        open.is_empty()
    });
    result.map_err(|problem| format!("{problem}: {open:?}"))
}

fn engines_are_sane(bed: &mut Bed) -> Result<(), String> {
    for host in bed.hosts() {
        let mut problem = String::new();
        let sane = bed.wait_for("engines without connections", CLOSED_LIMIT, |bed| match bed.engines(host) {
            Ok(engines) => {
                problem = engines.iter().find_map(complaint).unwrap_or_default();
                problem.is_empty()
            }
            Err(error) => {
                problem = error;
                false
            }
        });
        sane.map_err(|error| format!("h{host}: {error}: {problem}"))?;
    }
    Ok(())
}

fn complaint(engine: &serde_json::Value) -> Option<String> {
    let connections = engine["connections"].as_array().map_or(0, Vec::len);
    let (charged, links) = (engine["gate_charged_bytes"].as_u64(), engine["links"].as_array());
    let failed = links.is_some_and(|links| links.iter().any(|link| link["failed"] == true));
    let never = NEVER.iter().find(|name| engine["counters"][**name].as_u64() != Some(0));
    let what = match never {
        _ if connections > 0 => format!("{connections} connections"),
        _ if charged != Some(0) => format!("{charged:?} bytes charged"),
        _ if failed => "a link failed".into(),
        Some(name) => format!("{name} is {}", engine["counters"][*name]),
        None => return None,
    };
    Some(format!("{what} in {engine}"))
}

/// What a process has, and has used.
struct Usage {
    ticks: u64,
    descriptors: usize,
    resident_bytes: u64,
}

fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may have anything in it: state is field 3, user and system time are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let pages: u64 = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?.split(' ').nth(1)?.parse().ok()?;
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Usage { ticks, descriptors, resident_bytes: pages * PAGE_BYTES })
}

fn processes_rest(bed: &mut Bed) -> Result<(), String> {
    let all: Vec<(String, Role, u32)> = bed
        .programs()
        .iter()
        .filter_map(|program| Some((program.name.clone(), program.role, program.pid()?)))
        .collect();
    let before: Vec<Option<Usage>> = all.iter().map(|(.., pid)| usage(*pid)).collect();
    bed.wait(WATCHED)?;
    for ((name, _, pid), before) in all.iter().zip(before) {
        let gone = || format!("{name} is gone");
        let (before, after) = (before.ok_or_else(gone)?, usage(*pid).ok_or_else(gone)?);
        let ticks = after.ticks - before.ticks;
        let (descriptors, mib) = (after.descriptors, after.resident_bytes >> 20);
        let said = format!(
            "{name} (process {pid}) at rest: {ticks} ticks in {WATCHED:?}, {descriptors} descriptors, {mib} MiB"
        );
        bed.note(&said);
        if ticks > MOST_TICKS || descriptors > MOST_DESCRIPTORS || after.resident_bytes > MOST_RESIDENT_BYTES {
            return Err(said);
        }
    }
    Ok(())
}
