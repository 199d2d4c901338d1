//! Which programs an inventory holds: each needs evidence in its bytes; a name alone is none.

use super::evidence::{ElfEvidence, FileEvidence, GoBuild, Inventory, Libc, ServerSetting, SizingCall};
use super::source::ResourceSource;
use super::version::ProgramVersion;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A program that was found, before anything is said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectedProgram {
    /// Its name in [`super::table`]; `program` for one that the table does not know.
    pub id: String,
    /// As its own bytes, or the file beside it, say.
    pub version: Option<ProgramVersion>,
    /// The file that says so. Of several, the first.
    pub path: String,
    /// What sets one build or one configuration apart from another.
    pub traits: BTreeSet<String>,
    /// What it asks, where that can be seen in the file itself.
    pub asks: BTreeSet<ResourceSource>,
    /// What was seen, in words.
    pub evidence: Vec<String>,
    /// Files that are linked with it; `None` for what is no library.
    pub users: Option<usize>,
}

/// Symbols that tell what a library is, or which runtime a program calls.
pub(crate) const SYMBOLS: [&str; 8] = [
    "JNI_CreateJavaVM",
    "GOMP_parallel",
    "__kmpc_fork_call",
    "TBB_runtime_interface_version",
    "mallctl",
    "Py_BytesMain",
    "ruby_init",
    "coreclr_initialize",
];

/// What a file must have to be this program: all of `texts`, all of `symbols`.
struct DetectionRule {
    id: &'static str,
    texts: &'static [&'static str],
    symbols: &'static [&'static str],
    version: VersionSource,
}

/// Where its version is.
enum VersionSource {
    /// Beside the first text.
    Text,
    /// At the end of its own name: `libruby-3.1.so.3.1`, `python3.11`.
    Name,
    /// Somewhere else, or nowhere.
    Elsewhere,
}

const RULES: &[DetectionRule] = &[
    detection_rule("openj9", &["Eclipse OpenJ9"], &[], VersionSource::Elsewhere),
    detection_rule("jvm", &["UseContainerSupport"], &["JNI_CreateJavaVM"], VersionSource::Elsewhere),
    detection_rule("jvm", &["OpenJDK 64-Bit"], &["JNI_CreateJavaVM"], VersionSource::Elsewhere),
    detection_rule("native-image", &["com.oracle.svm.core"], &[], VersionSource::Elsewhere),
    detection_rule("node", &["nodejs.org/download/release/v"], &[], VersionSource::Text),
    detection_rule("bun", &["https://bun.sh/", "oven-sh/bun"], &[], VersionSource::Elsewhere),
    detection_rule("deno", &["https://deno.land/", "deno_core"], &[], VersionSource::Elsewhere),
    detection_rule("python", &[], &["Py_BytesMain"], VersionSource::Name),
    detection_rule("ruby", &[], &["ruby_init"], VersionSource::Name),
    detection_rule("php", &["X-Powered-By: PHP/"], &[], VersionSource::Text),
    detection_rule("nginx", &["nginx/", "worker_processes"], &[], VersionSource::Text),
    detection_rule("postgres", &["postgres (PostgreSQL) ", "max_parallel_workers"], &[], VersionSource::Text),
    detection_rule(
        "mariadb",
        &["-MariaDB", "innodb_buffer_pool_size", "thread_pool_size"],
        &[],
        VersionSource::Text,
    ),
    detection_rule(
        "mysql",
        &["innodb_dedicated_server", "innodb_buffer_pool_size"],
        &[],
        VersionSource::Elsewhere,
    ),
    detection_rule("redis", &["redis_version:%s", "maxmemory-policy"], &[], VersionSource::Elsewhere),
    detection_rule("erlang", &["(BEAM) emulator version "], &[], VersionSource::Text),
    detection_rule("haproxy", &["global.nbthread", "haproxy_version"], &[], VersionSource::Elsewhere),
    detection_rule("apache", &["Apache/", "ServerRoot"], &[], VersionSource::Text),
    detection_rule("memcached", &["memcached ", "lru_crawler_running"], &[], VersionSource::Text),
    detection_rule("uwsgi", &["*** Starting uWSGI "], &[], VersionSource::Text),
    detection_rule("dotnet", &[], &["coreclr_initialize"], VersionSource::Elsewhere),
    detection_rule("openblas", &["OpenBLAS ", "OPENBLAS_NUM_THREADS"], &[], VersionSource::Text),
    // LLVM's library offers GNU's calls too.
    detection_rule("libomp", &[], &["__kmpc_fork_call"], VersionSource::Elsewhere),
    detection_rule("libgomp", &[], &["GOMP_parallel"], VersionSource::Elsewhere),
    detection_rule("tbb", &[], &["TBB_runtime_interface_version"], VersionSource::Elsewhere),
    detection_rule("jemalloc", &[], &["mallctl"], VersionSource::Elsewhere),
];

const fn detection_rule(
    id: &'static str,
    texts: &'static [&'static str],
    symbols: &'static [&'static str],
    version: VersionSource,
) -> DetectionRule {
    DetectionRule { id, texts, symbols, version }
}

/// Texts that set builds of one program apart: the text, the program, the trait.
const TRAITS: &[(&str, &str, &str)] =
    &[("USE_OPENMP", "openblas", "openmp"), ("pm.max_children", "php", "fpm")];

/// The crate that most Rust programs counted with before std could, as its sources are called in panic messages.
const NUM_CPUS: &str = "num_cpus-";

/// Go modules that size the runtime by the container's limits.
pub(crate) const GO_MODULES: [&str; 2] =
    ["go.uber.org/automaxprocs", "github.com/KimMachineGun/automemlimit"];

/// Python packages that ask for themselves.
pub(crate) const PYTHON_PACKAGES: [&str; 3] = ["torch", "joblib", "psutil"];

/// Every text to look for in a file, without those that name a [`ResourceSource`].
pub(crate) fn marker_texts() -> BTreeSet<&'static str> {
    let texts = RULES.iter().flat_map(|rule| rule.texts.iter().copied());
    texts.chain(TRAITS.iter().map(|(text, ..)| *text)).chain([NUM_CPUS]).collect()
}

/// Every text to look for that names a [`ResourceSource`].
pub(crate) const SOURCE_MENTIONS: [(&str, ResourceSource); 15] = [
    ("/sys/devices/system/cpu/online", ResourceSource::SysOnline),
    ("/sys/devices/system/cpu/possible", ResourceSource::SysPossible),
    ("/sys/devices/system/cpu/present", ResourceSource::SysPresent),
    ("/proc/cpuinfo", ResourceSource::Cpuinfo),
    ("/proc/stat", ResourceSource::Stat),
    ("/proc/meminfo", ResourceSource::Meminfo),
    ("cpu.cfs_quota_us", ResourceSource::QuotaV1),
    ("cpu.cfs_period_us", ResourceSource::QuotaV1),
    ("cpu.shares", ResourceSource::SharesV1),
    ("cpu.max", ResourceSource::CpuMax),
    ("memory.limit_in_bytes", ResourceSource::LimitV1),
    ("memory.soft_limit_in_bytes", ResourceSource::SoftLimitV1),
    ("memory.max", ResourceSource::MemoryMax),
    ("memory.high", ResourceSource::MemoryHigh),
    ("memory.pressure", ResourceSource::MemoryPressure),
];

/// What files say of others, looked up once: an image chooses how many there are of both.
struct FileIndex<'a> {
    inventory: &'a Inventory,
    /// Files that are linked with a library, by its name.
    users: BTreeMap<&'a str, usize>,
    /// Configuration by program: the first [`MAX_SETTINGS`] files.
    settings: BTreeMap<&'a str, Vec<(&'a str, &'a ServerSetting)>>,
    /// Versions of .NET by the directory of the `*.runtimeconfig.json`.
    dotnet: BTreeMap<&'a str, ProgramVersion>,
}

/// A server has one file or two with what is looked for, and each is quoted beside each program.
const MAX_SETTINGS: usize = 8;
/// Characters of a file's name that are quoted there.
const MAX_QUOTED_PATH: usize = 200;

impl<'a> FileIndex<'a> {
    fn of(inventory: &'a Inventory) -> Self {
        let mut index =
            Self { inventory, users: BTreeMap::new(), settings: BTreeMap::new(), dotnet: BTreeMap::new() };
        for (path, evidence) in &inventory.files {
            match evidence {
                FileEvidence::Elf(elf) => {
                    let needed: BTreeSet<&str> = elf.needed.iter().map(String::as_str).collect();
                    needed.into_iter().for_each(|name| *index.users.entry(name).or_default() += 1);
                }
                FileEvidence::Setting(setting) => {
                    let known = index.settings.entry(&setting.program).or_default();
                    if known.len() < MAX_SETTINGS {
                        known.push((path, setting));
                    }
                }
                FileEvidence::Dotnet(dotnet) => {
                    let version = dotnet.version.as_deref().and_then(ProgramVersion::parse);
                    let place = path.rsplit_once('/').map(|(directory, _)| directory);
                    if let (Some(directory), Some(version)) = (place, version) {
                        index.dotnet.entry(directory).or_insert(version);
                    }
                }
                FileEvidence::JavaRelease(_) | FileEvidence::PythonPackage { .. } => {}
            }
        }
        index
    }
}

/// The programs of an inventory, each once, however many files it consists of.
pub fn programs(inventory: &Inventory) -> Vec<DetectedProgram> {
    let index = FileIndex::of(inventory);
    let mut found: BTreeMap<(String, Option<ProgramVersion>, String), DetectedProgram> = BTreeMap::new();
    for (path, evidence) in &inventory.files {
        let Some(mut program) = (match evidence {
            FileEvidence::Elf(elf) => detect_elf(path, elf, &index),
            FileEvidence::PythonPackage { name, version } => detect_package(path, name, version),
            FileEvidence::JavaRelease(_) | FileEvidence::Dotnet(_) | FileEvidence::Setting(_) => None,
        }) else {
            continue;
        };
        apply_settings(&mut program, &index);
        let several = ["program", "go", "rust", "native-image"].contains(&program.id.as_str());
        // Programs of their own, or one program in several files.
        let place = if several || program.id == "jvm" { program.path.clone() } else { String::new() };
        match found.entry((program.id.clone(), program.version, place)) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(program);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                first.users = first.users.max(program.users);
                first.traits.extend(program.traits);
            }
        }
    }
    found.into_values().collect()
}

fn detect_elf(path: &str, elf: &ElfEvidence, index: &FileIndex<'_>) -> Option<DetectedProgram> {
    if let Some(go) = &elf.go {
        return elf.program.then(|| detect_go(path, go));
    }
    let rule = RULES.iter().find(|rule| {
        rule.texts.iter().all(|text| elf.marks.contains_key(*text))
            && rule.symbols.iter().all(|symbol| elf.defines.contains(*symbol))
    });
    match rule {
        Some(rule) => Some(detect_by_rule(path, elf, rule, index)),
        None if elf.rustc.is_some() => detect_rust(path, elf),
        None => detect_unknown(path, elf),
    }
}

fn detect_by_rule(
    path: &str,
    elf: &ElfEvidence,
    rule: &DetectionRule,
    index: &FileIndex<'_>,
) -> DetectedProgram {
    let mut evidence: Vec<String> = rule.texts.iter().map(|text| format!("text \"{text}\"")).collect();
    evidence.extend(rule.symbols.iter().map(|symbol| format!("defines {symbol}")));
    let name = path.rsplit('/').next().unwrap_or(path);
    let version = match rule.version {
        VersionSource::Text => rule.texts.first().and_then(|text| elf.marks.get(*text)?.as_deref()),
        VersionSource::Name => {
            elf.soname.as_deref().unwrap_or(name).find(|c: char| c.is_ascii_digit()).map(|at| {
                let name = elf.soname.as_deref().unwrap_or(name);
                name.rsplit_once(".so.").filter(|_| rule.id == "ruby").map_or(&name[at..], |(_, tail)| tail)
            })
        }
        VersionSource::Elsewhere => None,
    };
    let mut version = version.and_then(|text| ProgramVersion::parse(text.trim_end_matches('.')));
    match rule.id {
        "jvm" | "openj9" => {
            if let Some((release, java)) = java_release(path, index.inventory) {
                version = ProgramVersion::parse_java(&java.version);
                let vendor = java.implementor.as_deref().unwrap_or("of unknown vendor");
                evidence.push(format!("{release}: JAVA_VERSION {}, {vendor}", java.version));
            }
        }
        "dotnet" => {
            version = dotnet_version(path, index);
        }
        _ => {}
    }
    let mut traits: BTreeSet<String> = TRAITS
        .iter()
        .filter(|(text, id, _)| *id == rule.id && elf.marks.contains_key(*text))
        .map(|(.., name)| (*name).to_owned())
        .collect();
    // What a build can read is in its bytes, whatever its version says.
    traits.extend(elf.mentions.iter().map(|source| source.name().to_owned()));
    let library = !elf.program && ["openblas", "libgomp", "libomp", "tbb", "jemalloc"].contains(&rule.id);
    let soname = elf.soname.as_deref().unwrap_or(name);
    let users = library.then(|| index.users.get(soname).copied().unwrap_or_default());
    DetectedProgram {
        id: rule.id.to_owned(),
        version,
        path: path.to_owned(),
        traits,
        asks: BTreeSet::new(),
        evidence,
        users,
    }
}

fn detect_go(path: &str, go: &GoBuild) -> DetectedProgram {
    let mut traits: BTreeSet<String> = go.modules.iter().cloned().collect();
    // A module whose go.mod names a Go before 1.25 keeps that Go's ways: runtime/runtime2.go, `internal/godebugs`.
    traits.extend(go.godebug.split(',').filter(|s| s.contains("maxprocs=0")).map(str::to_owned));
    let mut evidence = vec![format!("build information: {}", go.version)];
    evidence.extend(traits.iter().cloned());
    DetectedProgram {
        id: "go".to_owned(),
        version: ProgramVersion::parse(&go.version),
        path: path.to_owned(),
        traits,
        asks: BTreeSet::new(),
        evidence,
        users: None,
    }
}

/// A Rust program that counts CPUs imports the call that std begins with; of the files it reads next, most names are too
/// short to be left in its bytes, but for that of the period.
fn detect_rust(path: &str, elf: &ElfEvidence) -> Option<DetectedProgram> {
    let asks = elf.calls.contains(&SizingCall::Affinity) || elf.mentions.contains(&ResourceSource::QuotaV1);
    if !elf.program || !asks {
        return None;
    }
    let version = elf.rustc.as_deref().unwrap_or_default();
    let num_cpus = elf.marks.get(NUM_CPUS).and_then(|version| ProgramVersion::parse(version.as_deref()?));
    // It knows v2 since 1.14.
    let traits =
        num_cpus.filter(|version| *version >= ProgramVersion(1, 14, 0)).map(|_| "num_cpus".to_owned());
    let mut evidence = vec![format!("rustc {version}"), "std::thread::available_parallelism".to_owned()];
    evidence.extend(num_cpus.map(|version| format!("num_cpus {version}")));
    Some(DetectedProgram {
        id: "rust".to_owned(),
        version: ProgramVersion::parse(version),
        path: path.to_owned(),
        traits: traits.into_iter().collect(),
        asks: BTreeSet::new(),
        evidence,
        users: None,
    })
}

fn detect_unknown(path: &str, elf: &ElfEvidence) -> Option<DetectedProgram> {
    let calls = elf.calls.iter().map(|call| call.source(elf.libc));
    let asks: BTreeSet<ResourceSource> = calls.chain(elf.mentions.iter().copied()).collect();
    if !elf.program || asks.is_empty() {
        return None;
    }
    let mut evidence: Vec<String> = elf.calls.iter().map(|call| format!("calls {}", call.name())).collect();
    evidence.extend(elf.mentions.iter().map(|source| format!("text \"{}\"", source.name())));
    if elf.libc == Libc::Musl {
        evidence.push("musl".to_owned());
    }
    Some(DetectedProgram {
        id: "program".to_owned(),
        version: None,
        path: path.to_owned(),
        traits: BTreeSet::new(),
        asks,
        evidence,
        users: None,
    })
}

fn detect_package(path: &str, name: &str, version: &str) -> Option<DetectedProgram> {
    Some(DetectedProgram {
        id: name.to_owned(),
        version: ProgramVersion::parse(version),
        path: path.to_owned(),
        traits: BTreeSet::new(),
        asks: BTreeSet::new(),
        evidence: vec![format!("{name} {version} is installed")],
        users: None,
    })
    .filter(|program| PYTHON_PACKAGES.contains(&program.id.as_str()))
}

/// What configuration files say about a program.
fn apply_settings(program: &mut DetectedProgram, index: &FileIndex<'_>) {
    for (path, setting) in index.settings.get(program.id.as_str()).into_iter().flatten() {
        let name = match (setting.key.as_str(), setting.value.as_str()) {
            ("worker_processes", "auto") => "auto",
            ("worker_processes", _) => "fixed",
            ("processes", value) if value.contains("%k") => "auto",
            ("thread_handling", value) => value,
            _ => continue,
        };
        program.traits.insert(name.to_owned());
        let path: String = path.chars().take(MAX_QUOTED_PATH).collect();
        program.evidence.push(match setting.value.as_str() {
            "" => format!("{path}: no {}", setting.key),
            value => format!("{path}: {} {value}", setting.key),
        });
    }
}

/// The `release` file of the home that a `libjvm.so` belongs to: two to four directories up.
fn java_release<'a>(
    path: &str,
    inventory: &'a Inventory,
) -> Option<(String, &'a super::evidence::JavaRelease)> {
    let mut directory = path;
    for _ in 0..5 {
        directory = directory.rsplit_once('/')?.0;
        let file = format!("{directory}/release");
        if let Some(FileEvidence::JavaRelease(release)) = inventory.files.get(&file) {
            return Some((file, release));
        }
    }
    None
}

/// Of a shared runtime by its directory, `.../Microsoft.NETCore.App/8.0.1`; of a program that brings its own by the
/// `*.runtimeconfig.json` beside it.
fn dotnet_version(path: &str, index: &FileIndex<'_>) -> Option<ProgramVersion> {
    if let Some((_, tail)) = path.split_once("Microsoft.NETCore.App/") {
        return ProgramVersion::parse(tail);
    }
    index.dotnet.get(path.rsplit_once('/')?.0).copied()
}

/// The sources that are about CPUs.
pub(super) fn cpu_sources() -> &'static [ResourceSource] {
    &[
        ResourceSource::Affinity,
        ResourceSource::SysOnline,
        ResourceSource::SysPossible,
        ResourceSource::SysPresent,
        ResourceSource::SysCpus,
        ResourceSource::Cpuinfo,
        ResourceSource::Stat,
        ResourceSource::QuotaV1,
        ResourceSource::SharesV1,
        ResourceSource::CpuMax,
    ]
}
