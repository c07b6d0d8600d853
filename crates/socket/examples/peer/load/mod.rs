//! A load that goes on while the network and the processes are disturbed: what `cargo xtask soak` runs on each host of a box.
//!
//! `peer serve STREAMS MESSAGES` takes connections at two addresses and does for each what its first bytes ask ([`Task`]). `peer load SEED NAME=STREAMS,MESSAGES...`
//! opens them, from several threads, each with a kind of work of its own. Both check every byte by its place, and write a line of JSON for whatever ends,
//! with the times in milliseconds since the epoch. Orders are lines on standard input: `go`, `quiet` (a client begins nothing new and says when all has
//! ended), `probe` (a client connects to everybody once), `show` (how many connections are open); its end ends the program.

mod events;
mod orders;
mod random;
mod serve;
mod watchdog;
mod work;

pub use orders::load;
pub use serve::serve;

use serde_json::{Value, json};
use std::io;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a client asks of a server, in the first bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub kind: Kind,
    /// What follows from it is sent, from the client on with [`Kind::Echo`] and [`Kind::Up`], else from the server on.
    pub seed: u64,
    /// How many bytes, or messages.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server sends back what it gets.
    Echo,
    /// The server takes everything, and says how much it was.
    Up,
    /// The server sends everything.
    Down,
    /// Both send at the same time, and the client ends it whenever and however it likes.
    Quit,
}

impl Task {
    pub const BYTES: usize = 17;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.seed.to_le_bytes());
        bytes[9..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    pub fn of(bytes: [u8; Self::BYTES]) -> io::Result<Task> {
        let kinds = [Kind::Echo, Kind::Up, Kind::Down, Kind::Quit];
        let kind = *kinds.get(usize::from(bytes[0])).ok_or_else(|| wrong(format!("no such task: {bytes:?}")))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Task { kind, seed: word(1), count: word(9) })
    }
}

/// The longest message of the load.
pub const LONGEST_BYTES: usize = 1 << 20;

/// The length of a message: all magnitudes up to the longest are as frequent.
pub fn message_bytes(seed: u64, number: u64) -> usize {
    let mut random = random::Random::new(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    random.magnitude(LONGEST_BYTES as u64) as usize
}

/// Something that must never be, whatever is done to the network: it is said as such, and not as one of the errors that faults lead to.
#[derive(Debug)]
pub struct Wrong(String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

pub fn wrong(what: String) -> io::Error {
    io::Error::other(Wrong(what))
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A line of the journal, which is standard output. Lines of several threads stay whole.
pub fn say(mut line: Value) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    line["at"] = json!(now_ms());
    println!("{line}");
}

/// How a piece of work ended, as fields of a line.
pub fn end(what: &str, peer: &str, began: u64, result: &io::Result<u64>) -> Value {
    let mut line = json!({ "event": "end", "what": what, "peer": peer, "began": began });
    match result {
        Ok(count) => line["count"] = json!(count),
        Err(error) => {
            let is_wrong = error.get_ref().is_some_and(|inner| inner.is::<Wrong>());
            line["error"] = json!(error.to_string());
            line["kind"] = json!(if is_wrong { "Wrong".to_owned() } else { format!("{:?}", error.kind()) });
        }
    }
    line
}
