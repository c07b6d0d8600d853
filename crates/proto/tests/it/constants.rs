//! The tunables stand in docs/protocol.md, section 10, as the code has them.

use ropeway_proto::Config;
use ropeway_proto::config::{TUNABLES, Tunable};

fn table() -> String {
    let config = Config::default();
    let mut text =
        String::from("| name | default | unit | range | what it does | what it costs |\n|---|---|---|---|---|---|\n");
    for tunable in TUNABLES {
        let Tunable { name, unit, words, least, most, about, cost, .. } = tunable;
        let value = config.get_text(name).unwrap();
        let range = if words.is_empty() { format!("{least} to {most}") } else { words.join(", ") };
        let unit = if unit.is_empty() { "-" } else { unit };
        text += &format!("| `{name}` | {value} | {unit} | {range} | {about} | {cost} |\n");
    }
    text
}

#[test]
fn the_specification_lists_every_tunable_with_its_default_and_range() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(&table()), "section 10 of docs/protocol.md must hold:\n{}", table());
}
