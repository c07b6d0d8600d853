//! `ropeway bench compare`, `report` and `plot`: what is made from result files, and the page as a real browser shows it.

use ropeway_testkit::proc::{Exit, Finished, Process, command};
use ropeway_testkit::{World, need_program};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// A name that would be markup, a formula and a command to a terminal, if anybody let it.
const HOSTILE: &str = "<script>alert('x')</script>\"onload=\"x\u{1b}[31m";

/// A result file in the making. Its values come from a fixed seed.
struct Sheet {
    lines: String,
    state: u64,
}

impl Sheet {
    fn new(kernel: &str, seed: u64) -> Sheet {
        let host = json!({"name": "node-a", "kernel": kernel, "architecture": "x86_64", "cpu_model": "Model 1", "cpus": [0, 1], "memory_mib": 8192,
            "hypervisor": true, "clock_source": "tsc", "clock_cost_ns": 25.0, "load_1min": 1.9, "offloads": {"eth0": ["tso on"]}});
        let run = json!({"line": "run", "format": 1, "command": ["ropeway", "bench", "it's"], "seed": seed, "started_unix_s": 1_795_305_600u64 + seed,
            "ropeway_version": "0.1.0", "commit": "abc", "hosts": [host]});
        let mut sheet = Sheet { lines: String::new(), state: 7 };
        sheet.line(&run);
        sheet
    }

    fn line(&mut self, line: &Value) {
        writeln!(self.lines, "{line}").expect("memory");
    }

    /// A factor around 1, with a rare large one.
    fn noise(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (self.state >> 33) as f64 / (1u64 << 31) as f64;
        if part > 0.995 { 4.0 } else { 0.95 + part / 10.0 }
    }

    fn measured(&mut self, case: &Value, round: u32, metric: &str, about: f64, samples: usize) {
        let samples: Vec<f64> = (0..samples).map(|_| about * self.noise()).collect();
        let mut line = json!({"line": "measured", "rank": 0, "round": round, "at_ns": u64::from(round) * 1_000_000, "cpu": 0,
            "series": [{"metric": metric, "batch": 1, "values": {"samples": samples}}]});
        line.as_object_mut().expect("an object").extend(case.as_object().expect("an object").clone());
        self.line(&line);
    }

    fn failed(&mut self, case: &Value, reason: &str) {
        let mut line = json!({"line": "failed", "round": 0, "reason": reason});
        line.as_object_mut().expect("an object").extend(case.as_object().expect("an object").clone());
        self.line(&line);
    }

    fn write(mut self, world: &World, name: &str) -> PathBuf {
        self.line(&json!({"line": "end", "trials": 1, "failed": 0, "seconds": 1.5}));
        let path = world.dir().join(name);
        std::fs::write(&path, self.lines).expect("a file of the test's own");
        path
    }
}

fn case(transport: &str, pattern: &str, size: u64, ranks: u64, parameters: Value) -> Value {
    json!({"transport": transport, "pattern": pattern, "size": size, "ranks": ranks, "parameters": parameters})
}

/// Everything that a report may hold: lines over sizes and ranks, distributions, single cases, a plane, model curves, failures, names that are hostile.
fn everything(world: &World) -> PathBuf {
    let mut sheet = Sheet::new("6.1", 1);
    let transports =
        [("tcp", 6500.0), ("tcp-spinning-with-a-rather-long-name", 4000.0), ("ropeway", 400.0), (HOSTILE, 9000.0)];
    for round in 0..6 {
        for (transport, latency) in transports {
            for size in [1u64, 64, 4096, 1 << 20] {
                let ns = latency + 0.2 * size as f64;
                sheet.measured(&case(transport, "pingpong", size, 2, json!({})), round, "one-way", ns, 200);
                sheet.measured(
                    &case(transport, "stream", size, 2, json!({})),
                    round,
                    "goodput",
                    1e9 * size as f64 / ns,
                    5,
                );
                for (metric, part) in [("gap", 0.3), ("send-overhead", 0.2), ("receive-overhead", 0.25)] {
                    sheet.measured(&case(transport, "plogp", size, 2, json!({})), round, metric, ns * part, 5);
                }
            }
            for ranks in [2u64, 3, 5, 9] {
                let incast = case(transport, "many-one", 65536, ranks, json!({}));
                sheet.measured(&incast, round, "completion", latency * ranks as f64, 60);
                sheet.measured(&incast, round, "fairness", 0.9, 1);
            }
            sheet.measured(
                &case(transport, "connection-rate", 1, 2, json!({})),
                round,
                "connection-rate",
                1e9 / latency,
                30,
            );
        }
    }
    for w in 1..=12u32 {
        for r_ack in 1..=12u32 {
            let place = case("ropeway", "search", 65536, 2, json!({"w": w, "r_ack": r_ack}));
            sheet.measured(&place, 0, "goodput", 1e8 * f64::from(w.min(8)) / f64::from(r_ack.max(4)), 3);
        }
    }
    sheet.failed(&case("ropeway", "many-one", 65536, 17, json!({})), HOSTILE);
    sheet.failed(&case("unix", "many-one", 65536, 9, json!({})), "rank 4 did not answer");
    sheet.line(&json!({"line": "warning", "text": HOSTILE}));
    sheet.write(world, "everything.jsonl")
}

fn bench(world: &World, args: &[&str]) -> Finished {
    let args: Vec<&str> = std::iter::once("bench").chain(args.iter().copied()).collect();
    Process::spawn(world.ropeway_command(&args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("names of tests are text")
}

fn report(world: &World) -> PathBuf {
    let (results, page) = (everything(world), world.dir().join("report.html"));
    bench(world, &["report", text(&results), "--references", "--out", text(&page)]).expect_success();
    page
}

/// Chromium on a page, without a window; what it wrote.
fn chromium(world: &World, options: &[&str], page: &Path) -> Finished {
    let profile = format!("--user-data-dir={}", world.dir().join("chromium").display());
    let mut args = vec![
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        &profile,
    ];
    args.extend(options);
    let url = format!("file://{}", page.display());
    args.push(&url);
    let finished = Process::spawn(command("chromium", args)).wait(LIMIT).unwrap_or_else(|e| panic!("{e}"));
    finished.expect_success()
}

const DARK: &str = "--blink-settings=preferredColorScheme=0";
const LIGHT: &str = "--blink-settings=preferredColorScheme=1";

#[test]
fn the_page_needs_nothing_else_and_names_stay_text() {
    let world = World::new();
    let page = std::fs::read_to_string(report(&world)).expect("the page");
    for foreign in ["<script", "\"onload", "<link", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "the page has {foreign}");
    }
    let addresses = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!addresses.contains("http://") && !addresses.contains("https://"), "the page names a site");
    for part in [
        "&lt;script&gt;",
        "2 trials failed",
        ">failed</td>",
        "node-a",
        "[4:6]",
        "Parameter search",
        "P-LogP curves of tcp",
        "node-a was busy",
    ] {
        assert!(page.contains(part), "the page lacks {part}");
    }
}

/// Looks at the page in a frame of a given width and writes down what is wrong with its layout.
const PROBE: &str = r#"<!doctype html><body style="margin:0"><iframe id="frame" src="report.html" style="border:0;height:4000px;width:WIDTHpx"></iframe>
<pre id="facts"></pre><script>
addEventListener('load', () => {
  const page = document.getElementById('frame').contentDocument, view = page.defaultView, wrong = [];
  const shown = element => element.getClientRects().length > 0;
  if (page.documentElement.scrollWidth > view.innerWidth) wrong.push('the page is ' + page.documentElement.scrollWidth + ' pixels wide');
  const figures = [...page.querySelectorAll('svg')].filter(shown);
  let texts = 0, smallest = 99;
  for (const figure of figures) {
    const frame = figure.getBoundingClientRect(), boxes = [...figure.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    texts += boxes.length;
    smallest = Math.min(smallest, 12 * frame.width / figure.viewBox.baseVal.width);
    boxes.forEach(([text, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) wrong.push(figure.id + ': "' + text + '" leaves the figure');
      for (const [other, place] of boxes.slice(index + 1))
        if (box.left < place.right - 1 && place.left < box.right - 1 && box.top < place.bottom - 2 && place.top < box.bottom - 2)
          wrong.push(figure.querySelector('title').textContent + ': "' + text + '" is over "' + other + '"');
    });
  }
  for (const heading of page.querySelectorAll('th[scope=row]'))
    if (shown(heading) && heading.getBoundingClientRect().width < 90) wrong.push('squeezed: ' + heading.textContent);
  const channels = colour => colour.match(/[\d.]+/g).map(Number);
  const light = colour => { const [r, g, b] = channels(colour).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = element => { for (; element; element = element.parentElement) { const c = view.getComputedStyle(element).backgroundColor; if (channels(c)[3] !== 0) return c; } return 'rgb(255,255,255)'; };
  for (const element of page.querySelectorAll('p, li, td, th, td span, th span, h1, h2, h3, a, summary, code, figcaption, caption')) {
    if (!shown(element) || !element.textContent.trim()) continue;
    const [a, b] = [light(view.getComputedStyle(element).color), light(ground(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) wrong.push('contrast ' + contrast.toFixed(1) + ': ' + element.textContent.slice(0, 40));
  }
  document.getElementById('facts').textContent = JSON.stringify({figures: figures.length, texts, smallest, background: view.getComputedStyle(page.body).backgroundColor, wrong});
});
</script></body>"#;

fn facts(world: &World, width: u32, appearance: &str) -> Value {
    let probe = world.dir().join(format!("probe-{width}.html"));
    std::fs::write(&probe, PROBE.replace("WIDTH", &width.to_string())).expect("a file of the test's own");
    let options = [
        appearance,
        "--allow-file-access-from-files",
        "--window-size=1600,1200",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ];
    let dom = chromium(world, &options, &probe).stdout;
    let facts = dom.split_once("<pre id=\"facts\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let facts = facts.map(|(facts, _)| facts.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
    let facts = facts.unwrap_or_else(|| panic!("the probe wrote nothing: {dom}"));
    serde_json::from_str(&facts).unwrap_or_else(|e| panic!("{e}: {facts}"))
}

#[test]
fn a_browser_lays_the_page_out_without_overlaps_at_any_width() {
    need_program!("chromium");
    let world = World::new();
    report(&world);
    for (width, appearance, background) in
        [(390, DARK, "rgb(20, 23, 28)"), (390, LIGHT, "rgb(255, 255, 255)"), (1200, LIGHT, "rgb(255, 255, 255)")]
    {
        let facts = facts(&world, width, appearance);
        assert_eq!(facts["wrong"], json!([]), "at {width} pixels");
        assert_eq!(facts["background"], background);
        assert!(facts["figures"].as_u64() > Some(12) && facts["texts"].as_u64() > Some(150), "{facts}");
        assert!(facts["smallest"].as_f64() > Some(11.0), "texts of figures are too small to read: {facts}");
    }
}

#[test]
fn a_browser_has_nothing_to_complain_about() {
    need_program!("chromium");
    let world = World::new();
    let complaints = |page: &Path| {
        let said = chromium(&world, &["--virtual-time-budget=5000", "--dump-dom"], page);
        let lines = said.stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
        (said.stdout, lines.collect::<Vec<String>>())
    };
    let (dom, said) = complaints(&report(&world));
    assert!(dom.contains("At a glance") && dom.trim_end().ends_with("</html>"), "the browser did not show the page");
    assert_eq!(said, [""; 0]);
    // The same browser does complain where there is something to complain about.
    let wrong = world.dir().join("wrong.html");
    std::fs::write(&wrong, "<script>console.error('seen')</script>").expect("a file of the test's own");
    assert!(complaints(&wrong).1.iter().any(|line| line.contains("seen")), "errors of the console do not arrive");
}

/// Width, and the pixels as (red, green, blue).
fn pixels(path: &Path) -> (usize, Vec<(u8, u8, u8)>) {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("no picture {}: {e}", path.display()));
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().expect("a PNG file");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size that fits")];
    let info = reader.next_frame(&mut bytes).expect("a whole picture");
    let samples = info.color_type.samples();
    let pixels = bytes[..info.buffer_size()].chunks_exact(samples).map(|pixel| (pixel[0], pixel[1], pixel[2]));
    (info.width as usize, pixels.collect())
}

#[test]
fn a_browser_paints_the_page_in_light_and_dark() {
    need_program!("chromium");
    let world = World::new();
    let page = report(&world);
    for (appearance, background, line) in [(LIGHT, (255, 255, 255), (0, 99, 168)), (DARK, (20, 23, 28), (77, 166, 232))]
    {
        let shot = world.dir().join("shot.png");
        let option = format!("--screenshot={}", shot.display());
        chromium(&world, &[appearance, "--force-device-scale-factor=1", "--window-size=1000,3000", &option], &page);
        let (width, pixels) = pixels(&shot);
        assert_eq!((width, pixels[0]), (1000, background), "{appearance}");
        let ground = pixels.iter().filter(|pixel| **pixel == background).count();
        assert!(
            ground > pixels.len() / 2 && ground < pixels.len() * 99 / 100,
            "{appearance}: {ground} of {}",
            pixels.len()
        );
        assert!(
            pixels.iter().filter(|pixel| **pixel == line).count() > 300,
            "{appearance}: the first transport's line is missing"
        );
        assert!(pixels.iter().collect::<HashSet<_>>().len() > 100, "{appearance}: too few colours for figures");
    }
}

fn two_transports(world: &World, name: &str, kernel: &str, seed: u64, ropeway_ns: f64) -> PathBuf {
    let mut sheet = Sheet::new(kernel, seed);
    for round in 0..6 {
        for (transport, ns) in [("tcp", 6500.0), ("ropeway", ropeway_ns)] {
            sheet.measured(&case(transport, "pingpong", 64, 2, json!({})), round, "one-way", ns, 100);
        }
    }
    sheet.write(world, name)
}

#[test]
fn two_runs_are_compared_in_words_and_by_exit_code() {
    let world = World::new();
    let before = two_transports(&world, "before.jsonl", "6.1", 1, 400.0);
    let after = two_transports(&world, "after.jsonl", "6.2", 2, 600.0);
    let compared = bench(&world, &["compare", text(&before), text(&after)]).expect_success().stdout;
    for part in [
        "times faster than B",
        "the kernels differ: 6.1 against 6.2",
        "ropeway, 64 B",
        "no difference between A and B larger than",
    ] {
        assert!(compared.contains(part), "{part}: {compared}");
    }
    let within = bench(&world, &["compare", text(&before), text(&after), "--fail-if-slower", "5%"]);
    assert_eq!(within.exit, Exit::Code(1), "{}", within.stdout);
    assert!(within.stderr.contains("worse than allowed: pingpong, ropeway, 64 B"), "{}", within.stderr);
    bench(&world, &["compare", text(&before), text(&after), "--fail-if-slower", "80%"]).expect_success();
}

#[test]
fn two_transports_of_one_run_are_compared() {
    let world = World::new();
    let file = two_transports(&world, "one.jsonl", "6.1", 1, 400.0);
    let short = bench(&world, &["compare", text(&file), "tcp", "ropeway"]).expect_success().stdout;
    assert!(short.contains("times faster"), "{short}");
    let (a, b) = (format!("{}:tcp", text(&file)), format!("{}:ropeway", text(&file)));
    assert!(bench(&world, &["compare", &a, &b]).expect_success().stdout.contains("times faster"));
    let unknown = bench(&world, &["compare", text(&file), "tcp", "pigeon"]);
    assert!(!unknown.success() && unknown.stderr.contains("it has: ropeway, tcp"), "{}", unknown.stderr);
}

#[test]
fn figures_and_tables_are_written() {
    let world = World::new();
    let results = everything(&world);
    let out = |name: &str| text(&world.dir().join(name)).to_owned();
    let plot = |more: &[&str]| bench(&world, &[&["plot", text(&results), "--pattern", "pingpong"][..], more].concat());
    for (name, more) in [("a.png", &[][..]), ("dark.png", &["--dark"][..])] {
        plot(&[&["--out", &out(name)], more].concat()).expect_success();
        let (width, pixels) = pixels(Path::new(&out(name)));
        let background = if more.is_empty() { (255, 255, 255) } else { (20, 23, 28) };
        assert_eq!((width, pixels[0]), (1520, background));
        assert!(pixels.iter().collect::<HashSet<_>>().len() > 100, "{name} is nearly empty");
    }
    plot(&["--kind", "distribution", "--where", "size=64", "--out", &out("a.svg")]).expect_success();
    let svg = std::fs::read_to_string(out("a.svg")).expect("the figure");
    assert!(svg.starts_with("<svg") && svg.contains("<desc") && !svg.contains("<script"));
    let table = plot(&["--csv"]).expect_success().stdout;
    assert_eq!(table.lines().count(), 1 + 4 * 4, "{table}");
    assert!(table.starts_with("pattern,transport,size_bytes,ranks,site,parameters,metric,unit,samples"), "{table}");
    let samples = plot(&["--csv", "samples", "--where", "size=64", "--where", "transport=tcp"]).expect_success().stdout;
    assert_eq!(samples.lines().count(), 1 + 6 * 200);
    let several = plot(&["--kind", "distribution"]);
    assert!(!several.success() && several.stderr.contains("choose one"), "{}", several.stderr);
}

#[test]
fn bad_files_are_refused_or_read_as_far_as_they_go() {
    let world = World::new();
    let refused = |args: &[&str], reason: &str| {
        let finished = bench(&world, args);
        assert!(!finished.success() && finished.stderr.contains(reason), "{args:?}: {}", finished.stderr);
    };
    let file = |name: &str, text: &str| {
        let path = world.dir().join(name);
        std::fs::write(&path, text).expect("a file of the test's own");
        path.display().to_string()
    };
    refused(&["report", &file("none.jsonl", "")], "is empty");
    refused(&["report", &file("text.jsonl", "hello\n")], "no result file");
    refused(&["report", &file("new.jsonl", r#"{"line":"run","format":9}"#)], "format 9");
    refused(&["report", "/nonexistent/x.jsonl"], "cannot read");
    refused(&["compare", "a.jsonl"], "required");
    let good = std::fs::read_to_string(two_transports(&world, "good.jsonl", "6.1", 1, 400.0)).expect("the file");
    let (cut, page) = (file("cut.jsonl", &good[..good.len() * 2 / 3]), world.dir().join("cut.html"));
    bench(&world, &["report", &cut, "--out", text(&page)]).expect_success();
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains("is cut off") && page.contains("did not come to its end"));
}
