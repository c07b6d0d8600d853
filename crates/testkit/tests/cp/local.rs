//! Within one host: standard input, one sender only, what is printed, and parts of a file that are there already.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use ropeway_testkit::need_program;

use super::*;

/// A receiver at a loopback address, and what senders call it.
#[track_caller]
fn local_receiver(files: &Files, options: &[&str]) -> (Process, String) {
    let mut cmd = receive(files, "127.0.0.1:0");
    cmd.args(options);
    started(cmd)
}

/// The same, started so.
#[track_caller]
fn started(cmd: Command) -> (Process, String) {
    let receiver = Process::spawn(cmd);
    receiver.wait_for_output(" at 127.0.0.1:", LIMIT);
    let port = receiver.stderr().trim_end().rsplit(':').next().expect("a port").to_owned();
    (receiver, format!("127.0.0.1:{port}"))
}

/// Gives it all to a sender's standard input.
#[track_caller]
fn piped(cmd: Command, contents: &[u8]) -> Process {
    let (sender, mut pipe) = Process::spawn_with_stdin(cmd);
    pipe.write_all(contents).expect("it reads its standard input");
    sender
}

/// The same to one that may end before it has read all.
fn piped_until_it_ends(cmd: Command, contents: &[u8]) -> Process {
    let (sender, mut pipe) = Process::spawn_with_stdin(cmd);
    let _ = pipe.write_all(contents);
    sender
}

fn cp(args: &[&str]) -> Command {
    command(env::ropeway(), [&["cp"], args].concat())
}

#[test]
fn standard_input_arrives_under_the_name_that_it_is_given() {
    let files = Files::new(3_000_001);
    let (_receiver, to) = local_receiver(&files, &[]);
    // What a former pipe left is of no use to this one, even if it begins alike: what this one gives is read once, and is not known before.
    std::fs::write(files.target().join("piped.ropeway-part"), &files.contents[..1_000_000]).expect("written");
    let sender = piped(cp(&["-", &files.source(), &to, "--name", "piped"]), &files.contents);
    let said = sender.succeed(LIMIT).stderr;
    let arrived = std::fs::read(files.target().join("piped")).expect("it arrived");
    assert!(arrived == files.contents, "{} bytes arrived, or other ones", arrived.len());
    assert!(said.contains("piped: 2.86 MiB in ") && !said.contains("were there already"), "{said}");
    std::fs::remove_file(files.target().join("piped")).expect("it is there");
    // So did the file beside it.
    files.assert_arrived();
}

#[test]
fn an_empty_standard_input_is_an_empty_file() {
    let files = Files::new(0);
    let (_receiver, to) = local_receiver(&files, &[]);
    piped(cp(&["-", &to, "--name", "file"]), &[]).succeed(LIMIT);
    files.assert_arrived();
}

#[test]
fn a_file_that_is_made_up_while_it_is_read_arrives_as_it_reads() {
    let files = Files::new(0);
    let (_receiver, to) = local_receiver(&files, &[]);
    // What a former copy left is longer than the size that the kernel says, which is 0.
    std::fs::write(files.target().join("version.ropeway-part"), "Linux").expect("written");
    let sent = Process::spawn(cp(&["/proc/version", &files.source(), &to])).succeed(LIMIT);
    let version = files.target().join("version");
    let arrived = std::fs::read_to_string(&version).expect("it arrived");
    assert_eq!(arrived, std::fs::read_to_string("/proc/version").expect("the kernel says it"));
    assert!(sent.stderr.contains(&format!("version: {} B in ", arrived.len())), "{}", sent.stderr);
    std::fs::remove_file(version).expect("it is there");
    files.assert_arrived();
}

#[test]
fn a_name_is_for_standard_input_alone() {
    let files = Files::new(10);
    let (_receiver, to) = local_receiver(&files, &[]);
    let refused = Process::spawn(cp(&[&files.source(), &to, "--name", "other"])).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("--name is for standard input"), "{}", refused.stderr);
    assert!(std::fs::read_dir(files.target()).expect("readable").next().is_none(), "nothing was sent");
    let refused = Process::spawn(cp(&["--receive", &files.source(), "--name", "other"])).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("cannot be used with"), "{}", refused.stderr);
}

#[test]
fn a_receiver_writes_nothing_to_standard_output_and_says_so() {
    let refused = Process::spawn(cp(&["--receive", "-"])).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("nothing to standard output"), "{}", refused.stderr);
}

#[test]
fn standard_input_needs_a_name_and_is_sent_once() {
    let files = Files::new(10);
    let (_receiver, to) = local_receiver(&files, &[]);
    for (args, text) in [(&["-", &to][..], "--name"), (&["-", "-", &to, "--name", "twice"], "can be sent once")] {
        let refused = piped_until_it_ends(cp(args), &files.contents).wait(LIMIT).expect("in time");
        assert!(!refused.success() && refused.stderr.contains(text), "{args:?}: {}", refused.stderr);
    }
    let left = std::fs::read_dir(files.target()).expect("readable").count();
    assert_eq!(left, 0, "nothing was begun");
}

#[test]
fn a_receiver_for_one_sender_leaves_after_all_files_of_the_first() {
    let files = Files::new(100_000);
    let other = files.dir.path().join("other");
    std::fs::write(&other, "other").expect("written");
    let (receiver, to) = local_receiver(&files, &["--once"]);
    Process::spawn(cp(&[&files.source(), &other.display().to_string(), &to])).succeed(LIMIT);
    receiver.succeed(LIMIT);
    assert_eq!(std::fs::read_to_string(files.target().join("other")).expect("it arrived"), "other");
    std::fs::remove_file(files.target().join("other")).expect("it is there");
    files.assert_arrived();
    let late = Process::spawn(send(&files, &to)).wait(LIMIT).expect("in time");
    assert!(!late.success() && late.stderr.contains("is `ropeway cp --receive DIR` running there"), "{}", late.stderr);

    // One that goes wrong is the first as well, and its end says so.
    std::fs::write(files.source(), "other").expect("written");
    let (receiver, to) = local_receiver(&files, &["--once"]);
    let refused = Process::spawn(send(&files, &to)).wait(LIMIT).expect("in time");
    let left = receiver.wait(LIMIT).expect("in time");
    for end in [refused, left] {
        assert!(!end.success() && end.stderr.contains("file exists there"), "{}", end.stderr);
    }
}

#[test]
fn a_name_that_is_missing_is_said_before_a_receiver_for_one_sender_hears_of_it() {
    let files = Files::new(10);
    let (receiver, to) = local_receiver(&files, &["--once"]);
    for args in [&["-", &to][..], &[&files.source(), "-", &to]] {
        let refused = piped_until_it_ends(cp(args), &files.contents).wait(LIMIT).expect("in time");
        assert!(!refused.success() && refused.stderr.contains("needs a --name"), "{}", refused.stderr);
    }
    assert!(receiver.is_running(), "nobody came");
    Process::spawn(send(&files, &to)).succeed(LIMIT);
    receiver.succeed(LIMIT);
    files.assert_arrived();
}

#[test]
fn a_receiver_for_one_sender_fails_where_that_has_failed() {
    let files = Files::new(100_000);
    let (receiver, to) = local_receiver(&files, &["--once"]);
    let (sender, mut pipe) = Process::spawn_with_stdin(cp(&["-", &files.source(), &to, "--name", "first"]));
    pipe.write_all(&files.contents).expect("it reads its standard input");
    let part = files.target().join("first.ropeway-part");
    sender.wait_until("the first is begun", LIMIT, || part.exists()).expect("in time");
    std::fs::remove_file(files.source()).expect("it is there");
    drop(pipe);
    let sent = sender.wait(LIMIT).expect("in time");
    assert!(!sent.success() && sent.stderr.contains("file: No such file or directory"), "{}", sent.stderr);
    let received = receiver.wait(LIMIT).expect("in time");
    assert!(!received.success(), "{}", received.stderr);
    assert_eq!(std::fs::read(files.target().join("first")).expect("it arrived"), files.contents);
}

/// Seconds and Mbit/s in the line that an end has for a file.
#[track_caller]
fn time_and_rate(said: &str, begin: &str) -> (f64, f64) {
    let line = said.lines().find_map(|line| line.strip_prefix(begin));
    let line = line.unwrap_or_else(|| panic!("no line for the file: {said}"));
    let words: Vec<&str> = line.split(' ').collect();
    let [seconds, "s,", rate, "Mbit/s,", "BLAKE3", "verified"] = words[..] else { panic!("another line: {line}") };
    (seconds.parse().expect("a number"), rate.parse().expect("a number"))
}

#[test]
fn both_ends_have_a_line_for_a_file_with_its_size_time_and_rate() {
    const BYTES: usize = 4 << 20;
    /// The sender has to wait for so long: some digits of the time are significant then.
    const PAUSE: Duration = Duration::from_millis(700);
    let files = Files::new(BYTES);
    let (receiver, to) = local_receiver(&files, &[]);
    let (sender, mut pipe) = Process::spawn_with_stdin(cp(&["-", &to, "--name", "file"]));
    pipe.write_all(&files.contents[..BYTES / 2]).expect("it reads its standard input");
    sender.wait_until("some of it is there", LIMIT, || files.part_bytes() > 0).expect("in time");
    std::thread::sleep(PAUSE);
    pipe.write_all(&files.contents[BYTES / 2..]).expect("it reads its standard input");
    drop(pipe);
    let sent = sender.succeed(LIMIT);
    receiver.wait_for_output("BLAKE3 verified", LIMIT);
    for said in [&sent.stderr, &receiver.stderr()] {
        let (seconds, rate) = time_and_rate(said, "file: 4.00 MiB in ");
        assert!(seconds >= PAUSE.as_secs_f64() - 0.01, "{said}");
        // As far as the digits go.
        let megabits = |seconds: f64| BYTES as f64 * 8.0 / 1e6 / seconds;
        let (least, most) = (megabits(seconds + 0.006) - 0.06, megabits(seconds - 0.006) + 0.06);
        assert!((least..=most).contains(&rate), "{rate} Mbit/s are not {BYTES} bytes in {seconds} s: {said}");
    }
    assert_eq!(sent.stdout, "");
    files.assert_arrived();
}

#[test]
fn who_is_told_to_be_quiet_says_nothing_of_a_file_that_arrives() {
    let files = Files::new(1_000_000);
    // It does not say either where it listens.
    let (other, to) = local_receiver(&files, &[]);
    let at = to.replace("127.0.0.1", "127.0.0.2");
    let mut receiver = receive(&files, &at);
    receiver.args(["--once", "--quiet"]);
    let receiver = Process::spawn(receiver);
    let sent = loop {
        let sent = Process::spawn(cp(&[&files.source(), &at, "-q"])).wait(LIMIT).expect("in time");
        if sent.success() || !receiver.is_running() || !sent.stderr.contains("running there") {
            break sent.expect_success();
        }
    };
    let received = receiver.succeed(LIMIT);
    assert_eq!([sent.stdout, sent.stderr, received.stdout, received.stderr].concat(), "");
    files.assert_arrived();
    assert!(other.is_running());
}

#[test]
fn a_terminal_shows_how_far_a_file_is() {
    need_program!("script");
    let files = Files::new(4 << 20);
    let (_receiver, to) = local_receiver(&files, &[]);
    let send = format!("{} cp {} {to}", env::ropeway().display(), files.source());
    let finished = Process::spawn(command("script", ["-qec", &send, "/dev/null"])).succeed(LIMIT);
    println!("{:?}", finished.stdout);
    assert!(finished.stdout.contains("file [") && finished.stdout.contains("/4.00 MiB"), "{:?}", finished.stdout);
    assert!(finished.stdout.contains("BLAKE3 verified"), "{:?}", finished.stdout);
    files.assert_arrived();
}

#[test]
fn a_part_is_gone_on_with_only_if_its_hash_is_that_of_the_file() {
    let files = Files::new(3 << 20);
    let (_receiver, to) = local_receiver(&files, &["--force"]);
    let part = files.target().join("file.ropeway-part");
    let begun = &files.contents[..1 << 20];
    let mut damaged = begun.to_vec();
    damaged[500_000] ^= 1;
    let longer = [&files.contents[..], b"and more"].concat();
    for (there, resumed) in [(begun, true), (&damaged, false), (&longer, false), (&files.contents, true)] {
        std::fs::write(&part, there).expect("written");
        let said = Process::spawn(send(&files, &to)).succeed(LIMIT).stderr;
        files.assert_arrived();
        assert_eq!(said.contains("were there already"), resumed, "{} bytes were there: {said}", there.len());
    }
}

#[test]
fn a_copy_of_several_files_is_repeated_where_some_of_them_are_there() {
    let files = Files::new(1 << 20);
    let other = files.dir.path().join("other");
    let empty = files.dir.path().join("empty");
    std::fs::write(&other, "other").expect("written");
    std::fs::write(&empty, "").expect("written");
    let (_receiver, to) = local_receiver(&files, &[]);
    let send = || cp(&[&files.source(), &empty.display().to_string(), &other.display().to_string(), &to]);
    Process::spawn(send()).succeed(LIMIT);
    let arrived = |name: &str| std::fs::read(files.target().join(name)).expect("it is there");
    std::fs::remove_file(files.target().join("other")).expect("it is there");
    let again = Process::spawn(send()).succeed(LIMIT);
    assert!(again.stderr.contains("1.00 MiB were there already"), "{}", again.stderr);
    assert!(arrived("file") == files.contents && arrived("other") == b"other" && arrived("empty").is_empty());
    // Of the same size, and another file.
    std::fs::write(files.target().join("other"), "OTHER").expect("written");
    let refused = Process::spawn(send()).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("other exists there"), "{}", refused.stderr);
    assert_eq!(arrived("other"), b"OTHER");
    // Nor is a pipe read to its end for that.
    let refused = piped_until_it_ends(cp(&["-", &to, "--name", "file"]), &files.contents).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("file exists there"), "{}", refused.stderr);
}

#[test]
fn who_follows_a_sender_that_was_killed_does_not_wait_until_that_is_given_up() {
    let files = Files::new(2 << 20);
    let (_receiver, to) = local_receiver(&files, &[]);
    let (first, mut pipe) = Process::spawn_with_stdin(cp(&["-", &to, "--name", "file"]));
    pipe.write_all(&files.contents[..1 << 20]).expect("it reads its standard input");
    first.wait_until("some of it is there", LIMIT, || files.part_bytes() > 0).expect("in time");
    first.kill();
    let begin = Instant::now();
    Process::spawn(send(&files, &to)).succeed(LIMIT);
    let took = begin.elapsed();
    files.assert_arrived();
    // Of who is only silent the receiver thinks so after 8 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_sender_hears_of_it() {
    need_program!("strace");
    for options in [&[][..], &["--force"]] {
        let files = Files::new(10);
        let trace = files.dir.path().join("trace");
        let mut cmd = command("strace", ["-f", "-y", "-e", "trace=/fsync|rename", "-o"]);
        cmd.arg(&trace).arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args()).args(options);
        let (_receiver, to) = started(cmd);
        Process::spawn(send(&files, &to)).succeed(LIMIT);
        files.assert_arrived();
        let calls = std::fs::read_to_string(&trace).expect("written");
        let [of_data, of_name] = [".ropeway-part>", "/to>"]
            .map(|end| calls.lines().position(|line| line.contains("fsync(") && line.contains(end)));
        let renamed = calls.lines().position(|line| line.contains("rename"));
        assert!(of_data.is_some() && of_data < renamed && renamed < of_name, "{calls}");
    }
}

#[test]
fn where_permissions_cannot_be_set_and_the_directory_cannot_be_read_files_are_kept() {
    // As root, who makes a user receive.
    need_box!();
    need_program!("setpriv", "strace");
    let files = Files::new(10);
    let other = files.dir.path().join("other");
    std::fs::write(&other, "other").expect("written");
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    set_mode(files.dir.path(), 0o755);
    std::os::unix::fs::chown(files.target(), Some(65534), None).expect("as root");
    set_mode(&files.target(), 0o300);
    let mut cmd = command("setpriv", ["--reuid", "65534", "--clear-groups", "--"]);
    cmd.args(["strace", "-f", "-o", "/dev/null", "-e", "trace=fchmod", "-e", "inject=fchmod:error=EPERM"]);
    cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
    let (receiver, to) = started(cmd);
    Process::spawn(cp(&[&files.source(), &other.display().to_string(), &to])).succeed(LIMIT);
    receiver.wait_until("both are said", LIMIT, || receiver.stderr().contains("other: ")).expect("in time");
    let said = receiver.stderr();
    assert_eq!(said.matches("permissions are not kept").count(), 1, "{said}");
    assert_eq!(std::fs::read_to_string(files.target().join("other")).expect("it arrived"), "other");
    std::fs::remove_file(files.target().join("other")).expect("it is there");
    files.assert_arrived();
}

#[test]
fn a_part_that_another_user_has_put_there_is_neither_written_to_nor_kept() {
    // As root, who makes a user receive, and puts files of another one there.
    need_box!();
    need_program!("setpriv");
    const RECEIVER: u32 = 65533;
    const OTHER: u32 = 65534;
    for (receiver_uid, mode, there) in [(0, 0o600, 0), (0, 0o600, 500), (RECEIVER, 0o666, 1)] {
        let files = Files::new(1_000);
        let part = files.target().join("file.ropeway-part");
        let set_mode =
            |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
        let chown = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).expect("as root");
        set_mode(files.dir.path(), 0o755);
        chown(&files.target(), receiver_uid);
        set_mode(&files.target(), 0o777);
        std::fs::write(&part, &files.contents[..there]).expect("written");
        chown(&part, OTHER);
        set_mode(&part, mode);
        let mut opened_before = std::fs::File::open(&part).expect("it is there");
        let mut cmd = command("setpriv", ["--reuid", &receiver_uid.to_string(), "--clear-groups"]);
        cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
        let (receiver, to) = started(cmd);
        let sent = Process::spawn(send(&files, &to)).succeed(LIMIT);
        assert!(!sent.stderr.contains("were there already"), "{}", sent.stderr);
        assert!(!receiver.stderr().contains("permissions are not kept"), "{}", receiver.stderr());
        files.assert_arrived();
        let arrived = std::fs::metadata(files.target().join("file")).expect("it is there");
        assert_eq!(arrived.uid(), receiver_uid, "{there} bytes were there");
        let mut read = Vec::new();
        opened_before.read_to_end(&mut read).expect("it is open");
        assert!(read == files.contents[..there], "{} bytes are read of what arrived", read.len());
    }
}

/// As on vfat, and for root over NFS.
#[test]
fn where_files_belong_to_another_user_than_who_makes_them_a_part_is_gone_on_with() {
    need_program!("strace");
    let files = Files::new(2 << 20);
    let part = files.target().join("file.ropeway-part");
    std::fs::write(&part, &files.contents[..1 << 20]).expect("written");
    std::fs::set_permissions(&part, Permissions::from_mode(0o600)).expect("it is ours");
    let mut cmd = command("strace", ["-f", "-o", "/dev/null", "-e", "trace=geteuid", "-e", "inject=geteuid:retval=9"]);
    cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
    let (_receiver, to) = started(cmd);
    let sent = Process::spawn(send(&files, &to)).succeed(LIMIT);
    assert!(sent.stderr.contains("1.00 MiB were there already"), "{}", sent.stderr);
    files.assert_arrived();
}

#[test]
fn a_file_that_is_there_and_does_not_get_to_the_disk_has_not_arrived() {
    need_program!("strace");
    let files = Files::new(1 << 20);
    let target = files.target().join("file");
    std::fs::write(&target, &files.contents).expect("written");
    let mut cmd =
        command("strace", ["-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO", "-P"]);
    cmd.arg(&target).arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
    let (_receiver, to) = started(cmd);
    let sent = Process::spawn(send(&files, &to)).wait(LIMIT).expect("it ends");
    assert!(!sent.success() && sent.stderr.contains("Input/output error"), "{}", sent.stderr);
    files.assert_arrived();
}

#[test]
fn a_read_only_file_of_a_user_is_gone_on_with_when_its_receiver_was_killed_before_it_had_its_name() {
    // As root, who makes a user receive.
    need_box!();
    need_program!("setpriv", "strace");
    let files = Files::new(1_000_000);
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    set_mode(Path::new(&files.source()), 0o444);
    set_mode(files.dir.path(), 0o755);
    std::os::unix::fs::chown(files.target(), Some(65534), None).expect("as root");
    let part = files.target().join("file.ropeway-part");
    let by_user = ["--reuid", "65534", "--clear-groups", "--"];
    for kills in [true, false] {
        let mut cmd = command("setpriv", by_user);
        if kills {
            cmd.args(["strace", "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL"]);
        }
        cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
        let (receiver, to) = started(cmd);
        let mut send = send(&files, &to);
        send.args(["--patience", "0"]);
        let sent = Process::spawn(send).wait(LIMIT).expect("it ends");
        if kills {
            assert!(!sent.success() && !receiver.is_running(), "{}", sent.stderr);
            assert_eq!(std::fs::metadata(&part).expect("it is left").permissions().mode() & 0o777, 0o444);
        } else {
            assert!(sent.expect_success().stderr.contains("were there already"));
        }
    }
    files.assert_arrived();
    let arrived = std::fs::metadata(files.target().join("file")).expect("it is there");
    assert_eq!(arrived.permissions().mode() & 0o777, 0o444);
}

#[test]
fn a_full_disk_is_said_at_both_ends_and_ends_the_copy() {
    // As root, in a namespace of its own for what is mounted.
    need_box!();
    need_program!("unshare");
    let files = Files::new(8_000_000);
    let mounted = "mount -t tmpfs -o size=1m tmpfs \"$1\" && exec \"$2\" cp --receive \"$1\" --bind 127.0.0.1:0";
    let mut cmd = command("unshare", ["--mount", "sh", "-c", mounted, "sh"]);
    cmd.arg(files.target()).arg(env::ropeway());
    let (receiver, to) = started(cmd);
    for sender in
        [Process::spawn(send(&files, &to)), piped_until_it_ends(cp(&["-", &to, "--name", "piped"]), &files.contents)]
    {
        let ended = sender.wait(LIMIT).expect("it ends");
        assert!(!ended.success() && ended.stderr.contains("No space left on device"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("trying again"), "{}", ended.stderr);
    }
    assert!(receiver.is_running());
}

#[test]
fn a_file_that_is_longer_than_the_receiver_may_write_ends_its_own_copy_alone() {
    need_program!("prlimit");
    for (limit, is_for_good) in [("1000000:1000000", true), ("1000000:10000000", false)] {
        let files = Files::new(2_000_000);
        let small = files.dir.path().join("small");
        std::fs::write(&small, "small").expect("written");
        let mut cmd = command("prlimit", [&format!("--fsize={limit}")]);
        cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
        let (receiver, to) = started(cmd);
        let sent = Process::spawn(send(&files, &to)).wait(LIMIT).expect("it ends");
        let is_said = |said: &str| said.contains("file.ropeway-part: File too large");
        if is_for_good {
            assert!(!sent.success() && is_said(&sent.stderr), "{}", sent.stderr);
            receiver.wait_until("it says so too", LIMIT, || is_said(&receiver.stderr())).expect("in time");
        } else {
            sent.expect_success();
        }
        Process::spawn(cp(&[&small.display().to_string(), &to])).succeed(LIMIT);
        assert_eq!(std::fs::read_to_string(files.target().join("small")).expect("it arrived"), "small");
    }
}

#[test]
fn what_the_disk_has_not_taken_is_sent_anew() {
    need_program!("strace");
    let files = Files::new(1_000_000);
    let mut cmd = command("strace", ["-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"]);
    cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
    let (receiver, to) = started(cmd);
    let refused = Process::spawn(send(&files, &to)).wait(LIMIT).expect("it ends");
    let is_said = |said: &str| said.contains("Input/output error (os error 5); nothing was kept, send it again");
    assert!(!refused.success() && is_said(&refused.stderr), "{}", refused.stderr);
    assert!(!refused.stderr.contains("trying again"), "{}", refused.stderr);
    receiver.wait_until("it says so too", LIMIT, || is_said(&receiver.stderr())).expect("in time");
    assert_eq!(std::fs::read_dir(files.target()).expect("readable").count(), 0, "neither the file nor its part");
    let (_receiver, to) = local_receiver(&files, &[]);
    let sent = Process::spawn(send(&files, &to)).succeed(LIMIT);
    files.assert_arrived();
    assert!(!sent.stderr.contains("were there already"), "{}", sent.stderr);
}

#[test]
fn files_go_on_when_nobody_reads_what_the_ends_say() {
    let files = Files::new(100_000);
    let other = files.dir.path().join("other");
    std::fs::write(&other, "other").expect("written");
    let gone = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let free = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let to = free.to_string();
    let mut receiver = receive(&files, &to).stderr(gone()).spawn().expect("it starts");
    let args = ["cp", &files.source(), &other.display().to_string(), &to];
    let mut sent = command(env::ropeway(), args).stderr(gone()).status().expect("it starts");
    // Until the receiver listens.
    for _ in 0..50 {
        if sent.success() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        sent = command(env::ropeway(), args).stderr(gone()).status().expect("it starts");
    }
    assert!(receiver.try_wait().expect("it is ours").is_none(), "the receiver has ended");
    receiver.kill().and_then(|()| receiver.wait()).expect("it ends");
    assert!(sent.success(), "{sent}");
    assert_eq!(std::fs::read_to_string(files.target().join("other")).expect("it arrived"), "other");
    std::fs::remove_file(files.target().join("other")).expect("it is there");
    files.assert_arrived();
}

#[test]
fn a_file_that_cannot_be_read_is_said_before_another_is_sent() {
    // As root, who becomes a user.
    need_box!();
    need_program!("setpriv");
    let files = Files::new(10);
    let secret = files.dir.path().join("secret");
    std::fs::write(&secret, "secret").expect("written");
    let set_mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    set_mode(&secret, 0o600);
    set_mode(files.dir.path(), 0o755);
    let (_receiver, to) = local_receiver(&files, &[]);
    let mut cmd = command("setpriv", ["--reuid", "65534", "--clear-groups"]);
    cmd.arg(env::ropeway()).args(["cp", &files.source(), &secret.display().to_string(), &to]);
    let refused = Process::spawn(cmd).wait(LIMIT).expect("it ends");
    assert!(!refused.success() && refused.stderr.contains("secret: Permission denied"), "{}", refused.stderr);
    assert_eq!(std::fs::read_dir(files.target()).expect("readable").count(), 0, "nothing was begun");
}

/// As some network file systems and those of FUSE have it.
#[test]
fn where_files_cannot_be_locked_they_arrive_and_two_senders_of_one_wait_for_each_other() {
    need_program!("strace");
    for error in ["ENOSYS", "EOPNOTSUPP", "ENOLCK"] {
        let files = Files::new(2 << 20);
        let inject = format!("inject=flock:error={error}");
        let mut cmd = command("strace", ["-f", "-o", "/dev/null", "-e", "trace=flock", "-e", &inject]);
        cmd.arg(env::ropeway()).args(receive(&files, "127.0.0.1:0").get_args());
        let (receiver, to) = started(cmd);
        let (first, mut pipe) = Process::spawn_with_stdin(cp(&["-", &to, "--name", "file"]));
        pipe.write_all(&files.contents[..1 << 20]).expect("it reads its standard input");
        first.wait_until("some of it is there", LIMIT, || files.part_bytes() > 0).expect("in time");
        let second = Process::spawn(send(&files, &to));
        std::thread::sleep(Duration::from_secs(1));
        assert!(second.is_running(), "{}", second.stderr());
        pipe.write_all(&files.contents[1 << 20..]).expect("it reads its standard input");
        drop(pipe);
        first.succeed(LIMIT);
        // It finds what the first one brought.
        assert!(second.succeed(LIMIT).stderr.contains("2.00 MiB were there already"));
        files.assert_arrived();
        let said = receiver.stderr();
        assert_eq!(said.matches("files cannot be locked in").count(), 1, "{said}");
    }
}
