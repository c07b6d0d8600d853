//! How many processors there are for two threads that help each other by running at the same time. No allocation, no locale: it is asked inside other programs'
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
    fn numbers_have_digits_only() {
        assert_eq!([number(b"12"), number(b""), number(b"max"), number(b"1 ")], [Some(12), None, None, None]);
    }
}
