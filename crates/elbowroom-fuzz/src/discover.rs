use elbowroom_linux::discover::ContainerDiscovery;
use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::root::Root;
use elbowroom_types::label::LabelPolicy;
use elbowroom_types::container::ContainerEngine;
use std::cell::RefCell;
use std::path::Path;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const DOCKER: &str = "/var/lib/docker";
const RUN_LABELS: &str = "/run/elbowroom/labels";
const TASKS: &str = "run/containerd/io.containerd.runtime.v2.task";
/// Podman reads the first list that has a container; one that is no JSON is an error before the second is reached.
const LISTS: [&str; 2] = ["overlay", "vfs"];

thread_local! {
    static HOST: RefCell<Fixture> = RefCell::new(Fixture::new("").expect("a temporary directory"));
}

/// Arbitrary cgroup paths, and state files of every engine: whatever is found is a container with an id that is a word, and names
/// that fit on a line. `path NUL state NUL list`: the state is what an engine keeps of a container, the list is all of Podman's.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.splitn(3, '\0');
    let (path, state) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let known = format!("[{{\"id\":\"{ID}\",\"names\":[\"db\"]}}]");
    let list = parts.next().unwrap_or(&known);
    HOST.with_borrow(|host| {
        let root = Root::at(host.path()).expect("the directory is there");
        let storage = |below: &str| format!("{below}/containers/storage");
        let lists = LISTS.map(|driver| format!("{}/{driver}-containers/containers.json", storage("var/lib")));
        let (written, other) = (list.len() % 2, 1 - list.len() % 2);
        for (file, text) in [
            ("etc/docker/daemon.json", state),
            (&format!("{DOCKER}/containers/{ID}/config.v2.json"), state),
            (&format!("{TASKS}/k8s.io/{ID}/config.json"), state),
            (&format!("{TASKS}/default/web/config.json"), state),
            (&format!("{}/overlay-containers/{ID}/userdata/config.json", storage("var/lib")), state),
            (&format!("{}/overlay-containers/{ID}/userdata/config.json", storage("run")), state),
            (&format!("{RUN_LABELS}/web"), state),
            (&lists[written], list),
        ] {
            host.write(file, text).expect("the file can be written");
        }
        let _ = host.remove(&lists[other]);
        let paths = [
            path,
            &format!("docker/{ID}"),
            &format!("cri-containerd-{ID}.scope"),
            "default/web",
            &format!("libpod-{ID}.scope"),
            &format!("crio-{ID}"),
            "elbowroom/web",
            &format!("mine/{ID}"),
        ];
        // Where Docker has its state is said to it, or read from its own file.
        for docker in [Some(Path::new(DOCKER)), None] {
            let discover =
                ContainerDiscovery::new(&root, &["/plain/**".to_owned()], docker, LabelPolicy::All);
            let mut discover = discover.with_run_labels(Some(Path::new(RUN_LABELS)));
            for path in paths {
                let Ok(Some(found)) = discover.find(&root, path, false) else { continue };
                let container = found.container;
                assert!(!container.id.is_empty() && !container.id.contains('\n'));
                assert!(
                    // The names of systemd's units are escaped.
                    matches!(container.engine, ContainerEngine::Plain | ContainerEngine::Nspawn)
                        || path.contains(&container.id),
                    "{path:?}"
                );
                let (pod, namespace) = container.pod.map_or((None, None), |pod| (pod.name, pod.namespace));
                for name in [container.name, pod, namespace].into_iter().flatten() {
                    assert!(name.chars().count() <= 128 && !name.contains(char::is_control), "{name:?}");
                }
            }
        }
    });
    let _ = elbowroom_types::glob::matches(state, path);
}
