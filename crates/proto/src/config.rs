//! What can be set. Every knob says its meaning, unit, default, range and cost in [`TUNABLES`]; the names are those that
//! `ropeway tune` shows, and document 2's own come first ([2:5.1]).

/// How the gate shares out the budget of the receiving host (docs/protocol.md 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In the order in which senders became active, a quantum each: document 2's.
    #[default]
    Fifo,
    /// Who has the least left to send first, and every eighth quantum to who has waited longest.
    Srpt,
    /// Who has received the fewest bytes first.
    Fair,
}

/// Who limits what flies towards a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateMode {
    /// Grants out of one budget (docs/protocol.md 6).
    #[default]
    Grants,
    /// Document 2's scheme: a constant window of [`Config::window_packets`] for every sender, and acknowledgments of all but one active sender held back.
    Esp,
}

/// The settings of one endpoint. Plain values; [`Config::set`] checks ranges and knows the units.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Packets that one sender may have in flight towards us, 0 for no limit but the budget; with [`GateMode::Esp`] the constant window, 0 for document 2's. `burst_length` [2:5.1].
    pub window_packets: u16,
    /// Packets that a sender may send without a grant when the host is idle. `initial_ack_burst_length` [2:5.1].
    pub first_flight_packets: u8,
    /// An acknowledgment is sent at the latest after this many packets. `packets_to_ack` [2:5.1].
    pub packets_to_ack: u16,
    /// Bytes that one channel keeps for sending.
    pub send_buffer_bytes: u32,
    /// Bytes that one channel keeps for reading.
    pub receive_buffer_bytes: u32,
    /// The round-trip time assumed before the first sample. `round_trip_time` [2:5.1].
    pub round_trip_time_ns: u64,
    pub gate_mode: GateMode,
    pub order: Order,
    /// Bytes that the last queue before this host holds, on a line of 1 Gbit/s: the gate lets three quarters of that fly, and what is under way before the queue.
    pub port_buffer_bytes: u32,
    /// Ports of lines faster than 1 Gbit/s are taken to hold as many times that as the line is faster, but no more than this many times.
    pub port_buffer_most_times: u16,
    /// Bytes of frame around each packet on the medium, for the gate's sums.
    pub frame_overhead_bytes: u16,
    /// How long a grant may be used, at least; 8 times the least round-trip time measured if that is more.
    pub lease_ns: u64,
    /// The longest that an acknowledgment waits for company, where none is likely.
    pub ack_delay_ns: u64,
    /// The shortest time after which a sender with undelivered bytes asks (STATE).
    pub state_min_ns: u64,
    /// The shortest time after which a receiver asks again for what is missing (RRQ).
    pub request_min_ns: u64,
    /// Both timers double up to this.
    pub timer_max_ns: u64,
    /// How long a small send waits for others to share a packet with, when another packet left just before. 0: never.
    pub coalesce_ns: u64,
    /// How long an attempt to connect lasts.
    pub connect_timeout_ns: u64,
    /// Silence, while something is undelivered, after which the association is given up.
    pub give_up_ns: u64,
    /// Idle time after which the opening end sends PIN (document 1).
    pub keep_alive_ns: u64,
    /// Silence after which an idle association is freed (document 1).
    pub idle_limit_ns: u64,
    /// Age of a key at which the end that opened the association changes it, for both directions; the protocol's hour at most.
    pub key_age_ns: u64,
    /// Bytes that a key seals before that end changes it; the protocol's 64 GiB at most.
    pub key_volume_bytes: u64,
    /// The longest message taken.
    pub longest_message_bytes: u32,
    /// Memory for everything received and not yet read, of the whole endpoint.
    pub receive_memory_bytes: u64,
    /// Memory for everything not yet acknowledged, of the whole endpoint.
    pub send_memory_bytes: u64,
    pub max_associations: u32,
    /// Channels of one association.
    pub max_channels: u16,
    /// Longest packet this endpoint takes, in bytes.
    pub packet_bytes: u16,
    /// The number of each association's first packet; `None`: a random one, as it must be where strangers can send. For runs that are to see numbers go
    /// round.
    pub first_number: Option<u64>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window_packets: 0,
            first_flight_packets: 16,
            packets_to_ack: 8,
            send_buffer_bytes: 1 << 20,
            receive_buffer_bytes: 1 << 20,
            round_trip_time_ns: 200_000,
            gate_mode: GateMode::Grants,
            order: Order::Fifo,
            port_buffer_bytes: 128 << 10,
            port_buffer_most_times: 8,
            frame_overhead_bytes: 46,
            lease_ns: 10_000_000,
            ack_delay_ns: 100_000,
            state_min_ns: 2_000_000,
            request_min_ns: 500_000,
            timer_max_ns: 100_000_000,
            coalesce_ns: 20_000,
            connect_timeout_ns: 10_000_000_000,
            give_up_ns: 10_000_000_000,
            keep_alive_ns: 60_000_000_000,
            idle_limit_ns: 300_000_000_000,
            key_age_ns: 3_600_000_000_000,
            key_volume_bytes: 64 << 30,
            longest_message_bytes: 64 << 20,
            receive_memory_bytes: 256 << 20,
            send_memory_bytes: 256 << 20,
            max_associations: 16_384,
            max_channels: 16_384,
            packet_bytes: 1472,
            first_number: None,
        }
    }
}

/// One knob, as `ropeway tune` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    pub name: &'static str,
    /// Empty where values are words.
    pub unit: &'static str,
    /// What the values 0, 1, ... are called; none where they are numbers.
    pub words: &'static [&'static str],
    pub least: u64,
    pub most: u64,
    /// What it does.
    pub about: &'static str,
    /// What a larger value costs, and a smaller one; or each of the words.
    pub cost: &'static str,
    get: fn(&Config) -> u64,
    set: fn(&mut Config, u64),
}

macro_rules! tunables {
    (
        $($word:literal, $values:expr, [$($called:literal),*], $meaning:literal, $price:literal, $choice:ident;)*
        numbers:
        $($name:literal, $unit:literal, $least:expr, $most:expr, $about:literal, $cost:literal, $field:ident: $kind:ty $(, $scale:expr)?;)*
    ) => {
        /// All knobs, in the order in which people are shown them.
        pub const TUNABLES: &[Tunable] = &[$(Tunable {
            name: $word, unit: "", words: &[$($called),*], least: 0, most: $values.len() as u64 - 1, about: $meaning, cost: $price,
            get: |config| $values.iter().position(|value| *value == config.$choice).unwrap_or_default() as u64,
            // In range, here and below: Config::set has looked.
            set: |config, value| config.$choice = $values[value as usize],
        },)* $(Tunable {
            name: $name, unit: $unit, words: &[], least: $least, most: $most, about: $about, cost: $cost,
            get: |config| u64::from(config.$field) $(/ $scale)?,
            set: |config, value| config.$field = (value $(* $scale)?) as $kind,
        }),*];
    };
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

const GATE_MODES: [GateMode; 2] = [GateMode::Grants, GateMode::Esp];
const ORDERS: [Order; 3] = [Order::Fifo, Order::Srpt, Order::Fair];

tunables! {
    "gate", GATE_MODES, ["grants", "esp"],
        "how senders are kept from overrunning the port: grants out of one budget, or document 2's constant window with acknowledgments held back, to compare with",
        "grants: what is longer than a first flight waits a round trip for its first grant; esp: the windows of many senders add up and overrun the port", gate_mode;
    "order", ORDERS, ["fifo", "srpt", "fair"],
        "who gets the next grant: who asked first (document 2's), who has the least left to send, who has received the fewest bytes",
        "fifo: short transfers wait behind long ones; srpt: long ones wait for all short ones, but for each eighth quantum; fair: everybody ends late", order;
    numbers:
    "burst_length", "packets", 0, 4096,
        "in flight from one sender; 0: only the budget limits. With gate = esp the constant window w; 0: 21, as in document 2",
        "more: incast overruns the port; less (but 0): one sender alone does not fill a long path", window_packets: u16;
    "initial_ack_burst_length", "packets", 1, 64,
        "sent without a grant towards an idle host",
        "more: many at once overrun the port; less: short messages are slower", first_flight_packets: u8;
    "packets_to_ack", "packets", 1, 64,
        "an acknowledgment at the latest after this many (r_ACK)",
        "more: the sender may stall; less: more packets back", packets_to_ack: u16;
    "send_buffer", "bytes", 16384, 1 << 30,
        "kept per channel until acknowledged; who sends more waits",
        "more: memory; less: long paths stall", send_buffer_bytes: u32;
    "receive_buffer", "bytes", 32768, 1 << 30,
        "kept per channel until read",
        "more: memory; less: long paths stall", receive_buffer_bytes: u32;
    "round_trip_time", "us", 1, 1_000_000,
        "assumed before the first sample",
        "more: the first loss is noticed later; less: needless requests at the start", round_trip_time_ns: u64, US;
    "port_buffer", "bytes", 16384, 1 << 30,
        "what the last switch port before this host can queue, at 1 Gbit/s",
        "more than it can: drops under incast; less: the line idles", port_buffer_bytes: u32;
    "port_buffer_most_times", "times", 1, 64,
        "ports of faster lines are taken to queue as many times that as Gbit/s arrive, up to this. 1: port_buffer is what every port has",
        "more than the ports have: drops under incast; less: fast lines idle", port_buffer_most_times: u16;
    "lease", "us", 1_000, 1_000_000,
        "how long a grant may be used",
        "more: a stopped sender parks its grant longer; less: who is slow to wake loses its grant and asks again", lease_ns: u64, US;
    "ack_delay", "us", 0, 10_000,
        "how long the acknowledgment of a finished burst waits for data to ride on; up to 15 times as long where answers mostly come by then",
        "more: the sender keeps what it sent for longer; less: more packets", ack_delay_ns: u64, US;
    "state_min", "us", 100, 1_000_000,
        "least time after which a sender asks whether its data arrived",
        "more: a lost last packet is noticed later; less: more packets when the peer is slow to wake", state_min_ns: u64, US;
    "request_min", "us", 50, 1_000_000,
        "least time after which a receiver asks again",
        "more: what was lost twice comes later; less: more needless copies when the sender is slow to wake", request_min_ns: u64, US;
    "timer_max", "ms", 1, 10_000,
        "both timers double up to this",
        "more: after an outage the next question, and with it the data, comes later; less: more packets to who does not answer", timer_max_ns: u64, MS;
    "coalesce", "us", 0, 1_000,
        "how long a small send may wait to share a packet when another left just before. 0: never",
        "more: later messages; less: more packets", coalesce_ns: u64, US;
    "connect_timeout", "ms", 10, 600_000,
        "how long an attempt to connect lasts",
        "more: who connects to a host that is gone waits longer; less: one that is slow, or is just being started, is not reached", connect_timeout_ns: u64, MS;
    "give_up", "ms", 100, 3_600_000,
        "silence with data undelivered after which the association ends",
        "more: a peer that is gone is noticed later, and memory is kept for it; less: connections end by a stopped process or a short outage", give_up_ns: u64, MS;
    "keep_alive", "s", 1, 86_400,
        "idle time after which the opening end sends PIN",
        "more: fewer of them can get lost before idle_limit is over, and if it is more than that idle connections end; less: a packet each way so often for each idle peer", keep_alive_ns: u64, S;
    "idle_limit", "s", 2, 86_400,
        "silence after which an idle association is freed",
        "more: memory for peers that are gone, and who only waits for one learns it later; less: idle connections end when a PIN or two get lost, and always if it is less than keep_alive", idle_limit_ns: u64, S;
    "key_age", "s", 2, 3_600,
        "with a key: the opening end changes it when it is this old, for what is opened from now on",
        "more: a key that gets out opens more of the past; less: more changes, each 0.1 ms of processor time at either end", key_age_ns: u64, S;
    "key_volume", "MiB", 1, 65_536,
        "with a key: the opening end changes it when it has sealed so much, though not twice within 2 s, for what is opened from now on",
        "more: a key that gets out opens more of the past; less: more changes, each 0.1 ms of processor time at either end", key_volume_bytes: u64, MIB;
    "longest_message", "bytes", 1472, 1 << 31,
        "the longest message taken, if half of receive_memory is not less; longer ones are refused before they are sent",
        "more: one long message takes that much of receive_memory, and others wait for it; less: programs have to divide what they send", longest_message_bytes: u32;
    "receive_memory", "bytes", 1 << 20, 1 << 40,
        "everything received and unread, over all channels. Not lowered while peers are known: they have been told what they may send",
        "more: memory, if programs read slowly; less: smaller windows where there are many channels, so slower ones", receive_memory_bytes: u64;
    "max_associations", "associations", 1, 65_536,
        "peers known at once, of one host up to four fifths of that; more get BUSY",
        "more: memory, which whoever may connect can make this host spend; less: peers are refused", max_associations: u32;
    "max_channels", "channels", 1, 32_767,
        "of one association, from either end; more get BUSY",
        "more: memory, of which one peer can take so much more; less: connections are refused", max_channels: u16;
    "send_memory", "bytes", 1 << 20, 1 << 40,
        "everything unacknowledged, over all channels",
        "more: memory, if peers are slow; less: sends wait, or fail where they may not wait, and messages longer than half of it are refused", send_memory_bytes: u64;
}

/// Why a knob was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error("there is no tunable `{0}`; `ropeway tune list` names them all")]
    Unknown(String),
    #[error("{name} takes {least} to {most} {unit}, not {value}")]
    Range { name: &'static str, unit: &'static str, least: u64, most: u64, value: u64 },
    #[error("{name} is {}, not `{value}`", words.join(" or "))]
    Word { name: &'static str, words: &'static [&'static str], value: String },
    #[error("{name} is {}, not {value}", numbered(words))]
    Place { name: &'static str, words: &'static [&'static str], value: u64 },
    #[error("{name} takes a whole number of {unit}, not `{value}`")]
    Number { name: &'static str, unit: &'static str, value: String },
    #[error(
        "receive_memory can be raised now, but not lowered: peers have been told what they may send. Set it when the process starts (ROPEWAY_TUNE)"
    )]
    Promised,
}

fn numbered(words: &[&str]) -> String {
    words.iter().enumerate().map(|(place, word)| format!("{place} ({word})")).collect::<Vec<_>>().join(" or ")
}

impl Tunable {
    fn find(name: &str) -> Result<&'static Tunable, SetError> {
        TUNABLES.iter().find(|tunable| tunable.name == name).ok_or_else(|| SetError::Unknown(name.into()))
    }

    /// The value that `text` stands for: a word where values are words, else a number.
    ///
    /// # Errors
    /// It is neither. Whether a number is in range is [`Config::set`]'s matter.
    pub fn parse(&self, text: &str) -> Result<u64, SetError> {
        let &Tunable { name, unit, words, .. } = self;
        match words {
            [] => text.parse().map_err(|_| SetError::Number { name, unit, value: text.into() }),
            words => words
                .iter()
                .position(|word| *word == text)
                .map(|place| place as u64)
                .ok_or_else(|| SetError::Word { name, words, value: text.into() }),
        }
    }

    /// A value as people write it, without its unit.
    pub fn text(&self, value: u64) -> String {
        self.words.get(value as usize).map_or_else(|| value.to_string(), |word| (*word).to_owned())
    }
}

/// Document 2's own window [2:5.1].
const ESP_WINDOW_PACKETS: u16 = 21;

impl Config {
    /// The constant window of [`GateMode::Esp`]: without one nothing would flow.
    pub fn esp_window_packets(&self) -> u16 {
        if self.window_packets == 0 { ESP_WINDOW_PACKETS } else { self.window_packets }
    }

    /// The value of a knob in its unit.
    pub fn get(&self, name: &str) -> Option<u64> {
        TUNABLES.iter().find(|tunable| tunable.name == name).map(|tunable| (tunable.get)(self))
    }

    /// The same as people write it.
    ///
    /// # Errors
    /// No knob has that name.
    pub fn get_text(&self, name: &str) -> Result<String, SetError> {
        let tunable = Tunable::find(name)?;
        Ok(tunable.text((tunable.get)(self)))
    }

    /// Sets a knob, given in its unit. It holds for what is decided from now on.
    ///
    /// # Errors
    /// No knob has that name, or the value is out of its range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetError> {
        let tunable = Tunable::find(name)?;
        let &Tunable { name, unit, words, least, most, .. } = tunable;
        if !(least..=most).contains(&value) {
            return Err(match words {
                [] => SetError::Range { name, unit, least, most, value },
                words => SetError::Place { name, words, value },
            });
        }
        (tunable.set)(self, value);
        Ok(())
    }

    /// The same for a value as people write it.
    ///
    /// # Errors
    /// As [`Config::set`]; the text is no such value.
    pub fn set_text(&mut self, name: &str, text: &str) -> Result<(), SetError> {
        self.set(name, Tunable::find(name)?.parse(text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_lies_in_its_range_and_survives_being_set() {
        let mut config = Config::default();
        for tunable in TUNABLES {
            let value = config.get(tunable.name).unwrap();
            assert!((tunable.least..=tunable.most).contains(&value), "{}: {value}", tunable.name);
            config.set(tunable.name, value).unwrap();
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn every_knob_says_what_either_direction_or_each_word_costs() {
        for Tunable { name, words, cost, .. } in TUNABLES {
            let said = cost.split("; ").collect::<Vec<_>>();
            let due = if words.is_empty() { &["more", "less"][..] } else { words };
            assert_eq!(said.len(), due.len(), "{name}: {cost}");
            for (said, due) in said.iter().zip(due) {
                let text = said.strip_prefix(due).and_then(|rest| rest.split_once(": ")).map(|(_, text)| text);
                assert!(text.is_some_and(|text| text.len() > 3), "{name}: `{said}` is not what {due} costs");
            }
        }
    }

    #[test]
    fn the_bounds_of_every_knob_are_kept_and_named() {
        let mut config = Config::default();
        for tunable in TUNABLES {
            config.set(tunable.name, tunable.most).unwrap();
            assert_eq!(config.get(tunable.name), Some(tunable.most), "{}", tunable.name);
            let error = config.set(tunable.name, tunable.most + 1).unwrap_err();
            assert!(error.to_string().contains(tunable.name), "{error}");
        }
        assert!(config.set("burst", 1).unwrap_err().to_string().contains("ropeway tune list"));
    }

    #[test]
    fn values_are_words_or_numbers() {
        let mut config = Config::default();
        config.set_text("gate", "esp").unwrap();
        config.set_text("order", "srpt").unwrap();
        config.set_text("lease", "20000").unwrap();
        assert_eq!((config.gate_mode, config.order, config.lease_ns), (GateMode::Esp, Order::Srpt, 20_000_000));
        for tunable in TUNABLES {
            let value = config.get(tunable.name).unwrap();
            assert_eq!(tunable.parse(&tunable.text(value)), Ok(value), "{}", tunable.name);
        }
        for (name, text, reason) in
            [("order", "lifo", "fifo or srpt or fair"), ("order", "1", "fifo"), ("lease", "long", "whole number of us")]
        {
            let error = config.set_text(name, text).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(reason), "{error}");
        }
    }
}
