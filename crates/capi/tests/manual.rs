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

#[test]
fn groff_has_nothing_to_complain_about() {
    need_program!("groff");
    for (name, ..) in PAGES {
        let output = command("groff", ["-man", "-ww", "-z", "-Tutf8", &page(name)]).output().expect("groff runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
