//! `elbowroom follow`: a setting of a server that runs already follows its container's room
//! ([`crate::follow`] decides).
//!
//! A program (an *actuator*, `actuators/`) knows the server: `PROGRAM get ARGUMENTS` prints its value, as `134217728 bytes`,
//! `4 count`, or with `none` in place of the number; `PROGRAM set VALUE ARGUMENTS` changes it. What the server's user had is put back at the end: by this
//! process, or where it is killed by a shell that waits for that. A value that somebody else has set meanwhile stays.

use crate::follow::{Follower, Room, Rule, Unit};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use elbowroom_agent::alerts::Stop;
use elbowroom_agent::probes::source::exec::{Failure, PID, last_line};
use elbowroom_client::api::{ContainerView, Request, Response};
use elbowroom_client::control::Client;
use elbowroom_linux::containers::Containers;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_linux::process;
use elbowroom_linux::signal::Signals;
use elbowroom_linux::timer;
use elbowroom_types::unit::{Bytes, Micros, parse_bytes, parse_duration};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// What ends it.
const ENDING: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
/// Time between two looks at the view.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long an actuator may take.
const PATIENCE: Micros = Micros::secs(10);
/// How long the agent may be away before the server has its own value back.
const AWAY: Micros = Micros::secs(10);
/// The least size where nobody says another.
const LEAST: u64 = 16 << 20;
/// A variable with the container's cgroup, from the root of its hierarchy: what is signalled is to be in there.
const CGROUP: &str = "ELBOWROOM_CGROUP";

/// Waits for the end of its input, whose last line is what the setting is and what it was, and puts that back; not where the line
/// is `done`, or somebody else has set it meanwhile. While it is being set it may be `any`thing, for servers round.
const GUARD: &str = r#"program=$1 now='' was=''
shift
while read -r ours users; do now=$ours was=$users; done
[ -n "$was" ] || exit 0
[ "$now" = any ] || [ "$("$program" get "$@" | tail -n 1 | cut -d ' ' -f 1)" = "$now" ] || exit 0
exec "$program" set "$was" "$@""#;

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
struct Setting {
    program: Vec<String>,
    cgroup: String,
    /// The container's first process, and when it started.
    first: Option<(i32, Option<Micros>)>,
    never: Stop,
}

/// A value; `None` is none, where a server can do without.
type Value = Option<u64>;

/// Follows until a signal or the container ends it.
pub(crate) fn main(run_dir: &Path, args: &FollowArgs) -> Result<ExitCode> {
    let container = show(run_dir, &args.container)?;
    let mut setting = Setting::new(&args.program, &container.path)?;
    let (users, unit) = setting.get()?;
    let rule = rule(args, users, unit)?;
    let signals = Signals::block(&ENDING)?;
    let mut followed = Followed {
        follower: Follower::new(rule, users.unwrap_or(rule.most)),
        name: args.container.clone(),
        users,
        ours: None,
        unsure: false,
        held: false,
        guard: None,
        told: String::new(),
        setting,
        unit,
    };
    let end = followed.until_the_end(run_dir, &args.container, &signals);
    let back = followed.put_back();
    // Of a container that is gone only a file may be left to be put back.
    if !end? {
        back?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Followed {
    follower: Follower,
    name: String,
    setting: Setting,
    unit: Unit,
    /// What the server's user set.
    users: Value,
    /// What we set, where it is not the user's.
    ours: Value,
    /// Something was set, and what came of it is not known: whatever is there, and is not the user's, is ours.
    unsure: bool,
    /// It stays what it is whatever is set, as far as has been tried, and that was told.
    held: bool,
    guard: Option<Child>,
    /// The last problem that was told.
    told: String,
}

impl Followed {
    /// Whether it ended because the container is gone.
    fn until_the_end(&mut self, run_dir: &Path, container: &str, signals: &Signals) -> Result<bool> {
        let mut heard = timer::now();
        loop {
            let now = timer::now();
            match show(run_dir, container) {
                Ok(view) => {
                    heard = now;
                    let room = Room { cpus: view.view.cpus, memory: view.view.memory };
                    let done = self.step(now, room);
                    self.tell(done);
                }
                Err(error) if error.downcast_ref::<std::io::Error>().is_none() && is_gone(&error) => {
                    println!("{}: the container is gone", self.name);
                    return Ok(true);
                }
                Err(error) => {
                    let is_away = now.saturating_sub(heard) >= AWAY;
                    let kept = if is_away { self.put_back().err() } else { None };
                    self.tell(Err(kept.unwrap_or(error)));
                }
            }
            let mut ready = [PollFd::new(signals, PollFlags::IN)];
            let _ = rustix::event::poll(&mut ready, Some(&LOOK));
            if signals.next()?.is_some() {
                return Ok(false);
            }
        }
    }

    fn step(&mut self, now: Micros, room: Room) -> Result<()> {
        let Some(change) = self.follower.due(now, room) else { return Ok(()) };
        let is = self.setting.get()?.0;
        if !self.unsure && is != self.ours.or(self.users) {
            // Somebody else's word: from now on that is what the user set.
            let value = is.unwrap_or(change.from);
            (self.users, self.ours) = (is, None);
            self.follower.is_set_by_others(now, value);
            println!("{}: somebody else has set {}: that is the most now", self.name, self.unit.shown(value));
            return Ok(());
        }
        self.unsure = true;
        self.tell_guard(&format!("any {}", text(self.users)))?;
        let set = self.setting.set(Some(change.to));
        let (value, _) = self.setting.get()?;
        // One that was killed may be heeded later.
        self.unsure = set.as_ref().is_err_and(was_killed);
        let stays = !self.unsure && value == is && value != Some(change.to);
        match (stays, &set) {
            (true, Ok(())) => self.follower.stays(now, change.to),
            _ => self.follower.is_now(now, value.unwrap_or(change.from)),
        }
        self.ours = value.filter(|_| value != self.users);
        if stays {
            // What a server is told and does not do may still be written down, for its next start to find.
            let back = self.setting.set(is).context("what its user set could not be put back");
            // Who refuses the one may refuse the other.
            if set.is_ok() {
                self.unsure = back.is_err();
                back?;
            }
        }
        match self.ours {
            _ if self.unsure => {}
            Some(ours) => self.tell_guard(&format!("{ours} {}", text(self.users)))?,
            None => self.tell_guard("done")?,
        }
        set?;
        let told = std::mem::replace(&mut self.held, stays);
        if stays {
            let is = is.map_or("none".to_owned(), |is| self.unit.shown(is));
            let to = self.unit.shown(change.to);
            ensure!(
                told,
                "the server keeps {is} where {to} is set, so {is} is set again: it rounds, or something stronger says so, as its \
                 command line"
            );
            return Ok(());
        }
        println!("{}: {change}", self.name);
        Ok(())
    }

    /// Says what is ours to whoever is left when this process is killed.
    fn tell_guard(&mut self, line: &str) -> Result<()> {
        if self.guard.as_mut().is_none_or(|guard| !matches!(guard.try_wait(), Ok(None))) {
            self.guard = Some(self.setting.guard()?);
        }
        let input = self.guard.as_mut().and_then(|guard| guard.stdin.as_mut());
        let input = input.context("the guard has no input")?;
        writeln!(input, "{line}").context("telling the guard")
    }

    /// Gives the server what its user set, unless somebody else has set another value since. Where that fails, the guard tries it once
    /// more when this process ends.
    fn put_back(&mut self) -> Result<()> {
        if self.ours.is_none() && !self.unsure {
            return Ok(());
        }
        let back = self.setting.get().and_then(|(is, _)| {
            if self.unsure || is == self.ours { self.setting.set(self.users) } else { Ok(()) }
        });
        back.context("what its user set could not be put back")?;
        let was = self.ours.take();
        self.unsure = false;
        self.follower.is_now(timer::now(), self.users.or(was).unwrap_or_else(|| self.follower.value()));
        println!("{}: {} again, as its user set it", self.name, text(self.users));
        if let Some(mut guard) = self.guard.take() {
            let _ = guard.stdin.take().map(|mut input| input.write_all(b"done\n"));
            let _ = guard.wait();
        }
        Ok(())
    }

    /// Each problem once.
    fn tell(&mut self, done: Result<()>) {
        let problem = done.err().map(|error| elbowroom_client::output::one_line(&error)).unwrap_or_default();
        if !problem.is_empty() && problem != self.told {
            eprintln!("elbowroom: {}: {problem}", self.name);
        }
        self.told = problem;
    }
}

impl Setting {
    fn new(program: &[String], cgroup: &str) -> Result<Self> {
        let (program, cgroup) = (program.to_vec(), cgroup.to_owned());
        Ok(Self { program, cgroup, first: None, never: Stop::new()? })
    }

    /// What an actuator is told of the container: 0 where nobody runs in it, for without a process one would ask the host's server.
    fn environment(&mut self) -> Result<[(&'static str, String); 2]> {
        if self.first.is_none_or(|(pid, started)| started.is_none() || process::started(pid) != started) {
            let pid = Containers::open(&ContainerSources::default())?.first_process(&self.cgroup);
            self.first = pid.map(|pid| (pid, process::started(pid)));
        }
        let pid = self.first.map_or(0, |(pid, _)| pid);
        Ok([(PID, pid.to_string()), (CGROUP, self.cgroup.clone())])
    }

    fn ask(&mut self, words: &[&str]) -> Result<Option<String>> {
        let environment = self.environment()?;
        let (program, arguments) = self.program.split_at(1);
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let command = [program, &words, arguments].concat();
        Ok(last_line(&command, &environment, PATIENCE, &self.never)?)
    }

    fn get(&mut self) -> Result<(Value, Unit)> {
        let line = self.ask(&["get"])?.unwrap_or_default();
        parse(&line).with_context(|| format!("{} get", self.program[0]))
    }

    fn set(&mut self, value: Value) -> Result<()> {
        self.ask(&["set", &text(value)]).map(drop)
    }

    /// In a process group of its own: a key on the terminal is not meant for it.
    fn guard(&mut self) -> Result<Child> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD, "sh"]).args(&self.program).process_group(0).envs(self.environment()?);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().context("starting a guard that puts the setting back")
    }
}

/// Whether an actuator was at work for too long; one that ends by itself has done what can be read now.
fn was_killed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.killed)
}

fn text(value: Value) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

/// What an actuator says a setting is: a value, or none, and what it counts.
///
/// # Errors
/// What it said is something else: quoted, on one line.
pub fn parse(line: &str) -> Result<(Value, Unit)> {
    let what = || {
        let said: String = line.chars().take(80).flat_map(char::escape_debug).collect();
        format!(
            "it said \"{said}\": it is to print a value and its unit, as \"134217728 bytes\" or \"4 count\""
        )
    };
    let (value, unit) = line.split_once(' ').with_context(what)?;
    let unit = match unit {
        "bytes" => Unit::Bytes,
        "count" => Unit::Count,
        _ => bail!(what()),
    };
    let value = if value == "none" { None } else { Some(value.parse().ok().with_context(what)?) };
    Ok((value, unit))
}

fn rule(args: &FollowArgs, users: Value, unit: Unit) -> Result<Rule> {
    let read = |flag: &str, text: &Option<String>| -> Result<Value> {
        let Some(text) = text else { return Ok(None) };
        let value = match unit {
            Unit::Bytes => parse_bytes(text).map(Bytes::get).map_err(|error| anyhow!("{error}")),
            Unit::Count => text.parse().map_err(|_| anyhow!("{text:?} is no whole number, as 4")),
        };
        value.map(Some).with_context(|| flag.to_owned())
    };
    let most = read("--most", &args.most)?.or(users);
    let most = most.context("the server has no maximum of its own: say how much it may have, with --most")?;
    let least = match (read("--least", &args.least)?, unit) {
        (Some(least), _) => least,
        (None, Unit::Bytes) => LEAST.min(most),
        (None, Unit::Count) => 1,
    };
    ensure!(least <= most, "--least: {} is more than the most, {}", unit.shown(least), unit.shown(most));
    ensure!(args.every >= Micros::secs(1), "--every: \"{}\" is too often: at least \"1s\"", args.every);
    let percent = args.part.unwrap_or(if unit == Unit::Bytes { 50 } else { 100 });
    Ok(Rule { unit, percent, least, most, every: args.every })
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number
        .filter(|percent| (1..=10_000).contains(percent))
        .ok_or_else(|| "write a part from 1% to 10000%".to_owned())
}

fn show(run_dir: &Path, container: &str) -> Result<ContainerView> {
    match Client::connect(run_dir)?.ask(&Request::Show(container.to_owned()))? {
        Response::Container(view) => Ok(*view),
        _ => elbowroom_client::output::unexpected(),
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
        assert_eq!(parse("134217728 bytes").unwrap(), (Some(134_217_728), Unit::Bytes));
        assert_eq!(parse("none bytes").unwrap(), (None, Unit::Bytes));
        assert_eq!(parse("4 count").unwrap(), (Some(4), Unit::Count));
        for bad in ["", "4", "4 apples", "-1 count", "4  count", "1e9 bytes", "99999999999999999999 bytes"] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains("as \"134217728 bytes\""), "{error}");
        }
        assert!(!format!("{:#}", parse("a\n\x1b[2J").unwrap_err()).contains('\x1b'));
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
        let check =
            |args: FollowArgs, users, unit| rule(&args, users, unit).map(|rule| (rule.least, rule.most));
        assert_eq!(check(args(None, None), Some(1 << 30), Unit::Bytes).unwrap(), (16 << 20, 1 << 30));
        assert_eq!(check(args(None, None), Some(1 << 20), Unit::Bytes).unwrap(), (1 << 20, 1 << 20));
        assert_eq!(check(args(Some("2"), Some("8")), None, Unit::Count).unwrap(), (2, 8));
        for (args, users, unit, said) in [
            (args(None, None), None, Unit::Bytes, "--most"),
            (args(Some("9"), None), Some(4), Unit::Count, "--least"),
            (args(Some("1GiB"), None), Some(4), Unit::Count, "no whole number"),
            (args(Some("5"), None), Some(4), Unit::Bytes, "--least"),
            (FollowArgs { every: Micros::ZERO, ..args(None, None) }, Some(4), Unit::Count, "--every"),
        ] {
            let error = format!("{:#}", check(args, users, unit).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }

    /// A server of 100 bytes, and a follower of it that may have all of 100 or less; where a file `broken` or `refusing` is, no value can
    /// be read or set; where `held` is, what is set is `written` down and changes nothing.
    fn followed(dir: &Path) -> Followed {
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
        let setting = Setting::new(&[script.display().to_string()], "/nobody").unwrap();
        let rule = Rule { unit: Unit::Bytes, percent: 50, least: 1, most: 100, every: Micros::secs(1) };
        let (follower, name, told) = (Follower::new(rule, 100), "db".to_owned(), String::new());
        let (users, unit) = (Some(100), Unit::Bytes);
        Followed {
            follower,
            name,
            setting,
            unit,
            users,
            ours: None,
            unsure: false,
            held: false,
            guard: None,
            told,
        }
    }

    #[test]
    fn a_value_of_ours_that_could_not_be_read_back_is_not_the_users() {
        let dir = tempfile::tempdir().unwrap();
        let broken = dir.path().join("broken");
        let value = || std::fs::read_to_string(dir.path().join("value")).unwrap();
        let room = |memory| Room { cpus: 1, memory: Bytes(memory) };
        let mut followed = followed(dir.path());
        // It is set, and then nothing can be read.
        followed.setting.set(Some(50)).unwrap();
        followed.unsure = true;
        std::fs::write(&broken, "").unwrap();
        assert!(followed.step(Micros::secs(1), room(100)).is_err());
        assert!(followed.put_back().is_err());
        std::fs::remove_file(&broken).unwrap();
        followed.step(Micros::secs(2), room(80)).unwrap();
        assert_eq!((followed.users, followed.ours, value().trim()), (Some(100), Some(40), "40"));
        // It cannot be put back the first time.
        std::fs::write(&broken, "").unwrap();
        assert!(followed.put_back().is_err());
        assert_eq!(followed.ours, Some(40));
        std::fs::remove_file(&broken).unwrap();
        followed.put_back().unwrap();
        assert_eq!((followed.ours, value().trim()), (None, "100"));
        // What is somebody else's stays.
        let later = |seconds| timer::now().saturating_add(Micros::secs(seconds));
        followed.step(later(2), room(80)).unwrap();
        std::fs::write(dir.path().join("value"), "30").unwrap();
        followed.step(later(4), room(20)).unwrap();
        assert_eq!((followed.users, followed.ours, value().trim()), (Some(30), None, "30"));
    }

    #[test]
    fn what_others_set_after_a_refusal_stays() {
        let dir = tempfile::tempdir().unwrap();
        let refusing = dir.path().join("refusing");
        let mut followed = followed(dir.path());
        std::fs::write(&refusing, "").unwrap();
        let room = Room { cpus: 1, memory: Bytes(80) };
        assert!(followed.step(Micros::secs(1), room).is_err());
        std::fs::remove_file(&refusing).unwrap();
        std::fs::write(dir.path().join("value"), "30").unwrap();
        followed.step(Micros::secs(3), room).unwrap();
        followed.put_back().unwrap();
        assert_eq!(followed.users, Some(30));
        assert_eq!(std::fs::read_to_string(dir.path().join("value")).unwrap(), "30");
    }

    #[test]
    fn what_a_server_does_not_heed_is_put_back_at_once_and_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let (held, refusing) = (dir.path().join("held"), dir.path().join("refusing"));
        let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap().trim().to_owned();
        let room = |memory| Room { cpus: 1, memory: Bytes(memory) };
        let mut followed = followed(dir.path());
        std::fs::write(&held, "").unwrap();
        let error = followed.step(Micros::secs(1), room(80)).unwrap_err().to_string();
        let (is, to) = (Bytes(100), Bytes(40));
        assert!(error.contains(&format!("keeps {is} where {to} is set")), "{error}");
        assert_eq!((read("written"), read("value")), ("100".into(), "100".into()));
        assert_eq!((followed.ours, followed.unsure), (None, false));
        // Not again, but for what is further away, and without another word.
        std::fs::remove_file(dir.path().join("written")).unwrap();
        followed.step(Micros::secs(3), room(80)).unwrap();
        assert!(!dir.path().join("written").exists());
        followed.step(Micros::secs(5), room(20)).unwrap();
        assert_eq!(read("written"), "100");
        // What is ours already stays ours.
        std::fs::remove_file(&held).unwrap();
        followed.step(Micros::secs(7), room(10)).unwrap();
        assert_eq!((read("value"), followed.ours), ("5".into(), Some(5)));
        std::fs::write(&held, "").unwrap();
        assert!(followed.step(Micros::secs(9), room(4)).is_err());
        assert_eq!((read("written"), followed.ours), ("5".into(), Some(5)));
        std::fs::remove_file(&held).unwrap();
        followed.put_back().unwrap();
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
            Setting::new(&[script.display().to_string()], "/nobody").unwrap()
        };
        assert!(followed.step(timer::now().saturating_add(Micros::secs(20)), room(80)).is_err());
        assert_eq!((read("written"), followed.unsure), ("40".into(), true));
        std::fs::remove_file(&refusing).unwrap();
        std::fs::write(dir.path().join("later"), "").unwrap();
        followed.put_back().unwrap();
        assert_eq!((read("written"), followed.unsure), ("100".into(), false));
    }

    #[test]
    fn parts_are_percent() {
        assert_eq!((percent("50%"), percent("400%")), (Ok(50), Ok(400)));
        for bad in ["", "50", "0%", "-1%", "%", "10001%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
