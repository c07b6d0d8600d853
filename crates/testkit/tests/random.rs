//! Random calls on both ends of a connection against the TCP oracle, with promotion and demotion forced at random moments.

use ropeway_testkit::random;

/// `ROPEWAY_SEEDS` says how many, `ROPEWAY_SEED` runs a single one.
#[test]
fn seeds() {
    random::run(&random::seeds());
}
