//! What can go wrong with a call, as a program should be told.

use ropeway_proto::config::SetError;
use ropeway_proto::{AcceptError, ConnectError, ErrorCode, ListenError, RecvError, SendError};
use std::io::{self, ErrorKind};

/// Why a call did not succeed. [`io::Error::from`] gives the nearest of the operating system's kinds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Only for calls that must not wait.
    #[error("the call would have to wait")]
    WouldBlock,
    #[error("the time given for the call is over")]
    TimedOut,
    /// This end closed the connection, or the listener, before or during the call.
    #[error("this end has closed the connection, or ended sending")]
    Closed,
    /// Only for calls that send, or wait for what was sent.
    #[error("the peer has closed the connection: nobody reads what is sent")]
    PeerClosed,
    /// The other end, or the network, ended it.
    #[error("the connection ended: {0}")]
    Failed(ErrorCode),
    #[error("the message has {message_bytes} bytes, the buffer fewer: the message stays, read it with a longer one")]
    TooShort { message_bytes: usize },
    #[error(
        "the message is longer than the {limit} bytes that one to this peer may have; send it in parts, or raise what is least of longest_message at \
         either end, half of receive_memory there, and half of send_memory here"
    )]
    TooLong { limit: u64 },
    /// Bytes of a stream cannot be left out.
    #[error("a stream has no messages")]
    NoMessages,
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error("this process was forked from the one that made the connection; make new ones here")]
    Forked,
    #[error("this engine was made without keys, and cannot be given any")]
    Keyless,
    #[error("there is no link of that kind; add one to the engine first")]
    NoLink,
    #[error("who talks through gateways needs a number below 2^32 that they know it by (Options::node and gateways)")]
    NoNode,
    /// The network says that nothing gets there, or this host does not let it go.
    #[error("no packet gets there: {0}")]
    Unreachable(io::Error),
    #[error(
        "packets of {packet_bytes} bytes do not get there: something on the way takes shorter ones only; say how long they may be with ROPEWAY_PACKET_BYTES, at both ends"
    )]
    PacketsTooLong { packet_bytes: u16 },
    #[error(
        "packets of {packet_bytes} bytes are too short, the protocol needs {least} at least: raise the MTU of the device, or packet_bytes"
    )]
    PacketsTooShort { packet_bytes: u16, least: u16 },
    #[error("{doing}: {source}")]
    Link { doing: &'static str, source: io::Error },
}

impl Error {
    /// No link is left.
    pub(crate) fn cut_off() -> Error {
        let gone = io::Error::new(ErrorKind::NetworkDown, "its network device is gone");
        Error::Link { doing: "using a link", source: gone }
    }

    pub(crate) fn link(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Link { doing, source }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Error {
        match error {
            SendError::WouldBlock => Error::WouldBlock,
            SendError::Closed | SendError::Unknown => Error::Closed,
            SendError::PeerClosed => Error::PeerClosed,
            SendError::TooLong { limit } => Error::TooLong { limit },
            SendError::Failed(code) => Error::Failed(code),
            SendError::NoMessages => Error::NoMessages,
        }
    }
}

impl From<RecvError> for Error {
    fn from(error: RecvError) -> Error {
        match error {
            RecvError::WouldBlock => Error::WouldBlock,
            RecvError::TooShort { message_bytes } => Error::TooShort { message_bytes },
            RecvError::Failed(code) => Error::Failed(code),
            RecvError::Unknown => Error::Closed,
        }
    }
}

impl From<AcceptError> for Error {
    fn from(error: AcceptError) -> Error {
        match error {
            AcceptError::WouldBlock => Error::WouldBlock,
            AcceptError::NotListening(_) => Error::Closed,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::WouldBlock => ErrorKind::WouldBlock,
            Error::TimedOut | Error::Failed(ErrorCode::Timeout) => ErrorKind::TimedOut,
            Error::Closed => ErrorKind::NotConnected,
            Error::PeerClosed => ErrorKind::BrokenPipe,
            Error::Failed(ErrorCode::Refused | ErrorCode::Busy) => ErrorKind::ConnectionRefused,
            Error::Failed(ErrorCode::Closed) => ErrorKind::ConnectionAborted,
            Error::Failed(ErrorCode::LinkFull) => ErrorKind::NetworkDown,
            Error::Failed(_) => ErrorKind::ConnectionReset,
            Error::TooShort { .. } | Error::TooLong { .. } | Error::PacketsTooShort { .. } => ErrorKind::InvalidInput,
            Error::Listen(_) => ErrorKind::AddrInUse,
            Error::Connect(_) => ErrorKind::OutOfMemory,
            Error::Set(_) | Error::NoMessages => ErrorKind::InvalidInput,
            Error::Forked | Error::NoLink | Error::NoNode | Error::Keyless => ErrorKind::Unsupported,
            // The system's EAGAIN for a thread that it does not give: nobody is to take it for a call that would wait.
            Error::Link { source, .. } if source.kind() == ErrorKind::WouldBlock => ErrorKind::OutOfMemory,
            Error::Unreachable(source) | Error::Link { source, .. } => source.kind(),
            Error::PacketsTooLong { .. } => ErrorKind::HostUnreachable,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_the_system_does_not_give_is_no_call_that_would_wait() {
        let of_link = |source| io::Error::from(Error::Link { doing: "starting the helper thread", source }).kind();
        // What the system calls EAGAIN.
        assert_eq!(of_link(ErrorKind::WouldBlock.into()), ErrorKind::OutOfMemory);
        assert_eq!(of_link(ErrorKind::PermissionDenied.into()), ErrorKind::PermissionDenied);
    }
}
