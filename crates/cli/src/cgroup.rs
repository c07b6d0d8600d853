//! Where the files of a process's control groups are, in version 2 and in version 1.

use std::path::{Path, PathBuf};

/// Where control groups are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The directories that may bound `controller` for a process: its group and every group above. `membership` is the text of
/// /proc/PID/cgroup, `root` usually [`ROOT`]. Directories that are not visible (another container's) do not exist.
pub fn directories(root: &Path, membership: &str, controller: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (version, mounts) = if controllers.is_empty() {
            (Version::V2, vec![root.to_owned(), root.join("unified")])
        } else if controllers.split(',').any(|c| c == controller) {
            (Version::V1, vec![root.join(controller)])
        } else {
            continue;
        };
        for mount in mounts {
            let group = Path::new(group.trim_start_matches('/'));
            found.extend(group.ancestors().map(|dir| (version, mount.join(dir))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_up_to_the_root_is_named() {
        let dirs = directories(Path::new("/r"), "0::/a/b\n3:cpu,memory:/x\n4:pids:/y\ngarbage\n", "memory");
        let paths: Vec<(Version, &str)> = dirs.iter().map(|(v, p)| (*v, p.to_str().unwrap())).collect();
        let v2 = ["/r/a/b", "/r/a", "/r/", "/r/unified/a/b", "/r/unified/a", "/r/unified/"].map(|p| (Version::V2, p));
        let v1 = ["/r/memory/x", "/r/memory/"].map(|p| (Version::V1, p));
        assert_eq!(paths, [&v2[..], &v1[..]].concat());
    }
}
