//! The key files of the hosts, and the exchange of the cluster's key for another one, in steps in each of which all understand each other.

use ropeway_testkit::env;
use ropeway_testkit::proc::{Process, command};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

pub struct Keys {
    dir: PathBuf,
    hosts: usize,
    step: u32,
}

impl Keys {
    pub fn new(dir: &Path, hosts: usize) -> Self {
        Self { dir: dir.to_path_buf(), hosts, step: 0 }
    }

    pub fn of_host(&self, host: usize) -> PathBuf {
        self.dir.join(format!("h{host}-key"))
    }

    /// The next step; all programs are to be started again.
    pub fn next(&mut self) -> Result<(), String> {
        self.step += 1;
        self.write()
    }

    /// Each host's file for the step: the old key; it and the new one; the new one and it; the new one, which is the old one of the next exchange.
    pub fn write(&self) -> Result<(), String> {
        let (old, step) = (self.step / 3, self.step % 3);
        let mut text = Vec::new();
        for number in [&[old][..], &[old, old + 1], &[old + 1, old]][step as usize] {
            let file = self.dir.join(format!("key-{number}"));
            if !file.exists() {
                let path = file.to_string_lossy().into_owned();
                Process::spawn(command(env::ropeway(), ["key", "new", &path])).succeed(LIMIT);
            }
            text.extend(fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?);
        }
        for host in 1..=self.hosts {
            let (file, fresh) = (self.of_host(host), self.dir.join("key.tmp"));
            let written = fs::write(&fresh, &text)
                .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)))
                .and_then(|()| fs::rename(&fresh, &file));
            written.map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }
}
