//! A rank's own side: it does what the coordinator says until that says goodbye or is gone.

use std::io::{self, BufRead, Write};

use super::control::{Hello, Order, Reply, hear, say};
use crate::Failure;
use crate::machine;
use crate::pattern::{self, Trial};
use crate::transport::kind::{self, Pending, Setting, Visitor};
use crate::transport::{Transport, monotonic_ns};

/// Serves as a rank that opens its transport by name. Returns when it is told to end, or when the input ends.
/// `devices`: it tells what this host's network devices do in place of the processor. `rank`: its number, if something else than the coordinator has given it one.
pub fn serve(input: impl BufRead, output: impl Write, devices: bool, rank: Option<usize>) -> io::Result<()> {
    let hello = Hello { host: Some(machine::describe(devices)), rank, ..Hello::plain() };
    serve_with(ByName(None), hello, input, output)
}

/// Serves as a rank whose transport is there already: a thread among threads.
pub fn serve_open<T: Transport>(transport: T, input: impl BufRead, output: impl Write) -> io::Result<()> {
    serve_with(Open(transport), Hello::plain(), input, output)
}

/// How a rank comes to its transport.
trait Opener {
    /// Makes the end points and returns the address.
    fn listen(&mut self, setting: &Setting) -> Result<String, Failure>;
    fn connect<V: Visitor>(self, setting: &Setting, addresses: &[String], visitor: V) -> Result<V::Output, Failure>;
}

struct ByName(Option<Pending>);

impl Opener for ByName {
    fn listen(&mut self, setting: &Setting) -> Result<String, Failure> {
        Ok(self.0.insert(kind::listen(setting)?).address().to_owned())
    }

    fn connect<V: Visitor>(self, setting: &Setting, addresses: &[String], visitor: V) -> Result<V::Output, Failure> {
        let pending = self.0.ok_or_else(|| Failure::Unsupported("told to connect before it listens".to_owned()))?;
        pending.connect(setting, addresses, visitor)
    }
}

struct Open<T>(T);

impl<T: Transport> Opener for Open<T> {
    fn listen(&mut self, _setting: &Setting) -> Result<String, Failure> {
        Ok(String::new())
    }

    fn connect<V: Visitor>(self, _setting: &Setting, _addresses: &[String], visitor: V) -> Result<V::Output, Failure> {
        Ok(visitor.visit(self.0))
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
                let working = Working { input: &mut input, output: &mut output };
                return match opener.connect(&setting, &addresses, working) {
                    Ok(worked) => worked,
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

/// A rank with its transport open.
struct Working<'a, I, O> {
    input: &'a mut I,
    output: &'a mut O,
}

impl<I: BufRead, O: Write> Visitor for Working<'_, I, O> {
    type Output = io::Result<()>;

    fn visit<T: Transport>(self, mut transport: T) -> io::Result<()> {
        say(self.output, &Reply::Ready)?;
        loop {
            let reply = match hear(self.input)? {
                None | Some(Order::Bye) => return Ok(()),
                Some(Order::Clock) => Reply::Clock { ns: monotonic_ns() },
                Some(Order::Trial(trial)) => measure(&mut transport, &trial),
                Some(Order::Open { .. } | Order::Connect { .. }) => return Err(out_of_turn()),
            };
            say(self.output, &reply)?;
        }
    }
}

fn measure<T: Transport>(transport: &mut T, trial: &Trial) -> Reply {
    let most = transport.largest_message();
    if trial.size > most {
        let name = transport.name();
        let reason = format!("a message of {name} has at most {most} bytes, not {}", trial.size);
        return Reply::Failed { reason, refused: true };
    }
    match pattern::run(transport, trial) {
        Ok(series) => Reply::Measured { series },
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> Reply {
    Reply::Failed { reason: failure.to_string(), refused: matches!(failure, Failure::Unsupported(_)) }
}
