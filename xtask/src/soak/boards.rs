//! What receivers keep in the memory that processes share, and what of it is left when a box is gone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const SHARED_MEMORY: &str = "/dev/shm";
const PREFIX: &str = "ropeway-gate-";

/// The boards that were there at a moment.
pub struct Boards(Vec<String>);

impl Boards {
    pub fn now() -> Self {
        let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        Self(names.filter(|name| name.starts_with(PREFIX)).collect())
    }

    /// Whether there are new ones of network namespaces that are gone. Others, who test at the same time, have namespaces that are there.
    pub fn left(&self) -> Result<(), String> {
        let there = namespaces();
        let is_left = |name: &String| !self.0.contains(name) && !there.contains(&namespace_of(name));
        let left: Vec<String> = Self::now().0.into_iter().filter(is_left).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("left in {SHARED_MEMORY}: {left:?}")) }
    }
}

fn namespace_of(board: &str) -> u64 {
    board.rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The network namespaces that have a name, and this process's own.
fn namespaces() -> Vec<u64> {
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.path());
    let all = named.chain([PathBuf::from("/proc/self/ns/net")]);
    all.filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.ino()).collect()
}
