//! The six phases, once under each policy, from a machine that has forgotten the run before.

use super::policy::Policy;
use super::story::{Asked, Demand, Story, Who};
use super::voice::{Decisions, Voice};
use super::{Arm, Machine, Sample};
use crate::cgroup::{Cgroups, Limits};
use crate::container::Container;
use crate::database::{self, Load, Second, Server};
use crate::job::{Lab, now_ns};
use crate::product::Product;
use crate::rig::{self, SlowDisk};
use crate::scope::{Created, Scope};
use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Speed of a guest's disk while nothing is measured; each container's part is limited by the kernel.
const DISK_BYTES_PER_S: u64 = 400_000_000;
/// The most that a guest keeps for itself beside the two containers, in MiB: its watermarks, pages of programs, and sysbench.
const SPARE_MIB: u64 = 64;
/// How long another container takes to fill a guest.
const FILL_MS: u64 = 1000;
/// Longer than any campaign.
const FOREVER_MS: u64 = 1 << 40;
/// How often a container is looked at while it is alone.
const ALONE_S: u32 = 15;

/// How often the agent is asked what it decided: it remembers the last 20. Each question takes time of the CPUs that only
/// Elbowroom's policies are without.
const EXPLAIN_EVERY: Duration = Duration::from_secs(5);
const SECOND_NS: u64 = 1_000_000_000;

/// The databases and the cgroup around those who use them.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    /// What happens.
    pub(super) story: Story,
    machine: &'a Machine,
    /// Around both containers; it has a limit where it stands for the machine.
    _around: Cgroups,
    data: [PathBuf; 2],
    mount: Created,
    scope: Arc<Scope>,
    disk: SlowDisk,
}

/// A container with a database. The server ends before the container: fields are dropped in order.
#[derive(Debug)]
struct Actor {
    who: Who,
    server: Server,
    container: Container,
    voice: Voice,
}

impl<'a> Stage<'a> {
    /// Makes the databases.
    pub(super) fn set(lab: &Lab, machine: &'a Machine, phase: u32) -> Result<Self> {
        let mut disks = rig::open_for_files(&lab.scope, 1, DISK_BYTES_PER_S)?;
        let disk = disks.pop().context("a disk was asked for")?;
        let mount = rig::mount_ext4(&lab.scope, &disk)?;
        // Only what is asked for is read: InnoDB's requests are at random places, and what the kernel guesses is noise.
        let ahead = format!("/sys/block/{}/queue/read_ahead_kb", disk.name);
        fs::write(&ahead, "0").with_context(|| format!("while writing {ahead}"))?;
        eprintln!("making databases");
        let table = database::prepare(&lab.scope, &mount, 2, Story::rows(machine.guest))?;
        let story = Story::of(table, machine.guest, phase);
        let limit = machine.stand_in.then_some(story.machine_mib);
        let around = lab.maker.group("machine", &Limits { memory_mib: limit, ..Limits::default() })?;
        let data = ["0", "1"].map(|name| mount.join(name));
        let mount = Created::Mount(mount);
        Ok(Self { story, machine, _around: around, data, mount, scope: Arc::clone(&lab.scope), disk })
    }

    /// All six phases under a policy.
    pub(super) fn tell(&self, lab: &Lab, policy: Policy) -> Result<Arm> {
        let client = lab.maker.make("client", &Limits::default(), &[])?;
        let _others = self.fill(lab)?;
        let actors = self.actors(lab, policy, &Who::ALL)?;
        let agent = self.agent(lab, policy, &actors)?;
        let ids: Vec<(Who, String)> = actors.iter().map(|a| (a.who, a.container.id.clone())).collect();
        let begin = now_ns() + u64::from(self.story.settle) * SECOND_NS;
        let mut decisions = Decisions::default();
        let samples: Result<Vec<Vec<Sample>>> = thread::scope(|threads| {
            let client = &client;
            let drive = |actor: Actor| {
                let asked = self.story.asked(actor.who);
                threads.spawn(move || self.drive(lab, actor, client, begin, &asked))
            };
            let told: Vec<_> = actors.into_iter().map(drive).collect();
            while let Some(agent) = agent.as_ref().filter(|_| told.iter().any(|t| !t.is_finished())) {
                for (who, id) in &ids {
                    decisions.ask(agent, *who, id, begin)?;
                }
                lab.scope.sleep(EXPLAIN_EVERY)?;
            }
            told.into_iter().map(|t| t.join().expect("no thread of a story panics")).collect()
        });
        let samples = samples?.try_into().ok().context("two containers were driven")?;
        drop(agent);
        Ok(Arm { policy, samples, decided: decisions.all })
    }

    /// One container alone with all memory, under a high load.
    pub(super) fn alone(&self, lab: &Lab, who: Who) -> Result<Vec<Sample>> {
        let client = lab.maker.make("client", &Limits::default(), &[])?;
        let _others = self.fill(lab)?;
        let actor = self.actors(lab, Policy::None, &[who])?.pop().context("one was asked for")?;
        let settle = self.story.settle;
        let begin = now_ns() + u64::from(settle) * SECOND_NS;
        let asked = self.story.pieces(-i64::from(settle), settle + ALONE_S, self.story.rate(Demand::High));
        self.drive(lab, actor, &client, begin, &asked)
    }

    /// Containers with warm databases: what fits of each was read, at the disk's full speed.
    fn actors(&self, lab: &Lab, policy: Policy, who: &[Who]) -> Result<Vec<Actor>> {
        self.forget()?;
        let make = |who: &Who| {
            let name = format!("machine/{}-{}", policy.word(), who.name());
            let container = lab.maker.make(&name, &policy.limits(self.story.role(*who)), &[])?;
            container.cgroups.count_io(&self.disk.number)?;
            let (data, socket) = (&self.data[*who as usize], lab.scope.dir().join(who.name()));
            let server = Server::start(&lab.scope, Some(&container), data, &socket)?;
            let (file, objective) = (socket.with_extension("probe"), self.story.role(*who).objective);
            Ok(Actor { who: *who, server, container, voice: Voice { file, objective } })
        };
        let actors: Vec<Actor> = who.iter().map(make).collect::<Result<_>>()?;
        let warm = |actor: &Actor| {
            let mut command = actor.container.command(Path::new("/usr/bin/env"));
            command.arg("cat").arg(database::table(&self.data[actor.who as usize])).stdout(Stdio::null());
            command.spawn().context("while warming a database")
        };
        // To begin with, memory is divided evenly: who was first would otherwise have most of it, and keep it.
        let even = who.len() > 1 && policy.limits(self.story.roles[0]).memory_mib.is_none();
        let half = ((self.story.machine_mib / 2) << 20).to_string();
        let hold = |bytes: [&str; 2]| {
            let set = |actor: &Actor| {
                let files = ["memory.limit_in_bytes", "memory.max"];
                actor.container.cgroups.set_memory((files[0], bytes[0]), (files[1], bytes[1]))
            };
            actors.iter().filter(|_| even).try_for_each(set)
        };
        hold([&half, &half])?;
        let warming: Vec<Child> = actors.iter().map(warm).collect::<Result<_>>()?;
        for mut child in warming {
            ensure!(child.wait().context("while warming a database")?.success(), "a database cannot be read");
        }
        hold(["-1", "max"])?;
        actors
            .iter()
            .try_for_each(|actor| actor.container.cgroups.limit_io(&self.disk.number, self.story.disk))?;
        Ok(actors)
    }

    /// Asks a container for what it is asked for, and writes down what it does. It ends when nothing more is asked.
    fn drive(
        &self,
        lab: &Lab,
        actor: Actor,
        client: &Container,
        begin: u64,
        asked: &[Asked],
    ) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        let (mut before, mut over): (Option<Load>, Vec<Load>) = (None, Vec::new());
        for &Asked { at, seconds, rate } in asked {
            let due = begin.saturating_add_signed(at * SECOND_NS as i64);
            lab.scope.sleep(Duration::from_nanos(due.saturating_sub(now_ns())))?;
            let mut load = actor.server.load(client, self.story.rows, self.story.at_once, rate, seconds)?;
            // The last second of the one before ends when the next one has begun. Where little was asked it takes seconds to notice
            // that its time is over; what it says of them is not what is asked now.
            if let Some(mut before) = before.take() {
                if let Some(second) = before.next()? {
                    samples.push(self.sample(&actor, begin, second)?);
                }
                over.push(before);
            }
            // It says a line a second. To wait for the last would make the next begin late, and those after it later still.
            let ends = due + u64::from(seconds) * SECOND_NS;
            while now_ns() + SECOND_NS <= ends {
                lab.scope.check()?;
                let Some(second) = load.next()? else { break };
                samples.push(self.sample(&actor, begin, second)?);
            }
            before = Some(load);
        }
        if let Some(mut last) = before {
            if let Some(second) = last.next()? {
                samples.push(self.sample(&actor, begin, second)?);
            }
            over.push(last);
        }
        over.into_iter().try_for_each(Load::finish)?;
        samples.retain(|sample| sample.ms >= 500);
        Ok(samples)
    }

    fn sample(&self, actor: &Actor, begin: u64, second: Second) -> Result<Sample> {
        let cgroups = &actor.container.cgroups;
        actor.voice.say(second.done, second.done + second.queue as f64)?;
        Ok(Sample {
            ms: (now_ns() as i64 - begin as i64) / 1_000_000,
            tps: second.done.round() as u32,
            queue: second.queue,
            mib: cgroups.memory_bytes()? >> 20,
            cache_mib: cgroups.memory_stat()?.get("file").map_or(0, |bytes| bytes >> 20),
        })
    }

    /// In a guest that is to be short of memory itself: a container that holds what the two may not use.
    fn fill(&self, lab: &Lab) -> Result<Option<Container>> {
        if self.machine.stand_in {
            return Ok(None);
        }
        let others = lab.maker.make("others", &Limits::default(), &[])?;
        self.forget()?;
        let text = fs::read_to_string("/proc/meminfo").context("while reading /proc/meminfo")?;
        let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let available: u64 = available
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
            .context("/proc/meminfo has no MemAvailable")?;
        let wanted = self.story.machine_mib + SPARE_MIB;
        let most = (available >> 10).saturating_sub(wanted);
        ensure!(most > 0, "the guest has {} MiB to give and this needs {wanted}: -m more", available >> 10);
        hold_more(lab, &others, most)?;
        // What the kernel keeps for itself is less than what was spared for it; by how much shows only when all is used, and differs
        // from run to run.
        let left = self.left(lab)?;
        let more = left.checked_sub(self.story.machine_mib).with_context(|| {
            format!("{left} MiB are left, of which two containers need {}: -m more", self.story.machine_mib)
        })?;
        eprintln!("{left} MiB were left, {more} more are held");
        if more > 0 {
            hold_more(lab, &others, more)?;
        }
        Ok(Some(others))
    }

    /// How much page cache a container gets that reads more than there is room for, in MiB.
    fn left(&self, lab: &Lab) -> Result<u64> {
        let container = lab.maker.make("tide", &Limits::default(), &[])?;
        let path = self.data[0].with_file_name("holes");
        let holes = File::create(&path).with_context(|| format!("while making {}", path.display()))?;
        holes.set_len((4 * self.story.machine_mib) << 20).context("while making a file of holes")?;
        let mut command = container.command(Path::new("/usr/bin/env"));
        let status =
            command.arg("cat").arg(&path).stdout(Stdio::null()).status().context("while reading holes")?;
        ensure!(status.success(), "a file of holes cannot be read");
        let stat = container.cgroups.memory_stat()?;
        fs::remove_file(&path).with_context(|| format!("while removing {}", path.display()))?;
        Ok(stat.get("file").map_or(0, |bytes| bytes >> 20))
    }

    /// Lets go of what is cached of the databases, and thereby of whom it is charged to.
    fn forget(&self) -> Result<()> {
        self.data.iter().try_for_each(|dir| let_go(dir))
    }

    fn agent(&self, lab: &Lab, policy: Policy, actors: &[Actor]) -> Result<Option<Product>> {
        let containers: Vec<_> = actors
            .iter()
            .map(|actor| {
                let id = actor.container.id.as_str();
                (id, self.story.role(actor.who), actor.voice.file.as_path())
            })
            .collect();
        let settings = policy.settings(&containers);
        settings.map(|settings| lab.agent(&format!("machine/{}", policy.word()), &settings)).transpose()
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.scope.take_down(&self.mount);
    }
}

/// Has a container hold so many MiB more, until it ends.
fn hold_more(lab: &Lab, container: &Container, mib: u64) -> Result<()> {
    let anon =
        || -> Result<u64> { Ok(container.cgroups.memory_stat()?.get("anon").map_or(0, |bytes| bytes >> 20)) };
    let whole = anon()? + mib;
    let words = [0, FILL_MS, mib, FOREVER_MS].map(|word| word.to_string());
    let args: Vec<String> = [now_ns().to_string(), "grow".to_owned()].into_iter().chain(words).collect();
    // It ends with its container.
    container.reader("load", &args).spawn().context("while filling the guest's memory")?;
    lab.scope.wait_for("filling the guest's memory", Duration::from_secs(120), || Ok(anon()? >= whole))
}

fn let_go(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("while reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            let_go(&path)?;
            continue;
        }
        let file = File::open(&path).with_context(|| format!("while opening {}", path.display()))?;
        file.sync_all().with_context(|| format!("while writing {}", path.display()))?;
        fadvise(&file, 0, None, Advice::DontNeed)
            .with_context(|| format!("while letting go of {}", path.display()))?;
    }
    Ok(())
}
