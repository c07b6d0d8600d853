//! The whole page: what was measured and where, each pattern, what failed, and the files behind it.

use std::fmt::Write;

use super::panels::{Order, Panel, panels};
use super::{figures, tables, words};
use crate::plot::svg::escape;
use crate::plot::{Figure, NARROW, WIDE, palette};
use crate::record::{Fit, Host, Run};
use crate::results::read::Results;
use crate::results::{group, units};

/// Failures and warnings that are listed one by one; of more, the number is said.
const MOST_LISTED: usize = 50;

/// Rules of the page that do not come from the palette.
const STYLE: &str = include_str!("page.css");

/// What the page is to be like.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub title: Option<String>,
    /// The transport that others are compared with, instead of kernel TCP.
    pub baseline: Option<String>,
    /// Whether values of the source documents are drawn beside today's.
    pub references: bool,
}

/// Makes the page.
pub fn page(results: &[Results], options: &Options) -> String {
    let order = Order::new(results, options.baseline.as_deref());
    let mut panels = panels(results, &order);
    panels.sort_by_key(|panel| (words::place(&panel.pattern), panel.site));
    let title = options.title.as_deref().unwrap_or("Interconnects, measured by ropeway bench");
    let mut body = Page { html: String::new(), figures: 0, references: options.references };
    body.head(title, results, &panels, &order);
    if panels.is_empty() {
        body.html += "<p>These files have no samples: see what failed below.</p>";
    } else {
        body.section("glance", "At a glance", &tables::glance(&panels, order.names()));
    }
    body.doubts(results);
    for (number, of_pattern) in panels.chunk_by(Panel::stands_with).enumerate() {
        let fits = results.iter().flat_map(|results| &results.fits);
        body.pattern(
            number,
            of_pattern,
            fits.filter(|fit| (fit.model.pattern(), fit.site) == (&of_pattern[0].pattern, of_pattern[0].site)),
        );
    }
    body.section("how", "How it was measured", &(machines(results) + &runs(results) + READING));
    let light = palette::variables(&palette::LIGHT) + "--better:#1a7f37;--worse:#b3261e;--panel:#f6f8fa;";
    let dark = palette::variables(&palette::DARK) + "--better:#5fd38a;--worse:#ff8f80;--panel:#1c2027;";
    let figures = palette::style(|name| format!("var(--{name})"), "inherit");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{}</title>\n<style>:root{{{light}}}\
         @media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{STYLE}{figures}</style></head>\n\
         <body><main>{}</main></body></html>\n",
        escape(title),
        body.html
    )
}

/// How to read the page, once.
const READING: &str = "<h3>How to read it</h3><ul>\
    <li>Every figure is a median; the range behind it is the median's 95 % interval, from order statistics, without an assumption about the distribution, and wider where rounds or neighbours in time differ. Too few samples have none. Bands and bars in figures are the same interval.</li>\
    <li>Ratios are those to the first transport, from trials that ran next to each other; fewer than six rounds show no difference. “Within” says how large a difference can be at most; “not sure” means that the interval holds both directions.</li>\
    <li>Outliers (further from the quartiles than three times their distance) are counted and kept.</li>\
    <li>Lines of many samples are thinned out for drawing alone.</li></ul>";

struct Page {
    html: String,
    /// Drawn so far: each gets an id of its own.
    figures: usize,
    references: bool,
}

impl Page {
    fn head(&mut self, title: &str, results: &[Results], panels: &[Panel], order: &Order) {
        let started = results.iter().filter_map(|results| results.run.as_ref()).map(|run| run.started_unix_s).min();
        let started = started.map(|at| format!("{}, ", words::moment(at))).unwrap_or_default();
        let cells = panels.iter().flat_map(|panel| &panel.rows).flat_map(|row| &row.cells);
        let samples = cells.fold(0u64, |sum, cell| sum.saturating_add(cell.side.summary.count));
        let _ = write!(
            self.html,
            "<header><h1>{}</h1><p class=\"lead\">{started}{}, {}, {}</p>",
            escape(title),
            count(results.len(), "run"),
            count(order.names().len(), "transport"),
            count(samples as usize, "sample")
        );
        self.html += "<nav aria-label=\"Sections\"><ul><li><a href=\"#glance\">At a glance</a></li>";
        for (number, of_pattern) in panels.chunk_by(Panel::stands_with).enumerate() {
            let title = escape(&words::section(&of_pattern[0]));
            let _ = write!(self.html, "<li><a href=\"#pattern-{number}\">{title}</a></li>");
        }
        self.html += "<li><a href=\"#how\">How it was measured</a></li></ul></nav></header>";
    }

    fn section(&mut self, id: &str, title: &str, content: &str) {
        let _ = write!(self.html, "<section id=\"{id}\"><h2>{}</h2>{content}</section>", escape(title));
    }

    /// What makes the figures doubtful: before the figures, and only where there is something to say.
    fn doubts(&mut self, results: &[Results]) {
        let failed: Vec<String> = results
            .iter()
            .flat_map(|results| &results.failed)
            .map(|failed| {
                let (pattern, transport) = (escape(&failed.case.pattern), escape(&failed.case.transport));
                let case = escape(&group::describe(&failed.case));
                format!("<b>{transport}</b>, {pattern}, {case}, round {}: {}", failed.round, escape(&failed.reason))
            })
            .collect();
        let warnings: Vec<String> = results
            .iter()
            .flat_map(|r| {
                r.warnings.iter().chain(&r.notes).map(|text| format!("{}: {}", escape(&r.source), escape(text)))
            })
            .chain(results.iter().flat_map(busy_hosts))
            .collect();
        if !failed.is_empty() {
            let title = count(failed.len(), "trial") + " failed";
            self.section("failed", &title, &list("failures", &failed));
        }
        if !warnings.is_empty() {
            let title = count(warnings.len(), "warning");
            self.section("warnings", &title, &list("warnings", &warnings));
        }
    }

    fn pattern<'a>(&mut self, number: usize, panels: &[Panel], fits: impl Iterator<Item = &'a Fit>) {
        let (title, what) = (words::section(&panels[0]), words::pattern(&panels[0].pattern).1);
        let mut content = if what.is_empty() { String::new() } else { format!("<p>{}</p>", escape(what)) };
        content.extend(fits.map(tables::fit));
        for panel in panels {
            let _ = write!(content, "<h3>{}</h3>", escape(&panel_title(panel)));
            for figure in figures::all(panel, self.references) {
                content += &self.figure(&figure);
            }
            content += &tables::summary(panel);
            content += &tables::details(panel);
            if self.references {
                content += &tables::printed(panel);
            }
        }
        for figure in figures::model_curves(&panels.iter().collect::<Vec<_>>()) {
            content += &self.figure(&figure);
        }
        self.section(&format!("pattern-{number}"), &title, &content);
    }

    /// The figure in two widths, of which the screen shows one: text keeps its size.
    fn figure(&mut self, figure: &Figure) -> String {
        self.figures += 1;
        let number = self.figures;
        let wide = figure.for_page(WIDE, &format!("figure-{number}"));
        let narrow = figure.for_page(NARROW, &format!("figure-{number}-narrow"));
        let title = escape(figure.title());
        format!(
            "<figure><figcaption>{title}</figcaption><div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div></figure>"
        )
    }
}

fn panel_title(panel: &Panel) -> String {
    let name = units::metric_name(panel.metric);
    let mut letters = name.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let common = if panel.common.is_empty() { String::new() } else { format!(", {}", panel.common) };
    format!("{first}{}{common}: {}", letters.as_str(), words::direction(panel.metric))
}

fn count(number: usize, what: &str) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    format!("{} {what}{}", groups.join("\u{202f}"), if number == 1 { "" } else { "s" })
}

fn list(class: &str, items: &[String]) -> String {
    let shown: String = items.iter().take(MOST_LISTED).map(|item| format!("<li>{item}</li>")).collect();
    let more = items.len().saturating_sub(MOST_LISTED);
    let more = if more > 0 { format!("<li>and {more} more</li>") } else { String::new() };
    format!("<ul class=\"{class}\">{shown}{more}</ul>")
}

/// Other work on a machine makes its figures worse.
fn busy_hosts(results: &Results) -> Vec<String> {
    let hosts = results.run.iter().flat_map(|run| &run.hosts);
    let busy = hosts.filter_map(|host| {
        let load = host.load_1min.filter(|load| *load > 0.5 * host.cpus.len().max(1) as f64)?;
        let (name, cpus) = (escape(&host.name), host.cpus.len());
        Some(format!("{name} was busy before the run: a load of {} on {cpus} CPUs", units::number(load)))
    });
    busy.collect()
}

fn machines(results: &[Results]) -> String {
    let mut seen: Vec<&Host> = Vec::new();
    for host in results.iter().filter_map(|results| results.run.as_ref()).flat_map(|run| &run.hosts) {
        if !seen.iter().any(|other| (&other.name, &other.kernel, &other.cpus) == (&host.name, &host.kernel, &host.cpus))
        {
            seen.push(host);
        }
    }
    if seen.is_empty() {
        return String::new();
    }
    let headings = ["host", "CPU", "CPUs used", "memory", "kernel", "clock", "load before", "offloads"];
    let mut table = String::from("<table class=\"all\"><caption>Machines</caption><thead><tr>");
    for heading in headings {
        let _ = write!(table, "<th scope=\"col\">{heading}</th>");
    }
    table += "</tr></thead><tbody>";
    for host in seen {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape(&host.name));
        for field in machine_fields(host) {
            let _ = write!(table, "<td>{}</td>", escape(&field));
        }
        table += "</tr>";
    }
    tables::scrolling("Machines", &(table + "</tbody></table>"))
}

fn machine_fields(host: &Host) -> [String; 7] {
    let virtual_machine = if host.hypervisor { ", virtual machine" } else { "" };
    let cpus: Vec<String> = host.cpus.iter().map(usize::to_string).collect();
    let offloads = host.offloads.iter().map(|(device, list)| format!("{device}: {}", list.join(", ")));
    [
        format!("{}, {}{virtual_machine}", host.cpu_model, host.architecture),
        cpus.join(", "),
        host.memory_mib.map_or_else(|| "not known".into(), |mib| format!("{} GiB", units::number(mib as f64 / 1024.0))),
        host.kernel.clone(),
        format!("{}, {} a reading", host.clock_source, units::value(host.clock_cost_ns, "ns")),
        host.load_1min.map_or_else(|| "not known".into(), units::number),
        offloads.collect::<Vec<_>>().join("; "),
    ]
}

fn runs(results: &[Results]) -> String {
    let mut html = String::from("<h3>Runs</h3><ul class=\"runs\">");
    for results in results {
        let _ = write!(html, "<li><b>{}</b>", escape(&results.source));
        if let Some(run) = &results.run {
            let _ =
                write!(html, "<br><code>{}</code><br>{}", escape(&command_line(&run.command)), escape(&run_facts(run)));
        }
        if let Some(end) = results.end {
            let (trials, failed) = (count(end.trials as usize, "trial"), end.failed);
            let _ = write!(html, "; {trials} in {} s, {failed} failed", units::number(end.seconds));
        }
        html += "</li>";
    }
    html + "</ul>"
}

fn run_facts(run: &Run) -> String {
    let commit = run.commit.as_deref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
    let offsets: Vec<String> = run
        .clock_offsets_ns
        .iter()
        .map(|(low, high)| format!("{} to {}", units::value(*low, "ns"), units::value(*high, "ns")))
        .collect();
    let offsets = if offsets.is_empty() { String::new() } else { format!(", clock offsets {}", offsets.join("; ")) };
    format!(
        "{}, Ropeway {}{commit}, seed {}{offsets}",
        words::moment(run.started_unix_s),
        run.ropeway_version,
        run.seed
    )
}

/// The command as a shell would take it.
fn command_line(command: &[String]) -> String {
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c));
    let quoted = command
        .iter()
        .map(|word| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PLogP, plogp};
    use crate::record::{Failed, Fitted, Metric, Site, Values};
    use crate::results::group::tests::measured;
    use crate::stats::Estimate;

    #[test]
    fn names_with_markup_stay_text() {
        let evil = "<script>alert('x')</script>\"onload=\"x";
        let mut results = Results { source: evil.into(), warnings: vec![evil.into()], ..Results::default() };
        for size in [8, 64, 512] {
            let mut one = measured(evil, size, 0, Metric::OneWay, vec![1.0; 200]);
            one.case.pattern = evil.into();
            one.case.parameters.insert(evil.into(), size as f64);
            results.failed.push(Failed { case: one.case.clone(), round: 0, reason: evil.into() });
            results.measured.push(one);
        }
        let html = page(&[results], &Options { title: Some(evil.into()), ..Options::default() });
        assert!(!html.contains("<script") && !html.contains("\"onload"), "markup of a name is in the page");
        assert!(html.contains("&lt;script&gt;"));
    }

    #[test]
    fn values_that_are_no_figures_are_survived() {
        let odd =
            [vec![], vec![f64::NAN], vec![-1.0, -2.0], vec![0.0; 300], vec![1e308, 1e-308], vec![f64::INFINITY, 1.0]];
        let mut results = Results::default();
        for metric in [Metric::OneWay, Metric::Loss, Metric::Goodput] {
            for (size, samples) in odd.iter().enumerate() {
                results.measured.push(measured("tcp", size as u64, 0, metric, samples.clone()));
                results.measured.push(measured("unix", size as u64, 0, metric, samples.clone()));
            }
        }
        let mut counted = measured("counted", 4, 0, Metric::OneWay, vec![]);
        counted.series[0].values = Values::Counts(vec![(5.0, u64::MAX), (6.0, u64::MAX), (7.0, 0)]);
        results.measured.push(counted);
        let html = page(&[results], &Options { references: true, ..Options::default() });
        assert!(!html.contains("NaN") && !html.contains("inf "), "a value that is no number is in the page");
        assert!(page(&[], &Options::default()).contains("no samples"));
    }

    #[test]
    fn a_fitted_model_stands_with_its_pattern() {
        let mut one = measured("tcp<", 8, 0, Metric::Gap, vec![1.0; 20]);
        one.case.pattern = plogp::PATTERN.into();
        let estimate = |value| Estimate { value, interval: None };
        let at = plogp::AtSize {
            bytes: 8,
            gap_ns: estimate(700.0),
            send_overhead_ns: estimate(300.0),
            receive_overhead_ns: estimate(200.0),
            one_way_ns: estimate(4_000.0),
        };
        let (switches, residuals, warnings) = (vec![], vec![], vec!["L is <odd>".into()]);
        let model = PLogP { latency_ns: estimate(3_300.0), sizes: vec![at], switches, residuals, warnings };
        let fits = vec![Fit {
            transport: "tcp<".into(),
            ranks: 2,
            site: Site::Here,
            parameters: [].into(),
            model: Fitted::PLogP(model),
        }];
        let html = page(&[Results { measured: vec![one], fits, ..Results::default() }], &Options::default());
        assert!(html.contains("P-LogP of tcp&lt;: L = 3.3 µs"), "{html}");
        assert!(html.contains("<td>700 ns</td>") && html.contains("<li>L is &lt;odd&gt;</li>"), "{html}");
    }

    #[test]
    fn a_million_samples_make_a_small_page() {
        let samples: Vec<f64> = (0..1_000_000).map(|n| 1000.0 + f64::from(n % 977) + f64::from(n) / 1e3).collect();
        let results = Results { measured: vec![measured("tcp", 8, 0, Metric::OneWay, samples)], ..Results::default() };
        let html = page(&[results], &Options::default());
        assert!(html.len() < 100_000, "{} bytes", html.len());
        assert!(html.contains("1\u{202f}000\u{202f}000 samples"));
    }
}
