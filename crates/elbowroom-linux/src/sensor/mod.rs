//! The machine as a stream of events: every cgroup, its settings, what it uses.
//!
//! Problem: a node has hundreds of containers, and a view is worth what its freshest number is worth; yet reading every
//! counter of every container every period costs a whole per cent of a CPU per few hundred containers.
//!
//! Approach: structure and settings come from notifications ([`crate::watch`]) with a rescan spread over 30 s behind them, so
//! no tick ever opens a directory. Counters are read with `pread` on files kept open, of the groups that may have changed:
//! the [`ActivitySource`] says which.
//!
//! Properties:
//! - A [`CgroupId`] names one directory for ever (its inode on cgroupfs; re-creation under the same path is another group).
//! - Parents are told before children. Of groups that go together each is told, and [`HostEvent::Gone`] before what came in its place.
//! - A cgroup that vanishes while it is read is a normal value. What cannot be read is absent and logged once per cause.
//! - Nothing here panics on what a file says.
//!
//! A tenant makes as many cgroups as it likes: a bounded number is followed for each, and looking at them takes a bounded part of a CPU
//! ([`tenant`]).
//!
//! Files kept open: two per group (CPU and memory counters), three where v1 keeps throttling of a quota in another file,
//! plus one per hierarchy and three for the machine; where disks are watched, up to four more per container. `open` raises the soft
//! limit of open files to the hard one; groups beyond that less 256 are read by opening, which is slower and not wrong. Everything else
//! opens, reads and closes.

mod available;
mod details;
mod disks;
mod group;
mod io_meter;
mod meter;
mod node_counters;
mod scan;
mod tenant;
mod tick;
mod tree;

use crate::activity::ActivitySource;
use crate::cgroup::layout::LayoutError;
use crate::cgroup::read::{CgroupFileCache, FdBudget};
use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use crate::discover::ContainerDiscovery;
use crate::parse::Malformed;
use crate::root::{ReadError, Root, if_present, raise_nofile};
use crate::warnings::Warnings;
use crate::watch::CgroupWatcher;
use crate::{numa, proc};
pub use details::GroupDetails;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::LabelPolicy;
use elbowroom_types::sample::{HostEvent, NodeProperties};
use elbowroom_types::unit::{Bytes, Micros};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
pub use tenant::{MAX_CONTAINERS_PER_TENANT, MAX_GROUPS_PER_TENANT, TenantQuota};
pub use tick::TickCost;
use tree::GroupTree;

/// Where and how to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SensorConfig {
    /// The directory that stands for `/`; `proc` and `sys` are below it.
    pub root: PathBuf,
    /// Patterns of cgroup paths that count as containers, see [`ContainerDiscovery::new`].
    pub container_patterns: Vec<String>,
    /// Where dockerd keeps its containers, where `/etc/docker/daemon.json` does not say.
    pub docker_root: Option<PathBuf>,
    /// Where containerd keeps what runs, beside the usual places.
    pub containerd_state: Option<PathBuf>,
    /// Where `elbowroom run` leaves labels, see [`ContainerDiscovery::with_run_labels`].
    pub run_labels: Option<PathBuf>,
    /// Which labels of containers count.
    pub label_policy: LabelPolicy,
    /// The one cgroup that can be a container, see [`ContainerDiscovery::with_only`].
    pub only: Option<String>,
    /// How often [`Sensor::tick`] will be called: an active group is read this often.
    pub period: Micros,
    /// How seldom an idle one is read at most.
    pub backoff: Micros,
    /// In what time everything is looked at again, in case a notification was lost.
    pub rescan: Micros,
    /// Use fanotify where the kernel takes it; without it, inotify.
    pub fanotify: bool,
    /// Use BPF where the build has it (feature `bpf`), `root` is the machine itself and the kernel takes it.
    pub bpf: bool,
}

impl Default for SensorConfig {
    /// The host, every 24 ms as the paper has it, idle groups every 1.5 s, everything again in 30 s.
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            container_patterns: Vec::new(),
            docker_root: None,
            containerd_state: None,
            run_labels: None,
            label_policy: LabelPolicy::All,
            only: None,
            period: Micros::millis(24),
            backoff: Micros::millis(1_500),
            rescan: Micros::secs(30),
            fanotify: true,
            bpf: true,
        }
    }
}

/// Why the machine cannot be sensed.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No cgroups.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No file descriptor is left.
    #[error("while opening a placeholder for cgroup notifications: {0}; raise the limit of open files")]
    Watch(rustix::io::Errno),
}

/// How often it is looked which CPUs are online.
const ONLINE_PERIOD: Duration = Duration::from_secs(1);

/// The machine's eyes. One thread owns it.
#[derive(Debug)]
pub struct Sensor {
    root: Root,
    config: SensorConfig,
    layout: CgroupLayout,
    /// The hierarchies whose directories make the tree, as indices into the layout; the first is the spine.
    tree_hierarchies: Vec<usize>,
    watcher: CgroupWatcher,
    discover: ContainerDiscovery,
    tree: GroupTree,
    node: NodeProperties,
    possible: CpuSet,
    warnings: Warnings,
    budget: FdBudget,
    /// What is kept open of groups whose statistics are asked for again and again.
    details: BTreeMap<CgroupId, CgroupFileCache>,
    source: ActivitySource,
    machine: node_counters::NodeCounters,
    disks: disks::DiskWatch,
    last_tick_cost: TickCost,
    ticks: u64,
    /// Where the spread rescan is, and when it last moved.
    rescan_at: usize,
    rescanned: Instant,
    /// What is still to be looked at.
    pending: scan::PendingScans,
    /// When everything was last looked at, and how long that took.
    scanned_all: (Instant, Duration),
    node_read: Instant,
    online_read: Instant,
    /// Groups a tick found removed.
    removed: BTreeSet<CgroupId>,
    /// Groups a tick found idle for long, perhaps because no process is in them.
    idle: BTreeSet<CgroupId>,
}

impl Sensor {
    /// Finds the machine's cgroups and asks for notifications of them. Reads no group yet.
    pub fn open(config: &SensorConfig) -> Result<Self, SensorError> {
        let nofile = raise_nofile();
        let root = Root::at(&config.root)?;
        let layout = CgroupLayout::detect(&root)?;
        let mut walked = Vec::new();
        let order = [
            CgroupController::Cpu,
            CgroupController::Cpuacct,
            CgroupController::Memory,
            CgroupController::Cpuset,
        ];
        for index in order.into_iter().filter_map(|c| layout.index(c)) {
            if !walked.contains(&index) {
                walked.push(index);
            }
        }
        let watch = CgroupWatcher::open(layout.hierarchies(), &walked, config.fanotify).or_else(|error| {
            tracing::warn!(
                %error, because = "no notifications of cgroups: all are looked at again and again; raise fs.inotify.max_user_instances"
            );
            CgroupWatcher::nothing().map_err(SensorError::Watch)
        })?;
        let node = read_node(&root)?;
        let possible = cpu_list(&root, "sys/devices/system/cpu/possible").unwrap_or(node.online);
        let machine = node_counters::NodeCounters::best_source(&layout);
        let source = if config.bpf && root.is_host() {
            tick::choose_activity_source(&layout)
        } else {
            ActivitySource::Files
        };
        tracing::info!(
            layout = ?layout.mode, hierarchies = walked.len(), notifications = watch.name(),
            busy_from = machine.busy_source(), source = source.name(), nofile, "sensing"
        );
        let now = Instant::now();
        Ok(Self {
            discover: ContainerDiscovery::new(
                &root,
                &config.container_patterns,
                config.docker_root.as_deref(),
                config.label_policy,
            )
            .with_containerd_state(config.containerd_state.as_deref())
            .with_run_labels(config.run_labels.as_deref())
            .with_only(config.only.as_deref()),
            root,
            config: config.clone(),
            layout,
            tree_hierarchies: walked,
            watcher: watch,
            tree: GroupTree::default(),
            node,
            possible,
            warnings: Warnings::default(),
            budget: FdBudget::new(nofile),
            details: BTreeMap::new(),
            source,
            machine,
            disks: disks::DiskWatch::default(),
            last_tick_cost: TickCost::default(),
            ticks: 0,
            rescan_at: 0,
            rescanned: now,
            pending: scan::PendingScans::default(),
            scanned_all: (now, Duration::ZERO),
            node_read: now,
            online_read: now,
            removed: BTreeSet::new(),
            idle: BTreeSet::new(),
        })
    }

    /// The machine and every cgroup there is, parents first. Call once, before anything else.
    pub fn start(&mut self) -> Vec<HostEvent> {
        let mut events = vec![HostEvent::Node(self.node.clone())];
        self.scan_all(&mut events);
        events
    }

    /// What changed since the last call: notifications that arrived, what ticks stumbled on, and the part of the rescan that
    /// is due. Does not wait. Call when [`Sensor::fd`] is readable and at least once a period.
    pub fn changes(&mut self) -> Vec<HostEvent> {
        let mut events = Vec::new();
        self.check_node(&mut events);
        self.collect_changes(&mut events);
        events
    }

    /// Has the next [`Sensor::changes`] read a group's settings again, whatever the kernel tells of it.
    pub fn read_again(&mut self, id: CgroupId) {
        self.pending.settings.extend(self.tree.slot(id));
    }

    /// Readable when [`Sensor::changes`] has something to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watcher.as_fd()
    }

    /// How notifications arrive: `fanotify`, `inotify`, or `none`.
    pub fn notifications(&self) -> &'static str {
        self.watcher.name()
    }

    /// Where the machine's groups are.
    pub fn layout(&self) -> &CgroupLayout {
        &self.layout
    }

    /// What the last tick cost.
    pub fn cost(&self) -> TickCost {
        self.last_tick_cost
    }

    /// The source that says which groups ran.
    pub fn source(&self) -> &ActivitySource {
        &self.source
    }

    /// The file that [`elbowroom_types::sample::Tick::busy`] comes from.
    pub fn busy_source(&self) -> &'static str {
        self.machine.busy_source()
    }

    /// The group's directory in every hierarchy where it has one: v1 by controller's name (`cpu`, `cpuacct`, `cpuset`,
    /// `memory`, `blkio`, `pids`), v2 under the empty name. Paths are the machine's, from its root.
    pub fn cgroup_dirs(&self, id: CgroupId) -> Vec<(String, PathBuf)> {
        let Some(path) = self.tree.slot(id).map(|slot| &self.tree[slot].path) else { return Vec::new() };
        let v1 = CgroupController::ALL.into_iter().filter_map(|c| match self.layout.dir(c, path)? {
            (CgroupVersion::V1, dir) => Some((c.v1_name().to_owned(), dir)),
            (CgroupVersion::V2, _) => None,
        });
        let v2 = self.layout.unified_dir(path).map(|dir| (String::new(), dir));
        v1.chain(v2).filter(|(_, dir)| dir.exists()).map(|(name, dir)| (name, dir.path())).collect()
    }

    /// Numbers of which each tells the group from any other, also for another run of the agent: the inodes of its directories in the
    /// hierarchies that are walked, with which of them it is. A group that is just being made may have more of them later.
    pub fn identities(&self, id: CgroupId) -> Vec<u64> {
        let Some(slot) = self.tree.slot(id) else { return Vec::new() };
        let inodes = self.tree[slot].inodes.into_iter().zip(0u64..);
        inodes.filter(|(inode, _)| *inode != 0).map(|(inode, walked)| walked << 60 | inode).collect()
    }

    /// The machine's own facts change when CPUs or memory are plugged; nothing announces it in files. Programs start as many threads
    /// as CPUs are online, so those are looked at more often than the rest.
    fn check_node(&mut self, events: &mut Vec<HostEvent>) {
        let mut is_due = self.node_read.elapsed() >= duration(self.config.rescan);
        if !is_due && self.online_read.elapsed() >= ONLINE_PERIOD {
            self.online_read = Instant::now();
            is_due = online(&self.root).is_ok_and(|online| online != self.node.online);
        }
        if !is_due {
            return;
        }
        self.node_read = Instant::now();
        if let Some(node) = self.warnings.ok_or_warn(read_node(&self.root))
            && node != self.node
        {
            if node.online != self.node.online && !self.tree.is_empty() {
                // The kernel has changed the effective CPUs of groups, the root's among them, without a word.
                self.pending.settings.extend(self.tree.subtree(GroupTree::ROOT));
            }
            self.node = node.clone();
            events.push(HostEvent::Node(node));
        }
    }
}

fn duration(t: Micros) -> Duration {
    Duration::from_micros(t.get())
}

/// The CPUs that the machine has: not fewer where this process may use fewer, by an affinity or a quota of its own.
///
/// # Errors
/// [`ReadError`]: no sysfs, or not as it should be.
pub fn online(root: &Root) -> Result<CpuSet, ReadError> {
    cpu_list(root, "sys/devices/system/cpu/online")
}

fn cpu_list(root: &Root, path: &str) -> Result<CpuSet, ReadError> {
    let text = root.read(path)?;
    text.parse().map_err(|_| {
        ReadError::malformed(path, crate::parse::malformed(text.trim_end(), "a list of CPUs below 1024"))
    })
}

fn read_node(root: &Root) -> Result<NodeProperties, ReadError> {
    fn parse<T>(root: &Root, path: &str, parse: fn(&str) -> Result<T, Malformed>) -> Result<T, ReadError> {
        parse(&root.read(path)?).map_err(|e| ReadError::malformed(path, e))
    }
    let page_size = Bytes(rustix::param::page_size() as u64);
    // Where there is none, it is not known when the kernel reclaims.
    let marks = if_present(parse(root, "proc/zoneinfo", proc::zoneinfo))?.unwrap_or_default();
    Ok(NodeProperties {
        online: online(root)?,
        mem_total: parse(root, "proc/meminfo", proc::meminfo)?.mem_total,
        numa: numa::node_memory(root),
        low_mark: Bytes(marks.low_pages.saturating_mul(page_size.get())),
        high_mark: Bytes(marks.high_pages.saturating_mul(page_size.get())),
        page_size,
    })
}
