//! Another family's table, read while its processes run.

use super::{CLASS_CONNECTED, MAGIC, OWNER_LEAVES, RX_DRAIN, Sock, TABLE_BYTES, TX_RING, Table};
use crate::{memfd, sys};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What `ropeway ss` shows of one connection: a copy, taken while its owners run.
#[derive(Clone, Debug)]
pub struct Connection {
    pub index: u32,
    pub generation: u32,
    pub owners: Vec<u32>,
    pub local: ([u8; 16], u16),
    pub remote: ([u8; 16], u16),
    pub tx_on_ring: bool,
    pub rx_on_ring: bool,
    pub reason: u32,
    pub remote_reason: u32,
    pub cookie: u64,
    /// Bytes sent on TCP, sent on rings, received on TCP, received on rings.
    pub bytes: [u64; 4],
    /// Of those, bytes sent and received on the rings of the present pair.
    pub on_pair: [u64; 2],
    pub promotions: u32,
    pub demotions: u32,
}

/// A read-only view of another family's table.
pub struct Reader {
    table: Table,
}

impl Reader {
    /// Maps the table behind `fd` for reading, after checking that it is one and cannot shrink under us.
    pub fn open(fd: std::os::fd::BorrowedFd<'_>) -> std::io::Result<Reader> {
        use std::os::fd::AsRawFd;
        let bad = |why: &'static str| std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        let raw = fd.as_raw_fd();
        let seals = sys::fcntl(raw, libc::F_GET_SEALS, 0).map_err(std::io::Error::from_raw_os_error)? as i32;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(bad("the socket table is not sealed against shrinking"));
        }
        let length = std::fs::metadata(format!("/proc/self/fd/{raw}"))?.len();
        if length < TABLE_BYTES as u64 {
            return Err(bad("the socket table is shorter than this version's"));
        }
        let base = memfd::map(raw, TABLE_BYTES, libc::PROT_READ).map_err(std::io::Error::from_raw_os_error)?;
        let reader = Reader { table: Table { base } };
        let header = reader.table.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.sock_bytes.load(Ordering::Relaxed) != size_of::<Sock>() as u32
        {
            return Err(bad("the socket table is of another version"));
        }
        Ok(reader)
    }

    /// Copies every connected socket's record.
    pub fn connections(&self) -> Vec<Connection> {
        (0..self.table.used_socks())
            .filter_map(|index| {
                let s = self.table.sock(index);
                (s.class.load(Ordering::Acquire) == CLASS_CONNECTED).then(|| {
                    let ip = |words: &[AtomicU64; 2]| {
                        let mut out = [0u8; 16];
                        out[..8].copy_from_slice(&words[0].load(Ordering::Relaxed).to_ne_bytes());
                        out[8..].copy_from_slice(&words[1].load(Ordering::Relaxed).to_ne_bytes());
                        out
                    };
                    let owner = |entry: &AtomicU32| entry.load(Ordering::Relaxed) & !OWNER_LEAVES;
                    let on_pair = [&s.tx.ring_bytes, &s.rx.ring_bytes];
                    let on_pair = on_pair.map(|bytes| bytes.load(Ordering::Relaxed));
                    let former = s.ring_before.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
                    Connection {
                        index,
                        generation: s.generation.load(Ordering::Relaxed),
                        owners: s.owners.iter().map(owner).filter(|&pid| pid != 0).collect(),
                        local: (ip(&s.local_ip), s.local_port.load(Ordering::Relaxed) as u16),
                        remote: (ip(&s.remote_ip), s.remote_port.load(Ordering::Relaxed) as u16),
                        tx_on_ring: s.tx.phase.load(Ordering::Relaxed) == TX_RING,
                        rx_on_ring: s.rx.phase.load(Ordering::Relaxed) >= RX_DRAIN,
                        reason: s.reason.load(Ordering::Relaxed),
                        remote_reason: s.remote_reason.load(Ordering::Relaxed),
                        cookie: s.cookie.load(Ordering::Relaxed),
                        bytes: [&s.tx.tcp_bytes, &s.tx.ring_bytes, &s.rx.tcp_bytes, &s.rx.ring_bytes]
                            .map(|b| b.load(Ordering::Relaxed)),
                        on_pair: core::array::from_fn(|i| on_pair[i].saturating_sub(former[i])),
                        promotions: s.promotions.load(Ordering::Relaxed),
                        demotions: s.demotions.load(Ordering::Relaxed),
                    }
                })
            })
            .collect()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: `open` made this mapping; nothing of it outlives the reader.
        let _ = unsafe { sys::munmap(self.table.base.cast(), TABLE_BYTES) };
    }
}
