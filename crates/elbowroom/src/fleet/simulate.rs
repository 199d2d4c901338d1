//! `elbowroom fleet --simulate N`: rules of placing containers, compared on a toy fleet.

use crate::cli::Format;
use crate::verbs::rates;
use crate::verbs::table::{Align, table};
use anyhow::{Result, ensure};
use elbowroom_core::fleet::{Ask, Room, rank};
use elbowroom_core::sim::fleet::{Outcome, Rule, play};
use elbowroom_core::unit::{Bytes, Millicpu, Percent};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

/// Most nodes of one simulation.
const MOST: u32 = 100_000;
/// The rules, and what they are called.
const RULES: [(Rule, &str); 6] = [
    (Rule::Nobody, "nobody is added"),
    (Rule::Limits, "limits add up"),
    (Rule::Requests, "requests add up"),
    (Rule::RoomNow, "room at a moment"),
    (Rule::RoomOver(12), "room for an hour"),
    (Rule::RoomOver(288), "room for a day"),
];

#[derive(Serialize)]
struct Answer {
    seed: u64,
    headroom: Percent,
    rules: Vec<Of>,
    /// What ranking that many nodes for one container took, in microseconds.
    rank_usec: u64,
}

#[derive(Serialize)]
struct Of {
    rule: Rule,
    outcome: Outcome,
}

pub(super) fn main(nodes: u32, seed: u64, headroom: Percent, format: Format) -> Result<ExitCode> {
    ensure!((1..=MOST).contains(&nodes), "--simulate: {nodes} is not between 1 and {MOST}");
    let rules = RULES.map(|(rule, _)| Of { rule, outcome: fleet(nodes, seed, rule, headroom) });
    let answer = Answer { seed, headroom, rules: rules.into(), rank_usec: ranking(nodes) };
    let text = match format {
        Format::Json => serde_json::to_string_pretty(&answer)? + "\n",
        Format::Text => text(&answer),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Nodes do not depend on each other: each CPU takes its part of them.
fn fleet(nodes: u32, seed: u64, rule: Rule, headroom: Percent) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = |first: usize| {
        (first..nodes as usize).step_by(threads).fold(Outcome::default(), |sum, n| {
            // Neighbouring seeds give independent sequences: each is hashed (SplitMix64).
            sum.and(play(seed.wrapping_mul(1 << 32).wrapping_add(n as u64), rule, headroom))
        })
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        let outcomes = parts.into_iter().map(|part| part.join().expect("simulating does not panic"));
        outcomes.fold(Outcome::default(), Outcome::and)
    })
}

/// How long one question to so many nodes takes to answer, once they were read.
fn ranking(nodes: u32) -> u64 {
    let room = |n: u32| {
        let room = Room {
            cpu: Millicpu::cpus(64),
            cpu_used: Some(Millicpu(u64::from(n % 64_000))),
            memory: Bytes::gib(256),
            memory_free: Some(Bytes::mib(u64::from(n) * 37 % 262_144)),
            ..Room::default()
        };
        (format!("node{n}"), room)
    };
    let rooms: Vec<(String, Room)> = (0..nodes).map(room).collect();
    let ask = Ask { cpu: Millicpu(500), memory: Bytes::gib(1), ..Ask::default() };
    let begin = Instant::now();
    let ranked = rank(rooms.iter().map(|(name, room)| (name.as_str(), room)), &ask, Percent::whole(10));
    assert_eq!(ranked.len(), nodes as usize);
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn text(answer: &Answer) -> String {
    let heading = [
        ("LET IN WHERE", Align::Left),
        ("ADDED", Align::Right),
        ("MORE", Align::Right),
        ("CPU USED", Align::Right),
        ("NOT GOT", Align::Right),
        ("BROKEN", Align::Right),
        ("SHORT", Align::Right),
    ];
    let row = |(of, (_, name)): (&Of, (Rule, &str))| {
        let o = &of.outcome;
        let part = |part: f64, whole: f64| format!("{:.2}%", 100.0 * part / whole.max(f64::MIN_POSITIVE));
        vec![
            name.to_owned(),
            o.added.to_string(),
            rates::part((o.neighbours > 0).then(|| o.added as f64 / o.neighbours as f64)),
            part(o.cpu_used, o.cpu),
            part(o.missed, o.wanted),
            part(o.broken_steps as f64, o.steps as f64),
            part(o.short_steps as f64, o.steps as f64),
        ]
    };
    let first = answer.rules.first().map(|of| of.outcome).unwrap_or_default();
    let mut text = format!(
        "{} simulated nodes with {} containers, seed {}, {} left free\n\n",
        first.nodes, first.neighbours, answer.seed, answer.headroom
    );
    text.push_str(&table(&heading, &answer.rules.iter().zip(RULES).map(row).collect::<Vec<_>>()));
    let _ = write!(
        text,
        "\nNOT GOT: CPU time that those who were there before wanted and did not get. BROKEN: moments of nodes\n\
         at which one of them got less than its request and wanted it. SHORT: moments of nodes with more\n\
         memory wanted than there is. Ranking {} nodes for one container took {:.1} ms.\n",
        first.nodes,
        answer.rank_usec as f64 / 1e3,
    );
    text
}
