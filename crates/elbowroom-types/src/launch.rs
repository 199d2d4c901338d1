//! What a program or a container that is about to start is given. Environment variables are for runtimes that look at their
//! room once, or in places that no file reaches. A variable that the user has set stays, and so does a setting that another
//! variable of the user makes.
//!
//! Facts about runtimes: `docs/guide/runtimes.md`.

use crate::cpuset::CpuSet;
use crate::label::{ContainerLabels, RuntimeInjection};
use crate::unit::Bytes;
use std::ffi::{OsStr, OsString};

/// Where a container's programs find what is preloaded into them: a directory of sysfs that is there wherever FUSE is, made to
/// have something mounted on it (fusectl), which is of no use in a container.
pub const INJECTION_DIR: &str = "/sys/fs/fuse/connections";
/// The library for OpenMP in [`INJECTION_DIR`].
pub const OPENMP_LIBRARY: &str = "libelbowroom-openmp.so";
/// The library for the C library's calls in [`INJECTION_DIR`].
pub const LIBC_LIBRARY: &str = "libelbowroom-libc.so";
/// The agent for HotSpot in [`INJECTION_DIR`].
pub const JAVA_AGENT: &str = "elbowroom-agent.jar";
/// Its native half in [`INJECTION_DIR`]: where nothing may be written, or run from where something may, the jar cannot unpack it.
pub const JAVA_NATIVE_LIBRARY: &str = "libelbowroom-java.so";

/// Where engines mount a tmpfs of a container's own, with its devices.
pub const DEV: &str = "/dev";
/// The name of the file that a container's programs watch to be asked for memory.
pub const PRESSURE_FILE_NAME: &str = "elbowroom-pressure";
/// Where programs of a container with a [`DEV`] of its own find it.
pub(crate) const PRESSURE_FILE: &str = "/dev/elbowroom-pressure";

/// The room of a program, as far as it is less than the machine: what is `None` is the machine's, and needs no words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchLimits {
    /// CPUs, whole.
    pub cpus: Option<u32>,
    /// Memory.
    pub memory: Option<Bytes>,
}

impl LaunchLimits {
    /// The room that an OCI runtime is asked to make: quota and period in microseconds, a cpuset as text, memory in bytes.
    /// What is absent, zero, negative (the runtimes' word for no limit) or no cpuset is the machine's.
    pub fn from_oci(quota: i64, period: u64, cpuset: &str, memory: i64) -> Self {
        // The kernel's default, which runtimes leave out (kernel/sched/fair.c, default_cfs_period).
        let period = if period == 0 { 100_000 } else { period };
        let whole = u64::try_from(quota).ok().filter(|quota| *quota > 0).map(|quota| quota.div_ceil(period));
        let set = cpuset.parse::<CpuSet>().ok().map(|set| u64::from(set.count())).filter(|count| *count > 0);
        let cpus = whole.into_iter().chain(set).min();
        Self {
            cpus: cpus.map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX)),
            memory: u64::try_from(memory).ok().filter(|memory| *memory > 0).map(Bytes),
        }
    }
}

/// What a container that is about to be made is given, however its engine takes it. The NRI plugin and the runtime wrapper
/// carry it out; a CDI device and a hooks directory are a plan that asks for views of every container.
///
/// There are no mounts in it: the hook mounts views, and what is loaded into programs. It asks the agent for a view when the
/// container's cgroup is there, so that nothing of an agent that is gone can keep a container from starting
/// (`docs/decisions/0023-engines.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Whether it gets a view, which the `createContainer` hook mounts.
    pub hook: bool,
    /// Ways into its programs beside files.
    pub injections: RuntimeInjection,
    /// Whether its system calls are answered too (`elbowroom keeper`); by the runtime wrapper alone.
    pub seccomp: bool,
    /// Whether it has [`PRESSURE_FILE`]: programs that are told to watch what is not there fail, or watch nothing.
    pub pressure_file: bool,
}

impl LaunchPlan {
    /// The plan for a container with these labels. `views` and `env` are what the node does where they are silent; whether it asks
    /// for memory is the agent's to say.
    pub fn new(labels: &ContainerLabels, views: bool, env: bool) -> Self {
        Self {
            hook: labels.views.unwrap_or(views),
            injections: RuntimeInjection { env: labels.env.unwrap_or(env), ..labels.injections },
            seccomp: labels.seccomp.unwrap_or(false),
            pressure_file: false,
        }
    }
}

/// One row: a variable, those whose presence means that the user has decided, and the value.
struct EnvRule {
    name: &'static str,
    overridden_by: &'static [&'static str],
    value: fn(LaunchLimits) -> Option<String>,
    /// A program with these stops following files while it runs: not for a program that has a view.
    pins_value: bool,
}

/// `--env-only`: everything that starts with the machine's numbers unless told, and takes being told. What is sized once, as V8's heap,
/// OpenMP's threads or arenas, is pinned by nothing that it is told: it follows no file while it runs.
const STARTUP_VARIABLES: &[EnvRule] = &[
    // libgomp, libomp; OpenBLAS, MKL, NumPy and PyTorch follow it.
    EnvRule {
        name: "OMP_NUM_THREADS",
        overridden_by: &[],
        value: |room| cpu_multiple(room, 1),
        pins_value: false,
    },
    // Go before 1.25 asks sched_getaffinity() alone; from then on it looks at its cgroup once a second unless it is told.
    EnvRule { name: "GOMAXPROCS", overridden_by: &[], value: |room| cpu_multiple(room, 1), pins_value: true },
    // Python 3.13: os.cpu_count(), which reads sysfs each time unless it is told, and os.process_cpu_count().
    EnvRule {
        name: "PYTHON_CPU_COUNT",
        overridden_by: &[],
        value: |room| cpu_multiple(room, 1),
        pins_value: true,
    },
    // glibc makes up to eight arenas per CPU of the machine (malloc/arena.c, NARENAS_FROM_NCORES).
    EnvRule {
        name: "MALLOC_ARENA_MAX",
        overridden_by: &["GLIBC_TUNABLES"],
        value: |room| cpu_multiple(room, 8),
        pins_value: false,
    },
    // jemalloc makes four arenas per CPU of its affinity (src/jemalloc.c, malloc_narenas_default).
    EnvRule {
        name: "MALLOC_CONF",
        overridden_by: &[],
        value: |room| Some(format!("narenas:{}", cpu_multiple(room, 4)?)),
        pins_value: false,
    },
    // Go's collector knows no limit but this one. A tenth is for what is not its heap (go.dev/doc/gc-guide).
    EnvRule {
        name: "GOMEMLIMIT",
        overridden_by: &[],
        value: |room| Some(memory_percent(room, 90)?.get().to_string()),
        pins_value: false,
    },
    // V8 sizes its heap once. A quarter is for what is not on it: buffers, code, threads.
    EnvRule {
        name: "NODE_OPTIONS",
        overridden_by: &[],
        value: |room| {
            Some(format!(
                "--max-old-space-size={}",
                (memory_percent(room, 75)?.get() / Bytes::mib(1).get()).max(1)
            ))
        },
        pins_value: false,
    },
];

/// Where there is one: the file that a program watches to be asked for memory (<https://systemd.io/MEMORY_PRESSURE>). `/dev/null` is a
/// user's word too: no. The newline that the program is to write first makes it open the file for writing too (sd-event.c,
/// `sd_event_add_memory_pressure`). So it never sees the end of the FIFO, at which sd-event would let go of it, and goes on after a
/// restart of the agent. That costs one request that no user made, at the program's start.
const PRESSURE_VARIABLES: [&str; 2] = ["MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"];

/// `--openmp`: threads that wait for the next region give their CPU to others after a millisecond or two. By default libgomp spins
/// 300,000 times and libomp for 200 ms, and does so longest where views matter most: where the CPUs are shared. Teams fit into
/// what there is, so a wait is mostly short: with 1,000 spins, threads with a CPU each go to sleep between regions all the time.
const SPIN_VARIABLES: &[EnvRule] = &[
    EnvRule {
        name: "GOMP_SPINCOUNT",
        overridden_by: &["OMP_WAIT_POLICY"],
        value: |_| Some("40000".into()),
        pins_value: false,
    },
    EnvRule {
        name: "KMP_BLOCKTIME",
        overridden_by: &["OMP_WAIT_POLICY", "KMP_LIBRARY"],
        value: |_| Some("1".into()),
        pins_value: false,
    },
];

/// What to add for a program that starts with no view, only with words (`elbowroom run --env-only`). `is_set` says which
/// variables the user has set.
pub fn env_without_view(room: LaunchLimits, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    unset_variables(STARTUP_VARIABLES, room, is_set)
}

/// The same for a program that has a view: runtimes that follow its files while they run are left to.
pub(crate) fn env_with_view(
    room: LaunchLimits,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    unset_variables(STARTUP_VARIABLES.iter().filter(|row| !row.pins_value), room, is_set)
}

/// What a program is told that is to watch `file`; nothing where its user has set either variable.
pub fn pressure_env(file: &str, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    match PRESSURE_VARIABLES.iter().any(|name| is_set(name)) {
        true => Vec::new(),
        false => PRESSURE_VARIABLES.into_iter().zip([file.to_owned(), "Cg==".to_owned()]).collect(),
    }
}

/// What to add for a program whose OpenMP runtime follows the view. `most` is the most that the view may become: teams grow no
/// larger than the runtime thought at its start, when the view may be small. A libomp with assertions (Debian's) ends a program
/// that is not told and whose affinity has more CPUs than sysfs (kmp_runtime.cpp, `__kmp_do_middle_initialize`).
pub fn openmp_env(most: u32, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let mut vars =
        unset_variables(&STARTUP_VARIABLES[..1], LaunchLimits { cpus: Some(most), memory: None }, &is_set);
    vars.extend(unset_variables(SPIN_VARIABLES, LaunchLimits::default(), is_set));
    vars
}

/// Whether a list of `NAME=value` names a variable.
pub(crate) fn has_variable(env: &[String], name: &str) -> bool {
    env.iter().any(|row| row.split_once('=').map_or(row.as_str(), |(name, _)| name) == name)
}

/// Changes the environment of a container (`NAME=VALUE`, as in an OCI configuration) to what its programs need to be reached by
/// the injections of `plan`, whose files are in [`INJECTION_DIR`]. `room` is what its limits leave of `machine` CPUs. What is there stays
/// in front of what is added, a variable that is set keeps its value, and a second time changes nothing.
pub fn apply_container_env(plan: LaunchPlan, room: LaunchLimits, machine: u32, env: &mut Vec<String>) {
    let wanted = plan.injections;
    let most = room.cpus.map_or(machine, |cpus| cpus.min(machine));
    let libraries = preload_libraries(wanted);
    if !libraries.is_empty() {
        change_variable(env, PRELOAD_VARIABLE, |list| append_preload(list, &libraries));
    }
    if wanted.java {
        change_variable(env, JAVA_OPTIONS_VARIABLE, |options| {
            append_java_agent(options, &format!("{INJECTION_DIR}/{JAVA_AGENT}"), most)
        });
    }
    let is_set = |name: &str| has_variable(env, name);
    let mut vars = Vec::new();
    if wanted.env {
        vars.extend(if plan.hook { env_with_view(room, is_set) } else { env_without_view(room, is_set) });
        vars.extend(if plan.hook && plan.pressure_file {
            pressure_env(PRESSURE_FILE, is_set)
        } else {
            Vec::new()
        });
    }
    if wanted.openmp {
        for (name, value) in openmp_env(most, is_set) {
            if vars.iter().all(|(known, _)| *known != name) {
                vars.push((name, value));
            }
        }
    }
    env.extend(vars.into_iter().map(|(name, value)| format!("{name}={value}")));
}

/// The libraries of what is wanted, each with its path.
pub fn preload_libraries(wanted: RuntimeInjection) -> Vec<String> {
    let all = [(wanted.openmp, OPENMP_LIBRARY), (wanted.libc, LIBC_LIBRARY)];
    all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| format!("{INJECTION_DIR}/{name}")).collect()
}

/// What the dynamic linker preloads.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// What the launcher of every Java program inserts before its own options.
pub const JAVA_OPTIONS_VARIABLE: &str = "JAVA_TOOL_OPTIONS";

/// Which of the variables that are only ever read at a program's start, and that this module knows to set, `env` has.
pub fn sizing_variables<'a>(env: impl IntoIterator<Item = &'a str>) -> Vec<&'static str> {
    let names = || {
        let rows = STARTUP_VARIABLES.iter().chain(SPIN_VARIABLES).map(|row| row.name);
        rows.chain(PRESSURE_VARIABLES)
    };
    let mut told: Vec<&'static str> = env
        .into_iter()
        .filter_map(|word| names().find(|name| word.split_once('=').is_some_and(|(n, _)| n == *name)))
        .collect();
    told.sort_unstable();
    told.dedup();
    told
}

/// Changes the value of `name`, every one of them where there are several: some programs read the first, some the last.
fn change_variable(env: &mut Vec<String>, name: &str, change: impl Fn(&mut OsString)) {
    let changed = |value: &str| {
        let mut value = OsString::from(value);
        change(&mut value);
        format!("{name}={}", value.to_string_lossy())
    };
    let mut found = false;
    for word in env.iter_mut() {
        if let Some((known, value)) = word.split_once('=')
            && known == name
        {
            (*word, found) = (changed(value), true);
        }
    }
    if !found {
        env.push(changed(""));
    }
}

/// Puts `libraries` after the user's own in a value of `LD_PRELOAD`, once.
pub fn append_preload(list: &mut OsString, libraries: &[String]) {
    for library in libraries {
        // The dynamic linker takes blanks and colons alike, and empty names for nothing (elf/rtld.c, handle_preload_list).
        if list.to_string_lossy().split([':', ' ']).any(|known| known == library) {
            continue;
        }
        if !list.is_empty() {
            list.push(":");
        }
        list.push(library);
    }
}

/// Adds the agent for HotSpot behind whatever is there in a value of [`JAVA_OPTIONS_VARIABLE`], once. `jar` has no quote in it: HotSpot
/// knows quotes, and nothing to quote a quote with (Arguments::parse_options_buffer).
///
/// HotSpot makes its GC threads when it starts, and never more. It is told to make as many as it would for `most` CPUs, the most that
/// the view may become; the agent lets as many work as the view has. Flags on the command line come after this variable, so they win.
/// Concurrent threads are not told: G1 derives them, and ends a program whose user asks for fewer threads in all.
pub fn append_java_agent(options: &mut OsString, jar: &str, most: u32) {
    let agent = match jar.contains(char::is_whitespace) {
        true => format!("\"-javaagent:{jar}\""),
        false => format!("-javaagent:{jar}"),
    };
    let mut append = |word: String, known: &str| {
        if OsStr::to_string_lossy(options).contains(known) {
            return;
        }
        if !options.is_empty() {
            options.push(" ");
        }
        options.push(word);
    };
    append(agent.clone(), &agent);
    append(format!("-XX:ParallelGCThreads={}", hotspot_gc_threads(most)), "-XX:ParallelGCThreads=");
}

/// The GC threads that HotSpot makes for `cpus` CPUs (`WorkerPolicy::parallel_worker_threads`): all up to eight, then five of eight.
fn hotspot_gc_threads(cpus: u32) -> u32 {
    match cpus {
        0..=8 => cpus.max(1),
        _ => 8 + (cpus - 8) * 5 / 8,
    }
}

fn unset_variables<'a>(
    rows: impl IntoIterator<Item = &'a EnvRule>,
    room: LaunchLimits,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    let open = |row: &&EnvRule| !is_set(row.name) && !row.overridden_by.iter().any(|name| is_set(name));
    rows.into_iter().filter(open).filter_map(|row| Some((row.name, (row.value)(room)?))).collect()
}

fn cpu_multiple(room: LaunchLimits, each: u32) -> Option<String> {
    room.cpus.map(|cpus| cpus.max(1).saturating_mul(each).to_string())
}

fn memory_percent(room: LaunchLimits, percent: u64) -> Option<Bytes> {
    room.memory.map(|memory| Bytes((u128::from(memory.get()) * u128::from(percent) / 100) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(vars: &[(&str, String)]) -> Vec<String> {
        vars.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_limited_program_is_told_its_room() {
        let room = LaunchLimits { cpus: Some(2), memory: Some(Bytes::mib(1000)) };
        assert_eq!(
            text(&env_without_view(room, |_| false)),
            [
                "OMP_NUM_THREADS=2",
                "GOMAXPROCS=2",
                "PYTHON_CPU_COUNT=2",
                "MALLOC_ARENA_MAX=16",
                "MALLOC_CONF=narenas:8",
                "GOMEMLIMIT=943718400",
                "NODE_OPTIONS=--max-old-space-size=750",
            ]
        );
    }

    #[test]
    fn limits_as_runtimes_write_them_are_a_room() {
        let mib = |mib| Some(Bytes::mib(mib));
        for (quota, period, cpuset, memory, cpus, bytes) in [
            (150_000, 100_000, "", 64 << 20, Some(2), mib(64)),
            (400_000, 0, "0-2", 0, Some(3), None),
            (-1, 100_000, "", -1, None, None),
            (0, 0, "nonsense", i64::MIN, None, None),
            (i64::MAX, 1, "", i64::MAX, Some(u32::MAX), Some(Bytes(i64::MAX as u64))),
        ] {
            assert_eq!(
                LaunchLimits::from_oci(quota, period, cpuset, memory),
                LaunchLimits { cpus, memory: bytes }
            );
        }
    }

    #[test]
    fn a_plan_heeds_labels_before_the_node() {
        let plan = |views, env, labels: ContainerLabels| LaunchPlan::new(&labels, views, env);
        assert_eq!(plan(false, false, ContainerLabels::default()), LaunchPlan::default());
        let both = LaunchPlan {
            hook: true,
            injections: RuntimeInjection { env: true, ..RuntimeInjection::default() },
            ..LaunchPlan::default()
        };
        assert_eq!(plan(true, true, ContainerLabels::default()), both);
        let off = ContainerLabels { views: Some(false), env: Some(false), ..ContainerLabels::default() };
        assert_eq!(plan(true, true, off), LaunchPlan::default());
        let on = ContainerLabels { views: Some(true), env: Some(true), ..ContainerLabels::default() };
        assert_eq!(plan(false, false, on), both);
        let seccomp = ContainerLabels { seccomp: Some(true), ..ContainerLabels::default() };
        assert!(plan(false, false, seccomp).seccomp);
        let java = ContainerLabels {
            injections: RuntimeInjection { java: true, ..RuntimeInjection::default() },
            ..ContainerLabels::default()
        };
        assert!(plan(false, false, java).injections.java);
    }

    #[test]
    fn what_is_not_limited_is_not_mentioned() {
        assert!(env_without_view(LaunchLimits::default(), |_| false).is_empty());
        let names =
            |room| env_without_view(room, |_| false).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(
            names(LaunchLimits { memory: Some(Bytes(u64::MAX)), cpus: None }),
            ["GOMEMLIMIT", "NODE_OPTIONS"]
        );
        assert_eq!(names(LaunchLimits { memory: None, cpus: Some(1) }).len(), 5);
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let room = LaunchLimits { cpus: Some(2), memory: Some(Bytes::gib(1)) };
        for row in STARTUP_VARIABLES {
            let vars = env_without_view(room, |name| name == row.name);
            assert!(
                vars.len() == STARTUP_VARIABLES.len() - 1 && vars.iter().all(|(name, _)| *name != row.name)
            );
        }
        let told = |users: &str| text(&openmp_env(4, |name| name == users));
        assert_eq!(told(""), ["OMP_NUM_THREADS=4", "GOMP_SPINCOUNT=40000", "KMP_BLOCKTIME=1"]);
        assert_eq!(told("OMP_WAIT_POLICY"), ["OMP_NUM_THREADS=4"]);
        assert_eq!(told("GOMP_SPINCOUNT"), ["OMP_NUM_THREADS=4", "KMP_BLOCKTIME=1"]);
        assert_eq!(told("OMP_NUM_THREADS").len(), 2);
    }

    fn env(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_container_is_reached_by_what_it_asks_for_and_keeps_what_it_has() {
        let room = LaunchLimits { cpus: Some(2), memory: None };
        let check = |wanted: RuntimeInjection, before: &[&str], after: &[&str]| {
            let mut now = env(before);
            for _ in 0..2 {
                apply_container_env(
                    LaunchPlan { hook: true, injections: wanted, pressure_file: true, seccomp: false },
                    room,
                    8,
                    &mut now,
                );
                assert_eq!(now, after);
            }
        };
        let none = RuntimeInjection::default();
        check(none, &["PATH=/bin"], &["PATH=/bin"]);
        check(
            RuntimeInjection { libc: true, ..none },
            &["LD_PRELOAD=/x.so"],
            &["LD_PRELOAD=/x.so:/sys/fs/fuse/connections/libelbowroom-libc.so"],
        );
        check(
            RuntimeInjection { java: true, ..none },
            &["JAVA_TOOL_OPTIONS=-Xmx1g", "A", "JAVA_TOOL_OPTIONS="],
            &[
                "JAVA_TOOL_OPTIONS=-Xmx1g -javaagent:/sys/fs/fuse/connections/elbowroom-agent.jar -XX:ParallelGCThreads=2",
                "A",
                "JAVA_TOOL_OPTIONS=-javaagent:/sys/fs/fuse/connections/elbowroom-agent.jar -XX:ParallelGCThreads=2",
            ],
        );
        check(
            RuntimeInjection { openmp: true, ..none },
            &["GOMP_SPINCOUNT=7"],
            &[
                "GOMP_SPINCOUNT=7",
                "LD_PRELOAD=/sys/fs/fuse/connections/libelbowroom-openmp.so",
                "OMP_NUM_THREADS=2",
                "KMP_BLOCKTIME=1",
            ],
        );
        check(
            RuntimeInjection { env: true, ..none },
            &["OMP_NUM_THREADS=9", "GLIBC_TUNABLES=x", "MALLOC_CONF=x:y", "MEMORY_PRESSURE_WATCH=/dev/null"],
            &["OMP_NUM_THREADS=9", "GLIBC_TUNABLES=x", "MALLOC_CONF=x:y", "MEMORY_PRESSURE_WATCH=/dev/null"],
        );
    }

    #[test]
    fn a_runtime_that_follows_files_is_told_nothing_beside_a_view() {
        let room = LaunchLimits { cpus: Some(2), memory: Some(Bytes::mib(1000)) };
        let beside = [
            "OMP_NUM_THREADS=2",
            "MALLOC_ARENA_MAX=16",
            "MALLOC_CONF=narenas:8",
            "GOMEMLIMIT=943718400",
            "NODE_OPTIONS=--max-old-space-size=750",
        ];
        assert_eq!(text(&env_with_view(room, |_| false)), beside);
        let injections = RuntimeInjection { env: true, ..RuntimeInjection::default() };
        let words = |hook, asks| {
            let mut env = Vec::new();
            apply_container_env(
                LaunchPlan { hook, injections, pressure_file: asks, seccomp: false },
                room,
                8,
                &mut env,
            );
            env
        };
        assert_eq!(words(true, false), beside);
        let watched = ["MEMORY_PRESSURE_WATCH=/dev/elbowroom-pressure", "MEMORY_PRESSURE_WRITE=Cg=="];
        assert_eq!(words(true, true), [&beside[..], &watched].concat());
        for asks in [false, true] {
            assert_eq!(words(false, asks), text(&env_without_view(room, |_| false)), "without a view");
        }
        // What its user says to Go counts, beside a view too.
        let mut env = env(&["GOMAXPROCS=7"]);
        apply_container_env(
            LaunchPlan { hook: true, injections, ..LaunchPlan::default() },
            room,
            8,
            &mut env,
        );
        assert!(env.contains(&"GOMAXPROCS=7".to_owned()));
    }

    #[test]
    fn a_program_that_watches_something_else_is_left_to_it() {
        let told = |users: &str| text(&pressure_env("/x", |name| name == users));
        assert_eq!(told(""), ["MEMORY_PRESSURE_WATCH=/x", "MEMORY_PRESSURE_WRITE=Cg=="]);
        for users in ["MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"] {
            assert!(told(users).is_empty(), "{users}");
        }
    }

    #[test]
    fn each_variable_is_set_once_whatever_is_asked_for() {
        for room in [LaunchLimits::default(), LaunchLimits { cpus: Some(3), memory: Some(Bytes::gib(1)) }] {
            let mut words = Vec::new();
            let injections = RuntimeInjection { java: true, openmp: true, libc: true, env: true };
            apply_container_env(
                LaunchPlan { hook: true, injections, pressure_file: true, seccomp: false },
                room,
                2,
                &mut words,
            );
            let mut names: Vec<&str> = words.iter().map(|word| word.split_once('=').unwrap().0).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{words:?}");
        }
    }

    #[test]
    fn what_a_program_was_told_is_known_by_name() {
        let words =
            ["GOMAXPROCS=2", "GOMAXPROCSX=2", "OMP_NUM_THREADS", "KMP_BLOCKTIME=1", "GOMAXPROCS=3", ""];
        assert_eq!(sizing_variables(words), ["GOMAXPROCS", "KMP_BLOCKTIME"]);
    }

    #[test]
    fn the_agent_is_added_once_behind_what_is_there() {
        for (before, jar, after) in [
            ("", "/a.jar", "-javaagent:/a.jar -XX:ParallelGCThreads=4"),
            ("-Xmx1g", "/a.jar", "-Xmx1g -javaagent:/a.jar -XX:ParallelGCThreads=4"),
            ("-XX:ParallelGCThreads=1", "/a.jar", "-XX:ParallelGCThreads=1 -javaagent:/a.jar"),
            ("", "/my programs/a.jar", "\"-javaagent:/my programs/a.jar\" -XX:ParallelGCThreads=4"),
        ] {
            let mut options = OsString::from(before);
            for _ in 0..2 {
                append_java_agent(&mut options, jar, 4);
                assert_eq!(options, after);
            }
        }
    }

    #[test]
    fn a_jvm_makes_the_gc_threads_that_hotspot_makes_for_the_most_cpus() {
        for (cpus, threads) in [(0, 1), (1, 1), (8, 8), (9, 8), (16, 13), (64, 43)] {
            assert_eq!(hotspot_gc_threads(cpus), threads, "{cpus} CPUs");
        }
    }

    #[test]
    fn ours_come_after_the_users_libraries() {
        let ours = ["/a.so".to_owned(), "/b.so".to_owned()];
        for (users, expect) in [("", "/a.so:/b.so"), ("/x.so /y.so", "/x.so /y.so:/a.so:/b.so")] {
            let mut list = OsString::from(users);
            append_preload(&mut list, &ours);
            assert_eq!(list, expect);
        }
    }
}
