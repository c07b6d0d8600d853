//! The limits that a process has been given, as far as it may change them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises one as far as it goes. Where that is not allowed it stays, and what meets it says so.
pub fn raise(resource: Resource) {
    let limit = getrlimit(resource);
    let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
}
