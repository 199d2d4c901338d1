//! Feeds a target with the bytes of `fuzz/corpus/NAME`, and with bytes that differ from them.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Fails where the target panics: for the bytes of its corpus, or for changed ones, which proptest then makes smaller. `PROPTEST_CASES`
/// says how many of those.
pub fn feed(name: &str, target: fn(&[u8])) {
    let corpus = fuzz().join("corpus").join(name);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let paths = files.map(|entry| entry.expect("an entry").path()).collect::<BTreeSet<_>>();
    let inputs = paths.iter().map(|path| fs::read(path).expect("a file")).collect::<Vec<_>>();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    for (path, input) in paths.iter().zip(&inputs) {
        eprintln!("{}", path.display()); // shown where it fails
        target(input);
    }
    let config = Config { failure_persistence: None, ..Config::default() };
    let strategy =
        (select(inputs), vec((any::<Index>(), any::<Index>(), 0..0x400_u16), 1..8)).prop_map(edited);
    let outcome = TestRunner::new(config).run(&strategy, |input| {
        target(&input);
        Ok::<_, TestCaseError>(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// An edit replaces a byte, takes a part out, or puts it at the end once more.
fn edited((mut bytes, edits): (Vec<u8>, Vec<(Index, Index, u16)>)) -> Vec<u8> {
    for (one, other, edit) in edits {
        if bytes.is_empty() {
            break;
        }
        let (one, other) = (one.index(bytes.len()), other.index(bytes.len()));
        let part = one.min(other)..one.max(other);
        match edit {
            0..0x100 => drop(bytes.drain(part)),
            0x100..0x200 => bytes.extend_from_within(part),
            _ => bytes[one] = edit as u8,
        }
    }
    bytes
}

/// The targets of libFuzzer, and their corpora, are those of this crate.
pub fn compare_with_libfuzzers(names: &[&str]) {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).expect("fuzz/Cargo.toml");
    let listed = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    let expected = names.iter().copied().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), expected);
    let corpora = fs::read_dir(fuzz().join("corpus")).expect("fuzz/corpus");
    assert_eq!(
        corpora
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect::<BTreeSet<_>>(),
        expected
    );
}
