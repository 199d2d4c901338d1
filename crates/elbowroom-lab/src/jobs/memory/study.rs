//! What a campaign amounts to: the paper's Table I with our rows, throughput, and what this project set out to reach.

use super::policy::Policy;
use super::story::{Demand, PHASES, Story, Who};
use super::{Arm, Raw, Sample};
use crate::job::{Folder, table};
use crate::stats::Mean;
use std::collections::BTreeMap;

/// Part of a phase's seconds in which a container is served, from which on Table I says yes.
const SATISFIED: f64 = 0.9;

/// What the agent calls a loan that hurt.
const FAILED: [&str; 2] = ["hold", "quarantine"];

/// Writes the summary.
pub(super) fn write(raw: &Raw, out: &mut Folder) {
    out.say(explain(raw));
    let [a, b] = Who::ALL.map(|who| reference(&raw.references, who));
    out.say(format!(
        "Reference, each alone with all memory: A {} transactions per second and {} MiB, B {} and {} MiB.",
        text(a[0]),
        text(a[1]),
        text(b[0]),
        text(b[1])
    ));
    let head: Vec<&str> = ["policy", ""].into_iter().chain(PHASES.map(|phase| phase.title)).collect();
    out.say("Satisfied (the paper's Table I): the part of a phase's seconds in which a container did its objective, or all \
             that it was asked; yes from 90 % on.");
    out.say(table(
        &head,
        &rows(raw, |arms, who, phase| {
            let parts = arms.iter().map(|arm| satisfied(&raw.story, arm, who, phase) * 100.0);
            let mean = Mean::of(parts)?;
            let word = if mean.mean >= SATISFIED * 100.0 { "yes" } else { "**no**" };
            Some(format!("{word}, {:.0} ± {:.0} %", mean.mean, mean.deviation))
        }),
    ));
    out.say("Transactions per second:");
    out.say(table(
        &head,
        &rows(raw, |arms, who, phase| {
            Mean::of(arms.iter().filter_map(|arm| rate(&raw.story, arm, who, phase))).map(|mean| mean.text())
        }),
    ));
    out.say("Memory at the end of a phase, MiB:");
    out.say(table(
        &head,
        &rows(raw, |arms, who, phase| {
            let last = |arm: &&Arm| seconds(&raw.story, arm, who, phase).into_iter().flatten().last();
            Mean::of(arms.iter().filter_map(last).map(|s| s.mib as f64)).map(|mean| mean.text())
        }),
    ));
    let by_policy = by_policy(raw);
    let names: Vec<&str> = by_policy.keys().map(|policy| policy.name(raw.machine.cgroup_v2)).collect();
    let head: Vec<&str> = std::iter::once("goal").chain(names).collect();
    out.say("What was to be reached:");
    out.say(table(&head, &goals(raw)));
    out.say(format!(
        "Means of {} runs ± standard deviation; policies took turns. {}.",
        raw.runs.len(),
        raw.machine.versions
    ));
}

/// Runs of each policy, in the order of tables and figures.
pub(super) fn by_policy(raw: &Raw) -> BTreeMap<Policy, Vec<&Arm>> {
    let mut all: BTreeMap<Policy, Vec<&Arm>> = BTreeMap::new();
    for arm in raw.runs.iter().flatten() {
        all.entry(arm.policy).or_default().push(arm);
    }
    all
}

/// The second of the story that a sample is of: it was taken at its end.
pub(super) fn second(sample: &Sample) -> Option<u32> {
    u32::try_from((sample.ms + 500) / 1000 - 1).ok()
}

/// A container's samples in a phase, by second; `None` where it said nothing.
fn seconds(story: &Story, arm: &Arm, who: Who, phase: usize) -> Vec<Option<Sample>> {
    let mut all = vec![None; story.seconds as usize];
    for sample in &arm.samples[who as usize] {
        if let Some(at) = second(sample).filter(|at| story.phase(*at) == phase) {
            all[(at % story.seconds) as usize] = Some(*sample);
        }
    }
    all
}

/// Whether a container did its objective, or had nothing left to do that was asked for more than a tenth of a second ago.
fn is_satisfied(story: &Story, who: Who, demand: Demand, sample: &Sample) -> bool {
    let asked = story.rate(demand);
    sample.tps >= story.role(who).objective.min(asked) || sample.queue * 10 <= u64::from(asked)
}

/// Part of a phase's seconds in which a container was satisfied; one in which it said nothing is not counted.
fn satisfied(story: &Story, arm: &Arm, who: Who, phase: usize) -> f64 {
    let demand = PHASES[phase].demand(who);
    let told: Vec<Sample> = seconds(story, arm, who, phase).into_iter().flatten().collect();
    let served = told.iter().filter(|sample| is_satisfied(story, who, demand, sample)).count();
    served as f64 / told.len().max(1) as f64
}

/// Transactions per second over a phase; `None` for a container that is not there.
fn rate(story: &Story, arm: &Arm, who: Who, phase: usize) -> Option<f64> {
    let told = seconds(story, arm, who, phase).into_iter().flatten();
    Mean::of(told.map(|sample| f64::from(sample.tps))).map(|mean| mean.mean)
}

/// Seconds of a phase until the last two in a row in which a container was not satisfied are over; its whole length for never. A
/// second in which it said nothing is one of these.
fn recovery(story: &Story, arm: &Arm, who: Who, phase: usize) -> usize {
    let demand = PHASES[phase].demand(who);
    let seconds = seconds(story, arm, who, phase);
    let short =
        |sample: &Option<Sample>| !sample.is_some_and(|sample| is_satisfied(story, who, demand, &sample));
    seconds.windows(2).rposition(|two| two.iter().all(short)).map_or(0, |at| at + 2)
}

/// The most loans in one phase after which the agent took its hands off a container; `None` where no agent ran.
fn failed_loans(story: &Story, arm: &Arm) -> Option<usize> {
    let phase = |ms: i64| (ms >= 0).then(|| story.phase((ms / 1000) as u32));
    let failed = arm.decided.iter().filter(|d| FAILED.contains(&d.what.as_str())).filter_map(|d| phase(d.ms));
    let failed: Vec<usize> = failed.collect();
    let most = (0..PHASES.len()).map(|phase| failed.iter().filter(|other| **other == phase).count()).max();
    most.filter(|_| arm.policy.has_agent())
}

/// Throughput and footprint alone.
pub(super) fn reference(references: &[Vec<Sample>; 2], who: Who) -> [Option<Mean>; 2] {
    let samples = &references[who as usize];
    [Mean::of(samples.iter().map(|s| f64::from(s.tps))), Mean::of(samples.iter().map(|s| s.mib as f64))]
}

/// Per policy and container, what `cell` says of each phase.
fn rows(raw: &Raw, cell: impl Fn(&[&Arm], Who, usize) -> Option<String>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (policy, arms) in by_policy(raw) {
        for who in Who::ALL {
            let mut row = vec![policy.name(raw.machine.cgroup_v2).to_owned(), who.name().to_owned()];
            for (phase, at) in PHASES.iter().zip(0..) {
                let there = phase.demand(who) != Demand::Stopped;
                row.push(cell(&arms, who, at).filter(|_| there).unwrap_or_else(|| "-".to_owned()));
            }
            rows.push(row);
        }
    }
    rows
}

/// What is to be reached, and what each policy does.
fn goals(raw: &Raw) -> Vec<Vec<String>> {
    let story = &raw.story;
    let by_policy = by_policy(raw);
    let of = |policy: Policy, value: &dyn Fn(&Arm) -> Option<f64>| {
        Mean::of(by_policy.get(&policy)?.iter().filter_map(|arm| value(arm))).map(|mean| mean.mean)
    };
    let contested = |arm: &Arm| {
        let parts =
            [0, 2].into_iter().flat_map(|phase| Who::ALL.map(|who| satisfied(story, arm, who, phase)));
        Mean::of(parts).map(|mean| mean.mean * 100.0)
    };
    let always = |arm: &Arm| {
        let there = |(phase, who): &(usize, Who)| PHASES[*phase].demand(*who) != Demand::Stopped;
        let all = (0..PHASES.len()).flat_map(|phase| Who::ALL.map(|who| (phase, who))).filter(there);
        Mean::of(all.map(|(phase, who)| satisfied(story, arm, who, phase))).map(|mean| mean.mean * 100.0)
    };
    let lent = |who: Who, phase: usize| move |arm: &Arm| rate(story, arm, who, phase);
    let both =
        |arm: &Arm| Who::ALL.map(|who| satisfied(story, arm, who, 3) * 100.0).into_iter().reduce(f64::min);
    let slowest = |policy: Policy| {
        let arms = by_policy.get(&policy)?;
        arms.iter().flat_map(|arm| Who::ALL.map(|who| recovery(story, arm, who, 2))).max()
    };
    let alone = reference(&raw.references, Who::B)[0].map(|mean| mean.mean);
    let verdict = |value: String, met: Option<bool>| match met {
        Some(true) => format!("{value}: met"),
        Some(false) => format!("{value}: **missed**"),
        None => value,
    };
    let percent = |value: Option<f64>, least: Option<f64>| {
        let shown = value.map_or("-".to_owned(), |value| format!("{value:.1} %"));
        verdict(shown, value.zip(least).map(|(value, least)| value >= least))
    };
    let row = |goal: &str, cell: &dyn Fn(Policy) -> String| {
        std::iter::once(goal.to_owned())
            .chain(by_policy.keys().map(|policy| cell(*policy)))
            .collect::<Vec<_>>()
    };
    let of_none = |policy: Policy, who: Who, phase: usize| {
        let value = lent(who, phase);
        let ratio = of(policy, &value).zip(of(Policy::None, &value)).map(|(ours, none)| ours / none * 100.0);
        percent(ratio, ratio.map(|_| 90.0))
    };
    vec![
        row("satisfied in phases 1 and 3: within 1 point of max limits", &|policy| {
            percent(of(policy, &contested), of(Policy::Max, &contested).map(|most| most - 1.0))
        }),
        row("A's throughput in phase 2: at least 90 % of that without limits", &|policy| {
            of_none(policy, Who::A, 1)
        }),
        row("B's throughput in phase 5: at least 90 % of that without limits", &|policy| {
            of_none(policy, Who::B, 4)
        }),
        row("B's throughput in phase 6: at least 95 % of its reference", &|policy| {
            let ratio = of(policy, &lent(Who::B, 5)).zip(alone).map(|(ours, alone)| ours / alone * 100.0);
            percent(ratio, ratio.map(|_| 95.0))
        }),
        row("satisfied in phase 4, the less satisfied of both: at least 90 %", &|policy| {
            percent(of(policy, &both), Some(SATISFIED * 100.0))
        }),
        row(
            "neither short for two seconds in a row any more in phase 3, slowest run: within 10 s",
            &|policy| {
                let slowest = slowest(policy);
                let shown = slowest.map_or("-".to_owned(), |s| match s >= story.seconds as usize {
                    true => "never".to_owned(),
                    false => format!("{s} s"),
                });
                verdict(shown, slowest.map(|s| s < 10))
            },
        ),
        row("loans that hurt, most in a phase: at most 3", &|policy| {
            let most =
                by_policy.get(&policy).into_iter().flatten().filter_map(|arm| failed_loans(story, arm)).max();
            verdict(most.map_or("-".to_owned(), |n| n.to_string()), most.map(|n| n <= 3))
        }),
        row("satisfied in all phases; without probes within 5 points of with", &|policy| {
            let with = of(Policy::Probes, &always).filter(|_| policy == Policy::Blind);
            percent(of(policy, &always), with.map(|with| with - 5.0))
        }),
    ]
}

fn text(mean: Option<Mean>) -> String {
    mean.map_or("-".to_owned(), |mean| mean.text())
}

fn explain(raw: &Raw) -> String {
    let (story, machine) = (&raw.story, &raw.machine);
    let [a, b] = story.roles;
    let place = match (machine.stand_in, machine.cgroup_v2) {
        (true, true) => "A cgroup (v2) with that limit stands for the machine; there is no swap.",
        (true, false) => "A cgroup (v1) with that limit stands for the machine; there is no swap.",
        (false, _) => {
            "The machine is a guest (cgroup v1), where another container holds all else, without swap."
        }
    };
    format!(
        "Two containers with a database each (MariaDB, a table of {} MiB that is read through the page cache, ten rows at \
         random a transaction of sysbench, {}) share {} MiB. {place} Each may read {} MB/s from the disk, so what \
         is not in memory costs. A is entitled to {} MiB and has an objective of {} transactions per second, B to {} MiB and {}. \
         High is {} transactions per second asked for, low {}; a phase lasts {} s.",
        story.table >> 20,
        if story.at_once { "by one statement" } else { "by its oltp_read_only" },
        story.machine_mib,
        crate::plot::plain(story.disk as f64 / 1e6),
        a.right_mib,
        a.objective,
        b.right_mib,
        b.objective,
        story.high,
        story.low,
        story.seconds
    )
}

#[cfg(test)]
mod tests {
    use super::super::Decided;
    use super::*;

    fn story() -> Story {
        Story::of(240 << 20, false, 10)
    }

    /// B does `tps` of a high demand from the second `from` of the phase on, and nothing before.
    fn arm(phase: usize, from: u32, tps: u32) -> Arm {
        let story = story();
        let sample = |s: u32| Sample {
            ms: i64::from(phase as u32 * story.seconds + s + 1) * 1000 + 90,
            tps: if s < from { 0 } else { tps },
            queue: 100_000,
            mib: 0,
            cache_mib: 0,
        };
        let samples = [Vec::new(), (0..story.seconds).map(sample).collect()];
        Arm { policy: Policy::None, samples, decided: Vec::new() }
    }

    #[test]
    fn a_sample_is_of_the_second_that_it_ends() {
        let sample = |ms| Sample { ms, tps: 0, queue: 0, mib: 0, cache_mib: 0 };
        assert_eq!([1090, 950, 20_080].map(|ms| second(&sample(ms))), [Some(0), Some(0), Some(19)]);
        assert_eq!(second(&sample(-2000)), None);
    }

    #[test]
    fn loans_that_hurt_are_counted_by_phase_where_an_agent_ran() {
        let story = story();
        let decided = |ms, what: &str| Decided { ms, who: Who::B, what: what.to_owned(), mib: None };
        let mut arm = arm(2, 0, 0);
        arm.decided = vec![
            decided(-500, "hold"),
            decided(100, "lend"),
            decided(12_000, "hold"),
            decided(15_000, "quarantine"),
        ];
        assert_eq!(failed_loans(&story, &arm), None);
        arm.policy = Policy::Blind;
        assert_eq!(failed_loans(&story, &arm), Some(2));
    }

    #[test]
    fn the_objective_is_reached_by_throughput_or_by_leaving_nothing() {
        let story = story();
        let is = |demand, tps, queue| {
            let sample = Sample { ms: 0, tps, queue, mib: 0, cache_mib: 0 };
            is_satisfied(&story, Who::A, demand, &sample)
        };
        let objective = story.role(Who::A).objective;
        assert!(is(Demand::High, objective, 9999) && !is(Demand::High, objective - 1, 9999));
        assert!(is(Demand::Low, 0, 2) && !is(Demand::Low, 0, 9999));
    }

    #[test]
    fn a_container_has_recovered_when_it_was_last_short_of_what_it_wants() {
        let story = story();
        let objective = story.role(Who::B).objective;
        assert_eq!(recovery(&story, &arm(2, 4, objective), Who::B, 2), 4);
        assert_eq!(recovery(&story, &arm(2, 8, objective), Who::B, 2), 8);
        assert_eq!(recovery(&story, &arm(2, 1, objective), Who::B, 2), 0, "one second is no spell");
        let mut relapse = arm(2, 4, objective);
        relapse.samples[Who::B as usize]
            .retain(|sample| !matches!(second(sample), Some(s) if s % story.seconds > 7));
        assert_eq!(recovery(&story, &relapse, Who::B, 2), 10, "nothing said is nothing done");
        assert!((satisfied(&story, &arm(2, 4, objective), Who::B, 2) - 0.6).abs() < 1e-9);
        assert_eq!(rate(&story, &arm(2, 0, 300), Who::B, 2), Some(300.0));
        assert_eq!(rate(&story, &arm(2, 0, 300), Who::A, 2), None);
    }
}
