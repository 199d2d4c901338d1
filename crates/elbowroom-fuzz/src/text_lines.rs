use elbowroom::follow::SettingUnit;
use elbowroom_agent::seccomp::parse_listener_name;
use elbowroom_agent::view_server::{service_unit, will_restart};
use elbowroom_linux::privilege::account_entry;
use elbowroom_profile::processes::parse_exec_mapping;
use elbowroom_types::unit::Micros;

/// Of a program without a library.
#[path = "../../elbowroom-kube/src/quantity.rs"]
mod quantity;

/// Arbitrary bytes as what programs, the kernel, a service manager and Kubernetes say in a line: nothing panics, and what is taken
/// from a line is in it, or says the same when it is written again.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        setting(line);
        listener(line);
        mapping(line);
        amount(line);
    }
    if let Some(unit) = service_unit(&text) {
        assert!(unit.ends_with(".service") && !unit.contains(['/', '\n']) && text.contains(unit));
    }
    let mut parts = text.splitn(3, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let (state, jobs, name) = (part(), part(), part());
    if will_restart(state, jobs, name) {
        assert!(state.contains("NFileDescriptorStore="), "what nobody keeps is not waited for");
        assert!(
            jobs.contains("restart") || state.contains("Restart=on-") || state.contains("Restart=always")
        );
    }
    if let Some(line) = account_entry(state, jobs) {
        assert!(state.lines().any(|of| of == line));
        assert!(line.strip_prefix(jobs).is_some_and(|rest| rest.is_empty() || rest.starts_with(':')));
    }
}

fn setting(line: &str) {
    match elbowroom::parse_setting(line) {
        Ok((value, unit)) => {
            let value_text = value.map_or("none".to_owned(), |value| value.to_string());
            let unit_text = if unit == SettingUnit::Bytes { "bytes" } else { "count" };
            let again = elbowroom::parse_setting(&format!("{value_text} {unit_text}"));
            assert_eq!(again.ok(), Some((value, unit)));
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.chars().count() < 1_000 && !error.contains(char::is_control), "{error:?}");
        }
    }
}

fn listener(line: &str) {
    let Some((slot, pid, started, id)) = parse_listener_name(line) else { return };
    assert!(line.ends_with(id));
    let since = started.map_or_else(String::new, |Micros(usec)| format!(".{usec}"));
    let again = format!("listener-{slot}-{pid}{since}-{id}");
    assert_eq!(parse_listener_name(&again), Some((slot, pid, started, id)));
}

fn mapping(line: &str) {
    let Some(map) = parse_exec_mapping(7, line) else { return };
    assert!(map.pid == 7 && line.ends_with(&map.path) && map.build_id.is_empty());
    let again = format!("{:x}-{:x} r-xp {:x} fe:00 1311 {}", map.start, map.end, map.offset, map.path);
    assert_eq!(parse_exec_mapping(7, &again), Some(map));
}

fn amount(line: &str) {
    let (units, milli) = (quantity::units(line), quantity::milli(line));
    assert_eq!(units.is_some(), milli.is_some());
    if let (Some(units), Some(milli)) = (units, milli) {
        assert!(
            units <= milli && milli <= units.saturating_mul(1_000),
            "{line:?}: {units}, {milli} thousandths"
        );
        assert_eq!(quantity::units(&units.to_string()), Some(units));
    }
}
