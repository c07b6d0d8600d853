//! The coordinator's work: opens a group of ranks for each transport, and runs the cases in rounds until enough is known.
//!
//! [`opening`] has the ranks started, [`enough`] says when to stop. What does not live here: arguments, tables, progress bars (an [`Observer`] is told what happens).

pub mod enough;
pub mod opening;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::floor;
use crate::machine;
use crate::model;
use crate::pattern::{self, Bound, Pattern, Trial};
use crate::random::Random;
use crate::ranks::group::{BrokenOff, Group};
use crate::ranks::job;
use crate::ranks::member::Fault;
use crate::ranks::start::{Launch, Place};
use crate::record::{Case, FORMAT, Failed, Host, Line, Measured, Run, Series, Site};
use crate::results::units::metric_name;
use crate::stats::Precision;
use crate::transport::kind::Spec;
use enough::Enough;
use opening::open;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Plan {
    pub transports: Vec<Spec>,
    pub points: Vec<Point>,
    pub ranks: usize,
    /// Of one trial.
    pub bound: Bound,
    pub warm_up: Duration,
    pub stop: Stop,
    pub seed: u64,
    /// The processor of each rank.
    pub cpus: Option<Vec<usize>>,
    pub launch: Launch,
    /// Longest wait of a rank for another.
    pub patience: Duration,
    /// See [`crate::transport::tcp::Pending::connect`].
    pub joins_small_sends: bool,
    /// The command line, for whoever reads the result.
    pub command: Vec<String>,
}

/// What every transport does in each round.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// As the user names it.
    pub name: String,
    pub pattern: Pattern,
    pub size: usize,
    pub parameters: BTreeMap<String, f64>,
}

/// When a run ends: after so many rounds, when the budget is spent, or when enough is known, whichever is first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    pub rounds: u32,
    pub budget: Option<Duration>,
    /// How well the median of each case, and its p99 when asked, must be known.
    pub precision: Option<Precision>,
}

/// Who is told what happens.
pub trait Observer {
    /// A line of the result.
    fn line(&mut self, line: &Line) -> Result<(), String>;
    /// `done` of the run (0 to 1) is behind us; what comes next.
    fn progress(&mut self, done: f64, left: Duration, next: &str);
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub trials: u64,
    pub failed: u64,
    pub broken_off: bool,
}

/// Runs the plan. An error: the observer refused a line.
pub fn run(plan: &Plan, observer: &mut dyn Observer, broken_off: BrokenOff) -> Result<Outcome, String> {
    let mut running = Running {
        plan,
        observer,
        broken_off,
        began: Instant::now(),
        arms: Vec::new(),
        enough: Enough::new(plan.stop.precision),
        modelled: Vec::new(),
        outcome: Outcome { trials: 0, failed: 0, broken_off: false },
        next_trial: 0,
    };
    running.assemble()?;
    running.rounds()?;
    running.end()
}

struct Running<'a> {
    plan: &'a Plan,
    observer: &'a mut dyn Observer,
    broken_off: BrokenOff<'a>,
    began: Instant,
    arms: Vec<Arm>,
    enough: Enough,
    /// What patterns measured to which a model is fitted at the end.
    modelled: Vec<Measured>,
    outcome: Outcome,
    /// Of those that the plan has, for whoever waits.
    next_trial: u64,
}

/// One transport with its ranks.
struct Arm {
    spec: Spec,
    /// None: a limit of the machine, or its ranks have failed and are started anew for the next trial.
    group: Option<Group>,
    faults_in_a_row: u32,
    given_up: bool,
    /// Points that its ranks have refused, and would refuse again.
    refused: Vec<usize>,
}

/// A transport whose ranks fail so often one after the other is left out from then on.
const MOST_FAULTS_IN_A_ROW: u32 = 2;

/// Cases whose drifts and jumps are told at the end of a run.
const MOST_WARNINGS: usize = 5;

/// For ranks to start and to answer, besides the time that the work itself takes: a busy machine, a far host.
const STARTING: Duration = Duration::from_secs(20);

impl Running<'_> {
    /// Starts the ranks of all transports and says whose figures these will be.
    fn assemble(&mut self) -> Result<(), String> {
        if let (Some(launcher), [_, _, ..]) = (&self.plan.launch.launcher, &*self.plan.transports) {
            job::can_share_hosts(&launcher.command).map_err(|fault| fault.to_string())?;
        }
        let mut faults = Vec::new();
        let (mut hosts, mut clock_offsets_ns) = (Vec::new(), Vec::new());
        for spec in &self.plan.transports {
            self.observer.progress(0.0, self.time_left(0), &format!("starting {spec}"));
            let mut arm =
                Arm { spec: spec.clone(), group: None, faults_in_a_row: 0, given_up: false, refused: Vec::new() };
            if !spec.kind.is_floor() && !(self.broken_off)() {
                match open(self.plan, spec, self.broken_off) {
                    Ok(group) => arm.group = Some(group),
                    Err(fault) => {
                        arm.given_up = true;
                        faults.push((spec.clone(), fault));
                    }
                }
            }
            if let (true, Some(group)) = (hosts.is_empty(), &mut arm.group) {
                (hosts, clock_offsets_ns) = describe(self.plan, group);
            }
            self.arms.push(arm);
        }
        if hosts.is_empty() {
            hosts.push(machine::describe(false));
        }
        let is_one_host = hosts.len() > 1 && hosts.windows(2).all(|pair| pair[0].name == pair[1].name);
        let head = head(self.plan, hosts, clock_offsets_ns);
        self.observer.line(&Line::Run(head))?;
        if is_one_host && site(&self.plan.launch.places) == Site::Hosts {
            let text = "all ranks run on one host: these are no figures between hosts; tell the launcher to spread them, such as mpirun --map-by node".to_owned();
            self.observer.line(&Line::Warning { text })?;
        }
        if let Some(text) = self.different_hosts() {
            self.observer.line(&Line::Warning { text })?;
        }
        for (spec, fault) in faults {
            for point in &self.plan.points {
                self.failed(&spec, point, 0, fault.to_string())?;
            }
        }
        Ok(())
    }

    /// What to say if a launcher has not put the ranks of all transports on the same hosts.
    fn different_hosts(&self) -> Option<String> {
        let hosts_of = |arm: &Arm| {
            let names = arm.group.as_ref()?.hosts.iter().map(|host| host.name.as_str());
            Some((arm.spec.to_string(), names.collect::<Vec<_>>().join(", ")))
        };
        let mut all = self.arms.iter().filter_map(hosts_of);
        let (first, usual) = all.next()?;
        let (other, hosts) = all.find(|(_, hosts)| *hosts != usual)?;
        Some(format!(
            "the ranks of {first} run on {usual}, those of {other} on {hosts}: their ratios tell hosts apart, and not transports; tell the launcher which hosts to take"
        ))
    }

    fn rounds(&mut self) -> Result<(), String> {
        let mut open: Vec<usize> = (0..self.plan.points.len()).collect();
        'rounds: for round in 0..self.plan.stop.rounds {
            Random::for_user(self.plan.seed, u64::from(round)).shuffle(&mut open);
            for &point in &open {
                for arm in to_and_fro(self.arms.len(), round) {
                    if self.is_over(round) {
                        break 'rounds;
                    }
                    self.trial(arm, point, round)?;
                }
            }
            open.retain(|point| !self.is_done(*point));
            if open.is_empty() {
                break;
            }
        }
        let Some(precision) = self.plan.stop.precision.filter(|_| !self.outcome.broken_off) else { return Ok(()) };
        // The budget may end a round in its middle.
        open.retain(|point| !self.is_done(*point));
        if open.is_empty() {
            return Ok(());
        }
        let sizes: Vec<String> = open.iter().map(|point| self.plan.points[*point].size.to_string()).collect();
        let text = format!(
            "the median is not known to {} % at these sizes: {}; allow more rounds or a larger budget",
            precision.relative * 100.0,
            sizes.join(", ")
        );
        self.observer.line(&Line::Warning { text })
    }

    /// Whether further rounds would tell nothing of a point that is not known well enough.
    fn is_done(&mut self, point: usize) -> bool {
        let is_measured = |arm: &usize| self.arms[*arm].measures(point);
        let measured: Vec<usize> = (0..self.arms.len()).filter(is_measured).collect();
        self.enough.of(point, &measured)
    }

    /// Ctrl-C, or the budget is spent. The first round is always made, so that each case has something.
    fn is_over(&mut self, round: u32) -> bool {
        self.outcome.broken_off = (self.broken_off)();
        let spent = self.plan.stop.budget.is_some_and(|budget| self.began.elapsed() >= budget);
        self.outcome.broken_off || (spent && round > 0)
    }

    fn trial(&mut self, arm: usize, point_index: usize, round: u32) -> Result<(), String> {
        let plan = self.plan;
        let point = &plan.points[point_index];
        if !self.arms[arm].measures(point_index) {
            return Ok(());
        }
        let (done, left) = self.progress(round);
        self.observer.progress(done, left, &format!("{} {} {}", self.arms[arm].spec, point.name, point.size));
        self.next_trial += 1;
        let trial = Trial {
            pattern: point.pattern.clone(),
            size: point.size,
            bound: plan.bound,
            warm_up_ns: plan.warm_up.as_nanos() as u64,
            // The same for all transports of a round.
            seed: Random::for_user(plan.seed, u64::from(round) << 32 | point_index as u64).next_u64(),
        };
        let at_ns = self.began.elapsed().as_nanos() as u64;
        self.outcome.trials += 1;
        let measured = self.arms[arm].measure(plan, &trial, self.broken_off);
        let spec = self.arms[arm].spec.clone();
        match measured {
            Ok(ranks) => {
                self.arms[arm].faults_in_a_row = 0;
                for (rank, series) in ranks.into_iter().enumerate().filter(|(_, series)| !series.is_empty()) {
                    let cpu = plan.cpus.as_ref().and_then(|cpus| cpus.get(rank).copied());
                    self.enough.note(point_index, arm, round, pattern::leading(&point.pattern), &series);
                    let case = case(&spec, point, plan.ranks, &plan.launch.places);
                    let measured = Measured { case, rank, round, at_ns, cpu, series };
                    if model::is_fitted(&measured.case.pattern) {
                        self.modelled.push(measured.clone());
                    }
                    self.observer.line(&Line::Measured(measured))?;
                }
                Ok(())
            }
            Err(Fault::BrokenOff) => {
                self.outcome.trials -= 1;
                Ok(())
            }
            Err(Fault::Refused(reason)) => {
                self.arms[arm].refused.push(point_index);
                self.failed(&spec, point, round, reason)
            }
            Err(fault) => {
                self.failed(&spec, point, round, fault.to_string())?;
                self.give_up_if_hopeless(arm)
            }
        }
    }

    fn give_up_if_hopeless(&mut self, arm: usize) -> Result<(), String> {
        let arm = &mut self.arms[arm];
        arm.group = None;
        arm.faults_in_a_row += 1;
        if arm.faults_in_a_row < MOST_FAULTS_IN_A_ROW {
            return Ok(());
        }
        arm.given_up = true;
        let text = format!("{} failed {MOST_FAULTS_IN_A_ROW} times in a row and is not measured any more", arm.spec);
        self.observer.line(&Line::Warning { text })
    }

    fn failed(&mut self, spec: &Spec, point: &Point, round: u32, reason: String) -> Result<(), String> {
        self.outcome.failed += 1;
        let case = case(spec, point, self.plan.ranks, &self.plan.launch.places);
        self.observer.line(&Line::Failed(Failed { case, round, reason }))
    }

    /// Part of the run that is behind us, and how long the rest will take.
    fn progress(&self, round: u32) -> (f64, Duration) {
        let trials = u64::from(self.plan.stop.rounds) * (self.plan.points.len() * self.arms.len()) as u64;
        let by_trials = self.next_trial as f64 / trials.max(1) as f64;
        let by_time = self.plan.stop.budget.map_or(0.0, |b| self.began.elapsed().as_secs_f64() / b.as_secs_f64());
        (by_trials.max(by_time).min(1.0), self.time_left(round))
    }

    fn time_left(&self, _round: u32) -> Duration {
        let plan = self.plan;
        let points = plan.points.len() * plan.transports.len();
        let trials = u64::from(plan.stop.rounds).saturating_mul(points as u64).saturating_sub(self.next_trial);
        let planned = plan.warm_up
            + match plan.bound {
                Bound::DurationNs(ns) => Duration::from_nanos(ns),
                Bound::Samples(_) => Duration::ZERO,
            };
        // What has been measured knows better what a trial takes.
        let each = self.began.elapsed().checked_div(self.next_trial as u32).unwrap_or(planned).max(planned);
        let by_trials = each.saturating_mul(trials.min(u64::from(u32::MAX)) as u32);
        plan.stop.budget.map_or(by_trials, |budget| budget.saturating_sub(self.began.elapsed()).min(by_trials))
    }

    /// Drifts and jumps, of a few cases: who is told of all learns to read none.
    fn warn_of_unsteady_cases(&mut self) -> Result<(), String> {
        let unsteady = self.enough.warnings();
        for case in unsteady.iter().take(MOST_WARNINGS) {
            let (arm, point) = (&self.plan.transports[case.arm], &self.plan.points[case.point]);
            let name = format!("{arm}, {} of {} bytes ({})", point.name, point.size, metric_name(case.metric));
            for text in &case.texts {
                self.observer.line(&Line::Warning { text: format!("{name}: {text}") })?;
            }
        }
        let more = unsteady.len().saturating_sub(MOST_WARNINGS);
        match more {
            0 => Ok(()),
            more => self.observer.line(&Line::Warning { text: format!("{more} more cases drift or jump") }),
        }
    }

    /// Ends the ranks and the result.
    fn end(mut self) -> Result<Outcome, String> {
        self.outcome.broken_off |= (self.broken_off)();
        // Of ranks elsewhere nothing is known: their statistics stay there.
        let is_known = self.plan.launch.places.iter().all(Place::is_this_machine);
        for arm in std::mem::take(&mut self.arms) {
            let Some(group) = arm.group else { continue };
            let (stats, _scratch) = group.leave();
            if let (true, Some(path)) = (arm.spec.kind.is_preloaded() && is_known, stats) {
                let carried = crate::carried::Carried::from_stats(&path)?;
                let carried = serde_json::to_value(carried).map_err(|e| e.to_string())?;
                self.observer.line(&Line::Carried { transport: arm.spec.to_string(), carried })?;
            }
        }
        for line in model::lines(&self.modelled) {
            self.observer.line(&line)?;
        }
        self.warn_of_unsteady_cases()?;
        if self.outcome.broken_off {
            let text = "broken off: what was measured until then is here".to_owned();
            self.observer.line(&Line::Warning { text })?;
            return Ok(self.outcome);
        }
        let Outcome { trials, failed, .. } = self.outcome;
        self.observer.line(&Line::End { trials, failed, seconds: self.began.elapsed().as_secs_f64() })?;
        Ok(self.outcome)
    }
}

impl Arm {
    /// Whether its ranks take part at this point, as far as that is known.
    fn measures(&self, point: usize) -> bool {
        !self.given_up && !self.refused.contains(&point)
    }

    fn measure(&mut self, plan: &Plan, trial: &Trial, broken_off: BrokenOff) -> Result<Vec<Vec<Series>>, Fault> {
        if self.spec.kind.is_floor() {
            let measured = floor::measure(self.spec.kind, trial, plan.cpus.as_deref());
            return measured.map(|series| vec![series]).map_err(Fault::Start);
        }
        let group = match &mut self.group {
            Some(group) => group,
            none => none.insert(open(plan, &self.spec, broken_off)?),
        };
        let planned = match trial.bound {
            Bound::DurationNs(ns) => Duration::from_nanos(ns),
            // Nobody knows how long a sample takes.
            Bound::Samples(_) => Duration::from_secs(60),
        };
        // A rank that waits in vain for another says so itself after its patience; this is for one that hangs.
        group.trial(trial, plan.warm_up + planned * 2 + plan.patience * 2 + STARTING / 4, broken_off)
    }
}

/// A B C in even rounds, C B A in odd ones: nobody always comes after the same other.
fn to_and_fro(count: usize, round: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The machines of the ranks (one where all are the same), and what is known of their clocks.
fn describe(plan: &Plan, group: &mut Group) -> (Vec<Host>, Vec<(f64, f64)>) {
    if plan.launch.places.iter().all(Place::is_this_machine) {
        return (vec![machine::describe(false)], Vec::new());
    }
    // Without them, nothing that needs one clock is wrong: it is only not known how wrong it is.
    let offsets = group.clock_offsets(STARTING).unwrap_or_default();
    (group.hosts.clone(), offsets)
}

fn head(plan: &Plan, hosts: Vec<Host>, clock_offsets_ns: Vec<(f64, f64)>) -> Run {
    Run {
        format: FORMAT,
        command: plan.command.clone(),
        seed: plan.seed,
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        ropeway_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        hosts,
        clock_offsets_ns,
    }
}

/// The commit that is measured, from ROPEWAY_COMMIT when this program was built or, first, as it is run.
pub fn commit() -> Option<String> {
    std::env::var("ROPEWAY_COMMIT").ok().or(option_env!("ROPEWAY_COMMIT").map(str::to_owned))
}

/// The case of a transport's trials at a point.
pub fn case(spec: &Spec, point: &Point, ranks: usize, places: &[Place]) -> Case {
    Case {
        transport: spec.to_string(),
        pattern: point.name.clone(),
        size: point.size as u64,
        ranks,
        site: site(places),
        parameters: point.parameters.clone(),
    }
}

/// Limits of the machine and simulated networks, which have no ranks, stand with the transports beside which they are shown.
fn site(places: &[Place]) -> Site {
    let is_one_ssh_host = matches!(places, [Place::Ssh { host, .. }, others @ ..] if others.iter().all(|other| matches!(other, Place::Ssh { host: same, .. } if same == host)));
    if is_one_ssh_host || places.iter().all(Place::is_one_host) {
        Site::Here
    } else if places.iter().all(|place| matches!(place, Place::Box { .. })) {
        Site::Box
    } else {
        Site::Hosts
    }
}
