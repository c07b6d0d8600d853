//! Attackers: a peer that writes anything at any time into the memory that it shares, and a local program of another user.

use ropeway_testkit::compat::is_bare;
use ropeway_testkit::faults::{
    LIMIT, Memory, Over, Peer, Random, assert_over_shm, daemon_pid, last, program, sanitized_peer_program,
    shared_mappings,
};
use ropeway_testkit::proc::{Exit, Process, command};
use ropeway_testkit::servers::as_user;
use ropeway_testkit::{World, need_root, net, skip};
use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// How many times a pair is attacked, and for how long.
const ATTACKS: usize = 16;
const ATTACK: Duration = Duration::from_millis(400);
/// Headers lie at the start of a segment; every second write goes there.
const HEADERS_BYTES: u64 = 4096;

/// Overwrites random words of what `hostile` shares with `victim`, as code inside `hostile` could.
fn scribble(hostile: u32, victim: u32, random: &mut Random, duration: Duration) -> u64 {
    let memory = Memory::of(hostile).expect("root may write the memory of any process");
    let deadline = Instant::now() + duration;
    let mut writes = 0;
    while Instant::now() < deadline {
        let mappings = shared_mappings(hostile, victim);
        if mappings.is_empty() {
            break;
        }
        for _ in 0..2000 {
            let mapping = mappings[random.below(mappings.len() as u64) as usize];
            let region = if random.below(2) == 0 { mapping.bytes.min(HEADERS_BYTES) } else { mapping.bytes };
            let at = mapping.start + random.below(region / 8) * 8;
            let old = memory.word(at).unwrap_or(0);
            let new = match random.below(7) {
                0 => 0,
                1 => u64::MAX,
                2 => old ^ (1 << random.below(64)),
                3 => old.wrapping_add(random.below(128)),
                4 => old.wrapping_sub(random.below(128)),
                5 => random.word() >> random.below(64),
                _ => random.word(),
            };
            // Unmapped meanwhile: the connection has ended or left shared memory.
            writes += u64::from(memory.write(at, &new.to_ne_bytes()).is_ok());
        }
    }
    writes
}

/// Neither a crash nor a hang, whatever is written: wrong bytes and errors are what a hostile peer can always cause.
#[test]
fn a_peer_that_scribbles_over_every_shared_word_neither_crashes_nor_hangs_the_other_end() {
    need_root!();
    if is_bare() {
        skip!("nothing is shared on plain TCP");
    }
    let test = "hostile::a_peer_that_scribbles";
    let world = World::new();
    let mut random = Random::of_test(test);
    let scripts: [[&str; 2]; 4] =
        [["both=100g", "both=100g"], ["send=100g", "recv=100g"], ["recv=100g", "send=100g"], ["pong=1g", "ping=1g"]];
    let over = Over::tested(&world);
    let mut writes = 0;
    for attack in 0..ATTACKS {
        let [accepting, connecting] = scripts[attack % scripts.len()];
        let port = net::free_port();
        let hostile = Peer::start(over, [&format!("listen={port}"), "accept", "pong=100", "mark=go", accepting]);
        hostile.reached("listen ");
        let connect = format!("connect={port}");
        let mut victim = command(sanitized_peer_program(), [&connect, "calm=100", "mark=go", connecting]);
        victim.env("ASAN_OPTIONS", "detect_leaks=0");
        let victim = Peer::from_command(over.command(victim));
        hostile.reached("go ");
        victim.reached("go ");
        random.pause(Duration::from_millis(20));
        // Every other attacker does nothing but scribble.
        if attack % 8 >= 4 {
            hostile.process.signal(Signal::STOP);
        }
        writes += scribble(hostile.process.pid(), victim.process.pid(), &mut random, ATTACK);
        if let Some(exit) = hostile.process.exit() {
            assert!(matches!(exit, Exit::Code(_)), "attack {attack}: the attacker's own end was ended by {exit:?}");
        }
        hostile.process.signal(Signal::KILL);
        let finished = victim.process.wait(Duration::from_secs(10)).unwrap_or_else(|e| panic!("attack {attack}: {e}"));
        // 0: errors of the connection; 2: of a wait; 3: wrong bytes. 1 is the sanitizer's.
        assert!(matches!(finished.exit, Exit::Code(0 | 2 | 3)), "attack {attack}: {finished:#?}");
    }
    println!("{writes} words overwritten");
    assert!(writes > 10_000, "only {writes} words were overwritten: the attack did not happen");
}

fn intruder(args: &[&str]) -> Process {
    Process::spawn(as_user("nobody", &command(program("intruder").build(), args)))
}

/// An intruder registers both ends of a connection between two programs of root, as if they were its own.
#[test]
fn a_program_of_another_user_gets_no_segment_of_a_socket_it_does_not_own() {
    need_root!();
    if is_bare() {
        skip!("there is no rendezvous on plain TCP");
    }
    let test = "hostile::a_program_of_another_user_gets_no_segment";
    let world = World::new();
    let over = Over::tested(&world);
    let port = net::free_port();
    let local = net::free_port();
    let (listen, bind, connect) = (format!("listen={port}"), format!("bind={local}"), format!("connect={port}"));
    // The accepting end is not under Ropeway: the rendezvous waits for its registration, which the intruder forges.
    let accepting = Peer::start(Over::Tcp, [&listen, "accept", "cookie", "pong=100", "pong=5000", "recv=eof"]);
    accepting.reached("listen ");
    let mut connecting = Peer::start(over, [&bind, &connect, "cookie", "calm=100", "mark=waits", "wait", "ping=5000"]);
    connecting.reached("waits ");
    let cookie = |peer: &Peer| last(&peer.steps(), "cookie").count.to_string();
    let (port, local) = (port.to_string(), local.to_string());
    for (cookie, from, to) in [(cookie(&accepting), &port, &local), (cookie(&connecting), &local, &port)] {
        let output = intruder(&[world.socket(), &cookie, from, to]).succeed(LIMIT).stdout;
        assert!(!output.contains("answer 5 "), "the intruder was granted a segment:\n{output}");
        assert!(!output.contains("descriptor with answer 5"), "the intruder has a segment:\n{output}");
        // Either the daemon does not talk to another user at all, or it says "not-owner" (8).
        let refused = output.contains("answer 6 8") || output.contains("closed") || output.contains("connect: ");
        assert!(refused, "the intruder was not refused:\n{output}");
    }
    connecting.go();
    connecting.all_right();
    accepting.all_right();
    ropeway_testkit::faults::assert_over_tcp(&world, test, connecting.process.pid(), &["peer-not-registered"]);
}

#[test]
fn a_program_of_another_user_cannot_read_a_segment_or_a_socket_table() {
    need_root!();
    if is_bare() {
        skip!("nothing is shared on plain TCP");
    }
    let test = "hostile::a_program_of_another_user_cannot_read";
    let world = World::new();
    let (accepting, mut connecting) = Peer::pair(
        Over::tested(&world),
        net::free_port(),
        &["pong=100", "recv=eof"],
        &["calm=100", "mark=held", "wait"],
    );
    connecting.reached("held ");
    let pid = connecting.process.pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("one's own child has mappings");
    let segments: Vec<&str> = maps.lines().filter(|line| line.contains("/memfd:")).collect();
    assert!(!segments.is_empty(), "the connection has no segment:\n{maps}");
    for segment in segments {
        let range = segment.split(' ').next().expect("a mapping has a range");
        let output = intruder(&[&format!("/proc/{pid}/map_files/{range}"), "open"]).succeed(LIMIT).stdout;
        assert_ne!(output.trim(), "opened", "{segment}");
    }
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("one's own child has descriptors").flatten() {
        let output = intruder(&[&fd.path().display().to_string(), "open"]).succeed(LIMIT).stdout;
        assert_ne!(output.trim(), "opened", "{}", fd.path().display());
    }
    let output = intruder(&[world.socket(), "list"]).succeed(LIMIT).stdout;
    assert!(!output.contains("descriptor"), "the intruder was handed a socket table:\n{output}");
    connecting.go();
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, pid, 20 * 32);
}

#[test]
fn a_program_of_another_user_cannot_stop_the_rendezvous() {
    need_root!();
    if is_bare() {
        skip!("there is no rendezvous on plain TCP");
    }
    let world = World::new();
    Process::spawn(Over::tested(&world).command(command::<&str>("true", []))).succeed(LIMIT);
    let daemon = daemon_pid(&world);
    intruder(&[world.socket(), "stop"]).succeed(LIMIT);
    assert_eq!(world.daemon_pid(), Some(daemon.as_raw_nonzero().get().unsigned_abs()), "the daemon obeyed a stranger");
}

#[test]
fn noise_from_another_user_does_not_disturb_the_rendezvous() {
    need_root!();
    if is_bare() {
        skip!("there is no rendezvous on plain TCP");
    }
    let test = "hostile::noise_from_another_user";
    let world = World::new();
    let over = Over::tested(&world);
    Process::spawn(over.command(command::<&str>("true", []))).succeed(LIMIT);
    let daemon = daemon_pid(&world);
    let mut random = Random::of_test(test);
    let seeds: Vec<String> = (0..4).map(|_| random.below(1 << 30).to_string()).collect();
    let noise: Vec<Process> = seeds.iter().map(|seed| intruder(&[world.socket(), "noise", seed])).collect();
    let (accepting, connecting) =
        Peer::pair(over, net::free_port(), &["pong=100", "pong=1000", "recv=eof"], &["calm=100", "ping=1000"]);
    connecting.all_right();
    accepting.all_right();
    noise.iter().for_each(|process| drop(process.succeed(LIMIT)));
    assert_eq!(daemon_pid(&world), daemon, "the daemon did not survive the noise");
    // While the noise lasted a pairing may have had to wait; now it has not.
    let (accepting, connecting) =
        Peer::pair(over, net::free_port(), &["pong=100", "pong=1000", "recv=eof"], &["calm=100", "ping=1000"]);
    connecting.all_right();
    accepting.all_right();
    assert_over_shm(&world, test, connecting.process.pid(), 1000 * 32);
}

/// Another user holds the address of the rendezvous: its credentials give it away.
#[test]
fn a_rendezvous_of_another_user_is_not_believed() {
    need_root!();
    if is_bare() {
        skip!("there is no rendezvous on plain TCP");
    }
    let world = World::new();
    let squatter = intruder(&[world.socket(), "squat"]);
    squatter.wait_for_output("squatting", LIMIT);
    // Without `ropeway run`, which may well refuse to start under such conditions.
    let preloaded = |steps: &[&str]| {
        let mut peer = command(ropeway_testkit::faults::peer_program(), steps);
        peer.env("LD_PRELOAD", ropeway_testkit::env::preload()).env("ROPEWAY_SOCKET", world.socket());
        peer.env("ROPEWAY_STATS", world.stats_path());
        Peer::from_command(peer)
    };
    let port = net::free_port();
    let accepting = preloaded(&[&format!("listen={port}"), "accept", "pong=1000", "recv=eof"]);
    accepting.reached("listen ");
    let connecting = preloaded(&[&format!("connect={port}"), "ping=1000"]);
    connecting.all_right();
    accepting.all_right();
    let test = "hostile::a_rendezvous_of_another_user";
    for end in [&accepting, &connecting] {
        ropeway_testkit::faults::assert_over_tcp(&world, test, end.process.pid(), &["daemon-unavailable"]);
    }
}

#[test]
fn root_believes_no_rendezvous_of_another_user() {
    need_root!();
    if is_bare() {
        skip!("there is no rendezvous on plain TCP");
    }
    let world = World::new();
    let squatter = intruder(&[world.socket(), "squat"]);
    squatter.wait_for_output("squatting", LIMIT);
    let nobody = std::fs::metadata(format!("/proc/{}", squatter.pid())).expect("it runs").uid();
    let its_user = format!("belongs to user {nobody}");
    for args in [&["daemon"][..], &["daemon", "--foreground"], &["daemon", "status"], &["daemon", "stop"], &["doctor"]]
    {
        let finished = world.ropeway(args);
        assert!(!finished.success(), "{args:?} takes it for a daemon: {}", finished.stdout);
        let said = [finished.stdout, finished.stderr].concat();
        assert!(said.contains(&its_user), "{args:?}: {said}");
    }
}
