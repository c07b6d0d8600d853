//! Blocks, of which CONTROL and STATE consist (2.8).

use crate::{Malformed, NoRoom};

const RRQ: u8 = 1;
const CREDIT: u8 = 2;
const HOLD: u8 = 3;
const WANT: u8 = 4;
const RETURN: u8 = 5;
const VOID: u8 = 6;

/// Kind and number of entries.
const HEAD_BYTES: usize = 2;
const RANGE_BYTES: usize = 6;
const LIMIT_BYTES: usize = 10;
const CHANNEL_BYTES: usize = 2;
const NUMBER_BYTES: usize = 4;
const RETURN_BYTES: usize = CHANNEL_BYTES + NUMBER_BYTES;
const VOID_BYTES: usize = CHANNEL_BYTES + RANGE_BYTES + 2;

/// The bytes of one entry of a kind, if there is such a kind.
#[inline]
const fn entry_bytes(kind: u8) -> Option<usize> {
    match kind {
        RRQ => Some(RANGE_BYTES),
        CREDIT | WANT => Some(LIMIT_BYTES),
        HOLD => Some(CHANNEL_BYTES),
        RETURN => Some(RETURN_BYTES),
        VOID => Some(VOID_BYTES),
        _ => None,
    }
}

/// What a CONTROL or STATE says. Requests come a block at a time, everything else an entry at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// These numbers are missing: send them again.
    Rrq(Ranges<'a>),
    /// The channel may carry payload bytes up to this offset, counted from its first: `(channel, limit)`.
    Credit(u16, u64),
    /// There is no memory for this channel now.
    Hold(u16),
    /// The sender waits for credit on this channel; the limit it knows: `(channel, limit)`.
    Want(u16, u64),
    /// There is no memory for what the channel sent with this number, and behind it: take it back. `(channel, low 32 bits)`.
    Return(u16, u32),
    /// These numbers bring nothing.
    Void(Void),
}

/// Numbers whose packets were taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Void {
    /// Whose they were.
    pub channel: u16,
    /// Low 32 bits of the first one.
    pub low: u32,
    /// How many in a row; not 0.
    pub count: u16,
    /// So far behind the first one is the next number with which the channel may send: `count` at least.
    pub until: u16,
}

/// The blocks of a payload, in order. Checked as a whole when made; possibly none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    /// The entries of the block at hand that have not been given out; whole entries of a known kind.
    entries: &'a [u8],
    kind: u8,
    /// The blocks behind it.
    rest: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// # Errors
    /// A block of an unknown kind, without entries, or with entries that do not fit; a range of no numbers.
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Result<Blocks<'a>, Malformed> {
        let mut rest = payload;
        while !rest.is_empty() {
            let Some((kind, entries, after)) = split_block(rest) else { return Err(Malformed::Block) };
            let is_wrong = match kind {
                RRQ => Ranges(entries).any(|(_, count)| count == 0),
                VOID => entries.chunks_exact(VOID_BYTES).any(|entry| !parse_void(entry).is_some_and(Void::is_range)),
                _ => false,
            };
            if is_wrong {
                return Err(Malformed::Block);
            }
            rest = after;
        }
        Ok(Blocks { entries: &[], kind: 0, rest: payload })
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        if self.entries.is_empty() {
            (self.kind, self.entries, self.rest) = split_block(self.rest)?;
        }
        if self.kind == RRQ {
            return Some(Block::Rrq(Ranges(core::mem::take(&mut self.entries))));
        }
        let (entry, after) = self.entries.split_at_checked(entry_bytes(self.kind)?)?;
        self.entries = after;
        let (&channel, rest) = entry.split_first_chunk()?;
        let channel = u16::from_be_bytes(channel);
        let limit = || rest.first_chunk().map(|&limit| u64::from_be_bytes(limit));
        Some(match self.kind {
            CREDIT => Block::Credit(channel, limit()?),
            HOLD => Block::Hold(channel),
            WANT => Block::Want(channel, limit()?),
            RETURN => Block::Return(channel, u32::from_be_bytes(*rest.first_chunk()?)),
            _ => Block::Void(parse_void(entry)?),
        })
    }
}

/// Kind and entries of the first block, and what follows it.
#[inline]
fn split_block(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[kind, count], rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    if count == 0 {
        return None;
    }
    let (entries, after) = rest.split_at_checked(usize::from(count) * entry_bytes(kind)?)?;
    Some((kind, entries, after))
}

fn parse_void(entry: &[u8]) -> Option<Void> {
    let &[a, b, c, d, e, f, g, h, i, j] = entry.first_chunk::<VOID_BYTES>()?;
    let [channel, count, until] = [[a, b], [g, h], [i, j]].map(u16::from_be_bytes);
    Some(Void { channel, low: u32::from_be_bytes([c, d, e, f]), count, until })
}

impl Void {
    fn is_range(self) -> bool {
        self.count > 0 && self.until >= self.count
    }
}

/// The ranges of a request: low 32 bits of the first number, and how many numbers from it on, which is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [u8]);

impl Iterator for Ranges<'_> {
    type Item = (u32, u16);

    #[inline]
    fn next(&mut self) -> Option<(u32, u16)> {
        let (&[a, b, c, d, e, f], rest) = self.0.split_first_chunk::<RANGE_BYTES>()?;
        self.0 = rest;
        Some((u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f])))
    }
}

/// Appends entries to the payload of a CONTROL or STATE while they fit. Entries of one kind in a row share a block.
#[derive(Debug)]
pub struct BlockWriter<'a> {
    out: &'a mut [u8],
    used: usize,
    /// Where the last block begins.
    last: Option<usize>,
}

impl<'a> BlockWriter<'a> {
    /// Writes from the beginning of `out`, which is as long as the payload may become.
    #[must_use]
    #[inline]
    pub fn new(out: &'a mut [u8]) -> BlockWriter<'a> {
        BlockWriter { out, used: 0, last: None }
    }

    /// Asks for `count` numbers from the one with the low bits `low` on; `count` is not 0. Whether it fitted.
    #[must_use]
    pub fn rrq(&mut self, low: u32, count: u16) -> bool {
        debug_assert!(count > 0, "a range of no numbers is malformed");
        let ([a, b, c, d], [e, f]) = (low.to_be_bytes(), count.to_be_bytes());
        self.entry(RRQ, [a, b, c, d, e, f]).is_ok()
    }

    /// Lets the channel carry bytes up to `limit`. Whether it fitted.
    #[must_use]
    pub fn credit(&mut self, channel: u16, limit: u64) -> bool {
        self.entry(CREDIT, channel_and_limit(channel, limit)).is_ok()
    }

    /// Says that there is no memory for the channel. Whether it fitted.
    #[must_use]
    pub fn hold(&mut self, channel: u16) -> bool {
        self.entry(HOLD, channel.to_be_bytes()).is_ok()
    }

    /// Says that the channel waits for credit above `limit`. Whether it fitted.
    #[must_use]
    pub fn want(&mut self, channel: u16, limit: u64) -> bool {
        self.entry(WANT, channel_and_limit(channel, limit)).is_ok()
    }

    /// Gives back what the channel sent with the number with these low bits, and behind it. Whether it fitted.
    #[must_use]
    pub fn give_back(&mut self, channel: u16, low: u32) -> bool {
        let ([a, b], [c, d, e, f]) = (channel.to_be_bytes(), low.to_be_bytes());
        self.entry(RETURN, [a, b, c, d, e, f]).is_ok()
    }

    /// Says that these numbers bring nothing. Whether it fitted.
    #[must_use]
    pub fn void(&mut self, void: &Void) -> bool {
        debug_assert!(
            void.is_range(),
            "a range of no numbers is malformed, and so is one that ends behind the channel's next"
        );
        let ([a, b], [c, d, e, f]) = (void.channel.to_be_bytes(), void.low.to_be_bytes());
        let ([g, h], [i, j]) = (void.count.to_be_bytes(), void.until.to_be_bytes());
        self.entry(VOID, [a, b, c, d, e, f, g, h, i, j]).is_ok()
    }

    /// Bytes written so far.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Appends to the last block if it is of this kind and not full, else begins one. What does not fit changes nothing.
    fn entry<const N: usize>(&mut self, kind: u8, entry: [u8; N]) -> Result<(), NoRoom> {
        let open = self.last.filter(|&at| self.out[at] == kind && self.out[at + 1] < u8::MAX);
        let head = if open.is_none() { HEAD_BYTES } else { 0 };
        let room = self.out.get_mut(self.used..self.used + head + N).ok_or(NoRoom)?;
        room[head..].copy_from_slice(&entry);
        let at = open.unwrap_or(self.used);
        if open.is_none() {
            self.out[at] = kind;
            self.out[at + 1] = 0;
        }
        self.out[at + 1] += 1;
        self.last = Some(at);
        self.used += head + N;
        Ok(())
    }
}

#[inline]
fn channel_and_limit(channel: u16, limit: u64) -> [u8; LIMIT_BYTES] {
    let mut entry = [0; LIMIT_BYTES];
    entry[..CHANNEL_BYTES].copy_from_slice(&channel.to_be_bytes());
    entry[CHANNEL_BYTES..].copy_from_slice(&limit.to_be_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_one_kind_share_a_block_and_come_back_in_order() {
        let mut out = [0; 256];
        let mut writer = BlockWriter::new(&mut out);
        assert!(writer.is_empty());
        assert!(writer.rrq(7, 1) && writer.rrq(9, 300) && writer.hold(3) && writer.credit(4, 5) && writer.credit(6, 7));
        let void = Void { channel: 5, low: 6, count: 1, until: 9 };
        assert!(writer.want(8, u64::MAX) && writer.give_back(9, u32::MAX) && writer.void(&void) && writer.rrq(1, 1));
        let used = writer.len();
        let entries = 3 * RANGE_BYTES + CHANNEL_BYTES + 3 * LIMIT_BYTES + RETURN_BYTES + VOID_BYTES;
        assert_eq!(used, 7 * HEAD_BYTES + entries);
        let mut blocks = Blocks::parse(&out[..used]).unwrap();
        let Some(Block::Rrq(ranges)) = blocks.next() else { panic!("a request comes first") };
        assert_eq!(ranges.collect::<Vec<_>>(), [(7, 1), (9, 300)]);
        let rest: Vec<_> = blocks.by_ref().take(6).collect();
        let words = [Block::Hold(3), Block::Credit(4, 5), Block::Credit(6, 7), Block::Want(8, u64::MAX)];
        assert_eq!(rest, [&words[..], &[Block::Return(9, u32::MAX), Block::Void(void)]].concat());
        assert!(matches!(blocks.next(), Some(Block::Rrq(ranges)) if ranges.eq([(1, 1)])));
        assert_eq!(blocks.next(), None);
    }

    #[test]
    fn a_full_block_is_followed_by_another_of_its_kind() {
        let mut out = [0; 1024];
        let mut writer = BlockWriter::new(&mut out);
        assert!((0..300).all(|channel| writer.hold(channel)));
        let used = writer.len();
        assert_eq!(used, 2 * HEAD_BYTES + 300 * CHANNEL_BYTES);
        let channels = Blocks::parse(&out[..used]).unwrap().map(|block| match block {
            Block::Hold(channel) => channel,
            other => panic!("{other:?}"),
        });
        assert!(channels.eq(0..300));
    }

    #[test]
    fn an_entry_that_does_not_fit_changes_nothing() {
        let mut out = [0xAA; 15];
        let mut writer = BlockWriter::new(&mut out);
        assert!(writer.credit(1, 2));
        assert!(!writer.credit(1, 3) && !writer.hold(1));
        assert_eq!(writer.len(), 12);
        assert_eq!(out[12..], [0xAA; 3]);
        assert_eq!(Blocks::parse(&out[..12]).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_block_makes_the_whole_payload_malformed() {
        let good = [HOLD, 1, 0, 9];
        for bad in [
            &[][..],
            &[HOLD],
            &[0, 1, 0, 0],
            &[7, 1, 0, 0],
            &[HOLD, 0],
            &[HOLD, 2, 0, 9],
            &[RRQ, 1, 0, 0, 0, 1, 0, 0],
            &[RETURN, 1, 0, 0, 0, 0, 1],
            &[VOID, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
            &[VOID, 1, 0, 0, 0, 0, 0, 1, 0, 2, 0, 1],
        ] {
            let payload = [&good, bad].concat();
            assert_eq!(Blocks::parse(&payload).is_ok(), bad.is_empty(), "{bad:?}");
        }
    }
}
