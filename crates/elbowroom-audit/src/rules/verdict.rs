//! What a program would see in a container, from what it reads and whose numbers are there.

use super::detect::{DetectedProgram, cpu_sources, programs};
use super::evidence::Inventory;
use super::shell::command_words;
use super::source::{CgroupInterface, Resource, ResourceSource, SourceScope};
use super::table::{AuditRow, DISPLAY_NAMES, ReadPattern, find_row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What becomes of a program's question, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditVerdict {
    /// It asks nothing.
    Nothing,
    /// The image itself settles it, by a variable or an argument.
    Settled,
    /// It sees the container's number, and asks again.
    Live,
    /// It sees the container's number when it starts, and keeps it.
    Start,
    /// Not known here.
    Unknown,
    /// It sees the machine's number.
    Host,
}

impl AuditVerdict {
    /// Every verdict, worst first.
    pub const ALL: [Self; 6] =
        [Self::Host, Self::Unknown, Self::Start, Self::Live, Self::Settled, Self::Nothing];

    /// In a word or two.
    pub fn label(self) -> &'static str {
        match self {
            Self::Nothing => "asks nothing",
            Self::Settled => "settled by image",
            Self::Live => "adapts live",
            Self::Start => "right at start",
            Self::Unknown => "unknown",
            Self::Host => "sees the host",
        }
    }
}

/// One question of one program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ResourceVerdict {
    /// What decides, as far as it is there under this cgroup version.
    pub reads: Vec<ResourceSource>,
    /// What is read besides and decides nothing.
    pub also: Vec<ResourceSource>,
    /// With the container's limits alone.
    pub limits: AuditVerdict,
    /// With Elbowroom's views in the container.
    pub views: AuditVerdict,
    /// What a person must know.
    pub note: &'static str,
    /// What to set; empty where there is nothing to.
    pub set: &'static str,
    /// What the image sets already.
    pub settled: Option<String>,
    /// The source of what is read.
    pub reference: &'static str,
}

/// One program with its answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditFinding {
    /// What was found.
    #[serde(flatten)]
    pub program: DetectedProgram,
    /// What people call it.
    pub name: &'static str,
    /// CPUs.
    pub cpu: ResourceVerdict,
    /// Memory.
    pub memory: ResourceVerdict,
    /// Whether it speaks for the image: a runtime, a server or a library that something uses, or what the image starts.
    /// The tools that come with every distribution do not.
    pub counts: bool,
}

impl AuditFinding {
    /// The worse of both answers.
    pub fn worst(&self, views: bool) -> AuditVerdict {
        let of = |answer: &ResourceVerdict| if views { answer.views } else { answer.limits };
        of(&self.cpu).max(of(&self.memory))
    }
}

/// One image or root directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageReport {
    /// As it was asked for.
    pub image: String,
    /// The cgroup version it is judged for.
    pub cgroup: CgroupInterface,
    /// The worst that counts, with limits alone.
    pub limits: AuditVerdict,
    /// The worst that counts, with Elbowroom's views.
    pub views: AuditVerdict,
    /// Worst first.
    pub findings: Vec<AuditFinding>,
    /// What was not looked at, and why.
    pub skipped: Vec<String>,
}

/// Judges everything in an inventory for containers of one cgroup version.
pub fn assess(image: &str, inventory: &Inventory, cgroup: CgroupInterface) -> ImageReport {
    let words = command_words(&inventory.command, &inventory.env);
    let launch = LaunchWords::of(inventory, &words);
    let mut findings: Vec<AuditFinding> =
        programs(inventory).into_iter().map(|program| program_finding(program, &launch, cgroup)).collect();
    let rank = |f: &AuditFinding| (!f.counts, std::cmp::Reverse((f.worst(false), f.worst(true))));
    findings.sort_by(|a, b| {
        rank(a).cmp(&rank(b)).then_with(|| (a.name, &a.program.path).cmp(&(b.name, &b.program.path)))
    });
    let worst = |views| {
        findings.iter().filter(|f| f.counts).map(|f| f.worst(views)).max().unwrap_or(AuditVerdict::Nothing)
    };
    ImageReport {
        image: image.to_owned(),
        cgroup,
        limits: worst(false),
        views: worst(true),
        skipped: inventory.skipped.clone(),
        findings,
    }
}

/// How many images have each verdict, worst first: the paper's Fig. 1, without and with views.
pub fn summary(reports: &[ImageReport]) -> Vec<(AuditVerdict, usize, usize)> {
    let count =
        |verdict, of: fn(&ImageReport) -> AuditVerdict| reports.iter().filter(|r| of(r) == verdict).count();
    AuditVerdict::ALL.into_iter().map(|v| (v, count(v, |r| r.limits), count(v, |r| r.views))).collect()
}

/// What an image sets and starts, looked at once for all its programs: it chooses how much there is of both.
struct LaunchWords<'a> {
    /// Whether nothing says what it starts.
    starts_nothing: bool,
    /// Names of programs in its command line, and in scripts there.
    names: BTreeSet<&'a str>,
    /// Words of the command line, and of variables whose value is more of them.
    options: BTreeSet<&'a str>,
    /// `NAME=value` of its environment, and of a script for what it starts; at most [`MAX_VARIABLES`].
    variables: Vec<&'a str>,
}

/// Linux gives a program 2 MiB of words by default; an image has some thirty variables.
const MAX_VARIABLES: usize = 4096;
/// Characters that are quoted of what settles a question, beside each program that asks it.
const MAX_QUOTED: usize = 200;

impl<'a> LaunchWords<'a> {
    /// `words`: of the image's command, and of scripts in it.
    fn of(inventory: &'a Inventory, words: &'a [String]) -> Self {
        let more = inventory.env.iter().filter_map(|entry| {
            let value = OPTION_VARIABLES.iter().find_map(|name| entry.strip_prefix(name))?;
            Some(value.split_whitespace())
        });
        let entries = inventory.env.iter().chain(words).map(String::as_str);
        Self {
            starts_nothing: inventory.command.is_empty(),
            names: words.iter().filter(|word| !word.is_empty()).map(|word| file_name(word)).collect(),
            options: words.iter().map(String::as_str).chain(more.flatten()).collect(),
            variables: entries.filter(|entry| entry.contains('=')).take(MAX_VARIABLES).collect(),
        }
    }

    /// What settles a row, as it is written in the image.
    fn settled(&self, row: &AuditRow) -> Option<String> {
        let settled = row.settled_by.iter().find_map(|start| match start.starts_with(['-', '+']) {
            true => self.options.range::<&str, _>(*start..).next().filter(|word| word.starts_with(start)),
            // A variable that is set to nothing settles nothing.
            false => self.variables.iter().find(|e| e.strip_prefix(start).is_some_and(|v| !v.is_empty())),
        });
        settled.map(|word| word.chars().take(MAX_QUOTED).collect())
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn program_finding(
    program: DetectedProgram,
    launch: &LaunchWords<'_>,
    cgroup: CgroupInterface,
) -> AuditFinding {
    let cpu = resource_verdict(&program, Resource::Cpu, launch, cgroup);
    let memory = resource_verdict(&program, Resource::Memory, launch, cgroup);
    let name = DISPLAY_NAMES.iter().find(|(id, _)| *id == program.id).map_or("", |(_, name)| *name);
    let counts = match (program.id.as_str(), program.users) {
        // Many images bring a small tool in Go or Rust beside what they are for. Where nothing says what an image starts,
        // it may be for these.
        ("go" | "rust", _) if launch.starts_nothing => true,
        ("program" | "go" | "rust", _) => launch.names.contains(file_name(&program.path)),
        (_, Some(users)) => users > 0,
        (_, None) => true,
    };
    AuditFinding { program, name, cpu, memory, counts }
}

fn resource_verdict(
    program: &DetectedProgram,
    resource: Resource,
    launch: &LaunchWords<'_>,
    cgroup: CgroupInterface,
) -> ResourceVerdict {
    let Some(row) = find_row(program, resource) else {
        return ResourceVerdict {
            reads: Vec::new(),
            also: Vec::new(),
            limits: AuditVerdict::Unknown,
            views: AuditVerdict::Unknown,
            note: "the table does not know this version",
            set: "",
            settled: None,
            reference: "",
        };
    };
    let decide: Vec<ResourceSource> = match row.reads {
        ReadPattern::AsDetected => {
            let about_cpus =
                |source: &ResourceSource| cpu_sources().contains(source) == (resource == Resource::Cpu);
            program.asks.iter().copied().filter(about_cpus).collect()
        }
        known => known.sources().to_vec(),
    };
    let there = |source: &&ResourceSource| source.cgroup().is_none_or(|version| version == cgroup);
    let settled = launch.settled(row);
    let verdict = |views: bool| match (row.reads, &settled) {
        (_, Some(_)) => AuditVerdict::Settled,
        (ReadPattern::Unknown, _) => AuditVerdict::Unknown,
        _ if decide.is_empty() => AuditVerdict::Nothing,
        (reads, _) if decide.iter().any(|source| source.scope(cgroup, views) == SourceScope::Container) => {
            if matches!(reads, ReadPattern::Repeatedly(_)) { AuditVerdict::Live } else { AuditVerdict::Start }
        }
        _ => AuditVerdict::Host,
    };
    ResourceVerdict {
        limits: verdict(false),
        views: verdict(true),
        reads: decide.iter().filter(there).copied().collect(),
        also: row.also.iter().filter(there).copied().collect(),
        note: row.note,
        set: row.set,
        settled,
        reference: row.reference,
    }
}

/// Variables whose value is more arguments.
const OPTION_VARIABLES: [&str; 6] = [
    "JAVA_TOOL_OPTIONS=",
    "JDK_JAVA_OPTIONS=",
    "_JAVA_OPTIONS=",
    "NODE_OPTIONS=",
    "ERL_FLAGS=",
    "ERL_AFLAGS=",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::evidence::{
        ElfEvidence, FileEvidence, GoBuild, JavaRelease, Libc, ServerSetting, SizingCall,
    };
    use AuditVerdict::{Host, Live, Nothing, Settled, Start};

    fn elf(program: bool) -> ElfEvidence {
        ElfEvidence { program, libc: Libc::Glibc, ..ElfEvidence::default() }
    }

    fn text(marks: &[(&str, Option<&str>)]) -> ElfEvidence {
        let marks = marks.iter().map(|(t, v)| ((*t).to_owned(), v.map(str::to_owned))).collect();
        ElfEvidence { marks, ..elf(true) }
    }

    fn defines(symbol: &str) -> ElfEvidence {
        ElfEvidence { defines: [symbol.to_owned()].into(), ..elf(false) }
    }

    fn inventory(files: &[(&str, FileEvidence)]) -> Inventory {
        let files = files.iter().map(|(path, evidence)| ((*path).to_owned(), evidence.clone())).collect();
        Inventory { files, ..Inventory::default() }
    }

    fn of(elf: ElfEvidence) -> FileEvidence {
        FileEvidence::Elf(Box::new(elf))
    }

    fn go(version: &str, godebug: &str, modules: &[&str]) -> FileEvidence {
        let modules = modules.iter().map(|m| (*m).to_owned()).collect();
        let go = GoBuild { version: version.to_owned(), modules, godebug: godebug.to_owned() };
        of(ElfEvidence { go: Some(go), ..elf(true) })
    }

    fn jvm(version: &str) -> Inventory {
        let library = ElfEvidence {
            marks: [("UseContainerSupport".to_owned(), None)].into(),
            ..defines("JNI_CreateJavaVM")
        };
        let release = JavaRelease { version: version.to_owned(), ..JavaRelease::default() };
        inventory(&[
            ("/opt/jdk/lib/server/libjvm.so", of(library)),
            ("/opt/jdk/release", FileEvidence::JavaRelease(release)),
        ])
    }

    fn nginx(workers: &str) -> Inventory {
        let setting = ServerSetting {
            program: "nginx".to_owned(),
            key: "worker_processes".to_owned(),
            value: workers.to_owned(),
        };
        inventory(&[
            ("/etc/nginx/nginx.conf", FileEvidence::Setting(setting)),
            ("/usr/sbin/nginx", of(text(&[("nginx/", Some("1.22.1")), ("worker_processes", None)]))),
        ])
    }

    /// CPUs with limits alone and with views, on v1 and on v2.
    fn check(inventory: &Inventory, v1: (AuditVerdict, AuditVerdict), v2: (AuditVerdict, AuditVerdict)) {
        for (cgroup, expect) in [(CgroupInterface::V1, v1), (CgroupInterface::V2, v2)] {
            let report = assess("x", inventory, cgroup);
            let cpu = &report.findings[0].cpu;
            assert_eq!((cpu.limits, cpu.views), expect, "{cgroup:?} {:?}", report.findings[0]);
        }
    }

    #[test]
    fn runtimes_are_judged_by_their_version() {
        check(&jvm("17.0.15"), (Live, Live), (Live, Live));
        check(&jvm("11.0.13"), (Live, Live), (Host, Host));
        check(&jvm("1.8.0_392"), (Live, Live), (Live, Live));
        check(&jvm("1.8.0_181"), (Host, Host), (Host, Host));
        check(&inventory(&[("/app", go("go1.24.1", "", &[]))]), (Host, Host), (Host, Host));
        check(&inventory(&[("/app", go("go1.25.0", "", &[]))]), (Live, Live), (Live, Live));
    }

    #[test]
    fn go_is_judged_by_how_it_was_built() {
        let old_module = go("go1.26.0", "containermaxprocs=0,updatemaxprocs=0", &[]);
        check(&inventory(&[("/app", old_module)]), (Host, Host), (Host, Host));
        let with_module = go("go1.22.0", "", &["go.uber.org/automaxprocs"]);
        check(&inventory(&[("/app", with_module)]), (Start, Start), (Start, Start));
    }

    #[test]
    fn only_a_view_reaches_what_limits_do_not_show() {
        check(&nginx("auto"), (Host, Start), (Host, Start));
        check(&nginx("4"), (Nothing, Nothing), (Nothing, Nothing));
        let python = ElfEvidence { defines: ["Py_BytesMain".to_owned()].into(), ..elf(true) };
        check(&inventory(&[("/usr/bin/python3.11", of(python.clone()))]), (Host, Live), (Host, Live));
        // 3.13 asks a system call, which no file reaches.
        check(&inventory(&[("/usr/bin/python3.13", of(python))]), (Host, Host), (Host, Host));
    }

    #[test]
    fn one_program_is_told_by_its_bytes_and_not_by_its_name() {
        let report = assess("x", &inventory(&[("/usr/sbin/nginx", of(elf(true)))]), CgroupInterface::V2);
        assert_eq!(report.findings, []);
        assert_eq!(report.limits, Nothing);
    }

    #[test]
    fn a_library_counts_when_something_uses_it() {
        let library = ElfEvidence { soname: Some("libgomp.so.1".to_owned()), ..defines("GOMP_parallel") };
        let alone = inventory(&[("/usr/lib/libgomp.so.1.0.0", of(library.clone()))]);
        assert_eq!(assess("x", &alone, CgroupInterface::V2).limits, Nothing);
        let program = ElfEvidence { needed: vec!["libgomp.so.1".to_owned()], ..elf(true) };
        let used = inventory(&[("/app", of(program)), ("/usr/lib/libgomp.so.1.0.0", of(library))]);
        assert_eq!(assess("x", &used, CgroupInterface::V2).limits, Host);
    }

    #[test]
    fn a_tool_counts_when_the_image_starts_it() {
        let tool = ElfEvidence { calls: [SizingCall::NprocessorsOnln].into(), ..elf(true) };
        let mut image = inventory(&[("/usr/bin/sort", of(tool))]);
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Nothing);
        image.command = vec!["/usr/bin/sort".to_owned()];
        let report = assess("x", &image, CgroupInterface::V2);
        assert_eq!((report.limits, report.views), (Host, Start));
    }

    #[test]
    fn a_small_tool_in_go_does_not_speak_for_an_image_that_starts_something_else() {
        let mut image = inventory(&[("/usr/local/bin/gosu", go("go1.18.2", "", &[]))]);
        assert_eq!(
            assess("x", &image, CgroupInterface::V2).limits,
            Host,
            "a directory says not what it starts"
        );
        image.command = vec!["docker-entrypoint.sh".to_owned(), "postgres".to_owned()];
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Nothing);
        image.command = vec!["gosu".to_owned()];
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Host);
    }

    #[test]
    fn a_shell_form_is_judged_as_the_exec_form() {
        let mut image = inventory(&[("/app", go("go1.18.2", "", &[]))]);
        for script in
            ["/app --port 80", "exec /app", "exec /app --port 80", "cd / && /app", "exec '/app'", "\"$APP\""]
        {
            image.env = vec!["APP=/app".to_owned()];
            image.command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
            assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Host, "{script}");
        }
        image.command = ["/bin/sh", "-c", "GOMAXPROCS=2 exec /app"].map(str::to_owned).to_vec();
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Settled);
        image.command = ["/bin/sh", "-c", "exec /other"].map(str::to_owned).to_vec();
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Nothing);
    }

    #[test]
    fn however_much_an_image_says_little_is_quoted_beside_each_program() {
        let mut image = nginx("auto");
        for n in 0..1_000 {
            let setting = image.files["/etc/nginx/nginx.conf"].clone();
            image.files.insert(format!("/{n}{}/nginx.conf", "x".repeat(4_000)), setting);
        }
        image.files.insert("/app".to_owned(), go("go1.22.1", "", &[]));
        image.env = vec![format!("GOMAXPROCS={}", "1".repeat(1 << 20))];
        let report = assess("x", &image, CgroupInterface::V2);
        assert_eq!(report.findings.len(), 2);
        for finding in &report.findings {
            let said = serde_json::to_string(finding).unwrap().len();
            assert!(said < 8 << 10, "{said} of {}", finding.name);
        }
    }

    #[test]
    fn files_of_one_kind_are_not_compared_with_each_other() {
        let files = (0..60_000).map(|n| {
            let needed = vec!["libc.so.6".to_owned()];
            (format!("/{n}/libgomp.so.1"), of(ElfEvidence { needed, ..defines("GOMP_parallel") }))
        });
        let image = Inventory { files: files.collect(), ..Inventory::default() };
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(assess("x", &image, CgroupInterface::V2).findings.len()));
        assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(60)), Ok(1));
    }

    #[test]
    fn musl_asks_a_system_call_where_glibc_reads_a_file() {
        let ask = |libc| of(ElfEvidence { calls: [SizingCall::NprocessorsOnln].into(), libc, ..elf(true) });
        check(&inventory(&[("/app", ask(Libc::Glibc))]), (Host, Start), (Host, Start));
        check(&inventory(&[("/app", ask(Libc::Musl))]), (Host, Host), (Host, Host));
    }

    #[test]
    fn what_an_image_sets_is_settled() {
        let mut image = inventory(&[("/app", go("go1.20", "", &[]))]);
        image.env = vec!["GOMAXPROCS=".to_owned()];
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Host, "set to nothing");
        image.env = vec!["GOMAXPROCS=2".to_owned()];
        let report = assess("x", &image, CgroupInterface::V2);
        assert_eq!(report.limits, Settled);
        assert_eq!(report.findings[0].cpu.settled.as_deref(), Some("GOMAXPROCS=2"));

        let mut image = jvm("11.0.13");
        image.env = vec!["JAVA_TOOL_OPTIONS=-Xmx1g -XX:ActiveProcessorCount=2".to_owned()];
        assert_eq!(assess("x", &image, CgroupInterface::V2).limits, Settled);
    }

    #[test]
    fn a_version_that_no_rule_knows_is_unknown() {
        let library = ElfEvidence {
            marks: [("UseContainerSupport".to_owned(), None)].into(),
            ..defines("JNI_CreateJavaVM")
        };
        let report =
            assess("x", &inventory(&[("/jdk/lib/server/libjvm.so", of(library))]), CgroupInterface::V2);
        assert_eq!(report.limits, AuditVerdict::Unknown);
    }

    #[test]
    fn the_summary_counts_each_image_once_under_each_rule() {
        let reports: Vec<ImageReport> = [nginx("auto"), nginx("4"), jvm("11.0.13")]
            .iter()
            .map(|inventory| assess("x", inventory, CgroupInterface::V2))
            .collect();
        let summary = summary(&reports);
        assert_eq!(summary[0], (Host, 2, 1));
        assert_eq!(summary.iter().map(|(_, limits, _)| limits).sum::<usize>(), 3);
        assert_eq!(summary.iter().map(|(.., views)| views).sum::<usize>(), 3);
    }
}
