//! Arbitrary bytes as every kind of file an audit looks at: evidence or none, a judgement of it, no panic.
#![no_main]

use elbowroom_audit::rules::evidence::Inventory;
use elbowroom_audit::rules::judge::judge;
use elbowroom_audit::rules::source::Cgroup;
use elbowroom_audit::inventory::{Bounds, candidate};
use libfuzzer_sys::fuzz_target;

const PATHS: [&str; 7] = [
    "/usr/bin/program",
    "/opt/jdk/release",
    "/etc/nginx/nginx.conf",
    "/etc/uwsgi.ini",
    "/etc/my.cnf",
    "/app/app.runtimeconfig.json",
    "/usr/lib/python3/joblib-1.0.dist-info/METADATA",
];

fuzz_target!(|data: &[u8]| {
    let mut inventory = Inventory::default();
    let (mut kept, bounds) = (Vec::new(), Bounds { file: 1 << 20, ..Bounds::default() });
    for path in PATHS {
        let seen = candidate::look(path, data.len() as u64, data, &bounds, &mut kept, &mut inventory.skipped);
        let seen = seen.expect("memory is read without errors");
        inventory.files.extend(seen.map(|evidence| (path.to_owned(), evidence)));
    }
    for cgroup in [Cgroup::V1, Cgroup::V2] {
        let report = judge("fuzz", &inventory, cgroup);
        assert!(report.findings.iter().all(|f| f.cpu.views <= f.cpu.limits), "a view made it worse: {report:?}");
        serde_json::to_string(&report).expect("a report can be written");
    }
});
