use elbowroom_linux::lease::LeaseRecord;
use elbowroom_types::unit::Limit;
use std::path::Path;

/// Arbitrary files in the ledger of leases, and arbitrary text in the files they speak of: nothing panics, and what is taken
/// for a record names a plain file below an absolute directory and comes out of its own bytes the same.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (name, record, text) = (String::from_utf8_lossy(part()), part(), String::from_utf8_lossy(part()));
    let Ok(record) = LeaseRecord::parse(&name, record) else { return };
    assert!(record.knob.dir.is_absolute());
    assert_eq!(Path::new(&record.knob.file).components().count(), 1);
    assert!(!record.knob.file.starts_with('.') && !record.knob.file.contains('/'));
    let again = serde_json::to_vec(&record).expect("it was JSON");
    assert_eq!(LeaseRecord::parse(&name, &again).expect("it was one"), record);
    if let Ok(Limit::At(n)) = record.knob.parse_value(&text) {
        assert!(text.contains(&n.to_string()), "{n} is from nowhere");
    }
}
