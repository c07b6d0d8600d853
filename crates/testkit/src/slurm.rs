//! A cluster of one host under Slurm: its three daemons with everything of theirs in one directory, and as no other user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::env::find_program;
use crate::net::free_port;
use crate::proc::{Process, command};
use crate::world::{DAEMON_SOCKET_VAR, World};

const LIMIT: Duration = Duration::from_secs(30);

/// The daemons. They are killed when this is dropped.
#[derive(Debug)]
pub struct Slurm {
    configuration: PathBuf,
    // Their own order: each works only while those behind it do.
    _daemons: [Process; 3],
}

impl Slurm {
    /// A cluster whose one host has so many processors, in the directory of this world.
    pub fn start(world: &World, processors: usize) -> Slurm {
        let dir = world.open_dir().join("slurm");
        for part in ["", "state", "spool"] {
            fs::create_dir(dir.join(part)).expect("a new directory");
        }
        let munged = munged(&dir);
        let configuration = dir.join("slurm.conf");
        let port = free_port();
        fs::write(&configuration, configure(&dir, port, processors)).expect("a file");
        let daemon = |name: &str| {
            let mut daemon = command(find_program(name).expect("it is installed"), ["-D"]);
            // Who starts the steps leaves the daemon's group, but not the world.
            daemon.env("SLURM_CONF", &configuration).env(DAEMON_SOCKET_VAR, world.socket());
            Process::spawn(daemon)
        };
        let slurmctld = daemon("slurmctld");
        slurmctld.wait_for_port(port, LIMIT);
        let slurmd = daemon("slurmd");
        let slurm = Slurm { configuration, _daemons: [slurmd, slurmctld, munged] };
        slurm._daemons[0]
            .wait_until("the host is idle", LIMIT, || {
                let mut sinfo = command("sinfo", ["--noheader", "--format=%T"]);
                slurm.join(&mut sinfo);
                Process::spawn(sinfo).wait(LIMIT).is_ok_and(|said| said.stdout.trim() == "idle")
            })
            .unwrap_or_else(|e| panic!("{e}"));
        slurm
    }

    /// Makes a command speak to this cluster, and to no other that this process may run in.
    pub fn join(&self, command: &mut Command) {
        let inherited = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"SLURM"));
        inherited.for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.env("SLURM_CONF", &self.configuration);
    }
}

/// Who says for the others which user they are.
fn munged(dir: &Path) -> Process {
    let key = dir.join("munge.key");
    // It is for one test, but munged refuses a short one.
    fs::write(&key, [0x5A; 64]).expect("a file");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).expect("one's own file");
    let at = |option: &str, name: &str| format!("--{option}={}", dir.join(name).display());
    let mut munged = command(find_program("munged").expect("it is installed"), ["--foreground", "--force"]);
    munged.arg(at("key-file", "munge.key")).arg(at("socket", "munge.sock")).arg(at("pid-file", "munge.pid"));
    munged.arg(at("seed-file", "munge.seed"));
    let munged = Process::spawn(munged);
    let socket = dir.join("munge.sock");
    munged.wait_until("it listens", LIMIT, || socket.exists()).unwrap_or_else(|e| panic!("{e}"));
    munged
}

fn configure(dir: &Path, port: u16, processors: usize) -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("/proc is mounted");
    let host = name.trim().split('.').next().unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let (dir, node_port) = (dir.display(), free_port());
    format!(
        "ClusterName=test\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={port}\n\
         SlurmdPort={node_port}\n\
         SlurmUser={user}\n\
         SlurmdUser={user}\n\
         AuthInfo=socket={dir}/munge.sock\n\
         StateSaveLocation={dir}/state\n\
         SlurmdSpoolDir={dir}/spool\n\
         SlurmctldPidFile={dir}/slurmctld.pid\n\
         SlurmdPidFile={dir}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SlurmdParameters=config_overrides\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         KillWait=1\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs={processors}\n\
         PartitionName=all Nodes=ALL Default=YES\n"
    )
}
