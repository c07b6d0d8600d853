//! The sides of a comparison, as they are named on a command line: `A B`, `FILE:transport FILE:transport`, or `FILE transport transport`.

use std::path::Path;

use super::read::{self, ReadError, Results};

/// One side: some runs, perhaps of one transport only.
#[derive(Debug, Clone)]
pub struct Selected {
    /// For headings.
    pub name: String,
    pub results: Vec<Results>,
    /// Only this transport; both sides have one, or neither.
    pub transport: Option<String>,
}

/// Why the sides could not be found.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("give two files or directories, or one and two of its transports")]
    Number,
    #[error("{file} has no transport {transport}; it has: {known}")]
    NoTransport { file: String, transport: String, known: String },
    #[error("{file} has several transports ({known}): say which with {file}:TRANSPORT")]
    Ambiguous { file: String, known: String },
}

/// The two sides that the arguments name.
pub fn sides(names: &[String]) -> Result<(Selected, Selected), SelectError> {
    match names {
        [a, b] => {
            let (mut a, mut b) = (side(a)?, side(b)?);
            if a.transport.is_some() || b.transport.is_some() {
                only_transport(&mut a)?;
                only_transport(&mut b)?;
            }
            Ok((a, b))
        }
        [file, a, b] => {
            let all = read::read(Path::new(file))?;
            let of = |transport: &String| Selected {
                name: transport.clone(),
                results: all.clone(),
                transport: Some(transport.clone()),
            };
            let (a, b) = (of(a), of(b));
            known(&a, file)?;
            known(&b, file)?;
            Ok((a, b))
        }
        _ => Err(SelectError::Number),
    }
}

fn side(name: &str) -> Result<Selected, SelectError> {
    // A file whose name has a colon is meant as it is.
    let split = if Path::new(name).exists() { None } else { name.rsplit_once(':') };
    let Some((file, transport)) = split else {
        return Ok(Selected { name: name.into(), results: read::read(Path::new(name))?, transport: None });
    };
    let results = read::read(Path::new(file))?;
    let selected = Selected { name: name.into(), results, transport: Some(transport.into()) };
    known(&selected, file)?;
    Ok(selected)
}

/// Names the one transport of a side for which none was given.
fn only_transport(side: &mut Selected) -> Result<(), SelectError> {
    if side.transport.is_none() {
        let transports = transports(&side.results);
        let [only] = &transports[..] else {
            return Err(SelectError::Ambiguous { file: side.name.clone(), known: transports.join(", ") });
        };
        side.transport = Some(only.clone());
    }
    Ok(())
}

fn known(side: &Selected, file: &str) -> Result<(), SelectError> {
    let transports = transports(&side.results);
    match &side.transport {
        Some(transport) if !transports.contains(transport) => {
            let (file, transport, known) = (file.into(), transport.clone(), transports.join(", "));
            Err(SelectError::NoTransport { file, transport, known })
        }
        _ => Ok(()),
    }
}

/// The transports of some runs, by name, with those that only failed.
pub fn transports(results: &[Results]) -> Vec<String> {
    let cases = results.iter().flat_map(|results| {
        results.measured.iter().map(|measured| &measured.case).chain(results.failed.iter().map(|failed| &failed.case))
    });
    let mut names: Vec<String> = cases.map(|case| case.transport.clone()).collect();
    names.sort();
    names.dedup();
    names
}
