//! Numbers in messages: what arrives is told from what was lost, changed or meant for another step, at the price of two comparisons.
//!
//! A message bears its number in its first and last eight bytes, as far as it has room. Where a transport may lose messages, stale ones (of another step, or of another length) are
//! passed over; where it may not, anything but the expected number is damage.

use std::time::Duration;

use crate::Failure;
use crate::transport::{Rank, Transport};

/// Bytes of the number.
const WORD: usize = size_of::<u64>();

/// Words between ranks beside the data: a tag that no data message bears, a step, a value.
const CONTROL: usize = 3 * WORD;

/// The top bit: as the number of a data message it would be far behind, and so stale.
const CONTROL_TAG: u64 = 0xB000_0000_0000_0000;

/// How often a word is sent where words may be lost. 16 in a row get lost once in 10^11 times at a loss of one in five.
const COPIES: usize = 16;

/// How long a rank waits for a word that may have been lost: the longest step of any pattern is shorter.
const WORD_PATIENCE_NS: u64 = 20_000_000_000;

/// Quiet times in a row after which nobody sends any more: a peer that waits for a lost answer is quiet once.
pub const QUIETS: u32 = 3;

/// Writes the number into a message.
pub fn write(bytes: &mut [u8], number: u64) {
    let word = number.to_le_bytes();
    let room = bytes.len().min(WORD);
    bytes[..room].copy_from_slice(&word[..room]);
    if bytes.len() >= 2 * WORD {
        let tail = bytes.len() - WORD;
        bytes[tail..].copy_from_slice(&word);
    }
}

/// The number of a message of which none before `expected` can be news: the nearest from there on that ends in the bytes that the message has room for. `None`: damaged, or stale.
fn read(bytes: &[u8], expected: u64) -> Option<u64> {
    let room = bytes.len().min(WORD);
    let mut word = [0; WORD];
    word[..room].copy_from_slice(&bytes[..room]);
    if bytes.len() >= 2 * WORD && bytes[bytes.len() - WORD..] != word {
        return None;
    }
    let modulus_mask = if room == WORD { u64::MAX } else { (1 << (8 * room)) - 1 };
    let ahead = u64::from_le_bytes(word).wrapping_sub(expected) & modulus_mask;
    (ahead <= modulus_mask / 2).then(|| expected.wrapping_add(ahead))
}

/// Sends message `number`.
pub fn send(transport: &mut dyn Transport, to: Rank, bytes: &mut [u8], number: u64) -> Result<(), Failure> {
    write(bytes, number);
    transport.send(to, bytes)
}

/// Waits for message `expected`, or a later one where those between may have been lost, and gives its number. `None`: nothing came for the time in which a lost message would have.
pub fn receive(
    transport: &mut dyn Transport,
    from: Rank,
    into: &mut [u8],
    expected: u64,
) -> Result<Option<u64>, Failure> {
    next(transport, |transport, from, into| transport.receive(from, into), from, into, expected)
}

/// The same, without waiting.
pub fn take(transport: &mut dyn Transport, from: Rank, into: &mut [u8], expected: u64) -> Result<Option<u64>, Failure> {
    next(transport, |transport, from, into| transport.try_receive(from, into), from, into, expected)
}

/// Takes what comes until it is news.
#[inline]
fn next(
    transport: &mut dyn Transport,
    get: impl Fn(&mut dyn Transport, Rank, &mut [u8]) -> Result<bool, Failure>,
    from: Rank,
    into: &mut [u8],
    expected: u64,
) -> Result<Option<u64>, Failure> {
    loop {
        let arrived = get(transport, from, into);
        if let Some(judged) = judge(transport.is_reliable(), arrived, from, into, expected) {
            return judged;
        }
    }
}

/// What came from a rank that has nothing to say any more. Where messages may be late or sent again it is thrown away, so that `wait_any` can tell of others; elsewhere it is of the next step.
pub fn pass_over(transport: &mut dyn Transport, from: Rank) -> Result<(), Failure> {
    if transport.is_reliable() {
        return Ok(());
    }
    match transport.try_receive(from, &mut [0]) {
        Ok(_) | Err(Failure::Damaged { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// `None`: stale, look again.
#[inline]
fn judge(
    is_reliable: bool,
    arrived: Result<bool, Failure>,
    from: Rank,
    bytes: &[u8],
    expected: u64,
) -> Option<Result<Option<u64>, Failure>> {
    match arrived {
        Ok(false) => Some(Ok(None)),
        Ok(true) => match read(bytes, expected) {
            Some(number) if number == expected || !is_reliable => Some(Ok(Some(number))),
            _ if !is_reliable => None,
            _ => {
                let what = "its number is wrong: bytes were lost, doubled or changed on the way";
                Some(Err(Failure::Damaged { peer: from, expected: bytes.len(), what }))
            }
        },
        Err(Failure::Damaged { .. }) if !is_reliable => None,
        Err(error) => Some(Err(error)),
    }
}

/// Tells another rank a value, so that it arrives whatever gets lost.
pub fn tell(transport: &mut dyn Transport, to: Rank, step: u64, value: u64) -> Result<(), Failure> {
    let mut word = [0; CONTROL];
    for (place, part) in word.chunks_exact_mut(WORD).zip([CONTROL_TAG, step, value]) {
        place.copy_from_slice(&part.to_le_bytes());
    }
    let copies = if transport.is_reliable() { 1 } else { COPIES };
    (0..copies).try_for_each(|_| transport.send(to, &word))
}

/// Waits for the value that the other rank tells for this step.
pub fn hear(transport: &mut dyn Transport, from: Rank, step: u64) -> Result<u64, Failure> {
    let mut word = [0; CONTROL];
    let since_ns = transport.now_ns();
    loop {
        let arrived = transport.receive(from, &mut word);
        if let Some(value) = heard(transport.is_reliable(), arrived, from, &word, step)? {
            return Ok(value);
        }
        let waited_ns = transport.now_ns() - since_ns;
        if waited_ns > WORD_PATIENCE_NS {
            return Err(Failure::Silent { peer: from, limit: Duration::from_nanos(waited_ns) });
        }
    }
}

/// Whether the other rank has told something for this step, of one that tells nothing else now.
pub fn has_heard(transport: &mut dyn Transport, from: Rank, step: u64) -> Result<bool, Failure> {
    let mut word = [0; CONTROL];
    loop {
        let arrived = transport.try_receive(from, &mut word);
        if let Ok(false) = arrived {
            return Ok(false);
        }
        if heard(transport.is_reliable(), arrived, from, &word, step)?.is_some() {
            return Ok(true);
        }
    }
}

/// The value of a word, if it is one of this step; where words are sent again and again, others are stale.
fn heard(
    is_reliable: bool,
    arrived: Result<bool, Failure>,
    from: Rank,
    word: &[u8; CONTROL],
    step: u64,
) -> Result<Option<u64>, Failure> {
    let [tag, of_step, value] = [0, 1, 2].map(|place| u64::from_le_bytes(word.as_chunks().0[place]));
    match arrived {
        Ok(true) if (tag, of_step) == (CONTROL_TAG, step) => Ok(Some(value)),
        Ok(true) if is_reliable => {
            let what = "a word between the ranks was expected, and something else came";
            Err(Failure::Damaged { peer: from, expected: CONTROL, what })
        }
        Err(error) if is_reliable || !matches!(error, Failure::Damaged { .. }) => Err(error),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_back_from_as_many_bytes_as_there_are() {
        for length in [1, 2, 7, 8, 15, 16, 100] {
            let mut bytes = vec![0; length];
            write(&mut bytes, 1000);
            for expected in [1000, 999, 950] {
                assert_eq!(read(&bytes, expected), Some(1000), "{length} bytes, {expected} expected");
            }
            assert_eq!(read(&bytes, 1001), None, "{length} bytes: it is behind");
        }
    }

    #[test]
    fn a_message_whose_end_is_of_another_one_is_damaged() {
        let mut bytes = vec![0; 64];
        write(&mut bytes, 7);
        bytes[60] ^= 1;
        assert_eq!(read(&bytes, 7), None);
    }

    #[test]
    fn words_between_ranks_are_stale_as_data() {
        let mut word = [0; CONTROL];
        word[..WORD].copy_from_slice(&CONTROL_TAG.to_le_bytes());
        word[2 * WORD..].copy_from_slice(&CONTROL_TAG.to_le_bytes());
        assert_eq!(read(&word, 1 << 40), None);
    }
}
