//! Message sizes and other numbers as people write them: `64`, `1,64,1Ki`, `1..1Mi`.

/// Largest message that can be asked for.
pub const LARGEST: u64 = 1 << 30;

/// Reads a list of sizes and of ranges; a range has all powers of two from its first to its last, and these two.
pub fn parse(text: &str) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => sizes.push(one(part)?),
            Some((from, to)) => {
                let (from, to) = (one(from)?, one(to.trim_start_matches('='))?);
                if from > to {
                    return Err(format!("{part:?} is no range: its first size is larger than its last"));
                }
                sizes.push(from);
                sizes.extend(
                    std::iter::successors((from + 1).checked_next_power_of_two(), |n| n.checked_mul(2))
                        .take_while(|n| *n < to),
                );
                sizes.push(to);
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

fn one(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor: Option<u64> = match &text[digits..] {
        "" | "B" => Some(1),
        "k" | "K" => Some(1000),
        "Ki" | "KiB" | "ki" => Some(1 << 10),
        "M" => Some(1_000_000),
        "Mi" | "MiB" => Some(1 << 20),
        "Gi" | "GiB" => Some(1 << 30),
        _ => None,
    };
    let size = text[..digits].parse::<u64>().ok().zip(factor).and_then(|(n, factor)| n.checked_mul(factor));
    match size {
        Some(size @ 1..=LARGEST) => Ok(size as usize),
        Some(_) => Err(format!("the size {text} is out of range: 1 to {LARGEST} bytes")),
        None => Err(format!("{text:?} is no size: give bytes such as 64, 1Ki or 1Mi, or a range such as 1..64Ki")),
    }
}

/// Most numbers of a range.
const MOST_NUMBERS: f64 = 16_384.0;

/// Reads a list of numbers and of ranges, `FROM..TO` or `FROM..TO/STEP`, both ends included.
pub fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let wrong = |part: &str| format!("{part:?} is no number and no range: give 8, or 1..32, or 0..100/10");
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let Some((from, rest)) = part.split_once("..") else {
            numbers.push(number(part).ok_or_else(|| wrong(part))?);
            continue;
        };
        let (to, step) = rest.split_once('/').unwrap_or((rest, "1"));
        let range = number(from).zip(number(to)).zip(number(step));
        let Some(((from, to), step)) = range.filter(|((from, to), step)| *step > 0.0 && from <= to) else {
            return Err(wrong(part));
        };
        // The last one, although the sum of many steps falls short of it by an error of rounding.
        let count = ((to - from) / step + 1e-9).floor() + 1.0;
        if count > MOST_NUMBERS {
            return Err(format!("{part:?} has more than {MOST_NUMBERS} numbers"));
        }
        // Multiplied and not added up, so that the last one is exact.
        numbers.extend((0..count as u32).map(|place| from + f64::from(place) * step));
    }
    Ok(numbers)
}

/// A size as short as it can be written.
pub fn short(bytes: u64) -> String {
    for (unit, factor) in [("Gi", 1u64 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_lists_and_ranges() {
        assert_eq!(numbers("8"), Ok(vec![8.0]));
        assert_eq!(numbers("1..4,8,0..1/0.5"), Ok(vec![1.0, 2.0, 3.0, 4.0, 8.0, 0.0, 0.5, 1.0]));
        for bad in ["", "w", "1..", "3..1", "1..2/0", "1..2/-1", "0..1e9", "nan..3"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parse("64"), Ok(vec![64]));
        assert_eq!(parse("1Ki,1,64"), Ok(vec![1, 64, 1024]));
        assert_eq!(parse("1..16"), Ok(vec![1, 2, 4, 8, 16]));
        assert_eq!(parse("3..20,2M"), Ok(vec![3, 4, 8, 16, 20, 2_000_000]));
        assert_eq!(parse("8..8"), Ok(vec![8]));
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, reason) in [
            ("0", "out of range"),
            ("2Gi", "out of range"),
            ("99999999999999999999", "is no size"),
            ("x", "is no size"),
            ("", "is no size"),
            ("1Ti", "is no size"),
            ("16..8", "no range"),
        ] {
            assert!(parse(text).expect_err(text).contains(reason), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        assert_eq!([1, 1000, 1024, 3 << 20].map(short), ["1", "1000", "1Ki", "3Mi"]);
    }
}
