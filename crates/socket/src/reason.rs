//! Why a connection is on TCP: the one list of reason codes.
//!
//! A code is stored in the socket table, travels in the rendezvous protocol and is printed by `ropeway ss` and in the
//! figures of `--stats`. Numbers are never reused; a new reason is appended. What does not live here: when a reason
//! applies (the carrier state machine and the daemon decide that).

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $sentence:literal;)*) => {
        /// Why a connection stays on, or returned to, kernel TCP.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u16)]
        pub enum Reason { $($(#[$doc])* $variant = $code,)* }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The reason with this code; `None` for a code that this version does not know.
            pub const fn from_code(code: u16) -> Option<Reason> {
                match code { $($code => Some(Reason::$variant),)* _ => None }
            }

            /// The short name that tools print.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// One sentence for a person: what happened and, where there is something to do, what.
            pub const fn explain(self) -> &'static str {
                match self { $(Reason::$variant => $sentence,)* }
            }
        }
    };
}

reasons! {
    None = 0, "none", "Nothing keeps this connection on TCP.";
    PeerNotRegistered = 1, "peer-not-registered", "The other end did not register: it runs without Ropeway, or has not moved enough data yet. Start it with `ropeway run`.";
    TooYoung = 2, "too-young", "The connection has not moved enough data to be worth promoting (promote_after).";
    Rule = 3, "rule", "A rule of the configuration file denies this connection.";
    DaemonUnavailable = 4, "daemon-unavailable", "The rendezvous daemon does not answer. `ropeway daemon status` says more; `ropeway run` starts it.";
    Memory = 5, "memory", "The machine, or the memory cgroup of the program, is too short of memory for another segment.";
    Limits = 6, "limits", "A limit per user is reached: segment memory, registrations, connections or descriptors.";
    OtherNetns = 7, "other-netns", "The program lives in another network namespace than the rendezvous daemon.";
    NotOwner = 8, "not-owner", "The kernel does not confirm that the registering process owns this established socket.";
    Mismatch = 9, "mismatch", "The two ends do not carry the same bytes (different kernel counters or contents): not one connection, or one changed by NAT.";
    SelfConnect = 10, "self-connect", "The socket is connected to itself.";
    SharedOwners = 11, "shared-owners", "Several processes hold this socket; it is promoted when one owner is left.";
    ForeignBytes = 12, "foreign-bytes", "Bytes passed the kernel socket that did not go through Ropeway (raw system calls, RTLD_DEEPBIND, a static child).";
    UrgentData = 13, "urgent-data", "The program uses urgent (out-of-band) data.";
    Ktls = 14, "ktls", "The program gave the socket to kernel TLS.";
    Zerocopy = 15, "zerocopy", "The program uses SO_ZEROCOPY or TCP_ZEROCOPY_RECEIVE.";
    Splice = 16, "splice", "The program splices this socket in a way that needs the kernel's own stream.";
    Stdio = 17, "stdio", "The program opened the socket as a stdio stream (fdopen), which the C library reads past Ropeway.";
    StandardDescriptor = 18, "standard-descriptor", "The socket is descriptor 0, 1 or 2, which the C library uses past Ropeway.";
    AsyncIo = 19, "async-io", "The program asked for signals on this socket (O_ASYNC, F_SETSIG), or reads and writes it by asynchronous I/O.";
    IoUring = 20, "io-uring", "The process uses io_uring, which works past Ropeway.";
    FdPassed = 21, "fd-passed", "The descriptor was passed to another process over a UNIX socket.";
    Exec = 22, "exec", "The socket came through exec, and it is not known that this process alone holds it.";
    Sockmap = 23, "sockmap", "The socket is in a BPF socket map.";
    PeekOffset = 24, "peek-offset", "The program set SO_PEEK_OFF.";
    Repair = 25, "repair", "The program uses TCP_REPAIR.";
    Mptcp = 26, "mptcp", "The socket is an MPTCP socket.";
    Seccomp = 27, "seccomp", "The process installed a seccomp filter, which may forbid what Ropeway needs.";
    HalfClosed = 28, "half-closed", "One direction of the connection is shut down.";
    PeerClosed = 29, "peer-closed", "The other end closed the connection.";
    Reset = 30, "reset", "The connection was reset.";
    NoProgress = 31, "no-progress", "The reader did not take its bytes for a while and the sender needed the kernel's larger buffers.";
    TooManySets = 32, "too-many-sets", "The socket is in more epoll sets than Ropeway follows.";
    TableFull = 33, "table-full", "The table of sockets of this process family is full.";
    RingCorrupt = 34, "ring-corrupt", "The shared ring held values that no correct peer writes; it is not used any more.";
    Off = 35, "off", "Ropeway is switched off for this process (ROPEWAY=off).";
    UnsupportedOption = 36, "unsupported-option", "The program set a socket option that only kernel TCP can honour.";
    PeerDemoted = 37, "peer-demoted", "The other end moved the connection back to TCP; its own reason is shown beside.";
    Fork = 38, "fork", "The process forked while the socket was in a state that two processes cannot share.";
    ManyDemotions = 39, "many-demotions", "The connection went back to TCP so often that it is left there.";
    UnhookedWait = 40, "unhooked-wait", "A thread may be waiting in the kernel for this socket in a call that Ropeway does not see.";
    Landlock = 41, "landlock", "The process restricted itself with Landlock, which may forbid it to wake other processes.";
    ReplacesAnother = 42, "replaces-another", "The program put the connection in the place of another one (dup2) while calls on that one were under way, which may come to this one.";
}

impl Reason {
    /// The number stored in tables and sent on the rendezvous socket.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The name for a code that may come from a newer version.
    pub fn name_of(code: u16) -> &'static str {
        Reason::from_code(code).map_or("unknown", Reason::name)
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn codes_and_names_are_unique_and_come_back() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_code(reason.code()), Some(*reason));
            assert!(Reason::ALL[..i].iter().all(|r| r.code() < reason.code() && r.name() != reason.name()));
            assert!(reason.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{reason} is kebab-case");
            assert!(reason.explain().ends_with('.'));
        }
        assert_eq!(Reason::from_code(Reason::ALL.len() as u16), None);
        assert_eq!(Reason::name_of(u16::MAX), "unknown");
    }
}
