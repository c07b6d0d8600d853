//! What is different for an engine with the cluster's keys. Where the keys come from is [`crate::key_file`]'s.

use std::sync::Arc;

use ropeway_proto::ChannelId;
use ropeway_proto::crypto::ClusterKeys;

use crate::engine::Engine;
use crate::error::Error;

impl Engine {
    /// Between hosts with a key a refusal is not believed at once. Who waited for less time than an attempt has hears of it all the same.
    pub(crate) fn with_hint(&self, channel: ChannelId, error: Error) -> Error {
        let hint = || self.inner().ok()?.lock().endpoint.hint(channel);
        if matches!(error, Error::TimedOut) { hint().map_or(error, Error::Failed) } else { error }
    }

    /// Takes over changed keys for what is opened from now on.
    ///
    /// # Errors
    /// [`Error::Keyless`]: the engine was made without keys, and stays so.
    pub fn replace_keys(&self, keys: Arc<ClusterKeys>) -> Result<(), Error> {
        if self.inner()?.lock().endpoint.replace_keys(Some(keys)) { Ok(()) } else { Err(Error::Keyless) }
    }
}
