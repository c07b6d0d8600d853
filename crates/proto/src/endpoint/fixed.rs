//! The values that cannot be set stand in docs/protocol.md, section 10, as the code has them; `tests/it/constants.rs` looks at those that can.

use super::attempting::MOST_RETRY_NS;
use super::cookies::COOKIE_NS;
use super::output::ASKING_NS;
use super::places::{AT_REST_NS, SHARE};
use super::queues::MOST_REPLIES;
use super::reserving::LEAST_SHARE;
use super::timers::{STILL_NS, UNUSED_NS};
use crate::arrivals::{MOST_SLOW_NS, SLOW_BYTES_PER_MS};
use crate::association::grants::{TOLD_LEASES, UNUSED_LEASES};
use crate::association::patience::{
    HELD_UP_GIVE_UPS, IN_VAIN_GIVE_UPS, IN_VAIN_LEASES, MOST_ASKED_IN_VAIN, TAKE_BACK_LEASES,
};
use crate::association::{ECHO_LIMIT_NS, FIRST_RETRY_NS, probation};
use crate::gate::sender::SLOW_COST;
use crate::gate::turns::{SLOW_SHARE, UNUSED_SHARE};
use crate::gate::{
    BUDGET_DENOMINATOR, BUDGET_NUMERATOR, FIRST_FLIGHT_SHARE, LIMIT_FLOOR_BYTES, SUSPECT_MIN_NS, SUSPECT_ROUND_TRIPS,
};
use crate::lease::{LEASE_ROUND_TRIPS, LONG_LEASES};
use crate::pace::{HOLD_NS, LINE_PACKETS, SLOW_NS};
use crate::received::WINDOW_PACKETS;
use crate::time::TICK_NS;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// A number with a comma before its thousands.
fn thousands(count: u64) -> String {
    format!("{},{:03}", count / 1000, count % 1000)
}

fn paragraph() -> String {
    [
        format!("Fixed: unit of `time` and `echo` {} us", TICK_NS / US),
        format!("numbers from the lowest missing one on that may arrive {}", thousands(WINDOW_PACKETS)),
        format!("first repetition of SYN and CONFIRM {} ms, longest {} s", FIRST_RETRY_NS / MS, MOST_RETRY_NS / S),
        format!("life of a cookie {} s", COOKIE_NS / S),
        format!("a lease at least {LEASE_ROUND_TRIPS} round-trip times"),
        format!("take-back after {TAKE_BACK_LEASES} leases"),
        format!("what was asked for in vain charged for {IN_VAIN_LEASES}"),
        format!("told of its grant for {TOLD_LEASES} leases who says nothing, for {UNUSED_LEASES} who uses nothing (leases as short as they may be, or {LONG_LEASES} of its own)"),
        format!(
            "a sender slow from {} us a packet, in which {LINE_PACKETS} of all come, and then granted what it uses in {} ms and a round trip, 1/{SLOW_COST} of it charged, and 1/{SLOW_SHARE} of the budget for all of them",
            SLOW_NS / US,
            HOLD_NS / MS
        ),
        format!("1/{UNUSED_SHARE} of the budget for all whose last grant was taken back"),
        format!(
            "on probation for {} times as long as it left a grant unused, {} s at most",
            probation::TIMES,
            probation::MOST_NS / S
        ),
        format!("suspect after {SUSPECT_ROUND_TRIPS} round trips or {} ms", SUSPECT_MIN_NS / MS),
        format!("a port believed to stand still by who was heard within {} ms", STILL_NS / MS),
        format!(
            "a line slow below {SLOW_BYTES_PER_MS} bytes in a millisecond, all grants {} s there at most",
            MOST_SLOW_NS / S
        ),
        format!(
            "budget {BUDGET_NUMERATOR}/{BUDGET_DENOMINATOR} of the port's buffer, before cuts {} KiB at least",
            LIMIT_FLOOR_BYTES >> 10
        ),
        "cuts and their floors as in 6 (Adaptation)".into(),
        format!("first flights 1/{FIRST_FLIGHT_SHARE} of the budget"),
        format!("echo not older than {} ms", ECHO_LIMIT_NS / MS),
        format!(
            "an association without channels kept for {} s, and for {} s where its place is needed",
            UNUSED_NS / S,
            AT_REST_NS / S
        ),
        format!("fewer associations, and spent cookies, of a host than {SHARE} times the places left"),
        format!("answers without an association waiting for the link {MOST_REPLIES}"),
        format!("one packet of all attempts each {} ms while it is full", ASKING_NS / MS),
        format!("memory kept from others for a message lost when less than 1/{LEAST_SHARE} of it comes in `give_up`"),
        format!(
            "given up when asked for {MOST_ASKED_IN_VAIN} times in vain in {IN_VAIN_GIVE_UPS} x `give_up`, or when the own link took nothing for {HELD_UP_GIVE_UPS} x `give_up`."
        ),
    ]
    .join("; ")
}

#[test]
fn the_specification_lists_what_is_fixed() {
    let page = include_str!("../../../../docs/protocol.md");
    let lines: Vec<&str> = page.lines().collect();
    assert!(lines.join(" ").contains(&paragraph()), "section 10 of docs/protocol.md must say: {}", paragraph());
}
