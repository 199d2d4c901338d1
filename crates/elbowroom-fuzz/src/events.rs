use elbowroom_types::sample::HostEvent;
use elbowroom_view::rules::{ViewRules, ViewTable};

/// Arbitrary bytes as a recording: what parses as events leads to views within their bounds, and to the same ones again.
pub fn run(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n');
    let events: Vec<HostEvent> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    for policy in [ViewRules::default(), ViewRules::paper()] {
        let (mut views, mut again) = (ViewTable::new(policy), ViewTable::new(policy));
        for event in &events {
            assert_eq!(views.apply(event), again.apply(event));
        }
        for (_, _, view) in views.containers() {
            assert!(view.cpus >= 1 && view.cpus <= view.cpus_upper.max(1));
            assert!(view.memory <= view.memory_hard);
        }
    }
}
