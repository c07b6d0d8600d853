//! The arguments of a measurement, and the plan that they make.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ropeway_measure::pattern::{self, Bound, Pattern};
use ropeway_measure::ranks::copy::Copies;
use ropeway_measure::ranks::start::{Launch, Launcher, Place};
use ropeway_measure::results::group::parameter_words;
use ropeway_measure::run::{Plan, Point, Stop};
use ropeway_measure::stats::Precision;
use ropeway_measure::transport::kind::{KINDS, Kind, Spec};
use ropeway_measure::{floor, machine, model};

use super::sizes;
use crate::run::preload_path;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// What the ranks do; see below
    #[arg(required = true)]
    pattern: Option<String>,
    /// Measure these transports, separated by commas; see below [default: those that say most about this pattern]
    #[arg(long = "transport", value_name = "LIST")]
    transports: Vec<String>,
    /// Bytes of a message: a size, a list, or a range such as 1..1Mi [default: the pattern's own]
    #[arg(long, value_name = "SIZES", value_parser = sizes_text)]
    size: Option<String>,
    /// Ranks that take part [default: as many as the pattern needs, or as --hosts names]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_RANKS))]
    ranks: Option<u16>,
    /// Length of one trial, in seconds, after a warm-up of 0.15 s
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// Trials of each case [default: 6; with --budget or --precision as many as it takes]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// Stop after this time, such as 30s or 5m; one round is made in any case
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Stop when every median is known to plus or minus this part, such as 2%
    #[arg(long, value_name = "PART", value_parser = part)]
    precision: Option<f64>,
    /// Ask the same of the 99th percentile
    #[arg(long, requires = "precision")]
    tail: bool,
    /// Set a parameter of the pattern (may be given several times); a list or a range such as 1..32 or 0..100/10 measures all of its values
    #[arg(long = "set", value_name = "NAME=VALUES", value_parser = parameter)]
    parameters: Vec<(String, Values)>,
    /// Run the ranks in the hosts h1, h2, ... of a `ropeway box`
    #[arg(long = "box", value_name = "NAME", num_args = 0..=1, default_missing_value = "box", require_equals = true)]
    in_box: Option<String>,
    /// Run the ranks on these hosts, over ssh: HOST or HOST=ADDRESS, where the others reach it at ADDRESS; `local` is this one
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "in_box")]
    hosts: Vec<String>,
    /// How `ropeway` is started on the other hosts
    #[arg(long, value_name = "COMMAND", default_value = "ropeway")]
    remote_command: String,
    /// Copy this program to the other hosts first, into .cache/ropeway of the user's home, and start it there
    #[arg(long, requires = "hosts", conflicts_with = "remote_command")]
    copy: bool,
    /// The program that reaches other hosts
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    ssh: OsString,
    /// The program that starts the ranks of transport mpi; may have arguments
    #[arg(long, value_name = "COMMAND", default_value = MPIRUN)]
    mpirun: String,
    /// Have the ranks of every transport started by this command, such as mpirun or srun; may have arguments
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["in_box", "hosts", "mpirun"])]
    launcher: Option<String>,
    /// Address of this host at which ranks that the launcher starts on others reach it; chooses the network that is measured
    #[arg(long, value_name = "ADDRESS", requires = "launcher")]
    meet: Option<String>,
    /// The processors of the ranks, in their order [default: a core for each, if there are enough]
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    pin: Option<CpuList>,
    /// Longest wait of a rank for another, in seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    patience: f64,
    /// Decides the order of sizes and what patterns draw [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Write the result with all samples to this file, as JSON Lines, while it is measured
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print the medians as CSV instead of the table
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print the medians and the figure of every round as one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// The launcher of the MPI that is the system's.
pub const MPIRUN: &str = "mpirun";

/// Most ranks of a run.
const MOST_RANKS: i64 = 512;

/// Longest trial that can be asked for; bounds the memory for samples.
const LONGEST_TRIAL_S: f64 = 60.0;

/// Before samples count. Long enough for caches, TCP's window and the hand-over to shared memory (which needs some calls and one exchange with the daemon); the same for every transport.
const WARM_UP: Duration = Duration::from_millis(150);

/// Trials of each case when nothing else says when to stop: the fewest that give a median an interval.
const USUAL_ROUNDS: u32 = 6;

/// The same where something else does; only bounds the file.
const MOST_ROUNDS: u32 = 10_000;

fn sizes_text(text: &str) -> Result<String, String> {
    sizes::parse(text).map(|_| text.to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= LONGEST_TRIAL_S => Ok(value),
        _ => Err(format!("give a number of seconds above 0 and up to {LONGEST_TRIAL_S}")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => match text.as_bytes().last() {
            Some(b'm') => (&text[..text.len() - 1], 60.0),
            Some(b'h') => (&text[..text.len() - 1], 3600.0),
            _ => (text.strip_suffix('s').unwrap_or(text), 1.0),
        },
    };
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value * factor < 1e7 => Ok(Duration::from_secs_f64(value * factor)),
        _ => Err("give a time such as 30s, 5m or 1h".to_owned()),
    }
}

fn part(text: &str) -> Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(number) => number.trim().parse::<f64>().ok().map(|percent| percent / 100.0),
        None => text.parse().ok(),
    };
    value.filter(|part| *part > 0.0 && *part < 1.0).ok_or_else(|| "give a part above 0, such as 2% or 0.02".to_owned())
}

fn parameter(text: &str) -> Result<(String, Values), String> {
    let (name, values) = text.split_once('=').ok_or_else(|| format!("{text:?} is no parameter: give NAME=NUMBER"))?;
    Ok((name.trim().to_owned(), Values(sizes::numbers(values)?)))
}

/// What a parameter is to be set to, one after the other.
#[derive(Debug, Clone)]
struct Values(Vec<f64>);

/// Most combinations of sizes and parameters: a day is too long to wait for more than that by mistake.
const MOST_POINTS: usize = 16_384;

/// Processors in the order of ranks.
#[derive(Debug, Clone)]
struct CpuList(Vec<usize>);

fn cpu_list(text: &str) -> Result<CpuList, String> {
    let cpus: Option<Vec<usize>> = text.split(',').map(|cpu| cpu.trim().parse().ok()).collect();
    let mut different = cpus.clone().unwrap_or_default();
    different.sort_unstable();
    different.dedup();
    match cpus {
        Some(cpus) if different.len() == cpus.len() => Ok(CpuList(cpus)),
        _ => Err("give different CPU numbers, one for each rank, such as 0,1".to_owned()),
    }
}

/// Patterns and transports, for the end of the help.
pub fn catalogues() -> String {
    let mut text = "Patterns:\n".to_owned();
    for entry in pattern::catalogue() {
        text.push_str(&format!("  {:<17} {}\n", entry.name, entry.about));
    }
    text.push_str("\nTransports:\n");
    for about in KINDS {
        let name = match about.options {
            "" => about.name.to_owned(),
            options => format!("{}[:{options}]", about.name),
        };
        text.push_str(&format!("  {name:<22} {}\n", about.about));
    }
    text
}

/// The transports that say most about a pattern.
fn usual_transports(pattern: &Pattern) -> Vec<Spec> {
    let kinds: &[Kind] = match pattern {
        Pattern::PingPong { .. } => &[Kind::Tcp, Kind::TcpSpin, Kind::Unix, Kind::Ropeway, Kind::Shm, Kind::CacheLine],
        Pattern::Stream => &[Kind::Tcp, Kind::TcpSpin, Kind::Unix, Kind::Ropeway, Kind::Shm, Kind::Memcpy],
        Pattern::Flood => &[Kind::Tcp, Kind::TcpSpin, Kind::Unix, Kind::Ropeway, Kind::Shm],
        _ => &[Kind::Tcp, Kind::TcpSpin, Kind::Unix, Kind::Ropeway],
    };
    kinds.iter().copied().map(Spec::plain).collect()
}

/// The same between hosts. Raw frames only where the name of the device is known.
fn between_hosts(places: &[Place]) -> Vec<Spec> {
    let mut kinds = vec![Kind::Tcp, Kind::TcpSpin, Kind::RopewayUdp];
    if places.iter().all(|place| matches!(place, Place::Box { .. })) {
        kinds.push(Kind::RopewayPacket);
    }
    kinds.into_iter().map(Spec::plain).collect()
}

/// Fewest round trips per sample of a ping-pong; all transports use the same number so that their p99 mean the same.
const SMALLEST_BATCH: f64 = 16.0;

/// A round trip shorter than this has not been seen on any x86-64 machine.
const SHORTEST_ROUND_TRIP_NS: f64 = 100.0;

/// The part of the measured time that may go into reading the clock.
const CLOCK_SHARE: f64 = 0.02;

/// Round trips per sample with which reading the clock stays below [`CLOCK_SHARE`] even on the fastest transport.
fn batch_for_clock(clock_ns: f64) -> f64 {
    (clock_ns / (CLOCK_SHARE * SHORTEST_ROUND_TRIP_NS)).ceil().max(SMALLEST_BATCH)
}

impl Options {
    /// Brings the program to the other hosts of the plan, if that was asked for.
    pub fn bring_program(&self, plan: &mut Plan) -> Result<(), String> {
        if !self.copy {
            return Ok(());
        }
        let copies =
            Copies::of(&plan.launch.program, &preload_path()?).map_err(|e| format!("cannot copy myself: {e}"))?;
        let hosts = plan.launch.places.iter().filter_map(|place| match place {
            Place::Ssh { host, .. } => Some(host.as_str()),
            _ => None,
        });
        for host in hosts.collect::<BTreeSet<&str>>() {
            copies.bring(&self.ssh, host).map_err(|fault| fault.to_string())?;
        }
        plan.launch.remote_command = copies.command();
        Ok(())
    }

    /// What these arguments ask for.
    pub fn plan(&self) -> Result<Plan, String> {
        let name = self.pattern.as_deref().unwrap_or_default();
        let points = self.points(name)?;
        let pattern = &points[0].pattern;
        let ranks = self.rank_count(name)?;
        if let Some(why) = pattern::lacks_ranks(pattern, ranks) {
            return Err(why);
        }
        let places = self.places(ranks)?;
        let here = places.iter().all(Place::is_this_machine);
        let cpus = match here {
            true => machine::choose_cpus(self.pin.as_ref().map_or(&[], |pin| &pin.0), ranks)?,
            // Other hosts have other processors.
            false => self.pin.as_ref().map(|pin| (0..ranks).map(|rank| pin.0[rank % pin.0.len()]).collect()),
        };
        Ok(Plan {
            transports: self.chosen_transports(pattern, &places, cpus.is_some())?,
            ranks,
            bound: Bound::DurationNs((self.seconds * 1e9) as u64),
            warm_up: WARM_UP,
            stop: Stop {
                rounds: self.rounds.unwrap_or(match (self.budget, self.precision) {
                    (None, None) => USUAL_ROUNDS,
                    _ => MOST_ROUNDS,
                }),
                budget: self.budget,
                precision: self
                    .precision
                    .map(|relative| Precision { p99: self.tail, ..Precision::of_median(relative) }),
            },
            seed: self.seed.map_or_else(random, Ok)?,
            cpus,
            launch: Launch {
                program: std::env::current_exe().map_err(|e| format!("cannot find my own path: {e}"))?,
                remote_command: self.remote_command.clone(),
                ssh: self.ssh.clone(),
                mpirun: self.mpirun.clone(),
                launcher: self.launcher.clone().map(|command| Launcher { command, meet: self.meet.clone() }),
                places,
            },
            patience: Duration::from_secs_f64(self.patience),
            // What a program does that sends much: joining small sends helps TCP there. One that cares about latency forbids it.
            joins_small_sends: matches!(pattern, Pattern::Stream | Pattern::Flood),
            command: std::env::args_os().map(|word| word.display().to_string()).collect(),
            points,
        })
    }

    /// One for each size.
    fn points(&self, name: &str) -> Result<Vec<Point>, String> {
        let entry = pattern::catalogue().iter().find(|entry| entry.name == name);
        let mut given = self.combinations()?;
        if entry.is_some_and(|entry| entry.parameters.iter().any(|parameter| parameter.name == "batch")) {
            let batch = batch_for_clock(machine::clock_cost_ns());
            given.iter_mut().for_each(|given| {
                given.entry("batch".to_owned()).or_insert(batch);
            });
        }
        given.retain(|given| name != "search" || !pattern::search::stalls(given));
        let sizes = match (&self.size, name) {
            (Some(text), _) => sizes::parse(text)?,
            (None, "loggp" | "plogp") => model::SIZES.to_vec(),
            (None, _) => vec![entry.map_or(1, |entry| entry.size)],
        };
        if given.len() * sizes.len() > MOST_POINTS {
            return Err(format!("there are more than {MOST_POINTS} combinations of sizes and parameters: give fewer"));
        }
        let batch_is_set = self.parameters.iter().any(|(name, _)| name == "batch");
        let point = |size: usize, given: &BTreeMap<String, f64>| {
            let pattern = pattern::named(name, size, given)?;
            let mut parameters = pattern::parameters(&pattern);
            // One that follows from the clock tells no cases apart.
            if let (Pattern::PingPong { batch }, true) = (&pattern, batch_is_set) {
                parameters.insert("batch".to_owned(), f64::from(*batch));
            }
            Ok(Point { name: name.to_owned(), pattern, size, parameters })
        };
        let points = sizes.iter().flat_map(|size| given.iter().map(move |given| point(*size, given)));
        let points: Vec<Point> = points.collect::<Result<_, String>>()?;
        if points.is_empty() {
            let what =
                "no combination of these parameters can be measured: a window must not be smaller than packets_to_ack";
            return Err(what.to_owned());
        }
        refuse_equal(&points)?;
        Ok(points)
    }

    /// Every parameter with each of its values, in all combinations; one without any where nothing is set.
    fn combinations(&self) -> Result<Vec<BTreeMap<String, f64>>, String> {
        let mut all: Vec<BTreeMap<String, f64>> = vec![BTreeMap::new()];
        for (name, Values(values)) in &self.parameters {
            if all.len() * values.len() > MOST_POINTS {
                return Err(format!("there are more than {MOST_POINTS} combinations of parameters: give fewer"));
            }
            let with = |given: &BTreeMap<String, f64>, value: f64| {
                let mut given = given.clone();
                given.insert(name.clone(), value);
                given
            };
            all = all.iter().flat_map(|given| values.iter().map(|value| with(given, *value))).collect();
        }
        Ok(all)
    }

    fn rank_count(&self, name: &str) -> Result<usize, String> {
        let needed = pattern::catalogue().iter().find(|entry| entry.name == name).map_or(2, |entry| entry.ranks);
        match (self.ranks, self.hosts.len()) {
            (Some(ranks), _) => Ok(usize::from(ranks)),
            (None, 0) => Ok(needed),
            (None, 1) => Err("--hosts needs two hosts at least, or --ranks with how many run there".to_owned()),
            (None, hosts) => Ok(hosts),
        }
    }

    fn places(&self, ranks: usize) -> Result<Vec<Place>, String> {
        if let Some(name) = &self.in_box {
            let host = |rank: usize| Place::Box { name: name.clone(), host: format!("h{}", rank + 1) };
            return Ok((0..ranks).map(host).collect());
        }
        if self.meet.is_some() {
            return Ok(vec![Place::Chosen; ranks]);
        }
        if self.hosts.is_empty() {
            return Ok(vec![Place::Here; ranks]);
        }
        let all_here = self.hosts.iter().all(|host| host == "local");
        let hosts: Result<Vec<Place>, String> = self.hosts.iter().map(|text| place(text, all_here)).collect();
        let hosts = hosts?;
        Ok((0..ranks).map(|rank| hosts[rank % hosts.len()].clone()).collect())
    }

    fn chosen_transports(&self, pattern: &Pattern, places: &[Place], two_cpus: bool) -> Result<Vec<Spec>, String> {
        let one_host = places.iter().all(Place::is_one_host);
        if self.transports.is_empty() {
            let mut usual = match places.iter().all(Place::is_one_host) {
                true => usual_transports(pattern),
                false => between_hosts(places),
            };
            // Without two processors the row could only say what the note says already; between hosts there is neither AF_UNIX nor shared memory.
            usual.retain(|spec| match spec.kind {
                Kind::CacheLine => two_cpus && one_host,
                Kind::Unix | Kind::Shm | Kind::Memcpy => one_host,
                _ => true,
            });
            return Ok(usual);
        }
        let mut specs = Vec::new();
        for list in &self.transports {
            specs.extend(Spec::list(list)?);
        }
        if let Some((_, twice)) = specs.iter().enumerate().find(|(at, spec)| specs[..*at].contains(spec)) {
            return Err(format!(
                "the transport {twice} is named twice: name each once; --rounds measures it more often"
            ));
        }
        share_no_device(&specs)?;
        match specs.iter().find(|spec| !floor::measures(spec.kind, pattern)) {
            Some(wrong) => Err(format!("the transport {wrong} has no {} measurement", pattern::name(pattern))),
            None => Ok(specs),
        }
    }
}

/// Points that nothing tells apart would be one case with the figures of all of them.
fn refuse_equal(points: &[Point]) -> Result<(), String> {
    let case = |point: &Point| {
        let parameters = point.parameters.iter().map(|(name, value)| (name.clone(), value.to_bits()));
        (point.size, parameters.collect::<Vec<(String, u64)>>())
    };
    let mut cases = BTreeSet::new();
    let Some(twice) = points.iter().find(|point| !cases.insert(case(point))) else { return Ok(()) };
    let words: Vec<String> =
        [format!("{} bytes", twice.size)].into_iter().chain(parameter_words(&twice.parameters)).collect();
    Err(format!(
        "{} with {} would be measured twice: give each value once, whole numbers of what is counted, and one value alone of what another parameter overrules",
        twice.name,
        words.join(", ")
    ))
}

/// The ranks of all transports are there all the time, and of two engines on a device one would take the other's packets.
fn share_no_device(specs: &[Spec]) -> Result<(), String> {
    for (at, spec) in specs.iter().enumerate() {
        let Some(device) = spec.device() else { continue };
        if let Some(other) = specs[..at].iter().find(|other| other.device() == Some(device)) {
            return Err(format!(
                "{other} and {spec} both want the device {device} for themselves: measure them in two runs"
            ));
        }
    }
    Ok(())
}

/// A host of `--hosts`.
fn place(text: &str, all_here: bool) -> Result<Place, String> {
    let (host, address) = text.split_once('=').unwrap_or((text, text.rsplit('@').next().unwrap_or(text)));
    if host.is_empty() || address.is_empty() || host.starts_with('-') {
        return Err(format!("{text:?} is no host: give HOST or HOST=ADDRESS"));
    }
    match host {
        "local" if all_here => Ok(Place::Here),
        "local" if address == "local" => {
            Err("say at which address the other hosts reach this one: local=ADDRESS".to_owned())
        }
        "local" => Ok(Place::Near { address: address.to_owned() }),
        _ => Ok(Place::Ssh { host: host.to_owned(), address: address.to_owned() }),
    }
}

fn random() -> Result<u64, String> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| format!("cannot draw a seed: {e}; give --seed"))?;
    // Numbers that JSON programs of other languages keep.
    Ok(u64::from_le_bytes(seed) >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_clock_makes_batches_larger() {
        assert_eq!(batch_for_clock(20.0), SMALLEST_BATCH);
        assert_eq!(batch_for_clock(1_000.0), 500.0);
    }

    #[test]
    fn times_and_parts_are_read() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert!(duration("s").is_err() && duration("-1s").is_err());
        assert_eq!((part("2%"), part("0.5")), (Ok(0.02), Ok(0.5)));
        assert!(part("0%").is_err() && part("200%").is_err());
    }

    #[test]
    fn a_device_is_for_one_transport() {
        let check = |list: &str| share_no_device(&Spec::list(list).expect("transports"));
        assert_eq!(
            check("tcp,tcp:bbr,ropeway-udp,ropeway-udp:spin=0,ropeway-packet,ropeway-packet:eth1,spin=0"),
            Ok(())
        );
        let error = check("ropeway-packet,tcp,ropeway-packet:spin=0").expect_err("eth0 twice");
        assert!(error.starts_with("ropeway-packet and ropeway-packet:spin=0 both want the device eth0"), "{error}");
        assert!(check("ropeway-xdp:eth1,ropeway-packet:eth1,spin=0").is_err());
    }

    fn options(arguments: &[&str]) -> Options {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            options: Options,
        }
        let command: Command = clap::Parser::parse_from([&["bench"], arguments].concat());
        command.options
    }

    #[test]
    fn a_batch_that_was_set_tells_cases_apart_and_one_of_the_clock_does_not() {
        let parameters = |arguments: &[&str]| {
            let points = options(arguments).points("pingpong").expect("points");
            points.into_iter().map(|point| point.parameters).collect::<Vec<_>>()
        };
        let batch = |batch: f64| BTreeMap::from([("batch".to_owned(), batch)]);
        assert_eq!(parameters(&["pingpong", "--set", "batch=1,256"]), [batch(1.0), batch(256.0)]);
        assert_eq!(parameters(&["pingpong"]), [BTreeMap::new()]);
    }

    #[test]
    fn what_would_be_measured_twice_is_refused() {
        let same: &[(&str, &[&str], &str)] = &[
            ("pingpong", &["batch=16,16"], "pingpong with 1 bytes, batch 16 would be measured twice"),
            ("pingpong", &["batch=16,16.5"], "give each value once, whole numbers"),
            ("overlap", &["polling=0,0.3"], "polling 0"),
            ("many-one", &["messages=4.2,4.7"], "messages 4"),
            (
                "request-response",
                &["rate=10", "outstanding=1,2"],
                "one value alone of what another parameter overrules",
            ),
        ];
        for (pattern, set, said) in same {
            let set = set.iter().flat_map(|set| ["--set", set]);
            let arguments: Vec<&str> = [*pattern].into_iter().chain(set).collect();
            let error = options(&arguments).points(pattern).expect_err(pattern);
            assert!(error.contains(said), "{error}");
        }
        let different = options(&["pingpong", "--size", "8,8,16", "--set", "batch=16,17"]);
        assert_eq!(different.points("pingpong").expect("points").len(), 4);
        for list in ["unix,unix", "tcp,unix,tcp-blocking"] {
            let options = options(&["pingpong", "--transport", list]);
            let error = options.chosen_transports(&Pattern::PingPong { batch: 1 }, &[], true).expect_err(list);
            assert!(error.contains("is named twice"), "{error}");
        }
    }

    #[test]
    fn hosts_are_read() {
        let ssh = |host: &str, address: &str| Ok(Place::Ssh { host: host.into(), address: address.into() });
        assert_eq!(place("me@a", false), ssh("me@a", "a"));
        assert_eq!(place("a=10.0.0.1", false), ssh("a", "10.0.0.1"));
        assert_eq!(place("local=10.0.0.2", false), Ok(Place::Near { address: "10.0.0.2".into() }));
        assert!(place("local", false).is_err() && place("-oProxyCommand=x", false).is_err());
        assert_eq!(place("local", true), Ok(Place::Here));
    }
}
