use elbowroom_audit::inventory::engine::read_response_head;
use elbowroom_profile::engine::docker::{error_message, split_response};
use elbowroom_linux::bounded::{self, LineReader};

/// Arbitrary bytes as what an engine answers over HTTP: a body is the end of it, and what it says is one short line.
pub fn run(data: &[u8]) {
    let mut answer = LineReader::new(data, 1 << 20);
    if read_response_head(&mut answer).is_ok() {
        let rest = bounded::beginning(answer, 1 << 20).expect("memory is read");
        assert!(data.ends_with(&rest));
        assert!(data[..data.len() - rest.len()].contains(&b' '), "a status stands behind a blank");
    }
    if let Some((status, body)) = split_response(data) {
        assert!(data.ends_with(&body) && data[..data.len() - body.len()].ends_with(b"\r\n\r\n"));
        let said = error_message(status, &body);
        assert!(said.chars().count() <= 400 && !said.contains(char::is_control), "{said:?}");
    }
}
