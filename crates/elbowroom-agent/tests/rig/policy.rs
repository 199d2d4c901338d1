//! The toy policy process: containers whose numbers say which container they are of and when they were published.

use anyhow::Context;
use elbowroom_agent::view_server::publisher::{Dirty, Publisher};
use elbowroom_agent::view_server::slots::SlotHandle;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Versions are milliseconds of the boot clock modulo this, so that they grow also across policy processes.
pub const VERSIONS: u64 = 100_000;
/// As the real one's, so that the supervisor does not take it for hung.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Where commands are taken: a line each, an answer each.
pub const SOCKET: &str = "rig.sock";

/// The version that is published now.
pub fn version_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000) % VERSIONS
}

/// `MemTotal` of a container, which no other has.
pub fn memory_of(container: usize) -> Bytes {
    Bytes::mib(1024 + container as u64)
}

/// Numbers of a container at a version, which shows at the start, in the middle and near the end of `meminfo`, in KiB.
pub fn facts_of(container: usize, version: u64) -> ContainerSnapshot {
    let mut facts = ContainerSnapshot::EMPTY;
    facts.online = CpuSet::first_n(1);
    facts.present = CpuSet::first_n(2);
    facts.millicpu = 1500;
    facts.cpu_period = Micros::millis(100);
    facts.cpu_share = version;
    facts.memory = memory_of(container);
    facts.memory_soft = elbowroom_view::pages::snapshot::NO_LIMIT;
    facts.memory_high = elbowroom_view::pages::snapshot::NO_LIMIT;
    facts.memory_usage = Bytes::mib(512);
    facts.memory_stat.active_anon = Bytes::kib(version);
    facts.memory_stat.anon = Bytes::kib(version);
    facts.memory_stat.pagetables = Bytes::kib(version);
    facts.swap_max = 0;
    facts
}

/// Per-CPU times at a version.
pub fn times_of(version: u64) -> Vec<CpuTimes> {
    let ms = Micros::millis(version);
    vec![CpuTimes { user: ms, system: ms, idle: ms }; 2]
}

/// The process: `policy CONTAINERS HZ`. Publishes one container after the other, `HZ` times a second in all; 0: only on
/// command.
pub fn main(containers: usize, hz: u64) -> anyhow::Result<()> {
    let mut publisher = Publisher::from_inherited()?;
    let (commands, inbox) = channel();
    listen(&publisher, commands)?;
    let mut slots: Vec<SlotHandle> = Vec::new();
    let before = publisher.slots();
    for container in 0..containers {
        let name = super::name(container);
        let slot = match before.iter().find(|(_, owner)| *owner == container as u64) {
            Some((slot, _)) => *slot,
            None => publisher
                .add(&name, (container as u64, container as u64), &facts_of(container, 1), &times_of(1))
                .context("while adding")?,
        };
        slots.push(slot);
    }
    let period = Duration::from_nanos(1_000_000_000 / hz.max(1));
    let mut next = Instant::now();
    let mut turn = 0;
    loop {
        publisher.heartbeat();
        if hz == 0 {
            match inbox.recv_timeout(HEARTBEAT_INTERVAL) {
                Ok((line, answer)) => _ = answer.send(command(&mut publisher, &mut slots, &line)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
            continue;
        }
        while let Ok((line, answer)) = inbox.try_recv() {
            let _ = answer.send(command(&mut publisher, &mut slots, &line));
        }
        let version = version_now();
        let container = turn % containers;
        publisher.publish(
            slots[container],
            &facts_of(container, version),
            &times_of(version),
            Dirty::View,
        )?;
        turn += 1;
        next += period;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        if next + Duration::from_secs(1) < Instant::now() {
            next = Instant::now();
        }
    }
}

fn command(publisher: &mut Publisher, slots: &mut [SlotHandle], line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
    let container = number(1) as usize;
    let done = match words.first().copied() {
        Some("set") => publisher
            .publish(slots[container], &facts_of(container, number(2)), &times_of(number(2)), Dirty::View)
            .and_then(|()| publisher.flush(Duration::from_secs(10)))
            .map(|flushed| flushed.to_string()),
        Some("narrow") => {
            // The CPUs from one to another, which is left out.
            let [first, end] = [3, 4].map(|word| CpuSet::first_n(number(word) as u32));
            let facts =
                ContainerSnapshot { present: end.difference(&first), ..facts_of(container, number(2)) };
            publisher
                .publish(slots[container], &facts, &times_of(number(2)), Dirty::View)
                .and_then(|()| publisher.flush(Duration::from_secs(10)))
                .map(|flushed| flushed.to_string())
        }
        Some("renew") => {
            publisher.remove(slots[container]);
            let added = publisher.add(
                &super::name(container),
                (container as u64, container as u64),
                &facts_of(container, 1),
                &times_of(1),
            );
            added.map(|slot| {
                slots[container] = slot;
                slot.serial().to_string()
            })
        }
        Some("cost") => Ok(cost(publisher, slots[container], number(2))),
        Some("read_since") => Ok(publisher.take_recent_reads(slots[container]).count_ones().to_string()),
        Some("counters") => {
            let c = publisher.counters();
            Ok(format!("{} {} {} {}", c.server_starts, c.requests, c.resent, c.failed))
        }
        Some("limit") => {
            super::limits::storm(&publisher.run_dir());
            Ok("limiting".to_owned())
        }
        Some("bloat") => {
            std::thread::spawn(bloat);
            Ok("bloating".to_owned())
        }
        Some("lost") => Ok(super::limits::LOST.load(Ordering::Relaxed).to_string()),
        _ => Ok("?".to_owned()),
    };
    done.unwrap_or_else(|error| format!("error: {error}"))
}

/// Takes a GiB of memory and keeps it; less if the process is killed meanwhile.
fn bloat() {
    for _ in 0..64 {
        std::mem::forget(std::hint::black_box(vec![1_u8; 16 << 20]));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Nanoseconds of one publish, on average, without readers.
fn cost(publisher: &mut Publisher, slot: SlotHandle, rounds: u64) -> String {
    let (facts, times) = (facts_of(0, 1), times_of(1));
    let began = Instant::now();
    for _ in 0..rounds {
        publisher.publish(slot, &facts, &times, Dirty::Stats).expect("the slot is there");
    }
    (began.elapsed().as_nanos() / u128::from(rounds.max(1))).to_string()
}

type Answer = std::sync::mpsc::Sender<String>;

fn listen(publisher: &Publisher, commands: Sender<(String, Answer)>) -> anyhow::Result<()> {
    let path = publisher.run_dir().join(SOCKET);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).context("while binding the rig's socket")?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while matches!(reader.read_line(&mut line), Ok(n) if n > 0) {
                let (answer, answers) = channel();
                if commands.send((std::mem::take(&mut line), answer)).is_err() {
                    return;
                }
                let Ok(text) = answers.recv() else { return };
                if writeln!(reader.get_mut(), "{text}").is_err() {
                    break;
                }
            }
        }
    });
    Ok(())
}
