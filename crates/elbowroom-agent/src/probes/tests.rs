use super::probe_registry::ProbeRegistry;
use super::settings::ProbeSettings;
use super::source::ProbeSource;
use super::{PollerCount, ProbeEvent, ProbePoller, socket_path};
use crate::alerts::StopFlag;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::probe::{Freshness, ProbeRecord};
use elbowroom_types::unit::Micros;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

fn ask(line: &str) -> Result<Option<ProbeRecord>, String> {
    ProbeSource::new(ProbeSettings::parse(line, true).unwrap(), 0).poll(&StopFlag::new().unwrap())
}

fn script(dir: &Path, text: &str) -> String {
    let path = dir.join("probe");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn gone(pid: &str) {
    let alive = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let deadline = Instant::now() + PATIENCE;
    while alive() {
        assert!(Instant::now() < deadline, "{pid} lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_last_line_that_a_program_prints_is_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), "echo warming up; echo \"served=$1\"; echo");
    assert_eq!(ask(&format!("exec:{program} 812")).unwrap().unwrap().served, Some(812.0));
}

#[test]
fn a_program_that_fails_hangs_or_talks_without_end_is_a_problem_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    for (text, expect) in [
        ("echo served=1; echo no database >&2; exit 3".to_owned(), "no database"),
        ("echo fast".to_owned(), "\"fast\" is not key=value"),
        (":".to_owned(), "printed no record"),
    ] {
        let program = script(dir.path(), &text);
        let problem = ask(&format!("timeout=20s exec:{program}")).unwrap_err();
        assert!(problem.contains(expect), "{text}: {problem}");
    }
    let hangs =
        format!("sleep 1000 & echo $! $$ > {0}.part; mv {0}.part {0}; echo served=1; wait", pids.display());
    for text in [hangs, "yes served=1".to_owned()] {
        let program = script(dir.path(), &text);
        // On a busy machine it may be killed before it has begun to hang.
        for timeout_ms in [500, 5_000, 20_000] {
            let problem = ask(&format!("timeout={timeout_ms}ms exec:{program}")).unwrap_err();
            assert!(problem.contains("killed after"), "{text}: {problem}");
            if pids.exists() {
                break;
            }
        }
    }
    fs::read_to_string(pids).unwrap().split_whitespace().for_each(gone);
    assert!(ask("exec:/no/such/program").unwrap_err().contains("cannot be started"));
}

#[test]
fn what_a_program_leaves_running_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let program =
        script(dir.path(), &format!("sleep 1000 >/dev/null 2>&1 & echo $! > {}; echo green", pid.display()));
    assert!(ask(&format!("exec:{program}")).unwrap().unwrap().colour.is_some());
    gone(fs::read_to_string(pid).unwrap().trim());
}

#[test]
fn a_file_counts_when_it_was_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("probe");
    let probe = ProbeSettings::parse(&format!("file:{}", path.display()), false).unwrap();
    let mut source = ProbeSource::new(probe, 0);
    let stop = StopFlag::new().unwrap();
    assert!(source.poll(&stop).unwrap_err().contains("not there"));
    fs::write(&path, "served=1").unwrap();
    assert_eq!(source.poll(&stop).unwrap().unwrap().served, Some(1.0));
    assert_eq!(source.poll(&stop).unwrap(), None);
    fs::write(&path, "served=22").unwrap();
    assert_eq!(source.poll(&stop).unwrap().unwrap().served, Some(22.0));
    fs::write(&path, "served=three").unwrap();
    assert!(source.poll(&stop).unwrap_err().contains("served=three"));
    fs::write(&path, "served=333").unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    assert_eq!(source.poll(&stop).unwrap(), None, "a record from before its time to live");
}

/// A server that gives each request the next of these answers, and then none.
fn server(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        }
        // A connection that is not served.
        let silent = listener.accept();
        std::thread::sleep(PATIENCE);
        drop(silent);
    });
    url
}

fn page(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len())
}

#[test]
fn a_page_of_metrics_makes_a_record() {
    let url = server(vec![page("requests_total{code=\"200\"} 7\nrequests_total{code=\"500\"} 2\n")]);
    let record =
        ask(&format!("{url} served_total=requests_total{{code=\"200\"}} objective=5")).unwrap().unwrap();
    assert_eq!(record.served_total, Some(7.0));
}

#[test]
fn a_page_that_is_refused_elsewhere_or_late_is_a_problem() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".to_owned();
    let error = "HTTP/1.1 500 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nup 1\n", 1u64 << 40);
    let url = server(vec![moved, error, page("down 1\n"), endless]);
    for (expect, timeout) in
        [("", "20s"), ("500", "20s"), ("the page has no up", "20s"), ("", "500ms"), ("timeout", "500ms")]
    {
        let problem = ask(&format!("{url} served=up timeout={timeout}")).unwrap_err();
        assert!(problem.to_lowercase().contains(expect), "{problem}");
    }
}

#[test]
fn a_source_is_asked_again_and_again_until_its_poller_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), "echo served=1");
    let (tell, told) = mpsc::channel();
    let probe = ProbeSettings::parse(&format!("every=100ms exec:{program}"), true).unwrap();
    let poller =
        ProbePoller::start(probe, 0, &PollerCount::default(), move |record| tell.send(record).is_ok())
            .unwrap();
    for _ in 0..3 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().served, Some(1.0));
    }
    drop(poller);
    // The thread ends, and its way to us with it.
    let deadline = Instant::now() + PATIENCE;
    while told.recv_timeout(Duration::from_secs(1)) != Err(mpsc::RecvTimeoutError::Disconnected) {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_record_that_did_not_arrive_is_told_again_and_one_that_did_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("probe");
    std::fs::write(&file, "served=1\n").unwrap();
    let (tell, told) = mpsc::channel();
    let probe = ProbeSettings::parse(&format!("every=100ms file:{}", file.display()), true).unwrap();
    let times = std::sync::atomic::AtomicU32::new(0);
    let _poller = ProbePoller::start(probe, 0, &PollerCount::default(), move |record| {
        let _ = tell.send(record);
        times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0
    });
    for _ in 0..2 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().served, Some(1.0));
    }
    assert!(told.recv_timeout(Duration::from_secs(1)).is_err());
}

struct Agent {
    registry: ProbeRegistry,
    said: mpsc::Receiver<ProbeEvent>,
    dir: tempfile::TempDir,
}

fn agent(probes: &[&str]) -> Agent {
    let dir = tempfile::tempdir().unwrap();
    let (tell, said) = mpsc::channel();
    let probes = probes.iter().map(|line| ProbeSettings::parse(line, true).unwrap()).collect();
    let registry = ProbeRegistry::open(
        probes,
        &socket_path(dir.path()),
        Arc::new(move |said| drop(tell.send(said))),
        None,
    );
    Agent { registry, said, dir }
}

fn labelled(id: &str, probe: &str) -> ContainerIdentity {
    let labels = ContainerLabels { probe: Some(probe.to_owned()), ..ContainerLabels::default() };
    ContainerIdentity { labels, ..container(id) }
}

fn container(id: &str) -> ContainerIdentity {
    ContainerIdentity {
        id: id.to_owned(),
        name: None,
        engine: ContainerEngine::Plain,
        pod: None,
        labels: ContainerLabels::default(),
    }
}

impl Agent {
    /// Sends a datagram as this process, and gives what the agent answers.
    fn send(&mut self, record: &'static str, now: Micros) -> (String, bool) {
        let path = socket_path(self.dir.path());
        let sender = std::thread::spawn(move || {
            elbowroom_linux::probe::send(Some(&path), record.as_bytes(), PATIENCE).unwrap()
        });
        let heard = self.registry.on_probe(self.said.recv_timeout(PATIENCE).unwrap(), now).is_some();
        (sender.join().unwrap(), heard)
    }
}

#[test]
fn a_sender_speaks_for_the_innermost_container_around_it_and_for_no_other() {
    let mut agent = agent(&[]);
    let own = elbowroom_linux::process::cgroup_paths(std::process::id() as i32);
    let Some(own) = own.first() else {
        eprintln!("skipped: needs to be in a cgroup below the root to stand for a container");
        return;
    };
    let above = Path::new(own).parent().and_then(Path::to_str).unwrap();
    let now = Micros::secs(1);
    agent.registry.add_container(CgroupId(1), "/elsewhere", &container("a"));
    let (answer, heard) = agent.send("served=1", now);
    assert!(answer.contains("in no container") && !heard, "{answer}");
    agent.registry.add_container(CgroupId(2), own, &container("b"));
    agent.registry.add_container(CgroupId(3), above, &container("c"));
    // A path that only begins the same is another one.
    agent.registry.add_container(CgroupId(4), &own[..own.len() - 1], &container("d"));
    assert_eq!(agent.send("served=1", now), (String::new(), true));
    let heard = |id| agent.registry.view(CgroupId(id), now).map(|view| view.accepted);
    assert_eq!([heard(1), heard(2), heard(3), heard(4)], [None, Some(1), None, None]);
    let (answer, taken) = agent.send("served=many", now);
    assert!(answer.contains("served=many") && !taken, "{answer}");
    assert_eq!(agent.registry.view(CgroupId(2), now).unwrap().refused, 1);
}

#[test]
fn a_probe_that_falls_silent_is_stale_then_absent_and_that_is_seen() {
    let mut agent = agent(&["objective=5 ttl=10s"]);
    agent.registry.add_container(CgroupId(1), "/a", &container("a"));
    let state = |agent: &Agent, now| agent.registry.view(CgroupId(1), Micros::secs(now)).unwrap().freshness;
    assert_eq!(state(&agent, 1), Freshness::Absent);
    let record = ProbeRecord::parse(b"served=4").map_err(|e| e.to_string());
    let heard = agent.registry.accept_record(CgroupId(1), record, Micros::secs(1)).unwrap().unwrap();
    assert_eq!((heard.at, heard.until), (Micros::secs(1), Micros::secs(11)));
    assert_eq!(
        [5, 11, 12, 61, 62].map(|now| state(&agent, now)),
        [Freshness::Fresh, Freshness::Fresh, Freshness::Stale, Freshness::Stale, Freshness::Absent]
    );
    agent.registry.remove_container(CgroupId(1));
    assert!(agent.registry.view(CgroupId(1), Micros::secs(2)).is_none());
}

#[test]
fn the_configuration_counts_more_than_a_label_and_a_label_starts_no_program() {
    let mut agent = agent(&["kind=latency"]);
    agent.registry.add_container(CgroupId(1), "/a", &labelled("a", "file:/b"));
    assert_eq!(agent.registry.view(CgroupId(1), Micros::ZERO).unwrap().source, "socket");
    agent.registry = ProbeRegistry::open(Vec::new(), &socket_path(agent.dir.path()), Arc::new(|_| ()), None);
    agent.registry.add_container(CgroupId(1), "/a", &labelled("a", "file:/b"));
    agent.registry.add_container(CgroupId(2), "/b", &labelled("b", "exec:/bin/true"));
    let view = |id| agent.registry.view(CgroupId(id), Micros::ZERO).unwrap();
    assert_eq!(view(1).source, "file /b");
    assert!(view(2).problem.unwrap().contains("a label cannot have the host start programs"));
}
