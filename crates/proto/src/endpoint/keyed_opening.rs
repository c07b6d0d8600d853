//! Opening with a key (docs/protocol.md 9.2, 9.7): what CONFIRM and OPENED carry in place of parameters and OPEN, and what is believed before it is proved.
//! And the door behind it: packets of an open association are opened here before anybody reads their headers.

use std::sync::Arc;

use ropeway_wire::{
    BASE_HEADER_BYTES, ConfirmFields, Cookie, ErrorCode, Header, Id, Malformed, OpenedFields, Packet, Parameters,
    SynFields, Type,
};
use zeroize::Zeroizing;

use super::{Endpoint, Path};
use crate::channel::ChannelId;
use crate::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use crate::crypto::{ClusterKeys, Initiator, KeyError, Limits, Responder, Session};
use crate::keyed::{self, Handshake};
use crate::time::Time;

/// What of CONFIRM precedes the first message: header, SYN's fields, cookie, and zeros where the parameters would be.
const PROLOGUE_BYTES: usize = BASE_HEADER_BYTES + ConfirmFields::BYTES;
/// In place of parameters, when the server refuses: an error code.
const REFUSAL_BYTES: usize = 2;

/// What stood in an OPENED that opened.
pub(super) enum Answer {
    Opened(Parameters),
    Refused(ErrorCode),
}

impl Endpoint {
    /// Takes over changed keys for what is opened from now on. `false`: the endpoint has none, or has some and would have none, which cannot change while it
    /// lives.
    pub fn replace_keys(&mut self, keys: Option<Arc<ClusterKeys>>) -> bool {
        let same_kind = self.keys.is_some() == keys.is_some();
        if same_kind {
            self.keys = keys;
        }
        same_kind
    }

    /// Why a channel has probably not opened yet: what a server said without proof. `None`: nothing was said, or the channel is open.
    pub fn hint(&self, id: ChannelId) -> Option<ErrorCode> {
        let channel = &self.channels[self.channel_index(id)? as usize];
        self.associations.get(channel.association as usize)?.attempt()?.hint
    }

    /// Keeps what a server says without proof. `false`: there is no key, so the word is all there is.
    pub(super) fn keep_hint(&mut self, index: u32, code: ErrorCode) -> bool {
        if self.keys.is_none() {
            return false;
        }
        if let Some(attempt) = self.associations[index as usize].attempt_mut() {
            attempt.hint = Some(code);
        }
        true
    }

    /// Sends CONFIRM, the same however often: a second first message would be a second session, and one of them nobody's.
    pub(super) fn send_keyed_confirm(&mut self, index: u32, syn: &SynFields, cookie: Cookie) {
        let association = &self.associations[index as usize];
        if association.attempt().is_some_and(|attempt| attempt.handshake.is_none()) {
            let handshake = self.make_confirm(index, syn, cookie);
            if let Some(attempt) = self.associations[index as usize].attempt_mut() {
                attempt.handshake = handshake;
            }
        }
        let association = &self.associations[index as usize];
        let path = association.path;
        let Some(handshake) = association.attempt().and_then(|attempt| attempt.handshake.as_ref()) else { return };
        let bytes = handshake.confirm.clone();
        self.ask(index, &path, bytes);
    }

    fn make_confirm(&mut self, index: u32, syn: &SynFields, cookie: Cookie) -> Option<Handshake> {
        let keys = self.keys.clone()?;
        let random = self.random.bytes();
        let parameters = self.parameters(index);
        let association = &self.associations[index as usize];
        let open = association.sent.get(association.sent.una())?.payload.bytes();
        let mut inside = Zeroizing::new(vec![0; Parameters::BYTES + open.len()]);
        parameters.write(&mut inside).ok()?;
        inside[Parameters::BYTES..].copy_from_slice(open);
        let syn = SynFields { packet_size: association.packet_bytes as u16, ..*syn };
        let length = ConfirmFields::BYTES + CONFIRM_OVERHEAD_BYTES + inside.len();
        let header = Header { length: length as u16, ..Header::new(Type::Confirm, Id::any(syn.destination_port)) };
        let fields = ConfirmFields { syn, cookie, parameters: Parameters::default(), rest: &[] };
        let mut confirm = vec![0; BASE_HEADER_BYTES + length].into_boxed_slice();
        let (prologue, message) = confirm.split_at_mut(PROLOGUE_BYTES);
        let at = header.write(prologue).ok()?;
        fields.write(&mut prologue[at..]).ok()?;
        let mut initiator = Initiator::new(keys.first(), prologue, random);
        initiator.write(&inside, message).ok()?;
        Some(Handshake { initiator, confirm })
    }

    /// Takes a CONFIRM whose cookie is good and new, and answers it.
    pub(super) fn confirm_with_key(
        &mut self,
        now: Time,
        path: &Path,
        packet: &Packet<'_>,
        confirm: &ConfirmFields<'_>,
    ) -> Result<(), Malformed> {
        let Some(keys) = self.keys.clone() else { return Ok(()) };
        let prologue = packet.bytes().get(..PROLOGUE_BYTES).ok_or(Malformed::PayloadLength)?;
        let random = self.random.bytes();
        let mut inside = Zeroizing::new(vec![0; confirm.rest.len()]);
        let (length, responder) = match Responder::read(&keys, prologue, confirm.rest, random, &mut inside) {
            Ok(read) => read,
            Err(error) => {
                self.counters.dropped_handshake[error.index()] += 1;
                if error == KeyError::Unknown {
                    self.refuse(now, path, &confirm.syn, ErrorCode::Key);
                }
                return Ok(());
            }
        };
        let (parameters, open) = Parameters::parse(&inside[..length])?;
        if !self.may_spend(now, path) {
            // The answer could not be repeated byte for byte. It is as if CONFIRM had been lost.
            self.counters.replies_suppressed += 1;
            return Ok(());
        }
        let nonce = confirm.syn.nonce;
        match self.take_client(now, path, &confirm.syn, &parameters, packet.header.flags, open)? {
            Ok(index) => self.answer_opened(now, index, nonce, responder),
            Err(code) => self.answer_refused(now, path, parameters.id, nonce, code, responder),
        }
        Ok(())
    }

    fn answer_opened(&mut self, now: Time, index: u32, nonce: u64, responder: Responder) {
        let header = self.opened_header(now, index);
        let mut inside = Zeroizing::new([0; Parameters::BYTES]);
        let written = self.parameters(index).write(&mut *inside);
        let answer = written.ok().and_then(|_| write_answer(now, header, nonce, &*inside, responder));
        let limits = self.key_limits();
        let association = &mut self.associations[index as usize];
        let (path, id) = (association.path, association.id);
        let Some((answer, mut session)) = answer else { return self.end_association(index, ErrorCode::Key) };
        session.tighten(limits);
        association.sealing.session = Some(Box::new(session));
        association.sealing.answered = Some(nonce);
        self.spend(now, &path, nonce, Some((index, id)), Some(answer.clone()));
        self.reply_bytes(&path, answer);
        self.settle_timers(now, index);
    }

    fn answer_refused(&mut self, now: Time, path: &Path, to: Id, nonce: u64, code: ErrorCode, responder: Responder) {
        self.counters.channels_refused += 1;
        let header = Header { time: now.ticks(), ..Header::new(Type::Opened, to) };
        let inside: [u8; REFUSAL_BYTES] = u16::from(code).to_be_bytes();
        // The session that comes with it is nobody's.
        let Some((answer, _)) = write_answer(now, header, nonce, &inside, responder) else { return };
        self.spend(now, path, nonce, None, Some(answer.clone()));
        self.reply_bytes(path, answer);
    }

    /// Reads the answer to our CONFIRM. `None`: it does not open, and the right one may still come.
    pub(super) fn read_answer(
        &mut self,
        now: Time,
        index: u32,
        packet: &Packet<'_>,
        fields: &OpenedFields<'_>,
    ) -> Option<Answer> {
        let limits = self.key_limits();
        let association = &mut self.associations[index as usize];
        let handshake = association.attempt_mut()?.handshake.as_mut()?;
        let header = packet.bytes().get(..BASE_HEADER_BYTES)?;
        let mut inside = Zeroizing::new([0; Parameters::BYTES]);
        let (length, mut session) = match handshake.initiator.read(now.as_nanos(), header, fields.rest, &mut *inside) {
            Ok(read) => read,
            Err(error) => {
                self.counters.dropped_handshake[error.index()] += 1;
                return None;
            }
        };
        if let Some(code) = inside[..length].first_chunk::<REFUSAL_BYTES>().filter(|_| length == REFUSAL_BYTES) {
            return Some(Answer::Refused(u16::from_be_bytes(*code).into()));
        }
        // A member of the cluster made it, so nothing better will come.
        let Ok((parameters, _)) = Parameters::parse(&inside[..length]) else {
            return Some(Answer::Refused(ErrorCode::Protocol));
        };
        session.tighten(limits);
        association.sealing.session = Some(Box::new(session));
        Some(Answer::Opened(parameters))
    }

    /// When keys are changed: as the protocol wants it, or sooner.
    fn key_limits(&self) -> Limits {
        Limits {
            change_after_ns: self.config.key_age_ns,
            change_after_blocks: self.config.key_volume_bytes / BLOCK_BYTES,
            ..Limits::default()
        }
    }

    /// Opens a packet of an association with a key; counts it if it does not open.
    pub(super) fn unseal<'a>(
        &mut self,
        now: Time,
        index: u32,
        packet: &Packet<'a>,
        room: &'a mut Vec<u8>,
    ) -> Option<Packet<'a>> {
        let sealing = &mut self.associations[index as usize].sealing;
        match keyed::open(now, sealing.session.as_mut()?, packet, room) {
            Ok(length) => {
                if let Some(nonce) = sealing.answered.take() {
                    self.forget_answer(index, nonce);
                }
                // If it was the first under another key, ours has changed with it.
                self.associations[index as usize].leave_former_key();
                let mut opened = *packet;
                opened.payload = &room[..length];
                Some(opened)
            }
            Err(error) => {
                self.counters.dropped_sealed[error.index()] += 1;
                None
            }
        }
    }

    /// The client has our OPENED: nobody will ask for it again but strangers.
    fn forget_answer(&mut self, index: u32, nonce: u64) {
        let path = self.associations[index as usize].path;
        if let Some(spent) = self.spent.get_mut(&(path, nonce)) {
            spent.answer = None;
        }
    }
}

/// Bytes of a block of the cipher.
const BLOCK_BYTES: u64 = 16;

/// OPENED behind `header` with `inside` in it, and the session that both ends have from then on.
fn write_answer(
    now: Time,
    header: Header,
    nonce: u64,
    inside: &[u8],
    responder: Responder,
) -> Option<(Box<[u8]>, Session)> {
    let fields = OpenedFields { nonce, rest: &[] };
    let mut bytes = vec![0; BASE_HEADER_BYTES + NONCE_BYTES + OPENED_OVERHEAD_BYTES + inside.len()].into_boxed_slice();
    let (head, body) = bytes.split_at_mut(BASE_HEADER_BYTES);
    Header { length: body.len() as u16, ..header }.write(head).ok()?;
    let at = fields.write(body).ok()?;
    let (_, session) = responder.write(now.as_nanos(), head, inside, &mut body[at..]).ok()?;
    Some((bytes, session))
}

/// What stands in front of the second message in the payload of OPENED.
const NONCE_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::crypto::{ClusterKey, OpenError};
    use ropeway_wire::Mode;

    const PATHS: [Path; 2] = [Path([1; Path::BYTES]), Path([2; Path::BYTES])];
    const MS: u64 = 1_000_000;

    /// Two ends of one wire, and what they say to each other.
    struct Pair {
        ends: [Endpoint; 2],
        now: Time,
    }

    impl Pair {
        fn new() -> Pair {
            let keys = Arc::new(ClusterKeys::one(ClusterKey::new(std::array::from_fn(|at| at as u8))));
            let end = |number: u8| {
                Endpoint::with_keys(Config::default(), u64::from(number), 1, [number; 32], Some(keys.clone()))
            };
            Pair { ends: [end(0), end(1)], now: Time::from_nanos(1_000_000_000) }
        }

        /// The same with a channel between them: its ends.
        fn open() -> (Pair, [ChannelId; 2]) {
            let mut pair = Pair::new();
            pair.ends[1].listen(7, Mode::Stream, 1).unwrap();
            let client = pair.ends[0].connect(pair.now, &PATHS[1], 7, Mode::Stream).unwrap();
            pair.talk();
            let server = pair.ends[1].accept(7).unwrap();
            (pair, [client, server])
        }

        /// Until nobody has anything to say at this moment. Says how many packets each has sent.
        fn talk(&mut self) -> [usize; 2] {
            let mut sent = [0; 2];
            for turn in 0.. {
                assert!(turn < 10_000, "they never come to an end");
                let mut is_quiet = true;
                for (from, sum) in sent.iter_mut().enumerate() {
                    let count = self.carry(from);
                    *sum += count;
                    is_quiet &= count == 0;
                }
                if is_quiet {
                    break;
                }
            }
            sent
        }

        /// What one has to say at this moment, to the other. Says how many packets that was.
        fn carry(&mut self, from: usize) -> usize {
            let mut packets = Vec::new();
            self.ends[from].transmit(self.now, &mut |_, _, batch| {
                packets.extend(batch.iter().map(|packet| packet.to_vec()));
                batch.len()
            });
            for packet in &packets {
                self.ends[1 - from].handle_packet(self.now, &PATHS[from], false, packet);
            }
            self.ends[1 - from].finish_batch(self.now);
            packets.len()
        }

        fn wait(&mut self, ns: u64) -> [usize; 2] {
            let (end, mut sent) = (self.now.after(ns), [0; 2]);
            while self.now < end {
                self.now = self.now.after(MS);
                self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
                sent.iter_mut().zip(self.talk()).for_each(|(sum, more)| *sum += more);
            }
            sent
        }

        fn session(&mut self, end: usize) -> &mut Session {
            let (_, association) = self.ends[end].associations.iter_mut().next().expect("an association");
            association.sealing.session.as_mut().expect("it is open")
        }
    }

    #[test]
    fn an_end_whose_key_is_used_up_falls_silent_and_the_other_gives_it_up() {
        let (mut pair, [client, server]) = Pair::open();
        // The server may seal a hundred packets more, and the client changes nothing before.
        let limits = Limits { most_blocks: 100 * 91, ..Limits::default() };
        pair.session(1).tighten(limits);
        let mut sent = 0;
        for _ in 0..30 {
            let _ = pair.ends[1].send(pair.now, server, &[7; 30_000]);
            sent += pair.wait(10 * MS)[1];
        }
        assert!((100..400).contains(&sent), "{sent}");
        assert_eq!(pair.wait(1000 * MS)[1], 0, "silent for good");
        assert!(!pair.ends[1].wants_to_transmit(), "and without a busy loop");
        let _ = pair.ends[0].send(pair.now, client, b"are you there?");
        pair.wait(11_000 * MS);
        assert_eq!(pair.ends[0].readiness(client).unwrap().failed, Some(ErrorCode::Timeout));
        pair.wait(11_000 * MS);
        assert_eq!(pair.ends[1].readiness(server).unwrap().failed, Some(ErrorCode::Timeout));
    }

    #[test]
    fn what_waits_for_its_acknowledgment_when_keys_change_is_sent_again_under_the_new_ones() {
        for sender in 0..2 {
            let (mut pair, channels) = Pair::open();
            // Sealed under the first keys, after a grant, and lost, or not taken by the link.
            let text: Vec<u8> = (0..30_000u32).map(|at| at as u8).collect();
            let _ = pair.ends[sender].send(pair.now, channels[sender], &text);
            pair.carry(sender);
            pair.carry(1 - sender);
            let mut offered = 0;
            pair.ends[sender].transmit(pair.now, &mut |_, _, batch| {
                offered += batch.len();
                batch.len().div_ceil(2)
            });
            assert!(offered > 4, "{offered}");
            assert_eq!(pair.session(sender).generation(), 0);
            // The client's next packet changes its key, and the server's with it.
            pair.now = pair.now.after(3000 * MS);
            pair.session(0).tighten(Limits { change_after_ns: 2000 * MS, ..Limits::default() });
            let _ = pair.ends[0].send(pair.now, channels[0], b"!");
            pair.wait(5000 * MS);
            assert_eq!((pair.session(0).generation(), pair.session(1).generation()), (1, 1));
            for end in 0..2 {
                assert!(!pair.session(end).has_former_sending_key(), "end {end}");
                assert_eq!(pair.session(end).counters().refused, [0; OpenError::ALL.len()]);
            }
            let (mut out, mut read) = (vec![0; 40_000], 0);
            while let Ok(Some(count)) = pair.ends[1 - sender].recv(channels[1 - sender], &mut out[read..]) {
                read += count;
                if count == 0 {
                    break;
                }
            }
            let own = if sender == 0 { &b"!"[..] } else { b"" };
            assert!(out[..read] == [&text[..], own].concat(), "{read} bytes");
        }
    }

    #[test]
    fn an_end_whose_memory_was_damaged_falls_silent_and_does_not_repeat_what_it_is_now() {
        let (mut pair, [client, server]) = Pair::open();
        pair.ends[0].send(pair.now, client, b"lost").unwrap();
        pair.ends[0].transmit(pair.now, &mut |_, _, batch| batch.len());
        let (_, association) = pair.ends[0].associations.iter_mut().next().unwrap();
        let packet = association.sent.packets_mut().find(|packet| packet.is_sealed).expect("on its way");
        packet.payload.packet_mut((0, 0))[0] ^= 1;
        pair.wait(1000 * MS);
        assert_eq!(pair.wait(1000 * MS)[0], 0, "silent for good");
        assert!(!pair.ends[0].wants_to_transmit(), "and without a busy loop");
        // The server asks for what it misses, but not all the time, until it takes the silence for an end.
        let asked = pair.wait(300_000 * MS)[1];
        assert!((1000..7000).contains(&asked), "{asked}");
        pair.wait(11_000 * MS);
        assert_eq!(pair.ends[0].readiness(client).unwrap().failed, Some(ErrorCode::Timeout));
        assert!(pair.ends[1].recv(server, &mut [0; 10]).is_err(), "nothing came");
    }

    #[test]
    fn nothing_leaves_an_association_with_a_key_before_it_can_be_sealed() {
        let (mut pair, [_, server]) = Pair::open();
        for (_, association) in &mut pair.ends[1].associations {
            association.sealing.session = None;
        }
        pair.ends[1].send(pair.now, server, &[7; 30_000]).unwrap();
        assert_eq!(pair.wait(100 * MS)[1], 0);
    }
}
