//! What a program or a container that is about to start is given. Environment variables are for runtimes that look at their
//! room once, or in places that no file reaches. A variable that the user has set is his, and so is a setting that another
//! variable of his makes.
//!
//! Facts about runtimes: `docs/guide/runtimes.md`.

use crate::cpuset::CpuSet;
use crate::label::Labels;
use crate::unit::Bytes;
use std::ffi::OsString;

/// The room of a program, as far as it is less than the machine: what is `None` is the machine's, and needs no words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// CPUs, whole.
    pub cpus: Option<u32>,
    /// Memory.
    pub memory: Option<Bytes>,
}

impl Room {
    /// The room that an OCI runtime is asked to make: quota and period in microseconds, a cpuset as text, memory in bytes.
    /// What is absent, zero, negative (the runtimes' word for no limit) or no cpuset is the machine's.
    pub fn of_limits(quota: i64, period: u64, cpuset: &str, memory: i64) -> Self {
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

/// What a container that is about to be made is given, however its engine takes it: the NRI plugin and the runtime wrapper
/// carry it out, and a CDI device and a hooks directory are a plan that asks for views of everybody.
///
/// There are no mounts in it: views are mounted by the hook, which asks the agent for them when the container's cgroup is there,
/// so that nothing of an agent that is gone can keep a container from starting (`docs/decisions/0023-engines.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Variables to add to the environment of its programs.
    pub env: Vec<(&'static str, String)>,
    /// Whether to run the `createContainer` hook that mounts its view.
    pub hook: bool,
}

impl Plan {
    /// The plan for a container with these labels. `views` and `words` are what the node does where they are silent; `is_set`
    /// says which variables the container's maker has set.
    pub fn new(labels: &Labels, views: bool, words: bool, room: Room, is_set: impl Fn(&str) -> bool) -> Self {
        let words = labels.env.unwrap_or(words);
        Self {
            env: if words { start_only(room, is_set) } else { Vec::new() },
            hook: labels.views.unwrap_or(views),
        }
    }
}

/// One row: a variable, those whose presence means that the user has decided, and the value.
struct Row {
    name: &'static str,
    settled_by: &'static [&'static str],
    value: fn(Room) -> Option<String>,
}

/// `--env-only`: everything that starts with the machine's numbers unless told, and takes being told.
const START: &[Row] = &[
    // libgomp, libomp; OpenBLAS, MKL, NumPy and PyTorch follow it.
    Row { name: "OMP_NUM_THREADS", settled_by: &[], value: |room| cpus(room, 1) },
    // Go before 1.25 asks sched_getaffinity() alone.
    Row { name: "GOMAXPROCS", settled_by: &[], value: |room| cpus(room, 1) },
    // Python 3.13: os.cpu_count() and os.process_cpu_count().
    Row { name: "PYTHON_CPU_COUNT", settled_by: &[], value: |room| cpus(room, 1) },
    // glibc makes up to eight arenas per CPU of the machine (malloc/arena.c, NARENAS_FROM_NCORES).
    Row { name: "MALLOC_ARENA_MAX", settled_by: &["GLIBC_TUNABLES"], value: |room| cpus(room, 8) },
    // Go's collector knows no limit but this one. A tenth is for what is not its heap (go.dev/doc/gc-guide).
    Row { name: "GOMEMLIMIT", settled_by: &[], value: |room| Some(part(room, 90)?.get().to_string()) },
    // V8 sizes its heap once. A quarter is for what is not on it: buffers, code, threads.
    Row {
        name: "NODE_OPTIONS",
        settled_by: &[],
        value: |room| {
            Some(format!("--max-old-space-size={}", (part(room, 75)?.get() / Bytes::mib(1).get()).max(1)))
        },
    },
];

/// `--openmp`: threads that wait for the next region give their CPU to others soon. By default libgomp spins 300,000 times
/// and libomp for 200 ms, and does so longest where views matter most: where the CPUs are shared.
const SPIN: &[Row] = &[
    Row { name: "GOMP_SPINCOUNT", settled_by: &["OMP_WAIT_POLICY"], value: |_| Some("1000".into()) },
    Row {
        name: "KMP_BLOCKTIME",
        settled_by: &["OMP_WAIT_POLICY", "KMP_LIBRARY"],
        value: |_| Some("1".into()),
    },
];

/// What to add for a program that starts with no view, only with words (`elbowroom run --env-only`). `is_set` says which
/// variables the user has set.
pub fn start_only(room: Room, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    fill(START, room, is_set)
}

/// What to add for a program whose OpenMP runtime follows the view. `most` is the most that the view may become, where the
/// program's own calls show only what it is at the start (`--libc`): teams grow no larger than the runtime thought then.
pub fn openmp(most: Option<u32>, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let mut vars = fill(&START[..1], Room { cpus: most, memory: None }, &is_set);
    vars.extend(fill(SPIN, Room::default(), is_set));
    vars
}

/// Whether a list of `NAME=value` names a variable.
pub fn sets(env: &[String], name: &str) -> bool {
    env.iter().any(|row| row.split_once('=').map_or(row.as_str(), |(name, _)| name) == name)
}

/// Puts `libraries` after the user's own in a value of `LD_PRELOAD`.
pub fn append_preload(list: &mut OsString, libraries: &[String]) {
    for library in libraries {
        // The dynamic linker takes blanks and colons alike, and empty names for nothing (elf/rtld.c, handle_preload_list).
        if !list.is_empty() {
            list.push(":");
        }
        list.push(library);
    }
}

fn fill(rows: &[Row], room: Room, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let open = |row: &&Row| !is_set(row.name) && !row.settled_by.iter().any(|name| is_set(name));
    rows.iter().filter(open).filter_map(|row| Some((row.name, (row.value)(room)?))).collect()
}

fn cpus(room: Room, each: u32) -> Option<String> {
    room.cpus.map(|cpus| cpus.max(1).saturating_mul(each).to_string())
}

fn part(room: Room, percent: u64) -> Option<Bytes> {
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
        let room = Room { cpus: Some(2), memory: Some(Bytes::mib(1000)) };
        assert_eq!(
            text(&start_only(room, |_| false)),
            [
                "OMP_NUM_THREADS=2",
                "GOMAXPROCS=2",
                "PYTHON_CPU_COUNT=2",
                "MALLOC_ARENA_MAX=16",
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
            assert_eq!(Room::of_limits(quota, period, cpuset, memory), Room { cpus, memory: bytes });
        }
    }

    #[test]
    fn a_plan_heeds_labels_before_the_node() {
        let room = Room { cpus: Some(2), memory: None };
        let plan = |views, env, labels: Labels| Plan::new(&labels, views, env, room, |_| false);
        assert_eq!(plan(false, false, Labels::default()), Plan::default());
        assert!(plan(true, false, Labels::default()).hook);
        assert_eq!(plan(false, true, Labels::default()).env.len(), 4);
        let labels = Labels { views: Some(false), env: Some(false), ..Labels::default() };
        assert_eq!(plan(true, true, labels), Plan::default());
        let labels = Labels { views: Some(true), env: Some(true), ..Labels::default() };
        let both = plan(false, false, labels);
        assert!(both.hook && both.env.len() == 4);
    }

    #[test]
    fn what_is_not_limited_is_not_mentioned() {
        assert!(start_only(Room::default(), |_| false).is_empty());
        let names = |room| start_only(room, |_| false).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(Room { memory: Some(Bytes(u64::MAX)), cpus: None }), ["GOMEMLIMIT", "NODE_OPTIONS"]);
        assert_eq!(names(Room { memory: None, cpus: Some(1) }).len(), 4);
    }

    #[test]
    fn what_the_user_has_set_is_his() {
        let room = Room { cpus: Some(2), memory: Some(Bytes::gib(1)) };
        for row in START {
            let vars = start_only(room, |name| name == row.name);
            assert!(vars.len() == START.len() - 1 && vars.iter().all(|(name, _)| *name != row.name));
        }
        assert_eq!(text(&openmp(None, |_| false)), ["GOMP_SPINCOUNT=1000", "KMP_BLOCKTIME=1"]);
        assert!(openmp(None, |name| name == "OMP_WAIT_POLICY").is_empty());
        assert_eq!(text(&openmp(None, |name| name == "GOMP_SPINCOUNT")), ["KMP_BLOCKTIME=1"]);
        assert_eq!(text(&openmp(Some(4), |_| false))[0], "OMP_NUM_THREADS=4");
        assert_eq!(openmp(Some(4), |name| name == "OMP_NUM_THREADS").len(), 2);
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
