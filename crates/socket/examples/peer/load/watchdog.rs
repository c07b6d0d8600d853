//! Says when a call does not come back: each thread notes when it last got on, and one looks at all of them.

use super::say;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Ticks are counted and not the clock: a stopped process has none.
const TICK: Duration = Duration::from_millis(100);
static TICKS: AtomicU64 = AtomicU64::new(0);
static ALL: Mutex<Vec<Arc<Place>>> = Mutex::new(Vec::new());

struct Place {
    name: Mutex<String>,
    since: AtomicU64,
    busy: AtomicBool,
    gone: AtomicBool,
    said: AtomicBool,
}

/// The place of one thread; it is given back with it.
pub struct Watched(Arc<Place>);

impl Watched {
    pub fn new(name: &str) -> Watched {
        let place = Arc::new(Place {
            name: Mutex::new(name.to_owned()),
            since: AtomicU64::new(TICKS.load(Ordering::Relaxed)),
            busy: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            said: AtomicBool::new(false),
        });
        ALL.lock().expect("no panics").push(place.clone());
        Watched(place)
    }

    /// A call begins, which has to come back in time.
    pub fn calls<T>(&self, call: impl FnOnce() -> T) -> T {
        self.moves();
        self.0.busy.store(true, Ordering::Relaxed);
        let result = call();
        self.0.busy.store(false, Ordering::Relaxed);
        result
    }

    /// It gets on, within a call or between calls.
    pub fn moves(&self) {
        self.0.since.store(TICKS.load(Ordering::Relaxed), Ordering::Relaxed);
        self.0.said.store(false, Ordering::Relaxed);
    }

    pub fn rename(&self, name: String) {
        *self.0.name.lock().expect("no panics") = name;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Relaxed);
    }
}

/// Looks for calls that take longer than `limit`, from now on.
pub fn start(limit: Duration) {
    let most = (limit.as_millis() / TICK.as_millis()) as u64;
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(TICK);
            let now = TICKS.fetch_add(1, Ordering::Relaxed) + 1;
            let mut all = ALL.lock().expect("no panics");
            all.retain(|place| !place.gone.load(Ordering::Relaxed));
            for place in all.iter().filter(|place| place.busy.load(Ordering::Relaxed)) {
                let late = now.saturating_sub(place.since.load(Ordering::Relaxed)) > most;
                if late && !place.said.swap(true, Ordering::Relaxed) {
                    let name = place.name.lock().expect("no panics").clone();
                    say(json!({ "event": "hang", "what": name, "limit": limit.as_secs_f64() }));
                }
            }
        }
    });
}

/// The longest that a call may take without getting on: `PEER_PATIENCE_MS`.
pub fn patience() -> Duration {
    let ms = std::env::var("PEER_PATIENCE_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(ms.unwrap_or(60_000))
}
