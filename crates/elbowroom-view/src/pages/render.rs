//! From a node of the tree to its bytes.
//!
//! # Approach
//! A file keeps its size for as long as its container lives: kernel and readers cache it (a size that changes under a reader
//! tears or cuts what it reads). So pages are written in lines of constant length, and a file's size is the length of its
//! page with every possible CPU online. What is left over at the end is filled up; what a host that changed has too much of
//! is cut at the end of a line ([`super::text`]).
//!
//! # Properties (tested in `tests/pages.rs`)
//! - `a_page_has_exactly_its_size_whatever_the_host_says`
//! - `size_depends_on_possible_cpus_only`

use super::facts::{CpuTimes, Facts};
use super::files::Form;
use super::text::{Pad, fit};
use super::tree::Node;
use super::{cpuinfo, cpulist, diskstats, limits, loadavg, meminfo, node, pressure, stat, swaps, uptime};
use super::{vmstat, zoneinfo};
use elbowroom_types::unit::Micros;

/// The size of a file in bytes: constant for all facts with the same possible CPUs and NUMA nodes, and the same host.
/// `host` is the text of [`super::tree::host_path`], or empty. 0 for a directory, and for a file that the host has no text
/// for.
pub fn size(node: Node, facts: &Facts, host: &str) -> u32 {
    let possible = facts.shown_possible();
    let bytes = match node {
        Node::CpuMax => limits::CPU_MAX_SIZE as usize,
        _ if node.parent() == Node::Cgroup => limits::NUMBER_SIZE as usize,
        Node::CpuOnline | Node::CpuPossible | Node::CpuPresent | Node::CpuEnabled => {
            cpulist::list_size(&possible)
        }
        Node::CpuOffline => cpulist::tail_list_size(&possible),
        Node::NumaHasCpu | Node::NumaHasMemory => node::list_size(host),
        Node::CpufreqBoost | Node::SmtActive => 2,
        _ => match node.form() {
            Some(Form::Value(bytes)) => bytes as usize,
            _ => {
                let widest = Facts { online: possible, ..*facts };
                text(node, &widest, &[], host, Micros::ZERO).len()
            }
        },
    };
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The content of a file, in exactly `size` bytes, of which the last is a newline. `times` goes by CPU
/// number, `host` is the text of [`super::tree::host_path`] as it is now, `now` is the boot clock. Never
/// panics: text it does not understand is left out.
pub fn render(node: Node, facts: &Facts, times: &[CpuTimes], host: &str, now: Micros, size: u32) -> Vec<u8> {
    fit(&text(node, facts, times, host, now), size, pad(node))
}

fn pad(node: Node) -> Pad {
    let table = match node {
        Node::NumaFile(..) => {
            matches!(node.form(), Some(Form::NodeMeminfo | Form::NodeVmstat | Form::NodeNumastat))
        }
        _ => matches!(node.parent(), Node::Proc | Node::Pressure),
    };
    if table { Pad::Spaces } else { Pad::Newlines }
}

fn text(node: Node, facts: &Facts, times: &[CpuTimes], host: &str, now: Micros) -> String {
    let line = |n: u64| format!("{n}\n");
    let (online, possible) = (facts.shown_online(), facts.shown_possible());
    match node {
        Node::Cpuinfo => cpuinfo::text(facts, host),
        Node::Diskstats => diskstats::text(facts, host),
        Node::Loadavg => loadavg::text(facts),
        Node::Meminfo => meminfo::text(facts, host),
        Node::PressureCpu => pressure::text(facts, 0, host),
        Node::PressureIo => pressure::text(facts, 1, host),
        Node::PressureMemory => pressure::text(facts, 2, host),
        Node::Stat => stat::text(facts, times, host),
        Node::Swaps => swaps::text(facts, host),
        Node::Uptime => uptime::text(facts, times, now),
        Node::Vmstat => vmstat::text(facts, host),
        Node::Zoneinfo => zoneinfo::text(facts, host),

        Node::CpuOnline => format!("{online}\n"),
        Node::CpuPossible | Node::CpuPresent | Node::CpuEnabled => format!("{possible}\n"),
        Node::CpuOffline => format!("{}\n", possible.minus(&online)),
        Node::CpuIsolated => cpulist::list(host, &possible),
        Node::CpuKernelMax | Node::CpuModalias | Node::CpuUevent | Node::Vulnerability(_) => own_line(host),
        Node::CpufreqBoost | Node::SmtActive | Node::SmtControl => own_line(host),

        Node::NumaHasCpu => node::list(host, &facts.cpu_nodes),
        Node::NumaHasMemory => node::list(host, &facts.mems),
        Node::NumaHasGenericInitiator | Node::NumaHasNormalMemory | Node::NumaOnline | Node::NumaPossible => {
            own_line(host)
        }

        Node::CpuCfsPeriodUs => line(limits::period(facts)),
        Node::CpuCfsQuotaUs => line(limits::quota(facts)),
        Node::CpuMax => limits::cpu_max(facts),
        Node::CpuShares => line(facts.cpu_share),
        Node::MemoryHigh => line(limits::memory_high(facts, host)),
        Node::MemoryLimitInBytes | Node::MemoryMax => line(limits::memory_max(facts, host)),
        Node::MemorySoftLimitInBytes => line(limits::soft_limit(facts, host)),

        Node::CpuFile(n, ..) | Node::NumaFile(n, _) => {
            let n = u32::from(n);
            match node.form() {
                Some(Form::Text | Form::Value(_)) => own_line(host),
                Some(Form::Mask) => cpulist::mask(host, &possible),
                Some(Form::List) => cpulist::list(host, &possible),
                Some(Form::Online) => line(u64::from(online.contains(n))),
                Some(Form::OnlineMask) => cpulist::mask(host, &online),
                Some(Form::OnlineList) => cpulist::list(host, &online),
                Some(Form::NodeMeminfo) => node::meminfo(facts, n, host),
                Some(Form::NodeVmstat) => node::vmstat(facts, n, host),
                Some(Form::NodeNumastat) => node::numastat(host),
                None => String::new(),
            }
        }
        _ => String::new(),
    }
}

/// The host's text with the newline it ends with, or ought to.
fn own_line(host: &str) -> String {
    if host.is_empty() || host.ends_with('\n') { host.to_owned() } else { format!("{host}\n") }
}
