//! What the two ends say to each other: messages whose first byte says what they are.
//!
//! For each file: the sender offers (name, size, mode), the receiver answers how much of it it has already and the hash of that, the sender says from where it
//! goes on, sends the data in pieces and then the hash of the whole, and the receiver says that it has it. Where a file of that name and size is there already, the sender offers
//! it again with that hash. A sender that cannot read its data again hears in between how
//! much is written. A sender may be asked in between whether it is still there.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::CpError;
use crate::output::printable;

/// Data in one message: few enough messages that their cost does not show, small enough for the usual window.
pub const PIECE_BYTES: usize = 128 << 10;
/// A receiver that is asked to says after so much that it is written.
pub const WRITTEN_EVERY: u64 = 1 << 20;
/// Everything but data is short.
pub const MOST_MESSAGE_BYTES: usize = PIECE_BYTES + 1;

/// A receiver that serves as many senders as it may refuses one more with these words, and it tries again.
pub const BUSY: &str = "it serves as many senders as it may";
/// The same where what a connection that is gone has brought of a file is still looked at, or goes to the disk.
pub const UNFINISHED: &str = "it has not finished yet with what came of this file before";

const OFFER: u8 = b'O';
const HAVE: u8 = b'H';
const FROM: u8 = b'F';
const DATA: u8 = b'D';
const WRITTEN: u8 = b'W';
const END: u8 = b'E';
const DONE: u8 = b'K';
const REFUSED: u8 = b'R';
const ASK: u8 = b'A';
const EXISTS: u8 = b'X';

/// The sender has a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub name: String,
    /// `None`: not known before the end.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// The sender wants to hear what is written.
    #[serde(default)]
    pub written: bool,
    /// The sender knows [`Frame::Ask`].
    #[serde(default)]
    pub asked: bool,
    /// The sender knows [`Frame::Exists`], and can read its data before it sends it. An end beside this comes of that, and not of data that was sent.
    #[serde(default)]
    pub compared: bool,
    /// The end, if that was said before or is asked for by [`Frame::Exists`]: the file may be there.
    #[serde(default)]
    pub end: Option<End>,
}

/// The receiver has so many bytes of it, with this hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    pub bytes: u64,
    pub hash: String,
    /// It will say what it has written, as it was asked to.
    #[serde(default)]
    pub written: bool,
}

/// So much of the file is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub bytes: u64,
}

/// The sender goes on from here: what the receiver has, or 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    pub offset: u64,
}

/// The hash of the whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub size: u64,
    pub hash: String,
}

/// A message, looked at.
#[derive(Debug)]
pub enum Frame<'a> {
    Offer(Offer),
    Have(Have),
    From(From),
    Data(&'a [u8]),
    Written(Written),
    End(End),
    /// The file is there, whole.
    Done,
    Refused(String),
    /// Is the sender still there? That this arrives says so, and nothing else does.
    Ask,
    /// A file of that name and size is there. Its sender offers its own again with the end: what a file holds is said to nobody who does not know it.
    Exists,
}

impl<'a> Frame<'a> {
    pub fn parse(message: &'a [u8]) -> Result<Frame<'a>, CpError> {
        let Some((&kind, body)) = message.split_first() else { return Err(CpError::Nonsense("an empty message")) };
        match kind {
            OFFER => json(body).map(Frame::Offer),
            HAVE => json(body).map(Frame::Have),
            FROM => json(body).map(Frame::From),
            DATA => Ok(Frame::Data(body)),
            WRITTEN => json(body).map(Frame::Written),
            END => json(body).map(Frame::End),
            DONE => Ok(Frame::Done),
            REFUSED => Ok(Frame::Refused(printable(&String::from_utf8_lossy(body)))),
            ASK => Ok(Frame::Ask),
            EXISTS => Ok(Frame::Exists),
            _ => Err(CpError::Nonsense("a message of an unknown kind")),
        }
    }

    /// The message that says this. Data is framed in place instead, see [`data`].
    pub fn to_message(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Frame::Offer(offer) => (OFFER, serde_json::to_vec(offer)),
            Frame::Have(have) => (HAVE, serde_json::to_vec(have)),
            Frame::From(from) => (FROM, serde_json::to_vec(from)),
            Frame::Data(bytes) => (DATA, Ok(bytes.to_vec())),
            Frame::Written(written) => (WRITTEN, serde_json::to_vec(written)),
            Frame::End(end) => (END, serde_json::to_vec(end)),
            Frame::Done => (DONE, Ok(Vec::new())),
            Frame::Refused(why) => (REFUSED, Ok(why.as_bytes().to_vec())),
            Frame::Ask => (ASK, Ok(Vec::new())),
            Frame::Exists => (EXISTS, Ok(Vec::new())),
        };
        let mut message = vec![kind];
        message.extend(body.unwrap_or_default());
        message
    }
}

/// A buffer for pieces of data: the first byte says so, the rest is room.
pub fn data() -> Vec<u8> {
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    buffer[0] = DATA;
    buffer
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, CpError> {
    serde_json::from_slice(body).map_err(|_| CpError::Nonsense("a message that is not what its kind says"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let offer = Offer {
            name: "a b".into(),
            size: Some(7),
            mode: None,
            written: true,
            asked: true,
            compared: true,
            end: None,
        };
        let Ok(Frame::Offer(back)) = Frame::parse(&Frame::Offer(offer.clone()).to_message()) else { panic!() };
        assert_eq!(back, offer);
        // As it was said before there was more to say.
        let Ok(Frame::Offer(old)) = Frame::parse(br#"O{"name":"a b","size":7,"mode":null}"#) else { panic!() };
        assert_eq!(old, Offer { written: false, asked: false, compared: false, ..offer });
        let Ok(Frame::Have(have)) = Frame::parse(br#"H{"bytes":7,"hash":"00"}"#) else { panic!() };
        assert_eq!(have, Have { bytes: 7, hash: "00".into(), written: false });
        let Ok(Frame::Data(bytes)) = Frame::parse(b"Dxyz") else { panic!() };
        assert_eq!(bytes, b"xyz");
    }

    #[test]
    fn nonsense_is_an_error() {
        for message in [&b""[..], b"?", b"O{}", b"Hnothing", b"E[1]", b"W"] {
            assert!(matches!(Frame::parse(message), Err(CpError::Nonsense(_))), "{message:?}");
        }
        let Ok(Frame::Refused(text)) = Frame::parse(b"Rno\x1b[2J") else { panic!() };
        assert_eq!(text, "no?[2J");
    }
}
