//! Cookies (docs/protocol.md 3, 9.6): the proof that a client receives where it says it does, of which a server keeps nothing until it is used, and then for as
//! long as it could be used again.

use ropeway_wire::{ConfirmFields, Cookie, Id, SynFields};

use super::{Endpoint, Path, Spent};
use crate::time::Time;

/// Spent cookies remembered, at most: who opens more than this within their life is refused as busy.
const MOST_SPENT: usize = 65_536;
/// Cookies are good for this long.
pub(super) const COOKIE_NS: u64 = 3_000_000_000;
/// A cookie's time of issue counts these.
const COOKIE_TICK_NS: u64 = 1_000_000;
/// Spent cookies are remembered for longer than they are good, however the clock's units fall.
const SPENT_NS: u64 = COOKIE_NS + 2 * COOKIE_TICK_NS;

impl Endpoint {
    /// The cookie for a SYN with the packet size accepted.
    pub(super) fn cookie(&self, now: Time, path: &Path, syn: &SynFields) -> Cookie {
        self.cookie_of(now, path, &syn.to_bytes())
    }

    /// The cookie for who says `fields` and can be reached over `path`. Fields of different uses have different lengths.
    pub(super) fn cookie_of(&self, now: Time, path: &Path, fields: &[u8]) -> Cookie {
        let ticks = now_ticks(now);
        let mac = self.secret.cookie(ticks, &path.0, fields);
        let mut cookie = [0; 20];
        cookie[..4].copy_from_slice(&(ticks as u32).to_be_bytes());
        cookie[4..].copy_from_slice(&mac);
        Cookie(cookie)
    }

    pub(super) fn is_fresh_cookie(&self, now: Time, path: &Path, confirm: &ConfirmFields<'_>) -> bool {
        self.is_fresh(now, path, &confirm.syn.to_bytes(), &confirm.cookie)
    }

    /// Whether it is the cookie for `fields` and `path`, and not too old.
    pub(super) fn is_fresh(&self, now: Time, path: &Path, fields: &[u8], cookie: &Cookie) -> bool {
        let Some((low, _)) = cookie.0.split_first_chunk::<4>() else { return false };
        let now = now_ticks(now);
        let age = u64::from((now as u32).wrapping_sub(u32::from_be_bytes(*low)));
        // The low bits come again after 50 days, and who has kept a packet for so long is not to spend its cookie a second time: the code covers all of them.
        let (Some(ticks), Some(code)) = (now.checked_sub(age), cookie.0.last_chunk()) else { return false };
        age * COOKIE_TICK_NS <= COOKIE_NS && self.secret.verify_cookie(ticks, &path.0, fields, code)
    }

    /// Whether the host at `path` may spend a cookie.
    pub(super) fn may_spend(&mut self, now: Time, path: &Path) -> bool {
        self.forget_old_cookies(now);
        self.places.may_spend(path, MOST_SPENT.saturating_sub(self.spent.len()))
    }

    /// Whether the host at `path` has spent one lately.
    pub(super) fn has_spent(&mut self, now: Time, path: &Path) -> bool {
        self.forget_old_cookies(now);
        self.places.has_spent(path)
    }

    /// Those that are good no longer are not remembered.
    fn forget_old_cookies(&mut self, now: Time) {
        while let Some(key) = self.spent_order.front()
            && self.spent.get(key).is_none_or(|spent| spent.until <= now)
        {
            if self.spent.remove(key).is_some() {
                self.places.remove_cookie(&key.0);
            }
            self.spent_order.pop_front();
        }
    }

    /// Remembers that a cookie is spent, and what was answered.
    pub(super) fn spend(
        &mut self,
        now: Time,
        path: &Path,
        nonce: u64,
        opened: Option<(u32, Id)>,
        answer: Option<Box<[u8]>>,
    ) {
        let key = (*path, nonce);
        if self.spent.insert(key, Spent { opened, until: now.after(SPENT_NS), answer }).is_none() {
            self.places.add_cookie(path);
        }
        self.spent_order.push_back(key);
    }
}

fn now_ticks(now: Time) -> u64 {
    now.as_nanos() / COOKIE_TICK_NS
}
