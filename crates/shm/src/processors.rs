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

/// Moves the calling thread to another of the processors that it may run on, if there is one.
pub fn leave_current() {
    /// Room for 8192 processors: the kernel refuses less than it has.
    const WORDS: usize = 128;
    let mut mask = [0u64; WORDS];
    let mut here = 0u32;
    // SAFETY: the buffers are valid for their sizes; 0 is the calling thread.
    unsafe {
        let size = size_of_val(&mask);
        let Ok(n) = sys::sched_getaffinity(0, size, mask.as_mut_ptr()) else { return };
        if sys::getcpu(&mut here, core::ptr::null_mut(), core::ptr::null_mut()).is_err() || here as usize >= 8 * n {
            return;
        }
        let (word, bit) = (here as usize / 64, 1u64 << (here % 64));
        let mut others = mask;
        others[word] &= !bit;
        if others.iter().any(|w| *w != 0) && sys::sched_setaffinity(0, n, others.as_ptr()).is_ok() {
            let _ = sys::sched_setaffinity(0, n, mask.as_ptr());
        }
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
fn read_file(path: *const u8, out: &mut [u8]) -> usize {
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
        let mut may = [0u64; 128];
        // SAFETY: the buffers are as long as is said; 0 is the calling thread.
        let pin = |mask: &[u64]| unsafe { sys::sched_setaffinity(0, size_of_val(mask), mask.as_ptr()) };
        // SAFETY: the same.
        let bytes = unsafe { sys::sched_getaffinity(0, size_of_val(&may), may.as_mut_ptr()) }.expect("affinity");
        let words = bytes.div_ceil(8);
        let first = may.iter().position(|word| *word != 0).expect("some processor");
        let mut one = [0u64; 128];
        one[first] = 1 << may[first].trailing_zeros();
        pin(&one[..words]).expect("pinned");
        assert_eq!(usable(), before);
        pin(&may[..words]).expect("free again");
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
