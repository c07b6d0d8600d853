//! What can go wrong with a box, as sentences that a person can act on.

use std::io;

/// Why a command of `ropeway box` did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("needs root, because it {what}; run it with sudo")]
    NotRoot { what: &'static str },

    #[error("needs the program `{program}`, which is not installed; on Debian: apt-get install {package}")]
    NoProgram { program: &'static str, package: &'static str },

    #[error("`{0}` is not a name for a box: 1 to 20 of a-z, 0-9 and -, beginning with a letter")]
    BadName(String),

    #[error("{0}")]
    BadOptions(String),

    #[error("there is a box `{name}` already; `ropeway box down --name {name}` takes it away")]
    Exists { name: String },

    #[error("there is no box `{name}`; {others}")]
    NoBox { name: String, others: String },

    #[error(
        "box `{name}` is incomplete: its `up` still runs, or was ended; `ropeway box down --name {name}` takes it away"
    )]
    Incomplete { name: String },

    #[error("box `{name}` has no host `{host}`; it has {there}")]
    NoHost { name: String, host: String, there: String },

    #[error("box `{name}` has no host or port `{port}`; it has {there}")]
    NoPort { name: String, port: String, there: String },

    #[error(
        "without the queueing discipline netem (CONFIG_NET_SCH_NETEM), which this kernel does not have, a process delays the frames: {0}"
    )]
    NotWithoutNetem(String),

    #[error("htb cannot hold ports to their rate here: {0}; leave --shaper away, or give --shaper tbf")]
    NotWithHtb(&'static str),

    #[error("the delay line, which stands in for this kernel's missing netem, does not start: {said}")]
    NoDelayLine { said: String },

    #[error("`{command}` failed: {said}{hint}")]
    Tool { command: String, said: String, hint: &'static str },

    #[error("cannot {what}: {source}")]
    System { what: String, source: io::Error },

    #[error("cannot understand what `{command}` says: {why}")]
    Unclear { command: String, why: String },
}

impl Error {
    /// For `map_err`: what was tried, and what the system said.
    pub fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        move |source| Error::System { what: what.into(), source: source.into() }
    }
}

pub type Result<T> = std::result::Result<T, Error>;
