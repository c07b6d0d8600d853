//! Figures as PNG: the SVG, drawn with a font that the program brings, so that it looks the same on every machine.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

use super::{Figure, palette::Theme};

/// The characters of DejaVu Sans that figures use.
const FONT: &[u8] = include_bytes!("font/DejaVuSans-figures.ttf");

/// Pixels for each unit of the figure: sharp on today's screens.
const PIXELS: f32 = 2.0;

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the figure: {0}; write it as .svg")]
pub struct RasterError(String);

/// The figure as the bytes of a PNG file.
pub fn png(figure: &Figure, theme: &Theme) -> Result<Vec<u8>, RasterError> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = usvg::Options { fontdb: Arc::new(fonts), ..usvg::Options::default() };
    let tree = usvg::Tree::from_str(&figure.alone(theme), &options).map_err(|e| RasterError(e.to_string()))?;
    let (width, height) = ((tree.size().width() * PIXELS).ceil(), (tree.size().height() * PIXELS).ceil());
    let pixels = tiny_skia::Pixmap::new(width as u32, height as u32);
    let mut pixels = pixels.ok_or_else(|| RasterError(format!("{width} x {height} pixels are too many")))?;
    let [r, g, b] = [1, 3, 5].map(|at| u8::from_str_radix(&theme.background[at..at + 2], 16).unwrap_or(255));
    pixels.fill(tiny_skia::Color::from_rgba8(r, g, b, 255));
    resvg::render(&tree, tiny_skia::Transform::from_scale(PIXELS, PIXELS), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| RasterError(e.to_string()))
}
