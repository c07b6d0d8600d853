//! Bytes of a stream that were read before anybody asked for them.

/// The beginning of a message that was not whole, or what came while we were sending. Almost always empty.
#[derive(Debug, Default)]
pub(super) struct Early(Vec<u8>);

impl Early {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// How much of a message of `size` bytes has not come yet.
    #[inline]
    pub(super) fn missing(&self, size: usize) -> usize {
        size.saturating_sub(self.0.len())
    }

    /// Gives up to `into.len()` of the bytes, and says how many.
    #[inline]
    pub(super) fn take(&mut self, into: &mut [u8]) -> usize {
        if self.0.is_empty() { 0 } else { self.take_some(into) }
    }

    #[cold]
    fn take_some(&mut self, into: &mut [u8]) -> usize {
        let n = into.len().min(self.0.len());
        into[..n].copy_from_slice(&self.0[..n]);
        self.0.drain(..n);
        n
    }

    /// Gives a whole message, or nothing.
    pub(super) fn take_whole(&mut self, into: &mut [u8]) -> bool {
        let is_whole = self.missing(into.len()) == 0;
        if is_whole {
            self.take(into);
        }
        is_whole
    }
}
