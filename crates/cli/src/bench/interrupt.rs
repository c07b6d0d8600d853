//! Ctrl-C and its kin: what ends a measurement in order, so that what was measured until then is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::flag;

use crate::signals;

/// Added to the number of a signal in the exit code, as shells do it.
const EXIT_SIGNAL: u8 = 128;

/// Whether this program was asked to end, and by which signal.
pub struct Interrupt {
    /// 0: by none.
    by: Arc<AtomicUsize>,
}

/// What the second signal does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// It ends the program at once.
    Ends,
    /// No more than the first: the program would leave something behind.
    IsAsTheFirst,
}

impl Interrupt {
    /// From now on signals are noted.
    pub fn heed(second: Second) -> Result<Interrupt, String> {
        let failed = |e| format!("cannot prepare for Ctrl-C: {e}");
        let by = Arc::new(AtomicUsize::new(0));
        let asked = Arc::new(AtomicBool::new(false));
        for signal in signals::asking_to_end() {
            if second == Second::Ends {
                // In the order in which they act.
                flag::register_conditional_default(signal, asked.clone()).map_err(failed)?;
                flag::register(signal, asked.clone()).map_err(failed)?;
            }
            flag::register_usize(signal, by.clone(), signal as usize).map_err(failed)?;
        }
        Ok(Interrupt { by })
    }

    /// Relaxed: nothing is published by it.
    pub fn is_asked(&self) -> bool {
        self.by.load(Ordering::Relaxed) != 0
    }

    /// The exit code of who was asked to end.
    pub fn exit_code(&self) -> Option<u8> {
        match self.by.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(EXIT_SIGNAL + signal as u8),
        }
    }
}
