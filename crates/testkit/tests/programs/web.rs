//! Web servers, a proxy and their clients.

use crate::LONG_LIVED;
use ropeway_testkit::compat::{Case, Found, Side};
use ropeway_testkit::proc::{Process, command};
use ropeway_testkit::servers::{self, LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{need_program, need_root, net};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How often curl fetches each file over its one connection.
const FETCHES: usize = 40;

/// nginx with a file of 1 KB and one of 10 MB to serve.
struct Nginx {
    process: Process,
    root: PathBuf,
    port: u16,
}

impl Nginx {
    fn start(case: &Case, side: &Side) -> Self {
        let root = case.dir().join("www");
        std::fs::create_dir(&root).expect("a directory can be made");
        servers::make_file(&root.join("small"), 1024);
        servers::make_file(&root.join("large"), 10 << 20);
        let port = net::free_port();
        let process = side.spawn(servers::nginx(case.dir(), &root, port));
        process.wait_for_port(port, START_LIMIT);
        Self { process, root, port }
    }
}

/// One curl that fetches both files again and again over one connection, and the comparison of every copy.
fn curl_fetches_everything(side: &Side, root: &Path, to: &Path, port: u16) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--no-progress-meter"]);
    for n in 0..FETCHES {
        for name in ["small", "large"] {
            let copy = to.join(format!("{name}.{n}"));
            curl.arg("-o").arg(copy).arg(format!("http://127.0.0.1:{port}/{name}"));
        }
    }
    side.spawn(curl).succeed(LOAD_LIMIT);
    for n in 0..FETCHES {
        for name in ["small", "large"] {
            let copy = to.join(format!("{name}.{n}"));
            servers::assert_same_file(&root.join(name), &copy);
            std::fs::remove_file(&copy).expect("the copy is ours");
        }
    }
}

/// wrk for three seconds on 32 connections.
fn wrk_finds_no_error(side: &Side, port: u16) -> u64 {
    let url = format!("http://127.0.0.1:{port}/small");
    let output = side.spawn(command("wrk", ["-t", "1", "-c", "32", "-d", "3s", &url])).succeed(LOAD_LIMIT).stdout;
    assert!(!output.contains("Socket errors") && !output.contains("Non-2xx"), "{output}");
    let requests = output.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    let requests = requests.unwrap_or_else(|| panic!("wrk prints no number of requests:\n{output}"));
    assert!(requests > 1000, "{output}");
    requests
}

#[test]
fn nginx_serves_curl_and_wrk_from_workers_of_another_user() {
    need_root!();
    need_program!("nginx", "curl", "wrk");
    let case = Case::new("nginx");
    let (server, curl, wrk) = (case.ropeway("nginx"), case.ropeway("curl"), case.ropeway("wrk"));
    let nginx = Nginx::start(&case, &server);
    curl_fetches_everything(&curl, &nginx.root, case.dir(), nginx.port);
    wrk_finds_no_error(&wrk, nginx.port);
    servers::stop(&nginx.process);
    case.expect_shm(
        LONG_LIVED,
        Found {
            version: servers::version("nginx", &["-v"]),
            result: "40 x 10 MB and 40 x 1 KB right; wrk without an error".into(),
            note: "keep-alive, sendfile; workers are www-data, clients root: root's daemon serves both",
        },
    );
}

#[test]
fn haproxy_in_a_chroot_stands_between_wrk_and_nginx() {
    need_root!();
    need_program!("nginx", "haproxy", "curl", "wrk");
    let case = Case::new("HAProxy");
    let (server, proxy) = (case.ropeway("nginx"), case.ropeway("haproxy"));
    let (curl, wrk) = (case.ropeway("curl"), case.ropeway("wrk"));
    let nginx = Nginx::start(&case, &server);
    let port = net::free_port();
    let haproxy = proxy.spawn(servers::haproxy(case.dir(), port, nginx.port));
    haproxy.wait_for_port(port, START_LIMIT);
    curl_fetches_everything(&curl, &nginx.root, case.dir(), port);
    wrk_finds_no_error(&wrk, port);
    servers::stop_haproxy(&haproxy, port);
    servers::stop(&nginx.process);
    case.expect_shm(
        LONG_LIVED,
        Found {
            version: servers::version("haproxy", &["-v"]),
            result: "40 x 10 MB and 40 x 1 KB right through the proxy; wrk without an error".into(),
            note: "chroot, user haproxy, two threads; both legs over shm",
        },
    );
}
