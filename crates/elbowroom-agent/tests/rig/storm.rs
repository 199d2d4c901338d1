//! Readers read, versions change, and every process of the agent is killed in turn.

use super::agent::{Agent, Watchdog};
use super::policy::{VERSIONS, version_now};
use super::readers::{EVERY_WAY, How, Reader, Wrong, check_meminfo};
use elbowroom_agent::view_server::roles::AgentRole;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Storm {
    pub readers: usize,
    pub containers: usize,
    pub kills: usize,
    /// Publishes a second, over all containers.
    pub hz: u64,
    /// Between two reads of a reader.
    pub pause: Duration,
    /// Between a recovery and the next kill.
    pub gap: Duration,
}

#[derive(Debug, Default)]
pub struct Report {
    pub reads: u64,
    pub failed: u64,
    pub torn: u64,
    /// Mappings that were replaced while they were copied: mixing two versions there is in the nature of mappings.
    pub mixed_mappings: u64,
    pub foreign: u64,
    pub backwards: u64,
    /// Longest read.
    pub slowest: Duration,
    pub killed: [usize; 3],
    /// From the server: starts, requests, answered a second time after a kill, failed.
    pub counters: String,
    /// Age in ms of the oldest version that any reader got in a period after the killing was over. It is of the first period with less than
    /// [`STALE_MS`], or else of the last one; `u64::MAX` if fewer reads than there are readers ended in that period.
    pub stale_ms: u64,
    pub elapsed: Duration,
    pub examples: Vec<String>,
}

/// What no reader still gets when all is calm, in ms.
pub const STALE_MS: u64 = 2_000;
/// How long a busy machine may take to publish everything anew.
const CALM_TIMEOUT: Duration = Duration::from_secs(30);

/// Killed together, in turn: each alone, and every pair.
const TURNS: [&[AgentRole]; 6] = [
    &[AgentRole::Server],
    &[AgentRole::Policy],
    &[AgentRole::Supervisor],
    &[AgentRole::Server, AgentRole::Supervisor],
    &[AgentRole::Policy, AgentRole::Server],
    &[AgentRole::Supervisor, AgentRole::Policy],
];

#[derive(Default)]
struct Tally {
    reads: AtomicU64,
    failed: AtomicU64,
    torn: AtomicU64,
    mixed: AtomicU64,
    foreign: AtomicU64,
    backwards: AtomicU64,
    slowest_us: AtomicU64,
    stale_ms: AtomicU64,
    calm_reads: AtomicU64,
    calm: AtomicBool,
    stop: AtomicBool,
    examples: Mutex<Vec<String>>,
}

impl Storm {
    pub fn run(self) -> Report {
        let agent = Agent::start(self.containers, self.hz);
        let limit =
            Duration::from_secs(60) + CALM_TIMEOUT + self.kills as u32 * (self.gap + Duration::from_secs(2));
        let _watchdog = Watchdog::over(agent.dir.path(), limit);
        let began = Instant::now();
        let tally = Arc::new(Tally::default());
        let readers: Vec<_> = (0..self.readers)
            .map(|i| {
                let container = (i / EVERY_WAY.len()) % self.containers;
                let path = agent.view(container).join("proc/meminfo");
                let how = EVERY_WAY[i % EVERY_WAY.len()];
                let tally = Arc::clone(&tally);
                std::thread::spawn(move || tally.read_on(how, &path, container, i, self.pause))
            })
            .collect();
        let mut killed = [0; 3];
        let mut turns = TURNS.iter().cycle();
        while killed.iter().sum::<usize>() < self.kills {
            std::thread::sleep(self.gap);
            let roles = turns.next().expect("a cycle has no end");
            agent.kill(roles);
            roles.iter().for_each(|role| killed[*role as usize] += 1);
        }
        // Every container is published anew within this time; afterwards no reader may see anything older.
        std::thread::sleep(
            Duration::from_secs(1) + Duration::from_millis(1000 * self.containers as u64 / self.hz),
        );
        tally.calm.store(true, Ordering::SeqCst);
        let until = Instant::now() + CALM_TIMEOUT;
        let stale_ms = loop {
            tally.stale_ms.store(0, Ordering::SeqCst);
            tally.calm_reads.store(0, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(500) + 20 * self.pause);
            // A while without reads proves nothing.
            let has_reads = tally.calm_reads.load(Ordering::SeqCst) >= self.readers as u64;
            let stale_ms = if has_reads { tally.stale_ms.load(Ordering::SeqCst) } else { u64::MAX };
            if stale_ms < STALE_MS || Instant::now() > until {
                break stale_ms;
            }
        };
        tally.stop.store(true, Ordering::SeqCst);
        let ended = readers.into_iter().map(std::thread::JoinHandle::join).filter(Result::is_err).count();
        let at = |n: &AtomicU64| n.load(Ordering::SeqCst);
        Report {
            reads: at(&tally.reads),
            failed: at(&tally.failed) + ended as u64,
            torn: at(&tally.torn),
            mixed_mappings: at(&tally.mixed),
            foreign: at(&tally.foreign),
            backwards: at(&tally.backwards),
            slowest: Duration::from_micros(at(&tally.slowest_us)),
            killed,
            counters: agent.ask("counters"),
            stale_ms,
            elapsed: began.elapsed(),
            examples: std::mem::take(&mut tally.examples.lock().unwrap()),
        }
    }
}

impl Tally {
    fn read_on(&self, how: How, path: &std::path::Path, container: usize, seed: usize, pause: Duration) {
        let mut reader = Reader::new(how, path).expect("the view is there");
        let mut last = None;
        let mut turn = seed;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            // Half of the reads find the page cached, the others need the view server.
            if turn.is_multiple_of(2) {
                reader.forget_cached();
            }
            let began = Instant::now();
            let read = reader.read();
            let took = began.elapsed();
            let oldest = version_now();
            self.slowest_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
            self.reads.fetch_add(1, Ordering::Relaxed);
            match read.map(|text| check_meminfo(&text, container)) {
                Err(error) => self.wrong(&self.failed, format!("{how:?} of {container}: {error}")),
                Ok(Err(Wrong::OfContainer(other))) => {
                    self.wrong(&self.foreign, format!("{how:?} of {container} got {other}"));
                }
                Ok(Err(Wrong::Torn(text))) if how == How::Mmap => {
                    self.wrong(&self.mixed, format!("mapping {text:?}"))
                }
                Ok(Err(Wrong::Torn(text))) => {
                    self.wrong(&self.torn, format!("{how:?} of {container}: {text:?}"));
                }
                Ok(Ok(version)) => {
                    let age = |of: u64| (oldest + VERSIONS - of) % VERSIONS;
                    // Less than half the range back is back; more is the range beginning anew.
                    if last.is_some_and(|last| {
                        age(version) > age(last) && age(version) - age(last) < VERSIONS / 2
                    }) {
                        self.wrong(
                            &self.backwards,
                            format!("{how:?} of {container}: {version} after {last:?}"),
                        );
                    }
                    last = Some(version);
                    if self.calm.load(Ordering::Relaxed) {
                        self.stale_ms.fetch_max(
                            age(version).saturating_sub(took.as_millis() as u64),
                            Ordering::Relaxed,
                        );
                        self.calm_reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            std::thread::sleep(pause);
        }
    }

    fn wrong(&self, counter: &AtomicU64, what: String) {
        counter.fetch_add(1, Ordering::Relaxed);
        let mut examples = self.examples.lock().unwrap();
        if examples.len() < 10 {
            examples.push(what);
        }
    }
}
