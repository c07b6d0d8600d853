//! How a path becomes one of an association that is open (docs/protocol.md 12.2): four packets, of which the first two are as long as a packet can be. Whoever is
//! asked keeps nothing until the other end has proved that it receives there.

use ropeway_wire::{BASE_HEADER_BYTES, Cookie, Header, JoinFields, JoinStep, Malformed, Packet, Type};

use super::{Endpoint, Path, Presence};
use crate::crypto::token::{join_proof, same_token};
use crate::routes::{Condition, Routes};
use crate::time::Time;

/// What a cookie for a join covers besides the path: the id of the association that is asked, the nonce, and the rest of what the proof covers.
const COOKIE_FIELDS_BYTES: usize = 4 + 1 + 2 + 8;

impl Endpoint {
    /// Asks over a path that this end knows and the peer does not whether it may be one of the association's.
    pub(super) fn ask_to_join(&mut self, index: u32, place: usize) {
        let nonce = self.random.next_u64();
        let association = &mut self.associations[index as usize];
        let packet_size = association.packet_bytes as u16;
        let Some(routes) = &mut association.routes else { return };
        routes.set_nonce(place, nonce);
        let (path, bonded) = (routes.way(place).path, routes.is_bonded());
        let (step, cookie) = (JoinStep::Ask, Cookie([0; 20]));
        let fields = JoinFields { step, bonded, packet_size, nonce, cookie, proof: [0; 16] };
        self.say_join(index, &path, Presence::Silent, fields);
    }

    /// Sends a JOIN of an association over a path, with its proof. What is lost is asked for again in time, whether the link had room or not.
    fn say_join(&mut self, index: u32, path: &Path, presence: Presence, fields: JoinFields) {
        let association = &self.associations[index as usize];
        let fields = JoinFields { proof: join_proof(&association.peer_token, &fields.proved()), ..fields };
        let peer = association.peer;
        self.queue_reply(path, presence, |out| {
            let length = fields.write(out.get_mut(BASE_HEADER_BYTES..)?).ok()?;
            let header = Header { length: length as u16, ..Header::new(Type::Join, peer) };
            Some(header.write(out).ok()? + length)
        });
    }

    pub(super) fn handle_join(&mut self, now: Time, path: &Path, packet: &Packet<'_>) -> Result<(), Malformed> {
        let fields = JoinFields::parse(packet.payload)?;
        let Some(index) = self.find(packet.header.destination) else {
            self.counters.dropped_unknown_id += 1;
            return Ok(());
        };
        // Who answers us answers where we asked from; who asks may want the path to this very address beside another.
        let path = match fields.step {
            JoinStep::Ask | JoinStep::Prove => *path,
            JoinStep::Cookie | JoinStep::Done => self.known_path(packet.header.destination, path),
        };
        if !self.is_join_genuine(index, &fields) || !self.take_join(now, index, &path, fields) {
            self.counters.dropped_join += 1;
        }
        Ok(())
    }

    /// Whether only the peer can have said it. Its addresses are another matter.
    fn is_join_genuine(&mut self, index: u32, fields: &JoinFields) -> bool {
        let association = &self.associations[index as usize];
        let is_size = usize::from(fields.packet_size) == association.packet_bytes;
        if !association.is_open() || !is_size {
            return false;
        }
        let token = self.own_token(association.id);
        same_token(&join_proof(&token, &fields.proved()), &fields.proof)
    }

    /// `false`: nobody waits for it, or its cookie is not good.
    fn take_join(&mut self, now: Time, index: u32, path: &Path, fields: JoinFields) -> bool {
        let association = &self.associations[index as usize];
        let (size, id) = (fields.packet_size, association.id.0);
        let waiting = association.routes.as_ref().and_then(|routes| {
            let place = routes.place(path)?;
            (routes.way(place).nonce == fields.nonce).then_some((place, routes.way(place).condition))
        });
        match (fields.step, waiting) {
            (JoinStep::Ask, _) => {
                let cookie = self.cookie_of(now, path, &cookie_fields(id, size, &fields));
                // The proof covers neither path nor time: whoever has seen it once can say it in the name of any host.
                let presence = self.presence_of_host(now, path);
                self.say_join(index, path, presence, JoinFields { step: JoinStep::Cookie, cookie, ..fields });
            }
            (JoinStep::Cookie, Some((_, Condition::Unjoined))) => {
                self.say_join(index, path, Presence::Heard, JoinFields { step: JoinStep::Prove, ..fields });
            }
            (JoinStep::Prove, _) => {
                return self.is_fresh(now, path, &cookie_fields(id, size, &fields), &fields.cookie)
                    && self.admit_path(now, index, path, fields);
            }
            (JoinStep::Done, Some((place, Condition::Unjoined))) => {
                if let Some(routes) = &mut self.associations[index as usize].routes {
                    routes.join(place, now);
                }
                self.counters.paths_joined += 1;
            }
            _ => return false,
        }
        true
    }

    /// The peer receives at this path: it is one of the association's from now on, or was before and the answer was lost.
    fn admit_path(&mut self, now: Time, index: u32, path: &Path, fields: JoinFields) -> bool {
        let association = &mut self.associations[index as usize];
        let first = association.path;
        let was_known = association.has_path(path);
        let routes = association.routes.get_or_insert_with(|| Box::new(Routes::new(first, fields.bonded, now)));
        let replaced = match routes.place_of_proved(path) {
            Some(place) => {
                if routes.way(place).condition == Condition::Unjoined {
                    routes.join(place, now);
                }
                None
            }
            None => {
                let Some((_, replaced)) = routes.admit(*path, now) else { return false };
                replaced
            }
        };
        routes.set_bonded(fields.bonded);
        let peer = association.peer;
        if let Some(old) = replaced
            && !self.associations[index as usize].reaches(&old)
        {
            self.forget_path(&old, peer, index);
        }
        self.peers.entry(path.unbound()).or_insert(index);
        self.counters.paths_joined += u64::from(!was_known);
        self.say_join(index, path, Presence::Heard, JoinFields { step: JoinStep::Done, ..fields });
        true
    }
}

fn cookie_fields(id: u32, size: u16, fields: &JoinFields) -> [u8; COOKIE_FIELDS_BYTES] {
    let mut out = [0; COOKIE_FIELDS_BYTES];
    out[..4].copy_from_slice(&id.to_be_bytes());
    out[4] = u8::from(fields.bonded);
    out[5..7].copy_from_slice(&size.to_be_bytes());
    out[7..].copy_from_slice(&fields.nonce.to_be_bytes());
    out
}
