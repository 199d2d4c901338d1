//! Ways into a container's programs beside files, where its labels ask for them ([`elbowroom_types::launch`]): the wrapper adds
//! variables to the bundle's environment, the hook mounts the files they name.

use super::bundle;
use crate::config::ContainerSettings;
use crate::preload;
use anyhow::ensure;
use elbowroom_client::api::{LaunchGrant, LaunchRequest};
use elbowroom_client::control as client;
use elbowroom_linux::bounded;
use elbowroom_linux::root::Root;
use elbowroom_linux::sensor::online;
use elbowroom_types::label::{ContainerLabels, RuntimeInjection};
use elbowroom_types::launch::{DEV, LaunchLimits, LaunchPlan};
use elbowroom_types::{label, launch};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// The hook's argument in front of the names of what it mounts.
pub(crate) const INJECTION_FLAG: &str = "--inject";

/// How long a container's start may wait for the agent's word.
const AGENT_TIMEOUT: Duration = Duration::from_millis(250);

/// Annotations in which engines keep the name that a container has in its pod: containerd, CRI-O.
const POD_NAME_ANNOTATIONS: [&str; 2] = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"];
/// The one of a container of nerdctl.
const NERDCTL_NAME_ANNOTATION: &str = "nerdctl/name";

/// The plan for the container of `bundle`. A user of the wrapper wants views; what else there is, the agent says, and is not asked
/// where nothing of the kind is wanted. A container that is to be left alone gets nothing.
pub(super) fn launch_plan(
    bundle: &Path,
    config: &Value,
    run_dir: &Path,
    node: &ContainerSettings,
) -> LaunchPlan {
    let made = bundle_container(bundle, config);
    if node.excludes_named(&made.id, made.name.as_deref()) {
        return LaunchPlan::default();
    }
    let labels = made.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let plan = LaunchPlan::new(&ContainerLabels::parse(labels, node.labels), true, node.env);
    if plan.injections.is_none() {
        return plan;
    }
    let LaunchGrant { injections, asks } =
        granted_injections(config, made, run_dir).unwrap_or_else(|error| {
            let because = elbowroom_client::output::one_line(&error);
            let program = super::runtime::PROGRAM;
            super::write_stderr(&format!(
                "{program}: {}: the container does not get all that its labels ask for: {because}",
                bundle.display()
            ));
            LaunchGrant::default()
        });
    LaunchPlan { injections, pressure_file: asks, ..plan }
}

/// The part of a container's wishes that this host allows.
fn granted_injections(config: &Value, made: LaunchRequest, run_dir: &Path) -> anyhow::Result<LaunchGrant> {
    let given = client::request_launch(run_dir, made, AGENT_TIMEOUT)?;
    let has_sysfs = entries(config, "/mounts").any(|mount| mount["destination"] == "/sys");
    check_available(given.injections, has_sysfs)?;
    let has_dev = entries(config, "/mounts").any(|mount| has_own_dev(&mount["destination"], &mount["type"]));
    Ok(LaunchGrant { asks: given.asks && has_dev, ..given })
}

/// Whether this mount is a container's own `/dev`, in which there is a place for the file that asks for memory.
pub(crate) fn has_own_dev<T: PartialEq<str>>(destination: &T, kind: &T) -> bool {
    *destination == *DEV && *kind == *"tmpfs"
}

/// Whether what is wanted can be had in a container that is about to be made.
pub(crate) fn check_available(wanted: RuntimeInjection, has_sysfs: bool) -> anyhow::Result<()> {
    ensure!(has_sysfs || wanted.without_files() == wanted, "no /sys in the container to mount libraries in");
    preload::check_installed(wanted)
}

/// Adds the variables of `plan` to the environment in a bundle's configuration.
pub(super) fn add_variables(config: &mut Value, plan: LaunchPlan) -> anyhow::Result<()> {
    let room = room(config);
    let process = bundle::entry(config, "process", json!({}))?;
    let env = bundle::entry(process, "env", json!([]))?;
    let mut words: Vec<String> = serde_json::from_value(env.clone())?;
    launch::apply_container_env(plan, room, online_cpu_count()?, &mut words);
    *env = json!(words);
    Ok(())
}

/// CPUs of the machine, whatever this process may use of them.
pub fn online_cpu_count() -> anyhow::Result<u32> {
    Ok(online(&Root::host()?)?.count())
}

/// The hook's arguments for `wanted`.
pub(crate) fn hook_arguments(wanted: RuntimeInjection) -> Vec<String> {
    let names: Vec<&str> = RuntimeInjection { env: false, ..wanted }.names().collect();
    if names.is_empty() { Vec::new() } else { vec![INJECTION_FLAG.to_owned(), names.join(",")] }
}

/// What the hook was told by [`hook_arguments`].
pub(super) fn parse_names(names: &str) -> RuntimeInjection {
    let has = |name: &str| names.split(',').any(|known| known == name);
    RuntimeInjection { java: has("java"), openmp: has("openmp"), libc: has("libc"), env: false }
}

/// What is known of the container of a bundle before it is made.
pub fn bundle_container(bundle: &Path, config: &Value) -> LaunchRequest {
    // Podman's and CRI-O's bundles are a directory in that of the container.
    let named = if bundle.ends_with("userdata") { bundle.parent().unwrap_or(bundle) } else { bundle };
    let id = named.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let known = read_docker_config(&id, config).unwrap_or_default();
    let mut labels: BTreeMap<String, String> = known.config.labels.unwrap_or_default();
    let annotations = config.get("annotations").cloned().unwrap_or_default();
    labels.extend(serde_json::from_value::<BTreeMap<String, String>>(annotations).unwrap_or_default());
    let in_pod = POD_NAME_ANNOTATIONS.iter().find_map(|key| labels.get(*key).cloned());
    let name = known.name.map(|name| name.trim_start_matches('/').to_owned());
    let name = name.or_else(|| in_pod.clone()).or_else(|| labels.get(NERDCTL_NAME_ANNOTATION).cloned());
    labels.retain(|key, _| key.starts_with(label::PREFIX));
    if let Some(name) = in_pod {
        // The engine has put those of the pod among its own.
        let all = labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let own = label::for_container(all, &name, |_| true);
        labels = own.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    }
    LaunchRequest { id, name, labels }
}

/// What Docker keeps about a container.
#[derive(Default, Deserialize)]
struct DockerContainerFile {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Name")]
    name: Option<String>,
    #[serde(rename = "Config", default)]
    config: DockerConfigLabels,
}

#[derive(Default, Deserialize)]
struct DockerConfigLabels {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// Docker tells a runtime no labels. It keeps them beside the files that it mounts into every container: `/etc/hostname`,
/// `/etc/hosts` and `/etc/resolv.conf` are in `<data root>/containers/<id>`, wherever the data root is.
fn read_docker_config(id: &str, config: &Value) -> Option<DockerContainerFile> {
    let sources = entries(config, "/mounts").filter_map(|mount| mount["source"].as_str());
    let dir = sources.filter_map(|source| Path::new(source).parent()).find(|dir| dir.ends_with(id))?;
    let text = bounded::file(dir.join("config.v2.json"), bounded::KERNEL_FILE).ok()?;
    serde_json::from_slice::<DockerContainerFile>(&text).ok().filter(|known| known.id == id)
}

/// The room that a bundle's limits leave (runtime-spec, config-linux.md).
fn room(config: &Value) -> LaunchLimits {
    let number = |path: &str| config.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let period = config.pointer("/linux/resources/cpu/period").and_then(Value::as_u64).unwrap_or(0);
    let cpus = config.pointer("/linux/resources/cpu/cpus").and_then(Value::as_str).unwrap_or_default();
    LaunchLimits::from_oci(
        number("/linux/resources/cpu/quota"),
        period,
        cpus,
        number("/linux/resources/memory/limit"),
    )
}

fn entries<'a>(config: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    config.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Bytes;

    #[test]
    fn limits_of_a_bundle_leave_room() {
        let resources = json!({ "cpu": { "quota": 150_000, "cpus": "0-3" }, "memory": { "limit": 1 << 30 } });
        let given = room(&json!({ "linux": { "resources": resources } }));
        assert_eq!(given, LaunchLimits { cpus: Some(2), memory: Some(Bytes::gib(1)) });
        let resources = json!({ "cpu": { "quota": "x", "cpus": 1 }, "memory": [] });
        assert_eq!(room(&json!({ "linux": { "resources": resources } })), LaunchLimits::default());
        assert_eq!(room(&json!({})), LaunchLimits::default());
    }

    #[test]
    fn variables_join_the_containers_own() {
        let mut config = json!({
            "process": { "env": ["PATH=/bin", "GOMAXPROCS=7"], "args": ["x"] },
            "linux": { "resources": { "cpu": { "quota": 100_000 } } },
        });
        let injections = RuntimeInjection { env: true, ..RuntimeInjection::default() };
        let wanted = LaunchPlan { injections, ..LaunchPlan::default() };
        add_variables(&mut config, wanted).unwrap();
        let words: Vec<&str> = entries(&config, "/process/env").filter_map(Value::as_str).collect();
        assert_eq!(words[..2], ["PATH=/bin", "GOMAXPROCS=7"]);
        assert!(words.contains(&"OMP_NUM_THREADS=1") && words.iter().all(|word| *word != "GOMAXPROCS=1"));
        for odd in [json!([]), json!({ "process": [] }), json!({ "process": { "env": [1] } })] {
            let mut config = odd.clone();
            assert!(add_variables(&mut config, wanted).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_team_may_be_as_wide_as_the_machine_whatever_the_wrapper_may_use() {
        let told = std::thread::spawn(|| {
            let mut one = rustix::thread::CpuSet::new();
            one.set(rustix::thread::sched_getcpu());
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            let mut config = json!({ "process": {} });
            let injections = RuntimeInjection { openmp: true, ..RuntimeInjection::default() };
            add_variables(&mut config, LaunchPlan { hook: true, injections, ..LaunchPlan::default() })
                .unwrap();
            config
        });
        let machine = online_cpu_count().unwrap();
        let config = told.join().unwrap();
        let expect = format!("OMP_NUM_THREADS={machine}");
        assert!(entries(&config, "/process/env").any(|word| *word == *expect), "{expect}: {config}");
    }

    #[test]
    fn the_hook_is_told_what_to_mount() {
        let wanted = RuntimeInjection { java: true, libc: true, env: true, openmp: false };
        let args = hook_arguments(wanted);
        assert_eq!(args, [INJECTION_FLAG, "java,libc"]);
        assert_eq!(parse_names(&args[1]), RuntimeInjection { env: false, ..wanted });
        assert!(hook_arguments(RuntimeInjection { env: true, ..RuntimeInjection::default() }).is_empty());
        assert!(parse_names("x,,").is_none());
    }

    #[test]
    fn labels_are_found_where_engines_keep_them() {
        let dir = tempfile::tempdir().unwrap();
        let (bundle, state) = (dir.path().join("bundles/4f5e"), dir.path().join("containers/4f5e"));
        std::fs::create_dir_all(&bundle).unwrap();
        std::fs::create_dir_all(&state).unwrap();
        let config = |annotations: Value, kept: Value| {
            std::fs::write(state.join("config.v2.json"), kept.to_string()).unwrap();
            let mounts = json!([{ "source": "proc" }, { "source": state.join("hostname") }]);
            json!({ "mounts": mounts, "annotations": annotations })
        };
        let known = |annotations, kept| {
            let made = bundle_container(&bundle, &config(annotations, kept));
            (made.id, made.name, made.labels.into_keys().collect::<Vec<_>>())
        };
        let kept = |labels: Value| json!({ "ID": "4f5e", "Name": "/web", "Config": { "Labels": labels } });
        let java = json!({ "elbowroom.dev/java": "on", "x": "y" });
        let expect = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let web = || Some("web".to_owned());
        assert_eq!(known(Value::Null, kept(Value::Null)), ("4f5e".into(), web(), vec![]));
        assert_eq!(
            known(Value::Null, kept(java.clone())),
            ("4f5e".into(), web(), expect(&["elbowroom.dev/java"]))
        );
        let other = json!({ "ID": "0000", "Config": { "Labels": java } });
        assert_eq!(known(Value::Null, other), ("4f5e".into(), None, vec![]), "another container's labels");
        let notes = json!({ "elbowroom.dev/env": "on", "io.kubernetes.container.name": "web" });
        let made =
            bundle_container(Path::new("/run/containers/4f5e/userdata"), &json!({ "annotations": notes }));
        assert_eq!((made.id.as_str(), made.name, made.labels.len()), ("4f5e", web(), 1));
        // No agent is there to ask: what only labels want is left out, and views are wanted.
        for (notes, hook) in
            [(json!({}), true), (json!({ "elbowroom.dev/views": "off" }), false), (notes, true)]
        {
            let config = config(notes, Value::Null);
            let plan = launch_plan(&bundle, &config, dir.path(), &ContainerSettings::default());
            assert_eq!(plan, LaunchPlan { hook, ..LaunchPlan::default() });
        }
        // Of a pod's annotations those count that are for all its containers or for this one, which go first.
        let notes = json!({
            "elbowroom.dev/env": "on", "elbowroom.dev/env.web": "off", "elbowroom.dev/views.db": "off",
            "elbowroom.dev/java.web": "on", "io.kubernetes.cri.container-name": "web"
        });
        let made = bundle_container(&bundle, &json!({ "annotations": notes }));
        let own = [("elbowroom.dev/env", "off"), ("elbowroom.dev/java", "on")];
        assert_eq!(made.labels, own.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        // One of Docker is in no pod.
        let dotted = known(Value::Null, kept(json!({ "elbowroom.dev/views.web": "off" })));
        assert_eq!(dotted.2, expect(&["elbowroom.dev/views.web"]));
        let notes = json!({ "elbowroom.dev/seccomp": "on", "io.kubernetes.container.name": "web" });
        let config = config(notes, Value::Null);
        let planned = |exclude: &[&str]| {
            let exclude = exclude.iter().map(|pattern| (*pattern).to_owned()).collect();
            let node = ContainerSettings { exclude, ..ContainerSettings::default() };
            launch_plan(&bundle, &config, dir.path(), &node)
        };
        assert!(planned(&["db"]).seccomp);
        for exclude in ["w*", "4f*"] {
            assert_eq!(planned(&[exclude]), LaunchPlan::default(), "{exclude}");
        }
    }
}
