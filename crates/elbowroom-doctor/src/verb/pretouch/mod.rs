//! `elbowroom pretouch`: the memory that a container was promised is made free before it is needed.

mod memory_holder;

pub use memory_holder::{HoldMemoryArgs, hold_memory};

use super::{HostFactsArgs, VERSION, container_called};
use crate::checks::{CgroupFacts, HierarchyController, HostFacts};
use crate::fixes::pretouch;
use crate::fixes::pretouch::{CHUNK, ReclaimResult, transfer_time};
use crate::strategies::pretouch::{
    PretouchBound, PretouchPlan, StallSample, memory_to_hold, plan, stop_reason,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::{Format, say, say_progress, write_stdout};
use elbowroom_linux::root::Root;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer::now_boot;
use elbowroom_types::resource_command::shell_quoted;
use elbowroom_types::unit::{Bytes, Micros, parse_bytes, parse_duration};
use memory_holder::MemoryHolder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Between two of these the host is looked at, and signals are.
const STEP_BYTES: Bytes = Bytes::mib(16);
/// How long the host is watched before, to know how it is without us.
const BASELINE_TIME: Micros = Micros::secs(1);
/// Shorter than this, a time of waiting says nothing.
const MIN_PRESSURE_WINDOW: Micros = Micros::millis(200);
/// How often a container that takes over is looked at.
const HANDOVER_INTERVAL: Micros = Micros::millis(50);

/// Arguments of `pretouch`.
#[derive(Args)]
pub struct PretouchArgs {
    /// Name, beginning of an id, or cgroup path.
    container: String,
    /// How much; without it, what its reservation or its limit promises beyond what it uses.
    #[arg(value_parser = parse_bytes)]
    size: Option<Bytes>,
    /// Then keep the memory for the container, and hand it over as it grows, for at most DURATION.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    hold: Option<Micros>,
    /// Touch at most this much a second.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_rate)]
    rate: Bytes,
    #[command(flatten)]
    host: HostFactsArgs,
}

fn parse_rate(text: &str) -> Result<Bytes, String> {
    match parse_bytes(text).map_err(|e| e.to_string())? {
        rate if rate < STEP_BYTES => Err(format!("{text} a second is too slow: at least {STEP_BYTES}")),
        rate => Ok(rate),
    }
}

/// What was done.
#[derive(Serialize)]
struct PretouchOutput {
    version: u32,
    container: String,
    cgroup: String,
    plan: PretouchPlan,
    /// Page cache that donors gave when they were asked.
    reclaimed: Bytes,
    /// Memory that was touched.
    touched: Bytes,
    /// What was held at the end, and is free for all now.
    left: Bytes,
    free_before: Bytes,
    free_after: Bytes,
    /// Why it ended early.
    stopped: Option<String>,
    advice: Vec<String>,
}

/// 0 when all of it was made free, 1 when less.
pub fn main(args: &PretouchArgs, load: LoadSources) -> Result<ExitCode> {
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM, Signal::HUP]).context("blocking signals")?;
    let root = Root::host()?;
    let (facts, _) = args.host.collect_facts(load, Duration::ZERO)?;
    let group = container_called(&facts, &args.container)?;
    let plan = plan(&facts, group, args.size, pretouch::high_watermarks(&root)?);
    if plan.promised == Bytes::ZERO && args.size.is_none() && group.hard_limit().is_none() {
        bail!(
            "{0} has neither a limit nor a reservation: say how much, `elbowroom pretouch {1} 1GiB`",
            group.name(),
            shell_quoted(&group.name())
        );
    }
    let advice = crate::facts::jvms(&root, group).iter().filter_map(|jvm| jvm.advice()).collect();
    let mut report = PretouchOutput {
        version: VERSION,
        container: group.name(),
        cgroup: group.path.clone(),
        plan,
        reclaimed: Bytes::ZERO,
        touched: Bytes::ZERO,
        left: Bytes::ZERO,
        free_before: pretouch::free_memory(&root)?,
        free_after: Bytes::ZERO,
        stopped: None,
        advice,
    };
    say(&plan_line(&report));
    let size = report.plan.size;
    // What is free needs no touch, only, where that is asked for, a process that keeps it.
    if report.plan.reclaim > Bytes::ZERO || (size > Bytes::ZERO && args.hold.is_some()) {
        let calm = pretouch::distress_signals(&root, &facts)?;
        let mut work = PretouchRun {
            signals,
            root: &root,
            facts: &facts,
            rate: args.rate,
            baseline: (calm.clone(), calm),
            previous: None,
        };
        report.stopped = work.run(group, size, args.hold, &mut report)?;
    }
    report.free_after = pretouch::free_memory(&root)?;
    let whole = report.stopped.is_none() && report.plan.bound == PretouchBound::Promise;
    write_stdout(&match args.host.output.format {
        Format::Data(data) => data.document(&report)?,
        Format::Text => text(&report),
    })?;
    Ok(ExitCode::from(u8::from(!whole)))
}

/// The work on one host, and what it watches meanwhile.
struct PretouchRun<'a> {
    signals: SignalFd,
    root: &'a Root,
    facts: &'a HostFacts,
    rate: Bytes,
    baseline: (StallSample, StallSample),
    previous: Option<StallSample>,
}

/// Why work ends before its time.
type StopReason = Option<String>;

impl PretouchRun<'_> {
    /// Everything, one after the other.
    fn run(
        &mut self,
        group: &CgroupFacts,
        size: Bytes,
        hold: Option<Micros>,
        report: &mut PretouchOutput,
    ) -> Result<StopReason> {
        if let Some(why) = self.interruptible_sleep(BASELINE_TIME)? {
            return Ok(Some(why));
        }
        self.baseline.1 = pretouch::distress_signals(self.root, self.facts)?;
        let usage_file = group.file(HierarchyController::Memory, group.usage_file());
        let before = pretouch::usage(self.root, &usage_file)?.unwrap_or_default();
        if let Some(why) = self.reclaim(report)? {
            return Ok(Some(why));
        }
        let mut holder = MemoryHolder::start(self.facts)?;
        let mut stopped = self.touch(&mut holder, size)?;
        report.touched = holder.size();
        if let (None, Some(time)) = (&stopped, hold) {
            stopped = self.hand_over(&mut holder, size, (&usage_file, before), time)?;
            report.left = holder.size();
            say_progress(&format!("kept {} of {size}", report.left), true);
        }
        Ok(stopped)
    }

    /// Asks donors for their idle page cache.
    fn reclaim(&mut self, report: &mut PretouchOutput) -> Result<StopReason> {
        let swap = self.facts.host.meminfo("SwapTotal").unwrap_or_default() > Bytes::ZERO;
        let total = report.plan.reclaim;
        for donor in &report.plan.donors {
            let mut given = Bytes::ZERO;
            while given < donor.gives {
                let piece = donor.gives.saturating_sub(given).min(STEP_BYTES);
                match pretouch::reclaim(self.root, &donor.file, piece, swap)? {
                    ReclaimResult::Complete => {}
                    ReclaimResult::Exhausted => break,
                    ReclaimResult::Unsupported => return Ok(None),
                }
                given = given.saturating_add(piece);
                report.reclaimed = report.reclaimed.saturating_add(piece);
                progress("reclaimed", report.reclaimed, total);
                if let Some(why) = self.pace(piece)? {
                    return Ok(Some(why));
                }
            }
        }
        Ok(None)
    }

    /// Touches `size`, piece by piece.
    fn touch(&mut self, holder: &mut MemoryHolder, size: Bytes) -> Result<StopReason> {
        while holder.size() < size {
            let step = size.saturating_sub(holder.size()).min(STEP_BYTES);
            holder.resize(holder.size().saturating_add(step))?;
            progress("touched", holder.size(), size);
            if let Some(why) = self.pace(step)? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Gives back as much as the container takes, until it has all of it or the time is over.
    fn hand_over(
        &mut self,
        holder: &mut MemoryHolder,
        size: Bytes,
        used: (&str, Bytes),
        time: Micros,
    ) -> Result<StopReason> {
        let end = now_boot().saturating_add(time);
        let (file, before) = used;
        while now_boot() < end {
            let Some(now) = pretouch::usage(self.root, file)? else {
                return Ok(Some("the container ended".into()));
            };
            let held = memory_to_hold(size, holder.size(), before, now);
            if held < CHUNK {
                holder.resize(Bytes::ZERO)?;
                return Ok(None);
            }
            holder.resize(held)?;
            say_progress(&format!("kept {held} of {size}"), false);
            if let Some(why) = self.interruptible_sleep(HANDOVER_INTERVAL)? {
                return Ok(Some(why));
            }
            if let Some(why) = self.check_pressure()? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Waits as long as `size` may take, and looks how the containers are.
    fn pace(&mut self, size: Bytes) -> Result<StopReason> {
        match self.interruptible_sleep(transfer_time(size, self.rate))? {
            Some(why) => Ok(Some(why)),
            None => self.check_pressure(),
        }
    }

    /// Whether a container suffers.
    fn check_pressure(&mut self) -> Result<StopReason> {
        let then = self.previous.get_or_insert_with(|| self.baseline.1.clone());
        if now_boot().saturating_sub(then.at) < MIN_PRESSURE_WINDOW {
            return Ok(None);
        }
        let now = pretouch::distress_signals(self.root, self.facts)?;
        let why = stop_reason((&self.baseline.0, &self.baseline.1), then, &now);
        self.previous = Some(now);
        Ok(why)
    }

    /// Waits, unless a signal asks for the end.
    fn interruptible_sleep(&self, time: Micros) -> Result<StopReason> {
        let end = now_boot().saturating_add(time);
        loop {
            if self.signals.next()?.is_some() {
                return Ok(Some("interrupted".into()));
            }
            let left = Duration::from_micros(end.saturating_sub(now_boot()).get());
            if left.is_zero() {
                return Ok(None);
            }
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) as _ };
            match poll(&mut [PollFd::new(&self.signals, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A line that a terminal shows again and again.
fn progress(what: &str, done: Bytes, of: Bytes) {
    say_progress(&format!("{what} {done} of {of}"), done >= of);
}

fn plan_line(report: &PretouchOutput) -> String {
    let PretouchPlan { promised, size, bound, reclaim, .. } = &report.plan;
    let why = match bound {
        PretouchBound::Promise => String::new(),
        PretouchBound::Limit => ": its limit, or one around it, allows no more".to_owned(),
        PretouchBound::Idle => ": no more is free or unused page cache".to_owned(),
        PretouchBound::Reserve => ": with more the host would be short of memory".to_owned(),
    };
    let first = match *reclaim {
        Bytes::ZERO => "all of it is free already".to_owned(),
        more => format!("{more} of it is page cache now"),
    };
    match *size {
        Bytes::ZERO if *bound == PretouchBound::Promise => {
            format!("{} uses all that it was promised", report.container)
        }
        Bytes::ZERO => format!("{}: nothing of {promised} can be made free{why}", report.container),
        size if size == *promised => format!("{}: {size} to make free, {first}", report.container),
        size => format!("{}: {size} of {promised} to make free, {first}{why}", report.container),
    }
}

fn text(report: &PretouchOutput) -> String {
    let mut text = String::new();
    if report.touched > Bytes::ZERO {
        text += &format!(
            "{} touched for {}; free memory of the host {} -> {}\n",
            report.touched, report.container, report.free_before, report.free_after
        );
    }
    if let Some(why) = &report.stopped {
        text += &format!("stopped: {why}\n");
    }
    for advice in &report.advice {
        text += &super::report::wrap(advice, "", 80);
    }
    text
}
