//! Writes SVG: elements, escaping, and how wide a text will be. What looks how is said by classes ([`super::palette`]), so that a page can show a figure
//! in light and dark.

use std::fmt::{Display, Write};

/// Size of all text in figures.
pub const TEXT_PX: f64 = 12.0;

/// A drawing that grows.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

/// Where a text stands against its place.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub fn path(&mut self, class: &str, path: &str) {
        self.push(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
    }

    /// A shape that says more when it is pointed at.
    pub fn path_with_note(&mut self, class: &str, path: &str, note: &str) {
        let note = escape(note);
        self.push(format_args!("<path class=\"{class}\" d=\"{path}\"><title>{note}</title></path>"));
    }

    /// A rectangle of a colour of its own, such as a cell of a heat map.
    pub fn cell(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str, note: &str) {
        let note = escape(note);
        self.push(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{note}</title></rect>"
        ));
    }

    fn push(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.body, "{element}");
    }

    /// The whole element, with what a reader who does not see it is told. `style` is empty inside a page that has one.
    pub fn finish(self, (width, height): (f64, f64), id: &str, title: &str, description: &str, style: &str) -> String {
        let (title, description, body) = (escape(title), escape(description), self.body);
        let style = if style.is_empty() { String::new() } else { format!("<style>{style}</style>") };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
             role=\"img\" aria-labelledby=\"{id}-title {id}-desc\"><title id=\"{id}-title\">{title}</title>\
             <desc id=\"{id}-desc\">{description}</desc>{style}{body}</svg>"
        )
    }
}

/// Text for HTML and XML, also inside quoted attributes. Characters that XML forbids become the sign for what cannot be shown.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// How wide a text is at [`TEXT_PX`], rather too much than too little: by DejaVu Sans, which few fonts exceed.
pub fn text_width(text: &str) -> f64 {
    let widths = text.chars().map(|character| match character {
        'i' | 'j' | 'l' | 'I' | 'J' | '\'' => 0.3,
        ' ' | ',' | '.' | ':' | ';' | '/' | '|' | '!' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' => 0.41,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.0,
        'A'..='Z' | '<' | '>' | '=' | '+' | '×' | '#' | '&' | '~' => 0.84,
        c if c.is_ascii() => 0.64,
        _ => 1.0,
    });
    widths.sum::<f64>() * TEXT_PX
}

/// The text, or as much of its start as fits, with an ellipsis.
pub fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut short: String = text.to_owned();
    while short.pop().is_some() {
        if text_width(&short) + TEXT_PX <= width {
            break;
        }
    }
    short.trim_end().to_owned() + "…"
}

/// A path through points.
pub fn polyline(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.into_iter().enumerate() {
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{x:.1} {y:.1}");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_stays_text() {
        assert_eq!(escape("<b a='1'>&\u{0}\u{1b}"), "&lt;b a=&#39;1&#39;&gt;&amp;\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn long_texts_are_cut_to_fit() {
        let text = "a rather long name of a transport";
        assert_eq!(fitted(text, 1000.0), text);
        let short = fitted(text, 100.0);
        assert!(short.ends_with('…') && text_width(&short) <= 100.0, "{short}");
        assert_eq!(fitted("abc", 0.0), "…");
    }
}
