//! How much a channel may have unread, by the memory that there is (docs/protocol.md 7, Credit). What a channel has of that is in `crate::channel`'s credit.

use super::Endpoint;

/// So many channels can have their first window unread at the same time, at least, if memory has room for the least window of each.
const INITIAL_WINDOWS: usize = 512;
/// The share of the memory that is for first windows only.
const FIRST_WINDOWS_SHARE: u64 = 4;
/// One channel may have this share of the free memory unread.
const FREE_SHARE: u64 = 4;
/// But always as much as this: some full packets.
pub const LEAST_WINDOW_BYTES: u64 = 32 << 10;
/// And so many packets, however long: one that is longer than the window would wait for credit for ever, and one that fits it just so would wait for the one before to be read.
const LEAST_WINDOW_PACKETS: u32 = 2;

impl Endpoint {
    /// What a peer is told that it may send on each new channel, and how long its messages may be.
    pub(super) fn windows(&self) -> (u32, u32) {
        // A quarter of the buffer, the rest comes with the first CREDIT: what is promised to channels that do not exist yet cannot be taken back.
        let few = (self.rx_pool.limit_bytes() / INITIAL_WINDOWS).max(LEAST_WINDOW_BYTES as usize);
        let window = (self.config.receive_buffer_bytes / 4).min(u32::try_from(few).unwrap_or(u32::MAX));
        let window = window.max(self.least_window_bytes());
        // A message that does not fit into half the memory would never be whole.
        let longest = u64::from(self.config.longest_message_bytes).min(self.rx_pool.limit_bytes() as u64 / 2);
        (window, longest as u32)
    }

    /// What a channel may have unread now. It shrinks as memory runs out, so that a few slow readers do not use up all of it.
    pub(super) fn receive_window(&self) -> u64 {
        let kept_back = self.rx_pool.limit_bytes() as u64 / FIRST_WINDOWS_SHARE;
        let free = self.rx_pool.unpromised_bytes().saturating_sub(kept_back);
        let window = u64::from(self.config.receive_buffer_bytes).min((free / FREE_SHARE).max(LEAST_WINDOW_BYTES));
        window.max(self.least_window_bytes().into())
    }

    /// What a channel may have unread whatever the buffer and the memory.
    fn least_window_bytes(&self) -> u32 {
        LEAST_WINDOW_PACKETS * u32::from(self.config.packet_bytes)
    }
}
