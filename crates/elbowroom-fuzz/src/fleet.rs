use elbowroom::fleet::reading::{NodeReading, read};

/// Arbitrary bytes as the snapshot of an agent: nothing panics, and whatever room it says there is, placing containers never makes more
/// of it.
pub fn run(data: &[u8]) {
    let Ok(reading) = read(data) else { return };
    crate::room::never_grows(&reading);
    let back = serde_json::to_vec(&reading).expect("numbers and words");
    assert!(serde_json::from_slice::<NodeReading>(&back).is_ok());
}
