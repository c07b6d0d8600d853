//! What the engines of this network namespace tell about themselves.

use ropeway_engine::control::{self, Answer, Question};
use std::io;

/// One line with a JSON array, an element for each engine.
pub fn print() -> io::Result<()> {
    let mut engines = Vec::new();
    for name in control::names()? {
        // One that was stopped does not answer, and one that ended is gone.
        if let Ok(Answer::Shown(shown)) = control::ask(&name, &Question::Show) {
            engines.push(shown);
        }
    }
    println!("{}", serde_json::to_string(&engines)?);
    Ok(())
}
