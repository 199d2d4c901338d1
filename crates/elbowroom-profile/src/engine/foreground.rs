//! One program in a container that is waited for, as `profile gpu` needs it: runc around the host's own `/usr`, with the devices and
//! directories that are named. What differs from the program on the host is the container and nothing else.

use super::command::{ProcessEnd, wait_for_end};
use super::{
    EngineDriver, EngineError, EngineKind, EngineSession, EngineUse, NAME_PREFIX, bundle, file_error,
};
use elbowroom_linux::signal;
use elbowroom_linux::signal::SignalFd;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// A program, and what it finds in its container.
#[derive(Clone, Debug, Default)]
pub struct ContainerProgram {
    /// Command and arguments; the command as a path, or to be found in `PATH`.
    pub words: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Directories and files of the host that it may read, at the same paths.
    pub readable_paths: Vec<PathBuf>,
    /// The directory that it may write to, at the same path; where it runs.
    pub work_dir: PathBuf,
    /// Devices that it may use, such as `/dev/nvidia0`.
    pub devices: Vec<PathBuf>,
}

impl ContainerProgram {
    /// Runs it on the host; what it prints is thrown away, what it complains about goes to standard error. `None` where one of
    /// `signals` came first: it is killed then, with what it started.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_on_host(&self, signals: &SignalFd) -> std::io::Result<Option<ExitStatus>> {
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).env_clear().envs(environment).current_dir(&self.work_dir);
        run_until_signal(&mut command, signals)
    }
}

/// Runs a command in a process group of its own, until it ends or one of `signals` comes.
fn run_until_signal(command: &mut Command, signals: &SignalFd) -> std::io::Result<Option<ExitStatus>> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    match wait_for_end(signal::unblock_in_child(command).spawn()?, None, Some(signals))? {
        ProcessEnd::Status(status) => Ok(Some(status)),
        ProcessEnd::TimedOut | ProcessEnd::Interrupted => Ok(None),
    }
}

impl EngineSession {
    /// Runs a program in a container and waits for its end, or for one of `signals`: `None`. The container is gone then.
    ///
    /// # Errors
    /// The engine is not runc or crun, or does not remove the container, or a file cannot be written.
    pub fn run(
        &self,
        program: &ContainerProgram,
        number: usize,
        signals: &SignalFd,
    ) -> Result<Option<ExitStatus>, EngineError> {
        let (EngineKind::Runc | EngineKind::Crun, EngineDriver::Cli(_)) = (self.kind, &self.driver) else {
            return Err(EngineError::Unsuitable {
                engine: self.kind,
                takes: "containers that outlive the command that starts them",
                instead: "runc or crun",
            });
        };
        let name = format!("{NAME_PREFIX}-{}-{number}", self.run.tag);
        let directory = self.run.dir.join("bundles").join(&name);
        self.run.record_engine(&EngineUse::from_environment(self.kind))?;
        fs::create_dir_all(&directory).map_err(file_error("making", &directory))?;
        let path = directory.join("config.json");
        let config = configuration(&bundle::root(&self.run.dir)?, program, &name);
        fs::write(&path, config.to_string()).map_err(file_error("writing", &path))?;
        let mut command = Command::new(self.kind.name());
        command.arg("--root").arg(self.run.dir.join("state"));
        command.args(["run", "--bundle"]).arg(&directory).arg(&name);
        let status = run_until_signal(&mut command, signals)
            .map_err(file_error("starting", Path::new(self.kind.name())))?;
        if status.is_none() {
            // Only the engine's command was killed; the container may run on.
            self.remove(&name)?;
        }
        let _ = fs::remove_dir_all(&directory);
        Ok(status)
    }
}

fn configuration(root: &Path, program: &ContainerProgram, name: &str) -> Value {
    let mut config = bundle::host_configuration(root, &program.words);
    let environment: Vec<String> =
        program.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    config["process"]["env"] = json!(environment);
    config["process"]["cwd"] = json!(program.work_dir);
    config["linux"]["cgroupsPath"] = json!(format!("/{name}"));
    let bind = |path: &PathBuf, how: &str| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", how]});
    let mounts = config["mounts"].as_array_mut().expect("`of_host` has mounts");
    mounts.extend(
        program.readable_paths.iter().filter(|path| !is_already_present(path)).map(|path| bind(path, "ro")),
    );
    // Where the dynamic linker finds libraries outside its own directories, such as CUDA's.
    let cache = PathBuf::from("/etc/ld.so.cache");
    if cache.is_file() {
        mounts.push(bind(&cache, "ro"));
    }
    mounts.push(bind(&program.work_dir, "rw"));
    let mut nodes = Vec::new();
    for path in &program.devices {
        let Ok(data) = fs::metadata(path) else { continue };
        let (major, minor) = (rustix::fs::major(data.rdev()), rustix::fs::minor(data.rdev()));
        nodes.push(json!({"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}));
        let allowed = json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"});
        let rules = config["linux"]["resources"]["devices"].as_array_mut();
        rules.expect("`of_host` has rules").push(allowed);
    }
    config["linux"]["devices"] = json!(nodes);
    config
}

/// Whether it is below /usr, or leads there in every root, as `/bin` does: it is in the container already.
fn is_already_present(path: &Path) -> bool {
    let is_linked = || bundle::LINKS.iter().any(|link| path.starts_with(Path::new("/").join(link)));
    path.starts_with("/usr") || is_linked() && path.canonicalize().is_ok_and(|real| real.starts_with("/usr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_the_programs_environment_directories_and_devices_and_no_others() {
        let program = ContainerProgram {
            words: vec!["/opt/x/bench".into(), "lu".into()],
            environment: vec![("A".into(), "1".into())],
            readable_paths: ["/opt/x", "/usr/lib", "/bin"].map(Into::into).to_vec(),
            work_dir: "/tmp/trace".into(),
            devices: vec!["/dev/null".into(), "/dev/no-such-device".into()],
        };
        let config = configuration(Path::new("/r"), &program, "n");
        assert_eq!(
            (&config["process"]["env"], &config["process"]["cwd"]),
            (&json!(["A=1"]), &json!("/tmp/trace"))
        );
        let of = |path: &str| {
            let all = config["mounts"].as_array().unwrap();
            all.iter().find(|mount| mount["destination"] == path).map(|mount| mount["options"].clone())
        };
        assert_eq!(of("/opt/x"), Some(json!(["rbind", "ro"])));
        assert_eq!(of("/tmp/trace"), Some(json!(["rbind", "rw"])));
        assert_eq!(of("/usr/lib"), None);
        assert!(of("/bin").is_none() || !Path::new("/bin").is_symlink(), "it would be mounted over /usr/bin");
        let rules = &config["linux"]["resources"]["devices"];
        assert_eq!(rules[0]["allow"], false, "what is not named is refused");
        assert_eq!((&rules[1]["major"], &rules[1]["minor"]), (&json!(1), &json!(3)));
        assert_eq!(config["linux"]["devices"].as_array().unwrap().len(), 1);
    }
}
