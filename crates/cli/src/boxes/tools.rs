//! Runs `ip` and `tc` of iproute2: batches of changes, and questions answered in JSON.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde::de::DeserializeOwned;

use super::error::{Error, Result};
use super::names::Namespace;

/// A program of iproute2.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    Ip,
    Tc,
}

impl Tool {
    pub const ALL: [Tool; 2] = [Tool::Ip, Tool::Tc];
    const PACKAGE: &str = "iproute2";

    fn name(self) -> &'static str {
        match self {
            Tool::Ip => "ip",
            Tool::Tc => "tc",
        }
    }

    /// Where it is. Debian keeps it in sbin, which is not in everybody's PATH.
    pub fn path(self) -> Result<PathBuf> {
        let found = find_program(OsStr::new(self.name()), &["/usr/sbin", "/sbin"]);
        found.ok_or(Error::NoProgram { program: self.name(), package: Self::PACKAGE })
    }
}

/// A program in PATH, or in one of some more directories.
pub fn find_program(name: &OsStr, more: &[&str]) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(more.iter().map(PathBuf::from));
    let is_program =
        |file: &PathBuf| file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    dirs.map(|dir| dir.join(name)).find(is_program)
}

/// Makes all these changes, in their order, until one fails.
pub fn batch(tool: Tool, inside: Option<&Namespace>, lines: &[String]) -> Result<()> {
    ask_batch(tool, inside, &[], lines).map(drop)
}

/// Asks one question and reads the answer.
pub fn ask<T: DeserializeOwned>(tool: Tool, inside: &Namespace, args: &[&str]) -> Result<T> {
    let mut command = command(tool, Some(inside))?;
    let output = command.arg("-json").args(args).stdin(Stdio::null()).output();
    let output = output.map_err(Error::system(format!("run {}", tool.name())))?;
    let line = format!("{} {}", tool.name(), args.join(" "));
    if !output.status.success() {
        return Err(failed(line, &output));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| Error::Unclear { command: line, why: e.to_string() })
}

/// Asks questions, one a line, and reads their answers, one each, in their order.
pub fn ask_all<T: DeserializeOwned>(tool: Tool, inside: &Namespace, lines: &[String]) -> Result<Vec<T>> {
    let output = ask_batch(tool, Some(inside), &["-json"], lines)?;
    let unclear = |why: String| Error::Unclear { command: format!("{} -batch", tool.name()), why };
    let answers: std::result::Result<Vec<T>, _> = serde_json::Deserializer::from_slice(&output).into_iter().collect();
    let answers = answers.map_err(|e| unclear(e.to_string()))?;
    if answers.len() != lines.len() {
        return Err(unclear(format!("{} answers to {} questions", answers.len(), lines.len())));
    }
    Ok(answers)
}

fn ask_batch(tool: Tool, inside: Option<&Namespace>, options: &[&str], lines: &[String]) -> Result<Vec<u8>> {
    let what = || format!("run {}", tool.name());
    let mut command = command(tool, inside)?;
    command.args(options).args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Error::system(what()))?;
    let text = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>();
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // It may answer before it has read everything. One that stopped at a wrong line says so when it ends.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(text.as_bytes())));
        child.wait_with_output()
    });
    let output = output.map_err(Error::system(what()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let number: Option<usize> = said.rsplit_once("Command failed -:").and_then(|(_, n)| n.trim().parse().ok());
    let line = number.and_then(|n| lines.get(n.checked_sub(1)?)).map_or("-batch", String::as_str);
    Err(failed(format!("{} {line}", tool.name()), &output))
}

fn command(tool: Tool, inside: Option<&Namespace>) -> Result<Command> {
    let mut command = Command::new(tool.path()?);
    if let Some(namespace) = inside {
        command.args(["-netns", namespace.name()]);
    }
    // Its messages are looked at, so they had better be in one language.
    command.env("LC_ALL", "C");
    Ok(command)
}

/// What kernels without a needed part say, in the words of several versions of iproute2.
const MISSING_PART: [&str; 5] =
    ["Unknown device type", "qdisc kind is unknown", "classifier not found", "load module", "Operation not supported"];

fn failed(command: String, output: &Output) -> Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().filter(|line| !line.starts_with("Command failed -:") && !line.trim().is_empty());
    let said = lines.collect::<Vec<_>>().join("; ");
    let hint = if MISSING_PART.iter().any(|part| said.contains(part)) {
        "; a box needs a kernel with VETH, NET_SCH_TBF, NET_SCH_INGRESS, NET_CLS_U32, NET_CLS_BPF and NET_ACT_MIRRED"
    } else {
        ""
    };
    let said = if said.is_empty() { output.status.to_string() } else { said };
    Error::Tool { command, said, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_missing_part_of_the_kernel_is_named() {
        let output = |said: &str| Output {
            status: ExitStatus::from_raw(2 << 8),
            stdout: Vec::new(),
            stderr: said.as_bytes().to_vec(),
        };
        let error = failed("tc x".into(), &output("Error: TC classifier not found.\nCommand failed -:3\n")).to_string();
        assert!(error.contains("`tc x` failed: Error: TC classifier not found.; a box needs"), "{error}");
        let error = failed("ip x".into(), &output("RTNETLINK answers: File exists\n")).to_string();
        assert_eq!(error, "`ip x` failed: RTNETLINK answers: File exists");
        assert!(failed("ip x".into(), &output("")).to_string().contains("exit status: 2"));
    }

    #[test]
    fn a_program_is_found_in_the_path_or_beside_it() {
        assert!(find_program(OsStr::new("sh"), &[]).is_some());
        assert_eq!(find_program(OsStr::new("no-such-program"), &["/usr/sbin"]), None);
    }
}
