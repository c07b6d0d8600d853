//! The configuration file: profiles, limits and rules. docs/configuration.md documents every key.
//!
//! The daemon reads the file when it starts and again when the file has changed; `ropeway run` reads it to tell the user of
//! mistakes before the program starts. What does not live here: environment overrides, which the preload applies itself.

mod rule;
mod size;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ropeway_engine::key_file::Choice;
use ropeway_shm::segment::{MAX_RING_BYTES, MIN_RING_BYTES, valid_ring_bytes};
use ropeway_socket::rendezvous::wire::{Endpoint, Settings};
use serde::Deserialize;
use toml::Spanned;

pub use rule::Program;
use rule::{Action, Rule};
pub use size::Size;

/// Names another configuration file than the usual ones.
pub const CONFIG_VAR: &str = "ROPEWAY_CONFIG";
const SYSTEM_FILE: &str = "/etc/ropeway/config.toml";

/// Longest profile name: what a hello has room for.
const PROFILE_NAME_BYTES: usize = 32;

/// Why a configuration cannot be used. The text names the file and the line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}; fix the file or point {CONFIG_VAR} at another")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path}, line {line}: {what}")]
    Value { path: PathBuf, line: usize, what: String },
}

/// Bounds on what one user may hold in a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of segments of live connections.
    pub segment_bytes: u64,
    /// Sockets the daemon remembers.
    pub registrations: usize,
    /// Processes connected to the daemon.
    pub processes: usize,
}

impl Limits {
    const SEGMENT_BYTES_MAX: u64 = 1 << 30;
    /// A connection costs the daemon about 400 bytes: 64 Ki of them stay below 32 MiB.
    const REGISTRATIONS: usize = 65_536;
    /// One descriptor and one page each.
    const PROCESSES: usize = 4_096;

    /// The defaults on a machine with this much memory: an eighth of it, at most 1 GiB, for segments.
    pub fn for_memory(total_bytes: u64) -> Limits {
        Limits {
            segment_bytes: (total_bytes / 8).min(Self::SEGMENT_BYTES_MAX),
            registrations: Self::REGISTRATIONS,
            processes: Self::PROCESSES,
        }
    }
}

/// What the rules say about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    Deny,
    /// May be promoted, with this profile if the rule names one.
    Allow(Option<&'a str>),
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it came from and when that was last changed; `None` = built-in values only.
    pub source: Option<(PathBuf, Option<SystemTime>)>,
    profiles: BTreeMap<String, Settings>,
    rules: Vec<Rule>,
    limits: FileLimits,
    keys: Option<Choice>,
}

impl Config {
    /// The built-in values.
    pub fn built_in() -> Config {
        let Settings { promote_after_calls: calls, ring_bytes, .. } = Settings::DEFAULT;
        let profiles = [
            ("default", Settings::DEFAULT),
            // Spin long enough to catch a reply that took a scheduler tick's worth of work; promote at the second call.
            (
                "latency",
                Settings {
                    spin_ns: 200_000,
                    promote_after_calls: calls.min(2),
                    promote_after_bytes: 4096,
                    ..Settings::DEFAULT
                },
            ),
            // Never burn CPU in a wait, touch only connections that moved a lot, small rings.
            (
                "safe",
                Settings {
                    spin_ns: 0,
                    promote_after_calls: 1024,
                    promote_after_bytes: 4 << 20,
                    ring_bytes: ring_bytes.min(64 * 1024),
                    ..Settings::DEFAULT
                },
            ),
        ];
        Config {
            source: None,
            profiles: profiles.map(|(name, settings)| (name.to_owned(), settings)).into(),
            rules: Vec::new(),
            limits: FileLimits::default(),
            keys: None,
        }
    }

    /// The first of `$ROPEWAY_CONFIG`, `$XDG_CONFIG_HOME/ropeway/config.toml` (`~/.config` if unset) and
    /// `/etc/ropeway/config.toml` that exists; built-in values if none does. A file named by the variable must exist.
    pub fn load() -> Result<Config, ConfigError> {
        match Self::path() {
            Some(path) => Self::load_file(&path),
            None => Ok(Self::built_in()),
        }
    }

    /// The file that [`Config::load`] would read.
    pub fn path() -> Option<PathBuf> {
        if let Some(named) = std::env::var_os(CONFIG_VAR).filter(|v| !v.is_empty()) {
            return Some(named.into());
        }
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let user = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let candidates = user.map(|dir| dir.join("ropeway/config.toml")).into_iter().chain([SYSTEM_FILE.into()]);
        candidates.into_iter().find(|path| path.exists())
    }

    fn load_file(path: &Path) -> Result<Config, ConfigError> {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let changed = std::fs::metadata(path).map_err(read)?.modified().ok();
        let text = std::fs::read_to_string(path).map_err(read)?;
        let mut config = Self::parse(&text, path)?;
        config.source = Some((path.to_owned(), changed));
        Ok(config)
    }

    fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(text)
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let wrong = |at: usize, what: String| ConfigError::Value {
            path: path.to_owned(),
            line: text[..at].lines().count().max(1),
            what,
        };
        let keys = file.cluster.unwrap_or_default().keys(path).map_err(|(at, what)| wrong(at, what))?;
        let mut config = Config { limits: file.limits.unwrap_or_default(), keys, ..Self::built_in() };
        for (name, given) in file.profile {
            let at = name.span().end;
            let name = name.into_inner();
            if name.is_empty() || name.len() > PROFILE_NAME_BYTES {
                return Err(wrong(
                    at,
                    format!("a profile name has 1 to {PROFILE_NAME_BYTES} bytes, not {}", name.len()),
                ));
            }
            let base = config.profiles.get(&name).or_else(|| config.profiles.get("default")).copied();
            let settings = given.over(base.unwrap_or(Settings::DEFAULT)).map_err(|(at, what)| wrong(at, what))?;
            config.profiles.insert(name, settings);
        }
        for rule in file.rule {
            if let Some(profile) = &rule.profile {
                let at = profile.span().end;
                if rule.action == Action::Deny {
                    return Err(wrong(at, "a rule that denies cannot choose a profile".into()));
                }
                config.profile(profile.get_ref()).map_err(|what| wrong(at, what))?;
            }
            config.rules.push(rule);
        }
        Ok(config)
    }

    /// A profile by name; the error lists the names there are.
    pub fn profile(&self, name: &str) -> Result<Settings, String> {
        self.profiles.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            format!("there is no profile `{name}`; the profiles are {}", known.join(", "))
        })
    }

    /// What a process is told when it says hello: the profile it asked for, else the profile of the first rule about its
    /// program alone, else `default`. A name that does not exist counts as not asked.
    pub fn settings(&self, asked: &str, program: &Program) -> Settings {
        let by_rule = || {
            let rule = self.rules.iter().find(|r| r.about_program_only() && r.program_matches(program))?;
            self.profiles.get(rule.profile.as_ref()?.get_ref())
        };
        let chosen = self.profiles.get(asked).or_else(by_rule).or_else(|| self.profiles.get("default"));
        chosen.copied().unwrap_or(Settings::DEFAULT)
    }

    /// First match wins; without a match everything may be promoted.
    pub fn decide(&self, program: &Program, local: &Endpoint, remote: &Endpoint) -> Decision<'_> {
        match self.rules.iter().find(|r| r.matches(program, local, remote)) {
            Some(Rule { action: Action::Deny, .. }) => Decision::Deny,
            Some(rule) => Decision::Allow(rule.profile.as_ref().map(|p| p.get_ref().as_str())),
            None => Decision::Allow(None),
        }
    }

    /// What the file decides about the cluster's keys; the environment goes before it.
    pub fn keys(&self) -> Option<Choice> {
        self.keys.clone()
    }

    /// The limits of the file over the defaults for a machine with this much memory.
    pub fn limits(&self, total_memory_bytes: u64) -> Limits {
        let default = Limits::for_memory(total_memory_bytes);
        Limits {
            segment_bytes: self.limits.segment_bytes.as_ref().map_or(default.segment_bytes, |s| s.0),
            registrations: self.limits.registrations.unwrap_or(default.registrations),
            processes: self.limits.processes.unwrap_or(default.processes),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    profile: BTreeMap<Spanned<String>, FileProfile>,
    limits: Option<FileLimits>,
    cluster: Option<FileCluster>,
    #[serde(default)]
    rule: Vec<Rule>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCluster {
    key_file: Option<Spanned<PathBuf>>,
    trusted: Option<Spanned<bool>>,
}

impl FileCluster {
    /// The decision; an error comes with the place of the value in the text. A relative path begins where the configuration file lies.
    fn keys(self, config: &Path) -> Result<Option<Choice>, (usize, String)> {
        let trusted = self.trusted.filter(|trusted| *trusted.get_ref());
        match (self.key_file, trusted) {
            (Some(_), Some(trusted)) => {
                Err((trusted.span().end, "`trusted` means no key, so it cannot stand beside `key_file`".into()))
            }
            (Some(path), None) => {
                let dir = config.parent().unwrap_or(Path::new(""));
                Ok(Some(Choice::File(dir.join(path.into_inner()))))
            }
            (None, Some(_)) => Ok(Some(Choice::Trusted)),
            (None, None) => Ok(None),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLimits {
    segment_bytes: Option<Size>,
    registrations: Option<usize>,
    processes: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProfile {
    spin_us: Option<Spanned<u32>>,
    promote_after: Option<u32>,
    promote_after_bytes: Option<Size>,
    ring_size: Option<Spanned<Size>>,
}

impl FileProfile {
    /// The longest spin that is not an endless loop by mistake: 10 ms, a scheduler's slice.
    const SPIN_MAX_US: u32 = 10_000;

    /// These values over `base`; an error comes with the place of the value in the text.
    fn over(self, base: Settings) -> Result<Settings, (usize, String)> {
        let mut settings = base;
        if let Some(spin) = self.spin_us {
            let at = spin.span().end;
            let us = spin.into_inner();
            if us > Self::SPIN_MAX_US {
                return Err((at, format!("spin_us is at most {} (10 ms), not {us}", Self::SPIN_MAX_US)));
            }
            settings.spin_ns = us * 1000;
        }
        if let Some(ring) = self.ring_size {
            let at = ring.span().end;
            let bytes = ring.into_inner().0;
            settings.ring_bytes = u32::try_from(bytes).ok().filter(|b| valid_ring_bytes(*b)).ok_or_else(|| {
                (at, format!("ring_size is a multiple of 4 KiB from {MIN_RING_BYTES} to {MAX_RING_BYTES}, not {bytes}"))
            })?;
        }
        settings.promote_after_calls = self.promote_after.unwrap_or(base.promote_after_calls);
        settings.promote_after_bytes = self.promote_after_bytes.map_or(base.promote_after_bytes, |s| s.0);
        Ok(settings)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
