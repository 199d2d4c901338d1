//! One rate: containers made, started when they are due, removed.

use crate::engine::{EngineSession, StartTarget};
use crate::overhead::{OverheadMeter, ProfilerOverhead};
use crate::startup::timeline::{RequestRate, StartSample};
use anyhow::{Result, bail};
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer;
use elbowroom_types::unit::Micros;
use std::ops::RangeFrom;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Threads that make and remove containers.
const WORKERS: usize = 4;
/// A signal is noticed after this at the latest.
const SIGNAL_POLL: Micros = Micros(20_000);

/// When starts were measured, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasurementWindow {
    begin: Micros,
    end: Option<Micros>,
}

/// What one rate came to.
#[derive(Debug)]
pub(super) struct RateMeasurement {
    pub(super) starts: Vec<StartSample>,
    /// What the profiler cost between the first request and the last answer.
    pub(super) cost: ProfilerOverhead,
}

impl MeasurementWindow {
    /// Whether a moment, in nanoseconds, lies in it.
    pub(super) fn contains(&self, ns: u64) -> bool {
        let at = Micros(ns / 1000);
        self.begin <= at && self.end.is_none_or(|end| at < end)
    }
}

/// Makes as many containers as there will be starts, starts them at `rate` for `duration`, and removes them.
pub(super) fn measure_rate(
    engine: &EngineSession,
    subjects: &[&StartTarget],
    rate: RequestRate,
    duration: Micros,
    numbers: &mut RangeFrom<usize>,
    windows: &Mutex<Vec<MeasurementWindow>>,
    signals: &SignalFd,
) -> Result<RateMeasurement> {
    let schedule = rate.schedule(duration);
    let per_second = rate.per_second();
    let numbers: Vec<usize> = numbers.take(schedule.len()).collect();
    let said = |what: &str, done: usize| {
        show_progress(&format!("{per_second}/s: {what} {done} of {}", numbers.len()))
    };
    let names = run_parallel(numbers.len(), signals, &|done| said("making", done), |i| {
        Ok(engine.create(subjects[i % subjects.len()], numbers[i])?)
    })?;
    let started = start_all(engine, &names, subjects.len(), &schedule, windows, signals, &|done| {
        said("starting", done)
    });
    // Also after a signal: what one rate made is gone before the next, or the end.
    let removed =
        run_parallel(names.len(), signals, &|done| said("removing", done), |i| Ok(engine.remove(&names[i])?));
    show_progress("");
    let measured = started?;
    removed?;
    Ok(measured)
}

/// The open loop.
fn start_all(
    engine: &EngineSession,
    names: &[String],
    applications: usize,
    schedule: &[Micros],
    windows: &Mutex<Vec<MeasurementWindow>>,
    signals: &SignalFd,
    said: &dyn Fn(usize),
) -> Result<RateMeasurement> {
    let starts: Mutex<Vec<StartSample>> = Mutex::default();
    let begin = timer::now();
    let meter = OverheadMeter::start();
    windows.lock().expect("no holder of this lock panics").push(MeasurementWindow { begin, end: None });
    let interrupted = std::thread::scope(|scope| {
        for (i, (name, due)) in names.iter().zip(schedule).enumerate() {
            said(i);
            if !wait_until(begin.saturating_add(*due), signals)? {
                return anyhow::Ok(true);
            }
            let starts = &starts;
            scope.spawn(move || {
                let answer = engine.start(name);
                let latency = timer::now().saturating_sub(begin).saturating_sub(*due);
                let error = answer.err().map(|error| error.to_string());
                let start = StartSample { application: i % applications, due: *due, latency, error };
                starts.lock().expect("no holder of this lock panics").push(start);
            });
        }
        Ok(false)
    });
    let end = timer::now();
    if let Some(window) = windows.lock().expect("no holder of this lock panics").last_mut() {
        window.end = Some(end);
    }
    if interrupted? {
        bail!("interrupted: every container that was made is removed");
    }
    let mut starts = starts.into_inner().expect("no holder of this lock panics");
    starts.sort_by_key(|start| start.due);
    Ok(RateMeasurement { starts, cost: meter.stop(0) })
}

/// Waits; `false` when a signal came first.
fn wait_until(at: Micros, signals: &SignalFd) -> Result<bool> {
    loop {
        if signals.next()?.is_some() {
            return Ok(false);
        }
        let left = at.saturating_sub(timer::now());
        if left == Micros::ZERO {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_micros(left.min(SIGNAL_POLL).get()));
    }
}

/// Does `work` for 0..count, several at a time; the first error ends it, and so does a signal.
fn run_parallel<T: Send>(
    count: usize,
    signals: &SignalFd,
    said: &dyn Fn(usize),
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<T>)>> = Mutex::default();
    let interrupted = std::thread::scope(|scope| {
        let hand = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                let result = work(i);
                if result.is_err() {
                    next.store(count, Ordering::Relaxed);
                }
                done.lock().expect("no holder of this lock panics").push((i, result));
            }
        };
        let hands: Vec<_> = (0..WORKERS.min(count)).map(|_| scope.spawn(hand)).collect();
        let mut interrupted = false;
        while hands.iter().any(|hand| !hand.is_finished()) {
            said(done.lock().expect("no holder of this lock panics").len());
            if signals.next()?.is_some() {
                interrupted = true;
                next.store(count, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_micros(SIGNAL_POLL.get()));
        }
        anyhow::Ok(interrupted)
    });
    if interrupted? {
        bail!("interrupted: every container that was made is removed");
    }
    let mut done = done.into_inner().expect("no holder of this lock panics");
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// One line that replaces itself, on a terminal.
fn show_progress(text: &str) {
    elbowroom_client::output::say_progress(text, false);
}
