//! `elbowroom pretouch`: the memory that a container was promised is made free before it is needed.

mod holder;

pub use holder::{HoldArgs, hold};

use super::{HostArgs, VERSION, say, select};
use crate::checks::{Controller, Facts, Group};
use crate::fixes::touch;
use crate::fixes::touch::{PIECE, Reclaimed, time_for};
use crate::strategies::pretouch::{Bound, Plan, Signs, keep, plan, trouble};
use anyhow::{Context, Result, bail};
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_client::output::Format;
use elbowroom_linux::root::Root;
use elbowroom_linux::signal::Signals;
use elbowroom_linux::timer::now_boot;
use elbowroom_types::unit::{Bytes, Micros, parse_bytes, parse_duration};
use holder::Holder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Between two of these the host is looked at, and signals are.
const STEP: Bytes = Bytes::mib(16);
/// How long the host is watched before, to know how it is without us.
const CALM: Micros = Micros::secs(1);
/// Shorter than this, what somebody waited says nothing.
const WINDOW: Micros = Micros::millis(200);
/// How often a container that takes over is looked at.
const LOOK: Micros = Micros::millis(50);

/// Arguments of `pretouch`.
#[derive(Args)]
pub struct PretouchArgs {
    /// Name, beginning of an id, or cgroup path.
    container: String,
    /// How much; without it, what its reservation or its limit promises beyond what it uses.
    #[arg(value_parser = parse_bytes)]
    size: Option<Bytes>,
    /// Then keep the memory for the container, and hand it over as it grows, at most for so long.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    hold: Option<Micros>,
    /// Touch at most so much a second.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = rate)]
    rate: Bytes,
    #[command(flatten)]
    host: HostArgs,
}

fn rate(text: &str) -> Result<Bytes, String> {
    match parse_bytes(text).map_err(|e| e.to_string())? {
        rate if rate < STEP => Err(format!("{text} a second is too slow: at least {STEP}")),
        rate => Ok(rate),
    }
}

/// What was done.
#[derive(Serialize)]
struct Report {
    version: u32,
    container: String,
    cgroup: String,
    plan: Plan,
    /// Page cache that donors gave when they were asked.
    reclaimed: Bytes,
    /// Memory that was touched.
    touched: Bytes,
    /// What was held at the end, and is free for anybody now.
    left: Bytes,
    free_before: Bytes,
    free_after: Bytes,
    /// Why it ended early.
    stopped: Option<String>,
    advice: Vec<String>,
}

/// 0 when all of it was made free, 1 when less.
pub fn main(args: &PretouchArgs, load: LoadSources) -> Result<ExitCode> {
    let signals = Signals::block(&[Signal::INT, Signal::TERM, Signal::HUP]).context("blocking signals")?;
    let root = Root::host()?;
    let (facts, _) = args.host.look(load, Duration::ZERO)?;
    let group = select(&facts, &args.container)?;
    let plan = plan(&facts, group, args.size, touch::marks(&root)?);
    if plan.promised == Bytes::ZERO && args.size.is_none() && group.hard().is_none() {
        bail!(
            "{0} has neither a limit nor a reservation: say how much, `elbowroom pretouch {0} 1GiB`",
            group.name()
        );
    }
    let advice = crate::facts::jvms(&root, group).iter().filter_map(|jvm| jvm.advice()).collect();
    let mut report = Report {
        version: VERSION,
        container: group.name(),
        cgroup: group.path.clone(),
        plan,
        reclaimed: Bytes::ZERO,
        touched: Bytes::ZERO,
        left: Bytes::ZERO,
        free_before: touch::free(&root)?,
        free_after: Bytes::ZERO,
        stopped: None,
        advice,
    };
    eprintln!("{}", announced(&report));
    let size = report.plan.size;
    // What is free needs no touch, only, where that is asked for, somebody who keeps it.
    if report.plan.reclaim > Bytes::ZERO || (size > Bytes::ZERO && args.hold.is_some()) {
        let calm = touch::signs(&root, &facts)?;
        let mut work = Work {
            signals,
            root: &root,
            facts: &facts,
            rate: args.rate,
            calm: (calm.clone(), calm),
            last: None,
        };
        report.stopped = work.all(group, size, args.hold, &mut report)?;
    }
    report.free_after = touch::free(&root)?;
    let whole = report.stopped.is_none() && report.plan.bound == Bound::Promise;
    say(&match args.host.output.format {
        Format::Json => elbowroom_client::output::json(&report)?,
        Format::Text => text(&report),
    })?;
    Ok(ExitCode::from(u8::from(!whole)))
}

/// The work on one host, and what it watches meanwhile.
struct Work<'a> {
    signals: Signals,
    root: &'a Root,
    facts: &'a Facts,
    rate: Bytes,
    calm: (Signs, Signs),
    last: Option<Signs>,
}

/// Why work ends before its time.
type Stopped = Option<String>;

impl Work<'_> {
    /// Everything, one after the other.
    fn all(
        &mut self,
        group: &Group,
        size: Bytes,
        hold: Option<Micros>,
        report: &mut Report,
    ) -> Result<Stopped> {
        if let Some(why) = self.nap(CALM)? {
            return Ok(Some(why));
        }
        self.calm.1 = touch::signs(self.root, self.facts)?;
        let usage_file = group.file(Controller::Memory, group.usage_file());
        let before = touch::usage(self.root, &usage_file)?.unwrap_or_default();
        if let Some(why) = self.reclaim(report)? {
            return Ok(Some(why));
        }
        let mut holder = Holder::start(self.facts)?;
        let mut stopped = self.touch(&mut holder, size)?;
        report.touched = holder.held();
        if let (None, Some(time)) = (&stopped, hold) {
            stopped = self.hand_over(&mut holder, size, (&usage_file, before), time)?;
            report.left = holder.held();
        }
        Ok(stopped)
    }

    /// Asks donors for their idle page cache.
    fn reclaim(&mut self, report: &mut Report) -> Result<Stopped> {
        let swap = self.facts.host.meminfo("SwapTotal").unwrap_or_default() > Bytes::ZERO;
        let total = report.plan.reclaim;
        for donor in &report.plan.donors {
            let mut given = Bytes::ZERO;
            while given < donor.gives {
                let piece = donor.gives.saturating_sub(given).min(STEP);
                match touch::reclaim(self.root, &donor.file, piece, swap)? {
                    Reclaimed::All => {}
                    Reclaimed::NoMore => break,
                    Reclaimed::Unable => return Ok(None),
                }
                given = given.saturating_add(piece);
                report.reclaimed = report.reclaimed.saturating_add(piece);
                progress("reclaimed", report.reclaimed, total);
                if let Some(why) = self.pause(piece)? {
                    return Ok(Some(why));
                }
            }
        }
        Ok(None)
    }

    /// Touches `size`, piece by piece.
    fn touch(&mut self, holder: &mut Holder, size: Bytes) -> Result<Stopped> {
        while holder.held() < size {
            let step = size.saturating_sub(holder.held()).min(STEP);
            holder.hold(holder.held().saturating_add(step))?;
            progress("touched", holder.held(), size);
            if let Some(why) = self.pause(step)? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Gives back as much as the container takes, until it has all of it or the time is over.
    fn hand_over(
        &mut self,
        holder: &mut Holder,
        size: Bytes,
        used: (&str, Bytes),
        time: Micros,
    ) -> Result<Stopped> {
        let end = now_boot().saturating_add(time);
        let (file, before) = used;
        while now_boot() < end {
            let Some(now) = touch::usage(self.root, file)? else {
                return Ok(Some("the container ended".into()));
            };
            let held = keep(size, holder.held(), before, now);
            if held < PIECE {
                holder.hold(Bytes::ZERO)?;
                return Ok(None);
            }
            holder.hold(held)?;
            progress("kept", holder.held(), size);
            if let Some(why) = self.nap(LOOK)? {
                return Ok(Some(why));
            }
            if let Some(why) = self.look()? {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// Waits as long as `size` may take, and looks how everybody is.
    fn pause(&mut self, size: Bytes) -> Result<Stopped> {
        match self.nap(time_for(size, self.rate))? {
            Some(why) => Ok(Some(why)),
            None => self.look(),
        }
    }

    /// Whether somebody suffers.
    fn look(&mut self) -> Result<Stopped> {
        let then = self.last.get_or_insert_with(|| self.calm.1.clone());
        if now_boot().saturating_sub(then.at) < WINDOW {
            return Ok(None);
        }
        let now = touch::signs(self.root, self.facts)?;
        let why = trouble((&self.calm.0, &self.calm.1), then, &now);
        self.last = Some(now);
        Ok(why)
    }

    /// Waits, unless somebody wants an end.
    fn nap(&self, time: Micros) -> Result<Stopped> {
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
    if std::io::stderr().is_terminal() {
        let end = if done >= of { "\n" } else { "" };
        eprint!("\r{what} {done} of {of}\x1b[K{end}");
    }
}

fn announced(report: &Report) -> String {
    let Plan { promised, size, bound, reclaim, .. } = &report.plan;
    let why = match bound {
        Bound::Promise => String::new(),
        Bound::Limit => ": its limit, or one around it, allows no more".to_owned(),
        Bound::Idle => ": no more is free or page cache that nobody uses".to_owned(),
        Bound::Reserve => ": with more the host would be short of memory".to_owned(),
    };
    let first = match *reclaim {
        Bytes::ZERO => "all of it is free already".to_owned(),
        more => format!("{more} of it is page cache now"),
    };
    match *size {
        Bytes::ZERO if *bound == Bound::Promise => {
            format!("{} uses all that it was promised", report.container)
        }
        Bytes::ZERO => format!("{}: nothing of {promised} can be made free{why}", report.container),
        size if size == *promised => format!("{}: {size} to make free, {first}", report.container),
        size => format!("{}: {size} of {promised} to make free, {first}{why}", report.container),
    }
}

fn text(report: &Report) -> String {
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
        text += &super::report::wrapped(advice, "", 80);
    }
    text
}
