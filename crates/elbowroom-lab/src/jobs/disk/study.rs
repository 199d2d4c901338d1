//! What a run amounts to, in the words of resctl-bench (isolation, work conservation) and of the paper (how fast a burst gets
//! what is idle), and how far what was learned about the disk is from the truth.

use super::timeline::{Actor, Timeline};
use super::{Arm, Policy, Raw, Series};
use crate::fio::{Direction, Style};
use crate::job::{Folder, table};
use crate::stats::{Spread, short};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;

/// Part of the idle bandwidth at which a burst counts as served.
const SERVED: f64 = 0.9;
/// Seconds over which a burst has that, on the mean, when it is said to keep it.
const KEPT_S: usize = 5;
/// Time after which what was learned must be right, in seconds.
const LEARNED_S: u32 = 60;
/// The end of a burst, in seconds, over which its rate is taken.
const TAIL_S: usize = 10;

/// One story under one policy. Parts of 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Figures {
    /// What the worst served steady container got of what it wanted, second by second, at most all: mean.
    isolation: f64,
    /// The same: 5th percentile of the seconds.
    isolation_p05: f64,
    /// The mean over the seconds with not enough for all.
    isolation_contested: f64,
    /// What was done of what the disk could have done for somebody who wanted it.
    conservation: f64,
    /// The same over the seconds with not enough for all.
    conservation_contested: f64,
    /// Per burst: seconds until it first had 90 % of what the others' demand left idle; `None` for never. Before a policy knows of a
    /// burst, nothing holds it back: the first second says little.
    burst_s: Vec<Option<f64>>,
    /// Per burst: the second from which it had 90 % of what the others did not take, on the mean over five seconds; `None` for never.
    burst_kept_s: Vec<Option<f64>>,
    /// Per burst: what it had of that, over its last ten seconds.
    burst_part: Vec<f64>,
    /// (second, learned capacity as a part of the truth): a minute after the first burst and after every change of speed, or
    /// when the next change comes first. `None` where nothing was learned.
    learned: Vec<(u32, Option<f64>)>,
    /// How often a limit changed, per container and minute.
    changes_per_min: f64,
}

/// Writes tables and `summary.json`.
pub(super) fn write(raw: &Raw, out: &mut Folder) -> Result<()> {
    out.say(introduction(raw));
    let mut by_policy: BTreeMap<Policy, Vec<Figures>> = BTreeMap::new();
    for arm in raw.runs.iter().flatten() {
        by_policy.entry(arm.policy).or_default().push(Figures::of(arm, &raw.timeline));
    }
    out.say(main_table(&by_policy));
    out.say(
        "Isolation: what the worst served steady container got of what it wanted, second by second and at most all of it. Work \
         conservation: what was done of what the disk could have done for somebody who wanted it. Contested: the seconds with \
         not enough for all. Each figure is the median over runs (smallest to largest); the 5th percentile is over seconds.",
    );
    if by_policy.values().flatten().any(|f| !f.burst_s.is_empty()) {
        out.say(burst_table(&by_policy));
    }
    if by_policy.values().flatten().any(|f| f.learned.iter().any(|(_, part)| part.is_some())) {
        out.say(learned_table(&by_policy));
    }
    out.say(alerts(raw));
    let json = serde_json::to_string_pretty(&by_policy).context("while writing figures")?;
    out.file("summary.json", &(json + "\n"))
}

/// Bytes per second over each interval between samples.
pub(crate) fn rates(series: &Series) -> Vec<f64> {
    let pairs = series.ms.windows(2).zip(series.kb.windows(2));
    pairs
        .map(|(ms, kb)| {
            let (ms, kb) = (ms[1].saturating_sub(ms[0]).max(1), kb[1].saturating_sub(kb[0]));
            kb as f64 * 1e6 / ms as f64
        })
        .collect()
}

/// What the disk could do over an interval, in bytes per second, by when it was really told to.
pub(super) fn truth(speeds: &[(u64, u64)], from: u64, to: u64) -> f64 {
    let ends = speeds.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
    let bytes: f64 = speeds
        .iter()
        .zip(ends)
        .map(|((at, speed), end)| to.min(end).saturating_sub(from.max(*at)) as f64 * *speed as f64)
        .sum();
    bytes / to.saturating_sub(from).max(1) as f64
}

impl Figures {
    fn of(arm: &Arm, told: &Timeline) -> Self {
        let rates: Vec<Vec<f64>> = arm.series.iter().map(rates).collect();
        let seconds = told.seconds as usize;
        let speed = |s: usize| arm.series.first().map_or(0.0, |x| truth(&arm.speeds, x.ms[s], x.ms[s + 1]));
        let seconds = seconds.min(rates.iter().map(Vec::len).min().unwrap_or(0));
        let all: Vec<usize> = (0..seconds).collect();
        let contested: Vec<usize> = all.iter().copied().filter(|s| told.contested(*s as u32)).collect();
        let served = |actor: usize, seconds: &[usize]| -> Vec<f64> {
            let part = |s: &usize| (rates[actor][*s] / told.actors[actor].want(*s as u32) as f64).min(1.0);
            seconds.iter().map(part).collect()
        };
        let steady = || (0..told.actors.len()).filter(|actor| told.actors[*actor].steady);
        let worst = |seconds: &[usize], figure: fn(Vec<f64>) -> f64| {
            steady().map(|actor| figure(served(actor, seconds))).fold(1.0, f64::min)
        };
        let rates_of_all = |s: usize| rates.iter().map(|r| r[s]).sum::<f64>();
        let conserved = |seconds: &[usize]| {
            let possible = |s: usize| speed(s).min(told.wanted(s as u32) as f64);
            let done = |s: usize| rates_of_all(s).min(possible(s));
            let sum = |f: &dyn Fn(usize) -> f64| seconds.iter().map(|s| f(*s)).sum::<f64>();
            sum(&done) / sum(&possible).max(1.0)
        };
        let mut figures = Self {
            isolation: worst(&all, mean),
            isolation_p05: worst(&all, p05),
            isolation_contested: worst(&contested, mean),
            conservation: conserved(&all),
            conservation_contested: conserved(&contested),
            learned: learned(arm, told),
            changes_per_min: changes(arm, told),
            ..Self::default()
        };
        for (actor, rates) in told.actors.iter().zip(&rates) {
            for burst in actor.bursts(told.capacity) {
                let until = actor.phases.iter().map(|p| p.at).find(|at| *at > burst).unwrap_or(told.seconds);
                let window: Vec<usize> = (burst as usize..(until as usize).min(seconds)).collect();
                let others = |s: usize| told.wanted(s as u32) - actor.want(s as u32);
                let part = |s: &usize| rates[*s] / (speed(*s) - others(*s) as f64).max(1.0);
                let first = window.iter().find(|s| part(s) >= SERVED);
                figures.burst_s.push(first.map(|s| (*s + 1) as f64 - f64::from(burst)));
                let taken = |s: usize| rates_of_all(s) - rates[s];
                let kept = window.windows(KEPT_S).find(|five| {
                    let part = |s: &usize| rates[*s] / (speed(*s) - taken(*s)).max(1.0);
                    mean(five.iter().map(part).collect()) >= SERVED
                });
                figures.burst_kept_s.push(kept.map(|five| (five[0] + 1) as f64 - f64::from(burst)));
                let tail = window.iter().rev().take(TAIL_S).map(part).collect();
                figures.burst_part.push(mean(tail));
            }
        }
        figures
    }
}

fn learned(arm: &Arm, told: &Timeline) -> Vec<(u32, Option<f64>)> {
    let contested: Vec<u32> = (0..told.seconds).filter(|s| told.contested(*s)).collect();
    let (Some(first), Some(last)) = (contested.first(), contested.last()) else { return Vec::new() };
    let changes = told.speeds.iter().map(|(at, _)| *at).filter(|at| at > first && at < last);
    let events: Vec<u32> = std::iter::once(*first).chain(changes).collect();
    let ends = events.iter().skip(1).copied().chain([last + 1]);
    let at_end = |(event, end): (&u32, u32)| {
        let at = (event + LEARNED_S).min(end);
        let ms = u64::from(at) * 1000;
        let known = arm.told.disk.iter().take_while(|(time, ..)| *time < ms).last();
        let capacity = known.and_then(|(.., capacity)| *capacity).map(|kb| kb as f64 * 1000.0);
        (at, capacity.map(|c| c / truth(&arm.speeds, ms - 1000, ms)))
    };
    events.iter().zip(ends).map(at_end).collect()
}

fn changes(arm: &Arm, told: &Timeline) -> f64 {
    let changed = |s: &Series| s.cap_kb.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let all: usize = arm.series.iter().map(changed).sum();
    all as f64 * 60.0 / f64::from(told.seconds) / arm.series.len().max(1) as f64
}

fn mean(values: Vec<f64>) -> f64 {
    if values.is_empty() { 1.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn p05(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 20).copied().unwrap_or(1.0)
}

fn introduction(raw: &Raw) -> String {
    let told = &raw.timeline;
    let style = |actor: &Actor| {
        let Style { block, depth } = actor.style;
        format!("{} with {depth} of {} KiB under way", actor.name, block >> 10)
    };
    let styles: Vec<String> = told.actors.iter().map(style).collect();
    format!(
        "{}: {} The disk does {} MB/s at its best; direct {} at random places, {}; {} s; {}. Policies ran {}; containers began \
         within {} ms of each other, and no sample came more than {} ms late.",
        raw.workload.name().to_uppercase(),
        raw.workload.story(),
        short(told.capacity as f64 / 1e6),
        match raw.direction {
            Direction::Read => "reads",
            Direction::Write => "writes",
        },
        styles.join(", "),
        told.seconds,
        match raw.runs.len() {
            1 => "1 run".to_owned(),
            n => format!("{n} runs"),
        },
        if raw.together {
            "at the same time on equal disks of their own, which they took in turn from run to run"
        } else {
            "one after the other on the same disk, in an order that rotated from run to run"
        },
        raw.runs.iter().flatten().map(|arm| arm.skew_ms).max().unwrap_or(0),
        raw.runs.iter().flatten().map(latest).max().unwrap_or(0)
    )
}

/// How late a sample came at most: far more than a few milliseconds means that the machine did not keep up.
fn latest(arm: &Arm) -> u64 {
    let late = |(n, ms): (usize, &u64)| ms.saturating_sub(n as u64 * super::record::SAMPLE_MS);
    arm.series.iter().flat_map(|series| series.ms.iter().enumerate().map(late)).max().unwrap_or(0)
}

type ByPolicy = BTreeMap<Policy, Vec<Figures>>;

fn percent(values: impl IntoIterator<Item = f64>) -> String {
    Spread::of(values).map_or("-".into(), |s| {
        format!("{:.1} % ({:.1} to {:.1})", s.median * 100.0, s.min * 100.0, s.max * 100.0)
    })
}

fn main_table(by_policy: &ByPolicy) -> String {
    let row = |(policy, runs): (&Policy, &Vec<Figures>)| {
        let column = |f: fn(&Figures) -> f64| percent(runs.iter().map(f));
        let changes = Spread::of(runs.iter().map(|f| f.changes_per_min));
        vec![
            policy.name().to_owned(),
            column(|f| f.isolation),
            column(|f| f.isolation_p05),
            column(|f| f.isolation_contested),
            column(|f| f.conservation),
            column(|f| f.conservation_contested),
            changes.map_or("-".into(), |s| format!("{:.1}", s.median)),
        ]
    };
    let head = [
        "policy",
        "isolation",
        "its 5th percentile",
        "while contested",
        "work conservation",
        "while contested",
        "changes of a limit per minute",
    ];
    table(&head, &by_policy.iter().map(row).collect::<Vec<_>>())
}

fn burst_table(by_policy: &ByPolicy) -> String {
    let mut rows = Vec::new();
    for (policy, runs) in by_policy {
        for n in 0..runs.iter().map(|f| f.burst_s.len()).max().unwrap_or(0) {
            let first = times(runs.iter().filter_map(|f| f.burst_s.get(n).copied()));
            let kept = times(runs.iter().filter_map(|f| f.burst_kept_s.get(n).copied()));
            let part = percent(runs.iter().filter_map(|f| f.burst_part.get(n).copied()));
            rows.push(vec![policy.name().to_owned(), (n + 1).to_string(), first, kept, part]);
        }
    }
    let head = [
        "policy",
        "burst",
        "first had 90 % of the idle bandwidth within",
        "had 90 % of what others did not take, over 5 s, from",
        "had of the idle bandwidth in its last 10 s",
    ];
    table(&head, &rows)
}

fn times(times: impl Iterator<Item = Option<f64>>) -> String {
    let times: Vec<Option<f64>> = times.collect();
    let never = times.iter().filter(|time| time.is_none()).count();
    let spread = Spread::of(times.iter().flatten().copied());
    let said = spread.map(|s| format!("{:.0} s ({:.0} to {:.0})", s.median, s.min, s.max));
    let not = (never > 0).then(|| format!("not in {never} of {} runs", times.len()));
    said.into_iter().chain(not).collect::<Vec<_>>().join(", ")
}

fn learned_table(by_policy: &ByPolicy) -> String {
    let mut rows = Vec::new();
    for (policy, runs) in by_policy {
        for n in 0..runs.iter().map(|f| f.learned.len()).max().unwrap_or(0) {
            let parts: Vec<f64> = runs.iter().filter_map(|f| f.learned.get(n)?.1).collect();
            if let (false, Some((at, _))) = (parts.is_empty(), runs[0].learned.get(n)) {
                rows.push(vec![policy.name().to_owned(), format!("{at} s"), percent(parts)]);
            }
        }
    }
    table(&["policy", "at", "capacity it goes by, of the true one"], &rows)
}

fn alerts(raw: &Raw) -> String {
    let mut seen: BTreeMap<(Policy, &str), Vec<f64>> = BTreeMap::new();
    for arm in raw.runs.iter().flatten() {
        for (ms, kind) in &arm.told.alerts {
            seen.entry((arm.policy, kind)).or_default().push(*ms as f64 / 1e3);
        }
    }
    if seen.is_empty() {
        return "No alerts.".into();
    }
    let rows = seen.into_iter().map(|((policy, kind), times)| {
        let first = Spread::of(times.iter().copied()).map_or("-".into(), |s| format!("{} s", s.text()));
        vec![policy.name().to_owned(), kind.to_owned(), times.len().to_string(), first]
    });
    table(&["policy", "alert", "in so many runs", "first at"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::Told;
    use super::super::timeline::{Scale, Workload};
    use super::*;

    /// A run of W1 in which A gets `a` and B gets `b` percent of the disk once the burst has begun.
    fn arm(a: u64, b: u64) -> (Arm, Timeline) {
        let told = Workload::W1.timeline(Scale::Paper);
        let series = |quiet: u64, later: u64| {
            let kb = |s: u64| s.min(25) * quiet * 10 + s.saturating_sub(25) * later * 10;
            let seconds = 0..=u64::from(told.seconds);
            Series {
                ms: seconds.clone().map(|s| s * 1000).collect(),
                kb: seconds.clone().map(kb).collect(),
                cap_kb: seconds.map(|s| (s > 50).then_some(700)).collect(),
            }
        };
        let disk = vec![(30_000, "share".to_owned(), Some(900))];
        let arm = Arm {
            policy: Policy::Lifeline,
            disk: "loop0".into(),
            skew_ms: 0,
            speeds: vec![(0, 1_000_000)],
            series: vec![series(20, a), series(10, b)],
            told: Told { disk, ..Told::default() },
        };
        (arm, told)
    }

    #[test]
    fn a_victim_that_gets_half_of_what_it_wants_is_half_isolated() {
        let (arm, told) = arm(10, 90);
        let figures = Figures::of(&arm, &told);
        assert!((figures.isolation_contested - 0.5).abs() < 1e-9, "{figures:?}");
        assert!((figures.isolation - (25.0 + 80.0 * 0.5) / 105.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.conservation - 1.0).abs() < 1e-9, "{figures:?}");
        assert_eq!((figures.burst_s, figures.burst_kept_s), (vec![Some(1.0)], vec![Some(1.0)]));
    }

    #[test]
    fn a_burst_that_is_held_back_wastes_the_disk_and_is_never_served() {
        let (arm, told) = arm(20, 40);
        let figures = Figures::of(&arm, &told);
        assert_eq!(figures.isolation, 1.0);
        assert!((figures.conservation_contested - 0.6).abs() < 1e-9, "{figures:?}");
        assert_eq!(
            (figures.burst_s.as_slice(), figures.burst_kept_s.as_slice()),
            ([None].as_slice(), [None].as_slice())
        );
        assert!((figures.burst_part[0] - 0.5).abs() < 1e-9, "{figures:?}");
        assert_eq!(figures.learned, [(85, Some(0.9))]);
        assert!((figures.changes_per_min - 60.0 / 105.0).abs() < 1e-9, "both changed once");
    }

    #[test]
    fn a_change_of_speed_within_an_interval_counts_by_its_time() {
        let speeds = [(0, 1000), (1500, 500)];
        assert_eq!(truth(&speeds, 0, 1000), 1000.0);
        assert_eq!(truth(&speeds, 1000, 2000), 750.0);
        assert_eq!(truth(&speeds, 2000, 3000), 500.0);
    }
}
