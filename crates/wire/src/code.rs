//! Why something ended (2.7).

use core::fmt;

/// An error code as it stands in REFUSED, ABORT and RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The engine goes away in order.
    Closed,
    /// Nobody listens at that port.
    Refused,
    /// The listener's queue is full, or there are too many associations or channels.
    Busy,
    /// The program gave the channel up, or closed it with data unread.
    Reset,
    /// A message is longer than the receiver takes.
    TooLong,
    /// The peer broke a rule of the protocol.
    Protocol,
    /// The peer was silent for too long, was asked for a packet in vain, or did not send the rest of a long message.
    Timeout,
    /// No association has that id.
    Unknown,
    /// A key is needed here, or is not the same.
    Key,
    /// No common version.
    Version,
    /// Both ends opened at once, and the receiver of this is the server: it waits for the other's CONFIRM.
    Crossed,
    /// The own link took nothing for too long. Said to the user here, never to the peer.
    LinkFull,
    /// A number that has no name here, or is said by nobody. What carried it is over all the same, so it is no reason to drop the packet. Made by
    /// [`ErrorCode::from`] only, which keeps the numbers of all others out.
    Other(u16),
}

impl ErrorCode {
    /// All codes that have a name; each stands at its number.
    pub const ALL: [ErrorCode; 12] = [
        ErrorCode::Closed,
        ErrorCode::Refused,
        ErrorCode::Busy,
        ErrorCode::Reset,
        ErrorCode::TooLong,
        ErrorCode::Protocol,
        ErrorCode::Timeout,
        ErrorCode::Unknown,
        ErrorCode::Key,
        ErrorCode::Version,
        ErrorCode::Crossed,
        ErrorCode::LinkFull,
    ];

    /// The name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::Closed => "CLOSED",
            ErrorCode::Refused => "REFUSED",
            ErrorCode::Busy => "BUSY",
            ErrorCode::Reset => "RESET",
            ErrorCode::TooLong => "TOO_LONG",
            ErrorCode::Protocol => "PROTOCOL",
            ErrorCode::Timeout => "TIMEOUT",
            ErrorCode::Unknown => "UNKNOWN",
            ErrorCode::Key => "KEY",
            ErrorCode::Version => "VERSION",
            ErrorCode::Crossed => "CROSSED",
            ErrorCode::LinkFull => "LINK_FULL",
            ErrorCode::Other(_) => "OTHER",
        }
    }
}

impl From<u16> for ErrorCode {
    fn from(number: u16) -> ErrorCode {
        match ErrorCode::ALL.get(usize::from(number)) {
            // Of this end's link no peer can know.
            None | Some(ErrorCode::LinkFull) => ErrorCode::Other(number),
            Some(&code) => code,
        }
    }
}

impl From<ErrorCode> for u16 {
    fn from(code: ErrorCode) -> u16 {
        match code {
            ErrorCode::Closed => 0,
            ErrorCode::Refused => 1,
            ErrorCode::Busy => 2,
            ErrorCode::Reset => 3,
            ErrorCode::TooLong => 4,
            ErrorCode::Protocol => 5,
            ErrorCode::Timeout => 6,
            ErrorCode::Unknown => 7,
            ErrorCode::Key => 8,
            ErrorCode::Version => 9,
            ErrorCode::Crossed => 10,
            ErrorCode::LinkFull => 11,
            ErrorCode::Other(number) => number,
        }
    }
}

/// A sentence for people, about the peer that sent the code, if one did.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Closed => "the peer's engine was shut down",
            ErrorCode::Refused => "nobody listens at that port, or not for this type (streams, messages)",
            ErrorCode::Busy => "the peer has no room for one more connection; try again later",
            ErrorCode::Reset => "the peer gave the connection up or closed it with data unread",
            ErrorCode::TooLong => "a message was longer than the peer takes",
            ErrorCode::Protocol => "the peer says that a rule of the protocol was broken",
            ErrorCode::Timeout => "one end heard nothing from the other for too long",
            ErrorCode::Unknown => "the peer does not know this association; it may have been restarted",
            ErrorCode::Key => {
                "the two ends do not have the same key, or only one of them has any; `ropeway key check` says on each host which it is"
            }
            ErrorCode::Version => "the peer speaks no version of the protocol that is spoken here",
            ErrorCode::Crossed => "both ends opened at once; this end waits for the peer's attempt to succeed",
            ErrorCode::LinkFull => "this end's own link took nothing for too long",
            ErrorCode::Other(number) => {
                return write!(f, "the peer gave error code {number}, which has no meaning in this version");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_are_one_to_one() {
        for number in 0..=u16::MAX {
            assert_eq!(u16::from(ErrorCode::from(number)), number);
        }
        assert_eq!(ErrorCode::from(12), ErrorCode::Other(12));
        assert_eq!(ErrorCode::from(11), ErrorCode::Other(11), "a peer that speaks of the own link");
    }

    #[test]
    fn every_code_has_a_name_and_a_sentence_of_its_own() {
        let (mut names, mut sentences): (Vec<_>, Vec<_>) =
            ErrorCode::ALL.iter().map(|code| (code.name(), code.to_string())).unzip();
        names.sort_unstable();
        names.dedup();
        sentences.sort();
        sentences.dedup();
        assert_eq!((names.len(), sentences.len()), (ErrorCode::ALL.len(), ErrorCode::ALL.len()));
    }
}
