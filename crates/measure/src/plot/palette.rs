//! What figures look like: colours for light and dark, that people with each kind of colour blindness tell apart, and marks and dashes for those who see no colour.

use std::fmt::Write;

/// Series with colours of their own; further ones start again, with other marks.
pub const COLOURS: usize = 7;

/// The colours of one appearance.
#[derive(Debug)]
pub struct Theme {
    pub background: &'static str,
    pub text: &'static str,
    pub muted: &'static str,
    pub grid: &'static str,
    pub series: [&'static str; COLOURS],
}

/// After Okabe and Ito, darkened until each stands out from white.
pub const LIGHT: Theme = Theme {
    background: "#ffffff",
    text: "#1b1f24",
    muted: "#57606a",
    grid: "#dfe3e8",
    series: ["#0063a8", "#c8500a", "#00805c", "#a8478a", "#4d4d4d", "#8a6d00", "#2f8fd0"],
};

pub const DARK: Theme = Theme {
    background: "#14171c",
    text: "#e8ebef",
    muted: "#a3adb8",
    grid: "#333a43",
    series: ["#4da6e8", "#ff8a4c", "#2cc79a", "#e39ac6", "#f0f0f0", "#e5c94a", "#96b8ff"],
};

/// Dashes tell lines apart where there are no marks on them.
const DASHES: [&str; COLOURS] = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2"];

/// The rules that figures need. `colour` gives the text of a colour: a value, or a variable of the page.
pub fn style(colour: impl Fn(&str) -> String, font: &str) -> String {
    let (text, muted, grid, back) = (colour("text"), colour("muted"), colour("grid"), colour("background"));
    let mut css = format!(
        ".t,.m,.n{{font-family:{font};font-size:12px;fill:{text}}}.m{{fill:{muted}}}.n{{font-size:10px;font-weight:bold}}\
         .h{{font-family:{font};font-size:15px;font-weight:bold;fill:{text}}}\
         .g{{stroke:{grid};stroke-width:1;fill:none}}.a{{stroke:{muted};stroke-width:1;fill:none}}\
         .p{{stroke:{text};stroke-width:1.2;fill:{back}}}.x{{stroke:{text};stroke-width:1.5;fill:none}}.b{{fill:{back}}}"
    );
    for (index, dash) in DASHES.iter().enumerate() {
        let series = colour(&format!("series-{index}"));
        let _ = write!(
            css,
            ".l{index}{{stroke:{series};stroke-width:2;fill:none;stroke-linejoin:round;stroke-dasharray:{dash}}}\
             .k{index}{{stroke:{series};stroke-width:2;fill:none}}\
             .d{index}{{fill:{series};stroke:{back};stroke-width:1}}.i{index}{{fill:{series};fill-opacity:0.16}}\
             .w{index}{{stroke:{series};stroke-width:7;stroke-opacity:0.45;fill:none}}"
        );
    }
    css
}

/// The rules with the theme's own colours, for a figure that stands alone.
pub fn alone(theme: &Theme, font: &str) -> String {
    style(|name| theme.colour(name).to_owned(), font)
}

/// The theme as variables of a page: `--text:#...;`.
pub fn variables(theme: &Theme) -> String {
    let names = ["background", "text", "muted", "grid"].map(str::to_owned).into_iter();
    let series = (0..COLOURS).map(|index| format!("series-{index}"));
    names.chain(series).map(|name| format!("--{name}:{};", theme.colour(&name))).collect()
}

impl Theme {
    fn colour(&self, name: &str) -> &'static str {
        match name {
            "background" => self.background,
            "text" => self.text,
            "muted" => self.muted,
            "grid" => self.grid,
            series => {
                let index = series.trim_start_matches("series-").parse().unwrap_or(0);
                self.series[index % COLOURS]
            }
        }
    }
}

/// The outline of the mark with this number around a place.
pub fn mark(number: usize, x: f64, y: f64) -> String {
    let closed = |corners: &[(f64, f64)]| {
        super::svg::polyline(corners.iter().map(|(across, down)| (x + across, y + down))) + "Z"
    };
    match (number + number / COLOURS) % COLOURS {
        0 => circle(x, y, 4.0),
        1 => closed(&[(-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)]),
        2 => closed(&[(0.0, -5.0), (4.8, 3.6), (-4.8, 3.6)]),
        3 => closed(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)]),
        4 => closed(&[(0.0, 5.0), (4.8, -3.6), (-4.8, -3.6)]),
        5 => closed(&[
            (-1.6, -5.0),
            (1.6, -5.0),
            (1.6, -1.6),
            (5.0, -1.6),
            (5.0, 1.6),
            (1.6, 1.6),
            (1.6, 5.0),
            (-1.6, 5.0),
            (-1.6, 1.6),
            (-5.0, 1.6),
            (-5.0, -1.6),
            (-1.6, -1.6),
        ]),
        _ => closed(&[(-2.5, -4.6), (2.5, -4.6), (5.0, 0.0), (2.5, 4.6), (-2.5, 4.6), (-5.0, 0.0)]),
    }
}

pub fn circle(x: f64, y: f64, r: f64) -> String {
    format!("M{:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z", x - r, d = 2.0 * r)
}

/// Colours from low to high that stay in order for everybody, in light and in dark: stops of cividis (Nuñez, Anderton and Renslow, 2018).
const RAMP: [(u8, u8, u8); 10] = [
    (0, 32, 77),
    (0, 51, 111),
    (57, 72, 107),
    (87, 92, 109),
    (112, 113, 115),
    (138, 135, 121),
    (166, 157, 117),
    (196, 181, 108),
    (228, 207, 91),
    (255, 234, 70),
];

/// The colour at a part from 0 to 1 of the ramp.
pub fn ramp(part: f64) -> String {
    let place = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 } * (RAMP.len() - 1) as f64;
    let index = (place as usize).min(RAMP.len() - 2);
    let between = place - index as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * between).round() as u8;
    let ((r, g, b), (r2, g2, b2)) = (RAMP[index], RAMP[index + 1]);
    format!("#{:02x}{:02x}{:02x}", mix(r, r2), mix(g, g2), mix(b, b2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour")) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance(colour: &str) -> f64 {
        let [r, g, b] = linear(colour);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn everything_stands_out_from_the_background() {
        for theme in [&LIGHT, &DARK] {
            assert!(contrast(theme.text, theme.background) >= 7.0);
            assert!(contrast(theme.muted, theme.background) >= 4.5);
            for colour in theme.series {
                assert!(contrast(colour, theme.background) >= 3.0, "{colour} on {}", theme.background);
            }
        }
    }

    /// What is left of a colour in linear light, by Viénot, Brettel and Mollon (1999): without red cones, without green cones.
    const BLINDNESS: [[[f64; 3]; 3]; 2] = [
        [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
        [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
    ];

    fn lab([r, g, b]: [f64; 3]) -> [f64; 3] {
        let x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505;
        let y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
        let z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089;
        let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        [116.0 * f(y) - 16.0, 500.0 * (f(x) - f(y)), 200.0 * (f(y) - f(z))]
    }

    #[test]
    fn the_first_colours_differ_for_everybody() {
        let distance =
            |a: [f64; 3], b: [f64; 3]| lab(a).into_iter().zip(lab(b)).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        for theme in [&LIGHT, &DARK] {
            for (index, a) in theme.series[..5].iter().enumerate() {
                for b in &theme.series[index + 1..5] {
                    let (a_light, b_light) = (linear(a), linear(b));
                    for matrix in BLINDNESS {
                        let seen = |c: [f64; 3]| matrix.map(|row| row[0] * c[0] + row[1] * c[1] + row[2] * c[2]);
                        let apart = distance(seen(a_light), seen(b_light));
                        assert!(apart > 12.0, "{a} and {b} are {apart:.1} apart");
                    }
                }
            }
        }
    }

    #[test]
    fn the_ramp_gets_lighter() {
        let steps: Vec<f64> = (0..=20).map(|step| luminance(&ramp(f64::from(step) / 20.0))).collect();
        assert!(steps.is_sorted(), "{steps:?}");
        assert_eq!(ramp(f64::NAN), ramp(0.0));
    }
}
