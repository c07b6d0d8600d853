//! `cargo xtask soak`: real programs on the hosts of a box for a long time, while the network and the programs are disturbed at random.
//!
//! On each host runs a server and a client (`crates/socket/examples/peer/load`), which check every byte. Faults come in rounds; after each of them everything
//! is healed, and then everything must be well again ([`checks`]). What may go wrong while faults last, and what never, says [`judge`].

mod bed;
mod boards;
mod checks;
mod faults;
mod judge;
mod keys;
mod options;
mod program;

use crate::test::strays;
use crate::{Result, product};
use bed::Bed;
use options::Options;
use ropeway_testkit::boxes::TestBox;
use ropeway_testkit::env;
use rustix::process::{Pid, Signal};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Faults last so long, then comes a look at whether all is well.
const ROUND: Duration = Duration::from_secs(40);

/// How often is looked whether a run has ended, or is to be.
const LOOK: Duration = Duration::from_millis(50);

/// What moves the packets of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Udp,
    Packet,
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Packet => "packet",
        }
    }
}

/// One run: what can be repeated, as far as processes can.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    pub seconds: u64,
    pub hosts: usize,
    pub carrier: Carrier,
    pub keys: bool,
}

impl Run {
    /// Engines of each server at each of its addresses: two in every other pair of seeds.
    fn workers(&self) -> u64 {
        1 + self.seed / 2 % 2
    }

    /// Between two hosts, in every third seed, and none in the others.
    fn delay(&self) -> Option<&'static str> {
        self.seed.is_multiple_of(3).then_some("1ms")
    }

    /// The command that repeats it.
    fn replay(&self) -> String {
        let Self { seed, seconds, hosts, carrier, keys } = self;
        let (carrier, keys) = (carrier.name(), if *keys { "on" } else { "off" });
        format!("cargo xtask soak --seconds {seconds} --seed {seed} --hosts {hosts} --carrier {carrier} --keys {keys}")
    }
}

/// Selects the role of the process that does it: should that one die, the first takes away what it leaves.
const RUN_ARG: &str = "--as-run";

/// Runs what the arguments say; `false` when anything was wrong.
pub fn run(args: &[String]) -> Result<bool> {
    if let Some((first, rest)) = args.split_first()
        && first == RUN_ARG
    {
        return run_all(&Options::parse(rest)?);
    }
    Options::parse(args)?;
    if !rustix::process::geteuid().is_root() {
        return Err("soak makes a cluster in a box, which only root can: run it as root, or with sudo".into());
    }
    if let Some(missing) = ["ip", "tc"].into_iter().find(|program| env::find_program(program).is_none()) {
        return Err(format!("soak needs `{missing}` (Debian: iproute2)").into());
    }
    // Whoever names the product wants that one.
    if std::env::var_os(env::BIN_DIR_VAR).is_none() {
        product::build()?;
    }
    strays::become_subreaper()?;
    let interrupted = interruption()?;
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut child = Command::new(own).args(["soak", RUN_ARG]).args(args).spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupted.swap(false, Ordering::Relaxed) {
            // After a Ctrl-C it knows already; it ends in order, and is waited for.
            rustix::process::kill_process(Pid::from_child(&child), Signal::TERM)?;
        }
        std::thread::sleep(LOOK);
    };
    let left = strays::end();
    if !left.is_empty() {
        println!("ended: {}", left.join(", "));
    }
    // Boxes of processes that are gone go when one begins to make another.
    drop(TestBox::unmade());
    Ok(status.success() && left.is_empty())
}

fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    Ok(interrupted)
}

fn run_all(options: &Options) -> Result<bool> {
    let interrupted = interruption()?;
    let peer = env::example("peer");
    for run in options.runs() {
        println!("{}", run.replay());
        let mut bed = Bed::new(run, &peer, interrupted.clone())?;
        let outcome = rounds(&mut bed);
        bed.close();
        if interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        let said = bed.summary();
        if let Err(problem) = outcome.and_then(|()| bed.leaves_nothing()) {
            println!("FAILED: {problem}\n{said}\nlogs: {}", bed.dir().display());
            println!("again (the same faults; processes never do quite the same): {}", run.replay());
            return Ok(false);
        }
        println!("well: {said}");
    }
    Ok(true)
}

fn rounds(bed: &mut Bed) -> std::result::Result<(), String> {
    bed.start()?;
    let end = Instant::now() + Duration::from_secs(bed.run().seconds);
    while Instant::now() < end {
        bed.order_clients("go");
        bed.disturb_until(end.min(Instant::now() + ROUND))?;
        bed.heal()?;
        checks::all_is_well(bed)?;
    }
    bed.stop()
}
