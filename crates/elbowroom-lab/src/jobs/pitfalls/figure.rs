//! Figures as the paper's: throughput over time, one panel per variant; and beside them what explains it, the application's
//! memory.

use super::story::{Figure, Variant};
use super::study::{by_variant, rate};
use super::{Arm, Raw};
use crate::plot::{self, Axis, Layer, PALETTE, Panel, Pen};
use crate::stats::Spread;
use anyhow::Result;
use plotters::style::RGBColor;

/// Time between two points, in milliseconds: the application's own samples are closer.
const STEP_MS: u64 = 200;
const SHADE: RGBColor = RGBColor(190, 190, 190);
const KINDS: [(&str, RGBColor); 3] = [("cache", PALETTE[0]), ("heap", PALETTE[2]), ("in swap", PALETTE[1])];

/// A colour, and what is drawn in it: a value of an arm at a time in milliseconds.
type Curve<'a> = (RGBColor, &'a dyn Fn(&Arm, u64) -> f64);
/// Seconds, and the values of all runs.
type Points = Vec<(f64, Spread)>;

/// Throughput: the median over runs with a band from smallest to largest.
pub(super) fn throughput(raw: &Raw) -> Result<String> {
    let value = |arm: &Arm, ms: u64| rate(arm, (ms - STEP_MS) as f64, ms as f64);
    let grey = match raw.figure {
        Figure::NotReserved => "",
        Figure::OwnCache => " Grey: its heap grows.",
        Figure::CacheStolen | Figure::Swapped => " Grey: the host's job runs.",
    };
    let caption = format!("Median over runs; the band is from smallest to largest.{grey}");
    let unit = raw.story.work.unit();
    draw(raw, raw.figure.title(), &caption, &[], &[(PALETTE[0], &value)], unit)
}

/// What the application's cgroup has in cache, in anonymous memory, and in swap: medians over runs.
pub(super) fn memory(raw: &Raw, title: &str) -> Result<String> {
    let value = |kind: usize| {
        move |arm: &Arm, ms: u64| {
            let at = arm.memory.partition_point(|(at, _)| *at <= ms).saturating_sub(1);
            arm.memory.get(at).map_or(0.0, |(_, mib)| mib[kind] as f64)
        }
    };
    let (cache, heap, swap) = (value(0), value(1), value(2));
    let layers: [Curve; 3] = [(KINDS[0].1, &cache), (KINDS[1].1, &heap), (KINDS[2].1, &swap)];
    draw(raw, title, "As the kernel counts for its cgroup.", &KINDS, &layers, "MiB")
}

fn draw(
    raw: &Raw,
    title: &str,
    caption: &str,
    legend: &[(&str, RGBColor)],
    curves: &[Curve],
    unit: &str,
) -> Result<String> {
    let story = &raw.story;
    let times: Vec<u64> = (STEP_MS..=story.end).step_by(STEP_MS as usize).collect();
    let arms = by_variant(raw, Arm::clone);
    let spreads = |arms: &[Arm], value: &dyn Fn(&Arm, u64) -> f64| -> Points {
        let at = |ms: &u64| {
            let middle = (*ms as f64 - STEP_MS as f64 / 2.0) / 1e3;
            Some((middle, Spread::of(arms.iter().map(|arm| value(arm, *ms)))?))
        };
        times.iter().filter_map(at).collect()
    };
    let drawn: Vec<(Variant, Vec<Points>)> = arms
        .iter()
        .map(|(variant, arms)| (*variant, curves.iter().map(|(_, value)| spreads(arms, value)).collect()))
        .collect();
    let all = drawn.iter().flat_map(|(_, lines)| lines.iter().flatten());
    let top = all.map(|(_, spread)| spread.max).fold(f64::MIN_POSITIVE, f64::max) * 1.08;
    let (from, until) = (story.disturbed.0 as f64 / 1e3, story.disturbed.1 as f64 / 1e3);
    let panel = |(variant, spreads): &(Variant, Vec<Points>)| {
        let mut layers = Vec::new();
        if until < story.end as f64 / 1e3 {
            let points = vec![(from, 0.0), (from, top), (until, top), (until, 0.0)];
            layers.push(Layer { pen: Pen::Band, color: SHADE, points });
        }
        for ((color, _), points) in curves.iter().zip(spreads) {
            let upper = points.iter().map(|(t, s)| (*t, s.max));
            let around = upper.chain(points.iter().rev().map(|(t, s)| (*t, s.min))).collect();
            layers.push(Layer { pen: Pen::Band, color: *color, points: around });
            let median = points.iter().map(|(t, s)| (*t, s.median)).collect();
            layers.push(Layer { pen: Pen::Line, color: *color, points: median });
        }
        Panel { title: raw.figure.name(*variant), top, layers }
    };
    let panels: Vec<Panel> = drawn.iter().map(panel).collect();
    let x = Axis { label: "time (s)", log: false, from: 0.0, to: story.end as f64 / 1e3, tick: plot::plain };
    plot::panels(title, caption, legend, (&x, unit), &panels)
}
