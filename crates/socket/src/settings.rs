//! What this process was told: the environment goes over what the daemon says, which goes over the defaults.

use crate::rendezvous::client;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// "Not set in the environment".
const UNSET: u32 = u32::MAX;

static SPIN_NS: AtomicU32 = AtomicU32::new(UNSET);
static PROMOTE_AFTER: AtomicU32 = AtomicU32::new(UNSET);
static STRICT: AtomicU32 = AtomicU32::new(0);
static STATS_PATH: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// `period << 32 | state`; 0 for no chaos.
static CHAOS: AtomicU64 = AtomicU64::new(0);

/// Reads the environment. `get` returns the address of the C string value of a variable, or null; values must stay
/// where they are for the life of the process (the preload gives addresses inside its own copy).
pub fn init(get: impl Fn(&[u8]) -> *const u8) {
    let text = |name: &[u8]| -> Option<&'static [u8]> {
        let p = get(name);
        // SAFETY: `get` returns null or a C string that stays.
        if p.is_null() { None } else { Some(unsafe { core::ffi::CStr::from_ptr(p.cast()) }.to_bytes()) }
    };
    if let Some(us) = text(b"ROPEWAY_SPIN_US").and_then(number) {
        SPIN_NS.store((us.min(10_000) * 1000) as u32, Ordering::Relaxed);
    }
    if let Some(calls) = text(b"ROPEWAY_PROMOTE_AFTER").and_then(number) {
        PROMOTE_AFTER.store(calls.min(1 << 30) as u32, Ordering::Relaxed);
    }
    if text(b"ROPEWAY_STRICT").is_some_and(|v| v == b"1") {
        STRICT.store(1, Ordering::Relaxed);
    }
    if let Some((seed, period)) = text(b"ROPEWAY_CHAOS").and_then(pair) {
        CHAOS.store(period.clamp(2, 1 << 20) << 32 | (seed as u32 | 1) as u64, Ordering::Relaxed);
    }
    STATS_PATH.store(get(b"ROPEWAY_STATS").cast_mut(), Ordering::Relaxed);
    client::init(text(b"ROPEWAY_SOCKET"));
    if let Some(profile) = text(b"ROPEWAY_PROFILE") {
        client::set_profile(profile);
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

fn pair(text: &[u8]) -> Option<(u64, u64)> {
    let (a, b) = core::str::from_utf8(text).ok()?.split_once(':')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

/// Longest spin before a sleep, in nanoseconds.
#[inline]
pub fn spin_ns() -> u32 {
    match SPIN_NS.load(Ordering::Relaxed) {
        UNSET => client::settings().spin_ns,
        ns => ns,
    }
}

/// Calls in one direction after which a connection registers.
#[inline]
pub fn promote_after_calls() -> u32 {
    match PROMOTE_AFTER.load(Ordering::Relaxed) {
        UNSET => client::settings().promote_after_calls,
        calls => calls,
    }
}

/// Bytes in one direction after which a connection registers.
#[inline]
pub fn promote_after_bytes() -> u64 {
    client::settings().promote_after_bytes
}

pub fn strict() -> bool {
    STRICT.load(Ordering::Relaxed) != 0
}

/// The statistics file as a C string, if there is to be one.
pub fn stats_path() -> Option<*const u8> {
    let p = STATS_PATH.load(Ordering::Relaxed);
    if p.is_null() { None } else { Some(p.cast_const()) }
}

/// Tests only (`ROPEWAY_CHAOS`): a random number when it is time to disturb, else None.
#[inline]
pub fn chaos() -> Option<u32> {
    if CHAOS.load(Ordering::Relaxed) == 0 { None } else { chaos_draw() }
}

#[cold]
fn chaos_draw() -> Option<u32> {
    let old = CHAOS.load(Ordering::Relaxed);
    let mut x = old as u32;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    CHAOS.store(old >> 32 << 32 | x as u64, Ordering::Relaxed);
    (x >> 8).is_multiple_of((old >> 32) as u32).then_some(x)
}

/// True when chaos is on: back-offs are skipped then.
pub fn is_chaotic() -> bool {
    CHAOS.load(Ordering::Relaxed) != 0
}
