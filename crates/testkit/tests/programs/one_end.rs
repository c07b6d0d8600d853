//! One end under Ropeway, the other not: works as if Ropeway were not there.

use ropeway_testkit::compat::{Case, Found, Side};
use ropeway_testkit::proc::command;
use ropeway_testkit::servers::{self, LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{need_program, need_root, net};
use std::process::Command;

/// The reason that a connection keeps whose other end never registers.
const NO_PEER: &str = "peer-not-registered";

/// Both sides of a case, of which one is under Ropeway.
fn sides(case: &Case, server_under_ropeway: bool) -> (Side, Side) {
    if server_under_ropeway {
        (case.ropeway("server"), case.plain("client"))
    } else {
        (case.plain("server"), case.ropeway("client"))
    }
}

fn redis(server_under_ropeway: bool) {
    let case = Case::new("Redis");
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, client) = sides(&case, server_under_ropeway);
    let redis = server.spawn(command("redis-server", ["--port", &port_arg, "--save", "", "--bind", "127.0.0.1"]));
    redis.wait_for_port(port, START_LIMIT);
    let load = command("redis-benchmark", ["-p", &port_arg, "-q", "-n", "20000", "-c", "10", "-t", "set,get"]);
    let output = client.spawn(load).succeed(LOAD_LIMIT).stdout;
    assert!(output.contains("GET: "), "{output}");
    servers::stop(&redis);
    let version = servers::version("redis-server", &["--version"]);
    case.expect_tcp(NO_PEER, Found { version, result: "benchmark SET, GET".into(), note: "" });
}

#[test]
fn redis_server_alone_under_ropeway() {
    need_program!("redis-server", "redis-benchmark");
    redis(true);
}

#[test]
fn redis_client_alone_under_ropeway() {
    need_program!("redis-server", "redis-benchmark");
    redis(false);
}

fn nginx(server_under_ropeway: bool) {
    let case = Case::new("nginx");
    let port = net::free_port();
    let (server, client) = sides(&case, server_under_ropeway);
    let root = case.dir().join("www");
    std::fs::create_dir(&root).expect("a directory can be made");
    servers::make_file(&root.join("large"), 10 << 20);
    let nginx = server.spawn(servers::nginx(case.dir(), &root, port));
    nginx.wait_for_port(port, START_LIMIT);
    let mut curl = command("curl", ["--silent", "--show-error", "--fail"]);
    let copies: Vec<_> = (0..10).map(|n| case.dir().join(format!("copy{n}"))).collect();
    for copy in &copies {
        curl.arg("-o").arg(copy).arg(format!("http://127.0.0.1:{port}/large"));
    }
    client.spawn(curl).succeed(LOAD_LIMIT);
    for copy in &copies {
        servers::assert_same_file(&root.join("large"), copy);
    }
    servers::stop(&nginx);
    let version = servers::version("nginx", &["-v"]);
    case.expect_tcp(NO_PEER, Found { version, result: "10 x 10 MB right".into(), note: "" });
}

#[test]
fn nginx_alone_under_ropeway() {
    need_root!();
    need_program!("nginx", "curl");
    nginx(true);
}

#[test]
fn curl_alone_under_ropeway() {
    need_root!();
    need_program!("nginx", "curl");
    nginx(false);
}

fn iperf3(server_under_ropeway: bool) {
    let case = Case::new("iperf3");
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, client) = sides(&case, server_under_ropeway);
    let listening = server.spawn(command("iperf3", ["-s", "-1", "-B", "127.0.0.1", "-p", &port_arg]));
    listening.wait_for_port(port, START_LIMIT);
    client.spawn(command("iperf3", ["-c", "127.0.0.1", "-p", &port_arg, "-t", "1", "-P", "2"])).succeed(LOAD_LIMIT);
    listening.succeed(servers::STOP_LIMIT);
    let version = servers::version("iperf3", &["--version"]);
    case.expect_tcp(NO_PEER, Found { version, result: "1 s, two streams".into(), note: "" });
}

#[test]
fn iperf3_server_alone_under_ropeway() {
    need_program!("iperf3");
    iperf3(true);
}

#[test]
fn iperf3_client_alone_under_ropeway() {
    need_program!("iperf3");
    iperf3(false);
}

/// A static program started with `ropeway run` on one end, Python's asyncio on the other: the preload never gets into the
/// static one, which leaves no statistics.
fn static_echo(name: &'static str, case: Case, program: Command, static_is_server: bool, rounds: &str) {
    let port = net::free_port();
    let port_arg = port.to_string();
    let python = case.ropeway("python");
    let run_static = |role: &[&str]| {
        let mut cmd = command(program.get_program(), role);
        cmd.args(program.get_args());
        cmd
    };
    // Under `ropeway run` too, as a user would start it; only its statistics cannot be asked for.
    let alone = case.plain(name);
    let under = |cmd: Command| if ropeway_testkit::compat::is_bare() { cmd } else { case.world().command(&cmd) };
    if static_is_server {
        let server = alone.spawn(under(run_static(&["server", &port_arg])));
        server.wait_for_port(port, START_LIMIT);
        // The server in C takes one connection after the other.
        let output = python.spawn(servers::python_app("asyncio_echo.py", ["client", &port_arg, "1", rounds]));
        assert!(output.succeed(LOAD_LIMIT).stdout.starts_with("ok "));
        server.kill();
    } else {
        let server = python.spawn(servers::python_app("asyncio_echo.py", ["server", &port_arg]));
        server.wait_for_port(port, START_LIMIT);
        let client = alone.spawn(under(run_static(&["client", &port_arg, rounds])));
        assert_eq!(client.succeed(LOAD_LIMIT).stdout.trim(), format!("ok {rounds} rounds"));
        servers::stop(&server);
    }
    assert!(case.world().stats().is_empty(), "a static program cannot leave statistics: {:?}", case.world().stats());
    let version = if name == "static Go" { servers::version("go", &["version"]) } else { "musl".into() };
    let result = format!("{rounds} rounds of echo right");
    case.expect_tcp(NO_PEER, Found { version, result, note: "no preload in a static program: stays on TCP" });
}

#[test]
fn static_go_server() {
    need_program!("go");
    let case = Case::new("static Go server, Python client");
    let program = Command::new(servers::go_echo(case.dir()));
    static_echo("static Go", case, program, true, "2000");
}

#[test]
fn static_go_client() {
    need_program!("go");
    let case = Case::new("static Go client, Python server");
    let program = Command::new(servers::go_echo(case.dir()));
    static_echo("static Go", case, program, false, "2000");
}

#[test]
fn static_musl_server() {
    need_program!("musl-gcc");
    static_echo(
        "static C",
        Case::new("static C server, Python client"),
        Command::new(servers::musl_echo()),
        true,
        "2000",
    );
}

#[test]
fn static_musl_client() {
    need_program!("musl-gcc");
    static_echo(
        "static C",
        Case::new("static C client, Python server"),
        Command::new(servers::musl_echo()),
        false,
        "2000",
    );
}
