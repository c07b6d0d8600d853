//! What a configuration file means, and what it says about mistakes.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("c.toml")).map_err(|e| e.to_string())
}

fn program(comm: &str, exe: &str) -> Program {
    Program { comm: comm.into(), exe: Some(exe.into()) }
}

const CLIENT: Endpoint = Endpoint::v4([127, 0, 0, 1], 40000);
const SERVER: Endpoint = Endpoint::v4([127, 0, 0, 1], 6379);

#[test]
fn an_empty_file_means_the_built_in_values() {
    let config = parse("").unwrap();
    let redis = program("redis-server", "/usr/bin/redis-check-rdb");
    assert_eq!(config.settings("", &redis), Settings::DEFAULT);
    assert_eq!(config.decide(&redis, &SERVER, &CLIENT), Decision::Allow(None));
    assert_eq!(config.limits(8 << 30), Limits { segment_bytes: 1 << 30, registrations: 65536, processes: 4096 });
    assert_eq!(config.limits(1 << 30).segment_bytes, 128 << 20);
}

#[test]
fn profiles_are_changed_and_added() {
    let config = parse(
        "[profile.latency]\nspin_us = 50\n[profile.bulk]\npromote_after = 3\npromote_after_bytes = '1 MiB'\nring_size = '2 MiB'",
    )
    .unwrap();
    let latency = config.profile("latency").unwrap();
    assert_eq!((latency.spin_ns, latency.promote_after_calls), (50_000, 2), "what is not given stays as it was");
    let bulk = config.profile("bulk").unwrap();
    let expected =
        Settings { promote_after_calls: 3, promote_after_bytes: 1 << 20, ring_bytes: 2 << 20, ..Settings::DEFAULT };
    assert_eq!(bulk, expected, "a new profile starts from `default`");
    let error = config.profile("fast").unwrap_err();
    assert_eq!(error, "there is no profile `fast`; the profiles are bulk, default, latency, safe");
}

#[test]
fn the_first_matching_rule_wins() {
    let config = parse(
        "[[rule]]\nprogram = 'redis-*'\nport = 6380\naction = 'deny'\n\
         [[rule]]\nprogram = '/opt/*'\nprofile = 'latency'\n\
         [[rule]]\npeer = '10.0.0.0/8'\naction = 'deny'\n\
         [[rule]]\nport = '6000-6400'\nprofile = 'safe'\n\
         [[rule]]\naction = 'deny'",
    )
    .unwrap();
    let redis = program("redis-server", "/usr/bin/redis-server");
    let at = |port| Endpoint { port, ..SERVER };
    assert_eq!(config.decide(&redis, &at(6380), &CLIENT), Decision::Deny);
    assert_eq!(config.decide(&redis, &CLIENT, &at(6380)), Decision::Deny, "either end's port");
    assert_eq!(config.decide(&redis, &at(6379), &CLIENT), Decision::Allow(Some("safe")));
    assert_eq!(config.decide(&redis, &at(6379), &Endpoint::v4([10, 9, 8, 7], 1)), Decision::Deny);
    assert_eq!(config.decide(&redis, &at(80), &CLIENT), Decision::Deny);
    let ours = program("x", "/opt/x/bin/x");
    assert_eq!(config.decide(&ours, &at(80), &CLIENT), Decision::Allow(Some("latency")));
    assert_eq!(config.settings("", &ours).spin_ns, 200_000, "a rule about the program alone sets its profile");
    assert_eq!(config.settings("safe", &ours).spin_ns, 0, "unless the process asks for one");
    assert_eq!(config.settings("", &redis), Settings::DEFAULT);
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (text, line, hint) in [
        ("\n[profile.x]\nspin = 5", "line 3", "unknown field `spin`, expected one of `spin_us`"),
        ("[[rules]]", "line 1", "unknown field `rules`"),
        ("[[rule]]\nport = 70000", "line 2", "is not a port"),
        ("[[rule]]\npeer = 'localhost'", "line 2", "is not a peer"),
        ("[[rule]]\naction = 'reject'", "line 2", "unknown variant `reject`"),
        ("\n\n[[rule]]\nprofile = 'fast'", "line 4", "there is no profile `fast`"),
        ("[[rule]]\naction = 'deny'\nprofile = 'safe'", "line 3", "cannot choose a profile"),
        ("[profile.x]\nring_size = 5000", "line 2", "multiple of 4 KiB"),
        ("[profile.x]\nspin_us = 20000", "line 2", "at most 10000"),
        ("[limits]\nsegment_bytes = '1 GB'", "line 2", "is not a size"),
        ("[limits]\n\nsegments = 1", "line 3", "unknown field `segments`"),
        ("[profile.x]\nspin_us = -5", "line 2", "expected u32"),
        ("x = [", "line 1", ""),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with("c.toml") && error.contains(line) && error.contains(hint), "{text}: {error}");
    }
}

/// docs/configuration.md states the defaults in a table; it must not drift from the code.
#[test]
fn the_documentation_states_the_defaults() {
    let doc = include_str!("../../../../docs/configuration.md");
    let config = Config::built_in();
    let [default, latency, safe] = ["default", "latency", "safe"].map(|name| config.profile(name).unwrap());
    let row = |key: &str, value: &dyn Fn(&Settings) -> String| {
        format!("| `{key}` | {} | {} | {} |", value(&default), value(&latency), value(&safe))
    };
    let kib =
        |bytes: u64| if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) };
    for expected in [
        row("spin_us", &|s| (s.spin_ns / 1000).to_string()),
        row("promote_after", &|s| s.promote_after_calls.to_string()),
        row("promote_after_bytes", &|s| kib(s.promote_after_bytes)),
        row("ring_size", &|s| kib(u64::from(s.ring_bytes))),
        format!("| `registrations` | {} |", Limits::REGISTRATIONS),
        format!("| `processes` | {} |", Limits::PROCESSES),
    ] {
        assert!(doc.contains(&expected), "docs/configuration.md lacks: {expected}");
    }
}

#[test]
fn the_cluster_has_a_key_file_or_is_trusted_and_not_both() {
    let keys = |text: &str| Config::parse(text, Path::new("/etc/ropeway/config.toml")).map(|config| config.keys());
    assert_eq!(keys("").unwrap(), None, "not decided is not trusted");
    assert_eq!(keys("[cluster]\ntrusted = false\n").unwrap(), None);
    assert_eq!(keys("[cluster]\ntrusted = true\n").unwrap(), Some(Choice::Trusted));
    let file = |path: &str| Some(Choice::File(path.into()));
    assert_eq!(keys("[cluster]\nkey_file = '/k'\ntrusted = false\n").unwrap(), file("/k"));
    assert_eq!(keys("[cluster]\nkey_file = 'key'\n").unwrap(), file("/etc/ropeway/key"), "beside the configuration");
    let error = keys("[cluster]\nkey_file = 'key'\ntrusted = true\n").unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("`key_file`"), "{error}");
    assert!(keys("[cluster]\nkey = 'x'\n").is_err(), "unknown keys are errors");
}
