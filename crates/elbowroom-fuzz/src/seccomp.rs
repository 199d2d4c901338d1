use elbowroom_agent::engines::oci::seccomp::add_listener;
use elbowroom_agent::seccomp::parse_process_state;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::mapped;
use elbowroom_view::pages::syscalls::{HostSysinfo, affinity, mask_bytes, sysinfo};
use serde_json::Value;
use std::path::Path;

/// Arbitrary bytes as what a runtime says to the keeper, as an OCI configuration, and as a view page: nothing panics, a policy only ever
/// waits where it allowed, and answers are part of the truth.
pub fn run(data: &[u8]) {
    if let Ok((id, pid, _)) = parse_process_state(data) {
        assert!(!id.is_empty() && pid > 1);
    }
    if let Ok(mut config) = serde_json::from_slice::<Value>(data) {
        let before = config.clone();
        if add_listener(&mut config, Path::new("/k")).is_ok() {
            assert!(add_listener(&mut config, Path::new("/k")).is_err(), "only once");
            let waits = |config: &Value| config.to_string().matches("SCMP_ACT_NOTIFY").count();
            assert!(waits(&config) > waits(&before));
        }
    }
    if let Some(view) = mapped::read(data) {
        let mask = CpuSet::first_n(70);
        if let Some(shown) = affinity(&mask, &view, data.len() as u64) {
            assert_eq!(shown.intersection(&mask), shown);
            assert_eq!(mask_bytes(&shown, 128).len(), 16);
        }
        sysinfo(&view, &HostSysinfo::default(), Micros(5));
    }
}
