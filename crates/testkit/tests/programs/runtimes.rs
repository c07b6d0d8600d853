//! Language runtimes with their own event loops, threads and ways to fork.

use crate::LONG_LIVED;
use ropeway_testkit::compat::{Case, Found};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::{self, LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{need_program, net};
use std::process::Command;

/// How a server ends once its clients are done.
enum Ending {
    Terminated,
    ByItself,
}

/// Runs a server and a client of the same runtime; the client must print `proof`.
fn pair(
    case: Case,
    server: impl Fn(&str) -> Command,
    client: impl Fn(&str) -> Command,
    ending: Ending,
    proof: &str,
    found: Found,
) {
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server_side, client_side) = (case.ropeway("server"), case.ropeway("client"));
    let listening: Process = server_side.spawn(server(&port_arg));
    listening.wait_for_port(port, START_LIMIT);
    let output = client_side.spawn(client(&port_arg)).succeed(LOAD_LIMIT).stdout;
    assert_eq!(output.trim(), proof);
    match ending {
        Ending::Terminated => drop(servers::stop(&listening)),
        Ending::ByItself => drop(listening.succeed(servers::STOP_LIMIT)),
    }
    case.expect_shm(LONG_LIVED, found);
}

fn python_version() -> String {
    servers::version(servers::python(), &["--version"])
}

#[test]
fn python_asyncio() {
    pair(
        Case::new("Python asyncio"),
        |port| servers::python_app("asyncio_echo.py", ["server", port]),
        |port| servers::python_app("asyncio_echo.py", ["client", port, "50", "200"]),
        Ending::Terminated,
        "ok 108800000 bytes",
        Found {
            version: python_version(),
            result: "50 connections, 109 MB echoed right".into(),
            note: "epoll, non-blocking",
        },
    );
}

#[test]
fn python_threading_http_server() {
    pair(
        Case::new("Python ThreadingHTTPServer"),
        |port| servers::python_app("threading_http.py", ["server", port]),
        |port| servers::python_app("threading_http.py", ["client", port, "8", "200"]),
        Ending::Terminated,
        "ok 3200 requests",
        Found {
            version: python_version(),
            result: "3,200 requests with http.client, bodies up to 200 kB right".into(),
            note: "one thread per connection, keep-alive",
        },
    );
}

#[test]
fn python_multiprocessing() {
    pair(
        Case::new("Python multiprocessing"),
        |port| servers::python_app("mp_connection.py", ["server", port, "4"]),
        |port| servers::python_app("mp_connection.py", ["client", port, "4", "2000"]),
        Ending::ByItself,
        "ok 8000 objects",
        Found {
            version: python_version(),
            result: "8,000 pickled objects right, Listener and Client over AF_INET".into(),
            note: "accept, fork, close: promoted once one owner is left",
        },
    );
}

#[test]
fn node_http() {
    need_program!("node");
    let script = |name: &str, args: &[&str]| {
        let mut node = Command::new("node");
        node.arg(servers::app(name)).args(args);
        node
    };
    pair(
        Case::new("Node http"),
        |port| script("http_server.js", &[port]),
        |port| script("http_client.js", &[port, "100", "40"]),
        Ending::Terminated,
        "ok 8000 requests on 100 connections",
        Found {
            version: servers::version("node", &["--version"]),
            result: "8,000 requests on 100 keep-alive connections right".into(),
            note: "libuv: epoll, non-blocking",
        },
    );
}

#[test]
fn java_nio_and_blocking_sockets() {
    need_program!("java", "javac");
    let case = Case::new("Java NIO");
    let classes = case.dir().to_owned();
    let java = servers::java_app("NioEcho", &classes);
    let run = |args: &[&str]| {
        let mut cmd = command(java.get_program(), java.get_args());
        cmd.args(args);
        cmd
    };
    pair(
        case,
        |port| run(&["server", port]),
        |port| run(&["client", port, "8", "2000"]),
        Ending::Terminated,
        "ok 16000 rounds",
        Found {
            version: servers::version("java", &["-version"]),
            result: "16,000 echoes up to 20 kB right".into(),
            note: "server on a selector, client with blocking sockets",
        },
    );
}

#[test]
fn perl_prefork() {
    need_program!("perl");
    let perl = |args: &[&str]| {
        let mut perl = Command::new("perl");
        perl.arg(servers::app("prefork_echo.pl")).args(args);
        perl
    };
    pair(
        Case::new("Perl prefork"),
        |port| perl(&["server", port]),
        |port| perl(&["client", port, "4", "1000"]),
        Ending::Terminated,
        "ok 4000 rounds",
        Found {
            version: servers::version("perl", &["--version"]),
            result: "4,000 echoes right".into(),
            note: "four children accept on one listener",
        },
    );
}

#[test]
fn ruby_threads() {
    need_program!("ruby");
    let ruby = |args: &[&str]| {
        let mut ruby = Command::new("ruby");
        ruby.arg(servers::app("threads_echo.rb")).args(args);
        ruby
    };
    pair(
        Case::new("Ruby threads"),
        |port| ruby(&["server", port]),
        |port| ruby(&["client", port, "8", "1500"]),
        Ending::Terminated,
        "ok 12000 rounds",
        Found {
            version: servers::version("ruby", &["--version"]),
            result: "12,000 lines echoed right".into(),
            note: "one thread per connection, lines through Ruby's own buffers",
        },
    );
}
