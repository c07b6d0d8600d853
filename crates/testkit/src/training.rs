//! What a training run runs (docs/building.md): patterns of `ropeway bench` over all that carries bytes, short messages and long ones, spinning and not. The peers too, whose code is in the
//! same program.

use std::path::Path;

/// Hosts of the box for [`between_hosts`].
pub const HOSTS: usize = 5;

const ON_ONE_HOST: [&str; 8] = [
    "pingpong --transport tcp,tcp-spin,udp,unix,shm,ropeway,ropeway-spin,ropeway-udp --size 1,64,1Ki,32Ki",
    "pingpong --transport ropeway-udp:spin=0,cache-line --size 64,1Ki",
    "stream --transport tcp,unix,shm,ropeway,ropeway-udp --size 64,1400,64Ki,1Mi",
    "rate --transport tcp,unix,shm,ropeway,ropeway-udp --size 8,64",
    "bidirectional --transport shm,ropeway,ropeway-udp",
    "many-one --ranks 5 --transport tcp,ropeway,ropeway-udp,ropeway-udp:spin=0 --size 1Ki,64Ki,1Mi",
    "request-response --ranks 3 --transport tcp,ropeway,ropeway-udp",
    "connections --transport tcp,ropeway,ropeway-udp",
];
const WITH_A_KEY: [&str; 2] = ["pingpong --size 64,1Ki", "stream --size 1400,64Ki"];
/// One transport over raw frames in each: an engine of `ropeway bench` takes a device for itself.
const BETWEEN_HOSTS: [&str; 4] = [
    "pingpong --transport ropeway-packet:eth0 --size 64,1Ki,64Ki",
    "pingpong --transport ropeway-packet:eth0,spin=0 --size 64,1Ki",
    "stream --transport ropeway-packet:eth0,ropeway-udp --size 64,1400,64Ki",
    "many-one --ranks 5 --transport ropeway-packet:eth0,ropeway-udp --size 1Ki,64Ki",
];

/// Arguments of `ropeway` for each part, which measures for so many `seconds` per transport and size; `key`: a file with a cluster's key.
pub fn on_one_host(key: &Path, seconds: &str) -> Vec<Vec<String>> {
    let keyed = format!("--transport ropeway-udp:key={}", key.display());
    let plain = ON_ONE_HOST.iter().map(|pattern| part(pattern, "", seconds));
    plain.chain(WITH_A_KEY.iter().map(|pattern| part(pattern, &keyed, seconds))).collect()
}

/// The same for the hosts of a box.
pub fn between_hosts(name: &str, seconds: &str) -> Vec<Vec<String>> {
    BETWEEN_HOSTS.iter().map(|pattern| part(pattern, &format!("--box={name}"), seconds)).collect()
}

fn part(pattern: &str, more: &str, seconds: &str) -> Vec<String> {
    let words = ["bench", pattern, more, "--rounds 1 --seconds", seconds];
    words.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect()
}
