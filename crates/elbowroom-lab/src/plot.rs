//! Figures: white paper, dark text, a palette that colour-blind readers can tell apart (Okabe and Ito), names written at
//! the lines rather than in a legend, units on every axis. Each function returns the text of an SVG.

use crate::backend::Variant;
use crate::stats::Spread;
use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Distinct colours for things that are not variants.
pub(crate) const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

const INK: RGBColor = RGBColor(34, 34, 34);
const RULE: RGBColor = RGBColor(222, 222, 222);
const FONT: &str = "DejaVu Sans, Helvetica, Arial, sans-serif";
const WIDTH: u32 = 920;
const LINE_HEIGHT: i32 = 18;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane = Cartesian2d<RangedCoordf64, RangedCoordf64>;

/// The colour a variant has in every figure.
pub(crate) fn color(variant: Variant) -> RGBColor {
    match variant {
        Variant::Native => RGBColor(110, 110, 110),
        Variant::Lxcfs => PALETTE[1],
        Variant::Elbowroom => PALETTE[0],
    }
}

/// One axis. On a logarithmic one, `from` and `to` are above zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis<'a> {
    /// Quantity and unit.
    pub(crate) label: &'a str,
    /// Whether it is logarithmic.
    pub(crate) log: bool,
    /// First value.
    pub(crate) from: f64,
    /// Last value.
    pub(crate) to: f64,
    /// How a value is written at a tick.
    pub(crate) tick: fn(f64) -> String,
}

/// A named line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Written at its right end.
    pub(crate) name: String,
    /// Its colour.
    pub(crate) color: RGBColor,
    /// Its points, by ascending x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether each point is a measurement of its own and gets a mark.
    pub(crate) marks: bool,
}

/// One of several plots that share an x axis.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// Written above it.
    pub(crate) title: String,
    /// Largest y; the smallest is 0.
    pub(crate) top: f64,
    /// What is drawn, the first at the bottom.
    pub(crate) layers: Vec<Layer>,
}

/// Something drawn in a panel.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// How.
    pub(crate) pen: Pen,
    /// Its colour.
    pub(crate) color: RGBColor,
    /// Its points, by ascending x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// How points are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pen {
    /// A line from point to point.
    Line,
    /// A value that holds until the next point.
    Steps,
    /// The same, thin: for what only is the background of something.
    Thin,
    /// A value that holds, dashed.
    Dashed,
    /// A value that holds, dotted.
    Dotted,
    /// What is under the line, filled.
    Area,
    /// What the points go around, filled lightly.
    Band,
}

/// Several lines in one plot.
pub(crate) fn lines(title: &str, x: &Axis, y: &Axis, lines: &[Line]) -> Result<String> {
    draw(440, |root| {
        heading(root, title)?;
        let mut chart = ChartBuilder::on(root)
            .margin_top(44)
            .margin_left(12)
            .margin_right(150)
            .margin_bottom(10)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(x.range(), y.range())?;
        mesh(&mut chart, x, y, 8, 8)?;
        let mut labels = Vec::new();
        for line in lines {
            let points: Vec<(f64, f64)> = line.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
            let Some(last) = points.last() else { continue };
            labels.push((chart.backend_coord(last), line));
            chart.draw_series(LineSeries::new(points.iter().copied(), line.color.stroke_width(2)))?;
            if line.marks {
                chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, line.color.filled())))?;
            }
        }
        labels.sort_by_key(|((_, y), _)| *y);
        let mut free = i32::MIN;
        for ((_, py), line) in labels {
            let at = py.max(free);
            free = at + LINE_HEIGHT;
            let right = WIDTH as i32 - 146;
            root.draw(&PathElement::new([(right, at), (right + 14, at)], line.color.stroke_width(3)))?;
            root.draw(&Text::new(line.name.clone(), (right + 20, at), text(14, HPos::Left)))?;
        }
        Ok(())
    })
}

/// Plots above one another over the same x axis. The caption says what is drawn how, the legend whose colour is which.
pub(crate) fn panels(
    title: &str,
    caption: &str,
    legend: &[(&str, RGBColor)],
    (x, y_label): (&Axis, &str),
    panels: &[Panel],
) -> Result<String> {
    const HEAD: i32 = 62;
    const FOOT: i32 = 48;
    let one = (620 / panels.len().max(1) as i32).clamp(128, 210);
    let height = HEAD + one * panels.len() as i32 + FOOT;
    draw(height as u32, |root| {
        heading(root, title)?;
        root.draw(&Text::new(caption.to_owned(), (16, 42), text(14, HPos::Left)))?;
        for (i, (name, color)) in legend.iter().rev().enumerate() {
            let at = WIDTH as i32 - 84 - 90 * i as i32;
            root.draw(&PathElement::new([(at, 42), (at + 18, 42)], color.stroke_width(3)))?;
            root.draw(&Text::new((*name).to_owned(), (at + 24, 42), text(14, HPos::Left)))?;
        }
        for (i, panel) in panels.iter().enumerate() {
            let last = i + 1 == panels.len();
            let top = HEAD + one * i as i32;
            let area = root.clone().shrink((0, top), (WIDTH, (one + if last { FOOT } else { 0 }) as u32));
            let y = Axis { label: y_label, log: false, from: 0.0, to: panel.top, tick: plain };
            let mut chart = ChartBuilder::on(&area)
                .margin_top(22)
                .margin_left(12)
                .margin_right(24)
                .x_label_area_size(if last { FOOT } else { 0 })
                .y_label_area_size(64)
                .build_cartesian_2d(x.range(), y.range())?;
            mesh(&mut chart, &Axis { label: if last { x.label } else { "" }, ..*x }, &y, 12, 4)?;
            panel.layers.iter().try_for_each(|layer| layer.draw(&mut chart))?;
            area.draw(&Text::new(panel.title.clone(), (80, 11), text(14, HPos::Left)))?;
        }
        Ok(())
    })
}

/// A row per thing, a dot per variant with a bar from its smallest to its largest value over rounds, on a logarithmic
/// axis.
pub(crate) fn dots(title: &str, x: &Axis, rows: &[(String, Vec<(Variant, Spread)>)]) -> Result<String> {
    let mut seen: Vec<Variant> = rows.iter().flat_map(|(_, dots)| dots.iter().map(|(v, _)| *v)).collect();
    seen.sort_unstable();
    seen.dedup();
    let series: Vec<(&str, RGBColor)> = seen.iter().map(|v| (v.name(), color(*v))).collect();
    let numbered =
        |(variant, spread): &(Variant, Spread)| Some((seen.iter().position(|v| v == variant)?, *spread));
    let rows: Vec<(String, Vec<(usize, Spread)>)> =
        rows.iter().map(|(name, dots)| (name.clone(), dots.iter().filter_map(numbered).collect())).collect();
    spreads(title, x, &series, &rows)
}

/// The same for any series, each with a name and a colour; the dots of a row say which series they are of.
pub(crate) fn spreads(
    title: &str,
    x: &Axis,
    series: &[(&str, RGBColor)],
    rows: &[(String, Vec<(usize, Spread)>)],
) -> Result<String> {
    const ROW: i32 = 46;
    const FOOT: i32 = 54;
    const PER_LINE: usize = 4;
    /// Dots that a row of the usual height has room for.
    const CLOSE: usize = 3;
    let column = if series.len() > PER_LINE { 165 } else { 130 };
    let head = 54 + 20 * series.len().div_ceil(PER_LINE).max(1) as i32;
    let most = rows.iter().map(|(_, dots)| dots.len()).max().unwrap_or(0);
    let row = if most > CLOSE { 14 * most as i32 } else { ROW };
    let apart = if most > CLOSE { 0.9 / most as f64 } else { 0.26 };
    let height = head + row * rows.len() as i32 + FOOT;
    draw(height as u32, |root| {
        heading(root, title)?;
        for (i, (name, color)) in series.iter().enumerate() {
            let (at, y) = (250 + column * (i % PER_LINE) as i32, 50 + 20 * (i / PER_LINE) as i32);
            root.draw(&Circle::new((at, y), 5, color.filled()))?;
            root.draw(&Text::new((*name).to_owned(), (at + 12, y), text(14, HPos::Left)))?;
        }
        let mut chart = ChartBuilder::on(root)
            .margin_top(head)
            .margin_left(240)
            .margin_right(30)
            .x_label_area_size(FOOT)
            .build_cartesian_2d(x.range(), (rows.len() as f64)..0.0)?;
        let none = Axis { label: "", log: false, from: 0.0, to: 1.0, tick: |_| String::new() };
        mesh(&mut chart, x, &none, 8, 0)?;
        for (i, (name, dots)) in rows.iter().enumerate() {
            let middle = chart.backend_coord(&(x.at(x.from), i as f64 + 0.5)).1;
            root.draw(&Text::new(name.clone(), (228, middle), text(14, HPos::Right)))?;
            for (k, (which, spread)) in dots.iter().enumerate() {
                let y = i as f64 + 0.5 + (k as f64 - (dots.len() as f64 - 1.0) / 2.0) * apart;
                let ends = [(x.at(spread.min), y), (x.at(spread.max), y)];
                let style = series[*which].1;
                chart.draw_series([PathElement::new(ends, style.stroke_width(2))])?;
                chart.draw_series([Circle::new((x.at(spread.median), y), 5, style.filled())])?;
            }
        }
        Ok(())
    })
}

/// A horizontal bar per thing, made of parts that add up; the legend says which is which.
pub(crate) fn bars(title: &str, label: &str, parts: &[&str], bars: &[(String, Vec<f64>)]) -> Result<String> {
    const ROW: i32 = 38;
    const FOOT: i32 = 54;
    const PER_LINE: usize = 4;
    let head = 50 + 20 * parts.len().div_ceil(PER_LINE) as i32;
    let longest = bars.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max).max(1e-9);
    // Names are as wide as their letters, nearly.
    let letters = bars.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let margin = (8 * letters as i32 + 10).max(140);
    draw((head + ROW * bars.len() as i32 + FOOT) as u32, |root| {
        heading(root, title)?;
        for (i, part) in parts.iter().enumerate() {
            let (x, y) = (16 + 225 * (i % PER_LINE) as i32, 48 + 20 * (i / PER_LINE) as i32);
            root.draw(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], part_color(i).filled()))?;
            root.draw(&Text::new((*part).to_owned(), (x + 18, y), text(13, HPos::Left)))?;
        }
        let mut chart = ChartBuilder::on(root)
            .margin_top(head)
            .margin_left(margin)
            .margin_right(40)
            .x_label_area_size(FOOT)
            .build_cartesian_2d(0.0..longest * 1.05, (bars.len() as f64)..0.0)?;
        let x = Axis { label, log: false, from: 0.0, to: longest, tick: plain };
        let none = Axis { label: "", log: false, from: 0.0, to: 1.0, tick: |_| String::new() };
        mesh(&mut chart, &x, &none, 8, 0)?;
        for (i, (name, parts)) in bars.iter().enumerate() {
            let middle = chart.backend_coord(&(0.0, i as f64 + 0.5)).1;
            root.draw(&Text::new(name.clone(), (margin - 10, middle), text(14, HPos::Right)))?;
            let mut at = 0.0;
            for (k, part) in parts.iter().enumerate() {
                let corners = [(at, i as f64 + 0.15), (at + part, i as f64 + 0.85)];
                chart.draw_series([Rectangle::new(corners, part_color(k).filled())])?;
                at += part;
            }
        }
        Ok(())
    })
}

/// The palette, and paler again from its end on.
fn part_color(i: usize) -> RGBAColor {
    PALETTE[i % PALETTE.len()].mix(if i < PALETTE.len() { 1.0 } else { 0.45 })
}

/// A number without an exponent.
pub(crate) fn plain(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { crate::stats::short(value) }
}

/// A count; nothing at ticks between counts.
pub(crate) fn whole(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { String::new() }
}

/// Nanoseconds as a person says them.
pub(crate) fn nanoseconds(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{} s", plain(v / 1e9)),
        v if v >= 1e6 => format!("{} ms", plain(v / 1e6)),
        v if v >= 1e3 => format!("{} µs", plain(v / 1e3)),
        v => format!("{} ns", plain(v)),
    }
}

/// The decades around `values`, for a logarithmic axis.
pub(crate) fn decades(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::MAX, f64::MIN);
    for value in values.into_iter().filter(|v| *v > 0.0) {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return (1.0, 10.0);
    }
    (10f64.powf(low.log10().floor()), 10f64.powf((high.log10() + 1e-9).ceil()))
}

impl Axis<'_> {
    fn at(&self, value: f64) -> f64 {
        if self.log { value.max(self.from).log10() } else { value }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.at(self.from)..self.at(self.to)
    }

    fn write(&self, at: f64) -> String {
        match self.log {
            true if (at - at.round()).abs() < 1e-6 => (self.tick)(10f64.powf(at.round())),
            true => String::new(),
            false => (self.tick)(at),
        }
    }
}

impl Layer {
    fn draw(&self, chart: &mut ChartContext<'_, SVGBackend<'_>, Plane>) -> Result<()> {
        let (color, points) = (self.color, self.points.iter().copied());
        let steps = || stairs(&self.points).into_iter();
        let thick = color.stroke_width(2);
        match self.pen {
            Pen::Line => chart.draw_series(LineSeries::new(points, thick))?,
            Pen::Steps => chart.draw_series(LineSeries::new(steps(), thick))?,
            Pen::Thin => chart.draw_series(LineSeries::new(steps(), color.stroke_width(1)))?,
            Pen::Dashed => chart.draw_series(DashedLineSeries::new(steps(), 7, 4, color.stroke_width(1)))?,
            Pen::Dotted => chart.draw_series(DashedLineSeries::new(steps(), 2, 3, thick))?,
            Pen::Area => chart.draw_series([Polygon::new(under(&self.points), color.mix(0.45))])?,
            Pen::Band => chart.draw_series([Polygon::new(self.points.clone(), color.mix(0.22))])?,
        };
        Ok(())
    }
}

fn draw(height: u32, body: impl FnOnce(&Area) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        body(&root)?;
        root.present().context("while finishing a figure")?;
    }
    Ok(svg)
}

fn heading(root: &Area, title: &str) -> Result<()> {
    root.draw(&Text::new(title.to_owned(), (16, 20), text(18, HPos::Left)))?;
    Ok(())
}

fn mesh(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Plane>,
    x: &Axis,
    y: &Axis,
    x_ticks: usize,
    y_ticks: usize,
) -> Result<()> {
    let count = |axis: &Axis, wanted: usize| {
        if axis.log { (axis.to / axis.from).log10().round() as usize + 1 } else { wanted }
    };
    chart
        .configure_mesh()
        .x_desc(x.label)
        .y_desc(y.label)
        .x_labels(count(x, x_ticks))
        .y_labels(count(y, y_ticks))
        .x_label_formatter(&|v| x.write(*v))
        .y_label_formatter(&|v| y.write(*v))
        .bold_line_style(RULE)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}

fn text<'a>(size: u32, anchor: HPos) -> TextStyle<'a> {
    (FONT, size).into_font().color(&INK).pos(Pos::new(anchor, VPos::Center))
}

/// The outline of the area between `points` and zero.
fn under(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (first, last) = (points.first().map(|p| (p.0, 0.0)), points.last().map(|p| (p.0, 0.0)));
    first.into_iter().chain(points.iter().copied()).chain(last).collect()
}

fn stairs(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    corners.chain(points.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_covers_whole_decades() {
        assert_eq!(decades([200.0, 9_000.0]), (100.0, 10_000.0));
        assert_eq!(decades([1000.0]), (1000.0, 1000.0 * 10f64.powf(0.0).max(10.0)));
        assert_eq!(decades([]), (1.0, 10.0));
    }

    #[test]
    fn steps_hold_until_the_next_sample() {
        assert_eq!(stairs(&[(0.0, 1.0), (1.0, 2.0)]), [(0.0, 1.0), (1.0, 1.0), (1.0, 2.0)]);
        assert!(stairs(&[]).is_empty());
    }

    #[test]
    fn a_figure_names_its_axes_and_lines() {
        let axis = |label| Axis { label, log: false, from: 0.0, to: 1.0, tick: plain };
        let line =
            Line { name: "native".into(), color: INK, points: vec![(0.0, 0.0), (1.0, 1.0)], marks: true };
        let svg = lines("Title", &axis("time (s)"), &axis("CPUs"), &[line]).unwrap();
        for word in ["Title", "time (s)", "CPUs", "native"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn durations_are_written_in_their_own_unit() {
        for (ns, text) in [(200.0, "200 ns"), (1e4, "10 µs"), (1.5e6, "1.50 ms"), (2e9, "2 s")] {
            assert_eq!(nanoseconds(ns), text);
        }
    }
}
