//! Lines over an axis: one for each series, with the band of its interval, and marked points beside them.

use super::scale::{Axis, Scale, Spacing};
use super::svg::{Anchor, Svg, TEXT_PX, fitted, polyline, text_width};
use super::{Canvas, Entry, Key, heading, legend, lettered, palette};

/// Curves in one frame.
#[derive(Debug, Clone)]
pub struct Lines {
    pub title: String,
    /// For readers who do not see the figure.
    pub description: String,
    pub x: Axis,
    pub y: Axis,
    pub curves: Vec<Curve>,
    /// Values from elsewhere, such as printed ones.
    pub marks: Vec<Mark>,
    /// Bounds of the y axis that are not those of the values.
    pub y_bounds: Option<(f64, f64)>,
}

#[derive(Debug, Clone)]
pub struct Curve {
    pub name: String,
    /// Which colour, mark and dash.
    pub number: usize,
    pub points: Vec<Point>,
    /// Whether each point has a mark.
    pub dots: bool,
}

#[derive(Debug, Clone)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub band: Option<(f64, f64)>,
    /// Said when the point is pointed at.
    pub note: String,
}

#[derive(Debug, Clone)]
pub struct Mark {
    pub name: String,
    pub x: f64,
    pub y: f64,
    pub note: String,
}

/// Marks nearer to each other than this (in pixels) are moved apart.
const MARK_ROOM: f64 = 17.0;

/// Marks with a letter of their own; further ones are left to the table.
const MOST_MARKS: usize = 26;

/// The rectangle that the values fill.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Scale,
    y: Scale,
}

impl Frame {
    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        let across = self.left + self.x.at(x) * (self.right - self.left);
        (across, self.bottom - self.y.at(y) * (self.bottom - self.top))
    }
}

impl Lines {
    pub fn svg(&self, canvas: &Canvas) -> String {
        let mut svg = Svg::default();
        let mut top = heading(&mut svg, canvas) + 4.0;
        let marks: Vec<(char, &Mark)> = ('A'..='Z').zip(self.marks.iter().take(MOST_MARKS)).collect();
        top += self.legend(&mut svg, canvas, top, &marks);
        // The label of the y axis stands above it: a reader need not turn the head.
        svg.text((12.0, top + 12.0), Anchor::Start, "m", &fitted(&self.y.label, canvas.width - 24.0));
        let frame = self.frame(canvas, top + 24.0);
        self.grid(&mut svg, &frame, canvas);
        for curve in &self.curves {
            draw_band(&mut svg, &frame, curve);
        }
        for curve in &self.curves {
            draw_curve(&mut svg, &frame, curve);
        }
        draw_marks(&mut svg, &frame, &marks);
        let height = frame.bottom + 44.0;
        svg.finish((canvas.width, height), &canvas.id, &self.title, &self.description, &canvas.style)
    }

    fn legend(&self, svg: &mut Svg, canvas: &Canvas, top: f64, marks: &[(char, &Mark)]) -> f64 {
        let curves = self
            .curves
            .iter()
            .map(|curve| Entry { name: &curve.name, key: Key::Series { number: curve.number, dots: curve.dots } });
        let marks = marks.iter().map(|(letter, mark)| Entry { name: &mark.name, key: Key::Letter(*letter) });
        legend(svg, canvas, top, &curves.chain(marks).collect::<Vec<_>>())
    }

    fn frame(&self, canvas: &Canvas, top: f64) -> Frame {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Scale::new(&self.x, points().map(|point| point.x).chain(self.marks.iter().map(|mark| mark.x)));
        let ends = |point: &Point| point.band.map_or([point.y; 3], |(low, high)| [low, point.y, high]);
        let y = match self.y_bounds {
            Some((low, high)) => Scale::fixed(low, high, self.y.spacing == Spacing::Log),
            None => Scale::new(&self.y, points().flat_map(ends).chain(self.marks.iter().map(|mark| mark.y))),
        };
        let labels = y.ticks(most_y_ticks(canvas)).into_iter().map(|tick| text_width(&y.label(tick)));
        let left = labels.fold(30.0, f64::max) + 16.0;
        let bottom = top + (canvas.width * 0.45).max(220.0);
        Frame { left, right: canvas.width - 22.0, top, bottom, x, y }
    }

    fn grid(&self, svg: &mut Svg, frame: &Frame, canvas: &Canvas) {
        for tick in frame.y.ticks(most_y_ticks(canvas)) {
            let (_, y) = frame.place(0.0, tick);
            svg.line((frame.left, y), (frame.right, y), "g");
            svg.text((frame.left - 8.0, y + 4.0), Anchor::End, "m tick-y", &frame.y.label(tick));
        }
        let labels = |most: usize| frame.x.ticks(most).into_iter().map(|tick| (tick, frame.x.label(tick)));
        let width = frame.right - frame.left;
        let fits = |most: &usize| labels(*most).all(|(_, label)| text_width(&label) + TEXT_PX < width / *most as f64);
        let most = (2..=12).rev().find(fits).unwrap_or(2);
        for (tick, label) in labels(most) {
            let (x, _) = frame.place(tick, 0.0);
            svg.line((x, frame.top), (x, frame.bottom), "g");
            svg.text((x, frame.bottom + 18.0), Anchor::Middle, "m tick-x", &label);
        }
        svg.line((frame.left, frame.bottom), (frame.right, frame.bottom), "a");
        svg.line((frame.left, frame.top), (frame.left, frame.bottom), "a");
        let label = fitted(&self.x.label, width);
        svg.text((frame.right, frame.bottom + 37.0), Anchor::End, "m", &label);
    }
}

fn most_y_ticks(canvas: &Canvas) -> usize {
    if canvas.width < 500.0 { 6 } else { 8 }
}

fn draw_band(svg: &mut Svg, frame: &Frame, curve: &Curve) {
    let bands: Vec<(f64, f64, f64)> =
        curve.points.iter().filter_map(|point| point.band.map(|(low, high)| (point.x, low, high))).collect();
    if bands.len() < 2 {
        return;
    }
    let upper = bands.iter().map(|(x, _, high)| frame.place(*x, *high));
    let lower = bands.iter().rev().map(|(x, low, _)| frame.place(*x, *low));
    svg.path(&format!("i{}", curve.number % palette::COLOURS), &(polyline(upper.chain(lower)) + "Z"));
}

fn draw_curve(svg: &mut Svg, frame: &Frame, curve: &Curve) {
    let colour = curve.number % palette::COLOURS;
    let places: Vec<(f64, f64)> = curve.points.iter().map(|point| frame.place(point.x, point.y)).collect();
    svg.path(&format!("l{colour}"), &polyline(places.iter().copied()));
    if !curve.dots {
        return;
    }
    for (point, (x, y)) in curve.points.iter().zip(places) {
        if let Some((low, high)) = point.band {
            svg.line(frame.place(point.x, low), frame.place(point.x, high), &format!("k{colour}"));
        }
        svg.path_with_note(&format!("d{colour}"), &palette::mark(curve.number, x, y), &point.note);
    }
}

/// A cross at the place, and the letter beside it, where there is room.
fn draw_marks(svg: &mut Svg, frame: &Frame, marks: &[(char, &Mark)]) {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (letter, mark) in marks {
        let (x, y) = frame.place(mark.x, mark.y);
        // To the side that has more room.
        let side = if x + 4.0 * MARK_ROOM < frame.right { 1.0 } else { -1.0 };
        let (mut letter_x, letter_y) = (x + side * MARK_ROOM, y.clamp(frame.top + 8.0, frame.bottom - 8.0));
        while taken.iter().any(|(a, b)| (a - letter_x).abs() < MARK_ROOM && (b - letter_y).abs() < MARK_ROOM) {
            letter_x += side * MARK_ROOM;
        }
        taken.push((letter_x, letter_y));
        svg.line((x, y), (letter_x - side * 7.0, letter_y), "a");
        svg.path("x", &format!("M{:.1} {:.1}l7 7m0-7l-7 7", x - 3.5, y - 3.5));
        lettered(svg, *letter, letter_x, letter_y, &mark.note);
    }
}
