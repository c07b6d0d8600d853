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

/// What is fixed, and at what: the first two columns of the table.
fn rows() -> Vec<(&'static str, String)> {
    vec![
        ("unit of `time` and `echo`", format!("{} us", TICK_NS / US)),
        ("a `time` is echoed for", format!("{} ms", ECHO_LIMIT_NS / MS)),
        ("numbers that may arrive, from the lowest missing one on", thousands(WINDOW_PACKETS)),
        ("first repetition of SYN and CONFIRM, after", format!("{} ms", FIRST_RETRY_NS / MS)),
        ("twice that each time, up to", format!("{} s", MOST_RETRY_NS / S)),
        ("life of a cookie", format!("{} s", COOKIE_NS / S)),
        ("a host has fewer associations, and spent cookies, than so many times the places left", SHARE.to_string()),
        ("an association without channels is kept for", format!("{} s", UNUSED_NS / S)),
        ("where its place is needed, for", format!("{} s", AT_REST_NS / S)),
        ("answers that wait for one link, at most", MOST_REPLIES.to_string()),
        ("one packet of all attempts while the link is full, each", format!("{} ms", ASKING_NS / MS)),
        ("LEASE, at least", format!("{LEASE_ROUND_TRIPS} round trips")),
        ("an unused grant is taken back after", format!("{TAKE_BACK_LEASES} x LEASE")),
        ("who says nothing is told of its grant for", leases(TOLD_LEASES)),
        ("who speaks and uses nothing is told of it for", leases(UNUSED_LEASES)),
        ("what was asked for in vain is charged for", leases(IN_VAIN_LEASES)),
        ("a sender is slow from", format!("{} us a packet", SLOW_NS / US)),
        ("in which of all senders come", format!("{LINE_PACKETS} packets")),
        ("a slow sender may hold what it uses in its least round trip and", format!("{} ms", HOLD_NS / MS)),
        ("part of that which it is charged for", format!("1/{SLOW_COST}")),
        ("part of the budget for all slow senders", format!("1/{SLOW_SHARE}")),
        ("part of the budget for all whose last grant was taken back", format!("1/{UNUSED_SHARE}")),
        ("probation lasts so many times as long as the grant was unused", probation::TIMES.to_string()),
        ("probation, at most", format!("{} s", probation::MOST_NS / S)),
        (
            "a holder is suspect when silent for",
            format!("{SUSPECT_ROUND_TRIPS} round trips, {} ms at least", SUSPECT_MIN_NS / MS),
        ),
        ("a port is believed to stand still by who was heard within", format!("{} ms", STILL_NS / MS)),
        ("a line is slow below", format!("{SLOW_BYTES_PER_MS} bytes in a millisecond")),
        ("drain time on a slow line, at most", format!("{} s", MOST_SLOW_NS / S)),
        ("port's share of the budget, of the port's queue", format!("{BUDGET_NUMERATOR}/{BUDGET_DENOMINATOR}")),
        ("limit of the budget, at least", format!("{} KiB", LIMIT_FLOOR_BYTES >> 10)),
        ("part of the budget for first flights", format!("1/{FIRST_FLIGHT_SHARE}")),
        ("a message is given up when in `give_up` less of it comes than", format!("1/{LEAST_SHARE}")),
        (
            "an association ends when one number was asked for in vain",
            format!("{MOST_ASKED_IN_VAIN} times, in {IN_VAIN_GIVE_UPS} x `give_up`"),
        ),
        ("it ends when the own link took nothing for", format!("{HELD_UP_GIVE_UPS} x `give_up`")),
    ]
}

/// So many leases as short as they may be, or some of its own if that is more.
fn leases(count: u64) -> String {
    format!("{count} x `lease`, or {LONG_LEASES} x LEASE if that is more")
}

#[test]
fn the_specification_lists_what_is_fixed() {
    let page = include_str!("../../../../docs/protocol.md");
    for (what, value) in rows() {
        let row = format!("\n| {what} | {value} | ");
        assert!(page.contains(&row), "section 10 of docs/protocol.md must say:{row}and where");
    }
}
