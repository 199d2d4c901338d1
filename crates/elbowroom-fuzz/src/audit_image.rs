use elbowroom_audit::inventory::{AuditBounds, image};

/// Arbitrary bytes as an image's archive: an inventory within its bounds, or an error on one line.
pub fn run(data: &[u8]) {
    let bounds = AuditBounds { file: 1 << 16, total: 1 << 22, entries: 1000, layers: 8, json: 1 << 16 };
    match image::read_archive(data, "fuzz.tar", bounds) {
        Ok(inventory) => {
            assert!(inventory.files.keys().all(|path| path.starts_with('/') && !path.contains("/../")))
        }
        Err(error) => {
            assert!(error.to_string().starts_with("fuzz.tar") || error.to_string().contains("fuzz.tar"))
        }
    }
}
