//! What stands at an engine's address need not be an engine: who asks there gets an error in time, and hears the others.

use ropeway_engine::control::{self, Answer, Question, Round};
use ropeway_engine::{Config, Engine, Options, gateway};
use ropeway_testkit::need_root;
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Less than a test may take, more than who asks may wait.
const LIMIT: Duration = Duration::from_secs(30);

fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

/// The name of a stranger, as an engine of a process that does not exist would have it.
fn name(number: u32) -> String {
    name_of(rustix::process::geteuid().as_raw(), number)
}

fn name_of(user: u32, number: u32) -> String {
    format!("{}{user}/4999999.{number}", control::PREFIX)
}

/// Says something to everybody who asks, and what is to be heard then.
fn error_of(number: u32, say: impl Fn(UnixStream) + Send + 'static) -> std::io::Error {
    let listener = UnixListener::bind_addr(&address(&name(number))).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            say(stream);
        }
    });
    let begin = Instant::now();
    let error = control::ask(&name(number), &Question::Show).unwrap_err();
    assert!(begin.elapsed() < LIMIT, "{error} after {:?}", begin.elapsed());
    error
}

#[test]
fn who_says_little_at_a_time_is_not_waited_for() {
    let error = error_of(0, |mut stream| {
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn who_never_ends_is_not_heard_to_the_end() {
    let error = error_of(1, |mut stream| while stream.write_all(&[b' '; 1 << 16]).is_ok() {});
    assert!(error.to_string().contains("without end"), "{error}");
    assert!(gateway::ask(&name(1)).unwrap_err().to_string().contains("without end"));
}

#[test]
fn what_is_no_text_is_an_error() {
    let error = error_of(2, |mut stream| {
        // Who asks may say so before the connection ends.
        let _ = stream.read(&mut [0; 100]);
        let _ = stream.write_all(b"\xff\n");
    });
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn who_takes_nobody_is_not_waited_for() {
    let _listener = full_queue(&name(3));
    let _waits = UnixStream::connect_addr(&address(&name(3))).unwrap();
    let begin = Instant::now();
    let error = control::ask(&name(3), &Question::Show).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("does not answer") && begin.elapsed() < LIMIT, "{error}");
}

#[test]
fn who_is_not_the_user_in_its_name_is_nobodys_engine() {
    let name = name_of(rustix::process::geteuid().as_raw() + 1, 4);
    // It would be waited for.
    let _listener = UnixListener::bind_addr(&address(&name)).unwrap();
    let errors = [control::ask(&name, &Question::Show).unwrap_err(), gateway::ask(&name).unwrap_err()];
    errors.iter().for_each(|error| assert!(control::is_absence(error), "{error}"));
}

#[test]
fn all_engines_of_another_user_together_are_waited_for_as_long_as_for_one() {
    const USER: u32 = 65_534;
    // To be another user.
    need_root!();
    let bind = || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(USER)).unwrap();
        let bind = |number| UnixListener::bind_addr(&address(&name_of(USER, number))).unwrap();
        (10..20).map(bind).collect::<Vec<_>>()
    };
    let _silent = std::thread::spawn(bind).join().unwrap();
    let (begin, mut round) = (Instant::now(), Round::default());
    let errors: Vec<ErrorKind> =
        (10..20).map(|number| round.ask(&name_of(USER, number), &Question::Show).unwrap_err().kind()).collect();
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?} for {errors:?}", begin.elapsed());
    assert_eq!((errors[0], errors[9]), (ErrorKind::WouldBlock, ErrorKind::TimedOut), "{errors:?}");
}

#[test]
fn full_queues_are_waited_for_as_long_as_for_one() {
    let queues: Vec<_> = (20..25)
        .map(|number| {
            let listener = full_queue(&name(number));
            (listener, UnixStream::connect_addr(&address(&name(number))).unwrap())
        })
        .collect();
    let (begin, mut round) = (Instant::now(), Round::default());
    for number in (20..).take(queues.len()) {
        assert_eq!(round.ask(&name(number), &Question::Show).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

/// One that takes nobody, with room for one who waits.
fn full_queue(name: &str) -> rustix::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    listener
}

#[test]
fn a_name_of_any_bytes_hides_no_engine() {
    let prefix = format!("{}{}/", control::PREFIX, std::process::id());
    let strange: [&[u8]; 2] = [b"\xff\xfe", &[prefix.as_bytes(), b"7.0\x1b[2J"].concat()];
    let _strange: Vec<UnixDatagram> = strange
        .iter()
        .map(|name| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap())
        .collect();
    let _engine = Engine::new(&Options::default()).unwrap();
    let names = control::names().unwrap();
    assert!(names.iter().any(|name| name.contains(&format!("/{}.", std::process::id()))), "{names:?}");
    assert!(names.iter().all(|name| !name.contains('\x1b')), "{names:?}");
}

#[test]
fn a_change_is_not_made_when_who_asked_for_it_has_left() {
    // Other tests of this process have engines, too: this one is known by a value of its own.
    const LEASE_US: u64 = 12_321;
    let config = Config { lease_ns: LEASE_US * 1000, ..Config::default() };
    let _engine = Engine::new(&Options { config, ..Options::default() }).unwrap();
    let lease = |name: &String| match control::ask(name, &Question::Tunables) {
        Ok(Answer::Tunables(values)) => values.iter().find(|value| value.name == "lease").map(|value| value.value),
        _ => None,
    };
    let ours = format!("/{}.", std::process::id());
    let names = control::names().unwrap();
    let mut mine = names.into_iter().filter(|name| name.contains(&ours));
    let name = mine.find(|name| lease(name) == Some(LEASE_US)).unwrap();
    let ask = |stream: &mut UnixStream| {
        stream.write_all(b"{\"set\":{\"name\":\"lease\",\"value\":\"54321\"}}\n").unwrap();
    };
    // The engine waits for what this one has to say, as it would if it had been stopped.
    let silent = UnixStream::connect_addr(&address(&name)).unwrap();
    let mut impatient = UnixStream::connect_addr(&address(&name)).unwrap();
    ask(&mut impatient);
    drop(impatient);
    drop(silent);
    assert_eq!(lease(&name), Some(LEASE_US));
    // Who has only said everything still waits.
    let mut patient = UnixStream::connect_addr(&address(&name)).unwrap();
    ask(&mut patient);
    patient.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    patient.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("before") && lease(&name) == Some(54_321), "{answer}");
}
