//! Which programs an inventory holds: each needs evidence in its bytes; a name alone is none.

use super::evidence::{Call, Elf, Evidence, GoBuild, Inventory, Libc};
use super::source::Source;
use super::version::Version;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A program that was found, before anything is said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its name in [`super::table`]; `program` for one that the table does not know.
    pub id: String,
    /// As its own bytes, or the file beside it, say.
    pub version: Option<Version>,
    /// The file that says so. Of several, the first.
    pub path: String,
    /// What sets one build or one configuration apart from another.
    pub traits: BTreeSet<String>,
    /// What it asks, where that can be seen in the file itself.
    pub asks: BTreeSet<Source>,
    /// What was seen, in words.
    pub evidence: Vec<String>,
    /// Files that are linked with it; `None` for what is no library.
    pub users: Option<usize>,
}

/// Symbols that tell what a library is, or whom a program calls.
pub const SYMBOLS: [&str; 8] = [
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
struct Rule {
    id: &'static str,
    texts: &'static [&'static str],
    symbols: &'static [&'static str],
    version: From,
}

/// Where its version is.
enum From {
    /// Beside the first text.
    Text,
    /// At the end of its own name: `libruby-3.1.so.3.1`, `python3.11`.
    Name,
    /// Somewhere else, or nowhere.
    Elsewhere,
}

const RULES: &[Rule] = &[
    rule("openj9", &["Eclipse OpenJ9"], &[], From::Elsewhere),
    rule("jvm", &["UseContainerSupport"], &["JNI_CreateJavaVM"], From::Elsewhere),
    rule("jvm", &["OpenJDK 64-Bit"], &["JNI_CreateJavaVM"], From::Elsewhere),
    rule("native-image", &["com.oracle.svm.core"], &[], From::Elsewhere),
    rule("node", &["nodejs.org/download/release/v"], &[], From::Text),
    rule("bun", &["https://bun.sh/", "oven-sh/bun"], &[], From::Elsewhere),
    rule("deno", &["https://deno.land/", "deno_core"], &[], From::Elsewhere),
    rule("python", &[], &["Py_BytesMain"], From::Name),
    rule("ruby", &[], &["ruby_init"], From::Name),
    rule("php", &["X-Powered-By: PHP/"], &[], From::Text),
    rule("nginx", &["nginx/", "worker_processes"], &[], From::Text),
    rule("postgres", &["postgres (PostgreSQL) ", "max_parallel_workers"], &[], From::Text),
    rule("mariadb", &["-MariaDB", "innodb_buffer_pool_size", "thread_pool_size"], &[], From::Text),
    rule("mysql", &["innodb_dedicated_server", "innodb_buffer_pool_size"], &[], From::Elsewhere),
    rule("redis", &["redis_version:%s", "maxmemory-policy"], &[], From::Elsewhere),
    rule("erlang", &["(BEAM) emulator version "], &[], From::Text),
    rule("haproxy", &["global.nbthread", "haproxy_version"], &[], From::Elsewhere),
    rule("apache", &["Apache/", "ServerRoot"], &[], From::Text),
    rule("memcached", &["memcached ", "lru_crawler_running"], &[], From::Text),
    rule("uwsgi", &["*** Starting uWSGI "], &[], From::Text),
    rule("dotnet", &[], &["coreclr_initialize"], From::Elsewhere),
    rule("openblas", &["OpenBLAS ", "OPENBLAS_NUM_THREADS"], &[], From::Text),
    // LLVM's library offers GNU's calls too.
    rule("libomp", &[], &["__kmpc_fork_call"], From::Elsewhere),
    rule("libgomp", &[], &["GOMP_parallel"], From::Elsewhere),
    rule("tbb", &[], &["TBB_runtime_interface_version"], From::Elsewhere),
    rule("jemalloc", &[], &["mallctl"], From::Elsewhere),
];

const fn rule(
    id: &'static str,
    texts: &'static [&'static str],
    symbols: &'static [&'static str],
    version: From,
) -> Rule {
    Rule { id, texts, symbols, version }
}

/// Texts that set builds of one program apart: the text, the program, the trait.
const TRAITS: &[(&str, &str, &str)] =
    &[("USE_OPENMP", "openblas", "openmp"), ("pm.max_children", "php", "fpm")];

/// The crate that most Rust programs counted with before std could, as its sources are called in panic messages.
const NUM_CPUS: &str = "num_cpus-";

/// Go modules that size the runtime by the container's limits.
pub const GO_MODULES: [&str; 2] = ["go.uber.org/automaxprocs", "github.com/KimMachineGun/automemlimit"];

/// Python packages that ask for themselves.
pub const PYTHON_PACKAGES: [&str; 3] = ["torch", "joblib", "psutil"];

/// Every text to look for in a file, without those that name a [`Source`].
pub fn marks() -> BTreeSet<&'static str> {
    let texts = RULES.iter().flat_map(|rule| rule.texts.iter().copied());
    texts.chain(TRAITS.iter().map(|(text, ..)| *text)).chain([NUM_CPUS]).collect()
}

/// Every text to look for that names a [`Source`].
pub const MENTIONS: [(&str, Source); 15] = [
    ("/sys/devices/system/cpu/online", Source::SysOnline),
    ("/sys/devices/system/cpu/possible", Source::SysPossible),
    ("/sys/devices/system/cpu/present", Source::SysPresent),
    ("/proc/cpuinfo", Source::Cpuinfo),
    ("/proc/stat", Source::Stat),
    ("/proc/meminfo", Source::Meminfo),
    ("cpu.cfs_quota_us", Source::QuotaV1),
    ("cpu.cfs_period_us", Source::QuotaV1),
    ("cpu.shares", Source::SharesV1),
    ("cpu.max", Source::CpuMax),
    ("memory.limit_in_bytes", Source::LimitV1),
    ("memory.soft_limit_in_bytes", Source::SoftLimitV1),
    ("memory.max", Source::MemoryMax),
    ("memory.high", Source::MemoryHigh),
    ("memory.pressure", Source::MemoryPressure),
];

/// The programs of an inventory, each once, however many files it consists of.
pub fn programs(inventory: &Inventory) -> Vec<Program> {
    let mut found: BTreeMap<(String, Option<Version>, String), Program> = BTreeMap::new();
    for (path, evidence) in &inventory.files {
        let Some(mut program) = (match evidence {
            Evidence::Elf(elf) => of_elf(path, elf, inventory),
            Evidence::PythonPackage { name, version } => of_package(path, name, version),
            Evidence::JavaRelease(_) | Evidence::Dotnet(_) | Evidence::Setting(_) => None,
        }) else {
            continue;
        };
        with_settings(&mut program, inventory);
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

fn of_elf(path: &str, elf: &Elf, inventory: &Inventory) -> Option<Program> {
    if let Some(go) = &elf.go {
        return elf.program.then(|| of_go(path, go));
    }
    let rule = RULES.iter().find(|rule| {
        rule.texts.iter().all(|text| elf.marks.contains_key(*text))
            && rule.symbols.iter().all(|symbol| elf.defines.contains(*symbol))
    });
    match rule {
        Some(rule) => Some(of_rule(path, elf, rule, inventory)),
        None if elf.rustc.is_some() => of_rust(path, elf),
        None => of_unknown(path, elf),
    }
}

fn of_rule(path: &str, elf: &Elf, rule: &Rule, inventory: &Inventory) -> Program {
    let mut evidence: Vec<String> = rule.texts.iter().map(|text| format!("text \"{text}\"")).collect();
    evidence.extend(rule.symbols.iter().map(|symbol| format!("defines {symbol}")));
    let name = path.rsplit('/').next().unwrap_or(path);
    let version = match rule.version {
        From::Text => rule.texts.first().and_then(|text| elf.marks.get(*text)?.as_deref()),
        From::Name => elf.soname.as_deref().unwrap_or(name).find(|c: char| c.is_ascii_digit()).map(|at| {
            let name = elf.soname.as_deref().unwrap_or(name);
            name.rsplit_once(".so.").filter(|_| rule.id == "ruby").map_or(&name[at..], |(_, tail)| tail)
        }),
        From::Elsewhere => None,
    };
    let mut version = version.and_then(|text| Version::parse(text.trim_end_matches('.')));
    match rule.id {
        "jvm" | "openj9" => {
            if let Some((release, java)) = java_release(path, inventory) {
                version = Version::parse_java(&java.version);
                let vendor = java.implementor.as_deref().unwrap_or("of unknown vendor");
                evidence.push(format!("{release}: JAVA_VERSION {}, {vendor}", java.version));
            }
        }
        "dotnet" => {
            version = dotnet_version(path, inventory);
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
    let users = library.then(|| {
        let soname = elf.soname.as_deref().unwrap_or(name);
        inventory
            .files
            .values()
            .filter(|other| matches!(other, Evidence::Elf(other) if other.needed.iter().any(|n| n == soname)))
            .count()
    });
    Program {
        id: rule.id.to_owned(),
        version,
        path: path.to_owned(),
        traits,
        asks: BTreeSet::new(),
        evidence,
        users,
    }
}

fn of_go(path: &str, go: &GoBuild) -> Program {
    let mut traits: BTreeSet<String> = go.modules.iter().cloned().collect();
    // A module whose go.mod names a Go before 1.25 keeps that Go's ways: runtime/runtime2.go, `internal/godebugs`.
    traits.extend(go.godebug.split(',').filter(|s| s.contains("maxprocs=0")).map(str::to_owned));
    let mut evidence = vec![format!("build information: {}", go.version)];
    evidence.extend(traits.iter().cloned());
    Program {
        id: "go".to_owned(),
        version: Version::parse(&go.version),
        path: path.to_owned(),
        traits,
        asks: BTreeSet::new(),
        evidence,
        users: None,
    }
}

/// A Rust program that counts CPUs imports the call that std begins with; of the files it reads next, most names are too
/// short to be left in its bytes, but for that of the period.
fn of_rust(path: &str, elf: &Elf) -> Option<Program> {
    let asks = elf.calls.contains(&Call::Affinity) || elf.mentions.contains(&Source::QuotaV1);
    if !elf.program || !asks {
        return None;
    }
    let version = elf.rustc.as_deref().unwrap_or_default();
    let num_cpus = elf.marks.get(NUM_CPUS).and_then(|version| Version::parse(version.as_deref()?));
    // It knows v2 since 1.14.
    let traits = num_cpus.filter(|version| *version >= Version(1, 14, 0)).map(|_| "num_cpus".to_owned());
    let mut evidence = vec![format!("rustc {version}"), "std::thread::available_parallelism".to_owned()];
    evidence.extend(num_cpus.map(|version| format!("num_cpus {version}")));
    Some(Program {
        id: "rust".to_owned(),
        version: Version::parse(version),
        path: path.to_owned(),
        traits: traits.into_iter().collect(),
        asks: BTreeSet::new(),
        evidence,
        users: None,
    })
}

fn of_unknown(path: &str, elf: &Elf) -> Option<Program> {
    let calls = elf.calls.iter().map(|call| call.source(elf.libc));
    let asks: BTreeSet<Source> = calls.chain(elf.mentions.iter().copied()).collect();
    if !elf.program || asks.is_empty() {
        return None;
    }
    let mut evidence: Vec<String> = elf.calls.iter().map(|call| format!("calls {}", call.name())).collect();
    evidence.extend(elf.mentions.iter().map(|source| format!("text \"{}\"", source.name())));
    if elf.libc == Libc::Musl {
        evidence.push("musl".to_owned());
    }
    Some(Program {
        id: "program".to_owned(),
        version: None,
        path: path.to_owned(),
        traits: BTreeSet::new(),
        asks,
        evidence,
        users: None,
    })
}

fn of_package(path: &str, name: &str, version: &str) -> Option<Program> {
    Some(Program {
        id: name.to_owned(),
        version: Version::parse(version),
        path: path.to_owned(),
        traits: BTreeSet::new(),
        asks: BTreeSet::new(),
        evidence: vec![format!("{name} {version} is installed")],
        users: None,
    })
    .filter(|program| PYTHON_PACKAGES.contains(&program.id.as_str()))
}

/// What configuration files say about a program.
fn with_settings(program: &mut Program, inventory: &Inventory) {
    for (path, evidence) in &inventory.files {
        let Evidence::Setting(setting) = evidence else { continue };
        if setting.program != program.id {
            continue;
        }
        let name = match (setting.key.as_str(), setting.value.as_str()) {
            ("worker_processes", "auto") => "auto",
            ("worker_processes", _) => "fixed",
            ("processes", value) if value.contains("%k") => "auto",
            ("thread_handling", value) => value,
            _ => continue,
        };
        program.traits.insert(name.to_owned());
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
        if let Some(Evidence::JavaRelease(release)) = inventory.files.get(&file) {
            return Some((file, release));
        }
    }
    None
}

/// Of a shared runtime by its directory, `.../Microsoft.NETCore.App/8.0.1`; of a program that brings its own by the
/// `*.runtimeconfig.json` beside it.
fn dotnet_version(path: &str, inventory: &Inventory) -> Option<Version> {
    if let Some((_, tail)) = path.split_once("Microsoft.NETCore.App/") {
        return Version::parse(tail);
    }
    let directory = path.rsplit_once('/')?.0;
    inventory.files.iter().find_map(|(file, evidence)| match evidence {
        Evidence::Dotnet(dotnet) if file.rsplit_once('/').map(|(d, _)| d) == Some(directory) => {
            dotnet.version.as_deref().and_then(Version::parse)
        }
        _ => None,
    })
}

/// The sources that are about CPUs.
pub(super) fn cpu_sources() -> &'static [Source] {
    &[
        Source::Affinity,
        Source::SysOnline,
        Source::SysPossible,
        Source::SysPresent,
        Source::SysCpus,
        Source::Cpuinfo,
        Source::Stat,
        Source::QuotaV1,
        Source::SharesV1,
        Source::CpuMax,
    ]
}
