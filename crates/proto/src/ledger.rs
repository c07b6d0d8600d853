//! Who has how much of the receive memory (docs/decisions/0031): an account for each association, and one for each host over those of its associations.
//!
//! Every buffer says whose it is, so what is charged here is exact whatever way it goes. An account lives until its association has ended, or rests, and all that was charged to it is back.

use std::collections::BTreeMap;

use slab::Slab;

use crate::endpoint::Path;

/// Names an account; none is mistaken for a later one in its place. The default is nobody's: to that nothing is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountId {
    index: u32,
    generation: u32,
}

impl AccountId {
    pub const NOBODY: AccountId = AccountId { index: u32::MAX, generation: 0 };
}

impl Default for AccountId {
    fn default() -> AccountId {
        AccountId::NOBODY
    }
}

#[derive(Debug)]
struct Account {
    generation: u32,
    kept_bytes: usize,
    /// The index of its host.
    host: usize,
    /// Its association has ended, or rests.
    is_closed: bool,
}

#[derive(Debug)]
struct Host {
    path: Path,
    accounts: u32,
    kept_bytes: usize,
    begun_bytes: usize,
}

#[derive(Debug, Default)]
pub struct Ledger {
    accounts: Slab<Account>,
    hosts: Slab<Host>,
    by_path: BTreeMap<Path, usize>,
    generation: u32,
    /// Accounts and hosts that keep something.
    keeping: [usize; 2],
    begun_bytes: usize,
}

impl Ledger {
    /// An account for an association with the host at `path`.
    pub fn open(&mut self, path: &Path) -> AccountId {
        let path = path.host();
        let hosts = &mut self.hosts;
        let new_host = || hosts.insert(Host { path, accounts: 0, kept_bytes: 0, begun_bytes: 0 });
        let host = *self.by_path.entry(path).or_insert_with(new_host);
        self.hosts[host].accounts += 1;
        self.generation = self.generation.wrapping_add(1);
        let account = Account { generation: self.generation, kept_bytes: 0, host, is_closed: false };
        AccountId { index: self.accounts.insert(account) as u32, generation: self.generation }
    }

    /// Its association has ended: the account goes when nothing is charged to it.
    pub fn close(&mut self, id: AccountId) {
        if let Some(account) = find(&mut self.accounts, id) {
            account.is_closed = true;
            self.remove_if_done(id);
        }
    }

    /// Closes the account of an association that keeps nothing.
    pub fn rest(&mut self, id: &mut AccountId) {
        if self.kept_bytes(*id).0 == 0 {
            self.close(std::mem::take(id));
        }
    }

    fn remove_if_done(&mut self, id: AccountId) {
        let index = id.index as usize;
        if !self.accounts[index].is_closed || self.accounts[index].kept_bytes > 0 {
            return;
        }
        let at = self.accounts.remove(index).host;
        let host = &mut self.hosts[at];
        host.accounts -= 1;
        if host.accounts == 0 {
            debug_assert_eq!((host.kept_bytes, host.begun_bytes), (0, 0));
            self.by_path.remove(&host.path);
            self.hosts.remove(at);
        }
        if self.accounts.is_empty() {
            self.accounts.shrink_to_fit();
            self.hosts.shrink_to_fit();
        }
    }

    fn account(&self, id: AccountId) -> Option<&Account> {
        self.accounts.get(id.index as usize).filter(|account| account.generation == id.generation)
    }

    pub fn charge(&mut self, id: AccountId, bytes: usize) {
        let Some(account) = find(&mut self.accounts, id) else { return };
        let host = &mut self.hosts[account.host];
        for (kept, keeping) in [&mut account.kept_bytes, &mut host.kept_bytes].into_iter().zip(&mut self.keeping) {
            *keeping += usize::from(*kept == 0 && bytes > 0);
            *kept += bytes;
        }
    }

    /// Takes back what was charged.
    pub fn discharge(&mut self, id: AccountId, bytes: usize) {
        let Some(account) = find(&mut self.accounts, id) else { return };
        let host = &mut self.hosts[account.host];
        for (kept, keeping) in [&mut account.kept_bytes, &mut host.kept_bytes].into_iter().zip(&mut self.keeping) {
            *kept -= bytes;
            *keeping -= usize::from(*kept == 0 && bytes > 0);
        }
        self.remove_if_done(id);
    }

    /// So many bytes are here of messages that have begun and have no memory set aside, instead of so many `before`.
    pub fn note_begun(&mut self, id: AccountId, before: usize, bytes: usize) {
        let Some(host) = self.account(id).map(|account| account.host) else { return };
        let host = &mut self.hosts[host];
        host.begun_bytes = host.begun_bytes + bytes - before;
        self.begun_bytes = self.begun_bytes + bytes - before;
    }

    /// What the account keeps, and what its host does.
    pub fn kept_bytes(&self, id: AccountId) -> (usize, usize) {
        self.account(id).map_or((0, 0), |account| (account.kept_bytes, self.hosts[account.host].kept_bytes))
    }

    /// What is here of messages without memory set aside: of this account's host.
    pub fn begun_bytes_of_host(&self, id: AccountId) -> usize {
        self.account(id).map_or(0, |account| self.hosts[account.host].begun_bytes)
    }

    /// The same of all.
    pub fn begun_bytes(&self) -> usize {
        self.begun_bytes
    }

    /// How many associations keep something, and how many hosts.
    pub fn keeping(&self) -> [usize; 2] {
        self.keeping
    }
}

fn find(accounts: &mut Slab<Account>, id: AccountId) -> Option<&mut Account> {
    accounts.get_mut(id.index as usize).filter(|account| account.generation == id.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [Path; 2] = [Path([1; Path::BYTES]), Path([2; Path::BYTES])];

    #[test]
    fn an_account_lives_until_all_is_back_and_its_place_is_no_later_ones() {
        let mut ledger = Ledger::default();
        let first = ledger.open(&PATHS[0]);
        ledger.charge(first, 100);
        ledger.close(first);
        assert_eq!((ledger.kept_bytes(first), ledger.keeping()), ((100, 100), [1, 1]));
        ledger.discharge(first, 100);
        assert_eq!((ledger.accounts.len(), ledger.hosts.len(), ledger.by_path.len()), (0, 0, 0));
        let second = ledger.open(&PATHS[1]);
        ledger.charge(first, 100);
        ledger.discharge(first, 100);
        assert_eq!((second.index, ledger.kept_bytes(second), ledger.keeping()), (first.index, (0, 0), [0, 0]));
    }

    #[test]
    fn a_host_keeps_what_all_its_associations_do_and_the_ended_ones_did() {
        let mut ledger = Ledger::default();
        let ended = ledger.open(&PATHS[0]);
        ledger.charge(ended, 100);
        ledger.close(ended);
        let [other, strange] = [0, 1].map(|host| ledger.open(&PATHS[host]));
        ledger.charge(other, 10);
        ledger.note_begun(other, 0, 7);
        assert_eq!((ledger.kept_bytes(other), ledger.kept_bytes(strange)), ((10, 110), (0, 0)));
        assert_eq!((ledger.begun_bytes_of_host(other), ledger.begun_bytes_of_host(strange)), (7, 0));
        ledger.discharge(ended, 100);
        ledger.note_begun(other, 7, 0);
        assert_eq!((ledger.kept_bytes(other), ledger.keeping(), ledger.begun_bytes()), ((10, 10), [1, 1], 0));
    }
}
