//! Properties of the history, whatever it is given and asked.

use elbowroom_agent::history::{
    HistoryPoint, HistoryQuery, HistorySeries, HistoryStore, MAX_CHANGES, MAX_RESPONSE_POINTS,
};
use elbowroom_client::change::{Change, Kind};
use proptest::prelude::*;

/// A day and a bit in jumps of up to an hour, with values that stay and values that move.
fn moments() -> impl Strategy<Value = Vec<(u64, f64)>> {
    let jump = prop_oneof![8 => 1_000..2_000u64, 1 => 2_000..90_000u64, 1 => 90_000..3_600_000u64];
    prop::collection::vec((jump, 0.0..1e12f64), 1..400).prop_map(|steps| {
        let mut at = 1_700_000_000_000;
        let step = |(jump, value)| {
            at += jump;
            (at, value)
        };
        steps.into_iter().map(step).collect()
    })
}

fn point(used: f64) -> HistoryPoint {
    HistoryPoint::default()
        .with(HistorySeries::MemoryUsed, Some(used))
        .with(HistorySeries::CpuUpper, Some(4.0))
        .with(HistorySeries::DiskRead, Some(f64::NAN))
}

fn change(at: u64, container: &str, n: usize) -> Change {
    let (what, because) = (n.to_string(), String::new());
    Change { at, container: container.into(), name: None, kind: Kind::Cpu, what, because }
}

fn told(moments: &[(u64, f64)]) -> HistoryStore {
    let mut history = HistoryStore::default();
    for (at, used) in moments {
        history.record(*at, &point(*used), [("a", point(*used))].into_iter());
    }
    history
}

proptest! {
    #[test]
    fn time_in_an_answer_ascends_in_equal_steps_and_fits_the_question(
        moments in moments(),
        back in 0..200_000_000u64,
        long in 0..200_000_000u64,
        points in 0..5_000usize,
    ) {
        let history = told(&moments);
        let last = moments.last().unwrap().0;
        let from = last.saturating_sub(back);
        let question = HistoryQuery { from, to: from + long, points };
        for container in [None, Some("a")] {
            let answer = history.query(container, &question).unwrap();
            prop_assert!(answer.time.len() <= points.clamp(1, MAX_RESPONSE_POINTS));
            prop_assert!(answer.time.windows(2).all(|pair| pair[1] - pair[0] == answer.step_ms));
            prop_assert!(answer.time.iter().all(|at| at % answer.step_ms == 0));
            prop_assert!(answer.time.iter().all(|at| *at + answer.step_ms > from && *at <= question.to));
            prop_assert!(answer.series.values().all(|values| values.len() == answer.time.len()));
        }
        prop_assert!(history.query(Some("b"), &question).is_none());
    }

    #[test]
    fn memory_is_bounded_whatever_comes(moments in moments()) {
        // Every series of every slot of every block that can be there, and what describes them.
        let most = (11 + 13 + 25) * (12 * (60 * 4 + 16) + 64) + 4_096;
        let mut history = HistoryStore::default();
        let before = history.allocated_bytes();
        for (n, (at, used)) in moments.iter().enumerate() {
            let all = (0..12).fold(HistoryPoint::default(), |point, n| point.with(SERIES[n], Some(used * n as f64)));
            history.record(*at, &all, std::iter::empty());
            history.record_change(None, change(*at, "a", n));
        }
        prop_assert!(history.allocated_bytes() - before < most + 1_024 * moments.len(), "{}", history.allocated_bytes());
    }

    #[test]
    fn what_was_constant_is_answered_exactly_at_every_scale(moments in moments(), points in 1..500usize) {
        let history = told(&moments);
        let question = HistoryQuery { from: 0, to: u64::MAX, points };
        let answer = history.query(Some("a"), &question).unwrap();
        prop_assert!(answer.series["cpu_upper"].iter().flatten().count() > 0);
        prop_assert!(answer.series["cpu_upper"].iter().flatten().all(|value| *value == 4.0));
        prop_assert!(answer.series["disk_read"].iter().all(Option::is_none), "what is not a number is not known");
    }

    #[test]
    fn an_average_lies_between_the_least_and_the_most(moments in moments(), points in 1..100usize) {
        let history = told(&moments);
        let answer = history.query(None, &HistoryQuery { from: 0, to: u64::MAX, points }).unwrap();
        let values = || moments.iter().map(|(_, value)| *value as f32);
        let (least, most) = (values().fold(f32::MAX, f32::min), values().fold(0.0, f32::max));
        prop_assert!(answer.series["memory_used"].iter().flatten().all(|value| (least..=most).contains(value)));
    }
}

const SERIES: [HistorySeries; 12] = [
    HistorySeries::CpuEffective,
    HistorySeries::CpuLower,
    HistorySeries::CpuUpper,
    HistorySeries::CpuUsed,
    HistorySeries::MemoryEffective,
    HistorySeries::MemorySoft,
    HistorySeries::MemoryHard,
    HistorySeries::MemoryUsed,
    HistorySeries::DiskRead,
    HistorySeries::DiskWrite,
    HistorySeries::MemoryLent,
    HistorySeries::MemoryEntitlement,
];

#[test]
fn a_question_about_the_last_minutes_has_every_second() {
    let moments: Vec<(u64, f64)> = (0..7_200).map(|s| (1_700_000_000_000 + s * 1_000, s as f64)).collect();
    let (history, last) = (told(&moments), moments.last().unwrap().0);
    let check = |minutes: u64, points, expect: (u64, usize)| {
        let question = HistoryQuery { from: last - minutes * 60_000 + 1_000, to: last, points };
        let answer = history.query(Some("a"), &question).unwrap();
        assert_eq!((answer.step_ms, answer.time.len()), expect, "{minutes} minutes in {points} points");
    };
    check(5, 300, (1_000, 300));
    check(10, 600, (1_000, 600));
    check(60, 600, (10_000, 360));
    check(24 * 60, 600, (20_000, 360));
}

#[test]
fn a_clock_that_is_set_back_a_little_waits_and_one_that_is_set_back_far_begins_anew() {
    let mut history = told(&[(2_000_000_000, 1.0), (2_000_001_000, 2.0)]);
    let all = HistoryQuery { from: 0, to: u64::MAX, points: 100 };
    history.record(2_000_000_500, &point(3.0), std::iter::empty());
    assert_eq!(history.query(None, &all).unwrap().series["memory_used"], [Some(1.0), Some(2.0)]);
    history.record(1_000_000_000, &point(4.0), std::iter::empty());
    assert_eq!(history.query(None, &all).unwrap().series["memory_used"], [Some(4.0)]);
}

#[test]
fn the_one_that_went_first_makes_room() {
    let mut history = HistoryStore::default();
    let names: Vec<String> = (0..1_030).map(|n| format!("c{n}")).collect();
    let all = HistoryQuery { from: 0, to: u64::MAX, points: 1 };
    let mut take = |at, range: std::ops::Range<usize>| {
        history.record(at, &point(0.0), names[range].iter().map(|name| (name.as_str(), point(1.0))));
    };
    take(1_000, 0..1_024);
    // One went, and six came: there is room for one of them as soon as it is sure that it went.
    take(2_000, 1..1_030);
    take(3_000, 1..1_030);
    assert!(history.query(Some("c0"), &all).is_none());
    assert!(history.query(Some("c1024"), &all).is_some());
    assert!(history.query(Some("c1025"), &all).is_none());
    assert!(history.query(Some("c1"), &all).is_some());
}

#[test]
fn of_changes_the_newest_are_kept_and_only_those_of_the_container_answered() {
    let mut history = told(&[(1_000, 1.0)]);
    for n in 0..MAX_CHANGES as u64 + 10 {
        let id = if n % 2 == 0 { "a" } else { "b" };
        history.record_change(None, change(n, id, 0));
    }
    let all = HistoryQuery { from: 0, to: u64::MAX, points: 1 };
    let of_a = history.query(Some("a"), &all).unwrap().changes;
    assert_eq!(of_a.len(), 500);
    assert!(of_a.iter().all(|change| change.container == "a"));
    assert_eq!(of_a.last().unwrap().at, MAX_CHANGES as u64 + 8);
    assert_eq!(
        history.query(None, &HistoryQuery { to: 9, ..all }).unwrap().changes.len(),
        0,
        "the oldest are forgotten"
    );
}

#[test]
fn a_container_that_changes_all_the_time_with_all_that_is_in_it_takes_no_others_changes() {
    let mut history = told(&[(1_000, 1.0)]);
    for n in 0..5 {
        history.record_change(None, change(n, "db", 0));
        history.record_change(Some("mail"), change(n, "/mail/job", 0));
    }
    for n in 10..3 * MAX_CHANGES as u64 {
        // Each is one more that comes and goes.
        history.record_change(Some("web"), change(n, &format!("/web/{n}"), 0));
    }
    let all = HistoryQuery { from: 0, to: u64::MAX, points: 1 };
    let of = |id: Option<&str>, to| history.query(id, &HistoryQuery { to, ..all }).unwrap().changes;
    assert_eq!(
        of(None, 9).iter().map(|change| change.at).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    );
    assert_eq!(of(None, u64::MAX).last().unwrap().container, format!("/web/{}", 3 * MAX_CHANGES - 1));
}
