//! Alerts as entries of systemd's journal, with fields to filter by: `journalctl ELBOWROOM_KIND=STARVED`.
//!
//! One datagram per entry (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>). An alert is far smaller than what a datagram holds, so
//! the protocol's other way, a sealed memory file, is not needed.

use super::AlertNotice;
use elbowroom_types::finding::Severity;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

/// Where journald listens.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";
/// `MESSAGE_ID` of a beginning and of an end, made once by `journalctl --new-id128`'s rule: random.
const BEGAN_MESSAGE_ID: &str = "6f1c7a2fb5e94d0c8a3b1d94e27f5c60";
const ENDED_MESSAGE_ID: &str = "b83d90e1c6474f5f9d2a7e05a1c84b3e";
/// Longest value of a field; a datagram holds `net.core.wmem_max`, 208 KiB by default.
const MAX_FIELD_BYTES: usize = 16 << 10;
/// How long a journald that does not read is waited for.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes one entry.
pub(super) fn send(socket: &Path, notice: &AlertNotice) -> io::Result<()> {
    let datagrams = UnixDatagram::unbound()?;
    datagrams.set_write_timeout(Some(SEND_TIMEOUT))?;
    datagrams.send_to(&entry(notice), socket).map(drop)
}

/// Writes one sentence about a container, if journald takes it at once: for callers that must not wait.
pub(crate) fn send_sentence(sentence: &str, container: &str) -> io::Result<()> {
    let datagrams = UnixDatagram::unbound()?;
    datagrams.set_nonblocking(true)?;
    let mut entry = Vec::new();
    for (name, value) in [
        ("MESSAGE", sentence),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "elbowroom"),
        ("ELBOWROOM_CONTAINER_ID", container),
    ] {
        push_field(&mut entry, name, value);
    }
    datagrams.send_to(&entry, SOCKET).map(drop)
}

/// The entry as the protocol has it.
fn entry(notice: &AlertNotice) -> Vec<u8> {
    let view = &notice.alert;
    let alert = &view.alert;
    let ended = alert.until.is_some();
    let container = view.container.as_ref();
    let label = container.map(|c| c.name.clone().unwrap_or_else(|| c.id.clone()));
    let about: Vec<String> = view.disk_name.iter().cloned().chain(label.clone()).collect();
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    let message = match ended {
        false => format!("{}{about}: {}", alert.kind, alert.text),
        true => format!("{}{about} is over: {}", alert.kind, alert.text),
    };
    // Of syslog(3): what is over is news, not a problem.
    let priority = match (ended, alert.severity) {
        (true, _) => 6,
        (false, Severity::Critical) => 2,
        (false, Severity::Warning) => 4,
        (false, Severity::Info) => 5,
    };
    let mut entry = Vec::new();
    let mut field = |name: &str, value: &str| push_field(&mut entry, name, value);
    field("MESSAGE", &message);
    field("MESSAGE_ID", if ended { ENDED_MESSAGE_ID } else { BEGAN_MESSAGE_ID });
    field("PRIORITY", &priority.to_string());
    field("SYSLOG_IDENTIFIER", "elbowroom");
    field("ELBOWROOM_KIND", &alert.kind.to_string());
    field("ELBOWROOM_STATE", notice.state);
    field("ELBOWROOM_SEVERITY", &format!("{:?}", alert.severity).to_lowercase());
    field("ELBOWROOM_SINCE", &view.since_unix_ms.to_string());
    for (name, value) in [
        ("ELBOWROOM_TOPIC", alert.topic.as_deref()),
        ("ELBOWROOM_DISK", view.disk_name.as_deref()),
        ("ELBOWROOM_CONTAINER", label.as_deref()),
        ("ELBOWROOM_CONTAINER_ID", container.map(|c| c.id.as_str())),
        ("ELBOWROOM_CGROUP", container.map(|c| c.path.as_str())),
    ] {
        value.into_iter().for_each(|value| field(name, value));
    }
    let evidence: Vec<String> = alert.evidence.iter().map(|e| format!("{} = {}", e.file, e.value)).collect();
    if !evidence.is_empty() {
        field("ELBOWROOM_EVIDENCE", &evidence.join("\n"));
    }
    entry
}

/// `NAME=value`; a value of several lines has its length before it, little endian.
fn push_field(entry: &mut Vec<u8>, name: &str, value: &str) {
    let value = &value.as_bytes()[..value.len().min(MAX_FIELD_BYTES)];
    entry.extend(name.as_bytes());
    if value.contains(&b'\n') {
        entry.push(b'\n');
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend(value);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::api::{AlertView, ContainerRef};
    use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
    use elbowroom_types::finding::FindingEvidence;
    use elbowroom_types::unit::Micros;
    use std::collections::BTreeMap;

    /// What journald makes of a datagram (`journald-native.c`, `server_process_entry`).
    fn parsed(mut entry: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|byte| *byte == b'\n').unwrap();
            let line = std::str::from_utf8(&entry[..end]).unwrap();
            entry = &entry[end + 1..];
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let length = u64::from_le_bytes(entry[..8].try_into().unwrap()) as usize;
                    let value = String::from_utf8(entry[8..8 + length].to_vec()).unwrap();
                    assert_eq!(entry[8 + length], b'\n');
                    entry = &entry[9 + length..];
                    (line, value)
                }
            };
            assert!(
                name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert!(fields.insert(name.to_owned(), value).is_none(), "{name} twice");
        }
        fields
    }

    fn notice() -> AlertNotice {
        let subject =
            AlertSubject { topic: Some("swapped".into()), ..AlertSubject::node(AlertKind::Finding) };
        let line = |n: u64| FindingEvidence { file: format!("memory.stat {n}"), value: "9".into() };
        let text = "two\nlines with MESSAGE=forged".into();
        let alert = Alert { evidence: vec![line(1), line(2)], ..Alert::new(subject, Micros::ZERO, text) };
        let container =
            ContainerRef { id: "0123".into(), name: Some("web\nPRIORITY=0".into()), path: "/a=b".into() };
        let view = AlertView::new(alert, Some("sda".into()), Some(container));
        AlertNotice { state: "began", host: "node1".into(), time_unix_ms: 1, alert: view }
    }

    #[test]
    fn a_socket_gets_one_datagram_with_fields_that_hostile_names_cannot_forge() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        send(&path, &notice()).unwrap();
        let mut datagram = [0; 64 << 10];
        let length = journal.recv(&mut datagram).unwrap();
        let fields = parsed(&datagram[..length]);
        let get = |name: &str| fields[name].as_str();
        assert_eq!(get("MESSAGE"), "FINDING (sda, web\nPRIORITY=0): two\nlines with MESSAGE=forged");
        assert_eq!(
            (get("PRIORITY"), get("ELBOWROOM_TOPIC"), get("ELBOWROOM_CGROUP")),
            ("4", "swapped", "/a=b")
        );
        assert_eq!(get("ELBOWROOM_EVIDENCE"), "memory.stat 1 = 9\nmemory.stat 2 = 9");
        assert_eq!((get("SYSLOG_IDENTIFIER"), get("MESSAGE_ID")), ("elbowroom", BEGAN_MESSAGE_ID));
    }

    #[test]
    fn what_is_over_is_no_warning() {
        let mut notice = notice();
        notice.alert.alert.until = Some(Micros::secs(1));
        let fields = parsed(&entry(&notice));
        assert_eq!((fields["PRIORITY"].as_str(), fields["MESSAGE_ID"].as_str()), ("6", ENDED_MESSAGE_ID));
        assert!(fields["MESSAGE"].contains("is over"));
    }
}
