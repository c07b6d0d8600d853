//! Which figures a panel is worth, and how samples become points.

use super::panels::{Cell, Layout, Panel, Variable};
use super::{reference, words};
use crate::plot::Figure;
use crate::plot::heat::{Heat, Side};
use crate::plot::lines::{Curve, Lines, Mark, Point};
use crate::plot::ranges::{Ranges, Row};
use crate::plot::scale::{Axis, Quantity, Spacing};
use crate::record::Metric;
use crate::results::{group, units};

/// Points of a curve of the distribution: more cannot be told apart at this size.
const TAIL_POINTS: usize = 120;

/// Samples that a 99th percentile, and a distribution's end, need to be more than chance.
const FEWEST_FOR_P99: u64 = 100;

/// Sizes whose distributions are shown: the first, a middle one and the last.
const MOST_TAILS: usize = 3;

/// Values of a parameter beyond which a plane has no cells that could be told apart.
const MOST_CELLS_A_SIDE: usize = 100;

/// All figures of a panel: the medians first.
pub fn all(panel: &Panel, references: bool) -> Vec<Figure> {
    let mut figures = medians(panel, references);
    if is_time(panel.metric) && panel.layout != Layout::Single {
        figures.extend(high_percentile(panel));
    }
    figures.extend(tails(panel));
    figures
}

fn is_time(metric: Metric) -> bool {
    metric.unit() == "ns"
}

/// Medians over the panel's axis or plane; one plane for each transport.
pub fn medians(panel: &Panel, references: bool) -> Vec<Figure> {
    match &panel.layout {
        Layout::Single => vec![Figure::Ranges(ranges(panel))],
        Layout::Line(variable) => vec![Figure::Lines(lines(panel, variable, references))],
        Layout::Plane(x, y) => panel.rows.iter().filter_map(|row| plane(panel, &row.cells, x, y)).collect(),
    }
}

fn lines(panel: &Panel, variable: &Variable, references: bool) -> Lines {
    let name = units::metric_name(panel.metric);
    let description = words::line_description(panel, variable);
    let curves = panel.rows.iter().map(|row| Curve {
        name: row.transport.clone(),
        number: row.number,
        points: row.cells.iter().filter(|cell| cell.x.is_finite()).map(|cell| point(panel, cell)).collect(),
        dots: true,
    });
    let mut lines = Lines {
        title: panel.title(),
        description,
        x: x_axis(panel, variable),
        y: y_axis(panel, &format!("{name}: median and its 95 % interval")),
        curves: curves.collect(),
        marks: Vec::new(),
        y_bounds: None,
    };
    if references && *variable == Variable::Size {
        lines.marks = printed(panel);
    }
    lines
}

fn printed(panel: &Panel) -> Vec<Mark> {
    let of_panel = reference::of(&panel.pattern, panel.metric);
    let marks = of_panel.filter_map(|reference| {
        let name = format!("{} {}", reference.source, reference.system);
        let note = format!("{name}: {}", reference.printed);
        Some(Mark { name, x: reference.size? as f64, y: reference.value, note })
    });
    marks.collect()
}

fn point(panel: &Panel, cell: &Cell) -> Point {
    let median = cell.side.summary.median;
    let band = median.interval.map(|interval| (interval.low, interval.high));
    Point { x: cell.x, y: median.value, band, note: words::cell_note(panel.metric, cell) }
}

fn x_axis(panel: &Panel, variable: &Variable) -> Axis {
    let quantity = variable.quantity(&panel.columns);
    let spacing = if *variable == Variable::Size { Spacing::Log } else { Spacing::Auto };
    Axis { label: variable.name().to_owned(), quantity, spacing }
}

fn y_axis(panel: &Panel, label: &str) -> Axis {
    let unit = panel.metric.unit();
    let spacing = if unit.is_empty() { Spacing::Linear } else { Spacing::Auto };
    Axis { label: label.to_owned(), quantity: Quantity::Unit(unit), spacing }
}

/// The same over the 99th percentile, where there are samples enough for one.
fn high_percentile(panel: &Panel) -> Option<Figure> {
    let Layout::Line(variable) = &panel.layout else { return None };
    let enough = |cell: &&Cell| cell.side.summary.count >= FEWEST_FOR_P99 && cell.x.is_finite();
    let name = units::metric_name(panel.metric);
    let note = |cell: &Cell| words::cell_note(panel.metric, cell);
    let curve = |row: &super::panels::Row| Curve {
        name: row.transport.clone(),
        number: row.number,
        points: row
            .cells
            .iter()
            .filter(enough)
            .map(|cell| Point { x: cell.x, y: cell.side.summary.p99.value, band: None, note: note(cell) })
            .collect(),
        dots: true,
    };
    let curves: Vec<Curve> = panel.rows.iter().map(curve).filter(|curve| !curve.points.is_empty()).collect();
    let figure = Figure::Lines(Lines {
        title: format!("{}: 99th percentile", panel.title()),
        description: format!("The time that 1 % of the samples exceed, over {}.", variable.name()),
        x: x_axis(panel, variable),
        y: y_axis(panel, &format!("{name}: 99th percentile")),
        curves,
        marks: Vec::new(),
        y_bounds: None,
    });
    let Figure::Lines(lines) = &figure else { return None };
    (!lines.curves.is_empty()).then_some(figure)
}

/// Distributions of a panel's times: which part of the samples took longer.
pub fn tails(panel: &Panel) -> Vec<Figure> {
    if !is_time(panel.metric) || matches!(panel.layout, Layout::Plane(..)) {
        return Vec::new();
    }
    chosen(&panel.columns, MOST_TAILS).into_iter().filter_map(|x| tail(panel, x)).collect()
}

/// So many of the values at most: first, last and evenly between.
pub fn chosen(values: &[f64], most: usize) -> Vec<f64> {
    if values.len() <= most {
        return values.to_vec();
    }
    (0..most).map(|step| values[step * (values.len() - 1) / (most - 1)]).collect()
}

fn tail(panel: &Panel, x: f64) -> Option<Figure> {
    let cells = panel.rows.iter().filter_map(|row| Some((row, row.cell(x)?)));
    let cells: Vec<_> = cells.filter(|(_, cell)| cell.side.summary.count >= FEWEST_FOR_P99).collect();
    let most = cells.iter().map(|(_, cell)| cell.side.summary.count).max()?;
    let curves = cells.iter().map(|(row, cell)| Curve {
        name: row.transport.clone(),
        number: row.number,
        points: tail_points(cell),
        dots: false,
    });
    let what = match &panel.layout {
        Layout::Line(variable) => format!(", {}", variable.text(x)),
        _ => String::new(),
    };
    let name = units::metric_name(panel.metric);
    Some(Figure::Lines(Lines {
        title: format!("{}{what}: distribution", panel.title()),
        description:
            "Which part of the samples took longer than a time, on logarithmic axes: the lower right end is the tail."
                .into(),
        x: Axis { label: name.into(), quantity: Quantity::Unit("ns"), spacing: Spacing::Auto },
        y: Axis {
            label: "part of the samples that took longer".into(),
            quantity: Quantity::Unit(""),
            spacing: Spacing::Log,
        },
        curves: curves.collect(),
        marks: Vec::new(),
        y_bounds: Some((1.0 / most as f64, 1.0)),
    }))
}

fn tail_points(cell: &Cell) -> Vec<Point> {
    let least = 1.0 / cell.side.summary.count as f64;
    let parts: Vec<f64> = (0..=TAIL_POINTS).map(|step| least.powf(step as f64 / TAIL_POINTS as f64)).collect();
    let point = |part: f64| {
        let value = cell.side.all.quantile(1.0 - part)?;
        Some(Point { x: value, y: part, band: None, note: String::new() })
    };
    parts.into_iter().filter_map(point).collect()
}

fn ranges(panel: &Panel) -> Ranges {
    let rows = panel.rows.iter().flat_map(|row| {
        row.cells.iter().map(|cell| {
            let s = &cell.side.summary;
            let further = if is_time(panel.metric) && s.count >= FEWEST_FOR_P99 {
                let p999 = (s.count >= 10 * FEWEST_FOR_P99).then_some(s.p999.value);
                std::iter::once(("p99", s.p99.value)).chain(p999.map(|value| ("p99.9", value))).collect()
            } else {
                vec![("max", s.max)]
            };
            Row {
                name: row.transport.clone(),
                number: row.number,
                min: s.min,
                median: s.median.value,
                // Without an interval there is no bar.
                low: s.median.interval.map_or(s.median.value, |interval| interval.low),
                high: s.median.interval.map_or(s.median.value, |interval| interval.high),
                further,
                note: words::cell_note(panel.metric, cell),
            }
        })
    });
    let case = panel.rows.first().and_then(|row| row.cells.first()).map(|cell| group::describe(&cell.case));
    let name = units::metric_name(panel.metric);
    Ranges {
        title: format!("{}, {}", panel.title(), case.unwrap_or_default()),
        description: format!(
            "The {name} of each transport from the least sample to the greatest ones, with the median and its 95 % interval."
        ),
        axis: y_axis(panel, name),
        unit: panel.metric.unit(),
        rows: rows.collect(),
    }
}

fn plane(panel: &Panel, cells: &[Cell], x: &Variable, y: &Variable) -> Option<Figure> {
    let first = cells.first()?;
    let side = |variable: &Variable| {
        let mut values: Vec<f64> = cells.iter().map(|cell| variable.of(&cell.case)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let quantity = variable.quantity(&values);
        Side { name: variable.name().to_owned(), quantity, values }
    };
    let (across, up) = (side(x), side(y));
    if across.values.len() > MOST_CELLS_A_SIDE || up.values.len() > MOST_CELLS_A_SIDE {
        return None;
    }
    let index = |side: &Side, value: f64| side.values.iter().position(|other| *other == value);
    let placed = cells.iter().filter_map(|cell| {
        let place = (index(&across, x.of(&cell.case))?, index(&up, y.of(&cell.case))?);
        Some((place.0, place.1, cell.side.summary.median.value))
    });
    let (transport, name) = (&first.case.transport, units::metric_name(panel.metric));
    let mut heat = Heat {
        title: format!("{}, {transport}", panel.title()),
        description: String::new(),
        label: format!("{name}, median"),
        unit: panel.metric.unit(),
        better: panel.metric.better(),
        cells: placed.collect(),
        x: across,
        y: up,
    };
    heat.description = words::plane_description(&heat);
    Some(Figure::Heat(heat))
}

/// The curves of the P-LogP model of each transport: gap and overheads over the message size ([2:6.3.4]).
pub fn model_curves(panels: &[&Panel]) -> Vec<Figure> {
    const MODEL: [(Metric, &str); 3] = [
        (Metric::Gap, "gap g(s)"),
        (Metric::SendOverhead, "send overhead o_s(s)"),
        (Metric::ReceiveOverhead, "receive overhead o_r(s)"),
    ];
    let over_sizes = |panel: &&&Panel| panel.layout == Layout::Line(Variable::Size);
    let of_model: Vec<(&Panel, usize)> = panels
        .iter()
        .filter(over_sizes)
        .filter_map(|panel| Some((*panel, MODEL.iter().position(|(metric, _)| *metric == panel.metric)?)))
        .collect();
    let Some((first, _)) = of_model.first() else { return Vec::new() };
    let mut transports: Vec<(usize, &str)> = of_model
        .iter()
        .flat_map(|(panel, _)| panel.rows.iter().map(|row| (row.number, row.transport.as_str())))
        .collect();
    transports.sort();
    transports.dedup();
    let figure = |transport: &str| {
        let curve = |(panel, number): &(&Panel, usize)| {
            let row = panel.rows.iter().find(|row| row.transport == transport)?;
            let points = row.cells.iter().map(|cell| point(panel, cell)).collect();
            Some(Curve { name: MODEL[*number].1.into(), number: *number, points, dots: true })
        };
        let curves: Vec<Curve> = of_model.iter().filter_map(curve).collect();
        (curves.len() > 1).then(|| {
            Figure::Lines(Lines {
                title: format!("{}: P-LogP curves of {transport}", first.pattern),
                description: "What a message of a size costs the sender, the receiver and those behind it.".into(),
                x: x_axis(first, &Variable::Size),
                y: y_axis(first, "time: median and its 95 % interval"),
                curves,
                marks: Vec::new(),
                y_bounds: None,
            })
        })
    };
    transports.into_iter().filter_map(|(_, transport)| figure(transport)).collect()
}
