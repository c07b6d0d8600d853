//! Another family's table, read while its processes run.

use super::{
    CLASS_CONNECTED, MAGIC, MAX_OWNERS, MAX_SOCKS, OWNER_LEAVES, RX_DRAIN, SOCKS_AT, Sock, TABLE_BYTES, TX_RING,
    TableHeader,
};
use crate::sys;
use core::mem::offset_of;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

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

const SOCK_BYTES: usize = size_of::<Sock>();
/// Records that are read at once.
const PIECE_SOCKS: u32 = 64;

/// Copies the record of every connected socket of the table in `file`, and takes from `left`, which bounds them, the records that it has read.
///
/// Whoever owns the file says how many there are, and may change it at any time. So it is not mapped: a look at a page that is not there would make it, in a file that stays.
pub fn connections(file: &File, left: &mut u32) -> io::Result<Vec<Connection>> {
    let bad = |why: &'static str| io::Error::new(io::ErrorKind::InvalidData, why);
    if file.metadata()?.len() < TABLE_BYTES as u64 {
        return Err(bad("the socket table is shorter than this version's"));
    }
    let mut header = [0; size_of::<TableHeader>()];
    file.read_exact_at(&mut header, 0)?;
    if u64_at(&header, offset_of!(TableHeader, magic)) != MAGIC
        || u32_at(&header, offset_of!(TableHeader, sock_bytes)) != SOCK_BYTES as u32
    {
        return Err(bad("the socket table is of another version"));
    }
    let used = u32_at(&header, offset_of!(TableHeader, used_socks)).min(MAX_SOCKS);
    let mut found = Vec::new();
    let mut piece = vec![0; PIECE_SOCKS as usize * SOCK_BYTES];
    let mut index = 0;
    while let Some(next) = next_written(file, index)?.filter(|next| *next < used && *left > 0) {
        let count = PIECE_SOCKS.min(used - next).min(*left);
        let records = &mut piece[..count as usize * SOCK_BYTES];
        file.read_exact_at(records, sock_at(next))?;
        let records = (next..).zip(records.chunks_exact(SOCK_BYTES));
        found.extend(records.filter_map(|(index, record)| connection(index, record)));
        *left -= count;
        index = next + count;
    }
    Ok(found)
}

fn sock_at(index: u32) -> u64 {
    (SOCKS_AT + index as usize * SOCK_BYTES) as u64
}

/// The next record, from `index` on, of which anything is there; reading what was never written takes its time as well.
fn next_written(file: &File, index: u32) -> io::Result<Option<u32>> {
    match sys::lseek(file.as_raw_fd(), sock_at(index) as libc::off_t, libc::SEEK_DATA) {
        Ok(data) => Ok(Some(((data - SOCKS_AT) / SOCK_BYTES) as u32)),
        Err(libc::ENXIO) => Ok(None),
        Err(e) => Err(io::Error::from_raw_os_error(e)),
    }
}

/// What a record says, if it is one of a connected socket.
fn connection(index: u32, record: &[u8]) -> Option<Connection> {
    let u32_at = |at| u32_at(record, at);
    let u64_at = |at| u64_at(record, at);
    if u32_at(offset_of!(Sock, class)) != CLASS_CONNECTED {
        return None;
    }
    let owner = |nth| u32_at(offset_of!(Sock, owners) + nth * size_of::<u32>()) & !OWNER_LEAVES;
    let former = |nth| u64_at(offset_of!(Sock, ring_before) + nth * size_of::<u64>());
    let on_rings = [offset_of!(Sock, tx.ring_bytes), offset_of!(Sock, rx.ring_bytes)].map(u64_at);
    let [sent, received] = on_rings;
    Some(Connection {
        index,
        generation: u32_at(offset_of!(Sock, generation)),
        owners: (0..MAX_OWNERS).map(owner).filter(|&pid| pid != 0).collect(),
        local: (array_at(record, offset_of!(Sock, local_ip)), u32_at(offset_of!(Sock, local_port)) as u16),
        remote: (array_at(record, offset_of!(Sock, remote_ip)), u32_at(offset_of!(Sock, remote_port)) as u16),
        tx_on_ring: u32_at(offset_of!(Sock, tx.phase)) == TX_RING,
        rx_on_ring: u32_at(offset_of!(Sock, rx.phase)) >= RX_DRAIN,
        reason: u32_at(offset_of!(Sock, reason)),
        remote_reason: u32_at(offset_of!(Sock, remote_reason)),
        cookie: u64_at(offset_of!(Sock, cookie)),
        bytes: [u64_at(offset_of!(Sock, tx.tcp_bytes)), sent, u64_at(offset_of!(Sock, rx.tcp_bytes)), received],
        on_pair: [sent.saturating_sub(former(0)), received.saturating_sub(former(1))],
        promotions: u32_at(offset_of!(Sock, promotions)),
        demotions: u32_at(offset_of!(Sock, demotions)),
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|nth| bytes[at + nth])
}

#[cfg(test)]
mod tests {
    use super::super::{CLASS_FRESH, Table};
    use super::*;
    use core::sync::atomic::Ordering;
    use std::os::fd::FromRawFd;

    #[test]
    fn records_are_read_as_they_were_written_and_no_more_than_may() {
        let (table, fd) = Table::create().expect("table");
        // SAFETY: the table's descriptor, which nobody else closes.
        let file = unsafe { File::from_raw_fd(fd) };
        let all = PIECE_SOCKS + 10;
        for pid in 1..=all {
            let class = if pid == 3 { CLASS_FRESH } else { CLASS_CONNECTED };
            table.allocate(class, pid).expect("room");
        }
        let s = table.sock(1);
        for (word, value) in [(&s.reason, 5), (&s.remote_reason, 6), (&s.promotions, 7), (&s.demotions, 8)] {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in
            [(&s.local_port, 80), (&s.remote_port, 443), (&s.tx.phase, TX_RING), (&s.rx.phase, RX_DRAIN)]
        {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in [(&s.cookie, 9), (&s.tx.tcp_bytes, 10), (&s.tx.ring_bytes, 110), (&s.rx.tcp_bytes, 30)] {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in [(&s.rx.ring_bytes, 140), (&s.ring_before[0], 100), (&s.ring_before[1], 100)] {
            word.store(value, Ordering::Relaxed);
        }
        s.owners[7].store(99, Ordering::Relaxed);
        s.local_ip[1].store(u64::from_ne_bytes(*b"\0\0\0\0abcd"), Ordering::Relaxed);
        s.remote_ip[0].store(u64::from_ne_bytes(*b"efgh\0\0\0\0"), Ordering::Relaxed);
        let mut left = MAX_SOCKS;
        let found = connections(&file, &mut left).expect("a table");
        assert_eq!((found.len() as u32, MAX_SOCKS - left), (all - 1, all));
        let c = &found[1];
        assert_eq!((&c.owners[..], c.local), (&[2, 99][..], (*b"\0\0\0\0\0\0\0\0\0\0\0\0abcd", 80)));
        assert_eq!(c.remote, (*b"efgh\0\0\0\0\0\0\0\0\0\0\0\0", 443));
        assert_eq!((c.bytes, c.on_pair), ([10, 110, 30, 140], [10, 40]));
        assert_eq!((c.index, c.generation, c.tx_on_ring, c.rx_on_ring), (1, 1, true, true));
        assert_eq!((c.reason, c.remote_reason, c.promotions, c.demotions, c.cookie), (5, 6, 7, 8, 9));
        let indices: Vec<u32> = found.iter().map(|c| c.index).collect();
        assert!(indices.into_iter().eq((0..all).filter(|index| *index != 2)));
        let mut left = PIECE_SOCKS + 1;
        assert_eq!(connections(&file, &mut left).expect("a table").len() as u32, PIECE_SOCKS);
        assert_eq!(left, 0);
    }
}
