//! The box of a run, the programs in it, and the time that passes.

use super::boards::Boards;
use super::faults::{self, Fault, LONGEST_PAUSE_MS, MOST_AT_A_TIME, Running};
use super::judge::{CONNECT_TIMEOUT, GIVE_UP, History, IDLE_LIMIT, KEEP_ALIVE, PATIENCE, Past};
use super::keys::Keys;
use super::program::{Program, Role};
use super::{Carrier, Run};
use ropeway_testkit::boxes::{Port, TestBox};
use ropeway_testkit::env;
use ropeway_testkit::faults::Random;
use ropeway_testkit::proc::{Process, command};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const STREAM_PORT: u16 = 7480;
const MESSAGE_PORT: u16 = 7481;
/// How often is looked at what the programs say.
const LOOK: Duration = Duration::from_millis(10);
/// For a program to start, or to end when told to, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(15);
/// For each command of `ropeway` and `ip`.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

pub struct Bed {
    run: Run,
    peer: PathBuf,
    dir: PathBuf,
    events: File,
    began: Instant,
    interrupted: Arc<AtomicBool>,
    random: Random,
    programs: Vec<Program>,
    faults: Vec<Active>,
    history: History,
    /// How often each kind of work ended well, and by which error.
    ends: BTreeMap<(String, String), u64>,
    /// Answers of programs to orders, by the program's name.
    answers: Vec<(String, Value)>,
    failed_probe: Option<String>,
    keys: Keys,
    ports: Vec<Port>,
    boards: Boards,
    /// Last: the programs in it go first.
    cluster: Option<TestBox>,
}

struct Active {
    host: usize,
    fault: Fault,
    until: Instant,
    running: Running,
    past: usize,
}

impl Bed {
    pub fn new(run: Run, peer: &Path, interrupted: Arc<AtomicBool>) -> crate::Result<Self> {
        let dir = env::target_dir().join("soak").join(format!("{}-{}", run.seed, run.carrier.name()));
        // What an earlier run with this seed has left.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        let hosts = run.hosts.to_string();
        let mut options = vec!["--hosts", &hosts, "--rate", "1gbit", "--port-buffer", "128KiB"];
        options.extend(run.delay().iter().flat_map(|delay| ["--delay", delay]));
        let cluster = TestBox::up(&options);
        let boards = Boards::of((1..=run.hosts).map(|host| cluster.namespace(&format!("h{host}"))));
        let ports = (1..=run.hosts).map(|host| cluster.port(&format!("h{host}"))).collect();
        let programs = (1..=run.hosts).flat_map(|host| [Role::Server, Role::Client].map(|role| (host, role)));
        let programs = programs.map(|(host, role)| Program::new(host, role, &dir)).collect();
        let bed = Self {
            run,
            peer: peer.to_path_buf(),
            events: File::create(dir.join("events"))?,
            began: Instant::now(),
            interrupted,
            random: Random::new(run.seed),
            programs,
            faults: Vec::new(),
            history: History::default(),
            ends: BTreeMap::new(),
            answers: Vec::new(),
            failed_probe: None,
            keys: Keys::new(&dir, run.hosts),
            ports,
            boards,
            cluster: Some(cluster),
            dir,
        };
        if run.keys {
            bed.keys.write()?;
        }
        Ok(bed)
    }

    pub fn run(&self) -> Run {
        self.run
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn cluster(&self) -> &TestBox {
        self.cluster.as_ref().expect("it is taken away at the end")
    }

    pub fn hosts(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.run.hosts
    }

    pub fn programs(&mut self) -> &mut [Program] {
        &mut self.programs
    }

    pub fn program(&mut self, host: usize, role: Role) -> &mut Program {
        self.programs
            .iter_mut()
            .find(|program| program.host == host && program.role == role)
            .expect("each host has both")
    }

    /// Starts all servers and then all clients.
    pub fn start(&mut self) -> Result<(), String> {
        for role in [Role::Server, Role::Client] {
            for host in self.hosts() {
                self.start_program(host, role)?;
            }
        }
        self.wait_for("all are ready", START_LIMIT, |bed| bed.answered("ready") == bed.programs.len())
    }

    /// Starts one; a client goes to work at once if others are.
    pub fn start_program(&mut self, host: usize, role: Role) -> Result<(), String> {
        let command = self.command_of(host, role);
        let program = self.program(host, role);
        if program.is_alive() {
            return Err(format!("{} is alive", program.name));
        }
        program.start(command);
        if !self.history.0.is_empty() {
            self.program(host, role).order("go");
        }
        Ok(())
    }

    fn command_of(&self, host: usize, role: Role) -> Command {
        let at = |port| match self.run.carrier {
            Carrier::Udp => format!("0.0.0.0:{port}"),
            Carrier::Packet => format!("eth0/*:{port}"),
        };
        let to = |host: &Port, port: u16| match self.run.carrier {
            Carrier::Udp => format!("{}:{port}", host.addresses.0),
            Carrier::Packet => format!("eth0/{}:{port}", host.mac),
        };
        let arguments: Vec<String> = match role {
            Role::Server => vec!["serve".into(), at(STREAM_PORT), at(MESSAGE_PORT)],
            Role::Client => {
                let others = self.ports.iter().filter(|port| port.host != format!("h{host}"));
                let peers =
                    others.map(|port| format!("{}={},{}", port.host, to(port, STREAM_PORT), to(port, MESSAGE_PORT)));
                ["load".into(), (self.run.seed ^ (host as u64) << 32).to_string()].into_iter().chain(peers).collect()
            }
        };
        let mut peer = command(&self.peer, arguments);
        peer.env("ROPEWAY_TUNE", tuned(self.run.keys)).env("PEER_PATIENCE_MS", PATIENCE.as_millis().to_string());
        peer.env("PEER_WORKERS", self.run.workers().to_string());
        peer.env("RUST_BACKTRACE", "1").env_remove("ROPEWAY_LINK");
        if self.run.keys {
            peer.env("ROPEWAY_KEY_FILE", self.keys.of_host(host)).env_remove("ROPEWAY_TRUSTED");
        } else {
            peer.env("ROPEWAY_TRUSTED", "1").env_remove("ROPEWAY_KEY_FILE");
        }
        self.cluster().command(&format!("h{host}"), &peer)
    }

    /// Lets faults come and go.
    pub fn disturb_until(&mut self, end: Instant) -> Result<(), String> {
        let mut next = Instant::now();
        while Instant::now() < end {
            if Instant::now() >= next && self.faults.len() < MOST_AT_A_TIME {
                self.begin_a_fault()?;
                next = Instant::now() + Duration::from_millis(self.random.below(LONGEST_PAUSE_MS));
            }
            self.end_faults(false)?;
            self.look()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn begin_a_fault(&mut self) -> Result<(), String> {
        let (fault, lasts) = Fault::chosen(&mut self.random, self.run.keys);
        let host = 1 + self.random.below(self.run.hosts as u64) as usize;
        if self.faults.iter().any(|active| (active.host == host || fault == Fault::Key) && active.fault.is_like(&fault))
        {
            return Ok(());
        }
        self.note(&format!("h{host} {fault:?} for {:.2} s", lasts.as_secs_f64()));
        let past = self.history.0.len();
        let concerned = if fault == Fault::Key { self.hosts() } else { host..=host };
        self.history.0.extend(concerned.map(|host| Past {
            host,
            harm: fault.harm(),
            began_ms: now_ms(),
            ended_ms: None,
        }));
        // What a program has said counts, though it is killed now.
        self.look()?;
        let running = faults::begin(self, host, &fault)?;
        self.faults.push(Active { host, fault, until: Instant::now() + lasts, running, past });
        Ok(())
    }

    /// Ends those whose time is over, or all.
    fn end_faults(&mut self, all: bool) -> Result<(), String> {
        let now = Instant::now();
        let (over, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.faults).into_iter().partition(|a| all || a.until <= now);
        self.faults = on;
        for Active { host, fault, running, past, .. } in over {
            self.note(&format!("h{host} {fault:?} is over"));
            faults::end(self, host, &fault, running)?;
            let count = if fault == Fault::Key { self.run.hosts } else { 1 };
            self.history.0[past..past + count].iter_mut().for_each(|past| past.ended_ms = Some(now_ms()));
        }
        Ok(())
    }

    /// Ends all faults.
    pub fn heal(&mut self) -> Result<(), String> {
        self.end_faults(true)?;
        self.note("all is healed");
        Ok(())
    }

    /// Looks at what the programs have said, and whether they live.
    pub fn look(&mut self) -> Result<(), String> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        for at in 0..self.programs.len() {
            let (name, host) = (self.programs[at].name.clone(), self.programs[at].host);
            for line in self.programs[at].said() {
                self.take(&name, host, line)?;
            }
            if let Some(complaint) = self.programs[at].complaint() {
                return Err(complaint);
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str, host: usize, line: Value) -> Result<(), String> {
        match line["event"].as_str() {
            Some("end") => self.judge(name, host, &line),
            Some("ready" | "quiet" | "probed" | "shown") => {
                self.answers.push((name.to_owned(), line));
                Ok(())
            }
            _ => Err(format!("{name}: {line}")),
        }
    }

    fn judge(&mut self, name: &str, host: usize, line: &Value) -> Result<(), String> {
        let kind = line["kind"].as_str();
        let what = line["what"].as_str().unwrap_or_default().to_owned();
        *self.ends.entry((what, kind.unwrap_or("well").to_owned())).or_default() += 1;
        let Some(kind) = kind else { return Ok(()) };
        let peer = line["peer"].as_str().and_then(|text| self.host_of(text));
        let peer = peer.ok_or_else(|| format!("{name} has a peer that is none of ours: {line}"))?;
        let at = line["at"].as_u64().unwrap_or_default();
        if line["what"] == "probe" {
            self.failed_probe = Some(format!("{name}: {line}"));
            return Ok(());
        }
        if self.history.excuses([host, peer], kind, at) {
            return Ok(());
        }
        Err(format!("{name}: nothing was done that leads to this: {line}"))
    }

    /// The host that an address, or a name, belongs to.
    fn host_of(&self, text: &str) -> Option<usize> {
        let is_it = |port: &Port| {
            text == port.host || text.starts_with(&format!("{}:", port.addresses.0)) || text.contains(&port.mac)
        };
        self.ports.iter().position(is_it).map(|at| at + 1)
    }

    /// What is wrong with one of the connections that were opened when all was well.
    pub fn failed_probe(&self) -> Option<&str> {
        self.failed_probe.as_deref()
    }

    /// How many have given an answer with this event since it was cleared.
    pub fn answered(&self, event: &str) -> usize {
        self.answers.iter().filter(|(_, line)| line["event"] == event).count()
    }

    /// The answers to an order so far; the next order begins anew.
    pub fn take_answers(&mut self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.answers)
    }

    pub fn order_clients(&mut self, order: &str) {
        self.answers.clear();
        self.note(&format!("clients: {order}"));
        self.programs.iter_mut().filter(|program| program.role == Role::Client).for_each(|client| client.order(order));
    }

    pub fn order_all(&mut self, order: &str) {
        self.answers.clear();
        self.programs.iter_mut().for_each(|program| program.order(order));
    }

    pub fn wait_for(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        loop {
            self.look()?;
            if condition(self) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("not seen within {limit:?}: {what}"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.look()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Ends all programs, in order.
    pub fn stop(&mut self) -> Result<(), String> {
        self.note("the end");
        for role in [Role::Client, Role::Server] {
            let those = self.programs.iter_mut().filter(|program| program.role == role);
            those.map(|program| program.end(END_LIMIT)).collect::<Result<Vec<()>, String>>()?;
        }
        Ok(())
    }

    /// Takes everything away, whatever state it is in. Before that, of programs that still run, writes down what they do.
    pub fn close(&mut self) {
        if self.programs.iter().any(Program::is_alive) && !self.interrupted.load(Ordering::Relaxed) {
            self.write_state();
        }
        self.faults.clear();
        self.programs.iter_mut().for_each(Program::kill);
        self.cluster = None;
    }

    /// What the engines say, and where the threads are, into files beside the logs.
    fn write_state(&mut self) {
        for host in self.hosts() {
            let shown = self.in_host(host, command(&self.peer, ["show"]));
            let _ = fs::write(self.dir.join(format!("h{host}-engines.json")), shown);
        }
        for program in &mut self.programs {
            let Some(pid) = program.pid() else { continue };
            let pid = pid.to_string();
            let file = self.dir.join(format!("{}-stacks", program.name.replace(' ', "-")));
            let gdb = command("gdb", ["-p", &pid, "-batch", "-nx", "-ex", "thread apply all bt"]);
            if env::find_program("gdb").is_some()
                && let Ok(finished) = Process::spawn(gdb).wait(COMMAND_LIMIT)
            {
                let _ = fs::write(file, finished.stdout);
            }
        }
    }

    /// After the end: whether anything is left behind in the memory that processes share.
    pub fn leaves_nothing(&self) -> Result<(), String> {
        self.boards.left()
    }

    /// A command in a host: what it printed.
    pub fn in_host(&self, host: usize, cmd: Command) -> String {
        self.cluster().run(&format!("h{host}"), &cmd, COMMAND_LIMIT).stdout
    }

    /// What the engines of a host say of themselves.
    pub fn engines(&self, host: usize) -> Result<Vec<Value>, String> {
        let shown = self.in_host(host, command(&self.peer, ["show"]));
        serde_json::from_str(&shown).map_err(|error| format!("h{host}: {error} in {shown}"))
    }

    /// `ip link set` on a host's device.
    pub fn device(&self, host: usize, change: &[&str]) {
        let namespace = self.cluster().namespace(&format!("h{host}"));
        let ip = command("ip", [&["-n", &namespace, "link", "set", "eth0"], change].concat());
        Process::spawn(ip).succeed(COMMAND_LIMIT);
    }

    /// Sets a knob of all engines of a host; those that are stopped do not take it.
    pub fn tune(&self, host: usize, name: &str, value: &str) {
        self.in_host(host, command(env::ropeway(), ["tune", "set", name, value]));
    }

    /// As it was when the programs began.
    pub fn tune_back(&self, host: usize, name: &str) {
        let usual = if name == "key_volume" { Some("1".to_owned()) } else { self.usual(name) };
        if let Some(usual) = usual {
            self.tune(host, name, &usual);
        }
    }

    /// The default of a knob.
    fn usual(&self, name: &str) -> Option<String> {
        // In the switch's namespace nobody runs an engine.
        let list = self.cluster().run("switch", &command(env::ropeway(), ["tune", "list", "--json"]), COMMAND_LIMIT);
        let list: Vec<Value> = serde_json::from_str(&list.stdout).ok()?;
        let knob = list.iter().find(|knob| knob["name"] == name)?;
        let usual = knob["usual"].as_u64()?;
        let word = knob["words"].get(usual as usize).and_then(Value::as_str);
        Some(word.map_or_else(|| usual.to_string(), str::to_owned))
    }

    /// The next step of an exchange of keys: new files, then every program starts again, one after the other.
    pub fn next_key(&mut self) -> Result<(), String> {
        self.keys.next()?;
        for (host, role) in self.programs.iter().map(|program| (program.host, program.role)).collect::<Vec<_>>() {
            self.program(host, role).kill();
            self.start_program(host, role)?;
            let pause = Duration::from_millis(self.random.below(300));
            self.wait(pause)?;
        }
        Ok(())
    }

    /// A line of the run's own log.
    pub fn note(&mut self, text: &str) {
        let line = format!("{} {:9.3} {text}", now_ms(), self.began.elapsed().as_secs_f64());
        // The log is for people; the run does not depend on it.
        let _ = writeln!(self.events, "{line}");
    }

    /// What was done, in lines.
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        for ((what, how), count) in &self.ends {
            lines.push(format!("{what}: {count} {how}"));
        }
        format!("{} faults; {}", self.history.0.len(), lines.join(", "))
    }
}

/// What the programs run with.
fn tuned(keys: bool) -> String {
    let mut text = format!(
        "give_up={},connect_timeout={},keep_alive={},idle_limit={}",
        GIVE_UP.as_millis(),
        CONNECT_TIMEOUT.as_millis(),
        KEEP_ALIVE.as_secs(),
        IDLE_LIMIT.as_secs()
    );
    if keys {
        // Keys within the connections, as often as can be.
        text.push_str(",key_age=2,key_volume=1");
    }
    text
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
