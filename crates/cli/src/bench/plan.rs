//! What is measured: patterns, transports, and the settings that all rows of one run share.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

/// Time before the samples count. Long enough for caches, TCP's window and the hand-over to shared memory (which needs some calls and one
/// exchange with the daemon); the same for every transport.
pub const WARM_UP: Duration = Duration::from_millis(150);

/// What the two workers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    Pingpong,
    Stream,
    Rate,
}

impl Pattern {
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Pingpong => "pingpong",
            Pattern::Stream => "stream",
            Pattern::Rate => "rate",
        }
    }

    pub fn default_size(self) -> usize {
        match self {
            Pattern::Pingpong => 1,
            Pattern::Stream => 128 << 10,
            Pattern::Rate => 8,
        }
    }

    /// Size of the receiver's buffer in the one-way patterns.
    pub fn receive_size(self, message: usize) -> usize {
        match self {
            Pattern::Rate => 64 << 10,
            Pattern::Pingpong | Pattern::Stream => message,
        }
    }

    /// The unit of a row's figure.
    pub fn unit(self) -> &'static str {
        match self {
            Pattern::Pingpong => "us",
            Pattern::Stream => "GB/s",
            Pattern::Rate => "M/s",
        }
    }

    pub fn lower_is_better(self) -> bool {
        self == Pattern::Pingpong
    }

    pub fn default_transports(self) -> &'static [Transport] {
        use Transport::*;
        match self {
            Pattern::Pingpong => &[TcpBlocking, TcpSpinning, Unix, Ropeway, CacheLine],
            Pattern::Stream => &[TcpBlocking, TcpSpinning, Unix, Ropeway, Memcpy],
            Pattern::Rate => &[TcpBlocking, TcpSpinning, Unix, Ropeway],
        }
    }
}

/// How the bytes move: one row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Loopback TCP, blocking send and recv
    TcpBlocking,
    /// Loopback TCP, non-blocking sockets, calls repeated until they succeed
    TcpSpinning,
    /// AF_UNIX stream, blocking
    Unix,
    /// The program of tcp-blocking, unchanged, under `ropeway run`
    Ropeway,
    /// The program of tcp-spinning, unchanged, under `ropeway run`
    RopewaySpinning,
    /// Limit of the machine: two threads hand a cache line to and fro
    CacheLine,
    /// Limit of the machine: one core copies blocks that stay in its cache
    Memcpy,
}

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Transport::TcpBlocking => "tcp-blocking",
            Transport::TcpSpinning => "tcp-spinning",
            Transport::Unix => "unix",
            Transport::Ropeway => "ropeway",
            Transport::RopewaySpinning => "ropeway-spinning",
            Transport::CacheLine => "cache-line",
            Transport::Memcpy => "memcpy",
        }
    }

    pub fn measures(self, pattern: Pattern) -> bool {
        match self {
            Transport::CacheLine => pattern == Pattern::Pingpong,
            Transport::Memcpy => pattern == Pattern::Stream,
            _ => true,
        }
    }
}

/// The program text of a worker. Ropeway is not among them: it runs the TCP texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Text {
    TcpBlocking,
    TcpSpinning,
    Unix,
}

impl Text {
    pub fn name(self) -> &'static str {
        match self {
            Text::TcpBlocking => "tcp-blocking",
            Text::TcpSpinning => "tcp-spinning",
            Text::Unix => "unix",
        }
    }
}

/// The settings of a run, equal for all rows.
#[derive(Debug, Clone)]
pub struct Plan {
    pub pattern: Pattern,
    /// Bytes of one message or write.
    pub size: usize,
    /// Length of the measured part of a round.
    pub seconds: Duration,
    /// Round trips per latency sample.
    pub batch: u32,
    /// CPUs of the connecting and of the listening process; None if there are not two.
    pub cpus: Option<(usize, usize)>,
}
