//! Handles: small in number, positive, unlike any descriptor, and not given again soon, so that one that was closed is an error and not somebody else's
//! socket. A forked child begins with none.

use crate::failure::{Failure, Outcome};
use crate::guard::let_go;
use ropeway_socket::api::PerProcess;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Handles have this bit: descriptors of the kernel do not get so far.
const MARK: c_int = 1 << 30;
const PLACE_BITS: u32 = 20;
/// Sockets of a process.
const MOST: usize = 1 << PLACE_BITS;
/// A place has this many handles in turn.
const GENERATIONS: u32 = 1 << 10;
/// Places that rest before one is used again: with their generations a handle comes back after 65,536 others at the earliest.
const RESTING: usize = 64;

/// The first place, before it is taken modulo [`MOST`], that neither this process nor those it was forked from have used: a child has it in its memory, and begins there, so that its handles
/// are none of its parent's.
static NEXT_PLACE: AtomicUsize = AtomicUsize::new(0);
/// Higher than any generation that they have given out, for a child that comes round to places of theirs.
static NEXT_GENERATION: AtomicU32 = AtomicU32::new(0);

/// Sockets of one kind, by handle. For a static variable.
pub struct Table<T: 'static> {
    slots: PerProcess<RwLock<Slots<T>>>,
}

struct Slots<T> {
    /// The place of the first slot.
    first_place: usize,
    /// The generation of places that are new.
    first_generation: u32,
    slots: Vec<Slot<T>>,
    /// Those that rest, the longest first.
    free: VecDeque<usize>,
}

struct Slot<T> {
    generation: u32,
    socket: Option<Arc<T>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            first_place: NEXT_PLACE.load(Ordering::Relaxed),
            first_generation: NEXT_GENERATION.load(Ordering::Relaxed),
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }
}

fn handle(place: usize, generation: u32) -> c_int {
    MARK | ((generation % GENERATIONS) << PLACE_BITS) as c_int | (place % MOST) as c_int
}

fn unknown(handle: c_int) -> Failure {
    let what =
        format!("there is no socket {handle} in this process: it was closed, never opened, or opened before a fork");
    Failure::new(libc::EBADF, what)
}

impl<T> Slots<T> {
    /// The slot that has a socket of this handle.
    fn index(&self, given: c_int) -> Option<usize> {
        let index = (given as usize).wrapping_sub(self.first_place) % MOST;
        let slot = self.slots.get(index).filter(|slot| slot.socket.is_some())?;
        (handle(self.first_place + index, slot.generation) == given).then_some(index)
    }

    /// The handle of a slot, for the program.
    fn give_out(&self, index: usize) -> c_int {
        let (place, generation) = (self.first_place + index, self.slots[index].generation);
        NEXT_PLACE.fetch_max(place + 1, Ordering::Relaxed);
        NEXT_GENERATION.fetch_max(generation + 1, Ordering::Relaxed);
        handle(place, generation)
    }
}

impl<T: Send + Sync> Table<T> {
    pub const fn new() -> Table<T> {
        Table { slots: PerProcess::new() }
    }

    /// # Errors
    /// Too many, or no memory.
    pub fn add(&self, socket: T) -> Outcome<c_int> {
        // Before the lock, so that one for which there is no place ends after it.
        let socket = Some(Arc::new(socket));
        let table = self.slots.get_or_make(RwLock::default)?.value;
        let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = table.slots.len() == MOST;
        if (is_full || table.free.len() > RESTING)
            && let Some(index) = table.free.pop_front()
        {
            table.slots[index].socket = socket;
            return Ok(table.give_out(index));
        }
        if is_full {
            return Err(Failure::new(libc::EMFILE, "this process has a million sockets of this kind"));
        }
        let generation = table.first_generation;
        table.slots.push(Slot { generation, socket });
        Ok(table.give_out(table.slots.len() - 1))
    }

    /// # Errors
    /// It is none.
    pub fn get(&self, handle: c_int) -> Outcome<Arc<T>> {
        let found = self.slots.get().and_then(|table| {
            let table = table.read().unwrap_or_else(PoisonError::into_inner);
            table.slots[table.index(handle)?].socket.clone()
        });
        found.ok_or_else(|| unknown(handle))
    }

    /// Does something with it. Should it be closed meanwhile, it ends here.
    ///
    /// # Errors
    /// It is none; or what `act` says.
    pub fn with<R>(&self, handle: c_int, act: impl FnOnce(&T) -> Outcome<R>) -> Outcome<R> {
        let socket = self.get(handle)?;
        let result = act(&socket);
        let_go(socket);
        result
    }

    /// Takes it out: the handle is none from now on.
    ///
    /// # Errors
    /// It was none.
    pub fn remove(&self, handle: c_int) -> Outcome<Arc<T>> {
        let found = self.slots.get().and_then(|table| {
            let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
            let index = table.index(handle)?;
            let slot = &mut table.slots[index];
            slot.generation += 1;
            let socket = slot.socket.take();
            table.free.push_back(index);
            socket
        });
        found.ok_or_else(|| unknown(handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_is_none_even_when_its_place_is_used_again() {
        static TABLE: Table<u32> = Table::new();
        for strange in [0, -1, 3, MARK, c_int::MAX, c_int::MIN] {
            assert_eq!(TABLE.get(strange).unwrap_err().errno, libc::EBADF);
            assert_eq!(TABLE.remove(strange).unwrap_err().errno, libc::EBADF);
        }
        let first = TABLE.add(1).unwrap();
        assert_eq!((*TABLE.get(first).unwrap(), *TABLE.remove(first).unwrap()), (1, 1));
        let second = TABLE.add(2).unwrap();
        assert!(first != second && TABLE.get(first).is_err() && TABLE.remove(first).is_err());
        assert_eq!(*TABLE.get(second).unwrap(), 2);
        for round in 0..3 * GENERATIONS {
            assert!(TABLE.add(round).unwrap() > 1 << 29);
        }
    }

    #[test]
    fn what_is_made_later_as_by_a_forked_child_shares_no_handle_with_what_was_there() {
        static PARENTS: Table<u32> = Table::new();
        static CHILDS: Table<u32> = Table::new();
        let handles = |table: &Table<u32>| [0; 3].map(|number| table.add(number).unwrap());
        let parents = handles(&PARENTS);
        let own = handles(&CHILDS);
        assert!(parents.iter().all(|parents| CHILDS.remove(*parents).is_err()));
        assert!(own.iter().all(|own| CHILDS.remove(*own).is_ok()));
        // However many came and went while one of its parent's stayed.
        for _ in 0..GENERATIONS as usize * RESTING {
            PARENTS.remove(PARENTS.add(0).unwrap()).unwrap();
        }
        for _ in 0..2 * RESTING {
            let later: &Table<u32> = Box::leak(Box::new(Table::new()));
            assert_ne!(later.add(0).unwrap(), parents[0]);
        }
    }

    #[test]
    fn a_handle_does_not_come_back_soon() {
        static TABLE: Table<u32> = Table::new();
        let stale = TABLE.add(0).unwrap();
        TABLE.remove(stale).unwrap();
        for round in 0..GENERATIONS * RESTING as u32 {
            let handle = TABLE.add(round).unwrap();
            assert!(handle != stale && TABLE.get(stale).is_err());
            TABLE.remove(handle).unwrap();
        }
    }
}
