//! Standard input as a source: what is read from it cannot be read again, so what the receiver has not said to have written is kept.

use std::collections::VecDeque;
use std::io::{self, Read};

use super::CpError;
use super::connect::Connection;
use super::frame::{self, End, Frame, From, Have, MOST_MESSAGE_BYTES, Offer, WRITTEN_EVERY};
use super::progress::Progress;
use super::send::{Answer, answer, conclude, offer};

/// Of what was sent so much is kept at most. Receivers say every [`WRITTEN_EVERY`] bytes what they have written, so one that is less than this behind never keeps the
/// sender waiting.
const MOST_KEPT: usize = 16 << 20;
const _: () = assert!(MOST_KEPT as u64 > 4 * WRITTEN_EVERY);

/// Standard input on its way, over one connection or several.
pub struct Pipe {
    input: Box<dyn Read>,
    name: String,
    kept: Kept,
    /// What the receiver had of it when it was last asked.
    there: Option<u64>,
    /// What ends it, once it has ended.
    end: Option<End>,
    progress: Progress,
}

impl Pipe {
    pub fn new(name: String, quiet: bool) -> Pipe {
        Pipe::over(Box::new(io::stdin().lock()), name, quiet)
    }

    fn over(input: Box<dyn Read>, name: String, quiet: bool) -> Pipe {
        let progress = Progress::new(&name, None, 0, quiet);
        Pipe { input, name, kept: Kept::default(), there: None, end: None, progress }
    }

    /// Sends all there is, from where the receiver has it. After [`CpError::Lost`] another connection can go on.
    pub fn send(&mut self, connection: &Connection) -> Result<(), CpError> {
        let said = Offer {
            name: self.name.clone(),
            size: None,
            mode: None,
            written: true,
            asked: true,
            // It cannot be read ahead of being sent.
            compared: false,
            end: self.end.clone(),
        };
        let Answer::Have(have) = offer(connection, said)? else { return Ok(()) };
        self.there = Some(have.bytes);
        let Some(offset) = self.kept.offset_after(&have) else {
            return Err(CpError::Gone { name: self.name.clone() });
        };
        if offset == have.bytes {
            // As good as a word of what is written, which connections that end early bring none of.
            self.kept.release(offset)?;
        }
        connection.send(&Frame::From(From { offset }).to_message())?;
        self.pump(connection, offset, have.written)?;
        let end = End { size: self.kept.end(), hash: self.kept.hash() };
        self.end = Some(end.clone());
        conclude(connection, end, &self.name)
    }

    /// What is kept from `at` on, and then what the pipe gives, until it has ended. `says`: the receiver says what it has written.
    fn pump(&mut self, connection: &Connection, mut at: u64, says: bool) -> Result<(), CpError> {
        let mut piece = frame::data();
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        loop {
            let mut count = self.kept.copy(at, &mut piece[1..]);
            if count == 0 && self.end.is_none() {
                loop {
                    let said = match self.kept.bytes.len() > MOST_KEPT {
                        // All of it is sent, so a receiver that still says nothing has nothing more to wait for.
                        true => Some(answer(connection, &mut buffer)?),
                        false => connection.heard(&mut buffer)?,
                    };
                    match said {
                        None => break,
                        Some(Frame::Written(written)) if written.bytes <= at => self.kept.release(written.bytes)?,
                        Some(Frame::Refused(why)) => return Err(CpError::refused(why)),
                        Some(_) => return Err(CpError::Nonsense("data was not answered with what is written of it")),
                    }
                }
                count = read_full(&mut self.input, &mut piece[1..]).map_err(CpError::file("standard input"))?;
                self.kept.push(&piece[1..=count]);
                self.progress.advance(count as u64);
            }
            if count == 0 {
                return Ok(());
            }
            connection.send(&piece[..=count])?;
            at += count as u64;
            if !says {
                // Nothing of it would be asked for by an offset.
                self.kept.release(at)?;
            }
        }
    }

    /// What the receiver had of it when it was last asked.
    pub fn there(&self) -> Option<u64> {
        self.there
    }

    /// Says that it is there.
    pub fn finish(self) {
        self.progress.finish(self.kept.end());
    }
}

/// The last bytes of what was sent, and the hash of those before.
#[derive(Default)]
struct Kept {
    /// Of the first byte.
    offset: u64,
    bytes: VecDeque<u8>,
    /// Of what was released.
    before: blake3::Hasher,
}

impl Kept {
    /// The offset behind the last byte.
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Copies from an offset as much as there is and fits.
    fn copy(&self, at: u64, into: &mut [u8]) -> usize {
        let skip = usize::try_from(at - self.offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let count = into.len().min(self.bytes.len() - skip);
        for (to, from) in into.iter_mut().zip(self.bytes.range(skip..skip + count)) {
            *to = *from;
        }
        count
    }

    /// What lies before `to` is not asked for any more.
    fn release(&mut self, to: u64) -> Result<(), CpError> {
        if to > self.end() {
            return Err(CpError::Nonsense("more is written than was sent"));
        }
        let count = usize::try_from(to.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        self.before = self.hasher_over(count);
        self.bytes.drain(..count);
        self.offset += count as u64;
        Ok(())
    }

    /// The hasher of all before the byte that is `count` behind the first.
    fn hasher_over(&self, count: usize) -> blake3::Hasher {
        let mut hasher = self.before.clone();
        let (first, second) = self.bytes.as_slices();
        let of_first = count.min(first.len());
        hasher.update(&first[..of_first]).update(&second[..count - of_first]);
        hasher
    }

    fn hash(&self) -> String {
        self.hasher_over(self.bytes.len()).finalize().to_hex().to_string()
    }

    /// From where a receiver goes on that has this: where that ends if it is of this input, or at the beginning if that is still here. `None`: nowhere.
    fn offset_after(&self, have: &Have) -> Option<u64> {
        let count = have.bytes.checked_sub(self.offset).and_then(|count| usize::try_from(count).ok());
        if let Some(count) = count.filter(|count| *count <= self.bytes.len())
            && self.hasher_over(count).finalize().to_hex().as_str() == have.hash
        {
            return Some(have.bytes);
        }
        (self.offset == 0).then_some(0)
    }
}

/// Fills the buffer as far as the input goes: a pipe gives little at a time.
pub fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match input.read(&mut buffer[at..]) {
            Ok(0) => break,
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::super::connect;
    use super::super::frame::Written;
    use super::*;

    const INPUT: &[u8] = b"what came from a pipe";

    fn have(bytes: &[u8]) -> Have {
        Have { bytes: bytes.len() as u64, hash: blake3::hash(bytes).to_hex().to_string(), written: true }
    }

    fn kept(released: u64) -> Kept {
        let mut kept = Kept::default();
        kept.push(&INPUT[..7]);
        kept.push(&INPUT[7..]);
        kept.release(released).unwrap();
        kept
    }

    #[test]
    fn a_receiver_goes_on_where_it_was_as_long_as_that_is_kept() {
        for released in 0..=INPUT.len() {
            let kept = kept(released as u64);
            assert_eq!((kept.end(), kept.hash()), (INPUT.len() as u64, have(INPUT).hash));
            for there in 0..=INPUT.len() {
                let expected = if there >= released { Some(there as u64) } else { (released == 0).then_some(0) };
                assert_eq!(kept.offset_after(&have(&INPUT[..there])), expected, "{there} after {released}");
                let mut rest = [0; INPUT.len()];
                if let Some(at) = expected {
                    let count = kept.copy(at, &mut rest);
                    assert_eq!(&rest[..count], &INPUT[there..]);
                }
            }
        }
    }

    /// A receiver over one connection: what it has, whether it says what it writes, and after how many bytes the connection is lost.
    fn receive(receiver: Connection, have: &mut Vec<u8>, says: bool, until: usize) -> bool {
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let mut said = 0;
        while let Some(message) = receiver.recv(&mut buffer).unwrap() {
            match Frame::parse(message).unwrap() {
                Frame::Offer(_) => {
                    let hash = blake3::hash(have).to_hex().to_string();
                    let frame = Frame::Have(Have { bytes: have.len() as u64, hash, written: true });
                    receiver.send(&frame.to_message()).unwrap();
                }
                Frame::From(from) => have.truncate(from.offset as usize),
                Frame::Data(bytes) => have.extend(bytes),
                Frame::End(end) => {
                    assert_eq!((end.size, end.hash), (have.len() as u64, blake3::hash(have).to_hex().to_string()));
                    receiver.send(&Frame::Done.to_message()).unwrap();
                }
                frame => panic!("{frame:?}"),
            }
            if have.len() >= until {
                return false;
            }
            if says && have.len() - said >= WRITTEN_EVERY as usize {
                said = have.len();
                receiver.send(&Frame::Written(Written { bytes: said as u64 }).to_message()).unwrap();
            }
        }
        true
    }

    #[test]
    fn a_sender_that_keeps_all_it_may_goes_on_at_any_offset() {
        let input: Vec<u8> = (0..2 * MOST_KEPT as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let mut pipe = Pipe::over(Box::new(io::Cursor::new(input.clone())), "pipe".into(), true);
        let mut there = Vec::new();
        for (says, until) in [(false, MOST_KEPT), (true, MOST_KEPT + (5 << 20)), (true, usize::MAX)] {
            let [sender, receiver] = connect::pair();
            let is_whole = std::thread::scope(|scope| {
                let receiving = scope.spawn(|| receive(receiver, &mut there, says, until));
                let result = pipe.send(&sender);
                assert_eq!(result.is_ok(), until == usize::MAX, "{result:?}");
                let _ = sender.finish();
                receiving.join().unwrap()
            });
            assert_eq!(is_whole, until == usize::MAX);
            // The second connection finds nothing of what the first one carried.
            if !says {
                there.clear();
            }
        }
        assert!(there == input);
    }

    #[test]
    fn a_sender_whose_connections_all_end_before_they_hear_what_is_written_keeps_no_more_than_is_missing() {
        let each = WRITTEN_EVERY as usize - frame::PIECE_BYTES;
        let connections = MOST_KEPT / each + 2;
        let input: Vec<u8> = (0..(connections * each) as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let mut pipe = Pipe::over(Box::new(io::Cursor::new(input.clone())), "pipe".into(), true);
        let mut there = Vec::new();
        for connection in 1..=connections {
            let [sender, receiver] = connect::pair();
            // Longer than it ever takes, unless both ends wait for each other.
            receiver.set_patience(Some(std::time::Duration::from_secs(20)));
            let until = if connection < connections { connection * each } else { usize::MAX };
            std::thread::scope(|scope| {
                let receiving = scope.spawn(|| receive(receiver, &mut there, false, until));
                let result = pipe.send(&sender);
                let _ = sender.finish();
                let is_whole = receiving.join().expect("the sender goes on sending");
                assert_eq!((is_whole, result.is_ok()), (until == usize::MAX, until == usize::MAX), "{result:?}");
            });
        }
        assert!(there == input);
    }

    #[test]
    fn a_sender_that_is_told_to_come_again_while_it_sends_hears_it_as_such() {
        let mut pipe = Pipe::over(Box::new(io::repeat(7)), "pipe".into(), true);
        let [sender, receiver] = connect::pair();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; MOST_MESSAGE_BYTES];
            receiver.recv(&mut buffer).unwrap();
            receiver.send(&Frame::Have(have(b"")).to_message()).unwrap();
            receiver.recv(&mut buffer).unwrap();
            receiver.send(&Frame::Refused(frame::UNFINISHED.into()).to_message()).unwrap();
            receiver.hear_out(&mut buffer);
        });
        let told = pipe.send(&sender).unwrap_err();
        assert!(matches!(told, CpError::Busy(frame::UNFINISHED)), "{told}");
        drop(sender);
        receiving.join().unwrap();
    }

    #[test]
    fn what_is_of_another_input_is_begun_again_if_that_can_be() {
        for there in [&b"what came from"[..13], b"who", b"what came from a pipe and more"] {
            let mut other = there.to_vec();
            other[0] ^= 1;
            assert_eq!(kept(0).offset_after(&have(&other)), Some(0));
            assert_eq!(kept(1).offset_after(&have(&other)), None);
        }
    }

    #[test]
    fn a_receiver_that_has_written_more_than_was_sent_is_not_believed() {
        let mut kept = kept(3);
        assert!(matches!(kept.release(INPUT.len() as u64 + 1), Err(CpError::Nonsense(_))));
        // Told late, or twice.
        kept.release(2).unwrap();
        assert_eq!(kept.offset, 3);
    }
}
