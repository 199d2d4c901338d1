//! The view file system on a real kernel: a whole agent with a toy policy process (`examples/fuse_rig.rs`), real
//! readers, real SIGKILLs. Needs root and /dev/fuse; says so where it cannot run.

#[allow(dead_code, unreachable_pub, reason = "shared with the example, which uses the rest")]
mod rig;

use elbowroom_agent::view_server::host_files::HostFiles;
use elbowroom_agent::view_server::pages::is_page_mount;
use elbowroom_agent::view_server::roles::AgentRole;
use elbowroom_agent::view_server::session;
use elbowroom_agent::view_server::session::MountLine;
use elbowroom_agent::view_server::slots::{SlotSnapshot, Slots};
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::snapshot::ContainerSnapshot;
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use rig::agent::{Agent, ROLES, Watchdog, cannot_run, program};
use rig::policy::{facts_of, times_of};
use rig::readers::{EVERY_WAY, How, Reader, check_meminfo};
use rig::storm::{STALE_MS, Storm};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; after that a reader hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(90);

/// An agent and its watchdog, or the reason why there is none.
macro_rules! agent {
    ($containers:expr, $hz:expr) => {{
        if let Some(why) = cannot_run() {
            eprintln!("{why}");
            return;
        }
        let agent = Agent::start($containers, $hz);
        let watchdog = Watchdog::over(agent.dir.path(), LIMIT);
        (agent, watchdog)
    }};
}

#[test]
fn what_is_published_is_what_is_read_next() {
    let (agent, _watchdog) = agent!(2, 0);
    let path = agent.view(0).join("proc/meminfo");
    let mut readers: Vec<_> = EVERY_WAY.iter().map(|how| Reader::new(*how, &path).unwrap()).collect();
    for version in 2..200 {
        assert_eq!(agent.ask(&format!("set 0 {version}")), "true");
        for (reader, how) in readers.iter_mut().zip(EVERY_WAY) {
            assert_eq!(check_meminfo(&reader.read().unwrap(), 0), Ok(version), "{how:?}");
        }
    }
}

#[test]
fn every_file_reads_as_rendered() {
    let (agent, _watchdog) = agent!(1, 0);
    let (facts, times) = (facts_of(0, 1), times_of(1));
    let mut host = HostFiles::new("/");
    let (mut files, mut dirs) = (0, vec![agent.view(0)]);
    while let Some(dir) = dirs.pop() {
        let entries: Vec<_> = std::fs::read_dir(&dir).unwrap().map(Result::unwrap).collect();
        let parent = node_of(&std::fs::metadata(&dir).unwrap());
        let names: BTreeSet<_> = entries.iter().map(|e| e.file_name().into_string().unwrap()).collect();
        let there = |node| tree::host_path(node).is_none_or(|path| Path::new("/").join(path).exists());
        let children = tree::children(parent, &facts).into_iter().filter(|(_, node)| there(*node));
        assert_eq!(names, children.map(|(name, _)| name).collect(), "{}", dir.display());
        for entry in entries {
            let path = entry.path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            assert_eq!(meta.ino(), entry.ino(), "{}", path.display());
            if meta.is_symlink() {
                let target = std::fs::read_link(&path).unwrap();
                assert_eq!(target.to_str(), node_of(&meta).link_target().as_deref(), "{}", path.display());
                continue;
            }
            if meta.is_dir() {
                dirs.push(path);
                continue;
            }
            files += 1;
            let node = node_of(&meta);
            // Host text and clocks move on: some attempt has both sides at the same moment.
            let (mut read, mut expected) = (Vec::new(), vec![0]);
            for _ in 0..500 {
                read = drop_and_read(&File::open(&path).unwrap()).unwrap();
                let text = tree::host_path(node).and_then(|path| host.read(&path, true).ok());
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let now = Micros(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000);
                let text = text.unwrap_or_default();
                expected = render::render(node, &facts, &times, &text, now, meta.len() as u32);
                if without_interrupts(&read) == without_interrupts(&expected) {
                    break;
                }
                // The server keeps what it rendered for up to 100 ms.
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(without_interrupts(&read), without_interrupts(&expected), "{}", path.display());
        }
    }
    assert!(files > 50, "{files}");
}

/// A file without the machine's counters in `/proc/stat`, which never stand still.
fn without_interrupts(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let is_still = |line: &&str| !["intr ", "ctxt ", "softirq "].iter().any(|key| line.starts_with(key));
    text.split_inclusive('\n').filter(is_still).collect()
}

fn node_of(meta: &std::fs::Metadata) -> ViewNode {
    match meta.ino() {
        1 => panic!("the mount itself"),
        id => ViewNode::from_bits((id & 0xff_ffff) as u32).expect("inode numbers are node ids"),
    }
}

#[test]
fn a_mapping_that_is_held_shows_what_is_published() {
    let (agent, _watchdog) = agent!(1, 0);
    let file = File::open(agent.view(0).join("proc/meminfo")).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    // SAFETY: a new read-only mapping of a whole file, which stays as long as it is, for the rest of the process.
    let page = unsafe {
        let flags = rustix::mm::MapFlags::SHARED;
        rustix::mm::mmap(std::ptr::null_mut(), len, rustix::mm::ProtFlags::READ, flags, &file, 0).unwrap()
    };
    for version in 2..50 {
        assert_eq!(agent.ask(&format!("set 0 {version}")), "true");
        let mut text = vec![0; len];
        // SAFETY: both are `len` bytes; nothing is published while this copies.
        unsafe { std::ptr::copy_nonoverlapping(page.cast::<u8>(), text.as_mut_ptr(), len) };
        assert_eq!(check_meminfo(&text, 0), Ok(version));
    }
}

#[test]
fn no_read_fails_tears_or_mixes_while_every_process_is_killed_in_turn() {
    if let Some(why) = cannot_run() {
        eprintln!("{why}");
        return;
    }
    let report = Storm {
        readers: 100,
        containers: 20,
        kills: 36,
        hz: 1000,
        pause: Duration::from_millis(2),
        gap: Duration::from_millis(10),
    }
    .run();
    println!("{report:#?}");
    let bad = (report.failed, report.torn, report.foreign, report.backwards);
    assert_eq!(bad, (0, 0, 0, 0), "{report:#?}");
    assert!(report.reads > 1000 && report.killed.iter().all(|n| *n >= 12), "{report:#?}");
    assert!(report.stale_ms < STALE_MS, "a reader still gets an old page: {report:#?}");
}

/// Takes the next request away from the view server, as a server does that is killed before it answers: the server is
/// stopped, the test reads its descriptor.
fn steal_a_request(agent: &Agent, path: &Path) -> std::thread::JoinHandle<std::io::Result<Vec<u8>>> {
    let server = agent.wait_for(AgentRole::Server, None);
    let pidfd = pidfd_open(server, PidfdFlags::empty()).unwrap();
    let fuse = std::fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero()))
        .unwrap()
        .flatten()
        .find(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
        .expect("the server has the device");
    let fuse: i32 = fuse.file_name().to_str().unwrap().parse().unwrap();
    let fuse = pidfd_getfd(&pidfd, fuse, PidfdGetfdFlags::empty()).unwrap();
    let mut reader = Reader::new(How::Held, path).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    wait_until(|| state(server.as_raw_nonzero().get()) == Some('T'));
    let reading = std::thread::spawn(move || {
        reader.forget_cached();
        reader.read()
    });
    let mut buffer = vec![0; 16 << 10];
    let got = rustix::io::read(&fuse, &mut buffer).unwrap();
    assert!(got >= 40);
    reading
}

/// The state letter of a process.
fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "this does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_read_that_a_dead_server_had_taken_is_answered_by_the_next() {
    let (agent, _watchdog) = agent!(1, 0);
    if agent.ask("counters").is_empty() || !resend_is_known() {
        eprintln!("skipped: needs FUSE_NOTIFY_RESEND (Linux 6.9)");
        return;
    }
    let reading = steal_a_request(&agent, &agent.view(0).join("proc/meminfo"));
    agent.kill(&[AgentRole::Server]);
    assert_eq!(check_meminfo(&reading.join().unwrap().unwrap(), 0), Ok(1));
    let resent = agent.ask("counters").split(' ').nth(2).unwrap().parse::<u64>().unwrap();
    assert!(resent >= 1, "{resent}");
}

#[test]
fn an_invalidation_that_sleeps_behind_a_dead_server_wakes_with_the_next() {
    let (agent, _watchdog) = agent!(1, 0);
    if !resend_is_known() {
        eprintln!("skipped: needs FUSE_NOTIFY_RESEND (Linux 6.9)");
        return;
    }
    let path = agent.view(0).join("proc/meminfo");
    assert_eq!(check_meminfo(&std::fs::read(&path).unwrap(), 0), Ok(1));
    let shares = || std::fs::read_to_string(agent.view(0).join("cgroup/cpu.shares")).unwrap();
    assert_eq!(shares().trim(), "1");
    let reading = steal_a_request(&agent, &path);
    std::thread::scope(|scope| {
        // The notifier now waits for the page of the READ that no server answers. The policy process is killed while it sleeps,
        // and so are the others.
        let setting = scope.spawn(|| agent.ask("set 0 77"));
        let policy = agent.wait_for(AgentRole::Policy, None);
        wait_until(|| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", policy.as_raw_nonzero()));
            tasks.into_iter().flatten().flatten().any(|task| {
                let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
                tid.and_then(state) == Some('D')
            })
        });
        agent.kill(&[AgentRole::Supervisor]);
        let _ = kill_process(policy, Signal::KILL);
        agent.kill(&[AgentRole::Server]);
        agent.wait_for(AgentRole::Policy, Some(policy));
        assert_eq!(setting.join().unwrap(), "true");
    });
    assert!(check_meminfo(&reading.join().unwrap().unwrap(), 0).is_ok());
    assert_eq!(check_meminfo(&std::fs::read(&path).unwrap(), 0), Ok(77));
    // Its bit was swapped by the process that did not live to drop it.
    wait_until(|| shares().trim() == "77");
}

fn resend_is_known() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

#[test]
fn a_policy_process_that_bloats_is_replaced_while_views_are_read() {
    let (agent, _watchdog) = agent!(1, 0);
    let path = agent.view(0).join("proc/meminfo");
    let mut readers: Vec<_> = EVERY_WAY.iter().map(|how| Reader::new(*how, &path).unwrap()).collect();
    let first = agent.pid(AgentRole::Policy).unwrap();
    assert_eq!(agent.ask("set 0 7"), "true");
    assert_eq!(agent.ask("bloat"), "bloating");
    // It goes on working: silence is not what ends it.
    wait_until(|| {
        for (reader, how) in readers.iter_mut().zip(EVERY_WAY) {
            reader.forget_cached();
            assert_eq!(check_meminfo(&reader.read().unwrap(), 0), Ok(7), "{how:?}");
        }
        agent.pid(AgentRole::Policy).is_some_and(|policy| policy != first)
    });
    assert_eq!(agent.ask("set 0 8"), "true");
    assert_eq!(check_meminfo(&readers[0].read().unwrap(), 0), Ok(8));
}

#[test]
fn a_second_agent_names_the_first() {
    let (agent, _watchdog) = agent!(1, 0);
    let second = Agent::command(agent.dir.path(), 1, 0).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    let pid = agent.pid(AgentRole::Supervisor).unwrap().as_raw_nonzero();
    assert!(!second.status.success() && said.contains(&format!("supervisor is process {pid}")), "{said}");
    assert!(agent.is_whole());
    assert!(check_meminfo(&std::fs::read(agent.view(0).join("proc/meminfo")).unwrap(), 0).is_ok());
}

/// A read that the page cache cannot answer.
fn drop_and_read(file: &File) -> Result<Vec<u8>, Option<Errno>> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut text = vec![0; 1 << 20];
    let got = file.read_at(&mut text, 0).map_err(|e| Errno::from_io_error(&e))?;
    text.truncate(got);
    Ok(text)
}

#[test]
fn when_all_die_at_once_the_next_agent_starts_afresh() {
    let (agent, _watchdog) = agent!(1, 0);
    let held = File::open(agent.view(0).join("proc/meminfo")).unwrap();
    // Stopped first: none may see another die. The supervisor last: when it dies, its stopped children may have become an
    // orphaned process group, which the kernel lets continue (kernel/exit.c, `kill_orphaned_pgrp`).
    let order = [AgentRole::Server, AgentRole::Policy, AgentRole::Standby, AgentRole::Supervisor];
    let pids = order.map(|role| agent.pid(role).unwrap());
    for signal in [Signal::STOP, Signal::KILL] {
        pids.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
    }
    wait_until(|| ROLES.iter().all(|role| agent.pid(*role).is_none()));
    assert_eq!(drop_and_read(&held), Err(Some(Errno::NOTCONN)), "the mount is dead");
    let mut second = Agent::command(agent.dir.path(), 1, 0).spawn().unwrap();
    let path = agent.view(0).join("proc/meminfo");
    wait_until(|| std::fs::read(&path).is_ok());
    assert!(check_meminfo(&std::fs::read(&path).unwrap(), 0).is_ok());
    let mounts = session::mounts_on(&agent.dir.path().join("private/views")).unwrap();
    assert_eq!(mounts.iter().filter(|line| line.is_ours()).count(), 1);
    // Those of the dead agent are gone.
    wait_until(|| {
        let pages = session::mounts_on(&agent.dir.path().join("pages")).unwrap();
        matches!(&pages[..], [page] if is_page_mount(page))
    });
    assert_eq!(drop_and_read(&held), Err(Some(Errno::NOTCONN)), "a new agent is a new connection");
    drop(agent);
    assert!(second.wait().unwrap().success());
}

#[test]
fn sigterm_leaves_nothing_behind() {
    let (mut agent, _watchdog) = agent!(1, 0);
    // Also where the supervisor is not the first one.
    agent.kill(&[AgentRole::Supervisor]);
    assert!(agent.stop());
    let left: Vec<_> =
        std::fs::read_dir(agent.dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, [rig::policy::SOCKET], "only what the toy policy process left");
    for name in ["private/views", "private/triggers", "pages"] {
        assert!(session::mounts_on(&agent.dir.path().join(name)).unwrap().is_empty());
    }
}

#[test]
fn an_aborted_connection_is_made_anew() {
    let (agent, _watchdog) = agent!(1, 0);
    let policy = agent.pid(AgentRole::Policy);
    Agent::abort(agent.dir.path());
    agent.wait_for(AgentRole::Policy, policy);
    let path = agent.view(0).join("proc/meminfo");
    wait_until(|| std::fs::read(&path).is_ok());
    assert!(check_meminfo(&std::fs::read(&path).unwrap(), 0).is_ok());
    assert_eq!(session::mounts_on(&agent.dir.path().join("private/views")).unwrap().len(), 1);
}

#[test]
fn what_another_program_unmounted_is_made_anew() {
    for name in ["private/views", "private/triggers", "pages"] {
        let (agent, _watchdog) = agent!(1, 0);
        let policy = agent.pid(AgentRole::Policy);
        // A view in a container keeps the connection just so: no process of the agent ends of itself.
        let path = agent.view(0).join("proc/meminfo");
        let _held = File::open(&path).unwrap();
        session::unmount(&agent.dir.path().join(name));
        agent.wait_for(AgentRole::Policy, policy);
        wait_until(|| std::fs::read(&path).is_ok());
        assert!(check_meminfo(&std::fs::read(&path).unwrap(), 0).is_ok());
        for name in ["private/views", "private/triggers", "pages"] {
            wait_until(|| session::mounts_on(&agent.dir.path().join(name)).unwrap().len() == 1);
        }
    }
}

#[test]
fn what_others_mounted_is_left_alone() {
    if let Some(why) = cannot_run() {
        eprintln!("{why}");
        return;
    }
    let dir = tempfile::Builder::new().prefix("elbowroom-test-fuse-").tempdir().unwrap();
    let views = dir.path().join("private/views");
    std::fs::create_dir_all(&views).unwrap();
    rustix::mount::mount("theirs", &views, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let said = Agent::command(dir.path(), 1, 0).output().unwrap();
    let mounts = session::mounts_on(&views).unwrap();
    session::unmount(&views);
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("type tmpfs"), "{said:?}");
    assert_eq!(mounts.iter().map(MountLine::is_ours).collect::<Vec<_>>(), [false]);
}

#[test]
fn everything_that_changes_something_is_refused() {
    let (agent, _watchdog) = agent!(1, 0);
    let dir = agent.view(0);
    let file = dir.join("proc/meminfo");
    let errno = |result: std::io::Result<()>| Errno::from_io_error(&result.unwrap_err());
    let refused: [(&str, std::io::Result<()>); 8] = [
        ("write", std::fs::write(&file, "x")),
        ("create", File::create(dir.join("new")).map(drop)),
        ("mkdir", std::fs::create_dir(dir.join("new"))),
        ("unlink", std::fs::remove_file(&file)),
        ("rmdir", std::fs::remove_dir(dir.join("proc"))),
        ("rename", std::fs::rename(&file, dir.join("proc/other"))),
        ("symlink", std::os::unix::fs::symlink("a", dir.join("new"))),
        ("chmod", rustix::fs::chmod(&file, 0o777.into()).map_err(Into::into)),
    ];
    for (what, result) in refused {
        assert_eq!(errno(result), Some(Errno::ROFS), "{what}");
    }
    assert!(std::fs::read(dir.join("proc/nothing")).is_err());
    assert!(rustix::fs::statfs(&dir).is_ok());
}

#[test]
fn a_container_that_went_leaves_no_name_and_no_numbers() {
    let (agent, _watchdog) = agent!(2, 0);
    let path = agent.view(0).join("proc/meminfo");
    let held = File::open(&path).unwrap();
    assert!(drop_and_read(&held).is_ok());
    let serial = agent.ask("renew 0");
    assert!(serial.parse::<u64>().is_ok(), "{serial}");
    assert_eq!(drop_and_read(&held), Err(Some(Errno::STALE)));
    // The directory of that name is the new container's, after a moment.
    wait_until(|| std::fs::read(&path).is_ok_and(|text| check_meminfo(&text, 0) == Ok(1)));
    let names = || {
        let views = agent.dir.path().join("private/views");
        let mut names: Vec<_> = std::fs::read_dir(views).unwrap().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["c0", "c1"]);
}

#[test]
fn fewer_cpus_show_in_files_that_only_they_change() {
    let (agent, _watchdog) = agent!(1, 0);
    let fixed = ["topology/core_siblings", "topology/package_cpus_list", "topology/thread_siblings"];
    let path = |name: &str| agent.view(0).join("sys/devices/system/cpu/cpu0").join(name);
    let there: Vec<_> = fixed.map(path).into_iter().filter(|path| path.exists()).collect();
    let lists = ["present", "possible"].map(|name| agent.view(0).join("sys/devices/system/cpu").join(name));
    // One is read, the others are only looked up: their lengths are cached.
    let texts = |paths: &[_]| paths.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
    let before = (texts(&there[..1]), texts(&lists));
    let shown = |version: u64| {
        assert_eq!(agent.ask(&format!("narrow 0 {version} 0 1")), "true");
        (texts(&there), texts(&lists))
    };
    let narrow = shown(2);
    let host = |path: &Path| {
        let from = path.strip_prefix(agent.view(0)).unwrap();
        HostFiles::new("/").read(from.to_str().unwrap(), false).unwrap()
    };
    let one = ContainerSnapshot { present: CpuSet::first_n(1), ..facts_of(0, 2) };
    let rendered = |path: &PathBuf| {
        let node = node_of(&std::fs::metadata(path).unwrap());
        let size = render::size(node, &one, &host(path));
        render::render(node, &one, &times_of(2), &host(path), Micros::ZERO, size)
    };
    assert_eq!(narrow.0, there.iter().map(rendered).collect::<Vec<_>>());
    assert_ne!((&narrow.0[..1], &narrow.1), (&before.0[..], &before.1));
    assert!(narrow.1.iter().all(|text| text.starts_with(b"0\n")), "{:?}", narrow.1);
}

#[test]
fn a_cpu_that_comes_back_shows_nothing_of_before() {
    let (agent, _watchdog) = agent!(1, 0);
    let name = "sys/devices/system/cpu/cpu1/topology/core_siblings_list";
    // Held, so that its inode stays.
    let Ok(held) = File::open(agent.view(0).join(name)) else {
        return println!("skipped: this machine has one CPU");
    };
    let text = || {
        let mut text = vec![0; 4096];
        let len = held.read_at(&mut text, 0).unwrap();
        String::from_utf8(text[..len].to_vec()).unwrap()
    };
    let first = text();
    for (version, cpus) in [(2, "0 1"), (3, "1 2")] {
        assert_eq!(agent.ask(&format!("narrow 0 {version} {cpus}")), "true");
    }
    assert_ne!(text(), first, "as with both CPUs");
}

#[test]
fn an_unread_page_costs_no_request() {
    let (agent, _watchdog) = agent!(1, 0);
    let requests = || agent.ask("counters").split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    let held = File::open(agent.view(0).join("proc/meminfo")).unwrap();
    let mut text = vec![0; 4096];
    held.read_at(&mut text, 0).unwrap();
    agent.ask("set 0 2");
    held.read_at(&mut text, 0).unwrap();
    assert_eq!(agent.ask("read_since 0"), "1");
    let before = requests();
    for version in 3..100 {
        agent.ask(&format!("set 0 {version}"));
        assert_eq!(agent.ask("read_since 0"), "0");
    }
    // The kernel and the machine's other programs may ask a few times of their own accord: FORGET when memory is short, STATFS.
    let few = 10;
    assert!(requests() - before < few, "{} for 97 versions", requests() - before);
    let before = requests();
    for _ in 0..100 {
        held.read_at(&mut text, 0).unwrap();
    }
    // One GETATTR and one READ for a hundred reads.
    assert!(requests() - before < few, "{} for 100 reads", requests() - before);
    assert_eq!(agent.ask("read_since 0"), "1");
    assert_eq!(agent.ask("read_since 0"), "0");
}

#[test]
fn a_snapshot_is_one_version_while_writers_in_other_processes_are_killed() {
    let slots = Slots::create(3, 2).unwrap();
    let containers: Vec<_> = (0..3)
        .map(|c| slots.add(&rig::name(c), (0, 0), &[1; 64], &facts_of(c, 1), &times_of(1)).unwrap())
        .collect();
    let (mut snapshot, mut last) = (SlotSnapshot::default(), [1; 3]);
    for _ in 0..20 {
        let fd = slots.memory().as_raw_fd().to_string();
        let args = ["slots-writer", &std::process::id().to_string(), &fd];
        let mut writer = Command::new(program()).args(args).spawn().unwrap();
        let (began, mut seen) = (Instant::now(), 0);
        // A busy machine takes its time to start it.
        while began.elapsed() < Duration::from_millis(50) || seen < 10 {
            assert!(began.elapsed() < Duration::from_secs(30), "the writer does not get to write");
            for (container, slot) in containers.iter().enumerate() {
                slots.snapshot(*slot, &mut snapshot).unwrap();
                let version = snapshot.facts.memory_stat.anon.as_kib();
                assert_eq!(snapshot.facts.memory, rig::policy::memory_of(container));
                assert_eq!(snapshot.facts.memory_stat, facts_of(container, version).memory_stat);
                assert_eq!(snapshot.times, times_of(version));
                seen += u64::from(version != last[container]);
                last[container] = version;
            }
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
}
