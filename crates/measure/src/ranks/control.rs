//! What the coordinator and the ranks say to each other: lines of JSON, over pipes or a socket.
//!
//! ```text
//! rank                                    coordinator
//! hello (version, machine)         ->
//!                                  <-     clock                   some times, where there are several hosts
//! clock                            ->
//!                                  <-     open (transport, rank)
//! listening (own address)          ->
//!                                  <-     connect (all addresses)
//! ready                            ->
//!                                  <-     trial                   for each trial
//! measured, or failed              ->
//!                                  <-     bye                     or the end of the input
//! ```

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::pattern::Trial;
use crate::record::{Host, Series};
use crate::transport::kind::Setting;

/// Goes up when the messages change their meaning.
pub const CONTROL: u32 = 1;

/// Longest line: the samples of a trial are far less.
pub const LONGEST_LINE_BYTES: usize = 256 << 20;

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    Clock,
    Open {
        #[serde(flatten)]
        setting: Setting,
        /// The processor to be bound to.
        cpu: Option<usize>,
    },
    /// Addresses of all ranks, in their order.
    Connect {
        addresses: Vec<String>,
    },
    Trial(Trial),
    Bye,
}

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    Hello(Box<Hello>),
    Clock {
        ns: u64,
    },
    Listening {
        address: String,
    },
    Ready,
    Measured {
        series: Vec<Series>,
    },
    /// `refused`: nothing was begun, and the rank is as good as before.
    Failed {
        reason: String,
        refused: bool,
    },
}

/// Who is there. A rank of another version says at least `control` and `version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub control: u32,
    pub version: String,
    /// What is known of the machine; not read from a rank of another version.
    #[serde(default)]
    pub host: Option<Host>,
    /// The rank's number, where something else has started it and given it one.
    #[serde(default)]
    pub rank: Option<usize>,
}

impl Hello {
    /// Of this version, without more.
    pub fn plain() -> Hello {
        Hello { control: CONTROL, version: env!("CARGO_PKG_VERSION").to_owned(), host: None, rank: None }
    }

    /// Whether this rank and its coordinator understand each other, and measure with the same program.
    pub fn fits(&self) -> bool {
        let own = Hello::plain();
        (self.control, &self.version) == (own.control, &own.version)
    }
}

/// Writes one line.
pub fn say(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).map_err(io::Error::other)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// The next order; none at the end of the input, when nobody is there any more who could give one.
pub fn hear(input: &mut impl BufRead) -> io::Result<Option<Order>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|e| io::Error::other(format!("an order is malformed: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{Bound, Pattern};

    #[test]
    fn orders_survive_the_way() {
        let trial = Trial {
            pattern: Pattern::PingPong { batch: 3 },
            size: 1,
            bound: Bound::Samples(2),
            warm_up_ns: 0,
            seed: u64::MAX,
        };
        let setting = Setting {
            transport: "tcp:bbr".into(),
            rank: 1,
            ranks: 2,
            host: "h2".into(),
            patience_ms: 10,
            joins_small_sends: true,
        };
        for order in [Order::Trial(trial), Order::Open { setting, cpu: Some(3) }, Order::Bye] {
            let mut text = Vec::new();
            say(&mut text, &order).expect("written");
            assert_eq!(hear(&mut &text[..]).expect("an order"), Some(order));
        }
        assert!(hear(&mut &b""[..]).expect("the end").is_none());
        assert!(hear(&mut &b"{}\n"[..]).is_err());
    }

    #[test]
    fn the_hello_of_another_version_is_understood_as_far_as_it_must_be() {
        let later = r#"{"reply":"hello","control":9,"version":"7.0.0","more":[1]}"#;
        let Ok(Reply::Hello(hello)) = serde_json::from_str(later) else { panic!("a hello") };
        assert_eq!((hello.control, hello.version.as_str(), hello.host), (9, "7.0.0", None));
    }
}
