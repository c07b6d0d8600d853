//! Request-response servers with many small messages.

use crate::{LONG_LIVED, ONE_STREAM};
use ropeway_testkit::compat::{Case, Found, at_least};
use ropeway_testkit::proc::command;
use ropeway_testkit::servers::{self, LOAD_LIMIT, START_LIMIT};
use ropeway_testkit::{need_program, need_root, net, skip};
use std::io::Write;
use std::process::Command;

#[test]
fn redis_answers_its_benchmark_and_its_shell() {
    need_program!("redis-server", "redis-benchmark", "redis-cli");
    let case = Case::new("Redis");
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, benchmark, cli) =
        (case.ropeway("redis-server"), case.ropeway("redis-benchmark"), case.ropeway("redis-cli"));
    let redis = server.spawn(command("redis-server", ["--port", &port_arg, "--save", "", "--bind", "127.0.0.1"]));
    redis.wait_for_port(port, START_LIMIT);

    let load =
        command("redis-benchmark", ["-p", &port_arg, "-q", "-n", "50000", "-c", "20", "-t", "set,get,lrange_100"]);
    let output = benchmark.spawn(load).succeed(LOAD_LIMIT).stdout;
    assert!(output.contains("GET: ") && output.contains("LRANGE_100"), "{output}");

    // One shell, one connection: 2000 increments, and a value far larger than a ring.
    let (shell, mut input) =
        ropeway_testkit::proc::Process::spawn_with_stdin(cli.command(command("redis-cli", ["-p", &port_arg])));
    let large = "value ".repeat(400_000);
    let script =
        format!("{}SET large \"{large}\"\nGET large\nSTRLEN large\nGET counter\n", "INCR counter\n".repeat(2000));
    input.write_all(script.as_bytes()).expect("redis-cli reads its input");
    drop(input);
    let answers = shell.succeed(LOAD_LIMIT).stdout;
    let answers: Vec<&str> = answers.lines().collect();
    assert!((1..=2000).all(|n| answers[n - 1] == n.to_string()), "the increments are not in order");
    assert_eq!(answers[2000], "OK");
    assert_eq!(answers[2001].trim_matches('"'), large);
    assert_eq!(answers[2002..], ["2400000", "2000"]);

    servers::stop(&redis);
    case.expect_shm(
        // The shell's one connection is short and half of its bytes are two values: promotion takes a part of that.
        0.7,
        Found {
            version: servers::version("redis-server", &["--version"]),
            result: "benchmark SET, GET, LRANGE; counter and 2.4 MB value right".into(),
            note: "a redis-cli for a single command is a short connection and stays on TCP",
        },
    );
}

#[test]
fn memcached_returns_what_was_set() {
    need_program!("memcached");
    let case = Case::new("memcached");
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, client) = (case.ropeway("memcached"), case.ropeway("client"));
    let memcached = server.spawn(command("memcached", ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port_arg]));
    memcached.wait_for_port(port, START_LIMIT);
    let load = client.spawn(servers::python_app("memcached_load.py", [port_arg.as_str(), "200", "20"]));
    let output = load.succeed(LOAD_LIMIT).stdout;
    assert_eq!(output.trim(), "ok 16800 requests");
    servers::stop(&memcached);
    case.expect_shm(
        LONG_LIVED,
        Found {
            version: servers::version("memcached", &["--version"]),
            result: "16,800 requests, values of 1 B to 40 kB right".into(),
            note: "four worker threads; client in Python",
        },
    );
}

#[test]
fn postgresql_keeps_its_books_under_pgbench() {
    need_root!();
    let Some(bin) = servers::postgres_bin() else {
        skip!("not installed: postgresql (scripts/setup test installs it)");
    };
    let case = Case::new("PostgreSQL");
    let port = net::free_port();
    let port_arg = port.to_string();
    let (server, pgbench, psql) = (case.ropeway("postgres"), case.ropeway("pgbench"), case.ropeway("psql"));
    let postgres = server.spawn(servers::postgres(&bin, case.dir(), port));
    postgres.wait_for_output("ready to accept connections", START_LIMIT);
    let client = |program: &str, args: &[&str]| {
        let mut cmd = Command::new(bin.join(program));
        cmd.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port_arg]).args(args).arg("postgres");
        cmd
    };

    pgbench.spawn(client("pgbench", &["-i", "-q", "-s", "1"])).succeed(LOAD_LIMIT);
    let output = pgbench.spawn(client("pgbench", &["-c", "4", "-j", "2", "-t", "1000"])).succeed(LOAD_LIMIT).stdout;
    assert!(output.contains("number of transactions actually processed: 4000/4000"), "{output}");
    // -n: the vacuum before a run would also empty the history that the books are checked against.
    let output =
        pgbench.spawn(client("pgbench", &["-n", "-S", "-c", "4", "-j", "2", "-t", "5000"])).succeed(LOAD_LIMIT).stdout;
    assert!(output.contains("number of transactions actually processed: 20000/20000"), "{output}");

    // Every transaction moved the same amount in three tables and wrote it down in a fourth.
    let books = "SELECT n = 4000, h.s - a.s, h.s - t.s, h.s - b.s FROM \
                 (SELECT count(*) AS n, sum(delta) AS s FROM pgbench_history) AS h, \
                 (SELECT sum(abalance) AS s FROM pgbench_accounts) AS a, \
                 (SELECT sum(tbalance) AS s FROM pgbench_tellers) AS t, \
                 (SELECT sum(bbalance) AS s FROM pgbench_branches) AS b";
    let answer = psql.spawn(client("psql", &["-At", "-c", books])).succeed(LOAD_LIMIT).stdout;
    assert_eq!(answer.trim(), "t|0|0|0", "the balances do not add up");
    // One row per account: an answer of ten megabytes on one connection, three times with a pause in which the rendezvous
    // gets its turn.
    let (every, pause) =
        ("SELECT aid, abalance, filler FROM pgbench_accounts ORDER BY aid", "DO 'BEGIN PERFORM pg_sleep(0.2); END'");
    let session = ["-Atq", "-c", every, "-c", pause, "-c", every, "-c", pause, "-c", every];
    let answer = psql.spawn(client("psql", &session)).succeed(LOAD_LIMIT).stdout;
    assert_eq!(answer.lines().count(), 300_000);
    let right = answer.lines().zip((1..=100_000).cycle()).all(|(line, aid)| line.starts_with(&format!("{aid}|")));
    assert!(right, "a row is missing");

    servers::stop(&postgres);
    // The first answer to psql is one stream on a fresh connection, most of which goes over TCP: pgbench proves the share.
    let share = pgbench.traffic().shm_share();
    assert!(share >= at_least(LONG_LIVED), "pgbench: {share:.3} of the bytes over shm");
    case.expect_shm(
        ONE_STREAM,
        Found {
            version: servers::version(bin.join("postgres"), &["--version"]),
            result: "24,000 transactions, balances add up; three answers of 10 MB right".into(),
            note: "prefork, server as user postgres, client as root: root's daemon serves both",
        },
    );
}
