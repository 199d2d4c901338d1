//! Figures of a page: lines and stacked bars. Colours are the page's, by number.

use super::html::escape;
use super::{BarChart, LineChart};
use std::fmt::Write;

const WIDTH: f64 = 880.0;
const COLORS: usize = 8;

/// Lines over an axis, both beginning at 0; names stand at the lines' ends.
pub(super) fn line_chart(figure: &LineChart) -> String {
    let points = || figure.lines.iter().flat_map(|(_, points)| points);
    let plot = Plot {
        right: round_up(points().map(|p| p.0).fold(0.0, f64::max)),
        top: round_up(points().map(|p| p.1).fold(0.0, f64::max)),
    };
    let mut svg = open(Plot::HEIGHT, &figure.title);
    plot.write_axes(&mut svg, figure);
    let mut names = Vec::new();
    for (i, (name, points)) in figure.lines.iter().enumerate() {
        let Some(last) = points.last() else { continue };
        let color = i % COLORS;
        plot.write_line(&mut svg, color, name, points);
        names.push((plot.y(last.1), color, name.as_str()));
    }
    write_names(&mut svg, names);
    svg + "</svg>\n"
}

/// The area that lines are drawn in, by the values at its right and upper end.
struct Plot {
    right: f64,
    top: f64,
}

impl Plot {
    const HEIGHT: f64 = 340.0;
    const LEFT: f64 = 64.0;
    const RIGHT: f64 = 170.0;
    const FOOT: f64 = 44.0;

    fn x(&self, value: f64) -> f64 {
        Self::LEFT + value / self.right * (WIDTH - Self::LEFT - Self::RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        Self::HEIGHT - Self::FOOT - value / self.top * (Self::HEIGHT - Self::FOOT - 12.0)
    }

    /// Both axes, with a rule and a number at each quarter.
    fn write_axes(&self, svg: &mut String, figure: &LineChart) {
        for i in 0..=4 {
            let (at, value) = (self.y(self.top * f64::from(i) / 4.0), self.top * f64::from(i) / 4.0);
            let _ = writeln!(
                svg,
                "<line class=\"rule\" x1=\"{}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                Self::LEFT,
                WIDTH - Self::RIGHT,
                Self::LEFT - 8.0,
                at + 4.0,
                number(value)
            );
            let value = self.right * f64::from(i) / 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.x(value),
                Self::HEIGHT - Self::FOOT + 18.0,
                number(value)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (Self::LEFT + WIDTH - Self::RIGHT) / 2.0,
            Self::HEIGHT - 8.0,
            escape(&figure.x),
            (Self::HEIGHT - Self::FOOT) / 2.0,
            escape(&figure.y)
        );
    }

    /// A line, and a dot at each of its points that says what it is.
    fn write_line(&self, svg: &mut String, color: usize, name: &str, points: &[(f64, f64)]) {
        let path: Vec<String> =
            points.iter().map(|p| format!("{:.1},{:.1}", self.x(p.0), self.y(p.1))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"var(--c{color})\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for p in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"var(--c{color})\"><title>{}: {} at {}</title></circle>",
                self.x(p.0),
                self.y(p.1),
                escape(name),
                number(p.1),
                number(p.0)
            );
        }
    }
}

/// Names at the heights where their lines end, as far down as is needed for no two to overlap.
fn write_names(svg: &mut String, mut names: Vec<(f64, usize, &str)>) {
    const LINE: f64 = 15.0;
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::MIN;
    for (at, color, name) in names {
        let at = at.max(free);
        free = at + LINE;
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"4\" fill=\"var(--c{color})\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - Plot::RIGHT + 8.0,
            at - 2.0,
            WIDTH - Plot::RIGHT + 24.0,
            at + 4.0,
            escape(name)
        );
    }
}

/// Horizontal bars of parts, with a legend above.
pub(super) fn bar_chart(figure: &BarChart) -> String {
    const LEFT: f64 = 170.0;
    const RIGHT: f64 = 90.0;
    const ROW: f64 = 28.0;
    const PER_LINE: usize = 4;
    let head = 12.0 + 20.0 * figure.parts.len().div_ceil(PER_LINE) as f64;
    let height = head + ROW * figure.bars.len() as f64 + 8.0;
    let length = |parts: &[f64]| parts.iter().sum::<f64>();
    let longest = figure.bars.iter().map(|(_, parts)| length(parts)).fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - LEFT - RIGHT) / longest } else { 0.0 };
    let mut svg = open(height, &figure.title);
    for (i, part) in figure.parts.iter().enumerate() {
        let (column, line) = ((i % PER_LINE) as f64, (i / PER_LINE) as f64);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" {}/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            8.0 + column * 215.0,
            4.0 + line * 20.0,
            fill(i),
            26.0 + column * 215.0,
            14.0 + line * 20.0,
            escape(part)
        );
    }
    for (row, (name, parts)) in figure.bars.iter().enumerate() {
        let top = head + ROW * row as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            top + 16.0,
            escape(name)
        );
        let mut at = LEFT;
        for (i, part) in parts.iter().enumerate() {
            let width = part * scale;
            let title = escape(figure.parts.get(i).map_or("", String::as_str));
            let _ = writeln!(
                svg,
                "<rect x=\"{at:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"20\" {}><title>{title}: {} {}</title></rect>",
                top + 2.0,
                fill(i),
                number(*part),
                escape(&figure.unit)
            );
            at += width;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
            at + 6.0,
            top + 16.0,
            number(length(parts)),
            escape(&figure.unit)
        );
    }
    svg + "</svg>\n"
}

/// The colour of part `i`; from the ninth on the same ones, paler.
fn fill(i: usize) -> String {
    let opacity = match i / COLORS {
        0 => "",
        1 => " fill-opacity=\"0.55\"",
        _ => " fill-opacity=\"0.3\"",
    };
    format!("fill=\"var(--c{})\"{opacity}", i % COLORS)
}

/// The beginning of a figure `height` high; `title` is what readers of the page hear.
pub(super) fn open(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    )
}

/// Three significant digits.
fn number(value: f64) -> String {
    if value == 0.0 || value == value.round() {
        return format!("{value:.0}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 9) as usize)
}

/// The next of 1, 1.2, 1.6, 2, 2.4, 3, 4, 6, 8 and their decades: an axis whose quarters are easily read.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let decade = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * decade).find(|end| *end >= value).unwrap_or(10.0 * decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_beyond_everything() {
        for (value, end) in [(0.0, 1.0), (8.0, 8.0), (8.1, 10.0), (131.0, 160.0), (0.013, 0.016)] {
            assert!((round_up(value) - end).abs() < 1e-9, "{value}: {}", round_up(value));
        }
    }

    #[test]
    fn a_figure_of_nothing_is_still_a_figure() {
        for svg in [line_chart(&LineChart::default()), bar_chart(&BarChart::default())] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
        let zero = BarChart { bars: vec![("x".into(), vec![0.0])], ..BarChart::default() };
        assert!(!bar_chart(&zero).contains("NaN") && !bar_chart(&zero).contains("inf"));
    }
}
