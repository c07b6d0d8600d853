use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Instant;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::super::peer::Peer;
use super::super::store::{has_ended_so, hash};
use super::super::{frame, send};
use super::*;

/// From now on permissions hold for this thread though it is root's, as they do for users.
fn obey_permissions() {
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    rustix::thread::set_capabilities(None, capabilities).unwrap();
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "a.ropeway-part", &"x".repeat(300)] {
        assert!(plain_name(name).is_err(), "{name:?}");
    }
    let long = plain_name(&"x".repeat(300)).unwrap_err().to_string();
    assert!(long.contains("xxx... is longer than the 242 bytes") && long.len() < 150, "{long}");
    for name in ["a", "a b", "..a", "ä"] {
        assert_eq!(plain_name(name).unwrap(), name);
    }
}

#[test]
fn what_is_there_is_hashed_and_what_cannot_be_of_this_file_is_dropped() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let part = part_of(&directory.join("file"));
    std::fs::write(&part, b"12345").unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let offer = |size| Offer { name: "file".into(), size, ..Offer::default() };
    let open = {
        let (part, options) = (part.clone(), options.clone());
        move |size| open_part(&part, &offer(size), &options, || {}).unwrap()
    };
    let Part { mut file, there, .. } = open(Some(9)).unwrap();
    let [sender, receiver] = connect::pair();
    let mut hasher = blake3::Hasher::new();
    assert_eq!(hash(&mut file, &part, there, &mut hasher, Some(&receiver)).unwrap(), 5);
    assert_eq!((there, hasher.finalize()), (5, blake3::hash(b"12345")));
    let waiter = std::thread::spawn({
        let open = open.clone();
        move || open(Some(9)).map(|part| part.there)
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.is_finished(), "another sender has it");
    drop(file);
    assert_eq!(waiter.join().unwrap(), Some(5));
    // Standard input has no size, and may go on where it was.
    assert_eq!(open(None).unwrap().there, 5);
    let Part { file, there, .. } = open(Some(4)).unwrap();
    assert_eq!(there, 0);
    let waiter = std::thread::spawn(move || open(Some(9)).is_none());
    std::thread::sleep(Duration::from_millis(100));
    std::fs::rename(&part, directory.join("file")).unwrap();
    drop(file);
    assert!(waiter.join().unwrap(), "it has its own name now");
    drop(sender);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_arrives_damaged_is_not_kept_and_both_ends_are_told() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let ends = [End { size: 5, hash: hash(b"other") }, End { size: 6, hash: hash(b"right") }];
    for end in ends {
        let [sender, receiver] = connect::pair();
        let serving = std::thread::spawn({
            let options = options.clone();
            move || serve(receiver, &options, &Writers::default())
        });
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let offer = Offer { name: "file".into(), size: Some(5), ..Offer::default() };
        sender.send(&Frame::Offer(offer).to_message()).unwrap();
        assert!(matches!(Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Have(_))));
        sender.send(&Frame::From(frame::From { offset: 0 }).to_message()).unwrap();
        sender.send(&Frame::Data(b"right").to_message()).unwrap();
        sender.send(&Frame::End(end).to_message()).unwrap();
        let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
        assert!(matches!(&answer, Frame::Refused(why) if why == "damaged"), "{answer:?}");
        drop(sender);
        let told = serving.join().unwrap().unwrap_err();
        assert!(matches!(&told, CpError::Damaged { name } if name == "file"), "{told}");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "neither the file nor its part");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_whose_end_was_said_may_be_there_and_nothing_else_may() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-whole-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let contents = b"all of it";
    let end = End { size: contents.len() as u64, hash: blake3::hash(contents).to_hex().to_string() };
    std::fs::write(directory.join("whole"), contents).unwrap();
    std::fs::write(directory.join("other"), b"as  long!").unwrap();
    std::os::unix::fs::symlink(directory.join("whole"), directory.join("link")).unwrap();
    let closed = directory.join("closed");
    std::fs::write(&closed, contents).unwrap();
    std::fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    for (name, is_there) in [("whole", true), ("other", false), ("link", false), ("closed", true)] {
        let [sender, receiver] = connect::pair();
        let serving = std::thread::spawn({
            let options = options.clone();
            move || {
                obey_permissions();
                serve(receiver, &options, &Writers::default())
            }
        });
        let offer = Offer { name: name.into(), written: true, end: Some(end.clone()), ..Offer::default() };
        sender.send(&Frame::Offer(offer).to_message()).unwrap();
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
        assert_eq!(matches!(&answer, Frame::Done), is_there, "{name}: {answer:?}");
        assert_eq!(matches!(&answer, Frame::Refused(why) if why.contains("exists there")), !is_there);
        let _ = sender.finish();
        assert_eq!(serving.join().unwrap().is_ok(), is_there);
    }
    assert_eq!(std::fs::metadata(&closed).unwrap().mode() & 0o777, 0, "as it was");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn who_knows_what_a_file_holds_does_not_open_it_to_others_by_sending_it_again() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-known-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    std::fs::write(&target, b"ours").unwrap();
    std::fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
    let [sender, receiver] = connect::pair();
    let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
    let end = End { size: 4, hash: blake3::hash(b"ours").to_hex().to_string() };
    let offer = Offer { name: "file".into(), size: Some(4), mode: Some(0o666), end: Some(end), ..Offer::default() };
    assert!(matches!(send::offer(&sender, offer), Ok(send::Answer::Done)));
    sender.finish().unwrap();
    serving.join().unwrap().unwrap();
    assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, 0o600);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_takes_the_name_of_a_file_while_that_is_looked_at_keeps_its_mode() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-exchanged-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let [target, secret] = ["file", "secret"].map(|name| directory.join(name));
    for (path, mode) in [(&target, 0o666), (&secret, 0o600)] {
        std::fs::write(path, b"ours").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let end = End { size: 4, hash: blake3::hash(b"ours").to_hex().to_string() };
    let found = std::fs::symlink_metadata(&target).unwrap();
    let [_sender, receiver] = connect::pair();
    let is_still = || has_ended_so(&target, &found, &end, Some(0o666), &options, &receiver).unwrap();
    assert!(is_still());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    // Kept, so that its number is no other file's.
    std::fs::rename(&target, directory.join("found")).unwrap();
    std::os::unix::fs::symlink(&secret, &target).unwrap();
    assert_eq!((is_still(), mode(&secret)), (false, 0o600));
    std::fs::rename(&secret, &target).unwrap();
    assert_eq!((is_still(), mode(&target)), (false, 0o600));
    std::fs::remove_file(&target).unwrap();
    assert!(!is_still());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A receiver into a directory of its own, and a sender that has offered a file `file` of so many bytes, and heard what is there.
fn offered(what: &str, size: u64) -> (PathBuf, Connection, std::thread::JoinHandle<Result<(), CpError>>) {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-{what}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let limits = Limits { silence: Duration::from_millis(100), ..Limits::default() };
    let options = Options { directory: directory.clone(), once: true, force: false, quiet: true, limits };
    let [sender, receiver] = connect::pair();
    let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
    let offer = Offer { name: "file".into(), size: Some(size), ..Offer::default() };
    sender.send(&Frame::Offer(offer).to_message()).unwrap();
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    assert!(matches!(Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Have(_))));
    sender.send(&Frame::From(frame::From { offset: 0 }).to_message()).unwrap();
    (directory, sender, serving)
}

#[test]
fn who_goes_on_sending_hears_that_it_was_refused_and_no_more_than_was_offered_is_written() {
    let (directory, sender, serving) = offered("more", 1000);
    // More than is under way at once, and nothing is read meanwhile.
    let piece = frame::data();
    for _ in 0..(32 << 20) / piece.len() {
        sender.send(&piece).unwrap();
    }
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
    let Frame::Refused(why) = answer else { panic!("{answer:?}") };
    let said = "the other end says: what arrived is not as `ropeway cp` speaks: more data than was offered";
    assert_eq!(CpError::refused(why).to_string(), said);
    assert!(std::fs::metadata(directory.join("file.ropeway-part")).unwrap().len() <= 1000);
    drop(sender);
    assert!(matches!(serving.join().unwrap(), Err(CpError::Nonsense(_))));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_whose_sender_has_gone_is_named() {
    let (directory, sender, serving) = offered("named", 5);
    sender.finish().unwrap();
    let said = serving.join().unwrap().unwrap_err().to_string();
    assert!(said.starts_with("file is not whole, as its connection was lost: the other end has closed it;"), "{said}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_that_was_made_meanwhile_is_not_replaced() {
    let (directory, sender, serving) = offered("meanwhile", 5);
    std::fs::write(directory.join("file"), b"ours").unwrap();
    sender.send(&Frame::Data(b"right").to_message()).unwrap();
    let end = End { size: 5, hash: blake3::hash(b"right").to_hex().to_string() };
    sender.send(&Frame::End(end).to_message()).unwrap();
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
    assert!(matches!(&answer, Frame::Refused(why) if why.contains("file exists there")), "{answer:?}");
    drop(sender);
    serving.join().unwrap().unwrap_err();
    assert_eq!(std::fs::read(directory.join("file")).unwrap(), b"ours");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_has_the_name_of_a_part_that_is_gone_is_neither_kept_nor_removed() {
    for (replaced, hashed, text) in [
        (true, b"right", "file: its part was removed or replaced meanwhile; send it again"),
        (false, b"right", "file: its part was removed or replaced meanwhile; send it again"),
        (true, b"other", "damaged"),
    ] {
        let (directory, sender, serving) = offered("replaced", 5);
        let part = directory.join("file.ropeway-part");
        std::fs::remove_file(&part).unwrap();
        if replaced {
            std::fs::write(&part, b"of another sender").unwrap();
        }
        sender.send(&Frame::Data(b"right").to_message()).unwrap();
        let end = End { size: 5, hash: blake3::hash(hashed).to_hex().to_string() };
        sender.send(&Frame::End(end).to_message()).unwrap();
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
        assert!(matches!(&answer, Frame::Refused(why) if why.ends_with(text)), "{answer:?}");
        drop(sender);
        serving.join().unwrap().unwrap_err();
        assert!(!directory.join("file").exists());
        assert_eq!(std::fs::read(&part).ok(), replaced.then(|| b"of another sender".to_vec()));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn of_what_the_disk_has_not_taken_nothing_is_left_to_go_on_from() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-sync-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    let part = part_of(&target);
    let offer = Offer { name: "file".into(), size: Some(5), ..Offer::default() };
    let open = || open_part(&part, &offer, &options, || {}).unwrap().unwrap();
    for error in [Errno::IO, Errno::NOSPC] {
        let Part { mut file, there, .. } = open();
        assert_eq!(there, 0);
        file.write_all(b"right").unwrap();
        let failed = keep(&file, &part, &target, None, &options, || Err(error.into())).unwrap_err();
        assert_eq!(failed.kind(), io::Error::from(error).kind());
        let said = failed.to_string();
        assert!(said.starts_with(&io::Error::from(error).to_string()) && said.contains("nothing was kept"), "{said}");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "neither the file nor its part");
    }
    let Part { file, .. } = open();
    std::fs::remove_file(&part).unwrap();
    std::fs::write(&part, b"of another sender").unwrap();
    keep(&file, &part, &target, None, &options, || Err(Errno::IO.into())).unwrap_err();
    assert_eq!(std::fs::read(&part).unwrap(), b"of another sender");
    std::fs::remove_file(&part).unwrap();
    let Part { mut file, there, .. } = open();
    assert_eq!(there, 0);
    file.write_all(b"right").unwrap();
    keep(&file, &part, &target, None, &options, || file.sync_all()).unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"right");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_part_that_lacked_its_name_alone_is_gone_on_with_whatever_mode_it_has() {
    obey_permissions();
    let directory = std::env::temp_dir().join(format!("ropeway-cp-mode-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    let part = part_of(&target);
    let offer = Offer { name: "file".into(), size: Some(5), ..Offer::default() };
    let open = || open_part(&part, &offer, &options, || {}).map(Option::unwrap);
    for mode in [0o444, 0o200, 0] {
        let Part { mut file, there, .. } = open().unwrap();
        assert_eq!(there, 0);
        file.write_all(b"right").unwrap();
        std::fs::write(&target, b"other").unwrap();
        let taken = keep(&file, &part, &target, Some(mode), &options, || Ok(())).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        drop(file);
        std::fs::remove_file(&target).unwrap();
        let Part { file, there, .. } = open().unwrap_or_else(|error| panic!("{mode:o}: {error}"));
        assert_eq!(there, 5);
        keep(&file, &part, &target, Some(mode), &options, || Ok(())).unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, mode);
        std::fs::remove_file(&target).unwrap();
    }
    rustix::fs::mknodat(CWD, &part, rustix::fs::FileType::Fifo, 0.into(), 0).unwrap();
    assert_eq!(open().err().unwrap().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(std::fs::metadata(&part).unwrap().mode() & 0o777, 0, "what is no file is left as it is");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// One that was killed at the end of another file leaves it with that file's mode.
#[test]
fn a_part_that_others_could_read_is_none_that_they_read_a_private_file_from() {
    for (there, offset) in [(&b"other"[..], 0), (b"priv", 4)] {
        let directory = std::env::temp_dir().join(format!("ropeway-cp-private-{offset}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let options =
            Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
        let part = part_of(&directory.join("file"));
        std::fs::write(&part, there).unwrap();
        std::fs::set_permissions(&part, Permissions::from_mode(0o644)).unwrap();
        let mut opened_before = File::open(&part).unwrap();
        let [sender, receiver] = connect::pair();
        let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
        let mode = Some(0o600);
        let offer = Offer { name: "file".into(), size: Some(7), mode, ..Offer::default() };
        assert!(
            matches!(send::offer(&sender, offer), Ok(send::Answer::Have(have)) if have.bytes == there.len() as u64)
        );
        sender.send(&Frame::From(frame::From { offset: offset as u64 }).to_message()).unwrap();
        sender.send(&Frame::Data(&b"private"[offset..]).to_message()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read(&part).map_or(true, |bytes| bytes != b"private") {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(std::fs::metadata(&part).unwrap().mode() & 0o777, 0o600, "gone on at {offset}");
        if offset == 0 {
            let mut read = Vec::new();
            opened_before.read_to_end(&mut read).unwrap();
            assert_eq!(read, there);
        }
        let end = End { size: 7, hash: blake3::hash(b"private").to_hex().to_string() };
        send::conclude(&sender, end, "file").unwrap();
        sender.finish().unwrap();
        serving.join().unwrap().unwrap();
        assert_eq!(std::fs::read(directory.join("file")).unwrap(), b"private");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

/// The first connection is lost while the file goes to the disk, and its sender comes again.
#[test]
fn a_file_that_is_sent_again_while_it_goes_to_the_disk_has_the_mode_it_was_sent_with() {
    obey_permissions();
    let directory = std::env::temp_dir().join(format!("ropeway-cp-again-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    let part = part_of(&target);
    let end = End { size: 5, hash: blake3::hash(b"right").to_hex().to_string() };
    let mode = Some(0o444);
    let offer = Offer { name: "file".into(), size: Some(5), mode, end: Some(end), ..Offer::default() };
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    for opened_late in [true, false] {
        let Part { mut file, there, .. } = open_part(&part, &offer, &options, || {}).unwrap().unwrap();
        assert_eq!(there, 0);
        file.write_all(b"right").unwrap();
        let [sender, receiver] = connect::pair();
        let again = options.clone();
        let serving = || {
            std::thread::spawn(move || {
                obey_permissions();
                serve(receiver, &again, &Writers::default())
            })
        };
        let mut second = None;
        let sync = || {
            sender.send(&Frame::Offer(offer.clone()).to_message()).unwrap();
            second = Some(serving());
            let deadline = Instant::now() + Duration::from_secs(10);
            // It opens it up before it waits for it.
            while file.metadata().unwrap().mode() & 0o777 == 0o444 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        };
        keep(&file, &part, &target, mode, &options, sync).unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, 0o444);
        if opened_late {
            // As if it were opened up only now.
            file.set_permissions(Permissions::from_mode(0o644)).unwrap();
        }
        drop(file);
        assert!(matches!(Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Done)));
        sender.finish().unwrap();
        second.unwrap().join().unwrap().unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, 0o444);
        std::fs::remove_file(&target).unwrap();
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_link_that_leads_nowhere_is_there_as_well_and_a_directory_is_refused_before_it_is_sent() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-taken-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("directory")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", directory.join("link")).unwrap();
    rustix::fs::mknodat(CWD, directory.join("fifo.ropeway-part"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let cases = [
        ("link", false, "link exists there"),
        ("directory", true, "directory is a directory there"),
        ("fifo", true, "not a file"),
        ("esc\x1b]ape", true, "ape.ropeway-part: "),
    ];
    std::fs::create_dir(directory.join("esc\x1b]ape.ropeway-part")).unwrap();
    for (name, force, text) in cases {
        let options =
            Options { directory: directory.clone(), once: true, force, quiet: true, limits: Limits::default() };
        let [sender, receiver] = connect::pair();
        let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
        let offer = Offer { name: name.into(), size: Some(1), ..Offer::default() };
        sender.send(&Frame::Offer(offer).to_message()).unwrap();
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
        assert!(matches!(&answer, Frame::Refused(why) if why.contains(text)), "{name}: {answer:?}");
        drop(sender);
        let said = serving.join().unwrap().unwrap_err().to_string();
        assert!(said.contains(text) && !said.contains('\x1b'), "{said:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A receiver with these limits, into a directory of its own, and how it is reached. It ends with the tests.
fn receiver(what: &str, limits: Limits) -> (PathBuf, Peer) {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-{what}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options = Options { directory: directory.clone(), once: false, force: false, quiet: true, limits };
    let listener = connect::listen(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
    let at = Peer::at(listener.local_addr().unwrap().socket_addr().unwrap());
    std::thread::spawn(move || serve_all(&listener, &options));
    (directory, at)
}

#[test]
fn who_finds_no_place_hears_so_and_tries_again_until_there_is_one() {
    let (directory, to) = receiver("places", Limits { senders: 2, ..Limits::default() });
    let source = directory.with_extension("source");
    std::fs::write(&source, b"contents").unwrap();
    let silent = [to.connect(None, None).unwrap(), to.connect(None, None).unwrap()];
    let send = |patience| {
        let from = send::From { bind: None, node: None, to: to.clone() };
        let options = send::Options { name: None, patience, quiet: true };
        send::run(&[source.display().to_string()], &from, &options)
    };
    let refused = send(Duration::ZERO).unwrap_err();
    assert!(refused.to_string().contains("says: it serves as many senders as it may"), "{refused}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| send(Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!waiting.is_finished(), "there is no place");
        drop(silent);
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(std::fs::read(directory.join(source.file_name().unwrap())).unwrap(), b"contents");
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::remove_file(&source).unwrap();
}

#[test]
fn who_says_nothing_is_dropped_and_keeps_no_name_from_others() {
    let limits = |answer, silence| Limits {
        answer: Duration::from_millis(answer),
        silence: Duration::from_millis(silence),
        ..Limits::default()
    };
    let offer = Offer { name: "file".into(), size: Some(5), ..Offer::default() };
    let from = Frame::From(frame::From { offset: 0 });
    let said = [vec![], vec![Frame::Offer(offer.clone())], vec![Frame::Offer(offer), from]];
    for (words, limits) in said.iter().zip([limits(200, 60_000), limits(200, 60_000), limits(60_000, 200)]) {
        let (directory, to) = receiver("silent", limits);
        let sender = to.connect(None, None).unwrap();
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        for word in words {
            sender.send(&word.to_message()).unwrap();
        }
        // Its connection ends.
        while sender.recv(&mut buffer).unwrap().is_some() {}
        let part = directory.join("file.ropeway-part");
        if !words.is_empty() {
            File::open(part).unwrap().try_lock().unwrap();
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
    // The only one may be as slow as it likes, once it has begun.
    let (directory, sender, serving) = offered("slow", 5);
    sender.send(&Frame::Data(b"right").to_message()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let end = End { size: 5, hash: blake3::hash(b"right").to_hex().to_string() };
    sender.send(&Frame::End(end).to_message()).unwrap();
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    assert!(matches!(Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Done)));
    sender.finish().unwrap();
    serving.join().unwrap().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn who_is_there_and_has_nothing_to_say_keeps_its_file_when_another_sender_wants_it() {
    let (directory, to) = receiver("asked", Limits::default());
    let offer = Offer { name: "file".into(), size: Some(5), asked: true, compared: true, ..Offer::default() };
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let [first, second] = [to.connect(None, None).unwrap(), to.connect(None, None).unwrap()];
    first.send(&Frame::Offer(offer.clone()).to_message()).unwrap();
    assert!(matches!(send::answer(&first, &mut buffer), Ok(Frame::Have(_))));
    first.send(&Frame::From(frame::From { offset: 0 }).to_message()).unwrap();
    second.send(&Frame::Offer(offer).to_message()).unwrap();
    assert!(matches!(Frame::parse(first.recv(&mut buffer).unwrap().unwrap()), Ok(Frame::Ask)));
    std::thread::sleep(Duration::from_millis(2500));
    first.send(&Frame::Data(b"right").to_message()).unwrap();
    let end = End { size: 5, hash: blake3::hash(b"right").to_hex().to_string() };
    send::conclude(&first, end, "file").unwrap();
    let answer = send::answer(&second, &mut buffer).unwrap();
    assert!(matches!(&answer, Frame::Exists), "{answer:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn who_comes_again_while_its_lost_connection_still_has_the_file_goes_on_when_that_is_free() {
    let limits = Limits { lock: Duration::from_millis(200), ..Limits::default() };
    let (directory, to) = receiver("again-later", limits.clone());
    let source = directory.with_extension("source");
    std::fs::write(&source, b"contents").unwrap();
    let name = source.file_name().unwrap().to_str().unwrap();
    let part = part_of(&directory.join(name));
    std::fs::write(&part, b"cont").unwrap();
    let options = Options { directory: directory.clone(), once: false, force: false, quiet: true, limits };
    let offer =
        Offer { name: name.into(), size: Some(8), mode: Some(0o600), asked: true, compared: true, ..Offer::default() };
    let held = open_part(&part, &offer, &options, || {}).unwrap().unwrap();
    let send = || {
        let from = send::From { bind: None, node: None, to: to.clone() };
        let options = send::Options { name: None, patience: Duration::from_secs(60), quiet: true };
        send::run(&[source.display().to_string()], &from, &options)
    };
    std::thread::scope(|scope| {
        let again = scope.spawn(send);
        std::thread::sleep(Duration::from_secs(1));
        assert!(!again.is_finished(), "it is not free");
        drop(held);
        again.join().unwrap().unwrap();
    });
    assert_eq!(std::fs::read(directory.join(name)).unwrap(), b"contents");
    std::fs::remove_file(directory.join(name)).unwrap();
    // Who is there has more to send.
    let first = to.connect(None, None).unwrap();
    assert!(matches!(send::offer(&first, offer), Ok(send::Answer::Have(_))));
    let refused = send().unwrap_err();
    assert!(matches!(&refused, CpError::Refused(why) if why.contains("another sender is writing")), "{refused}");
    drop(first);
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::remove_file(&source).unwrap();
}

#[test]
fn what_is_there_is_not_hashed_for_a_sender_that_is_gone() {
    let path = std::env::temp_dir().join(format!("ropeway-cp-gone-{}", std::process::id()));
    std::fs::write(&path, b"12345").unwrap();
    let [sender, receiver] = connect::pair();
    drop(sender);
    assert!(receiver.recv(&mut [0; 8]).map_or(true, |message| message.is_none()));
    let hashed = hash(&mut File::open(&path).unwrap(), &path, 5, &mut blake3::Hasher::new(), Some(&receiver));
    assert!(matches!(hashed, Err(CpError::Lost(_))), "{hashed:?}");
    std::fs::remove_file(&path).unwrap();
}

/// One that knows no more than its name and its size.
#[test]
fn a_file_is_not_compared_for_a_sender_that_is_gone() {
    const BYTES: u64 = 100 << 30;
    let directory = std::env::temp_dir().join(format!("ropeway-cp-left-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    File::create(directory.join("file")).unwrap().set_len(BYTES).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let [sender, receiver] = connect::pair();
    let end = Some(End { size: BYTES, hash: "0".into() });
    let offer = Offer { name: "file".into(), size: Some(BYTES), end, ..Offer::default() };
    sender.send(&Frame::Offer(offer).to_message()).unwrap();
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(serve(receiver, &options, &Writers::default())));
    sender.finish().unwrap();
    let ended = ended.recv_timeout(Duration::from_secs(10)).expect("it ends at once");
    assert!(matches!(ended, Err(CpError::Lost(_))), "{ended:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_sender_that_knows_of_no_comparison_hears_that_the_file_exists() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-before-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    std::fs::write(directory.join("file"), b"there").unwrap();
    let [sender, receiver] = connect::pair();
    let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
    sender.send(br#"O{"name":"file","size":5,"mode":null,"asked":true}"#).unwrap();
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let answer = Frame::parse(sender.recv(&mut buffer).unwrap().unwrap()).unwrap();
    assert!(matches!(&answer, Frame::Refused(why) if why.contains("file exists there")), "{answer:?}");
    drop(sender);
    serving.join().unwrap().unwrap_err();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_that_was_compared_and_not_sent_keeps_the_mode_that_it_has_got_since() {
    let directory = std::env::temp_dir().join(format!("ropeway-cp-since-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    std::fs::write(&target, b"there").unwrap();
    std::fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
    let [sender, receiver] = connect::pair();
    let serving = std::thread::spawn(move || serve(receiver, &options, &Writers::default()));
    let offer = Offer { name: "file".into(), size: Some(5), mode: Some(0o444), compared: true, ..Offer::default() };
    assert!(matches!(send::offer(&sender, offer.clone()), Ok(send::Answer::Exists)));
    let end = Some(End { size: 5, hash: blake3::hash(b"there").to_hex().to_string() });
    assert!(matches!(send::offer(&sender, Offer { end, ..offer }), Ok(send::Answer::Done)));
    sender.finish().unwrap();
    serving.join().unwrap().unwrap();
    assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, 0o644);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_file_that_the_receiver_may_not_read_is_there_all_the_same() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make a file of another user");
        return;
    }
    let directory = std::env::temp_dir().join(format!("ropeway-cp-theirs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let target = directory.join("file");
    std::fs::write(&target, b"theirs").unwrap();
    std::fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&target, Some(1), Some(1)).unwrap();
    let [sender, receiver] = connect::pair();
    let serving = std::thread::spawn(move || {
        obey_permissions();
        serve(receiver, &options, &Writers::default())
    });
    let end = Some(End { size: 6, hash: blake3::hash(b"theirs").to_hex().to_string() });
    let offer = Offer { name: "file".into(), size: Some(6), compared: true, end, ..Offer::default() };
    let answer = send::offer(&sender, offer);
    assert!(matches!(&answer, Err(CpError::Refused(why)) if why.contains("file exists there")), "{:?}", answer.err());
    drop(sender);
    serving.join().unwrap().unwrap_err();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_part_is_kept_where_it_cannot_be_found_out_whose_files_are_made_there() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make a file of another user");
        return;
    }
    obey_permissions();
    let directory = std::env::temp_dir().join(format!("ropeway-cp-probe-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let options =
        Options { directory: directory.clone(), once: true, force: false, quiet: true, limits: Limits::default() };
    let part = part_of(&directory.join("file"));
    std::fs::write(&part, b"12345").unwrap();
    std::fs::set_permissions(&part, Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::chown(&part, Some(1), Some(1)).unwrap();
    let offer = Offer { name: "file".into(), size: Some(4), ..Offer::default() };
    let open = || open_part(&part, &offer, &options, || {});
    std::fs::set_permissions(&directory, Permissions::from_mode(0o555)).unwrap();
    assert_eq!(open().err().map(|error| error.kind()), Some(io::ErrorKind::PermissionDenied));
    assert_eq!(std::fs::read(&part).unwrap(), b"12345");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    // Names that others have are no failure.
    for number in 0..100 {
        std::fs::write(part_of(&directory.join(format!(".owner-{}-{number}", std::process::id()))), b"").unwrap();
    }
    let opened = open().unwrap().unwrap();
    assert!(opened.is_exposed && opened.there == 0, "it is another user's");
    std::fs::remove_dir_all(&directory).unwrap();
}
