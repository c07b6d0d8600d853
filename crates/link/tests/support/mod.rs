//! Two hosts for tests: network namespaces joined by a veth pair, and links opened inside them.
#![allow(dead_code, reason = "each test program uses its part")]

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The device in each namespace.
pub const DEVICE: &str = "eth0";

/// Two namespaces with a veth pair between them, gone when this is dropped.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
}

/// Why hosts cannot be made here; `None`: they can.
pub fn reason_against_hosts() -> Option<String> {
    if !ropeway_testkit::skip::is_root() {
        return Some("needs root: network namespaces".into());
    }
    ropeway_testkit::skip::missing_program(&["ip"])
}

/// Runs a command of `ip`.
///
/// # Panics
/// It fails.
pub fn ip(args: &str) {
    let output = Command::new("ip").args(args.split_whitespace()).output().expect("ip is installed");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// All namespaces of ours begin with it; then comes the process that made them.
const PREFIX: &str = "rwlink-";

/// Deletes what processes left behind that were killed before they could.
fn sweep() {
    let Ok(namespaces) = std::fs::read_dir("/run/netns") else { return };
    for entry in namespaces.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            delete(&name);
        }
    }
}

fn delete(name: &str) {
    // Not checked: whatever failed before is what should be reported.
    let _ = Command::new("ip").args(["netns", "delete", name]).output();
}

impl Hosts {
    /// Makes them, with this MTU.
    pub fn new(mtu: usize) -> Hosts {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only that each number is used once matters.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("{PREFIX}{}-{number}{end}", std::process::id()));
        let hosts = Hosts { names };
        let [a, b] = &hosts.names;
        hosts.names.iter().for_each(|name| ip(&format!("netns add {name}")));
        ip(&format!("link add {DEVICE} mtu {mtu} netns {a} type veth peer name {DEVICE} mtu {mtu} netns {b}"));
        for end in [0, 1] {
            let (v4, v6) = (address(end, false), address(end, true));
            hosts.ip_batch(
                end,
                [
                    format!("address add {v4}/24 dev {DEVICE}"),
                    format!("address add {v6}/64 dev {DEVICE} nodad"),
                    "link set lo up".into(),
                    format!("link set {DEVICE} up"),
                ],
            );
        }
        hosts
    }

    /// Runs a command of `ip` on one of them.
    pub fn ip(&self, end: usize, args: &str) {
        ip(&format!("-n {} {args}", self.names[end]));
    }

    /// Runs many commands of `ip` on one of them, in one process.
    ///
    /// # Panics
    /// One fails.
    pub fn ip_batch(&self, end: usize, commands: impl IntoIterator<Item = String>) {
        let mut batch = tempfile::NamedTempFile::new().expect("a file");
        commands.into_iter().for_each(|command| writeln!(batch, "{command}").expect("written"));
        self.ip(end, &format!("-batch {}", batch.path().display()));
    }

    /// Runs something on one of them. Sockets opened there stay there.
    pub fn on<T: Send>(&self, end: usize, run: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[end])).expect("the namespace is there");
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            run()
        };
        // A thread of its own: the caller's stays where it is.
        std::thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| delete(name));
    }
}

/// The address of a host.
pub fn address(end: usize, v6: bool) -> IpAddr {
    let last = end as u8 + 1;
    if v6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]) } else { IpAddr::from([10, 90, 0, last]) }
}
