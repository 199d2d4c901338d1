//! The machine as facts for `crate::checks`, and the writes that remove what is found.
//!
//! Cgroups are walked and read twice; nothing is watched, so this needs no running agent and leaves no trace. Containers are
//! read in full; other cgroups only as far as they hold containers back, protect them or compete with them.

mod group;
mod machine;
mod processes;
mod sample_store;

pub use crate::fixes::journal::{FixEntry, Journal, JournalError};
pub use crate::fixes::write::{LeasedValue, RevertOutcome, WriteError, write};
pub(crate) use processes::{jvms, root_processes, swappiness_below};
pub use sample_store::{CounterSampleStore, LastCounterSample};

use crate::checks as doctor;
use crate::checks::{AppliedWrite, ControllerVersion, HostFacts};
use crate::host_text;
use elbowroom_linux::cgroup::layout::LayoutError;
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout};
use elbowroom_linux::discover::{ContainerDiscovery, ContainerSources};
use elbowroom_linux::lease::{LeaseError, LeaseSnapshot};
use elbowroom_linux::root::{ReadError, Root};
use elbowroom_linux::warnings::Warnings;
use elbowroom_types::label::LabelPolicy;
use elbowroom_types::unit::Micros;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where and how long to look.
#[derive(Clone, Debug)]
pub(crate) struct DoctorConfig {
    /// The directory that stands for `/`.
    pub root: PathBuf,
    /// Where containers are looked for.
    pub containers: ContainerSources,
    /// The agent's ledger of leases.
    pub leases: PathBuf,
    /// Time between the two looks.
    pub wait: Duration,
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No cgroups.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// What the agent holds cannot be known.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// The version and controller names of core for those of this crate.
const CONTROLLERS: [(CgroupController, doctor::HierarchyController); 5] = [
    (CgroupController::Cpu, doctor::HierarchyController::Cpu),
    (CgroupController::Cpuset, doctor::HierarchyController::Cpuset),
    (CgroupController::Memory, doctor::HierarchyController::Memory),
    (CgroupController::Io, doctor::HierarchyController::Io),
    (CgroupController::Pids, doctor::HierarchyController::Pids),
];

/// Looks at the machine twice. Of a setting that the agent holds by lease the facts are what was set before: what is in force
/// goes with the agent, and no fix may raise, keep or take it away. `applied` are the writes of fixes in force; what their files say
/// now is filled in.
///
/// # Errors
/// Where cgroups or `/proc/meminfo` cannot be read at all. What vanishes or cannot be read in between is absent.
pub(crate) fn collect_facts(
    config: &DoctorConfig,
    applied: Vec<AppliedWrite>,
) -> Result<HostFacts, DoctorError> {
    let root = Root::at(&config.root)?;
    let layout = CgroupLayout::detect(&root)?;
    let mut discover = ContainerDiscovery::new(
        &root,
        &config.containers.patterns,
        config.containers.docker_root.as_deref(),
        LabelPolicy::None,
    )
    .with_containerd_state(config.containers.containerd_state.as_deref());
    let mut warnings = Warnings::default();
    let mut facts = HostFacts::default();

    let begin = Instant::now();
    facts.host.before = machine::counters(&root)?;
    facts.host.disks = machine::disks(&root)?;
    let walk = group::walk(&root, &layout, &mut discover, &mut warnings);
    // As many as the kernel counts, where it is not known how many there are.
    facts.host.memory_directories = walk.directories.unwrap_or(u64::MAX);
    facts.groups = walk.groups;
    let around = group::around_containers(&facts.groups);
    for (group, is_around) in facts.groups.iter_mut().zip(&around) {
        group.before = group::counters(&layout, group, *is_around, &mut warnings);
    }

    std::thread::sleep(config.wait.saturating_sub(begin.elapsed()));
    let again = Instant::now();
    facts.elapsed = Micros(u64::try_from((again - begin).as_micros()).unwrap_or(u64::MAX));
    facts.host.after = machine::counters(&root)?;
    machine::update_disks(&root, &mut facts.host.disks)?;
    let held = LeaseSnapshot::read(&config.leases)?;
    for (group, is_around) in facts.groups.iter_mut().zip(&around) {
        group.after = group::counters(&layout, group, *is_around, &mut warnings);
        group::settings(&root, &layout, &held, group, *is_around, &mut warnings);
    }
    // One that ended in between has no second look, and nothing to say.
    group::forget_gone(&mut facts.groups);
    machine::settings(&root, &layout, &mut facts.host);
    facts.host.ledger = applied
        .into_iter()
        .map(|a| {
            let before = |text: String| held.value_before_leases(&root, &a.file, &text).unwrap_or(text);
            let now = root.read(&a.file).ok().map(|text| host_text::selected_word(&before(text)));
            AppliedWrite { now, ..a }
        })
        .collect();
    for (here, core) in CONTROLLERS {
        if let Some((version, _)) = layout.dir(here, std::path::Path::new("")) {
            facts.host.versions.insert(core, version_of(version));
        }
    }
    Ok(facts)
}

fn version_of(version: elbowroom_linux::cgroup::CgroupVersion) -> ControllerVersion {
    match version {
        elbowroom_linux::cgroup::CgroupVersion::V1 => ControllerVersion::V1,
        elbowroom_linux::cgroup::CgroupVersion::V2 => ControllerVersion::V2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::{CgroupFacts, HierarchyController};
    use elbowroom_linux::fixture::Fixture;
    use elbowroom_linux::lease::{CgroupKnob, DIR, KnobKey, LeaseOutcome as Leased, Leases, UnsetValue};
    use elbowroom_linux::sensor::{MAX_CONTAINERS_PER_TENANT, MAX_GROUPS_PER_TENANT};
    use elbowroom_types::unit::Limit;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// A container, and a slice around it.
    fn host() -> Fixture {
        let top = "cpu io memory pids\n";
        let mut text = format!(
            "-- proc/self/mountinfo --\n35 30 0:32 / /sys/fs/cgroup rw - cgroup2 cg rw\n\
             -- proc/meminfo --\nMemTotal: 2021216 kB\nMemAvailable: 1899732 kB\n\
             -- sys/fs/cgroup/cgroup.controllers --\n{top}"
        );
        for dir in ["a.slice", "a.slice/web"] {
            for (file, says) in [
                ("cgroup.controllers", top),
                ("cgroup.procs", ""),
                ("memory.events", "low 0\n"),
                ("memory.current", "1\n"),
                ("memory.max", "2147483648\n"),
                ("memory.high", "max\n"),
                ("memory.low", "0\n"),
                ("io.stat", ""),
                ("io.weight", "default 100\n"),
                (
                    "io.max",
                    "8:0 rbps=max wbps=9 riops=max wiops=max\n8:16 rbps=max wbps=max riops=max wiops=max\n",
                ),
            ] {
                text += &format!("-- sys/fs/cgroup/{dir}/{file} --\n{says}");
            }
        }
        Fixture::new(&text).unwrap()
    }

    /// What is found on it while no agent runs.
    fn facts_of(host: &Fixture) -> HostFacts {
        let config = DoctorConfig {
            root: host.path().into(),
            containers: ContainerSources::default(),
            leases: host.path().join(DIR),
            wait: Duration::ZERO,
        };
        collect_facts(&config, Vec::new()).unwrap()
    }

    /// The agent in `run` puts a value into a file, or into one line and field of it.
    fn hold(
        host: &Fixture,
        agent: &mut Leases,
        dir: &str,
        file: &str,
        key: Option<(&str, &str)>,
        value: u64,
    ) {
        let dir = host.path().join("sys/fs/cgroup").join(dir);
        let inode = std::fs::metadata(&dir).unwrap().ino();
        let key = key.map(|(device, field)| KnobKey {
            device: device.parse().unwrap(),
            field: Some(field.to_owned()),
        });
        // A plain file says only what was written last, where the kernel would say all of it.
        let says = key.as_ref().map(|_| std::fs::read_to_string(dir.join(file)).unwrap());
        let knob = CgroupKnob { dir, inode, file: file.to_owned(), key, unset: UnsetValue::Max };
        let write = |knob: &CgroupKnob, value: Limit<u64>| match says {
            Some(text) => {
                let full = text.replace("8:16 rbps=max", &format!("8:16 rbps={value}"));
                std::fs::write(knob.dir.join(&knob.file), full).unwrap();
                Ok(())
            }
            None => knob.write(value),
        };
        assert_eq!(agent.set_with(&knob, |_| Limit::At(value), write, "test").unwrap(), Leased::Written);
    }

    #[test]
    fn what_the_agent_holds_is_seen_as_it_was_before() {
        let (host, run) = (host(), tempfile::tempdir().unwrap());
        let mut agent = Leases::open(&run.path().join(DIR)).unwrap();
        hold(&host, &mut agent, "a.slice", "memory.low", None, 943_718_400);
        hold(&host, &mut agent, "a.slice/web", "memory.low", None, 943_718_400);
        hold(&host, &mut agent, "a.slice/web", "memory.high", None, 1 << 30);
        hold(&host, &mut agent, "a.slice/web", "io.max", Some(("8:16", "rbps")), 5_000_000);
        let config = DoctorConfig {
            root: host.path().into(),
            containers: ContainerSources {
                patterns: vec!["/a.slice/web".into()],
                ..ContainerSources::default()
            },
            leases: run.path().join(DIR),
            wait: Duration::ZERO,
        };
        let low = "/sys/fs/cgroup/a.slice/web/memory.low";
        let applied =
            |file: &str| AppliedWrite { id: "1".into(), file: file.into(), to: "0".into(), now: None };
        let facts =
            collect_facts(&config, vec![applied(low), applied("/sys/fs/cgroup/a.slice/memory.max")]).unwrap();
        let of = |path: &str| facts.groups.iter().find(|g| Path::new(&g.path) == Path::new(path)).unwrap();
        let (slice, web) = (of("/a.slice"), of("/a.slice/web"));
        assert_eq!((slice.text("memory.low"), web.text("memory.low")), (Some("0"), Some("0")));
        assert_eq!((web.text("memory.high"), web.text("memory.max")), (Some("max"), Some("2147483648")));
        let limits: Vec<String> =
            web.io_limits.iter().map(|(_, device, rest)| format!("{device} {rest}")).collect();
        assert_eq!(limits, ["8:0 rbps=max wbps=9 riops=max wiops=max"]);
        assert_eq!(web.held.iter().collect::<Vec<_>>(), ["io.max", "memory.high", "memory.low"]);
        let now: Vec<Option<&str>> = facts.host.ledger.iter().map(|a| a.now.as_deref()).collect();
        assert_eq!(now, [Some("0"), Some("2147483648")]);
        // Another program's value is its own, though a lease is on record.
        host.write("sys/fs/cgroup/a.slice/web/memory.low", "7\n").unwrap();
        let facts = collect_facts(&config, Vec::new()).unwrap();
        let web = facts.groups.iter().find(|g| g.path == "/a.slice/web").unwrap();
        assert_eq!((web.text("memory.low"), web.is_leased("memory.low")), (Some("7"), false));
    }

    #[test]
    fn a_quota_is_read_of_what_is_around_containers_and_of_nothing_else_outside() {
        let host = host();
        for dir in ["a.slice", "b.service"] {
            let write =
                |file: &str, text: &str| host.write(&format!("sys/fs/cgroup/{dir}/{file}"), text).unwrap();
            write("memory.events", "low 0\n");
            write("memory.current", "1\n");
            write("cpu.max", "200000 100000\n");
            write("pids.max", "100\n");
            write("cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 5\n");
        }
        let config = DoctorConfig {
            root: host.path().into(),
            containers: ContainerSources {
                patterns: vec!["/a.slice/web".into()],
                ..ContainerSources::default()
            },
            leases: host.path().join(DIR),
            wait: Duration::ZERO,
        };
        let facts = collect_facts(&config, Vec::new()).unwrap();
        let of = |path: &str| facts.groups.iter().find(|g| g.path == path).unwrap();
        let read = |path: &str| {
            (
                of(path).text("cpu.max"),
                of(path).text("pids.max"),
                of(path).before.cpu.get("nr_throttled"),
                of(path).after.cpu.len(),
            )
        };
        assert_eq!(read("/a.slice"), (Some("200000 100000"), Some("100"), Some(&3), 4));
        assert_eq!(read("/b.service"), (None, None, None, 0));
    }

    #[test]
    fn of_what_a_tenant_makes_in_any_number_a_part_is_looked_at() {
        let host = host();
        let group =
            |path: &str| host.write(&format!("sys/fs/cgroup/{path}/memory.events"), "low 0\n").unwrap();
        let [outer, other] = ["1", "f"].map(|digit| format!("a.slice/libpod-{}.scope", digit.repeat(64)));
        [&outer, &other].into_iter().for_each(|path| group(path));
        assert_eq!((facts_of(&host).containers().count(), facts_of(&host).host.memory_directories), (2, 5));
        for n in 0..MAX_GROUPS_PER_TENANT + 100 {
            group(&format!("{outer}/docker-{n:064x}.scope"));
        }
        let facts = facts_of(&host);
        let (inside, outside): (Vec<&CgroupFacts>, Vec<_>) =
            facts.containers().partition(|group| group.path.starts_with(&format!("/{outer}/")));
        assert_eq!((inside.len(), outside.len()), (MAX_CONTAINERS_PER_TENANT, 2));
        assert_eq!(facts.host.memory_directories, u64::MAX);
        // A user to whom a cgroup was delegated needs no container for it.
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to give a cgroup away");
        }
        let delegated = host.path().join("sys/fs/cgroup").join(&other);
        std::os::unix::fs::chown(delegated.parent().unwrap(), Some(1000), None).unwrap();
        let facts = facts_of(&host);
        assert!(facts.groups.len() <= 2 + MAX_GROUPS_PER_TENANT, "{}", facts.groups.len());
    }

    #[test]
    fn limits_below_the_scope_of_a_container_are_its_own() {
        let host = host();
        let scope = format!("a.slice/libpod-{}.scope", "9d20".repeat(16));
        let dir = format!("sys/fs/cgroup/{scope}");
        std::fs::create_dir_all(host.path().join(&dir).join("container")).unwrap();
        for (file, says) in [
            ("memory.events", "low 0\n"),
            ("memory.max", "max\n"),
            ("memory.high", "max\n"),
            ("memory.low", "0\n"),
            ("io.stat", ""),
            ("io.weight", "default 100\n"),
            ("io.bfq.weight", "default 100\n"),
            ("container/memory.max", "300\n"),
            ("container/memory.high", "max\n"),
            ("container/memory.low", "100\n"),
            ("container/io.weight", "default 100\n"),
            ("container/io.bfq.weight", "default 500\n"),
        ] {
            host.write(&format!("{dir}/{file}"), says).unwrap();
        }
        let facts = facts_of(&host);
        let found: Vec<&CgroupFacts> = facts.groups.iter().filter(|g| g.container.is_some()).collect();
        assert_eq!(found.iter().map(|g| g.path.as_str()).collect::<Vec<_>>(), [format!("/{scope}")]);
        let of = |file: &str| (found[0].text(file), found[0].file(HierarchyController::Memory, file));
        let place = |file: &str| format!("/{dir}/{file}");
        assert_eq!(of("memory.max"), (Some("300"), place("container/memory.max")));
        assert_eq!(of("memory.high"), (Some("max"), place("memory.high")));
        assert_eq!(of("memory.low"), (Some("0"), place("memory.low")));
        let weights = ["io.weight", "io.bfq.weight"]
            .map(|file| (found[0].text(file), found[0].below.contains_key(file)));
        assert_eq!(weights, [(Some("default 100"), false), (Some("default 500"), true)]);
    }

    #[test]
    fn of_a_scope_and_the_one_cgroup_in_it_the_tighter_limit_counts() {
        let host = host();
        let dir = format!("sys/fs/cgroup/a.slice/libpod-{}.scope", "9d20".repeat(16));
        for (own, below, tighter) in [
            (("memory.max", "500"), "300", "300"),
            (("memory.max", "300"), "500", "300"),
            (("memory.high", "500"), "max", "500"),
            (("memory.swap.max", "500"), "0", "0"),
            (("cpu.max", "100000 100000"), "40000 50000", "40000 50000"),
            (("cpu.max", "40000 50000"), "100000 100000", "40000 50000"),
            (("cpu.max", "50000 100000"), "25000 50000", "50000 100000"),
        ] {
            let file = own.0;
            for (file, says) in [
                ("cpu.weight", "100"),
                ("memory.events", "low 0"),
                own,
                (&*format!("container/{file}"), below),
                ("cpu.stat", "nr_periods 900\nnr_throttled 40\nthrottled_usec 5"),
                ("container/cpu.stat", "nr_periods 70\nnr_throttled 60\nthrottled_usec 9"),
            ] {
                host.write(&format!("{dir}/{file}"), &format!("{says}\n")).unwrap();
            }
            let facts = facts_of(&host);
            let found = facts.groups.iter().find(|g| g.container.is_some()).unwrap();
            let below = if tighter == own.1 { "" } else { "container/" };
            let controller = match file.starts_with("cpu") {
                true => HierarchyController::Cpu,
                false => HierarchyController::Memory,
            };
            assert_eq!(
                (found.text(file), found.file(controller, file)),
                (Some(tighter), format!("/{dir}/{below}{file}"))
            );
            let (name, counts) = found.after.cpu_below.as_ref().unwrap();
            assert_eq!(
                (&**name, counts["nr_periods"], found.after.cpu["nr_periods"]),
                ("container", 70, 900)
            );
        }
    }
}
