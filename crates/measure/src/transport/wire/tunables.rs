//! The engine's settings as numbers under names: those of `ropeway tune list`. Words have the numbers of their places there, from 0.

use ropeway_engine::Config;

pub fn set(config: &mut Config, name: &str, value: f64) -> Result<(), String> {
    // Exact below 2^53, which is beyond all ranges that make sense.
    if value < 0.0 || value.fract() != 0.0 || value > (1u64 << 53) as f64 {
        return Err(format!("the tunable {name} is a whole number, not {value}"));
    }
    config.set(name, value as u64).map_err(|error| error.to_string())
}

pub fn get(config: &Config, name: &str) -> Option<f64> {
    config.get(name).map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_what_is_read() {
        let mut config = Config::default();
        for (name, value) in [("burst_length", 21.0), ("gate", 1.0), ("order", 2.0), ("gate", 0.0), ("order", 0.0)] {
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
            ("gate", 2.0, "0 (grants) or 1 (esp)"),
            ("order", 3.0, "2 (fair)"),
            ("window", 1.0, "ropeway tune list"),
        ] {
            let error = set(&mut config, name, value).expect_err(name);
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(get(&config, "window"), None);
    }
}
