//! What each program reads: one row for a program, a resource and a range of versions.
//!
//! Rows say where a program looks and when; whether that is right follows from whose numbers are there
//! ([`ResourceSource::scope`]), so no verdict is written down here. Where `reads` names several sources the program takes the least
//! of them, or the first that is there: one that shows the container is enough.
//!
//! `tests/live/test_audit.py` runs programs under strace and compares what they open with these rows; `docs/audit-evidence.md`
//! says which rows were seen so, and which rest on their reference alone.

mod libraries;
mod runtimes;
mod servers;

use super::detect::DetectedProgram;
use super::source::{Resource, ResourceSource};
use super::version::ProgramVersion;

/// One fact.
#[derive(Clone, Copy, Debug)]
pub struct AuditRow {
    /// The program.
    pub id: &'static str,
    /// What it asks about.
    pub resource: Resource,
    /// The first version it holds for.
    pub since: ProgramVersion,
    /// The first version it holds for no longer.
    pub before: ProgramVersion,
    /// Traits that a build or configuration must have.
    pub needs: &'static [&'static str],
    /// What decides, and when it is read.
    pub reads: ReadPattern,
    /// What is read besides, and decides nothing here: by the C library, for a banner, for the size of huge pages.
    pub also: &'static [ResourceSource],
    /// What a person must know.
    pub note: &'static str,
    /// What to set where neither limits nor views are right; the exact variable, flag or key.
    pub set: &'static str,
    /// Beginnings of environment variables (`NAME=`) or command line words that settle it.
    pub settled_by: &'static [&'static str],
    /// The source of that.
    pub reference: &'static str,
}

/// What decides, and when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPattern {
    /// It does not ask: a number in its configuration decides, or nothing does.
    Nothing,
    /// Not known here.
    Unknown,
    /// Once, when it starts or when it first needs to know.
    Once(&'static [ResourceSource]),
    /// At every call, or by itself from time to time.
    Repeatedly(&'static [ResourceSource]),
    /// Whatever was seen in the file itself; when is not known, so once.
    AsDetected,
}

/// No bound.
const NO_UPPER_VERSION: ProgramVersion = ProgramVersion(u32::MAX, 0, 0);

/// What rows do not say.
const DEFAULT_ROW: AuditRow = AuditRow {
    id: "",
    resource: Resource::Cpu,
    since: ProgramVersion(0, 0, 0),
    before: NO_UPPER_VERSION,
    needs: &[],
    reads: ReadPattern::Nothing,
    also: &[],
    note: "",
    set: "",
    settled_by: &[],
    reference: "",
};

/// What people call a program, and what it is.
pub(crate) const DISPLAY_NAMES: &[(&str, &str)] = &[
    ("apache", "Apache"),
    ("bun", "Bun"),
    ("deno", "Deno"),
    ("dotnet", ".NET"),
    ("erlang", "Erlang"),
    ("go", "Go"),
    ("haproxy", "HAProxy"),
    ("jemalloc", "jemalloc"),
    ("joblib", "joblib"),
    ("jvm", "HotSpot JVM"),
    ("libgomp", "libgomp (OpenMP)"),
    ("libomp", "libomp (OpenMP)"),
    ("mariadb", "MariaDB"),
    ("memcached", "memcached"),
    ("mysql", "MySQL"),
    ("native-image", "GraalVM native image"),
    ("nginx", "nginx"),
    ("node", "Node.js"),
    ("openblas", "OpenBLAS"),
    ("openj9", "OpenJ9 JVM"),
    ("php", "PHP"),
    ("postgres", "PostgreSQL"),
    ("psutil", "psutil"),
    ("python", "CPython"),
    ("redis", "Redis"),
    ("ruby", "Ruby"),
    ("rust", "Rust program"),
    ("tbb", "TBB"),
    ("torch", "PyTorch"),
    ("uwsgi", "uWSGI"),
    ("program", "program"),
];

/// Every row, in the order in which they are tried.
pub fn rows() -> impl Iterator<Item = &'static AuditRow> {
    [runtimes::JVM, runtimes::GO, runtimes::OTHERS, servers::SERVERS, libraries::LIBRARIES]
        .into_iter()
        .flatten()
}

/// The row for a program. `None` where the table knows the program and not this version: it is not guessed.
pub fn find_row(program: &DetectedProgram, resource: Resource) -> Option<&'static AuditRow> {
    let mut fitting = rows().filter(|row| {
        row.id == program.id
            && row.resource == resource
            && row.needs.iter().all(|need| program.traits.contains(*need))
    });
    match program.version {
        Some(version) => fitting.find(|row| row.since <= version && version < row.before),
        None => fitting.find(|row| row.since == ProgramVersion(0, 0, 0) && row.before == NO_UPPER_VERSION),
    }
}

impl ReadPattern {
    /// The sources that decide.
    pub fn sources(self) -> &'static [ResourceSource] {
        match self {
            Self::Once(sources) | Self::Repeatedly(sources) => sources,
            Self::Nothing | Self::Unknown | Self::AsDetected => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_a_reference_and_the_way_out() {
        for row in rows() {
            let what = format!("{} {:?} {}", row.id, row.resource, row.since);
            assert!(DISPLAY_NAMES.iter().any(|(id, _)| *id == row.id), "{what} has no name");
            assert!(!row.reference.is_empty(), "{what} has no reference");
            assert!(row.since < row.before, "{what} holds for no version");
            if matches!(row.reads, ReadPattern::Once(_) | ReadPattern::Repeatedly(_)) {
                assert!(!row.set.is_empty(), "{what} says nothing to do");
            }
        }
    }

    #[test]
    fn ranges_of_one_program_leave_no_hole_and_do_not_overlap() {
        for (id, _) in DISPLAY_NAMES {
            for resource in [Resource::Cpu, Resource::Memory] {
                let plain = rows().filter(|r| r.id == *id && r.resource == resource && r.needs.is_empty());
                let mut ranges: Vec<(ProgramVersion, ProgramVersion)> =
                    plain.map(|r| (r.since, r.before)).collect();
                ranges.sort();
                assert_eq!(ranges.first().map(|r| r.0), Some(ProgramVersion(0, 0, 0)), "{id} {resource:?}");
                assert_eq!(ranges.last().map(|r| r.1), Some(NO_UPPER_VERSION), "{id} {resource:?}");
                for pair in ranges.windows(2) {
                    assert_eq!(pair[0].1, pair[1].0, "{id} {resource:?}");
                }
            }
        }
    }
}
