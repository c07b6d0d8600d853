//! The handshake: `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, one message each way (docs/protocol.md, section 9.2).
//!
//! The first message is opened with the cluster key alone, so a server spends no elliptic curve on a stranger; the
//! second adds a fresh Diffie-Hellman secret, from which the [`Session`] gets its keys. Which bytes of CONFIRM and
//! OPENED are covered is decided here: everything that is not in a message itself.

use super::kdf::{self, Secret32};
use super::key::{ClusterKey, ClusterKeys};
use super::session::{Role, Session};
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::{Zeroize, Zeroizing};

const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// An ephemeral public key.
const POINT_BYTES: usize = 32;

const TAG_BYTES: usize = 16;

/// What stands in front of the second message's payload: a hash of the header that carries it.
const HEADER_HASH_BYTES: usize = 16;

/// What the first message is longer than its payload.
pub const CONFIRM_OVERHEAD_BYTES: usize = POINT_BYTES + TAG_BYTES;

/// What the second message is longer than its payload.
pub const OPENED_OVERHEAD_BYTES: usize = POINT_BYTES + HEADER_HASH_BYTES + TAG_BYTES;

/// The longest message, a bound of Noise; packets are shorter.
const MOST_BYTES: usize = 65535;

/// Why a handshake message was not taken, or not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Peer or stranger: shorter than any message.
    #[error("the handshake message is too short or too long")]
    Length,
    /// Peer or stranger: made with a key that is not ours, for another packet, or damaged. These cannot be told apart.
    #[error("the handshake message does not open: another key, or changed on its way")]
    Unknown,
    /// Caller: the buffer for the result is too small.
    #[error("no room for the result")]
    Room,
    /// Caller: the message before it was not written yet, or this one was.
    #[error("not this step of the handshake now")]
    Order,
}

impl KeyError {
    /// How many kinds there are.
    pub const COUNT: usize = KeyError::NAMES.len();

    /// The names of the kinds for lists of counters, each at its [`index`](KeyError::index).
    pub const NAMES: [&'static str; 4] = ["length", "unknown", "room", "order"];

    /// The place of this kind among counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The client's side. [`Initiator::write`] once, then [`Initiator::read`] until it succeeds.
pub struct Initiator {
    noise: HandshakeState,
    /// The second message, once Noise took it, until it comes behind the header that it was made for.
    opened: Option<Opened>,
}

/// Noise reads a message once. Who changes only the header of a copy of OPENED must not make the genuine one
/// unreadable.
struct Opened {
    message_hash: [u8; 32],
    header_hash: [u8; HEADER_HASH_BYTES],
    payload: Zeroizing<Vec<u8>>,
}

impl Initiator {
    /// `prologue`: what of CONFIRM precedes the first message, header included. `random`: never the same again.
    pub fn new(key: &ClusterKey, prologue: &[u8], random: [u8; 32]) -> Self {
        let psk = key.psk();
        let ephemeral = ephemeral(random, &psk, prologue, &[]);
        let noise = builder(&psk, prologue, ephemeral).build_initiator();
        let noise = noise.expect("the pattern, its key and its algorithms are given above");
        Self { noise, opened: None }
    }

    /// The first message, with `payload` inside, and its length: [`CONFIRM_OVERHEAD_BYTES`] more. To be sent again as
    /// it is, never made again.
    pub fn write(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize, KeyError> {
        room(payload.len() + CONFIRM_OVERHEAD_BYTES, out)?;
        self.noise.write_message(payload, out).map_err(|_| KeyError::Order)
    }

    /// Opens the second message, which came behind `header`. A message that does not open changes nothing: the right
    /// one may still come.
    pub fn read(
        &mut self,
        now_ns: u64,
        header: &[u8],
        message: &[u8],
        payload_out: &mut [u8],
    ) -> Result<(usize, Session), KeyError> {
        let length = payload_length(message, OPENED_OVERHEAD_BYTES)?;
        let payload_out = payload_out.get_mut(..length).ok_or(KeyError::Room)?;
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => self.open(message, length)?,
        };
        if opened.message_hash != kdf::hash(message) || opened.header_hash != header_hash(header) {
            self.opened = Some(opened);
            return Err(KeyError::Unknown);
        }
        payload_out.copy_from_slice(&opened.payload);
        Ok((length, session(&mut self.noise, Role::Client, now_ns)))
    }

    fn open(&mut self, message: &[u8], length: usize) -> Result<Opened, KeyError> {
        if self.noise.is_my_turn() || self.noise.is_handshake_finished() {
            return Err(KeyError::Order);
        }
        let mut inside = Zeroizing::new(vec![0; HEADER_HASH_BYTES + length]);
        self.noise.read_message(message, &mut inside).map_err(|_| KeyError::Unknown)?;
        let (hash, payload) = inside.split_at(HEADER_HASH_BYTES);
        Ok(Opened {
            message_hash: kdf::hash(message),
            header_hash: std::array::from_fn(|i| hash[i]),
            payload: Zeroizing::new(payload.to_vec()),
        })
    }
}

/// The server's side, between the first message and the second.
pub struct Responder {
    noise: HandshakeState,
    key: usize,
}

impl Responder {
    /// Opens the first message with one of `keys`. Keeps nothing if none of them does. `prologue`: what of CONFIRM
    /// precedes the message, header included. `random`: never the same again.
    pub fn read(
        keys: &ClusterKeys,
        prologue: &[u8],
        message: &[u8],
        random: [u8; 32],
        payload_out: &mut [u8],
    ) -> Result<(usize, Self), KeyError> {
        let random = Zeroizing::new(random);
        let length = payload_length(message, CONFIRM_OVERHEAD_BYTES)?;
        room(length, payload_out)?;
        for (index, key) in keys.iter().enumerate() {
            let psk = key.psk();
            let ephemeral = ephemeral(*random, &psk, prologue, message);
            let noise = builder(&psk, prologue, ephemeral).build_responder();
            let mut noise = noise.expect("the pattern, its key and its algorithms are given above");
            if noise.read_message(message, payload_out).is_ok() {
                return Ok((length, Self { noise, key: index }));
            }
        }
        Err(KeyError::Unknown)
    }

    /// Which of the keys the client used: tells when an old one is no longer needed.
    pub fn key(&self) -> usize {
        self.key
    }

    /// The second message, to be sent behind `header`, with `payload` inside, and its length: [`OPENED_OVERHEAD_BYTES`]
    /// more. To be sent again as it is if the client repeats its own, never made again.
    pub fn write(
        mut self,
        now_ns: u64,
        header: &[u8],
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, Session), KeyError> {
        room(payload.len() + OPENED_OVERHEAD_BYTES, out)?;
        let mut inside = Zeroizing::new(Vec::with_capacity(HEADER_HASH_BYTES + payload.len()));
        inside.extend_from_slice(&header_hash(header));
        inside.extend_from_slice(payload);
        let length = self.noise.write_message(&inside, out).map_err(|_| KeyError::Order)?;
        Ok((length, session(&mut self.noise, Role::Server, now_ns)))
    }
}

fn payload_length(message: &[u8], overhead: usize) -> Result<usize, KeyError> {
    if message.len() > MOST_BYTES {
        return Err(KeyError::Length);
    }
    message.len().checked_sub(overhead).ok_or(KeyError::Length)
}

fn room(needed: usize, out: &[u8]) -> Result<(), KeyError> {
    if needed > MOST_BYTES {
        Err(KeyError::Length)
    } else if out.len() < needed {
        Err(KeyError::Room)
    } else {
        Ok(())
    }
}

/// Noise covers what it was told before its first message; the header of the second is made later, so its hash goes
/// inside.
fn header_hash(header: &[u8]) -> [u8; HEADER_HASH_BYTES] {
    let hash = kdf::hash(header);
    std::array::from_fn(|i| hash[i])
}

/// The private ephemeral key: random bytes, the cluster key and what it is used for. So random bytes that come twice (a
/// restored machine, a bad source) give the same key only for the same messages.
fn ephemeral(random: [u8; 32], psk: &Secret32, prologue: &[u8], message: &[u8]) -> Secret32 {
    let random = Zeroizing::new(random);
    let length = (prologue.len() as u64).to_be_bytes();
    kdf::derive(&random, b"ropeway 1 ephemeral", &[&psk[..], &length, prologue, message])
}

fn builder<'a>(psk: &'a Secret32, prologue: &'a [u8], ephemeral: Secret32) -> Builder<'a> {
    let params: NoiseParams = PROTOCOL.parse().expect("the name of a Noise protocol");
    Builder::with_resolver(params, Box::new(Resolver { ephemeral }))
        .psk(0, psk)
        .and_then(|builder| builder.prologue(prologue))
        .expect("each is set once")
}

/// Takes the two keys that Noise ends with; everything else of it goes.
fn session(noise: &mut HandshakeState, role: Role, now_ns: u64) -> Session {
    let (mut to_server, mut to_client) = noise.dangerously_get_raw_split();
    let session = Session::new(role, now_ns, Zeroizing::new(to_server), Zeroizing::new(to_client));
    to_server.zeroize();
    to_client.zeroize();
    session
}

/// Snow's own algorithms, and as its randomness one ephemeral key.
struct Resolver {
    ephemeral: Secret32,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.ephemeral.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives its bytes once and then nothing: a pattern that asked twice would use one key for two purposes.
struct Once(Option<Secret32>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if bytes.len() == dest.len() => {
                dest.copy_from_slice(&bytes[..]);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
