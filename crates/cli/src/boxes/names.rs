//! Names: of boxes, of their hosts, and of the network namespaces in which the kernel keeps both.
//!
//! A box has no file that describes it: which boxes there are, and which hosts each has, is what the names of the namespaces
//! say. So nothing can contradict the kernel, and a box whose `up` was killed can be taken away like any other.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::error::{Error, Result};
use super::lock;

/// Where `ip netns` keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";
/// Where `ip netns exec` looks for files that replace those of /etc.
const ETC_DIR: &str = "/etc/netns";
const PREFIX: &str = "ropeway-";
/// Keeps the names of namespaces readable in a listing.
const MAX_NAME_BYTES: usize = 20;

/// The name of a box.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoxName(String);

impl FromStr for BoxName {
    type Err = Error;

    fn from_str(text: &str) -> Result<BoxName> {
        let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
        if begins && text.len() <= MAX_NAME_BYTES && text.chars().all(is_fine) {
            Ok(BoxName(text.into()))
        } else {
            Err(Error::BadName(text.into()))
        }
    }
}

impl fmt::Display for BoxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a namespace of a box is: a host on its own, or the switch (with both segments, where there are two).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    Host(u8),
    Gateway(u8),
    Switch,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Member::Host(n) => f.pad(&format!("h{n}")),
            Member::Gateway(n) => f.pad(&format!("g{n}")),
            Member::Switch => f.pad("switch"),
        }
    }
}

impl Member {
    pub fn parse(text: &str) -> Option<Member> {
        // `h01` and `h+1` would be second names of `h1`.
        let number = |digits: &str| digits.parse().ok().filter(|n: &u8| *n > 0 && n.to_string() == digits);
        match text {
            "switch" => Some(Member::Switch),
            _ => match text.split_at_checked(1)? {
                ("h", digits) => number(digits).map(Member::Host),
                ("g", digits) => number(digits).map(Member::Gateway),
                _ => None,
            },
        }
    }
}

/// The network namespace of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn of(name: &BoxName, member: Member) -> Namespace {
        Namespace { name: format!("{PREFIX}{name}-{member}") }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What opens it.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// Waits until no `up` or `down` of another process works on the box of which this is the switch.
    pub fn lock(&self) -> Result<File> {
        let gone = || Error::system(self.locking())(io::Error::other("somebody took the box away meanwhile"));
        self.lock_if_there()?.ok_or_else(gone)
    }

    /// The same. `None`: there is no such box, or it was taken away meanwhile, whether another one was made of its name since or not.
    pub fn lock_if_there(&self) -> Result<Option<File>> {
        lock_if_there(&self.path(), &self.lock_path()).map_err(Error::system(self.locking()))
    }

    /// Removes the lock, which the caller has, when there is nothing any more that it is for.
    pub fn forget_lock(&self) {
        lock::remove(&self.lock_path());
    }

    /// The same where the switch was gone before the rest. Who makes another box of its name may have it by now.
    pub fn forget_left_lock(&self) {
        forget_left_lock(&self.path(), &self.lock_path());
    }

    fn lock_path(&self) -> PathBuf {
        lock::path(&self.name)
    }

    fn locking(&self) -> String {
        format!("lock {}", self.lock_path().display())
    }

    /// Its own files of /etc.
    pub fn etc(&self) -> PathBuf {
        Path::new(ETC_DIR).join(&self.name)
    }
}

fn lock_if_there(namespace: &Path, lock: &Path) -> io::Result<Option<File>> {
    let there = match File::open(namespace) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let taken = lock::take(lock)?;
    // Who had the lock may have taken away what it is for.
    if lock::leads_to(namespace, &there)? {
        return Ok(Some(taken));
    }
    if !namespace.exists() {
        lock::remove(lock);
    }
    Ok(None)
}

fn forget_left_lock(namespace: &Path, lock: &Path) {
    if lock.exists()
        && !namespace.exists()
        && let Ok(_taken) = lock::take(lock)
        && !namespace.exists()
    {
        lock::remove(lock);
    }
}

/// A box that is there, complete or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub name: BoxName,
    /// In their order: hosts, gateways, switch.
    pub members: Vec<Member>,
}

impl Found {
    pub fn namespace(&self, member: Member) -> Namespace {
        Namespace::of(&self.name, member)
    }

    /// Hosts and gateways.
    pub fn hosts(&self) -> impl Iterator<Item = Member> {
        self.members.iter().copied().filter(|member| *member != Member::Switch)
    }

    /// The namespace of a host that a user named.
    pub fn find(&self, host: &str) -> Result<Member> {
        let member = Member::parse(host).filter(|member| self.members.contains(member));
        member.ok_or_else(|| {
            let there: Vec<String> = self.members.iter().map(Member::to_string).collect();
            Error::NoHost { name: self.name.to_string(), host: host.into(), there: there.join(", ") }
        })
    }
}

/// All boxes on this machine.
pub fn boxes() -> Result<Vec<Found>> {
    match fs::read_dir(NETNS_DIR) {
        Ok(entries) => Ok(grouped(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()))),
        // Nobody has made a namespace yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::system(format!("list {NETNS_DIR}"))(error)),
    }
}

/// The box of that name.
pub fn find(name: &BoxName) -> Result<Found> {
    let mut all = boxes()?;
    if let Some(index) = all.iter().position(|found| found.name == *name) {
        return Ok(all.swap_remove(index));
    }
    let others: Vec<String> = all.iter().map(|found| found.name.to_string()).collect();
    let others = if others.is_empty() {
        "`ropeway box up` makes one".into()
    } else {
        format!("there are: {}", others.join(", "))
    };
    Err(Error::NoBox { name: name.to_string(), others })
}

fn grouped(namespaces: impl Iterator<Item = String>) -> Vec<Found> {
    let mut members: BTreeMap<BoxName, Vec<Member>> = BTreeMap::new();
    for (name, member) in namespaces.filter_map(|namespace| split(&namespace)) {
        members.entry(name).or_default().push(member);
    }
    let sorted = |(name, mut members): (BoxName, Vec<Member>)| {
        members.sort();
        Found { name, members }
    };
    members.into_iter().map(sorted).collect()
}

fn split(namespace: &str) -> Option<(BoxName, Member)> {
    let (name, member) = namespace.strip_prefix(PREFIX)?.rsplit_once('-')?;
    Some((name.parse().ok()?, Member::parse(member)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_boxes_are_words() {
        for good in ["box", "a", "test-123-4", "twenty-characters-ok"] {
            assert_eq!(good.parse::<BoxName>().unwrap().to_string(), good);
        }
        for bad in ["", "Box", "1box", "-box", "a/b", "a b", "../x", "a-name-of-21-letters."] {
            assert!(bad.parse::<BoxName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn members_have_one_name_each() {
        for (text, member) in [("h1", Member::Host(1)), ("g12", Member::Gateway(12)), ("switch", Member::Switch)] {
            assert_eq!(Member::parse(text), Some(member));
            assert_eq!(member.to_string(), text);
        }
        for bad in ["", "h", "h0", "h01", "h+1", "h256", "x1", "ä1", "switch1"] {
            assert_eq!(Member::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_lock_goes_with_the_last_of_a_box_and_stays_with_a_new_one() {
        let path = std::env::temp_dir().join(format!("ropeway-box-left-{}", std::process::id()));
        let lock = path.with_added_extension("lock");
        for is_there in [true, false] {
            drop(lock::take(&lock).unwrap());
            if is_there {
                File::create(&path).unwrap();
            }
            forget_left_lock(&path, &lock);
            assert_eq!(lock.exists(), is_there);
            let _ = fs::remove_file(&path);
        }
        forget_left_lock(&path, &lock);
        assert!(!lock.exists(), "none is made for that");
    }

    #[test]
    fn a_lock_is_on_what_has_the_name_and_not_on_what_had_it() {
        let path = std::env::temp_dir().join(format!("ropeway-box-lock-{}", std::process::id()));
        let lock = path.with_added_extension("lock");
        assert!(lock_if_there(&path, &lock).unwrap().is_none());
        for other in [true, false] {
            File::create(&path).unwrap();
            let held = lock_if_there(&path, &lock).unwrap().unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| lock_if_there(&path, &lock).unwrap().is_some());
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert!(!waiting.is_finished());
                fs::remove_file(&path).unwrap();
                if other {
                    File::create(&path).unwrap();
                }
                drop(held);
                assert!(!waiting.join().unwrap());
            });
            assert_eq!(lock_if_there(&path, &lock).unwrap().is_some(), other);
        }
        assert!(!lock.exists());
    }

    #[test]
    fn boxes_are_read_from_the_names_of_namespaces() {
        let names = ["ropeway-a-b-h2", "ropeway-a-b-switch", "ropeway-a-h1", "other", "ropeway-x", "ropeway-a-b-h10"];
        let found = grouped(names.into_iter().map(String::from));
        let seen: Vec<_> = found.iter().map(|f| (f.name.to_string(), f.members.clone())).collect();
        let (a, ab) = ("a".to_string(), "a-b".to_string());
        assert_eq!(seen, [(a, vec![Member::Host(1)]), (ab, vec![Member::Host(2), Member::Host(10), Member::Switch])]);
        let namespace = Namespace::of(&"a-b".parse().unwrap(), Member::Host(2));
        assert_eq!(split(namespace.name()), Some(("a-b".parse().unwrap(), Member::Host(2))));
    }
}
