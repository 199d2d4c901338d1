//! What a profiler notes while it makes things, and what a later one removes by that where it was killed.

use super::{
    ContainerOptions, ENGINE_KINDS, EngineDriver, EngineError, EngineKind, EngineSession, RUN_DIR,
    file_error, scratch,
};
use elbowroom_linux::bounded;
use elbowroom_linux::process;
use elbowroom_linux::process::{start_ticks, stat_line};
use std::fs::{self, DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long what a killed profiler had begun may take to end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// An engine as a profiler used it, which later ones have to find again: a line `KIND ADDRESS NAMESPACE` of the file `engine` in its
/// run directory. What is absent is what the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EngineUse {
    pub(super) kind: EngineKind,
    /// Where its daemon answers, if it has one.
    pub(super) address: Option<String>,
    /// containerd's.
    pub(super) namespace: Option<String>,
}

impl EngineUse {
    /// The engine that the environment says.
    pub(super) fn from_environment(kind: EngineKind) -> Self {
        Self { kind, address: None, namespace: None }
    }

    fn parse(line: &str) -> Option<Self> {
        let (kind, place) = line.split_once(' ').map_or((line, None), |(kind, place)| (kind, Some(place)));
        let kind = ENGINE_KINDS.into_iter().find(|known| known.name() == kind)?;
        let (address, namespace) = match (kind, place) {
            // A path may have spaces, a namespace has none.
            (EngineKind::Containerd, Some(place)) => place.rsplit_once(' ').unzip(),
            (_, place) => (place, None),
        };
        Some(Self { kind, address: address.map(str::to_owned), namespace: namespace.map(str::to_owned) })
    }
}

impl std::fmt::Display for EngineUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.name())?;
        [&self.address, &self.namespace].into_iter().flatten().try_for_each(|word| write!(f, " {word}"))
    }
}

/// What is of one profiler.
#[derive(Clone, Debug)]
pub(super) struct ProfilerRun {
    /// `PID-STARTED`.
    pub(super) tag: String,
    pub(super) dir: PathBuf,
}

/// Removes what profilers left that were killed, with the engines that they used: how many profilers, and what could not be removed.
pub fn clean() -> (usize, Vec<String>) {
    clean_below(Path::new(RUN_DIR), Path::new(scratch::PARENT))
}

fn clean_below(runs: &Path, scratches: &Path) -> (usize, Vec<String>) {
    let mut left = Vec::new();
    let mut tags: Vec<String> = fs::read_dir(runs)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .chain(scratch::tags(scratches))
        .filter(|tag| !is_alive(tag))
        .collect();
    tags.sort_unstable();
    tags.dedup();
    for tag in &tags {
        let run = ProfilerRun { dir: runs.join(tag), tag: tag.clone() };
        let used = bounded::file_text(run.dir.join("engine"), bounded::SETTINGS_FILE).unwrap_or_default();
        let mut errors = Vec::new();
        run.wait_for_started_programs();
        for used in used.lines().filter_map(EngineUse::parse) {
            let (kind, noted) = (used.kind, used.address.is_some());
            match EngineDriver::open(used, &ContainerOptions::default()) {
                Ok(driver) => errors.extend(EngineSession { kind, run: run.clone(), driver }.sweep_all(&run)),
                // Another address would be another daemon's.
                Err(EngineError::Unresponsive { engine, address, why, .. }) if noted => errors.push(format!(
                    "{engine} does not answer on {address}: {why}; start it, or remove {} where it is gone for good",
                    run.dir.display()
                )),
                Err(error) => errors.push(error.to_string()),
            }
        }
        if errors.is_empty() {
            errors.extend(run.remove_run_dir());
        }
        if let Err(error) = scratch::remove(scratches, tag) {
            errors.push(format!("while removing what a profiled program wrote: {error}"));
        }
        left.extend(errors);
    }
    let _ = fs::remove_dir(runs);
    (tags.len(), left)
}

/// The most bytes of a command line that are looked at: an engine's is short, a stranger's is as long as it likes.
const MAX_COMMAND_BYTES: u64 = 64 << 10;

impl ProfilerRun {
    /// The run directory of this process.
    pub(super) fn open() -> Result<Self, EngineError> {
        Self::open_below(Path::new(RUN_DIR))
    }

    fn open_below(runs: &Path) -> Result<Self, EngineError> {
        let tag = own_tag();
        let dir = runs.join(&tag);
        // A container's /tmp is below, where every user may write.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(file_error("making", &dir))?;
        Ok(Self { tag, dir })
    }

    /// Notes that this run uses an engine, for [`clean`].
    pub(super) fn record_engine(&self, used: &EngineUse) -> Result<(), EngineError> {
        let (path, line) = (self.dir.join("engine"), used.to_string());
        let mut noted = bounded::file_text(&path, bounded::SETTINGS_FILE).unwrap_or_default();
        if !noted.lines().any(|known| known == line) {
            noted.push_str(&line);
            noted.push('\n');
            fs::write(&path, noted).map_err(file_error("writing", &path))?;
        }
        Ok(())
    }

    /// Waits for the programs of engines that a killed profiler had started: they live on, and make what they were asked for.
    fn wait_for_started_programs(&self) {
        let dir = self.dir.as_os_str().as_bytes();
        let is_in_it = |pid: u32| {
            let words = File::open(format!("/proc/{pid}/cmdline"));
            let words = words.and_then(|words| bounded::beginning(words, MAX_COMMAND_BYTES));
            let words = words.unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word.starts_with(dir))
        };
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while process::all_pids().into_iter().any(is_in_it) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Removes the run directory, and with it what was noted; why not, where that fails.
    pub(super) fn remove_run_dir(&self) -> Option<String> {
        let removed = fs::remove_dir_all(&self.dir);
        let _ = self.dir.parent().map(fs::remove_dir);
        let error = removed.err().filter(|error| error.kind() != std::io::ErrorKind::NotFound)?;
        Some(format!("while removing {}: {error}", self.dir.display()))
    }
}

/// This process, as later ones know whether it still runs: `PID-STARTED`.
pub(super) fn own_tag() -> String {
    let pid = std::process::id();
    format!("{pid}-{}", started(pid).unwrap_or(0))
}

/// Whether the profiler of `tag` still runs. What is no tag is not removed.
fn is_alive(tag: &str) -> bool {
    let Some((pid, ticks)) = tag.split_once('-') else { return true };
    match (pid.parse(), ticks.parse()) {
        (Ok(pid), Ok(ticks)) => started(pid) == Some(ticks),
        _ => true,
    }
}

fn started(pid: u32) -> Option<u64> {
    start_ticks(&stat_line(format!("/proc/{pid}"))?)
}

#[cfg(test)]
mod tests {
    use super::super::NAME_PREFIX;
    use super::super::docker::DockerEngine;
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, Mutex};

    #[test]
    fn only_what_dead_profilers_made_may_be_removed() {
        assert!(is_alive(&own_tag()));
        assert!(!is_alive(&format!("{}-1", std::process::id())), "the number was used again");
        assert!(!is_alive(&format!("{}-1", i32::MAX)));
        for foreign in ["lost+found", "x", "1-x", "-"] {
            assert!(is_alive(foreign), "{foreign}");
        }
    }

    #[test]
    fn what_a_profiler_makes_is_for_one_user() {
        use std::os::unix::fs::MetadataExt;
        let runs = tempfile::tempdir().unwrap();
        let run = ProfilerRun::open_below(&runs.path().join("runs")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!([mode(&run.dir), mode(run.dir.parent().unwrap())], [0o700; 2]);
    }

    #[test]
    fn what_is_noted_of_an_engine_leads_to_it_again() {
        let of = |kind, address: Option<&str>, namespace: Option<&str>| EngineUse {
            kind,
            address: address.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
        };
        for (line, used) in [
            ("docker unix:///a b/docker.sock", of(EngineKind::Docker, Some("unix:///a b/docker.sock"), None)),
            (
                "containerd /a b/c.sock k8s.io",
                of(EngineKind::Containerd, Some("/a b/c.sock"), Some("k8s.io")),
            ),
            ("runc", of(EngineKind::Runc, None, None)),
            // Of profilers that noted no more.
            ("docker", of(EngineKind::Docker, None, None)),
            ("containerd", of(EngineKind::Containerd, None, None)),
        ] {
            assert_eq!(EngineUse::parse(line).as_ref(), Some(&used), "{line}");
            assert_eq!(used.to_string(), line);
        }
        assert_eq!(EngineUse::parse("lxc /x"), None);
    }

    /// What a profiler left that was killed while at the daemon on `socket`: the directory of all runs, and that of this one.
    fn killed_at(socket: &Path) -> (tempfile::TempDir, PathBuf) {
        let runs = tempfile::tempdir().unwrap();
        let run = ProfilerRun { tag: TAG.into(), dir: runs.path().join(TAG) };
        fs::create_dir(&run.dir).unwrap();
        let address = Some(format!("unix://{}", socket.display()));
        run.record_engine(&EngineUse { kind: EngineKind::Docker, address, namespace: None }).unwrap();
        (runs, run.dir)
    }

    /// Of no profiler that runs.
    const TAG: &str = "2147483647-1";

    #[test]
    fn containers_of_a_killed_profiler_are_removed_where_it_made_them() {
        let there = tempfile::tempdir().unwrap();
        let daemon = StandIn::start(&there.path().join("docker.sock"));
        let (runs, run) = killed_at(&daemon.socket);
        assert_eq!(clean_below(runs.path(), there.path()), (1, Vec::new()));
        let container = format!("DELETE /containers/{NAME_PREFIX}-{TAG}-0");
        assert!(daemon.asked().iter().any(|line| line.starts_with(&container)), "{:?}", daemon.asked());
        assert!(!run.exists());
    }

    #[test]
    fn what_a_killed_profiler_left_is_not_forgotten_while_its_daemon_is_away() {
        let there = tempfile::tempdir().unwrap();
        let (runs, run) = killed_at(&there.path().join("docker.sock"));
        let (_, left) = clean_below(runs.path(), there.path());
        assert!(matches!(&left[..], [why] if why.contains("docker.sock") && why.contains(TAG)), "{left:?}");
        assert!(run.exists());
    }

    #[test]
    fn what_a_killed_profiler_had_begun_is_made_and_removed() {
        let (runs, scratches) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let run = runs.path().join(TAG);
        fs::create_dir(&run).unwrap();
        let script = "sleep 0.3; exec mkdir -p \"$1/state/late\"";
        let mut engine =
            std::process::Command::new("sh").args(["-c", script, "sh"]).arg(&run).spawn().unwrap();
        // Before that its words are ours.
        let words = format!("/proc/{}/cmdline", engine.id());
        while !fs::read_to_string(&words).unwrap().starts_with("sh\0-c") {
            std::thread::yield_now();
        }
        assert_eq!(clean_below(runs.path(), scratches.path()), (1, Vec::new()));
        assert!(engine.wait().unwrap().success());
        assert!(!run.exists());
    }

    #[test]
    fn an_image_that_is_still_used_is_not_gone() {
        let there = tempfile::tempdir().unwrap();
        let daemon = StandIn::start(&there.path().join("docker.sock"));
        daemon.image_is_used.store(true, Relaxed);
        let docker = DockerEngine::open(
            &ContainerOptions::default(),
            Some(&format!("unix://{}", daemon.socket.display())),
        );
        let docker = docker.unwrap();
        assert!(docker.forget_image(TAG).unwrap_err().to_string().contains("in use"));
        docker.remove("being-removed").unwrap();
    }

    /// Answers as Docker would that has one container of [`TAG`], until it is removed.
    struct StandIn {
        socket: PathBuf,
        asked: Arc<Mutex<Vec<String>>>,
        image_is_used: Arc<AtomicBool>,
    }

    impl StandIn {
        fn start(socket: &Path) -> Self {
            let (asked, image_is_used) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
            let listener = UnixListener::bind(socket).unwrap();
            let (lines, used) = (Arc::clone(&asked), Arc::clone(&image_is_used));
            // Ends with the test's process.
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut line = String::new();
                    BufReader::new(&stream).read_line(&mut line).unwrap();
                    let is_there = !lines.lock().unwrap().iter().any(|line| line.starts_with("DELETE /cont"));
                    let (status, body) = match line.split('?').next().unwrap() {
                        path if path.starts_with("GET /version") => (200, r#"{"Version": "1"}"#.to_owned()),
                        "GET /containers/json" if is_there => {
                            (200, format!(r#"[{{"Names": ["/{NAME_PREFIX}-{TAG}-0"]}}]"#))
                        }
                        "GET /containers/json" => (200, "[]".to_owned()),
                        "DELETE /containers/being-removed" => (409, "{}".to_owned()),
                        path if path.starts_with("DELETE /images") && used.load(Relaxed) => {
                            (409, r#"{"message": "it is in use"}"#.to_owned())
                        }
                        path if path.starts_with("DELETE /containers") => (204, String::new()),
                        _ => (404, "{}".to_owned()),
                    };
                    lines.lock().unwrap().push(line);
                    write!(stream, "HTTP/1.0 {status} X\r\n\r\n{body}").unwrap();
                }
            });
            Self { socket: socket.to_owned(), asked, image_is_used }
        }

        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }
    }
}
