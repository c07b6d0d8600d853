//! The engine's settings as numbers under names: those of `ropeway tune list`, and two that are words there.

use ropeway_engine::Config;
use ropeway_engine::config::{GateMode, Order};

/// 1: document 2's constant window for each sender; 0: grants out of one budget.
const GATE_ESP: &str = "gate_esp";

/// 0: document 2's fifo, 1: srpt, 2: fair.
const ORDER: &str = "order";

const ORDERS: [Order; 3] = [Order::Fifo, Order::Srpt, Order::Fair];

pub fn set(config: &mut Config, name: &str, value: f64) -> Result<(), String> {
    // Exact below 2^53, which is beyond all ranges that make sense.
    if value < 0.0 || value.fract() != 0.0 || value > (1u64 << 53) as f64 {
        return Err(format!("the tunable {name} is a whole number, not {value}"));
    }
    let whole = value as u64;
    match (name, whole) {
        (GATE_ESP, 0) => config.gate_mode = GateMode::Grants,
        (GATE_ESP, 1) => config.gate_mode = GateMode::Esp,
        (ORDER, 0..=2) => config.order = ORDERS[whole as usize],
        (GATE_ESP, _) => return Err(format!("{GATE_ESP} is 0 (grants) or 1 (document 2's window), not {value}")),
        (ORDER, _) => return Err(format!("{ORDER} is 0 (fifo), 1 (srpt) or 2 (fair), not {value}")),
        _ => config.set(name, whole).map_err(|error| error.to_string())?,
    }
    Ok(())
}

pub fn get(config: &Config, name: &str) -> Option<f64> {
    match name {
        GATE_ESP => Some(f64::from(u8::from(config.gate_mode == GateMode::Esp))),
        ORDER => ORDERS.iter().position(|order| *order == config.order).map(|place| place as f64),
        _ => config.get(name).map(|value| value as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_what_is_read() {
        let mut config = Config::default();
        for (name, value) in [("burst_length", 21.0), (GATE_ESP, 1.0), (ORDER, 2.0), (GATE_ESP, 0.0), (ORDER, 0.0)] {
            set(&mut config, name, value).expect(name);
            assert_eq!(get(&config, name), Some(value), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_a_reason() {
        let mut config = Config::default();
        for (name, value, reason) in [
            ("burst_length", 1e6, "0 to 4096"),
            ("burst_length", 1.5, "whole number"),
            ("burst_length", f64::NAN, "whole number"),
            (GATE_ESP, 2.0, "0 (grants)"),
            (ORDER, 3.0, "2 (fair)"),
            ("window", 1.0, "ropeway tune list"),
        ] {
            let error = set(&mut config, name, value).expect_err(name);
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(get(&config, "window"), None);
    }
}
