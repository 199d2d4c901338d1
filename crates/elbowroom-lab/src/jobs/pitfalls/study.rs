//! What a campaign amounts to: throughput before and while something happens to the application, and what the kernel counted.

use super::story::{Figure, Others, Story, Variant};
use super::{Arm, Raw};
use crate::job::{Folder, table};
use crate::stats::Spread;
use std::collections::BTreeMap;

/// How long after its start a JVM counts as warm, in milliseconds.
const WARM_MS: u64 = 1000;

/// Throughput of one variant, once, in pieces per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    /// While something happens; in figure 2, over the first pass through the young generation.
    disturbed: f64,
    /// Otherwise: before it, in figure 2 after it. `None` for a first pass that never ended.
    quiet: Option<f64>,
}

/// Writes the summary.
pub(super) fn write(raw: &Raw, out: &mut Folder) {
    let story = &raw.story;
    out.say(format!("{}. {} {}", raw.figure.title(), explain(raw.figure, story), raw.machine.describe()));
    let unit = story.work.unit();
    let (quiet, disturbed, part) = match raw.figure {
        Figure::NotReserved => ("afterwards", "first pass", "of that with free memory"),
        Figure::OwnCache => ("before", "after it has grown", "of the former"),
        Figure::CacheStolen | Figure::Swapped => ("before", "meanwhile", "of the former"),
    };
    let [quiet, disturbed] = [quiet, disturbed].map(|when| format!("{when}, {unit}"));
    out.say(table(&["variant", &quiet, &disturbed, part], &throughput(raw)));
    out.say(table(&HEAD, &counters(raw)));
    out.say(format!(
        "Medians of {} runs (smallest to largest); variants took turns. Counters are over the whole story: refaults \
         (`workingset_refault_file` and `_anon`, pages) and hits of the own limit are of the application's cgroup, the others are \
         the machine's{}. A dash is what this kernel does not count there. Transparent huge pages: `{}`.",
        raw.runs.len(),
        if raw.machine.stand_in { " (here: of the cgroup that stands for it, whose limit's hits are its `allocstall`)" } else { "" },
        raw.machine.thp,
    ));
}

/// Pieces per second between two times.
pub(super) fn rate(arm: &Arm, from_ms: f64, to_ms: f64) -> f64 {
    let pieces = done_at(arm, to_ms) - done_at(arm, from_ms);
    pieces / (to_ms - from_ms) * 1e3
}

/// What is known per variant, in the order in which the figure shows them.
pub(super) fn by_variant<T>(raw: &Raw, of: impl Fn(&Arm) -> T) -> BTreeMap<Variant, Vec<T>> {
    let mut all: BTreeMap<Variant, Vec<T>> = BTreeMap::new();
    for arm in raw.runs.iter().flatten() {
        all.entry(arm.variant).or_default().push(of(arm));
    }
    all
}

fn throughput(raw: &Raw) -> Vec<Vec<String>> {
    let rates = |arm: &Arm| Rates::of(arm, raw.figure, &raw.story);
    let mut all: BTreeMap<Variant, Vec<(Rates, Option<f64>)>> = BTreeMap::new();
    for run in &raw.runs {
        let free = run.iter().find(|arm| arm.variant.others == Others::Nothing).map(rates);
        for arm in run {
            let rates = rates(arm);
            let base = match raw.figure {
                Figure::NotReserved => free.map(|free| free.disturbed),
                _ => rates.quiet,
            };
            let part = base.map(|base| rates.disturbed / base * 100.0);
            all.entry(arm.variant).or_default().push((rates, part));
        }
    }
    let row = |(variant, arms): (&Variant, &Vec<(Rates, Option<f64>)>)| {
        let quiet: Vec<f64> = arms.iter().filter_map(|(rates, _)| rates.quiet).collect();
        let reached = match arms.len() - quiet.len() {
            0 => String::new(),
            never => format!("; not reached in {never} of {} runs", arms.len()),
        };
        let parts = arms.iter().filter_map(|(_, part)| *part);
        vec![
            raw.figure.name(*variant),
            spread(quiet.into_iter()) + &reached,
            spread(arms.iter().map(|(rates, _)| rates.disturbed)),
            Spread::of(parts).map_or("-".to_owned(), |s| s.text() + " %"),
        ]
    };
    all.iter().map(row).collect()
}

impl Rates {
    fn of(arm: &Arm, figure: Figure, story: &Story) -> Self {
        let (from, until) = (story.disturbed.0 as f64, story.disturbed.1 as f64);
        let quiet = Some(rate(arm, WARM_MS as f64, from));
        match figure {
            Figure::NotReserved => {
                let end = when(arm, story.first_pass() as f64);
                Self {
                    quiet: end.filter(|end| *end < until).map(|end| rate(arm, end, until)),
                    disturbed: rate(arm, 0.0, end.unwrap_or(until)),
                }
            }
            // What it lost with its cache it does not get back when it has grown.
            Figure::OwnCache => Self { quiet, disturbed: rate(arm, until, story.end as f64) },
            Figure::CacheStolen | Figure::Swapped => Self { quiet, disturbed: rate(arm, from, until) },
        }
    }
}

/// Pieces done by some time, between samples in proportion. The first sample can be late: nothing was done at 0.
fn done_at(arm: &Arm, ms: f64) -> f64 {
    match arm.done.iter().position(|(at, _)| *at as f64 >= ms) {
        Some(0) => between((0, 0), arm.done[0], ms),
        Some(i) => between(arm.done[i - 1], arm.done[i], ms),
        None => arm.done.last().map_or(0.0, |(_, pieces)| *pieces as f64),
    }
}

/// When so many pieces were done; `None` for never.
fn when(arm: &Arm, pieces: f64) -> Option<f64> {
    let i = arm.done.iter().position(|(_, done)| *done as f64 >= pieces)?;
    let flip = |(ms, done): (u64, u64)| (done, ms);
    let before = if i == 0 { (0, 0) } else { flip(arm.done[i - 1]) };
    Some(between(before, flip(arm.done[i]), pieces))
}

fn between((x0, y0): (u64, u64), (x1, y1): (u64, u64), x: f64) -> f64 {
    let part = (x - x0 as f64) / (x1.saturating_sub(x0).max(1)) as f64;
    y0 as f64 + part * (y1 as f64 - y0 as f64)
}

const HEAD: [&str; 9] = [
    "variant",
    "cache at the end, MiB",
    "most swapped, MiB",
    "refaults file",
    "refaults anon",
    "own limit hit",
    "pgsteal kswapd, direct",
    "allocstall",
    "pswpout, pswpin",
];

fn counters(raw: &Raw) -> Vec<Vec<String>> {
    let arms = by_variant(raw, Arm::clone);
    let row = |(variant, arms): (&Variant, &Vec<Arm>)| {
        let memory = |f: &dyn Fn(&Arm) -> u64| spread(arms.iter().map(|arm| f(arm) as f64));
        let count = |whole: bool, keys: &[&str]| {
            let of = |arm: &Arm| {
                let map = if whole { &arm.whole } else { &arm.app };
                let found: Vec<u64> = keys.iter().filter_map(|key| map.get(*key).copied()).collect();
                (!found.is_empty()).then(|| found.iter().sum::<u64>() as f64)
            };
            match arms.iter().map(of).collect::<Option<Vec<f64>>>() {
                Some(values) => median(values),
                None => "-".to_owned(),
            }
        };
        let stalls: &[&str] = match raw.machine.stand_in {
            true => &["limit_hit"],
            false => &["allocstall_dma32", "allocstall_normal", "allocstall_movable"],
        };
        vec![
            raw.figure.name(*variant),
            memory(&|arm| arm.memory.last().map_or(0, |(_, [file, ..])| *file)),
            memory(&|arm| arm.memory.iter().map(|(_, [.., swap])| *swap).max().unwrap_or(0)),
            count(false, &["workingset_refault_file"]),
            count(false, &["workingset_refault_anon"]),
            count(false, &["limit_hit"]),
            format!("{}, {}", count(true, &["pgsteal_kswapd"]), count(true, &["pgsteal_direct"])),
            count(true, stalls),
            format!("{}, {}", count(true, &["pswpout"]), count(true, &["pswpin"])),
        ]
    };
    arms.iter().map(row).collect()
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    Spread::of(values).map_or("-".to_owned(), |s| s.text())
}

fn median(values: Vec<f64>) -> String {
    Spread::of(values).map_or("-".to_owned(), |s| format!("{:.0}", s.median))
}

fn explain(figure: Figure, story: &Story) -> String {
    let (from, until) = (story.disturbed.0 / 1000, story.disturbed.1 / 1000);
    match figure {
        Figure::NotReserved => format!(
            "A JVM with a young generation of {} MiB allocates objects of 64 KiB as fast as it can, each of which dies at once. It \
             starts while memory is free, then another group fills what it has not touched, and then it begins. First pass: \
             until the young generation is full for the first time.",
            story.young_mib
        ),
        Figure::OwnCache => format!(
            "A JVM is asked {} times a second for a block of 64 KiB at random of a file of {} MiB that is cached; between {from} \
             and {until} s its heap grows by {} MiB, which fits in its limit of {} MiB. The strategy raises the limit by the file.",
            story.rate,
            story.file_mib,
            story.grow_mib,
            story.limit_mib.unwrap_or(0)
        ),
        Figure::CacheStolen => format!(
            "A JVM without a limit is asked {} times a second for a block of 64 KiB at random of a file of {} MiB that is cached. \
             All but {} MiB of the machine's memory is other containers' heaps. Between {from} and {until} s the host reads {} MiB of \
             files over and over; they are holes, so they take no time of the disk.",
            story.rate, story.file_mib, story.spare_mib, story.others_mib
        ),
        Figure::Swapped => format!(
            "A JVM without a limit is asked {} times a second to touch an object of 64 KiB at random, of the {} MiB that it holds. \
             From {from} s the host fills more memory than there is left; it ends at {until} s.",
            story.rate, story.held_mib
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::strategy::Strategy;
    use super::*;

    fn arm(done: Vec<(u64, u64)>) -> Arm {
        let variant = Variant { others: Others::Nothing, strategy: Strategy::None };
        Arm { variant, done, memory: Vec::new(), app: BTreeMap::new(), whole: BTreeMap::new() }
    }

    #[test]
    fn a_late_sample_counts_by_its_own_time() {
        let arm = arm(vec![(0, 0), (150, 150), (200, 200), (300, 500)]);
        assert!((rate(&arm, 0.0, 100.0) - 1000.0).abs() < 1e-6);
        assert!((rate(&arm, 200.0, 300.0) - 3000.0).abs() < 1e-6);
        assert_eq!(when(&arm, 175.0), Some(175.0));
        assert_eq!(when(&arm, 501.0), None);
        let late = self::arm(vec![(200, 400), (300, 500)]);
        assert_eq!((when(&late, 100.0), done_at(&late, 50.0)), (Some(50.0), 100.0));
    }

    #[test]
    fn the_first_pass_is_compared_with_what_comes_after() {
        let story = Figure::NotReserved.story(1000, true);
        let pass = story.first_pass();
        // The first pass in a second, then ten times as fast.
        let done = (0..=60).map(|i: u64| (i * 100, pass * if i <= 10 { i } else { 10 + (i - 10) * 10 } / 10));
        let rates = Rates::of(&arm(done.collect()), Figure::NotReserved, &story);
        assert!((rates.quiet.unwrap() / rates.disturbed - 10.0).abs() < 0.01, "{rates:?}");
        let stuck = Rates::of(&arm(vec![(0, 0), (6000, pass / 2)]), Figure::NotReserved, &story);
        assert_eq!((stuck.quiet, stuck.disturbed), (None, (pass / 2) as f64 / 6000.0 * 1e3));
    }

    #[test]
    fn what_happens_later_is_compared_with_what_was_before() {
        let story = Figure::Swapped.story(1000, true);
        let (from, until) = story.disturbed;
        let done =
            (0..=story.end / 100).map(|i| i * 100).map(|ms| (ms, ms.min(from) + ms.clamp(from, until) / 2));
        let rates = Rates::of(&arm(done.collect()), Figure::Swapped, &story);
        assert!((rates.disturbed / rates.quiet.unwrap() - 0.5).abs() < 0.01, "{rates:?}");
    }
}
