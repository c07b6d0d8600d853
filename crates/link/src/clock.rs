//! Where wrappers take the time from: a clock of the machine, or that of a simulated network.

use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tells nanoseconds since some beginning.
pub struct Clock(Box<dyn FnMut() -> u64 + Send>);

impl Clock {
    pub fn new(now_ns: impl FnMut() -> u64 + Send + 'static) -> Clock {
        Clock(Box::new(now_ns))
    }

    pub fn now_ns(&mut self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Since 1970, for whatever is compared with other machines.
pub fn wall_clock() -> Clock {
    Clock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64))
}

/// Since this call; never goes back.
pub fn since_now() -> Clock {
    let start = Instant::now();
    Clock::new(move || start.elapsed().as_nanos() as u64)
}
