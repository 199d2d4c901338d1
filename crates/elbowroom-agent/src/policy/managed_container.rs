//! One container the policy process looks after.

use super::kept_details::KeptDetails;
use super::loadavg::ContainerLoadAvg;
use super::mounter::{MountOutcome, SLOW};
use crate::view_server::slots::SlotHandle;
use elbowroom_linux::view_page::ViewPage;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::Usage;
use elbowroom_types::unit::Micros;
use elbowroom_types::verdict::Verdict;
use elbowroom_view::pages::mapped::MappedView;
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use elbowroom_view::rules::View;
use std::sync::Arc;

/// Retries of a mount start here and double up to [`RETRY_MAX`].
const RETRY_MIN: Micros = Micros::millis(5);
/// A container whose mount cannot be made yet is looked at again at least this often.
const RETRY_MAX: Micros = Micros::secs(2);

/// Numbers are renewed this often where nothing is used and none is read.
const QUIET_REFRESH: Micros = Micros::secs(10);

/// Why no view is mounted in a container after a client had it detached.
pub(super) const DETACHED: &str = "detached by request";

/// The same where detaching it failed.
pub(super) const DETACH_FAILED: &str = "its view could not be detached";

/// Whether a container's view is mounted in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttachState {
    /// Not yet; `note` says why.
    Waiting { retry_at: Micros, delay: Micros, note: String },
    /// A job is with the mounter.
    InFlight { delay: Micros },
    /// It is; these surfaces have no file to go over, and may have one at `look_at`.
    Done { missing: Vec<String>, look_at: Option<Micros> },
    /// It is not to be mounted, for this reason.
    Disabled(&'static str),
}

impl AttachState {
    /// To be tried at once.
    pub(super) fn now() -> Self {
        Self::at(Micros::ZERO, "")
    }

    /// To be tried at that time of the monotonic clock.
    pub(super) fn at(retry_at: Micros, note: &str) -> Self {
        Self::Waiting { retry_at, delay: RETRY_MIN, note: note.to_owned() }
    }

    /// To be tried again after a pause that grows.
    pub(super) fn retry(&self, now: Micros, note: String) -> Self {
        let delay = match self {
            Self::Waiting { delay, .. } | Self::InFlight { delay } => *delay,
            Self::Done { .. } | Self::Disabled(_) => RETRY_MIN,
        };
        let next = delay.saturating_add(delay).min(RETRY_MAX);
        Self::Waiting { retry_at: now.saturating_add(delay), delay: next, note }
    }

    /// To be tried again later, for that reason; a view that is mounted stays so, and is only looked at later.
    pub(super) fn put_off(&self, now: Micros, why: &str) -> Self {
        match self {
            Self::Done { .. } => {
                let mut again = self.clone();
                again.look_again(now, RETRY_MAX, true);
                again
            }
            _ => self.retry(now, why.to_owned()),
        }
    }

    /// Whether there is something to mount.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        match self {
            Self::Waiting { retry_at, .. } => *retry_at <= now,
            Self::Done { look_at, .. } => look_at.is_some_and(|at| at <= now),
            Self::InFlight { .. } | Self::Disabled(_) => false,
        }
    }

    /// With a job at the mounter; one that looks for files which were missing takes nothing away meanwhile.
    pub(super) fn in_flight(&self) -> Self {
        match self {
            Self::Waiting { delay, .. } => Self::InFlight { delay: *delay },
            Self::Done { missing, look_at: Some(_) } => {
                Self::Done { missing: missing.clone(), look_at: None }
            }
            Self::Done { look_at: None, .. } | Self::InFlight { .. } | Self::Disabled(_) => {
                Self::InFlight { delay: RETRY_MIN }
            }
        }
    }

    /// Where files are missing, or `is_starting`, the view is to be looked at again after that pause.
    pub(super) fn look_again(&mut self, now: Micros, pause: Micros, is_starting: bool) {
        if let Self::Done { missing, look_at } = self
            && (is_starting || !missing.is_empty())
        {
            *look_at = Some(now.saturating_add(pause.max(RETRY_MIN)));
        }
    }

    /// The program that asked for the view mounts it; a later look finds it mounted, or mounts it. Asking for a view that is mounted
    /// already, as the keeper does at each `exec`, changes nothing. Neither does asking for one that was detached.
    pub(super) fn mounted_by_caller(&self, look_at: Micros) -> Self {
        match self {
            Self::Done { .. } | Self::Disabled(DETACHED | DETACH_FAILED) => self.clone(),
            _ => Self::at(look_at, "being attached by the program that asked for it"),
        }
    }

    /// The state after a job. The last request counts: a mount that ends after a detach was asked for changes nothing, nor does a detach
    /// that ends after a mount was asked for.
    pub(super) fn after_job(&self, outcome: MountOutcome, now: Micros) -> Self {
        match (outcome, matches!(self, Self::Disabled(_))) {
            (MountOutcome::Attached { missing, .. }, false) => Self::Done { missing, look_at: None },
            (MountOutcome::NotReady(why), false) => self.retry(now, why.to_owned()),
            (MountOutcome::Slow, false) => self.put_off(now, SLOW),
            (MountOutcome::Slow, true) => self.clone(),
            (MountOutcome::Failed(why), false) => self.put_off(now, &why),
            (MountOutcome::Refused(why), false) => Self::Disabled(why),
            (MountOutcome::Detached, true) => Self::Disabled(DETACHED),
            (MountOutcome::DetachFailed(_), true) => Self::Disabled(DETACH_FAILED),
            (
                MountOutcome::Attached { .. }
                | MountOutcome::NotReady(_)
                | MountOutcome::Failed(_)
                | MountOutcome::Refused(_),
                true,
            )
            | (MountOutcome::Detached | MountOutcome::DetachFailed(_), false)
            | (MountOutcome::Stuck, _) => self.clone(),
        }
    }
}

/// What is kept per container.
pub(super) struct ManagedContainer {
    /// Path of its cgroup.
    pub(super) path: String,
    /// Whether it is in another container.
    pub(super) is_nested: bool,
    /// The outermost container around it, or itself, and the identifier of that.
    pub(super) outermost: CgroupId,
    pub(super) tenant: Arc<str>,
    pub(super) slot: SlotHandle,
    /// The same numbers for programs that map them.
    page: Option<ViewPage>,
    pub(super) facts: ContainerSnapshot,
    /// Whether no process can have read its view yet.
    pub(super) is_unread: bool,
    /// By CPU number.
    pub(super) times: Vec<CpuTimes>,
    pub(super) attach: AttachState,
    /// A process of it, with when that started: whose network is read, and whose death tells of it.
    pub(super) found_process: Option<(u32, Micros)>,
    /// Why its view is not mounted, as the log has it.
    pub(super) told_failure: String,
    /// How long after its first process its view came, where it did not come before.
    pub(super) view_delay: Option<Micros>,
    pub(super) load: ContainerLoadAvg,
    pub(super) usage: Usage,
    pub(super) details: KeptDetails,
    /// When pages get newer numbers, on the monotonic clock.
    pub(super) refresh_at: Micros,
    /// When they got them last.
    pub(super) refreshed: Micros,
    /// Whether they were not renewed since because there was nothing new.
    is_put_off: bool,
    /// The CPU time that it had used by then.
    pub(super) cpu_at_refresh: Micros,
    /// Until when pages count as being read.
    pub(super) hot_until: Micros,
    /// When the running one-second window began, and what was used by then.
    window: (Micros, Usage),
    pub(super) cpu_used_millicpu: u64,
    pub(super) cpu_throttled_millicpu: Option<u64>,
    /// How it is doing, as it was judged last.
    pub(super) verdict: Verdict,
}

impl ManagedContainer {
    pub(super) fn new(
        path: String,
        slot: SlotHandle,
        facts: ContainerSnapshot,
        times: Vec<CpuTimes>,
        attach: AttachState,
        page: Option<ViewPage>,
    ) -> Self {
        Self {
            path,
            is_nested: false,
            outermost: CgroupId(0),
            tenant: Arc::default(),
            page,
            slot,
            times,
            is_unread: facts.taken == Micros::ZERO,
            attach,
            found_process: None,
            told_failure: String::new(),
            view_delay: None,
            load: ContainerLoadAvg::resumed(facts.load),
            usage: Usage { memory: facts.memory_usage, ..Usage::default() },
            details: KeptDetails::default(),
            facts,
            refresh_at: Micros::ZERO,
            refreshed: Micros::ZERO,
            is_put_off: false,
            cpu_at_refresh: Micros::ZERO,
            hot_until: Micros::ZERO,
            window: (Micros::ZERO, Usage::default()),
            cpu_used_millicpu: 0,
            cpu_throttled_millicpu: None,
            verdict: Verdict::default(),
        }
    }

    /// Brings the page to what the files say. A detached container's page says that it is detached.
    pub(super) fn publish_page(&mut self, view: &View) {
        if self.attach == AttachState::Disabled(DETACHED) {
            self.retire_page();
        } else if let Some(page) = &mut self.page {
            page.publish(&MappedView::of(view, &self.facts));
        }
    }

    /// Tells the programs that map the page that it is no longer updated.
    pub(super) fn retire_page(&mut self) {
        if let Some(page) = &mut self.page {
            page.publish(&MappedView::DETACHED);
        }
    }

    /// Leaves the numbers as they are for another `pause`, where they would be the same but for the time that nothing was done in, and are not
    /// old; says whether it did. What was read of the container must still hold.
    pub(super) fn put_off_refresh(&mut self, now: Micros, pause: Micros) -> bool {
        let is_old = self.refreshed == Micros::ZERO || now >= self.refreshed.saturating_add(QUIET_REFRESH);
        self.is_put_off = !is_old && self.cpu_used_millicpu == 0 && self.load.hundredths() == [0; 3];
        if self.is_put_off {
            self.refresh_at = now.saturating_add(pause);
        }
        self.is_put_off
    }

    /// It used something: numbers that were put off are due, so that the time before does not count as time in which it did that.
    pub(super) fn note_use(&mut self, now: Micros) {
        if std::mem::take(&mut self.is_put_off) {
            self.refresh_at = now;
        }
    }

    /// Keeps `cpu_used_millicpu` and `cpu_throttled_millicpu` at what they were over the last full second.
    pub(super) fn update_cpu_used(&mut self, now: Micros) {
        let (since, before) = self.window;
        let elapsed = now.saturating_sub(since);
        if since == Micros::ZERO {
            self.window = (now, self.usage);
        } else if elapsed >= Micros::secs(1) {
            let millicpu = |after: Micros, before: Micros| {
                after.saturating_sub(before).get().saturating_mul(1_000) / elapsed.get()
            };
            self.cpu_used_millicpu = millicpu(self.usage.cpu, before.cpu);
            // A quota that is new has counted nothing before.
            self.cpu_throttled_millicpu = self
                .usage
                .throttled
                .map(|after| before.throttled.map_or(0, |before| millicpu(after, before)));
            self.window = (now, self.usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_last_counts() {
        let now = Micros::secs(1);
        let attached = || MountOutcome::Attached { missing: Vec::new(), anew: true, is_starting: false };
        let detached = AttachState::Disabled(DETACHED);
        // The detach was asked for while the mount was under way, which ends now.
        for ended in [
            attached(),
            MountOutcome::NotReady(""),
            MountOutcome::Failed(String::new()),
            MountOutcome::Detached,
        ] {
            assert_eq!(detached.after_job(ended, now), detached);
        }
        let stays = detached.after_job(MountOutcome::DetachFailed(String::new()), now);
        assert_eq!(stays, AttachState::Disabled(DETACH_FAILED));
        assert_eq!(stays.after_job(MountOutcome::Detached, now), detached);

        let in_flight = AttachState::InFlight { delay: RETRY_MIN };
        for ended in [MountOutcome::Detached, MountOutcome::DetachFailed(String::new())] {
            assert_eq!(in_flight.after_job(ended, now), in_flight);
        }
        assert_eq!(in_flight.after_job(MountOutcome::Stuck, now), in_flight);
        let done = in_flight.after_job(attached(), now);
        assert_eq!(done, AttachState::Done { missing: Vec::new(), look_at: None });
        assert_eq!(done.after_job(MountOutcome::Detached, now), done);
        assert!(matches!(in_flight.after_job(MountOutcome::NotReady(""), now), AttachState::Waiting { .. }));
    }

    #[test]
    fn files_that_come_later_are_looked_for_while_the_others_stay() {
        let now = Micros::secs(1);
        let attached = |missing: &[&str]| MountOutcome::Attached {
            missing: missing.iter().map(ToString::to_string).collect(),
            anew: true,
            is_starting: false,
        };
        let in_flight = AttachState::InFlight { delay: RETRY_MIN };
        let mut whole = in_flight.after_job(attached(&[]), now);
        whole.look_again(now, Micros::millis(40), false);
        assert!(!whole.is_due(Micros::secs(9)));
        whole.look_again(now, Micros::millis(40), true);
        assert!(whole.is_due(now.saturating_add(Micros::millis(40))));
        let mut part = in_flight.after_job(attached(&["memory.max"]), now);
        part.look_again(now, Micros::millis(40), false);
        assert!(!part.is_due(now) && part.is_due(now.saturating_add(Micros::millis(40))));
        let looking = part.in_flight();
        assert!(matches!(&looking, AttachState::Done { missing, look_at: None } if missing.len() == 1));
        assert_eq!(looking.after_job(attached(&[]), now), in_flight.after_job(attached(&[]), now));
    }

    #[test]
    fn a_second_request_changes_nothing() {
        let look_at = Micros::secs(2);
        for settled in [
            AttachState::Done { missing: Vec::new(), look_at: None },
            AttachState::Disabled(DETACHED),
            AttachState::Disabled(DETACH_FAILED),
        ] {
            assert_eq!(settled.mounted_by_caller(look_at), settled);
        }
        for open in [
            AttachState::now(),
            AttachState::InFlight { delay: RETRY_MIN },
            AttachState::Disabled("attach = false"),
        ] {
            assert!(
                matches!(open.mounted_by_caller(look_at), AttachState::Waiting { retry_at, .. } if retry_at == look_at)
            );
        }
    }

    #[test]
    fn retries_back_off_and_never_stop() {
        let mut attach = AttachState::now();
        let mut now = Micros::secs(1);
        for _ in 0..20 {
            attach = attach.retry(now, String::new());
            let AttachState::Waiting { retry_at, .. } = attach else { panic!("gave up") };
            assert!(retry_at > now && retry_at <= now.saturating_add(RETRY_MAX));
            now = retry_at;
        }
    }
}
