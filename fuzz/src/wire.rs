//! Messages between a process and the daemon, from a peer that sends anything.

use ropeway_socket::rendezvous::wire::{Endpoint, MAX_MESSAGE_BYTES, Message, unpadded};

/// Whatever is accepted is exactly what would have been sent; and addresses of any length are read without a panic.
pub fn rendezvous_wire(data: &[u8]) {
    match Message::decode(data) {
        Ok(message) => {
            let mut out = [0; MAX_MESSAGE_BYTES];
            assert_eq!(message.encode(&mut out), data, "two encodings of one message");
            if let Message::Hello { comm, profile, .. } = message {
                assert!(unpadded(&comm).len() <= comm.len() && unpadded(&profile).len() <= profile.len());
            }
            if let Message::Register { tx, rx, .. } = message {
                assert_eq!(tx.compare(&tx), Some(tx.checkpoints()), "a prefix equals itself");
                assert_eq!(tx.compare(&rx), rx.compare(&tx), "either end compares alike");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(endpoint) = Endpoint::from_sockaddr(data) {
        endpoint.as_v4();
    }
}
