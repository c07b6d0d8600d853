//! Processors: how many there are for two threads that help each other by running at the same time, and leaving one. No allocation, no locale: it is asked inside other programs'
//! calls.

use crate::sys;

/// Those online, cut by the cgroup's cpu.max; at least one. The affinity of a thread says nothing: an end pinned to one processor talks to an end on another.
pub fn usable() -> u32 {
    online().min(quota()).max(1)
}

/// Processors online, from a list such as `0-3,8`.
pub fn online() -> u32 {
    let mut text = [0u8; 256];
    let n = read_file(c"/sys/devices/system/cpu/online".as_ptr().cast(), &mut text);
    let line = text[..n].split(|b| *b == b'\n').next().unwrap_or(&[]);
    line.split(|b| *b == b',').fold(0, |sum, range| {
        let mut ends = range.split(|b| *b == b'-').map(number);
        match (ends.next().flatten(), ends.next().flatten()) {
            (Some(first), Some(last)) => sum + last.saturating_sub(first) as u32 + 1,
            (Some(_), None) => sum + 1,
            _ => sum,
        }
    })
}

/// Room for 8192 processors: the kernel refuses less than it has.
const MASK_WORDS: usize = 128;
type Mask = [u64; MASK_WORDS];

/// The processors that a thread may run on, which the kernel makes of what was set last and of the cgroup's cpuset.
trait Affinity {
    fn get(&mut self) -> Option<Mask>;
    /// False when the kernel refuses: none of them are in the cpuset.
    fn set(&mut self, mask: &Mask) -> bool;
}

/// Of the calling thread.
struct Mine {
    /// As long as the kernel's own masks.
    bytes: usize,
}

impl Affinity for Mine {
    fn get(&mut self) -> Option<Mask> {
        let mut mask = [0u64; MASK_WORDS];
        // SAFETY: the buffer is valid for its size; 0 is the calling thread.
        self.bytes = unsafe { sys::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr()) }.ok()?;
        Some(mask)
    }

    fn set(&mut self, mask: &Mask) -> bool {
        // SAFETY: the kernel's masks are no longer than the one that it has filled in; 0 is the calling thread.
        unsafe { sys::sched_setaffinity(0, self.bytes, mask.as_ptr()).is_ok() }
    }
}

/// Moves the calling thread to another of the processors that it may run on, if there is one.
pub fn leave_current() {
    let mut here = 0u32;
    // SAFETY: a place for a number, and none for what is not asked.
    if unsafe { sys::getcpu(&mut here, core::ptr::null_mut(), core::ptr::null_mut()) }.is_ok() {
        leave(here as usize, &mut Mine { bytes: 0 });
    }
}

fn leave(here: usize, affinity: &mut impl Affinity) {
    let Some(mask) = affinity.get() else { return };
    let mut others = mask;
    let Some(word) = others.get_mut(here / 64) else { return };
    *word &= !(1 << (here % 64));
    if others.iter().all(|word| *word == 0) || !affinity.set(&others) {
        return;
    }
    // What is set holds for good, for threads and programs to come as well, and cuts what a cpuset may become. A thread that was free to
    // use all of its cpuset gets everything, so that it stays so.
    if !affinity.set(&[u64::MAX; MASK_WORDS]) || affinity.get() != Some(mask) {
        affinity.set(&mask);
    }
}

/// How sure it is that more threads want to run than there are processors: then a thread that spins keeps another from its work, which may be the very one it waits for. Made of counts now and then:
/// a single one may have met what runs for a moment, and a crowd has thin moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Rises with each count that found more of them, falls with every other one.
    pub level: u32,
}

impl Crowd {
    /// Time from one count to the next, at least.
    pub const COUNT_NS: u64 = 2_000_000;
    /// More than one, so that thin moments do not end it.
    const RISE: u32 = 2;
    /// Three counts: two in a row can both have met a helper or a thread of the kernel, which run for a moment.
    const FROM: u32 = 5;
    /// Six counts that find no more of them end the longest.
    const MOST: u32 = 10;

    /// After another count.
    pub fn after(self, runnable: u32, online: u32) -> Crowd {
        let level =
            if runnable > online { (self.level + Self::RISE).min(Self::MOST) } else { self.level.saturating_sub(1) };
        Crowd { level }
    }

    /// No count of late has found more threads than processors.
    pub fn is_over(self) -> bool {
        self.level == 0
    }

    /// The last count found more, as did at least half of those before.
    pub fn is_lasting(self) -> bool {
        self.level == Self::MOST
    }

    pub fn is_there(self) -> bool {
        self.level >= Self::FROM
    }
}

/// Threads of the whole machine that run or could run: the number before the slash in `/proc/loadavg`. 0 where there is none.
pub fn runnable_in(loadavg: &[u8]) -> u32 {
    let words = loadavg.split(|b| *b == b' ').nth(3);
    words.and_then(|w| w.split(|b| *b == b'/').next()).and_then(number).unwrap_or(0) as u32
}

/// Whole processors that the cgroup's quota allows (v2, the process's own group as it sees itself).
fn quota() -> u32 {
    let mut text = [0u8; 64];
    let n = read_file(c"/sys/fs/cgroup/cpu.max".as_ptr().cast(), &mut text);
    let mut words = text[..n].split(|b| b.is_ascii_whitespace());
    match (words.next().and_then(number), words.next().and_then(number)) {
        (Some(quota), Some(period)) if period > 0 => (quota / period) as u32,
        _ => u32::MAX,
    }
}

/// A number in decimal digits and nothing else.
pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0u64, |v, d| v.saturating_mul(10).saturating_add((d - b'0') as u64)))
}

/// Reads the beginning of a small file. `path` is a C string.
pub(crate) fn read_file(path: *const u8, out: &mut [u8]) -> usize {
    // SAFETY: callers give C string literals; the buffer is writable for its length.
    unsafe {
        let Ok(fd) = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0) else { return 0 };
        let n = sys::read(fd as i32, out.as_mut_ptr(), out.len()).unwrap_or(0);
        let _ = sys::close(fd as i32);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_least_and_pinning_changes_nothing() {
        let before = usable();
        assert!(before >= 1 && before <= online());
        let mut mine = Mine { bytes: 0 };
        let may = mine.get().expect("affinity");
        let first = may.iter().position(|word| *word != 0).expect("some processor");
        let mut one = [0u64; MASK_WORDS];
        one[first] = 1 << may[first].trailing_zeros();
        assert!(mine.set(&one), "pinned");
        assert_eq!(usable(), before);
        assert!(mine.set(&may), "free again");
    }

    /// A thread as the kernel has it from Linux 6.2 on; eight processors.
    struct Thread {
        cpuset: u64,
        /// What was set last; none at first.
        user: Option<u64>,
    }

    impl Thread {
        fn may(&self) -> u64 {
            self.cpuset & self.user.unwrap_or(0xff)
        }
    }

    impl Affinity for Thread {
        fn get(&mut self) -> Option<Mask> {
            let mut mask = [0u64; MASK_WORDS];
            mask[0] = self.may();
            Some(mask)
        }

        fn set(&mut self, mask: &Mask) -> bool {
            let is_allowed = mask[0] & self.cpuset != 0;
            self.user = if is_allowed { Some(mask[0]) } else { self.user };
            is_allowed
        }
    }

    #[test]
    fn a_thread_that_has_stepped_aside_follows_a_cpuset_that_grows() {
        let mut thread = Thread { cpuset: 0b11, user: None };
        leave(0, &mut thread);
        assert_eq!(thread.may(), 0b11);
        thread.cpuset = 0xff;
        assert_eq!(thread.may(), 0xff);
    }

    #[test]
    fn a_thread_that_was_pinned_is_so_after_it_has_stepped_aside() {
        for (pinned, here) in [(0b110, 1), (0b110, 2), (0b100, 2)] {
            let mut thread = Thread { cpuset: 0b1111, user: Some(pinned) };
            leave(here, &mut thread);
            thread.cpuset = 0xff;
            assert_eq!(thread.may(), pinned);
        }
    }

    #[test]
    fn a_crowd_is_what_several_counts_have_found() {
        assert_eq!(runnable_in(b"0.10 0.20 0.30 3/180 4242\n"), 3);
        assert_eq!((runnable_in(b""), runnable_in(b"0.1 0.2 0.3 x/1 2")), (0, 0));
        let counts =
            |crowd: Crowd, counts: &[u32]| counts.iter().fold(crowd, |crowd, runnable| crowd.after(*runnable, 2));
        let twice = counts(Crowd::default(), &[2, 9, 9]);
        assert!(!twice.is_there() && !twice.is_over() && counts(twice, &[9]).is_there());
        let crowd = counts(twice, &[9; 9]);
        assert!(crowd.is_there() && counts(crowd, &[1, 9, 1, 9]).is_there());
        assert!(counts(crowd, &[1; 5]).is_there() && !counts(crowd, &[1; 6]).is_there());
        assert!(counts(crowd, &[1; 10]).is_over());
    }

    #[test]
    fn numbers_have_digits_only() {
        assert_eq!([number(b"12"), number(b""), number(b"max"), number(b"1 ")], [Some(12), None, None, None]);
    }
}
