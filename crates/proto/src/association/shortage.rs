//! What is known of an association for which there was no memory.

use std::collections::VecDeque;

use super::Association;
use crate::time::Time;

#[derive(Debug, Default)]
pub struct Shortage {
    /// When a packet of what is granted found none the last time.
    pub dropped_at: Time,
    /// What finds no memory next is asked for again as if it had come then.
    pub again_at: Time,
    /// When all its channels were looked at for those that are to send nothing more.
    pub looked_at: Time,
    /// Channels whose messages wait for memory.
    pub waiting: VecDeque<u32>,
}

impl Association {
    /// Whether a message of one of its channels waits for memory.
    pub fn waits_for_memory(&self) -> bool {
        self.shortage.as_deref().is_some_and(|shortage| !shortage.waiting.is_empty())
    }
}
