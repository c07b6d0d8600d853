//! Byte streams.

use super::address::{Address, ToAddresses};
use super::common::connection_methods;
use super::connection::{Connection, Way};
use super::home::Home;
use super::local::Local;
use ropeway_engine::{Engine, Mode, Routes, Target, Watch};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shorter slices of a vectored write are gathered in pieces of so many bytes: what belongs together leaves together, and a copy of so little costs less than a packet.
const GATHERED_BYTES: usize = 16 << 10;

/// A connection that carries bytes in order, as a `TcpStream` does.
///
/// Several threads may read and write at once. Dropping the last handle closes the connection; what was written before is still delivered. Unread data at
/// that moment resets it, as with TCP.
///
/// Over an engine of one's own what was written is delivered while that engine lives, and the exit of the process does not wait: call [`Stream::drain`] first.
pub struct Stream {
    pub(super) connection: Arc<Connection>,
}

impl Stream {
    connection_methods!(Mode::Stream);

    /// Reads without taking: the next read gives the same bytes.
    ///
    /// # Errors
    /// As a read.
    pub fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.peek(out)?.unwrap_or(0))
    }

    /// The same, but waits until that fills `out`. It gives less at the end of the stream, when the time limit of reading is over, and where no more can come before something is read: of more than the
    /// receive window, or while receive memory is short.
    ///
    /// # Errors
    /// As a read.
    pub fn peek_all(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.peek_all(out)?.unwrap_or(0))
    }

    /// The same, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a read.
    pub fn try_peek(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.try_peek(out)?.unwrap_or(0))
    }

    /// Reads what there is, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a read.
    pub fn try_read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.try_recv(out)?.unwrap_or(0))
    }

    /// Reads, and waits until `deadline` at most instead of as long as the read timeout says: for who reads several times within one limit.
    ///
    /// # Errors
    /// `WouldBlock`, or as a read.
    pub fn read_by(&self, out: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.recv_by(out, || deadline)?.unwrap_or(0))
    }

    /// Writes what there is room for, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.try_send(bytes)
    }

    /// Reads what there is into several buffers, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a read.
    pub fn try_read_vectored(&self, out: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.connection.recv_parts(out.iter_mut().map(|part| &mut **part), true)
    }

    /// Writes what there is room for of several buffers, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a write.
    pub fn try_write_vectored(&self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.send_parts(Gathered::new(bytes), true)
    }
}

/// The bytes of several slices in the pieces in which they are sent: long ones as they lie, short ones and the beginnings of what follows them gathered.
struct Gathered<'a> {
    slices: std::slice::Iter<'a, IoSlice<'a>>,
    rest: &'a [u8],
}

impl<'a> Gathered<'a> {
    fn new(slices: &'a [IoSlice<'a>]) -> Gathered<'a> {
        Gathered { slices: slices.iter(), rest: &[] }
    }
}

impl<'a> Iterator for Gathered<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        let mut gathered = Vec::new();
        while gathered.len() < GATHERED_BYTES {
            if self.rest.is_empty() {
                let Some(slice) = self.slices.next() else { break };
                self.rest = slice;
            }
            if gathered.is_empty() && self.rest.len() >= GATHERED_BYTES {
                return Some(Cow::Borrowed(std::mem::take(&mut self.rest)));
            }
            let room = GATHERED_BYTES - gathered.len();
            let (first, rest) = self.rest.split_at(self.rest.len().min(room));
            gathered.extend_from_slice(first);
            self.rest = rest;
        }
        (!gathered.is_empty()).then_some(Cow::Owned(gathered))
    }
}

impl Read for &Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.recv(out)?.unwrap_or(0))
    }

    /// Waits for the first byte, and takes what else has come.
    fn read_vectored(&mut self, out: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.connection.recv_parts(out.iter_mut().map(|part| &mut **part), false)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.send(bytes)
    }

    /// As one write of all of it: short buffers share packets also when small writes leave at once.
    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.send_parts(Gathered::new(bytes), false)
    }

    /// Nothing is held back: what was written leaves by itself.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }

    fn read_vectored(&mut self, out: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(out)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer", self.connection.peer()).field("ports", &self.ports()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of the pieces, and whether each was copied.
    fn pieces(lens: &[usize]) -> Vec<(usize, bool)> {
        let bytes: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|at| (at ^ (at >> 8)) as u8).collect();
        let mut rest = bytes.as_slice();
        let slices: Vec<IoSlice<'_>> =
            lens.iter().map(|len| IoSlice::new(rest.split_off(..*len).expect("there"))).collect();
        let pieces: Vec<Cow<'_, [u8]>> = Gathered::new(&slices).collect();
        assert!(pieces.concat() == bytes);
        pieces.iter().map(|piece| (piece.len(), matches!(piece, Cow::Owned(_)))).collect()
    }

    #[test]
    fn short_slices_are_gathered_and_long_ones_are_not_copied() {
        const G: usize = GATHERED_BYTES;
        assert_eq!(pieces(&[]), []);
        assert_eq!(pieces(&[0, 0]), []);
        assert_eq!(pieces(&[16, 0, 100, 3]), [(119, true)]);
        assert_eq!(pieces(&[G, 2 * G]), [(G, false), (2 * G, false)]);
        assert_eq!(pieces(&[16, 10 * G, 5]), [(G, true), (9 * G + 16, false), (5, true)]);
        assert_eq!(pieces(&[1; 2 * G + 1]), [(G, true), (G, true), (1, true)]);
    }
}
