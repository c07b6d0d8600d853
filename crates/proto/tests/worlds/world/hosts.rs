//! Between which hosts a test runs.
//!
//! A test says so once, in front of it, and is a test of its own between each kind of hosts: `in_every_way!(data_arrive);` makes `data_arrive::trusting`,
//! `data_arrive::keyed` and `data_arrive::wildcards` of the function `data_arrive`. What has `#[test]` itself runs between hosts that trust each other. A function that
//! nobody makes a test of is dead code, of which the compiler warns.

use std::cell::Cell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hosts {
    /// They trust each other, and have one address each.
    Trusting,
    /// They have a key.
    Keyed,
    /// They tell their own addresses apart, where whoever connects leaves the choice of its own to the host: the world says of every arrival to which address it came,
    /// and sees to it that answers leave under that one.
    Wildcards,
}

thread_local! {
    /// Of the test at hand. A world lives in one thread, and other tests run beside it.
    static HOSTS: Cell<Hosts> = const { Cell::new(Hosts::Trusting) };
}

/// Whether the hosts have a key.
pub fn is_keyed() -> bool {
    HOSTS.get() == Hosts::Keyed
}

/// Whether they tell their own addresses apart.
pub fn is_wildcard() -> bool {
    HOSTS.get() == Hosts::Wildcards
}

fn run(test: fn(), hosts: Hosts) {
    assert!(HOSTS.replace(hosts) == Hosts::Trusting, "each test has a thread of its own");
    test();
}

pub fn trusting(test: fn()) {
    run(test, Hosts::Trusting);
}

pub fn keyed(test: fn()) {
    run(test, Hosts::Keyed);
}

pub fn wildcards(test: fn()) {
    run(test, Hosts::Wildcards);
}

/// A test between each of these hosts, in a module with the name of the function.
macro_rules! tests {
    ($test:ident: $($hosts:ident),+) => {
        mod $test {
            $(
                #[test]
                fn $hosts() {
                    $crate::world::hosts::$hosts(super::$test);
                }
            )+
        }
    };
}

macro_rules! in_every_way {
    ($test:ident) => {
        $crate::world::tests!($test: trusting, keyed, wildcards);
    };
}

macro_rules! with_and_without_a_key {
    ($test:ident) => {
        $crate::world::tests!($test: trusting, keyed);
    };
}

macro_rules! with_a_key {
    ($test:ident) => {
        $crate::world::tests!($test: keyed);
    };
}

macro_rules! with_own_addresses {
    ($test:ident) => {
        $crate::world::tests!($test: wildcards);
    };
}

pub(crate) use {in_every_way, tests, with_a_key, with_and_without_a_key, with_own_addresses};
