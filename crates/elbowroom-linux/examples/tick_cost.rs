//! What a tick costs: makes N containers, cgroups with one process each, a part of them active. The sensor ticks every 24 ms, the
//! default rules decide, and the CPU time of both is printed as JSON. Needs root. Publishes nothing but numbers of the machine it
//! runs on: say what else ran.
//!
//! ```text
//! cargo run --release -p elbowroom-linux --example tick_cost [-- [files] [GROUPS ACTIVE_PERCENT]...]
//! ```
//!
//! Without numbers: 10, 100 and 1000 groups, 10 and 100 % active. `files` leaves BPF out of a build that has it. The sensor
//! sees the machine's other cgroups too: `groups_read` says how many. Everything made is removed at the end and on SIGINT.

use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::root::Root;
use elbowroom_linux::{Sensor, SensorConfig, timer};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::{ViewRules, ViewTable};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PERIOD: Micros = Micros::millis(24);
/// 4.8 s: an idle group has backed off to 1.5 s after 3 s.
const WARM_UP: usize = 200;
const TICKS: usize = 400;

static STOPPED: AtomicBool = AtomicBool::new(false);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [worker, kind] = &args[..]
        && worker == "worker"
    {
        return work(kind == "active");
    }
    let (files, args) = match &args[..] {
        [first, rest @ ..] if first == "files" => (true, rest),
        all => (false, all),
    };
    let numbers = args.iter().map(|a| a.parse()).collect::<Result<Vec<usize>, _>>()?;
    let cases = match numbers.len() {
        0 => vec![(10, 10), (10, 100), (100, 10), (100, 100), (1000, 10), (1000, 100)],
        _ => numbers.chunks_exact(2).map(|c| (c[0], c[1])).collect(),
    };
    stop_on_signals();
    let layout = CgroupLayout::detect(&Root::host()?)?;
    let mut rows = Vec::new();
    for (groups, percent) in cases {
        match measure(&layout, groups, percent, !files)? {
            Some(row) => rows.push(row),
            None => break,
        }
    }
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let report = serde_json::json!({
        "kernel": kernel,
        "layout": format!("{:?}", layout.mode).to_lowercase(),
        "cpus": std::thread::available_parallelism()?.get(),
        "loadavg": std::fs::read_to_string("/proc/loadavg")?.trim_end(),
        "period_ms": PERIOD.get() / 1_000,
        "ticks": TICKS,
        "mem_free_ns": mem_free(),
        "rows": rows,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// One case; `None` when a signal ended it.
fn measure(
    layout: &CgroupLayout,
    groups: usize,
    percent: usize,
    bpf: bool,
) -> Result<Option<serde_json::Value>, Box<dyn Error>> {
    let mut crowd = Crowd::new(layout);
    crowd.mkdir("")?;
    for n in 0..groups {
        if STOPPED.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let name = format!("g{n}");
        crowd.mkdir(&name)?;
        crowd.spawn(&name, n * 100 < percent * groups)?;
    }
    let plain = vec![format!("/{}/*", crowd.name)];
    let mut sensor = Sensor::open(&SensorConfig {
        period: PERIOD,
        bpf,
        container_patterns: plain,
        ..SensorConfig::default()
    })?;
    let mut views = ViewTable::new(ViewRules::default());
    views.apply_all(&sensor.start());
    let (priority, ticker) = (timer::prefer_realtime(), timer::Ticker::new(PERIOD)?);
    let (mut tick_us, mut views_us, mut changes_us) = (Vec::new(), Vec::new(), Vec::new());
    let (mut missed, mut syscalls, mut read, mut probes, mut named) = (0, 0, 0, 0, 0);
    for n in 0..WARM_UP + TICKS {
        let late = ticker.wait()?;
        if STOPPED.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let start = thread_cpu();
        let tick = HostEvent::Tick(sensor.tick(timer::now()));
        let ticked = thread_cpu();
        std::hint::black_box(views.apply(&tick));
        let decided = thread_cpu();
        let changes = sensor.changes();
        let changed = thread_cpu();
        views.apply_all(&changes);
        if n >= WARM_UP {
            let cost = sensor.cost();
            tick_us.push((ticked - start).as_secs_f64() * 1e6);
            views_us.push((decided - ticked).as_secs_f64() * 1e6);
            changes_us.push((changed - decided).as_secs_f64() * 1e6);
            missed += late;
            syscalls += cost.syscalls;
            read += cost.groups;
            probes += cost.probes;
            named += if let HostEvent::Tick(tick) = &tick { tick.usage.len() } else { 0 };
        }
    }
    let (median, p95, mean) = spread(&mut tick_us);
    let (views_median, views_p95, views_mean) = spread(&mut views_us);
    let (changes_median, _, changes_mean) = spread(&mut changes_us);
    let per_tick = |n: u64| (n as f64 / TICKS as f64 * 10.0).round() / 10.0;
    Ok(Some(serde_json::json!({
        "groups": groups, "active_percent": percent, "tier": sensor.source().name(),
        "notifications": sensor.notifications(), "busy_from": sensor.busy_source(),
        "priority": format!("{priority:?}").to_lowercase(), "missed_ticks": missed,
        "tick_us": { "median": median, "p95": p95, "mean": mean },
        "per_group_us": { "median": round(median / groups as f64), "mean": round(mean / groups as f64) },
        "views_us": { "median": views_median, "p95": views_p95, "mean": views_mean },
        "changes_us": { "median": changes_median, "mean": changes_mean },
        "per_tick": {
            "syscalls": per_tick(syscalls), "groups_read": per_tick(read),
            "probes": per_tick(probes), "groups_named": per_tick(named as u64),
        },
    })))
}

/// Cgroups with processes, removed when dropped.
struct Crowd<'a> {
    layout: &'a CgroupLayout,
    hierarchies: Vec<usize>,
    name: String,
    made: Vec<PathBuf>,
    workers: Vec<Child>,
}

impl<'a> Crowd<'a> {
    fn new(layout: &'a CgroupLayout) -> Self {
        let mut hierarchies: Vec<usize> =
            [CgroupController::Cpu, CgroupController::Cpuacct, CgroupController::Memory]
                .iter()
                .filter_map(|c| layout.index(*c))
                .collect();
        hierarchies.dedup();
        let name = format!("elbowroom-test-sensing-tick-{}", std::process::id());
        Self { layout, hierarchies, name, made: Vec::new(), workers: Vec::new() }
    }

    fn dirs(&self, below: &str) -> Vec<(CgroupVersion, PathBuf)> {
        let of = |index: &usize| {
            let hierarchy = &self.layout.hierarchies()[*index];
            (hierarchy.version, hierarchy.mount_point.join(&self.name).join(below))
        };
        self.hierarchies.iter().map(of).collect()
    }

    fn mkdir(&mut self, below: &str) -> std::io::Result<()> {
        for (version, dir) in self.dirs(below) {
            std::fs::create_dir(&dir)?;
            if version == CgroupVersion::V2 && below.is_empty() {
                std::fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory")?;
            }
            self.made.push(dir);
        }
        Ok(())
    }

    fn spawn(&mut self, below: &str, active: bool) -> std::io::Result<()> {
        let kind = if active { "active" } else { "idle" };
        let worker = Command::new(std::env::current_exe()?)
            .args(["worker", kind])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let pid = worker.id().to_string();
        self.workers.push(worker);
        for (_, dir) in self.dirs(below) {
            std::fs::write(dir.join("cgroup.procs"), &pid)?;
        }
        Ok(())
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
        }
        for worker in &mut self.workers {
            let _ = worker.wait();
        }
        for dir in self.made.iter().rev() {
            let until = Instant::now() + Duration::from_secs(5);
            while std::fs::remove_dir(dir).is_err() && Instant::now() < until {
                std::thread::yield_now();
            }
        }
    }
}

/// One process of one group: asleep, or awake for some microseconds in every period.
fn work(active: bool) -> Result<(), Box<dyn Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Its parent may have died before the line above; it is init's child then.
    if rustix::process::getppid().is_none_or(|parent| parent == Pid::INIT) {
        return Ok(());
    }
    // As programs of containers have it. The one of a thread with real-time priority, as this one's parent has from the second case
    // on, is 0 and inherited (kernel/sched/syscalls.c, __setscheduler_params): every sleep would end by an interrupt of its own.
    set_current_timer_slack(NonZeroU64::new(50_000))?;
    loop {
        std::thread::sleep(if active {
            Duration::from_micros(PERIOD.get() / 2)
        } else {
            Duration::from_secs(3_600)
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(5) {
            std::hint::spin_loop();
        }
    }
}

/// The two ways to `MemFree`, in nanoseconds per call.
fn mem_free() -> serde_json::Value {
    let time = |call: &dyn Fn()| {
        let start = thread_cpu();
        (0..1_000).for_each(|_| call());
        (thread_cpu() - start).as_nanos() as u64 / 1_000
    };
    let meminfo = std::fs::File::open("/proc/meminfo");
    let mut fresh = [0u8; 4096];
    serde_json::json!({
        "sysinfo": time(&|| {
            let _ = std::hint::black_box(rustix::system::sysinfo());
        }),
        "meminfo_pread": meminfo.ok().map(|file| {
            let buffer = std::cell::RefCell::new(&mut fresh);
            time(&|| {
                let read = rustix::io::pread(&file, &mut buffer.borrow_mut()[..], 0);
                let _ = std::hint::black_box(read);
            })
        }),
    })
}

fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |q: f64| values.get((values.len() as f64 * q) as usize).copied().unwrap_or(f64::NAN);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (round(at(0.5)), round(at(0.95)), round(mean))
}

fn round(us: f64) -> f64 {
    (us * 1_000.0).round() / 1_000.0
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn stop_on_signals() {
    extern "C" fn stop(_: libc::c_int) {
        STOPPED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe, and lives as long as the program.
        unsafe { libc::signal(signal, stop as *const () as libc::sighandler_t) };
    }
}
