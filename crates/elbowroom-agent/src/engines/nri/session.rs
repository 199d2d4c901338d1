//! One conversation with a runtime, without its socket: bytes in, bytes out.

use super::frame::{MuxConnection, TtrpcKind, TtrpcMessage, TtrpcReader};
use super::messages::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, KeyValue, NriContainer, NriHook, NriHooks, PodSandbox, RegisterPluginRequest,
    StateChangeEvent, SynchronizeRequest, SynchronizeResponse, TtrpcRequest, TtrpcResponse,
};
use super::{HookProgram, NriError, PluginContext};
use crate::engines::oci::{HOOK_ENV, injection};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::launch::{LaunchLimits, LaunchPlan};
use elbowroom_types::{label, launch};
use prost::Message as _;
use std::collections::HashMap;
use std::time::Duration;

/// `Event::CREATE_CONTAINER`. All else is learned from cgroups, so nothing else is asked for: every event makes the runtime wait for an
/// answer.
const CREATE_CONTAINER: i32 = 4;
/// `Event::START_CONTAINER`, which is asked for where there are no hooks: the container is made, and none of its instructions was run.
const START_CONTAINER: i32 = 6;
/// How long runtimes wait for an answer where they do not say (containerd's `plugin_request_timeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Where among plugins this one comes: early, as it looks at nothing that others change.
const PLUGIN_INDEX: &str = "10";

/// What a runtime said or wanted, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NriEvent {
    /// It took the plugin.
    Connected { runtime: String, version: String },
    /// A container is being made, with this in its plan.
    Planned { id: String, hook: bool, env: usize },
    /// A container is made, is to have its view, and runs as soon as this is answered.
    Starting { id: String, patience: Duration },
    /// A container gets less than it asks for.
    Reduced { id: String, because: String },
    /// A request was not understood; it was answered all the same.
    Undecodable { method: String },
}

/// The conversation.
pub(super) struct NriSession<'a> {
    context: &'a PluginContext,
    reader: TtrpcReader,
    /// How long the runtime waits for an answer before it throws the plugin out.
    request_timeout: Duration,
}

impl<'a> NriSession<'a> {
    /// Begins one; the bytes to send first are added to `out`.
    pub(super) fn new(node: &'a PluginContext, out: &mut Vec<u8>) -> Self {
        let register = RegisterPluginRequest {
            plugin_name: "elbowroom".to_owned(),
            plugin_idx: PLUGIN_INDEX.to_owned(),
        };
        let request = TtrpcRequest {
            service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
        };
        let body = request.encode_to_vec();
        TtrpcMessage { connection: MuxConnection::Runtime, kind: TtrpcKind::Request, stream: 1, body }
            .write(out);
        Self { context: node, reader: TtrpcReader::default(), request_timeout: REQUEST_TIMEOUT }
    }

    /// Takes what the runtime sent and adds the answers to `out`.
    ///
    /// # Errors
    /// [`NriError`]: the conversation is over.
    pub(super) fn read(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Vec<NriEvent>, NriError> {
        let mut news = Vec::new();
        for message in self.reader.read(bytes)? {
            match (message.connection, message.kind) {
                (MuxConnection::Plugin, TtrpcKind::Request) => {
                    let payload = self.answer(&message.body, &mut news)?;
                    let body = TtrpcResponse { status: None, payload }.encode_to_vec();
                    TtrpcMessage { kind: TtrpcKind::Response, body, ..message }.write(out);
                }
                (MuxConnection::Runtime, TtrpcKind::Response) => check_registration(&message.body)?,
                _ => {}
            }
        }
        Ok(news)
    }

    /// The answer's payload. To an unknown or invalid request it is empty, as every message of NRI may be: an error would
    /// be a veto, and the container would not start.
    fn answer(&mut self, request: &[u8], news: &mut Vec<NriEvent>) -> Result<Vec<u8>, NriError> {
        let Ok(request) = TtrpcRequest::decode(request) else {
            news.push(NriEvent::Undecodable { method: "?".to_owned() });
            return Ok(Vec::new());
        };
        let unreadable = || NriEvent::Undecodable { method: request.method.chars().take(40).collect() };
        let payload = request.payload.as_slice();
        Ok(match request.method.as_str() {
            "Configure" => {
                let configure = ConfigureRequest::decode(payload).unwrap_or_default();
                // Docker writes what a plugin mounts or sets into the container for good, and takes no hooks.
                if configure.runtime_name == "docker" {
                    return Err(NriError::Docker);
                }
                if let Ok(timeout @ 1..) = u64::try_from(configure.request_timeout) {
                    self.request_timeout = Duration::from_millis(timeout);
                }
                let (runtime, version) = (configure.runtime_name, configure.runtime_version);
                news.push(NriEvent::Connected { runtime, version });
                let events = match self.context.hook {
                    Some(_) => event_bit(CREATE_CONTAINER),
                    None => event_bit(CREATE_CONTAINER) | event_bit(START_CONTAINER),
                };
                ConfigureResponse { events }.encode_to_vec()
            }
            "Synchronize" => {
                let more = SynchronizeRequest::decode(payload).is_ok_and(|request| request.more);
                SynchronizeResponse { more }.encode_to_vec()
            }
            "CreateContainer" => match CreateContainerRequest::decode(payload) {
                Ok(CreateContainerRequest { pod, container: Some(container) }) => {
                    let adjust = self.adjust(&pod.unwrap_or_default(), &container, news);
                    CreateContainerResponse { adjust: Some(adjust) }.encode_to_vec()
                }
                _ => {
                    news.push(unreadable());
                    Vec::new()
                }
            },
            // Since NRI 0.12; before, one method told of all that is only told of.
            "StartContainer" => {
                match CreateContainerRequest::decode(payload) {
                    Ok(CreateContainerRequest { pod, container }) => {
                        news.extend(self.starting(pod, container))
                    }
                    Err(_) => news.push(unreadable()),
                }
                Vec::new()
            }
            "StateChange" => {
                match StateChangeEvent::decode(payload) {
                    Ok(StateChangeEvent { event: START_CONTAINER, pod, container }) => {
                        news.extend(self.starting(pod, container));
                    }
                    Ok(_) => {}
                    Err(_) => news.push(unreadable()),
                }
                Vec::new()
            }
            _ => Vec::new(),
        })
    }

    /// That a container is to wait for its view, where it is.
    fn starting(&self, pod: Option<PodSandbox>, container: Option<NriContainer>) -> Option<NriEvent> {
        let container = container.filter(|_| self.context.hook.is_none())?;
        let (plan, _) = self.plan(&pod.unwrap_or_default(), &container);
        // The rest of the time is for the way there and back.
        let patience = self.request_timeout / 4 * 3;
        plan.hook.then_some(NriEvent::Starting { id: container.id, patience })
    }

    /// The plan for a container, and what it inherits of its pod's annotations.
    fn plan(&self, pod: &PodSandbox, container: &NriContainer) -> (LaunchPlan, HashMap<String, String>) {
        // A container inherits the annotations of its pod that it does not set itself. They are written into the container's own
        // annotations, where a later search for its labels finds them.
        let all = pod.annotations.iter().chain(&container.annotations);
        let all = all.map(|(key, value)| (key.as_str(), value.as_str()));
        let all = label::for_container(all, &container.name, |_| true);
        let policy = self.context.containers.labels;
        let labels = ContainerLabels::parse(all.iter().map(|(key, value)| (*key, *value)), policy);
        let is_own = |key: &str, value: &str| container.annotations.get(key).is_some_and(|own| own == value);
        let inherited = all.into_iter().filter(|(key, value)| !is_own(key, value));
        let inherited = inherited.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let name = (!container.name.is_empty()).then(|| container.name.clone());
        let engine = ContainerEngine::Containerd;
        let known = ContainerIdentity { id: container.id.clone(), name, engine, pod: None, labels };
        (self.context.containers.launch_plan(&known), inherited)
    }

    /// The plan for a container, as NRI carries it out.
    fn adjust(
        &self,
        pod: &PodSandbox,
        container: &NriContainer,
        news: &mut Vec<NriEvent>,
    ) -> ContainerAdjustment {
        let (mut plan, annotations) = self.plan(pod, container);
        let has_hooks = self.context.hook.is_some();
        let program = self.context.hook.as_ref().and_then(HookProgram::command);
        let has_sysfs = container.mounts.iter().any(|mount| mount.destination == "/sys");
        let has_dev =
            container.mounts.iter().any(|mount| injection::has_own_dev(&mount.destination, &mount.r#type));
        let files = injection::hook_arguments(plan.injections);
        let there = match &program {
            None if !files.is_empty() && !has_hooks => {
                Err(anyhow::anyhow!("this runtime takes no hooks (nri.hooks)"))
            }
            None if !files.is_empty() => Err(anyhow::anyhow!("the hook that mounts it is not there")),
            _ => injection::check_available(plan.injections, has_sysfs),
        };
        if let Err(error) = there {
            news.push(NriEvent::Reduced {
                id: container.id.clone(),
                because: elbowroom_client::output::one_line(&error),
            });
            plan.injections = plan.injections.without_files();
        }
        plan = LaunchPlan {
            hook: plan.hook && (program.is_some() || !has_hooks),
            pressure_file: self.context.memory_pressure && has_dev,
            ..plan
        };
        let files = injection::hook_arguments(plan.injections);
        let hook = program.filter(|_| plan.hook || !files.is_empty());
        let env = variables(plan, container).unwrap_or_else(|error| {
            news.push(NriEvent::Reduced {
                id: container.id.clone(),
                because: elbowroom_client::output::one_line(&error),
            });
            Vec::new()
        });
        news.push(NriEvent::Planned { id: container.id.clone(), hook: hook.is_some(), env: env.len() });
        ContainerAdjustment {
            annotations,
            env,
            hooks: hook.map(|(path, args)| {
                let args = [args, files].concat();
                let env = HOOK_ENV.map(str::to_owned).to_vec();
                NriHooks { create_container: vec![NriHook { path, args, env }] }
            }),
        }
    }
}

/// An event in a subscription (`Event` in containerd/nri, pkg/api/event.go, `EventMask`).
const fn event_bit(event: i32) -> i32 {
    1 << (event - 1)
}

/// The variables that `plan` adds to a container's, or gives another value.
fn variables(plan: LaunchPlan, container: &NriContainer) -> anyhow::Result<Vec<KeyValue>> {
    if plan.injections.is_none() {
        return Ok(Vec::new());
    }
    let mut env = container.env.clone();
    launch::apply_container_env(plan, room(container), injection::online_cpu_count()?, &mut env);
    env.retain(|word| !container.env.contains(word));
    let pairs = env.iter().filter_map(|word| word.split_once('='));
    Ok(pairs.map(|(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() }).collect())
}

/// The room that a container's limits leave.
fn room(container: &NriContainer) -> LaunchLimits {
    let resources = container.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
    let cpu = resources.cpu.unwrap_or_default();
    let memory = resources.memory.and_then(|memory| memory.limit).map_or(0, |limit| limit.value);
    let (quota, period) = (cpu.quota.map_or(0, |q| q.value), cpu.period.map_or(0, |p| p.value));
    LaunchLimits::from_oci(quota, period, &cpu.cpus, memory)
}

/// The runtime's answer to the registration.
fn check_registration(response: &[u8]) -> Result<(), NriError> {
    match TtrpcResponse::decode(response).ok().and_then(|response| response.status) {
        Some(status) if status.code != 0 => {
            Err(NriError::Refused(status.message.chars().take(200).collect()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::{
        LinuxContainer, LinuxCpu, LinuxMemory, LinuxResources, NriMount, OptionalInt64, OptionalUInt64,
    };
    use super::*;
    use crate::config::ContainerSettings;
    use elbowroom_types::label::{PREFIX, RuntimeInjection};
    use proptest::prelude::*;

    fn node(containers: &ContainerSettings) -> PluginContext {
        let hook = HookProgram { path: "/bin/sh".into(), args: vec!["elbowroom".into(), "hook".into()] };
        PluginContext { containers: containers.clone(), memory_pressure: false, hook: Some(hook) }
    }

    fn ask(
        node: &PluginContext,
        method: &str,
        payload: Vec<u8>,
    ) -> (Result<Vec<NriEvent>, NriError>, Vec<u8>) {
        let mut out = Vec::new();
        let mut session = NriSession::new(node, &mut out);
        let [registration] = &TtrpcReader::default().read(&out).unwrap()[..] else { panic!() };
        assert_eq!((registration.connection, registration.stream), (MuxConnection::Runtime, 1));
        let body = TtrpcRequest { service: "x".into(), method: method.into(), payload }.encode_to_vec();
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        TtrpcMessage { connection: MuxConnection::Plugin, kind: TtrpcKind::Request, stream: 5, body }
            .write(&mut bytes);
        let news = session.read(&bytes, &mut out);
        let answers = TtrpcReader::default().read(&out).unwrap();
        let payload = answers.first().map(|answer| {
            assert_eq!(
                (answer.connection, answer.kind, answer.stream),
                (MuxConnection::Plugin, TtrpcKind::Response, 5)
            );
            let response = TtrpcResponse::decode(&answer.body[..]).unwrap();
            assert_eq!(response.status, None);
            response.payload
        });
        (news, payload.unwrap_or_default())
    }

    fn notes(list: &[(&str, &str)]) -> HashMap<String, String> {
        list.iter().map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_owned())).collect()
    }

    fn create(
        containers: &ContainerSettings,
        pod: &[(&str, &str)],
        own: &[(&str, &str)],
    ) -> ContainerAdjustment {
        let (news, adjust) = created(&node(containers), pod, own);
        assert!(matches!(&news[..], [NriEvent::Planned { id, .. }] if id == "abc"));
        adjust
    }

    fn created(
        node: &PluginContext,
        pod: &[(&str, &str)],
        own: &[(&str, &str)],
    ) -> (Vec<NriEvent>, ContainerAdjustment) {
        let pod = Some(PodSandbox { annotations: notes(pod) });
        let request = CreateContainerRequest { pod, container: Some(container(own)) };
        let (news, payload) = ask(node, "CreateContainer", request.encode_to_vec());
        (news.unwrap(), CreateContainerResponse::decode(&payload[..]).unwrap().adjust.unwrap())
    }

    fn container(own: &[(&str, &str)]) -> NriContainer {
        let resources = LinuxResources {
            memory: Some(LinuxMemory { limit: Some(OptionalInt64 { value: 1 << 30 }) }),
            cpu: Some(LinuxCpu {
                quota: Some(OptionalInt64 { value: 250_000 }),
                period: Some(OptionalUInt64 { value: 100_000 }),
                cpus: String::new(),
            }),
        };
        NriContainer {
            id: "abc".into(),
            name: "web".into(),
            annotations: notes(own),
            env: vec!["GOMAXPROCS=7".into(), "X".into(), "LD_PRELOAD=/x.so".into()],
            mounts: [("/sys", "sysfs"), ("/dev", "tmpfs")]
                .map(|(destination, kind)| NriMount { destination: destination.into(), r#type: kind.into() })
                .to_vec(),
            linux: Some(LinuxContainer { resources: Some(resources) }),
        }
    }

    #[test]
    fn a_runtime_is_told_what_it_is_to_ask() {
        let configure = ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "v2".into(),
            ..ConfigureRequest::default()
        };
        let (news, payload) =
            ask(&node(&ContainerSettings::default()), "Configure", configure.encode_to_vec());
        assert_eq!(
            news.unwrap(),
            [NriEvent::Connected { runtime: "containerd".into(), version: "v2".into() }]
        );
        assert_eq!(ConfigureResponse::decode(&payload[..]).unwrap().events, 1 << 3);
        let docker = ConfigureRequest { runtime_name: "docker".into(), ..ConfigureRequest::default() };
        assert!(matches!(
            ask(&node(&ContainerSettings::default()), "Configure", docker.encode_to_vec()).0,
            Err(NriError::Docker)
        ));
    }

    #[test]
    fn a_container_is_given_its_hook() {
        let adjust = create(&ContainerSettings::default(), &[], &[]);
        let [hook] = &adjust.hooks.unwrap().create_container[..] else { panic!() };
        assert_eq!((hook.path.as_str(), hook.args[1].as_str()), ("/bin/sh", "hook"));
        assert!(adjust.env.is_empty() && adjust.annotations.is_empty());
    }

    #[test]
    fn without_hooks_a_container_that_is_to_have_a_view_waits_for_it_when_it_starts() {
        let plugin = PluginContext { hook: None, ..node(&ContainerSettings::default()) };
        let (_, payload) = ask(&plugin, "Configure", ConfigureRequest::default().encode_to_vec());
        assert_eq!(ConfigureResponse::decode(&payload[..]).unwrap().events, 1 << 3 | 1 << 5);
        let told = |plugin: &PluginContext, method, payload: Vec<u8>| {
            let (news, answer) = ask(plugin, method, payload);
            assert!(answer.is_empty());
            news.unwrap()
        };
        let changes = |plugin: &PluginContext, event, own: &[(&str, &str)]| {
            let change = StateChangeEvent { event, pod: None, container: Some(container(own)) };
            told(plugin, "StateChange", change.encode_to_vec())
        };
        let starts = |plugin: &PluginContext, own: &[(&str, &str)]| {
            let start = CreateContainerRequest { pod: None, container: Some(container(own)) };
            told(plugin, "StartContainer", start.encode_to_vec())
        };
        let waits = [NriEvent::Starting { id: "abc".into(), patience: Duration::from_millis(1_500) }];
        assert_eq!(changes(&plugin, START_CONTAINER, &[]), waits);
        assert_eq!(starts(&plugin, &[]), waits);
        assert_eq!(changes(&plugin, START_CONTAINER, &[("views", "off")]), []);
        assert_eq!(starts(&plugin, &[("views", "off")]), []);
        assert_eq!(changes(&plugin, START_CONTAINER + 1, &[]), []);
        let hooks = node(&ContainerSettings::default());
        assert_eq!((changes(&hooks, START_CONTAINER, &[]), starts(&hooks, &[])), (vec![], vec![]));
        // Variables are as with a hook; files of libraries only a hook can mount.
        let (news, adjust) = created(&plugin, &[], &[("env", "on"), ("libc", "on")]);
        assert!(
            matches!(&news[..], [NriEvent::Reduced { because, .. }, NriEvent::Planned { hook: false, .. }]
            if because.contains("takes no hooks"))
        );
        let keys: Vec<&str> = adjust.env.iter().map(|row| row.key.as_str()).collect();
        assert!(keys.contains(&"OMP_NUM_THREADS") && !keys.contains(&"PYTHON_CPU_COUNT"), "{keys:?}");
        assert!(adjust.hooks.is_none() && !keys.contains(&"LD_PRELOAD"));
    }

    #[test]
    fn a_pods_annotations_are_its_containers_and_theirs_go_first() {
        let off = create(&ContainerSettings::default(), &[("views", "off"), ("priority", "5")], &[]);
        assert_eq!((off.hooks, off.annotations), (None, notes(&[("views", "off"), ("priority", "5")])));
        let on = create(&ContainerSettings::default(), &[("views", "off")], &[("views", "on")]);
        assert!(on.hooks.is_some() && on.annotations.is_empty());
        let one = [("views.web", "off"), ("priority", "5"), ("priority.web", "7"), ("env.side", "on")];
        let one = create(&ContainerSettings::default(), &one, &[("priority", "5")]);
        assert_eq!((one.hooks, one.annotations), (None, notes(&[("views", "off"), ("priority", "7")])));
        let none = ContainerSettings { attach: false, ..ContainerSettings::default() };
        assert_eq!(create(&none, &[], &[]), ContainerAdjustment::default());
        assert!(create(&none, &[("views", "on")], &[]).hooks.is_some());
        let excluded = ContainerSettings { exclude: vec!["w*".into()], ..ContainerSettings::default() };
        assert_eq!(create(&excluded, &[], &[("views", "on")]), ContainerAdjustment::default());
    }

    #[test]
    fn limits_go_into_the_environment_where_that_is_asked_for() {
        let adjust = create(&ContainerSettings::default(), &[("env", "on")], &[]);
        let env: HashMap<_, _> = adjust.env.into_iter().map(|row| (row.key, row.value)).collect();
        assert_eq!(env["OMP_NUM_THREADS"], "3");
        assert_eq!(env["NODE_OPTIONS"], "--max-old-space-size=768");
        assert!(!env.contains_key("GOMAXPROCS"), "its maker has set it");
        assert!(!env.contains_key("PYTHON_CPU_COUNT"), "it follows the view");
        let alone = create(&ContainerSettings::default(), &[("env", "on"), ("views", "off")], &[]);
        assert!(alone.env.iter().any(|row| row.key == "PYTHON_CPU_COUNT"));
    }

    #[test]
    fn programs_are_told_to_watch_where_a_label_or_the_operator_asks() {
        let watch = |asks, own: &[(&str, &str)]| {
            let node = PluginContext { memory_pressure: asks, ..node(&ContainerSettings::default()) };
            let (_, adjust) = created(&node, &[], own);
            adjust.env.iter().any(|row| row.key == "MEMORY_PRESSURE_WATCH")
        };
        assert!(watch(true, &[("env", "on")]) && !watch(false, &[("env", "on")]));
        assert!(!watch(true, &[("env", "on"), ("views", "off")]) && !watch(true, &[]));
    }

    #[test]
    fn labels_for_libraries_are_heeded_or_it_is_said_that_they_are_not() {
        let libraries = RuntimeInjection { openmp: true, libc: true, ..RuntimeInjection::default() };
        let (news, adjust) = created(
            &node(&ContainerSettings::default()),
            &[],
            &[("openmp", "on"), ("libc", "on"), ("env", "on")],
        );
        let env: HashMap<_, _> = adjust.env.into_iter().map(|row| (row.key, row.value)).collect();
        let [hook] = &adjust.hooks.unwrap().create_container[..] else { panic!() };
        assert_eq!((env["OMP_NUM_THREADS"].as_str(), env.contains_key("GOMAXPROCS")), ("3", false));
        if injection::check_available(libraries, true).is_ok() {
            assert_eq!(hook.args, ["elbowroom", "hook", injection::INJECTION_FLAG, "openmp,libc"]);
            let ours = launch::preload_libraries(libraries).join(":");
            assert_eq!(env["LD_PRELOAD"], format!("/x.so:{ours}"));
            assert_eq!((news.len(), env["KMP_BLOCKTIME"].as_str()), (1, "1"));
        } else {
            println!("skipped: nothing can be preloaded on this host");
            assert!(matches!(&news[..], [NriEvent::Reduced { .. }, NriEvent::Planned { .. }]));
        }
        // A container whose hook is not there gets words alone, and the log has why.
        let hook = HookProgram { path: "/no/such/program".into(), args: Vec::new() };
        let (news, adjust) = created(
            &PluginContext { hook: Some(hook), ..node(&ContainerSettings::default()) },
            &[],
            &[("libc", "on"), ("env", "on")],
        );
        assert!(
            matches!(&news[..], [NriEvent::Reduced { because, .. }, NriEvent::Planned { .. }] if because.contains("hook"))
        );
        assert!(adjust.hooks.is_none() && adjust.env.iter().all(|row| row.key != "LD_PRELOAD"));
        assert!(adjust.env.iter().any(|row| row.key == "PYTHON_CPU_COUNT"));
    }

    #[test]
    fn nothing_that_is_not_understood_is_a_veto() {
        for method in ["CreateContainer", "StartContainer", "StateChange", "Synchronize", "FlyToTheMoon"] {
            let (news, payload) = ask(&node(&ContainerSettings::default()), method, vec![0xff; 9]);
            let told = !news.unwrap().is_empty();
            let is_known = ["CreateContainer", "StartContainer", "StateChange"].contains(&method);
            assert!(payload.is_empty() && told == is_known, "{method}");
        }
        let more = SynchronizeRequest { more: true }.encode_to_vec();
        let (_, payload) = ask(&node(&ContainerSettings::default()), "Synchronize", more);
        assert!(SynchronizeResponse::decode(&payload[..]).unwrap().more);
    }

    /// What containerd sends when a container is made, as the fuzzer begins with it.
    const SENT: &[u8] = include_bytes!("../../../../../fuzz/corpus/nri/create");

    proptest! {
        #[test]
        fn neither_cuts_nor_damage_break_a_session(cut in 0..SENT.len(), at in 0..SENT.len(), byte: u8) {
            let node = node(&ContainerSettings::default());
            let session = || NriSession::new(&node, &mut Vec::new());
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            session().read(SENT, &mut whole).unwrap();
            let mut cutting = session();
            cutting.read(&SENT[..cut], &mut parts).unwrap();
            cutting.read(&SENT[cut..], &mut parts).unwrap();
            // Variables are in no order in maps, so only their number is sure.
            prop_assert_eq!(&whole, &parts);
            prop_assert!(whole.len() > 200);
            let mut damaged = SENT.to_vec();
            damaged[at] = byte;
            let _ = session().read(&damaged, &mut Vec::new());
        }
    }

    #[test]
    fn a_refusal_is_told() {
        let node = node(&ContainerSettings::default());
        let mut session = NriSession::new(&node, &mut Vec::new());
        let status = Some(super::super::messages::RpcStatus { code: 3, message: "no plugins here".into() });
        let body = TtrpcResponse { status, payload: Vec::new() }.encode_to_vec();
        let mut bytes = Vec::new();
        TtrpcMessage { connection: MuxConnection::Runtime, kind: TtrpcKind::Response, stream: 1, body }
            .write(&mut bytes);
        let error = session.read(&bytes, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no plugins here"), "{error}");
    }
}
