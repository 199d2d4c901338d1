//! What each container may take of what a profile keeps for all of them.
//!
//! Problem: a container maps as many files as it likes, as often and as large as it likes. Counted in one sum, it would use up what is
//! kept, and nothing of the others would have a name.
//!
//! Approach: a container has a quarter of each bound. It is known by its cgroup: the first one outside those of the engine and the
//! profiler that one of its programs is in, with all below it, which it makes itself.

use elbowroom_linux::process;
use std::collections::HashSet;
use std::path::Path;

/// The part of each bound that one container may take.
const PART: usize = 4;

/// What a container has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TenantUse {
    /// Mappings.
    pub(super) mappings: usize,
    /// Files that are told apart for it.
    pub(super) modules: usize,
    /// Those of them that are open.
    pub(super) files: usize,
    /// Bytes of them that were read.
    pub(super) bytes: u64,
}

/// A container, by its place in [`Tenants`].
pub(super) type Tenant = u32;

/// The containers that were heard of.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    /// Cgroups of the engine and the profiler, which have no quota.
    host: HashSet<String>,
    /// The cgroup of each, and what it took. An empty one: of all programs that were gone before theirs was read.
    all: Vec<(String, TenantUse)>,
}

impl Tenants {
    /// Takes the cgroup of a process for one that has no quota.
    pub(super) fn add_host(&mut self, pid: u32) {
        self.host.extend(cgroup(&process::cgroup_paths(pid as i32)));
    }

    /// Whose a process is that has become another program; of `before` where it is gone. `None`: the engine's or the profiler's.
    pub(super) fn find(&mut self, pid: u32, before: Option<Tenant>) -> Option<Tenant> {
        let paths = process::cgroup_paths(pid as i32);
        // No container is in the root of all hierarchies, whose path is left out.
        if paths.is_empty() && Path::new(&format!("/proc/{pid}")).exists() {
            return None;
        }
        self.find_by(&paths, before)
    }

    fn find_by(&mut self, paths: &[String], before: Option<Tenant>) -> Option<Tenant> {
        let path = match cgroup(paths) {
            Some(path) if self.host.contains(&path) => return None,
            None if before.is_some() => return before,
            path => path.unwrap_or_default(),
        };
        let is_in = |top: &str| match path.strip_prefix(top) {
            Some(below) => below.is_empty() || !top.is_empty() && below.starts_with('/'),
            None => false,
        };
        let known = self.all.iter().position(|(top, _)| is_in(top));
        let place = known.unwrap_or_else(|| {
            self.all.push((path, TenantUse::default()));
            self.all.len() - 1
        });
        Some(place as Tenant)
    }

    /// Whether a container has taken less than its part of `bound`.
    pub(super) fn has_room(&self, tenant: Option<Tenant>, bound: usize, of: fn(&TenantUse) -> usize) -> bool {
        tenant.is_none_or(|tenant| of(&self.all[tenant as usize].1) < bound / PART)
    }

    /// How many bytes of `room` a container may take, of which all together may take `bound`.
    pub(super) fn room_of(&self, tenant: Option<Tenant>, bound: u64, room: u64) -> u64 {
        let left = |tenant: Tenant| (bound / PART as u64).saturating_sub(self.all[tenant as usize].1.bytes);
        tenant.map_or(room, |tenant| left(tenant).min(room))
    }

    /// What a container has taken; `None` of what has no quota.
    pub(super) fn taken(&mut self, tenant: Option<Tenant>) -> Option<&mut TenantUse> {
        self.all.get_mut(tenant? as usize).map(|(_, taken)| taken)
    }
}

#[cfg(test)]
impl Tenants {
    /// Two containers, the places 0 and 1.
    pub(super) fn two() -> Self {
        let all = ["/docker/a", "/docker/b"].map(|path| (path.to_owned(), TenantUse::default()));
        Self { all: all.into(), ..Self::default() }
    }
}

/// The cgroup of a process: v1 has one in each hierarchy, of which some may have been left out.
fn cgroup(paths: &[String]) -> Option<String> {
    paths.iter().max_by_key(|path| path.len()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_one_whatever_cgroups_it_makes() {
        let mut tenants = Tenants::default();
        tenants.host.insert("/system.slice/docker.service".to_owned());
        let mut find = |path: &str, before| tenants.find_by(&[path.to_owned()], before);
        assert_eq!(find("/system.slice/docker.service", Some(7)), None);
        let (a, b) = (find("/docker/a", None), find("/docker/ab", None));
        assert_eq!((a, b), (Some(0), Some(1)));
        assert_eq!((find("/docker/a/b/c", b), find("/docker/ab/x", a)), (a, b));
        // Those that are gone before they are looked at are their parent's, or all together one.
        assert_eq!(tenants.find_by(&[], a), a);
        let gone = tenants.find_by(&[], None);
        assert_eq!((gone, tenants.find_by(&[], None)), (Some(2), gone));
        assert_eq!(tenants.find_by(&["/docker/c".to_owned()], None), Some(3));
    }
}
