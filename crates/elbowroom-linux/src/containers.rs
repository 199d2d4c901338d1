//! What is profiled: containers, or any cgroup that is named, with everything below it.
//!
//! Cgroups are walked in one hierarchy: that of the memory controller, because the kernel charges memory and its faults by it;
//! where there is none, that which shares out CPU time. No agent is needed.

use crate::cgroup::layout::LayoutError;
use crate::cgroup::{CgroupController, CgroupLayout, CgroupVersion};
use crate::discover::{ContainerDiscovery, ContainerSources, is_called_as_container};
use crate::process;
use crate::root::{ReadError, Root};
use crate::warnings::Warnings;
use elbowroom_types::container::{ContainerIdentity, display_name};
use elbowroom_types::label::LabelPolicy;
use elbowroom_types::lookup::{ContainerNames, LookupError, find_container};
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Why there is nothing to profile.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No cgroups.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No container is called so, or several are.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No container runs.
    #[error("no container runs here: name a cgroup, such as /system.slice/web.service")]
    Nothing,
}

/// A container, or a cgroup that stands for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProfiledContainer {
    /// What people call it; the cgroup's path where there is no name.
    pub name: String,
    /// Path of its cgroup from the root of the hierarchy, with a leading slash.
    pub cgroup: String,
}

/// Where containers are looked for.
#[derive(Debug)]
pub struct ContainerSelector {
    root: Root,
    layout: CgroupLayout,
    discover: ContainerDiscovery,
    warnings: Warnings,
}

/// One cgroup of the walk.
struct WalkedCgroup {
    path: PathBuf,
    inode: u64,
    container: Option<ContainerIdentity>,
}

impl ContainerSelector {
    /// Finds the hierarchies. `plain` are patterns of cgroup paths that count as containers.
    ///
    /// # Errors
    /// No hierarchy is mounted.
    pub fn open(sources: &ContainerSources) -> Result<Self, SelectError> {
        let ContainerSources { patterns: plain, docker_root, containerd_state } = sources;
        let root = Root::host()?;
        let layout = CgroupLayout::detect(&root)?;
        let discover = ContainerDiscovery::new(&root, plain, docker_root.as_deref(), LabelPolicy::None)
            .with_containerd_state(containerd_state.as_deref());
        Ok(Self { root, layout, discover, warnings: Warnings::default() })
    }

    /// The controller in whose hierarchy cgroups are walked, and its version.
    pub fn hierarchy(&self) -> (CgroupController, CgroupVersion) {
        let controller = [CgroupController::Memory, CgroupController::Cpu, CgroupController::Cpuacct]
            .into_iter()
            .find(|controller| self.layout.index(*controller).is_some())
            .unwrap_or(CgroupController::Cpuacct);
        let version =
            self.layout.dir(controller, Path::new("")).map_or(CgroupVersion::V2, |(version, _)| version);
        (controller, version)
    }

    /// How cgroups are laid out here.
    pub fn layout(&self) -> &CgroupLayout {
        &self.layout
    }

    /// The containers that are meant: names, ids, beginnings of ids, paths of cgroups; all of them where none is named.
    ///
    /// # Errors
    /// One is not there or not the only one, or there is none at all.
    pub fn select(&mut self, wanted: &[String]) -> Result<Vec<ProfiledContainer>, SelectError> {
        let all = self.walk();
        if wanted.is_empty() {
            let found: Vec<ProfiledContainer> =
                all.iter().filter(|found| found.container.is_some()).map(subject).collect();
            return if found.is_empty() { Err(SelectError::Nothing) } else { Ok(found) };
        }
        let mut subjects = Vec::new();
        for name in wanted {
            let found = find_one(&all, name)?;
            if !subjects.contains(&found) {
                subjects.push(found);
            }
        }
        Ok(subjects)
    }

    /// Cgroups that are called as an engine calls its containers and are none, because a user made them: those of rootless engines, as
    /// far as no pattern names them or one in them. What is in a container or in one of these is left out.
    pub fn of_users(&mut self) -> Vec<PathBuf> {
        let mut users = Vec::new();
        let mut outermost: Option<PathBuf> = None;
        for WalkedCgroup { path, container, .. } in self.walk() {
            if outermost.as_ref().is_some_and(|outer| path.starts_with(outer)) {
                // crun has the processes and their limits in a cgroup of their own below.
                if container.is_some() && users.last() == outermost.as_ref() {
                    users.pop();
                }
                continue;
            }
            let is_users =
                container.is_none() && is_called_as_container(&path) && !self.layout.is_made_by_root(&path);
            if is_users {
                users.push(path.clone());
            }
            if is_users || container.is_some() {
                outermost = Some(path);
            }
        }
        users
    }

    /// The processes in a cgroup and below it, ascending; none where it is gone.
    pub fn processes(&mut self, cgroup: &str) -> Vec<i32> {
        let mut pids = Vec::new();
        for (path, _) in self.below(Path::new(cgroup.trim_start_matches('/')), 0) {
            let Some((_, dir)) = self.layout.dir(self.hierarchy().0, &path) else { continue };
            pids.extend(self.warnings.ok_or_warn(dir.processes(&self.root)).unwrap_or_default());
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The first process of a container ([`process::first_process_index`]); `None` where it is gone.
    pub fn first_process(&mut self, cgroup: &str) -> Option<i32> {
        let pids = self.processes(cgroup);
        process::first_process_index(&self.root, &pids).map(|at| pids[at])
    }

    /// The kernel's id of a cgroup; `None` when it is gone. One that is made anew under the same path has another.
    pub fn id(&self, cgroup: &str) -> Option<u64> {
        let path = Path::new(cgroup.trim_start_matches('/'));
        self.layout.dir(self.hierarchy().0, path)?.1.inode()
    }

    /// The kernel's id of every cgroup, and the place in `subjects` of the one that it is in or below.
    pub fn owners(&mut self, subjects: &[ProfiledContainer]) -> HashMap<u64, Option<usize>> {
        let place = |path: &Path| {
            let within =
                |subject: &ProfiledContainer| path.starts_with(subject.cgroup.trim_start_matches('/'));
            // The innermost counts, where one is inside another.
            let fitting = subjects.iter().enumerate().filter(|(_, subject)| within(subject));
            fitting.max_by_key(|(_, subject)| subject.cgroup.len()).map(|(place, _)| place)
        };
        self.below(Path::new(""), 1).into_iter().map(|(path, inode)| (inode, place(&path))).collect()
    }

    /// Every cgroup with what it is, parents first.
    fn walk(&mut self) -> Vec<WalkedCgroup> {
        let mut all: Vec<WalkedCgroup> = Vec::new();
        let mut inside: Vec<PathBuf> = Vec::new();
        for (path, inode) in self.below(Path::new(""), 1) {
            let within = inside.last().is_some_and(|outer| path.starts_with(outer));
            let found = self.discover.find_in(&self.root, &self.layout, &path, within);
            let container = self.warnings.ok_or_warn(found).flatten().map(|found| found.container);
            if container.is_some() && !within {
                inside.push(path.clone());
            }
            all.push(WalkedCgroup { path, inode, container });
        }
        all
    }

    /// A cgroup and all below it, depth first, with their inodes.
    fn below(&mut self, top: &Path, inode: u64) -> Vec<(PathBuf, u64)> {
        let controller = self.hierarchy().0;
        let mut found = Vec::new();
        let mut rest = vec![(top.to_path_buf(), inode)];
        while let Some((path, inode)) = rest.pop() {
            let Some((_, dir)) = self.layout.dir(controller, &path) else { break };
            let Some(mut children) = self.warnings.ok_or_warn(dir.children(usize::MAX)).flatten() else {
                continue;
            };
            children.sort_unstable_by(|a, b| b.cmp(a));
            rest.extend(children.into_iter().map(|(name, inode)| (path.join(name), inode)));
            found.push((path, inode));
        }
        found
    }
}

fn subject(found: &WalkedCgroup) -> ProfiledContainer {
    let cgroup = format!("/{}", found.path.display());
    let name = found.container.as_ref().map_or_else(|| cgroup.clone(), display_name);
    ProfiledContainer { name, cgroup }
}

fn find_one(all: &[WalkedCgroup], name: &str) -> Result<ProfiledContainer, SelectError> {
    let path = Path::new(name.trim_matches('/'));
    if name.starts_with('/')
        && let Some(found) = all.iter().find(|found| found.path == path && found.inode > 1)
    {
        return Ok(subject(found));
    }
    let containers: Vec<(&WalkedCgroup, &ContainerIdentity, String)> = all
        .iter()
        .filter_map(|found| {
            Some((found, found.container.as_ref()?, found.path.to_string_lossy().into_owned()))
        })
        .collect();
    let names: Vec<ContainerNames<'_>> =
        containers.iter().map(|(_, container, path)| container.names(path)).collect();
    Ok(subject(containers[find_container(&names, name)?].0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::container::ContainerEngine;
    use elbowroom_types::label::ContainerLabels;

    fn found(path: &str, inode: u64, id: Option<&str>, name: Option<&str>) -> WalkedCgroup {
        let container = id.map(|id| ContainerIdentity {
            id: id.to_owned(),
            name: name.map(str::to_owned),
            engine: ContainerEngine::Docker,
            pod: None,
            labels: ContainerLabels::default(),
        });
        WalkedCgroup { path: path.into(), inode, container }
    }

    #[test]
    fn containers_are_meant_by_name_id_beginning_or_path() {
        let all = [
            found("", 1, None, None),
            found("docker/abc123", 2, Some("abc123"), Some("web")),
            found("docker/abd456", 3, Some("abd456"), None),
            found("system.slice/x.service", 4, None, None),
        ];
        let name =
            |wanted: &str| find_one(&all, wanted).map(|subject| subject.name).map_err(|e| e.to_string());
        assert_eq!(name("web").as_deref(), Ok("web"));
        assert_eq!(name("abd").as_deref(), Ok("abd456"));
        assert_eq!(name("/docker/abc123").as_deref(), Ok("web"));
        assert_eq!(name("/system.slice/x.service/").as_deref(), Ok("/system.slice/x.service"));
        assert!(name("ab").unwrap_err().contains("2 containers"));
        for nobody in ["", "/", "nobody", "system.slice/x.service"] {
            assert!(name(nobody).unwrap_err().contains("no container"), "{nobody}");
        }
    }
}
