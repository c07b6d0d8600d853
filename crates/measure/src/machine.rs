//! What figures are measured on: the description of a host, and which processors are used.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::thread::CpuSet;

use crate::record::Host;
use crate::transport::monotonic_ns;

/// Describes this host. `devices`: with what its network devices do in place of the processor, which takes some milliseconds.
pub fn describe(devices: bool) -> Host {
    let kernel = |name: &str| read(&format!("/proc/sys/kernel/{name}")).unwrap_or_else(|| "unknown".to_owned());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |wanted: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    let clock_source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    Host {
        name: kernel("hostname"),
        kernel: format!("{} {}", kernel("ostype"), kernel("osrelease")),
        architecture: std::env::consts::ARCH.to_owned(),
        cpu_model: field("model name").unwrap_or_else(|| "unknown".to_owned()),
        cpus: allowed_cpus(),
        memory_mib: memory_mib(),
        hypervisor: field("flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        clock_source: clock_source.unwrap_or_else(|| "unknown".to_owned()),
        clock_cost_ns: clock_cost_ns(),
        load_1min: load_1min(),
        offloads: if devices { offloads() } else { BTreeMap::new() },
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn memory_mib() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Load of the last minute.
pub fn load_1min() -> Option<f64> {
    read("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

/// Readings taken to learn what reading the clock costs.
const CLOCK_READINGS: u32 = 20_000;

/// Cost of reading the clock once, in nanoseconds.
pub fn clock_cost_ns() -> f64 {
    let start = Instant::now();
    for _ in 0..CLOCK_READINGS {
        std::hint::black_box(monotonic_ns());
    }
    start.elapsed().as_nanos() as f64 / f64::from(CLOCK_READINGS)
}

/// What `ethtool -k` calls the work that a device does in place of the processor, and how it is written here.
const OFFLOADS: [(&str, &str); 7] = [
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
    ("generic-receive-offload", "gro"),
    ("large-receive-offload", "lro"),
    ("rx-checksumming", "rx-checksum"),
    ("tx-checksumming", "tx-checksum"),
    ("tx-udp-segmentation", "udp-segmentation"),
];

/// Of each device that is up, the loopback aside.
fn offloads() -> BTreeMap<String, Vec<String>> {
    let Ok(devices) = fs::read_dir("/sys/class/net") else { return BTreeMap::new() };
    let names = devices.flatten().map(|device| device.file_name().to_string_lossy().into_owned());
    let up = |name: &String| read(&format!("/sys/class/net/{name}/operstate")).is_some_and(|state| state == "up");
    names.filter(|name| name != "lo" && up(name)).map(|name| (name.clone(), offloads_of(&name))).collect()
}

fn offloads_of(device: &str) -> Vec<String> {
    let asked = Command::new("ethtool").args(["-k", device]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match asked {
        Ok(answer) if answer.status.success() => read_offloads(&String::from_utf8_lossy(&answer.stdout)),
        _ => vec!["unknown: ethtool is not installed here, or does not know this device".to_owned()],
    }
}

fn read_offloads(text: &str) -> Vec<String> {
    let state = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.split_whitespace().next().unwrap_or("unknown"))
        })
    };
    OFFLOADS.iter().filter_map(|(name, short)| Some(format!("{short} {}", state(name)?))).collect()
}

/// The processors that this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Binds the calling thread to one processor.
pub fn pin(cpu: usize) -> Result<(), String> {
    let refused = |why: &dyn std::fmt::Display| format!("cannot run on CPU {cpu}: {why}");
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(&"there is none with this number"));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| refused(&e))
}

/// The processors for the ranks of this host: those asked for, else one for each, different cores before two threads of one core (which share its cache and its arithmetic, and would
/// flatter latency and spoil throughput). None if there are not as many as ranks.
pub fn choose_cpus(asked: &[usize], ranks: usize) -> Result<Option<Vec<usize>>, String> {
    let allowed = allowed_cpus();
    if let Some(cpu) = asked.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(format!(
            "CPU {cpu} is not among those that this process may use ({allowed:?}): choose from them for --pin"
        ));
    }
    if !asked.is_empty() {
        return Ok(Some((0..ranks).map(|rank| asked[rank % asked.len()]).collect()));
    }
    let siblings_before = |cpu: usize| {
        let list = read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        list.map(|list| parse_cpu_list(&list)).unwrap_or_default().iter().filter(|other| **other < cpu).count()
    };
    let mut order = allowed;
    order.sort_by_key(|cpu| (siblings_before(*cpu), *cpu));
    Ok((order.len() >= ranks).then(|| order[..ranks].to_vec()))
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
        let message = choose_cpus(&[0, CpuSet::MAX_CPU + 1], 2).unwrap_err();
        assert!(message.contains("--pin"), "{message}");
        assert!(pin(CpuSet::MAX_CPU + 1).is_err());
    }

    #[test]
    fn more_ranks_than_processors_are_not_bound() {
        assert_eq!(choose_cpus(&[], CpuSet::MAX_CPU + 1), Ok(None));
        let asked = allowed_cpus()[..1].to_vec();
        assert_eq!(choose_cpus(&asked, 3), Ok(Some(vec![asked[0]; 3])), "asked for, it is done");
    }

    #[test]
    fn what_ethtool_says_is_shortened() {
        let text = "Features for eth0:\nrx-checksumming: on\ntcp-segmentation-offload: off [fixed]\n\ttx-tcp: on\n";
        assert_eq!(read_offloads(text), ["tso off", "rx-checksum on"]);
    }

    #[test]
    fn this_host_is_described() {
        let host = describe(true);
        assert!(host.clock_cost_ns > 0.0 && !host.cpus.is_empty() && host.kernel.starts_with("Linux"), "{host:?}");
    }
}
