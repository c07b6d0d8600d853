//! Byte streams.

use super::address::{Address, ToAddresses};
use super::common::connection_methods;
use super::connection::{Connection, Way};
use super::home::Home;
use super::local::Local;
use ropeway_engine::{Engine, Mode, Routes, Target, Watch};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        Ok(self.connection.peek(out)?.unwrap_or(0))
    }

    /// The same, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a read.
    pub fn try_peek(&self, out: &mut [u8]) -> io::Result<usize> {
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

    /// Writes what there is room for, without waiting whatever the options say.
    ///
    /// # Errors
    /// `WouldBlock`, or as a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.try_send(bytes)
    }
}

impl Read for &Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        Ok(self.connection.recv(out)?.unwrap_or(0))
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.send(bytes)
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
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
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
