//! The few facts of an ELF file that decide whether a library can be preloaded into it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// `#!`: interpreter and its one argument.
    Script {
        interpreter: String,
        argument: Option<String>,
    },
    Elf(Elf),
    /// Neither: the kernel will not run it (a shell may, as a script of its own).
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    /// 64-bit x86, what the preload is built for.
    pub x86_64: bool,
    /// The dynamic linker it asks for; `None` = statically linked.
    pub interpreter: Option<String>,
    /// Built by the Go tool chain, whose programs make system calls without the C library.
    pub go: bool,
}

const ELF64_HEADER: usize = 64;
const EM_X86_64: u16 = 62;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// What the kernel reads of a script's first line.
const SCRIPT_LINE: usize = 256;
/// Bounds on what is read of headers that may hold anything.
const MAX_SEGMENTS: u16 = 128;
const MAX_NOTE_BYTES: u64 = 64 * 1024;
const MAX_PATH_BYTES: u64 = 4096;

pub fn examine(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let mut head = [0u8; SCRIPT_LINE];
    let n = read_up_to(&file, &mut head, 0)?;
    let head = &head[..n];
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or(&[]);
        let line = String::from_utf8_lossy(line);
        // As the kernel has it, to which a carriage return is part of a name.
        let blanks = [' ', '\t'];
        let line = line.trim_matches(blanks);
        let (interpreter, argument) = match line.split_once(blanks) {
            Some((interpreter, argument)) => (interpreter, Some(argument.trim_matches(blanks).to_owned())),
            None => (line, None),
        };
        return Ok(Kind::Script { interpreter: interpreter.to_owned(), argument });
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(Kind::Other);
    }
    let little_64 = head.get(4..6) == Some(&[2, 1]);
    let machine = u16_at(head, 18).unwrap_or(0);
    if !little_64 || machine != EM_X86_64 || n < ELF64_HEADER {
        return Ok(Kind::Elf(Elf { x86_64: false, interpreter: None, go: false }));
    }
    let mut elf = Elf { x86_64: true, interpreter: None, go: false };
    let table = u64_at(head, 32).unwrap_or(0);
    let entry_bytes = u64::from(u16_at(head, 54).unwrap_or(0));
    let entries = u16_at(head, 56).unwrap_or(0).min(MAX_SEGMENTS);
    for i in 0..u64::from(entries) {
        let mut entry = [0u8; 56];
        let at = table.saturating_add(i * entry_bytes);
        if read_up_to(&file, &mut entry, at)? < entry.len() {
            break;
        }
        let (offset, bytes) = (u64_at(&entry, 8).unwrap_or(0), u64_at(&entry, 32).unwrap_or(0));
        match u32_at(&entry, 0) {
            Some(PT_INTERP) => {
                let text = segment(&file, offset, bytes.min(MAX_PATH_BYTES))?;
                let text = text.split(|b| *b == 0).next().unwrap_or(&[]);
                elf.interpreter = Some(String::from_utf8_lossy(text).into_owned());
            }
            // The note that holds the Go build id is named "Go".
            Some(PT_NOTE) => {
                let notes = segment(&file, offset, bytes.min(MAX_NOTE_BYTES))?;
                elf.go |= notes.windows(8).any(|w| w == b"\x04\0\0\0Go\0\0");
            }
            _ => {}
        }
    }
    Ok(Kind::Elf(elf))
}

fn segment(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes as usize];
    let n = read_up_to(file, &mut data, offset)?;
    data.truncate(n);
    Ok(data)
}

fn read_up_to(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match file.read_at(&mut buf[n..], offset.saturating_add(n as u64)) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // An offset beyond what a file can have.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examine_bytes(name: &str, bytes: &[u8]) -> Kind {
        let path = std::env::temp_dir().join(format!("ropeway-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let kind = examine(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        kind
    }

    #[test]
    fn this_test_is_a_dynamic_program() {
        let Kind::Elf(elf) = examine(&std::env::current_exe().unwrap()).unwrap() else { panic!() };
        assert!(elf.x86_64 && !elf.go && elf.interpreter.unwrap().contains("ld-linux-x86-64"));
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let script = |text: &str| examine_bytes("script", text.as_bytes());
        let expected =
            |i: &str, a: Option<&str>| Kind::Script { interpreter: i.into(), argument: a.map(str::to_owned) };
        assert_eq!(script("#!/bin/sh\necho"), expected("/bin/sh", None));
        assert_eq!(script("#! /usr/bin/env  python3 \n"), expected("/usr/bin/env", Some("python3")));
        assert_eq!(script("#!/bin/sh\r\n"), expected("/bin/sh\r", None));
        assert_eq!(script("echo"), Kind::Other);
        assert_eq!(script(""), Kind::Other);
    }

    #[test]
    fn damaged_headers_are_read_without_harm() {
        let mut whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        whole.truncate(4096);
        for n in 4..200 {
            assert!(matches!(examine_bytes("cut", &whole[..n]), Kind::Elf(_)));
        }
        for at in 4..1200 {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            assert!(matches!(examine_bytes("flip", &bytes), Kind::Elf(_)));
        }
    }
}
