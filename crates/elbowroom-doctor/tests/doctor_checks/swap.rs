//! Swap. See `src/checks/swap.rs`.

use super::{GIB, MIB, Row, row};
use crate::doctor_host::Sim;
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Info, Warning};

/// Far below its limit, and a third of its memory is swapped out.
fn swapped(h: &mut Sim) {
    h.limit(512 * MIB);
    h.usage(100 * MIB);
    h.anon(90 * MIB);
    h.swap(50 * MIB)
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "swapped-by-host",
            V2,
            Warning,
            "echo ",
            |h| {
                swapped(h);
                h.swap_ins(1_000)
            },
            |h| h.set("memory.swap.max", "0"),
        ),
        row(
            "swapped-by-host",
            V1,
            Warning,
            "echo 1 > /sys/fs/cgroup/memory/docker/c1/memory.swappiness",
            |h| {
                swapped(h);
                h.swap_ins(1_000)
            },
            |h| h.set("memory.swappiness", "0"),
        ),
        row("swapped-by-host", V2, Info, "echo ", swapped, |h| h.swap(0)),
        row(
            "no-swap",
            V2,
            Info,
            "modprobe zram",
            |h| {
                h.meminfo("SwapTotal", 0);
                h.facts.host.managers.push("systemd-oomd".into())
            },
            |h| h.meminfo("SwapTotal", GIB),
        ),
        row(
            "swaps-at-own-limit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(128 * MIB);
                h.usage(127 * MIB);
                h.anon(120 * MIB);
                h.swap(50 * MIB);
                h.swap_ins(1_000);
                h.hits(50)
            },
            |h| h.swap_ins(1),
        ),
        row(
            "zswap-full",
            V2,
            Warning,
            "",
            |h| {
                h.host("/sys/module/zswap/parameters/enabled", "Y");
                h.meminfo("Zswap", 3 * GIB);
                h.vmstat("zswpwb", 5_000)
            },
            |h| h.meminfo("Zswap", GIB),
        ),
    ]
}
