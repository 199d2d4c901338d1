/// Arbitrary bytes as a recording that is replayed: no panic whatever its rules, numbers that add up, and the same again.
pub fn run(data: &[u8]) {
    let Ok(verdict) = elbowroom::replay_recording(data, "fuzz") else { return };
    let lines = data.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    assert!(verdict.events + verdict.changes + verdict.orders < lines, "{verdict:?}");
    assert!(verdict.ticks + verdict.disk_ticks <= verdict.events, "{verdict:?}");
    assert!(verdict.differences.len() as u64 <= verdict.different, "{verdict:?}");
    assert_eq!(elbowroom::replay_recording(data, "fuzz").ok(), Some(verdict));
}
