//! The view page between its writer here and C programs: the layout, whole views, waiting.

use elbowroom_linux::view_page::{PAGE_SIZE, ViewPage, offset, retire_all};
use elbowroom_types::unit::{Bytes, Micros, Millicpu};
use elbowroom_view::pages::mapped::{MappedView, VIEW_WORDS};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory for pages, and programs of `shim/tests` compiled into it.
struct Rig(tempfile::TempDir);

impl Rig {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn page(&self) -> ViewPage {
        ViewPage::open(self.dir(), "page").unwrap()
    }

    /// Compiles `shim/tests/NAME.c` with the library.
    fn program(&self, compiler: &str, options: &[&str], name: &str) -> PathBuf {
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shim");
        let program = self.dir().join(format!("{name}-{compiler}"));
        let compiled = Command::new(compiler)
            .args(["-O2", "-Wall", "-Wextra", "-Werror"])
            .args(options)
            .arg(shim.join("tests").join(format!("{name}.c")))
            .args((compiler == "cc").then(|| shim.join("libelbowroom.c")))
            .arg("-o")
            .arg(&program)
            .status()
            .expect("a C compiler is there: tools/setup build");
        assert!(compiled.success());
        program
    }

    fn start(&self, program: &Path, args: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(args).env("ELBOWROOM_VIEW", self.dir().join("page"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }
}

fn uniform(n: u32) -> MappedView {
    let wide = u64::from(n);
    MappedView {
        cpus: n,
        cpus_most: n,
        millicpu: Millicpu(wide),
        memory: Bytes(wide),
        memory_most: Bytes(wide),
        memory_used: Bytes(wide),
        memory_inactive_file: Bytes(wide),
        started: Micros(wide),
        taken: Micros(wide),
        load: [n; 3],
        threads: n,
        ..MappedView::DETACHED
    }
}

#[test]
fn c_and_rust_agree_about_every_field() {
    let rig = Rig::new();
    // Every field is told from every other by its value, and by its place in the words.
    let view = MappedView {
        cpus: 1,
        cpus_most: 2,
        millicpu: Millicpu(3),
        memory: Bytes(4),
        memory_most: Bytes(5),
        memory_used: Bytes(6),
        memory_inactive_file: Bytes(7),
        started: Micros(8),
        taken: Micros(9),
        load: [10, 11, 12],
        threads: 13,
        online: [4].into_iter().collect(),
    };
    let bytes: Vec<u8> = view.to_words().iter().flat_map(|word| word.to_ne_bytes()).collect();
    let fields = [
        ("view.cpus", 1, 4),
        ("view.cpus_most", 2, 4),
        ("view.millicpu", 3, 8),
        ("view.memory", 4, 8),
        ("view.memory_most", 5, 8),
        ("view.memory_used", 6, 8),
        ("view.memory_inactive_file", 7, 8),
        ("view.started_usec", 8, 8),
        ("view.taken_usec", 9, 8),
        ("view.load", 10, 4),
        ("view.threads", 13, 4),
        ("view.online", 16, 8),
    ];
    for (compiler, options) in [("cc", &["-std=c99"][..]), ("c++", &["-std=c++11", "-xc++"][..])] {
        let output = Command::new(rig.program(compiler, options, "layout")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let at: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(' ')).collect();
        let place = |name: &str| at[name].parse::<usize>().unwrap();
        for (name, value, width) in fields {
            let field = &bytes[place(name)..][..width];
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(field);
            assert_eq!(u64::from_le_bytes(wide), value, "{name} ({compiler})");
        }
        let head =
            ["page.magic", "page.version", "page.view_size", "page.generation", "page.changes", "page.views"];
        let ours =
            [0, offset::VERSION, offset::VIEW_SIZE, offset::GENERATION, offset::CHANGES, offset::VIEWS];
        assert_eq!(head.map(place), ours);
        assert_eq!(place("sizeof.view"), VIEW_WORDS * 8);
        assert_eq!(at["sizeof.page"], "fits");
    }
}

#[test]
fn no_reader_ever_sees_half_a_view() {
    let rig = Rig::new();
    let mut page = rig.page();
    page.publish(&uniform(1));
    let mut reader = rig.start(&rig.program("cc", &[], "tear"), &["1000"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut n = 1;
    let ended = loop {
        for _ in 0..1000 {
            n = n % 1_000_000 + 1;
            page.publish(&uniform(n));
        }
        if let Some(status) = reader.try_wait().unwrap() {
            break status;
        }
        // A machine that gives the two no time together proves less, and is no failure.
        if std::time::Instant::now() > deadline {
            drop(reader.stdin.take());
        }
    };
    let mut said = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended.success(), "{said}");
    assert!(said.ends_with("versions\n") && said != "0 versions\n", "{said}");
}

#[test]
fn a_waiting_program_is_told_of_each_change_and_of_the_end() {
    let rig = Rig::new();
    let mut page = rig.page();
    page.publish(&uniform(2));
    let mut reader = rig.start(&rig.program("cc", &[], "wait"), &[]);
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "2");
    for cpus in [3, 1, 7] {
        page.publish(&uniform(cpus));
        assert_eq!(lines.next().unwrap(), cpus.to_string());
        // What it uses is no change: the next line is that of the next round.
        page.publish(&MappedView { memory_used: Bytes(77), ..uniform(cpus) });
    }
    drop(page);
    retire_all(rig.dir());
    // Before it a "0", if the program was waiting already.
    assert_eq!(lines.last().unwrap(), "gone");
    assert!(reader.wait().unwrap().success());
}

#[test]
fn a_page_that_is_left_half_made_is_made_again() {
    let rig = Rig::new();
    let path = rig.dir().join("page");
    for left in [vec![], vec![0; PAGE_SIZE], vec![1; 100], vec![0; 2 * PAGE_SIZE]] {
        std::fs::write(&path, &left).unwrap();
        rig.page().publish(&uniform(5));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), &bytes[..8]), (PAGE_SIZE, &b"elbowrm\0"[..]), "after {} bytes", left.len());
    }
}

#[test]
fn the_next_writer_goes_on_where_the_last_one_was_killed() {
    let rig = Rig::new();
    let inode = || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(rig.dir().join("page")).unwrap());
    let generation = || {
        let bytes = std::fs::read(rig.dir().join("page")).unwrap();
        u32::from_ne_bytes(*bytes[offset::GENERATION..].first_chunk().unwrap())
    };
    rig.page().publish(&uniform(5));
    let before = (inode(), generation());
    // What says nothing new is not published.
    rig.page().publish(&uniform(5));
    assert_eq!((inode(), generation()), before);
    rig.page().publish(&uniform(6));
    assert_eq!((inode(), generation()), (before.0, before.1 + 1));
}
