//! Views on their way into slots: a container's first, its changes, and the numbers that age.

use super::facts::{apply_details, apply_view};
use super::log_change;
use super::managed_container::{AttachState, ManagedContainer};
use super::policy_loop::PolicyLoop;
use crate::fnv::fnv1a;
use crate::view_server::FuseError;
use crate::view_server::publisher::Dirty;
use crate::view_server::slots::SlotHandle;
use elbowroom_linux::view_page::ViewPage;
use elbowroom_linux::{Sensor, process, timer};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Bytes, Micros};
use elbowroom_view::pages::snapshot::{ContainerSnapshot, CpuTimes};
use std::path::PathBuf;

/// How old the numbers of a busy container may be for a program that reads them again at once: samplers such as psutil's
/// `cpu_percent(interval=0.1)` see motion.
const REFRESH_BUSY: Micros = Micros::millis(50);
/// The least CPU time that `/proc/stat` shows: one tick of `USER_HZ`. A container that used it since its numbers were read is busy.
const USER_TICK: Micros = Micros::millis(10);
/// How long after a read of a dynamic page its container counts as hot.
const HOT_FOR: Micros = Micros::secs(10);
/// The threads of a container with more are not counted one by one, about 5 us each: its load is the CPU time that it uses.
const MAX_COUNTED_THREADS: u32 = 2_000;
/// Containers renewed per look, about 15 us each where details are read: with ten thousand containers a tick still ends in time.
const REFRESHES_PER_TICK: usize = 256;

impl PolicyLoop {
    /// Gives a container that is new here its view.
    pub(super) fn add_container(&mut self, group: &CgroupProperties) {
        let Some(container) = &group.container else { return };
        if self.containers.contains_key(&group.id) {
            return;
        }
        // One that is gone meanwhile has none, and is forgotten by the next look.
        let identities = self.sensor.identities(group.id);
        let Some(owner) = identities.first().copied() else { return };
        let orphan = identities.iter().find_map(|identity| self.orphans.remove(identity));
        let before = orphan.and_then(|slot| Some((slot, self.publisher.last_published(slot)?)));
        if let Some((_, last)) = &before {
            self.views.resume(group.id, last.facts.online.count(), last.facts.memory);
        }
        // One that is older than this agent has been idle for the rest of its time.
        let first = if before.is_none() { self.init_pid_in_turn(group.id).flatten() } else { None };
        let started = first.and_then(|pid| process::start_time(pid as i32)).unwrap_or_else(timer::now_boot);
        let Some(view) = self.views.get(group.id) else { return };
        let page_size = Bytes(rustix::param::page_size() as u64);
        let mut facts = ContainerSnapshot { started, page_size, ..ContainerSnapshot::EMPTY };
        let mut times = vec![CpuTimes::default(); self.publisher.cpus()];
        if let Some((_, last)) = &before {
            facts = last.facts;
            times[..last.times.len()].copy_from_slice(&last.times);
        }
        apply_view(&mut facts, view, &group.limits, self.views.mems(group), &self.numa);
        let is_nested = container.is_nested();
        let outermost = if is_nested { self.sensor.tenant_of(group.id) } else { group.id };
        let added = match before {
            Some((slot, _)) => Ok(slot),
            None => self.create_view(container, (owner, self.owner_of(outermost, owner)), &facts, &times),
        };
        let slot = match added {
            Ok(slot) => slot,
            Err(e) => {
                tracing::warn!(container = group.path, because = %e, "no view");
                self.without_view.insert(group.id);
                return;
            }
        };
        self.without_view.remove(&group.id);
        let name = self.publisher.name(slot).unwrap_or_default();
        for ignored in &container.labels.ignored {
            tracing::warn!(container = group.path, because = ignored, "a label is ignored");
        }
        let attach = match self.config.containers.auto_attach_refusal(container) {
            Some(why) => AttachState::Disabled(why),
            // `elbowroom run` mounts its own view when it starts; one that is already running lost its agent.
            None if container.engine == ContainerEngine::Elbowroom && self.ticks > 0 => {
                AttachState::at(Micros(u64::MAX), "elbowroom run attaches it")
            }
            None => AttachState::now(),
        };
        log_change!(is_nested, container = group.path, name = container.name, engine = ?container.engine, "container");
        let page = match ViewPage::open(&self.publisher.pages(), &name) {
            Ok(page) => Some(page),
            Err(error) => {
                tracing::warn!(container = group.path, because = %error, "no view page");
                None
            }
        };
        let mut managed = ManagedContainer::new(group.path.clone(), slot, facts, times, attach, page);
        managed.is_nested = is_nested;
        managed.outermost = outermost;
        let tenant = self.views.group(outermost).and_then(|outer| outer.container.as_ref());
        managed.tenant = tenant.unwrap_or(container).id.as_str().into();
        self.containers.insert(group.id, managed);
        self.probes.add_container(group.id, &group.path, container);
        let verdict = self.verdicts.add(group, container, outermost, self.ticks > 0, timer::now());
        self.set_verdict(group.id, verdict);
        if self.config.containers.view_refusal(container).is_none() {
            let _ = self.prefetch.try_send((self.view_dir(group.id), self.surfaces()));
        }
        // The first reader finds the container's own numbers already.
        self.refresh(group.id, timer::now());
    }

    /// The number by which a tenant pays for what its containers ask; `own`, that of the container, where the tenant is gone.
    fn owner_of(&self, outermost: CgroupId, own: u64) -> u64 {
        let owner = self.containers.get(&outermost).and_then(|outer| self.publisher.owner(outer.slot));
        owner.or_else(|| self.sensor.identities(outermost).first().copied()).unwrap_or(own)
    }

    /// Makes the view of a container that has none.
    fn create_view(
        &mut self,
        container: &ContainerIdentity,
        whose: (u64, u64),
        facts: &ContainerSnapshot,
        times: &[CpuTimes],
    ) -> Result<SlotHandle, FuseError> {
        let name = view_name(container);
        match self.publisher.add(&name, whose, facts, times) {
            // Two namespaces of containerd may use the same id.
            Err(FuseError::Exists { .. }) => {
                self.publisher.add(&format!("{name}-{:016x}", whose.0), whose, facts, times)
            }
            added => added,
        }
    }

    pub(super) fn remove_container(&mut self, id: CgroupId) {
        self.without_view.remove(&id);
        if let Some(mut managed) = self.containers.remove(&id) {
            log_change!(managed.is_nested, container = managed.path, "container gone");
            managed.retire_page();
            if let Some(name) = self.publisher.name(managed.slot) {
                let _ = std::fs::remove_file(self.publisher.pages().join(&name));
            }
            self.pressure_notifier.remove(id);
            let ended = self.quotas.forget(id, timer::now());
            ended.into_iter().for_each(|alert| self.alerts.record(alert));
            self.publisher.remove(managed.slot);
            self.retry_without_view();
            self.removed_since_trim += 1;
        }
        self.disk.remove_container(id);
        self.probes.remove_container(id);
        self.pipeline.labels.remove(id);
        self.pipeline.io_limits.remove_group(id);
    }

    /// A slot is free: one that had no room has it.
    fn retry_without_view(&mut self) {
        while let Some(id) = self.without_view.pop_first() {
            if let Some(group) = self.views.group(id).cloned() {
                return self.add_container(&group);
            }
        }
    }

    pub(super) fn publish_view(&mut self, id: CgroupId) {
        let (Some(managed), Some(view), Some(group)) =
            (self.containers.get_mut(&id), self.views.get(id), self.views.group(id))
        else {
            return;
        };
        apply_view(&mut managed.facts, view, &group.limits, self.views.mems(group), &self.numa);
        managed.publish_page(view);
        Self::expect_published(self.publisher.publish(
            managed.slot,
            &managed.facts,
            &managed.times,
            Dirty::View,
        ));
    }

    /// A slot is filled by this thread alone and freed by it alone, so an error here is a defect, not a condition.
    fn expect_published(result: Result<(), FuseError>) {
        if let Err(error) = result {
            tracing::error!(%error, "a view was not published");
        }
    }

    /// Renews the numbers on dynamic pages of the containers that are due.
    pub(super) fn refresh_due(&mut self, now: Micros) {
        let dynamic = self.publisher.dynamic_pages();
        let hot_every = self.config.views.refresh_hot;
        let mut due: Vec<(Micros, CgroupId)> = Vec::new();
        for (id, managed) in &mut self.containers {
            managed.update_cpu_used(now);
            if self.publisher.take_recent_reads(managed.slot) & dynamic != 0 {
                managed.hot_until = now.saturating_add(HOT_FOR);
                self.pace.note_readers(managed.hot_until);
                let used = managed.usage.cpu.saturating_sub(managed.cpu_at_refresh);
                let every = if used >= USER_TICK { hot_every.min(REFRESH_BUSY) } else { hot_every };
                managed.refresh_at = managed.refresh_at.min(managed.refreshed.saturating_add(every));
            }
            if managed.refresh_at <= now {
                due.push((managed.refresh_at, *id));
            }
        }
        // The one that waits longest first: with more than can be served, all are late and none is left out.
        due.sort_unstable();
        let refreshed = due.into_iter().filter(|(_, id)| self.refresh(*id, now));
        refreshed.take(REFRESHES_PER_TICK).for_each(drop);
    }

    /// Starts the CPU times anew with the CPUs that are online now, as long as no process can have read them. A container's settings come
    /// after its cgroup, and until then it has all CPUs.
    pub(super) fn restart_times(&mut self, id: CgroupId, now: Micros) {
        let Some(managed) = self.containers.get_mut(&id).filter(|managed| managed.is_unread) else {
            return;
        };
        managed.times.fill(CpuTimes::default());
        let facts = &mut managed.facts;
        (facts.taken, facts.cpu_user, facts.cpu_system) = (Micros::ZERO, Micros::ZERO, Micros::ZERO);
        managed.refreshed = Micros::ZERO;
        self.refresh(id, now);
    }

    /// Renews the numbers of a container; says whether that was tried. Nested containers wait for their tenant's turn.
    fn refresh(&mut self, id: CgroupId, now: Micros) -> bool {
        let Some(managed) = self.containers.get_mut(&id) else { return false };
        let hot = managed.hot_until > now;
        let is_current = managed.details.are_current(now, &managed.usage, self.config.sense.rescan);
        if is_current && !hot && managed.put_off_refresh(now, self.config.views.refresh_cold) {
            return false;
        }
        if hot || !is_current {
            let details = match self.sensor.tenant_of(id) == id {
                true => Some(self.sensor.details(id, hot)),
                false => self.sensor.in_turn(id, |sensor| sensor.details(id, hot)),
            };
            let Some(details) = details else { return false };
            let Some(details) = details else { return true };
            managed.details.update(now, managed.usage, details);
        }
        let Some(details) = managed.details.last() else { return true };
        apply_details(&mut managed.facts, &mut managed.times, details, timer::now_boot());
        let counts = hot && managed.load.is_due(now) && managed.facts.nr_threads <= MAX_COUNTED_THREADS;
        let count = |sensor: &mut Sensor| process::count_threads(&sensor.pids(id));
        if let Some((running, threads)) = counts.then(|| self.sensor.in_turn(id, count)).flatten() {
            managed.facts.nr_running = running;
            managed.facts.nr_threads = threads;
            managed.load.advance(now, u64::from(running) * 1_000);
        } else {
            managed.load.advance(now, managed.cpu_used_millicpu);
        }
        managed.facts.load = managed.load.hundredths();
        // Beside v1, the cgroup that has pressure may be made after those by which a container is found: the second look is early.
        let is_half_made = managed.refreshed == Micros::ZERO && managed.facts.has_pressure == 0;
        let every = match hot {
            _ if is_half_made => REFRESH_BUSY,
            true => self.config.views.refresh_hot,
            false => self.config.views.refresh_cold,
        };
        managed.refreshed = now;
        managed.cpu_at_refresh = managed.usage.cpu;
        managed.refresh_at = now.saturating_add(every);
        Self::expect_published(self.publisher.publish(
            managed.slot,
            &managed.facts,
            &managed.times,
            Dirty::Stats,
        ));
        self.publish_page(id);
        true
    }

    /// Brings the page that programs map to what the files say.
    fn publish_page(&mut self, id: CgroupId) {
        if let (Some(managed), Some(view)) = (self.containers.get_mut(&id), self.views.get(id)) {
            managed.publish_page(view);
        }
    }

    pub(super) fn view_dir(&self, id: CgroupId) -> PathBuf {
        self.publisher.views().join(self.view_name(id))
    }

    pub(super) fn page_path(&self, id: CgroupId) -> PathBuf {
        self.publisher.pages().join(self.view_name(id))
    }

    /// Where containers with the host's `/dev` have the file by which their programs are asked for memory, if any are.
    pub(super) fn pressure_dir(&self) -> Option<PathBuf> {
        self.memory.is_on().then(|| self.run_dir.join(crate::view_server::PRESSURE_DIR))
    }

    pub(super) fn view_name(&self, id: CgroupId) -> String {
        let slot = self.containers.get(&id).map(|managed| managed.slot);
        slot.and_then(|slot| self.publisher.name(slot)).unwrap_or_default()
    }
}

/// The name of a container's directory of views: its id where that is a plain word, else a word made of it.
fn view_name(container: &ContainerIdentity) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if (1..=100).contains(&container.id.len())
        && !container.id.starts_with('.')
        && container.id.chars().all(plain)
    {
        return container.id.clone();
    }
    let word: String =
        container.id.chars().filter(|c| *c != '/').take(60).map(|c| if plain(c) { c } else { '_' }).collect();
    // The hash keeps two ids apart that share their beginning.
    format!("x{word}-{:016x}", fnv1a(container.id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::label::ContainerLabels;

    fn named(id: &str) -> String {
        view_name(&ContainerIdentity {
            id: id.into(),
            name: None,
            engine: ContainerEngine::Plain,
            pod: None,
            labels: ContainerLabels::default(),
        })
    }

    #[test]
    fn engine_ids_are_their_own_directory_names() {
        assert_eq!(named("0123abcd"), "0123abcd");
    }

    #[test]
    fn hostile_ids_become_harmless_names_that_stay_apart() {
        let long = "a".repeat(10_000);
        for id in ["../../etc", "a/b", "a b\n", "..", ".", "", &long] {
            let name = named(id);
            assert!(
                name.len() <= 100
                    && !name.contains(['/', '\n'])
                    && !name.starts_with('.')
                    && !name.is_empty(),
                "{name}"
            );
        }
        assert_ne!(named("/a/b"), named("/ab"));
    }
}
