#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    ropeway_fuzz::gateway::gateway(data);
});
