//! A rank's own side: it does what the coordinator says until that says goodbye or is gone.

use std::io::{self, BufRead, Write};

use super::control::{Hello, Order, Reply, hear, say};
use crate::Failure;
use crate::machine;
use crate::pattern;
use crate::transport::kind::{self, Pending, Setting};
use crate::transport::{Transport, monotonic_ns};

/// Serves as a rank that opens its transport by name. Returns when it is told to end, or when the input ends.
/// `devices`: it tells what this host's network devices do in place of the processor. `rank`: its number, if something else than the coordinator has given it one.
pub fn serve(input: impl BufRead, output: impl Write, devices: bool, rank: Option<usize>) -> io::Result<()> {
    let hello = Hello { host: Some(machine::describe(devices)), rank, ..Hello::plain() };
    serve_with(ByName(None), hello, input, output)
}

/// Serves as a rank whose transport is there already: a thread among threads.
pub fn serve_open(transport: Box<dyn Transport>, input: impl BufRead, output: impl Write) -> io::Result<()> {
    serve_with(Open(transport), Hello::plain(), input, output)
}

/// How a rank comes to its transport.
trait Opener {
    /// Makes the end points and returns the address.
    fn listen(&mut self, setting: &Setting) -> Result<String, Failure>;
    fn connect(self, setting: &Setting, addresses: &[String]) -> Result<Box<dyn Transport>, Failure>;
}

struct ByName(Option<Pending>);

impl Opener for ByName {
    fn listen(&mut self, setting: &Setting) -> Result<String, Failure> {
        Ok(self.0.insert(kind::listen(setting)?).address().to_owned())
    }

    fn connect(self, setting: &Setting, addresses: &[String]) -> Result<Box<dyn Transport>, Failure> {
        let pending = self.0.ok_or_else(|| Failure::Unsupported("told to connect before it listens".to_owned()))?;
        pending.connect(setting, addresses)
    }
}

struct Open(Box<dyn Transport>);

impl Opener for Open {
    fn listen(&mut self, _setting: &Setting) -> Result<String, Failure> {
        Ok(String::new())
    }

    fn connect(self, _setting: &Setting, _addresses: &[String]) -> Result<Box<dyn Transport>, Failure> {
        Ok(self.0)
    }
}

fn serve_with(
    mut opener: impl Opener,
    hello: Hello,
    mut input: impl BufRead,
    mut output: impl Write,
) -> io::Result<()> {
    say(&mut output, &Reply::Hello(Box::new(hello)))?;
    let mut opened: Option<Setting> = None;
    loop {
        let reply = match hear(&mut input)? {
            None | Some(Order::Bye) => return Ok(()),
            Some(Order::Clock) => Reply::Clock { ns: monotonic_ns() },
            Some(Order::Open { setting, cpu }) => match open(&mut opener, &setting, cpu) {
                Ok(address) => {
                    opened = Some(setting);
                    Reply::Listening { address }
                }
                Err(reason) => Reply::Failed { reason, refused: false },
            },
            Some(Order::Connect { addresses }) => {
                let Some(setting) = opened else { return Err(out_of_turn()) };
                return match opener.connect(&setting, &addresses) {
                    Ok(mut transport) => work(&mut *transport, input, output),
                    Err(failure) => say(&mut output, &failed(&failure)),
                };
            }
            Some(Order::Trial(_)) => return Err(out_of_turn()),
        };
        say(&mut output, &reply)?;
    }
}

fn out_of_turn() -> io::Error {
    io::Error::other("the coordinator gave an order out of its turn")
}

fn open(opener: &mut impl Opener, setting: &Setting, cpu: Option<usize>) -> Result<String, String> {
    if let Some(cpu) = cpu {
        machine::pin(cpu)?;
    }
    opener.listen(setting).map_err(|failure| failure.to_string())
}

/// Does the trials of a rank whose transport is open.
fn work(transport: &mut dyn Transport, mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    say(&mut output, &Reply::Ready)?;
    loop {
        let reply = match hear(&mut input)? {
            None | Some(Order::Bye) => return Ok(()),
            Some(Order::Clock) => Reply::Clock { ns: monotonic_ns() },
            Some(Order::Trial(trial)) => {
                let measured = pattern::run(transport, &trial);
                measured.map_or_else(|failure| failed(&failure), |series| Reply::Measured { series })
            }
            Some(Order::Open { .. } | Order::Connect { .. }) => return Err(out_of_turn()),
        };
        say(&mut output, &reply)?;
    }
}

fn failed(failure: &Failure) -> Reply {
    Reply::Failed { reason: failure.to_string(), refused: matches!(failure, Failure::Unsupported(_)) }
}
