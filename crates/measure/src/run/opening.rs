//! How a transport's ranks come to be there: started, joined, and each with its own settings.

use std::ffi::OsStr;

use super::{Plan, STARTING};
use crate::ranks::group::{BrokenOff, Group};
use crate::ranks::job;
use crate::ranks::member::Fault;
use crate::ranks::start::{Launch, Launcher, Place, scratch, threads};
use crate::transport::kind::{Kind, Setting, Spec};
use crate::transport::sim::{self, SimParameters};

/// Starts and joins the ranks of a transport.
pub fn open(plan: &Plan, spec: &Spec, broken_off: BrokenOff) -> Result<Group, Fault> {
    if spec.kind == Kind::Sim {
        return open_simulated(plan, spec, broken_off);
    }
    let mut group = match (spec.kind, &plan.launch.launcher) {
        (Kind::Mpi, None) => launch_mpi(plan, broken_off)?,
        (kind, None) => launch(plan, kind.is_preloaded(), broken_off)?,
        (kind, Some(launcher)) => launch_job(plan, launcher, kind.is_preloaded(), broken_off)?,
    };
    let settings: Vec<Setting> = (0..plan.ranks).map(|rank| setting(plan, spec, rank, &group)).collect();
    let cpus: Vec<Option<usize>> =
        (0..plan.ranks).map(|rank| plan.cpus.as_ref().and_then(|cpus| cpus.get(rank).copied())).collect();
    group.open(&settings, &cpus, STARTING + plan.patience, broken_off)?;
    Ok(group)
}

/// Starts the ranks ourselves.
fn launch(plan: &Plan, preloaded: bool, broken_off: BrokenOff) -> Result<Group, Fault> {
    let scratch = scratch()?;
    let members: Result<Vec<_>, Fault> =
        (0..plan.ranks).map(|rank| plan.launch.start(rank, preloaded, scratch.path())).collect();
    Group::assemble(members?, Some(scratch), STARTING, broken_off)
}

/// Has those of the transport mpi started by `mpirun`, which they cannot be without.
fn launch_mpi(plan: &Plan, broken_off: BrokenOff) -> Result<Group, Fault> {
    if plan.launch.places.iter().any(|place| *place != Place::Here) {
        let text = "the ranks of transport mpi are started by mpirun, not over ssh or in a box: give --launcher and --meet in place of --hosts";
        return Err(Fault::Start(text.to_owned()));
    }
    let launcher = Launcher { command: plan.launch.mpirun.clone(), meet: None };
    launch_job(plan, &launcher, false, broken_off)
}

/// Has all ranks started by a launcher.
fn launch_job(plan: &Plan, launcher: &Launcher, preloaded: bool, broken_off: BrokenOff) -> Result<Group, Fault> {
    let scratch = scratch()?;
    let Launch { program, remote_command, .. } = &plan.launch;
    let meet = launcher.meet.as_deref();
    let program = if meet.is_some() { OsStr::new(remote_command) } else { program.as_os_str() };
    let start = job::Start { launcher: &launcher.command, program, ranks: plan.ranks, preloaded, meet };
    let (members, job) = job::start(&start, scratch.path(), STARTING, broken_off)?;
    Ok(Group::assemble(members, Some(scratch), STARTING, broken_off)?.with_job(job))
}

/// The ranks of a simulated network are threads: time is virtual, and nothing of the machine counts.
fn open_simulated(plan: &Plan, spec: &Spec, broken_off: BrokenOff) -> Result<Group, Fault> {
    let start = |error: String| Fault::Start(format!("{spec}: {error}"));
    let mut parameters: SimParameters = spec.options.parse().map_err(|e: sim::ParseError| start(e.to_string()))?;
    parameters.seed ^= plan.seed;
    let ends = sim::ranks(plan.ranks, &parameters).map_err(|failure| start(failure.to_string()))?;
    let mut group = Group::assemble(threads(ends)?, None, STARTING, broken_off)?;
    let settings: Vec<Setting> = (0..plan.ranks).map(|rank| setting(plan, spec, rank, &group)).collect();
    group.open(&settings, &vec![None; plan.ranks], STARTING, broken_off)?;
    Ok(group)
}

fn setting(plan: &Plan, spec: &Spec, rank: usize, group: &Group) -> Setting {
    Setting {
        transport: spec.to_string(),
        rank,
        ranks: plan.ranks,
        host: group.address(rank).unwrap_or(plan.launch.places[rank].address()).to_owned(),
        patience_ms: plan.patience.as_millis() as u64,
        joins_small_sends: plan.joins_small_sends,
    }
}
