//! A plane of two parameters: the colour of each cell says what was measured there.

use super::scale::Quantity;
use super::svg::{Anchor, Svg, fitted, text_width};
use super::{Canvas, heading, palette};
use crate::record::Better;
use crate::results::units;

#[derive(Debug, Clone)]
pub struct Heat {
    pub title: String,
    pub description: String,
    /// What the colour says.
    pub label: String,
    pub unit: &'static str,
    pub better: Better,
    pub x: Side,
    pub y: Side,
    /// (index in x, index in y, value).
    pub cells: Vec<(usize, usize, f64)>,
}

/// One of the two parameters, with its values ascending.
#[derive(Debug, Clone)]
pub struct Side {
    pub name: String,
    pub quantity: Quantity,
    pub values: Vec<f64>,
}

impl Side {
    fn label(&self, index: usize) -> String {
        match self.quantity {
            Quantity::Bytes => units::bytes(self.values[index] as u64),
            _ => units::number(self.values[index]),
        }
    }

    /// Which values get a label when each has so many pixels and needs so many.
    fn labelled(&self, room: f64, need: f64) -> impl Iterator<Item = usize> {
        let step = (need / room).ceil().max(1.0) as usize;
        (0..self.values.len()).step_by(step)
    }
}

/// Colour bar: height and space to the plane.
const BAR_HEIGHT: f64 = 12.0;

impl Heat {
    pub fn svg(&self, canvas: &Canvas) -> String {
        let mut svg = Svg::default();
        let top = heading(&mut svg, canvas) + 4.0;
        let (low, high) = self.bounds();
        let widest = (0..self.y.values.len()).map(|index| text_width(&self.y.label(index))).fold(0.0, f64::max);
        let (left, right) = (widest + 20.0, canvas.width - 24.0);
        self.bar(&mut svg, (12.0, right), top, low, high);
        let plane = top + 58.0;
        svg.text((12.0, plane - 6.0), Anchor::Start, "m", &self.y.name);
        let (columns, rows) = (self.x.values.len().max(1) as f64, self.y.values.len().max(1) as f64);
        let width = ((right - left) / columns).min(64.0);
        let height = (width * 0.75).clamp(6.0, 30.0);
        let bottom = plane + height * rows;
        for (x, y, value) in &self.cells {
            let place = (left + *x as f64 * width, bottom - (*y as f64 + 1.0) * height);
            let part = if high > low { (value - low) / (high - low) } else { 1.0 };
            svg.cell(place, (width, height), &palette::ramp(part), &self.note(*x, *y, *value));
        }
        self.mark_best(&mut svg, |x, y| (left + (x as f64 + 0.5) * width, bottom - (y as f64 + 0.5) * height));
        for index in self.y.labelled(height, 14.0) {
            let y = bottom - (index as f64 + 0.5) * height;
            svg.text((left - 8.0, y + 4.0), Anchor::End, "m tick-y", &self.y.label(index));
        }
        let widest = (0..self.x.values.len()).map(|index| text_width(&self.x.label(index))).fold(0.0, f64::max);
        for index in self.x.labelled(width, widest + 8.0) {
            let x = left + (index as f64 + 0.5) * width;
            svg.text((x, bottom + 18.0), Anchor::Middle, "m tick-x", &self.x.label(index));
        }
        svg.text((left + width * columns, bottom + 37.0), Anchor::End, "m", &fitted(&self.x.name, right - left));
        svg.finish((canvas.width, bottom + 46.0), &canvas.id, &self.title, &self.description, &canvas.style)
    }

    fn bounds(&self) -> (f64, f64) {
        let values = self.cells.iter().map(|(_, _, value)| *value).filter(|value| value.is_finite());
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    }

    fn note(&self, x: usize, y: usize, value: f64) -> String {
        let (x, y) = (format!("{} {}", self.x.name, self.x.label(x)), format!("{} {}", self.y.name, self.y.label(y)));
        format!("{x}, {y}: {}", units::value(value, self.unit))
    }

    /// The cell with the best value.
    pub fn best(&self) -> Option<(usize, usize, f64)> {
        let finite = self.cells.iter().filter(|(_, _, value)| value.is_finite()).copied();
        match self.better {
            Better::More => finite.max_by(|a, b| a.2.total_cmp(&b.2)),
            Better::Less => finite.min_by(|a, b| a.2.total_cmp(&b.2)),
        }
    }

    fn mark_best(&self, svg: &mut Svg, centre: impl Fn(usize, usize) -> (f64, f64)) {
        let Some((x, y, value)) = self.best() else { return };
        let (across, down) = centre(x, y);
        svg.path_with_note("p", &palette::circle(across, down, 4.0), &format!("best: {}", self.note(x, y, value)));
    }

    /// The colours from low to high, with their values at the ends.
    fn bar(&self, svg: &mut Svg, (left, right): (f64, f64), top: f64, low: f64, high: f64) {
        const STEPS: usize = 40;
        let width = (right - left).min(360.0);
        svg.text(
            (left, top + 12.0),
            Anchor::Start,
            "m",
            &fitted(&format!("{}; the dot is the best", self.label), right - left),
        );
        let (from, to) = (units::value(low, self.unit), units::value(high, self.unit));
        let start = left + text_width(&from) + 8.0;
        let step = (width - text_width(&from) - text_width(&to) - 16.0).max(40.0) / STEPS as f64;
        svg.text((left, top + 31.0), Anchor::Start, "t legend", &from);
        for index in 0..STEPS {
            let part = index as f64 / (STEPS - 1) as f64;
            let place = (start + index as f64 * step, top + 21.0);
            svg.cell(place, (step + 0.3, BAR_HEIGHT), &palette::ramp(part), "");
        }
        svg.text((start + STEPS as f64 * step + 8.0, top + 31.0), Anchor::Start, "t legend", &to);
    }
}
