//! One story, told once under each variant, from a machine that has forgotten the one before.

use super::story::{HostJob, Others, Story, Variant, Work};
use super::{Arm, Machine};
use crate::cgroup::{Cgroups, Limits, pairs};
use crate::container::Container;
use crate::job::{Lab, now_ns};
use crate::rig::{self, SlowDisk};
use crate::scope::{Created, Scope};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Time between two samples of the application's cgroup.
const MEMORY_MS: u64 = 200;
/// How long memory takes to be filled at least.
const FILL_MS: u64 = 1000;
/// After the story, in case a start is late.
const FOREVER_MS: u64 = 3_600_000;

/// What happens to the whole machine, or to the group that stands for it.
const WHOLE: [&str; 8] = [
    "pgsteal_kswapd",
    "pgsteal_direct",
    "allocstall_dma32",
    "allocstall_normal",
    "allocstall_movable",
    "pswpin",
    "pswpout",
    "limit_hit",
];
const APP: [&str; 4] = ["workingset_refault_file", "workingset_refault_anon", "pgmajfault", "limit_hit"];

/// The files and the cgroup that all variants share.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    machine: &'a Machine,
    story: &'a Story,
    java: PathBuf,
    /// What lies around the groups of a story.
    above: Cgroups,
    /// What the application reads, on the disk.
    data: PathBuf,
    /// What the host and others read: a file of holes, which takes cache but no time of the disk, so that what the application
    /// loses it loses to memory.
    holes: PathBuf,
    swap: Option<Created>,
    mount: Created,
    scope: Arc<Scope>,
    /// Files, then swap.
    disks: Vec<SlowDisk>,
}

impl<'a> Stage<'a> {
    /// Makes the files, and swap where there is a disk for it.
    pub(super) fn set(lab: &Lab, story: &'a Story, machine: &'a Machine, java: PathBuf) -> Result<Self> {
        let limit = machine.stand_in.then_some(machine.mib);
        let above = lab.maker.group("machine", &Limits { memory_mib: limit, ..Limits::default() })?;
        let count = if machine.guest { 2 } else { 1 }; // the second is for swap
        let disks = rig::open_for_files(&lab.scope, count, super::DISKS_BYTES_PER_S[1])?;
        let files = rig::mount_ext4(&lab.scope, &disks[0])?;
        let swap = disks.get(1).filter(|_| !story.crowded); // or others' memory would not stay where it is
        let swap = swap.map(|disk| swap_on(&lab.scope, disk)).transpose()?;
        let (data, holes) = (files.join("data"), files.join("holes"));
        let mut file = File::create(&data).context("while making the application's file")?;
        for _ in 0..story.file_mib {
            file.write_all(&[7; 1 << 20]).context("while writing the application's file")?;
        }
        file.sync_all().context("while syncing the application's file")?;
        let size = story.others_mib << 20;
        File::create(&holes).and_then(|f| f.set_len(size)).context("while making a file of holes")?;
        Ok(Self {
            machine,
            story,
            java,
            above,
            data,
            holes,
            swap,
            mount: Created::Mount(files),
            scope: Arc::clone(&lab.scope),
            disks,
        })
    }

    /// Tells it.
    pub(super) fn tell(&self, lab: &Lab, variant: Variant) -> Result<Arm> {
        let story = self.story;
        self.forget()?;
        if self.machine.guest {
            self.disks[0].set_speed(super::DISKS_BYTES_PER_S[1])?; // until the application is ready
        }
        let limit = |mib| Limits { memory_mib: mib, ..Limits::default() };
        let make = |name: &str, mib| lab.maker.make(&format!("machine/{name}"), &limit(mib), &[]);
        let app = make("app", variant.strategy.app_limit_mib(story))?;
        let (host, others) = (make("host", None)?, make("others", None)?);
        let mut jvm = self.start(&app, variant)?;
        let with = if story.crowded { Others::Anon } else { variant.others };
        let mut loads = self.fill(lab, &others, with)?;
        variant.strategy.apply(story, &app.cgroups, &host.cgroups)?;
        self.slow_down(&app)?;

        let start = now_ns() + 500_000_000;
        loads.extend(self.host_job(&host, start)?);
        let before = (app.cgroups.memory_stat()?, self.whole()?);
        let mut stdin = jvm.stdin.take().context("the application has no stdin")?;
        write!(stdin, "{start}").context("while starting the application")?;
        drop(stdin);
        let mut memory = Vec::new();
        for due in (0..=story.end).step_by(MEMORY_MS as usize) {
            lab.scope.sleep(Duration::from_nanos((start + due * 1_000_000).saturating_sub(now_ns())))?;
            let at = now_ns().saturating_sub(start) / 1_000_000;
            let stat = app.cgroups.memory_stat()?;
            memory
                .push((at, ["file", "anon", "swap"].map(|key| stat.get(key).map_or(0, |bytes| bytes >> 20))));
        }
        let done = finish(jvm)?;
        let after = (app.cgroups.memory_stat()?, self.whole()?);
        variant.strategy.take_back(&app.cgroups)?;
        drop((app, host, others)); // their processes end with them
        for mut load in loads {
            load.wait().context("while waiting for a load")?;
        }
        Ok(Arm {
            variant,
            done,
            memory,
            app: difference(&APP, &before.0, &after.0),
            whole: difference(&WHOLE, &before.1, &after.1),
        })
    }

    /// A JVM that has made what it holds, read what it reads, and waits for its start.
    fn start(&self, app: &Container, variant: Variant) -> Result<Child> {
        let story = self.story;
        let mut command = app.command(Path::new("/usr/bin/env"));
        command.args(["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        command.arg(format!("-Xms{0}m", story.heap_mib())).arg(format!("-Xmx{}m", story.heap_mib()));
        command.arg(format!("-Xmn{}m", story.young_mib)).args(variant.strategy.jvm());
        command.arg("-cp").arg(&self.java).arg("Application").arg(match story.work {
            Work::Allocate => "allocate",
            Work::Touch => "touch",
            Work::Read => "read",
        });
        let (from, until) = story.disturbed;
        for number in [story.rate, story.held_mib, story.grow_mib, from, until, story.sample, story.end] {
            command.arg(number.to_string());
        }
        command.arg(&self.data);
        let mut jvm = command.stdin(Stdio::piped()).spawn().context("while starting java")?;
        let mut line = String::new();
        let stdout = jvm.stdout.as_mut().context("the application has no stdout")?;
        // One byte at a time, so that what follows stays where it is.
        let mut byte = [0];
        while !line.ends_with('\n')
            && stdout.read(&mut byte).context("while waiting for the application")? > 0
        {
            line.push(char::from(byte[0]));
        }
        if line != "ready\n" {
            let out = jvm.wait_with_output().context("while waiting for java")?;
            bail!("the application did not start: {line}{}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(jvm)
    }

    /// Gives all memory to another group.
    fn fill(&self, lab: &Lab, others: &Container, with: Others) -> Result<Vec<Child>> {
        match with {
            Others::Nothing => Ok(Vec::new()),
            Others::Cache => {
                let mut command = others.command(Path::new("/usr/bin/env"));
                let out = command.arg("cat").arg(&self.holes).stdout(Stdio::null()).output();
                ensure!(out.context("while filling memory with cache")?.status.success(), "cat failed");
                Ok(Vec::new())
            }
            Others::Anon => {
                let mib = self.free_mib()?.saturating_sub(self.story.spare_mib);
                let load = grow(others, "grow", now_ns(), [0, FILL_MS, mib, FOREVER_MS])?;
                lab.scope.wait_for("filling memory", Duration::from_secs(60), || {
                    let stat = others.cgroups.memory_stat()?;
                    let has = |key: &str| stat.get(key).copied().unwrap_or(0);
                    Ok((has("anon") + has("swap")) >> 20 >= mib)
                })?;
                Ok(vec![load])
            }
        }
    }

    fn host_job(&self, host: &Container, start: u64) -> Result<Option<Child>> {
        let (from, until) = self.story.disturbed;
        match self.story.host {
            None => Ok(None),
            Some(HostJob::Grow(mib)) => grow(host, "use", start, [from, from + 2000, mib, until]).map(Some),
            Some(HostJob::Scan(mib_per_s)) => {
                let words = [start, from, until, mib_per_s].map(|n| n.to_string());
                let mut args = vec![words[0].clone(), "scan".into()];
                args.extend_from_slice(&words[1..]);
                args.push(self.holes.display().to_string());
                host.reader("load", &args).spawn().context("while starting the host's job").map(Some)
            }
        }
    }

    /// Lets go of the cache that the variant before had.
    fn forget(&self) -> Result<()> {
        for path in [&self.data, &self.holes] {
            let file = File::open(path).with_context(|| format!("while opening {}", path.display()))?;
            fadvise(&file, 0, None, Advice::DontNeed)
                .with_context(|| format!("while letting go of {}", path.display()))?;
        }
        Ok(())
    }

    /// What nobody has.
    fn free_mib(&self) -> Result<u64> {
        if self.machine.stand_in {
            return Ok(self.machine.mib.saturating_sub(self.above.memory_bytes()? >> 20));
        }
        let text = fs::read_to_string("/proc/meminfo").context("while reading /proc/meminfo")?;
        Ok(super::mib(&text, "MemFree:"))
    }

    /// The disk that the application reads from is as slow as it is in every guest; here, for the application alone.
    fn slow_down(&self, app: &Container) -> Result<()> {
        let (disk, speed) = (&self.disks[0], super::DISKS_BYTES_PER_S[0]);
        match self.machine.guest {
            true => disk.set_speed(speed),
            false => app.cgroups.limit_io(&disk.number, speed),
        }
    }

    fn whole(&self) -> Result<BTreeMap<String, u64>> {
        if self.machine.stand_in {
            return self.above.memory_stat();
        }
        Ok(pairs(&fs::read_to_string("/proc/vmstat").context("while reading /proc/vmstat")?))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.scope.take_down(&self.mount);
        self.swap.iter().for_each(|swap| self.scope.take_down(swap));
    }
}

/// Fills memory, and with "use" keeps using it: from, until (ms), how much (MiB), and how long it is held (ms).
fn grow(container: &Container, kind: &str, start: u64, words: [u64; 4]) -> Result<Child> {
    let mut args = vec![start.to_string(), kind.to_owned()];
    args.extend(words.map(|n| n.to_string()));
    container.reader("load", &args).spawn().context("while starting a load on memory")
}

fn swap_on(scope: &Scope, disk: &SlowDisk) -> Result<Created> {
    let run = |name: &str| {
        let out = Command::new(name).arg(disk.path()).output();
        let out = out.with_context(|| format!("while running {name}"))?;
        ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    };
    run("mkswap")?;
    let swap = Created::Swap(disk.path());
    scope.add(swap.clone())?;
    run("swapon")?;
    Ok(swap)
}

/// Lines of "milliseconds pieces".
fn finish(jvm: Child) -> Result<Vec<(u64, u64)>> {
    let out = jvm.wait_with_output().context("while waiting for java")?;
    ensure!(out.status.success(), "the application failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    let line = |line: std::io::Result<String>| {
        let line = line.context("while reading what the application counted")?;
        let (ms, done) = line.split_once(' ').context("a line of the application has no two numbers")?;
        Ok((ms.parse()?, done.parse()?))
    };
    BufReader::new(out.stdout.as_slice()).lines().map(line).collect()
}

/// How much each of `keys` grew; nothing for those that the kernel does not have.
fn difference(
    keys: &[&str],
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let grown = |key: &&str| {
        let (before, after) = (before.get(*key)?, after.get(*key)?);
        Some(((*key).to_owned(), after.saturating_sub(*before)))
    };
    keys.iter().filter_map(grown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_does_not_count_is_absent_and_not_zero() {
        let stat = |text: &str| pairs(text);
        let grown = difference(&["pswpin", "pswpout"], &stat("pswpin 3\n"), &stat("pswpin 10\npswpout 4\n"));
        assert_eq!(grown, BTreeMap::from([("pswpin".to_owned(), 7)]));
    }
}
