//! One line for each case, over one axis: from the fastest to the slowest samples, with the median and how sure it is. For cases that differ in nothing that could be an axis.

use super::scale::{Axis, Scale};
use super::svg::{Anchor, Svg, TEXT_PX, fitted, polyline, text_width};
use super::{Canvas, heading, palette};
use crate::results::units;

#[derive(Debug, Clone)]
pub struct Ranges {
    pub title: String,
    pub description: String,
    pub axis: Axis,
    /// Of the axis, for labels.
    pub unit: &'static str,
    pub rows: Vec<Row>,
}

#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub number: usize,
    pub min: f64,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// Further values with short labels, such as p99, ascending.
    pub further: Vec<(&'static str, f64)>,
    pub note: String,
}

const ROW_HEIGHT: f64 = 46.0;

impl Ranges {
    pub fn svg(&self, canvas: &Canvas) -> String {
        let mut svg = Svg::default();
        let top = heading(&mut svg, canvas) + 8.0;
        let ends = |row: &Row| {
            row.further.iter().map(|(_, value)| *value).chain([row.min, row.low, row.high]).collect::<Vec<_>>()
        };
        let scale = Scale::new(&self.axis, self.rows.iter().flat_map(ends));
        let (left, right) = (24.0, canvas.width - 32.0);
        let across = |value: f64| left + scale.at(value) * (right - left);
        let bottom = top + ROW_HEIGHT * self.rows.len() as f64;
        let fits = |most: &usize| {
            scale
                .ticks(*most)
                .into_iter()
                .all(|tick| text_width(&scale.label(tick)) + TEXT_PX < (right - left) / *most as f64)
        };
        for tick in scale.ticks((2..=10).rev().find(fits).unwrap_or(2)) {
            let x = across(tick);
            svg.line((x, top), (x, bottom), "g");
            svg.text((x, bottom + 18.0), Anchor::Middle, "m tick-x", &scale.label(tick));
        }
        svg.line((left, bottom), (right, bottom), "a");
        for (index, row) in self.rows.iter().enumerate() {
            self.row(&mut svg, row, top + ROW_HEIGHT * index as f64, (left, right), &across);
        }
        svg.text((right, bottom + 37.0), Anchor::End, "m", &fitted(&self.axis.label, right - left));
        svg.finish((canvas.width, bottom + 46.0), &canvas.id, &self.title, &self.description, &canvas.style)
    }

    fn row(&self, svg: &mut Svg, row: &Row, top: f64, (left, right): (f64, f64), across: &impl Fn(f64) -> f64) {
        let colour = row.number % palette::COLOURS;
        let further = row.further.iter().map(|(name, value)| format!(" · {name} {}", units::value(*value, self.unit)));
        let figures = units::value(row.median, self.unit) + &further.collect::<String>();
        let (figures, room) = if text_width(&figures) < (right - left) * 0.72 {
            let width = text_width(&figures);
            (figures, right - left - width - 12.0)
        } else {
            let short = units::value(row.median, self.unit);
            let width = text_width(&short);
            (short, right - left - width - 12.0)
        };
        // The texts have a ground of their own: the grid's lines end there.
        svg.path(
            "b",
            &polyline([
                (left - 2.0, top + 2.0),
                (right + 2.0, top + 2.0),
                (right + 2.0, top + 19.0),
                (left - 2.0, top + 19.0),
            ]),
        );
        svg.text((left, top + 15.0), Anchor::Start, "t", &fitted(&row.name, room));
        svg.text((right, top + 15.0), Anchor::End, "m", &figures);
        let y = top + 30.0;
        let last = row.further.last().map_or(row.high, |(_, value)| *value);
        svg.line((across(row.min), y), (across(last), y), &format!("k{colour}"));
        svg.line((across(row.low), y), (across(row.high), y), &format!("w{colour}"));
        for (_, value) in &row.further {
            svg.line((across(*value), y - 5.0), (across(*value), y + 5.0), &format!("k{colour}"));
        }
        svg.path_with_note(&format!("d{colour}"), &palette::mark(row.number, across(row.median), y), &row.note);
    }
}
