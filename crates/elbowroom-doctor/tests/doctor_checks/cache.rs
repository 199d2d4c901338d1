//! Page cache that containers lose. See `src/checks/cache.rs`.

use super::{GIB, MIB, Row, row};
use elbowroom_doctor::checks::ControllerVersion::{V1, V2};
use elbowroom_types::finding::Severity::{Info, Warning};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row(
            "anon-evicts-cache",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(200 * MIB);
                h.hits(50);
                h.refaults(5_000)
            },
            |h| h.refaults(50),
        ),
        row(
            "anon-evicts-cache",
            V1,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(200 * MIB);
                h.hits(50);
                h.refaults(5_000)
            },
            |h| h.usage(128 * MIB),
        ),
        row(
            "cache-does-not-fit",
            V2,
            Warning,
            "docker update --memory ",
            |h| {
                h.limit(256 * MIB);
                h.usage(255 * MIB);
                h.anon(50 * MIB);
                h.hits(50);
                h.refaults(5_000);
                h.waits(1, 3_000)
            },
            |h| h.waits(1, 0),
        ),
        row(
            "cache-stolen",
            V2,
            Warning,
            "echo ",
            |h| {
                h.limit(512 * MIB);
                h.usage(200 * MIB);
                h.refaults(5_000);
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.vmstat("pgsteal_kswapd", 10),
        ),
        row(
            "cache-stolen",
            V1,
            Warning,
            "docker update --memory-reservation ",
            |h| {
                h.limit(512 * MIB);
                h.usage(200 * MIB);
                h.refaults(5_000);
                h.vmstat("allocstall_normal", 500)
            },
            |h| h.usage(500 * MIB),
        ),
        row(
            "host-jobs-unbounded",
            V2,
            Warning,
            "",
            |h| {
                h.root(7 * GIB);
                h.vmstat("pgsteal_kswapd", 50_000)
            },
            |h| h.root(GIB),
        ),
        row(
            "working-set-is-cache",
            V2,
            Info,
            "",
            |h| {
                h.limit(100 * MIB);
                h.usage(90 * MIB);
                h.active_file(60 * MIB)
            },
            |h| h.active_file(10 * MIB),
        ),
    ]
}
