//! A number of bytes as people write it: `65536`, `"64 KiB"`, `"1GiB"`.

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("B", 0)];

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text[digits.len()..].trim();
        let shift = if unit.is_empty() { Some(0) } else { UNITS.iter().find(|(u, _)| *u == unit).map(|(_, s)| *s) };
        let number: Option<u64> = digits.parse().ok();
        match (number, shift) {
            (Some(n), Some(shift)) if n <= u64::MAX >> shift => Ok(Size(n << shift)),
            _ => Err(format!(
                "`{text}` is not a size; write bytes as a number, or like \"64 KiB\", \"2 MiB\", \"1 GiB\""
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size in bytes")
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<Size, E> {
                u64::try_from(n).map(Size).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<Size, E> {
                Ok(Size(n))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!("64 KiB".parse(), Ok(Size(65536)));
        assert_eq!("1GiB".parse(), Ok(Size(1 << 30)));
        assert_eq!("17".parse(), Ok(Size(17)));
        for bad in ["", "KiB", "64 KB", "-1", "99999999999 GiB", "1.5 MiB"] {
            assert!(bad.parse::<Size>().unwrap_err().contains("is not a size"), "{bad}");
        }
    }
}
