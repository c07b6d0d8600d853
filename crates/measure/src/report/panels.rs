//! What is shown together: all transports of one pattern in one metric, over the one thing that varies (size, ranks, or a parameter), or over a plane of two parameters.

use std::cmp::Ordering;

use crate::plot::scale::Quantity;
use crate::record::{Case, Metric, Site};
use crate::results::group::{Group, groups, same_but_transport};
use crate::results::read::Results;
use crate::results::select::transports;
use crate::results::summary::{self, Side, Verdict};
use crate::results::units;

/// A parameter with at least so many values can span a plane with another one.
const PLANE_FROM: usize = 3;

/// Transports in the order in which they are shown; the first is the one that others are compared with.
#[derive(Debug, Clone)]
pub struct Order(Vec<String>);

impl Order {
    /// The baseline first if it is named, else kernel TCP; the others by name, Ropeway's own last.
    pub fn new(results: &[Results], baseline: Option<&str>) -> Order {
        let mut names = transports(results);
        names.sort_by_key(|name| {
            let place = match name.as_str() {
                name if Some(name) == baseline => 0,
                "tcp" => 1,
                // With a congestion control: it blocks as plain TCP does.
                name if name.starts_with("tcp:") => 2,
                name if name.starts_with("tcp") => 3,
                name if name.starts_with("ropeway") => 5,
                _ => 4,
            };
            (place, name.clone())
        });
        Order(names)
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    fn number(&self, transport: &str) -> usize {
        self.0.iter().position(|name| name == transport).unwrap_or(self.0.len())
    }
}

/// Something that cases differ in.
#[derive(Debug, Clone, PartialEq)]
pub enum Variable {
    Size,
    Ranks,
    Parameter(String),
}

impl Variable {
    pub fn of(&self, case: &Case) -> f64 {
        match self {
            Variable::Size => case.size as f64,
            Variable::Ranks => case.ranks as f64,
            Variable::Parameter(name) => case.parameters.get(name).copied().unwrap_or(f64::NAN),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Variable::Size => "message size",
            Variable::Ranks => "ranks",
            Variable::Parameter(name) => name,
        }
    }

    /// A value as a heading: `64 B`, `4 ranks`, `w 16`.
    pub fn text(&self, value: f64) -> String {
        match self {
            Variable::Size => units::bytes(value as u64),
            Variable::Ranks => format!("{value} ranks"),
            Variable::Parameter(name) if value.is_nan() => format!("no {name}"),
            Variable::Parameter(name) => format!("{name} {}", units::number(value)),
        }
    }

    pub fn quantity(&self, values: &[f64]) -> Quantity {
        match self {
            Variable::Size => Quantity::Bytes,
            _ if values.iter().all(|value| value.fract() == 0.0) => Quantity::Count,
            _ => Quantity::Unit(""),
        }
    }
}

/// What the cases of a panel differ in, besides the transport.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// One case for each transport.
    Single,
    Line(Variable),
    Plane(Variable, Variable),
}

/// Cases that are shown together.
#[derive(Debug, Clone)]
pub struct Panel {
    pub pattern: String,
    pub site: Site,
    pub metric: Metric,
    /// What all cases have in common, as far as other panels of the pattern have something else.
    pub common: String,
    pub layout: Layout,
    /// Values of the line's variable, ascending.
    pub columns: Vec<f64>,
    /// In the page's order of transports.
    pub rows: Vec<Row>,
    /// Cases of the pattern that gave nothing at least once, with their transports.
    pub failed: Vec<Case>,
}

/// A transport in a panel.
#[derive(Debug, Clone)]
pub struct Row {
    pub transport: String,
    /// Its place in the page's order, which gives it its colour.
    pub number: usize,
    pub cells: Vec<Cell>,
}

/// A case in one metric.
#[derive(Debug, Clone)]
pub struct Cell {
    pub case: Case,
    /// The value of the line's variable; 0 in a single case.
    pub x: f64,
    pub side: Side,
    /// Against the first transport.
    pub verdict: Option<Verdict>,
}

impl Panel {
    /// Whether they stand in one section: pattern and site are the same.
    pub fn stands_with(&self, other: &Panel) -> bool {
        (&self.pattern, self.site) == (&other.pattern, other.site)
    }

    /// Pattern, metric, what is common and where, for people.
    pub fn title(&self) -> String {
        let what = [self.common.as_str(), self.site.words()].into_iter().filter(|words| !words.is_empty());
        let what: String = what.map(|words| format!(", {words}")).collect();
        format!("{}: {}{what}", self.pattern, units::metric_name(self.metric))
    }
}

impl Panel {
    /// Whether this transport was tried at this place of the line, and failed.
    pub fn has_failed(&self, transport: &str, x: f64) -> bool {
        let at = |case: &Case| match &self.layout {
            Layout::Line(variable) => variable.of(case) == x,
            Layout::Single | Layout::Plane(..) => true,
        };
        self.failed.iter().any(|case| case.transport == transport && at(case))
    }
}

impl Row {
    pub fn cell(&self, x: f64) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.x.total_cmp(&x).is_eq())
    }
}

/// The panels of some runs, by pattern and metric.
pub fn panels(results: &[Results], order: &Order) -> Vec<Panel> {
    let groups = groups(results);
    let alike = |a: &Group<'_>, b: &Group<'_>| {
        (&a.case.pattern, a.case.site, a.metric) == (&b.case.pattern, b.case.site, b.metric)
    };
    let mut panels: Vec<Panel> = groups.chunk_by(alike).flat_map(|groups| split(groups, order)).collect();
    for panel in &mut panels {
        let failed = results.iter().flat_map(|results| &results.failed).map(|failed| &failed.case);
        panel.failed =
            failed.filter(|case| (&case.pattern, case.site) == (&panel.pattern, panel.site)).cloned().collect();
    }
    panels
}

/// Panels of one pattern and metric.
fn split(groups: &[Group<'_>], order: &Order) -> Vec<Panel> {
    let mut varying: Vec<(Variable, Vec<f64>)> = variables(groups);
    varying.retain(|(_, values)| values.len() > 1);
    let layout = layout(&varying);
    let shown = |variable: &Variable| match &layout {
        Layout::Single => false,
        Layout::Line(x) => x == variable,
        Layout::Plane(x, y) => x == variable || y == variable,
    };
    let common: Vec<Variable> =
        varying.into_iter().map(|(variable, _)| variable).filter(|variable| !shown(variable)).collect();
    let key = |group: &Group<'_>| common.iter().map(|variable| variable.of(group.case)).collect::<Vec<f64>>();
    let mut sorted: Vec<&Group<'_>> = groups.iter().collect();
    sorted.sort_by(|a, b| compare(&key(a), &key(b)));
    let same = |a: &&Group<'_>, b: &&Group<'_>| compare(&key(a), &key(b)).is_eq();
    sorted.chunk_by(same).map(|groups| panel(groups, &layout, &common, order)).collect()
}

fn compare(a: &[f64], b: &[f64]) -> Ordering {
    let orders = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
    orders.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Everything that could vary, with the values that occur.
fn variables(groups: &[Group<'_>]) -> Vec<(Variable, Vec<f64>)> {
    let mut names: Vec<&String> = groups.iter().flat_map(|group| group.case.parameters.keys()).collect();
    names.sort();
    names.dedup();
    let parameters = names.into_iter().map(|name| Variable::Parameter(name.clone()));
    let all = [Variable::Size, Variable::Ranks].into_iter().chain(parameters);
    let with_values = all.map(|variable| {
        let mut values: Vec<f64> = groups.iter().map(|group| variable.of(group.case)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup_by(|a, b| a.total_cmp(b).is_eq());
        (variable, values)
    });
    with_values.collect()
}

fn layout(varying: &[(Variable, Vec<f64>)]) -> Layout {
    let spans = |(variable, values): &&(Variable, Vec<f64>)| {
        matches!(variable, Variable::Parameter(_))
            && values.len() >= PLANE_FROM
            && values.iter().all(|value| value.is_finite())
    };
    let mut plane: Vec<&Variable> = varying.iter().filter(spans).map(|(variable, _)| variable).collect();
    // The window is the axis that its search is thought along ([2:6.2]).
    plane.sort_by_key(|variable| variable.name() != "w");
    match (&plane[..], varying.first()) {
        ([x, y, ..], _) => Layout::Plane((*x).clone(), (*y).clone()),
        (_, Some((variable, _))) => Layout::Line(variable.clone()),
        (_, None) => Layout::Single,
    }
}

fn panel(groups: &[&Group<'_>], layout: &Layout, common: &[Variable], order: &Order) -> Panel {
    let first = groups[0];
    let words: Vec<String> = common.iter().map(|variable| variable.text(variable.of(first.case))).collect();
    let mut rows: Vec<Row> = Vec::new();
    for name in order.names() {
        let of_this = groups.iter().filter(|group| group.case.transport == *name);
        let cells: Vec<Cell> = of_this.filter_map(|group| cell(group, layout)).collect();
        if !cells.is_empty() {
            rows.push(Row { transport: name.clone(), number: order.number(name), cells });
        }
    }
    let mut columns: Vec<f64> = rows.iter().flat_map(|row| row.cells.iter().map(|cell| cell.x)).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup_by(|a, b| a.total_cmp(b).is_eq());
    let mut panel = Panel {
        pattern: first.case.pattern.clone(),
        site: first.case.site,
        metric: first.metric,
        common: words.join(", "),
        layout: layout.clone(),
        columns,
        rows,
        failed: Vec::new(),
    };
    judge(&mut panel);
    panel
}

fn cell(group: &Group<'_>, layout: &Layout) -> Option<Cell> {
    let x = match layout {
        Layout::Line(variable) => variable.of(group.case),
        Layout::Single | Layout::Plane(..) => 0.0,
    };
    Some(Cell { case: group.case.clone(), x, side: Side::of(group)?, verdict: None })
}

/// Compares every transport with the panel's first.
fn judge(panel: &mut Panel) {
    let metric = panel.metric;
    let Some((first, others)) = panel.rows.split_first_mut() else { return };
    for cell in others.iter_mut().flat_map(|row| &mut row.cells) {
        let base = first.cells.iter().find(|base| same_but_transport(&base.case, &cell.case));
        cell.verdict = base.map(|base| summary::compare(&base.side, &cell.side, metric, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::group::tests::measured;

    /// Transport, size and parameters.
    type Tried<'a> = (&'a str, u64, &'a [(&'a str, f64)]);

    fn panels_of(cases: &[Tried<'_>]) -> Vec<Panel> {
        let mut results = Results::default();
        for (transport, size, parameters) in cases {
            let mut one = measured(transport, *size, 0, Metric::Goodput, vec![1.0, 2.0]);
            one.case.parameters = parameters.iter().map(|(name, value)| ((*name).into(), *value)).collect();
            results.measured.push(one);
        }
        let results = [results];
        panels(&results, &Order::new(&results, None))
    }

    #[test]
    fn sizes_are_an_axis_and_tcp_comes_first() {
        let found = panels_of(&[("ropeway", 8, &[]), ("ropeway", 64, &[]), ("unix", 64, &[]), ("tcp", 64, &[])]);
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].layout, &found[0].columns[..]), (&Layout::Line(Variable::Size), &[8.0, 64.0][..]));
        let rows: Vec<_> = found[0].rows.iter().map(|row| (row.transport.as_str(), row.cells.len())).collect();
        assert_eq!(rows, [("tcp", 1), ("unix", 1), ("ropeway", 2)]);
        assert!(found[0].rows[2].cell(64.0).is_some_and(|cell| cell.verdict.is_some()));
        assert!(found[0].rows[2].cell(8.0).is_some_and(|cell| cell.verdict.is_none()));
    }

    #[test]
    fn sites_have_panels_of_their_own_and_blocking_tcp_comes_first() {
        let mut results = Results::default();
        for (transport, site) in [("tcp-spin:cubic", Site::Box), ("tcp:cubic", Site::Box), ("tcp:cubic", Site::Here)] {
            let mut one = measured(transport, 8, 0, Metric::OneWay, vec![1.0, 2.0]);
            one.case.site = site;
            results.measured.push(one);
        }
        let results = [results];
        let [here, in_a_box] = &panels(&results, &Order::new(&results, None))[..] else { panic!("two panels") };
        assert_eq!((here.site, in_a_box.site, here.rows.len()), (Site::Here, Site::Box, 1));
        assert!(!here.stands_with(in_a_box) && in_a_box.title().ends_with(", in a box"));
        let rows: Vec<&str> = in_a_box.rows.iter().map(|row| row.transport.as_str()).collect();
        assert_eq!(rows, ["tcp:cubic", "tcp-spin:cubic"]);
    }

    #[test]
    fn a_search_is_a_plane_for_each_size() {
        let pairs: Vec<[(&str, f64); 2]> =
            (1..4).flat_map(|w| (1..4).map(move |r| [("r_ack", f64::from(r)), ("w", f64::from(w))])).collect();
        let cases: Vec<_> = pairs.iter().flat_map(|pair| [("tcp", 8, &pair[..]), ("tcp", 64, &pair[..])]).collect();
        let found = panels_of(&cases);
        assert_eq!(found.len(), 2);
        let plane = Layout::Plane(Variable::Parameter("w".into()), Variable::Parameter("r_ack".into()));
        assert!(found.iter().all(|panel| panel.layout == plane && panel.rows[0].cells.len() == 9));
        assert_eq!(found[1].common, "64 B");
    }

    #[test]
    fn one_case_is_no_axis() {
        let found = panels_of(&[("tcp", 8, &[]), ("unix", 8, &[])]);
        assert_eq!((found.len(), &found[0].layout), (1, &Layout::Single));
    }
}
