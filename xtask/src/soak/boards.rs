//! What receivers keep in the memory that processes share, and what of it is left when a box is gone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SHARED_MEMORY: &str = "/dev/shm";
/// Where network namespaces have names.
const NAMED: &str = "/run/netns";
const PREFIX: &str = "ropeway-gate-";

/// The boards of the hosts of a box.
pub struct Boards {
    /// By these numbers of theirs boards are called.
    namespaces: Vec<u64>,
}

impl Boards {
    /// Those of the network namespaces with these names.
    pub fn of(names: impl Iterator<Item = String>) -> Self {
        Self { namespaces: names.filter_map(|name| number_of(&PathBuf::from(NAMED).join(name))).collect() }
    }

    /// Whether there are some, after the end of the box. Numbers of namespaces that are gone are given again: those of others who test at the same time are theirs.
    pub fn left(&self) -> Result<(), String> {
        let others = fs::read_dir(NAMED).into_iter().flatten().flatten();
        let others: Vec<u64> = others.filter_map(|entry| number_of(&entry.path())).collect();
        let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_left = |name: &String| {
            let number = name.strip_prefix(PREFIX).and_then(|rest| rest.rsplit('-').next()?.parse().ok());
            number.is_some_and(|number| self.namespaces.contains(&number) && !others.contains(&number))
        };
        let left: Vec<String> = names.filter(is_left).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left in {SHARED_MEMORY}: {left:?}")) }
    }
}

fn number_of(namespace: &Path) -> Option<u64> {
    fs::metadata(namespace).ok().map(|meta| meta.ino())
}
