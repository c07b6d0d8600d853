//! Tables of the page: what stands where for whoever wants the numbers.

use std::fmt::Write;

use super::panels::{Cell, Layout, Panel, Variable};
use super::{figures, reference, words};
use crate::plot::svg::escape;
use crate::record::Fit;
use crate::results::fits::{self, Table};
use crate::results::{group, units};

/// Columns of a table; of more sizes, so many are chosen, and the list of all figures has the others.
const MOST_COLUMNS: usize = 8;

/// A table that may be wider than the screen scrolls inside its own box, also by the keyboard.
pub fn scrolling(label: &str, table: &str) -> String {
    format!("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">{table}</div>", escape(label))
}

/// Transports as rows, values of the panel's variable as columns.
pub fn summary(panel: &Panel) -> String {
    let variable = match &panel.layout {
        Layout::Line(variable) => variable.clone(),
        Layout::Single => Variable::Size,
        Layout::Plane(..) => return best_of_planes(panel),
    };
    let columns = figures::chosen(&panel.columns, MOST_COLUMNS);
    let mut table = format!(
        "<table><caption>{}, medians with 95 % intervals</caption><thead><tr><th scope=\"col\">transport</th>",
        escape(&panel.title())
    );
    for x in &columns {
        let heading = match &panel.layout {
            Layout::Single => panel
                .rows
                .first()
                .and_then(|row| row.cells.first())
                .map_or_else(String::new, |cell| group::describe(&cell.case)),
            _ => variable.text(*x),
        };
        let _ = write!(table, "<th scope=\"col\">{}</th>", escape(&heading));
    }
    table += "</tr></thead><tbody>";
    for row in &panel.rows {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", name(&row.transport, row.number));
        for x in &columns {
            table += &row.cell(*x).map_or_else(|| missing(panel, &row.transport, *x), |cell| value(panel, cell));
        }
        table += "</tr>";
    }
    table += "</tbody></table>";
    scrolling(&panel.title(), &table)
}

/// A transport's name behind its colour.
pub fn name(transport: &str, number: usize) -> String {
    let colour = number % crate::plot::palette::COLOURS;
    format!("<span class=\"chip c{colour}\"></span>{}", escape(transport))
}

/// A place in the table without a value, and why.
fn missing(panel: &Panel, transport: &str, x: f64) -> String {
    let why = if panel.has_failed(transport, x) { "failed" } else { "not measured" };
    format!("<td class=\"none\">{why}</td>")
}

/// Median, interval, and how it stands to the first transport.
fn value(panel: &Panel, cell: &Cell) -> String {
    let (median, unit) = (cell.side.summary.median, panel.metric.unit());
    let scale = units::scale(median.value, unit);
    let interval = median.interval.map_or_else(String::new, |interval| {
        [interval.low, interval.high].map(|value| units::number(value / scale.divide_by)).join("\u{2009}–\u{2009}")
    });
    let against = words::against_first(cell);
    let against =
        against.map(|(text, class)| format!("<span class=\"ratio {class}\">{text}</span>")).unwrap_or_default();
    let note = escape(&words::cell_note(panel.metric, cell));
    let median = units::value(median.value, unit);
    format!("<td title=\"{note}\"><b>{median}</b><span class=\"interval\">{interval}</span>{against}</td>")
}

/// The best pair of parameters of each transport.
fn best_of_planes(panel: &Panel) -> String {
    let Layout::Plane(x, y) = &panel.layout else { return String::new() };
    let mut table = format!(
        "<table><caption>{}, best of the plane</caption><thead><tr><th scope=\"col\">transport</th><th scope=\"col\">{}</th>\
         <th scope=\"col\">{}</th><th scope=\"col\">median</th></tr></thead><tbody>",
        escape(&panel.title()),
        escape(x.name()),
        escape(y.name())
    );
    for row in &panel.rows {
        let median = |cell: &&Cell| cell.side.summary.median.value;
        let best = match panel.metric.better() {
            crate::record::Better::Less => row.cells.iter().min_by(|a, b| median(a).total_cmp(&median(b))),
            crate::record::Better::More => row.cells.iter().max_by(|a, b| median(a).total_cmp(&median(b))),
        };
        let Some(best) = best else { continue };
        let (across, up) = (units::number(x.of(&best.case)), units::number(y.of(&best.case)));
        let name = name(&row.transport, row.number);
        let _ =
            write!(table, "<tr><th scope=\"row\">{name}</th><td>{across}</td><td>{up}</td>{}</tr>", value(panel, best));
    }
    scrolling(&panel.title(), &(table + "</tbody></table>"))
}

/// Everything about every case of a panel, folded away.
pub fn details(panel: &Panel) -> String {
    let headings =
        ["transport", "case", "samples", "rounds", "median", "95 % interval", "p99", "least", "greatest", "outliers"];
    let mut table = format!("<table class=\"all\"><caption>{}, all cases</caption><thead><tr>", escape(&panel.title()));
    for heading in headings {
        let _ = write!(table, "<th scope=\"col\">{heading}</th>");
    }
    table += "</tr></thead><tbody>";
    for row in &panel.rows {
        for cell in &row.cells {
            let (s, value) = (&cell.side.summary, |value: f64| units::value(value, panel.metric.unit()));
            let interval = words::interval(panel.metric, s);
            let fields = [
                escape(&group::describe(&cell.case)),
                s.count.to_string(),
                s.rounds.to_string(),
                value(s.median.value),
                interval,
                value(s.p99.value),
                value(s.min),
                value(s.max),
                s.outliers.count().to_string(),
            ];
            let _ = write!(
                table,
                "<tr><th scope=\"row\">{}</th><td>{}</td></tr>",
                name(&row.transport, row.number),
                fields.join("</td><td>")
            );
        }
    }
    let table = scrolling(&format!("{}, all cases", panel.title()), &(table + "</tbody></table>"));
    format!("<details><summary>All figures of this panel</summary>{table}</details>")
}

/// A fitted model.
pub fn fit(fit: &Fit) -> String {
    let Table { title, headings, rows, notes } = fits::table(fit);
    let cells = |tag: &str, texts: &[&str]| -> String {
        texts.iter().map(|text| format!("<{tag}>{}</{}>", escape(text), &tag[..2])).collect()
    };
    let mut table = format!(
        "<table class=\"all\"><caption>{}, with 95 % intervals</caption><thead><tr>{}</tr></thead><tbody>",
        escape(&title),
        cells("th scope=\"col\"", &headings)
    );
    for row in &rows {
        let row: Vec<&str> = row.iter().map(String::as_str).collect();
        let (sizes, values) = row.split_at(1);
        let _ = write!(table, "<tr>{}{}</tr>", cells("th scope=\"row\"", sizes), cells("td", values));
    }
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
    let notes = if notes.is_empty() { notes } else { format!("<ul>{notes}</ul>") };
    scrolling(&title, &(table + "</tbody></table>")) + &notes
}

/// Printed values for a panel, with where they stand.
pub fn printed(panel: &Panel) -> String {
    let rows: String = reference::of(&panel.pattern, panel.metric)
        .map(|r| {
            let size = r.size.map_or_else(|| "not drawn".to_owned(), units::bytes);
            let fields = [r.printed.to_owned(), format!("{} {}", r.source, r.figure), size].map(|text| escape(&text));
            format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(r.system), fields.join("</td><td>"))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = format!(
        "<table class=\"all\"><caption>Printed in the source documents</caption><thead><tr><th scope=\"col\">system</th>\
         <th scope=\"col\">printed</th><th scope=\"col\">source</th><th scope=\"col\">drawn at</th></tr></thead><tbody>{rows}</tbody></table>"
    );
    scrolling("Printed values", &table)
}

/// The first table of the page: for each pattern the ends of its axis, transports as columns.
pub fn glance(panels: &[Panel], transports: &[String]) -> String {
    let mut table = String::from(
        "<table><caption>Medians, and how they stand to the first transport</caption><thead><tr><th scope=\"col\">case</th>",
    );
    for (number, transport) in transports.iter().enumerate() {
        let _ = write!(table, "<th scope=\"col\">{}</th>", name(transport, number));
    }
    table += "</tr></thead><tbody>";
    // The metrics of a pattern are in the order of their weight: the first one says most.
    for of_pattern in panels.chunk_by(Panel::stands_with) {
        let panel = &of_pattern[0];
        if matches!(panel.layout, Layout::Plane(..)) {
            continue;
        }
        for x in figures::chosen(&panel.columns, 2) {
            let what = match &panel.layout {
                Layout::Line(variable) => format!(", {}", variable.text(x)),
                _ => String::new(),
            };
            let (title, name) = (words::section(panel), units::metric_name(panel.metric));
            let _ = write!(
                table,
                "<tr><th scope=\"row\">{}{}<span class=\"interval\">{name}, {}</span></th>",
                escape(&title),
                escape(&what),
                words::direction(panel.metric)
            );
            for transport in transports {
                let cell = panel.rows.iter().find(|row| row.transport == *transport).and_then(|row| row.cell(x));
                table += &cell.map_or_else(|| missing(panel, transport, x), |cell| value(panel, cell));
            }
            table += "</tr>";
        }
    }
    scrolling("At a glance", &(table + "</tbody></table>"))
}
