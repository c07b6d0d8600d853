//! What the figures were measured on, and which two cores they use.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::CpuSet;
use serde::Serialize;

/// Description of the host, kept with every result.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub host: String,
    pub kernel: String,
    pub architecture: &'static str,
    pub cpu_model: String,
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    pub memory_mib: Option<u64>,
    pub hypervisor: bool,
    /// One-minute load before the measurement: other work on the machine makes figures worse.
    pub load_1min: Option<f64>,
    pub measured_at_unix_s: u64,
    pub ropeway_version: &'static str,
    /// The commit that was measured, from ROPEWAY_COMMIT when this program was built or, first, as it is run.
    pub commit: Option<String>,
}

impl Machine {
    pub fn describe() -> Machine {
        let kernel = |name: &str| {
            fs::read_to_string(format!("/proc/sys/kernel/{name}"))
                .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |wanted: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == wanted).then(|| value.trim().to_owned())
            })
        };
        Machine {
            host: kernel("hostname"),
            kernel: format!("{} {}", kernel("ostype"), kernel("osrelease")),
            architecture: std::env::consts::ARCH,
            cpu_model: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: allowed_cpus(),
            memory_mib: memory_mib(),
            hypervisor: field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            load_1min: load_1min(),
            measured_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            ropeway_version: env!("CARGO_PKG_VERSION"),
            commit: std::env::var("ROPEWAY_COMMIT").ok().or(option_env!("ROPEWAY_COMMIT").map(str::to_owned)),
        }
    }
}

fn memory_mib() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

pub fn load_1min() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| format!("cannot run on CPU {cpu}: {e}"))
}

/// The two CPUs to measure on: those asked for, else the first two that are different cores (two threads of one core share its cache and its
/// arithmetic and would flatter latency and spoil throughput). None if there are not two CPUs.
pub fn choose_cpus(asked: Option<(usize, usize)>) -> Result<Option<(usize, usize)>, String> {
    let allowed = allowed_cpus();
    if let Some((a, b)) = asked {
        return match [a, b].iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => Err(format!(
                "CPU {cpu} is not among those that this process may use ({allowed:?}): choose two of them for --pin"
            )),
            None => Ok(Some((a, b))),
        };
    }
    let Some((&first, others)) = allowed.split_first() else { return Ok(None) };
    let siblings = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"))
        .map(|list| parse_cpu_list(&list))
        .unwrap_or_default();
    let second = others.iter().find(|cpu| !siblings.contains(cpu)).or(others.first());
    Ok(second.map(|&second| (first, second)))
}

/// Reads the kernel's list form, such as "0-2,8".
fn parse_cpu_list(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            Some(from.parse::<usize>().ok()?..=to.parse().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,8\n"), vec![0, 1, 2, 8]);
        assert_eq!(parse_cpu_list("3"), vec![3]);
        assert!(parse_cpu_list("\n").is_empty());
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_refused_by_name() {
        let message = choose_cpus(Some((0, CpuSet::MAX_CPU + 1))).unwrap_err();
        assert!(message.contains("--pin"), "{message}");
    }
}
