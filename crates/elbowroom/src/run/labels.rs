//! A command's settings for governors: labels in a file. An agent finds them as it finds those of engines, even one that is started later
//! ([`elbowroom_linux::discover`]).

use anyhow::Context;
use clap::Args;
use elbowroom_agent::probes::settings::ProbeSettings;
use elbowroom_client::control::labels_dir;
use elbowroom_types::label::{self, PREFIX};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// A run that has written its labels has its cgroup sooner.
const ORPHAN_AGE: Duration = Duration::from_secs(60);

/// The flags, named as the labels are.
#[derive(Args, Debug, Default)]
pub(crate) struct LabelArgs {
    /// Its weight for governors, 1 to 10000, or "weight=300 tier=1 class=latency" where there is not enough for all.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// Its reservation of every disk it uses, for example "rbps=50MiB/s wiops=200/s".
    #[arg(long, value_name = "RATES")]
    disk_reservation: Option<String>,
}

/// The labels of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunLabels(BTreeMap<String, String>);

impl RunLabels {
    /// Reads the flags; what is wrong is refused here. What a probe says of its records is a label too: they reach the agent by
    /// themselves.
    pub(crate) fn parse(args: &LabelArgs, probe: Option<&ProbeSettings>) -> anyhow::Result<Self> {
        let mut labels = BTreeMap::new();
        let mut take = |key: &str, value: &Option<String>, check: &dyn Fn(&str) -> Result<(), String>| {
            let Some(value) = value else { return Ok(()) };
            check(value).map_err(anyhow::Error::msg).with_context(|| format!("--{key} {value:?}"))?;
            labels.insert(format!("{PREFIX}{key}"), value.clone());
            anyhow::Ok(())
        };
        take("priority", &args.priority, &|value| label::parse_priority(value).map(drop))?;
        take("disk-reservation", &args.disk_reservation, &|value| {
            label::parse_disk_reservation(value).map(drop)
        })?;
        let words = probe.map(ProbeSettings::terms_text).filter(|words| !words.is_empty());
        labels.extend(words.map(|words| (format!("{PREFIX}probe"), words)));
        Ok(Self(labels))
    }

    /// Puts them where the agent of `run_dir` looks; none take away what an earlier run of this name left. The file is there whole or
    /// not at all.
    pub(crate) fn write(&self, run_dir: &Path, name: &str) -> anyhow::Result<()> {
        let dir = labels_dir(run_dir);
        if self.0.is_empty() {
            remove(&dir, name);
            return Ok(());
        }
        // No container's name begins with a dot.
        let (file, draft, text) =
            (dir.join(name), dir.join(format!(".{name}")), serde_json::to_vec(&self.0)?);
        let write = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            fs::write(&draft, &text)?;
            fs::rename(&draft, &file)
        };
        // Another run that ends may remove the empty directory at any moment.
        let mut done = write();
        for _ in 0..100 {
            match &done {
                Err(error) if error.kind() == ErrorKind::NotFound => done = write(),
                _ => break,
            }
        }
        done.with_context(|| file.display().to_string())
    }
}

/// Takes away what runs left that were killed before they had a cgroup: files of a minute ago and earlier, whose name no cgroup has.
pub(crate) fn remove_orphans(dir: &Path, has_cgroup: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|at| at.elapsed().ok());
        let file = entry.file_name().to_string_lossy().into_owned();
        if age.is_some_and(|age| age > ORPHAN_AGE) && !has_cgroup(file.trim_start_matches('.')) {
            remove(dir, &file);
        }
    }
}

/// Takes a run's labels away, and their directory with the last. Says nothing: the next run of this name does it again.
pub(crate) fn remove(dir: &Path, name: &str) {
    match fs::remove_file(dir.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        _ => drop(fs::remove_dir(dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(priority: Option<&str>, disk: Option<&str>) -> LabelArgs {
        LabelArgs { priority: priority.map(str::to_owned), disk_reservation: disk.map(str::to_owned) }
    }

    #[test]
    fn flags_that_are_no_labels_are_refused_and_say_why() {
        for (flags, expect) in [
            (args(Some("high"), None), "--priority \"high\": high: write KEY=VALUE"),
            (args(Some("0"), None), "--priority \"0\": weight: 0 is not between 1 and 10000"),
            (args(None, Some("50MiB/s")), "--disk-reservation \"50MiB/s\": 50MiB/s: write KEY=VALUE"),
        ] {
            assert_eq!(format!("{:#}", RunLabels::parse(&flags, None).unwrap_err()), expect);
        }
    }

    #[test]
    fn a_file_is_there_where_there_are_labels_and_goes_without() {
        let run = tempfile::tempdir().unwrap();
        let labels = RunLabels::parse(&args(Some("tier=1"), Some("rbps=5MiB/s")), None).unwrap();
        labels.write(run.path(), "web").unwrap();
        RunLabels::parse(&args(Some("7"), None), None).unwrap().write(run.path(), "db").unwrap();
        let text = fs::read_to_string(run.path().join("labels/web")).unwrap();
        let expect = r#"{"elbowroom.dev/disk-reservation":"rbps=5MiB/s","elbowroom.dev/priority":"tier=1"}"#;
        assert_eq!(text, expect);
        let probe = ProbeSettings::parse("file:/x objective=800", true).unwrap();
        let labels = RunLabels::parse(&args(None, None), Some(&probe)).unwrap();
        assert_eq!(
            labels.0.into_iter().collect::<Vec<_>>(),
            [("elbowroom.dev/probe".into(), "objective=800".into())]
        );
        RunLabels::default().write(run.path(), "web").unwrap();
        let names =
            |dir: &Path| fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(names(&labels_dir(run.path())), ["db"]);
        // Of runs that were killed on their way: one has its cgroup, one is only just beginning.
        let old = std::time::SystemTime::now() - 2 * ORPHAN_AGE;
        for name in ["left", ".half", "there", "new"] {
            let file = fs::File::create(labels_dir(run.path()).join(name)).unwrap();
            file.set_modified(if name == "new" { old + 2 * ORPHAN_AGE } else { old }).unwrap();
        }
        remove_orphans(&labels_dir(run.path()), |name| name == "there");
        let mut left = names(&labels_dir(run.path()));
        left.sort();
        assert_eq!(left, ["db", "new", "there"]);
        for name in ["db", "new", "there", "never"] {
            remove(&labels_dir(run.path()), name);
        }
        assert!(names(run.path()).is_empty());
    }
}
