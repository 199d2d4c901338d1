//! The part of `elbowroom check` that is about disks.

use super::Prerequisite;
use elbowroom_linux::bounded;
use elbowroom_linux::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use elbowroom_linux::root::Root;
use std::fs;
use std::path::{Path, PathBuf};

/// What a host has for governing disks.
#[derive(Debug, Default, PartialEq, Eq)]
struct DiskPrerequisites {
    /// The hierarchy that the io controller is in.
    io: Option<CgroupVersion>,
    /// The same for memory: page cache is written back in a container's name only where both are in one v2 hierarchy.
    memory: Option<CgroupVersion>,
    /// A file that limits the I/O of a container.
    throttle: Option<PathBuf>,
    /// A file that says how long a container waited for I/O.
    pressure: Option<PathBuf>,
    /// Disks that are divided by weight.
    weights: Vec<String>,
}

/// Facts for the report.
pub(super) fn prerequisites() -> Vec<Prerequisite> {
    evaluate(&detect())
}

fn evaluate(host: &DiskPrerequisites) -> Vec<Prerequisite> {
    let fact = |name, present, value: String, lost| Prerequisite {
        name,
        present: Some(present),
        required: false,
        value,
        lost: if present { "" } else { lost },
    };
    let path = |path: &Option<PathBuf>| path.as_ref().map_or("no".to_owned(), |p| p.display().to_string());
    let version = |version: Option<CgroupVersion>| match version {
        Some(CgroupVersion::V1) => "v1 (blkio)".to_owned(),
        Some(CgroupVersion::V2) => "v2 (io)".to_owned(),
        None => "no".to_owned(),
    };
    let writeback = host.io == Some(CgroupVersion::V2) && host.memory == Some(CgroupVersion::V2);
    vec![
        fact(
            "disk: controller",
            host.io.is_some(),
            version(host.io),
            "disks are not governed: mount blkio (v1), or add +io to cgroup.subtree_control of the root (v2)",
        ),
        fact(
            "disk: limits",
            host.throttle.is_some(),
            path(&host.throttle),
            "nothing can be limited: the kernel lacks CONFIG_BLK_DEV_THROTTLING, or no cgroup has the controller",
        ),
        fact(
            "disk: pressure",
            host.pressure.is_some(),
            path(&host.pressure),
            "which container waits is guessed from the disk alone: boot with psi=1; on v1, mount cgroup2 beside it",
        ),
        fact(
            "disk: weights",
            !host.weights.is_empty(),
            if host.weights.is_empty() { "no".to_owned() } else { host.weights.join(" ") },
            "claims act by limits only: choose the bfq scheduler or enable iocost where neighbours are many",
        ),
        fact(
            "disk: page cache",
            writeback,
            if writeback { "ext4, xfs, btrfs, f2fs" } else { "no" }.to_owned(),
            "writes through the page cache reach the disk without a container's name and escape limits: cgroup v2 names them",
        ),
    ]
}

fn detect() -> DiskPrerequisites {
    let Some(layout) = Root::host().ok().and_then(|root| CgroupLayout::detect(&root).ok()) else {
        return DiskPrerequisites::default();
    };
    let version = |controller| layout.index(controller).map(|at| layout.hierarchies()[at].version);
    let top = |controller| layout.dir(controller, Path::new("")).map(|(_, dir)| dir.path());
    let io = version(CgroupController::Io);
    let throttle = top(CgroupController::Io).and_then(|top| match io? {
        CgroupVersion::V1 => Some(top.join("blkio.throttle.read_bps_device")).filter(|path| path.exists()),
        // The topmost cgroup has no io.max.
        CgroupVersion::V2 => below(&top, "io.max"),
    });
    let unified = layout.unified_dir(Path::new("")).map(|dir| dir.path());
    DiskPrerequisites {
        io,
        memory: version(CgroupController::Memory),
        throttle,
        pressure: unified.as_ref().and_then(|top| below(top, "io.pressure")),
        weights: weights(&top(CgroupController::Io).unwrap_or_default().join("io.cost.qos")),
    }
}

/// The file in the topmost cgroup, or in one right below.
fn below(top: &Path, file: &str) -> Option<PathBuf> {
    let children = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    [top.to_owned()].into_iter().chain(children).map(|dir| dir.join(file)).find(|path| path.exists())
}

/// Disks with the bfq scheduler, and those that iocost is enabled for.
fn weights(iocost: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let scheduler = bounded::file_text(entry.path().join("queue/scheduler"), bounded::KERNEL_FILE);
            scheduler.is_ok_and(|text| text.contains("[bfq]"))
        })
        .map(|entry| format!("{} (bfq)", entry.file_name().display()))
        .collect();
    let qos = bounded::file_text(iocost, bounded::KERNEL_FILE).unwrap_or_default();
    let enabled = qos.lines().filter(|line| line.contains(" enable=1"));
    found.extend(enabled.filter_map(|line| Some(format!("{} (iocost)", line.split_whitespace().next()?))));
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_is_lost_and_the_way_out() {
        let facts = evaluate(&DiskPrerequisites::default());
        assert!(
            facts.iter().all(|fact| fact.present == Some(false) && !fact.required && fact.lost.contains(':'))
        );
        let v1 = DiskPrerequisites {
            io: Some(CgroupVersion::V1),
            memory: Some(CgroupVersion::V1),
            throttle: Some("/b/x".into()),
            pressure: Some("/u/io.pressure".into()),
            weights: vec!["sda (bfq)".into()],
        };
        let missing: Vec<_> = evaluate(&v1)
            .into_iter()
            .filter(|fact| fact.present == Some(false))
            .map(|fact| fact.name)
            .collect();
        assert_eq!(missing, ["disk: page cache"]);
        let v2 = DiskPrerequisites { io: Some(CgroupVersion::V2), memory: Some(CgroupVersion::V2), ..v1 };
        assert!(evaluate(&v2).iter().all(|fact| fact.present == Some(true) && fact.lost.is_empty()));
    }
}
