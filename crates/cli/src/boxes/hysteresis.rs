//! The switch `htb_hysteresis` of the kernel's HTB, which lets a class send a whole burst for each timer in place of one frame.
//!
//! There is one for the machine, and HTB of others feels it too: with it, a class may owe up to one of its bursts, and then waits until it has paid. So it is
//! on only while there are boxes that use it, and goes off with the last of them, if Ropeway has switched it on. That a box has done so stands
//! in its [`Label`], from before it is done.

use std::fs::{self, File};

use super::error::Result;
use super::label::Label;
use super::names::{self, Found, Member, Namespace};

const PARAMETER: &str = "/sys/module/sch_htb/parameters/htb_hysteresis";

/// Switches it on for a box that is being made. False where the kernel has no such switch, or does not let it be set.
pub fn switch_on(switch: &Namespace) -> Result<bool> {
    let Some(_lock) = lock() else { return Ok(false) };
    let is_on = fs::read_to_string(PARAMETER).is_ok_and(|text| text.trim() != "0");
    if is_on && !names::boxes()?.iter().any(is_used_by) {
        // Somebody else's wish, which stays when the box goes.
        return Ok(true);
    }
    Label { has_hysteresis: true, ..Label::default() }.put(switch)?;
    Ok(is_on || set("1"))
}

/// Whether this box has had it switched on. One that goes away meanwhile needs nothing any more.
pub fn is_used_by(found: &Found) -> bool {
    let is_marked = || Label::of(&found.namespace(Member::Switch)).is_ok_and(|label| label.has_hysteresis);
    found.members.contains(&Member::Switch) && is_marked()
}

/// After a box that had it switched on has gone: switches it off, unless another one needs it.
pub fn give_back() {
    let Some(_lock) = lock() else { return };
    if names::boxes().is_ok_and(|boxes| !boxes.iter().any(is_used_by)) {
        set("0");
    }
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
