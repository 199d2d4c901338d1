//! From a node of the tree to its bytes.
//!
//! # Approach
//! A file keeps its size for as long as its container lives: kernel and readers cache it (a size that changes under a reader
//! tears or cuts what it reads). So pages are written in lines of constant length, and a file's size is the length of its
//! page with every present CPU online. What is left over at the end is filled up; what a host that changed has too much of
//! is cut at the end of a line ([`super::text`]).
//!
//! # Properties (tested in `tests/pages.rs`)
//! - `a_page_has_exactly_its_size_whatever_the_host_says`
//! - `size_depends_on_possible_cpus_only`

use super::files::FileFormat;
use super::snapshot::{ContainerSnapshot, CpuTimes};
use super::text::{Padding, fit};
use super::{
    cgroups, cpuinfo, cpulist, diskstats, limits, loadavg, meminfo, node, pressure, stat, swaps, uptime,
    vmstat, zoneinfo,
};
use crate::pages::view_node::ViewNode;
use elbowroom_types::unit::Micros;

/// The size of a file in bytes: constant for all facts with the same present and possible CPUs and NUMA nodes, and the same host.
/// `host` is the text of [`super::tree::host_path`], or empty. 0 for a directory, and for a file that the host has no text
/// for.
pub fn size(node: ViewNode, facts: &ContainerSnapshot, host: &str) -> u32 {
    let present = facts.shown_present();
    let bytes = match node {
        ViewNode::CpuMax => limits::CPU_MAX_SIZE as usize,
        _ if node.parent() == ViewNode::Cgroup => limits::NUMBER_SIZE as usize,
        ViewNode::CpuOnline | ViewNode::CpuPresent | ViewNode::CpuEnabled => cpulist::list_size(&present),
        ViewNode::CpuPossible => cpulist::list_size(&facts.shown_possible()),
        ViewNode::CpuOffline => cpulist::tail_list_size(&present),
        ViewNode::NumaHasCpu | ViewNode::NumaHasMemory => node::list_size(host),
        ViewNode::CpufreqBoost | ViewNode::SmtActive => 2,
        _ => match node.file_format() {
            Some(FileFormat::Value(bytes)) => bytes as usize,
            _ => {
                let widest = ContainerSnapshot { online: present, ..*facts };
                text(node, &widest, &[], host, Micros::ZERO).len()
            }
        },
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Whether a file may be longer with fewer CPUs: `0,2,4` is longer than `0-5`. [`size`] of any other is at most what it is with more
/// present and possible CPUs and NUMA nodes.
pub fn is_cpu_list(node: ViewNode) -> bool {
    matches!(
        node,
        ViewNode::CpuOnline
            | ViewNode::CpuOffline
            | ViewNode::CpuPossible
            | ViewNode::CpuPresent
            | ViewNode::CpuEnabled
            | ViewNode::CpuIsolated
    ) || matches!(node.file_format(), Some(FileFormat::List | FileFormat::OnlineList))
}

/// The content of a file, in exactly `size` bytes, of which the last is a newline. `times` goes by CPU
/// number, `host` is the text of [`super::tree::host_path`] as it is now, `now` is the boot clock. Never
/// panics: text it does not understand is left out.
pub fn render(
    node: ViewNode,
    facts: &ContainerSnapshot,
    times: &[CpuTimes],
    host: &str,
    now: Micros,
    size: u32,
) -> Vec<u8> {
    fit(&text(node, facts, times, host, now), size, padding(node))
}

fn padding(node: ViewNode) -> Padding {
    let table = match node {
        ViewNode::NumaFile(..) => {
            matches!(
                node.file_format(),
                Some(FileFormat::NodeMeminfo | FileFormat::NodeVmstat | FileFormat::NodeNumastat)
            )
        }
        _ => matches!(node.parent(), ViewNode::Proc | ViewNode::Pressure),
    };
    if table { Padding::Spaces } else { Padding::Newlines }
}

fn text(node: ViewNode, facts: &ContainerSnapshot, times: &[CpuTimes], host: &str, now: Micros) -> String {
    let line = |n: u64| format!("{n}\n");
    let (online, present) = (facts.shown_online(), facts.shown_present());
    match node {
        ViewNode::Cgroups => cgroups::text(host),
        ViewNode::Cpuinfo => cpuinfo::text(facts, host),
        ViewNode::Diskstats => diskstats::text(facts, host),
        ViewNode::Loadavg => loadavg::text(facts),
        ViewNode::Meminfo => meminfo::text(facts, host),
        ViewNode::PressureCpu | ViewNode::PressureIo | ViewNode::PressureMemory => {
            pressure::text(facts, node.pressure_index().unwrap_or(0), host)
        }
        ViewNode::Stat => stat::text(facts, times, host),
        ViewNode::Swaps => swaps::text(facts, host),
        ViewNode::Uptime => uptime::text(times, now),
        ViewNode::Vmstat => vmstat::text(facts, host),
        ViewNode::Zoneinfo => zoneinfo::text(facts, host),

        ViewNode::CpuOnline => format!("{online}\n"),
        ViewNode::CpuPossible => format!("{}\n", facts.shown_possible()),
        ViewNode::CpuPresent | ViewNode::CpuEnabled => format!("{present}\n"),
        ViewNode::CpuOffline => format!("{}\n", present.difference(&online)),
        ViewNode::CpuIsolated => cpulist::list(host, &present),
        ViewNode::CpuKernelMax | ViewNode::CpuModalias | ViewNode::CpuUevent | ViewNode::Vulnerability(_) => {
            ensure_newline(host)
        }
        ViewNode::CpufreqBoost | ViewNode::SmtActive | ViewNode::SmtControl => ensure_newline(host),

        ViewNode::NumaHasCpu => node::list(host, &facts.cpu_nodes),
        ViewNode::NumaHasMemory => node::list(host, &facts.mems),
        ViewNode::NumaHasGenericInitiator
        | ViewNode::NumaHasNormalMemory
        | ViewNode::NumaOnline
        | ViewNode::NumaPossible => ensure_newline(host),

        ViewNode::CpuCfsPeriodUs => line(limits::period(facts)),
        ViewNode::CpuCfsQuotaUs => line(limits::quota(facts)),
        ViewNode::CpuMax => limits::cpu_max(facts),
        ViewNode::CpuShares => line(facts.cpu_share),
        ViewNode::MemoryHigh => line(limits::memory_high(facts, host)),
        ViewNode::MemoryLimitInBytes | ViewNode::MemoryMax => line(limits::memory_max(facts, host)),
        ViewNode::MemorySoftLimitInBytes => line(limits::soft_limit(facts, host)),

        ViewNode::CpuFile(n, ..) | ViewNode::NumaFile(n, _) | ViewNode::HugepageFile(n, ..) => {
            let n = u32::from(n);
            match node.file_format() {
                Some(FileFormat::Text | FileFormat::Value(_)) => ensure_newline(host),
                Some(FileFormat::Mask) => cpulist::mask(host, &present),
                Some(FileFormat::List) => cpulist::list(host, &present),
                Some(FileFormat::Words) => cpulist::words(host, &present),
                Some(FileFormat::Online) => line(u64::from(online.contains(n))),
                Some(FileFormat::OnlineMask) => cpulist::mask(host, &online),
                Some(FileFormat::OnlineList) => cpulist::list(host, &online),
                Some(FileFormat::NodeMeminfo) => node::meminfo(facts, n, host),
                Some(FileFormat::NodeVmstat) => node::vmstat(facts, n, host),
                Some(FileFormat::NodeNumastat) => node::numastat(host),
                // Of a link nothing but its target is asked.
                Some(FileFormat::Link(_)) | None => String::new(),
            }
        }
        _ => String::new(),
    }
}

/// The host's text with the newline it ends with, or ought to.
fn ensure_newline(host: &str) -> String {
    if host.is_empty() || host.ends_with('\n') { host.to_owned() } else { format!("{host}\n") }
}
