use elbowroom_linux::mountinfo::{MountTable, MountTableBounds, parse_cgroups};
use std::path::Path;

/// Arbitrary bytes as mountinfo and as a cgroup file, split at the first zero byte: no panic, every walk ends, what a walk
/// reports is on its way, and a table that is read within bounds is the whole one.
pub fn run(data: &[u8]) {
    let split = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (mounts, cgroups) = data.split_at(split);
    let _ = parse_cgroups(cgroups.get(1..).unwrap_or_default(), Path::new("cgroup"));
    let path = Path::new("mountinfo");
    let parsed = MountTable::parse(mounts, path).ok();
    let few = MountTableBounds { bytes: 1 << 12, mounts: 8 };
    if let Ok(table) = MountTable::read(mounts, few, path) {
        assert!(mounts.len() <= 1 << 12 && table.iter().count() <= 8);
        assert_eq!(parsed, Some(table));
    }
    let Some(table) = parsed else { return };
    for mount in table.iter() {
        let path = &mount.mount_point;
        let walk = table.walk(path);
        assert!(walk.iter().all(|entered| path.starts_with(&entered.mount_point)));
        assert_eq!(table.visible(path).map(|end| end.id), walk.last().map(|end| end.id));
        assert!(table.stack(path).iter().all(|layer| layer.mount_point == *path));
        let _ = table.clone().below(path);
    }
}
