//! Figures as the paper's 1 to 3: what each container does, and what memory it has, over the six phases; one panel per policy.

use super::story::{PHASES, Story, Who};
use super::study::{by_policy, second};
use super::{Arm, Raw, Sample};
use crate::plot::{self, Axis, Layer, PALETTE, Panel, Pen};
use crate::stats::Mean;
use anyhow::Result;
use plotters::style::RGBColor;

const RULE: RGBColor = RGBColor(120, 120, 120);
const COLORS: [RGBColor; 2] = [PALETTE[0], PALETTE[1]];

/// Transactions per second, and the objectives.
pub(super) fn throughput(raw: &Raw, title: &str) -> Result<String> {
    let objectives = raw.story.roles.map(|role| f64::from(role.objective));
    let caption = format!("Dashed: the objectives. {}", phases());
    draw(raw, title, &caption, "per second", objectives, &|sample| f64::from(sample.tps))
}

/// Memory of the cgroups, and what they are entitled to.
pub(super) fn memory(raw: &Raw, title: &str) -> Result<String> {
    let rights = raw.story.roles.map(|role| role.right_mib as f64);
    let caption = format!("Dashed: what each is entitled to. {}", phases());
    draw(raw, title, &caption, "MiB", rights, &|sample| sample.mib as f64)
}

fn phases() -> String {
    let names = PHASES.map(|phase| phase.title);
    format!("Phases: {}.", names.join(", "))
}

fn draw(
    raw: &Raw,
    title: &str,
    caption: &str,
    unit: &str,
    marks: [f64; 2],
    value: &dyn Fn(&Sample) -> f64,
) -> Result<String> {
    let story = &raw.story;
    let drawn: Vec<_> = by_policy(raw)
        .into_iter()
        .map(|(policy, arms)| (policy, Who::ALL.map(|who| over_runs(story, &arms, who, value))))
        .collect();
    let all = drawn.iter().flat_map(|(_, curves)| curves.iter().flatten());
    let top = all.map(|(_, mean)| mean.mean + mean.deviation).chain(marks).fold(0.0, f64::max) * 1.08;
    let end = f64::from(story.end());
    let panels: Vec<Panel> = drawn
        .iter()
        .map(|(policy, curves)| {
            let mut layers: Vec<Layer> = (1..PHASES.len() as u32)
                .map(|phase| f64::from(phase * story.seconds))
                .map(|at| Layer { pen: Pen::Thin, color: RULE, points: vec![(at, 0.0), (at, top)] })
                .collect();
            for ((points, color), mark) in curves.iter().zip(COLORS).zip(marks) {
                let line = vec![(0.0, mark), (end, mark)];
                layers.push(Layer { pen: Pen::Dashed, color, points: line });
                let upper = points.iter().map(|(t, m)| (*t, m.mean + m.deviation));
                let lower = points.iter().rev().map(|(t, m)| (*t, (m.mean - m.deviation).max(0.0)));
                layers.push(Layer { pen: Pen::Band, color, points: upper.chain(lower).collect() });
                let mean = points.iter().map(|(t, m)| (*t, m.mean)).collect();
                layers.push(Layer { pen: Pen::Line, color, points: mean });
            }
            Panel { title: policy.name(raw.machine.cgroup_v2).to_owned(), top, layers }
        })
        .collect();
    let x = Axis { label: "time (s)", log: false, from: 0.0, to: end, tick: plot::plain };
    let legend = [("A", COLORS[0]), ("B", COLORS[1])];
    plot::panels(title, caption, &legend, (&x, unit), &panels)
}

/// The mean over runs at the middle of each second in which somebody said something.
fn over_runs(story: &Story, arms: &[&Arm], who: Who, value: &dyn Fn(&Sample) -> f64) -> Vec<(f64, Mean)> {
    let at = |s: u32| {
        let of_run =
            |arm: &&Arm| arm.samples[who as usize].iter().find(|sample| second(sample) == Some(s)).map(value);
        Some((f64::from(s) + 0.5, Mean::of(arms.iter().filter_map(of_run))?))
    };
    (0..story.end()).filter_map(at).collect()
}
