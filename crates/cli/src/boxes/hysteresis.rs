//! The switch `htb_hysteresis` of the kernel's HTB, which lets a class send a whole burst for each timer in place of one frame.
//!
//! There is one for the machine, and HTB of others feels it too: with it, a class may owe up to one of its bursts, and then waits until it has paid. So it is
//! on only while there are boxes that use it, and goes off with the last of them, if Ropeway has switched it on. That a box has done so stands
//! in its [`Label`], from before it is done until it is undone, which is before the box goes: whoever looks finds a box for what was switched on.

use std::fs::{self, File};
use std::time::Duration;

use super::error::Result;
use super::label::Label;
use super::names::{self, Member, Namespace};

/// How often, and after which pauses, a box is asked that does not answer.
const GOING_TRIES: u32 = 20;
const GOING_PAUSE: Duration = Duration::from_millis(50);

const PARAMETER: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

/// Switches it on for a box that is being made. False where the kernel has no such switch, or does not let it be set.
pub fn switch_on(switch: &Namespace) -> Result<bool> {
    let Some(_lock) = lock() else { return Ok(false) };
    if is_on() && !others_use_it(switch)? {
        // Somebody else's wish, which stays when the box goes.
        return Ok(true);
    }
    Label { has_hysteresis: true, ..Label::default() }.put(switch)?;
    let set = is_on() || set("1");
    if !set {
        Label::default().put(switch)?;
    }
    Ok(set)
}

/// For a box that is about to go, whatever is left of it: switches it off, unless another box needs it.
pub fn give_back(switch: &Namespace) {
    let Some(_lock) = lock() else { return };
    let Ok(label) = Label::of(switch) else { return };
    if !label.has_hysteresis {
        return;
    }
    // Where it cannot be known, a machine with it on is better than a box without.
    if others_use_it(switch).is_ok_and(|used| !used) {
        set("0");
    }
    // If this does not succeed, the next `down` finds the word, and nothing to do.
    let _ = Label { has_hysteresis: false, ..label }.put(switch);
}

/// Whether it is on now.
pub fn is_on() -> bool {
    fs::read_to_string(PARAMETER).is_ok_and(|text| text.trim() != "0")
}

/// A box that cannot be asked, and has not just gone away, may be one that does.
fn others_use_it(switch: &Namespace) -> Result<bool> {
    let switches = names::boxes()?.into_iter().filter(|found| found.members.contains(&Member::Switch));
    let mut others = switches.map(|found| found.namespace(Member::Switch)).filter(|other| other != switch);
    Ok(others.any(uses_it))
}

/// A box that is just going away cannot be asked either, and has given it back: it is waited for.
fn uses_it(other: Namespace) -> bool {
    for _ in 0..GOING_TRIES {
        match Label::of(&other) {
            Ok(label) => return label.has_hysteresis,
            Err(_) if !other.path().exists() => return false,
            Err(_) => std::thread::sleep(GOING_PAUSE),
        }
    }
    true
}

/// One process at a time looks and changes.
fn lock() -> Option<File> {
    let file = File::open(PARAMETER).ok()?;
    file.lock().ok()?;
    Some(file)
}

fn set(value: &str) -> bool {
    fs::write(PARAMETER, value).is_ok()
}
