//! `elbowroom follow`: a setting of a server that runs already follows its container's room
//! ([`crate::follow`] decides).
//!
//! A program (an *actuator*, `actuators/`) knows the server: `PROGRAM get ARGUMENTS` prints its value, as `134217728 bytes`,
//! `4 count`, or with `none` in place of the number; `PROGRAM set VALUE ARGUMENTS` changes it. At the end this process restores the user's
//! value. If it is killed, a shell that waits for that restores it. A value that another program has set meanwhile stays.

use crate::follow::{EffectiveResources, FollowRule, SettingFollower, SettingUnit};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use elbowroom_agent::alerts::StopFlag;
use elbowroom_agent::probes::source::exec::{PID_ENV, PROGRAM_ENV, ProgramFailure, last_line, own_path};
use elbowroom_client::api::{ContainerView, ControlRequest, ControlResponse};
use elbowroom_client::control::ControlClient;
use elbowroom_client::output::{say, write_stdout};
use elbowroom_linux::containers::ContainerSelector;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::{process, timer};
use elbowroom_types::unit::{Bytes, Micros, parse_bytes, parse_duration};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// What ends it.
const STOP_SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Time between two looks at the view.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long an actuator may take.
const ACTUATOR_TIMEOUT: Micros = Micros::secs(10);
/// How long the agent may be away before the server has its own value back.
const AGENT_GRACE: Micros = Micros::secs(10);
/// The least size where none is given.
const DEFAULT_MIN_BYTES: u64 = 16 << 20;
/// A variable with the container's cgroup, from the root of its hierarchy: what is signalled is to be in there.
const CGROUP_ENV: &str = "ELBOWROOM_CGROUP";

/// Waits for the end of its input, whose last line is the setting's value and the user's, and restores the user's value. It does not if the
/// line is `done`, or another program has set the value meanwhile. While the value is being set it may be `any`, because servers round. A
/// server that is still busy with that refuses another value, or returns to the one that was being set. So the script tries twenty times, a
/// second apart, and checks the result a second later.
const GUARD_SCRIPT: &str = r#"program=$1 now='' was='' is_set='' tries=20
shift
while read -r ours users; do now=$ours was=$users; done
[ -n "$was" ] || exit 0
while [ $tries -gt 0 ]; do
  is=$("$program" get "$@" | tail -n 1 | cut -d ' ' -f 1)
  if [ -n "$is" ] && [ "$now" != any ] && [ "$is" != "$now" ]; then exit 0; fi
  if [ "$is" = "$was" ] && [ -n "$is_set" ]; then exit 0; fi
  [ -n "$is" ] || [ -e "/proc/$ELBOWROOM_PROBE_PID" ] || exit 1
  if [ -n "$is" ] && "$program" set "$was" "$@"; then is_set=y; fi
  tries=$((tries - 1))
  sleep 1
done
exit 1"#;

/// Arguments of `follow`.
#[derive(Args)]
pub(crate) struct FollowArgs {
    /// Name, id, unique beginning of an id, or cgroup path.
    container: String,
    /// The setting's part of effective memory, or workers per 100 effective CPUs [default: 50% of memory, 100% of CPUs].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    part: Option<u32>,
    /// Never less: a size or a number [default: 16MiB, 1].
    #[arg(long, value_name = "VALUE")]
    least: Option<String>,
    /// Never more [default: what the server has now].
    #[arg(long, value_name = "VALUE")]
    most: Option<String>,
    /// Time between two changes.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    every: Micros,
    /// The actuator and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// A server's setting, by way of its actuator.
struct FollowedSetting {
    program: Vec<String>,
    cgroup: String,
    /// The container's first process, and when it started.
    first_process: Option<(i32, Option<Micros>)>,
    stop: StopFlag,
}

/// A value; `None` is none, where a server can do without.
type SettingValue = Option<u64>;

/// Follows until a signal or the container ends it.
pub(crate) fn main(run_dir: &Path, args: &FollowArgs) -> Result<ExitCode> {
    let container = fetch_container(run_dir, &args.container)?;
    let mut setting = FollowedSetting::new(&args.program, &container.path)?;
    let (users, unit) = setting.get()?;
    let rule = rule(args, users, unit)?;
    let signals = SignalFd::block(&STOP_SIGNALS)?;
    let mut followed = FollowSession {
        follower: SettingFollower::new(rule, users.unwrap_or(rule.max)),
        name: args.container.clone(),
        original: users,
        applied: None,
        uncertain: false,
        unresponsive: false,
        guard: None,
        last_problem: String::new(),
        setting,
        unit,
    };
    let end = followed.run(run_dir, &args.container, &signals);
    let back = followed.restore_original();
    // Of a container that is gone only a file may be left to be put back.
    if !end? {
        back?;
    }
    Ok(ExitCode::SUCCESS)
}

struct FollowSession {
    follower: SettingFollower,
    name: String,
    setting: FollowedSetting,
    unit: SettingUnit,
    /// What the server's user set.
    original: SettingValue,
    /// What we set, where it is not the user's.
    applied: SettingValue,
    /// Something was set, and what came of it is not known: whatever is there, and is not the user's, is ours.
    uncertain: bool,
    /// It stays what it is whatever is set, as far as has been tried, and that was told.
    unresponsive: bool,
    guard: Option<Child>,
    /// The last problem that was told.
    last_problem: String,
}

impl FollowSession {
    /// Whether it ended because the container is gone.
    fn run(&mut self, run_dir: &Path, container: &str, signals: &SignalFd) -> Result<bool> {
        let mut heard = timer::now();
        loop {
            let now = timer::now();
            match fetch_container(run_dir, container) {
                Ok(view) => {
                    heard = now;
                    let room = EffectiveResources { cpus: view.view.cpus, memory: view.view.memory };
                    let done = self.step(now, room);
                    self.report_problem(done);
                }
                Err(error) if error.downcast_ref::<std::io::Error>().is_none() && is_gone(&error) => {
                    write_stdout(&format!("{}: the container is gone\n", self.name))?;
                    return Ok(true);
                }
                Err(error) => {
                    let is_away = now.saturating_sub(heard) >= AGENT_GRACE;
                    let kept = if is_away { self.restore_original().err() } else { None };
                    self.report_problem(Err(kept.unwrap_or(error)));
                }
            }
            let mut ready = [PollFd::new(signals, PollFlags::IN)];
            let _ = rustix::event::poll(&mut ready, Some(&POLL_INTERVAL));
            if signals.next()?.is_some() {
                return Ok(false);
            }
        }
    }

    fn step(&mut self, now: Micros, room: EffectiveResources) -> Result<()> {
        let Some(change) = self.follower.due_change(now, room) else { return Ok(()) };
        let is = self.setting.get()?.0;
        if !self.uncertain && is != self.applied.or(self.original) {
            // Another program's word: from now on that is what the user set.
            let value = is.unwrap_or(change.from);
            (self.original, self.applied) = (is, None);
            self.follower.set_externally(now, value);
            write_stdout(&format!(
                "{}: another program has set {}: that is the most now\n",
                self.name,
                self.unit.display(value)
            ))?;
            return Ok(());
        }
        self.uncertain = true;
        self.update_guard(&format!("any {}", value_text(self.original)))?;
        let set = self.setting.set(Some(change.to));
        let (value, _) = self.setting.get()?;
        // One that was killed may be heeded later.
        self.uncertain = set.as_ref().is_err_and(was_killed);
        let stays = !self.uncertain && value == is && value != Some(change.to);
        match (stays, &set) {
            (true, Ok(())) => self.follower.mark_ineffective(now, change.to),
            _ => self.follower.confirm(now, value.unwrap_or(change.from)),
        }
        self.applied = value.filter(|_| value != self.original);
        if stays {
            // What a server is told and does not do may still be written down, for its next start to find.
            let back = self.setting.set(is).context("the user's value could not be restored");
            // A server that refuses the one may refuse the other.
            if set.is_ok() {
                self.uncertain = back.is_err();
                back?;
            }
        }
        match self.applied {
            _ if self.uncertain => {}
            Some(ours) => self.update_guard(&format!("{ours} {}", value_text(self.original)))?,
            None => self.update_guard("done")?,
        }
        set?;
        let told = std::mem::replace(&mut self.unresponsive, stays);
        if stays {
            let is = is.map_or("none".to_owned(), |is| self.unit.display(is));
            let to = self.unit.display(change.to);
            ensure!(
                told,
                "the server keeps {is} where {to} is set, so {is} is set again: it rounds, or something stronger says so, as its \
                 command line"
            );
            return Ok(());
        }
        write_stdout(&format!("{}: {change}\n", self.name))?;
        Ok(())
    }

    /// Says what is ours to the guard, for when this process is killed.
    fn update_guard(&mut self, line: &str) -> Result<()> {
        if self.guard.as_mut().is_none_or(|guard| !matches!(guard.try_wait(), Ok(None))) {
            self.guard = Some(self.setting.spawn_guard()?);
        }
        let input = self.guard.as_mut().and_then(|guard| guard.stdin.as_mut());
        let input = input.context("the guard has no input")?;
        writeln!(input, "{line}").context("telling the guard")
    }

    /// Gives the server what its user set, unless another program has set a value since. Where that fails, the guard tries it once
    /// more when this process ends.
    fn restore_original(&mut self) -> Result<()> {
        if self.applied.is_none() && !self.uncertain {
            return Ok(());
        }
        let back = self.setting.get().and_then(|(is, _)| {
            if self.uncertain || is == self.applied { self.setting.set(self.original) } else { Ok(()) }
        });
        back.context("the user's value could not be restored")?;
        let was = self.applied.take();
        self.uncertain = false;
        self.follower.confirm(timer::now(), self.original.or(was).unwrap_or_else(|| self.follower.value()));
        write_stdout(&format!("{}: {} again, as its user set it\n", self.name, value_text(self.original)))?;
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.stdin.take().map(|mut input| input.write_all(b"done\n"));
            let _ = guard.wait();
        }
        Ok(())
    }

    /// Each problem once.
    fn report_problem(&mut self, done: Result<()>) {
        let problem = done.err().map(|error| elbowroom_client::output::one_line(&error)).unwrap_or_default();
        if !problem.is_empty() && problem != self.last_problem {
            say(&format!("elbowroom: {}: {problem}", self.name));
        }
        self.last_problem = problem;
    }
}

impl FollowedSetting {
    fn new(program: &[String], cgroup: &str) -> Result<Self> {
        let (program, cgroup) = (program.to_vec(), cgroup.to_owned());
        Ok(Self { program, cgroup, first_process: None, stop: StopFlag::new()? })
    }

    /// What an actuator is told of the container: 0 where no process runs in it, for without a process one would ask the host's server.
    fn environment(&mut self) -> Result<[(&'static str, String); 2]> {
        if self
            .first_process
            .is_none_or(|(pid, started)| started.is_none() || process::start_time(pid) != started)
        {
            let pid = ContainerSelector::open(&ContainerSources::default())?.first_process(&self.cgroup);
            self.first_process = pid.map(|pid| (pid, process::start_time(pid)));
        }
        let pid = self.first_process.map_or(0, |(pid, _)| pid);
        Ok([(PID_ENV, pid.to_string()), (CGROUP_ENV, self.cgroup.clone())])
    }

    fn run_actuator(&mut self, words: &[&str]) -> Result<Option<String>> {
        let environment = self.environment()?;
        let (program, arguments) = self.program.split_at(1);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let command = [program, &words, arguments].concat();
        Ok(last_line(&command, &environment, ACTUATOR_TIMEOUT, &self.stop)?)
    }

    fn get(&mut self) -> Result<(SettingValue, SettingUnit)> {
        let line = self.run_actuator(&["get"])?.unwrap_or_default();
        parse_setting(&line).with_context(|| format!("{} get", self.program[0]))
    }

    fn set(&mut self, value: SettingValue) -> Result<()> {
        self.run_actuator(&["set", &value_text(value)]).map(drop)
    }

    /// In a process group of its own: a key on the terminal is not meant for it.
    fn spawn_guard(&mut self) -> Result<Child> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", GUARD_SCRIPT, "sh"])
            .args(&self.program)
            .envs(own_path().map(|path| (PROGRAM_ENV, path)))
            .process_group(0)
            .envs(self.environment()?);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().context("starting a guard that puts the setting back")
    }
}

/// Whether an actuator was at work for too long; one that ends by itself has done what can be read now.
fn was_killed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ProgramFailure>().is_some_and(|failure| failure.killed)
}

fn value_text(value: SettingValue) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

/// What an actuator says a setting is: a value, or none, and what it counts.
///
/// # Errors
/// What it said is something else: quoted, on one line.
pub fn parse_setting(line: &str) -> Result<(SettingValue, SettingUnit)> {
    let what = || {
        let said: String = line.chars().take(80).flat_map(char::escape_debug).collect();
        format!(
            "it said \"{said}\": it is to print a value and its unit, as \"134217728 bytes\" or \"4 count\""
        )
    };
    let (value, unit) = line.split_once(' ').with_context(what)?;
    let unit = match unit {
        "bytes" => SettingUnit::Bytes,
        "count" => SettingUnit::Count,
        _ => bail!(what()),
    };
    let value = if value == "none" { None } else { Some(value.parse().ok().with_context(what)?) };
    Ok((value, unit))
}

fn rule(args: &FollowArgs, users: SettingValue, unit: SettingUnit) -> Result<FollowRule> {
    let read = |flag: &str, text: &Option<String>| -> Result<SettingValue> {
        let Some(text) = text else { return Ok(None) };
        let value = match unit {
            SettingUnit::Bytes => parse_bytes(text).map(Bytes::get).map_err(|error| anyhow!("{error}")),
            SettingUnit::Count => text.parse().map_err(|_| anyhow!("{text:?} is no whole number, as 4")),
        };
        value.map(Some).with_context(|| flag.to_owned())
    };
    let most = read("--most", &args.most)?.or(users);
    let most = most.context("the server has no maximum of its own: say how much it may have, with --most")?;
    let least = match (read("--least", &args.least)?, unit) {
        (Some(least), _) => least,
        (None, SettingUnit::Bytes) => DEFAULT_MIN_BYTES.min(most),
        (None, SettingUnit::Count) => 1,
    };
    ensure!(least <= most, "--least: {} is more than the most, {}", unit.display(least), unit.display(most));
    ensure!(args.every >= Micros::secs(1), "--every: \"{}\" is too often: at least \"1s\"", args.every);
    let percent = args.part.unwrap_or(if unit == SettingUnit::Bytes { 50 } else { 100 });
    Ok(FollowRule { unit, percent, min: least, max: most, min_interval: args.every })
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number
        .filter(|percent| (1..=10_000).contains(percent))
        .ok_or_else(|| "write a part from 1% to 10000%".to_owned())
}

fn fetch_container(run_dir: &Path, container: &str) -> Result<ContainerView> {
    match ControlClient::connect(run_dir)?.request(&ControlRequest::Show(container.to_owned()))? {
        ControlResponse::Container(view) => Ok(*view),
        _ => elbowroom_client::output::unexpected_response(),
    }
}

/// Whether the agent answers, and knows no such container any more.
fn is_gone(error: &anyhow::Error) -> bool {
    let text = error.to_string();
    text.starts_with("no container ") || text.ends_with("is gone")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_an_actuator_prints_is_a_value_and_its_unit() {
        assert_eq!(parse_setting("134217728 bytes").unwrap(), (Some(134_217_728), SettingUnit::Bytes));
        assert_eq!(parse_setting("none bytes").unwrap(), (None, SettingUnit::Bytes));
        assert_eq!(parse_setting("4 count").unwrap(), (Some(4), SettingUnit::Count));
        for bad in ["", "4", "4 apples", "-1 count", "4  count", "1e9 bytes", "99999999999999999999 bytes"] {
            let error = format!("{:#}", parse_setting(bad).unwrap_err());
            assert!(error.contains("as \"134217728 bytes\""), "{error}");
        }
        assert!(!format!("{:#}", parse_setting("a\n\x1b[2J").unwrap_err()).contains('\x1b'));
    }

    fn args(least: Option<&str>, most: Option<&str>) -> FollowArgs {
        FollowArgs {
            container: "db".into(),
            part: None,
            least: least.map(Into::into),
            most: most.map(Into::into),
            every: Micros::secs(10),
            program: vec!["x".into()],
        }
    }

    #[test]
    fn bounds_are_the_users_unless_the_operator_gives_others() {
        let check = |args: FollowArgs, users, unit| rule(&args, users, unit).map(|rule| (rule.min, rule.max));
        assert_eq!(check(args(None, None), Some(1 << 30), SettingUnit::Bytes).unwrap(), (16 << 20, 1 << 30));
        assert_eq!(check(args(None, None), Some(1 << 20), SettingUnit::Bytes).unwrap(), (1 << 20, 1 << 20));
        assert_eq!(check(args(Some("2"), Some("8")), None, SettingUnit::Count).unwrap(), (2, 8));
        for (args, users, unit, said) in [
            (args(None, None), None, SettingUnit::Bytes, "--most"),
            (args(Some("9"), None), Some(4), SettingUnit::Count, "--least"),
            (args(Some("1GiB"), None), Some(4), SettingUnit::Count, "no whole number"),
            (args(Some("5"), None), Some(4), SettingUnit::Bytes, "--least"),
            (FollowArgs { every: Micros::ZERO, ..args(None, None) }, Some(4), SettingUnit::Count, "--every"),
        ] {
            let error = format!("{:#}", check(args, users, unit).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }

    /// A server of 100 bytes, and a follower of it that may have all of 100 or less. With a file `broken` no value can be read, with
    /// `refusing` none can be set. With `held`, a value that is set is `written` down and changes nothing.
    fn followed(dir: &Path) -> FollowSession {
        let script = dir.join("actuator");
        let text = r#"#!/bin/sh
cd "${0%/*}"
case $1 in
  get) [ ! -e broken ] || exit 1; echo "$(cat value) bytes" ;;
  set) [ ! -e refusing ] || exit 1; echo "$2" >written; [ -e held ] || echo "$2" >value ;;
esac
"#;
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.join("value"), "100").unwrap();
        let setting = FollowedSetting::new(&[script.display().to_string()], "/nobody").unwrap();
        let rule = FollowRule {
            unit: SettingUnit::Bytes,
            percent: 50,
            min: 1,
            max: 100,
            min_interval: Micros::secs(1),
        };
        let (follower, name, told) = (SettingFollower::new(rule, 100), "db".to_owned(), String::new());
        let (users, unit) = (Some(100), SettingUnit::Bytes);
        FollowSession {
            follower,
            name,
            setting,
            unit,
            original: users,
            applied: None,
            uncertain: false,
            unresponsive: false,
            guard: None,
            last_problem: told,
        }
    }

    #[test]
    fn a_value_of_ours_that_could_not_be_read_back_is_not_the_users() {
        let dir = tempfile::tempdir().unwrap();
        let broken = dir.path().join("broken");
        let value = || std::fs::read_to_string(dir.path().join("value")).unwrap();
        let room = |memory| EffectiveResources { cpus: 1, memory: Bytes(memory) };
        let mut followed = followed(dir.path());
        // It is set, and then nothing can be read.
        followed.setting.set(Some(50)).unwrap();
        followed.uncertain = true;
        std::fs::write(&broken, "").unwrap();
        assert!(followed.step(Micros::secs(1), room(100)).is_err());
        assert!(followed.restore_original().is_err());
        std::fs::remove_file(&broken).unwrap();
        followed.step(Micros::secs(2), room(80)).unwrap();
        assert_eq!((followed.original, followed.applied, value().trim()), (Some(100), Some(40), "40"));
        // It cannot be put back the first time.
        std::fs::write(&broken, "").unwrap();
        assert!(followed.restore_original().is_err());
        assert_eq!(followed.applied, Some(40));
        std::fs::remove_file(&broken).unwrap();
        followed.restore_original().unwrap();
        assert_eq!((followed.applied, value().trim()), (None, "100"));
        // What is another program's stays.
        let later = |seconds| timer::now().saturating_add(Micros::secs(seconds));
        followed.step(later(2), room(80)).unwrap();
        std::fs::write(dir.path().join("value"), "30").unwrap();
        followed.step(later(4), room(20)).unwrap();
        assert_eq!((followed.original, followed.applied, value().trim()), (Some(30), None, "30"));
    }

    #[test]
    fn a_guard_goes_on_until_a_busy_server_has_its_users_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        let value = || std::fs::read_to_string(path("value")).unwrap().trim().to_owned();
        let mut followed = followed(dir.path());
        for (line, left) in [("any 100", "100"), ("50 100", "100"), ("60 100", "50"), ("done", "50")] {
            std::fs::write(path("value"), "50").unwrap();
            std::fs::write(path("refusing"), "").unwrap();
            followed.update_guard(line).unwrap();
            let mut guard = followed.guard.take().unwrap();
            // As if this process were killed: nothing more is told.
            drop(guard.stdin.take());
            if left == "100" {
                std::thread::sleep(std::time::Duration::from_millis(1_500));
                assert_eq!((value(), guard.try_wait().unwrap()), ("50".into(), None), "{line}: it goes on");
                std::fs::remove_file(path("refusing")).unwrap();
            }
            assert!(guard.wait().unwrap().success(), "{line}");
            assert_eq!(value(), left, "{line}");
        }
    }

    #[test]
    fn what_others_set_after_a_refusal_stays() {
        let dir = tempfile::tempdir().unwrap();
        let refusing = dir.path().join("refusing");
        let mut followed = followed(dir.path());
        std::fs::write(&refusing, "").unwrap();
        let room = EffectiveResources { cpus: 1, memory: Bytes(80) };
        assert!(followed.step(Micros::secs(1), room).is_err());
        std::fs::remove_file(&refusing).unwrap();
        std::fs::write(dir.path().join("value"), "30").unwrap();
        followed.step(Micros::secs(3), room).unwrap();
        followed.restore_original().unwrap();
        assert_eq!(followed.original, Some(30));
        assert_eq!(std::fs::read_to_string(dir.path().join("value")).unwrap(), "30");
    }

    #[test]
    fn what_a_server_does_not_heed_is_put_back_at_once_and_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let (held, refusing) = (dir.path().join("held"), dir.path().join("refusing"));
        let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap().trim().to_owned();
        let room = |memory| EffectiveResources { cpus: 1, memory: Bytes(memory) };
        let mut followed = followed(dir.path());
        std::fs::write(&held, "").unwrap();
        let error = followed.step(Micros::secs(1), room(80)).unwrap_err().to_string();
        let (is, to) = (Bytes(100), Bytes(40));
        assert!(error.contains(&format!("keeps {is} where {to} is set")), "{error}");
        assert_eq!((read("written"), read("value")), ("100".into(), "100".into()));
        assert_eq!((followed.applied, followed.uncertain), (None, false));
        // Not again, but for what is further away, and without another word.
        std::fs::remove_file(dir.path().join("written")).unwrap();
        followed.step(Micros::secs(3), room(80)).unwrap();
        assert!(!dir.path().join("written").exists());
        followed.step(Micros::secs(5), room(20)).unwrap();
        assert_eq!(read("written"), "100");
        // What is ours already stays ours.
        std::fs::remove_file(&held).unwrap();
        followed.step(Micros::secs(7), room(10)).unwrap();
        assert_eq!((read("value"), followed.applied), ("5".into(), Some(5)));
        std::fs::write(&held, "").unwrap();
        assert!(followed.step(Micros::secs(9), room(4)).is_err());
        assert_eq!((read("written"), followed.applied), ("5".into(), Some(5)));
        std::fs::remove_file(&held).unwrap();
        followed.restore_original().unwrap();
        assert_eq!((read("written"), read("value")), ("100".into(), "100".into()));
        // Where it cannot be put back at once it is at the end, though the value is its user's.
        followed.setting = {
            let script = dir.path().join("once");
            let text = r#"#!/bin/sh
cd "${0%/*}"
case $1 in
  get) echo 100 bytes ;;
  set) [ ! -e refusing ] || exit 1; echo "$2" >written; [ -e later ] || : >refusing ;;
esac
"#;
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            FollowedSetting::new(&[script.display().to_string()], "/nobody").unwrap()
        };
        assert!(followed.step(timer::now().saturating_add(Micros::secs(20)), room(80)).is_err());
        assert_eq!((read("written"), followed.uncertain), ("40".into(), true));
        std::fs::remove_file(&refusing).unwrap();
        std::fs::write(dir.path().join("later"), "").unwrap();
        followed.restore_original().unwrap();
        assert_eq!((read("written"), followed.uncertain), ("100".into(), false));
    }

    #[test]
    fn parts_are_percent() {
        assert_eq!((percent("50%"), percent("400%")), (Ok(50), Ok(400)));
        for bad in ["", "50", "0%", "-1%", "%", "10001%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
