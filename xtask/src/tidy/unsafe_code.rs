//! Where `unsafe` may stand. The table is the whole list: a place that is not in it is not allowed to have any.

use super::size::is_test_file;
use super::source::{code_only, lines_with_word};
use super::{Finding, TextFile, Tree};

/// Files, or directories with a closing `/`, outside of `shm` that may hold `unsafe`, and why they must.
const ALLOWED: &[(&str, &str)] = &[
    // Memory that stays mapped, reached by address.
    ("crates/socket/src/handover.rs", "cursors that only the holder of a direction's lock may touch"),
    ("crates/socket/src/lifecycle.rs", "unmaps a segment when its last user is gone"),
    ("crates/socket/src/process.rs", "the shared table, mapped for the life of the process"),
    ("crates/socket/src/promote.rs", "maps a pair of rings and takes it into use"),
    ("crates/socket/src/rendezvous/client.rs", "the mailbox page, mapped for the life of the process"),
    // Memory of the program, as pointers and lengths that it vouches for.
    ("crates/socket/src/epoll.rs", "the caller's event and signal mask"),
    ("crates/socket/src/epoll/", "the caller's array of events, and rings of members under their locks"),
    ("crates/socket/src/iov.rs", "the caller's scatter/gather list"),
    ("crates/socket/src/poll.rs", "the caller's array of descriptors"),
    ("crates/socket/src/poll/", "the sets of select, and scratch memory for long arrays"),
    ("crates/socket/src/relay.rs", "forks without the C library, and relays bytes"),
    ("crates/socket/src/recv.rs", "the caller's buffers"),
    ("crates/socket/src/recv/pass.rs", "the caller's buffers"),
    ("crates/socket/src/send.rs", "the caller's buffers"),
    ("crates/socket/src/send/file.rs", "the caller's offset, and what is read of its file"),
    // System calls with buffers: inside hooks the C library must not be called, and rustix does not know these.
    ("crates/socket/src/machine.rs", "files of /sys without allocation, the thread's processors"),
    ("crates/socket/src/options.rs", "getsockopt and setsockopt on behalf of the program"),
    ("crates/socket/src/rendezvous/os.rs", "packet sockets, a descriptor beside a message, the mailbox page"),
    ("crates/socket/src/shadow.rs", "TCP_INFO, FIONREAD, peeking and dropping on the shadow"),
    ("crates/socket/src/stats.rs", "writes the line of statistics at exit"),
    ("crates/socket/src/wait.rs", "ppoll on bell and shadow, signal masks"),
    ("crates/link/src/sys/", "messages, options and devices of sockets, for engines inside hooks"),
    // What C hands over, or takes.
    ("crates/mpi/src/loaded.rs", "functions of the shim for MPI, which is loaded at run time"),
    ("crates/capi/src/calls.rs", "exported functions: their pointers are as good as the program that calls them"),
    ("crates/capi/src/guard.rs", "errno"),
    ("crates/capi/src/memory.rs", "the program's buffers, texts and values"),
    ("crates/preload/src/", "every hook is a C function: its pointers are as good as the program that calls it"),
    ("crates/socket/src/api/exit.rs", "a handler for the exit of the process"),
    ("crates/socket/src/api/per_process.rs", "a value made once and never freed, behind an atomic pointer"),
    ("crates/socket/src/settings.rs", "the environment, as C strings"),
    ("crates/socket/src/thread.rs", "a function kept in an atomic word"),
];

/// All of this crate may: shared memory cannot be touched without it, and the crate exists to keep it in one place.
const FREE: &str = "crates/shm/";

/// Crates that forbid it to themselves, by an attribute in every crate root.
const FORBIDDEN: [&str; 3] = ["crates/cli/", "crates/testkit/", "xtask/"];

const ATTRIBUTE: &str = "#![forbid(unsafe_code)]";

pub fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, ALLOWED)
}

fn check_with(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let uses: Vec<(&TextFile, Vec<usize>)> =
        tree.rust_files().map(|file| (file, unsafe_lines(file))).filter(|(_, lines)| !lines.is_empty()).collect();
    let misplaced = uses.iter().filter(|(file, _)| !is_allowed(&file.path, allowed)).map(|(file, lines)| {
        let what = format!(
            "`unsafe` in {} lines, outside the places for it: use a safe function of `shm` or `rustix`, or give this file a row \
             with its reason in xtask/src/tidy/unsafe_code.rs",
            lines.len()
        );
        Finding::error(&file.path, lines[0], what)
    });
    let idle_rows =
        allowed.iter().filter(|(row, _)| !uses.iter().any(|(file, _)| covers(row, &file.path))).map(|(row, _)| {
            let what = format!("the row of `{row}` allows `unsafe` where there is none: take the row out");
            Finding::error("xtask/src/tidy/unsafe_code.rs", 1, what)
        });
    let roots = tree.rust_files().filter(|file| is_forbidding_root(&file.path) && !file.text.contains(ATTRIBUTE));
    let missing =
        roots.map(|file| Finding::error(&file.path, 1, format!("add `{ATTRIBUTE}`: this crate needs no unsafe code")));
    misplaced.chain(idle_rows).chain(missing).collect()
}

fn unsafe_lines(file: &TextFile) -> Vec<usize> {
    lines_with_word(&code_only(&file.text), "unsafe").collect()
}

fn is_allowed(path: &str, allowed: &[(&str, &str)]) -> bool {
    let forbidden = FORBIDDEN.iter().any(|dir| path.starts_with(dir));
    // Tests of C interfaces play the part of C.
    let free = path.starts_with(FREE) || path.starts_with("fuzz/") || is_test_file(path);
    (free && !forbidden) || allowed.iter().any(|(row, _)| covers(row, path))
}

fn covers(row: &str, path: &str) -> bool {
    path == row || (row.ends_with('/') && path.starts_with(row))
}

fn is_forbidding_root(path: &str) -> bool {
    let inside = FORBIDDEN.iter().find_map(|dir| path.strip_prefix(dir));
    inside.is_some_and(|inside| matches!(inside, "src/lib.rs" | "src/main.rs") || inside.starts_with("src/bin/"))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{shown, tree};
    use super::*;

    const UNSAFE: &str = "fn a() {\n    unsafe { b() }\n}\n";

    #[test]
    fn only_the_named_places_may_be_unsafe() {
        let tree = tree(&[
            ("crates/shm/src/a.rs", UNSAFE),
            ("crates/socket/src/a.rs", UNSAFE),
            ("crates/preload/src/hooks/a.rs", UNSAFE),
        ]);
        let found = shown(&check_with(&tree, &[("crates/preload/src/hooks/", "C calls them")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/socket/src/a.rs:2: `unsafe` in 1 lines"), "{found:?}");
    }

    #[test]
    fn tests_of_safe_crates_are_safe_too() {
        assert_eq!(check_with(&tree(&[("crates/testkit/tests/random.rs", UNSAFE)]), &[]).len(), 1);
    }

    #[test]
    fn a_row_without_unsafe_is_taken_out() {
        let tree = tree(&[("crates/socket/src/a.rs", "fn a() {}\n")]);
        assert!(shown(&check_with(&tree, &[("crates/socket/src/a.rs", "none left")]))[0].contains("take the row out"));
    }

    #[test]
    fn roots_of_safe_crates_say_so() {
        let found = shown(&check_with(&tree(&[("crates/cli/src/main.rs", "fn main() {}\n")]), &[]));
        assert_eq!(found, ["crates/cli/src/main.rs:1: add `#![forbid(unsafe_code)]`: this crate needs no unsafe code"]);
        assert!(
            check_with(&tree(&[("crates/cli/src/main.rs", "#![forbid(unsafe_code)]\nfn main() {}\n")]), &[]).is_empty()
        );
    }
}
