//! A figure as the paper's: who got how much over time, one panel per policy.

use super::study::{rates, truth};
use super::timeline::Timeline;
use super::{Arm, Policy};
use crate::plot::{self, Axis, Layer, Panel, Pen};
use crate::stats::Spread;
use anyhow::Result;
use plotters::style::RGBColor;

const TRUTH: RGBColor = RGBColor(150, 150, 150);

/// Throughput as the median over runs with a band from smallest to largest; limits and lifelines as in the first run.
pub(crate) fn draw(title: &str, told: &Timeline, arms: &[&Arm]) -> Result<String> {
    let mut policies: Vec<Policy> = arms.iter().map(|arm| arm.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    let panels: Vec<Panel> = policies
        .into_iter()
        .map(|policy| {
            panel(told, policy, &arms.iter().copied().filter(|a| a.policy == policy).collect::<Vec<_>>())
        })
        .collect();
    let to = f64::from(told.seconds);
    let time = Axis { label: "time (s)", log: false, from: 0.0, to, tick: plot::plain };
    let names = told.actors.iter().map(|actor| actor.name.as_str());
    let mut legend: Vec<(&str, RGBColor)> = names.zip(plot::PALETTE).collect();
    legend.push(("the disk", TRUTH));
    let caption =
        "Solid: throughput (median, range). First run: limit (dashed), lifeline and disk as known (dotted).";
    plot::panels(title, caption, &legend, (&time, "MB/s"), &panels)
}

fn panel(told: &Timeline, policy: Policy, arms: &[&Arm]) -> Panel {
    let top = told.capacity as f64 * 1.15 / 1e6;
    let mut layers = Vec::new();
    if let Some(first) = arms.first() {
        let seconds = 0..u64::from(told.seconds);
        let points = seconds.map(|s| (s as f64, truth(&first.speeds, s * 1000, s * 1000 + 1000) / 1e6));
        layers.push(Layer { pen: Pen::Thin, color: TRUTH, points: points.collect() });
        let known =
            first.told.disk.iter().map(|(ms, _, kb)| (*ms as f64 / 1e3, kb.map(|kb| kb as f64 / 1e3)));
        layers.extend(pieces(Pen::Dotted, TRUTH, known, top));
    }
    for i in 0..told.actors.len() {
        let color = plot::PALETTE[i % plot::PALETTE.len()];
        let spreads = over_runs(arms, i);
        let upper = spreads.iter().map(|(t, s)| (*t, s.max));
        let around = upper.chain(spreads.iter().rev().map(|(t, s)| (*t, s.min)));
        layers.push(Layer { pen: Pen::Band, color, points: around.collect() });
        let points = spreads.iter().map(|(t, s)| (*t, s.median)).collect();
        layers.push(Layer { pen: Pen::Line, color, points });
        let Some(first) = arms.first() else { continue };
        let series = &first.series[i];
        let caps = series
            .ms
            .iter()
            .zip(&series.cap_kb)
            .map(|(ms, kb)| (*ms as f64 / 1e3, kb.map(|kb| kb as f64 / 1e3)));
        layers.extend(pieces(Pen::Dashed, color, caps, top));
        let lifelines = first.told.lifelines[i].iter().map(|(ms, part)| {
            let capacity =
                first.told.disk.iter().take_while(|(at, ..)| at <= ms).last().and_then(|(.., kb)| *kb);
            let value = part.zip(capacity).map(|(part, kb)| part as f64 * kb as f64 / 1e6);
            (*ms as f64 / 1e3, value)
        });
        layers.extend(pieces(Pen::Dotted, color, lifelines, top));
    }
    Panel { title: policy.name().to_owned(), top, layers }
}

/// (time in s, MB/s) of a container over runs, at the middle of each interval.
fn over_runs(arms: &[&Arm], actor: usize) -> Vec<(f64, Spread)> {
    let rates: Vec<Vec<f64>> = arms.iter().map(|arm| rates(&arm.series[actor])).collect();
    let seconds = rates.iter().map(Vec::len).min().unwrap_or(0);
    let at = |s: usize| Some((s as f64 + 0.5, Spread::of(rates.iter().map(|r| r[s] / 1e6))?));
    (0..seconds).filter_map(at).collect()
}

/// One layer per stretch without a gap, and nothing beyond the top.
fn pieces(
    pen: Pen,
    color: RGBColor,
    points: impl Iterator<Item = (f64, Option<f64>)>,
    top: f64,
) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut open = false;
    for (x, y) in points {
        let Some(y) = y else {
            open = false;
            continue;
        };
        let point = (x, y.min(top));
        match layers.last_mut() {
            Some(layer) if open => layer.points.push(point),
            _ => layers.push(Layer { pen, color, points: vec![point] }),
        }
        open = true;
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_taken_off_leaves_a_gap() {
        let caps = [Some(1.0), Some(9.0), None, Some(2.0)];
        let points = caps.iter().enumerate().map(|(x, y)| (x as f64, *y));
        let layers = pieces(Pen::Dashed, TRUTH, points, 5.0);
        let drawn: Vec<_> = layers.iter().map(|layer| layer.points.clone()).collect();
        assert_eq!(drawn, [vec![(0.0, 1.0), (1.0, 5.0)], vec![(3.0, 2.0)]]);
    }
}
