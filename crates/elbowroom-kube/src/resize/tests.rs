use super::*;
use crate::agent::ApiContainer;
use elbowroom_govern::verdict::{VerdictFacts, judge};
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::resource_command::ResourceOwner;
use elbowroom_types::unit::Limit;
use elbowroom_types::verdict::Verdict;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const MIB: u64 = 1 << 20;
const HOLD: Micros = Micros::secs(30);

fn pod(limits: Value, annotations: Value) -> Value {
    json!({
        "metadata": {"uid": "u", "namespace": "shop", "name": "db-0", "resourceVersion": "7", "annotations": annotations},
        "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}, {"name": "side"}],
            "initContainers": [{"name": "init", "resources": {"limits": {"memory": "128Mi"}}}]},
        "status": {"qosClass": "Burstable", "conditions": [], "containerStatuses": [
            {"name": "app", "containerID": "containerd://app-id", "image": "", "imageID": "", "ready": true, "restartCount": 0}]},
    })
}

fn ask(resource: Resource, amount: u64) -> ResizeAsk {
    let because = "it needs more".to_owned();
    ResizeAsk { pod: "u".into(), container: "app".into(), resource, amount, killed: false, because }
}

fn read(pod: &Value) -> Vec<Arc<Pod>> {
    vec![Arc::new(serde_json::from_value(pod.clone()).unwrap())]
}

fn check(pod: &Value, namespace: Option<(&str, &str)>, ask: &ResizeAsk, expect: Option<Value>) {
    let namespace = namespace.map(|(key, value)| BTreeMap::from([(key.to_owned(), value.to_owned())]));
    let order = ResizeOrder::of(&read(pod)[0], namespace.as_ref(), ask);
    let patch = order.map(|order| order.patch()["spec"]["containers"][0]["resources"].clone());
    assert_eq!(patch, expect, "{pod} {ask:?}");
}

#[test]
fn a_limit_is_raised_to_what_helps_or_to_its_bound() {
    let (memory, cpu) = (ask(Resource::Memory, 160 * MIB), ask(Resource::Cpu, 750));
    let limits = || json!({"memory": "128Mi", "cpu": "0.5"});
    let of = |key: &str, value: &str| pod(limits(), json!({key: value}));
    let more = |resource: &str, limit: &str| Some(json!({"limits": {resource: limit}}));
    check(&of("elbowroom.dev/memory-max", "2Gi"), None, &memory, more("memory", "160Mi"));
    check(&of("elbowroom.dev/memory-max", "0.1484375GiB"), None, &memory, more("memory", "152Mi"));
    check(&of("elbowroom.dev/cpu-max", "2"), None, &cpu, more("cpu", "750m"));
    check(&of("elbowroom.dev/cpu-max", "600m"), None, &cpu, more("cpu", "600m"));
    check(&of("elbowroom.dev/memory-max.app", "1Gi"), None, &memory, more("memory", "160Mi"));
    check(&of("elbowroom.dev/memory-max.side", "1Gi"), None, &memory, None);
    let namespace = Some(("elbowroom.dev/memory-max", "1Gi"));
    check(&pod(limits(), json!({})), namespace, &memory, more("memory", "160Mi"));
    check(&of("elbowroom.dev/memory-max", "140Mi"), namespace, &memory, more("memory", "140Mi"));
    for (key, value) in [
        ("memory-max", "128Mi"),
        ("memory-max", "64Mi"),
        ("memory-max", "lots"),
        ("memory-max", "5"),
        ("cpu-max", "9"),
    ] {
        check(&of(&format!("elbowroom.dev/{key}"), value), None, &memory, None);
    }
    check(&pod(limits(), json!({})), None, &memory, None);
    check(&pod(json!({"cpu": "1"}), json!({"elbowroom.dev/memory-max": "1Gi"})), None, &memory, None);
}

#[test]
fn a_pods_class_stays_and_no_container_is_restarted() {
    let memory = ask(Resource::Memory, 160 * MIB);
    let mut pod = pod(json!({"memory": "128Mi"}), json!({"elbowroom.dev/memory-max": "2Gi"}));
    pod["status"]["qosClass"] = "Guaranteed".into();
    let both = json!({"limits": {"memory": "160Mi"}, "requests": {"memory": "160Mi"}});
    check(&pod, None, &memory, Some(both.clone()));
    let policy = |restart: &str| json!([{"resourceName": "memory", "restartPolicy": restart}]);
    pod["spec"]["containers"][0]["resizePolicy"] = policy("NotRequired");
    check(&pod, None, &memory, Some(both));
    pod["spec"]["containers"][0]["resizePolicy"] = policy("RestartContainer");
    check(&pod, None, &memory, None);
    pod["spec"]["containers"][0]["resizePolicy"] = json!([]);
    for (of_pod, container) in [("u", "init"), ("u", "side"), ("another", "app")] {
        let other = ResizeAsk { pod: of_pod.into(), container: container.into(), ..memory.clone() };
        check(&pod, None, &other, None);
    }
}

#[test]
fn bounds_that_are_read_are_not_handed_to_the_agent() {
    for (key, value, expect) in [
        ("memory-max", "2Gi", false),
        ("cpu-max", "1500m", false),
        ("memory-max", "lots", true),
        ("cpu-max", "2Gi", true),
        ("disk-max", "2Gi", true),
        ("priority", "3", true),
    ] {
        assert_eq!(is_agent_label(&format!("{PREFIX}{key}"), value), expect, "{key}={value}");
    }
    assert!(is_agent_label("example.com/memory-max", "2Gi"));
}

/// A container as the agent's own judge sees it.
fn judged(change: impl FnOnce(&mut VerdictFacts<'_>)) -> Verdict {
    let owner = ResourceOwner {
        engine: ContainerEngine::Containerd,
        name: "app".into(),
        pod: None,
        path: "/kubepods/app".into(),
        memory_dir: Default::default(),
        cpu_dir: Default::default(),
        cpu_period: Micros::millis(100),
    };
    let mut facts = VerdictFacts {
        owner: &owner,
        kills: None,
        memory_limit: Limit::At(Bytes::mib(128)),
        memory_and_swap: None,
        memory_need: Some(Bytes::mib(90)),
        memory_wait: None,
        disk_wait: None,
        cpu_wait: None,
        cpu_quota: Some(Millicpu(500)),
        quota_around: None,
        cpus_used: None,
        cpus_allowed: None,
        throttled: None,
        cpu_shares: Some(1024),
        disks: &[],
        over_memory: None,
    };
    change(&mut facts);
    judge(&facts)
}

fn snapshot(verdict: &Verdict, lent: u64, alerts: Value) -> ApiSnapshot {
    let container = json!({"id": "app-id", "name": "app", "pod": {"uid": "u", "name": "db-0", "namespace": "shop"}, "verdict": verdict,
            "memory": {"lent": lent}});
    serde_json::from_value(json!({"containers": [container], "alerts": {"lasting": alerts}})).unwrap()
}

#[test]
fn what_the_agents_judge_says_is_what_is_asked_for() {
    let asked = |verdict: Verdict| {
        let asks = resize_asks(&snapshot(&verdict, 0, json!([])));
        asks.into_iter().map(|ask| (ask.resource, ask.amount, ask.killed)).next()
    };
    let limit = Limit::At(Bytes::mib(128));
    let kills = elbowroom_govern::verdict::MemoryKills {
        count: 1,
        span: Micros::ZERO,
        ago: Micros::secs(1),
        limit,
        peak: None,
        needs_rerun: false,
    };
    for (verdict, expect) in [
        (judged(|_| {}), None),
        (
            judged(|facts| facts.memory_need = Some(Bytes::mib(134))),
            Some((Resource::Memory, 160 * MIB, false)),
        ),
        (judged(|facts| facts.kills = Some(kills)), Some((Resource::Memory, 256 * MIB, true))),
        (judged(|facts| facts.throttled = Some(0.3)), Some((Resource::Cpu, 750, false))),
        // These wait for what others have: a higher limit would help none.
        (judged(|facts| facts.memory_wait = Some(0.3)), None),
        (judged(|facts| facts.cpu_wait = Some(0.6)), None),
    ] {
        assert_eq!(asked(verdict.clone()), expect, "{verdict:?}");
    }
}

#[test]
fn loans_come_back_first_and_a_short_node_gives_nothing() {
    let tight = judged(|facts| facts.memory_need = Some(Bytes::mib(134)));
    let throttled = judged(|facts| facts.throttled = Some(0.3));
    let overload = |topic: &str| json!([{"kind": "OVERLOAD", "topic": topic, "since": 1, "text": "short"}]);
    for (verdict, lent, alerts, expect) in [
        (&tight, 0, json!([]), 1),
        (&tight, 1, json!([]), 0),
        (&tight, 0, overload("memory"), 0),
        (&tight, 0, overload("cpu"), 1),
        (&throttled, 1, overload("memory"), 1),
        (&throttled, 0, overload("cpu"), 0),
    ] {
        assert_eq!(resize_asks(&snapshot(verdict, lent, alerts)).len(), expect, "{verdict:?} {lent}");
    }
    let mut alone = snapshot(&tight, 0, json!([]));
    alone.containers[0].pod = None;
    assert_eq!(resize_asks(&alone), []);
    let newer = json!({"id": "app-id", "verdict": {"status": "unheard_of", "reason": "", "command": null}});
    assert_eq!(serde_json::from_value::<ApiContainer>(newer).unwrap().verdict, Verdict::default());
}

/// Seconds at which something is changed, of those in which `asked` asks.
fn play(
    ladder: &mut ResizeLadder,
    seconds: u64,
    asked: impl Fn(u64) -> Option<ResizeAsk>,
    pod: &Value,
) -> Vec<u64> {
    let pods = read(pod);
    let changed = |second: &u64| {
        let asks: Vec<ResizeAsk> = asked(*second).into_iter().collect();
        !ladder.step(Micros::secs(*second), &asks, &pods, |_| None).is_empty()
    };
    (0..seconds).filter(changed).collect()
}

#[test]
fn what_asks_without_a_break_is_answered_and_rarely() {
    let pod = pod(json!({"memory": "128Mi"}), json!({"elbowroom.dev/memory-max": "2Gi"}));
    let more = || Some(ask(Resource::Memory, 160 * MIB));
    let new = || ResizeLadder::new(HOLD);
    assert_eq!(play(&mut new(), 100, |_| more(), &pod), [30, 90]);
    assert_eq!(play(&mut new(), 100, |second| (second % 30 > 0).then(more).flatten(), &pod), [0; 0]);
    let killed = || more().map(|ask| ResizeAsk { killed: true, ..ask });
    assert_eq!(play(&mut new(), 100, |second| (second % 30 == 9).then(killed).flatten(), &pod), [9, 69]);
    for condition in ["PodResizePending", "PodResizeInProgress"] {
        let mut busy = pod.clone();
        busy["status"]["conditions"] = json!([{"type": condition, "status": "True"}]);
        assert_eq!(play(&mut new(), 100, |_| killed(), &busy), [0; 0], "{condition}");
    }
}

#[test]
fn what_was_refused_is_left_alone_until_its_limit_or_bound_is_another() {
    let bound = |bound: &str| pod(json!({"memory": "128Mi"}), json!({"elbowroom.dev/memory-max": bound}));
    let asks = [ResizeAsk { killed: true, ..ask(Resource::Memory, 256 * MIB) }];
    let mut ladder = ResizeLadder::new(HOLD);
    let [order] = &ladder.step(Micros::ZERO, &asks, &read(&bound("1Gi")), |_| None)[..] else { panic!() };
    ladder.refuse(order);
    assert_eq!(play(&mut ladder, 300, |_| Some(asks[0].clone()), &bound("1Gi")), [0; 0]);
    let another = ladder.step(Micros::secs(300), &asks, &read(&bound("2Gi")), |_| None);
    assert_eq!((another.len(), another[0].bound), (1, 2_048 * MIB));
}

#[test]
fn what_the_kubelet_does_not_do_is_told_once_of_changes_of_ours() {
    let mut pod = pod(json!({"memory": "128Mi"}), json!({"elbowroom.dev/memory-max": "2Gi"}));
    let mut ladder = ResizeLadder::new(HOLD);
    let deferred = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "Node didn't have enough"}]);
    pod["status"]["conditions"] = deferred.clone();
    assert_eq!(ladder.pending(&read(&pod)), [], "a user's own");
    pod["status"]["conditions"] = json!([]);
    let asks = [ResizeAsk { killed: true, ..ask(Resource::Memory, 256 * MIB) }];
    assert_eq!(ladder.step(Micros::ZERO, &asks, &read(&pod), |_| None).len(), 1);
    pod["status"]["conditions"] = deferred;
    assert_eq!(ladder.pending(&read(&pod)), [], "another's: ours is not in the pod");
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"memory": "256Mi"});
    let told = ladder.pending(&read(&pod));
    let note = "app: memory limit 128Mi -> 256Mi, at most 2048Mi: Deferred: Node didn't have enough";
    assert_eq!((told[0].reason().as_str(), told[0].content.note.as_str()), ("ResizePending", note));
    assert_eq!(ladder.pending(&read(&pod)), []);
}

/// An API server that answers once; what it was asked.
async fn asked(status: &str, answer: Value) -> (String, ResizeOutcome) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", server.local_addr().unwrap());
    let client = Client::try_from(kube::Config::new(address.parse().unwrap())).unwrap();
    let pod = pod(json!({"memory": "128Mi"}), json!({"elbowroom.dev/memory-max": "2Gi"}));
    let order = ResizeOrder::of(&read(&pod)[0], None, &ask(Resource::Memory, 160 * MIB)).unwrap();
    let body = answer.to_string();
    let serving = async {
        let (mut stream, _) = server.accept().await.unwrap();
        let mut question = Vec::new();
        // The patch is the last that is sent.
        while !String::from_utf8_lossy(&question).ends_with("}]}}") {
            assert!(stream.read_buf(&mut question).await.unwrap() > 0);
        }
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        String::from_utf8(question).unwrap()
    };
    tokio::join!(serving, resize(&client, &order))
}

#[tokio::test]
async fn the_api_server_is_asked_for_one_limit_of_the_pod_that_was_seen() {
    let (question, outcome) = asked("200 OK", pod(json!({"memory": "160Mi"}), json!({}))).await;
    assert_eq!(outcome, ResizeOutcome::Done);
    assert!(
        question.starts_with("PATCH /api/v1/namespaces/shop/pods/db-0/resize? HTTP/1.1\r\n"),
        "{question}"
    );
    assert!(question.contains("content-type: application/strategic-merge-patch+json"), "{question}");
    let (_, patch) = question.split_once("\r\n\r\n").unwrap();
    let limits = json!({"limits": {"memory": "160Mi"}});
    let expect = json!({"metadata": {"resourceVersion": "7"}, "spec": {"containers": [{"name": "app", "resources": limits}]}});
    assert_eq!(serde_json::from_str::<Value>(patch).unwrap(), expect);
}

#[tokio::test]
async fn a_refusal_is_one_and_a_conflict_or_a_trouble_is_none() {
    let answer = |code: u16| json!({"kind": "Status", "status": "Failure", "message": "exceeded quota", "reason": "", "code": code});
    for (line, code, refused) in [
        ("403 Forbidden", 403, true),
        ("422 Unprocessable Entity", 422, true),
        ("409 Conflict", 409, false),
        ("500 Internal Server Error", 500, false),
    ] {
        let (_, outcome) = asked(line, answer(code)).await;
        assert_eq!(
            outcome == ResizeOutcome::Refused("exceeded quota".into()),
            refused,
            "{line}: {outcome:?}"
        );
        assert_ne!(outcome, ResizeOutcome::Done);
    }
}

proptest! {
    #[test]
    fn a_limit_only_rises_up_to_its_bound_and_one_at_a_time(
        limits in (1u64..1 << 40, 1u64..100_000),
        bounds in (1u64..1 << 40, 1u64..100_000),
        guaranteed: bool,
        seconds in prop::collection::vec((0u64..100, 1u64..1 << 40, 1u64..100_000, any::<bool>(), any::<bool>()), 1..30),
    ) {
        let limits_of = |(memory, cpu): (u64, u64)| json!({"memory": memory.to_string(), "cpu": format!("{cpu}m")});
        let bounds_of = [format!("{}B", bounds.0), format!("{}m", bounds.1)];
        let annotations = json!({"elbowroom.dev/memory-max": bounds_of[0], "elbowroom.dev/cpu-max": bounds_of[1]});
        let mut pod = pod(limits_of(limits), annotations);
        pod["status"]["qosClass"] = if guaranteed { "Guaranteed" } else { "Burstable" }.into();
        let (mut ladder, mut now, mut last, mut limits) = (ResizeLadder::new(HOLD), Micros::ZERO, None, limits);
        let mut refused = Vec::new();
        for (pause, memory, cpu, killed, takes) in seconds {
            now = now.saturating_add(Micros::secs(pause));
            let asks = [(Resource::Memory, memory), (Resource::Cpu, cpu)];
            let asks = asks.map(|(resource, amount)| ResizeAsk { killed, ..ask(resource, amount) });
            let orders = ladder.step(now, &asks, &read(&pod), |_| None);
            prop_assert!(orders.len() <= 1);
            for order in orders {
                prop_assert!(!refused.contains(&order.terms()), "{:?} was refused", order);
                prop_assert!(last.is_none_or(|last| now.saturating_sub(last) >= PAUSE));
                last = Some(now);
                let patch = &order.patch()["spec"]["containers"][0]["resources"];
                prop_assert_eq!(patch.get("requests"), guaranteed.then(|| &patch["limits"]));
                let written: BTreeMap<String, Quantity> = serde_json::from_value(patch["limits"].clone()).unwrap();
                let to = order.resource.amount(Some(&written)).unwrap();
                let (limit, bound) = match order.resource {
                    Resource::Memory => (&mut limits.0, bounds.0),
                    Resource::Cpu => (&mut limits.1, bounds.1),
                };
                prop_assert!(*limit < to && to <= bound, "{} -> {}, bound {}", limit, to, bound);
                if takes {
                    *limit = to;
                } else {
                    ladder.refuse(&order);
                    refused.push(order.terms());
                }
            }
            pod["spec"]["containers"][0]["resources"]["limits"] = limits_of(limits);
        }
    }
}
