//! One association's packet protection, both directions (docs/protocol.md, section 9.3 to 9.5): a counter for every
//! packet, the replay window, and the change of keys.
//!
//! Only the client begins a change of keys, in both directions at once; the server follows with its next packet. So the
//! two ends are never more than one generation apart, one bit says which, and no packet is tried with two keys.

use super::cipher::{Keys, PacketKey};
use super::kdf::Secret32;
use super::window::{Stale, Window};
use std::fmt;

pub use ropeway_wire::{COUNTER_BYTES, TAG_BYTES};

/// What a sealed packet is longer than the same one without a key.
pub const OVERHEAD_BYTES: usize = COUNTER_BYTES + TAG_BYTES;

/// The shortest header; longer ones are taken as they are.
const LEAST_HEADER_BYTES: usize = ropeway_wire::SHORT_HEADER_BYTES;

/// Where a header has its flags, and the key phase among them.
const FLAGS_AT: usize = 1;
const PHASE: u8 = 0x40;

/// The longest payload that a header can say.
const MOST_PAYLOAD_BYTES: usize = u16::MAX as usize;

/// The client changes the keys when they are this old: what is read out of a stolen memory image or found for a single
/// key opens at most this much of the past. A change costs some microseconds, and opening what is on its way.
const CHANGE_AFTER_NS: u64 = 3600 * SECOND_NS;

/// The client changes the keys when one of them has sealed this many blocks of 16 bytes (64 GiB; 14 s at 40 Gbit/s). An
/// observer's chance to tell AES-GCM with `s` blocks from perfect encryption is at most s^2 / 2^129: 2^-65 here.
const CHANGE_AFTER_BLOCKS: u64 = 1 << 32;

/// Nothing is sealed with one key beyond this many blocks, eight times the number above (2^-59): reached only if the
/// peer did not follow a change for so long, and was sent to all the same.
const MOST_BLOCKS: u64 = 1 << 35;

/// The client does not begin a change sooner than this after the one before, and after it saw that the server had followed.
const LEAST_BETWEEN_CHANGES_NS: u64 = 2 * SECOND_NS;

/// The server does not follow one sooner than this after the one before. Less than the client's own bound, as the
/// clocks differ and the network stretches and shrinks the time between.
const LEAST_BETWEEN_FOLLOWED_NS: u64 = SECOND_NS;

/// How long packets under the former key are still opened after the first under the new one: longer than a packet is on
/// its way. Never two former keys at once, by the bounds above.
const FORMER_KEY_NS: u64 = SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// Which end of the handshake this was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// When keys are changed. The default is the protocol's; a client may be made to change sooner, never later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Age of a key after which it is changed.
    pub change_after_ns: u64,
    /// Blocks of 16 bytes that a key seals before it is changed.
    pub change_after_blocks: u64,
    /// Blocks of 16 bytes that a key seals at all.
    pub most_blocks: u64,
    /// Time between two changes that the client begins.
    pub between_changes_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            change_after_ns: CHANGE_AFTER_NS,
            change_after_blocks: CHANGE_AFTER_BLOCKS,
            most_blocks: MOST_BLOCKS,
            between_changes_ns: LEAST_BETWEEN_CHANGES_NS,
        }
    }
}

/// Why a packet was not sealed, or not made ready to be: all the caller's, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("not a packet: no room for header, counter and tag, or a payload too long")]
    Shape,
    #[error("not as it was sealed, so it cannot be sealed again")]
    Changed,
    #[error("this key has sealed all that it may, and the peer has not followed to the next one")]
    Exhausted,
}

/// Why a packet was not opened. Each kind has its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("too short for header, counter and tag")]
    Short,
    #[error("this packet was opened before")]
    Replayed,
    #[error("so far behind the others that nobody knows whether it was opened before")]
    TooOld,
    #[error("under a former key that is gone")]
    FormerKey,
    #[error("a change of keys that may not come now: too soon after the last one, or not the client's")]
    Change,
    #[error("the tag is wrong: another key, or changed on its way")]
    Forged,
    /// The caller's.
    #[error("no room for the payload")]
    Room,
}

impl OpenError {
    /// All kinds, in the order of their counters.
    pub const ALL: [Self; 7] =
        [Self::Short, Self::Replayed, Self::TooOld, Self::FormerKey, Self::Change, Self::Forged, Self::Room];

    /// The names of the kinds for lists of counters, each at its [`index`](OpenError::index).
    pub const NAMES: [&'static str; Self::ALL.len()] =
        ["short", "replayed", "too-old", "former-key", "change", "forged", "room"];

    /// The place of this kind among [`Counters::refused`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sealed.
    pub sealed: u64,
    /// Packets opened.
    pub opened: u64,
    /// Packets not opened, by [`OpenError::index`].
    pub refused: [u64; OpenError::ALL.len()],
    /// Changes of the key that packets are opened with.
    pub changes: u64,
}

/// Both directions of one association. Not `Clone`, and never to be used on two sides of a `fork`: no counter may seal
/// two packets.
pub struct Session {
    role: Role,
    limits: Limits,
    send: Sending,
    receive: Receiving,
    counters: Counters,
}

struct Sending {
    key: PacketKey,
    /// From which the key after this one comes.
    chain: Secret32,
    generation: u64,
    /// Counter of the next packet. Goes on through all keys.
    counter: u64,
    /// The first counter that `key` sealed, or will.
    first: u64,
    blocks: u64,
    since_ns: u64,
    /// The key before this one, until everything is opened that may be sent again and lies sealed with it.
    former: Option<Box<PacketKey>>,
}

struct Receiving {
    key: PacketKey,
    chain: Secret32,
    generation: u64,
    /// The counter that was first opened with `key`, 0 for the first of all keys. What was sealed with the former one
    /// lies below, with the next one above.
    first: u64,
    blocks: u64,
    since_ns: u64,
    former: Option<Former>,
    /// Made when first needed and kept, so that a stranger who sends the other phase costs no more than any other
    /// stranger.
    next: Option<Box<Keys>>,
    window: Window,
}

struct Former {
    key: Box<PacketKey>,
    until_ns: u64,
}

/// Which key opens a packet.
#[derive(Clone, Copy)]
enum Which {
    Current,
    Former,
    Next,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session { role, counters, .. } = self;
        f.debug_struct("Session").field("role", role).field("counters", counters).finish_non_exhaustive()
    }
}

impl Session {
    /// From the two secrets that the handshake ends with.
    pub(super) fn new(role: Role, now_ns: u64, to_server: Secret32, to_client: Secret32) -> Self {
        let (send, receive) = match role {
            Role::Client => (to_server, to_client),
            Role::Server => (to_client, to_server),
        };
        Self {
            role,
            limits: Limits::default(),
            send: Sending::new(now_ns, &send),
            receive: Receiving::new(now_ns, &receive),
            counters: Counters::default(),
        }
    }

    /// Makes this end change its keys sooner than the protocol wants. A limit above the protocol's changes nothing.
    pub fn tighten(&mut self, limits: Limits) {
        let own = &mut self.limits;
        own.change_after_ns = own.change_after_ns.min(limits.change_after_ns);
        own.change_after_blocks = own.change_after_blocks.min(limits.change_after_blocks);
        own.most_blocks = own.most_blocks.min(limits.most_blocks);
        own.between_changes_ns = own.between_changes_ns.max(limits.between_changes_ns);
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How often the key that packets are sealed with was changed. Its last bit is what PHASE says.
    pub fn generation(&self) -> u64 {
        self.send.generation
    }

    /// Seals a packet where it lies: `packet` has the header (16, 24 or 28 bytes, as it is to be sent, but for PHASE,
    /// which is set here), 4 bytes of room for the counter, the payload, and 16 bytes of room for the tag.
    pub fn seal_in_place(&mut self, now_ns: u64, packet: &mut [u8], header_bytes: usize) -> Result<(), SealError> {
        let payload_bytes =
            packet.len().checked_sub(header_bytes.saturating_add(OVERHEAD_BYTES)).ok_or(SealError::Shape)?;
        if header_bytes < LEAST_HEADER_BYTES || payload_bytes > MOST_PAYLOAD_BYTES {
            return Err(SealError::Shape);
        }
        self.forget_former_key(now_ns);
        self.change_if_due(now_ns);
        let blocks = self.send.blocks + blocks(payload_bytes);
        if blocks > self.limits.most_blocks || self.send.counter == u64::MAX {
            return Err(SealError::Exhausted);
        }
        let counter = self.send.counter;
        let (aad, rest) = packet.split_at_mut(header_bytes + COUNTER_BYTES);
        let (payload, tag) = rest.split_at_mut(payload_bytes);
        aad[FLAGS_AT] = aad[FLAGS_AT] & !PHASE | phase_bit(self.send.generation);
        aad[header_bytes..].copy_from_slice(&(counter as u32).to_be_bytes());
        // Spent before it is used: whatever happens below, this counter never seals anything again.
        self.send.counter += 1;
        self.send.blocks = blocks;
        self.send.key.seal(counter, aad, payload, tag);
        self.counters.sealed += 1;
        Ok(())
    }

    /// Opens a packet of this end's own, where it lies as [`seal_in_place`](Self::seal_in_place) left it: it is to be
    /// sealed again with another header. That takes the key of its time: this one, or the former one until it is
    /// forgotten. It must be one of the last 2^32 - 1.
    pub fn reopen_in_place(&self, packet: &mut [u8], header_bytes: usize) -> Result<(), SealError> {
        let at = header_bytes.saturating_add(COUNTER_BYTES);
        let (aad, sealed) = packet.split_at_mut_checked(at).ok_or(SealError::Shape)?;
        let low = aad.last_chunk::<COUNTER_BYTES>().ok_or(SealError::Shape)?;
        let (in_out, tag) = sealed.split_last_chunk_mut::<TAG_BYTES>().ok_or(SealError::Shape)?;
        let send = &self.send;
        let age = (send.counter as u32).wrapping_sub(u32::from_be_bytes(*low));
        let counter = send.counter.checked_sub(age.into()).ok_or(SealError::Changed)?;
        let former = send.former.as_deref().filter(|_| counter < send.first);
        let is_whole = former.unwrap_or(&send.key).open(counter, aad, in_out, *tag);
        if is_whole { Ok(()) } else { Err(SealError::Changed) }
    }

    /// The key that packets are sealed with was changed, and the one before is still there.
    pub fn has_former_sending_key(&self) -> bool {
        self.send.former.is_some()
    }

    /// Nothing has to be opened any more that was sealed before the last change.
    pub fn forget_former_sending_key(&mut self) {
        self.send.former = None;
    }

    /// Opens a packet into `out` and returns the payload's length. `aad`: the packet up to its payload (header and 4
    /// bytes of counter), `sealed`: the rest, tag included, padding behind it removed. If it does not open, `out` holds
    /// nothing of use.
    pub fn open(&mut self, now_ns: u64, aad: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, OpenError> {
        let result = match sealed.split_last_chunk::<TAG_BYTES>() {
            None => Err(OpenError::Short),
            Some((ciphertext, tag)) => match out.get_mut(..ciphertext.len()) {
                None => Err(OpenError::Room),
                Some(out) => {
                    out.copy_from_slice(ciphertext);
                    self.try_open(now_ns, aad, out, *tag).map(|()| ciphertext.len())
                }
            },
        };
        match &result {
            Ok(_) => self.counters.opened += 1,
            Err(error) => self.counters.refused[error.index()] += 1,
        }
        result
    }

    fn try_open(&mut self, now_ns: u64, aad: &[u8], in_out: &mut [u8], tag: [u8; TAG_BYTES]) -> Result<(), OpenError> {
        let (header, low) = aad.split_last_chunk::<COUNTER_BYTES>().ok_or(OpenError::Short)?;
        if header.len() < LEAST_HEADER_BYTES {
            return Err(OpenError::Short);
        }
        self.forget_former_key(now_ns);
        let counter = self.receive.window.expand(u32::from_be_bytes(*low));
        self.receive.window.check(counter)?;
        let which = self.which_key(now_ns, header[FLAGS_AT] & PHASE, counter)?;
        let key = self.receive.key(which).ok_or(OpenError::FormerKey)?;
        if !key.open(counter, aad, in_out, tag) {
            return Err(OpenError::Forged);
        }
        self.receive.window.commit(counter);
        match which {
            Which::Current | Which::Former => {}
            Which::Next => self.follow(now_ns, counter),
        }
        self.receive.blocks += blocks(in_out.len());
        Ok(())
    }

    /// Section 9.5: a sender's phases follow each other in the order of its counters, so the counter says whether the
    /// other phase is the former or the next one.
    fn which_key(&self, now_ns: u64, phase: u8, counter: u64) -> Result<Which, OpenError> {
        let receive = &self.receive;
        if phase == phase_bit(receive.generation) {
            return Ok(Which::Current);
        }
        if counter < receive.first {
            return Ok(Which::Former);
        }
        let expected = match self.role {
            // The server answers the client's change, and begins none.
            Role::Client => self.send.generation > receive.generation,
            Role::Server => now_ns.saturating_sub(receive.since_ns) >= LEAST_BETWEEN_FOLLOWED_NS,
        };
        if expected { Ok(Which::Next) } else { Err(OpenError::Change) }
    }

    /// The first packet under the next key was opened.
    fn follow(&mut self, now_ns: u64, counter: u64) {
        self.receive.change(now_ns, counter);
        self.counters.changes += 1;
        if self.role == Role::Server {
            self.send.change(now_ns);
        }
    }

    fn change_if_due(&mut self, now_ns: u64) {
        if self.role == Role::Server || self.send.generation != self.receive.generation {
            return;
        }
        let (limits, age_ns) = (&self.limits, now_ns.saturating_sub(self.send.since_ns));
        let most_blocks = self.send.blocks.max(self.receive.blocks);
        let due = age_ns >= limits.change_after_ns || most_blocks >= limits.change_after_blocks;
        // The server may have followed long after this end began, and counts from then: it has by the time that its first packet under the new key is here.
        let followed_ns = now_ns.saturating_sub(self.receive.since_ns);
        if due && age_ns.min(followed_ns) >= limits.between_changes_ns {
            self.send.change(now_ns);
        }
    }

    fn forget_former_key(&mut self, now_ns: u64) {
        if self.receive.former.as_ref().is_some_and(|former| now_ns >= former.until_ns) {
            self.receive.former = None;
        }
    }
}

impl From<Stale> for OpenError {
    fn from(stale: Stale) -> Self {
        match stale {
            Stale::Replayed => Self::Replayed,
            Stale::TooOld => Self::TooOld,
        }
    }
}

impl Sending {
    fn new(now_ns: u64, secret: &Secret32) -> Self {
        let Keys { key, chain } = Keys::new(secret);
        Self { key, chain, generation: 0, counter: 0, first: 0, blocks: 0, since_ns: now_ns, former: None }
    }

    fn change(&mut self, now_ns: u64) {
        let Keys { key, chain } = Keys::new(&self.chain);
        self.former = Some(Box::new(std::mem::replace(&mut self.key, key)));
        self.chain = chain;
        self.generation += 1;
        self.first = self.counter;
        self.blocks = 0;
        self.since_ns = now_ns;
    }
}

impl Receiving {
    fn new(now_ns: u64, secret: &Secret32) -> Self {
        let Keys { key, chain } = Keys::new(secret);
        Self {
            key,
            chain,
            generation: 0,
            first: 0,
            blocks: 0,
            since_ns: now_ns,
            former: None,
            next: None,
            window: Window::default(),
        }
    }

    fn key(&mut self, which: Which) -> Option<&PacketKey> {
        match which {
            Which::Current => Some(&self.key),
            Which::Former => self.former.as_ref().map(|former| &*former.key),
            Which::Next => Some(&self.next.get_or_insert_with(|| Box::new(Keys::new(&self.chain))).key),
        }
    }

    fn change(&mut self, now_ns: u64, counter: u64) {
        let next = self.next.take().unwrap_or_else(|| Box::new(Keys::new(&self.chain)));
        let Keys { key, chain } = *next;
        let former = std::mem::replace(&mut self.key, key);
        self.former = Some(Former { key: Box::new(former), until_ns: now_ns.saturating_add(FORMER_KEY_NS) });
        self.chain = chain;
        self.generation += 1;
        self.first = counter;
        self.blocks = 0;
        self.since_ns = now_ns;
    }
}

fn phase_bit(generation: u64) -> u8 {
    if generation & 1 == 1 { PHASE } else { 0 }
}

/// Blocks of the cipher that a payload uses, the one for the tag included.
fn blocks(payload_bytes: usize) -> u64 {
    payload_bytes.div_ceil(16) as u64 + 1
}
