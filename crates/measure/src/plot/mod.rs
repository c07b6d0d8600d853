//! Figures: what is drawn ([`lines`], [`ranges`], [`heat`]), as SVG for a page or alone, and as PNG ([`raster`]).
//!
//! A figure knows numbers and names only; which figures a result file is worth is decided in `report`. Samples are thinned out before they come here, for
//! drawing alone: statistics are made from all of them.

pub mod heat;
pub mod lines;
pub mod palette;
pub mod ranges;
pub mod raster;
pub mod scale;
pub mod svg;

use palette::Theme;

/// The font of figures that stand alone; browsers take their own where they have no such font.
const FONT: &str = "'DejaVu Sans',Verdana,sans-serif";

/// Width of a figure on a screen, and on a telephone.
pub const WIDE: f64 = 760.0;
pub const NARROW: f64 = 340.0;

/// Something to draw.
#[derive(Debug, Clone)]
pub enum Figure {
    Lines(lines::Lines),
    Ranges(ranges::Ranges),
    Heat(heat::Heat),
}

/// What every drawing gets.
#[derive(Debug, Clone)]
pub struct Canvas {
    pub width: f64,
    /// Unique on its page.
    pub id: String,
    /// The heading above the figure, where no page has one.
    pub heading: Option<String>,
    /// Rules for classes, where no page has them.
    pub style: String,
}

impl Figure {
    pub fn title(&self) -> &str {
        match self {
            Figure::Lines(lines) => &lines.title,
            Figure::Ranges(ranges) => &ranges.title,
            Figure::Heat(heat) => &heat.title,
        }
    }

    pub fn svg(&self, canvas: &Canvas) -> String {
        match self {
            Figure::Lines(lines) => lines.svg(canvas),
            Figure::Ranges(ranges) => ranges.svg(canvas),
            Figure::Heat(heat) => heat.svg(canvas),
        }
    }

    /// For a page that has the rules for classes.
    pub fn for_page(&self, width: f64, id: &str) -> String {
        self.svg(&Canvas { width, id: id.into(), heading: None, style: String::new() })
    }

    /// As a file of its own, with a background.
    pub fn alone(&self, theme: &Theme) -> String {
        let style = format!("svg{{background:{}}}", theme.background) + &palette::alone(theme, FONT);
        self.svg(&Canvas { width: WIDE, id: "figure".into(), heading: Some(self.title().into()), style })
    }
}

/// Draws the heading, if there is one; returns the height that it takes.
fn heading(svg: &mut svg::Svg, canvas: &Canvas) -> f64 {
    let Some(heading) = &canvas.heading else { return 0.0 };
    svg.text((12.0, 22.0), svg::Anchor::Start, "h", &svg::fitted(heading, canvas.width * 0.75));
    32.0
}

/// One entry of a legend.
struct Entry<'a> {
    name: &'a str,
    key: Key,
}

/// What stands before the name.
#[derive(Clone, Copy)]
enum Key {
    /// Line and mark of the series with this number.
    Series { number: usize, dots: bool },
    /// A letter in a circle.
    Letter(char),
}

const ENTRY_HEIGHT: f64 = 20.0;
const KEY_WIDTH: f64 = 34.0;

/// Draws the legend in a band of its own, in as many lines as it needs; returns the height that it takes.
fn legend(svg: &mut svg::Svg, canvas: &Canvas, top: f64, entries: &[Entry<'_>]) -> f64 {
    let (left, right) = (12.0, canvas.width - 12.0);
    let (mut x, mut y) = (left, top + ENTRY_HEIGHT / 2.0);
    for entry in entries {
        let name = svg::fitted(entry.name, right - left - KEY_WIDTH);
        let width = KEY_WIDTH + svg::text_width(&name) + 16.0;
        if x > left && x + width > right + 16.0 {
            (x, y) = (left, y + ENTRY_HEIGHT);
        }
        key(svg, entry.key, x, y);
        svg.text((x + KEY_WIDTH, y + 4.0), svg::Anchor::Start, "t legend", &name);
        x += width;
    }
    if entries.is_empty() { 0.0 } else { y + ENTRY_HEIGHT / 2.0 + 6.0 - top }
}

fn key(svg: &mut svg::Svg, key: Key, x: f64, y: f64) {
    match key {
        Key::Series { number, dots } => {
            let colour = number % palette::COLOURS;
            svg.line((x, y), (x + 26.0, y), &format!("l{colour}"));
            if dots {
                svg.path(&format!("d{colour}"), &palette::mark(number, x + 13.0, y));
            }
        }
        Key::Letter(letter) => lettered(svg, letter, x + 13.0, y, ""),
    }
}

fn lettered(svg: &mut svg::Svg, letter: char, x: f64, y: f64, note: &str) {
    svg.path_with_note("p", &palette::circle(x, y, 7.0), note);
    svg.text((x, y + 3.6), svg::Anchor::Middle, "n", &letter.to_string());
}
