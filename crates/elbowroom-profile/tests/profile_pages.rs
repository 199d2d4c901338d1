//! Page tables of real processes, read both ways, against what the processes have made of them.

mod program;

use elbowroom_profile::pages::measure::{PageTableReader, PageTableSnapshot, PageTableSource, PagesError};
use elbowroom_profile::pages::model::{AreaKind, EntryCounts};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A family of processes: see `lab/programs/pages.c`.
#[derive(Clone, Copy, Default)]
struct Family {
    processes: u64,
    shared: u64,
    private: u64,
    huge: u64,
    file: u64,
    active: u64,
    spread: bool,
    /// Huge pages that are only read.
    zeros: u64,
}

/// It runs until this goes.
struct Running {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Family {
    fn start(self) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, vec![1; self.file as usize * 4096]).unwrap();
        let numbers = |n: &[u64]| n.iter().map(u64::to_string).collect::<Vec<_>>();
        let mut child = Command::new(program())
            .args(numbers(&[self.processes, self.shared, self.private, self.huge]))
            .arg(&file)
            .args(numbers(&[self.file, self.active, u64::from(self.spread), self.zeros]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running { child, _dir: dir }
    }
}

impl Running {
    /// The first process and its children.
    fn pids(&self) -> Vec<i32> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        std::iter::once(pid as i32)
            .chain(children.split_whitespace().map(|pid| pid.parse().unwrap()))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program::compiled("pages", &["-O1"]))
}

/// The ways that work here; why the others do not is printed.
fn readers() -> Vec<PageTableReader> {
    let open = |source| match PageTableReader::open(Some(source)) {
        Ok(reader) => Some(reader),
        Err(error) => {
            let must = std::env::var_os("ELBOWROOM_TEST_BPF").is_some();
            assert!(!must || matches!(error, PagesError::NotAllowed), "{error}");
            eprintln!("skipped: {source:?}: {error}");
            None
        }
    };
    [PageTableSource::Pagemap, PageTableSource::Bpf].into_iter().filter_map(open).collect()
}

fn near(found: u64, expected: u64) -> bool {
    // A process has some pages of its own: stack, libc's data.
    found >= expected && found - expected <= expected / 100 + 60
}

fn of(snapshot: &PageTableSnapshot, container: usize, kind: AreaKind) -> EntryCounts {
    snapshot.pages.containers[container][kind as usize]
}

#[test]
fn shared_and_private_pages_are_counted_within_one_percent() {
    let family = Family { processes: 4, shared: 9_600, private: 14_720, file: 6_400, ..Family::default() };
    let running = family.start();
    for mut reader in readers() {
        let found = reader.compare(&[running.pids()], None).unwrap();
        let (heap, file) = (of(&found, 0, AreaKind::Heap), of(&found, 0, AreaKind::File));
        assert!(near(heap.groupable, 4 * family.shared), "{heap:?}");
        assert!(near(heap.exclusive(), 4 * family.private), "{heap:?}");
        assert_eq!((file.entries, file.groupable, file.elsewhere), (4 * family.file, 4 * family.file, 0));
        let frames = family.shared + 4 * family.private + family.file;
        assert!(near(found.pages.frames, frames), "{} {frames}", found.pages.frames);
        assert_eq!((found.processes, found.gone), (vec![4], 0));
    }
}

#[test]
fn the_same_file_at_other_addresses_is_elsewhere() {
    let running = Family { processes: 3, file: 1_000, spread: true, ..Family::default() }.start();
    for mut reader in readers() {
        let file = of(&reader.compare(&[running.pids()], None).unwrap(), 0, AreaKind::File);
        assert_eq!((file.entries, file.groupable, file.elsewhere, file.exclusive()), (3_000, 0, 3_000, 0));
    }
}

#[test]
fn what_two_containers_have_in_common_is_said() {
    let running = Family { processes: 2, shared: 2_000, private: 100, ..Family::default() }.start();
    let pids = running.pids();
    for mut reader in readers() {
        let apart = reader.compare(&[vec![pids[0]], vec![pids[1]]], None).unwrap();
        for container in 0..2 {
            let heap = of(&apart, container, AreaKind::Heap);
            assert!(
                near(heap.groupable_across, 2_000) && heap.groupable == heap.groupable_across,
                "{heap:?}"
            );
        }
        let together = reader.compare(std::slice::from_ref(&pids), None).unwrap();
        assert_eq!(of(&together, 0, AreaKind::Heap).groupable_across, 0);
        assert_eq!(of(&together, 0, AreaKind::Heap).groupable, 2 * of(&apart, 0, AreaKind::Heap).groupable);
    }
}

#[test]
fn both_ways_give_the_same_answer() {
    // Elsewhere what is only read has huge pages of its own.
    let switch = "/sys/kernel/mm/transparent_hugepage/use_zero_page";
    let zeros = if std::fs::read_to_string(switch).is_ok_and(|text| text.trim() == "1") { 4 } else { 0 };
    if zeros == 0 {
        eprintln!("partly skipped: this kernel has no huge page of zeros");
    }
    let family = Family {
        processes: 3,
        shared: 3_000,
        private: 2_000,
        huge: 8,
        file: 700,
        zeros,
        ..Family::default()
    };
    let running = family.start();
    let found: Vec<PageTableSnapshot> =
        readers().iter_mut().map(|reader| reader.compare(&[running.pids()], None).unwrap()).collect();
    let huge = of(&found[0], 0, AreaKind::Heap).huge;
    if huge == 0 {
        eprintln!("partly skipped: this kernel gave no huge pages");
    }
    assert!(huge == 0 || huge == 3 * 8 * 512, "{huge}");
    for found in &found {
        let heap = of(found, 0, AreaKind::Heap);
        assert!(near(heap.zero, 3 * zeros * 512) && near(heap.exclusive(), 3 * 2_000), "{heap:?}");
    }
    if let [one, other] = &found[..] {
        // The processes sleep and touch nothing: both see the same tables.
        assert_eq!(one.pages, other.pages);
    }
}

#[test]
fn used_pages_are_counted_within_one_percent() {
    // One may be missed where a processor looks while it is looked at.
    let nearly = |found: Option<u64>, active: u64| near(found.unwrap() + 2 * active / 100, 2 * active);
    // More than any TLB holds, and so few that a processor need never look them up again.
    for active in [5_000, 200] {
        let family = Family { processes: 2, shared: 20_000, active, ..Family::default() };
        let running = family.start();
        for mut reader in readers() {
            for _ in 0..3 {
                let found = reader.compare(&[running.pids()], Some(Duration::from_millis(200))).unwrap();
                let heap = of(&found, 0, AreaKind::Heap);
                assert!(nearly(heap.active, active), "{active} {:?} {heap:?}", reader.source());
                if reader.source() == PageTableSource::Bpf {
                    assert!(nearly(heap.active_groupable, active), "{active} {heap:?}");
                }
            }
            let unwatched = reader.compare(&[running.pids()], None).unwrap();
            assert_eq!(of(&unwatched, 0, AreaKind::Heap).active, None);
        }
    }
}

#[test]
fn processes_that_end_or_execute_meanwhile_are_left_out() {
    let running = Family { processes: 1, shared: 100, ..Family::default() }.start();
    for mut reader in readers() {
        let mut ended = Command::new("true").spawn().unwrap();
        let gone = ended.id() as i32;
        ended.wait().unwrap();
        let found = reader.compare(&[vec![gone], running.pids()], None).unwrap();
        assert_eq!((found.gone, found.processes), (1, vec![0, 1]));
        // Programs that do nothing but become others, while they are looked at.
        let mut storm = Command::new("sh")
            .args(["-c", "while :; do (exec sh -c 'exec sh -c :') ; done"])
            .spawn()
            .unwrap();
        for _ in 0..50 {
            let pid = storm.id() as i32;
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            let mut pids: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            pids.extend(running.pids());
            let found = reader.compare(&[pids], None).unwrap();
            assert!(found.processes[0] >= 1, "the one that stands still is always there");
        }
        storm.kill().unwrap();
        storm.wait().unwrap();
    }
}
