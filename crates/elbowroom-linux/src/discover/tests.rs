//! Containers found below whole fixture hosts, of all engines.

use super::paths::{path_claim, pod_uid};
use super::record::printable;
use super::*;
use crate::fixture::Fixture;
use elbowroom_types::claim::Claim;
use elbowroom_types::lookup::find_container;
use proptest::prelude::*;

const HEX: &str = "4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34";

fn find(archive: &str, path: &str) -> Option<ContainerIdentity> {
    let host = Fixture::new(archive).unwrap();
    let root = Root::at(host.path()).unwrap();
    let found = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All).find(&root, path, false).unwrap();
    found.map(|f| f.container)
}

fn engine(path: &str) -> Option<(ContainerEngine, String)> {
    find("", path).map(|c| (c.engine, c.id))
}

#[test]
fn paths_tell_engines_apart() {
    let is = |e| Some((e, HEX.to_owned()));
    let uid = "1a2b3c4d-1111-2222-3333-444455556666";
    for (path, expect) in [
        (format!("docker/{HEX}"), is(ContainerEngine::Docker)),
        (format!("system.slice/docker-{HEX}.scope"), is(ContainerEngine::Docker)),
        (format!("kubepods/burstable/pod{uid}/{HEX}"), is(ContainerEngine::Containerd)),
        (
            format!("kubepods.slice/kubepods-pod{}.slice/cri-containerd-{HEX}.scope", uid.replace('-', "_")),
            is(ContainerEngine::Containerd),
        ),
        (format!("kubepods/pod{uid}/crio-{HEX}"), is(ContainerEngine::Crio)),
        (format!("machine.slice/libpod-{HEX}.scope"), is(ContainerEngine::Podman)),
        (format!("libpod_parent/libpod-{HEX}"), is(ContainerEngine::Podman)),
        ("elbowroom/web".into(), Some((ContainerEngine::Elbowroom, "web".into()))),
        (format!("system.slice/web.service/libpod-payload-{HEX}"), is(ContainerEngine::Podman)),
        (
            format!("machine.slice/machine-libpod_pod_{HEX}.slice/libpod-{HEX}.scope"),
            is(ContainerEngine::Podman),
        ),
        (format!("system.slice:docker:{HEX}"), is(ContainerEngine::Docker)),
        (
            format!(
                "system.slice/containerd.service/kubepods-pod{}.slice:cri-containerd:{HEX}",
                uid.replace('-', "_")
            ),
            is(ContainerEngine::Containerd),
        ),
        (format!("system.slice:web:{HEX}"), None),
        ("system.slice:docker:web".into(), None),
        ("lxc.payload.web".into(), Some((ContainerEngine::Lxc, "web".into()))),
        ("lxc.payload.shop_web-1".into(), Some((ContainerEngine::Lxc, "shop_web-1".into()))),
        ("system.slice/lxc@web.service/lxc.payload.web".into(), Some((ContainerEngine::Lxc, "web".into()))),
        ("lxc/web".into(), Some((ContainerEngine::Lxc, "web".into()))),
        ("lxc.monitor.web".into(), None),
        ("machine.slice/systemd-nspawn@web.service".into(), Some((ContainerEngine::Nspawn, "web".into()))),
        (
            r"machine.slice/systemd-nspawn@web\x2d1.service".into(),
            Some((ContainerEngine::Nspawn, "web-1".into())),
        ),
        ("machine.slice/systemd-nspawn@web.service/payload".into(), None),
        ("machine.slice/machine-web.scope".into(), None),
        ("machine.slice/systemd-machined.service".into(), None),
        (format!("machine.slice/libpod-conmon-{HEX}.scope"), None),
        (format!("kubepods/pod{uid}/crio-conmon-{HEX}.scope"), None),
        ("system.slice/docker-proxy.scope".into(), None),
        ("system.slice/docker.service".into(), None),
        ("elbowroom".into(), None),
        ("elbowroom/web/worker".into(), None),
        (format!("kubepods/burstable/pod{uid}"), None),
        (format!("mine/{HEX}"), None),
        ("default/web".into(), None),
        ("docker".into(), None),
        (String::new(), None),
    ] {
        assert_eq!(engine(&path), expect, "{path}");
    }
}

#[test]
fn an_engines_configuration_counts_whenever_it_is_written() {
    let docker = format!("docker/{HEX}");
    let podman = format!("machine.slice/libpod-{HEX}.scope");
    let state = format!("srv/engine/containers/{HEX}/config.v2.json");
    let list = "srv/engine/overlay-containers/containers.json";
    for (path, [config, text], [file, says]) in [
        (
            &docker,
            ["etc/docker/daemon.json", "{\"data-root\":\"/srv/engine\"}"],
            [state.as_str(), "{\"Name\":\"/db\"}"],
        ),
        (
            &podman,
            ["etc/containers/storage.conf", "[storage]\ngraphroot = \"/srv/engine\"\n"],
            [list, &format!("[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]")],
        ),
    ] {
        let host = Fixture::new("").unwrap();
        host.write(file, says).unwrap();
        let root = Root::at(host.path()).unwrap();
        let mut discovery = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All);
        let mut name = || discovery.find(&root, path, false).unwrap().and_then(|found| found.container.name);
        assert_eq!(name(), None, "{path}");
        host.write(config, &text[..text.len() - 3]).unwrap();
        assert_eq!(name(), None, "{path}: half written");
        host.write(config, text).unwrap();
        assert_eq!(name().as_deref(), Some("db"), "{path}");
        host.remove(config).unwrap();
        assert_eq!(name(), None, "{path}");
    }
}

#[test]
fn labels_are_read_from_the_engines_own_files() {
    let label = "\"elbowroom.dev/views\":\"off\"";
    let docker = format!(
        "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Config\":{{\"Labels\":{{{label}}}}}}}\n"
    );
    let bundle = |file: &str| format!("-- {file} --\n{{\"annotations\":{{{label}}}}}\n");
    let storage = "var/lib/containers/storage/overlay-containers";
    let podman = format!("-- {storage}/containers.json --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n");
    for (archive, path) in [
        (docker, format!("docker/{HEX}")),
        (
            bundle("run/containerd/io.containerd.runtime.v2.task/default/web/config.json"),
            "default/web".to_owned(),
        ),
        (
            podman + &bundle(&format!("{storage}/{HEX}/userdata/config.json")),
            format!("machine.slice/libpod-{HEX}.scope"),
        ),
        (
            bundle(&format!("run/containers/storage/overlay-containers/{HEX}/userdata/config.json")),
            format!("crio-{HEX}"),
        ),
    ] {
        assert_eq!(find(&archive, &path).unwrap().labels.views, Some(false), "{path}");
    }
}

#[test]
fn rare_places_of_state_files_are_known() {
    let label = "\"elbowroom.dev/views\":\"off\"";
    let docker = |dir: &str| {
        format!(
            "-- {dir}/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/db\",\"Config\":{{\"Labels\":{{{label}}}}}}}\n"
        )
    };
    let storage = |dir: &str, list: &str| {
        format!(
            "-- {dir}/{list} --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n\
             -- {dir}/{HEX}/userdata/config.json --\n{{\"annotations\":{{{label}}}}}\n"
        )
    };
    let moved =
        "-- etc/containers/storage.conf --\n[storage]\ndriver = \"overlay\"\ngraphroot = \"/srv/pods\"\n";
    let given = "\"io.kubernetes.container.name\":\"db\",\"io.kubernetes.cri-o.Annotations\":\"{\\\"elbowroom.dev/views\\\":\\\"off\\\"}\"";
    let (podman, payload) =
        (format!("libpod_parent/libpod-{HEX}"), format!("system.slice/db.service/libpod-payload-{HEX}"));
    for (archive, path) in [
        (docker("var/lib/docker/231072.231072"), format!("docker/{HEX}")),
        (docker("var/lib/docker/231072.231072"), format!("mine.slice/{HEX}")),
        (docker("var/snap/docker/common/var-lib-docker"), format!("docker/{HEX}")),
        (
            format!(
                "-- etc/docker/daemon.json --\n{{\"data-root\":\"/srv/d\"}}\n{}",
                docker("srv/d/100000.65536")
            ),
            format!("docker/{HEX}"),
        ),
        (storage("var/lib/containers/storage/overlay-containers", "containers.json"), payload),
        (
            storage("var/lib/containers/storage/overlay-containers", "volatile-containers.json"),
            podman.clone(),
        ),
        (storage("var/lib/containers/storage/zfs-containers", "containers.json"), podman.clone()),
        (format!("{moved}{}", storage("srv/pods/overlay-containers", "containers.json")), podman),
        (
            format!(
                "-- run/containers/storage/vfs-containers/{HEX}/userdata/config.json --\n{{\"annotations\":{{{given}}}}}\n"
            ),
            format!("crio-{HEX}"),
        ),
        (
            format!(
                "-- etc/crio/crio.conf.d/10-own.conf --\n[crio]\nroot = \"/srv/crio\"\nrunroot = \"/srv/run\" # ours\n\
                 -- srv/run/overlay-containers/{HEX}/userdata/config.json --\n{{\"annotations\":{{{given}}}}}\n"
            ),
            format!("crio-{HEX}"),
        ),
    ] {
        let found = find(&archive, &path).unwrap();
        assert_eq!(
            (found.name.as_deref(), found.labels.views),
            (Some("db"), Some(false)),
            "{path}: {archive}"
        );
    }
    // A directory that only looks like one of a remapped root.
    assert_eq!(find(&docker("var/lib/docker/overlay2.old"), &format!("docker/{HEX}")).unwrap().name, None);
}

#[test]
fn a_pattern_for_a_rootless_engine_takes_no_monitor_for_a_container() {
    let host = Fixture::new("").unwrap();
    let root = Root::at(host.path()).unwrap();
    let patterns = ["/user.slice/**/libpod-*".to_owned()];
    let mut discover = ContainerDiscovery::new(&root, &patterns, None, LabelPolicy::All);
    for (unit, is_one) in
        [(format!("libpod-{HEX}.scope"), true), (format!("libpod-conmon-{HEX}.scope"), false)]
    {
        let path = format!("user.slice/user-1000.slice/user@1000.service/user.slice/{unit}");
        let found = discover.find(&root, &path, false).unwrap();
        let expect = is_one.then(|| (ContainerEngine::Plain, format!("/{path}"), None));
        assert_eq!(
            found.map(|found| (found.container.engine, found.container.id, found.container.name)),
            expect
        );
    }
}

#[test]
fn a_registered_machine_is_a_container_if_machined_says_so() {
    let machine = |class: &str| {
        format!("-- run/systemd/machines/web-1 --\n# This is private data.\nNAME=web-1\nCLASS={class}\n")
    };
    let path = r"machine.slice/machine-web\x2d1.scope";
    let found = find(&machine("container"), path).unwrap();
    assert_eq!(
        (found.engine, found.id.as_str(), found.name.as_deref()),
        (ContainerEngine::Nspawn, "web-1", Some("web-1"))
    );
    assert_eq!(find(&machine("vm"), path), None);
}

#[test]
fn a_run_has_the_labels_of_its_own_file() {
    let archive = "-- run/elbowroom/labels/web --\n{\"elbowroom.dev/priority\":\"tier=1\"}\n";
    let host = Fixture::new(archive).unwrap();
    let root = Root::at(host.path()).unwrap();
    let dir = Some(Path::new("/run/elbowroom/labels"));
    let mut discover = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All).with_run_labels(dir);
    let mut find = |path| discover.find(&root, path, false).unwrap().unwrap();
    let (web, db) = (find("elbowroom/web"), find("elbowroom/db"));
    assert_eq!(web.container.labels.claim().tier, 1);
    assert_eq!(web.state.unwrap().0, Path::new("/run/elbowroom/labels/web"));
    assert_eq!((db.container.name.as_deref(), db.container.labels), (Some("db"), ContainerLabels::default()));
    assert_eq!(db.state, None);
}

#[test]
fn a_pods_uid_reads_the_same_from_both_drivers() {
    let uid = "1a2b3c4d-1111-2222-3333-444455556666";
    for path in [
        format!("kubepods/besteffort/pod{uid}/{HEX}"),
        format!(
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/crio-{HEX}.scope",
            uid.replace('-', "_")
        ),
    ] {
        assert_eq!(find("", &path).unwrap().pod.unwrap().uid, uid, "{path}");
    }
}

#[test]
fn engines_state_files_give_names() {
    let docker = format!(
        "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/web\",\"Config\":{{\"Labels\":null}}}}\n"
    );
    assert_eq!(find(&docker, &format!("docker/{HEX}")).unwrap().name.as_deref(), Some("web"));
    assert_eq!(find(&docker, &format!("mine/{HEX}")).unwrap().engine, ContainerEngine::Docker);
    let moved = format!(
        "-- etc/docker/daemon.json --\n{{\"data-root\":\"/srv/docker\"}}\n{}",
        docker.replace("var/lib/docker", "srv/docker")
    );
    assert_eq!(find(&moved, &format!("docker/{HEX}")).unwrap().name.as_deref(), Some("web"));

    let podman = format!(
        "-- var/lib/containers/storage/overlay-containers/containers.json --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n"
    );
    assert_eq!(
        find(&podman, &format!("machine.slice/libpod-{HEX}.scope")).unwrap().name.as_deref(),
        Some("db")
    );

    let task = "-- run/containerd/io.containerd.runtime.v2.task/default/web/config.json --\n{\"ociVersion\":\"1.1.0\"}\n";
    assert_eq!(find(task, "default/web").unwrap().engine, ContainerEngine::Containerd);
    assert_eq!(find(task, "default/other"), None);
}

#[test]
fn kubernetes_annotations_name_container_and_pod() {
    let bundle = |kind: &str| {
        format!(
            "-- run/containerd/io.containerd.runtime.v2.task/k8s.io/{HEX}/config.json --\n{{\"annotations\":{{\
             \"io.kubernetes.cri.container-type\":\"{kind}\",\"io.kubernetes.cri.container-name\":\"app\",\
             \"io.kubernetes.cri.sandbox-name\":\"app-0\",\"io.kubernetes.cri.sandbox-namespace\":\"prod\"}}}}\n"
        )
    };
    let path = format!("kubepods/pod1a2b3c4d-1111-2222-3333-444455556666/{HEX}");
    let app = find(&bundle("container"), &path).unwrap();
    let pod = app.pod.unwrap();
    assert_eq!(
        (app.name.as_deref(), pod.name.as_deref(), pod.namespace.as_deref()),
        (Some("app"), Some("app-0"), Some("prod"))
    );
    assert_eq!(find(&bundle("sandbox"), &path), None, "the pause container is none");
}

#[test]
fn a_pods_annotations_among_its_containers_are_for_the_one_they_name() {
    let notes = |own: &str| {
        format!(
            "{{\"annotations\":{{{own},\"elbowroom.dev/env\":\"off\",\"elbowroom.dev/env.app\":\"on\",\
             \"elbowroom.dev/views.side\":\"off\"}}}}\n"
        )
    };
    let crio = |kind: &str| {
        let own = format!(
            "\"io.kubernetes.cri-o.ContainerType\":\"{kind}\",\"io.kubernetes.container.name\":\"app\",\
             \"io.kubernetes.pod.name\":\"app-0\",\"io.kubernetes.pod.namespace\":\"prod\",\
             \"io.kubernetes.pod.uid\":\"1a2b3c4d-1111-2222-3333-444455556666\""
        );
        let file = format!("run/containers/storage/overlay-containers/{HEX}/userdata/config.json");
        format!("-- {file} --\n{}", notes(&own))
    };
    let own = "\"io.kubernetes.cri.container-name\":\"app\",\"io.kubernetes.cri.sandbox-name\":\"app-0\",\
               \"io.kubernetes.cri.sandbox-namespace\":\"prod\",\
               \"io.kubernetes.cri.sandbox-uid\":\"1a2b3c4d-1111-2222-3333-444455556666\"";
    let tasks = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
    let containerd = format!("-- {tasks}/{HEX}/config.json --\n{}", notes(own));
    for (archive, path) in [(crio("container"), "crio"), (containerd, "cri-containerd")] {
        let app = find(&archive, &format!("any/{path}-{HEX}")).unwrap();
        let pod = app.pod.unwrap();
        assert_eq!(
            (app.name.as_deref(), pod.name.as_deref(), pod.namespace.as_deref()),
            (Some("app"), Some("app-0"), Some("prod"))
        );
        assert_eq!(app.labels, ContainerLabels { env: Some(true), ..ContainerLabels::default() }, "{path}");
    }
    assert_eq!(find(&crio("sandbox"), &format!("any/crio-{HEX}")), None, "the pause container is none");
}

#[test]
fn an_image_does_not_say_that_its_container_is_none_or_a_pods() {
    let labels = r#""io.kubernetes.docker.type":"podsandbox","io.kubernetes.container.name":"db","io.kubernetes.pod.uid":"1a2b""#;
    let docker = format!(
        "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/web\",\"Config\":{{\"Labels\":{{{labels}}}}}}}\n"
    );
    let uid = "1a2b3c4d-1111-2222-3333-444455556666";
    for path in [format!("docker/{HEX}"), format!("system.slice/docker-{HEX}.scope"), format!("mine/{HEX}")] {
        let web = find(&docker, &path).unwrap();
        assert_eq!((web.name.as_deref(), web.pod), (Some("web"), None), "{path}");
    }
    assert_eq!(find(&docker, &format!("kubepods/pod{uid}/{HEX}")), None, "the pause container is none");
    let app = docker.replace("podsandbox", "container");
    let app = find(&app, &format!("kubepods/pod{uid}/docker-{HEX}.scope")).unwrap();
    assert_eq!((app.name.as_deref(), app.pod.unwrap().uid.as_str()), (Some("db"), uid));
}

#[test]
fn hostile_names_are_harmless() {
    let named = |name: &str| {
        let json = serde_json::to_string(name).unwrap();
        let archive = format!("-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":{json}}}\n");
        find(&archive, &format!("docker/{HEX}")).unwrap().name
    };
    assert_eq!(named("/a\nb\u{1b}[31m\u{202e}").as_deref(), Some("a\u{fffd}b\u{fffd}[31m\u{fffd}"));
    assert_eq!(named(&"x".repeat(10_000)).unwrap().len(), 128);
    assert_eq!(named("/"), None);
    for path in
        ["elbowroom/..", "elbowroom/.", "default/..", "../../etc", "elbowroom/a\nb", "elbowroom/\u{fffd}"]
    {
        assert_eq!(find("", path), None, "{path:?}");
    }
    let path = format!("kubepods/pod{}/{HEX}", "../".repeat(30));
    assert_eq!(find("", &path), None);
    let long = format!("elbowroom/{}", "x".repeat(10_000));
    assert_eq!(find("", &long), None);
}

#[test]
fn broken_state_is_an_error_that_quotes_it_and_names_the_file() {
    let host = Fixture::new(&format!(
        "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{{}\"Name\": tru}}\n",
        " ".repeat(500)
    ))
    .unwrap();
    let root = Root::at(host.path()).unwrap();
    let err = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All)
        .find(&root, &format!("docker/{HEX}"), false)
        .unwrap_err()
        .to_string();
    assert!(err.contains("config.v2.json") && err.contains("tru"), "{err}");
}

#[test]
fn a_cgroup_inside_a_container_is_a_part_of_it_unless_configured_or_an_engines() {
    let host = Fixture::new(&format!(
        "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/other\"}}\n"
    ))
    .unwrap();
    let root = Root::at(host.path()).unwrap();
    let mut discover =
        ContainerDiscovery::new(&root, &["/docker/*/inner".to_owned()], None, LabelPolicy::All);
    let mut find = |path: &str| {
        discover.find(&root, &format!("docker/{HEX}/{path}"), true).unwrap().map(|found| found.container)
    };
    let uid = "1a2b3c4d-1111-2222-3333-444455556666";
    for part in ["container", "init.scope", "payload", "system.slice/web.service", "default/web", HEX] {
        assert_eq!(find(part), None, "{part}");
    }
    let plain = find("inner").unwrap();
    assert_eq!((plain.engine, plain.id), (ContainerEngine::Plain, format!("/docker/{HEX}/inner")));
    for path in [
        format!("docker/{HEX}"),
        format!("system.slice/docker-{HEX}.scope"),
        format!("kubelet/kubepods/pod{uid}/{HEX}"),
    ] {
        let nested = find(&path).unwrap();
        // What the host knows of the id in the path is not about it.
        let id = format!("/docker/{HEX}/{path}");
        assert_eq!((nested.id, nested.name, nested.labels.governors), (id, None, Some(false)), "{path}");
    }
}

#[test]
fn a_container_in_a_container_with_a_path_that_fills_tables_is_none() {
    let host = Fixture::new("").unwrap();
    let root = Root::at(host.path()).unwrap();
    let mut discover = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All);
    let id = "e".repeat(64);
    for (levels, is_one) in [(3, true), (15, false)] {
        let path = format!("docker/{id}{}/docker-{id}.scope", format!("/{}", "x".repeat(250)).repeat(levels));
        assert_eq!(discover.find(&root, &path, true).unwrap().is_some(), is_one, "{levels}");
    }
    for (control_characters, is_one) in [(100, true), (200, false)] {
        let path = format!("docker/{id}/{}/docker-{id}.scope", "\u{1}".repeat(control_characters));
        assert_eq!(discover.find(&root, &path, true).unwrap().is_some(), is_one, "{control_characters}");
    }
}

#[test]
fn a_cgroup_inside_a_container_is_not_called_as_a_neighbour_is() {
    let host = Fixture::new("").unwrap();
    let root = Root::at(host.path()).unwrap();
    let mut discover = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All);
    let neighbour = discover.find(&root, "lxc.payload.db", false).unwrap().unwrap().container;
    assert_eq!((neighbour.id.as_str(), neighbour.name.as_deref()), ("db", Some("db")));
    let wanted = Claim { container: "d*".into(), ..Claim::default() };
    assert!(wanted.matches(&neighbour));
    for inner in ["lxc.payload.db", "machine.slice/systemd-nspawn@db.service", "libpod-db"] {
        let path = format!("lxc.payload.web/{inner}");
        let nested = discover.find(&root, &path, true).unwrap().unwrap().container;
        assert!(!wanted.matches(&nested), "{path}");
        let names = [neighbour.names("lxc.payload.db"), nested.names(&path)];
        assert_eq!(find_container(&names, "db"), Ok(0), "{path}");
        assert_eq!(find_container(&names, &path), Ok(1), "{path}");
    }
}

proptest! {
    #[test]
    fn no_path_panics(path in "(docker|kubepods|pod|libpod-|/|\\*|[a-f0-9]{64}|.){0,12}") {
        let _ = (path_claim(&path), pod_uid(&path), printable(&path, 9));
    }
}
