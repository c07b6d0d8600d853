//! Reads Rust text as far as the checks need it: what is code, and what is a test.

/// The text with comments, strings and character literals blanked; every line keeps its number, every byte its place.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_or_comment(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
        if end == at {
            at += 1;
            continue;
        }
        out[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    String::from_utf8(out).expect("whole characters were blanked")
}

/// The length of the comment or literal at the start of `rest`, or 0.
fn literal_or_comment(rest: &[u8], before: Option<u8>) -> usize {
    let in_word = before.is_some_and(is_word);
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, 1, b'"'),
        [b'b' | b'c', b'"', ..] if !in_word => quoted(rest, 2, b'"'),
        [b'b', b'\'', ..] if !in_word => quoted(rest, 2, b'\''),
        [b'r', ..] if !in_word => raw_string(rest, 1),
        [b'b' | b'c', b'r', ..] if !in_word => raw_string(rest, 2),
        [b'\'', ..] => char_literal(rest),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_u32);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn raw_string(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
    let open = prefix + hashes;
    // `r#type` is an identifier, and `r` alone a name.
    if rest.get(open) != Some(&b'"') {
        return 0;
    }
    let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = &rest[open + 1..];
    let close = body.windows(closing.len()).position(|window| window == closing);
    close.map_or(rest.len(), |close| open + 1 + close + closing.len())
}

/// A character literal; a lifetime (`'a` without a closing quote) is code.
fn char_literal(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => quoted(rest, 1, b'\''),
        [_, first, ..] => {
            let width = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        _ => 0,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The lines (from 1) of `code` in which `word` stands as a word of its own.
pub fn lines_with_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let lines = code.lines().enumerate().filter(move |(_, line)| has_word(line, word));
    lines.map(|(index, _)| index + 1)
}

fn has_word(line: &str, word: &str) -> bool {
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|after| is_word(*after));
        !before && !after
    })
}

/// How many lines the product has in this file: without the modules marked for tests.
pub fn lines_without_tests(text: &str) -> usize {
    let code = code_only(text);
    let lines: Vec<&str> = code.lines().collect();
    let (mut count, mut at) = (0, 0);
    while at < lines.len() {
        match test_module_lines(&lines[at..]) {
            0 => (count, at) = (count + 1, at + 1),
            skipped => at += skipped,
        }
    }
    count
}

/// The length of the test module (its attribute, its body) that starts at the first of these lines, or 0.
fn test_module_lines(lines: &[&str]) -> usize {
    let attribute = lines[0].trim_start();
    if !(attribute.starts_with("#[cfg(") && has_word(attribute, "test") && !has_word(attribute, "not")) {
        return 0;
    }
    let Some(start) = lines.iter().position(|line| has_word(line, "mod")) else { return 0 };
    let only_attributes =
        lines[1..start.max(1)].iter().all(|line| line.trim().is_empty() || line.trim_start().starts_with("#["));
    if !only_attributes {
        return 0;
    }
    let mut depth = 0_i32;
    for (index, line) in lines.iter().enumerate().skip(start) {
        depth += line.bytes().map(|byte| i32::from(byte == b'{') - i32::from(byte == b'}')).sum::<i32>();
        if depth <= 0 {
            return index + 1;
        }
    }
    lines.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_kept() {
        let text = "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe /* nested */ unsafe */ let b = r#\"unsafe\"#;\nunsafe { c(b'\"', '\\'') }";
        let code = code_only(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(lines_with_word(&code, "unsafe").collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        let text = "fn f<'a>(r#type: &'a str, c: char) -> bool { c == 'ä' || c == '\"' } unsafe fn g() {}";
        assert_eq!(lines_with_word(&code_only(text), "unsafe").count(), 1);
    }

    #[test]
    fn part_of_a_word_is_not_the_word() {
        assert_eq!(lines_with_word("#![forbid(unsafe_code)]", "unsafe").count(), 0);
        assert_eq!(lines_with_word("#[unsafe(no_mangle)]", "unsafe").count(), 1);
    }

    #[test]
    fn test_modules_do_not_count_as_lines() {
        let text = "fn a() {}\n\n#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests {\n    const S: &str = \"}\";\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(lines_without_tests(text), 3);
    }

    #[test]
    fn what_is_left_out_of_tests_counts() {
        assert_eq!(lines_without_tests("#[cfg(not(test))]\nmod real {\n}\n"), 3);
        assert_eq!(lines_without_tests("#[cfg(test)]\nfn helper() {}\nmod real {\n}\n"), 4);
        assert_eq!(lines_without_tests("#[cfg(test)]\nmod elsewhere;\nfn a() {}\n"), 1);
    }
}
