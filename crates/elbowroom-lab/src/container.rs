//! Containers to measure in. Every variant of an experiment gets containers made by the same code with the same limits;
//! only the files mounted over `/proc` and `/sys` differ.
//!
//! Two makers: the lab's own (`reader contain`: cgroups and namespaces and nothing else, so it works on a bare kernel and
//! makes hundreds a second) and Docker, through its command line and whatever `DOCKER_HOST` says.

use crate::cgroup::{Cgroups, Layout, Limits};
use crate::scope::{Created, Scope, reap};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Who makes containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// The lab: cgroups and namespaces over the host's root file system.
    Own,
    /// Docker, from an image with one static program.
    Docker,
}

/// Makes containers.
#[derive(Debug)]
pub(crate) struct Maker {
    layout: Layout,
    scope: Arc<Scope>,
    reader: PathBuf,
    image: Option<String>,
    parent: String,
    /// Directories of the host that containers of an engine have, too, and where.
    see: Mutex<Vec<(PathBuf, PathBuf)>>,
}

/// A running container. Dropping it ends it and removes its cgroups.
#[derive(Debug)]
pub(crate) struct Container {
    /// What the experiment calls it.
    pub(crate) name: String,
    /// What Elbowroom calls it: the engine's identifier, or the cgroup's path for the lab's own.
    pub(crate) id: String,
    /// Its first process, as the host numbers it.
    pub(crate) pid: i32,
    /// Its cgroups.
    pub(crate) cgroups: Cgroups,
    reader: PathBuf,
    inner_reader: PathBuf,
    life: Life,
}

/// What keeps a container alive. A container of the lab's own lives as long as its first process's stdin.
#[derive(Debug)]
enum Life {
    Own { stdin: Option<ChildStdin> },
    Docker { scope: Arc<Scope>, created: Created },
}

impl Maker {
    /// A maker whose cgroups lie below one parent of this run's own.
    pub(crate) fn new(engine: Engine, scope: &Arc<Scope>, reader: &Path) -> Result<Self> {
        let parent = format!("elbowroom-lab-{}", std::process::id());
        let mut maker = Self {
            layout: Layout::detect()?,
            scope: Arc::clone(scope),
            reader: fs::canonicalize(reader).with_context(|| format!("no {}", reader.display()))?,
            image: None,
            parent,
            see: Mutex::default(),
        };
        if engine == Engine::Docker {
            maker.image = Some(maker.import_image()?);
        }
        Ok(maker)
    }

    /// The machine's cgroup layout.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Shows containers of an engine these directories of the host from now on: (there, inside).
    pub(crate) fn see(&self, directories: Vec<(PathBuf, PathBuf)>) {
        *self.see.lock().expect("nobody panics with it") = directories;
    }

    /// A glob, in the manner of `/proc/PID/cgroup` paths, that matches the lab's own containers whose names begin so.
    pub(crate) fn cgroup_glob(&self, prefix: &str) -> String {
        format!("/{}/{prefix}*", self.parent)
    }

    /// A cgroup without processes, for containers whose names begin with its name and a slash.
    pub(crate) fn group(&self, name: &str, limits: &Limits) -> Result<Cgroups> {
        Cgroups::create(&self.layout, &self.scope, &self.parent, name, limits)
    }

    /// Whether containers are the lab's own, with all programs of the host.
    pub(crate) fn is_own(&self) -> bool {
        self.image.is_none()
    }

    /// Makes a container; `mounts` are (file on the host, path in the container).
    pub(crate) fn make(
        &self,
        name: &str,
        limits: &Limits,
        mounts: &[(PathBuf, PathBuf)],
    ) -> Result<Container> {
        match &self.image {
            None => self.make_own(name, limits, mounts),
            Some(image) => self.make_docker(image, name, limits, mounts),
        }
        .with_context(|| format!("while making the container \"{name}\""))
    }

    fn make_own(&self, name: &str, limits: &Limits, mounts: &[(PathBuf, PathBuf)]) -> Result<Container> {
        let cgroups = Cgroups::create(&self.layout, &self.scope, &self.parent, name, limits)?;
        let mut command = Command::new(&self.reader);
        command.arg("contain").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (controller, dir) in cgroups.dirs() {
            command.arg("cgroup").arg(dir);
            match (controller.as_str(), self.layout.is_v2()) {
                ("", true) => command.args(["cgroupns", "cgroupfs", "."]).arg(dir),
                ("", false) => command.args(["cgroupfs", "unified"]).arg(dir),
                (controller, _) => command.args(["cgroupfs", controller]).arg(dir),
            };
        }
        for (from, to) in mounts {
            command.arg("bind").arg(from).arg(to);
        }
        let mut child = command.spawn().context("while starting reader contain")?;
        let stdin = child.stdin.take();
        let out = child.wait_with_output().context("while waiting for reader contain")?;
        if !out.status.success() {
            bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let pid =
            String::from_utf8_lossy(&out.stdout).trim().parse().context("reader contain printed no PID")?;
        Ok(Container {
            name: name.to_owned(),
            id: format!("/{}/{name}", self.parent),
            pid,
            cgroups,
            reader: self.reader.clone(),
            inner_reader: self.reader.clone(),
            life: Life::Own { stdin },
        })
    }

    fn make_docker(
        &self,
        image: &str,
        name: &str,
        limits: &Limits,
        mounts: &[(PathBuf, PathBuf)],
    ) -> Result<Container> {
        let full = format!("{}-{name}", self.parent);
        let created = Created::DockerContainer(full.clone());
        self.scope.add(created.clone())?;
        let mut args =
            vec!["run".to_owned(), "--detach".into(), "--network=none".into(), format!("--name={full}")];
        args.extend(limits.cpus.map(|cpus| format!("--cpus={cpus}")));
        args.extend(limits.memory_mib.map(|mib| format!("--memory={mib}m")));
        args.extend(limits.soft_mib.map(|mib| format!("--memory-reservation={mib}m")));
        let see = self.see.lock().expect("nobody panics with it");
        let volumes = mounts.iter().chain(see.iter());
        args.extend(volumes.map(|(from, to)| format!("--volume={}:{}:ro", from.display(), to.display())));
        args.extend([image.to_owned(), "/reader".into(), "pause".into()]);
        let id = docker(&args)?;
        let pid = docker(&["inspect".into(), "--format={{.State.Pid}}".into(), id.clone()])?;
        let pid = pid.parse().with_context(|| format!("docker says the container's PID is \"{pid}\""))?;
        Ok(Container {
            name: name.to_owned(),
            id,
            pid,
            cgroups: Cgroups::of(&self.layout, pid)?,
            reader: self.reader.clone(),
            inner_reader: "/reader".into(),
            life: Life::Docker { scope: Arc::clone(&self.scope), created },
        })
    }

    fn import_image(&self) -> Result<String> {
        let root = self.scope.dir().join("image");
        let made = fs::create_dir_all(&root).and_then(|()| fs::copy(&self.reader, root.join("reader")));
        made.with_context(|| format!("while making {}", root.display()))?;
        // Where the host's /usr is shown, its programs are found.
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{link}"), root.join(link)).context("while making an image")?;
        }
        let name = format!("{}:latest", self.parent);
        docker_image(&self.scope, &name, &root)?;
        Ok(name)
    }
}

/// Makes an image of Docker's from a directory. It is gone with the scope.
pub(crate) fn docker_image(scope: &Scope, name: &str, root: &Path) -> Result<()> {
    let tar = root.with_extension("tar");
    let mut command = Command::new("tar");
    command.arg("-cf").arg(&tar).arg("-C").arg(root).arg(".");
    if !command.status().context("while running tar")?.success() {
        bail!("tar could not pack {}", root.display());
    }
    scope.add(Created::DockerImage(name.to_owned()))?;
    docker(&["import".into(), tar.display().to_string(), name.to_owned()])?;
    Ok(())
}

impl Container {
    /// A `reader` command that will run inside this container: its cgroups and its namespaces.
    pub(crate) fn reader(&self, verb: &str, args: &[String]) -> Command {
        let mut command = self.command(&self.inner_reader);
        command.arg(verb).args(args);
        command
    }

    /// The same for any program that the container's root file system has, by its whole path.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.reader);
        command.arg("enter").arg(self.pid.to_string());
        for (_, dir) in self.cgroups.dirs() {
            command.arg("cgroup").arg(dir);
        }
        command.arg("--").arg(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a `reader` command inside this container to its end and returns what it printed.
    pub(crate) fn read(&self, verb: &str, args: &[String]) -> Result<String> {
        let out = self.reader(verb, args).output().context("while starting the reader")?;
        if !out.status.success() {
            let error = String::from_utf8_lossy(&out.stderr);
            bail!("reader {verb} {} in {}: {}", args.join(" "), self.name, error.trim());
        }
        String::from_utf8(out.stdout).context("the reader printed something that is not text")
    }

    /// Where this container's own setting of `controller` (v1) or any controller (v2) shows inside it.
    pub(crate) fn cgroup_file(&self, controller: &str, file: &str) -> PathBuf {
        let v2 = !self.cgroups.dirs().iter().any(|(c, _)| c == controller);
        Path::new("/sys/fs/cgroup").join(if v2 { "" } else { controller }).join(file)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        match &mut self.life {
            Life::Own { stdin } => {
                drop(stdin.take());
                let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
                while !crate::procfs::is_zombie(self.pid) && std::time::Instant::now() < until {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                reap(self.pid);
            }
            Life::Docker { scope, created } => scope.take_down(created),
        }
    }
}

fn docker(args: &[String]) -> Result<String> {
    let out = Command::new("docker").args(args).stdin(Stdio::null()).output();
    let out = out.context("while running docker; is it installed?")?;
    if !out.status.success() {
        bail!("docker {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
