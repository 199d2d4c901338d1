//! `elbowroom metrics`: everything the agent knows, as OpenMetrics text.

use crate::api::{
    AgentSnapshot, AgentStatus, AlertsReport, ContainerMemory, ContainerView, ControlRequest,
    ControlResponse, DisksReport, MemoryReport, ProbeView,
};
use crate::control::ControlClient;
use crate::number_format::{colour_name, disk_state as state};
use crate::output::{Format, OutputArgs, unexpected_response};
use anyhow::Result;
use elbowroom_govern::GovernorMode;
use elbowroom_govern::disk::{ContainerDiskStatus, DiskPolicy, DiskState, DiskView, HeldBy};
use elbowroom_govern::memory::lendable;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::metric;
use elbowroom_types::metric::MetricSet;
use elbowroom_types::probe::{Colour, Freshness, ProbeReport};
use elbowroom_types::unit::{Limit, Micros};
use elbowroom_types::verdict::VerdictStatus;
use std::path::Path;

/// `elbowroom metrics`.
pub fn metrics(run_dir: &Path, output: OutputArgs) -> Result<String> {
    let ControlResponse::Snapshot(snapshot) =
        ControlClient::connect(run_dir)?.request(&ControlRequest::Snapshot)?
    else {
        return unexpected_response();
    };
    match output.format {
        Format::Text => Ok(metrics_page(&snapshot).text()),
        Format::Data(data) => data.document(&metrics_page(&snapshot).families()),
    }
}

/// All that a snapshot says, as metrics.
pub fn metrics_page(snapshot: &AgentSnapshot) -> MetricSet {
    let mut page = MetricSet::default();
    agent_metrics(&mut page, &snapshot.status, &snapshot.disks);
    node_metrics(&mut page, snapshot);
    alert_metrics(&mut page, &snapshot.status, &snapshot.alerts);
    memory_metrics(&mut page, &snapshot.status, &snapshot.memory);
    snapshot.disks.disks.iter().for_each(|disk| disk_metrics(&mut page, disk));
    snapshot.containers.iter().for_each(|container| container_metrics(&mut page, container));
    page
}

fn agent_metrics(page: &mut MetricSet, status: &AgentStatus, report: &DisksReport) {
    page.add(&metric::AGENT, &[&status.version, &status.source], 1.0);
    page.add(&metric::CONTAINERS, &[], status.containers as f64);
    page.add(&metric::ATTACHED, &[], status.attached as f64);
    page.add(&metric::TICKS, &[], status.ticks as f64);
    page.add(&metric::TICKS_MISSED, &[], status.ticks_missed as f64);
    page.add(&metric::CPU_SECONDS, &[], as_seconds(Micros(status.cpu_usec)));
    if let Some(otlp) = &status.otlp {
        page.add(&metric::OTLP_PUSHES, &["pushed"], otlp.pushed as f64);
        page.add(&metric::OTLP_PUSHES, &["failed"], otlp.failed as f64);
    }
    let mode = mode_in_force(report.mode, report.not_enforced.as_ref());
    let policy = match report.policy {
        DiskPolicy::Aridac => "aridac",
        DiskPolicy::Lifeline => "lifeline",
    };
    page.add(&metric::DISK_MODE, &[mode, policy], 1.0);
    if report.mode != GovernorMode::Off {
        page.add(&metric::LIMITS_HELD, &[], status.disk.held as f64);
        page.add(&metric::LIMIT_WRITES, &["written"], status.disk.written as f64);
        page.add(&metric::LIMIT_WRITES, &["not_written"], status.disk.not_written as f64);
        page.add(&metric::DISK_TICK, &[], as_seconds(Micros(status.disk.tick_usec)));
    }
}

fn node_metrics(page: &mut MetricSet, snapshot: &AgentSnapshot) {
    let (node, statuses) = (&snapshot.node, snapshot.containers.iter().filter_map(|c| c.memory.as_ref()));
    page.add(&metric::NODE_CPUS, &[], f64::from(node.cpus));
    if let Some(used) = node.cpu_used_millicpu {
        page.add(&metric::NODE_CPUS_USED, &[], used as f64 / 1e3);
    }
    let machine = snapshot.memory.pools.iter().find(|pool| pool.path == "/");
    let free = machine.map(|pool| pool.free).or(node.memory_available).or(node.memory_free);
    let lendable = free.map(|free| lendable(free, statuses.map(|s| (s.reservation, s.usage))));
    let parts = [
        ("total", Some(node.memory_total)),
        ("used", node.memory_used()),
        ("reserved", machine.map(|pool| pool.reserved)),
        ("lendable", lendable),
    ];
    for (part, bytes) in parts {
        bytes.into_iter().for_each(|bytes| page.add(&metric::NODE_MEMORY, &[part], bytes.get() as f64));
    }
    if let Some(machine) = machine {
        page.add(&metric::NODE_SHORT, &[], f64::from(u8::from(machine.short)));
    }
}

fn alert_metrics(page: &mut MetricSet, status: &AgentStatus, report: &AlertsReport) {
    for kind in AlertKind::ALL {
        let lasting = report.lasting.iter().filter(|alert| alert.alert.kind == kind).count();
        let begun = report.begun.iter().find(|(of, _)| *of == kind).map_or(0, |(_, n)| *n);
        let kind = kind.to_string();
        page.add(&metric::ALERTS, &[&kind], lasting as f64);
        page.add(&metric::ALERTS_BEGUN, &[&kind], begun as f64);
    }
    for (n, receiver) in status.receivers.iter().enumerate() {
        // Two receivers may be the same program with other arguments: the number keeps them apart.
        let name = format!("{}:{}", n + 1, receiver.receiver);
        page.add(&metric::RECEIVERS, &[&name, "delivered"], receiver.delivered as f64);
        page.add(&metric::RECEIVERS, &[&name, "failed"], receiver.failed as f64);
        page.add(&metric::RECEIVERS, &[&name, "dropped"], receiver.dropped as f64);
        page.add(&metric::RECEIVERS, &[&name, "expired"], receiver.expired as f64);
    }
}

/// A mode as it is in force.
const fn mode_in_force(mode: GovernorMode, not_enforced: Option<&String>) -> &'static str {
    match (mode, not_enforced) {
        (GovernorMode::Off, _) => "off",
        (GovernorMode::Enforce, None) => "enforce",
        (GovernorMode::Observe, _) | (GovernorMode::Enforce, Some(_)) => "observe",
    }
}

fn memory_metrics(page: &mut MetricSet, status: &AgentStatus, report: &MemoryReport) {
    page.add(&metric::MEMORY_MODE, &[mode_in_force(report.mode, report.not_enforced.as_ref())], 1.0);
    if report.mode == GovernorMode::Off {
        return;
    }
    page.add(&metric::MEMORY_RECLAIMED, &[], status.memory.reclaimed_bytes as f64);
    page.add(&metric::MEMORY_ORDERS, &["done"], status.memory.done as f64);
    page.add(&metric::MEMORY_ORDERS, &["not_done"], status.memory.not_done as f64);
    page.add(&metric::MEMORY_TICK, &[], as_seconds(Micros(status.memory.tick_usec)));
    for pool in &report.pools {
        for (part, bytes) in [("size", pool.size), ("free", pool.free), ("reserved", pool.reserved)] {
            page.add(&metric::MEMORY_POOL, &[&pool.path, part], bytes.get() as f64);
        }
    }
    for ContainerMemory { container, status, .. } in &report.containers {
        let labels = [container.id.as_str(), container.name.as_deref().unwrap_or_default()];
        for (metric, value) in [
            (&metric::MEMORY_ENTITLEMENT, status.entitlement.get()),
            (&metric::MEMORY_MINIMUM, status.minimum.get()),
            (&metric::MEMORY_LENT, status.lent.get()),
            (&metric::MEMORY_FAILED, u64::from(status.failures)),
        ] {
            page.add(metric, &labels, value as f64);
        }
        if let Some(saving) = &status.saving {
            page.add(&metric::MEMORY_SAVED, &labels, saving.saved.get() as f64);
        }
        for each in [Colour::Red, Colour::Yellow, Colour::Green] {
            let is = f64::from(u8::from(each == status.colour));
            page.add(&metric::MEMORY_COLOUR, &[labels[0], labels[1], colour_name(each)], is);
        }
    }
}

fn disk_metrics(page: &mut MetricSet, disk: &DiskView) {
    let name = disk.name.as_str();
    let mut capacity = |metric, op, limit: Limit<u64>| {
        if let Limit::At(n) = limit {
            page.add(metric, &[name, op], n as f64);
        }
    };
    capacity(&metric::DISK_CAPACITY_BYTES, "read", disk.capacity.rbps);
    capacity(&metric::DISK_CAPACITY_BYTES, "write", disk.capacity.wbps);
    capacity(&metric::DISK_CAPACITY_OPS, "read", disk.capacity.riops);
    capacity(&metric::DISK_CAPACITY_OPS, "write", disk.capacity.wiops);
    page.add(&metric::DISK_USED, &[name], disk.used.unwrap_or(f64::NAN));
    page.add(&metric::DISK_PROMISED, &[name], disk.promised);
    page.add(&metric::DISK_QUEUE, &[name], disk.queue);
    page.add(&metric::DISK_WAIT, &[name], as_seconds(disk.wait));
    page.add(&metric::DISK_BASE_WAIT, &[name], as_seconds(disk.base_wait));
    for each in [DiskState::Free, DiskState::Guard, DiskState::Share, DiskState::Slow, DiskState::Inversion] {
        page.add(&metric::DISK_STATE, &[name, state(each)], f64::from(u8::from(each == disk.state)));
    }
}

fn container_metrics(page: &mut MetricSet, container: &ContainerView) {
    let labels = [container.id.as_str(), container.name.as_deref().unwrap_or_default()];
    let view = &container.view;
    for (metric, value) in [
        (&metric::CPU_EFFECTIVE, f64::from(view.cpus)),
        (&metric::CPU_LOWER, f64::from(view.cpus_lower)),
        (&metric::CPU_UPPER, f64::from(view.cpus_upper)),
        (&metric::CPU_USED, as_seconds(container.usage.cpu)),
        (&metric::MEMORY_EFFECTIVE, view.memory.get() as f64),
        (&metric::MEMORY_SOFT, view.memory_soft.get() as f64),
        (&metric::MEMORY_HARD, view.memory_hard.get() as f64),
        (&metric::MEMORY_USED, container.usage.memory.get() as f64),
    ] {
        page.add(metric, &labels, value);
    }
    for status in VerdictStatus::ALL {
        let is = f64::from(u8::from(status == container.verdict.status));
        page.add(&metric::VERDICT, &[labels[0], labels[1], status.name()], is);
    }
    container.probe.iter().for_each(|probe| probe_metrics(page, labels, probe));
    container.disk.iter().for_each(|status| disk_io_metrics(page, labels, status));
}

fn probe_metrics(page: &mut MetricSet, [id, container]: [&str; 2], probe: &ProbeView) {
    for each in [Freshness::Fresh, Freshness::Stale, Freshness::Absent] {
        let is = f64::from(u8::from(each == probe.freshness));
        page.add(&metric::PROBE_STATE, &[id, container, each.name()], is);
    }
    page.add(&metric::PROBE_RECORDS, &[id, container, "accepted"], probe.accepted as f64);
    page.add(&metric::PROBE_RECORDS, &[id, container, "refused"], probe.refused as f64);
    if probe.freshness != Freshness::Fresh {
        return;
    }
    let Some(ProbeReport::Measure(measure)) = probe.report else { return };
    page.add(&metric::PROBE_SERVED, &[id, container], measure.served);
    page.add(&metric::PROBE_OBJECTIVE, &[id, container], measure.objective.unwrap_or(f64::NAN));
}

fn disk_io_metrics(page: &mut MetricSet, [id, container]: [&str; 2], status: &ContainerDiskStatus) {
    let disk = status.name.as_str();
    for (metric, op, value) in [
        (&metric::IO_BYTES, "read", status.rbps),
        (&metric::IO_BYTES, "write", status.wbps),
        (&metric::IO_OPS, "read", status.riops),
        (&metric::IO_OPS, "write", status.wiops),
    ] {
        page.add(metric, &[id, container, disk, op], value as f64);
    }
    for (metric, value) in [
        (&metric::IO_USED, status.used),
        (&metric::IO_LIFELINE, status.lifeline),
        (&metric::IO_CAP, status.cap),
    ] {
        page.add(metric, &[id, container, disk], value.unwrap_or(f64::NAN));
    }
    page.add(&metric::IO_ENFORCED, &[id, container, disk], f64::from(u8::from(status.enforced)));
    let by = match status.held_by {
        HeldBy::Nothing => return,
        HeldBy::Cap => "cap",
        HeldBy::User => "user",
        HeldBy::Others => "others",
        HeldBy::Disk => "disk",
    };
    page.add(&metric::IO_HELD, &[id, container, disk, by], 1.0);
}

fn as_seconds(time: Micros) -> f64 {
    time.get() as f64 / 1e6
}
