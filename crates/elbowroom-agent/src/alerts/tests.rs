use super::*;
use elbowroom_client::api::ContainerRef;
use elbowroom_types::alert::{AlertKind, AlertSubject};
use elbowroom_types::finding::FindingEvidence;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A new condition of that kind begins, and every addressee is told at once.
fn say(receivers: &mut ReceiverDispatcher, kind: AlertKind) {
    static NEXT: AtomicU64 = AtomicU64::new(7);
    let group = Some(CgroupId(NEXT.fetch_add(1, Ordering::Relaxed)));
    let disk = Some(DeviceNumber { major: 8, minor: 0 });
    let subject = AlertSubject { kind, disk, group, topic: None };
    receivers.apply(&Alert::new(subject, Micros::secs(1), "a \"text\"\nwith $(traps)".into()));
    receivers.dispatch_due(Micros::secs(1), named);
}

fn named(alert: Alert) -> AlertView {
    let container =
        ContainerRef { id: "0123".into(), name: Some("we\0b".into()), path: "/docker/0123".into() };
    AlertView::new(alert, Some("sda".into()), Some(container))
}

fn start(receivers: &[ReceiverSettings]) -> ReceiverDispatcher {
    ReceiverDispatcher::start(receivers, &AlertSettings { burst: 1_000, ..AlertSettings::default() }).unwrap()
}

fn script(dir: &Path, text: &str) -> String {
    let path = dir.join("receiver");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn exec(program: &str, timeout: Micros) -> ReceiverSettings {
    ReceiverSettings { exec: vec![program.into(), "one".into()], timeout, ..ReceiverSettings::default() }
}

/// Waits for a count of some receiver's to be reached.
fn wait_for(receivers: &ReceiverDispatcher, reached: impl Fn(&ReceiverStatus) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !receivers.status().iter().any(&reached) {
        assert!(Instant::now() < deadline, "not in 20 s: {:?}", receivers.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_gets_the_alert_as_json_and_as_words() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let text = format!(
        "(cat; echo; echo \"$1|$ELBOWROOM_ALERT_KIND|$ELBOWROOM_ALERT_DISK_NAME|$ELBOWROOM_ALERT_CONTAINER_NAME\"; \
         cat /proc/self/oom_score_adj) > {0}.part && mv {0}.part {0}",
        out.display()
    );
    let mut receivers = start(&[exec(&script(dir.path(), &text), Micros::secs(10))]);
    say(&mut receivers, AlertKind::Starved);
    wait_for(&receivers, |status| status.delivered == 1);
    let said = fs::read_to_string(out).unwrap();
    let mut lines = said.lines();
    let json: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!((json["kind"].as_str(), json["state"].as_str()), (Some("STARVED"), Some("began")));
    assert_eq!(json["container"]["path"], "/docker/0123");
    assert_eq!(json["text"], "a \"text\"\nwith $(traps)");
    assert_eq!(lines.collect::<Vec<_>>(), ["one|STARVED|sda|we?b", "0"]);
    receivers.stop();
}

#[test]
fn only_the_kinds_asked_for_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), &format!("echo $ELBOWROOM_ALERT_KIND >> {}/out", dir.path().display()));
    let receiver = ReceiverSettings { kinds: vec![AlertKind::Degraded], ..exec(&program, Micros::secs(10)) };
    let mut receivers = start(&[receiver]);
    [AlertKind::Starved, AlertKind::Degraded].into_iter().for_each(|kind| say(&mut receivers, kind));
    wait_for(&receivers, |status| status.delivered == 1);
    assert_eq!(fs::read_to_string(dir.path().join("out")).unwrap(), "DEGRADED\n");
    receivers.stop();
}

#[test]
fn a_program_that_fails_or_is_not_there_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut receivers = start(&[
        exec(&script(dir.path(), "exit 3"), Micros::secs(10)),
        exec("/no/such/program", Micros::secs(10)),
    ]);
    say(&mut receivers, AlertKind::Starved);
    wait_for(&receivers, |status| status.receiver != "/no/such/program" && status.failed == 1);
    wait_for(&receivers, |status| status.receiver == "/no/such/program" && status.failed == 1);
    receivers.stop();
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children_and_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let text = format!("sleep 1000 & echo $! $$ > {}; wait", pids.display());
    // Long enough for a busy machine to start the program and to tell all alerts within it.
    let mut receivers = start(&[exec(&script(dir.path(), &text), Micros::secs(4))]);
    let begin = Instant::now();
    (0..QUEUE_CAPACITY + 10).for_each(|_| say(&mut receivers, AlertKind::Starved));
    // Waiting for room would be ten times until a program is killed.
    assert!(begin.elapsed() < Duration::from_secs(20), "telling waited: {:?}", begin.elapsed());
    assert!(receivers.status()[0].dropped > 0, "{:?}", receivers.status());
    wait_for(&receivers, |status| status.failed >= 1);
    receivers.stop();
    for pid in fs::read_to_string(pids).unwrap().split_whitespace() {
        let gone = || match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !gone() {
            assert!(Instant::now() < deadline, "{pid} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_program_that_reads_nothing_has_no_more_time_for_a_long_alert() {
    let dir = tempfile::tempdir().unwrap();
    let program = script(dir.path(), "exec sleep 90");
    let evidence = vec![FindingEvidence { file: "x".repeat(1 << 20), value: String::new() }];
    let subject = AlertSubject::node(AlertKind::Finding);
    let alert = Alert { evidence, ..Alert::new(subject, Micros::secs(1), "long".into()) };
    let notice = AlertNotice::new(named(alert));
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = exec::run(&[program], &notice, Micros::millis(200), &StopFlag::new().unwrap());
        done.send(matches!(outcome, Err(DeliveryError::Timeout(_))))
    });
    assert_eq!(wait.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn a_stop_does_not_wait_for_a_program_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let text = format!("touch {}; exec sleep 1000", started.display());
    let mut receivers = start(&[exec(&script(dir.path(), &text), Micros::secs(1_000))]);
    say(&mut receivers, AlertKind::Starved);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !started.exists() {
        assert!(Instant::now() < deadline, "it did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    receivers.stop();
    // The program would take 1000 s.
    assert!(begin.elapsed() < STOP_TIMEOUT + Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// A server that answers each request with the next status, and gives what was posted.
fn server(statuses: &'static [u16]) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/receiver?token=secret", listener.local_addr().unwrap());
    let (got, posted) = mpsc::channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                if line == "\r\n" {
                    break;
                }
            }
            let mut body = vec![0; length];
            lines.read_exact(&mut body).unwrap();
            // Before the answer: a test that sees the outcome finds what was posted.
            got.send(String::from_utf8(body).unwrap()).unwrap();
            write!(
                stream,
                "HTTP/1.1 {status} x\r\nLocation: /else\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
        }
    });
    (url, posted)
}

fn webhook(url: &str) -> ReceiverSettings {
    ReceiverSettings { webhook: Some(url.into()), ..ReceiverSettings::default() }
}

#[test]
fn a_webhook_is_posted_the_same_json_and_asked_again_when_it_is_not_well() {
    let (url, posted) = server(&[503, 200]);
    let mut receivers = start(&[webhook(&url)]);
    say(&mut receivers, AlertKind::Overcommit);
    for _ in 0..2 {
        let json: serde_json::Value =
            serde_json::from_str(&posted.recv_timeout(Duration::from_secs(20)).unwrap()).unwrap();
        assert_eq!((json["kind"].as_str(), json["disk_name"].as_str()), (Some("OVERCOMMIT"), Some("sda")));
    }
    wait_for(&receivers, |status| status.delivered == 1 && status.failed == 0);
    assert_eq!(
        receivers.status()[0].receiver,
        "http://127.0.0.1",
        "what may be secret in an address is not shown"
    );
    receivers.stop();
}

#[test]
fn an_alertmanager_is_told_everything_again_and_what_ended_with_its_end() {
    let (url, posted) = server(&[200, 200, 200]);
    let resend = Micros::secs(60);
    let receiver = ReceiverSettings { format: WebhookFormat::Alertmanager, resend, ..webhook(&url) };
    let mut receivers = start(&[receiver]);
    let alert = |topic: &str, until| {
        let subject = AlertSubject { topic: Some(topic.into()), ..AlertSubject::node(AlertKind::Overload) };
        Alert { until, ..Alert::new(subject, Micros::secs(1), topic.into()) }
    };
    let said = |at: u64, alerts: &[Alert], receivers: &mut ReceiverDispatcher| -> Vec<(String, bool)> {
        alerts.iter().for_each(|alert| receivers.apply(alert));
        // Not a second time before it is due.
        (0..2).for_each(|_| {
            receivers.dispatch_due(Micros::secs(at), |alert| AlertView::new(alert, None, None))
        });
        let body = posted.recv_timeout(Duration::from_secs(20)).unwrap();
        let all: Vec<serde_json::Value> = serde_json::from_str(&body).unwrap();
        let now = elbowroom_linux::timer::unix_ms();
        let lasts = |alert: &serde_json::Value| {
            let end: jiff::Timestamp = alert["endsAt"].as_str().unwrap().parse().unwrap();
            end.as_millisecond() as u64 > now
        };
        all.iter()
            .map(|alert| (alert["labels"]["topic"].as_str().unwrap().to_owned(), lasts(alert)))
            .collect()
    };
    let both = [alert("cpu", None), alert("memory", None)];
    assert_eq!(said(0, &both, &mut receivers), [("cpu".into(), true), ("memory".into(), true)]);
    assert_eq!(said(60, &[], &mut receivers), [("cpu".into(), true), ("memory".into(), true)]);
    let over = [alert("cpu", Some(Micros::secs(2)))];
    assert_eq!(said(61, &over, &mut receivers), [("cpu".into(), false), ("memory".into(), true)]);
    receivers.stop();
}

#[test]
fn an_alertmanager_that_was_away_is_told_what_is_and_not_what_was() {
    let (url, posted) = server(&[503, 200, 200]);
    let receiver =
        ReceiverSettings { format: WebhookFormat::Alertmanager, resend: Micros::secs(60), ..webhook(&url) };
    let mut receivers = start(&[receiver]);
    let mut tell = |at: u64, until: Option<u64>| {
        let alert = Alert::new(AlertSubject::node(AlertKind::Overcommit), Micros::secs(1), "text".into());
        receivers.apply(&Alert { until: until.map(Micros::secs), ..alert });
        receivers.dispatch_due(Micros::secs(at), |alert| AlertView::new(alert, None, None));
    };
    let ends = || {
        let all: serde_json::Value =
            serde_json::from_str(&posted.recv_timeout(Duration::from_secs(20)).unwrap()).unwrap();
        let end: jiff::Timestamp = all[0]["endsAt"].as_str().unwrap().parse().unwrap();
        end.as_millisecond() as u64 <= elbowroom_linux::timer::unix_ms()
    };
    tell(1, None);
    assert!(!ends());
    tell(61, None);
    tell(62, Some(62));
    assert_eq!([ends(), ends()], [false, true]);
    wait_for(&receivers, |status| status.delivered == 2);
    receivers.stop();
}

#[test]
fn a_webhook_that_refuses_or_redirects_is_not_asked_again() {
    const STATUSES: [&[u16]; 4] = [&[404, 200], &[301, 200], &[302, 200], &[308, 200]];
    for statuses in STATUSES {
        let (url, posted) = server(statuses);
        let mut receivers = start(&[webhook(&url)]);
        say(&mut receivers, AlertKind::Overcommit);
        wait_for(&receivers, |status| status.failed == 1);
        assert_eq!(posted.try_iter().count(), 1);
        receivers.stop();
    }
}
