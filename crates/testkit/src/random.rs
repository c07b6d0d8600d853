//! Two processes with random calls on both ends of a connection, on plain TCP and under Ropeway with forced hand-overs.
//!
//! The program is `random.c` among the programs of the semantics suite; it checks every call against what TCP promises.
//! What lives here: which seeds run, and that both carriers let the program see the same end.

use crate::semantics::{Theme, finish};
use crate::world::World;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs this one seed: how a failure is run again.
pub const SEED_VAR: &str = "ROPEWAY_SEED";

/// Runs so many seeds.
pub const SEEDS_VAR: &str = "ROPEWAY_SEEDS";

/// Modest, so that the suite stays well below 90 s on two cores.
const SEEDS_BY_DEFAULT: u64 = 64;

/// Far enough that two runs hardly ever have seeds in common.
const NEW_SEEDS_APART: u64 = 1009;

/// Runs at a time, each of two processes and sometimes a child.
const WORKERS: usize = 2;

/// Failures after which the rest tells little that is new.
const ENOUGH_FAILURES: usize = 3;

/// The seeds to run: the one that the environment names; or so many, of which half are the same every time and half are new.
pub fn seeds() -> Vec<u64> {
    if let Some(seed) = number(SEED_VAR) {
        return vec![seed];
    }
    let count = number(SEEDS_VAR).unwrap_or(SEEDS_BY_DEFAULT);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let new = u64::from(now.subsec_nanos()) * NEW_SEEDS_APART;
    (0..count / 2).chain(new..new + count - count / 2).collect()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}: it must be a number")))
}

/// Runs all seeds and panics with the failures.
///
/// # Panics
/// When a seed fails, with the command that runs it again; when hardly any seed came to use shared memory.
pub fn run(seeds: &[u64]) {
    let program = Theme::new("random");
    let world = World::new();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        while failures.lock().expect("no worker panics with it").len() < ENOUGH_FAILURES {
            // Relaxed: only that each seed is taken once matters.
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let Err(failure) = run_seed(&program, &world, *seed) {
                failures.lock().expect("no worker panics with it").push(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().expect("no worker panics with it");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let tried = seeds.len();
    let stats = world.stats();
    let on_shm = stats.iter().filter(|process| process.bytes.shm.sent > 0).count();
    println!("{tried} seeds, {on_shm} processes sent over shared memory");
    assert!(on_shm >= tried / 2, "only {on_shm} processes of {tried} seeds sent anything over shared memory");
}

fn run_seed(program: &Theme, world: &World, seed: u64) -> Result<(), String> {
    let command = || {
        let mut command = program.command("exchange", true, &world.dir().join(format!("pids-{seed}")));
        command.env("RW_SEED", seed.to_string());
        command
    };
    let bare = finish(command()).stdout;
    let mut under = command();
    for (name, value) in settings(seed) {
        under.env(name, value);
    }
    let under = finish(world.command(&under));
    if is_right(&bare) && bare == under.stdout && under.stderr.is_empty() {
        return Ok(());
    }
    let where_it_fails = if is_right(&bare) { "under Ropeway" } else { "on plain TCP already" };
    let settings: Vec<String> = settings(seed).map(|(name, value)| format!("{name}={value}")).into();
    Err(format!(
        "seed {seed} fails {where_it_fails} ({})\non TCP:\n{bare}under Ropeway:\n{}{}again: {SEED_VAR}={seed} cargo test -p \
         ropeway-testkit --test random -- --exact seeds --nocapture",
        settings.join(" "),
        under.stdout,
        under.stderr,
    ))
}

fn is_right(transcript: &str) -> bool {
    let bad = ["WRONG", "FATAL", "TIMEOUT"];
    !transcript.is_empty() && !transcript.lines().any(|line| bad.iter().any(|word| line.starts_with(word)))
}

/// How eagerly connections are promoted and how often chaos moves them: by the seed, from rarely to at almost every call.
fn settings(seed: u64) -> [(&'static str, String); 2] {
    let period = [3, 5, 9, 17, 40, 150][(seed % 6) as usize];
    [("ROPEWAY_CHAOS", format!("{}:{period}", seed + 1)), ("ROPEWAY_PROMOTE_AFTER", (1 + seed % 5).to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_with_a_complaint_is_not_right() {
        assert!(is_right("[A]\nsent 1, received 2\n"));
        assert!(!is_right("[A]\nWRONG after 3 calls\n") && !is_right("") && !is_right("[A]\nTIMEOUT: x\n"));
    }
}
