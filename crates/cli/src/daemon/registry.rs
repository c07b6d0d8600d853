//! Who registered what, and which two registrations are the two ends of one connection.
//!
//! All state of the daemon that is not a descriptor lives here. The registry does no I/O: it asks the kernel through
//! [`Host`] (by the rules in [`super::checks`]) and leaves its answers in an outbox, so its rules are tested without sockets. docs/rendezvous.md states the
//! rules in the order in which they are applied.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ropeway_shm::segment::{MIN_RING_BYTES, pair_bytes};
use ropeway_socket::reason::Reason;
use ropeway_socket::rendezvous::wire::{Counts, Endpoint, Legacy, Message, Prefix};

use super::checks::{Claim, Client, FINAL, Host, RETRY, Refusal, Unpaired, owned, ring_within, same_bytes};
use crate::config::{Config, Decision, Limits};

/// Registrations between two audits, so that what is gone does not pile up for ever below the limits. An audit asks for
/// every live socket of the machine (about 1 ms per 2,000).
const AUDIT_EVERY: u64 = 1024;
/// Shortest time between two audits that a limit asks for: a user at his limit must not keep the daemon busy.
const AUDIT_PAUSE: Duration = Duration::from_secs(1);

pub type ClientId = u64;

/// An answer on its way out; a segment is shared by the grants to both ends.
#[derive(Debug)]
pub struct Outgoing {
    pub to: ClientId,
    pub message: Message,
    pub segment: Option<Rc<OwnedFd>>,
}

/// What a process registered.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub token: u64,
    pub cookie: u64,
    pub fd: i32,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub tx: Prefix,
    pub rx: Prefix,
}

/// What a process passed on to the next image of process `heir`.
#[derive(Clone, Copy, Debug)]
pub struct PassedOn {
    pub heir: u32,
    pub cookie: u64,
    pub fd: i32,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub legacy: Legacy,
}

/// Waits for the other end.
#[derive(Clone, Copy, Debug)]
struct Offer {
    client: ClientId,
    token: u64,
    ring_bytes: u32,
}

/// A socket the daemon has heard of: with an offer while it waits, with an heir after it was passed on, with neither once
/// granted or withdrawn.
#[derive(Debug)]
struct Socket {
    ends: (Endpoint, Endpoint),
    uid: u32,
    tx: Prefix,
    rx: Prefix,
    offer: Option<Offer>,
    /// The process that may adopt it, once, and what it is told then.
    heir: Option<(u32, Legacy)>,
}

/// A granted segment, charged until both sockets are gone or have a newer one.
#[derive(Debug)]
struct Pair {
    uids: [u32; 2],
    bytes: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Usage {
    segment_bytes: u64,
    registrations: usize,
}

/// A client and the cookies of its tokens.
struct Member {
    client: Client,
    tokens: HashMap<u64, u64>,
}

pub struct Registry {
    config: Config,
    limits: Limits,
    members: HashMap<ClientId, Member>,
    sockets: HashMap<u64, Socket>,
    by_ends: HashMap<(Endpoint, Endpoint), u64>,
    /// By the two cookies, the smaller first.
    pairs: HashMap<[u64; 2], Pair>,
    usage: HashMap<u32, Usage>,
    next_pair: u64,
    last_audit: Option<Instant>,
    registered_at_audit: u64,
    pub counts: Counts,
    pub outbox: Vec<Outgoing>,
}

impl Registry {
    pub fn new(config: Config, limits: Limits, first_pair: u64) -> Registry {
        Registry {
            config,
            limits,
            members: HashMap::new(),
            sockets: HashMap::new(),
            by_ends: HashMap::new(),
            pairs: HashMap::new(),
            usage: HashMap::new(),
            next_pair: first_pair,
            last_audit: None,
            registered_at_audit: 0,
            counts: Counts::default(),
            outbox: Vec::new(),
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub fn reconfigure(&mut self, config: Config, limits: Limits) {
        self.config = config;
        self.limits = limits;
    }

    /// A process said hello.
    pub fn join(&mut self, id: ClientId, client: Client) {
        self.members.insert(id, Member { client, tokens: HashMap::new() });
    }

    /// What a process asks for from now on is asked with the rights of this user, and charged to him.
    pub fn speaks_as(&mut self, id: ClientId, uid: u32) {
        if let Some(member) = self.members.get_mut(&id) {
            member.client.uid = uid;
        }
    }

    /// A process is gone: what it offered is withdrawn; what it passed on stays.
    pub fn leave(&mut self, id: ClientId) {
        let Some(member) = self.members.remove(&id) else { return };
        for cookie in member.tokens.into_values() {
            if let Some(socket) = self.sockets.get_mut(&cookie) {
                socket.offer = socket.offer.filter(|offer| offer.client != id);
            }
        }
    }

    pub fn register(&mut self, host: &mut dyn Host, id: ClientId, reg: Registration) {
        self.counts.registered += 1;
        self.withdraw(id, reg.token);
        if let Err(refusal) = self.offer(host, id, &reg) {
            self.deny(id, reg.token, refusal);
        }
    }

    pub fn unregister(&mut self, id: ClientId, token: u64) {
        self.withdraw(id, token);
    }

    /// Keeps what the next image of a process must know of a socket, if the teller owned that and nobody else claims it.
    pub fn pass_on(&mut self, host: &mut dyn Host, id: ClientId, passed: &PassedOn) {
        let PassedOn { heir, cookie, fd, local, remote, legacy } = *passed;
        let Some(Member { client, .. }) = self.members.get(&id) else { return };
        let uid = client.uid;
        if owned(host, client, &local, &remote, cookie, fd).is_err() {
            return;
        }
        let known = self.sockets.get(&cookie);
        let claimed = known.and_then(|s| s.offer).is_some_and(|offer| offer.client != id);
        if claimed || known.is_none() && self.make_room(host, uid).is_err() {
            return;
        }
        let heir = (heir != 0).then_some((heir, legacy));
        self.keep(cookie, Socket { ends: (local, remote), uid, tx: legacy.tx, rx: legacy.rx, offer: None, heir });
    }

    /// Tells the heir of a socket what was passed on with it. It may come before the last of the former holders has left.
    pub fn adopt(&mut self, host: &mut dyn Host, id: ClientId, token: u64, cookie: u64, fd: i32) {
        let Some(Member { client, .. }) = self.members.get(&id) else { return };
        let answer = match self.sockets.get_mut(&cookie) {
            Some(socket) => {
                let (local, remote) = socket.ends;
                owned(host, client, &local, &remote, cookie, fd).and_then(|_| {
                    let mine = socket.heir.take_if(|(heir, _)| *heir == client.pid);
                    mine.map(|(_, legacy)| legacy).ok_or((Reason::Exec, RETRY))
                })
            }
            None => Err((Reason::Exec, RETRY)),
        };
        match answer {
            Ok(legacy) => {
                self.counts.adopted += 1;
                self.outbox.push(Outgoing { to: id, message: Message::Adopted { token, legacy }, segment: None });
            }
            Err(refusal) => self.deny(id, token, refusal),
        }
    }

    /// The counters, with the live ones brought up to date.
    pub fn counts(&self) -> Counts {
        Counts {
            live_processes: self.members.len() as u64,
            live_pending: self.sockets.values().filter(|s| s.offer.is_some()).count() as u64,
            live_sockets: self.sockets.len() as u64,
            live_pairs: self.pairs.len() as u64,
            live_segment_bytes: self.pairs.values().map(|p| p.bytes).sum(),
            ..self.counts
        }
    }

    /// Checks a registration and keeps it; pairs it if its other end waits.
    fn offer(&mut self, host: &mut dyn Host, id: ClientId, reg: &Registration) -> Result<(), Refusal> {
        let Member { client, .. } = self.members.get(&id).ok_or((Reason::DaemonUnavailable, RETRY))?;
        let uid = client.uid;
        let ring_bytes = match self.config.decide(&client.program, &reg.local, &reg.remote) {
            Decision::Deny => return Err((Reason::Rule, FINAL)),
            Decision::Allow(profile) => {
                let by_rule = profile.and_then(|name| self.config.profile(name).ok());
                by_rule.map_or(client.ring_bytes, |settings| settings.ring_bytes)
            }
        };
        if reg.local == reg.remote {
            return Err((Reason::SelfConnect, FINAL));
        }
        owned(host, client, &reg.local, &reg.remote, reg.cookie, reg.fd)?;
        if !self.sockets.contains_key(&reg.cookie) {
            self.make_room(host, uid)?;
        }
        let offer = Offer { client: id, token: reg.token, ring_bytes };
        let ends = (reg.local, reg.remote);
        self.keep(reg.cookie, Socket { ends, uid, tx: reg.tx, rx: reg.rx, offer: Some(offer), heir: None });
        match self.by_ends.get(&(reg.remote, reg.local)) {
            Some(other) if self.sockets.get(other).is_some_and(|s| s.offer.is_some()) => {
                let other = *other;
                self.pair(host, [other, reg.cookie]);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Room for one more socket of this user, after an audit if need be.
    fn make_room(&mut self, host: &mut dyn Host, uid: u32) -> Result<(), Refusal> {
        if self.counts.registered - self.registered_at_audit >= AUDIT_EVERY.max(self.sockets.len() as u64 / 2) {
            self.audit(host);
        }
        let full = |registry: &Self| registry.used(uid).registrations >= registry.limits.registrations;
        if full(self) {
            self.audit_if_due(host);
        }
        if full(self) { Err((Reason::Limits, RETRY)) } else { Ok(()) }
    }

    fn used(&self, uid: u32) -> Usage {
        self.usage.get(&uid).copied().unwrap_or_default()
    }

    fn keep(&mut self, cookie: u64, socket: Socket) {
        let previous = self.forget(cookie);
        if let Some(displaced) = previous.and_then(|s| s.offer).filter(|_| socket.offer.is_some()) {
            // Another process, or the same under another token, registered this very socket: the owners were miscounted.
            self.deny(displaced.client, displaced.token, (Reason::SharedOwners, RETRY));
        }
        // A 4-tuple used again: the former socket is gone, for the kernel has just confirmed this one.
        if let Some(former) = self.by_ends.get(&socket.ends).copied() {
            self.forget(former);
        }
        self.by_ends.insert(socket.ends, cookie);
        if let Some(offer) = socket.offer
            && let Some(member) = self.members.get_mut(&offer.client)
        {
            member.tokens.insert(offer.token, cookie);
        }
        self.usage.entry(socket.uid).or_default().registrations += 1;
        self.sockets.insert(cookie, socket);
    }

    /// Drops all knowledge of a socket but the charge for its segment.
    fn forget(&mut self, cookie: u64) -> Option<Socket> {
        let socket = self.sockets.remove(&cookie)?;
        if self.by_ends.get(&socket.ends) == Some(&cookie) {
            self.by_ends.remove(&socket.ends);
        }
        if let Some(usage) = self.usage.get_mut(&socket.uid) {
            usage.registrations = usage.registrations.saturating_sub(1);
        }
        if let Some(offer) = socket.offer {
            self.drop_token(&offer);
        }
        Some(socket)
    }

    /// Takes an offer back.
    fn withdraw(&mut self, id: ClientId, token: u64) {
        let Some(cookie) = self.members.get_mut(&id).and_then(|m| m.tokens.remove(&token)) else { return };
        if let Some(socket) = self.sockets.get_mut(&cookie) {
            socket.offer = socket.offer.filter(|offer| (offer.client, offer.token) != (id, token));
        }
    }

    /// Removes and returns a socket's offer.
    fn take_offer(&mut self, cookie: u64) -> Option<Offer> {
        let offer = self.sockets.get_mut(&cookie)?.offer.take()?;
        self.drop_token(&offer);
        Some(offer)
    }

    fn drop_token(&mut self, offer: &Offer) {
        if let Some(member) = self.members.get_mut(&offer.client) {
            member.tokens.remove(&offer.token);
        }
    }

    /// Two sockets with mirrored ends and an offer each: grants both, denies both, or drops one that is gone.
    fn pair(&mut self, host: &mut dyn Host, cookies: [u64; 2]) {
        match self.try_pair(host, cookies) {
            Ok(()) => {}
            Err(Unpaired::Gone(cookie)) => {
                if let Some(offer) = self.take_offer(cookie) {
                    self.deny(offer.client, offer.token, (Reason::PeerClosed, FINAL));
                }
            }
            Err(Unpaired::Refused(refusal)) => {
                for cookie in cookies {
                    if let Some(offer) = self.take_offer(cookie) {
                        self.deny(offer.client, offer.token, refusal);
                    }
                }
            }
        }
    }

    fn try_pair(&mut self, host: &mut dyn Host, cookies: [u64; 2]) -> Result<(), Unpaired> {
        let [a, b] = cookies.map(|cookie| self.sockets.get(&cookie));
        let (Some(a), Some(b)) = (a, b) else { return Err(Unpaired::Refused((Reason::Mismatch, FINAL))) };
        let claims = [(cookies[0], a), (cookies[1], b)];
        same_bytes(host, claims.map(|(cookie, s)| Claim { cookie, ends: s.ends, tx: s.tx, rx: s.rx }))?;
        let uids = [a.uid, b.uid];
        let offers: Vec<Offer> = [a, b].iter().filter_map(|s| s.offer).collect();
        let wanted = offers.iter().map(|offer| offer.ring_bytes).max().unwrap_or(MIN_RING_BYTES);
        let fitting = |registry: &Self| {
            let limit = registry.limits.segment_bytes;
            let left = uids.map(|u| limit.saturating_sub(registry.used(u).segment_bytes));
            ring_within(wanted, left[0].min(left[1]), limit)
        };
        if fitting(self).is_none_or(|ring_bytes| ring_bytes < wanted) {
            self.audit_if_due(host);
        }
        let ring_bytes = fitting(self).ok_or(Unpaired::Refused((Reason::Limits, RETRY)))?;
        let bytes = pair_bytes(ring_bytes) as u64;
        let members = offers.iter().filter_map(|offer| self.members.get(&offer.client));
        if !members.into_iter().all(|member| host.take_memory(&member.client, bytes)) {
            return Err(Unpaired::Refused((Reason::Memory, RETRY)));
        }
        // The daemon is out of descriptors, may have no file that large, or the kernel is out of memory.
        let segment = host.segment(bytes as usize).map_err(|_| Unpaired::Refused((Reason::Limits, RETRY)))?;
        self.grant(cookies, uids, ring_bytes, bytes, Rc::new(segment));
        Ok(())
    }

    fn grant(&mut self, cookies: [u64; 2], uids: [u32; 2], ring_bytes: u32, bytes: u64, segment: Rc<OwnedFd>) {
        let pair_id = self.next_pair;
        self.next_pair = self.next_pair.wrapping_add(1);
        self.counts.granted += 1;
        // A pair of two users counts for both.
        for uid in distinct(uids) {
            self.usage.entry(uid).or_default().segment_bytes += bytes;
        }
        let [a, b] = cookies;
        if let Some(former) = self.pairs.insert([a.min(b), a.max(b)], Pair { uids, bytes }) {
            self.release(&former);
        }
        for (side, cookie) in [0, 1].into_iter().zip(cookies) {
            if let Some(Offer { client, token, .. }) = self.take_offer(cookie) {
                let message = Message::Grant { token, pair_id, ring_bytes, side };
                self.outbox.push(Outgoing { to: client, message, segment: Some(Rc::clone(&segment)) });
            }
        }
    }

    /// A segment does not count any more.
    fn release(&mut self, pair: &Pair) {
        for uid in distinct(pair.uids) {
            if let Some(usage) = self.usage.get_mut(&uid) {
                usage.segment_bytes = usage.segment_bytes.saturating_sub(pair.bytes);
            }
        }
    }

    fn deny(&mut self, to: ClientId, token: u64, (reason, retry): Refusal) {
        self.counts.denied += 1;
        self.outbox.push(Outgoing { to, message: Message::Deny { token, reason, retry }, segment: None });
    }

    fn audit_if_due(&mut self, host: &mut dyn Host) {
        let now = host.now();
        if self.last_audit.is_none_or(|at| now.duration_since(at) >= AUDIT_PAUSE) {
            self.audit(host);
        }
    }

    /// Asks the kernel which sockets live and forgets the others. A pair is charged until both its sockets are gone: the
    /// end that lives may still have unread bytes in the segment.
    fn audit(&mut self, host: &mut dyn Host) {
        self.last_audit = Some(host.now());
        self.registered_at_audit = self.counts.registered;
        self.counts.audits += 1;
        let Ok(live) = host.live_cookies() else { return };
        let gone: Vec<u64> = self.sockets.keys().filter(|c| !live.contains(c)).copied().collect();
        for cookie in gone {
            self.forget(cookie);
        }
        let dead = |cookies: &[u64; 2]| !cookies.iter().any(|c| live.contains(c));
        let ended: Vec<Pair> = self.pairs.extract_if(|cookies, _| dead(cookies)).map(|(_, pair)| pair).collect();
        for pair in ended {
            self.release(&pair);
        }
        self.usage.retain(|_, u| u.registrations > 0 || u.segment_bytes > 0);
    }
}

fn distinct(uids: [u32; 2]) -> impl Iterator<Item = u32> {
    let [a, b] = uids;
    [Some(a), (b != a).then_some(b)].into_iter().flatten()
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
