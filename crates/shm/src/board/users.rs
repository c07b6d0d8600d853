//! What the other users of a host say on their boards, and how much of it is believed.
//!
//! Another user is trusted with nothing. Its board is not mapped (who owns a file may truncate it, and then to touch it is SIGBUS) but copied by `pread`; a short copy has fewer slots.
//! Whatever stands there is bounded: what it wants counts for one user's fair part at most, what it holds counts for [`LONGEST_NS`] after it was written, and only for as long as the
//! patience of who waits for it lasts. After that it counts for its fair part. An honest user has come down to that by then. Patience belongs to who waits: others may have as many
//! numbers and files as they like.
//!
//! A copy may mix what was there before and after a change. Each slot's words mean something by themselves, so two words of different age say what was true at some time; and "store, then
//! look" ([`crate::claim`]) holds for each word: the copy is made after the fence, of the same page of memory. The kernel copies aligned words whole; one that was torn would be a wrong
//! number within the bounds until the next look.
//!
//! What is not here: how the boards of other users are found (`finder`).

use std::fs::{File, OpenOptions};
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use super::{BYTES, Claim, FRESH_NS, LONGEST_NS, LONGEST_PACKET_BYTES, Place, SLOTS, Slot, WISH_NS, usable_after};
use crate::fair::{self, Wanted};
use finder::Finder;

mod finder;

/// Other users whose boards are read, so that reading them stays within microseconds; of more, those who have been silent are left out.
pub const USERS: usize = 16;
/// It is waited for others to come down for no longer than this, whatever the leases are (10 ms by default, or eight round trips).
const MOST_PATIENCE_NS: u64 = 1_000_000_000;
/// And for so many times as long as our own leases take, should another one say that it has longer ones.
const LONGER_TIMES: u64 = 2;
/// So much longer than grants take to come back, as who holds them has to find our board first: two looks at the directory.
const FOUND_NS: u64 = 2 * finder::LOOK_NS;
/// Who was waited for in vain is not waited for again for so many times as long, and patience takes so many times as long to come back: that is the part of the time that can be taken
/// from who waits.
const DISTRUST_TIMES: u64 = 64;
/// A round trip is this share of patience: two leases and a round trip, of which a lease has eight.
const ROUND_TRIP_SHARE: u64 = 17;
/// Who lacks less than this share of what it wants waits for nobody.
const LITTLE_SHARE: u64 = 8;
/// The most that patience loses between two looks: who waits may itself have stood still.
const STEP_NS: u64 = 1_000_000;
/// A board on which nobody has said anything for so long is left out before others.
const SILENT_NS: u64 = 1_000_000_000;

/// Who begins reads so much of the directory at once, and the rest in its turn, should somebody have filled it with files.
const MOST_BATCHES: usize = 1000;

const SLOT_BYTES: usize = size_of::<Slot>();

/// A copy of a board. Aligned, so that words are copied whole.
#[derive(Debug)]
#[repr(align(64))]
struct Copied([u8; BYTES]);

/// The other users of the host.
#[derive(Debug)]
pub(super) struct Users {
    all: Vec<User>,
    patience: Patience,
    finder: Finder,
    copied: Box<Copied>,
}

/// Another user.
#[derive(Debug)]
struct User {
    id: u32,
    /// Its board.
    file: File,
    /// How many slots it had when it was read last.
    used: usize,
    said: Said,
    /// Until then it counts for its part.
    doubted_until_ns: u64,
}

/// What stood on a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// What its processes may use together, and the longest packet of those that want something.
    usable: Wanted,
    held_bytes: u64,
    whole_bytes: u64,
    /// So long what is held counts after the last word, by the longest that any of them said.
    valid_ns: u64,
    /// The last word.
    written_ns: u64,
}

/// Of who waits for its part while others hold more than theirs.
#[derive(Debug, Default)]
struct Patience {
    /// So much of it is used up: for so long others have been waited for, less what has come back.
    used_ns: u64,
    /// What the present wait has used of it.
    wait_ns: u64,
    /// When that was reckoned, and whether others were waited for then.
    looked_at_ns: u64,
    is_held_up: bool,
    /// Who is honest and busy holds up others for no longer than this, as a rule; such a wait uses nothing of it in the end.
    prompt_ns: u64,
    /// When one ended that did not.
    spared_at_ns: u64,
    /// Somebody is doubted until then, and so is who begins meanwhile.
    lost_until_ns: u64,
}

impl Said {
    fn read(file: &File, used: &mut usize, copied: &mut Copied, clock: fn() -> u64) -> Said {
        // Before the copy: who finds its time over once it has said something new knows that nobody counts what it held.
        let now = clock();
        let mut slots = copied.read(file, *used);
        if slots > 0 {
            // Of those who came since, too.
            let before = std::mem::replace(used, copied.used());
            if *used > before {
                slots = copied.read(file, *used);
            }
        }
        let end = clock();
        (0..slots.min(*used)).map(|slot| copied.slot(slot)).filter(|slot| slot.written_ns <= end).fold(
            Said::default(),
            |said, slot| {
                let packet_bytes = slot.packet_bytes.min(LONGEST_PACKET_BYTES);
                let usable = usable_after(slot.demand_bytes, now.saturating_sub(slot.written_ns), packet_bytes);
                let used_packet_bytes = if usable > 0 { packet_bytes } else { 0 };
                let valid_ns = slot.valid_until_ns.saturating_sub(slot.written_ns).min(LONGEST_NS);
                let counts = slot.written_ns.saturating_add(valid_ns) >= now;
                let counting = |value: u64| if counts { value } else { 0 };
                Said {
                    usable: Wanted {
                        bytes: said.usable.bytes.saturating_add(usable),
                        packet_bytes: said.usable.packet_bytes.max(used_packet_bytes),
                    },
                    held_bytes: said.held_bytes.saturating_add(counting(slot.held_bytes)),
                    whole_bytes: said.whole_bytes.max(counting(slot.whole_bytes)),
                    valid_ns: said.valid_ns.max(counting(valid_ns)),
                    written_ns: said.written_ns.max(slot.written_ns),
                }
            },
        )
    }
}

/// The words of a slot that mean something to other users.
struct Words {
    demand_bytes: u64,
    whole_bytes: u64,
    packet_bytes: u64,
    held_bytes: u64,
    written_ns: u64,
    valid_until_ns: u64,
}

impl Copied {
    /// Copies so many slots. How many there were.
    fn read(&mut self, file: &File, slots: usize) -> usize {
        file.read_at(&mut self.0[..slots * SLOT_BYTES], 0).map_or(0, |bytes| bytes / SLOT_BYTES)
    }

    fn word(&self, slot: usize, offset: usize) -> u64 {
        let at = slot * SLOT_BYTES + offset;
        u64::from_ne_bytes(self.0[at..at + size_of::<u64>()].try_into().expect("eight bytes"))
    }

    fn used(&self) -> usize {
        self.word(0, offset_of!(Slot, used)).clamp(1, SLOTS as u64) as usize
    }

    fn slot(&self, slot: usize) -> Words {
        Words {
            demand_bytes: self.word(slot, offset_of!(Slot, demand_bytes)),
            whole_bytes: self.word(slot, offset_of!(Slot, whole_bytes)),
            packet_bytes: self.word(slot, offset_of!(Slot, packet_bytes)),
            held_bytes: self.word(slot, offset_of!(Slot, held_bytes)),
            written_ns: self.word(slot, offset_of!(Slot, written_ns)),
            valid_until_ns: self.word(slot, offset_of!(Slot, valid_until_ns)),
        }
    }
}

impl User {
    fn new(id: u32, file: File, doubted_until_ns: u64) -> User {
        User { id, file, used: 1, said: Said::default(), doubted_until_ns }
    }

    fn read(&mut self, copied: &mut Copied, clock: fn() -> u64) {
        self.said = Said::read(&self.file, &mut self.used, copied, clock);
    }

    fn is_silent(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.said.written_ns) >= SILENT_NS
    }

    fn is_doubted(&self, now_ns: u64) -> bool {
        now_ns < self.doubted_until_ns
    }

    /// How long it is waited for by who has so much patience with users whose leases are no longer than its own.
    fn patience_ns(&self, own_ns: u64) -> u64 {
        self.said.valid_ns.min(LONGER_TIMES.saturating_mul(own_ns)).max(own_ns).min(MOST_PATIENCE_NS) + FOUND_NS
    }
}

impl Patience {
    /// To be called with each look at the others: whether this process waits for its part, and others hold it up.
    fn look(&mut self, waits: bool, is_held_up: bool, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_at_ns, now_ns));
        let was_held_up = std::mem::replace(&mut self.is_held_up, waits && is_held_up);
        let waited_ns = if was_held_up { passed_ns.min(STEP_NS) } else { 0 };
        self.used_ns = self.used_ns.saturating_sub((passed_ns - waited_ns) / DISTRUST_TIMES) + waited_ns;
        self.wait_ns += waited_ns;
        if waits {
            return;
        }
        // An honest user that is busy takes what nobody wants, and needs a moment to give it back: each time that a wish has faded and comes again.
        let wait_ns = std::mem::take(&mut self.wait_ns);
        if (1..=self.prompt_ns).contains(&wait_ns) && now_ns.saturating_sub(self.spared_at_ns) >= WISH_NS {
            self.used_ns = self.used_ns.saturating_sub(wait_ns);
            self.spared_at_ns = now_ns;
        }
    }
}

/// The board of another user, if it is its own. A FIFO is not waited for, a link not followed.
fn open(place: &Place, user: u32) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(place.board_of(user)).ok()?;
    let meta = file.metadata().ok()?;
    (meta.is_file() && (place.is_owner)(&meta, user)).then_some(file)
}

impl Users {
    /// Those whose boards lie there now.
    pub(super) fn of(place: &Place) -> Users {
        let finder = Finder::new(&place.directory);
        let copied = Box::new(Copied([0; BYTES]));
        let mut users = Users { all: Vec::new(), patience: Patience::default(), finder, copied };
        let _ = (0..MOST_BATCHES).take_while(|_| users.find(place)).count();
        users
    }

    /// Reads what they say, after a look for new ones if that is due.
    pub(super) fn look(&mut self, place: &Place) {
        self.find(place);
        self.read(place);
    }

    /// Goes on to look for boards, if that is due; whether there may be more.
    fn find(&mut self, place: &Place) -> bool {
        if self.finder.begins((place.clock)()) {
            self.leave_those_who_have_gone();
        }
        let batch = self.finder.next();
        let users = batch.iter().flat_map(|batch| batch.users(place.namespace));
        users.filter(|&user| user != place.user).for_each(|user| self.admit(place, user));
        batch.is_some()
    }

    fn leave_those_who_have_gone(&mut self) {
        self.all.retain(|user| user.file.metadata().is_ok_and(|meta| meta.nlink() > 0));
    }

    /// Takes in a user with a board, if there is a place, or somebody is silent and it is not.
    fn admit(&mut self, place: &Place, id: u32) {
        if self.all.iter().any(|user| user.id == id) {
            return;
        }
        let Some(file) = open(place, id) else { return };
        let mut user = User::new(id, file, self.patience.lost_until_ns);
        user.read(&mut self.copied, place.clock);
        if self.all.len() < USERS {
            self.all.push(user);
            return;
        }
        let now = (place.clock)();
        let silent = self.all.iter_mut().find(|user| user.is_silent(now));
        if let Some(silent) = silent.filter(|_| !user.is_silent(now)) {
            *silent = user;
        }
    }

    fn read(&mut self, place: &Place) {
        self.all.iter_mut().for_each(|user| user.read(&mut self.copied, place.clock));
    }

    /// What those who want something may use, and how many of them are before this user.
    pub(super) fn demands(&self, own: u32) -> (Vec<Wanted>, u64) {
        let demanding = self.all.iter().filter(|user| user.said.usable.bytes > 0);
        let before = demanding.clone().filter(|user| user.id < own).count() as u64;
        (demanding.map(|user| user.said.usable).collect(), before)
    }

    /// What they leave this user of the whole. What they hold now, and what they take the whole for, counts as far as it is believed.
    pub(super) fn free(&mut self, place: &Place, whole_bytes: u64, claim: &Claim) -> u64 {
        self.read(place);
        let whole = self.whole_bytes(whole_bytes, claim);
        let now = (place.clock)();
        let counted = |(index, user): (usize, &User)| match user.is_doubted(now) {
            true => user.said.held_bytes.min(self.part_bytes(index, whole, claim)),
            false => user.said.held_bytes,
        };
        whole.saturating_sub(self.all.iter().enumerate().map(counted).fold(0, u64::saturating_add))
    }

    /// What is thought of them by what they held when they were read last, by somebody who holds so much of what it wants. Who lacks little of it does not wait: processes do not see each
    /// other's wishes change at the same time.
    pub(super) fn judge(&mut self, place: &Place, whole_bytes: u64, claim: &Claim, held_bytes: u64) {
        let waits = held_bytes < claim.wanted_bytes - claim.wanted_bytes / LITTLE_SHARE;
        let whole = self.whole_bytes(whole_bytes, claim);
        let now = (place.clock)();
        let mut over = [false; USERS];
        for (index, user) in self.all.iter().enumerate() {
            over[index] = user.said.held_bytes > self.part_bytes(index, whole, claim);
        }
        let is_held_up = self.all.iter().zip(over).any(|(user, over)| over && !user.is_doubted(now));
        // So long it takes until an honest one has seen our wish, and what it has granted has come.
        self.patience.prompt_ns = FRESH_NS + claim.patience_ns / ROUND_TRIP_SHARE;
        self.patience.look(waits, is_held_up, now);
        for (user, _) in self.all.iter_mut().zip(over).filter(|&(_, over)| over) {
            let patience_ns = user.patience_ns(claim.patience_ns);
            if user.is_doubted(now) || (waits && self.patience.used_ns >= patience_ns) {
                user.doubted_until_ns = now.saturating_add(DISTRUST_TIMES * patience_ns);
                self.patience.lost_until_ns = self.patience.lost_until_ns.max(user.doubted_until_ns);
            }
        }
    }

    /// This process does not wait any more.
    pub(super) fn end_wait(&mut self, place: &Place) {
        if self.patience.is_held_up || self.patience.wait_ns > 0 {
            self.patience.look(false, false, (place.clock)());
        }
    }

    fn whole_bytes(&self, whole_bytes: u64, claim: &Claim) -> u64 {
        let said = self.all.iter().map(|user| user.said.whole_bytes).max().unwrap_or(0);
        whole_bytes.max(said.min(claim.uncut_bytes))
    }

    /// A user's fair part of the whole. Where they take turns all of them together leave what is for whose turn it is.
    fn part_bytes(&self, index: usize, whole_bytes: u64, claim: &Claim) -> u64 {
        let own = self.all[index].said.usable;
        let mut others = [Wanted::default(); USERS];
        let demanding =
            self.all.iter().enumerate().filter(|&(place, user)| place != index && user.said.usable.bytes > 0);
        let mut count = 0;
        for other in demanding.map(|(_, user)| user.said.usable).chain([claim.usable]) {
            (others[count], count) = (other, count + 1);
        }
        let others = &mut others[..count];
        let packet = own.packet_bytes;
        let part = match fair::rounds(whole_bytes, packet, others) {
            1 => fair::part(whole_bytes, packet, others),
            _ => (whole_bytes - fair::longest(whole_bytes, packet, others)) / count as u64,
        };
        own.bytes.min(part)
    }
}

#[cfg(test)]
mod tests;
