//! The manual pages: they name every call and option of the headers, and are well-formed.

use ropeway_testkit::env::workspace_root;
use ropeway_testkit::need_program;
use ropeway_testkit::proc::command;

const PAGES: [(&str, &str, &str); 2] = [("ropeway", "ropeway.h", "ropeway_"), ("cdp", "cdp.h", "cdp_")];

fn page(name: &str) -> String {
    workspace_root().join(format!("docs/man/{name}.3")).to_str().expect("UTF-8").into()
}

/// The words of a header that begin like this.
fn words(header: &str, prefix: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace_root().join("crates/capi/include").join(header)).expect("there");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(prefix) && word.len() > prefix.len()).map(String::from).collect()
}

#[test]
fn every_call_and_option_is_there() {
    for (name, header, prefix) in PAGES {
        let text = std::fs::read_to_string(page(name)).expect("readable").replace('\\', "");
        let options = words(header, "ROPEWAY_");
        let calls = words(header, prefix);
        assert!(calls.len() > 5);
        // The number of an address family, and the guard of the header.
        for word in
            calls.iter().chain(&options).filter(|word| !["ROPEWAY_H", "ROPEWAY_AF_ETHER"].contains(&word.as_str()))
        {
            assert!(text.contains(word.as_str()), "{name}.3 does not say what {word} is");
        }
    }
}

/// Those between the fences of a page.
fn blocks_of_c(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    for rest in page.split("```c\n").skip(1) {
        blocks.push(rest.split("```").next().unwrap_or_default().to_owned());
    }
    blocks
}

#[test]
fn the_programs_of_the_page_compile() {
    let text = std::fs::read_to_string(workspace_root().join("docs/api.md")).expect("readable");
    let dir = tempfile::tempdir().expect("a directory");
    let blocks = blocks_of_c(&text);
    assert!(!blocks.is_empty());
    for block in blocks {
        let source = dir.path().join("page.c");
        std::fs::write(&source, block).expect("written");
        let mut cc = command("cc", ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
        cc.arg(workspace_root().join("crates/capi/include")).arg(&source);
        let output = cc.output().expect("cc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn groff_has_nothing_to_complain_about() {
    need_program!("groff");
    for (name, ..) in PAGES {
        let output = command("groff", ["-man", "-ww", "-z", "-Tutf8", &page(name)]).output().expect("groff runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
