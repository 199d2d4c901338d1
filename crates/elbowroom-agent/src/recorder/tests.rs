use super::newcomers::SHARE;
use super::reader::*;
use super::writer::RingWriter;
use super::{frame, parts};
use elbowroom_client::api::{AgentSnapshot, ChangeView, ContainerView};
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::unit::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A node with `containers` containers, at second `second`; the fields that change are those that change on a node.
fn snapshot(second: u64, containers: u64) -> AgentSnapshot {
    let text = include_str!("tests/snapshot.json");
    let mut snapshot: Value = serde_json::from_str(text).unwrap();
    snapshot["time_unix_ms"] = (1_795_229_220_000 + second * 1_000).into();
    snapshot["status"]["ticks"] = (second * 41).into();
    let one = snapshot["containers"][0].take();
    let make = |n: u64| {
        let mut container = one.clone();
        container["id"] = format!("{n:064x}").into();
        container["path"] = format!("/docker/{n:064x}").into();
        container["usage"]["cpu"] = (second * 1_000 * n).into();
        container["view"]["cpus"] = (1 + (second / 7 + n) % 4).into();
        container
    };
    let made: Vec<Value> = (0..containers).map(make).collect();
    let status = |c: &Value| {
        let container = serde_json::json!({ "id": c["id"], "name": c["name"], "path": c["path"] });
        serde_json::json!({ "container": container, "status": c["memory"] })
    };
    snapshot["memory"]["containers"] = made.iter().map(status).collect();
    snapshot["containers"] = made.into();
    serde_json::from_value(snapshot).unwrap()
}

/// With floating-point numbers as exact as they are kept.
fn json(snapshot: &AgentSnapshot) -> Value {
    fn kept(value: Value) -> Value {
        match value {
            Value::Number(n) if n.is_f64() => {
                format!("{:?}", n.as_f64().unwrap() as f32).parse::<f64>().unwrap().into()
            }
            Value::Array(values) => values.into_iter().map(kept).collect(),
            Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, kept(value))).collect(),
            value => value,
        }
    }
    kept(serde_json::to_value(snapshot).unwrap())
}

fn write(dir: &Path, max_size: Bytes, seconds: std::ops::Range<u64>, containers: u64) -> RingWriter {
    let mut writer = RingWriter::open(dir, max_size).unwrap();
    seconds.for_each(|second| writer.write(snapshot(second, containers)).unwrap());
    writer
}

#[test]
fn a_file_in_which_frames_begin_in_each_other_is_not_summed_up_for_each() {
    // Each of them says that half of the file is its payload, and has a wrong sum.
    let head = [&b"EBR1"[..], &(4_u32 << 20).to_le_bytes(), &[0; 4]].concat();
    let bytes = head.repeat((8 << 20) / head.len());
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(frame::scan(&bytes).len()));
    assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(60)), Ok(0));
}

fn time(second: u64) -> u64 {
    1_795_229_220_000 + second * 1_000
}

#[test]
fn every_moment_is_shown_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    // The writer is still at work.
    let _writer = write(dir.path(), Bytes::mib(64), 0..150, 5);
    for second in [0, 1, 59, 60, 61, 149] {
        let cursor = RecordingCursor::at(dir.path(), time(second) + 400).unwrap();
        assert_eq!(cursor.time(), time(second));
        assert_eq!(json(&cursor.snapshot().unwrap()), json(&snapshot(second, 5)), "second {second}");
    }
    assert_eq!(recorded_range(dir.path()).unwrap(), (time(0), time(149)));
}

#[test]
fn a_cursor_steps_through_segments_both_ways_and_sees_what_is_written_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path(), Bytes::mib(64), 0..3, 1));
    drop(write(dir.path(), Bytes::mib(64), 3..5, 1));
    let mut writer = write(dir.path(), Bytes::mib(64), 5..6, 1);
    let mut cursor = RecordingCursor::first(dir.path()).unwrap();
    for second in 1..6 {
        assert!(cursor.advance().unwrap());
        assert_eq!(json(&cursor.snapshot().unwrap()), json(&snapshot(second, 1)));
    }
    assert!(!cursor.advance().unwrap());
    writer.write(snapshot(6, 1)).unwrap();
    assert!(cursor.advance().unwrap() && cursor.time() == time(6));
    for second in (0..6).rev() {
        assert!(cursor.previous().unwrap());
        assert_eq!(json(&cursor.snapshot().unwrap()), json(&snapshot(second, 1)));
    }
    assert!(!cursor.previous().unwrap());
    cursor.step(4_000).unwrap();
    assert_eq!(cursor.time(), time(4));
    cursor.step(-60_000).unwrap();
    assert_eq!(cursor.time(), time(0));
}

#[test]
fn a_moment_that_is_not_recorded_says_what_is() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        RecordingCursor::last(dir.path()).unwrap_err().to_string().ends_with("nothing is recorded there")
    );
    let _writer = write(dir.path(), Bytes::mib(64), 0..3, 1);
    for at in [time(0) - 1, time(3) + 60_000] {
        let error = RecordingCursor::at(dir.path(), at).unwrap_err().to_string();
        assert!(
            error.starts_with("nothing is recorded of 20") && error.contains(" to 2026-11-21T"),
            "{error}"
        );
    }
}

#[test]
fn the_ring_keeps_to_its_size_and_forgets_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let limit = Bytes(48 << 10);
    let mut writer = RingWriter::open(dir.path(), limit).unwrap();
    for second in 0..400 {
        writer.write(snapshot(second, 20)).unwrap();
        assert!(writer.size() <= limit.get());
    }
    let on_disk: u64 =
        segments(dir.path()).unwrap().iter().map(|(_, path)| path.metadata().unwrap().len()).sum();
    assert_eq!(on_disk, writer.size());
    let (first, last) = recorded_range(dir.path()).unwrap();
    assert!(first > time(0) && last == time(399), "{first} {last}");
    assert_eq!(json(&RecordingCursor::first(dir.path()).unwrap().snapshot().unwrap())["time_unix_ms"], first);
    // A smaller ring later takes what is there as its own.
    drop(writer);
    let writer = write(dir.path(), Bytes(limit.get() / 2), 400..410, 20);
    assert!(writer.size() <= limit.get() / 2);
}

#[test]
fn a_segment_with_the_last_number_there_is_keeps_no_recorder_from_going_on() {
    for last in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let dir = tempfile::tempdir().unwrap();
        drop(write(dir.path(), Bytes::mib(64), 0..3, 1));
        drop(write(dir.path(), Bytes::mib(64), 3..5, 1));
        fs::rename(dir.path().join("000000000001.ring"), dir.path().join(format!("{last}.ring"))).unwrap();
        // Of the same number as the first one.
        fs::write(dir.path().join("0.ring"), "").unwrap();
        drop(write(dir.path(), Bytes::mib(64), 5..7, 1));
        drop(write(dir.path(), Bytes::mib(64), 7..8, 1));
        let mut cursor = RecordingCursor::first(dir.path()).unwrap();
        for second in 0..8 {
            assert_eq!(cursor.time(), time(second), "{last}");
            assert_eq!(cursor.advance().unwrap(), second < 7);
        }
        let numbers: Vec<u64> = segments(dir.path()).unwrap().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5], "{last}");
    }
}

#[test]
fn two_cannot_write_into_one_ring() {
    let dir = tempfile::tempdir().unwrap();
    let _writer = RingWriter::open(dir.path(), Bytes::mib(1)).unwrap();
    let error = RingWriter::open(dir.path(), Bytes::mib(1)).unwrap_err().to_string();
    assert!(error.contains("another program records into it"), "{error}");
}

#[test]
fn a_clock_that_is_set_back_disturbs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write(dir.path(), Bytes::mib(64), 100..110, 1);
    (50..60).for_each(|second| writer.write(snapshot(second, 1)).unwrap());
    assert_eq!(RecordingCursor::at(dir.path(), time(55)).unwrap().time(), time(55));
    assert_eq!(RecordingCursor::last(dir.path()).unwrap().time(), time(59));
    // As far as the clock has come again, what was recorded last counts.
    (60..105).for_each(|second| writer.write(snapshot(second, 1)).unwrap());
    let again = RecordingCursor::at(dir.path(), time(102)).unwrap();
    assert_eq!((again.time(), again.position().0), (time(102), 1));
    assert_eq!(RecordingCursor::at(dir.path(), time(108)).unwrap().position().0, 0);
}

#[test]
fn a_first_segment_of_which_nothing_can_be_read_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path(), Bytes::mib(64), 0..1, 5));
    drop(write(dir.path(), Bytes::mib(64), 10..12, 5));
    let torn = dir.path().join("000000000000.ring");
    let length = fs::metadata(&torn).unwrap().len();
    fs::OpenOptions::new().write(true).open(&torn).unwrap().set_len(length - 1).unwrap();
    let mut cursor = RecordingCursor::first(dir.path()).unwrap();
    assert_eq!(cursor.time(), time(10));
    cursor.step(-60_000).unwrap();
    assert_eq!(cursor.time(), time(10));
}

#[test]
fn what_changed_is_read_without_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = snapshot(0, 3);
    let change = before.changes.first().expect("one that changed").clone();
    before.changes = vec![change.clone(), ChangeView { seq: change.seq + 1, ..change }];
    let mut writer = RingWriter::open(dir.path(), Bytes::mib(64)).unwrap();
    writer.write(before.clone()).unwrap();
    assert_eq!(RecordingCursor::first(dir.path()).unwrap().changes().unwrap(), before.changes);
    before.changes.clear();
    writer.write(before).unwrap();
    assert_eq!(RecordingCursor::last(dir.path()).unwrap().changes().unwrap(), []);
}

#[test]
fn a_full_disk_is_an_error_and_what_comes_after_it_is_there() {
    // The limit that stands for the end of a disk is a whole process': it gets one of its own.
    const ALONE: &str = "ELBOWROOM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test = "recorder::tests::a_full_disk_is_an_error_and_what_comes_after_it_is_there";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let done = alone.args([test, "--exact", "--test-threads=1"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write(dir.path(), Bytes::mib(64), 0..3, 3);
    let before = fs::read(dir.path().join("000000000000.ring")).unwrap();
    // No file may grow beyond where this one is now: the kernel takes a part of the frame and refuses the rest.
    let limit = rustix::process::Resource::Fsize;
    let old = rustix::process::getrlimit(limit);
    // SIGXFSZ would end the test; ignored, the write fails with EFBIG as it does with ENOSPC.
    let _ignored = elbowroom_linux::signal::SignalFd::block(&[rustix::process::Signal::XFSZ]).unwrap();
    let small = rustix::process::Rlimit { current: Some(before.len() as u64 + 30), ..old };
    rustix::process::setrlimit(limit, small).unwrap();
    let outcome = writer.write(snapshot(3, 3));
    rustix::process::setrlimit(limit, old).unwrap();
    assert!(outcome.is_err());
    assert_eq!(fs::read(dir.path().join("000000000000.ring")).unwrap(), before);
    writer.write(snapshot(4, 3)).unwrap();
    assert_eq!(json(&RecordingCursor::last(dir.path()).unwrap().snapshot().unwrap()), json(&snapshot(4, 3)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_tears_a_segment_costs_nothing_before_it(cut in 0usize..10_000, flip in 0usize..10_000, bit in 0u8..8) {
        let dir = tempfile::tempdir().unwrap();
        drop(write(dir.path(), Bytes::mib(64), 0..70, 2));
        let path = dir.path().join("000000000000.ring");
        let mut bytes = fs::read(&path).unwrap();
        let whole = frame::read_all(&bytes);
        prop_assert_eq!(whole.len(), 70);
        let ends: Vec<usize> = ends(&bytes);
        let cut = cut % (bytes.len() + 1);
        let torn = frame::read_all(&bytes[..cut]);
        prop_assert_eq!(torn.len(), ends.iter().filter(|end| **end <= cut).count());
        prop_assert_eq!(&torn[..], &whole[..torn.len()]);
        // A byte that is wrong costs its frame and what depends on it, up to the next key frame.
        let flip = flip % bytes.len();
        bytes[flip] ^= 1 << bit;
        let damaged = frame::read_all(&bytes);
        let before = ends.iter().filter(|end| **end <= flip).count();
        prop_assert_eq!(&damaged[..before], &whole[..before]);
        prop_assert!(damaged.iter().all(|read| whole.contains(read)));
        if before < 60 {
            prop_assert_eq!(damaged.last(), whole.last());
        }
    }
}

/// Where frames end.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        at += frame::HEADER_SIZE + u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        ends.push(at);
    }
    ends
}

#[test]
fn a_hundred_containers_take_little() {
    let dir = tempfile::tempdir().unwrap();
    let writer = write(dir.path(), Bytes::mib(256), 0..20, 100);
    let a_second = writer.size() / 20;
    let whole = serde_json::to_vec(&snapshot(0, 100)).unwrap().len() as u64;
    assert!(a_second * 20 < whole, "{a_second} bytes a second, {whole} as JSON");
    // A part for each field, and for each element of those that are arrays.
    let snapshot = snapshot(0, 100);
    let elements = snapshot.containers.len() + snapshot.changes.len();
    let fields = serde_json::to_value(&snapshot).unwrap().as_object().unwrap().len();
    assert_eq!(parts::split(snapshot).unwrap().len(), fields + elements);
}

#[test]
fn containers_that_a_container_makes_and_ends_again_and_again_take_little_of_a_ring() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RingWriter::open(dir.path(), Bytes::mib(256)).unwrap();
    // Random to the compressor.
    let mut state = 1_u64;
    let mut name = || -> String {
        let mut digit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from_digit((state >> 60) as u32, 16).unwrap()
        };
        (0..900).map(|_| digit()).collect()
    };
    let lasting = "/docker/0/docker/lasting".to_owned();
    let second = |second: u64, new: &mut dyn FnMut() -> String| {
        let mut made = snapshot(second, 20);
        for (n, container) in made.containers.iter_mut().enumerate().skip(1) {
            container.id = if n == 1 { lasting.clone() } else { format!("/docker/0/docker/{n}{}", new()) };
            container.path.clone_from(&container.id);
        }
        made
    };
    // One that was there before the recording is in it from the beginning.
    writer.write(second(0, &mut || "old".to_owned())).unwrap();
    let before = writer.size();
    (1..100).for_each(|at| writer.write(second(at, &mut name)).unwrap());
    let a_second = (writer.size() - before) / 99;
    assert!(a_second < 500, "{a_second} bytes a second");
    let last = RecordingCursor::last(dir.path()).unwrap().snapshot().unwrap();
    let ids: Vec<&str> = last.containers.iter().map(|container| container.id.as_str()).collect();
    assert!(ids.len() == 2 && ids[1] == lasting, "{ids:?}");
    // What stays is there a minute later.
    let stays = |at| second(at, &mut || "stays".to_owned());
    for (at, count) in [(100, 2), (159, 2), (160, 20)] {
        writer.write(stays(at)).unwrap();
        assert_eq!(
            RecordingCursor::last(dir.path()).unwrap().snapshot().unwrap().containers.len(),
            count,
            "{at}"
        );
    }
    // What ended when it was new is not recorded as it gets older.
    for (at, ended) in [(161, &[][..]), (162, &["short", "stays"]), (300, &["short", "stays"])] {
        let mut made = snapshot(at, 2);
        made.containers[1].id = format!("/docker/0/docker/{}", if at == 161 { "short" } else { "other" });
        for name in ended {
            let mut container = made.containers[1].clone();
            container.id = match *name {
                "stays" => format!("/docker/0/docker/{}stays", 19),
                name => format!("/docker/0/docker/{name}"),
            };
            made.ended.push(container);
        }
        if at == 161 {
            made.containers.extend(stays(at).containers.into_iter().skip(2));
        }
        writer.write(made).unwrap();
        let kept = RecordingCursor::last(dir.path()).unwrap().snapshot().unwrap();
        let kept: Vec<&str> = kept.ended.iter().map(|container| container.id.as_str()).collect();
        let expected: &[&str] = if ended.is_empty() { &[] } else { &["/docker/0/docker/19stays"] };
        assert_eq!(kept, expected, "{at}");
    }
}

#[test]
fn of_the_containers_that_a_tenant_keeps_a_share_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RingWriter::open(dir.path(), Bytes::mib(64)).unwrap();
    let (many, few) = (SHARE + 100, 3);
    let second = |second: u64, first: usize| {
        let mut made = snapshot(second, (2 + many + few) as u64);
        for (n, container) in made.containers.iter_mut().enumerate().skip(2) {
            // One tenant is a container, the other a user whose cgroups the configuration names.
            let tenant = if n < 2 + many { "/docker/0" } else { "/user.slice/user-1000.slice" };
            container.id = format!("{tenant}/{:04}", if n < 2 + many { first + n } else { n });
            container.path.clone_from(&container.id);
            container.made_in = Some(tenant.to_owned());
            if n >= 2 + many {
                container.engine = ContainerEngine::Plain;
            }
        }
        let change = made.changes[0].clone();
        let changed = |container: &ContainerView| {
            let mut change = change.clone();
            change.change.container.clone_from(&container.id);
            change
        };
        made.changes = made.containers.iter().map(changed).collect();
        made
    };
    let recorded = |writer: &mut RingWriter, made: AgentSnapshot| {
        writer.write(made).unwrap();
        let last = RecordingCursor::last(dir.path()).unwrap().snapshot().unwrap();
        let ids: Vec<String> = last.containers.iter().map(|container| container.id.clone()).collect();
        let of = |start: &str| ids.iter().filter(|id| id.starts_with(start)).cloned().collect::<Vec<_>>();
        assert_eq!(last.changes.len(), ids.len(), "what changed is told of those that are recorded");
        (ids.len(), of("/docker/0/"), of("/user.slice/").len(), last.left_out)
    };
    let (all, first, users, left_out) = recorded(&mut writer, second(0, 0));
    assert_eq!((all, first.len(), users, left_out), (2 + SHARE + few, SHARE, few, 100));
    assert_eq!(recorded(&mut writer, second(100, 0)).1, first, "the same as before");
    // Others take the place of those that ended when they have been there for a minute, and oust none.
    let (_, later, users, left_out) = recorded(&mut writer, second(101, 10));
    assert_eq!((later.len(), users, left_out), (SHARE, few, 90), "{later:?}");
    assert_eq!(later.iter().filter(|id| first.contains(id)).count(), SHARE - 10);
}

#[test]
fn in_a_strangers_directory_pipes_and_links_are_neither_waited_for_nor_followed() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(write(outside.path(), Bytes::mib(1), 0..2, 1));
    std::os::unix::fs::symlink(outside.path().join("000000000000.ring"), dir.path().join("1.ring")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("2.ring"), rustix::fs::Mode::RWXU).unwrap();
    let (done, wait) = std::sync::mpsc::channel();
    let path = dir.path().to_owned();
    std::thread::spawn(move || {
        done.send(["1.ring", "2.ring"].map(|name| {
            let range = recorded_range(&path).is_err();
            fs::remove_file(path.join(name)).unwrap();
            range
        }))
    });
    assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(20)), Ok([true, true]));
    let made = outside.path().join("made");
    std::os::unix::fs::symlink(&made, dir.path().join("lock")).unwrap();
    assert!(RingWriter::open(dir.path(), Bytes::mib(1)).is_err() && !made.exists());
}

/// Made by another program after the table in [`frame`], and what the fuzzer begins with.
#[test]
fn a_segment_is_what_its_description_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/recording");
    let read = |name: &str| -> Vec<(u64, String)> {
        let frames = frame::read_all(&fs::read(dir.join(name)).unwrap());
        frames.into_iter().map(|(time, parts)| (time, parts[0].json.clone())).collect()
    };
    let (seven, eight) = ("{\"b\":7}".to_owned(), "{\"b\":8}".to_owned());
    assert_eq!(read("whole"), [(1_000, seven.clone()), (2_000, eight.clone()), (3_000, eight)]);
    assert_eq!(read("torn"), [(1_000, seven.clone())]);
    assert_eq!(read("resync"), [(1_000, seven.clone()), (3_000, seven)]);
}
