//! Who may have read a key file, and what is said when it cannot be used.

use ropeway_engine::ClusterKey;
use ropeway_engine::key_file::{Choice, KeyError, read};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

const DIGITS: &str = "6f1d2c3b4a59687786950a1b2c3d4e5f60718293a4b5c6d7e8f9000112233445";

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory of one's own")
}

fn file(directory: &Path, text: &[u8], mode: u32) -> PathBuf {
    let path = directory.join("key");
    let _ = fs::remove_file(&path);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// The sentence that a user sees.
fn refusal(path: &Path) -> (KeyError, String) {
    let error = read(path).expect_err("a file that cannot be used");
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "the sentence does not name the file: {text}");
    assert!(!text.contains(&DIGITS[..8]), "the sentence shows the key: {text}");
    (error, text)
}

#[test]
fn a_file_of_its_owner_alone_is_read_through_a_link_too() {
    let directory = directory();
    for mode in [0o600, 0o400] {
        let path = file(directory.path(), format!("# ours\n{DIGITS}\n").as_bytes(), mode);
        assert_eq!(*read(&path).unwrap().first().line(), DIGITS);
        let link = directory.path().join("link");
        let _ = fs::remove_file(&link);
        symlink(&path, &link).unwrap();
        assert!(read(&link).is_ok());
    }
}

#[test]
fn whatever_others_may_do_with_the_file_is_too_much() {
    let directory = directory();
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777] {
        let path = file(directory.path(), DIGITS.as_bytes(), mode);
        let (error, text) = refusal(&path);
        assert!(matches!(error, KeyError::Permissions { mode: said, .. } if said == mode), "{error:?}");
        assert!(text.contains(&format!("{mode:04o}")) && text.contains("chmod 600"), "{text}");
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    // Nobody else can give a file away.
    ropeway_testkit::need_root!();
    let directory = directory();
    let path = file(directory.path(), DIGITS.as_bytes(), 0o600);
    chown(&path, Some(12_345), None).unwrap();
    let (error, text) = refusal(&path);
    assert!(matches!(error, KeyError::Owner { owner: 12_345, .. }), "{error:?}");
    assert!(text.contains("12345"), "{text}");
}

#[test]
fn what_is_no_key_file_is_refused_and_not_waited_for() {
    let directory = directory();
    assert!(matches!(refusal(&directory.path().join("nothing")).0, KeyError::Read { .. }));
    assert!(matches!(refusal(directory.path()).0, KeyError::NotAFile { .. } | KeyError::Read { .. }));
    let pipe = directory.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(refusal(&pipe).0, KeyError::NotAFile { .. }));
    let path = file(directory.path(), &[b'#'; 20_000], 0o600);
    assert!(matches!(refusal(&path).0, KeyError::TooLong { .. }));
    let path = file(directory.path(), &[0xff, 0xfe, b'\n'], 0o600);
    assert!(matches!(refusal(&path).0, KeyError::NotText { .. }));
    let path = file(directory.path(), format!("{DIGITS}\n{}\n", &DIGITS[1..]).as_bytes(), 0o600);
    let (error, text) = refusal(&path);
    assert!(matches!(error, KeyError::Content { .. }) && text.contains("line 2"), "{text}");
}

#[test]
fn a_choice_says_what_was_decided() {
    let directory = directory();
    let path = file(directory.path(), ClusterKey::new(std::array::from_fn(|at| at as u8)).line().as_bytes(), 0o600);
    assert!(Choice::File(path).load().unwrap().is_some());
    assert!(Choice::Trusted.load().unwrap().is_none());
    assert!(Choice::File(directory.path().join("nothing")).load().is_err());
}
