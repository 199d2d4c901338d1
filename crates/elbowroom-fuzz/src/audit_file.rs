use elbowroom_audit::inventory::{AuditBounds, file_evidence};
use elbowroom_audit::rules::evidence::Inventory;
use elbowroom_audit::rules::source::CgroupInterface;
use elbowroom_audit::rules::verdict::assess;

const PATHS: [&str; 7] = [
    "/usr/bin/program",
    "/opt/jdk/release",
    "/etc/nginx/nginx.conf",
    "/etc/uwsgi.ini",
    "/etc/my.cnf",
    "/app/app.runtimeconfig.json",
    "/usr/lib/python3/joblib-1.0.dist-info/METADATA",
];

/// Arbitrary bytes as every kind of file an audit looks at: evidence or none, a judgement of it, no panic.
pub fn run(data: &[u8]) {
    let mut inventory = Inventory::default();
    let (mut kept, bounds) = (Vec::new(), AuditBounds { file: 1 << 20, ..AuditBounds::default() });
    for path in PATHS {
        let seen =
            file_evidence::examine(path, data.len() as u64, data, &bounds, &mut kept, &mut inventory.skipped);
        let seen = seen.expect("memory is read without errors");
        inventory.files.extend(seen.map(|evidence| (path.to_owned(), evidence)));
    }
    for cgroup in [CgroupInterface::V1, CgroupInterface::V2] {
        let report = assess("fuzz", &inventory, cgroup);
        assert!(
            report.findings.iter().all(|f| f.cpu.views <= f.cpu.limits),
            "a view made it worse: {report:?}"
        );
        serde_json::to_string(&report).expect("a report can be written");
    }
}
