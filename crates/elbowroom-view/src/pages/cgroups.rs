//! `/proc/cgroups` (kernel/cgroup/cgroup-v1.c `proc_cgroupstats_show`).
//!
//! | field | shown |
//! |---|---|
//! | subsys_name, hierarchy, enabled | host; a controller that a runtime looks for and the host does not list has hierarchy 0, enabled 1 |
//! | num_cgroups | 1: the host's counts its containers |
//!
//! Kernels built without the controllers of cgroup v1 do not list `memory` and `cpuset` here (6.12, for all since commit
//! af000ce85293), whatever cgroup v2 offers. HotSpot before JDK 25 decides by this file whether it is in a container
//! (`CgroupSubsystemFactory::determine_type`; JDK-8349988), and takes the machine's CPUs and memory where one of four is not
//! enabled. Hierarchy 0 stands for cgroup v2.

/// What HotSpot requires.
const REQUIRED: [&str; 4] = ["cpuset", "cpu", "cpuacct", "memory"];

/// The page, from the host's text.
pub(super) fn text(host: &str) -> String {
    let rows: Vec<[&str; 3]> = host.lines().filter(|line| !line.starts_with('#')).filter_map(row).collect();
    let listed = |name: &&str| !rows.iter().any(|row| row[0] == *name);
    let missing = REQUIRED.iter().filter(|name| listed(name)).map(|name| [*name, "0", "1"]);
    let mut out = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n".to_owned();
    for [name, hierarchy, enabled] in rows.iter().copied().chain(missing) {
        out.push_str(&format!("{name}\t{hierarchy}\t1\t{enabled}\n"));
    }
    out
}

/// Name, hierarchy and enabled.
fn row(line: &str) -> Option<[&str; 3]> {
    let mut words = line.split_ascii_whitespace();
    let (name, hierarchy) = (words.next()?, words.next()?);
    words.nth(1).map(|enabled| [name, hierarchy, if enabled == "0" { "0" } else { "1" }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(host: &str) -> Vec<String> {
        text(host).lines().skip(1).map(|line| line.replace('\t', " ")).collect()
    }

    #[test]
    fn what_the_host_lists_is_the_hosts() {
        let host = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\ncpu\t1\t9\t1\n\
                    cpuacct\t2\t1\t1\nmemory\t4\t36\t0\npids\t8\t1\t1\n";
        assert_eq!(rows(host), ["cpuset 3 1 1", "cpu 1 1 1", "cpuacct 2 1 1", "memory 4 1 0", "pids 8 1 1"]);
        assert!(text(host).starts_with("#subsys_name\thierarchy\tnum_cgroups\tenabled\n"));
    }

    #[test]
    fn controllers_that_a_runtime_requires_are_listed_where_the_kernel_leaves_them_out() {
        assert_eq!(
            rows("cpu\t0\t70\t1\ncpuacct\t0\t70\t1\n"),
            ["cpu 0 1 1", "cpuacct 0 1 1", "cpuset 0 1 1", "memory 0 1 1"]
        );
        assert_eq!(rows("noise\n").len(), REQUIRED.len());
    }
}
