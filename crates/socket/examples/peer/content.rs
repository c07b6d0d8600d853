//! What is sent: bytes that follow from a seed and their place, so that the receiver knows each of them.

/// Lengths of messages, in turn: none, one byte, less than a packet, about one, and many.
const MESSAGE_BYTES: [u64; 8] = [0, 1, 56, 1000, 1444, 1500, 9000, 100_000];

/// The longest of them.
pub const LONGEST_MESSAGE_BYTES: usize = 100_000;

const WORD_BYTES: u64 = 8;

/// The word at a place: neighbours, and other seeds, have nothing in common.
fn word(seed: u64, place: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add((place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Writes the bytes from `at` on.
pub fn fill(seed: u64, at: u64, out: &mut [u8]) {
    let skipped = (at % WORD_BYTES) as usize;
    let first = (WORD_BYTES as usize - skipped).min(out.len());
    let (head, rest) = out.split_at_mut(first);
    head.copy_from_slice(&word(seed, at / WORD_BYTES)[skipped..skipped + head.len()]);
    for (place, chunk) in (at / WORD_BYTES + 1..).zip(rest.chunks_mut(WORD_BYTES as usize)) {
        chunk.copy_from_slice(&word(seed, place)[..chunk.len()]);
    }
}

/// The length of the message with this number.
pub fn message_bytes(number: u64) -> u64 {
    MESSAGE_BYTES[(number % MESSAGE_BYTES.len() as u64) as usize]
}

/// Compares what arrives with what must have been sent.
pub struct Checked {
    seed: u64,
    at: u64,
    expected: Vec<u8>,
}

impl Checked {
    pub fn new(seed: u64) -> Checked {
        Checked { seed, at: 0, expected: Vec::new() }
    }

    /// Whether these are the next bytes.
    pub fn takes(&mut self, arrived: &[u8]) -> bool {
        self.expected.resize(arrived.len(), 0);
        fill(self.seed, self.at, &mut self.expected);
        self.at += arrived.len() as u64;
        self.expected == arrived
    }

    /// How many there were.
    pub fn bytes(&self) -> u64 {
        self.at
    }
}
